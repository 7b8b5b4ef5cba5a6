"""Proofs that a matrix is positive definite, and that it is not, against exact
leading minors.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import definite, exact
from hifigemm.linalg.definite import norm_of_gap
from hifigemm.linalg.exact import IntegerMatrix
from tests.linalg.worst_arithmetic import fractions


@pytest.fixture
def general_way(monkeypatch):
    """Small matrices are not told by the compiled core."""
    monkeypatch.setattr(core, "definiteness", lambda a: None)


@pytest.fixture(params=["core", "general way"])
def each_way(request):
    if request.param == "general way":
        request.getfixturevalue("general_way")


def is_definite(a):
    """Sylvester's criterion in fractions, by elimination: all pivots are positive."""
    rows = fractions(a)
    for k in range(len(rows)):
        if rows[k][k] <= 0:
            return False
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k])]
    return True


def symmetric(rng, n, eigenvalues):
    """A float64 matrix with eigenvalues close to these."""
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a = (q * eigenvalues) @ q.T
    return np.tril(a) + np.tril(a, -1).T


@pytest.mark.parametrize("power", range(-18, 0))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_answers_are_true_and_given_where_the_least_eigenvalue_leaves_room(
    power, sign, each_way
):
    rng = np.random.default_rng(abs(power))
    for n in (2, 5, 12):
        values = np.linspace(1.0, 2.0, n)
        values[0] = sign * 10.0**power
        a = symmetric(rng, n, values)
        grading = rng.integers(-100, 101, n)
        a = np.ldexp(a, grading[:, None] + grading)
        try:
            answer = linalg.is_positive_definite(a)
        except linalg.VerificationError:
            assert power < -12
            continue
        assert answer == is_definite(a)


@pytest.mark.parametrize("seed", range(10))
def test_bands_in_any_units_are_decided(seed, each_way):
    rng = np.random.default_rng([3, seed])
    n = int(rng.integers(2, 40))
    beside = rng.uniform(-1.0, 1.0, n - 1)
    a = np.eye(n) * rng.choice([1.0, 2.0]) + np.diag(beside, 1) + np.diag(beside, -1)
    units = np.rint(rng.uniform(-6, 6) * np.arange(n)).astype(int)
    a = np.ldexp(a, units[:, None] + units)
    assert linalg.is_positive_definite(a) == is_definite(a)


@pytest.mark.parametrize("n", [2, 5, 11, 32])
def test_gram_matrices_of_few_vectors_are_not_definite(n, each_way):
    rng = np.random.default_rng(n)
    v = rng.integers(-(2**20), 2**20, (n, n - 1)).astype(float)
    assert linalg.is_positive_definite(v @ v.T) is False
    w = v + 1j * v[::-1]
    if n <= 11:
        assert linalg.is_positive_definite(w @ w.conj().T) is False
    v = np.hstack([v, rng.integers(-(2**20), 2**20, (n, 1))])
    assert linalg.is_positive_definite(v @ v.T) is True


@pytest.mark.parametrize("n", [20, 40, 100])
@pytest.mark.parametrize("is_complex", [False, True])
def test_large_semidefinite_matrices_are_not_definite(n, is_complex):
    rng = np.random.default_rng(n)
    v = rng.integers(-9, 10, (n, n - 1)).astype(float)
    if is_complex:
        v = v + 1j * rng.integers(-9, 10, (n, n - 1))
    # Proven by no vector: a null vector of many bits, and no c
    a = v @ v.conj().T
    assert linalg.is_positive_definite(a) is False
    assert linalg.is_positive_definite(a + np.eye(n)) is True


def test_messages_name_the_cost_of_integers(monkeypatch, general_way):
    monkeypatch.setattr(exact, "MOST_SECONDS", 0.0)
    v = np.random.default_rng(0).integers(-(2**20), 2**20, (20, 19)).astype(float)
    with pytest.raises(linalg.VerificationError, match=r"below 2\^\d+.*\d+ primes"):
        linalg.is_positive_definite(v @ v.T)


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_last_bits_of_the_diagonal_decide(shift, each_way):
    """A matrix of rank one, and its neighbours."""
    v = np.array([3.0, 5.0, 7.0])
    a = np.outer(v, v) * 2.0**-40
    for i in range(3):
        a[i, i] += shift * np.spacing(a[i, i])
    assert linalg.is_positive_definite(a) is (shift > 0)


