"""Every generator has the property that its name promises."""

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.testing import matrices as gen
from hifigemm.testing.exact import integers_and_exponents
from tests.hard_matrices import ties

every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def exponents(x):
    """Exponent e of each entry, 2**e <= |x| < 2**(e + 1)."""
    return np.frexp(x)[1] - 1


@every_dtype
@pytest.mark.parametrize("family", gen.EXPONENT_FAMILIES)
def test_exponent_families_fill_their_ranges(dtype, family):
    for x, (low, high) in zip(
        gen.exponent_family(np.random.default_rng(12), family, 60, 50, 60, dtype),
        gen.EXPONENT_FAMILIES[family],
        strict=True,
    ):
        assert x.dtype == dtype
        assert set(exponents(x).ravel().tolist()) == set(range(low, high + 1))


@every_dtype
def test_random_significands_use_all_bits(dtype):
    odd, _ = integers_and_exponents(
        gen.exp_rand(np.random.default_rng(13), (50, 40), -3, 3, dtype)
    )
    lengths = exponents(odd.astype(np.float64)) + 1
    assert (lengths == np.finfo(dtype).nmant + 1).mean() == pytest.approx(0.5, abs=0.05)


def test_hilbert_times_its_inverse_is_the_identity_while_integers_are_exact():
    for n in (1, 2, 8, 12):
        inverse = gen.inverse_hilbert(n)
        for i, j in np.ndindex(n, n):
            total = sum(Fraction(1, i + h + 1) * int(inverse[h, j]) for h in range(n))
            assert total == (i == j)
    n = 13
    inverse = gen.inverse_hilbert(n)
    assert any(
        sum(Fraction(1, h + 1) * int(inverse[h, j]) for h in range(n)) != (j == 0)
        for j in range(n)
    )
    np.testing.assert_array_equal(
        gen.hilbert(3),
        [[1, 1 / 2, 1 / 3], [1 / 2, 1 / 3, 1 / 4], [1 / 3, 1 / 4, 1 / 5]],
    )


def test_phi_widens_the_exponents_and_stays_finite():
    rng = np.random.default_rng(14)
    spans = [
        np.std(np.log2(abs(gen.phi_matrix(rng, (200, 200), phi))))
        for phi in (0.1, 1, 4)
    ]
    assert spans[0] < spans[1] < spans[2]
    assert spans[2] == pytest.approx(4 / np.log(2), rel=0.1)
    assert np.isfinite(gen.phi_matrix(rng, (300, 300), 40, np.float32)).all()
    assert np.isfinite(gen.phi_matrix(rng, (300, 300), 400)).all()


def test_drawn_matrices_have_the_distribution_asked():
    rng = np.random.default_rng(15)
    drawn = gen.uniform(rng, (400, 400), 2, 5, np.float32)
    assert drawn.dtype == np.float32
    assert (drawn >= 2).all()
    assert drawn.mean() == pytest.approx(3.5, rel=0.01)


def test_as_complex_makes_independent_parts_and_keeps_the_precision():
    x = gen.as_complex(
        gen.phi_matrix, np.random.default_rng(16), (30, 30), 1.0, dtype=np.float32
    )
    assert x.dtype == np.complex64
    assert (x.real != x.imag).all()
    a, b = gen.as_complex(ties, np.random.default_rng(17), 3, 4, 5)
    assert a.dtype == b.dtype == np.complex128
    assert (a.shape, b.shape) == ((3, 4), (4, 5))


@pytest.mark.parametrize("family", gen.COST_FAMILIES)
def test_families_of_costs_are_finite_and_come_again(family):
    a, b = gen.COST_FAMILIES[family](np.random.default_rng(3), 20)
    x, y = gen.COST_FAMILIES[family](np.random.default_rng(3), 20)
    assert a.shape == b.shape == (20, 20)
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, y)


def test_powers_of_two_along_the_inner_dimension_cancel_or_stay():
    plain = gen.span_pair(np.random.default_rng(4), 30, 0, opposite=True)
    opposite = gen.span_pair(np.random.default_rng(4), 30, 60, opposite=True)
    one_sided = gen.span_pair(np.random.default_rng(4), 30, 60, opposite=False)
    np.testing.assert_array_equal(opposite[0], one_sided[0])
    np.testing.assert_array_equal(plain[1], one_sided[1])
    np.testing.assert_array_equal(
        plain[0][:, :, None] * plain[1][None],
        opposite[0][:, :, None] * opposite[1][None],
    )
    spans = exponents(opposite[0] / plain[0])
    assert (spans == spans[0]).all()
    assert np.ptp(spans[0]) > 40
