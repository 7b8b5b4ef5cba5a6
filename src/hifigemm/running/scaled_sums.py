"""alpha A B + beta C rounded once, for any finite alpha and beta.

Idea
    With powers of two C is a term of the sums of A B, see `road.product_plus`. With
    other real scalars the compiled core multiplies its sums by alpha, and beta C is two
    terms more. Without it, on a GPU and for complex numbers the sum is rounded from a
    pair of A B, see numerics/scalar_sums.py. What neither settles, and large products on
    a CPU without the core, is a product of longer operands, see `augmented`: alpha A and
    beta C as exact sums of words. Pairs and longer operands take float64 for float32,
    whose range holds all words.
Exact when
    beta C is the sum of two words, a product and its error. All entries of the sum of a
    pair are certified. The longer product is correctly rounded, or its pair is.
Cost
    By the core that of A B in float64. Else a pair of A B. For longer operands twice the price
    of A B for a real alpha, four times for a complex one, and an eighth more for each
    word of beta C.
"""

from __future__ import annotations

import cmath
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np

from hifigemm.base.exceptions import AccuracyError
from hifigemm.base.formats import Format
from hifigemm.engines import core, engine_for
from hifigemm.engines.arrays import as_array, memory_of
from hifigemm.engines.core_sums import pays
from hifigemm.model.accuracy import Accuracy, Relative, Target, resolve
from hifigemm.model.engine import Engine
from hifigemm.model.executable import (
    NO_SPLITS,
    OTHER_MODE,
    Outcome,
    Refusal,
    Splits,
)
from hifigemm.model.plan import Decision, Plan, Report
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array, least_exponent, real_components, scale_entries
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.eft import two_product
from hifigemm.numerics.epilogue import (
    combine,
    frexp,
    has_common_exponent,
    scalar_times_power,
    signed_zeros,
)
from hifigemm.numerics.rounding_formats import odd_between, round_pair
from hifigemm.numerics.scalar_sums import rounded_sum_of_pair
from hifigemm.numerics.scalar_words import sum_by_integers
from hifigemm.numerics.special import (
    clean,
    clean_components,
    fill_nonfinite,
    nonfinite_vectors,
)
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.operands.operands import Operands
from hifigemm.running.augmented import Term, sum_of_multiples, term_of
from hifigemm.running.calls import KeptCall, keep_by_engine
from hifigemm.running.exact_results import two_parts
from hifigemm.running.executor import quiet
from hifigemm.running.planner import workspace_limit
from hifigemm.running.products import product_of_numbers
from hifigemm.running.reports import report_on
from hifigemm.running.request import Request
from hifigemm.running.road import plan_for, product, product_plus
from hifigemm.schemes import as_scheme

_SPARE_ROUNDINGS = 8.0
"""A number is kept by two roundings if it is so many times u."""
_SHIFTS = -2200, 2200
"""Powers of two by which an exact product can be multiplied before it is rounded."""
_FEW = 2**21
"""Multiplications of float64 up to which a pair is quicker on a CPU than longer
operands.
"""
_NATIVE_STEPS = 10_000.0
"""Nanoseconds that a native product, its sum with C and looks at both take beside the
core's sums: both ways take as long at n = 40.
"""
NOT_SETTLED = Refusal("the sums of A B do not settle all entries")
_LEAST_EXPONENT = -1074 + 2 * 53
"""Of products of two entries all of whose bits float64 holds."""
_SMALL_SCALAR = 2.0**-500
_LEAST_PRODUCT, _MOST = 2.0**-900, 2.0**990
"""Between these, products of float64 have errors that are float64."""
_SHIFT_OF_PAIRS = -300
"""A pair of float64 holds alpha A B + beta C of float32 if the scalars are not smaller:
terms have bits down to 2**-850. Else the pair is that of 2**300 times the sum, with bits
down to 2**-1072, and infinite only if the sum is infinite in float32.
"""


