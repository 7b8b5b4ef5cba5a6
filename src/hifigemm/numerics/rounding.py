"""One rounding, to nearest with ties to even, of exact integers times powers of two.

The value of an entry is V 2**x with V in limbs and x its exponent. From V come a sign,
the 64 leading bits and a sticky bit; these are rounded once, at max(exponent - t + 1,
the format's smallest exponent), so subnormal results and overflow follow IEEE 754. An
exact zero is +0; a negative value that rounds to zero is -0.

An approximation V of an exact number with |V - exact| <= 2**err_exponent rounds the
same way as the exact one unless V lies that close to a midpoint between two floats:
`Rounded.certain` says for which entries this was excluded (Ziv's rounding test).

Where V is a sum of few float64 integers, and no bound of errors is asked for, error-free
sums nearly always tell its rounding in fewer steps: `round_sum`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import Array, power_of_two, scale_by_power
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.limbs import LIMB_BITS, carry

_MASK = (1 << LIMB_BITS) - 1
"""The bits of a limb."""

_MAX_TERMS = 16
"""Terms of a sum of floats whose errors are added with a relative error below 2**-49."""

_PADDING = 3
"""Limbs of zeros below V: the four leading limbs exist whatever V is."""


@dataclass(frozen=True)
class Rounded:
    """Rounded values with the sizes of the integers V and the result of Ziv's test."""

    values: Array  # float64 or float32
    magnitude: Array  # int64, floor(log2 |V|), or -1 for V = 0
    certain: Array  # bool: all numbers within the error bound of V round like V


def round_limbs(
    limbs: Array, exponent: Array, fmt: Format, err_exponent: int | Array | None = None
) -> Rounded:
    """Round sum_j limbs[j] 2**(32 j) * 2**exponent to `fmt`.

    `limbs`, int64 (L, N), are signed and unswept, and overwritten; `exponent` is int64
    (N,), `fmt` FP64 or FP32. The exact number lies within 2**err_exponent of V, an int
    or int64 (N,) of at least -1; None says that V is exact.
    """
    # The sign of V is what carries leave beyond the last limb: -1 or 0.
    beyond = limbs[0] >> LIMB_BITS
    for limb in limbs[1:]:
        beyond += limb
        beyond >>= LIMB_BITS
    sign = beyond | 1

    # The magnitude of V in limbs without carries.
    limbs *= sign
    carry(limbs)

    # Its 64 leading bits, and how many of them lie below the unit 2**quantum that the
    # format has at this magnitude.
    head, tail, sticky, magnitude = _leading_bits(limbs)
    top = magnitude + exponent
    quantum = np.maximum(top - (fmt.t - 1), fmt.min_exponent)
    drop = quantum - top
    drop += 63

    # Ziv's test, with the error in units of the last bit of head.
    if err_exponent is None:
        certain = np.ones(len(magnitude), bool, like=magnitude)
    else:
        certain = _far_from_midpoint(head, tail, drop, err_exponent - magnitude + 63)

    # The rounded significand times its unit. From 65 dropped bits on it is zero.
    significand = _round_to_even(head, sticky, np.minimum(drop, 65, out=drop))
    with np.errstate(over="ignore"):
        values = scale_by_power(significand.astype(np.float64), quantum)
        values = values * sign.astype(np.float64)
        values = values.astype(np.float32 if fmt is FP32 else np.float64, copy=False)
    return Rounded(values, magnitude, certain)


def _leading_bits(limbs: Array) -> tuple[Array, Array, Array, Array]:
    """(head, tail, sticky, magnitude) of V >= 0 in swept limbs.

    head has the 64 leading bits (uint64, top bit set unless V = 0) and tail the next
    32; sticky is True if any bit below head is set; magnitude is floor(log2 V), or -1
    for V = 0.
    """
    # The index of the leading limb x0 of each V, and the three limbs below it.
    count, n = limbs.shape
    padded = np.zeros((count + _PADDING, n), np.int64, like=limbs)
    padded[_PADDING:] = limbs
    lead = np.full(n, _PADDING, like=limbs)
    for j in range(_PADDING + 1, count + _PADDING):
        np.copyto(lead, j, where=padded[j] != 0)
    index = lead * n + np.arange(n, like=limbs)
    flat = padded.reshape(-1)
    x0 = flat[index]
    index -= n
    x1 = flat[index]
    index -= n
    x2 = flat[index]
    index -= n
    x3 = flat[index]

    # Each limb becomes the union of the bits of all limbs up to it, for `sticky`.
    for j in range(1, count):
        padded[j] |= padded[j - 1]

    # The bits of the four limbs, shifted so that the top bit of x0 is that of head.
    is_zero = x0 == 0
    top = (x0 | is_zero).astype(np.float64).view(np.int64) >> 52
    top -= 1023
    shift = 31 - top
    inverse = LIMB_BITS - shift
    head = (x0 << LIMB_BITS) | x1
    head <<= shift
    head |= x2 >> inverse
    tail = (x2 << shift) & _MASK
    tail |= x3 >> inverse
    sticky = (tail | flat[index]) != 0
    magnitude = (lead - _PADDING) * LIMB_BITS
    magnitude += top
    magnitude[is_zero] = -1
    return head.view(np.uint64), tail, sticky, magnitude


