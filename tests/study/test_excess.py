import numpy as np
import pytest

from hifigemm.study.reference import componentwise_error, correctly_rounded, excess_error, meets_promise


def test_infinities_and_nan_are_judged():
    a, b = np.array([[2.0**1023, 2.0**1023]]), np.array([[1.0], [1.0]])
    assert meets_promise(np.array([[np.inf]]), a, b, 0.0).all()
    assert componentwise_error(np.array([[np.inf]]), a, b) == 0.0
    for wrong in (-np.inf, np.nan, 1.0):
        assert not meets_promise(np.array([[wrong]]), a, b, 1e-3).any()
    b[1] = 0.99
    assert not meets_promise(np.array([[np.inf]]), a, b, 1e-3).any()
    assert meets_promise(np.array([[np.inf]]), a, b, 1e-2).all()
    assert componentwise_error(np.array([[np.nan]]), a, b) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity_is_right_from_the_midpoint_above_the_largest_number_on(dtype):
    info = np.finfo(dtype)
    b = np.ones((2, 1), dtype)
    for quarters, rounds_to in ((1, info.max), (2, np.inf), (3, np.inf)):
        a = np.array([[info.max, quarters * 2.0 ** (info.maxexp - info.nmant - 3)]], dtype)
        assert correctly_rounded(a, b)[0, 0] == rounds_to
        assert meets_promise(np.array([[np.inf]], dtype), a, b, 0.0)[0, 0] == (rounds_to == np.inf)
        assert (componentwise_error(np.array([[np.inf]], dtype), a, b) == 0) == (rounds_to == np.inf)


def test_last_rounding_is_half_a_subnormal_below_the_normal_range_and_u_above():
    eta, tiny = 2.0**-1074, 2.0**-1022
    # Exact zero of terms 2**-1000: the size is 2**-999, and eta / 2 of the error eta is forgiven.
    a, b = np.array([[2.0**-500, 2.0**-500]]), np.array([[2.0**-500], [-(2.0**-500)]])
    assert excess_error(np.array([[eta]]), a, b) == 2.0**-76
    # Exact 3/2 tiny: u times it is 3/4 eta.
    assert excess_error(np.array([[1.5 * tiny + eta]]), np.array([[1.5]]), np.array([[tiny]])) == 2.0**-54 / 3 * 2
    # Just below tiny: eta / 2 is more than u times the exact value.
    below = np.array([[tiny - eta]])
    assert excess_error(below + 2 * eta, below, np.ones((1, 1))) == pytest.approx(1.5 * 2.0**-52, rel=1e-15)


def test_error_where_the_size_is_zero():
    a, b = np.zeros((1, 3)), np.ones((3, 1))
    assert componentwise_error(np.array([[0.0]]), a, b) == 0.0
    assert componentwise_error(np.array([[5e-324]]), a, b) == np.inf
    assert excess_error(np.array([[5e-324]]), a, b) == np.inf
