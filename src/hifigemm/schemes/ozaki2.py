"""Ozaki scheme II: residues of scaled operands and the Chinese remainder theorem.

Idea
    A' = round(2**s_i A_ih), B' = round(2**t_j B_hj), integers with 2 sum_h |A'||B'| < P = prod p_l. A' B' mod p_l is
    one INT8 product for each modulus, the integer A' B' follows by the Chinese remainder theorem, and 2**-(s_i + t_j)
    A' B' is rounded once. Complex operands take two real products for a modulus with j**2 = -1 mod p, three for the
    others.
Notation
    s = row scale exponent, t = column scale exponent, p_l = moduli, P = modulus_product.
Exact when
    sum_h |A'||B'| <= half_range(P), by the choice of s and t in numerics/scaling.py, and k_block 128**2 < 2**31.
    The result is correctly rounded where 2**s_i A_i and 2**t_j B_j are integers already.
Cost
    num_moduli products, one more for accurate scaling, or of magnitudes where the operands tell how many they need;
    complex: 2 or 3 for each modulus.
References
    [OUI25] Ozaki scheme II, arXiv:2504.08009. [UOI25b] arXiv:2508.03984. [UMIOG26] complex, arXiv:2512.08321.
    [UOI26] error bounds, arXiv:2602.02549.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import ClassVar, Literal

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.numerics import residues as crt
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, Array, ceil_log2, lowest_bit, scale_by_power
from hifigemm.numerics.blocking import entries_within, largest_block, map_vectors, put, vector_blocks, widen
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.embedding import components, embed_left, embed_right
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP, magnitudes_up
from hifigemm.numerics.scaling import Scale
from hifigemm.plan import Outliers, Plan, Problem, Product, ProductSpec, Split, counted, fit_blocks
from hifigemm.schemes import certify
from hifigemm.schemes.outliers import find_outliers, may_pay, outlier_bytes
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.residue_products import (
    multiply_planes,
    num_planes,
    product_residues,
    residue_bytes,
    round_integers,
    rounded_integers,
    scaled_residues,
)
from hifigemm.schemes.scheme import Scheme, check_count, check_word, exact_int8, finished, product_spec

__all__ = ["Ozaki2"]


@dataclass(frozen=True)
class _Choice:
    """A number of moduli with what it means: see the fields of `Plan`."""

    count: int
    reason: str
    balance: int = 0
    exact: bool = False
    promised: bool = False
    hopeful: bool = False
    gated: bool = False
    outliers: Outliers | None = None


@dataclass(frozen=True)
class Ozaki2(Scheme):
    """Ozaki scheme II [OUI25].

    Parameters
    ----------
    product : "int8"
    num_moduli : int or None
        2 to 49; None chooses from the accuracy and the data.
    scaling : "accurate" or "fast"
        "fast" scales each operand by its own norms, so that a prepared operand keeps its residues; "accurate" looks at
        |A||B| with one more INT8 product, needs fewer moduli and survives wide exponents.
    """

    name: ClassVar[str] = "ozaki2"

    product: Literal["int8"] = "int8"
    num_moduli: int | None = None
    scaling: Literal["accurate", "fast"] = "accurate"

    def __post_init__(self) -> None:
        if self.product != "int8":
            raise PlanError(f'Ozaki2(product={self.product!r}): residues are INT8 words, product="int8"')
        check_count(self, "num_moduli", 2, crt.MAX_MODULI)
        check_word(self, "scaling")

    @property
    def explicit(self) -> bool:
        """Whether the number of moduli is forced."""
        return self.num_moduli is not None

    @property
    def reads_operands(self) -> bool:
        """Unless the number of moduli is forced."""
        return not self.explicit

    @property
    def count(self) -> int:
        """num_moduli, once a plan has filled it in."""
        if self.num_moduli is None:
            raise PlanError(f"{self} has no number of moduli yet: it comes from a plan")
        return self.num_moduli

    @property
    def scales_operands(self) -> bool:
        """Always."""
        return True

    @property
    def independent_splits(self) -> bool:
        """Fast scaling looks at one operand at a time."""
        return self.scaling == "fast"

    def plan(self, problem: Problem, a: Array, b: Array, target: Target, engine: Engine, workspace: int) -> Plan:
        """Choose the number of moduli from the target, or fewer where the operands are short integers."""
        spec = product_spec(engine, self.product, "Ozaki2")
        choice = self._choice(problem, a, b, target, engine, workspace)
        if self.scaling == "accurate":
            choice = replace(choice, reason=choice.reason + ", one more product for the scaling")
        scheme = replace(self, num_moduli=choice.count)
        fused = engine.fused and self.scaling == "fast"
        return _planned(
            scheme, problem, target, choice, self.explicit, engine.name, spec, engine.block_entries, fused, workspace
        )

    def gated_plan(self, problem: Problem, target: Target, engine: Engine, workspace: int) -> Plan | None:
        """The moduli that data of one size take, else FP64 sums: for float64 results at their own level."""
        if self.explicit or self.scaling != "fast" or problem.dtype != np.float64 or target.level is not problem.fmt:
            return None
        count = _expected_count(problem, target)
        reason = f"the device decides by the operands between {count} moduli and an FP64 product"
        worst = native_bound(problem.terms, problem.fmt.u)
        reason += f", at worst {worst:.3g} |A||B|{target.accepts(worst)}, which over- and underflows as a library's"
        scheme, choice = replace(self, num_moduli=count), _Choice(count, reason, gated=True)
        spec = product_spec(engine, self.product, "Ozaki2")
        plan = _planned(
            scheme, problem, target, choice, False, engine.name, spec, engine.block_entries, engine.fused, workspace
        )
        return replace(plan, worst_case=worst)

    def _choice(
        self,
        problem: Problem,
        a: Array,
        b: Array,
        target: Target,
        engine: Engine,
        workspace: int,
        ratio: float | None = None,
    ) -> _Choice:
        """The number of moduli for these operands, whose `certify.error_ratio` may be known already.

        Moduli that hold the exact product, where those are no more than the target takes anyway; else as many as the
        error ratio asks for, or those that are expected to do, where the engine finds the ratio on the way.
        """
        if self.num_moduli is not None:
            return _Choice(self.num_moduli, f"{self.num_moduli} moduli, as asked")
        count, block_entries = _expected_count(problem, target), entries_within(workspace, engine.block_entries)
        tells = self.scaling == "fast" and not target.correct and math.isfinite(target.r)
        hopeful = tells and ratio is None and engine.looks_on_the_way
        enough = None
        if tells and not hopeful and a.size and b.size:
            if ratio is None:
                ratio = certify.error_ratio(a, b, engine, block_entries, max(workspace // 256, 1))
            enough = _enough(problem, target, ratio)
            count = max(count, enough or 0)
        most = _reach(problem, crt.MAX_MODULI if target.correct else count)
        if target.correct and self.scaling == "fast" and engine.fused and may_pay(problem):
            each = engine.override(scaling.required_bits_of_vectors)(a, b, block_entries)
            required = scaling.widest(each, most)
        else:
            each, required = None, engine.override(scaling.required_bits)(a, b, most, block_entries)
        if required is not None:
            choice = _exact_choice(problem.is_complex, *required, self.scaling == "fast")
            return choice if each is None else replace(choice, outliers=find_outliers(problem, each, choice.count))
        if enough is None and not hopeful:
            return _Choice(count, f"{count} moduli for {target}")
        return replace(_promise(count, target), hopeful=hopeful)

    def most_required_bits(self, plan: Plan) -> int | None:
        """The limit up to which the choice behind a plan tells operands apart by their `scaling.required_bits`."""
        if plan.fixed:
            return None
        correct = plan.target.correct
        return _reach(plan.problem, crt.MAX_MODULI if correct else _expected_count(plan.problem, plan.target))

    def replan(self, plan: Plan, ratio: float, a: Array, b: Array, engine: Engine, workspace: int) -> Plan:
        """The plan for a ratio that was too large for a hopeful one: more moduli, or entries that are judged."""
        problem = plan.problem
        asked = replace(self, num_moduli=None)
        choice = asked._choice(problem, a, b, plan.target, engine, workspace, ratio)
        scheme = replace(self, num_moduli=choice.count)
        finer = _planned(
            *(scheme, problem, plan.target, choice, plan.fixed, plan.engine, plan.words),
            *(plan.most_block_entries, plan.fused, workspace),
        )
        return replace(finer, free=plan.free)

    def largest_ratio(self, plan: Plan) -> float:
        """Largest `certify.error_ratio` of operands for which the plan's moduli keep the target in every entry."""
        return _largest_ratio(plan.problem.terms, plan.target.r, _moduli(plan.problem, self.count).half_range)

    def expected_products(self, problem: Problem, target: Target) -> int:
        """Products that operands without wide exponents take."""
        return num_planes(_moduli(problem, _expected_count(problem, target)), problem.is_complex)

    def fit(self, plan: Plan, problem: Problem, workspace: int) -> Plan:
        """Blocks by the bytes of residues and working copies of rows and columns, and of residues of entries."""
        width = 2 if problem.is_complex else 1
        count, k = self.count, problem.k
        moduli = _moduli(problem, count)
        facts = 9 * width * width
        converted = 4 * min(1024, k)
        per_product = num_planes(moduli, problem.is_complex)
        per_vector = k * (per_product + facts) + converted
        block_entries = entries_within(workspace, plan.most_block_entries)
        passing = min(largest_block(k, block_entries), problem.batch * max(problem.m, problem.n) * k)
        passing *= width * (12 * 8 + 2 * count)
        looks = width if plan.hopeful or plan.gated else 0

        def need(batch: int, rows: int, cols: int) -> int:
            if plan.outliers is not None:
                return residue_bytes(rows, cols, k, plan.outliers.shared) + outlier_bytes(
                    plan.outliers, problem, rows, cols
                )
            if plan.fused and not plan.certifies:
                return batch * residue_bytes(rows, cols, k, per_product, looks)
            entries = batch * rows * cols * width
            rounding = min(entries, block_entries) * (4 * moduli.limb_count + count + 30) * 8
            return batch * (rows + cols) * per_vector + entries * (count + 120) + passing + rounding

        return fit_blocks(replace(plan, problem=problem, block_entries=block_entries), need, workspace)

    def scales(self, plan: Plan, x: Array, side: str, engine: Engine) -> Scale:
        """Scale by Cauchy-Schwarz."""
        axis, sign = (2, 1) if side == "left" else (1, -1)
        moduli = _moduli(plan.problem, self.count)
        return engine.override(scaling.norm_scale)(x, axis, moduli, sign * plan.balance, plan.block_entries)

    def joint_scales(self, plan: Plan, a: Array, b: Array, engine: Engine) -> tuple[Scale, Scale]:
        """Scales from an INT8 product of magnitudes."""
        moduli = _moduli(plan.problem, self.count)
        left = map_vectors(lambda x: _exponent(x, 2), a, 2, plan.block_entries)
        right = map_vectors(lambda x: _exponent(x, 1), b, 1, plan.block_entries)
        rows, cols = _largest_sums(plan, a, b, left, right, engine)

        def scale(sums: Array, own: Array, balance: int, axis: int) -> Scale:
            s = scaling.scale_exponent(sums, own, MAGNITUDE_BITS_UP, moduli) + balance
            return Scale(s, s + own >= MAGNITUDE_BITS_UP, axis, moduli.half_range.bit_length() + 1 + abs(balance))

        return scale(rows, left, plan.balance, 2), scale(cols, right, -plan.balance, 1)

    def split(self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine) -> Split:
        """Residues of the scaled and rounded operand; for complex operands two or three planes for each modulus.

        facts: `delta`, what rounding can have changed in units of the integers (0 where they are exact); `sums`, upper
        bounds of the row or column sums of magnitudes in units of 2**(exponent - 6).
        """
        if scale is None:
            raise PlanError(f"{self}: a split needs its scale")
        moduli = _moduli(plan.problem, self.count)
        planes = engine.override(scaled_residues)(x, scale, moduli, plan.block_entries)
        width = 2 if side == "right" and plan.problem.is_complex else 1
        facts = _facts(plan, x, scale, width) if plan.certifies else {}
        unit = -_widened(scale.exponent, scale.axis, width)
        return Split(side, x.shape[3 - scale.axis], planes, unit, planes.shape[1], facts, k_major=True)

    def multiply(self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int) -> Product:
        """Residues of the product modulus by modulus, reconstruction, one rounding."""
        problem = plan.problem
        moduli = _moduli(problem, self.count)
        products = engine.override(multiply_planes)(left.planes, right.planes, moduli, engine)
        units = left.unit, right.unit
        if not plan.certifies:
            values = engine.override(rounded_integers)(products, *units, shift, moduli, problem.fmt, plan.block_entries)
            return finished(problem, values, None, self.stated_bound(plan), left.count)
        residues = product_residues(products, moduli)
        error = _error(left, right)
        err = np.frexp(error)[1].astype(np.int64)
        lowest = left.facts["exponent"] + right.facts["exponent"] - left.unit - right.unit
        rounded = round_integers(residues, *units, shift, moduli, problem.fmt, plan.block_entries, err + lowest)
        certified, bound = certify.certified_entries(plan, left, right, engine, rounded, error == 0, err, lowest)
        return finished(problem, rounded.values, certified, bound, left.count)

    def escalate(self, plan: Plan, problem: Problem, workspace: int, engine: Engine) -> Plan | None:
        """Half as many moduli again; None where the largest number was not enough."""
        if self.count == crt.MAX_MODULI:
            empty = np.zeros((1, 1, 1))
            return Ozaki1().plan(problem, empty, empty, plan.target, engine, workspace) if plan.free else None
        count = min(self.count + self.count // 2, crt.MAX_MODULI)
        scheme = replace(self, num_moduli=count)
        num_products = num_planes(_moduli(problem, count), problem.is_complex)
        reason = f"escalated to {count} moduli"
        finer = replace(plan, scheme=scheme, num_products=num_products, balance=0, reason=reason)
        return scheme.fit(finer, problem, workspace)


@lru_cache(maxsize=256)
def _planned(
    scheme: Ozaki2,
    problem: Problem,
    target: Target,
    choice: _Choice,
    fixed: bool,
    engine: str,
    spec: ProductSpec,
    most_block_entries: int,
    fused: bool,
    workspace: int,
) -> Plan:
    """The plan of a choice, kept for the next product of this kind: small products are quick."""
    plan = Plan(
        problem,
        scheme,
        target,
        engine,
        spec,
        num_planes(_moduli(problem, choice.count), problem.is_complex),
        spec.k_block,
        choice.reason,
        fixed,
        balance=choice.balance,
        exact=choice.exact,
        promised=choice.promised,
        hopeful=choice.hopeful,
        gated=choice.gated,
        outliers=choice.outliers,
        most_block_entries=most_block_entries,
        fused=fused,
    )
    return scheme.fit(plan, problem, workspace)


def _promise(count: int, target: Target) -> _Choice:
    return _Choice(count, f"{count} moduli for {target} in every entry", promised=True)


def _least_range(terms: int, r: float, ratio: float) -> int | None:
    """half_range from which on every entry keeps r, for operands with this `certify.error_ratio`; None if it is inf.

    Fast scaling has 2**-s_i < 2 ||A_i|| / T, T**2 = half_range, and rounds to nearest, so that the error of an entry is
    at most (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / T, but for terms of relative size k / T < 2**-20.
    """
    wanted = ratio * (1.0 + 2.0**-19) / r
    if not math.isfinite(wanted):
        return None
    least: int = max(math.ceil(wanted), _least_norm(terms)) ** 2
    return least


@lru_cache(maxsize=1024)
def _largest_ratio(terms: int, r: float, half_range: int) -> float:
    """Largest ratio whose `_least_range`, which nowhere falls, is no more than half_range: by bisection of its bits."""

    def suffices(bits: int) -> bool:
        least = _least_range(terms, r, struct.unpack("d", struct.pack("q", bits))[0])
        return least is not None and least <= half_range

    if not suffices(0):
        return -math.inf
    low, high = 0, 0x7FF << 52
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suffices(middle) else (low, middle)
    return float(struct.unpack("d", struct.pack("q", low))[0])


def _enough(problem: Problem, target: Target, ratio: float) -> int | None:
    """Fewest moduli with the range of `_least_range`, None where none has it."""
    least = _least_range(problem.terms, target.r, ratio)
    return None if least is None else crt.count_for_range(least, problem.is_complex)


def _least_norm(terms: int) -> int:
    """T from which on k / (2 T) lies within the 2**-19 that `_enough` adds, and all rounding is to nearest."""
    return terms << 19


def _expected_count(problem: Problem, target: Target) -> int:
    """Moduli that data of one size take, and not fewer than `_enough` ever says."""
    count = crt.count_for_bits(_wanted_bits(problem, target), problem.is_complex)
    if target.correct or math.isinf(target.r):
        return count
    return max(count, crt.count_for_range(_least_norm(problem.terms) ** 2, problem.is_complex) or crt.MAX_MODULI)


def _moduli(problem: Problem, count: int) -> crt.ModuliSet:
    return crt.moduli_set(count, problem.is_complex)


def _exponent(x: Array, axis: int) -> Array:
    """Smallest e with |re|, |im| < 2**e along the axis."""
    return scaling.joint_exponent(components(x), axis)


def _widened(x: Array, axis: int, width: int) -> Array:
    """One number for each vector of the embedded operand, which has `width` of them for each of the operand's."""
    return x if width == 1 else np.repeat(x, width, axis=3 - axis)


def _facts(plan: Plan, x: Array, scale: Scale, width: int) -> dict[str, Array]:
    """What `_error` and `certify.certified_entries` need of an operand: see `Ozaki2.split`."""
    axis, embed = scale.axis, embed_left if scale.axis == 2 else embed_right
    exponent = _widened(map_vectors(lambda y: _exponent(y, axis), x, axis, plan.block_entries), axis, width)
    unit, nearest = _widened(scale.exponent, axis, width), _widened(scale.nearest, axis, width)
    vectors, terms, each = x.shape[3 - axis] * width, plan.problem.terms, exponent.shape
    whole = (x.shape[0], vectors, terms) if axis == 2 else (x.shape[0], terms, vectors)
    facts = {"exponent": exponent}
    for where in vector_blocks(x, axis, plan.block_entries):
        y, wide = embed(x[where]), widen(where, width)
        delta = np.where(nearest[wide], 0.5, 1.0)
        delta[lowest_bit(y, axis) >= -unit[wide]] = 0.0
        put(facts, "delta", each, wide, delta)
        sums = magnitudes_up(y, exponent[wide]).sum(axis=axis, keepdims=True, dtype=np.int64)
        put(facts, "sums", each, wide, sums)
        for name, fact in certify.facts(plan, y, exponent[wide]).items():
            put(facts, name, whole, wide, fact)
    return facts


def _wanted_bits(problem: Problem, target: Target) -> int:
    """Bits of half_range to begin with, for data of one size: errors of sqrt(k) T against sums of T**2.

    A correctly rounded sum needs the rounding unit and 16 bits of its own below it; terms of either sign cost as much
    as sqrt(k) again.
    """
    if target.correct:
        return 2 * (problem.fmt.t + 16 + ceil_log2(problem.terms)) + 1
    return max(2 * (certify.bits_of_inverse(target.r) + 2) + ceil_log2(problem.terms) + 1, 1)


def _reach(problem: Problem, count: int) -> int:
    """Bits that both operands together may lack with two moduli for `count` to hold the exact product."""
    return 2 * scaling.gained_bits(count, problem.is_complex)


@lru_cache(maxsize=1024)
def _exact_choice(is_complex: bool, left: int, right: int, fast: bool) -> _Choice:
    """Fewest moduli that hold the exact product of operands that lack so many bits with two, see `required_bits`.

    By Cauchy-Schwarz on rows and columns made integers: a scale must reach down to the lowest bit of every vector. What
    one operand has to spare goes to the other, but no more of it than that one needs.
    """
    if min(left, right) == -NO_BIT:
        count, gained, bits, balance = 2, 0, 1, 0
    else:
        counts = range(2, crt.MAX_MODULI + 1)
        count = next(n for n in counts if left + right <= 2 * scaling.gained_bits(n, is_complex))
        gained = scaling.gained_bits(count, is_complex)
        bits = max(left + right + crt.moduli_set(2, is_complex).half_range.bit_length(), 1)
        balance = max(left - gained, 0) or min(gained - right, 0)
    return _Choice(count, f"{count} moduli hold the exact product of {counted(bits, 'bit')}", balance, exact=fast)


def _largest_sums(plan: Plan, a: Array, b: Array, left: Array, right: Array, engine: Engine) -> tuple[Array, Array]:
    """max_j and max_i of |A||B| with magnitudes rounded up to 6 bits, block by block; over re and im if complex."""
    top = 2**MAGNITUDE_BITS_UP
    rows, cols = np.zeros_like(left), np.zeros_like(right)
    for block in plan.blocks():
        at_a, at_b = block.places(a, b)
        ups_a = [magnitudes_up(c, left[at_a]) for c in components(a[at_a])]
        ups_b = [magnitudes_up(c, right[at_b]) for c in components(b[at_b])]
        for pairing in [ups_b] if len(ups_b) == 1 else [ups_b, ups_b[::-1]]:
            sums = [exact_int8(engine, x, y, top, top) for x, y in zip(ups_a, pairing, strict=True)]
            total = reduce(np.add, sums)
            for largest, at, axis in ((rows, at_a, 2), (cols, at_b, 1)):
                found = total.max(axis=axis, keepdims=True)
                found = found if len(largest) > 1 else found.max(axis=0, keepdims=True)
                largest[at] = np.maximum(largest[at], found)
    return rows, cols


def _error(left: Split, right: Split) -> Array:
    """Bound of |2**(s+t) A B - A' B'| 2**-(s+t), relative to 2**(e_i + f_j): 0 where the integers are exact.

    |A B - (A - d) B'| <= |A||B - B'| + |d||B'|, with B' in units of B, and the sums of magnitudes bound |B'| as well:
    truncation lowers magnitudes, and where integers are the nearest ones, a magnitude rounded up is one of them.
    """
    sums_a, sums_b = (s.facts["sums"] * 2.0**-MAGNITUDE_BITS_UP for s in (left, right))
    d_a, d_b = (scale_by_power(s.facts["delta"], s.unit - s.facts["exponent"]) for s in (left, right))
    return d_a * sums_b + d_b * sums_a
