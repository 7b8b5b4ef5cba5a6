"""Functions of entries, conversions and reductions, against the same functions of
Python's numbers.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from hifigemm.numerics.bits import LEAST, Array
from hifigemm.testing.primitives.platforms import COUNT, Finding, Platform, first_fault


@dataclass(frozen=True)
class Function:
    """A function of arrays, entry by entry, and the same of Python's numbers; `kinds`
    name the `_pools` of inputs.
    """

    name: str
    of_arrays: Callable[..., Any]
    of_numbers: Callable[..., Any]
    kinds: tuple[str, ...]
    used: bool = True


def _limits() -> list[float]:
    """Numbers at which roundings, conversions and ranges end, of both signs."""
    numbers = []
    for x in (0.5, 1.0, 1.5, 2.5, 2.0**31, 2.0**52, 2.0**53):
        numbers += [x - x * 2.0**-53, x, x + x * 2.0**-52]

    # Zero, subnormal numbers and the largest ones.
    numbers += [0.0, LEAST, 3 * LEAST]
    numbers += [2.0**-1022, 2.0**-1022 - LEAST]
    numbers += [2.0**1023, np.finfo(float).max]

    # Ties of float32, normal and subnormal.
    tie = 1 + 2.0**-24
    numbers += [tie, 1 + 3 * 2.0**-24, tie + 2.0**-52]
    half_of_smallest = 2.0**-150
    numbers += [half_of_smallest, 3 * half_of_smallest]
    numbers.append(2.0**-126 - half_of_smallest)

    # The ends of the range of float32.
    overflows = 2.0**128 - 2.0**103
    numbers += [overflows, overflows - 2.0**75, 2.0**128]
    numbers += [2.0**-149, 5 * 2.0**-151]
    return numbers + [-x for x in numbers]


def _pools() -> dict[str, Array]:
    """Numbers at the limits among others, as many of each kind."""
    rng = np.random.default_rng(1)
    limits = _limits()
    num_random = COUNT - len(limits)
    random = rng.uniform(-1, 1, num_random)
    random = random * 2.0 ** rng.integers(-1000, 1000, num_random)
    floats = rng.permutation([*limits, *random])
    special = floats.copy()
    integers = rng.integers(-(2**63), 2**63, COUNT) >> rng.integers(0, 63, COUNT)
    special[::7] = np.inf
    special[1::7] = np.nan
    special[2::7] = -np.inf
    integers[0] = 1 - 2**63
    integers[1] = 2**63 - 1
    integers[2] = 2**53 + 1
    integers[3] = -(2**31)
    singles = np.array([_single(x) for x in special.tolist()], np.float32)
    components = np.stack([special, special[::-1]], axis=1)

    def below(limit: int, dtype: Any, last: int = 0) -> Array:
        """Integers from -limit to limit - 1 + last."""
        return rng.integers(-limit, limit + last, COUNT).astype(dtype)

    return {
        "float64": floats,
        "float64 > 0": np.where(floats == 0, 1.0, abs(floats)),
        "float64, Inf, NaN": special,
        "float32": np.where(np.isfinite(singles), singles, np.float32(1)),
        "float32, Inf, NaN": singles,
        "complex128, Inf, NaN": components.ravel().view(np.complex128),
        "int64": integers,
        "uint64": integers.view(np.uint64),
        "bool": integers < 0,
        "shift": rng.integers(0, 64, COUNT),
        "shift of uint64": rng.integers(0, 64, COUNT).astype(np.uint64),
        "float64 integers": (integers >> 11).astype(np.float64),
        "float64 below 2**31": (integers >> 33).astype(np.float64),
        "float64 below 2**11": below(2**11, np.float64, last=1),
        "float64 below 2**7": below(2**7, np.float64),
        "float32 integers": below(2**24, np.float32, last=1),
        "int8": below(2**7, np.int8),
    }


def _single(x: float) -> float:
    """x rounded to float32 by the processor's scalar instruction."""
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def _whole(to_integer: Callable[[float], Any]) -> Callable[[float], float]:
    """A rounding to integers that keeps the sign of zero."""
    return lambda x: math.copysign(abs(to_integer(x)), x)


