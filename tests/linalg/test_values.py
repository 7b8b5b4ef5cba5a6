"""Matrices in scale and their values in the units of the operand."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.linalg.values import check_ordered, scaled_matrix


@pytest.mark.parametrize("exponent", [-1073, -500, 0, 400, 1020])
@pytest.mark.parametrize("is_complex", [False, True])
def test_the_loss_covers_what_numbers_are_rounded_by(exponent, is_complex):
    rng = np.random.default_rng(5)
    a = np.ldexp(
        rng.uniform(1.0, 2.0, (4, 3)), rng.integers(-1090, exponent + 1, (4, 3))
    )
    a[0, 0] = np.ldexp(1.5, exponent)
    matrix = scaled_matrix(a * 1j if is_complex else a)
    array = matrix.array.imag if is_complex else matrix.array
    assert 0.5 <= np.abs(array).max() < 1.0
    unit = Fraction(2) ** -matrix.exponent
    squares = 0
    for x, y in zip(a.ravel().tolist(), array.ravel().tolist()):
        squares += (Fraction(x) * unit - Fraction(y)) ** 2
    assert squares <= Fraction(matrix.loss) ** 2


def test_the_loss_is_a_part_of_the_radius():
    matrix = scaled_matrix(np.array([[2.0**1000]]))
    _, radius = matrix.restored(np.array([0.5]), np.array([0.0]))
    assert radius[0] >= matrix.loss * 2.0**1001


def test_subnormal_values_have_their_rounding_in_the_radius():
    matrix = scaled_matrix(np.array([[2.0**-1074]]))
    value, radius = matrix.restored(np.array([1.0 / 3.0]), np.array([0.0]))
    distance = abs(Fraction(value[0]) - Fraction(1.0 / 3.0) * Fraction(2) ** -1073)
    assert 0 < distance <= Fraction(radius[0])


def test_infinite_entries_are_counted():
    a = np.array([[1.0, np.inf], [np.nan, 1.0]])
    with pytest.raises(linalg.VerificationError, match="2 of 4 entries of a"):
        scaled_matrix(a)


@pytest.mark.parametrize("differences", [[-1.0], [0.0, np.nan]])
def test_order_is_checked(differences):
    check_ordered(np.array([0.0, 1.0]), "eigh")
    with pytest.raises(linalg.VerificationError, match="eigh"):
        check_ordered(np.array(differences), "eigh")


def test_values_beyond_float32_name_the_dtype():
    a = np.full((2, 2), 3e38, np.float32)
    with pytest.raises(
        linalg.VerificationError, match=re.escape("1 of 2 values")
    ) as error:
        linalg.svdvals(a)
    assert "float32" in str(error.value)
