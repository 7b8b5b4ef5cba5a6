"""Counts of moduli: the fewest that hold an exact product, or keep a promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.model.accuracy import CORRECT, Target
from hifigemm.model.plan import Evidence
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import NO_BIT
from hifigemm.numerics.error_ratio import count_for_ratio
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.scaling import balance, gained_bits
from hifigemm.schemes.moduli_counts import (
    bits_held_by,
    count_for,
    exact_bits,
    exact_count,
    expected_count,
    sufficient_count,
    wanted_bits,
)

NO_COUNT = MAX_MODULI + 1


def problem_of(k, dtype="float64"):
    """A product of this inner length."""
    return Problem(1, 5, 6, k, np.dtype(dtype))


@given(st.integers(-60, 2000), st.integers(-60, 2000))
def test_exact_counts_are_the_fewest_and_shift_no_more_than_they_must(left, right):
    if left + right > 2 * gained_bits(49, False):
        return
    count = exact_count(False, left, right)
    gained, shift = gained_bits(count, False), balance((left, right), count, False)
    assert left <= gained + shift
    assert right <= gained - shift
    assert shift in (0, left - gained, gained - right)
    assert count == 2 or left + right > 2 * gained_bits(count - 1, False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_bits_to_begin_with_are_those_of_data_of_one_size(dtype):
    def bits(target, k):
        return wanted_bits(Problem(1, 5, 6, k, np.dtype(dtype)), target)

    doubled, t = dtype == "complex128", 24 if dtype == "float32" else 53
    for k, log2 in ((1, 0), (2, 1), (3, 2), (1000, 10), (1024, 10), (1025, 11)):
        assert bits(Target(0.0, correct=True), k) == 2 * (t + 16 + log2 + doubled) + 1
        assert bits(Target(2.0**-50), k) == 2 * 52 + log2 + doubled + 1
        assert bits(Target(1.0), k) == 2 * 2 + log2 + doubled + 1
    assert bits(Target(1e30), 1) == 1
    assert bits(Target(np.inf), 1) == 5 + doubled


def test_the_expected_count_is_one_that_can_be_enough():
    for k in (1, 2**10, 2**20, 2**28):
        for r in (1e30, 1.0, 1e-3, 1e-15):
            problem, target = Problem(1, 5, 6, k, np.dtype("float64")), Target(r)
            expected = expected_count(problem, target)
            assert expected >= count_for_ratio(k, r, 0.0, False)
            if r >= 1.0:
                assert expected == count_for_ratio(k, r, 0.0, False)
    assert (
        expected_count(Problem(1, 5, 6, 2**152, np.dtype("float64")), Target(1.0)) == 49
    )
    wanted = Problem(1, 5, 6, 2**28, np.dtype("float64"))
    assert expected_count(wanted, Target(np.inf)) < expected_count(
        wanted, Target(1e300)
    )


def test_two_moduli_hold_the_product_of_an_operand_of_zeros():
    for left, right in ((-NO_BIT, 2000), (2000, -NO_BIT), (-NO_BIT, -NO_BIT)):
        assert exact_count(False, left, right) == 2
        assert exact_bits(False, left, right) == 1


@pytest.mark.parametrize("is_complex", [False, True])
def test_bits_are_held_by_as_many_moduli_as_are_counted(is_complex):
    problem = problem_of(7, "complex128" if is_complex else "float64")
    for count in range(2, MAX_MODULI + 1):
        most = bits_held_by(problem, count)
        assert exact_count(is_complex, 3, most - 3) == count
        assert exact_count(is_complex, 3, most - 2) == count + 1


def test_no_count_is_one_more_than_there_are_moduli():
    assert exact_count(False, 2000, 2000) == NO_COUNT


@pytest.mark.parametrize("is_complex", [False, True])
def test_the_bits_of_an_exact_product_are_those_of_the_range_that_holds_it(is_complex):
    for count in (3, 10, MAX_MODULI):
        # Operands that fill this range, and no smaller one.
        most = 2 * gained_bits(count, is_complex)
        bits = exact_bits(is_complex, most, 0)
        assert bits <= moduli_set(count, is_complex).half_range.bit_length()
        assert bits > moduli_set(count - 1, is_complex).half_range.bit_length() - 1
    # Nothing has less than one bit.
    assert exact_bits(is_complex, -30, -30) == 1


@pytest.mark.parametrize("ratio", [0.0, 1.0, 2.0**20, 2.0**60])
def test_a_ratio_asks_for_its_count_and_no_less_than_data_of_one_size(ratio):
    problem, target = problem_of(100), Target(1e-14)
    count = count_for(problem, target, ratio)
    by_ratio = count_for_ratio(100, 1e-14, ratio, False)
    assert count == max(by_ratio, expected_count(problem, target))


def test_a_ratio_that_says_nothing_has_no_count():
    assert count_for(problem_of(100), Target(1e-14), math.inf) is None


def test_either_kind_of_evidence_suffices():
    problem, target = problem_of(100), Target(1e-14)
    by_bits = exact_count(False, 9, 9)
    by_ratio = count_for(problem, target, 2.0**20)
    assert by_bits < by_ratio < NO_COUNT
    cases = [
        (Evidence(), NO_COUNT),
        (Evidence(required_bits=(9, 9)), by_bits),
        (Evidence(error_ratio=2.0**20), by_ratio),
        (Evidence((9, 9), 2.0**20), by_bits),
        (Evidence((2000, 2000), 2.0**20), by_ratio),
        (Evidence((2000, 2000), math.inf), NO_COUNT),
    ]
    for evidence, count in cases:
        assert sufficient_count(problem, target, evidence) == count


def test_correct_rounding_expects_more_moduli_than_any_number_of_its_size():
    problem = problem_of(100)
    assert expected_count(problem, CORRECT) > expected_count(problem, Target(2.0**-53))
