"""Rows and columns set apart: the conditions under which everything is exact, and when
it pays.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.model.plan import Outliers, SeparateVectors
from hifigemm.model.problem import Problem
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.scaling import gained_bits, widest
from hifigemm.schemes.moduli_counts import exact_count
from hifigemm.schemes.outliers import (
    find_outliers,
    find_separate,
    may_pay,
    may_separate,
    without,
)

SIZE = 4096
LARGE = 16384


def problem(m=LARGE, n=LARGE, k=LARGE, batch=1, dtype="float64"):
    return Problem(batch, m, n, k, np.dtype(dtype))


def required(usual, wide, count, rng):
    """What vectors lack: most at most `usual` bits, a few up to `wide`."""
    x = rng.integers(usual - 8, usual, (1, SIZE), endpoint=True)
    x[0, rng.choice(SIZE, count, replace=False)] = rng.integers(
        usual, wide, count, endpoint=True
    )
    x[0, rng.integers(SIZE)] = wide
    return x


def half_range(count):
    return moduli_set(count, False).half_range


@given(
    st.tuples(st.integers(20, 120), st.integers(0, 40), st.integers(0, 300)),
    st.tuples(st.integers(20, 120), st.integers(0, 40), st.integers(0, 300)),
    st.integers(0, 2**32),
)
def test_all_vectors_find_room_and_all_products_stay_in_range(rows, cols, seed):
    rng = np.random.default_rng(seed)
    left, right = (
        required(usual, usual + more, count, rng) for usual, more, count in (rows, cols)
    )
    count = exact_count(False, int(left.max()), int(right.max()))
    found = find_outliers(problem(SIZE, SIZE), (left, right), count)
    if found is None:
        return
    assert found.num_moduli < found.shared <= count
    assert half_range(found.shared) <= half_range(found.num_moduli) << (
        2 * found.lowered
    )
    gained = gained_bits(found.shared, False)
    for x, separate, balance in (
        (left, found.rows, found.balance),
        (right, found.cols, -found.balance),
    ):
        wide = np.zeros(SIZE, bool)
        wide[list(separate)] = True
        assert (x[0, ~wide] <= gained + balance - found.lowered).all()
        assert (x[0, wide] > gained + balance - found.lowered).all()
        assert (x[0, wide] <= gained + balance + found.lowered).all()
    work = found.num_moduli + found.shared * (len(found.rows) + len(found.cols)) / SIZE
    assert work < count


def test_random_operands_take_fewer_moduli_than_their_widest_vectors():
    rng = np.random.default_rng(1)
    both = tuple(required(66, 76, 40, rng) for _ in range(2))
    count = exact_count(False, 76, 76)
    found = find_outliers(problem(SIZE, SIZE), both, count)
    assert (count, found.num_moduli, found.shared) == (22, 20, 21)
    assert len(found.rows) < 60
    assert len(found.cols) < 60


def test_vectors_that_lack_the_same_stay_together():
    both = np.full((1, SIZE), 70), np.full((1, SIZE), 60)
    assert find_outliers(problem(SIZE, SIZE), both, exact_count(False, 70, 60)) is None
    many = np.where(np.arange(SIZE) % 2, 76, 60)[None]
    assert (
        find_outliers(problem(SIZE, SIZE), (many, many), exact_count(False, 76, 76))
        is None
    )


@pytest.mark.parametrize(
    ("what", "pays"),
    [
        ({}, True),
        ({"m": 64, "n": 64}, False),
        ({"m": 2**20, "n": 1024, "k": 1024}, True),
        ({"batch": 2}, False),
        ({"dtype": "complex128"}, False),
        ({"dtype": "float32"}, True),
    ],
)
def test_large_real_products_are_looked_at(what, pays):
    assert may_pay(problem(**what)) is pays


def test_products_are_looked_at_from_2_to_the_40_multiplications_on():
    assert may_pay(problem(2**14, 2**13, 2**13))
    assert not may_pay(problem(2**14 - 1, 2**13, 2**13))


def few_wide(vectors, usual, wide, count):
    """What vectors lack of which the first `count` are wide."""
    return np.where(np.arange(vectors) < count, wide, usual)[None]


@pytest.mark.parametrize(
    ("m", "n", "rows", "cols", "moduli", "expected"),
    [
        (4096, 4096, (66, 76, 40), (66, 76, 40), 22, (20, 21, 4, 0, 40, 40)),
        (4096, 4096, (60, 66, 1), (60, 66, 1), 20, (18, 19, 4, 0, 1, 1)),
        (512, 512, (60, 70, 1), (60, 70, 1), 21, None),
        (1024, 1024, (66, 96, 0), (66, 96, 1), 24, None),
        (1024, 1024, (40, 43, 0), (40, 43, 1), 13, None),
        (1024, 1024, (40, 70, 1), (40, 70, 1), 21, (15, 18, 12, 0, 1, 1)),
        (2048, 1500, (40, 60, 129), (40, 60, 200), 18, (13, 16, 12, 0, 129, 200)),
        (2**17, 2**17, (-7, 12, 3), (-7, 12, 3), 6, (2, 4, 8, 0, 3, 3)),
        (2**17, 2**17, (-7, 6, 3), (-7, 6, 3), 4, (2, 3, 4, 0, 3, 3)),
        (4096, 8192, (60, 70, 300), (60, 70, 1), 21, (18, 20, 8, 0, 300, 1)),
        (4096, 8192, (60, 70, 129), (60, 70, 128), 21, (18, 20, 8, 0, 129, 128)),
        (2**17, 2**17, (66, 76, 2048), (66, 76, 5), 22, (20, 21, 4, 0, 2048, 5)),
        (2**17, 2**17, (66, 76, 2049), (66, 76, 5), 22, None),
        (2**17, 2**17, (66, 76, 5), (66, 76, 2048), 22, (20, 21, 4, 0, 5, 2048)),
        (2**17, 2**17, (66, 76, 5), (66, 76, 2049), 22, None),
        (2**17, 2**17, (40, 100, 5), (66, 76, 7), 26, (20, 26, 22, -13, 5, 0)),
        (2**17, 2**16, (20, 140, 1), (20, 140, 1), 41, (35, 38, 10, 0, 1, 1)),
        (2**17, 2**16, (20, 200, 1), (20, 30, 1), 33, (27, 33, 21, 64, 1, 0)),
        (2**17, 2**16, (90, 92, 100), (20, 30, 1), 18, (17, 18, 4, 35, 0, 1)),
    ],
)
def test_what_is_set_apart_is_the_cheapest_of_all(m, n, rows, cols, moduli, expected):
    """(moduli, shared, lowered, balance, wide rows, wide columns); rows and columns
    lack (usual, wide, how many).
    """
    both = few_wide(m, *rows), few_wide(n, *cols)
    assert exact_count(False, int(both[0].max()), int(both[1].max())) == moduli
    found = find_outliers(problem(m, n), both, moduli)
    if expected is None:
        assert found is None
        return
    *_, wide_rows, wide_cols = expected
    assert (found.num_moduli, found.shared, found.lowered, found.balance) == expected[
        :4
    ]
    assert (found.rows, found.cols) == (
        tuple(range(wide_rows)),
        tuple(range(wide_cols)),
    )


def test_the_usual_vector_decides_what_rows_get_at_the_expense_of_columns():
    rows, cols = few_wide(4096, 66, 76, 3), few_wide(4096, 56, 66, 3)
    found = find_outliers(problem(4096, 4096), (rows, cols), 21)
    assert found.balance == 5
    rows[0, 5:9], cols[0, 5:2000] = -7, -7
    again = find_outliers(problem(4096, 4096), (rows, cols), 21)
    assert again == found


def test_products_of_outliers_count_by_the_entries_that_they_make():
    wide = Outliers(6, 8, 4, 0, (0,), (1, 2))
    assert str(wide) == "6 moduli without 1 row and 2 columns"
    assert wide.num_products(problem(2, 3), 9) == 6 + 8 * (1 / 2 + 2 / 3) + 9 * (
        1 / 2
    ) * (2 / 3)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(-60, 60), st.integers(0, 99))
def test_moduli_hold_all_but_the_vectors_that_are_apart(num_rows, num_cols, tilt, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(50, 60, (1, 200)) + tilt
    cols = rng.integers(50, 60, (1, 300)) - tilt
    wide_rows = rng.choice(200, num_rows, replace=False)
    wide_cols = rng.choice(300, num_cols, replace=False)
    rows[0, wide_rows] += rng.integers(300, 2000, num_rows)
    cols[0, wide_cols] += rng.integers(300, 2000, num_cols)
    separate = find_separate((rows, cols))
    assert separate == SeparateVectors(
        tuple(sorted(wide_rows)), tuple(sorted(wide_cols))
    )
    rest = widest(without((rows, cols), separate), 10**6)
    assert exact_count(False, *rest) <= MAX_MODULI


def test_many_wide_vectors_stay_together():
    rows = np.full((1, 200), 50)
    rows[0, :65] = 900
    assert find_separate((rows, np.full((1, 300), 50))) is None
    rows[0, 64] = 50
    assert find_separate((rows, np.full((1, 300), 50))).rows == tuple(range(64))


def test_vectors_are_set_apart_in_large_real_matrices():
    assert may_separate(problem(2048, 2048, 2048))
    assert not may_separate(problem(2048, 2048, 2047))
    assert not may_separate(problem(batch=2))
    assert not may_separate(problem(dtype="complex128"))
    assert not may_separate(problem(k=2**24 + 1))


def test_vectors_that_are_apart_say_so():
    assert str(SeparateVectors((3,), ())) == "1 row by sums in words"
    assert str(SeparateVectors((), (1, 2))) == "2 columns by sums in words"
    fullest = SeparateVectors((0, 1, 5), (9,)).of_fullest_block(4, 4)
    assert fullest == SeparateVectors((0, 1), (0,))