def accuracy_of_sum(
    problem: Problem, request: Request, plans: Sequence[Plan], alpha: complex
) -> Accuracy:
    """The accuracy of alpha A B + beta C where it is not kept by rounding A B and the
    sum; None where it is.
    """
    scheme = as_scheme(request.scheme)
    if scheme is not None and scheme.rounds_once:
        return "correct"
    target = resolve(request.accuracy, problem.fmt, problem.k)
    if plans:
        target = plans[0].target
    if target.relative is not None:
        return Relative(target.relative)
    if target.correct or needs_one_rounding(target, problem.fmt):
        return "correct"
    is_number = target.level is not problem.fmt
    return "correct" if is_number and not has_common_exponent(alpha) else None


def costs_less_rounded_once(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
) -> bool:
    """True if alpha A B + beta C keeps a number more quickly where it is rounded once,
    with C as a term: for few products on a CPU, and powers of two.

    So the number costs no more than "correct".
    """
    if c is None or not isinstance(request.accuracy, Real):
        return False
    is_default = request.scheme == "auto" and request.plan is None
    is_on_host = request.engine in (None, "numpy") and operands.library.on_host
    if not (is_default and is_on_host):
        return False
    are_powers = all(frexp(x)[0] in (1.0, -1.0) for x in scalars)
    nanoseconds = core.nanoseconds(operands.problem())
    return are_powers and nanoseconds <= _NATIVE_STEPS


def needs_one_rounding(target: Target, fmt: Format) -> bool:
    """True if a number is so small that the sum has to be rounded once, or speaks of the
    norms of A and B alone.

    Two roundings err by u |alpha||A||B| more than one, so that they serve for numbers
    well above u, and for the level of the result's own format.
    """
    if target.normwise is not None:
        return True
    return target.r < _SPARE_ROUNDINGS * fmt.u and target.level is not fmt


def with_room_for_rounding(accuracy: Accuracy, fmt: Format) -> Accuracy:
    """The accuracy for A B whose rounding, beside that of the sum, keeps a number."""
    if not isinstance(accuracy, Real) or accuracy < _SPARE_ROUNDINGS * fmt.u:
        return accuracy
    # The rounding of A B takes 2 u, see `road.report_on`; half of this is for the
    # roundings of the bound itself.
    return float(accuracy) - 4.0 * fmt.u


@quiet
def rounded_sum(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
    key: Hashable,
    refusal: Refusal | None = None,
) -> tuple[Array, Report]:
    """alpha A B + beta C, rounded once or to a relative error, with its report.

    `refusal` is why what is kept of such calls did not serve these operands.
    """
    alpha, beta = scalars
    mantissa, shift = frexp(alpha)
    if mantissa in (1.0, -1.0):
        addend = _exact_addend(operands, c, beta, shift)
        if addend is not None:
            # Where C takes a part of its factor, that depends on its entries.
            is_repeatable = addend.c is c
            key = key if is_repeatable else None
            sign = 1 if mantissa == 1.0 else -1
            return product_plus(operands, addend, request, shift, key, sign)

    at_once = None
    if refusal is not NOT_SETTLED:
        at_once = _sum_at_once(operands, c, request, scalars, key)
    if at_once is not None:
        return at_once

    return sum_of_longer_operands(operands, c, request, scalars)


@quiet
def sum_of_longer_operands(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
) -> tuple[Array, Report]:
    """alpha A B + beta C by a product of longer operands, rounded once, with its report;
    for an enclosure in float64, rounded to odd.
    """
    # Without a product, beta C keeps the signs of its zeros.
    alpha, beta = scalars
    shapes = operands.shapes
    left, right = operands.stacks(operands.dtype)
    if alpha == 0 or shapes.left[2] == 0:
        alpha = 0
        left = left[..., :0]
        right = right[:, :0]
    if c is not None:
        c = np.broadcast_to(c, shapes.result).reshape(shapes.stack)
    special = _special_sums(left, right, c, alpha, beta)
    finite_c = c
    if special is not None:
        left, right = clean(left), clean(right)
        finite_c = None if c is None else clean_components(c)
    values, report = _sum_of_finite(
        operands, left, right, finite_c, request, (alpha, beta)
    )
    components = values.view(values.real.dtype)
    if special is not None:
        components = np.where(np.isfinite(special), components, special)
    if alpha == 0:
        zeros, are_zeros = signed_zeros(cast(Array, c), beta)
        components = np.where(are_zeros, zeros, components)
    return components.view(values.dtype).reshape(shapes.result), report


