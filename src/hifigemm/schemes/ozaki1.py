"""Ozaki scheme I: exact products of slices.

Idea
    A = sum_p A_p 2**(g_i - beta p),  B = sum_q B_q 2**(f_j - beta q) with integer slices |w| <= h = 2**(beta - 1)
    (INT8 slices of eight bits: -h <= w < h), and
    A B = sum_s 2**(g_i + f_j - beta s) sum_{p+q=s} A_p B_q. The diagonals s are groups
    of one scale: their pairs are added exactly. Kept are s < S (S = num_slices); the
    exact sum of what is kept is rounded once.
Notation
    beta = slice_bits, S = num_slices, g = row_exponent of the first slice's unit,
    f = col_exponent, E = bound of what is left out.
Exact when
    k_block h**2 <= accumulator of the product, and all sums fit int64:
    bounds.slice_bits_for. The result is correctly rounded where row i ends after d_i
    slices, column j after d_j, and d_i + d_j - 1 <= S; or where E cannot move the
    rounding (rounding.Rounded.certain).
Cost
    S (S + 1) / 2 products (fast mode), fewer where the operands end earlier; d_A d_B
    when all are kept.
References
    [OOOR12] Error-free transformations of matrix multiplication,
    doi:10.1007/s11075-011-9478-1.
    [MOOI20] DGEMM using Tensor Cores, and Its Accurate and Reproducible Versions,
    doi:10.1007/978-3-030-50743-5_12. [UOI25] Performance enhancement of the Ozaki
    scheme on integer matrix units, doi:10.1177/10943420241313064.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from hifigemm.accuracy import CORRECT, Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.formats import FP32, FP64
from hifigemm.numerics import bounds, estimates
from hifigemm.numerics.bits import Array, ceil_log2
from hifigemm.numerics.blocking import (
    entries_within,
    largest_block,
    put,
    vector_blocks,
    widen,
)
from hifigemm.numerics.embedding import embed_left, embed_right
from hifigemm.numerics.limbs import limbs_from_sums, num_limbs
from hifigemm.numerics.rounding import round_in_chunks
from hifigemm.numerics.scaling import Scale, exponents, lowest_bits
from hifigemm.numerics.slicing import (
    digit_limit,
    slice_vectors,
    slices_needed,
    unit_exponent,
)
from hifigemm.plan import Evidence, Plan, Product, Split, Verification
from hifigemm.problem import Problem, ProductSpec, counted
from hifigemm.schemes import certify
from hifigemm.schemes.scheme import Scheme, finished, product_spec

ENTRY_BYTES = 17
"""Bytes of an entry beside its slices: what `certify.facts` keeps at most, and a copy
of entries that are escalated.
"""

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
        Diagonals of slice products that are kept; None chooses from the accuracy, or by
        the mode.
    mode : None, "dp", "sp" or "correct"
        "dp" and "sp" choose the number of slices by the estimate of [MOOI20] for FP64
        or FP32 accuracy; "correct" goes on from num_slices, or from a count of its own,
        until every entry is correctly rounded.
    """

    name: ClassVar[str] = "ozaki1"
    core = staticmethod(slice_vectors)
    _limits = 1, MAX_SLICES

    product: Literal["int8", "fp16", "bf16", "tf32", "fp32", "fp64"] = "int8"
    num_slices: int | None = None
    mode: Literal["dp", "sp", "correct"] | None = None

    @property
    def explicit(self) -> bool:
        """Whether the number of slices is forced, or left to an estimate that promises
        nothing.
        """
        return self.mode in ("dp", "sp") or (
            self.num_slices is not None and self.mode is None
        )

    @property
    def count(self) -> int:
        """num_slices, once a plan has filled it in."""
        if self.num_slices is None:
            raise PlanError(f"{self} has no number of slices yet: it comes from a plan")
        return self.num_slices

    def evidence(
        self,
        problem: Problem,
        target: Target,
        a: Array,
        b: Array,
        engine: Engine,
        workspace: int,
    ) -> Evidence | None:
        """The estimate of [MOOI20], where the mode asks for it."""
        if self.mode not in ("dp", "sp") or self.num_slices is not None:
            return None
        beta = slice_bits(problem, product_spec(engine, self.product, "Ozaki1"))
        entries = entries_within(workspace, engine.memory.block_entries)
        u = (FP64 if self.mode == "dp" else FP32).u
        return Evidence(
            num_slices=estimates.published_num_slices(a, b, beta, u, entries)
        )

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """Choose beta from k and the product, S from the target, the mode or the
        user.
        """
        spec = product_spec(engine, self.product, "Ozaki1")
        beta = slice_bits(problem, spec)
        if self.mode == "correct":
            target = CORRECT
        size = counted(beta, "bit")
        if self.num_slices is not None:
            count, reason = (
                self.num_slices,
                f"{counted(self.num_slices, 'slice')} of {size}, as asked",
            )
        elif evidence is not None and evidence.num_slices is not None:
            count, ended = evidence.num_slices
            fmt = FP64 if self.mode == "dp" else FP32
            reason = f"{counted(count, 'slice')} of {size} by the estimate of [MOOI20] for {fmt.name}"
            if ended:
                reason = (
                    f"all slices of {size}: the operands end before the estimate is met"
                )
        else:
            count = first_num_slices(problem, target, beta)
            reason = f"{counted(count, 'slice')} of {size} for {target}"
        pairs = count * (count + 1) // 2 * (4 if problem.is_complex else 1)
        k_block = bounds.exact_k_limit(
            spec.accumulator_max, 2 ** (beta - 1), 2 ** (beta - 1)
        )
        verification = (
            Verification.NONE if math.isinf(target.r) else Verification.ENTRYWISE
        )
        scheme = replace(self, num_slices=count)
        return Plan(
            *(
                problem,
                asked,
                scheme,
                target,
                engine.name,
                spec,
                pairs,
                k_block,
                verification,
                target.r,
                reason,
            ),
            evidence=evidence,
        )

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Slices and working copies of rows and columns, sums and rounded values of
        entries.
        """
        problem, spec = plan.problem, plan.words
        width, k, limbs = (
            2 if problem.is_complex else 1,
            problem.terms,
            num_limbs(_sum_bits(plan, self.count)),
        )
        beta = slice_bits(problem, spec)
        converted = (
            0
            if spec.operand is FP64
            else 4 * min(2**24 >> (2 * beta - 2), self.count * k)
        )
        per_vector = (
            k * (self.count * storage_dtype(spec).itemsize + ENTRY_BYTES) + converted
        )
        whole = problem.batch * max(problem.m, problem.n) * problem.k
        passing = min(largest_block(problem.k, plan.blocking.entries), whole)
        passing *= width * width * 10 * 8
        entries = batch * rows * cols * width
        rounding = min(entries, plan.blocking.entries) * (3 * limbs + 30) * 8
        return (
            batch * (rows + width * cols) * per_vector
            + entries * (8 * self.count + 88)
            + passing
            + rounding
        )

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Slices of rows or columns, each on its own grid, one after the other along k.

        On the left the slices stand in order, on the right in reverse, so that the
        pairs of a diagonal are one product of two contiguous planes.
        """
        axis, embed = (2, embed_left) if side == "left" else (1, embed_right)
        width = 2 if side == "right" and plan.problem.is_complex else 1
        beta, k, vectors = (
            slice_bits(plan.problem, plan.words),
            plan.problem.terms,
            x.shape[3 - axis] * width,
        )
        twos_complement = _in_twos_complement(plan)
        limit = digit_limit(beta) if twos_complement else 1.0
        exponent = np.repeat(
            exponents(x, axis, plan.blocking.entries, limit), width, axis=3 - axis
        )
        lowest = np.repeat(
            lowest_bits(x, axis, plan.blocking.entries), width, axis=3 - axis
        )
        unit = unit_exponent(exponent, beta)
        facts = {"exponent": exponent, "needed": slices_needed(unit, lowest, beta)}
        count = max(1, min(self.count, int(facts["needed"].max(initial=0))))
        whole = (x.shape[0], vectors, k) if side == "left" else (x.shape[0], k, vectors)
        long = (*whole[:axis], count * k, *whole[axis + 1 :])
        planes = np.empty(long, storage_dtype(plan.words), like=x)
        for where in vector_blocks(x, axis, plan.blocking.entries):
            y, wide = embed(x[where]), widen(where, width)
            for name, fact in certify.facts(plan, y, exponent[wide]).items():
                put(facts, name, whole, wide, fact)
            for p, w in zip(
                range(count),
                slice_vectors(y, unit[wide], beta, twos_complement),
                strict=False,
            ):
                at = p if side == "left" else count - 1 - p
                inner = slice(at * k, (at + 1) * k)
                planes[
                    (*wide, inner) if side == "left" else (wide[0], inner, wide[2])
                ] = w
        return Split(side, x.shape[3 - axis], planes, unit, count, facts)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """Diagonal sums in int64, then limbs, then one rounding."""
        beta, terms = slice_bits(plan.problem, plan.words), plan.problem.terms
        kept = min(self.count, left.count + right.count - 1)
        sums, pairs = _diagonals(plan, left, right, engine, kept)
        shape, sums = sums.shape[1:], sums.reshape(kept, -1)
        exponent = np.broadcast_to(
            left.unit + right.unit + (shift - beta * (kept - 1)), shape
        )
        err = bounds.ozaki1_error_exponent(terms, kept, beta, _in_twos_complement(plan))
        shifts = [beta * (kept - 1 - s) for s in range(kept)]
        limb_count = num_limbs(_sum_bits(plan, kept))

        def limbs_of(part: slice) -> Array:
            return limbs_from_sums(sums[:, part], shifts, limb_count)

        rounded = round_in_chunks(
            limbs_of, exponent, plan.problem.fmt, plan.blocking.entries, err
        )
        exact = left.facts["needed"] + right.facts["needed"] - 1 <= kept
        lowest = beta * (kept - 1) + 2 * (beta - 1)
        certified, bound = certify.certified_entries(
            plan, left, right, engine, rounded, exact, err - lowest, lowest
        )
        count = pairs * (4 if plan.problem.is_complex else 1)
        return finished(plan.problem, rounded.values, certified, bound, count)

    def continued(
        self, problem: Problem, target: Target, engine: Engine, asked: Any
    ) -> Plan:
        """The plan for entries that another scheme left open: slices for correct
        rounding, certified at the target.

        All targets climb the same steps from there, so that a weaker one is never above
        a stronger one.
        """
        plan = self.plan(problem, CORRECT, engine, None, asked)
        return replace(plan, target=target, bound=target.r)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """Twice as many slices, within what float64 operands can have."""
        if plan.is_fixed or self.count == MAX_SLICES:
            return None
        count = min(2 * self.count, MAX_SLICES)
        scheme, reason = replace(self, num_slices=count), f"escalated to {count} slices"
        return replace(plan, problem=problem, scheme=scheme, reason=reason)


