"""Bounds of the certificate against exact fractions, where every product errs by as
much as it may, in the worst direction.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.linalg import certificate as module
from hifigemm.linalg.certificate import Residual, accuracy_of_product, prove
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import (
    UNIT,
    deviation,
    exact_matmul,
    flattering_product,
    fractions,
    make_certificates_worst,
    moduli,
    worst_magnitude_product,
    worst_matmul,
)


@pytest.fixture
def worst(monkeypatch):
    """The certificate's products err by as much as they may."""
    make_certificates_worst(monkeypatch)


def pairs(count):
    """Matrices, and approximate inverses that are good, bad, or no inverses."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 7))
        a = rng.standard_normal((n, n))
        inverse = np.linalg.inv(a)
        yield a, inverse
        yield a, inverse * (1.0 + 0.1 * rng.standard_normal((n, n)))
        yield a, rng.standard_normal((n, n))
        yield a, np.concatenate([inverse, 2.0**-53 * rng.uniform(-1, 1, (n, n))], 1)
        powers = rng.integers(-300, 300, n)
        yield np.ldexp(a, powers), np.ldexp(inverse, -powers[:, None])


def assert_no_less(bound, exact):
    """Every entry of a float array is no less than the fraction in its place."""
    for i, j in np.ndindex(bound.shape):
        assert Fraction(float(bound[i, j])) >= exact[i][j], (i, j)


@pytest.mark.parametrize("accuracy", [None, 1e-3, 0.3])
def test_contraction_is_no_less_than_the_exact_product(worst, monkeypatch, accuracy):
    if accuracy is not None:
        monkeypatch.setattr(module, "accuracy_of_product", lambda *_: accuracy)
    flattered = 0
    for a, inverse in pairs(12):
        n = len(a)
        proof = prove(a, inverse)
        exact = deviation(a, inverse)
        v = np.abs(np.random.default_rng(n).standard_normal((n, 2)))
        assert_no_less(proof.contraction(v), exact_matmul(exact, fractions(v)))
        assert_no_less(proof.row_bounds, exact_matmul(exact, [[1]] * n))
        sums = exact_matmul(moduli(fractions(inverse)), [[1]] * inverse.shape[1])
        assert Fraction(proof.inverse_norm) >= max(row[0] for row in sums)
        rows = exact_matmul(fractions(proof.deviations.array), [[1]] * n)
        flattered += rows[0][0] < sum(exact[0])
    assert flattered > 10, "the products were not worst ones"


def test_contraction_holds_where_its_products_underflow():
    # |A| v = 2^-1080 vanishes, and |R| makes it large again
    a = np.array([[2.0**-540, 0.0], [0.0, 2.0**-540]])
    inverse = np.array([[2.0**541, 2.0**539], [0.0, 2.0**540]])
    v = np.array([[2.0**-540], [2.0**-540]])
    proof = prove(a, inverse)
    exact = exact_matmul(deviation(a, inverse), fractions(v))
    assert_no_less(proof.contraction(v), exact)


def test_contraction_counts_what_underflows_behind_large_entries(worst, monkeypatch):
    # |A| v is eta / 2 and vanishes; |R| of 2^1000 makes it count. D is I, R A is not
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 0.3)
    monkeypatch.setattr(module, "magnitude_product", lambda a, v: np.abs(a) @ v)
    a = np.array([[2.0**-1000]])
    inverse = np.array([[1.25 * 2.0**1000]])
    v = np.array([[2.0**-75]])
    proof = prove(a, inverse)
    assert proof.deviations.array[0, 0] == 0.0
    exact = exact_matmul(deviation(a, inverse), fractions(v))
    assert_no_less(proof.contraction(v), exact)


def test_moduli_of_all_words_are_counted():
    words = np.array([[3.0, 5.0, -(2.0**-60), 2.0**-60]])
    a = np.array([[1.0]])
    proof = prove(a, words)
    sums = proof.inverse_magnitudes.times(np.ones((1, 1)))
    assert Fraction(float(sums[0, 0])) >= 8 + 2 * Fraction(2) ** -60


def test_complex_products_may_err_by_the_accuracy_in_both_components(monkeypatch):
    # re and im of D may each be off by r |R||A|: the modulus by the square root of 2
    accuracy = 0.125
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: accuracy)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: np.eye(1) + 0.0j)
    proof = prove(np.array([[1.0 + 0.0j]]), np.array([[1.0 + 0.0j]]))
    assert proof.norm**2 >= 2.0 * accuracy**2


def test_norm_below_one_is_no_proof_where_the_product_was_flattered(worst, monkeypatch):
    # D may be the identity although A is singular: what r allows has to be counted
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 0.3)
    a = np.array([[1.0, 1.0], [1.0, 1.0]])
    inverse = np.array([[2.0, -1.0], [-1.0, 2.0]])
    assert not prove(a, inverse).is_proof


def test_singular_matrices_are_never_proven():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        left = rng.integers(-9, 10, (n, n - 1))
        right = rng.integers(-9, 10, (n - 1, n))
        a = (left @ right).astype(float)
        inverse = np.linalg.pinv(a) + rng.standard_normal((n, n)) * 10.0 ** -(seed % 17)
        assert not prove(a, inverse).is_proof


@pytest.mark.parametrize("words", [1, 2])
def test_products_that_are_known_to_the_last_digit_count_what_they_lose(words):
    # fl(R A - I) of the core, and of the BLAS: G is no more than they say
    for a, inverse in pairs(12):
        n = len(a)
        if inverse.shape[1] != words * n:
            continue
        proof = prove(a, inverse)
        exact = deviation(a, inverse)
        v = np.abs(np.random.default_rng(n).standard_normal((n, 5)))
        assert_no_less(proof.contraction(v), exact_matmul(exact, fractions(v)))


def test_a_native_product_is_taken_for_no_better_than_its_roundings(monkeypatch):
    # The BLAS may err by (n - 1) u |R||A| as it likes: here towards the identity
    def flattering(a, b):
        if b.shape[0] == b.shape[1]:
            return flattering_product(a, b, (len(b) - 1) * UNIT)
        return worst_matmul(a, b)

    monkeypatch.setattr(module, "matmul", flattering)
    monkeypatch.setattr(module, "magnitude_product", worst_magnitude_product)
    flattered = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((5, 5))
        inverse = np.linalg.inv(a) * (1.0 + 2.0**-53 * rng.uniform(-1, 1, (5, 5)))
        proof = prove(a, inverse)
        exact = deviation(a, inverse)
        assert_no_less(proof.row_bounds, exact_matmul(exact, [[1]] * 5))
        flattered += not proof.deviations.array.any()
    assert flattered > 10, "the products were not worst ones"


def test_native_products_that_underflow_count():
    # Nothing is left of R A, whose entries are 8 times 0.99 2^-1075
    n = 8
    a = np.full((n, n), 2.0**-540)
    inverse = np.full((n, n), 0.99 * 2.0**-535)
    proof = prove(a, inverse)
    assert (proof.deviations.array == np.eye(n)).all()
    v = np.zeros((n, 1))
    v[0] = 2.0**1000
    exact = exact_matmul(deviation(a, inverse), fractions(v))
    assert exact[1][0] > 0
    assert_no_less(proof.contraction(v), exact)


@pytest.mark.parametrize("accurate", [False, True])
def test_error_of_update_bounds_the_worst_exact_residual(worst, accurate):
    for a, inverse in pairs(8):
        proof = prove(a, inverse)
        n = len(a)
        if inverse.shape[1] > n and not accurate:
            continue
        rng = np.random.default_rng(n)
        q = rng.standard_normal((n, 1)) * 10.0 ** rng.integers(-9, 9, (n, 1))
        words = [q, q * 2.0**-54] if accurate else [q]
        d, error = proof.update(Residual(words))
        assert np.isfinite(d).all()

        # q* with the error that is allowed, in the direction that each row dislikes
        rows = fractions(inverse)
        total = [[sum(row[i::n]) for i in range(n)] for row in rows]
        values = [sum(Fraction(float(w[i, 0])) for w in words) for i in range(n)]
        share = UNIT**2 if accurate else UNIT
        for i in range(n):
            middle = sum(r * v for r, v in zip(total[i], values))
            spread = sum(
                abs(r) * (share * abs(v) + Fraction(LEAST) / 2)
                for r, v in zip(total[i], values)
            )
            gap = abs(middle - Fraction(float(d[i, 0])))
            assert Fraction(float(error[i, 0])) >= gap + spread


def test_update_counts_the_roundings_of_the_residual():
    # R q is zero, R q* is not
    a = np.eye(2)
    inverse = np.array([[1.0, -1.0], [2.0**40, -(2.0**40)]])
    proof = prove(a, inverse)
    _, error = proof.update(Residual([np.ones((2, 1))]))
    assert Fraction(float(error[0, 0])) >= 2 * UNIT
    assert Fraction(float(error[1, 0])) >= 2 * UNIT * 2**40


def test_update_counts_the_roundings_of_its_product(monkeypatch):
    # fl(R q) may be off by (n - 1) u |R||q| beside what q is off by
    n = 50
    inverse = np.ones((n, n))
    proof = prove(np.eye(n), inverse)
    monkeypatch.setattr(module, "matmul", worst_matmul)
    monkeypatch.setattr(module, "magnitude_product", worst_magnitude_product)
    d, error = proof.update(Residual([np.ones((n, 1))]))
    gap = n * (1 + UNIT) - Fraction(float(d[0, 0]))
    assert gap > (n - 2) * n * UNIT
    assert Fraction(float(error[0, 0])) >= gap


def test_update_counts_both_roundings_where_gamma_has_no_room(monkeypatch):
    # d is off by n u |R||q| = 4 u, and q by u |q|: R q* - d is 6 u
    proof = prove(np.eye(2), np.ones((2, 2)))
    monkeypatch.setattr(module, "gamma", lambda terms: terms * 2.0**-53)
    monkeypatch.setattr(module, "matmul", lambda *_: np.full((2, 1), 2.0 - 2.0**-51))
    _, error = proof.update(Residual([np.ones((2, 1))]))
    assert Fraction(float(error[0, 0])) >= 6 * UNIT


def test_complex_updates_count_the_roundings_of_both_components(monkeypatch):
    # re and im of (1 + i)^2 are sums of two products, each off by 2 u (1 + 1)
    proof = prove(np.eye(1) + 0j, np.array([[1.0 + 1.0j]]))
    monkeypatch.setattr(module, "gamma", lambda terms: terms * 2.0**-53)
    _, error = proof.update(Residual([np.array([[1.0 + 1.0j]])]))
    roundings_of_q = 2 * UNIT
    assert (Fraction(float(error[0, 0])) - roundings_of_q) ** 2 >= 2 * (4 * UNIT) ** 2


def test_accurate_update_counts_the_roundings_of_two_words(monkeypatch):
    # R q is exact, and zero; q* is off by u^2 |q|
    monkeypatch.setattr(module, "rung", lambda _: 0.0)
    inverse = np.array([[1.0, -1.0], [2.0**50, -(2.0**50)]])
    proof = prove(np.eye(2), inverse)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: np.zeros((2, 1)))
    q = Residual([np.ones((2, 1)), np.zeros((2, 1))])
    _, error = proof._accurate_update(q)
    assert Fraction(float(error[1, 0])) >= 2 * UNIT**2 * 2**50


def test_accurate_update_counts_the_accuracy_of_complex_products(monkeypatch):
    # re and im may each be off by r |R||q|, the modulus by the square root of 2
    proof = prove(np.eye(1) + 0j, np.eye(1) + 0j)
    monkeypatch.setattr(module, "rung", lambda _: 0.125)
    _, error = proof._accurate_update(Residual([np.ones((1, 1)) + 0j] * 2))
    assert error[0, 0] ** 2 >= 2 * (0.125 * 2) ** 2


def test_accurate_update_counts_what_underflow_takes_from_the_residual():
    inverse = np.array([[2.0**900]])
    proof = prove(np.array([[2.0**-900]]), inverse)
    _, error = proof._accurate_update(Residual([np.zeros((1, 1))] * 2))
    assert Fraction(float(error[0, 0])) >= Fraction(2) ** 900 * Fraction(LEAST) / 2


def test_accurate_update_counts_the_roundings_of_the_residual():
    # R q is known to r = 2^-20 / condition, and q of one word to u
    inverse = np.array([[1.0, -1.0], [2.0**50, -(2.0**50)]])
    proof = prove(np.array([[2.0**50, 0.0], [0.0, 2.0**50]]), inverse)
    _, error = proof._accurate_update(Residual([np.ones((2, 1))]))
    assert Fraction(float(error[1, 0])) >= 2 * UNIT * 2**50


def test_accurate_update_counts_the_rounding_of_its_product(monkeypatch):
    # d is one number of float64, u |d| from R q, and q so small that nothing else counts
    proof = prove(np.eye(1), np.eye(1))
    q = Residual([np.ones((1, 1)), np.full((1, 1), 2.0**-54)])
    monkeypatch.setattr(module, "rung", lambda _: 0.0)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: np.ones((1, 1)))
    _, error = proof._accurate_update(q)
    assert Fraction(float(error[0, 0])) >= Fraction(2) ** -54


def test_update_counts_what_underflow_takes_from_the_residual():
    inverse = np.array([[2.0**900]])
    proof = prove(np.array([[2.0**-900]]), inverse)
    _, error = proof.update(Residual([np.zeros((1, 1))]))
    assert Fraction(float(error[0, 0])) >= Fraction(2) ** 900 * Fraction(LEAST) / 2


@pytest.mark.parametrize("size", [0.1, 0.5, 0.9, 0.99])
def test_radius_holds_where_r_is_a_poor_inverse(worst, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(1, 6))
        # A = I - G is no small change of the identity, and R = I; all of G's entries
        # have one sign, so that errors add up
        g = rng.uniform(0.0, 1.0, (n, n))
        g *= size / g.sum(axis=1).max()
        a = np.eye(n) - g
        proof = prove(a, np.eye(n))
        assert proof.is_proof
        x = np.zeros((n, 1))
        b = rng.uniform(0.0, 1.0, (n, 1))
        d, error = proof.update(Residual([b]))
        y = np.abs(d) + error
        solution = solved(fractions(a), fractions(b))
        sizes = [[abs(value)] for value in solution]
        assert_no_less(proof.radius(y), sizes)
        assert Fraction(float(proof.largest_error(y)[0, 0])) >= max(sizes)[0]
        assert x.shape == y.shape


def solved(a, b):
    """The exact solution of a diagonally dominant system in fractions."""
    n = len(a)
    rows = [row + side for row, side in zip(a, b)]
    for k in range(n):
        for i in range(n):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


@pytest.mark.parametrize("is_complex", [False, True])
def test_native_products_are_taken_where_they_are_good_enough(is_complex):
    # More than their worst case, k u / (1 - k u) with 2 k for complex operands
    terms = 2 * 100 if is_complex else 100
    worst_case = terms * 2.0**-53 / (1.0 - terms * 2.0**-53)
    accuracy = accuracy_of_product(1e3, 100, is_complex)
    assert worst_case <= accuracy < 1.02 * worst_case
    # 2^-54 is 0.055 / 1e15, and of 1, 1/4, 1/16, ... the next one is 2^-56
    assert accuracy_of_product(1e15, 100, is_complex) == 2.0**-56


def test_complex_certificates_bound_moduli():
    rng = np.random.default_rng(3)
    for _ in range(20):
        n = int(rng.integers(1, 5))
        a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
        inverse = np.linalg.inv(a) * (1.0 + 0.1 * rng.standard_normal((n, n)))
        proof = prove(a, inverse)
        re = exact_matmul(fractions(inverse.real), fractions(a.real))
        im = exact_matmul(fractions(inverse.imag), fractions(a.imag))
        cross = exact_matmul(fractions(inverse.real), fractions(a.imag))
        other = exact_matmul(fractions(inverse.imag), fractions(a.real))
        for i in range(n):
            e = np.zeros((n, 1))
            for j in range(n):
                e[:] = 0.0
                e[j] = 1.0
                bound = Fraction(float(proof.contraction(e)[i, 0]))
                real = int(i == j) - re[i][j] + im[i][j]
                imag = cross[i][j] + other[i][j]
                assert bound**2 >= real**2 + imag**2


def test_digits_have_a_price_where_a_product_is_no_native_one():
    assert accuracy_of_product(1e6, 100, False) == module.worst_case(100, False)
    assert accuracy_of_product(1e6, 100, False, False) == 2.0**-26
