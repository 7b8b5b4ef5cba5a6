"""Operands of other arithmetic, of mpmath, gmpy2, python-flint and Python's own, as
exact sums of float64 words.

Idea
    A = A_1 + ... + A_p and B = B_1 + ... + B_q, each A_i and B_j of float64 or
    complex128. All products of words are one product, AB = [A_1 ... A_1 A_2 ...] [B_1;
    ...; B_q; B_1; ...], each A_i q times, to which the ordinary promise applies.
    Integers that int64 or uint64 holds become a matrix of integers beside another one
    of integers.
Exact when
    Each word is the float64 nearest to what the words before it leave, and after
    `MOST_WORDS` nothing is left. The magnitudes of the words of an entry sum to less
    than 1 + 2**-51 times its own, so that |A||B| of the words is less than 1 + 2**-49
    times that of the entries.
Cost
    p q times the product of one word each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hifigemm.libraries.array_like import kind_of, shown
from hifigemm.numerics.bits import Array
from hifigemm.operands.operands import EXPECTED_NUMBERS, Prepared

MOST_WORDS = 4
"""Words of an entry at most, those of quad-double arithmetic: 212 bits, or more where
there are gaps of zeros.
"""
BINARY = "arb", "mpf"
"""Classes whose numbers are a mantissa times a power of two."""
_COMPLEX = "acb", "complex", "complex64", "complex128", "mpc"


def in_words(
    a: Array | Prepared,
    b: Array | Prepared,
    trans: tuple[Any, Any] = ("N", "N"),
    *,
    integers: bool = True,
) -> tuple[Array | Prepared, Array | Prepared]:
    """Both operands without objects; where these take several words, with copies along
    the axes that are summed.

    `trans` are the transposes of `gemm`, on which these axes depend. Without `integers`
    integers become words as well.

    Raises TypeError: entries that are no numbers, a prepared operand beside several
    words. ValueError: entries that `MOST_WORDS` words do not hold, Inf and NaN beside
    several words.
    """
    if a.dtype.kind != "O" != b.dtype.kind:
        return a, b

    # Integers that NumPy has a dtype for stay integers.
    if integers:
        i = _integers(a)
        j = _integers(b)
        if i is not None and j is not None:
            return i, j

    left = _words_of(a, "a")
    right = _words_of(b, "b")
    p = len(left)
    q = len(right)
    axis_of_a = -1 if len(a.shape) == 1 or trans[0] == "N" else -2
    axis_of_b = -2 if len(b.shape) > 1 and trans[1] == "N" else -1
    # Shapes that do not fit stay as they are, so that the error names them.
    if p * q == 1 or a.shape[axis_of_a] != b.shape[axis_of_b]:
        return left[0], right[0]

    # Several words are for arrays of finite numbers.
    for x, name in ((a, "a"), (b, "b")):
        if isinstance(x, Prepared):
            raise TypeError(
                f"{name} is prepared, and the other operand takes {max(p, q)} words: pass the array itself"
            )
    for words, name in ((left, "a"), (right, "b")):
        nonfinite = np.argwhere(~np.isfinite(words[0]))
        if len(nonfinite):
            index = tuple(map(int, nonfinite[0]))
            raise ValueError(
                f"entry {index} of {name} is {words[0][index]}, and the operands take {p} and {q} words: "
                "Inf and NaN are allowed only in operands of one word"
            )

    # Each word of A stands beside each word of B: A_1 q times, then A_2, and so on.
    of_a = [word for word in left for _ in range(q)]
    of_b = right * p
    return np.concatenate(of_a, axis_of_a), np.concatenate(of_b, axis_of_b)


def one_word(x: Array, name: str) -> Array:
    """x without objects, each entry one word.

    Raises TypeError: entries that are no numbers. ValueError: entries that float64 does
    not hold.
    """
    word: Array = _words_of(x, name, 1)[0]
    return word


def _integers(x: Any) -> Any:
    """x as an array of int64 or uint64; None for numbers that are no integers or lie
    beyond these dtypes.
    """
    if x.dtype.kind != "O":
        return x if x.dtype.kind in "biu" else None
    entries = x.ravel().tolist()
    if not all(map(_is_integer, entries)):
        return None
    values = [int(y) for y in entries]
    low = min(values, default=0)
    high = max(values, default=0)
    if low >= -(2**63) and high < 2**63:
        return np.array(values, np.int64).reshape(x.shape)
    if low >= 0 and high < 2**64:
        return np.array(values, np.uint64).reshape(x.shape)
    return None


def are_integers_of_64_bits(x: Array) -> bool:
    """True for integers and bools; objects among them if int64 or uint64 holds all."""
    return _integers(x) is not None


def are_exact_in_float64(x: Array) -> bool:
    """True for integers of up to 2**53 in magnitude, all of which float64 holds."""
    return max(-int(x.min(initial=0)), int(x.max(initial=0))) <= 2**53


def why_no_integers(x: Array | Prepared, name: str) -> str:
    """Why the entries of an array of objects are no integers of int64 or uint64, by the
    first that is none; empty if they are, and for other arrays.
    """
    if isinstance(x, Prepared) or x.dtype.kind != "O":
        return "" if x.dtype.kind in "biu" else f"{name} has dtype {x.dtype}"
    beyond_int64 = ""
    has_negative = False
    for i, y in enumerate(x.ravel().tolist()):
        what = f"{_entry(i, x)} of {name} is {shown(y)}"
        if not _is_integer(y):
            return f"{what}, a {kind_of(y)}, no integer"
        value = int(y)
        if not -(2**63) <= value < 2**64:
            return f"{what}: integers beyond int64/uint64 are not supported as operands"
        has_negative |= value < 0
        if value >= 2**63 and not beyond_int64:
            beyond_int64 = what
    if has_negative and beyond_int64:
        return (
            f"{beyond_int64}, beyond int64, beside negative entries: no dtype of NumPy "
            "holds both"
        )
    return ""


def _is_integer(x: object) -> bool:
    """True for integers of any class."""
    return hasattr(x, "__index__")


def in_one_dtype(i: Any, j: Any) -> tuple[Any, Any]:
    """Integers of int64 and integers of uint64, both in one dtype if it holds them."""
    if np.result_type(i.dtype, j.dtype).kind in "biu":
        return i, j
    low = min(int(x.min(initial=0)) for x in (i, j))
    high = max(int(x.max(initial=0)) for x in (i, j))
    if low >= 0:
        return i.astype(np.uint64), j.astype(np.uint64)
    if high < 2**63:
        return i.astype(np.int64), j.astype(np.int64)
    return i, j


def _words_of(x: Any, name: str, max_words: int = MOST_WORDS) -> list[Any]:
    """Arrays that sum to x exactly, x itself where it holds no objects."""
    if x.dtype.kind != "O":
        return [x]
    integers = _integers(x)
    if integers is not None and are_exact_in_float64(integers):
        return [integers.astype(np.float64)]

    # The words of the components of each entry: of re and im for complex numbers.
    entries = []
    for i, y in enumerate(x.ravel().tolist()):
        components = (y.real, y.imag) if type(y).__name__ in _COMPLEX else (y,)
        if not all(map(is_number, components)):
            raise TypeError(
                f"{name} has dtype object and holds {shown(y)}, a {kind_of(y)}, as {_entry(i, x)}; {EXPECTED_NUMBERS}"
            )
        words = [_words(component, max_words) for component in components]
        if [] in words:
            lack = f"no sum of {max_words} numbers of float64 or fewer"
            if max_words == 1:
                lack = "no number of float64"
            raise ValueError(
                f"{_entry(i, x)} of {name} is {shown(y)}, a {kind_of(y)}, and {lack}: "
                "round it first, by float or complex"
            )
        entries.append(words)

    # One array for each word; entries with fewer words are filled up with zeros.
    num_components = max(map(len, entries), default=1)
    count = max((len(words) for entry in entries for words in entry), default=1)
    values = np.zeros((count, len(entries), num_components))
    for i, entry in enumerate(entries):
        for j, component_words in enumerate(entry):
            values[: len(component_words), i, j] = component_words
    dtype = complex if num_components == 2 else float
    return list(values.view(dtype).reshape(count, *x.shape))


def _entry(i: int, x: Any) -> str:
    """Entry number i of an array, for a message."""
    return f"entry {tuple(map(int, np.unravel_index(i, x.shape)))}"


def is_number(x: object) -> bool:
    """True if `ratio_of` knows the exact value of x.

    Constants of mpmath, such as pi, have none: they are computed to any precision.
    """
    if type(x).__name__ == "constant":
        return False
    return (
        type(x).__name__ in BINARY
        or hasattr(x, "as_integer_ratio")
        or hasattr(x, "denominator")
    )


def _words(x: Any, max_words: int) -> list[float]:
    """The words of a real number, its float where that is Inf or NaN; an empty list
    where words do not hold it.
    """
    try:
        first = float(x)
        # Numbers far beyond the range end here, whose ratios would be huge.
        if first == 0.0 or not math.isfinite(first):
            is_same = x == (first or 0) or x != x
            return [first] if is_same else []

        # p / q is what the words so far leave.
        words: list[float] = []
        p, q = ratio_of(x)
        while p and len(words) < max_words:
            word = p / q
            words.append(word)
            numerator, denominator = word.as_integer_ratio()
            p = p * denominator - numerator * q
            q = q * denominator
        return [] if p else words
    except (OverflowError, ValueError):
        # Numbers beyond the range of float64, and balls of python-flint with a radius.
        return []


def ratio_of(x: Any) -> tuple[int, int]:
    """A finite number as a quotient of integers."""
    if type(x).__name__ in BINARY:
        # A method of python-flint, an attribute of mpmath, which leaves the sign out.
        man_exp = x.man_exp() if callable(x.man_exp) else x.man_exp
        mantissa, exponent = map(int, man_exp)
        if x < 0:
            mantissa = -abs(mantissa)
        return mantissa << max(exponent, 0), 1 << max(-exponent, 0)
    if hasattr(x, "as_integer_ratio"):
        p, q = x.as_integer_ratio()
    else:
        p, q = x.numerator, x.denominator
    return int(p), int(q)