def _sum_at_once(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
    key: Hashable,
) -> tuple[Array, Report] | None:
    """alpha A B + beta C rounded once by the core or from a pair of A B, with its report;
    None where an entry is not settled, and where that is not what is asked, or not quicker.

    The executable is kept under the key, for calls of the same kind without a report.
    """
    alpha, beta = scalars
    problem = operands.problem()
    library = operands.library
    is_default = request.scheme == "auto" and request.workspace is None
    is_asked = request.accuracy == "correct" and is_default
    if alpha == 0 or not (is_asked and problem.multiplications):
        return None
    mantissa, shift = frexp(alpha)
    engine = engine_for(request.engine, library.name, library.device)
    limit = workspace_limit(problem, None, engine)
    plan, _ = plan_for(operands, problem, request, engine, limit, may_inspect=False)
    has_complex = isinstance(alpha, complex) or isinstance(beta, complex)
    by_core = library.on_host and not has_complex and core_adds(plan)
    is_single = operands.dtype in (np.float32, np.complex64)
    is_quick = not library.on_host or is_single or problem.multiplications <= _FEW
    if not (by_core or is_quick):
        return None
    sum_of: type[SumAtOnce] = SumByCore if by_core else SumOfPair
    plan = replace(plan, reason=sum_of.reason)
    left, right = operands.stacks(operands.dtype)
    addend = None
    if c is not None:
        addend = np.broadcast_to(c, operands.shapes.result)
    shapes = left.shape, right.shape, operands.shapes.result
    executable = sum_of(plan, shapes, shift, engine, request.engine)
    sums = executable.sums(left, right, addend, mantissa, beta, return_report=True)
    if sums is None:
        return None
    values, report = sums
    if key is not None and not request.return_report:
        stacks = operands.stack_functions(left, right, operands.dtype)
        call = KeptCall(
            plan,
            executable,
            engine,
            library,
            stacks,
            True,
            0.0,
            limit,
            out_dtype=request.out_dtype,
        )
        keep_by_engine(key, call, engine)

    def once(d: Decision) -> Decision:
        return replace(d, reason=f"{d.reason}; alpha A B + beta C rounded once")

    return values, report.changed(once)


def core_adds(plan: Plan) -> bool:
    """True if the core adds the terms of a plan, of real matrices."""
    module, _ = core.loaded()
    is_real = not plan.problem.is_complex and plan.scheme.name == "double-double"
    return is_real and module is not None and pays(plan.problem, module.instructions[0])


class SumAtOnce(ABC):
    """alpha A B + beta C rounded once from sums of A B; it refuses operands with an entry
    that is not settled. See `Executable`.
    """

    reason: ClassVar[str]

    def __init__(
        self,
        plan: Plan,
        shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        shift: int,
        engine: Engine,
        engine_name: str | None,
    ) -> None:
        self.plan = plan
        self._left_shape, self._right_shape, self._shape = shapes
        self._shift = shift
        self._engine = engine
        self._engine_name = engine_name
        self._dtype = plan.problem.dtype

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome | Refusal:
        """See `Executable`; the values are always in new memory."""
        if not is_ieee():
            return OTHER_MODE
        addend = None if c is None else as_array(c)
        sums = self.sums(as_array(a), as_array(b), addend, alpha, beta)
        if sums is None:
            return NOT_SETTLED
        return Outcome(memory_of(sums[0]), 0.0, self.plan.num_products)

    @abstractmethod
    def sums(
        self,
        a: Array,
        b: Array,
        c: Array | None,
        mantissa: complex,
        beta: complex,
        *,
        return_report: bool = False,
    ) -> tuple[Array, Any] | None:
        """The sums in the shape of the result, with a report if asked; None where one is
        not settled.
        """


