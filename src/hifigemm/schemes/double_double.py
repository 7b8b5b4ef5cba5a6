"""Double-double sums of float64 products on a CPU, correctly rounded or within a weaker
target.

Idea
    Each entry is a sum hi + lo with a bound err on its error. It is certified where the
    bound cannot move its rounding, and for weaker targets where err <= r |AB| or
    err <= r |A||B|, of which hi and, for entries that are still open, one more product
    give lower bounds. The entries that are left are made by Ozaki scheme I, from as
    many slices on as correct rounding takes. So no target is left with more entries
    than a stronger one, nor goes further with them. See numerics/double_double.py for
    notation, proof and references.
Exact when
    The inequality there holds, for NumPy's float64 product in any order of additions.
    Bits of correctly rounded entries rest on no order, so a scheme that was forced
    rounds correctly whatever accuracy was asked for. Others keep their target, with the
    bits of the order in which NumPy adds.
Cost
    p (p + 1) / 2 products for operands in p parts, two for float32 and three for
    float64; one less for large float64 ones. Complex: four times as many. One more, of
    magnitudes, of rows and columns with entries that are open after that, where a
    number is the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np

from hifigemm.accuracy import CORRECT, Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.formats import FP32
from hifigemm.numerics import three_words
from hifigemm.numerics.bits import Array, scale_by_power
from hifigemm.numerics.double_double import (
    K_PART,
    added,
    cut,
    error_beyond_rounding,
    error_bound,
    is_exact,
    k_chunks,
    least_magnitude,
    least_magnitudes,
    round_once,
    shifted,
    sums_of,
)
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.embedding import embed_left, embed_right
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.subnormals import matmul
from hifigemm.numerics.three_words import Words
from hifigemm.plan import Evidence, Plan, Product, Split, Verification
from hifigemm.problem import Problem
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.scheme import Scheme, finished, product_spec

_ROWS = 256
"""Rows at a time where there are enough columns and terms that the BLAS makes good use
of them.
"""
_LARGE = 128
"""Least m, n and k for which one product less saves more than the passes that it
takes.
"""


@dataclass(frozen=True)
class DoubleDouble(Scheme):
    """Double-double sums, which Ziv's test or a weaker one certifies; for engines of a
    CPU.
    """

    name: ClassVar[str] = "double-double"

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """Three, five or six products, whatever is asked for.

        Raises PlanError: an engine of a GPU.
        """
        if not self.is_for(engine):
            raise PlanError(
                f"{self} is for engines of a CPU, and engine {engine.name!r} is none"
            )
        count, factor = _num_parts(problem), 4 if problem.is_complex else 1
        products = count * (count + 1) // 2 - _is_one_less(problem)
        goal = _goal(target, asked)
        reason = f"operands in {count} parts, whose sums are rounded once"
        if not goal.correct:
            reason += f" and certified for {goal}"
        spec, k_block = (
            product_spec(engine, "fp64", "DoubleDouble"),
            min(problem.terms, K_PART),
        )
        numbers = products * factor, k_block, Verification.ENTRYWISE, goal.r
        return Plan(problem, asked, self, target, engine.name, spec, *numbers, reason)

    @staticmethod
    def is_for(engine: Engine) -> bool:
        """True if an engine multiplies arrays of NumPy step by step; a GPU without
        Triton has neither.
        """
        return engine.costs is None and engine.device == "cpu"

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Parts of some columns and rows, products and sums of the entries in some
        rows.
        """
        count, width = _num_parts(plan.problem), 2 if plan.problem.is_complex else 1
        chunks, step = _steps(plan, rows, cols * width)
        longest, step = chunks[0].stop, min(step, rows)
        parts = (2 * count + 2) * longest * (step + cols * width)
        whole = (
            plan.problem.k * (rows + 2 * cols) * width if plan.problem.is_complex else 0
        )
        sums = 16 * -(-longest // K_PART) * step * cols * width
        return batch * (8 * (parts + whole + sums) + 9 * rows * cols * width)

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """The operand as it is; a complex one as real numbers."""
        vectors = x.shape[1 if side == "left" else 2]
        if plan.problem.is_complex:
            x = embed_left(x) if side == "left" else embed_right(x)
        return Split(side, vectors, x, np.zeros((1, 1, 1), np.int64), 1)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """Some rows at a time. Where entries are left, the parts are looked at: short
        ones, and zeros, are exact.
        """
        problem, fmt, a, b = plan.problem, plan.problem.fmt, left.planes, right.planes
        count, shape = (
            _num_parts(problem),
            (max(len(a), len(b)), a.shape[1], b.shape[2]),
        )
        values, certified = np.empty(shape, result_dtype(fmt)), np.empty(shape, bool)
        goal, bound, products = (
            _goal(plan.target, plan.asked),
            0.0,
            float(plan.num_products),
        )
        chunks, step = _steps(plan, *shape[1:])
        at_left = (2 * count - 2) * len(a) * min(step, shape[1]) * chunks[0].stop
        at_right = (2 * count - 2) * len(b) * shape[2] * chunks[0].stop
        space = np.empty(at_left + at_right)  # of the columns, then of the rows
        fewer = _is_one_less(problem)
        whole = cut(b, 1, count, space, fewer=fewer) if len(chunks) == 1 else None

        for start in range(0, shape[1], step):
            at, sums, tops = (slice(None), slice(start, start + step)), [], []
            for z in chunks:
                y = whole or cut(b[:, z], 1, count, space, fewer=fewer)
                x = cut(a[at][:, :, z], 2, count, space[at_right:], fewer=fewer)
                sums.append(sums_of(x, y, partial(matmul, may_flush=True)))
                tops.append((x.top, y.top))
            hi, lo = two_sum(*(part[:, 0] for part in reduce(added, sums)))
            err = error_bound(tops, chunks, count, fewer=fewer)
            hi, lo, err = shifted(hi, lo, err, shift)
            values[at], kept = round_once(hi, lo, err, fmt)
            exact = kept
            if not (kept.all() or goal.correct):
                error = error_beyond_rounding(hi, lo, err, fmt)
                # What rounds to infinity is promised to lie there only where the exact
                # value rounds there too.
                error[~np.isfinite(values[at])] = np.nan
                kept = kept | (error <= goal.r * least_magnitude(hi, err))
            if not kept.all() and (~kept & (lo == 0)).any():
                if problem.terms <= K_PART and not shift:
                    exact = exact | (is_exact(x, y)[:, 0] & (lo == 0))
                terms = np.matmul(
                    *((part != 0).astype(np.float64) for part in (a[at], b))
                )
                exact = exact | ((hi == 0) & (terms == 0))
                kept = kept | exact
            if not (kept.all() or goal.by_entry):
                within, share = _within_magnitudes(
                    error, goal.r, a[at], b, chunks, shift, kept
                )
                kept, products = kept | within, products + share * hi.size / values.size
            if kept is not exact and (kept & ~exact).any():
                bound = goal.r
            certified[at] = kept
        return finished(problem, values, certified, bound, products)

    def exact_sums(
        self, plan: Plan, a: Array, b: Array, c: Array | None, shift: int
    ) -> Words | None:
        """2**shift (A B + C) in three words; see numerics/three_words.py."""
        if plan.problem.is_complex:
            return three_words.sums(embed_left(a), embed_right(b), c, shift)
        left = a.astype(np.float64, copy=False)
        right = b.astype(np.float64, copy=False)
        return three_words.sums(left, right, c, shift)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """As many slices as correct rounding takes."""
        return Ozaki1(product="fp64").continued(
            problem, _goal(plan.target, plan.asked), engine, plan.asked
        )


def _goal(target: Target, asked: Any) -> Target:
    """What entries are certified for: the target, or correct rounding where this scheme
    was forced.
    """
    return CORRECT if isinstance(asked, DoubleDouble) else target


def _num_parts(problem: Problem) -> int:
    """Parts that an operand is cut in."""
    return 2 if problem.fmt is FP32 else 3


def _is_one_less(problem: Problem) -> bool:
    """Whether large products take one product less."""
    return _num_parts(problem) == 3 and min(problem.m, problem.n, problem.k) >= _LARGE


def _steps(plan: Plan, rows: int, cols: int) -> tuple[list[slice], int]:
    """Terms and rows that are worked on at a time, so that their parts and sums stay in
    the cache.
    """
    k, entries = plan.problem.terms, 2 * plan.blocking.entries
    chunks = k_chunks(k, entries // max(rows, cols))
    longest = chunks[0].stop
    return chunks, max(entries // max(longest, cols), min(longest, cols, _ROWS), 1)


def _within_magnitudes(
    error: Array,
    r: float,
    rows: Array,
    columns: Array,
    chunks: list[slice],
    shift: int,
    kept: Array,
) -> tuple[Array, float]:
    """Which entries that are not kept yet err by at most r 2**shift |A||B|, and the
    products that it took to know.
    """
    within = np.zeros(kept.shape, bool)
    open_ = ~kept & np.isfinite(error)
    if not open_.any():
        return within, 0.0
    # Only the rows and columns with such entries are multiplied.
    i = np.flatnonzero(open_.any(axis=(0, 2)))
    j = np.flatnonzero(open_.any(axis=(0, 1)))
    sums = np.zeros((len(within), len(i), len(j)))
    for z in chunks:
        left = np.abs(rows[:, i, z]).astype(np.float64, copy=False)
        right = np.abs(columns[:, z][:, :, j]).astype(np.float64, copy=False)
        sums += matmul(left, right)
    magnitudes = least_magnitudes(sums, rows.shape[2])
    if shift:
        magnitudes = scale_by_power(magnitudes, np.array(shift))
    where = np.ix_(np.arange(len(within)), i, j)
    within[where] = open_[where] & (error[where] <= r * magnitudes)
    return within, sums.size / within.size