def _round_to_even(head: Array, sticky: Array, drop: Array) -> Array:
    """head / 2**drop rounded to nearest even, for 11 <= drop <= 65.

    `sticky` is True if a bit is set below the last one of head.
    """
    # The quotient with two more bits, the last of which is set if any bit below it is.
    shift = (drop - 2).astype(np.uint64)
    quarters = head >> shift
    has_more = ((quarters << shift) != head) | sticky
    quarters = quarters.view(np.int64) | has_more

    # Half a unit or less is added: less where a tie would leave an even quotient.
    odd = quarters >> 2
    odd &= 1
    quarters += odd
    quarters += 1
    quarters >>= 2
    return quarters


def _far_from_midpoint(
    head: Array, tail: Array, drop: Array, err_exponent: Array
) -> Array:
    """True where an error of 2**err_exponent or less changes neither sign nor rounding.

    The error is in units of the last bit of head, of which `drop` bits are rounded
    away. The midpoint of the cell of the value is at most half a rounding unit away. An
    error below that distance is at most a quarter of the unit, both being powers of
    two, and reaches no other midpoint; the one a quarter below a power of two rounds up
    to it. The distance is taken to 32 bits below head, in float64: less than one of
    these units is cut off, and roundings are monotonic, so that a computed distance
    above a power of two proves the distance itself to be above it. Values of a quarter
    to one of the smallest subnormal number are left open; further below, everything
    that keeps its sign rounds to zero.
    """
    dropped = np.minimum(drop, 63).astype(np.uint64)
    low = head & ((np.uint64(1) << dropped) - np.uint64(1))
    half = np.uint64(1) << (dropped - np.uint64(1))
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

    `limbs_of` gives the limbs of a slice of the entries, counted through all axes.
    `exponent` has the shape of the array, to which `err_exponent` broadcasts.
    """
    # Exponents and errors with one axis, as the entries are counted.
    shape = exponent.shape
    n = exponent.size
    exponent = exponent.ravel()
    errors = None
    if not (err_exponent is None or isinstance(err_exponent, int)):
        errors = np.broadcast_to(err_exponent, shape).ravel()

    chunks = []
    for start in range(0, max(n, 1), size):
        entries = slice(start, min(start + size, n))
        error = err_exponent if errors is None else errors[entries]
        chunks.append(round_limbs(limbs_of(entries), exponent[entries], fmt, error))

    # One array of each kind, without a copy where there is one chunk.
    def join(arrays: list[Array]) -> Array:
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return whole.reshape(shape)

    return Rounded(
        values=join([x.values for x in chunks]),
        magnitude=join([x.magnitude for x in chunks]),
        certain=join([x.certain for x in chunks]),
    )


def values_in_chunks(
    terms_of: Callable[[slice], Array],
    limbs_of: Callable[[slice], Array],
    exponent: Array,
    fmt: Format,
    size: int,
    bits: int,
) -> Array:
    """The values alone of `round_in_chunks` for exact integers.

    `terms_of` gives terms of a slice of the entries as `round_sum` takes them, `bits` is
    what that function wants. Arrays of a device are not asked for what is certain.
    """
    shape = exponent.shape
    if not isinstance(exponent, np.ndarray):
        return round_in_chunks(limbs_of, exponent, fmt, size).values
    flat = exponent.ravel()
    chunks = []
    for start in range(0, max(flat.size, 1), size):
        entries = slice(start, min(start + size, flat.size))
        values = round_sum(terms_of(entries), flat[entries], fmt, bits)
        if values is None:
            values = round_limbs(limbs_of(entries), flat[entries], fmt).values
        chunks.append(values)
    whole = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return whole.reshape(shape)


def round_sum(terms: Array, exponent: Array, fmt: Format, bits: int) -> Array | None:
    """sum_j terms[j] 2**exponent rounded once to `fmt`; None if a rounding is not
    certain, if an exponent is far from 0, and for many terms.

    `terms` is float64 (T, N) with integers, and their sums are integers below 2**bits
    in magnitude.
    """
    lowest = exponent.min(initial=0)
    highest = exponent.max(initial=0)
    if lowest < -1021 or highest > 1022 - bits or len(terms) > _MAX_TERMS:
        return None

    # The sum is high plus all errors, of which there may be none.
    high = terms[0]
    errors = []
    for term in terms[1:]:
        high, error = two_sum(high, term)
        errors.append(error)

    # Both ends of an interval around the sum, rounded to float64. One error is less than
    # half a unit; the sum of more of them is rounded, by less than 2**-49 of their sizes.
    lower = upper = high
    if len(errors) > 1:
        low = reduce(np.add, errors)
        margin = reduce(np.add, map(np.abs, errors)) * 2.0**-48
        lower = high + (low - margin)
        upper = high + (low + margin)
    if fmt is FP32:
        # The next numbers in float64 enclose what was rounded.
        unit = np.abs(high) * 2.0**-51
        lower = lower - unit
        upper = upper + unit

    # A number that both ends are rounded to is that of the sum.
    dtype = np.float32 if fmt is FP32 else np.float64
    power = power_of_two(exponent)
    with np.errstate(over="ignore", under="ignore"):
        values = (upper * power).astype(dtype, copy=False)
        if lower is upper:
            return values
        others = (lower * power).astype(dtype, copy=False)
    return values if (values == others).all() else None
