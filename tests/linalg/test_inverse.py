"""Which inverse proves a matrix nonsingular."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.exceptions import VerificationError
from hifigemm.linalg.inverse import approximate_inverse, certified_system, changed
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


def test_the_message_has_the_norms_and_the_condition():
    with pytest.raises(VerificationError, match=r"2 x 2.*R in float64.*condition is"):
        certified(np.array([[0.1, 0.3], [0.1, 0.3]]))


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


def test_another_first_inverse_is_tried_where_the_first_is_no_good_start():
    # Singular but for the last bits of one entry: its condition is 3e17
    rows = (
        ("0x1.6p-3", "0x1.bp+25", "0x1.8p+3"),
        ("0x1.0p-9", "0x1.8p+18", "-0x1.8p-1"),
        ("-0x1.1fffffffffffep-29", "-0x1.68p+0", "-0x1.68p-19"),
    )
    a = np.array([[float.fromhex(entry) for entry in row] for row in rows])
    found = certified_system(a, np.ones((3, 1)))
    assert (found.attempts, found.certificate.words) == (3, 2)
