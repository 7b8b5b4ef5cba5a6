"""Integers with a further term, and pairs and enclosures, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base.formats import FP32, FP64
from hifigemm.numerics.integer_sums import rounded_integers
from hifigemm.numerics.limbs import LIMB_BITS
from hifigemm.numerics.rounded_sums import Addend

DTYPES = {FP64: np.float64, FP32: np.float32}


def limbs_of(values, count=12):
    """Signed limbs of Python integers: int64 (count, N)."""
    mask = (1 << LIMB_BITS) - 1
    rows = [[(v >> LIMB_BITS * j) & mask for v in values] for j in range(count - 1)]
    rows.append([v >> LIMB_BITS * (count - 1) for v in values])
    return np.array(rows, np.int64)


def nearest(exact, fmt):
    """A fraction rounded once to nearest even; a negative one may become -0."""
    size = abs(exact)
    if size == 0:
        return DTYPES[fmt](0)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= size < Fraction(2) ** top
    quantum = max(top - fmt.t + 1, fmt.min_exponent)
    whole = round(size / Fraction(2) ** quantum) * Fraction(2) ** quantum
    value = float("inf") if whole >= Fraction(2) ** (fmt.emax + 1) else float(whole)
    return DTYPES[fmt](-value if exact < 0 else value)


def expected(exact, fmt, result):
    """Both arrays of a result, from fractions."""
    dtype = DTYPES[fmt]
    first = [nearest(x, fmt) for x in exact]
    second = []
    for i, x in enumerate(exact):
        largest = np.finfo(dtype).max
        near = np.clip(first[i], -largest, largest)
        rest = x - Fraction(float(near))
        if result == "pair":
            is_finite = np.isfinite(first[i])
            second.append(nearest(rest, fmt) if is_finite else dtype(0))
        else:
            first[i] = np.nextafter(near, dtype(-np.inf)) if rest < 0 else near
            second.append(np.nextafter(near, dtype(np.inf)) if rest > 0 else near)
    return np.array(first, dtype), np.array(second, dtype)


def hard_integers(rng, fmt, count):
    """Integers of many lengths: ties, what lies next to ties, sums of far bits."""
    found = [0, 1, -1, 3, (1 << 340) - 1, -(1 << 340)]
    while len(found) < count:
        length = int(rng.integers(1, 340))
        kept = int(rng.integers(1, 1 << min(fmt.t, length, 62), dtype=np.int64))
        v = kept << max(length - fmt.t, 0)
        half = 1 << max(length - fmt.t, 1) >> 1
        v += half * int(rng.integers(0, 2))
        v += int(rng.integers(-1, 2)) << int(rng.integers(0, length))
        if rng.integers(0, 3) == 0:
            v += int.from_bytes(rng.bytes(length // 8 + 1), "little") >> 3
        found.append(v * int(rng.choice([-1, 1])))
    return found


def hard_addends(rng, exact, fmt):
    """Numbers of a format that cancel sums, lie anywhere, or are not finite."""
    dtype = DTYPES[fmt]
    info = np.finfo(dtype)
    found = []
    for x in exact:
        kind = rng.integers(0, 8)
        top = 0 if x == 0 else x.numerator.bit_length() - x.denominator.bit_length()
        with np.errstate(all="ignore"):
            if kind == 0:
                c = -nearest(x, fmt)
            elif kind == 1:
                c = np.nextafter(-nearest(x, fmt), dtype(rng.choice([-1, 1]) * np.inf))
            elif kind in (2, 3):
                near = top + int(rng.integers(-200, 200))
                c = dtype(np.ldexp(rng.integers(-9, 10), near))
            elif kind == 4:
                near = top + int(rng.integers(-70, 70))
                c = dtype(np.ldexp(rng.standard_normal(), near))
            elif kind == 5:
                power = int(rng.integers(info.minexp - info.nmant, info.maxexp))
                c = dtype(np.ldexp(rng.standard_normal(), power))
            elif kind == 6:
                c = dtype(rng.choice([0.0, -0.0, info.smallest_subnormal, -info.tiny]))
            else:
                c = dtype(rng.choice([np.inf, -np.inf, np.nan, info.max, -info.max]))
        found.append(c)
    return np.array(found, dtype)


def same_bits(x, y):
    word = np.int64 if x.dtype == np.float64 else np.int32
    return (x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y))


def check(found, want, about):
    assert found.dtype == want.dtype
    wrong = ~same_bits(found, want)
    assert not wrong.any(), [
        (about[i], found[i], want[i]) for i in np.flatnonzero(wrong)[:3]
    ]


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=str)
@pytest.mark.parametrize("result", ["array", "pair", "enclosure"])
def test_every_result_is_that_of_fractions(fmt, result):
    rng = np.random.default_rng(1)
    values = hard_integers(rng, fmt, 400)
    exponents = rng.choice(
        [-1400, -1100, -1080, -340, -200, -170, -20, 0, 60, 700, 1000, 1500], 400
    )
    exact = [Fraction(v) * Fraction(2) ** int(e) for v, e in zip(values, exponents)]
    found = rounded_integers(
        limbs_of(values), exponents.astype(np.int64), fmt, result=result
    )
    if result == "array":
        assert found[1] is None
        want = np.array([nearest(x, fmt) for x in exact], DTYPES[fmt])
        check(found[0], want, values)
        return
    with np.errstate(over="ignore"):
        parts = expected(exact, fmt, result)
    for x, y in zip(found, parts, strict=True):
        check(x, y, values)


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=str)
@pytest.mark.parametrize(("sign", "power"), [(1, 0), (-1, 0), (1, -300), (-1, 700)])
@pytest.mark.parametrize("sign_of_v", [1, -1])
def test_sums_with_an_addend_are_rounded_once(fmt, sign, power, sign_of_v):
    rng = np.random.default_rng(2)
    values = hard_integers(rng, fmt, 500)
    exponents = rng.choice([-1300, -1100, -400, -150, -60, 0, 60, 700], 500)
    units = [Fraction(2) ** int(e) for e in exponents]
    exact = [sign_of_v * v * unit for v, unit in zip(values, units)]
    factor = sign * Fraction(2) ** power
    c = hard_addends(rng, [x / factor for x in exact], fmt)
    found, _ = rounded_integers(
        limbs_of(values),
        exponents.astype(np.int64),
        fmt,
        addend=Addend(c, power, sign),
        sign=sign_of_v,
    )
    want = []
    with np.errstate(all="ignore"):
        for x, y in zip(exact, c):
            if np.isfinite(y):
                want.append(nearest(x + factor * Fraction(float(y)), fmt))
            else:
                want.append(nearest(x, fmt) + y * sign)
    check(found, np.array(want, DTYPES[fmt]), list(zip(values, c)))
