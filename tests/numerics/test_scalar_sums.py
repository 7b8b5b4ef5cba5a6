"""alpha T + beta C from a pair of T: what is certain is the exact value rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base.formats import FP32, FP64
from hifigemm.engines import core
from hifigemm.numerics.scalar_sums import rounded_sum_of_pair
from hifigemm.testing.exact import round_integers

SCALARS = (3.0, 0.1, -0.7, 1.5, 2.0**-40 / 3, 2.0**900, -(2.0**-890))
FUNCTIONS = {"plain": rounded_sum_of_pair}
if core.loaded()[0] is not None:
    FUNCTIONS["core"] = core.override(rounded_sum_of_pair)


def nearest(x, fmt=FP64):
    """A fraction with a power of two below rounded once."""
    exponent = np.array([-(x.denominator.bit_length() - 1)])
    dtype = np.float32 if fmt is FP32 else np.float64
    return round_integers(np.array([x.numerator], object), exponent, dtype)[0]


def pairs(rng, family, count):
    """Exact numbers T, and their pairs."""
    exact = []
    for _ in range(count):
        bits = 30 if family == "short" else 200
        integer = int.from_bytes(rng.bytes(bits // 8), "little")
        sign = int(rng.choice([-1, 1]))
        top = {"tiny": -1000, "huge": 990}.get(family, int(rng.integers(-9, 9)))
        exact.append(sign * Fraction(integer) * Fraction(2) ** (top - bits))
    if family == "zeros":
        exact[::2] = [Fraction(0)] * len(exact[::2])
    high = np.array([float(nearest(x)) for x in exact])
    low = np.array(
        [float(nearest(x - Fraction(h))) for x, h in zip(exact, high, strict=True)]
    )
    return exact, high.reshape(1, 1, -1), low.reshape(1, 1, -1)


def addends(rng, family, exact, alpha, beta):
    """C, ordinary or such that the sum cancels."""
    c = rng.standard_normal(len(exact))
    if family == "cancelling":
        c = np.array([float(-Fraction(alpha) * x / Fraction(beta)) for x in exact])
    if family == "zeros":
        c[::2] = 0.0
    return c


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=["float32", "float64"])
@pytest.mark.parametrize("has_addend", [False, True])
@pytest.mark.parametrize(
    "family", ["long", "short", "cancelling", "zeros", "tiny", "huge"]
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_certain_sums_are_the_exact_ones_rounded_once(
    function, family, has_addend, fmt
):
    rng = np.random.default_rng([1, len(family), has_addend])
    num_certain = 0
    num_entries = 0
    for alpha in SCALARS:
        beta = float(rng.choice(SCALARS))
        exact, high, low = pairs(rng, family, 20)
        c = None
        if has_addend:
            c = addends(rng, family, exact, alpha, beta).reshape(high.shape)
        with np.errstate(all="ignore"):
            values, certified = FUNCTIONS[function](
                high, low, alpha, c, beta, fmt, has_all_bits=True
            )
        certified = np.broadcast_to(certified, values.shape)
        for i, x in enumerate(exact):
            total = Fraction(alpha) * x
            if c is not None:
                total += Fraction(beta) * Fraction(float(c[0, 0, i]))
            num_entries += 1
            if certified[0, 0, i]:
                num_certain += 1
                want = nearest(total, fmt)
                assert values[0, 0, i] == want
                assert np.signbit(values[0, 0, i]) == (total < 0)
    if family in ("long", "short") and not has_addend:
        assert num_certain > 0.6 * num_entries


@pytest.mark.parametrize("function", FUNCTIONS)
def test_midpoints_and_sums_that_what_is_lost_decides_are_not_certain(function):
    """A sum on a midpoint of two floats may lie on either side of it."""
    one = np.ones((1, 1, 1))
    zero = np.zeros((1, 1, 1))
    cases = [
        # Midpoints of two floats.
        (one, zero, 1.0, one * (1 + 2.0**-52), 1.0, FP64, True),
        (zero, zero, 1.0, one + 2.0**-24, 1.0, FP32, True),
        # Zero, or less than any float64.
        (zero, zero, 3.0, None, 0.0, FP64, False),
        # Products beyond the range.
        (one * 2.0**1000, zero, 3.0, None, 0.0, FP64, True),
        (one * 2.0**-1000, zero, 3.0, None, 0.0, FP64, True),
        (one * np.inf, zero, 3.0, None, 0.0, FP64, True),
        (one * np.nan, zero, 3.0, None, 0.0, FP64, True),
        (one, zero, 3.0, one * np.inf, 2.0, FP64, True),
    ]
    for high, low, alpha, c, beta, fmt, has_all_bits in cases:
        with np.errstate(all="ignore"):
            _, certified = FUNCTIONS[function](
                high, low, alpha, c, beta, fmt, has_all_bits
            )
        assert not certified.any()
    values, certified = FUNCTIONS[function](zero, zero, -3.0, -zero, 2.0, FP64, True)
    assert certified.all()
    assert values == 0
    assert not np.signbit(values).any()


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_complex_scalars_turn_both_components(function, fmt):
    rng = np.random.default_rng(7)
    alpha, beta = 3 - 0.1j, -0.7 + 2.0**-30 * 1j
    re, re_high, re_low = pairs(rng, "long", 40)
    im, im_high, im_low = pairs(rng, "long", 40)
    c = rng.standard_normal(re_high.shape) + 1j * rng.standard_normal(re_high.shape)
    values, certified = FUNCTIONS[function](
        re_high + 1j * im_high, re_low + 1j * im_low, alpha, c, beta, fmt, True
    )
    certified = np.broadcast_to(certified, values.shape)
    assert certified.mean() > 0.9
    for i, (x, y) in enumerate(zip(re, im, strict=True)):
        z = complex(c[0, 0, i])
        totals = [Fraction(0), Fraction(0)]
        for s, (p, q) in (
            (alpha, (x, y)),
            (beta, (Fraction(z.real), Fraction(z.imag))),
        ):
            totals[0] += Fraction(s.real) * p - Fraction(s.imag) * q
            totals[1] += Fraction(s.real) * q + Fraction(s.imag) * p
        for j, total in enumerate(totals):
            if certified[0, 0, 2 * i + j]:
                assert values[0, 0, 2 * i + j] == nearest(total, fmt)


def test_the_bound_holds_for_the_worst_low_parts():
    """T half a unit of its low part away: the claim is about all T of a pair."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        high = float(rng.standard_normal())
        low = math.ldexp(float(1 + rng.random()), math.frexp(high)[1] - 56)
        alpha, beta = (float(x) for x in rng.choice([3.0, 0.1, -0.7], 2))
        half = Fraction(2) ** (math.frexp(low)[1] - 54)
        arrays = [np.full((1, 1, 1), x) for x in (high, low)]
        # C brings the sum near a midpoint.
        near = Fraction(alpha) * (Fraction(high) + Fraction(low))
        shift = Fraction(2) ** int(rng.integers(-115, -50))
        c = np.full((1, 1, 1), float((shift - near) / Fraction(beta)))
        for fmt in (FP32, FP64):
            values, certified = rounded_sum_of_pair(*arrays, alpha, c, beta, fmt, True)
            if not certified.all():
                continue
            for side in (-1, 1):
                total = Fraction(alpha) * (Fraction(high) + Fraction(low) + side * half)
                total += Fraction(beta) * Fraction(float(c[0, 0, 0]))
                assert values[0, 0, 0] == nearest(total, fmt)
