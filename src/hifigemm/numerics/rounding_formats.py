"""One rounding of float32 and float64 arrays to shorter binary formats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hifigemm.base.formats import FP32, FP64, Format
from hifigemm.numerics.bits import Array, power_of_two

_CHUNK = 32768
"""Entries converted at a time, whose six float64 temporaries the second cache holds."""

_DEVICE_CHUNK = 2**22
"""Entries on a device, where each step is a launch: temporaries of a few hundred MB."""


def _to_nearest_away(y: Array) -> Array:
    """Nearest integer, ties away from zero."""
    whole = np.trunc(y)
    # y - trunc(y) is exact, |y| + 0.5 would not be.
    whole += np.copysign((np.abs(y - whole) >= 0.5).astype(np.float64), y)
    return whole


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "nearest": np.rint,
    "zero": np.trunc,
    "nearest-away": _to_nearest_away,
}
"""Roundings to integers; "nearest-away" has ties away from zero, as cvt.rna.tf32."""


def largest_finite(fmt: Format) -> float:
    """Largest finite number of a format as a float64, (2 - 2**(1 - t)) 2**emax."""
    return float((2.0 - 2.0 ** (1 - fmt.t)) * 2.0**fmt.emax)


def result_dtype(fmt: Format) -> type[np.floating]:
    """numpy.float32 where it holds every value of `fmt`, numpy.float64 otherwise."""
    fits = (
        fmt.t <= FP32.t
        and fmt.min_exponent >= FP32.min_exponent
        and fmt.emax <= FP32.emax
    )
    return np.float32 if fits else np.float64


def round_to_format(
    x: Array, fmt: Format, mode: str = "nearest", *, saturate: bool | None = None
) -> Array:
    """x with every entry rounded once to `fmt`.

    fl(x) = 2**q r(x 2**-q) with q = max(floor(log2 |x|), emin) - t + 1 and r the
    rounding to an integer. Results may be subnormal in `fmt`; zeros and vanishing
    values keep their sign, NaN and Inf stay what they are.

    `x` is float32 or float64, and so is the result: float32 where that holds every
    value of `fmt`. `fmt` is FP64, or a format with t <= 53, emin - t + 1 >= -1022 and
    emax <= 1023; `mode` is one of `ROUNDINGS`. Raises ValueError for an unknown mode
    and for a format beyond this range.

    `saturate` says what a finite entry becomes whose rounded value exceeds the largest
    finite number of `fmt`: that number (True) or Inf (False). None follows IEEE 754:
    True for mode "zero", else False.
    """
    if mode not in ROUNDINGS:
        raise ValueError(f"rounding mode {mode!r} is none of {', '.join(ROUNDINGS)}")
    if fmt.t == FP64.t and fmt.emin == FP64.emin and fmt.emax == FP64.emax:
        return x.astype(np.float64)
    if not (1 < fmt.t <= 53 and fmt.min_exponent >= -1022 and fmt.emax <= 1023):
        raise ValueError(
            f"{fmt} is wider than float64 arithmetic can round to: need t <= 53, emin - t + 1 >= -1022"
        )

    # The magnitude that results beyond the range get.
    if saturate is None:
        saturate = mode == "zero"
    top = largest_finite(fmt)
    beyond = top if saturate else np.inf

    flat = x.reshape(-1)
    out = np.empty(flat.shape, result_dtype(fmt), like=flat)
    size = _CHUNK if isinstance(x, np.ndarray) else _DEVICE_CHUNK
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, flat.size, size):
            chunk = flat[start : start + size].astype(np.float64)
            rounded = _round_chunk(chunk, fmt, ROUNDINGS[mode])
            is_beyond = np.abs(rounded) > top
            # Nothing waits for a device.
            if not isinstance(is_beyond, np.ndarray) or is_beyond.any():
                is_beyond &= np.isfinite(chunk)
                np.copyto(rounded, np.copysign(beyond, chunk), where=is_beyond)
            out[start : start + size] = rounded
    return out.reshape(x.shape)


def _round_chunk(x: Array, fmt: Format, to_integer: Callable[[Array], Array]) -> Array:
    """x, float64, rounded as if the exponent of `fmt` had no upper limit.

    Both scalings are by powers of two.
    """
    quantum = x.view(np.int64) >> 52
    quantum &= 0x7FF
    np.maximum(quantum, fmt.emin + 1023, out=quantum)
    quantum -= 1023 + fmt.t - 1
    rounded = to_integer(x * power_of_two(-quantum))
    rounded *= power_of_two(quantum)
    return rounded


def is_representable(x: Array, fmt: Format) -> bool:
    """True if every entry is a value of `fmt`, as Inf and NaN are of every format."""
    return bool(np.all((round_to_format(x, fmt, "zero") == x) | np.isnan(x)))


def odd_between(lower: Array, upper: Array) -> Array:
    """The numbers between these neighbours among float64 or float32, rounded to odd: the
    end whose last bit is odd, or both ends where they are equal.

    A number x and x rounded to odd compare alike with every y that is an even multiple of
    the last bit that the ends have there: no odd end is y, and y does not lie between the
    ends. Midpoints of a format are such y if it has two bits less and the least number is
    four times as large, as for float32 within float64, and for float16 and bfloat16 within
    both. So both round to the same number (Boldo, Melquiond, doi:10.1109/TC.2007.70819).
    """
    words = {4: (np.float32, np.int32), 8: (np.float64, np.int64)}
    # Components of complex numbers have half of their size
    size = lower.dtype.itemsize // (2 if lower.dtype.kind == "c" else 1)
    real, integer = words[size]
    low = np.ascontiguousarray(lower, like=lower).view(real)
    high = np.ascontiguousarray(upper, like=upper).view(real)
    is_even = (low.view(integer) & 1) == 0
    odd = np.where(is_even, high, low)
    return odd.view(lower.dtype).reshape(lower.shape)


def odd_in_float32(x: Array) -> Array:
    """Numbers of float64 rounded to odd in float32, as `odd_between` rounds."""
    nearest = x.astype(np.float32)
    of_nearest = nearest.astype(np.float64)
    bits = nearest.view(np.int32)
    # The neighbour towards zero, and its last bit set where digits are lost
    bits = bits - (np.abs(of_nearest) > np.abs(x)).astype(np.int32)
    bits = bits | (of_nearest != x).astype(np.int32)
    return bits.view(np.float32)


def round_pair(high: Array, low: Array, shift: int = 0) -> Array:
    """2**shift (high + low) of float64 rounded once to float32.

    Real components, re and im side by side for complex pairs. high is the float64
    nearest to the sum. The sum is rounded to odd first: a high that is even, and not the
    sum itself, goes to the neighbour on the side of low. 53 bits then tell the rounding
    to 24 (Boldo, Melquiond, doi:10.1109/TC.2007.70819).
    """
    head = np.ascontiguousarray(high, like=high).view(np.float64)
    tail = np.ascontiguousarray(low, like=low).view(np.float64)
    is_even = (head.view(np.int64) & 1) == 0
    is_between = is_even & (tail != 0) & np.isfinite(head)
    neighbour = np.nextafter(head, np.where(tail > 0, np.inf, -np.inf))
    odd = np.where(is_between, neighbour, head)
    # What is subnormal in float64 after the shift is zero in float32.
    return (odd * 2.0**shift).astype(np.float32)
