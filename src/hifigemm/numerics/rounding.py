"""One rounding, to nearest with ties to even, of exact integers times powers of two.

The value of an entry is V 2**x with V in limbs and x its exponent. From V come a sign,
the 64 leading bits and a sticky bit; these are rounded once, at max(exponent - t + 1,
the format's smallest exponent), so subnormal results and overflow follow IEEE 754. An
exact zero is +0; a negative value that rounds to zero is -0.

An approximation V of an exact number with |V - exact| <= 2**err_exponent rounds the
same way as the exact one unless V lies that close to a midpoint between two floats:
`Rounded.certain` says for which entries this was excluded (Ziv's rounding test).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hifigemm.formats import FP32, Format
from hifigemm.numerics.bits import Array, power_of_two, scale_by_power
from hifigemm.numerics.limbs import LIMB_BITS, carry

_MASK = (1 << LIMB_BITS) - 1
_PADDING = 3
"""Limbs of zeros below V: the four leading limbs exist whatever V is."""


@dataclass(frozen=True)
class Rounded:
    """Rounded values with what is known of the integers behind them."""

    values: Array  # float64 or float32
    magnitude: Array  # int64, floor(log2 |V|), or -1 for V = 0
    # bool: the rounding of V is the rounding of every number within the error bound of
    # V
    certain: Array


def round_limbs(
    limbs: Array, exponent: Array, fmt: Format, err_exponent: int | Array | None = None
) -> Rounded:
    """Round sum_j limbs[j] 2**(32 j) * 2**exponent to `fmt`.

    `limbs`, int64 (L, N), are signed and unswept, and overwritten; `exponent` is int64
    (N,), `fmt` FP64 or FP32. The exact number lies within 2**err_exponent of V, an int
    or int64 (N,) of at least -1; None says that V is exact.
    """
    carry(limbs)
    negative = limbs[-1] < 0
    if negative.any():
        limbs *= np.where(negative, -1, 1)
        carry(limbs)
    head, tail, below, magnitude = _leading_bits(limbs)
    quantum = np.maximum(magnitude + exponent - (fmt.t - 1), fmt.min_exponent)
    drop = quantum - (magnitude + exponent - 63)
    certain = np.ones(len(magnitude), bool, like=magnitude)
    if err_exponent is not None:
        certain = _far_from_midpoint(head, tail, drop, err_exponent - magnitude + 63)
    kept = _round_to_even(head, below, np.minimum(drop, 65))
    with np.errstate(over="ignore"):
        values = scale_by_power(kept.astype(np.float64), quantum)
        values = np.where(negative, -values, values)
        values = values.astype(np.float32 if fmt is FP32 else np.float64, copy=False)
    return Rounded(values, magnitude, certain)


def _leading_bits(limbs: Array) -> tuple[Array, Array, Array, Array]:
    """The 64 leading bits (uint64, top bit set unless V = 0), the next 32, if any is
    set below, floor(log2 V) or -1.
    """
    count, n = limbs.shape
    padded = np.zeros((count + _PADDING, n), np.int64, like=limbs)
    padded[_PADDING:] = limbs
    lead = np.full(n, _PADDING, like=limbs)
    for j in range(_PADDING + 1, count + _PADDING):
        np.copyto(lead, j, where=padded[j] != 0)
    at = lead * n + np.arange(n, like=limbs)
    flat = padded.ravel()
    x0, x1, x2, x3 = flat[at], flat[at - n], flat[at - 2 * n], flat[at - 3 * n]
    for j in range(1, count):
        padded[j] |= padded[j - 1]
    zero = x0 == 0
    top = ((x0 | zero).astype(np.float64).view(np.int64) >> 52) - 1023
    shift = 31 - top
    head = ((x0 << LIMB_BITS) | x1).view(np.uint64) << shift.view(np.uint64)
    head |= (x2 >> (LIMB_BITS - shift)).view(np.uint64)
    tail = ((x2 << shift) & _MASK) | (x3 >> (LIMB_BITS - shift))
    below = (tail | flat[at - 3 * n]) != 0
    magnitude = (lead - _PADDING) * LIMB_BITS + top
    magnitude[zero] = -1
    return head, tail, below, magnitude


def _round_to_even(head: Array, below: Array, drop: Array) -> Array:
    """head / 2**drop rounded to nearest even, 11 <= drop <= 65; `below` says if a bit
    is set below the last of head.
    """
    shift = (drop - 2).astype(np.uint64)
    quarter = head >> shift
    rest = ((quarter << shift) != head) | below
    rest |= (quarter & np.uint64(1)) != 0
    kept = (quarter >> np.uint64(2)).view(np.int64)
    half = ((quarter >> np.uint64(1)) & np.uint64(1)) != 0
    kept += half & (rest | ((kept & 1) != 0))
    return kept


def _far_from_midpoint(
    head: Array, tail: Array, drop: Array, err_exponent: Array
) -> Array:
    """The value moved by 2**err_exponent (in units of the last bit of head) or less
    keeps its sign and its rounding.

    The midpoint of the value's own cell is at most half a rounding unit away. An error
    below that distance is at most a quarter of the unit, both being powers of two, and
    reaches no other midpoint; the one a quarter below a power of two rounds up to it.
    The distance is taken to 32 bits below head, in float64: less than one of these
    units is cut off, and roundings are monotonic, so a distance is larger than a power
    of two where it is found to be. Values of a quarter to one of the smallest subnormal
    number are left open; further below, all that keeps its sign is a zero.
    """
    place = np.minimum(drop, 63).astype(np.uint64)
    low = head & ((np.uint64(1) << place) - np.uint64(1))
    half = np.uint64(1) << (place - np.uint64(1))
    distance = np.abs((low - half).view(np.int64) * 2.0**LIMB_BITS + tail)
    far = distance > power_of_two(np.clip(err_exponent, -LIMB_BITS, 63) + LIMB_BITS)
    return np.where(drop <= 63, far, (drop >= 66) & (err_exponent < 63))


def round_in_chunks(
    limbs_of: Callable[[slice], Array],
    exponent: Array,
    fmt: Format,
    size: int,
    err_exponent: int | Array | None = None,
) -> Rounded:
    """`round_limbs` of an array of any shape, `size` entries at a time.

    `limbs_of` gives the limbs of some of the entries, counted through all axes.
    `exponent` has the shape of the array, to which `err_exponent` broadcasts.
    """
    shape, n, errors = exponent.shape, exponent.size, None
    exponent = exponent.ravel()
    if not (err_exponent is None or isinstance(err_exponent, int)):
        errors = np.broadcast_to(err_exponent, shape).ravel()
    parts = []
    for start in range(0, max(n, 1), size):
        at = slice(start, min(start + size, n))
        parts.append(
            round_limbs(
                limbs_of(at),
                exponent[at],
                fmt,
                err_exponent if errors is None else errors[at],
            )
        )
    columns = zip(*((x.values, x.magnitude, x.certain) for x in parts), strict=True)
    return Rounded(
        *((x[0] if len(x) == 1 else np.concatenate(x)).reshape(shape) for x in columns)
    )
