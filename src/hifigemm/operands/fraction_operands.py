"""Operands that float64 does not hold, as fractions of Python.

Integers, quotients, decimals, longdouble and binary numbers of any precision are
fractions, exactly. Numbers with an exponent of their own, as decimals have it, may stand for
integers that no memory holds, so beyond the range of float64 they are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from hifigemm.libraries.array_like import kind_of, shown
from hifigemm.numerics.bits import Array
from hifigemm.operands.exact_operands import (
    BINARY,
    are_exact_in_float64,
    is_number,
    one_word,
    ratio_of,
)


def in_fractions(named_operands: Mapping[str, Array]) -> list[Array] | None:
    """The operands as arrays of fractions, with floats for Inf and NaN, where one of them
    is in longdouble or has a real entry that float64 does not hold; None elsewhere.

    Raises TypeError: entries beside these that are complex or no numbers. ValueError:
    numbers beyond the range of float64 that are no integers, quotients or longdouble.
    """
    if not any(map(_may_be_wide, named_operands.values())):
        return None
    lists = [
        [_fraction(y) for y in x.ravel().tolist()] for x in named_operands.values()
    ]
    has_long = any(x.dtype.char == "g" for x in named_operands.values())
    if not has_long and all(_is_in_float64(y) for entries in lists for y in entries):
        return None
    arrays = []
    for (name, x), entries in zip(named_operands.items(), lists):
        if None in entries:
            one_word(x, name)  # raises for all but complex numbers
            entry = x.ravel().tolist()[entries.index(None)]
            raise TypeError(
                f"{name} holds {shown(entry)}, a {kind_of(entry)}, and an operand has numbers that float64 does not "
                "hold: with such numbers, all entries must be real"
            )
        array: Array = np.empty(len(entries), object)
        array[:] = entries
        arrays.append(array.reshape(x.shape))
    return arrays


def _may_be_wide(x: Array) -> bool:
    """True for objects, longdouble and integers beyond those that float64 holds all."""
    if x.dtype.kind in "iu":
        return not are_exact_in_float64(x)
    return bool(x.dtype.kind == "O" or x.dtype.char == "g")


def _fraction(x: Any) -> Fraction | float | None:
    """The exact value of a real number; its float for Inf and NaN; None for others."""
    if not is_number(x):
        return None
    if type(x).__name__ not in BINARY and hasattr(x, "denominator"):
        return Fraction(int(x.numerator), int(x.denominator))
    try:
        size = float(x)
        if x != x or (x == size and math.isinf(size)):
            return size
        # Ratios of numbers far beyond the range would be huge, but those of longdouble
        is_beyond = math.isinf(size) or (size == 0.0 and x != 0)
        if is_beyond and not isinstance(x, np.longdouble):
            return None
        return Fraction(*ratio_of(x))
    except (OverflowError, ValueError):
        return None


def _is_in_float64(x: Fraction | float | None) -> bool:
    """True for a number that float64 holds."""
    try:
        return not isinstance(x, Fraction) or Fraction(float(x)) == x
    except OverflowError:
        return False
