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
    num_moduli products, one more for accurate scaling; complex: 2 or 3 for each modulus.
References
    [OUI25] Ozaki scheme II, arXiv:2504.08009. [UOI25b] arXiv:2508.03984. [UMIOG26] complex, arXiv:2512.08321.
    [UOI26] error bounds, arXiv:2602.02549.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.numerics import residues as crt
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, Array, ceil_log2, largest_exponent, lowest_bit
from hifigemm.numerics.embedding import embed_left, embed_right, unembed
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP, magnitudes_up
from hifigemm.numerics.rounding import Rounded, in_chunks, round_limbs
from hifigemm.plan import Plan, Problem, Product, Split, fit_blocks
from hifigemm.schemes import promise
from hifigemm.schemes.residue_products import components, multiply_residues, num_parts, product_operands
from hifigemm.schemes.scheme import Scheme, exact_int8, product_spec

__all__ = ["Ozaki2"]

_ROWS = 256


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

    product: str = "int8"
    num_moduli: int | None = None
    scaling: str = "accurate"

    def __post_init__(self) -> None:
        if self.product != "int8":
            raise PlanError(f'Ozaki2(product={self.product!r}): residues are INT8 words, product="int8"')
        if self.num_moduli is not None and not 2 <= self.num_moduli <= crt.MAX_MODULI:
            raise PlanError(f"Ozaki2(num_moduli={self.num_moduli}): expected 2 to {crt.MAX_MODULI}")
        if self.scaling not in ("accurate", "fast"):
            raise PlanError(f'Ozaki2(scaling={self.scaling!r}): expected "accurate" or "fast"')

    @property
    def explicit(self) -> bool:
        """Whether the number of moduli is forced."""
        return self.num_moduli is not None

    @property
    def count(self) -> int:
        """num_moduli, once a plan has filled it in."""
        if self.num_moduli is None:
            raise PlanError(f"{self} has no number of moduli yet: it comes from a plan")
        return self.num_moduli

    @property
    def independent_splits(self) -> bool:
        """Fast scaling looks at one operand at a time."""
        return self.scaling == "fast"

    def plan(self, problem: Problem, a: Array, b: Array, target: Target, engine: Engine, workspace: int) -> Plan:
        """Choose the number of moduli from the target, or fewer where the operands are short integers."""
        product_spec(engine, self.product, "Ozaki2")
        balance = 0
        if self.num_moduli is not None:
            count, reason = self.num_moduli, f"{self.num_moduli} moduli, as asked"
        else:
            exact, exact_balance, bits = _exact_count(problem, a, b)
            wanted = 2 * (promise.bits_of_inverse(target.r) + 2) + ceil_log2(problem.terms) + 1
            count = crt.count_for_bits(wanted, problem.is_complex)
            reason = f"{count} moduli for {target}"
            if exact is not None and (target.correct or exact <= count):
                count, balance, reason = exact, exact_balance, f"{exact} moduli hold the exact product of {bits} bits"
            elif target.correct:
                held = _moduli(problem, crt.MAX_MODULI).half_range.bit_length()
                raise AccuracyError(
                    f"Ozaki2 cannot round {problem} correctly: the exact product takes up to {bits} bits and a sign, "
                    f"{crt.MAX_MODULI} moduli hold {held}"
                )
        if self.scaling == "accurate":
            reason += ", one more product for the scaling"
        spec = engine.products[self.product]
        scheme = replace(self, num_moduli=count)
        parts = num_parts(_moduli(problem, count), problem.is_complex)
        plan = Plan(
            problem, scheme, target, engine.name, spec, parts, spec.k_block, reason, self.explicit, balance=balance
        )
        return scheme.fit(plan, problem, workspace)

    def fit(self, plan: Plan, problem: Problem, workspace: int) -> Plan:
        """Blocks by the bytes of residues and working copies of rows and columns, and of residues of entries."""
        width = 2 if problem.is_complex else 1
        count = self.count
        parts = num_parts(_moduli(problem, count), problem.is_complex)

        def need(batch: int, rows: int, cols: int) -> int:
            vectors = problem.k * (rows + width * cols) * (parts + width * count + 6 * 8 * width)
            return batch * (vectors + rows * cols * width * (count + 8 * 8))

        return fit_blocks(replace(plan, problem=problem), need, workspace)

    def scale(self, plan: Plan, x: Array, side: str, engine: Engine) -> Array | None:
        """Scale exponents by Cauchy-Schwarz."""
        axis, sign = (2, 1) if side == "left" else (1, -1)
        exponent = _exponent(x, axis)
        moduli = _moduli(plan.problem, self.count)
        s = scaling.scale_exponent(_squares(x, exponent, axis), exponent, scaling.NORM_BITS, moduli)
        return s + sign * plan.balance

    def joint_scales(self, plan: Plan, a: Array, b: Array, engine: Engine) -> tuple[Array, Array]:
        """Scale exponents from an INT8 product of magnitudes."""
        moduli = _moduli(plan.problem, self.count)
        left, right = _exponent(a, 2), _exponent(b, 1)
        rows, cols = _largest_sums(a, b, left, right, engine)
        s = scaling.scale_exponent(rows, left, MAGNITUDE_BITS_UP, moduli) + plan.balance
        t = scaling.scale_exponent(cols, right, MAGNITUDE_BITS_UP, moduli) - plan.balance
        return s, t

    def split(self, plan: Plan, x: Array, side: str, scale: Array | None, engine: Engine) -> Split:
        """Residues of the scaled and rounded operand; for complex operands two or three parts for each modulus.

        facts: `delta`, what rounding can have changed in units of the integers (0 where they are exact); `sums`, upper
        bounds of the row or column sums of magnitudes in units of 2**(exponent - 6).
        """
        if scale is None:
            raise PlanError(f"{self}: a split needs its scale exponents")
        axis = 2 if side == "left" else 1
        moduli = _moduli(plan.problem, self.count)
        unit_bits = scaling.NORM_BITS if self.scaling == "fast" else MAGNITUDE_BITS_UP
        own = _exponent(x, axis)
        bits = max(int((scale + own).max(initial=0)), 0) + 1
        integers = [scaling.round_to_integers(c, scale, own, unit_bits) for c in components(x)]
        parts = product_operands([engine.override(crt.residues)(y, moduli.moduli, bits) for y in integers], moduli)

        embedded = embed_left(x) if side == "left" else embed_right(x)
        width = embedded.shape[3 - axis] // x.shape[3 - axis]
        exponent, scale = np.repeat(own, width, axis=3 - axis), np.repeat(scale, width, axis=3 - axis)
        delta = np.where(scale + exponent >= unit_bits, 0.5, 1.0)
        delta[lowest_bit(embedded, axis) >= -scale] = 0.0
        sums = magnitudes_up(embedded, exponent).sum(axis=axis, keepdims=True, dtype=np.int64)
        facts = {"delta": delta, "sums": sums, "exponent": exponent} | promise.facts(plan, embedded, exponent)
        return Split(side, x.shape[3 - axis], np.moveaxis(parts, 0, 1), -scale, len(parts), facts)

    def multiply(self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int) -> Product:
        """Residues of the product modulus by modulus, reconstruction, one rounding."""
        problem = plan.problem
        moduli = _moduli(problem, self.count)
        residues = multiply_residues(left, right, moduli, engine)
        shape = residues.shape[1:]
        residues = residues.reshape(len(moduli.moduli), -1)
        exponent = np.broadcast_to(left.unit + right.unit + shift, shape).ravel()

        def work(part: slice) -> Rounded:
            return round_limbs(moduli.reconstruct(residues[:, part]), exponent[part], problem.fmt)

        rounded = in_chunks(work, residues.shape[1], shape, problem.fmt)
        error = _error(left, right, problem.terms)
        lowest = left.facts["exponent"] + right.facts["exponent"] - left.unit - right.unit
        settled, bound = promise.judge(plan, left, right, engine, rounded, error == 0, np.frexp(error)[1], lowest)
        if problem.is_complex:
            return Product(unembed(rounded.values), settled[..., 0::2] & settled[..., 1::2], bound, left.count)
        return Product(rounded.values, settled, bound, left.count)

    def refine(self, plan: Plan, problem: Problem, workspace: int, engine: Engine) -> Plan | None:
        """Half as many moduli again; None where the largest number was not enough."""
        if self.count == crt.MAX_MODULI:
            return None
        count = min(self.count + max(self.count // 2, 1), crt.MAX_MODULI)
        scheme = replace(self, num_moduli=count)
        finer = replace(plan, scheme=scheme, balance=0, reason=f"refined to {count} moduli")
        return scheme.fit(finer, problem, workspace)


def _moduli(problem: Problem, count: int) -> crt.ModuliSet:
    return crt.moduli_set(count, problem.is_complex)


def _exponent(x: Array, axis: int) -> Array:
    """Smallest e with |re|, |im| < 2**e along the axis."""
    return np.maximum.reduce([largest_exponent(c, axis) for c in components(x)])


def _squares(x: Array, exponent: Array, axis: int) -> Array:
    """Squared norms along the axis, rounded up, in units of 4**(exponent - NORM_BITS)."""
    return np.add.reduce([scaling.square_norms(c, exponent, axis) for c in components(x)])


def _exact_count(problem: Problem, a: Array, b: Array) -> tuple[int | None, int, int]:
    """Fewest moduli that hold the exact product, the balance that this takes, and the bits of the largest sum.

    By Cauchy-Schwarz on rows and columns made integers: a scale must reach down to the lowest bit of every vector. What
    one operand has to spare goes to the other. None where MAX_MODULI are not enough.
    """
    smallest = crt.moduli_set(2, problem.is_complex)
    missing = []
    for x, axis in ((a, 2), (b, 1)):
        exponent = _exponent(x, axis)
        s = scaling.scale_exponent(_squares(x, exponent, axis), exponent, scaling.NORM_BITS, smallest)
        low = np.minimum.reduce([lowest_bit(c, axis) for c in components(x)])
        missing.append(int(np.max(-low - s, where=low != NO_BIT, initial=-NO_BIT)))
    if min(missing) == -NO_BIT:
        return 2, 0, 1
    base = smallest.half_range.bit_length()
    bits = max(sum(missing) + base, 1)
    for count in range(2, crt.MAX_MODULI + 1):
        gained = (_moduli(problem, count).half_range.bit_length() - base - 1) // 2
        if sum(missing) <= 2 * gained:
            return count, missing[0] - gained, bits
    return None, 0, bits


def _largest_sums(a: Array, b: Array, left: Array, right: Array, engine: Engine) -> tuple[Array, Array]:
    """max_j and max_i of |A||B| with magnitudes rounded up to 6 bits; for complex operands over re and im."""
    top = 2**MAGNITUDE_BITS_UP
    ups_a = [magnitudes_up(c, left) for c in components(a)]
    ups_b = [magnitudes_up(c, right) for c in components(b)]
    batch, m, n = max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]
    rows, cols = np.zeros((batch, m, 1), np.int64), np.zeros((batch, 1, n), np.int64)
    pairings = [ups_b] if len(ups_b) == 1 else [ups_b, ups_b[::-1]]
    for i in range(0, m, _ROWS):
        part = slice(i, i + _ROWS)
        for pairing in pairings:
            sums = [exact_int8(engine, x[:, part], y, top, top) for x, y in zip(ups_a, pairing, strict=True)]
            total = np.add.reduce(sums)
            np.maximum(rows[:, part], total.max(axis=2, keepdims=True), out=rows[:, part])
            np.maximum(cols, total.max(axis=1, keepdims=True), out=cols)
    return rows.max(axis=0, keepdims=True) if a.shape[0] == 1 else rows, (
        cols.max(axis=0, keepdims=True) if b.shape[0] == 1 else cols
    )


def _error(left: Split, right: Split, terms: int) -> Array:
    """Bound of |2**(s+t) A B - A' B'| 2**-(s+t), relative to 2**(e_i + f_j): 0 where the integers are exact.

    |A B - (A - d)(B - d')| <= d sum|B| + d' sum|A| + terms d d'.
    """
    sums_a, sums_b = (s.facts["sums"] * 2.0**-MAGNITUDE_BITS_UP for s in (left, right))
    d_a, d_b = (s.facts["delta"] * 2.0 ** np.clip(s.unit - s.facts["exponent"], -1000, 1000) for s in (left, right))
    return d_a * sums_b + d_b * (sums_a + terms * d_a)
