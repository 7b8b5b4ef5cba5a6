"""One rounding against exact rationals, and the promise of `certain`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hifigemm.base.formats import FP32, FP64
from hifigemm.numerics.rounding import (
    round_in_chunks,
    round_limbs,
    round_sum,
    values_in_chunks,
)
from hifigemm.testing.exact import round_integers

FORMATS = {"fp32": (FP32, np.float32), "fp64": (FP64, np.float64)}


def limbs_of(values, count):
    rows = [[(v >> (32 * j)) & (2**32 - 1) for v in values] for j in range(count - 1)]
    return np.array([*rows, [v >> (32 * (count - 1)) for v in values]], np.int64)


def rounded(value, exponent, fmt, err=None, count=None):
    count = count or abs(value).bit_length() // 32 + 1
    return round_limbs(limbs_of([value], count), np.array([exponent]), fmt, err)


def oracle(value: Fraction, fmt) -> float:
    """Nearest, ties to even, in rationals: another way than limbs and bits."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = math.floor(
        math.log2(abs(value.numerator)) - math.log2(value.denominator)
    )
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - fmt.t + 1, fmt.min_exponent)
    units = round(magnitude / quantum)  # half to even
    result = units * quantum
    signed = math.inf if result >= Fraction(2) ** (fmt.emax + 1) else float(result)
    return -signed if value < 0 else signed


INTEGERS = st.integers(-(2**200), 2**200) | st.builds(
    lambda top, shift, low, sign: sign * ((top << shift) + low),
    st.integers(0, 2**55),
    st.integers(0, 140),
    st.integers(-3, 3),
    st.sampled_from([1, -1]),
)


@pytest.mark.parametrize("name", FORMATS)
@given(value=INTEGERS, exponent=st.integers(-1300, 1100))
@example(value=2**54 + 1, exponent=0)
@example(value=2**53 + 1, exponent=-1127)
@example(value=-1, exponent=-1075)
@example(value=1, exponent=-150)
@example(value=3, exponent=-1075)
@example(value=2**54 - 1, exponent=970)
@example(value=2**25 - 1, exponent=103)
def test_rounding_is_that_of_exact_rationals(name, value, exponent):
    fmt, dtype = FORMATS[name]
    found = rounded(value, exponent, fmt)
    expected = oracle(value * Fraction(2) ** exponent, fmt)
    assert found.values.dtype == dtype
    assert found.certain.all()
    assert float(found.values[0]) == expected
    assert math.copysign(1.0, found.values[0]) == (-1.0 if value < 0 else 1.0)
    assert found.magnitude[0] == abs(value).bit_length() - 1


@pytest.mark.parametrize("name", FORMATS)
@given(
    value=INTEGERS,
    exponent=st.integers(-1300, 1100),
    err=st.integers(-1, 150),
    share=st.floats(-1, 1),
    odd=st.booleans(),
)
def test_certain_means_that_no_perturbation_within_the_bound_rounds_differently(
    name, value, exponent, err, share, odd
):
    fmt, _ = FORMATS[name]
    found = rounded(value, exponent, fmt, err)
    if not found.certain[0]:
        return
    bound = Fraction(2) ** err
    inside = bound - Fraction(2) ** (err - 80) if odd else bound * Fraction(share)
    for moved in (value + inside, value - inside):
        assert oracle(moved * Fraction(2) ** exponent, fmt) == float(found.values[0])


@pytest.mark.parametrize("name", FORMATS)
@given(
    st.integers(0, 2**20),
    st.integers(-40, 60),
    st.integers(0, 100),
    st.integers(-1200, 900),
    st.sampled_from([1, -1]),
)
def test_certain_near_midpoints(name, top, offset, err, exponent, sign):
    # Integers close to midpoints of two floats, to powers of two, and to half the
    # smallest subnormal.
    fmt, _ = FORMATS[name]
    for base in ((2 ** (fmt.t - 1) + top) * 2 + 1, 2**fmt.t, 1):
        value = sign * ((base << 70) + (offset << max(err - 2, 0)))
        found = rounded(value, exponent, fmt, err)
        if found.certain[0]:
            almost = Fraction(2) ** err - Fraction(1, 2**60)
            for moved in (value + almost, value - almost):
                assert oracle(moved * Fraction(2) ** exponent, fmt) == float(
                    found.values[0]
                )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FORMATS)
