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
    doi:10.1007/978-3-030-50743-5_12.
    [UOI25] Performance enhancement of the Ozaki scheme on integer matrix units,
    doi:10.1177/10943420241313064.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FP32, FP64, INT8, Format
from hifigemm.model.accuracy import CORRECT, Target
from hifigemm.model.engine import Engine
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Problem, ProductSpec, counted
from hifigemm.numerics import bounds, estimates
from hifigemm.numerics.bits import Array, DType, ceil_log2
from hifigemm.numerics.blocking import (
    entries_within,
    largest_block,
    put,
    vector_blocks,
    widen,
)
from hifigemm.numerics.embedding import embed_left, embed_right
from hifigemm.numerics.inner_scaling import scaled_along_k
from hifigemm.numerics.limbs import limbs_from_sums, num_limbs
from hifigemm.numerics.rounding import round_in_chunks, values_in_chunks
from hifigemm.numerics.scaling import Scale, exponents, lowest_bits
from hifigemm.numerics.slicing import (
    diagonals_in_words,
    digit_limit,
    num_pairs,
    slice_vectors,
    slices_needed,
    unit_exponent,
)
from hifigemm.schemes import certify
from hifigemm.schemes.scheme import (
    Scheme,
    apart,
    finished,
    gaining_exponents,
    product_spec,
    rows_together,
)

ENTRY_BYTES = 17
"""Bytes of an entry beside its slices: nine of `certify.facts`, eight of a copy when it
is escalated.
"""

MAX_SLICES = 4400
"""More diagonals than any float64 operands have with one-bit slices."""

_INT64_BITS = 62
"""Bits of a sum of diagonals in int64."""

_FLOAT_BITS = 53
"""Bits of one that float64 holds as well."""

_MAX_FLOAT_BITS = 900
"""Bits of an integer whose parts are float64 numbers."""

_STACKED_ENTRIES = 2**16
"""Entries of slices up to which the diagonals are one stacked product."""

_CORRECT_PRODUCTS = 30
"""Products of real slices for correct rounding in the model of times; at phi = 0.5 and
k = 256 to 2048, FP64 slices took 9 to 11, FP16 and INT8 slices 44 to 58.
"""


