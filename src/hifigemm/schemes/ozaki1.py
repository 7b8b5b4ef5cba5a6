"""Ozaki scheme I: exact products of slices.

Idea
    A = sum_p A_p 2**(g_i - beta p),  B = sum_q B_q 2**(f_j - beta q) with integer slices |w| <= h = 2**(beta - 1), and
    A B = sum_s 2**(g_i + f_j - beta s) sum_{p+q=s} A_p B_q. The diagonals s are groups of one scale: their pairs are
    added exactly. Kept are s < S (S = num_slices); the exact sum of what is kept is rounded once.
Notation
    beta = slice_bits, S = num_slices, g = row_exponent of the first slice's unit, f = col_exponent, E = bound of what
    is left out.
Exact when
    k_block h**2 <= accumulator of the product, and all sums fit int64: bounds.slice_bits_for. The result is correctly
    rounded where row i ends after d_i slices, column j after d_j, and d_i + d_j - 1 <= S; or where E cannot move the
    rounding (rounding.Rounded.certain).
Cost
    S (S + 1) / 2 products (fast mode), fewer where the operands end earlier; d_A d_B when all are kept.
References
    [OOOR12] Error-free transformations of matrix multiplication, doi:10.1007/s11075-011-9478-1.
    [MOOI20] DGEMM using Tensor Cores, and Its Accurate and Reproducible Versions, doi:10.1007/978-3-030-50743-5_12.
    [UOI25] Performance enhancement of the Ozaki scheme on integer matrix units, doi:10.1177/10943420241313064.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.formats import FP32, FP64
from hifigemm.numerics import bounds, estimates
from hifigemm.numerics.bits import Array, ceil_log2, largest_exponent, lowest_bit
from hifigemm.numerics.embedding import embed_left, embed_right, unembed
from hifigemm.numerics.limbs import limbs_from_sums, num_limbs
from hifigemm.numerics.rounding import Rounded, in_chunks, round_limbs
from hifigemm.numerics.slicing import slice_vectors, slices_needed, unit_exponent
from hifigemm.plan import Plan, Problem, Product, ProductSpec, Split, fit_blocks
from hifigemm.schemes import promise
from hifigemm.schemes.scheme import Scheme, product_spec

__all__ = ["Ozaki1"]

MAX_SLICES = 4400
"""More diagonals than any float64 operands have with one-bit slices."""


@dataclass(frozen=True)
class Ozaki1(Scheme):
    """Ozaki scheme I [OOOR12], [MOOI20].

    Parameters
    ----------
    product : "int8", "fp16", "bf16", "tf32", "fp32" or "fp64"
        Format of the slices and the unit that multiplies them.
    num_slices : int or None
        Diagonals of slice products that are kept; None chooses from the accuracy, or by the mode.
    mode : None, "dp", "sp" or "correct"
        "dp" and "sp" choose the number of slices by the estimate of [MOOI20] for FP64 or FP32 accuracy; "correct"
        goes on until every entry is correctly rounded.
    """

    name: ClassVar[str] = "ozaki1"

    product: str = "int8"
    num_slices: int | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, "dp", "sp", "correct"):
            raise PlanError(f'Ozaki1(mode={self.mode!r}): expected None, "dp", "sp" or "correct"')
        if self.num_slices is not None and not 1 <= self.num_slices <= MAX_SLICES:
            raise PlanError(f"Ozaki1(num_slices={self.num_slices}): expected 1 to {MAX_SLICES}")
        if self.num_slices is not None and self.mode == "correct":
            raise PlanError(
                f'Ozaki1(num_slices={self.num_slices}, mode="correct"): the mode chooses the number of slices'
            )

    @property
    def explicit(self) -> bool:
        """Whether the number of slices is forced, or left to an estimate that promises nothing."""
        return self.num_slices is not None or self.mode in ("dp", "sp")

    @property
    def count(self) -> int:
        """num_slices, once a plan has filled it in."""
        if self.num_slices is None:
            raise PlanError(f"{self} has no number of slices yet: it comes from a plan")
        return self.num_slices

    def plan(self, problem: Problem, a: Array, b: Array, target: Target, engine: Engine, workspace: int) -> Plan:
        """Choose beta from k and the product, S from the target, the mode or the user."""
        spec = product_spec(engine, self.product, "Ozaki1")
        beta = bounds.slice_bits_for(problem.terms, spec.k_block, spec.accumulator_max, spec.max_integer)
        if beta == 0:
            raise PlanError(f"Ozaki1 with {spec.name} products: no slice size is exact for k = {problem.k}")
        if self.mode == "correct":
            target = Target(0.0, correct=True)
        if self.num_slices is not None:
            count, reason = self.num_slices, f"{self.num_slices} slices of {beta} bits, as asked"
        elif self.mode in ("dp", "sp"):
            fmt = FP64 if self.mode == "dp" else FP32
            left, right = embed_left(a), embed_right(b)
            count, ended = estimates.published_num_slices(left, right, beta, fmt.u)
            reason = f"{count} slices of {beta} bits by the estimate of [MOOI20] for {fmt.name}"
            if ended:
                reason = f"all slices of {beta} bits: the operands end before the estimate is met"
        else:
            count = first_num_slices(problem, target, beta)
            reason = f"{count} slices of {beta} bits for {target}"
        scheme = replace(self, num_slices=count)
        pairs = count * (count + 1) // 2 * (4 if problem.is_complex else 1)
        k_block = bounds.exact_k_limit(spec.accumulator_max, 2 ** (beta - 1), 2 ** (beta - 1))
        plan = Plan(problem, scheme, target, engine.name, spec, pairs, k_block, reason, self.explicit, slice_bits=beta)
        return scheme.fit(plan, problem, workspace)

    def fit(self, plan: Plan, problem: Problem, workspace: int) -> Plan:
        """Blocks by the bytes of slices and working copies of rows and columns, sums and rounded values of entries."""
        width = 2 if problem.is_complex else 1
        count = self.count
        per_word = count * storage_dtype(plan.words).itemsize + 5 * 8

        def need(batch: int, rows: int, cols: int) -> int:
            words = problem.terms * (rows + width * cols)
            return batch * (words * per_word + rows * cols * width * (8 * count + 5 * 8))

        return fit_blocks(replace(plan, problem=problem), need, workspace)

    def split(self, plan: Plan, x: Array, side: str, scale: Array | None, engine: Engine) -> Split:
        """Slices of rows or columns, each on its own grid, one after the other along k.

        On the left the slices stand in order, on the right in reverse, so that the pairs of a diagonal are one
        product of two contiguous parts.
        """
        embedded = embed_left(x) if side == "left" else embed_right(x)
        axis = 2 if side == "left" else 1
        beta = plan.slice_bits
        exponent = largest_exponent(embedded, axis)
        unit = unit_exponent(exponent, beta)
        needed = slices_needed(unit, lowest_bit(embedded, axis), beta)
        facts = {"needed": needed, "exponent": exponent} | promise.facts(plan, embedded, exponent)
        count = max(1, min(self.count, int(needed.max(initial=0))))
        dtype = storage_dtype(plan.words)
        k = embedded.shape[axis]
        if side == "left":
            parts = np.empty((*embedded.shape[:2], count * k), dtype)
        else:
            parts = np.empty((embedded.shape[0], count * k, embedded.shape[2]), dtype)
        for p, w in zip(range(count), slice_vectors(embedded, unit, beta), strict=False):
            if side == "left":
                parts[:, :, p * k : (p + 1) * k] = w
            else:
                parts[:, (count - 1 - p) * k : (count - p) * k, :] = w
        return Split(side, x.shape[3 - axis], parts, unit, count, facts)

    def multiply(self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int) -> Product:
        """Diagonal sums in int64, then limbs, then one rounding."""
        beta, terms = plan.slice_bits, plan.problem.terms
        kept = min(self.count, left.count + right.count - 1)
        sums, pairs = _diagonals(plan, left, right, engine, kept)
        shape, sums = sums.shape[1:], sums.reshape(kept, -1)
        exponent = np.broadcast_to(left.unit + right.unit + (shift - beta * (kept - 1)), shape).ravel()
        err = bounds.ozaki1_error_exponent(terms, kept, beta)
        shifts = [beta * (kept - 1 - s) for s in range(kept)]
        count = num_limbs(ceil_log2(terms) + 2 * (beta - 1) + beta * (kept - 1) + 2)

        def work(part: slice) -> Rounded:
            return round_limbs(limbs_from_sums(sums[:, part], shifts, count), exponent[part], plan.problem.fmt, err)

        rounded = in_chunks(work, sums.shape[1], shape, plan.problem.fmt)
        exact = left.facts["needed"] + right.facts["needed"] - 1 <= kept
        lowest = beta * (kept - 1) + 2 * (beta - 1)
        settled, bound = promise.judge(plan, left, right, engine, rounded, exact, err - lowest, lowest)
        if plan.problem.is_complex:
            return Product(unembed(rounded.values), settled[..., 0::2] & settled[..., 1::2], bound, 4 * pairs)
        return Product(rounded.values, settled, bound, pairs)

    def refine(self, plan: Plan, problem: Problem, workspace: int, engine: Engine) -> Plan | None:
        """Twice as many slices, within what float64 operands can have."""
        count = 2 * self.count
        if count > 2 * MAX_SLICES:
            return None
        scheme = replace(self, num_slices=count)
        return scheme.fit(replace(plan, scheme=scheme, reason=f"refined to {count} slices"), problem, workspace)


def first_num_slices(problem: Problem, target: Target, slice_bits: int) -> int:
    """Slices to begin with: enough for typical data; entries for which they are not are refined afterwards.

    Sums of |A||B| are taken as 2**-6 of the largest possible; a correctly rounded sum of k terms of either sign as
    sqrt(k) smaller, with as many bits below the rounding unit as leave about 16 entries of the result uncertain.
    """
    if target.correct:
        spare = max(ceil_log2(problem.m * problem.n * problem.batch) - 4, 6)
        wanted = problem.fmt.t + 1 + spare + 6 + ceil_log2(problem.terms) // 2
    else:
        wanted = promise.bits_of_inverse(target.r) + 6
    return bounds.first_slice_count(slice_bits, wanted)


def storage_dtype(spec: ProductSpec) -> np.dtype[Any]:
    """The smallest NumPy dtype that holds the words of a product."""
    return np.dtype({"int8": np.int8, "fp16": np.float16, "fp64": np.float64}.get(spec.name, np.float32))


def _diagonals(plan: Plan, left: Split, right: Split, engine: Engine, kept: int) -> tuple[Array, int]:
    """sums[s] = sum_{p+q=s} A_p B_q for s < kept, in int64, and the number of pairs."""
    k = plan.problem.terms
    h = 2 ** (plan.slice_bits - 1)
    batch = max(left.parts.shape[0], right.parts.shape[0])
    sums = np.empty((kept, batch, left.parts.shape[1], right.parts.shape[2]), np.int64)
    pairs = 0
    for s in range(kept):
        first, last = max(0, s - right.count + 1), min(s, left.count - 1)
        pairs += last - first + 1
        begin = (right.count - 1 - (s - first)) * k
        for start in range(0, (last - first + 1) * k, plan.k_block):
            stop = min(start + plan.k_block, (last - first + 1) * k)
            a = left.parts[:, :, first * k + start : first * k + stop]
            b = right.parts[:, begin + start : begin + stop, :]
            exact = engine.exact_product(plan.words, a, b, h, h)
            if start == 0:
                sums[s] = exact
            else:
                sums[s] += exact.astype(np.int64)
    return sums, pairs