def _wrapped(n: int) -> int:
    return (n + 2**63) % 2**64 - 2**63


def _is_finite(x: complex) -> bool:
    return math.isfinite(x.real) and math.isfinite(x.imag)


_UFUNCS: tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...] = (
    ("rint", _whole(round), ("float64",)),
    ("trunc", _whole(math.trunc), ("float64",)),
    ("ceil", _whole(math.ceil), ("float64",)),
    ("floor", _whole(math.floor), ("float64",)),
    ("negative", operator.neg, ("float64",)),
    ("negative", operator.neg, ("float32",)),
    ("negative", operator.neg, ("int64",)),
    ("absolute", abs, ("float64",)),
    ("absolute", abs, ("float32",)),
    ("isfinite", _is_finite, ("float64, Inf, NaN",)),
    ("isfinite", _is_finite, ("float32, Inf, NaN",)),
    ("isfinite", _is_finite, ("complex128, Inf, NaN",)),
    ("isnan", math.isnan, ("float64, Inf, NaN",)),
    ("sign", lambda x: (x > 0) - (x < 0), ("float64",)),
    ("square", lambda x: x * x, ("float64",)),
    ("sqrt", math.sqrt, ("float64 > 0",)),
    ("add", operator.add, ("float64", "float64")),
    ("add", lambda x, y: _single(x + y), ("float32", "float32")),
    ("subtract", operator.sub, ("float64", "float64")),
    ("multiply", operator.mul, ("float64", "float64")),
    ("divide", operator.truediv, ("float64", "float64 > 0")),
    ("copysign", math.copysign, ("float64", "float64")),
    ("maximum", max, ("float64 > 0", "float64 > 0")),
    ("minimum", min, ("float64 > 0", "float64 > 0")),
    ("greater", operator.gt, ("float64", "float64")),
    ("where", lambda holds, x, y: x if holds else y, ("bool", "float64", "float64")),
    ("add", lambda x, y: _wrapped(x + y), ("int64", "int64")),
    ("right_shift", operator.rshift, ("int64", "shift")),
    ("right_shift", operator.rshift, ("uint64", "shift of uint64")),
    ("left_shift", lambda x, n: _wrapped(x << n), ("int64", "shift")),
    ("left_shift", lambda x, n: (x << n) % 2**64, ("uint64", "shift of uint64")),
    ("bitwise_and", operator.and_, ("int64", "int64")),
    ("bitwise_or", operator.or_, ("int64", "int64")),
)
_CONVERSIONS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("float64", "float32", _single),
    ("float32", "float64", float),
    ("int64", "float64", float),
    ("int8", "float32", float),
    ("float64 integers", "int64", int),
    ("float64 below 2**31", "int32", int),
    ("float64 below 2**11", "float16", float),
    ("float64 below 2**7", "int8", int),
    ("float32 integers", "int32", int),
    ("float32 integers", "int64", int),
)
_REDUCTIONS: tuple[
    tuple[str, Callable[[Any, int], Any], Callable[[list[Any]], Any], str], ...
] = (
    (
        "max",
        lambda x, axis: x.max(axis=axis, keepdims=True, initial=0),
        lambda x: max(0, *x),
        "float64",
    ),
    (
        "min",
        lambda x, axis: x.min(axis=axis, keepdims=True, initial=0),
        lambda x: min(0, *x),
        "int64",
    ),
    (
        "max, where > 0",
        lambda x, axis: np.max(x, axis=axis, initial=0.0, where=x > 0),
        lambda x: max(0.0, *x),
        "float32",
    ),
    (
        "sum",
        lambda x, axis: x.sum(axis=axis, keepdims=True),
        sum,
        "float64 below 2**31",
    ),
    (
        "sum",
        lambda x, axis: x.sum(axis=axis),
        lambda x: reduce(lambda s, y: _wrapped(s + y), x),
        "int64",
    ),
    ("any", lambda x, axis: x.any(axis=axis, keepdims=True), any, "bool"),
    ("all", lambda x, axis: x.all(axis=axis), all, "bool"),
)


def _called(name: str) -> Callable[..., Any]:
    return lambda *arrays: getattr(np, name)(*arrays)


