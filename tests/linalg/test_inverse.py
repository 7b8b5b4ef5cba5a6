"""Which inverse proves a matrix nonsingular."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hifigemm.base.exceptions import VerificationError
from hifigemm.linalg import inverse
from hifigemm.linalg.inverse import (
    GOOD_NORM,
    MOST_CONDITION,
    approximate_inverse,
    certified_system,
    changed,
)
from hifigemm.linalg.scaling import scaled_system
from hifigemm.numerics.subnormals import ieee_arithmetic


@pytest.fixture(autouse=True)
def arithmetic():
    """What `solve` sets up around its bounds."""
    with ieee_arithmetic(), np.errstate(all="ignore"):
        yield


def certified(a):
    """The certificate of a matrix, for no right side."""
    return certified_system(a, np.zeros((len(a), 0))).certificate


def unimodular(bits, n=6):
    """A matrix of integers of condition beyond 2^bits and determinant 1."""
    rng = np.random.default_rng(bits)
    lower = np.eye(n)
    upper = np.eye(n)
    while np.linalg.cond(lower) * np.linalg.cond(upper) < 2.0**bits:
        lower += np.tril(rng.integers(-3, 4, (n, n)), -1)
        upper += np.triu(rng.integers(-3, 4, (n, n)), 1)
    return lower @ upper


def test_one_word_is_enough_for_ordinary_matrices():
    a = np.random.default_rng(0).standard_normal((30, 30))
    proof = certified(a)
    assert proof.words == 1
    assert proof.norm < 1e-9


@pytest.mark.parametrize("bits", [75, 90, pytest.param(100, marks=pytest.mark.slow)])
def test_a_matrix_beyond_one_word_gets_two(bits):
    proof = certified(unimodular(bits))
    assert proof.is_proof
    assert proof.words == 2
    assert proof.condition > 2.0**53


def test_a_pivot_of_zero_is_passed_over_by_a_small_change():
    # det = 2^-105, and the second pivot of elimination is zero in float64
    small = 2.0**-52
    a = np.array([[1.0, 1.0 + small], [1.0 - small, 1.0]])
    exact_determinant = 1 - (1 + small) * (1 - small)
    assert exact_determinant == 0.0
    with pytest.raises(np.linalg.LinAlgError):
        approximate_inverse(a)
    assert np.isfinite(approximate_inverse(changed(a, 2.0**-50))).all()
    assert certified(a).is_proof


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_message_starts_with_the_condition_and_ends_with_what_helps(n):
    # Rows of rank one, exactly: short numbers times powers of two
    rng = np.random.default_rng(n)
    for _ in range(20):
        rank_one = rng.integers(1, 9, (n, 1)) * rng.integers(1, 9, n)
        a = np.ldexp(rank_one, rng.integers(-9, 9, (n, 1))).astype(float)
        with pytest.raises(VerificationError) as error:
            certified(a)
        message = str(error.value)
        start = rf"the matrix \({n} x {n}\) is singular or nearly so"
        assert re.match(start, message)
        assert re.search(r"condition about \de\+\d\d|pivot of zero", message)
        assert "What helps" in message
        assert not re.search(r"\b(nan|inf)\b", message)


def test_a_matrix_of_zeros_raises():
    with pytest.raises(VerificationError, match="pivot of zero"):
        certified(np.zeros((2, 2)))


def test_large_entries_in_one_column_are_brought_apart():
    # Scaled by their largest entries, the first two rows are alike to 200 bits
    a = np.random.default_rng(0).standard_normal((5, 5))
    a[:2, 3] *= 2.0**200
    found = certified_system(a, np.ones((5, 1)))
    assert found.attempts == 2
    assert found.certificate.words == 1
    assert found.certificate.condition < 1e4


def chain(n, beside):
    """Ones on the diagonal and numbers beside it."""
    return np.eye(n) + beside * np.eye(n, k=1)


@pytest.mark.parametrize("beside", [1.9, 3.0, -100.0, 127.0])
@pytest.mark.parametrize("n", [40, 140])
def test_a_chain_is_as_well_conditioned_as_its_best_scale(n, beside):
    found = certified_system(chain(n, beside), np.ones((n, 1)))
    assert found.certificate.words == 1
    assert found.certificate.norm < GOOD_NORM
    assert found.certificate.condition < MOST_CONDITION


@pytest.mark.parametrize("seed", range(4))
def test_a_dense_block_beside_a_chain_gets_weights_twice_if_need_be(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(100, 200))
    m = n // 2
    a = np.zeros((n, n))
    a[:m] = rng.standard_normal((m, n))
    a[m:, m:] = chain(n - m, 1.9)
    found = certified_system(a[rng.permutation(n)], np.ones((n, 1)))
    assert found.certificate.words == 1
    assert found.certificate.condition < MOST_CONDITION


def test_one_inverse_is_enough_for_a_condition_that_costs_nothing(monkeypatch):
    monkeypatch.setattr(inverse, "matching", None)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 40))
        a = rng.standard_normal((n, n))
        assert certified_system(a, np.ones((n, 1))).attempts == 1


def test_the_assignment_follows_where_a_proof_leaves_a_large_condition():
    # Sums that are rounded once prove the matrix in any scale
    units = 4.0 ** np.arange(14)
    second_difference = (
        2.0 * np.eye(14) - chain(14, 1.0) + np.eye(14) - np.eye(14, k=-1)
    )
    a = units[:, None] * second_difference * units
    first = inverse._Attempt.of(scaled_system(a, np.ones((14, 1))))
    found = certified_system(a, np.ones((14, 1)), 1e3)
    assert first.norm < GOOD_NORM
    assert first.condition > 1e6
    assert found.attempts > 1
    assert found.certificate.condition < 1e3


def test_another_first_inverse_is_tried_where_the_first_is_no_good_start():
    # Singular but for the last bits of one entry: its condition is 3e17
    rows = (
        ("0x1.6p-3", "0x1.bp+25", "0x1.8p+3"),
        ("0x1.0p-9", "0x1.8p+18", "-0x1.8p-1"),
        ("-0x1.1fffffffffffep-29", "-0x1.68p+0", "-0x1.68p-19"),
    )
    a = np.array([[float.fromhex(entry) for entry in row] for row in rows])
    found = certified_system(a, np.ones((3, 1)))
    assert (found.attempts, found.certificate.words) == (4, 2)