def test_certain_ends_where_the_error_reaches_the_midpoint(name, sign):
    """V has 64 + 40 bits; the distance is seen to 2**8, the 32nd bit below the first
    64, and to 53 bits of itself.
    """
    fmt, _ = FORMATS[name]
    # bits that are rounded away from 64: more for subnormal results
    for drop in (64 - fmt.t, 65 - fmt.t, 50, 62, 63):
        unit, exponent = 2 ** (drop + 40), fmt.min_exponent - drop - 40
        cases = []
        for err in range(-1, drop + 42):
            reach = 2 ** max(err, 8)
            further = reach + max(2**8, reach >> 52)
            for cell in {0, 1, 2 ** (63 - drop) - 1}:
                edge = 2**103 + cell * unit
                for way in (1, -1):
                    if reach <= unit // 2:
                        cases.append((edge + unit // 2 + way * reach, err, False))
                    if further <= unit // 2:
                        cases.append((edge + unit // 2 + way * further, err, True))
                cases.append((edge, err, 2**err < unit // 2))
        values, errs, expected = zip(
            *[case for case in cases if case[0] < 2**104], strict=True
        )
        limbs = limbs_of([sign * v for v in values], 4)
        found = round_limbs(limbs, np.full(len(values), exponent), fmt, np.array(errs))
        assert found.certain.tolist() == list(expected)
        for value, err, certain, result in zip(
            values, errs, expected, found.values, strict=True
        ):
            if certain and err >= 8:
                for moved in (value - 2**err, value + 2**err):
                    assert oracle(sign * moved * Fraction(2) ** exponent, fmt) == float(
                        result
                    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FORMATS)
def test_certain_below_the_smallest_subnormal_number(name, sign):
    """From a quarter of it on nothing is promised; below, what cannot change its sign
    rounds to a zero of this sign.
    """
    fmt, _ = FORMATS[name]
    for drop in range(64, 70):
        for value in (2**63, 2**63 + 2**62, 2**64 - 1):
            for err in (-1, 10, 59, 61, 62, 63, 64, 70, 1000):
                found = rounded(sign * value, fmt.min_exponent - drop, fmt, err)
                assert found.certain[0] == (drop >= 66 and err < 63)
                if found.certain[0]:
                    assert math.copysign(1.0, found.values[0]) == sign
                    assert found.values[0] == 0


@pytest.mark.parametrize("name", FORMATS)
def test_certain_is_not_given_up_where_the_error_is_far_below_the_last_bit(name):
    fmt, _ = FORMATS[name]
    rng = np.random.default_rng(7)
    values = [int(v) << 60 | int(w) for v, w in rng.integers(2**59, 2**60, (500, 2))]
    found = round_limbs(
        limbs_of(values, 4), np.zeros(500, np.int64), fmt, 119 - fmt.t - 12
    )
    # One of 2**11 places within a unit is too near to a midpoint, on average.
    assert np.count_nonzero(found.certain) >= 490


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bit_far_below_a_tie_decides(dtype):
    fmt = FP32 if dtype == np.float32 else FP64
    values = []
    for length in range(fmt.t + 1, 180):
        tie = (2 ** (fmt.t - 1) * 2 + 1) << (length - fmt.t - 1)
        values += [tie, tie + 2 ** (length - fmt.t)]
        values += [
            tie + way * 2**j
            for j in range(max(length - fmt.t - 3, 0))
            for way in (1, -1)
            if j % 32 in (0, 31)
        ]
    found = round_limbs(limbs_of(values, 6), np.zeros(len(values), np.int64), fmt)
    np.testing.assert_array_equal(
        found.values,
        round_integers(np.array(values, object), np.zeros(len(values), int), dtype),
    )
    assert found.magnitude.tolist() == [v.bit_length() - 1 for v in values]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("top", [0, 1, 2**20])
def test_limbs_may_carry_more_than_their_bits(sign, top):
    """Carries change the limbs above, and the sign where the last limb is zero."""
    limbs = (
        sign * np.random.default_rng(9).integers(0, 2**62, (5, 400))
        >> np.arange(0, 60, 12)[:, None]
    )
    for last in (sign * top, -sign * top):
        limbs[-1] = last
        values = [
            sum(int(x) << (32 * j) for j, x in enumerate(column)) for column in limbs.T
        ]
        found = round_limbs(limbs.copy(), np.full(400, -50), FP64)
        expected = round_integers(
            np.array(values, object), np.full(400, -50), np.float64
        )
        np.testing.assert_array_equal(found.values, expected)


def test_zero_is_positive_and_uncertain_unless_exact():
    for fmt in (FP32, FP64):
        found = rounded(0, 5, fmt)
        assert found.values[0] == 0
        assert not np.signbit(found.values[0])
        assert found.magnitude[0] == -1
        for err in (-1, 0, 40):
            for exponent in range(fmt.min_exponent - 70, fmt.min_exponent + 70):
                assert not rounded(0, exponent, fmt, err).certain[0]


def test_leading_zero_limbs_do_not_matter():
    for value in (1, -1, 2**64 - 1, -(2**70) + 3):
        for count in (4, 7, 12):
            assert rounded(value, -3, FP64, count=count).values[0] == oracle(
                Fraction(value, 8), FP64
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_entries_at_once_equal_the_oracle(dtype):
    rng = np.random.default_rng(8)
    fmt = FP32 if dtype == np.float32 else FP64
    values = [
        int(v) * int(w) << int(s)
        for v, w, s in zip(
            *rng.integers(-(2**62), 2**62, (2, 3000)), rng.integers(0, 60, 3000)
        )
    ]
    values += [v >> 70 for v in values]
    exponent = rng.integers(-1250, 1000, len(values))
    found = round_limbs(limbs_of(values, 7), exponent, fmt).values
    np.testing.assert_array_equal(
        found, round_integers(np.array(values, object), exponent, dtype)
    )


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("count", [0, 1, 131])
def test_chunks_assemble_in_order(size, count):
    values, parts = np.arange(count, dtype=np.int64), []

    def limbs_of(part):
        parts.append((part.start, part.stop))
        return values[part][None].copy()

    exponent = np.zeros((count, 1), np.int64)
    done = round_in_chunks(limbs_of, exponent, FP64, size)
    np.testing.assert_array_equal(done.values[:, 0], values)
    np.testing.assert_array_equal(
        done.magnitude[:, 0], [int(v).bit_length() - 1 for v in values]
    )
    assert done.certain.all()
    assert parts == [(i, min(i + size, count)) for i in range(0, max(count, 1), size)]
    for errors in (1, exponent + 1, exponent[:1] + 1):
        found = round_in_chunks(limbs_of, exponent, FP64, size, errors)
        np.testing.assert_array_equal(
            found.certain[:, 0],
            round_limbs(values[None].copy(), exponent[:, 0], FP64, 1).certain,
        )


def terms_of(value):
    """Three terms of 38 bits of an integer below 2**113, the highest first."""
    places = (76, 38, 0)
    parts = [(abs(value) >> place) & (2**38 - 1) for place in places]
    sign = -1 if value < 0 else 1
    return [sign * math.ldexp(x, place) for x, place in zip(parts, places, strict=True)]


@pytest.mark.parametrize("name", FORMATS)
@given(
    st.lists(st.integers(-(2**112), 2**112), min_size=1, max_size=5),
    st.integers(-400, 100),
)
@example([0], 0)
@example([-1], -200)  # below the smallest float32
@example([2**112 - 1], 100)
def test_a_sum_of_floats_is_rounded_like_its_limbs(name, values, exponent):
    fmt, dtype = FORMATS[name]
    terms = np.array([terms_of(value) for value in values]).T
    exponents = np.full(len(values), exponent)
    found = round_sum(terms, exponents, fmt, 113)
    if found is not None:
        with np.errstate(over="ignore"):
            want = round_limbs(limbs_of(values, 5), exponents, fmt).values
        assert found.dtype == dtype
        assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_a_sum_is_certain_for_ordinary_integers_and_not_for_a_tie(name):
    fmt, _ = FORMATS[name]
    rng = np.random.default_rng(3)
    values = [int(x) * 2**50 + int(y) for x, y in rng.integers(0, 2**53, (1000, 2))]
    terms = np.array([terms_of(value) for value in values]).T
    exponents = np.zeros(len(values), np.int64)
    assert round_sum(terms, exponents, fmt, 113) is not None
    tie = 2**100 + 2 ** (100 - fmt.t)
    assert round_sum(np.array([terms_of(tie)]).T, exponents[:1], fmt, 113) is None
    assert round_sum(terms, exponents - 1022, fmt, 113) is None
    assert round_sum(terms, exponents + 910, fmt, 113) is None


def test_limbs_serve_the_chunks_that_are_not_certain():
    values = [5, 2**100 + 2**47, -7, 2**100 + 3 * 2**47, 2**90]
    terms = np.array([terms_of(value) for value in values]).T
    limbs = limbs_of(values, 5)
    for size in (1, 2, 100):
        found = values_in_chunks(
            lambda entries: terms[:, entries],
            lambda entries: limbs[:, entries].copy(),
            np.zeros((1, 5, 1), np.int64),
            FP64,
            size,
            113,
        )
        assert found.ravel().tolist() == [float(value) for value in values]
