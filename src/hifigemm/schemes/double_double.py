"""Double-double sums of float64 products, rounded correctly or to a target.

Idea
    Each entry is a sum hi + lo with a bound err on its error. It is certified where the
    bound cannot move its rounding. For weaker targets it is certified too where
    err <= r |AB|, by hi, or err <= r |A||B|, by one more product of magnitudes. Ozaki
    scheme I computes the other entries, with the number of slices that correct rounding
    takes. So a weaker target never escalates more entries than a stronger one, nor
    escalates them further.

    With the compiled core every entry is rounded correctly, by sums in words, or by one
    float64 product of float32 operands and sums where that leaves a rounding open.

    On a GPU terms are added one by one, each with its rounding error, in two words, in
    three where these leave a rounding open, and as integers where three do: every entry
    is rounded correctly, and the operands are never looked at.
Notation
    p parts of an operand; hi, lo, err, E, F: see numerics/double_double.py.
Exact when
    The inequality of numerics/double_double.py holds, for NumPy's float64 product in
    any order of additions. The bits of correctly rounded entries do not depend on that
    order. So a scheme that was forced rounds correctly, whatever accuracy was asked
    for; otherwise entries keep their target, with the bits of the order in which NumPy
    adds.
Cost
    p (p + 1) / 2 products for operands in p parts, two for float32 and three for
    float64; one less for large float64 ones. Complex: four times as many. If the target
    is a number, one more, of magnitudes, for the rows and columns of the entries that
    are not certified yet. On a GPU 4 to 11 FP64 instructions for each term.
References
    [OOOR12] Error-free transformations of matrix multiplication,
    doi:10.1007/s11075-011-9478-1; see numerics/double_double.py and, for GPUs,
    numerics/rounded_sums.py for the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FP32
from hifigemm.model.accuracy import CORRECT, Target
from hifigemm.model.engine import Engine, has_kernels
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics import three_words
from hifigemm.numerics.bits import Array, scale_by_power
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.double_double import (
    K_PART,
    Cut,
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
from hifigemm.numerics.rounded_sums import MAX_TERMS, form_for, rounded_sums
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.subnormals import matmul
from hifigemm.numerics.three_words import RoundedSums, open_block
from hifigemm.schemes.scheme import Scheme, finished, product_spec

if TYPE_CHECKING:
    from hifigemm.numerics.scaling import Scale

_ROWS = 256
"""Rows of A that are multiplied at a time, at most: enough for the BLAS to be quick."""
_LARGE = 128
"""Least m, n and k for which one product less saves more time than its passes take."""


@dataclass(frozen=True)
class DoubleDouble(Scheme):
    """Double-double sums of float64 products, each entry with a test of its rounding.

    Ozaki scheme I computes the entries that the test leaves open. Named as a scheme,
    it rounds every entry correctly, whatever the accuracy.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> hg.matmul(a, b, scheme=hg.DoubleDouble())
    array([[1.]])
    """

    name: ClassVar[str] = "double-double"
    rests_on_evidence = False

    def describe_products(self, num_products: int, name: str = "") -> str:
        """The number of products of parts; none if an executable adds all terms in one
        pass.
        """
        if num_products == 1:
            return "none of parts: all terms are added in one pass"
        return super().describe_products(num_products, name)

    def describe_verification(self, plan: Plan) -> str:
        """The verification; an executable rounds every entry once, so no entry needs a
        certificate.
        """
        if plan.num_products == (4 if plan.problem.is_complex else 1):
            return Verification.A_PRIORI.value
        return super().describe_verification(plan)

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan of three, five or six products, for any target; on a GPU the plan of
        one product.

        Raises PlanError: complex operands on a GPU, a GPU without Triton.
        """
        if self.adds_terms(problem, engine):
            return self._plan_of_terms(problem, target, engine, evidence, asked)
        if not self.is_for(engine):
            raise PlanError(
                f"{self} is for engines of a CPU, and on a GPU with Triton for real "
                f"operands of up to 2**24 terms; asked: {problem} on engine "
                f"{engine.name!r}"
            )
        count = _num_parts(problem)
        num_products = count * (count + 1) // 2 - _saves_a_product(problem)
        goal = _goal(target, asked)
        reason = f"operands in {count} parts, whose sums are rounded once"
        if not goal.correct:
            reason += f" and certified for {goal}"
        plan = Plan(
            problem=problem,
            asked=asked,
            scheme=self,
            target=target,
            engine=engine.name,
            product=product_spec(engine, "fp64", "DoubleDouble"),
            num_products=num_products * (4 if problem.is_complex else 1),
            k_block=min(problem.terms, K_PART),
            verification=Verification.ENTRYWISE,
            bound=goal.r,
            reason=reason,
        )
        # An executable makes all of it in one pass, and rounds correctly for any goal.
        lowering = engine.lowering(plan)
        if lowering is None:
            return plan
        return replace(
            plan,
            num_products=4 if problem.is_complex else 1,
            bound=0.0,
            reason=lowering.reason,
        )

    def _plan_of_terms(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan of a GPU: every entry is correct, whatever was seen of the operands."""
        form = form_for(problem.terms, problem.fmt)
        quick = "a biased word" if form == "biased" else form
        return Plan(
            problem=problem,
            asked=asked,
            scheme=self,
            target=target,
            engine=engine.name,
            product=product_spec(engine, "fp64", "DoubleDouble"),
            num_products=1,
            k_block=problem.terms,
            verification=Verification.A_PRIORI,
            bound=0.0,
            reason=f"terms added in {quick} first, two arrays of them in three words, "
            "and in more where a rounding is open",
            evidence=evidence,
        )

    @staticmethod
    def adds_terms(problem: Problem, engine: Engine) -> bool:
        """True if kernels of the engine add the terms of a product one by one."""
        is_short = problem.terms <= MAX_TERMS
        return has_kernels(engine) and is_short and not problem.is_complex

    @staticmethod
    def is_for(engine: Engine) -> bool:
        """True if an engine has NumPy arrays; NumPy's product then computes the sums,
        whatever product the engine has.
        """
        return engine.device == "cpu" and not has_kernels(engine)

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes of parts of rows and columns, and of products and sums of some rows."""
        problem = plan.problem
        if plan.verification is Verification.A_PRIORI:
            return 4 * batch * rows * cols
        count = _num_parts(problem)
        width = 2 if problem.is_complex else 1
        chunks, step = _steps(plan, rows, cols * width)
        step = min(step, rows)
        longest = chunks[0].stop

        # Parts and what is left after each, and two working copies.
        parts = (2 * count + 2) * longest * (step + cols * width)
        # Complex operands as real numbers.
        embedded = 0
        if problem.is_complex:
            embedded = problem.k * (rows + 2 * cols) * width
        # Products and sums of each part of the terms.
        sums = 16 * -(-longest // K_PART) * step * cols * width
        # A value and the mark that it is certified, for each entry.
        results = 9 * rows * cols * width
        return batch * (8 * (parts + embedded + sums) + results)

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """The operand as it is; a complex one as real numbers."""
        vectors = x.shape[1 if side == "left" else 2]
        planes = _as_real(x, side)
        return Split(side, vectors, planes, np.zeros((1, 1, 1), np.int64), 1)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """The rounded double-double sums, some rows at a time.

        Entries that neither test certifies may still be exact, for example sums of
        zeros and of parts that end early.
        """
        problem = plan.problem
        a = left.planes
        b = right.planes
        if self.adds_terms(problem, engine):
            sums_of_terms = engine.override(rounded_sums)
            correct, _ = sums_of_terms(a, b, problem.fmt, shift=shift)
            return finished(problem, correct, None, 0.0, 1)
        shape = product_shape(a, b)
        values = np.empty(shape, result_dtype(problem.fmt))
        certified = np.empty(shape, bool)
        goal = _goal(plan.target, plan.asked)
        bound = 0.0
        num_products = float(plan.num_products)

        # Memory of all parts: first those of the columns, then those of some rows.
        chunks, step = _steps(plan, *shape[1:])
        count = _num_parts(problem)
        fewer = _saves_a_product(problem)
        longest = chunks[0].stop
        size_of_rows = (2 * count - 2) * len(a) * min(step, shape[1]) * longest
        size_of_columns = (2 * count - 2) * len(b) * shape[2] * longest
        space = np.empty(size_of_columns + size_of_rows)

        # Columns that are one chunk are cut once, for all rows.
        all_columns: Cut | None = None
        if len(chunks) == 1:
            all_columns = cut(b, 1, count, space, fewer=fewer)

        for start in range(0, shape[1], step):
            rows = slice(None), slice(start, start + step)

            # hi + lo, chunk by chunk of the terms, and the bound of its error.
            sums = []
            tops = []
            for terms in chunks:
                y = all_columns or cut(b[:, terms], 1, count, space, fewer=fewer)
                row_space = space[size_of_columns:]
                x = cut(a[rows][:, :, terms], 2, count, row_space, fewer=fewer)
                sums.append(sums_of(x, y, partial(matmul, may_flush=True)))
                tops.append((x.top, y.top))
            hi, lo = reduce(added, sums)
            hi, lo = two_sum(hi[:, 0], lo[:, 0])
            err = error_bound(tops, chunks, count, fewer=fewer)
            hi, lo, err = shifted(hi, lo, err, shift)

            # Entries that are rounded correctly, and those that keep the goal.
            values[rows], is_correct = round_once(hi, lo, err, problem.fmt)
            keeps_goal = is_correct
            if not (keeps_goal.all() or goal.correct):
                error = error_beyond_rounding(hi, lo, err, problem.fmt)
                # An infinite entry keeps it only if the exact value rounds to infinity.
                error[~np.isfinite(values[rows])] = np.nan
                keeps_goal = keeps_goal | (error <= goal.r * least_magnitude(hi, err))

            # Entries whose sum was not rounded: of short parts only, or of zeros only.
            if not keeps_goal.all() and (~keeps_goal & (lo == 0)).any():
                if problem.terms <= K_PART and not shift:
                    is_correct = is_correct | (is_exact(x, y)[:, 0] & (lo == 0))
                is_zero = (hi == 0) & (_num_nonzero_terms(a[rows], b) == 0)
                is_correct = is_correct | is_zero
                keeps_goal = keeps_goal | is_correct

            # Entries that err little beside |A||B|.
            if not (keeps_goal.all() or goal.by_entry):
                within, share = _within_magnitudes(
                    error, goal.r, a[rows], b, chunks, shift, keeps_goal
                )
                keeps_goal = keeps_goal | within
                num_products += share * hi.size / values.size

            # Entries that three words are expected to settle.
            open_ = ~keeps_goal & _may_be_settled(hi, err)
            if open_.any():
                settled, share = _settle(a[rows], b, open_, values[rows], shift, plan)
                is_correct = is_correct | settled
                keeps_goal = keeps_goal | settled
                num_products += share * hi.size / values.size

            # Most often both are the same array.
            if keeps_goal is not is_correct and (keeps_goal & ~is_correct).any():
                bound = goal.r
            certified[rows] = keeps_goal
        return finished(problem, values, certified, bound, num_products)

    def rounded_sums(
        self,
        plan: Plan,
        engine: Engine,
        a: Array,
        b: Array,
        c: Array | None,
        shift: int,
        kind: str,
    ) -> RoundedSums | None:
        """2**shift (A B + C) rounded once; see numerics/three_words.py."""
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        left = _as_real(a, "left")
        right = _as_real(b, "right")
        sums = engine.override(three_words.certified_sums)
        rounded = sums(left, right, c, shift, plan.problem.fmt, kind)
        width = 4 if plan.problem.is_complex else 1
        return rounded._replace(num_products=rounded.num_products * width)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """The plan of Ozaki scheme I with the number of slices for correct rounding."""
        from hifigemm.schemes.ozaki1 import SLICES

        return SLICES.plan_for_uncertified(
            problem, _goal(plan.target, plan.asked), engine, plan.asked
        )


def plan_for_open_entries(
    problem: Problem, target: Target, engine: Engine, asked: Scheme | None
) -> Plan:
    """The plan for entries that over- or underflowed in another scheme: double-double
    sums on a CPU, else slices with FP64 products.
    """
    if DoubleDouble.is_for(engine):
        return DoubleDouble().plan(problem, target, engine, None, asked)
    from hifigemm.schemes.ozaki1 import SLICES

    return SLICES.plan_for_uncertified(problem, target, engine, asked)


def _may_be_settled(hi: Array, err: Array) -> Array:
    """True for sums whose error is small beside them, so that a third word makes it
    smaller than what their rounding can depend on; and for zeros, which may be exact.
    """
    return (err <= 2.0**-8 * np.abs(hi)) | ((hi == 0) & np.isfinite(err))


def _settle(
    a: Array, b: Array, open_: Array, values: Array, shift: int, plan: Plan
) -> tuple[Array, float]:
    """The open entries that sums in three words round correctly, written to `values`,
    and the products that these sums took, as a share of all entries.
    """
    block, rows, cols = open_block(~open_)
    words = three_words.sums(a[:, rows], b[:, :, cols], None, shift)
    new_values, is_certain = three_words.rounded(words, plan.problem.fmt)
    is_settled = open_[block] & is_certain
    values[block] = np.where(is_settled, new_values, values[block])
    settled = np.zeros(open_.shape, bool)
    settled[block] = is_settled
    count = three_words.NUM_PRODUCTS * (4 if plan.problem.is_complex else 1)
    return settled, count * is_settled.size / open_.size


def _as_real(x: Array, side: str) -> Array:
    """The operand as it is; a complex one as real numbers."""
    if x.dtype.kind != "c":
        return x
    return embed_left(x) if side == "left" else embed_right(x)


def _goal(target: Target, asked: Scheme | None) -> Target:
    """The target that entries are certified for.

    It is correct rounding if this scheme was forced.
    """
    return CORRECT if isinstance(asked, DoubleDouble) else target


def _num_parts(problem: Problem) -> int:
    """Number of parts that an operand is cut into."""
    return 2 if problem.fmt is FP32 else 3


def _saves_a_product(problem: Problem) -> bool:
    """True if the product is so large that it takes one product less."""
    return _num_parts(problem) == 3 and min(problem.m, problem.n, problem.k) >= _LARGE


def _steps(plan: Plan, rows: int, cols: int) -> tuple[list[slice], int]:
    """Chunks of terms, and the number of rows, that are worked on at a time.

    Their parts and sums stay in the cache.
    """
    entries = 2 * plan.blocking.entries
    chunks = k_chunks(plan.problem.terms, entries // max(rows, cols))
    longest = chunks[0].stop
    num_rows = max(entries // max(longest, cols), min(longest, cols, _ROWS), 1)
    return chunks, num_rows


def _num_nonzero_terms(a: Array, b: Array) -> Array:
    """Number of terms of each sum of a @ b that are not zero."""
    product: Array = np.matmul((a != 0).astype(np.float64), (b != 0).astype(np.float64))
    return product


def _within_magnitudes(
    error: Array,
    r: float,
    rows: Array,
    columns: Array,
    chunks: list[slice],
    shift: int,
    certified: Array,
) -> tuple[Array, float]:
    """True for entries with error <= r 2**shift |A||B| that are not certified yet.

    It comes with the share of a whole product that it took to see this.
    """
    within = np.zeros(certified.shape, bool)
    is_open = ~certified & np.isfinite(error)
    if not is_open.any():
        return within, 0.0

    # Lower bounds of |A||B|, in the rows and columns with open entries only.
    i = np.flatnonzero(is_open.any(axis=(0, 2)))
    j = np.flatnonzero(is_open.any(axis=(0, 1)))
    sums = np.zeros((len(within), len(i), len(j)))
    for terms in chunks:
        left = np.abs(rows[:, i, terms]).astype(np.float64, copy=False)
        right = np.abs(columns[:, terms][:, :, j]).astype(np.float64, copy=False)
        sums += matmul(left, right)
    magnitudes = least_magnitudes(sums, rows.shape[2])
    if shift:
        magnitudes = scale_by_power(magnitudes, np.array(shift))

    entries = np.ix_(np.arange(len(within)), i, j)
    within[entries] = is_open[entries] & (error[entries] <= r * magnitudes)
    return within, sums.size / within.size