class SumOfPair(SumAtOnce):
    """The sum from a pair of A B; entries with Inf and NaN are not settled."""

    reason = "rounded once from a pair of A B"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        problem = self.plan.problem
        self._round = self._engine.override(rounded_sum_of_pair)
        self._are_ordinary = self._engine.override(are_ordinary)
        self._fmt = problem.fmt
        self._wide = np.dtype(np.complex128 if problem.is_complex else np.float64)

    @quiet
    def sums(
        self,
        a: Array,
        b: Array,
        c: Array | None,
        mantissa: complex,
        beta: complex,
        *,
        return_report: bool = False,
    ) -> tuple[Array, Any] | None:
        """See `SumAtOnce`; the report is that of the pair."""
        wide = self._wide
        left = a.reshape(self._left_shape).astype(wide, copy=False)
        right = b.reshape(self._right_shape).astype(wide, copy=False)
        if not (cmath.isfinite(mantissa) and cmath.isfinite(beta)):
            return None
        # A pair with Inf or NaN goes a long way on a host, for entries that a kernel
        # leaves open.
        if isinstance(left, np.ndarray):
            for x in (left, right):
                if not self._are_ordinary(real_components(x), 1, 0.0):
                    return None
        report = None
        pair = product_of_numbers(
            memory_of(left),
            memory_of(right),
            engine=self._engine_name,
            return_report=return_report,
            result="pair",
        )
        if return_report:
            pair, report = pair
        high, low = map(as_array, pair)
        alpha = scalar_times_power(mantissa, self._shift)
        addend = None if c is None else c.reshape(high.shape).astype(wide, copy=False)
        terms = high, low, alpha, addend, beta, self._fmt
        values, certified = self._round(*terms, False)
        if not certified.all():
            # Zeros are certain where pairs lack nothing.
            if least_exponent(left) + least_exponent(right) < _LEAST_EXPONENT:
                return None
            values, certified = self._round(*terms, True)
            if not certified.all():
                return None
        return values.view(self._dtype).reshape(self._shape), report


class SumByCore(SumAtOnce):
    """The sum by the core, of real matrices and scalars. It settles neither Inf and NaN nor
    a C whose product with beta is no sum of two words.
    """

    reason = "compiled sums in two words or more, each rounded once"

    @quiet
    def sums(
        self,
        a: Array,
        b: Array,
        c: Array | None,
        mantissa: complex,
        beta: complex,
        *,
        return_report: bool = False,
    ) -> tuple[Array, Any] | None:
        """See `SumAtOnce`."""
        alpha = scalar_times_power(mantissa, self._shift).real
        if not math.isfinite(alpha):
            return None
        plan = self.plan
        stack = plan.problem.shape
        words: Array | tuple[None, None] | None = (None, None)
        if c is not None:
            words = _exact_multiple(c.reshape(stack), beta.real)
        if words is None:
            return None
        product, error = words
        values = np.empty(stack, self._dtype)
        left = core.readable(a.reshape(self._left_shape))
        right = core.readable(b.reshape(self._right_shape))
        if not core.multiply(
            left, right, product, values, None, 0, 0, factor=alpha, c_low=error
        ):
            return None
        report = None
        if return_report:
            outcome = Outcome(values, 0.0, plan.num_products)
            report = report_on(plan, outcome, self._engine, 0.0)
        return values.reshape(self._shape), report


def _exact_multiple(c: Array, beta: float) -> Array | None:
    """beta C as a product and its error, two arrays of float64 in one; None where they are
    not exact, or C is not finite.
    """
    words = np.zeros((2, *c.shape))
    if not np.isfinite(c).all():
        return None
    if beta == 0.0:
        return words
    words[0], words[1] = two_product(c.astype(np.float64), np.full(1, beta))
    sizes = np.abs(words[0])
    is_exact = (sizes >= _LEAST_PRODUCT) & (sizes < _MOST) & (np.abs(c) < _MOST)
    if abs(beta) >= _MOST or not (is_exact | (c == 0.0)).all():
        return None
    return words


