"""Results in a narrower dtype than the product's: `out_dtype` of float32, bfloat16 and
float16.

Idea
    "correct" is rounded once from the two numbers of the product's dtype next to the exact
    value, by way of `numerics.rounding_formats.odd_between`. Every other product is made in its
    own dtype, T, and rounded a second time.
Bound
    u is the roundoff of the narrower dtype, v the roundoff of T. With |T - AB| <=
    s |A||B| + v |AB| the second rounding errs by u |T|, so that

        |C - AB| <= (1 + u) (s + v) |A||B| + u |AB|.

    So a number r is kept with s = r (1 - u) - 4 v, for (1 - u) (1 + u) <= 1; 4 v has
    room for the roundings of s. The same holds with |a_i| |b_j| instead of |A||B|, which
    is no more. Numbers below 8 v, and relative errors, are kept by "correct". Where
    results are subnormal numbers, half of the smallest one of each dtype comes on top.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import cast

from hifigemm.model.accuracy import Invariant, resolve
from hifigemm.model.plan import Decision, Report
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.rounding_formats import odd_between
from hifigemm.operands.operands import Operands, name_of_dtype
from hifigemm.operands.out_dtype import format_of, rounded_to
from hifigemm.running.request import Request, request_of_plan
from hifigemm.schemes import as_scheme

_SPARE_ROUNDINGS = 8.0
"""A number is kept by two roundings from so many times the roundoff of the first on."""


def request_of_product(operands: Operands, request: Request) -> Request:
    """The request for the product that is then rounded to `request.out_dtype`: for both
    numbers next to the exact value, where the result is rounded once.

    Raises PlanError: a relative error below the last rounding.
    """
    fmt = format_of(cast(DType, request.out_dtype))
    problem = operands.problem()
    scheme = as_scheme(request.scheme)
    plans = operands.plans(request.plan)
    target = resolve(request.accuracy, fmt, problem.k)
    if plans:
        target = plans[0].target
    if target.by_entry or (scheme is not None and scheme.rounds_once):
        return _rounded_once(operands, request)
    accuracy = request.accuracy
    is_invariant = isinstance(accuracy, Invariant)
    number = accuracy.accuracy if isinstance(accuracy, Invariant) else accuracy
    if plans or not isinstance(number, Real):
        return request
    if number < _SPARE_ROUNDINGS * problem.fmt.u:
        return _rounded_once(operands, request)
    r = float(number) * (1.0 - fmt.u) - 4.0 * problem.fmt.u
    return replace(request, accuracy=Invariant(r) if is_invariant else r)


def _rounded_once(operands: Operands, request: Request) -> Request:
    """The request for both numbers next to the exact value."""
    plans = operands.plans(request.plan)
    if plans:
        request = request_of_plan(request, plans[0])
    return replace(request, accuracy="correct", result="enclosure")


def rounded_values(first: Array, second: Array | None, out_dtype: DType) -> Array:
    """A product in a narrower dtype; where there is a second array, both hold the
    numbers next to the exact one.
    """
    values = first if second is None else odd_between(first, second)
    return rounded_to(values, out_dtype)


def report_of_rounding(
    report: Report, out_dtype: DType, first_u: float, is_once: bool
) -> Report:
    """The report of a product that was rounded to a narrower dtype: once, or a second
    time, after a first rounding with the roundoff `first_u`.
    """
    name = name_of_dtype(out_dtype)
    u = format_of(out_dtype).u

    def after(d: Decision) -> Decision:
        if is_once:
            reason = f"{d.reason}; rounded once to {name}"
            return replace(d, reason=reason, correct=True, bound=0.0)
        bound = (d.bound + first_u) * (1.0 + u)
        normwise = None
        if d.normwise is not None:
            normwise = (d.normwise + first_u) * (1.0 + u)
        reason = f"{d.reason}; rounded a second time, to {name}"
        return replace(
            d,
            reason=reason,
            correct=False,
            bound=bound,
            normwise=normwise,
            relative=None,
        )

    return report.changed(after)
