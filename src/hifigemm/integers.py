"""Products of integers and bools: those of their library, which rounds nothing and wraps around beyond its dtype."""

from __future__ import annotations

import math

import numpy as np

from hifigemm.engines import engine_for
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.libraries import Library
from hifigemm.numerics.bits import Array
from hifigemm.operands import Prepared, Shapes, stacked
from hifigemm.plan import Decision, Report
from hifigemm.planner import Options
from hifigemm.schemes import Native
from hifigemm.schemes.auto import as_scheme
from hifigemm.settings import decision_log


def are_integers(a: Array | Prepared, b: Array | Prepared) -> bool:
    """Whether the product of these operands is one of integers or bools, as NumPy promotes them."""
    return all(x.dtype.kind in "biu" for x in (a, b)) and np.result_type(a.dtype, b.dtype).kind in "biu"


def integer_product(a: Array, b: Array, shapes: Shapes, options: Options, library: Library) -> tuple[Array, Report]:
    """a @ b in the promoted dtype, with its report.

    Raises AccuracyError: an accuracy was asked for, and an entry lies beyond the dtype. PlanError, TypeError: a plan or
    a scheme for floating-point operands; a GPU.
    """
    dtype, k = np.result_type(a.dtype, b.dtype), shapes.left[2]
    operands = f"{a.dtype} and {b.dtype}"
    if options.plan is not None:
        raise PlanError(f"the plan is for {options.plan.problem}; the operands are {operands}")
    if as_scheme(options.scheme) not in (None, Native()):
        raise PlanError(
            f"{options.scheme!r} multiplies floating-point numbers, the operands are {operands}: convert one"
        )
    if not library.on_host:
        raise TypeError(
            f"the operands are {operands} on {library.device}, where no integers are multiplied: convert one"
        )
    engine = engine_for(options.engine, library.name, library.device)
    product = np.matmul(a, b)
    reason, bound = f"product of {dtype} by the library", 0.0
    if dtype.kind != "b":
        most, limits = k * _largest(a) * _largest(b), np.iinfo(dtype)
        if most <= limits.max:
            reason += f", exact: no entry exceeds {most}"
        elif options.accuracy is not None:
            left, right = (stacked(x, s, shapes.batch, None) for x, s in ((a, shapes.left), (b, shapes.right)))
            _check_range(left, right, limits)
            reason += f", exact: no entry lies beyond {limits.min} to {limits.max}, as was checked"
        else:
            bound = math.inf
            reason += f", which wraps around: entries may reach {most}, the dtype ends at {limits.max}"
    count = int(product.size > 0 and k > 0)
    decision_log().info("%s @ %s: %s", a.shape, b.shape, reason)
    decision = Decision(Native(), count, bound, bound == 0.0, k, count > 0, reason)
    return product, Report(engine.name, engine.device, 0, 0.0, lambda: decision)


def _largest(x: Array) -> int:
    return max(int(x.max(initial=0)), -int(x.min(initial=0)))


def _check_range(a: Array, b: Array, limits: np.iinfo[np.integer]) -> None:
    """Raise AccuracyError where an entry of the exact product of stacks lies beyond these limits.

    A float64 product errs by at most (k + 2) u |A||B|, conversions included, so twice that bounds what is added to it
    here; entries that it leaves open are made of Python's integers.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    value = np.matmul(x, y)
    error = np.matmul(np.abs(x), np.abs(y)) * ((a.shape[2] + 4) * 2.0**-52)
    low, high, least, most = value - error, value + error, float(limits.min), float(limits.max)
    beyond = (high < least) | (low > most)
    for z, i, j in np.argwhere(~beyond & ~((low >= least) & (high < most))):
        row, column = a[min(z, len(a) - 1), i], b[min(z, len(b) - 1), :, j]
        exact = sum(p * q for p, q in zip(row.tolist(), column.tolist(), strict=True))
        beyond[z, i, j] = not limits.min <= exact <= limits.max
    if beyond.any():
        raise AccuracyError(
            f"{np.count_nonzero(beyond)} of {beyond.size} entries of the product, {np.abs(value).max():.3g} the "
            f"largest, lie beyond {limits.dtype}, which ends at {limits.max}: convert an operand to a wider dtype"
        )
