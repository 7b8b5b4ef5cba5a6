"""The base of the schemes of rounded words: scaling, splitting, and their promise.

Idea
    A = diag(2**row_exponent) A' with |A'| < 2**T, T as large as words and sums allow,
    so that the words of small entries underflow as late as possible; powers of two
    change no bit otherwise. Words of A' and B' are multiplied and added with rounding,
    as the engine states.
Notation
    r |A||B| + E is the error bound of numerics/word_bounds.py, E = 0 unless something
    underflowed.
Exact when
    Never. The promise is |C - AB| <= (r + E / |A||B|) |A||B| in every entry; where E is
    not 0, |A||B| is bounded below by a float64 product.
Cost
    See multiword.py and corrected.py.
References
    [MM25] Error Analysis of Matrix Multiplication with Narrow Range Floating-Point
    Arithmetic, doi:10.1137/24M1685109.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.base.formats import FP32, FP64
from hifigemm.model.accuracy import CORRECT, Target
from hifigemm.model.engine import Engine
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.accumulation import Accumulation, word_sums
from hifigemm.numerics.bits import Array, ceil_log2, largest_exponent, scale_by_power
from hifigemm.numerics.embedding import embed_left, embed_right
from hifigemm.numerics.estimates import nonzeros
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.spans import num_spans, span_length
from hifigemm.numerics.word_bounds import (
    Pair,
    WordError,
    relative_error,
    relative_error_at,
    steps_in_blocks,
    word_error,
)
from hifigemm.numerics.words import Splitting, WordFacts
from hifigemm.schemes.certify import magnitude_sums_up, ratios
from hifigemm.schemes.scheme import (
    Scheme,
    apart,
    finished,
    product_spec,
    rows_together,
)

_TINY = 2.0**-900
"""Errors that are computed for smaller entries may have underflowed themselves. Words
of such entries are zero in every format, so any limit between 2**-1000 and 2**-150
would do.
"""


class WordScheme(Scheme):
    """Base of the schemes that multiply words with rounding."""

    # A library may add the terms of a smaller block in another order.
    bits_follow_blocks = True

    product: str
    """Name of the format of the words."""
    scale: bool
    """Scale rows of A and columns of B by powers of two."""
    spans: bool
    """Cut a long k of a small result into spans, see numerics.spans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spans and not self.adds_outside:
            raise PlanError(
                f"{self}: spans=True goes with sums of blocks of k that are added "
                "outside a tensor core"
            )

    @property
    def chains_corrections(self) -> bool:
        """True if there is one main product, and all others, if any, are chained.

        The others are the corrections by second words, in an accumulator of their own.
        """
        return False

    @property
    def explicit(self) -> bool:
        """True: the numbers of words and products are parameters."""
        return True

    @property
    def splitting(self) -> Splitting:
        """How entries become words."""
        raise NotImplementedError

    @property
    def adds_outside(self) -> bool:
        """True if the sums of blocks of k are added outside the unit.

        Only then k may be cut into spans: other sums are defined as one accumulation
        over all of k.
        """
        raise NotImplementedError

    def span_length(self, problem: Problem, unit: Accumulation) -> int:
        """Number of terms of a span, where k is cut; 0 where the shape asks for none."""
        columns = problem.n * (2 if problem.is_complex else 1)
        terms = max(problem.terms, 1)
        return span_length(problem.m, columns, terms, self.block_length(unit, terms))

    def pair_errors(
        self, unit: Accumulation, k: int, span: int = 0
    ) -> dict[Pair, float]:
        """c_pq of numerics.word_bounds for each pair that is multiplied.

        Pairs with the smallest products come first. Sums over `span` terms are added at
        the end, 0 where all of k is one sum; so it is below.
        """
        raise NotImplementedError

    def worst_case(
        self, unit: Accumulation, k: int, lost: int = 0, span: int = 0
    ) -> float:
        """r for scaled float32 operands that lose `lost` bits together.

        See numerics.word_bounds.relative_error_at.
        """
        errors = partial(self.pair_errors, k=k, span=span)
        return relative_error_at(self.splitting, errors, unit, lost)

    def most_lost(self, unit: Accumulation, k: int, r: float, span: int = 0) -> int:
        """Bits that scaled float32 operands may lose together while r holds.

        -1 if r does not even hold for operands that lose none.
        """
        return _most_lost(self, unit, k, r, span)

    def exact_words_bound(self, unit: Accumulation, k: int, span: int = 0) -> float:
        """r for operands whose entries are single words of the format.

        None of these words may be subnormal after the scaling.
        """
        return self.pair_errors(unit, k, span)[0, 0]

    def block_length(self, unit: Accumulation, k: int) -> int:
        """Inner length of a sum inside the unit."""
        raise NotImplementedError

    def count_products(self, unit: Accumulation, problem: Problem) -> int:
        """Number of products of words, each of size m n k."""
        return _num_pairs(self, unit) * (4 if problem.is_complex else 1)

    def unit_on(self, engine: Engine, problem: Problem) -> Accumulation:
        """How the engine adds the products of words.

        An engine may have one kernel for all of them, or multiply one pair at a time.
        """
        spec = product_spec(engine, self.product, type(self).__name__)
        sums = engine.override(word_sums)(self, max(problem.terms, 1))
        return engine.accumulation(spec.operand) if sums is None else sums.unit

    def sum_products(self, plan: Plan, a: Array, b: Array, engine: Engine) -> Array:
        """The sum of the products of pairs of words, in the accumulator's format.

        a and b hold the words one after the other along k, see `word`. The sums of
        spans of k are added in their order.
        """
        k = plan.problem.terms
        span = plan.k_span or k
        total: Array = self.sum_span(plan, a, b, engine, 0, span)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(span, k, span):
                stop = min(start + span, k)
                total = total + self.sum_span(plan, a, b, engine, start, stop)
        return total

    def sum_span(
        self, plan: Plan, a: Array, b: Array, engine: Engine, start: int, stop: int
    ) -> Array:
        """The sum of the products of pairs of words over terms start to stop."""
        raise NotImplementedError

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan, with the bound that the words reach unless they underflow.

        Raises PlanError: the words are not for operands of this dtype; AccuracyError:
        the target lies beyond the bound.
        """
        spec = product_spec(engine, self.product, type(self).__name__)
        if spec.operand is FP32 and problem.fmt is not FP64:
            raise PlanError(
                f"{self}: FP32 words are for operands of 53 bits, {problem.dtype} has 24; "
                "Native(product='fp64') adds its exact products in float64"
            )
        if target.relative is not None:
            raise AccuracyError(
                f"{self} promises no relative error: its sums are rounded; requested: {target}"
            )

        # Even operands that are exact words have this bound.
        unit = self.unit_on(engine, problem)
        terms = max(problem.terms, 1)
        span = self.span_length(problem, unit) if self.spans else 0
        errors = self.pair_errors(unit, terms, span)
        exact_words_bound = relative_error(self.splitting, errors, (False, False))
        if exact_words_bound > target.r and problem.terms:
            raise AccuracyError(
                f"{self} for {problem} errs by up to {exact_words_bound:.3g} |A||B| "
                f"({unit.unit}); requested: {target}"
            )

        verification = Verification.ENTRYWISE
        if math.isinf(target.r):
            verification = Verification.NONE
        bound = relative_error(self.splitting, errors)
        reason = f"words as asked, {unit.unit}: at worst {bound:.3g} |A||B| unless words underflow"
        return Plan(
            problem=problem,
            asked=asked,
            scheme=self,
            target=target,
            engine=engine.name,
            product=spec,
            num_products=self.count_products(unit, problem),
            k_block=self.block_length(unit, terms),
            verification=verification,
            bound=target.r,
            reason=reason,
            k_span=span,
        )

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes of words and working copies of rows and columns, of sums and values."""
        problem = plan.problem
        width = 2 if problem.is_complex else 1
        # Words in four bytes, a magnitude in eight and a mark of nonzeros in one: of
        # this block and of the one before it. Five float64 working copies.
        bytes_per_entry = 2 * (4 * self.splitting.num_words + 8 + 1) + 5 * 8
        operands = problem.terms * (rows + width * cols) * bytes_per_entry
        # Seven float64 copies of the result.
        results = rows * cols * width * 7 * 8
        return batch * (operands + results)

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Words of scaled rows or columns, one after the other along k.

        The facts are those that `word_error` and `certify.ratios` need.
        """
        embedded = embed_left(x) if side == "left" else embed_right(x)
        axis = 2 if side == "left" else 1
        facts = {"nonzero": nonzeros(embedded)} if plan.certifies else {}

        # Scale the largest entry of each row or column to just below 2**T.
        unit = largest_exponent(embedded, axis) - self.top_exponent(plan.problem)
        if self.scale:
            embedded = scale_by_power(embedded, -unit)
        else:
            unit = np.zeros_like(unit)
        words, remainder = self.splitting.split(embedded)

        # Facts of the scaled entries; rows or columns with tiny ones are marked.
        if facts:
            has_tiny = np.zeros(unit.shape, bool, like=unit)
            if plan.problem.fmt is FP64:
                has_tiny = (
                    (np.abs(embedded) < _TINY) & facts["nonzero"].astype(bool)
                ).any(axis=axis, keepdims=True)
            word_facts = self.splitting.describe(
                embedded, words, remainder, axis, has_tiny
            )
            facts |= vars(word_facts)
            facts["magnitude"] = np.abs(embedded)
        planes = np.concatenate(words, axis=axis)
        return Split(side, x.shape[3 - axis], planes, unit, len(words), facts)

    def split_together(
        self, plan: Plan, a: Array, b: Array, engine: Engine
    ) -> tuple[Split, Split] | None:
        """See `Scheme`."""
        rows = rows_together(plan, a, b)
        if rows is None:
            return None
        left, right = apart(self.split(plan, rows, "left", None, engine), a.shape[1])
        columns = np.swapaxes(right.planes, 1, 2)
        planes = np.ascontiguousarray(columns, like=columns)
        return left, replace(right, planes=planes)

    def top_exponent(self, problem: Problem) -> int:
        """T: scaled entries lie below 2**T, and sums of products do not overflow FP32.

        Words of entries between the largest number of their format and 2**(emax + 1)
        saturate, which leaves remainders of at most u**p of the entry after p words, as
        rounding does.
        """
        fmt = self.splitting.fmt
        if fmt is FP32:
            return 100  # sums in float64 stay far from overflow
        # k products below 2**(2 T) sum to at most 2**122. Up to nine pairs of words are
        # added in FP32, which ends at 2**128.
        return min(fmt.emax + 1, (122 - ceil_log2(problem.terms)) // 2)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """Rounded products of words, scaled back.

        Entries whose sums overflowed are not certified.
        """
        problem = plan.problem
        unit = self.unit_on(engine, problem)

        # One kernel for all pairs of words if the engine has it, else pair by pair.
        span = plan.k_span
        sums_by_kernel = engine.override(word_sums)(self, problem.terms, span)
        if sums_by_kernel is None:
            sums = self.sum_products(plan, left.planes, right.planes, engine)
        else:
            sums = sums_by_kernel(left.planes, right.planes)

        certified = np.isfinite(sums)
        bound = math.inf
        if plan.certifies:
            error = word_error(
                _facts(left),
                _facts(right),
                self.splitting,
                self.pair_errors(unit, problem.terms, span),
                unit,
                problem.terms,
                steps_in_blocks(unit, problem.terms, plan.k_block),
                spans=num_spans(problem.terms, span),
            )
            certified, bound = _certified_entries(
                plan, left, right, engine, error, certified
            )

        # Scale back and round to the format of the result.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sums = sums.astype(np.float64) + 0.0  # an exact zero is +0
            values = scale_by_power(sums, left.unit + right.unit + shift)
            values = values.astype(result_dtype(problem.fmt), copy=False)

        if plan.verification is Verification.NONE and not self.scale:
            # Entries that are not finite are completed, see `escalate`.
            certified = np.isfinite(values)
        elif plan.certifies and math.isfinite(plan.target.r):
            # An infinite entry keeps the promise only if the exact value rounds to
            # infinity too.
            finite = np.isfinite(values)
            if not finite.all():
                overflow = problem.fmt.emax + 1 - shift
                infinite = _surely_beyond(sums, bound, left, right, engine, overflow)
                certified = certified & (finite | infinite)
        num_products = self.count_products(unit, problem)
        return finished(problem, values, certified, bound, num_products)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """The plan with row and column scaling, None if it has that already; that of
        correct rounding for sums that overflowed where nothing is promised.
        """
        if self.scale:
            return None
        if plan.verification is Verification.NONE:
            from hifigemm.schemes.double_double import plan_for_open_entries

            return plan_for_open_entries(problem, CORRECT, engine, plan.asked)
        scaled = replace(self, **{"scale": True})
        return replace(
            plan, problem=problem, scheme=scaled, reason="rows and columns scaled"
        )


def word(
    planes: Array,
    index: int,
    k: int,
    *,
    left: bool,
    start: int = 0,
    stop: int | None = None,
) -> Array:
    """Columns (left) or rows (right) start to stop of one word; all k by default."""
    stop = k if stop is None else min(k, stop)
    terms = slice(index * k + start, index * k + stop)
    return planes[..., terms] if left else planes[..., terms, :]


@lru_cache(maxsize=1024)
def _num_pairs(scheme: WordScheme, unit: Accumulation) -> int:
    """Pairs of words that are multiplied, whatever k is."""
    return len(scheme.pair_errors(unit, 1))


@lru_cache(maxsize=1024)
def _most_lost(
    scheme: WordScheme, unit: Accumulation, k: int, r: float, span: int
) -> int:
    """See `WordScheme.most_lost`."""
    for lost in range(23, -1, -1):  # float32 has 24 bits
        if scheme.worst_case(unit, k, lost, span) <= r:
            return lost
    return -1


def _facts(split: Split) -> WordFacts:
    """The facts of a split that describe its words."""
    return WordFacts(
        excess=split.facts["excess"],
        subnormal=split.facts["subnormal"],
        total=split.facts["total"],
        lowest=split.facts["lowest"],
        inexact=split.facts["inexact"],
    )


def _certified_entries(
    plan: Plan,
    left: Split,
    right: Split,
    engine: Engine,
    error: WordError,
    finite: Array,
) -> tuple[Array, float]:
    """True for entries that keep the promise of the plan; the r that these keep."""
    if error.absolute is None:
        return finite & (error.relative <= plan.target.r), error.relative
    bound = error.relative + ratios(error.absolute, left, right, engine)
    certified = finite & (bound <= plan.target.r)
    return certified, float(np.max(bound, where=certified, initial=error.relative))


def _surely_beyond(
    sums: Array, bound: float, left: Split, right: Split, engine: Engine, exponent: int
) -> Array:
    """True for entries whose exact value is sure to reach 2**exponent.

    The sums err by at most `bound` |A||B|.
    """
    lowest = np.abs(sums) - bound * magnitude_sums_up(left, right, engine)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        beyond: Array = scale_by_power(lowest, left.unit + right.unit - exponent) >= 1.0
    return beyond
