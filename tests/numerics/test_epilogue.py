"""alpha T + beta C after the product, against exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hifigemm.numerics.epilogue import (
    Epilogue,
    combine,
    frexp,
    has_common_exponent,
    signed_zeros,
)

MODERATE = st.floats(-(2.0**200), 2.0**200).filter(
    lambda x: x == 0 or abs(x) > 2.0**-200
)


@pytest.mark.parametrize("e", [-1074, -1023, -1022, -1, 0, 1, 52, 1023])
def test_powers_of_two_leave_their_sign(e):
    assert frexp(math.ldexp(1.0, e)) == (1.0, e)
    assert frexp(-math.ldexp(1.0, e)) == (-1.0, e)
    assert isinstance(frexp(math.ldexp(1.0, e))[0], float)


@pytest.mark.parametrize(
    "alpha", [3.0, -0.1, 1e300, 5e-324 * 3, 1 + 1j, 0.6 - 0.8j, 1e200 + 1e190j, 2j]
)
def test_other_numbers_leave_one_between_one_and_two(alpha):
    mantissa, e = frexp(alpha)
    assert 1 <= max(abs(mantissa.real), abs(mantissa.imag)) < 2
    for part, whole in ((mantissa.real, alpha.real), (mantissa.imag, alpha.imag)):
        assert Fraction(part) * Fraction(2) ** e == Fraction(whole)


@pytest.mark.parametrize(
    "alpha",
    [0.0, math.inf, -math.inf, math.nan, complex(math.inf, 1.0), 1e300 + 1e-300j],
)
def test_what_has_no_common_exponent_stays(alpha):
    mantissa, e = frexp(alpha)
    assert e == 0
    assert mantissa is alpha


@pytest.mark.parametrize(
    "alpha", [0.0, 3.0, 5e-324, 2j, math.inf, complex(1e300, 1e-3)]
)
def test_components_have_an_exponent_in_common(alpha):
    assert has_common_exponent(alpha)


@pytest.mark.parametrize("alpha", [1e300 + 1e-300j, complex(5e-324, 1.7e308)])
def test_components_are_too_far_apart_for_one_exponent(alpha):
    assert not has_common_exponent(alpha)


@given(MODERATE, MODERATE, MODERATE, MODERATE)
def test_the_result_is_rounded_once_but_for_second_order_terms(t, alpha, c, beta):
    found = float(combine(np.array([t]), alpha, np.array([c]), beta)[0])
    first, second = Fraction(t) * Fraction(alpha), Fraction(c) * Fraction(beta)
    exact = first + second
    u = Fraction(1, 2**53)
    assert abs(Fraction(found) - exact) <= u * (1 + 2 * u) * abs(exact) + 8 * u * u * (
        abs(first) + abs(second)
    )


@given(MODERATE, MODERATE)
def test_without_c_the_product_is_rounded_once(t, alpha):
    assert float(combine(np.array([t]), alpha, None, 0.0)[0]) == t * alpha


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3), (3, 0)])
def test_shape_and_dtype_are_those_of_t(dtype, shape):
    t = np.ones(shape, dtype)
    for alpha in (3.0, *([1 + 1j] if t.dtype.kind == "c" else [])):
        for c in (None, np.ones(shape, dtype), np.ones((), dtype)):
            found = combine(t, alpha, c, 2.0)
            assert (found.shape, found.dtype) == (t.shape, t.dtype)
            np.testing.assert_array_equal(
                found, np.full(shape, alpha + (0 if c is None else 2.0))
            )


def test_overflow_on_the_way_leaves_the_plain_result():
    largest = np.finfo(float).max
    assert combine(np.array([largest]), 2.0, np.array([1.0]), 1.0)[0] == np.inf
    assert combine(np.array([2.0**1000]), 1.0, np.array([3.0]), 1.0)[0] == 2.0**1000
    assert combine(np.array([largest]), 1.0, np.array([-largest]), 1.0)[0] == 0.0
    assert combine(np.array([np.inf]), 3.0, np.array([1.0]), 1.0)[0] == np.inf
    assert np.isnan(combine(np.array([np.inf]), 3.0, np.array([-np.inf]), 1.0)[0])


ANY = st.floats(allow_nan=False, allow_infinity=False)


@given(ANY, ANY, ANY, ANY)
@example(1e308, 10.0, 1e308, -10.0)
@example(1e305, 0.3, float(np.nextafter(1e305, 0)), -0.3)
@example(1.348e308, 2.0, -1.797e308, 0.98)
@example(
    8.98846567431158e307, -1.9999999999999998, 2.63556957398704, 6.820890454213279e307
)
@example(
    -1.7976931348623157e308,
    -1.9999999999999998,
    5.333333333333332,
    -6.741349255733685e307,
)
def test_nothing_overflows_on_the_way_to_a_finite_result(t, alpha, c, beta):
    found = combine(np.array([t]), alpha, np.array([c]), beta)[0]
    first, second = Fraction(t) * Fraction(alpha), Fraction(c) * Fraction(beta)
    exact = first + second
    u, limit = Fraction(1, 2**53), (2 - Fraction(1, 2**53)) * 2**1023
    allowed = (
        u * (1 + 2 * u) * abs(exact)
        + 8 * u * u * (abs(first) + abs(second))
        + 8 * Fraction(2) ** -1074
    )
    assert not np.isnan(found)
    if np.isinf(found):
        assert abs(exact) + allowed >= limit
        assert (found > 0) == (exact > 0)
    else:
        assert abs(Fraction(float(found)) - exact) <= allowed


def products_of_components(found, t, alpha, c, beta):
    """The exact products that each component of alpha t + beta c is the sum of."""
    pairs = {
        found.real: [
            (alpha.real, t.real),
            (-alpha.imag, t.imag),
            (beta.real, c.real),
            (-beta.imag, c.imag),
        ],
        found.imag: [
            (alpha.real, t.imag),
            (alpha.imag, t.real),
            (beta.real, c.imag),
            (beta.imag, c.real),
        ],
    }
    return {
        value: [Fraction(x) * Fraction(y) for x, y in terms]
        for value, terms in pairs.items()
    }


@given(st.tuples(*[ANY] * 8))
@example((0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.3e300, 2.8e-189))
@example((2.0**1000, 0.0, 2.0**-1070, 0.0, 2.0**-1070, 0.0, 2.0**1000, 0.0))
def test_complex_scalars_err_by_one_rounding_in_each_component(parts):
    t, alpha, c, beta = (
        complex(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)
    )
    found = complex(combine(np.array([t]), alpha, np.array([c]), beta)[0])
    u, limit = Fraction(1, 2**53), (2 - Fraction(1, 2**53)) * 2**1023
    for value, products in products_of_components(found, t, alpha, c, beta).items():
        exact = sum(products)
        allowed = (
            u * (1 + 2 * u) * abs(exact)
            + 32 * u * u * sum(map(abs, products))
            + 16 * Fraction(2) ** -1074
        )
        assert not math.isnan(value)
        if math.isinf(value):
            assert abs(exact) + allowed >= limit
        else:
            assert abs(Fraction(value) - exact) <= allowed


def test_scalars_that_are_zero_do_not_read():
    t, c = np.array([np.inf + 0j]), np.array([np.nan + 1j])
    assert combine(t, 1j, None, 0.0)[0] == complex(0.0, np.inf)
    assert combine(t, 1j, c, 0j)[0] == complex(0.0, np.inf)


@pytest.mark.parametrize(
    "shape", [(1, 3, 4), (700, 10, 11), (2, 300, 500), (0, 3, 4), (2, 0, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_stack_is_combined_in_its_memory(shape, dtype):
    rng = np.random.default_rng(1)
    t, c = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    want = combine(t, 0.3, c, 0.7)
    found = Epilogue(0.3, 0.7, c).apply(t)
    assert found is t
    np.testing.assert_array_equal(t, want)


def test_without_a_product_zeros_keep_their_sign():
    c = np.array([[[-0.0, 0.0, 5e-324, 3.0]]])
    found = Epilogue(1.0, 1.0, c).without_product(np.zeros(c.shape))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(c))
    np.testing.assert_array_equal(found, c)
    np.testing.assert_array_equal(
        Epilogue(np.nan, -2.0, c).without_product(np.zeros(c.shape)), -2.0 * c
    )
    assert (
        Epilogue(1.0, 2j, c.astype(complex)).without_product(
            np.zeros(c.shape, complex)
        )[0, 0, 3]
        == 6j
    )


def test_scalars_are_moderate_within_30_binades_of_one():
    least, most = 2.0**-30, 2.0**30
    for x in (0.0, least, -most, 1.0):
        assert Epilogue(x, most).is_moderate
        assert Epilogue(-least, x).is_moderate
    for x in (
        float(np.nextafter(least, 0)),
        -float(np.nextafter(most, math.inf)),
        1 + 0j,
        0j,
        math.inf,
        math.nan,
    ):
        assert not Epilogue(x, 1.0).is_moderate
        assert not Epilogue(1.0, x).is_moderate


def test_a_power_of_two_goes_to_alpha():
    assert Epilogue(3.0, 2.0).times_power(5) == Epilogue(96.0, 2.0)
    moved = Epilogue(1.0 - 3.0j, 2.0).times_power(-1)
    assert moved == Epilogue(0.5 - 1.5j, 2.0)
    assert isinstance(moved.alpha, complex)
    assert isinstance(Epilogue(3.0).times_power(1).alpha, float)


def test_an_idle_epilogue_leaves_the_product_alone():
    c = np.ones((1, 1, 1))
    assert Epilogue() == Epilogue(1.0, 0.0, None)
    assert Epilogue().idle
    assert not Epilogue(2.0).idle
    assert not Epilogue(1.0, 1.0, c).idle
    t = np.array([[[-0.0, np.nan]]])
    assert Epilogue().apply(t).tobytes() == np.array([[[-0.0, np.nan]]]).tobytes()
    assert Epilogue(1.0, 0.0).without_product(np.zeros((1, 1, 2))).tolist() == [
        [[0.0, 0.0]]
    ]


@pytest.mark.parametrize("e", [0, 900, 994, 995, 996, 997, 1023])
@pytest.mark.parametrize("swapped", [False, True])
def test_products_with_a_factor_too_large_to_be_halved_have_their_error(e, swapped):
    """Errors of products with a factor up to the largest float: the sum cancels to what
    they alone hold.
    """
    rng = np.random.default_rng(e)
    for _ in range(20):
        x, y = rng.uniform(1, 2, 2)
        s, t = (
            (math.ldexp(x, e), math.ldexp(y, -60))
            if not swapped
            else (math.ldexp(y, -60), math.ldexp(x, e))
        )
        head = float(Fraction(s) * Fraction(t))
        found = float(combine(np.array([t]), s, np.array([head]), -1.0)[0])
        assert Fraction(found) == Fraction(s) * Fraction(t) - Fraction(head)


def test_entries_of_one_array_go_their_own_ways():
    """The first overflows on its way, the second is rounded as ever, the third is
    infinite.
    """
    t = np.array([1.348e308, 1.0 + 2.0**-52, np.inf])
    c = np.array([-1.797e308, 2.0**-53, 1.0])
    found = combine(t, 2.0, c, 0.98).tolist()
    alone = [float(combine(t[i : i + 1], 2.0, c[i : i + 1], 0.98)[0]) for i in range(3)]
    assert found == alone
    assert np.isfinite(found).tolist() == [True, True, False]


def test_infinite_scalars_give_what_ieee_sums_give():
    def one(*args):
        t, alpha, c, beta = args
        return float(combine(np.array([t]), alpha, np.array([c]), beta)[0])

    assert one(2.0, np.inf, 3.0, 1.0) == np.inf
    assert one(-2.0, np.inf, 1e308, 1.0) == -np.inf
    assert one(0.25, 8.0, 2.0, -np.inf) == -np.inf
    assert all(
        np.isnan(one(*x))
        for x in (
            (0.0, np.inf, 1.0, 1.0),
            (1.0, np.inf, -1.0, np.inf),
            (1.0, np.nan, 1.0, 1.0),
        )
    )


def test_zeros_of_one_product_are_positive_unless_their_sign_is_wanted():
    t = np.array([-0.0, 0.0, -5e-324])
    assert np.signbit(combine(t, 0.25, None, 0.0)).tolist() == [False, False, False]
    assert np.signbit(combine(t, 0.25, None, 0.0, zero=-0.0)).tolist() == [
        True,
        False,
        True,
    ]
    np.testing.assert_array_equal(Epilogue(3.0).apply(np.full((1, 1, 2), 2.0)), 6.0)
    assert combine(np.array([1.0]), 2.0, np.array([np.inf]), 0.0)[0] == 2.0


@pytest.mark.parametrize(
    "beta",
    [
        1.0,
        -3e300,
        3 * 2.0**-990,
        2.0**-1020,
        1.0 - 2.0j,
        complex(3 * 2.0**-999, 2.0**-990),
    ],
)
@pytest.mark.parametrize("e", [0, -1, -30, -900, -1070])
def test_a_power_of_two_goes_to_beta_while_it_is_normal_and_to_c_then(beta, e):
    c = np.array([[[3.0, -5.0 * 2.0**200]]])
    moved = Epilogue(7.0, beta, c).of_c_times_power(e)
    exponent = max(
        math.frexp(beta.real)[1] if beta.real else -2000,
        math.frexp(beta.imag)[1] if beta.imag else -2000,
    )
    kept = max(e, min(-1000 - exponent, 0))
    assert (moved.alpha, type(moved.beta)) == (7.0, type(beta))
    assert moved.beta == beta * 2.0**kept
    assert [Fraction(x) for x in moved.c.ravel().tolist()] == [
        Fraction(x) * Fraction(2) ** (e - kept) for x in c.ravel().tolist()
    ]
    assert Epilogue(7.0).of_c_times_power(e) == Epilogue(7.0)


LARGEST = 2.0**1023 * (2 - 2.0**-52)
LARGE = st.floats(2.0**996, LARGEST) | st.floats(-LARGEST, -(2.0**996))


@given(ANY, st.floats(-(2.0**990), 2.0**990), ANY, LARGE)
@example(1 / 3, 1.0, 0.0, 1e305)
@example(1e-100, 1.5, 0.0, 1e305)
@example(1 / 3, 1.0, 1e-300, 1e305)
@example(-5e-324, 1.0, -5e-324, 2.0**1023)
def test_a_scalar_from_2_to_the_996_on_costs_no_entry_its_digits(t, alpha, c, beta):
    for t_, alpha_, c_, beta_ in ((t, alpha, c, beta), (c, beta, t, alpha)):
        found = float(combine(np.array([t_]), alpha_, np.array([c_]), beta_)[0])
        first, second = Fraction(t_) * Fraction(alpha_), Fraction(c_) * Fraction(beta_)
        exact = first + second
        u, limit = Fraction(1, 2**53), (2 - Fraction(1, 2**53)) * 2**1023
        allowed = (
            u * abs(exact)
            + 4 * u * u * (abs(first) + abs(second))
            + Fraction(2) ** -1074
        )
        if math.isinf(found):
            assert abs(exact) + allowed >= limit
        else:
            assert abs(Fraction(found) - exact) <= allowed


@pytest.mark.parametrize("beta", [1e305, 1e305 + 1j, 1 + 1e305j])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_large_scalar_leaves_entries_where_it_multiplies_nothing(dtype, beta):
    t = np.array([1 / 3, -7.0, 1e-30, 0.0]).astype(dtype)
    if t.dtype.kind == "c":
        t += t.dtype.type(1j) * t[::-1]
    elif isinstance(beta, complex):
        return
    np.testing.assert_array_equal(combine(t, 1.0, np.zeros_like(t), beta), t)
    np.testing.assert_array_equal(combine(np.zeros_like(t), beta, t, 1.0), t)


@given(st.tuples(*[ANY] * 6), LARGE)
@example((1.0, 1.0, 0.0, 1e-10, 0.0, 1.0), 1e305)
def test_a_large_component_costs_no_entry_its_digits(parts, large):
    t, c, beta = (complex(*pair) for pair in zip(parts[::2], parts[1::2], strict=True))
    alpha = complex(large, large)
    found = complex(combine(np.array([t]), alpha, np.array([c]), beta)[0])
    u, limit = Fraction(1, 2**53), (2 - Fraction(1, 2**53)) * 2**1023
    for value, products in products_of_components(found, t, alpha, c, beta).items():
        exact = sum(products)
        allowed = (
            u * abs(exact) + 16 * u * u * sum(map(abs, products)) + Fraction(2) ** -1074
        )
        if math.isinf(value):
            assert abs(exact) + allowed >= limit
        else:
            assert abs(Fraction(value) - exact) <= allowed


@pytest.mark.parametrize("beta", [-2.0, 3.0, 1j, -0.5 - 3j])
def test_zeros_of_a_multiple_are_those_of_all_its_terms(beta):
    parts = np.array([0.0, -0.0, 1.5, 5e-324])
    c = np.array([[complex(x, y) for x in parts] for y in parts])
    components, are_zeros = signed_zeros(c, beta)
    np.testing.assert_array_equal(
        components, combine(c, beta, None, 0.0, -0.0).view(float)
    )
    for at in np.ndindex(c.shape):
        re, im = c[at].real, c[at].imag
        terms_re = [x for s, x in ((beta.real, re), (beta.imag, im)) if s]
        terms_im = [x for s, x in ((beta.real, im), (beta.imag, re)) if s]
        found = are_zeros[at[0], 2 * at[1] : 2 * at[1] + 2]
        assert list(found) == [not any(terms_re), not any(terms_im)]


def test_zeros_of_a_real_multiple_keep_their_sign():
    components, are_zeros = signed_zeros(np.array([[0.0, -0.0, 5e-324]]), -0.1)
    assert are_zeros.tolist() == [[True, True, False]]
    assert np.signbit(components).tolist() == [[True, False, True]]
