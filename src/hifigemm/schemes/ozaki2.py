"""Ozaki scheme II: residues of scaled operands and the Chinese remainder theorem.

Idea
    A' = round(2**s_i A_ih), B' = round(2**t_j B_hj), integers with 2 sum_h
    |A'||B'| < P = prod p_l. A' B' mod p_l is one INT8 product for each modulus, the
    integer A' B' follows by the Chinese remainder theorem, and 2**-(s_i + t_j) A' B' is
    rounded once. Complex operands take two real products for a modulus with j**2 = -1
    mod p, three for the others.
Notation
    s = row scale exponent, t = column scale exponent, p_l = moduli,
    P = modulus_product.
Exact when
    sum_h |A'||B'| <= half_range(P), by the choice of s and t in numerics/scaling.py,
    and k_block 128**2 < 2**31. The result is correctly rounded where 2**s_i A_i and
    2**t_j B_j are integers already.
Cost
    num_moduli products, one more for accurate scaling, or of magnitudes where the
    operands tell how many they need; complex: 2 or 3 for each modulus.
References
    [OUI25] Ozaki scheme II, arXiv:2504.08009. [UOI25b] arXiv:2508.03984. [UMIOG26]
    complex, arXiv:2512.08321. [UOI26] error bounds, arXiv:2602.02549.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, Array, ceil_log2, lowest_bit, scale_by_power
from hifigemm.numerics.blocking import (
    entries_within,
    largest_block,
    put,
    vector_blocks,
    widen,
)
from hifigemm.numerics.embedding import components, embed_left, embed_right
from hifigemm.numerics.error_ratio import count_for_ratio, error_ratio, least_norm
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP, component_sums, magnitudes_up
from hifigemm.numerics.residue_products import (
    crt,
    num_planes,
    product_residues,
    residue_gemm,
    round_integers,
    scaled_residues,
)
from hifigemm.numerics.residues import (
    MAX_MODULI,
    count_for_bits,
    count_for_range,
    moduli_set,
)
from hifigemm.numerics.scaling import Scale
from hifigemm.plan import Evidence, Plan, Product, Split, Verification
from hifigemm.problem import Problem, counted
from hifigemm.schemes import certify
from hifigemm.schemes.outliers import find_outliers, may_pay
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.scheme import Scheme, finished, int8_product, product_spec


@dataclass(frozen=True)
class Ozaki2(Scheme):
    """Ozaki scheme II [OUI25].

    Parameters
    ----------
    product : "int8"
    num_moduli : int or None
        2 to 49; None chooses from the accuracy and the data.
    scaling : "accurate" or "fast"
        "fast" scales each operand by its own norms, so that a prepared operand keeps
        its residues; "accurate" looks at
        |A||B| with one more INT8 product, needs fewer moduli and survives wide exponents.
    """

    name: ClassVar[str] = "ozaki2"
    core = staticmethod(residue_gemm)
    _limits = 2, MAX_MODULI

    product: Literal["int8"] = "int8"
    num_moduli: int | None = None
    scaling: Literal["accurate", "fast"] = "accurate"

    def __post_init__(self) -> None:
        if self.product != "int8":
            raise PlanError(
                f'Ozaki2(product={self.product!r}): residues are INT8 words, product="int8"'
            )
        super().__post_init__()

    @property
    def explicit(self) -> bool:
        """Whether the number of moduli is forced."""
        return self.num_moduli is not None

    @cached_property
    def count(self) -> int:
        """num_moduli, once a plan has filled it in."""
        if self.num_moduli is None:
            raise PlanError(f"{self} has no number of moduli yet: it comes from a plan")
        return self.num_moduli

    def evidence(
        self,
        problem: Problem,
        target: Target,
        a: Array,
        b: Array,
        engine: Engine,
        workspace: int,
    ) -> Evidence | None:
        """The bits that exact integers need and, on a CPU, the error ratio; see `plan`.

        Where programs choose on the device, only promises for every entry by itself are
        worth waiting for: exact products keep them, and looking at entries one by one
        takes longer than a few moduli more.
        """
        on_device, fast = engine.costs is not None, self.scaling == "fast"
        exact = target.correct or (on_device and target.by_entry)
        if (on_device and fast and not exact) or (
            self.explicit and not (on_device and exact)
        ):
            return None
        count, entries = (
            _expected_count(problem, target),
            entries_within(workspace, engine.memory.block_entries),
        )
        ratio = outliers = None
        if (
            fast
            and math.isfinite(target.r)
            and not target.by_entry
            and a.size
            and b.size
        ):
            ratio = largest_error_ratio(a, b, engine, workspace)
            count = self.count_for(problem, target, ratio) or count
        most = _reach(problem, MAX_MODULI if exact else count)
        if fast and on_device and not self.explicit and may_pay(problem):
            each = engine.override(scaling.required_bits_of_vectors)(a, b, entries)
            bits = scaling.widest(each, most)
            if bits is not None:
                outliers = find_outliers(
                    problem, each, exact_count(problem.is_complex, *bits)
                )
        else:
            bits = engine.override(scaling.required_bits)(a, b, most, entries)
        return Evidence(required_bits=bits, error_ratio=ratio, outliers=outliers)

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """The number of moduli: as asked, or by the evidence, or what data of one size
        need.

        Moduli that hold the exact product are taken where the operands are short enough
        for it; else as many as the error ratio asks for.
        """
        spec = product_spec(engine, self.product, "Ozaki2")
        bits = None if evidence is None else evidence.required_bits
        count, bound, verification = (
            _expected_count(problem, target),
            target.r,
            Verification.ENTRYWISE,
        )
        reason = f"{count} moduli for {target}"
        if self.num_moduli is not None:
            count, reason = self.num_moduli, f"{self.num_moduli} moduli, as asked"
            if math.isinf(target.r):
                verification = Verification.NONE
            elif (
                bits is not None
                and exact_count(problem.is_complex, *bits) <= count
                and self.scaling == "fast"
            ):
                bound, verification = 0.0, Verification.A_PRIORI
            elif evidence is not None:
                evidence = replace(evidence, required_bits=None)
        elif bits is not None:
            count = exact_count(problem.is_complex, *bits)
            exact_bits = counted(_exact_bits(problem.is_complex, *bits), "bit")
            reason = f"{count} moduli hold the exact product of {exact_bits}"
            if self.scaling == "fast":
                bound, verification = 0.0, Verification.A_PRIORI
        elif evidence is not None and evidence.error_ratio is not None:
            enough = self.count_for(problem, target, evidence.error_ratio)
            if enough is not None:
                count, verification = enough, Verification.A_PRIORI
                reason = f"{count} moduli for {target} in every entry"
        if self.scaling == "accurate":
            reason += ", one more product for the scaling"
        scheme, products = replace(self, num_moduli=count), _num_planes(problem, count)
        return Plan(
            *(
                problem,
                asked,
                scheme,
                target,
                engine.name,
                spec,
                products,
                spec.k_block,
                verification,
                bound,
                reason,
            ),
            evidence=evidence,
        )

    def expected_products(self, problem: Problem, target: Target, more: int = 0) -> int:
        """Products that operands without wide exponents take, or those of so many more
        moduli.
        """
        return _num_planes(problem, _expected_count(problem, target) + more)

    def count_for(self, problem: Problem, target: Target, ratio: float) -> int | None:
        """Moduli that keep the target for operands with this error ratio; None where no
        number does.
        """
        enough = count_for_ratio(problem.terms, target.r, ratio, problem.is_complex)
        return None if enough is None else max(_expected_count(problem, target), enough)

    def planes(self, problem: Problem) -> int:
        """INT8 products of a forced number of moduli."""
        return _num_planes(problem, self.count)

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Residues and working copies of rows and columns, and residues of entries."""
        problem, moduli = plan.problem, moduli_set(self.count, plan.problem.is_complex)
        width, k = 2 if problem.is_complex else 1, problem.k
        facts, converted = 9 * width * width, 4 * min(1024, k)
        per_vector = k * (num_planes(moduli, problem.is_complex) + facts) + converted
        entries = plan.blocking.entries
        passing = min(
            largest_block(k, entries), problem.batch * max(problem.m, problem.n) * k
        )
        passing *= width * (12 * 8 + 2 * self.count)
        results = batch * rows * cols * width
        rounding = min(results, entries) * (4 * moduli.limb_count + self.count + 30) * 8
        return (
            batch * (rows + cols) * per_vector
            + results * (self.count + 120)
            + passing
            + rounding
        )

    def scales(
        self, plan: Plan, a: Array | None, b: Array | None, engine: Engine
    ) -> tuple[Scale | None, Scale | None] | None:
        """By Cauchy-Schwarz for each operand, or from an INT8 product of the magnitudes
        of both.
        """
        moduli, balance = (
            moduli_set(self.count, plan.problem.is_complex),
            _balance(plan),
        )
        if self.scaling == "fast":
            norm_scale = engine.override(scaling.norm_scale)
            return (
                None
                if a is None
                else norm_scale(a, 2, moduli, balance, plan.blocking.entries),
                None
                if b is None
                else norm_scale(b, 1, moduli, -balance, plan.blocking.entries),
            )
        if a is None or b is None:
            return None
        left, right = (
            scaling.exponents(x, axis, plan.blocking.entries)
            for x, axis in ((a, 2), (b, 1))
        )
        rows, cols = _largest_sums(plan, a, b, left, right, engine)

        def scale(sums: Array, own: Array, balance: int, axis: int) -> Scale:
            s = scaling.scale_exponent(sums, own, MAGNITUDE_BITS_UP, moduli) + balance
            return Scale(
                s,
                s + own >= MAGNITUDE_BITS_UP,
                axis,
                moduli.half_range.bit_length() + 1 + abs(balance),
            )

        return scale(rows, left, balance, 2), scale(cols, right, -balance, 1)

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Residues of the scaled and rounded operand; for complex operands two or three
        planes for each modulus.

        facts: `delta`, what rounding can have changed in units of the integers (0 where
        they are exact); `sums`, upper bounds of the row or column sums of magnitudes in
        units of 2**(exponent - 6).
        """
        if scale is None:
            raise PlanError(f"{self}: a split needs its scale")
        moduli = moduli_set(self.count, plan.problem.is_complex)
        planes = engine.override(scaled_residues)(
            x, scale, moduli, plan.blocking.entries
        )
        width = 2 if side == "right" and plan.problem.is_complex else 1
        facts = _facts(plan, x, scale, width) if plan.certifies else {}
        unit = -np.repeat(scale.exponent, width, axis=3 - scale.axis)
        return Split(
            side,
            x.shape[3 - scale.axis],
            planes,
            unit,
            planes.shape[1],
            facts,
            k_major=True,
        )

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """Residues of the product modulus by modulus, reconstruction, one rounding."""
        problem, moduli = plan.problem, moduli_set(self.count, plan.problem.is_complex)
        multiplied, rounded_once = engine.override(residue_gemm), engine.override(crt)
        products = multiplied(left.planes, right.planes, moduli, int8_product(engine))
        units = left.unit, right.unit
        if not plan.certifies:
            values = rounded_once(
                products, *units, shift, moduli, problem.fmt, plan.blocking.entries
            )
            return finished(problem, values, None, plan.bound, left.count)
        residues = product_residues(products, moduli)
        error = _error(left, right)
        err = np.frexp(error)[1].astype(np.int64)
        lowest = (
            left.facts["exponent"] + right.facts["exponent"] - left.unit - right.unit
        )
        rounded = round_integers(
            residues,
            *units,
            shift,
            moduli,
            problem.fmt,
            plan.blocking.entries,
            err + lowest,
        )
        certified, bound = certify.certified_entries(
            plan, left, right, engine, rounded, error == 0, err, lowest
        )
        return finished(problem, rounded.values, certified, bound, left.count)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """Half as many moduli again; slices for the library's choice where the largest
        number was not enough.
        """
        if plan.is_fixed:
            return None
        if self.count == MAX_MODULI:
            return (
                Ozaki1().continued(problem, plan.target, engine, None)
                if plan.asked is None
                else None
            )
        count = min(self.count + self.count // 2, MAX_MODULI)
        return replace(
            plan,
            problem=problem,
            scheme=replace(self, num_moduli=count),
            num_products=_num_planes(problem, count),
            verification=Verification.ENTRYWISE,
            reason=f"escalated to {count} moduli",
            evidence=None,
        )


def largest_error_ratio(a: Array, b: Array, engine: Engine, workspace: int) -> float:
    """`error_ratio` of both operands, on their engine and within a workspace."""
    entries = entries_within(workspace, engine.memory.block_entries)
    return engine.override(error_ratio)(
        a, b, int8_product(engine), entries, max(workspace // 256, 1)
    )


def _balance(plan: Plan) -> int:
    """Bits that the left operand gets at the expense of the right one, where both are
    exact integers then.
    """
    bits = None if plan.evidence is None else plan.evidence.required_bits
    return (
        0
        if bits is None
        else scaling.balance(bits, plan.scheme.count, plan.problem.is_complex)
    )


@lru_cache(maxsize=1024)
def exact_count(is_complex: bool, left: int, right: int) -> int:
    """Fewest moduli that hold the exact product of operands that require so many bits,
    see `scaling.required_bits`.
    """
    if min(left, right) == -NO_BIT:
        return 2
    counts = range(2, MAX_MODULI + 1)
    fits = (n for n in counts if left + right <= 2 * scaling.gained_bits(n, is_complex))
    return next(fits, MAX_MODULI + 1)


def _exact_bits(is_complex: bool, left: int, right: int) -> int:
    """Bits of the exact product of such operands."""
    if min(left, right) == -NO_BIT:
        return 1
    return max(left + right + moduli_set(2, is_complex).half_range.bit_length(), 1)


@lru_cache(maxsize=1024)
def _expected_count(problem: Problem, target: Target) -> int:
    """Moduli that data of one size take, and not fewer than `count_for_ratio` ever
    says.
    """
    count = count_for_bits(_wanted_bits(problem, target), problem.is_complex)
    if target.by_entry or math.isinf(target.r):
        return count
    least = least_norm(problem.terms) ** 2
    return max(count, count_for_range(least, problem.is_complex) or MAX_MODULI)


def _num_planes(problem: Problem, count: int) -> int:
    """Products of so many moduli."""
    return num_planes(moduli_set(count, problem.is_complex), problem.is_complex)


def _facts(plan: Plan, x: Array, scale: Scale, width: int) -> dict[str, Array]:
    """What `_error` and `certify.certified_entries` need of an operand: see
    `Ozaki2.split`.
    """
    axis, embed = scale.axis, embed_left if scale.axis == 2 else embed_right
    found = (
        scaling.exponents(x, axis, plan.blocking.entries),
        scale.exponent,
        scale.nearest,
    )
    exponent, unit, nearest = (np.repeat(y, width, axis=3 - axis) for y in found)
    vectors, terms, each = x.shape[3 - axis] * width, plan.problem.terms, exponent.shape
    whole = (x.shape[0], vectors, terms) if axis == 2 else (x.shape[0], terms, vectors)
    facts = {"exponent": exponent}
    for where in vector_blocks(x, axis, plan.blocking.entries):
        y, wide = embed(x[where]), widen(where, width)
        delta = np.where(nearest[wide], 0.5, 1.0)
        delta[lowest_bit(y, axis) >= -unit[wide]] = 0.0
        put(facts, "delta", each, wide, delta)
        sums = magnitudes_up(y, exponent[wide]).sum(
            axis=axis, keepdims=True, dtype=np.int64
        )
        put(facts, "sums", each, wide, sums)
        for name, fact in certify.facts(plan, y, exponent[wide]).items():
            put(facts, name, whole, wide, fact)
    return facts


def _wanted_bits(problem: Problem, target: Target) -> int:
    """Bits of half_range to begin with, for data of one size: errors of sqrt(k) T
    against sums of T**2.

    A correctly rounded sum needs the rounding unit and 16 bits of its own below it, and
    so does a relative error; terms of either sign cost as much as sqrt(k) again.
    """
    if target.by_entry:
        own = problem.fmt.t if target.correct else certify.bits_of_inverse(target.r)
        return 2 * (own + 16 + ceil_log2(problem.terms)) + 1
    return max(
        2 * (certify.bits_of_inverse(target.r) + 2) + ceil_log2(problem.terms) + 1, 1
    )


def _reach(problem: Problem, count: int) -> int:
    """Bits that both operands together may lack with two moduli for `count` to hold the
    exact product.
    """
    return 2 * scaling.gained_bits(count, problem.is_complex)


def _largest_sums(
    plan: Plan, a: Array, b: Array, left: Array, right: Array, engine: Engine
) -> tuple[Array, Array]:
    """max_j and max_i of |A||B| with magnitudes rounded up to 6 bits, block by block;
    over re and im if complex.
    """
    rows, cols = np.zeros_like(left), np.zeros_like(right)
    for block in plan.blocks():
        at_a, at_b = block.places(a, b)
        ups_a = [magnitudes_up(c, left[at_a]) for c in components(a[at_a])]
        ups_b = [magnitudes_up(c, right[at_b]) for c in components(b[at_b])]
        for total in component_sums(
            int8_product(engine), ups_a, ups_b, 2**MAGNITUDE_BITS_UP
        ):
            for largest, at, axis in ((rows, at_a, 2), (cols, at_b, 1)):
                found = total.max(axis=axis, keepdims=True)
                found = found if len(largest) > 1 else found.max(axis=0, keepdims=True)
                largest[at] = np.maximum(largest[at], found)
    return rows, cols


def _error(left: Split, right: Split) -> Array:
    """Bound of |2**(s+t) A B - A' B'| 2**-(s+t), relative to 2**(e_i + f_j): 0 where
    the integers are exact.

    |A B - (A - d) B'| <= |A||B - B'| + |d||B'|, with B' in units of B, and the sums of magnitudes bound |B'| as well:
    truncation lowers magnitudes, and where integers are the nearest ones, a magnitude
    rounded up is one of them.
    """
    sums_a, sums_b = (s.facts["sums"] * 2.0**-MAGNITUDE_BITS_UP for s in (left, right))
    d_a, d_b = (
        scale_by_power(s.facts["delta"], s.unit - s.facts["exponent"])
        for s in (left, right)
    )
    return d_a * sums_b + d_b * sums_a