def _in_place(name: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x.copy()
        return getattr(np, name)(y, out=y)

    return function


def _assigned(dtype: Any) -> Callable[[Any], Any]:
    """Conversion by assignment to entries that lie apart, in strides from 1 to 9."""

    def function(x: Any) -> Any:
        step = 1 + len(x) % 9
        out = np.zeros(step * len(x), dtype, like=x)
        out[::step] = x
        return out[::step]

    return function


def _strided_out(name: str) -> Callable[[Array], Array]:
    def function(x: Array) -> Array:
        out = np.zeros(4 * len(x), np.float64 if name == "negative" else bool)
        results: Array = getattr(np, name)(x, out=out[::4])
        return results

    return function


def _table() -> Iterator[Function]:
    for name, truth, kinds in _UFUNCS:
        yield Function(f"{name} ({'; '.join(kinds)})", _called(name), truth, kinds)
    for name, truth in (("rint", _whole(round)), ("trunc", _whole(math.trunc))):
        yield Function(f"{name} in place", _in_place(name), truth, ("float64",))
    yield Function(
        "frexp, mantissa",
        lambda x: np.frexp(x)[0],
        lambda x: math.frexp(x)[0],
        ("float64",),
    )
    yield Function(
        "frexp, exponent",
        lambda x: np.frexp(x)[1],
        lambda x: math.frexp(x)[1],
        ("float64",),
    )
    for kind, dtype, truth in _CONVERSIONS:
        yield Function(
            f"{kind} to {dtype}", lambda x, dtype=dtype: x.astype(dtype), truth, (kind,)
        )
        yield Function(f"{kind} assigned to {dtype}", _assigned(dtype), truth, (kind,))


def functions(platform: Platform) -> Iterator[Finding]:
    """Functions of entries and reductions."""
    pools = _pools()
    for function in _table():
        yield _compared(platform, function, pools)
    for name, reduced, of_list, kind in _REDUCTIONS:
        yield _reduced(platform, f"{name} ({kind})", reduced, of_list, pools[kind])
    if platform.put is np.asarray:
        for name, of_number in (("negative", operator.neg), ("isfinite", _is_finite)):
            function = Function(
                f"{name} to every 4th entry",
                _strided_out(name),
                of_number,
                ("float64",),
                used=False,
            )
            yield _compared(platform, function, pools)


def _compared(
    platform: Platform, function: Function, pools: dict[str, Array]
) -> Finding:
    """All strides and sizes; further inputs have strides of their own."""
    inputs = [np.roll(pools[kind], 7 * i) for i, kind in enumerate(function.kinds)]
    numbers = zip(*(x.tolist() for x in inputs))
    truth = [function.of_numbers(*arguments) for arguments in numbers]
    cases = 0
    for stride in platform.strides:
        strides = (stride, 1 + abs(stride) % 5, 2)
        for size in platform.sizes:
            pairs = zip(inputs, strides)
            arrays = [platform.spread(x[:size], step) for x, step in pairs]
            with np.errstate(all="ignore"):
                results = platform.fetch(function.of_arrays(*arrays))
            cases += size
            fault = first_fault(results, truth[:size])
            if fault:
                fault = f"stride {stride}, size {size}: {fault}"
                return Finding(
                    function.name, platform.library, cases, fault, function.used
                )
    return Finding(function.name, platform.library, cases, used=function.used)


def _reduced(
    platform: Platform,
    name: str,
    function: Callable[[Any, int], Any],
    truth: Callable[[list[Any]], Any],
    pool: Array,
) -> Finding:
    """Sums and extremes along both axes of a matrix whose columns lie in a stride."""
    cases = 0
    for stride in platform.strides:
        for size in platform.sizes:
            x = np.stack([np.roll(pool, 7 * i)[:size] for i in range(5)])
            array = platform.spread(x, stride)
            for axis, vectors in ((1, x.tolist()), (0, x.T.tolist())):
                results = platform.fetch(function(array, axis)).ravel()
                cases += results.size
                fault = first_fault(results, [truth(vector) for vector in vectors])
                if fault:
                    fault = f"stride {stride}, shape {x.shape}, axis {axis}: {fault}"
                    return Finding(name, platform.library, cases, fault)
    return Finding(name, platform.library, cases)
