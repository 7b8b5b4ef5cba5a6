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

from hifigemm.array_like import kind_of, shown
from hifigemm.numerics.bits import Array
from hifigemm.operands import EXPECTED, Prepared

MOST_WORDS = 4
"""Words of an entry at most, those of quad-double arithmetic: 212 bits, or more where
there are gaps of zeros.
"""
_BINARY = "arb", "mpf"
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

    Those are the ones of `gemm` with these transposes. Without `integers` these become
    words as well.

    Raises TypeError: entries that are no numbers, a prepared operand beside several
    words. ValueError: entries that `MOST_WORDS` words do not hold, Inf and NaN beside
    several words.
    """
    if a.dtype.kind != "O" != b.dtype.kind:
        return a, b
    i, j = (_integers(a), _integers(b)) if integers else (None, None)
    if i is not None and j is not None:
        return _in_one_dtype(i, j)
    left, right = _words_of(a, "a"), _words_of(b, "b")
    p, q = len(left), len(right)
    of_a = -1 if len(a.shape) == 1 or trans[0] == "N" else -2
    of_b = -2 if len(b.shape) > 1 and trans[1] == "N" else -1
    # shapes that do not fit are named as they are
    if p * q == 1 or a.shape[of_a] != b.shape[of_b]:
        return left[0], right[0]
    for x, name in ((a, "a"), (b, "b")):
        if isinstance(x, Prepared):
            raise TypeError(
                f"{name} is prepared, and the other operand takes {max(p, q)} words: pass the array itself"
            )
    for words, name in ((left, "a"), (right, "b")):
        unknown = np.argwhere(~np.isfinite(words[0]))
        if len(unknown):
            index = tuple(map(int, unknown[0]))
            raise ValueError(
                f"entry {index} of {name} is {words[0][index]}, and the operands take {p} and {q} words: "
                "Inf and NaN go with single words alone"
            )
    return np.concatenate([x for x in left for _ in range(q)], of_a), np.concatenate(
        right * p, of_b
    )


def one_word(x: Array, name: str) -> Array:
    """An array without objects, errors as of `in_words`; ValueError too: entries that
    are no single numbers.
    """
    word: Array = _words_of(x, name, 1)[0]
    return word


def _integers(x: Any) -> Any:
    """x as integers that NumPy has; None where there are other numbers, or larger
    ones.
    """
    if x.dtype.kind != "O":
        return x if x.dtype.kind in "biu" else None
    entries = x.ravel().tolist()
    if not all(hasattr(y, "__index__") for y in entries):
        return None
    values = [int(y) for y in entries]
    low, high = min(values, default=0), max(values, default=0)
    dtype = (
        np.int64
        if low >= -(2**63) and high < 2**63
        else np.uint64
        if low >= 0 and high < 2**64
        else None
    )
    return None if dtype is None else np.array(values, dtype).reshape(x.shape)


def _in_one_dtype(i: Any, j: Any) -> tuple[Any, Any]:
    """Integers of int64 beside those of uint64 in one of the dtypes that holds both; as
    they are where none does.
    """
    if np.result_type(i.dtype, j.dtype).kind in "biu":
        return i, j
    least = min(int(x.min(initial=0)) for x in (i, j))
    most = max(int(x.max(initial=0)) for x in (i, j))
    dtype = np.uint64 if least >= 0 else np.int64 if most < 2**63 else None
    return (i, j) if dtype is None else (i.astype(dtype), j.astype(dtype))


def _words_of(x: Any, name: str, most: int = MOST_WORDS) -> list[Any]:
    """Arrays that sum to x exactly, x itself where it holds no objects."""
    if x.dtype.kind != "O":
        return [x]
    found = []
    for i, y in enumerate(x.ravel().tolist()):
        parts = (y.real, y.imag) if type(y).__name__ in _COMPLEX else (y,)
        if not all(map(_is_number, parts)):
            raise TypeError(
                f"{name} has dtype object and holds {shown(y)}, a {kind_of(y)}, as {_entry(i, x)}; {EXPECTED}"
            )
        words = [_words(part, most) for part in parts]
        if [] in words:
            what = (
                "no number of float64"
                if most == 1
                else f"no sum of {most} numbers of float64 or fewer"
            )
            raise ValueError(
                f"{_entry(i, x)} of {name} is {shown(y)}, a {kind_of(y)}, and {what}: "
                "round it first, by float or complex"
            )
        found.append(words)
    width = max(map(len, found), default=1)
    count = max((len(words) for entry in found for words in entry), default=1)
    values = np.zeros((count, len(found), width))
    for i, entry in enumerate(found):
        for part, own in enumerate(entry):
            values[: len(own), i, part] = own
    return list(values.view(complex if width == 2 else float).reshape(count, *x.shape))


def _entry(i: int, x: Any) -> str:
    """Entry number i of an array, for a message."""
    return f"entry {tuple(map(int, np.unravel_index(i, x.shape)))}"


def _is_number(x: Any) -> bool:
    """Whether the value of x is known exactly by one of the ways of `_ratio`; those of
    mpmath's constants are not.
    """
    if type(x).__name__ == "constant":
        return False
    return (
        type(x).__name__ in _BINARY
        or hasattr(x, "as_integer_ratio")
        or hasattr(x, "denominator")
    )


def _words(x: Any, most: int) -> list[float]:
    """The words of a real number, its float where that is not finite; none where they
    do not hold it.
    """
    try:
        first = float(x)
        # and no ratio is made of numbers far beyond the range
        if first == 0.0 or not math.isfinite(first):
            return [first] if x == (first or 0) or x != x else []
        words: list[float] = []
        p, q = _ratio(x)
        while p and len(words) < most:
            word = p / q
            words.append(word)
            over, under = word.as_integer_ratio()
            p, q = p * under - over * q, q * under
        return [] if p else words
    except (OverflowError, ValueError):
        # beyond the range of float64, and balls of python-flint with a radius
        return []


def _ratio(x: Any) -> tuple[int, int]:
    """A finite number as a quotient of integers."""
    if type(x).__name__ in _BINARY:
        mantissa, exponent = map(int, x.man_exp() if callable(x.man_exp) else x.man_exp)
        mantissa = -abs(mantissa) if x < 0 else mantissa  # mpmath leaves the sign out
        return mantissa << max(exponent, 0), 1 << max(-exponent, 0)
    p, q = (
        x.as_integer_ratio()
        if hasattr(x, "as_integer_ratio")
        else (x.numerator, x.denominator)
    )
    return int(p), int(q)
