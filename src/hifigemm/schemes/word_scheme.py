"""What the schemes of rounded words share: scaling, splitting, and the promise that is
made of the error bound.

A = diag(2**row_exponent) A' with |A'| < 2**T, T as large as words and sums allow, so
that the words of small entries underflow as late as possible [MM25]; powers of two
change no bit otherwise. Words of A' and B' are multiplied and added with rounding, as
the engine states; numerics.word_bounds bounds the error by r |A||B| + E with E = 0
unless something underflowed. Where E is not 0, |A||B| is bounded below by a float64
product, and r + E / |A||B| is what is promised, entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import FP32, FP64
from hifigemm.numerics.accumulation import Accumulation, add_outside, word_sums
from hifigemm.numerics.bits import Array, ceil_log2, largest_exponent, scale_by_power
from hifigemm.numerics.embedding import embed_left, embed_right
from hifigemm.numerics.estimates import nonzeros
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.word_bounds import (
    Pair,
    WordError,
    relative_error,
    relative_error_at,
    steps_in_blocks,
    word_error,
)
from hifigemm.numerics.words import Splitting, WordFacts
from hifigemm.plan import Evidence, Plan, Product, Split, Verification
from hifigemm.problem import Problem
from hifigemm.schemes.certify import magnitude_sums_up, ratios
from hifigemm.schemes.scheme import Scheme, finished, product_spec

_TINY = 2.0**-900
"""Below, what is computed of the errors of entries may itself have underflowed. Words
of such entries are zero in every format, so nothing hangs on where between 2**-1000 and
2**-150 the limit lies.
"""


class WordScheme(Scheme):
    """Base of the schemes that multiply words with rounding; their fields include these
    two.
    """

    core = staticmethod(add_outside)

    product: str
    scale: bool

    @property
    def chains_corrections(self) -> bool:
        """One main product, whose corrections by second words, if any, are chained in
        an accumulator of their own.
        """
        return False

    @property
    def explicit(self) -> bool:
        """The number of words and products is a parameter: what is promised is the
        bound of the report.
        """
        return True

    @property
    def splitting(self) -> Splitting:
        """How entries become words."""
        raise NotImplementedError

    def pair_errors(self, unit: Accumulation, k: int) -> dict[Pair, float]:
        """The kept pairs, smallest first, with the c_pq of numerics.word_bounds."""
        raise NotImplementedError

    def worst_case(self, unit: Accumulation, k: int, lost: int = 0) -> float:
        """r for scaled float32 operands that lose so many bits together:
        numerics.word_bounds.relative_error_at.
        """
        return relative_error_at(
            self.splitting, partial(self.pair_errors, k=k), unit, lost
        )

    def most_lost(self, unit: Accumulation, k: int, r: float) -> int:
        """The bits that scaled float32 operands may lose together with an error of at
        most r |A||B|; -1 for none.
        """
        return _most_lost(self, unit, k, r)

    def exact_words_bound(self, unit: Accumulation, k: int) -> float:
        """r for operands that are single words of the format, none of them subnormal
        after the scaling.
        """
        return self.pair_errors(unit, k)[0, 0]

    def block_length(self, unit: Accumulation, k: int) -> int:
        """Inner length of a sum inside the unit."""
        raise NotImplementedError

    def count_products(self, unit: Accumulation, problem: Problem) -> int:
        """Products of words of size m n k."""
        return len(self.pair_errors(unit, max(problem.terms, 1))) * (
            4 if problem.is_complex else 1
        )

    def unit_on(self, engine: Engine, problem: Problem) -> Accumulation:
        """How the engine adds the products of words, by one kernel for all of them or
        one by one.
        """
        spec = product_spec(engine, self.product, type(self).__name__)
        sums = engine.override(word_sums)(self, max(problem.terms, 1))
        return engine.accumulation(spec.operand) if sums is None else sums.unit

    def sum_products(self, plan: Plan, a: Array, b: Array, engine: Engine) -> Array:
        """The sum of the kept products of the stored words, in the accumulator's
        format.
        """
        raise NotImplementedError

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """Check product and target, and state the bound."""
        spec = product_spec(engine, self.product, type(self).__name__)
        if spec.operand is FP32 and problem.fmt is not FP64:
            raise PlanError(
                f"{self}: FP32 words are for operands of 53 bits, {problem.dtype} has 24; "
                "Native(product='fp64') adds its exact products in float64"
            )
        unit = self.unit_on(engine, problem)
        terms = max(problem.terms, 1)
        errors = self.pair_errors(unit, terms)
        if target.relative is not None:
            raise AccuracyError(
                f"{self} promises no relative error: its sums are rounded; asked: {target}"
            )
        if (
            least := relative_error(self.splitting, errors, (False, False))
        ) > target.r and problem.terms:
            raise AccuracyError(
                f"{self} for {problem} errs by up to {least:.3g} |A||B| ({unit.unit}); asked: {target}"
            )
        bound = relative_error(self.splitting, errors)
        reason = f"words as asked, {unit.unit}: at worst {bound:.3g} |A||B| unless words underflow"
        count = self.count_products(unit, problem)
        k_block = self.block_length(unit, terms)
        verification = (
            Verification.NONE if math.isinf(target.r) else Verification.ENTRYWISE
        )
        return Plan(
            problem,
            asked,
            self,
            target,
            engine.name,
            spec,
            count,
            k_block,
            verification,
            target.r,
            reason,
        )

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Words and working copies of rows and columns, sums and values of entries."""
        problem, width = plan.problem, 2 if plan.problem.is_complex else 1
        # words, magnitude, nonzero: of this block and of the one before it
        kept = 4 * self.splitting.num_words + 9
        words = problem.terms * (rows + width * cols)
        return batch * (words * (2 * kept + 5 * 8) + rows * cols * width * 7 * 8)

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Words of scaled rows or columns one after the other along k, with the facts
        that the bound needs.
        """
        embedded = embed_left(x) if side == "left" else embed_right(x)
        axis = 2 if side == "left" else 1
        unit = np.zeros_like(largest_exponent(embedded, axis))
        found = {"nonzero": nonzeros(embedded)} if plan.certifies else {}
        if self.scale:
            unit = largest_exponent(embedded, axis) - self.top_exponent(plan.problem)
            embedded = scale_by_power(embedded, -unit)
        words, remainder = self.splitting.split(embedded)
        if found:
            lost = np.zeros(unit.shape, bool, like=unit)
            if plan.problem.fmt is FP64:
                lost = ((np.abs(embedded) < _TINY) & found["nonzero"].astype(bool)).any(
                    axis=axis, keepdims=True
                )
            found |= vars(
                self.splitting.describe(embedded, words, remainder, axis, lost)
            )
            found["magnitude"] = np.abs(embedded)
        return Split(
            side,
            x.shape[3 - axis],
            np.concatenate(words, axis=axis),
            unit,
            len(words),
            found,
        )

    def top_exponent(self, problem: Problem) -> int:
        """T: scaled entries lie below 2**T, and sums of all kept products below the
        largest number of FP32.

        Words of entries between the largest number of their format and 2**(emax + 1)
        saturate, which leaves remainders of at most u**p of the entry after p words, as
        rounding does.
        """
        fmt = self.splitting.fmt
        return min(
            fmt.emax + 1, 100 if fmt is FP32 else (122 - ceil_log2(problem.terms)) // 2
        )

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """Rounded products of words, scaled back; entries whose sums overflowed are not
        certified.
        """
        problem, unit = plan.problem, self.unit_on(engine, plan.problem)
        whole = engine.override(word_sums)(self, problem.terms)
        if whole is None:
            sums = self.sum_products(plan, left.planes, right.planes, engine)
        else:
            sums = whole(left.planes, right.planes)
        errors = self.pair_errors(unit, problem.terms)
        certified, bound = np.isfinite(sums), math.inf
        if plan.certifies:
            steps = steps_in_blocks(unit, problem.terms, plan.k_block)
            error = word_error(
                _facts(left),
                _facts(right),
                self.splitting,
                errors,
                unit,
                problem.terms,
                steps,
            )
            certified, bound = _certified_entries(
                plan, left, right, engine, error, certified
            )
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sums = sums.astype(np.float64) + 0.0  # an exact zero is +0
            values = scale_by_power(sums, left.unit + right.unit + shift)
            values = values.astype(result_dtype(problem.fmt), copy=False)
        if (
            plan.certifies
            and math.isfinite(plan.target.r)
            and not (finite := np.isfinite(values)).all()
        ):
            over = _surely_beyond(
                sums, bound, left, right, engine, problem.fmt.emax + 1 - shift
            )
            certified = certified & (finite | over)
        return finished(
            problem, values, certified, bound, self.count_products(unit, problem)
        )

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """Row and column scaling, if it was off; there is nothing finer."""
        if self.scale:
            return None
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
    """Columns (left) or rows (right) start to stop of the word of that index; all k by
    default.
    """
    where = slice(index * k + start, index * k + min(k, k if stop is None else stop))
    return planes[..., where] if left else planes[..., where, :]


@lru_cache(maxsize=1024)
def _most_lost(scheme: WordScheme, unit: Accumulation, k: int, r: float) -> int:
    return next(
        (lost for lost in range(23, -1, -1) if scheme.worst_case(unit, k, lost) <= r),
        -1,
    )


def _facts(split: Split) -> WordFacts:
    return WordFacts(
        *(
            split.facts[name]
            for name in ("excess", "subnormal", "total", "lowest", "inexact")
        )
    )


def _certified_entries(
    plan: Plan,
    left: Split,
    right: Split,
    engine: Engine,
    error: WordError,
    finite: Array,
) -> tuple[Array, float]:
    """Which entries keep the promise of the plan, and the r that all of these keep."""
    if error.absolute is None:
        return finite & (error.relative <= plan.target.r), error.relative
    bound = error.relative + ratios(error.absolute, left, right, engine)
    certified = finite & (bound <= plan.target.r)
    return certified, float(np.max(bound, where=certified, initial=error.relative))


def _surely_beyond(
    sums: Array, bound: float, left: Split, right: Split, engine: Engine, exponent: int
) -> Array:
    """Which exact values reach 2**exponent, given sums that err by at most `bound`
    |A||B|.

    What rounds to infinity is promised to lie there only where the exact value does so
    too.
    """
    lowest = np.abs(sums) - bound * magnitude_sums_up(left, right, engine)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        beyond: Array = scale_by_power(lowest, left.unit + right.unit - exponent) >= 1.0
    return beyond