def _sum_of_finite(
    operands: Operands,
    left: Array,
    right: Array,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
) -> tuple[Array, Report]:
    """alpha A B + beta C of finite stacks, rounded once or to a relative error; for an
    enclosure in float64, rounded to odd.

    Sums of float32 are pairs of float64, whose range holds all words.
    """
    alpha, beta = scalars
    dtype = operands.dtype
    is_single = dtype in (np.float32, np.complex64)
    is_odd = request.result == "enclosure"
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)

    def multiply(x: Array, y: Array, shift: int) -> tuple[Array, Report]:
        longer = replace(operands, a=x, b=y, dtype=wide)
        if is_odd:
            (lower, upper), report = two_parts(longer, request)
            return scale_entries(odd_between(lower, upper), shift), report
        if not is_single:
            values, report = product(longer, request, shift=shift)
            return cast(Array, values), report
        of_pair = replace(request, accuracy="correct", result="pair")
        (high, low), report = two_parts(longer, of_pair)
        values = round_pair(high, low, shift).view(dtype)
        return values.astype(wide), report

    shifts = _SHIFTS
    if is_single:
        parts = (abs(x) for s in scalars for x in (s.real, s.imag) if x != 0)
        shift = 0 if min(parts) >= _SMALL_SCALAR else _SHIFT_OF_PAIRS
        shifts = shift, shift
    elif is_odd:
        shifts = 0, 0
    left, right = left.astype(wide), right.astype(wide)
    c = None if c is None else c.astype(wide)
    rounded = sum_of_multiples(alpha, left, right, beta, c, multiply, shifts)
    if rounded is not None:
        values, report = rounded
        return values if is_odd else values.astype(dtype), report
    if not operands.library.on_host:
        raise AccuracyError(
            f"alpha = {alpha}, beta = {beta}: the exact terms of the sum need exponents "
            f"beyond those of {dtype} on {operands.library}; multiply on the CPU"
        )
    _, report = product(operands, replace(request, result="array"))

    def by_integers(d: Decision) -> Decision:
        reason = f"{d.reason}; the sum with alpha and beta by integers of Python"
        return replace(d, reason=reason, bound=0.0, correct=True)

    values = sum_by_integers(alpha, left, right, beta, c, to_odd=is_odd)
    return values, report.changed(by_integers)


@quiet
def _exact_addend(
    operands: Operands, c: Array | None, beta: complex, shift: int
) -> Term | None:
    """s C' with 2**shift (A B + s C') = 2**shift A B + beta C, where that can be a
    product; else None.
    """
    if c is None or c.size == 0 or operands.are_prepared or operands.are_empty:
        return None
    mantissa, exponent = frexp(beta)
    if mantissa not in (1.0, -1.0):
        return None
    addend = term_of(c, exponent - shift)
    if addend is None:
        return None
    return Term(addend.c, addend.s * mantissa.real)


def _special_sums(
    a: Array, b: Array, c: Array | None, alpha: complex, beta: complex
) -> Array | None:
    """Real components that Inf and NaN of the operands make Inf or NaN, finite ones
    elsewhere; None where all operands are finite.
    """
    rows = nonfinite_vectors(a, 2)
    cols = nonfinite_vectors(b, 1)
    has_special_c = c is not None and not np.isfinite(c).all()
    if not (rows.any() or cols.any() or has_special_c):
        return None
    shape = max(len(a), len(b)), a.shape[1], b.shape[2]
    t = np.zeros(shape, a.dtype, like=a)
    fill_nonfinite(t, a, b, rows, cols)
    nonfinite_c = None
    if c is not None:
        components = real_components(c)
        zero = components.dtype.type(0)
        kept = np.where(np.isfinite(components), zero, components)
        nonfinite_c = kept.view(c.dtype)
    sums = combine(t, alpha, nonfinite_c, beta)
    return sums.view(sums.real.dtype)