@dataclass(frozen=True)
class Ozaki1(Scheme):
    """Ozaki scheme I: a sum of exact products of slices [OOOR12], [MOOI20].

    Parameters
    ----------
    product : "int8", "fp16", "bf16", "tf32", "fp32" or "fp64"
        Format of the slices and the unit that multiplies them.
    num_slices : int or None
        Number of diagonals of slice products that are kept. None chooses it from the
        accuracy or the mode. A number overrides the estimate of the modes "dp" and
        "sp": the scheme in a plan or report has both, and keeps its count.
    mode : None, "dp", "sp" or "correct"
        "dp" and "sp" choose num_slices by the estimate of [MOOI20] for FP64 or FP32
        accuracy. "correct" starts with num_slices, or with a count that it chooses, and
        adds slices until every entry is correctly rounded.
    scaling : None or "inner"
        "inner" also scales the columns of A and the rows of B by opposite powers of
        two, if the exponents of the operands gain by it. The matrices of a stack share
        the powers. On a GPU such products run without fused kernels.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.random.default_rng(0).standard_normal((4, 4))
    >>> c, report = hg.matmul(
    ...     a, a.T, scheme=hg.Ozaki1(num_slices=8), return_report=True
    ... )
    >>> report.num_products, report.bound < 1e-16
    (36, True)
    """

    name: ClassVar[str] = "ozaki1"
    negates_products = False
    limits = 1, MAX_SLICES

    product: Literal["int8", "fp16", "bf16", "tf32", "fp32", "fp64"] = "int8"
    num_slices: int | None = None
    mode: Literal["dp", "sp", "correct"] | None = None
    scaling: Literal["inner"] | None = None

    @property
    def explicit(self) -> bool:
        """True if the number of slices is forced, or left to an estimate.

        The estimate of the modes "dp" and "sp" promises nothing.
        """
        if self.mode is None:
            return self.num_slices is not None
        return self.mode in ("dp", "sp")

    @property
    def rounds_once(self) -> bool:
        """True for the mode "correct"."""
        return self.mode == "correct"

    @property
    def count(self) -> int:
        """num_slices, once a plan has filled it in."""
        if self.num_slices is None:
            raise PlanError(f"{self} has no number of slices yet: it comes from a plan")
        return self.num_slices

    def planes(self, problem: Problem) -> int:
        """Number of products of real slices, once a plan has filled in num_slices."""
        num_pairs = self.count * (self.count + 1) // 2
        return num_pairs * (4 if problem.is_complex else 1)

    def expected_products(self, problem: Problem, target: Target) -> int:
        """Number of products of real slices. Without a count, the number for correct
        rounding of operands without wide exponents.
        """
        if self.num_slices is not None:
            return self.planes(problem)
        return _CORRECT_PRODUCTS * (4 if problem.is_complex else 1)

    def negates_splits(self, plan: Plan) -> bool:
        """False for INT8 slices: the slices of -x leave another remainder."""
        return plan.spec.operand is not INT8

    @property
    def level(self) -> Format:
        """The format whose accuracy the modes "dp" and "sp" aim at."""
        return FP64 if self.mode == "dp" else FP32

    def needs_evidence(self, problem: Problem, target: Target, engine: Engine) -> bool:
        """True for the modes that estimate a count."""
        return self.mode in ("dp", "sp") and self.num_slices is None

    def evidence(
        self,
        problem: Problem,
        target: Target,
        a: Array,
        b: Array,
        engine: Engine,
        workspace: int,
    ) -> Evidence | None:
        """The estimate of [MOOI20]."""
        beta = slice_bits(problem, product_spec(engine, self.product, "Ozaki1"))
        entries = entries_within(workspace, engine.memory.block_entries)
        if self.scales_along_k:
            d = gaining_exponents(a, b, engine, entries)
            if d is not None:
                a = scaled_along_k(a, d, 2)
                b = scaled_along_k(b, d, 1)
        count = engine.override(estimates.published_num_slices)
        return Evidence(num_slices=count(a, b, beta, self.level.u, entries))

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan, with beta from k and the product.

        S comes from the user, from the estimate of the mode or from the target.
        """
        spec = product_spec(engine, self.product, "Ozaki1")
        beta = slice_bits(problem, spec)
        if self.mode == "correct":
            target = CORRECT

        # The number of slices, and why.
        size = counted(beta, "bit")
        if self.num_slices is not None:
            count = self.num_slices
            reason = f"{counted(count, 'slice')} of {size}, as asked"
        elif evidence is not None and evidence.num_slices is not None:
            count, is_all = evidence.num_slices
            reason = f"{counted(count, 'slice')} of {size} by the estimate of [MOOI20] for {self.level.name}"
            if is_all:
                reason = (
                    f"all slices of {size}: the operands end before the estimate is met"
                )
        else:
            count = first_num_slices(problem, target, beta)
            reason = f"{counted(count, 'slice')} of {size} for {target}"

        verification = Verification.ENTRYWISE
        if math.isinf(target.r):
            verification = Verification.NONE
        scheme = replace(self, num_slices=count)
        h = 2 ** (beta - 1)
        return Plan(
            problem=problem,
            asked=asked,
            scheme=scheme,
            target=target,
            engine=engine.name,
            product=spec,
            num_products=scheme.planes(problem),
            k_block=bounds.exact_k_limit(spec.accumulator_max, h, h),
            verification=verification,
            bound=target.r,
            reason=reason,
            evidence=evidence,
        )

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes of slices and working copies of rows and columns, of sums and values."""
        problem = plan.problem
        spec = plan.spec
        k = problem.terms
        width = 2 if problem.is_complex else 1

        # Slices; words that are no float64 are converted to float32 for a product.
        beta = slice_bits(problem, spec)
        converted = 0
        if spec.operand is not FP64:
            converted = 4 * min(2**24 >> (2 * beta - 2), self.count * k)
        entry_bytes = self.count * storage_dtype(spec).itemsize + ENTRY_BYTES
        vectors = batch * (rows + width * cols) * (k * entry_bytes + converted)

        # Ten float64 copies of the part of an operand that is being split.
        operand = problem.batch * max(problem.m, problem.n) * problem.k
        passing = min(largest_block(problem.k, plan.blocking.entries), operand)
        passing *= width * width * 10 * 8

        # int64 sums of the diagonals; limbs and temporaries while entries are rounded.
        entries = batch * rows * cols * width
        sums = entries * (8 * self.count + 88)
        limbs = num_limbs(_sum_bits(plan, self.count))
        rounding = min(entries, plan.blocking.entries) * (3 * limbs + 30) * 8
        return vectors + sums + passing + rounding

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Slices of rows or columns, each on its own grid, one after the other along k.

        On the left the slices stand in order, on the right in reverse, so that the
        pairs of a diagonal are one product of two contiguous planes. facts: `exponent`
        of the largest entry of a vector, `needed` slices until the vector ends, and
        those of `certify.facts`.
        """
        is_left = side == "left"
        axis, embed = (2, embed_left) if is_left else (1, embed_right)
        width = 2 if plan.problem.is_complex and not is_left else 1
        beta = slice_bits(plan.problem, plan.spec)
        entries = plan.blocking.entries

        # The grid of each vector, and the slices that it takes to hold it.
        twos_complement = _in_twos_complement(plan)
        limit = digit_limit(beta) if twos_complement else 1.0
        exponent = exponents(x, axis, entries, limit)
        lowest = lowest_bits(x, axis, entries)
        if width > 1:
            exponent = np.repeat(exponent, width, axis=3 - axis)
            lowest = np.repeat(lowest, width, axis=3 - axis)
        unit = unit_exponent(exponent, beta)
        facts = {"exponent": exponent, "needed": slices_needed(unit, lowest, beta)}
        count = self._count_for(facts["needed"])

        # Memory for all slices.
        k = plan.problem.terms
        shape = [x.shape[0], k, k]
        shape[3 - axis] = x.shape[3 - axis] * width
        planes_shape = list(shape)
        planes_shape[axis] = count * k
        planes = np.empty(planes_shape, storage_dtype(plan.spec), like=x)

        # Some vectors at a time: their facts, then their slices, together while these
        # are no more than the entries of a block.
        for block in vector_blocks(x, axis, entries):
            y = embed(x[block])
            vectors = widen(block, width)
            for name, fact in certify.facts(plan, y, exponent[vectors]).items():
                put(facts, name, tuple(shape), vectors, fact)
            at_once = min(count, max(entries // max(y.size, 1), 1))
            slices = slice_vectors(y, unit[vectors], beta, twos_complement, at_once)
            for p, digits in zip(range(count), slices, strict=False):
                position = p if is_left else count - 1 - p
                terms = slice(position * k, (position + 1) * k)
                if is_left:
                    planes[(*vectors, terms)] = digits
                else:
                    planes[vectors[0], terms, vectors[2]] = digits
        return Split(side, x.shape[3 - axis], planes, unit, count, facts)

    def split_together(
        self, plan: Plan, a: Array, b: Array, engine: Engine
    ) -> tuple[Split, Split] | None:
        """See `Scheme`."""
        rows = rows_together(plan, a, b)
        if rows is None:
            return None
        left, right = apart(self.split(plan, rows, "left", None, engine), a.shape[1])

        # Each operand has the slices that it takes, those of B in reverse.
        k = plan.problem.terms
        count = self._count_for(left.facts["needed"])
        left = replace(left, planes=left.planes[:, :, : count * k], count=count)
        count = self._count_for(right.facts["needed"])
        batch, n, _ = right.planes.shape
        slices = right.planes.reshape(batch, n, -1, k)
        reverse = np.take(slices, range(count - 1, -1, -1), axis=2)
        planes = np.swapaxes(reverse.reshape(batch, n, count * k), 1, 2)
        return left, replace(right, planes=planes, count=count)

    def _count_for(self, needed: Array) -> int:
        """Slices that an operand takes whose vectors need so many."""
        return max(1, min(self.count, int(needed.max(initial=0))))

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """Diagonal sums in int64, then floats or limbs, then one rounding."""
        problem = plan.problem
        beta = slice_bits(problem, plan.spec)
        num_diagonals = min(self.count, left.count + right.count - 1)
        bits = _sum_bits(plan, num_diagonals)
        largest = num_diagonals * problem.terms * 4 ** (beta - 1)
        is_short = largest < 2**_FLOAT_BITS and bits <= _MAX_FLOAT_BITS
        is_rounded_only = is_short and not plan.certifies
        word_bits = _FLOAT_BITS if is_rounded_only else _INT64_BITS
        lengths = diagonals_in_words(problem.terms, num_diagonals, beta, word_bits)
        sums = _small_diagonals(plan, left, right, engine, lengths)
        if sums is None:
            sums = _diagonals(plan, left, right, engine, lengths)

        # Entries are integers in units of the last diagonal.
        lowest_shift = beta * (num_diagonals - 1)
        exponent = left.unit + right.unit + (shift - lowest_shift)
        exponent = np.broadcast_to(exponent, sums.shape[1:])
        shifts = [beta * (num_diagonals - end) for end in accumulate(lengths)]
        flat_sums = sums.reshape(len(lengths), -1)

        def limbs_of(entries: slice) -> Array:
            return limbs_from_sums(flat_sums[:, entries], shifts, num_limbs(bits))

        def terms_of(entries: slice) -> Array:
            units = np.array([2.0**shift for shift in shifts])
            return flat_sums[:, entries] * units[:, None]

        exact = left.facts["needed"] + right.facts["needed"] - 1 <= num_diagonals
        size = plan.blocking.entries
        certified: Array | None = None
        if is_rounded_only:
            values = values_in_chunks(
                terms_of, limbs_of, exponent, problem.fmt, size, bits
            )
            bound = 0.0 if exact.all() else math.inf
        else:
            # One rounding, and a certificate for what the dropped diagonals leave out.
            err = bounds.ozaki1_error_exponent(
                problem.terms, num_diagonals, beta, _in_twos_complement(plan)
            )
            rounded = round_in_chunks(
                limbs_of,
                exponent,
                problem.fmt,
                size,
                None if math.isinf(plan.target.r) else err,
            )
            values = rounded.values
            lowest = lowest_shift + 2 * (beta - 1)
            certified, bound = certify.certified_entries(
                plan, left, right, engine, rounded, exact, err - lowest, lowest
            )
        pairs = num_pairs(num_diagonals, left.count, right.count)
        num_products = pairs * (4 if problem.is_complex else 1)
        return finished(problem, values, certified, bound, num_products)

    def plan_for_uncertified(
        self, problem: Problem, target: Target, engine: Engine, asked: Scheme | None
    ) -> Plan:
        """The plan for entries that another scheme did not certify.

        It begins with the number of slices for correct rounding, for every target, so
        that a weaker target never takes more steps than a stronger one.
        """
        plan = self.plan(problem, CORRECT, engine, None, asked)
        return replace(plan, target=target, bound=target.r)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """The plan with twice as many slices; None if there are no more."""
        if plan.is_fixed or self.count == MAX_SLICES:
            return None
        count = min(2 * self.count, MAX_SLICES)
        scheme = replace(self, num_slices=count)
        reason = f"escalated to {count} slices"
        return replace(plan, problem=problem, scheme=scheme, reason=reason)


SLICES = Ozaki1(product="fp64")
"""The scheme that makes the entries that sums in words leave."""


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
    """Slices to begin with, enough for typical data; other entries are escalated.

    Sums of |A||B| are taken as 2**-6 of the largest possible; a sum of k terms of
    either sign as sqrt(k) smaller, with as many bits below the rounding unit, or the
    relative error, as leave about 16 entries of the result uncertain.
    """
    bits = certify.bits_of_inverse(target.r)
    if target.correct:
        bits = problem.fmt.t + 1
    bits += 6
    if target.by_entry:
        entries = problem.m * problem.n * problem.batch
        bits += max(ceil_log2(entries) - 4, 6) + ceil_log2(problem.terms) // 2
    return bounds.first_slice_count(slice_bits, bits)


def storage_dtype(spec: ProductSpec) -> DType:
    """The smallest NumPy dtype that holds the words of a product."""
    dtypes = {"int8": np.int8, "fp16": np.float16, "fp64": np.float64}
    return np.dtype(dtypes.get(spec.name, np.float32))


def _in_twos_complement(plan: Plan) -> bool:
    """True if slices hold -h .. h - 1, h = 2**(beta - 1), as INT8 words do."""
    return 2 ** (slice_bits(plan.problem, plan.spec) - 1) > plan.spec.max_integer


def _sum_bits(plan: Plan, num_diagonals: int) -> int:
    """Bits of the sum of all diagonals, in units of the last."""
    beta = slice_bits(plan.problem, plan.spec)
    lowest_shift = beta * (num_diagonals - 1)
    return ceil_log2(plan.problem.terms) + 2 * (beta - 1) + lowest_shift + 2


def _diagonals(
    plan: Plan, left: Split, right: Split, engine: Engine, lengths: tuple[int, ...]
) -> Array:
    """Diagonals sum_{p+q=s} A_p B_q in int64 words.

    Each word has so many diagonals, in units of its last one.
    """
    k = plan.problem.terms
    beta = slice_bits(plan.problem, plan.spec)
    h = 2 ** (beta - 1)
    batch = max(left.planes.shape[0], right.planes.shape[0])
    shape = (len(lengths), batch, left.planes.shape[1], right.planes.shape[2])
    sums = np.zeros(shape, np.int64, like=left.planes)
    s = 0
    for word, length in zip(sums, lengths, strict=True):
        for _ in range(length):
            # A_p for p = first .. last, then B_q for q = s - first .. s - last: the
            # slices of B stand in reverse, so both are contiguous along k.
            first = max(0, s - right.count + 1)
            last = min(s, left.count - 1)
            pairs = last - first + 1
            begin_a = first * k
            begin_b = (right.count - 1 - (s - first)) * k
            s += 1

            # Products of at most k_block terms are exact; int64 adds them.
            word <<= beta
            for start in range(0, pairs * k, plan.k_block):
                stop = min(start + plan.k_block, pairs * k)
                a = left.planes[:, :, begin_a + start : begin_a + stop]
                b = right.planes[:, begin_b + start : begin_b + stop, :]
                product = engine.exact_product(plan.spec, a, b, h, h)
                word += product.astype(np.int64, copy=False)
    return sums


def _small_diagonals(
    plan: Plan, left: Split, right: Split, engine: Engine, lengths: tuple[int, ...]
) -> Array | None:
    """`_diagonals` by one stacked product; None where zeros would cost more than calls.

    Diagonal s is the product of all slices of A and of as many places of B, which hold
    B_(s-p) for p = 0, 1, ... or zeros.
    """
    k = plan.problem.terms
    num_diagonals = sum(lengths)
    width = left.count * k
    batch, m, _ = left.planes.shape
    n = right.planes.shape[2]
    entries = num_diagonals * batch * (m + n) * width
    is_small = entries <= _STACKED_ENTRIES and len(right.planes) == batch
    if not is_small or width > plan.k_block:
        return None

    # The slices of B stand in reverse between slices of zeros.
    above = max(num_diagonals - right.count, 0) * k
    num_terms = above + right.count * k + width - k
    places = np.zeros((batch, num_terms, n), right.planes.dtype, like=right.planes)
    places[:, above : above + right.count * k] = right.planes
    starts = [above + (right.count - 1 - s) * k for s in range(num_diagonals)]
    stacked = np.stack([places[:, start : start + width] for start in starts])

    # One product for each diagonal and matrix.
    b = stacked.reshape(num_diagonals * batch, width, n)
    a = left.planes
    if batch > 1:
        a = np.concatenate([a] * num_diagonals)
    beta = slice_bits(plan.problem, plan.spec)
    h = 2 ** (beta - 1)
    products = engine.exact_product(plan.spec, a, b, h, h)
    diagonals = products.reshape(num_diagonals, batch, m, n).astype(np.int64)

    # Each word in units of its last diagonal.
    shifts = [beta * s for length in lengths for s in range(length - 1, -1, -1)]
    diagonals <<= np.array(shifts)[:, None, None, None]
    ends = accumulate(lengths)
    words = [
        diagonals[end - length : end].sum(axis=0)
        for end, length in zip(ends, lengths, strict=True)
    ]
    return np.stack(words)
