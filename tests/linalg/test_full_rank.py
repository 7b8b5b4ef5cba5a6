"""Each bound of the proof of full rank against exact fractions, with products that are as
bad as they may be.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import full_rank as module
from hifigemm.linalg.full_rank import (
    FullRank,
    norms,
    prove,
    proven_full_rank,
)
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import (
    exact_matmul,
    fractions,
    worst_matmul,
)

pytest.importorskip("flint")

from tests.linalg.exact_least_squares import (
    exact_solve,
    nearly_dependent,
    transposed,
)

UNIT = Fraction(1, 2**53)


def root(x):
    """A fraction just below the root of another one."""
    return Fraction(isqrt(x.numerator * 2**400 // x.denominator), 2**200)


def norm_of(rows):
    """A fraction just below the norm of Frobenius."""
    return root(sum(x * x for row in rows for x in row))


def difference(a, b):
    return [[x - y for x, y in zip(*rows)] for rows in zip(a, b)]


def unit_matrix(n):
    return [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]


def sum_of_words(words):
    """The sum of matrices in fractions."""
    total = fractions(words[0])
    for word in words[1:]:
        total = [[x + y for x, y in zip(*rows)] for rows in zip(total, fractions(word))]
    return total


def exact_bound(b, q, words):
    """5 |W| + 2 |E|, rounded down."""
    image = exact_matmul(fractions(b), sum_of_words(words))
    gap = difference(image, fractions(q))
    gram = exact_matmul(transposed(fractions(q)), fractions(q))
    deviation = difference(unit_matrix(len(gram)), gram)
    return 5 * norm_of(gap) + 2 * norm_of(deviation)


def factors(rng, m, n, share=1.0):
    """B with Q and V that are off by a share."""
    b = rng.standard_normal((m, n))
    q, u = np.linalg.qr(b)
    v = np.linalg.inv(u)
    return b, share * q, v


# The norm


@pytest.mark.parametrize("share", [1.0, 0.97, 1.03])
def test_norm_is_no_less_than_that_of_the_theorem(share):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        b, q, v = factors(rng, int(rng.integers(4, 9)), 3, share)
        words = [v * (1.0 + 1e-3 * rng.standard_normal(v.shape))]
        for low in ([], [1e-3 * rng.standard_normal(v.shape)]):
            proof = prove(b, q, np.hstack(words + low))
            assert Fraction(proof.norm) >= exact_bound(b, q, words + low)
            assert proof.norm <= 2.0 * float(exact_bound(b, q, words + low)) + 1e-11


def flattering(target):
    """A product, off by all that r allows, towards a target."""

    def product(left, right, r):
        exact = left @ right
        allowed = 0.99 * r * (np.abs(left) @ np.abs(right))
        return exact + np.clip(target - exact, -allowed, allowed)

    return product


@pytest.mark.parametrize("accuracy", [1e-6, 1e-3, 1e-2])
def test_norm_counts_the_accuracy_of_the_product(monkeypatch, accuracy):
    monkeypatch.setattr(core, "sums", lambda *_: None)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        b, q, v = factors(rng, 6, 3)
        v = v * (1.0 + accuracy * rng.uniform(-0.5, 0.5, v.shape))
        monkeypatch.setattr(module, "accuracy_of_product", lambda *_: accuracy)
        monkeypatch.setattr(module, "product_of_numbers", flattering(q))
        proof = prove(b, q, v)
        assert Fraction(proof.norm) >= exact_bound(b, q, [v])


def test_norm_counts_the_errors_of_native_products(monkeypatch):
    # Q^H Q comes out too small, so that a Q that is too long seems to be of length 1
    m = 40
    q = np.full((m, 1), (1.0 + 20.0 * 2.0**-53) / m**0.5)
    one = np.ones((1, 1))
    monkeypatch.setattr(module, "matmul", worst_matmul)
    proof = prove(q, q, one)
    exact = exact_bound(q, q, [one])
    assert exact >= 60 * UNIT
    assert Fraction(proof.norm) >= exact
    assert proof.norm <= 1e-12


def test_norm_counts_the_last_rounding_of_the_product(monkeypatch):
    # D = 1 stands for B V = 1 + u, Q is 1
    one = np.ones((1, 1))
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 0.0)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: one)
    monkeypatch.setattr(module, "worst_case", lambda *_: 0.0)
    monkeypatch.setattr(core, "sums", lambda *_: None)
    monkeypatch.setattr(module, "matmul", np.matmul)
    assert Fraction(prove(one, one, one).norm) >= 5 * UNIT


@pytest.mark.parametrize("power", [-1070, -600, 0, 500, 1010])
def test_norms_are_no_less_than_the_exact_ones(power):
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 300):
        x = np.ldexp(rng.uniform(0.0, 1.0, (size, 3)) ** 8, power)
        x[:, 1] = np.ldexp(1.0, power)
        for column, norm in zip(transposed(fractions(x)), norms(x)[0]):
            assert Fraction(float(norm)) >= norm_of([column])
        assert norms(x)[0, 1] <= 1.01 * size**0.5 * x[0, 1] + 4 * LEAST


def test_norms_hold_where_their_sums_come_out_too_small():
    class Short(np.ndarray):
        """Sums that lost all that their roundings may take."""

        def sum(self, *args, **kwargs):
            factor = 1.0 - len(self) * 2.0**-53
            return factor * np.asarray(self).sum(*args, **kwargs)

    x = np.ones((4**6, 1))
    assert norms(x.view(Short))[0, 0] >= 64.0


# Updates


def augmented(b):
    """M in fractions."""
    m, n = b.shape
    rows = [row + entries for row, entries in zip(unit_matrix(m), fractions(b))]
    return rows + [row + [Fraction(0)] * n for row in transposed(fractions(b))]


def assert_bounds_hold(proof, s, x, f, h, residuals=None):
    """The exact solution is within the bounds of s + ds and x + dx."""
    b = proof.b
    m = len(b)
    q1, q2 = residuals or exactly_rounded_residuals(b, s, x, f, h, len(proof.words))
    update = proof.update(q1, q2)
    exact = exact_solve(augmented(b), fractions(np.concatenate([f, h])))
    bound = Fraction(float(update.bound[0, 0]))
    for i in range(m):
        found = Fraction(float(s[i, 0])) + Fraction(float(update.ds[i, 0]))
        assert abs(exact[i][0] - found) <= bound
    for i, error in enumerate(proof.error_of_x(update.bound)[:, 0]):
        found = sum(Fraction(float(word[i, 0])) for word in [x, *update.dx])
        assert abs(exact[m + i][0] - found) <= Fraction(float(error))
    return update


def exactly_rounded_residuals(b, s, x, f, h, count):
    """The residuals of s and x as `update` takes them, from fractions."""
    both = exact_matmul(augmented(b), fractions(np.concatenate([s, x])))
    sides = fractions(np.concatenate([f, h]))
    gaps = [side[0] - value[0] for side, value in zip(sides, both)]
    m = len(b)
    q1 = np.array([[float(gap)] for gap in gaps[:m]])
    words = []
    remainder = gaps[m:]
    for _ in range(count):
        word = [float(gap) for gap in remainder]
        words.append(np.array(word).reshape(-1, 1))
        remainder = [gap - Fraction(v) for gap, v in zip(remainder, word)]
    return q1, words


@pytest.mark.parametrize("condition", [1e1, 1e6, 1e20])
def test_update_bounds_the_errors_of_s_and_x(monkeypatch, condition):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 4))
        m = 2 * n + int(rng.integers(0, 3))
        b = nearly_dependent(rng, m, n, condition)
        b = b / np.abs(b).max()
        proof, _ = proven_full_rank(b)
        f, h = rng.standard_normal((m, 1)), rng.standard_normal((n, 1))
        ds, dx = proof.start(f, h)
        with monkeypatch.context() as worst:
            worst.setattr(module, "matmul", worst_matmul)
            assert_bounds_hold(proof, ds, dx[0], f, h)
            assert_bounds_hold(proof, 0.0 * f, 0.0 * h, f, h)


@pytest.mark.parametrize("norm", [0.0, 0.5, 0.9, 0.9999])
def test_bound_is_that_of_the_theorem(monkeypatch, norm):
    monkeypatch.setattr(module, "gamma", lambda _: 0.0)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        b, q, v = factors(rng, 6, 3)
        proof = replace(prove(b, q, v), norm=norm)
        q1, q2 = rng.standard_normal((6, 1)), rng.standard_normal((3, 1))
        image = exact_matmul(transposed(fractions(v)), fractions(q2))
        sizes = norm_of(fractions(q1)) + norm_of(image)
        share = Fraction(9, 4) * Fraction(norm) / (1 - Fraction(norm))
        bound = proof.update(q1, [q2]).bound[0, 0]
        assert Fraction(bound) >= share * sizes
        assert bound <= 2.0 * float(share * sizes) + 1e-12


@pytest.mark.parametrize("share", [0.8, 0.9, 0.95, 1.05, 1.15])
@pytest.mark.parametrize("side", [1.0, -1.0, 0.0])
def test_update_counts_what_q_and_v_lack(share, side):
    # a is up to 0.9: nearly the first error remains
    for seed in range(6):
        rng = np.random.default_rng(seed)
        m, n = int(rng.integers(1, 5)), 1
        b, q, v = factors(rng, m, n, share)
        f = rng.standard_normal((m, 1))
        h = side * np.abs(b).sum(axis=0, keepdims=True)
        for scale in (share, 1.0):
            proof = prove(b, q, scale * v)
            if proof.is_proof:
                assert_bounds_hold(proof, 0.0 * f, 0.0 * h, f, h)


def test_update_counts_the_roundings_of_its_products(monkeypatch):
    # B = Q, V = 1 and a = 0: what is left are 40 terms that come out too small
    m = 40
    b = np.full((m, 1), m**-0.5)
    one = np.ones((1, 1))
    proof = prove(b, b, one)
    proof = replace(proof, norm=0.0)
    monkeypatch.setattr(module, "matmul", worst_matmul)
    monkeypatch.setattr(module, "gamma", lambda terms: terms * 2.0**-53)
    update = proof.update(b, [0.0 * one])
    exact = sum(Fraction(v) ** 2 for v in b[:, 0].tolist())
    assert abs(exact - Fraction(float(update.dx[0][0, 0]))) > 30 * UNIT
    bound = Fraction(float(proof.error_of_x(update.bound)[0, 0]))
    assert bound >= abs(exact - Fraction(float(update.dx[0][0, 0])))


def test_image_counts_the_roundings_of_a_native_product(monkeypatch):
    # Terms of V^H q2 are a million times as large as what is left of them
    n = 20
    rng = np.random.default_rng(0)
    v = rng.standard_normal((n, n)) * 1e6
    q2 = np.linalg.inv(v).T @ rng.standard_normal((n, 1))
    proof = prove(np.linalg.inv(v), np.eye(n), v)
    monkeypatch.setattr(module, "matmul", worst_matmul)
    monkeypatch.setattr(module, "gamma", lambda terms: (terms - 1) * 2.0**-53)
    p = proof._image([q2])
    errors = proof._error_of_image([q2], p)
    sides = [[x + UNIT * abs(x) for x in row] for row in fractions(q2)]
    for side in (fractions(q2), sides):
        exact = exact_matmul(transposed(fractions(v)), side)
        for found, value, error in zip(p[:, 0], exact, errors[:, 0]):
            assert abs(value[0] - Fraction(found)) <= Fraction(error)

    # All of the roundings of q2 may add up
    sizes = exact_matmul(fractions(np.abs(v).T), fractions(np.abs(q2)))
    for size, error in zip(sizes, errors[:, 0]):
        assert Fraction(error) >= n * UNIT * size[0]


def test_image_in_two_words_counts_what_they_leave(monkeypatch):
    # V^H q2 = 0 from entries 1 and 1 that stand for 1 + u^2 and 1 - u^2
    ones = np.ones((2, 1))
    v = np.array([[1.0, 0.0], [-1.0, 1.0]])
    proof = prove(np.linalg.inv(v), np.eye(2), np.hstack([v, 0.0 * v]))
    monkeypatch.setattr(type(proof), "_accuracy", 0.0)
    monkeypatch.setattr(module, "product_of_numbers", lambda a, b, _: a @ b)
    q2 = [ones, 0.0 * ones]
    p = proof._image(q2)
    assert p[0, 0] == 0.0
    assert Fraction(proof._error_of_image(q2, p)[0, 0]) >= 2 * UNIT * UNIT

    # The product is rounded
    assert p[1, 0] == 1.0
    assert Fraction(proof._error_of_image(q2, p)[1, 0]) >= UNIT


def test_image_is_lifted_above_what_its_sums_lost(monkeypatch):
    n = 200
    ones = np.ones((n, 1))
    v = np.ones((n, n))
    proof = FullRank(v, v, v, v, n**0.5 * ones, 1.0, 0.0)
    monkeypatch.setattr(module, "gamma", lambda _: 0.0)
    monkeypatch.setattr(module, "matmul", lambda a, b: (1.0 - n * 2.0**-53) * (a @ b))
    error = proof._error_of_image([ones], 0.0 * ones)
    assert Fraction(error[0, 0]) >= n * UNIT


def test_complex_sums_have_twice_as_many_roundings():
    one = np.ones((1, 1), complex)
    proof = prove(one, one, one)
    assert proof._gamma(7) ** 2 >= 2.0 * (14 * 2.0**-53) ** 2


def test_complex_products_err_in_both_components(monkeypatch):
    # r is that of re and of im: D - Q = 0, and B V - Q of up to r (1 + i)
    one = np.ones((1, 1), complex)
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 1e-3)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: one)
    assert prove(one, one, one.real).norm >= 5.0 * 2.0**0.5 * 1e-3


def test_update_counts_the_roundings_of_both_residuals():
    # q1 = 1 and q2 = 1 stand for 1 + u and 1 - u
    one = np.ones((1, 1))
    proof = prove(one, one, one)
    proof = replace(proof, norm=0.0)
    small = np.array([[2.0**-53]])
    update = proof.update(one, [one])
    assert update.dx[0][0, 0] == 0.0

    # x = q1 - q2 = 2 u, and s = q2 = 1 - u
    assert Fraction(float(proof.error_of_x(update.bound)[0, 0])) >= 2 * UNIT
    assert Fraction(float(update.bound[0, 0])) >= UNIT
    assert small[0, 0] == float(UNIT)


def test_update_counts_the_rounding_of_small_residuals_behind_a_large_v():
    # q2 = 0 stands for up to half of the least number, which V makes large
    b = np.array([[2.0**-60]])
    proof = prove(b, np.ones((1, 1)), np.array([[2.0**60]]))
    zero = np.zeros((1, 1))
    update = proof.update(zero, [zero])
    assert Fraction(float(update.bound[0, 0])) >= Fraction(LEAST) / 2 * 2**60


def test_bounds_do_not_vanish_where_their_products_do():
    one = np.ones((1, 1))
    small = 2.0**-600 * one
    proof = FullRank(one, one, small, small, small, 1.0, 0.0)
    assert proof.error_of_x(small)[0, 0] > 0.0
    assert proof.update(LEAST * one, [0.0 * one]).bound[0, 0] >= 16 * LEAST


def test_update_counts_the_accuracy_of_v_times_a_residual(monkeypatch):
    rng = np.random.default_rng(0)
    b, q, v = factors(rng, 5, 2)
    proof = prove(b, q, np.hstack([v, 0.0 * v]))
    f, h = 0.0 * q[:, :1], rng.standard_normal((2, 1))
    monkeypatch.setattr(type(proof), "_accuracy", 1e-3)
    products = module.product_of_numbers

    def product(left, right, accuracy=None, result="array"):
        if result == "pair":
            return products(left, right, result="pair")
        return left @ right + 0.99 * accuracy * (np.abs(left) @ np.abs(right))

    monkeypatch.setattr(module, "product_of_numbers", product)
    zeros = 0.0 * q[:, :1], 0.0 * h
    update = assert_bounds_hold(proof, *zeros, f, h)
    assert update.bound[0, 0] >= 1e-4


def test_update_takes_v_whole():
    # The second word of V is as large as the first one
    one = np.ones((1, 1))
    proof = prove(2.0 * one, one, np.hstack([0.25 * one, 0.25 * one]))
    assert proof.norm < 1e-14
    assert_bounds_hold(proof, 0.0 * one, 0.0 * one, one, 3.0 * one)


# What is tried


def test_one_word_comes_first():
    rng = np.random.default_rng(0)
    for condition, count in ((1e2, 1), (1e9, 1), (1e16, 2), (1e22, 2)):
        b = nearly_dependent(rng, 12, 4, condition)
        proof, attempts = proven_full_rank(b / np.abs(b).max(axis=0))
        assert len(proof.words) == count
        assert attempts >= count
        assert proof.norm < module.GOOD_NORM
        assert proof.condition >= condition


def test_norms_from_one_on_are_no_proof(monkeypatch):
    one = np.ones((1, 1))
    refused = 0
    for share in np.linspace(0.5, 0.95, 40):
        monkeypatch.setattr(module, "thin_qr", lambda _, s=share: (s * one, one / s))
        monkeypatch.setattr(module, "_in_two_words", lambda latest: latest)
        bound = exact_bound(one, share * one, [share * one])
        if bound >= 1:
            refused += bound < Fraction(6, 5)
            with pytest.raises(linalg.VerificationError, match="rank-deficient"):
                proven_full_rank(one)
        elif bound < Fraction(99, 100):
            assert proven_full_rank(one)[0].norm < 1.0
    assert refused > 3


def test_a_pivot_of_zero_is_no_obstacle():
    # The second columns differ by less than their roundings: QR may leave a zero
    b = np.array([[0.75, 0.75, 0.0], [0.0, 1e-20, 0.5], [0.0, 0.0, 0.5]])
    b = np.concatenate([b, np.zeros((1, 3))])
    q, u = np.linalg.qr(b)
    u[1, 1] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        factorise = np.linalg.qr
        factors_of = iter([(q, u)])
        patch.setattr(np.linalg, "qr", lambda x: next(factors_of, None) or factorise(x))
        proof, _ = proven_full_rank(b)
    assert proof.is_proof
    assert len(proof.words) == 2


def test_messages_have_the_numbers():
    dependent = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 6.0]])
    with pytest.raises(linalg.VerificationError, match=r"\(3 x 2\).*1: \S+\)\. What"):
        proven_full_rank(dependent)
    with pytest.raises(linalg.VerificationError, match=r"1: none\)"):
        proven_full_rank(np.zeros((3, 2)))
