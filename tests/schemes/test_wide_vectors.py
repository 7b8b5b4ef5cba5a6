"""Rows and columns set apart: the conditions under which everything is exact, and when it pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import gained_bits
from hifigemm.plan import Problem
from hifigemm.schemes.ozaki2 import _exact_choice
from hifigemm.schemes.wide_vectors import may_pay, set_apart

SIZE = 4096
LARGE = 16384


def problem(m=LARGE, n=LARGE, k=LARGE, batch=1, dtype="float64"):
    return Problem(batch, m, n, k, np.dtype(dtype))


def lacking(usual, wide, count, rng):
    """What vectors lack: most at most `usual` bits, a few up to `wide`."""
    x = rng.integers(usual - 8, usual, (1, SIZE), endpoint=True)
    x[0, rng.choice(SIZE, count, replace=False)] = rng.integers(usual, wide, count, endpoint=True)
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
    left, right = (lacking(usual, usual + more, count, rng) for usual, more, count in (rows, cols))
    choice = _exact_choice(False, int(left.max()), int(right.max()), True)
    found = set_apart(problem(SIZE, SIZE), (left, right), choice.count)
    if found is None:
        return
    assert found.num_moduli < found.shared <= choice.count
    assert half_range(found.shared) <= half_range(found.num_moduli) << (2 * found.lowered)
    gained = gained_bits(found.shared, False)
    for x, apart, balance in ((left, found.rows, found.balance), (right, found.cols, -found.balance)):
        wide = np.zeros(SIZE, bool)
        wide[list(apart)] = True
        assert (x[0, ~wide] <= gained + balance - found.lowered).all()
        assert (x[0, wide] > gained + balance - found.lowered).all()
        assert (x[0, wide] <= gained + balance + found.lowered).all()
    work = found.num_moduli + found.shared * (len(found.rows) + len(found.cols)) / SIZE
    assert work < choice.count


def test_random_operands_take_fewer_moduli_than_their_widest_vectors():
    rng = np.random.default_rng(1)
    both = tuple(lacking(66, 76, 40, rng) for _ in range(2))
    count = _exact_choice(False, 76, 76, True).count
    found = set_apart(problem(SIZE, SIZE), both, count)
    assert (count, found.num_moduli, found.shared) == (22, 20, 21)
    assert len(found.rows) < 60
    assert len(found.cols) < 60


def test_vectors_that_lack_the_same_stay_together():
    both = np.full((1, SIZE), 70), np.full((1, SIZE), 60)
    assert set_apart(problem(SIZE, SIZE), both, _exact_choice(False, 70, 60, True).count) is None
    many = np.where(np.arange(SIZE) % 2, 76, 60)[None]
    assert set_apart(problem(SIZE, SIZE), (many, many), _exact_choice(False, 76, 76, True).count) is None


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
