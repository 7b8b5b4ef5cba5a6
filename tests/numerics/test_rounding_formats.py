"""Conversions to short formats against exact rational arithmetic and against NumPy's
own half precision.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.base.formats import BF16, FP8_E5M2, FP16, FP32, FP64, TF32, Format
from hifigemm.numerics.rounding_formats import (
    ROUNDINGS,
    is_representable,
    largest_finite,
    odd_between,
    result_dtype,
    round_pair,
    round_to_format,
)
from tests.exact_values import rounded_once, rounded_to_format

SHORT = Format("short", 3, -2, 3)
WIDE = Format("wide", 40, -300, 300)
FORMATS = (FP16, BF16, TF32, FP8_E5M2, FP32, SHORT, WIDE)


def oracle(x: float, fmt: Format, mode: str) -> float:
    """One rounding of a finite x in exact arithmetic."""
    magnitude = Fraction(abs(x))
    exponent = max(math.frexp(x)[1] - 1, fmt.emin)
    unit = Fraction(2) ** (exponent - fmt.t + 1)
    scaled = magnitude / unit
    integer = {
        "nearest": round(scaled),
        "zero": math.floor(scaled),
        "nearest-away": math.floor(scaled + Fraction(1, 2)),
    }
    value = integer[mode] * unit
    top = Fraction(largest_finite(fmt))
    if value > top:
        value = top if mode == "zero" else math.inf
    return math.copysign(float(value), x)


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


def hard_values(fmt: Format) -> list[float]:
    """Values around ties, ends of binades, the subnormal threshold and overflow."""
    unit = 2.0 ** (1 - fmt.t)
    places = [
        fmt.emin - fmt.t - 1,
        fmt.emin - fmt.t,
        fmt.emin - 1,
        fmt.emin,
        0,
        fmt.emax,
    ]
    significands = [1.0, 1 + unit / 2, 1 + unit, 1 + 1.5 * unit, 2 - unit, 2 - unit / 2]
    centres = [math.ldexp(s, e) for e in places for s in significands]
    centres += [
        largest_finite(fmt),
        2.0 ** (fmt.emax + 1),
        0.0,
        5e-324,
        1e308,
        math.inf,
    ]
    near = [
        f(x, y)
        for x in centres
        for y in (0.0, math.inf)
        for f in (math.nextafter, lambda x, _: x)
    ]
    return [s * x for x in near for s in (1.0, -1.0)]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_hard_values_round_as_exact_arithmetic(fmt: Format, mode: str) -> None:
    x = np.array([v for v in hard_values(fmt) if math.isfinite(v)])
    expected = np.array([oracle(v, fmt, mode) for v in x], result_dtype(fmt))
    assert same_bits(round_to_format(x, fmt, mode), expected)


@settings(max_examples=300, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(FORMATS),
    st.sampled_from(list(ROUNDINGS)),
)
def test_any_float64_rounds_as_exact_arithmetic(
    x: float, fmt: Format, mode: str
) -> None:
    assert same_bits(
        round_to_format(np.array([x]), fmt, mode),
        np.array([oracle(x, fmt, mode)], result_dtype(fmt)),
    )


def test_fp16_nearest_equals_numpy() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, size=200_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate(
        [
            bits.view(np.float32),
            (rng.standard_normal(100_000) * 2.0**-14).astype(np.float32),
        ]
    )
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    assert same_bits(round_to_format(x, FP16), expected)


def test_fp32_nearest_equals_numpy() -> None:
    bits = np.random.default_rng(1).integers(0, 2**64, size=100_000, dtype=np.uint64)
    x = np.concatenate(
        [bits.view(np.float64), (bits >> np.uint64(12)).astype(np.float64) * 2.0**-195]
    )
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32)
    assert same_bits(round_to_format(x, FP32), expected)


def test_tf32_away_equals_the_bit_trick_on_ordinary_numbers() -> None:
    bits = (
        np.random.default_rng(2)
        .integers(0, 2**32, size=200_000, dtype=np.uint64)
        .astype(np.uint32)
    )
    x = bits.view(np.float32)
    keep = np.abs(x) < np.float32(3e38)
    expected = ((bits[keep] + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(
        np.float32
    )
    assert same_bits(round_to_format(x[keep], TF32, "nearest-away"), expected)


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_topmost_and_special_values_survive(mode: str) -> None:
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    x = np.concatenate(
        [nans, np.array([np.inf, -np.inf, np.finfo(np.float32).max], np.float32)]
    )
    y = round_to_format(x, TF32, mode)
    assert np.isnan(y[:3]).all()
    assert np.array_equal(y[3:5], [np.inf, -np.inf])
    assert y[5] == (largest_finite(TF32) if mode == "zero" else np.inf)


def test_saturation_can_be_chosen() -> None:
    x = np.array([1e6, -1e6, np.inf])
    assert np.array_equal(
        round_to_format(x, FP16, "zero", saturate=False), [np.inf, -np.inf, np.inf]
    )
    assert np.array_equal(
        round_to_format(x, FP16, "nearest", saturate=True), [65504, -65504, np.inf]
    )


def test_shape_strides_and_dtype() -> None:
    x = np.random.default_rng(3).standard_normal((4, 6, 8))
    strided = x[::2, ::-1, 1::3]
    assert same_bits(
        round_to_format(strided, BF16), round_to_format(strided.copy(), BF16)
    )
    assert round_to_format(x, WIDE).dtype == np.float64
    assert round_to_format(np.float32(1.5), FP16).shape == ()
    assert round_to_format(np.empty((0, 3)), FP16).shape == (0, 3)
    assert same_bits(round_to_format(x, FP64), x)


def test_chunks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(4).standard_normal(1000)
    whole = round_to_format(x, FP16)
    monkeypatch.setattr("hifigemm.numerics.rounding_formats._CHUNK", 7)
    assert same_bits(round_to_format(x, FP16), whole)


def test_representable_means_unchanged_by_rounding() -> None:
    assert is_representable(
        np.array([0.0, -0.0, 2.0**-24, 65504.0, np.inf, np.nan]), FP16
    )
    assert not is_representable(np.array([1.0, 2.0**-25]), FP16)
    assert not is_representable(np.array([65536.0]), FP16)


def test_unknown_mode_and_too_wide_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="'up'"):
        round_to_format(np.ones(1), FP16, "up")
    with pytest.raises(ValueError, match="-1022"):
        round_to_format(np.ones(1), Format("odd", 50, -1000, 1023))


@pytest.mark.parametrize(
    "fmt",
    [
        Format("x", 24, -126, 127),
        Format("x", 25, -127, 127),
        Format("x", 20, -130, 127),
    ],
)
def test_float32_is_taken_where_it_holds_every_value(fmt: Format) -> None:
    holds = fmt.t <= 24 and fmt.min_exponent >= -149
    assert result_dtype(fmt) is (np.float32 if holds else np.float64)
    for wider in (
        Format("x", 25, -120, 127),
        Format("x", 24, -127, 127),
        Format("x", 11, -126, 128),
    ):
        assert result_dtype(wider) is np.float64


@pytest.mark.parametrize(
    ("last", "beyond"),
    [
        (Format("x", 2, -2, 3), Format("x", 1, -2, 3)),
        (Format("x", 53, -900, 900), Format("x", 54, -900, 900)),
        (Format("x", 11, -1012, 900), Format("x", 11, -1013, 900)),
        (Format("x", 11, -900, 1023), Format("x", 11, -900, 1024)),
    ],
)
def test_formats_end_where_float64_does(last: Format, beyond: Format) -> None:
    for mode in ROUNDINGS:
        for x in (
            1.0,
            1.0 + 2.0**-52,
            2.0**last.emax * 1.9,
            2.0**last.min_exponent * 1.5,
        ):
            found = float(round_to_format(np.array([x, -x]), last, mode)[1])
            assert found == -oracle(x, last, mode)
    with pytest.raises(ValueError, match="wider than"):
        round_to_format(np.ones(1), beyond)


@given(
    st.integers(-(2**60), 2**60),
    st.integers(-1, 1),
    st.integers(30, 140),
    st.integers(-250, 100),
    st.sampled_from([0, -300]),
)
def test_a_pair_is_rounded_to_float32_as_its_exact_sum(n, side, depth, e, shift):
    # Values at, and just beside, numbers of few bits and midpoints between them.
    exact = Fraction(n) * Fraction(2) ** e + side * Fraction(2) ** (e - depth)
    high = exact.numerator / exact.denominator
    left = exact - Fraction(high)
    low = left.numerator / left.denominator
    pair = np.array([high * 2.0**-shift]), np.array([low * 2.0**-shift])
    with np.errstate(all="ignore"):
        found = round_pair(*pair, shift)
    assert found.tolist() == [rounded_once(exact, np.float32)]


def test_a_pair_beyond_float32_is_infinite_and_complex_pairs_have_two_parts():
    high = np.array([[1e300 - 1j, complex(-np.inf, 2.0**-160)]])
    low = np.zeros((1, 2), complex)
    with np.errstate(all="ignore"):
        found = round_pair(high, low)
    assert found.tolist() == [[np.inf, -1.0, -np.inf, 0.0]]


@given(
    st.integers(-(2**26), 2**26),
    st.integers(-1, 1),
    st.integers(30, 1200),
    st.integers(-180, 130),
    st.sampled_from([FP16, BF16, FP32]),
)
def test_numbers_between_neighbours_are_rounded_as_their_exact_value(
    n, side, depth, e, fmt
):
    # Values at, and just beside, numbers of few bits and midpoints between them.
    exact = Fraction(n) * Fraction(2) ** e + side * Fraction(2) ** (e - depth)
    nearest = rounded_once(exact, np.float64)
    lower = (
        nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)
    )
    upper = nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
    odd = odd_between(np.array([lower]), np.array([upper]))
    found = round_to_format(odd, fmt)
    want = rounded_to_format(exact, fmt.t, fmt.emin, fmt.emax)
    assert found.tolist() == [want]
    assert math.copysign(1.0, found[0]) == math.copysign(1.0, want)


def test_odd_numbers_of_special_and_complex_ends():
    largest = np.finfo(float).max
    lower = np.array([[largest, np.inf, np.nan, 0.0, -5e-324, 0.0]]).view(complex)
    upper = np.array([[np.inf, np.inf, np.nan, 5e-324, -0.0, 0.0]]).view(complex)
    odd = odd_between(lower, upper)
    assert odd.shape == (1, 3)
    np.testing.assert_array_equal(
        odd.view(float), [[largest, np.inf, np.nan, 5e-324, -5e-324, 0.0]]
    )