def test_messages_have_the_eigenvalue_and_a_shift_that_helps(monkeypatch, general_way):
    monkeypatch.setattr(IntegerMatrix, "of", lambda a: None)
    refusals = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 12))
        values = np.linspace(1.0, 2.0, n)
        values[0] = 1e-16
        a = symmetric(rng, n, values)
        try:
            assert linalg.is_positive_definite(a) == is_definite(a)
        except linalg.VerificationError as error:
            refusals += 1
            message = str(error)
            assert re.search(r"least eigenvalue is about -?\d\.\de[-+]\d\d", message)
            assert not re.search(r"\b(nan|inf)\b", message)
            shift = float(re.search(r"more than (\S+) of the diagonal", message)[1])
            shifted = a + np.diag(1.5 * shift * a.diagonal())
            assert linalg.is_positive_definite(shifted) is True
    assert refusals > 5


@pytest.mark.parametrize("power", [-1, 0, 1])
def test_neighbours_of_a_singular_matrix_are_told_apart_or_refused(power, each_way):
    a = np.array([[1.0, 1.0], [1.0, 1.0 + power * 2.0**-40]])
    assert linalg.is_positive_definite(a) == (power > 0)


def test_exact_null_vectors_prove_that_a_matrix_is_not_definite(each_way):
    v = np.array([[1.0, -2.0, 4.0], [0.5, 1.0, 3.0]])
    for a in (
        np.ones((3, 3)),
        v.T[:, :1] @ v[:1],
        np.array([[1.0, -1.0], [-1.0, 1.0]]),
    ):
        assert linalg.is_positive_definite(a) is False


@pytest.mark.parametrize("entry", [0.0, -1.0, -5e-324])
def test_a_diagonal_entry_that_is_not_positive_is_a_proof(entry, each_way):
    a = np.eye(3)
    a[1, 1] = entry
    assert linalg.is_positive_definite(a) is False


def test_complex_matrices():
    a = np.array([[2.0, 1.0j], [-1.0j, 2.0]])
    assert linalg.is_positive_definite(a) is True
    assert linalg.is_positive_definite(a - 1.5 * np.eye(2)) is False
    assert linalg.is_positive_definite(a.astype(np.complex64)) is True


def test_hilbert_matrices_are_definite_as_long_as_their_rounding_leaves_them_so(
    each_way,
):
    for n in range(1, 14):
        i = np.arange(n)
        a = 1.0 / (1.0 + i[:, None] + i)
        assert linalg.is_positive_definite(a) == is_definite(a)


def test_matrices_that_are_not_hermitian_raise():
    with pytest.raises(ValueError, match=r"2 entries.*\(0, 1\): 1.0 and 2.0"):
        linalg.is_positive_definite([[1.0, 1.0], [2.0, 5.0]])
    with pytest.raises(ValueError, match="conjugate transpose"):
        linalg.is_positive_definite([[1.0, 1.0j], [1.0j, 5.0]])


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("accuracy", [2.0**-53, 1e-3, 0.1])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_the_norm_of_the_gap_is_no_less_than_the_exact_one(
    monkeypatch, accuracy, n, is_native
):
    c = 2.0**-10
    a = symmetric(np.random.default_rng(n), n, np.linspace(0.5, 1.0, n))
    target = a - c * np.eye(n)

    # The factor of another matrix, and a product that hides it as far as r allows
    factor = np.linalg.cholesky(target * (1.0 + accuracy))

    def flattering(left, right, r):
        product = left @ right
        allowed = 0.99 * r * (np.abs(left) @ np.abs(right))
        return product + np.clip(target - product, -allowed, allowed)

    monkeypatch.setattr(np.linalg, "cholesky", lambda _: factor)
    if is_native:
        matmul = definite.matmul
        products = iter([flattering, matmul, matmul, matmul, matmul])
        monkeypatch.setattr(definite, "gamma", lambda terms: accuracy)

        def first_flatters(left, right):
            product = next(products)
            if product is matmul:
                return matmul(left, right)
            return flattering(left, right, accuracy)

        monkeypatch.setattr(definite, "matmul", first_flatters)
    else:
        monkeypatch.setattr(definite, "gamma", lambda terms: np.inf)
        monkeypatch.setattr(definite, "product_of_numbers", flattering)
    exact = fractions(a)
    rows = fractions(factor)
    for i in range(n):
        exact[i][i] -= Fraction(c)
        for j in range(n):
            exact[i][j] -= sum(x * y for x, y in zip(rows[i], rows[j]))
    norm = max(sum(abs(x) for x in row) for row in exact)
    assert Fraction(norm_of_gap(a, c, accuracy)) >= norm