@lru_cache(maxsize=1024)
def slice_bits(problem: Problem, spec: ProductSpec) -> int:
    """beta: bits of a slice for the products of an engine."""
    beta = bounds.slice_bits_for(
        problem.terms, spec.k_block, spec.accumulator_max, spec.max_digit
    )
    if beta == 0:
        raise PlanError(
            f"Ozaki1 with {spec.name} products: no slice size is exact for k = {problem.k}"
        )
    return beta


def first_num_slices(problem: Problem, target: Target, slice_bits: int) -> int:
    """Slices to begin with: enough for typical data; entries for which they are not are
    escalated afterwards.

    Sums of |A||B| are taken as 2**-6 of the largest possible; a sum of k terms of
    either sign as sqrt(k) smaller, with as many bits below the rounding unit, or the
    relative error, as leave about 16 entries of the result uncertain.
    """
    wanted = (
        problem.fmt.t + 1 if target.correct else certify.bits_of_inverse(target.r)
    ) + 6
    if target.by_entry:
        wanted += (
            max(ceil_log2(problem.m * problem.n * problem.batch) - 4, 6)
            + ceil_log2(problem.terms) // 2
        )
    return bounds.first_slice_count(slice_bits, wanted)


def storage_dtype(spec: ProductSpec) -> np.dtype[Any]:
    """The smallest NumPy dtype that holds the words of a product."""
    return np.dtype(
        {"int8": np.int8, "fp16": np.float16, "fp64": np.float64}.get(
            spec.name, np.float32
        )
    )


def _in_twos_complement(plan: Plan) -> bool:
    """Whether h = 2**(beta - 1) is no slice entry, because the words of the product
    hold -h .. h - 1.
    """
    return 2 ** (slice_bits(plan.problem, plan.words) - 1) > plan.words.max_integer


def _sum_bits(plan: Plan, kept: int) -> int:
    """Bits of the sum of all diagonals, in units of the last."""
    beta = slice_bits(plan.problem, plan.words)
    return ceil_log2(plan.problem.terms) + 2 * (beta - 1) + beta * (kept - 1) + 2


def _diagonals(
    plan: Plan, left: Split, right: Split, engine: Engine, kept: int
) -> tuple[Array, int]:
    """sums[s] = sum_{p+q=s} A_p B_q for s < kept, in int64, and the number of pairs."""
    k = plan.problem.terms
    h = 2 ** (slice_bits(plan.problem, plan.words) - 1)
    batch = max(left.planes.shape[0], right.planes.shape[0])
    sums = np.empty(
        (kept, batch, left.planes.shape[1], right.planes.shape[2]),
        np.int64,
        like=left.planes,
    )
    pairs = 0
    for s in range(kept):
        first, last = max(0, s - right.count + 1), min(s, left.count - 1)
        pairs += last - first + 1
        begin = (right.count - 1 - (s - first)) * k
        for start in range(0, (last - first + 1) * k, plan.k_block):
            stop = min(start + plan.k_block, (last - first + 1) * k)
            a = left.planes[:, :, first * k + start : first * k + stop]
            b = right.planes[:, begin + start : begin + stop, :]
            exact = engine.exact_product(plan.words, a, b, h, h)
            if start == 0:
                sums[s] = exact
            else:
                sums[s] += exact.astype(np.int64)
    return sums, pairs