def test_nothing_is_definite():
    assert linalg.is_positive_definite(np.ones((0, 0))) is True


def test_a_form_that_only_rounding_makes_zero_is_no_proof():
    # A x = (1 + 2^-54, 1 - 2^-54) is rounded to (1, 1), and x^T A x = 2^-53
    a = np.array([[1.0, -(2.0**-54)], [-(2.0**-54), -1.0]])
    x = np.array([[1.0], [-1.0]])
    assert not definite.is_not_positive(a, x)
    assert definite.is_not_positive(a, x[::-1] * [[0.0], [1.0]])


def test_an_image_that_underflows_is_no_zero():
    assert not definite.is_not_positive(
        np.array([[2.0**-1000]]), np.array([[2.0**-90]])
    )


def test_a_gap_of_the_size_of_c_is_no_proof(monkeypatch, general_way):
    monkeypatch.setattr(definite, "norm_of_gap", lambda _a, c, _accuracy: c)
    monkeypatch.setattr(IntegerMatrix, "of", lambda a: None)
    with pytest.raises(linalg.VerificationError, match="neither proven"):
        linalg.is_positive_definite(np.eye(5))


def test_stacks_have_arrays_of_answers(each_way):
    a = np.array([[2.0, 1.0], [1.0, 2.0]])
    b = np.array([[1.0, 2.0], [2.0, 1.0]])
    answers = linalg.is_positive_definite(np.stack([[a, b], [b, a]]))
    assert answers.dtype == bool
    assert answers.tolist() == [[True, False], [False, True]]
    a[0, 0] = np.nan
    with pytest.raises(linalg.VerificationError, match="1 of 2") as error:
        linalg.is_positive_definite(np.stack([b, a]))
    assert error.value.solution[0] == 0.0
    assert np.isnan(error.value.solution[1])


def test_a_report_says_what_proves_the_answer(general_way):
    rng = np.random.default_rng(3)
    tame = symmetric(rng, 6, np.linspace(1.0, 2.0, 6))
    answer, report = linalg.is_positive_definite(tame, return_report=True)
    assert answer is report.is_definite is True
    assert report.proof == "factor"
    assert 0.0 <= report.gap < report.shift
    # The proof in fractions: A - (c - gap) I has positive pivots, for the scaled matrix.
    scaled = definite.scaled_symmetrically(tame)
    assert is_definite(scaled - (report.shift - report.gap) * np.eye(6))

    proofs = {
        "diagonal": [[1.0, 0.0], [0.0, 0.0]],
        "vector": [[1.0, 2.0], [2.0, 1.0]],
    }
    for proof, a in proofs.items():
        answer, report = linalg.is_positive_definite(a, return_report=True)
        assert answer is report.is_definite is False
        assert report.proof == proof
        assert np.isnan([report.shift, report.gap]).all()
    close = np.array([[1.0, 1.0], [1.0, np.nextafter(1.0, 2.0)]])
    answer, report = linalg.is_positive_definite(close, return_report=True)
    assert (answer, report.proof) == (True, "minors")


def test_stacks_have_a_report_for_each_matrix():
    stack = np.array([np.eye(2), -np.eye(2)])
    answers, reports = linalg.is_positive_definite(stack, return_report=True)
    assert answers.tolist() == [x.is_definite for x in reports] == [True, False]
    if core.loaded()[0] is not None:
        assert reports[0].proof == "elimination"
    assert linalg.is_positive_definite(stack).tolist() == answers.tolist()
