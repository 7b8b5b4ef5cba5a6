"""Least squares and least norm against exact solutions of the normal equations."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.linalg_enclosures import ulps
from experiments.systems import misses
from hifigemm import linalg
from hifigemm.linalg import least_squares as module

pytest.importorskip("flint")

from tests.linalg.exact_least_squares import (
    exact_lstsq,
    nearly_dependent,
    of_condition,
)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (30, 6), (5, 5), (3, 7), (6, 30)])
@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8, 1e11])
@pytest.mark.parametrize("kind", [float, complex])
def test_no_enclosure_misses(shape, condition, kind):
    rng = np.random.default_rng(shape[0])
    a = of_condition(rng, *shape, condition, kind)
    b = rng.standard_normal((shape[0], 2))
    solution = linalg.lstsq(a, b)
    parts = exact_lstsq(a, b.astype(a.dtype))
    assert misses(solution.x, solution.radius, parts) == []
    assert np.median(ulps(solution.x, solution.radius, parts)) <= 1.0


@pytest.mark.parametrize("condition", [1e13, 1e16, 1e20, 1e24, 1e26])
@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("is_wide", [False, True])
def test_conditions_beyond_those_of_one_word_are_proven(condition, kind, is_wide):
    rng = np.random.default_rng(int(np.log10(condition)))
    for m, n in ((2, 1), (6, 3), (12, 5)):
        a = nearly_dependent(rng, m, n, condition, kind)
        a = a.T if is_wide else a
        b = rng.standard_normal((len(a), 2))
        solution = linalg.lstsq(a, b)
        parts = exact_lstsq(a, b.astype(a.dtype))
        assert misses(solution.x, solution.radius, parts) == []

        # Entries of a solution of least norm may be 1e-52 times the largest one
        largest = np.abs(solution.x).max()
        assert (solution.radius <= 2.0**-52 * largest).all()
        if not is_wide:
            assert max(ulps(solution.x, solution.radius, parts)) <= 1.0


def test_powers_up_to_degree_30_are_proven():
    nodes = np.linspace(0.0, 1.0, 64)
    for degree in (10, 20, 30):
        a = nodes[:, None] ** np.arange(degree + 1)
        b = np.cos(7.0 * nodes)[:, None]
        solution = linalg.lstsq(a, b)
        parts = exact_lstsq(a, b)
        assert misses(solution.x, solution.radius, parts) == []
        assert max(ulps(solution.x, solution.radius, parts)) <= 1.0


def test_weights_of_rows_may_span_twenty_powers_of_ten():
    rng = np.random.default_rng(5)
    weights = 10.0 ** rng.uniform(-10, 10, (20, 1))
    a = weights * rng.standard_normal((20, 8))
    b = weights * rng.standard_normal((20, 2))
    solution = linalg.lstsq(a, b)
    parts = exact_lstsq(a, b)
    assert misses(solution.x, solution.radius, parts) == []
    assert max(ulps(solution.x, solution.radius, parts)) <= 1.0


def test_single_precision_has_the_same_conditions():
    rng = np.random.default_rng(8)
    a = nearly_dependent(rng, 8, 4, 1e20).astype(np.float32)
    b = rng.standard_normal((8, 2)).astype(np.float32)
    solution = linalg.lstsq(a, b)
    assert solution.x.dtype == solution.radius.dtype == np.float32
    parts = exact_lstsq(a.astype(float), b.astype(float))
    assert misses(solution.x, solution.radius, parts) == []
    assert max(ulps(solution.x, solution.radius, parts)) <= 1.0


@pytest.mark.parametrize("kind", ["weights", "dependent"])
def test_a_hundred_columns_of_condition_1e28_are_proven(kind):
    rng = np.random.default_rng(0)
    if kind == "weights":
        weights = np.geomspace(1.0, 1e-28, 101)[:, None]
        a = weights * rng.standard_normal((101, 100))
    else:
        a = nearly_dependent(rng, 300, 100, 1e24)
    solution = linalg.lstsq(a, rng.standard_normal(len(a)))
    assert (solution.radius <= np.spacing(np.abs(solution.x))).all()


@pytest.mark.parametrize("share", [1e-12, 1e-20])
def test_dependent_columns_are_refused_and_neighbours_proven(share):
    a = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, share]])
    assert linalg.lstsq(a, np.ones(3)).x.shape == (2,)
    a[2, 1] = 0.0
    with pytest.raises(linalg.VerificationError, match="rank-deficient"):
        linalg.lstsq(a, np.ones(3))


def test_columns_may_be_graded():
    rng = np.random.default_rng(0)
    for shape in ((9, 4), (4, 9)):
        a = rng.standard_normal(shape)
        powers = rng.integers(-150, 151, min(shape))
        a = np.ldexp(a, powers if shape[1] == 4 else powers[:, None])
        b = rng.standard_normal((shape[0], 1))
        solution = linalg.lstsq(a, b)
        parts = exact_lstsq(a, b)
        assert misses(solution.x, solution.radius, parts) == []
        assert np.median(ulps(solution.x, solution.radius, parts)) <= 1.0


def test_rows_keep_their_weights():
    # A row that is 2^40 times as large decides; scaled to size 1 it would not
    a = np.array([[2.0**40], [1.0]])
    b = np.array([2.0**40, 3.0])
    solution = linalg.lstsq(a, b)
    exact = exact_lstsq(a, b[:, None])
    assert misses(solution.x[:, None], solution.radius[:, None], exact) == []
    assert abs(solution.x[0] - 1.0) < 1e-20 + 2.0**-51


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (4, 4)])
def test_matrices_without_full_rank_raise(shape):
    rng = np.random.default_rng(0)
    least = min(shape)
    left = rng.integers(-9, 10, (shape[0], least - 1))
    right = rng.integers(-9, 10, (least - 1, shape[1]))
    with pytest.raises(linalg.VerificationError, match=r"full rank|nonsingular"):
        linalg.lstsq(left @ right, np.ones(shape[0]))


def test_shapes_and_dtypes_of_results():
    a = np.ones((3, 1), np.float32)
    solution = linalg.lstsq(a, np.array([1.0, 2.0, 6.0], np.float32))
    assert solution.x.dtype == solution.radius.dtype == np.float32
    assert solution.x.tolist() == [3.0]
    assert linalg.lstsq(a, np.ones((3, 4))).x.shape == (1, 4)
    with pytest.raises(ValueError, match="4 rows; expected 3"):
        linalg.lstsq(a, np.ones(4))
    with pytest.raises(np.linalg.LinAlgError, match="expected matrices"):
        linalg.lstsq(np.ones(3), np.ones(3))


@pytest.mark.parametrize("is_wide", [False, True])
def test_reports_say_what_proved_a_solution(is_wide):
    rng = np.random.default_rng(3)
    reports = []
    for condition in (1e2, 1e20):
        a = nearly_dependent(rng, 8, 3, condition)
        a = a.T if is_wide else a
        b = rng.standard_normal(len(a))
        solution, report = linalg.lstsq(a, b, return_report=True)
        assert (solution.x == linalg.lstsq(a, b).x).all()
        # That of the system of the residual and x, where the core solves it
        assert condition <= report.condition <= (1e5 * condition) ** 2
        assert 0.0 < report.norm < 1.0
        assert report.steps >= 1
        reports.append(report)
    assert [report.words for report in reports] == [1, 2]
    assert reports[0].attempts == 1 < reports[1].attempts


def test_reports_of_stacks_and_square_matrices_are_those_of_solve():
    a = np.stack([np.eye(3), np.vander([1.0, 2.0, 3.0])])
    _, report = linalg.lstsq(a, np.ones(3), return_report=True)
    assert report == linalg.solve(a, np.ones((3, 1)), return_report=True)[1]


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_stacks_broadcast(shape):
    rng = np.random.default_rng(6)
    a = rng.standard_normal((4, 1, *shape))
    b = rng.standard_normal((2, shape[0], 3))
    solution = linalg.lstsq(a, b)
    assert solution.x.shape == solution.radius.shape == (4, 2, shape[1], 3)
    for i, j in np.ndindex(4, 2):
        one = linalg.lstsq(a[i, 0], b[j])
        assert (solution.x[i, j] == one.x).all()
        assert (solution.radius[i, j] == one.radius).all()
    vector = linalg.lstsq(a, b[0, :, 0])
    assert vector.x.shape == (4, 1, shape[1])
    a[2] = 0.0
    with pytest.raises(linalg.VerificationError, match=r"2 of 8.*\(2, 0\)") as error:
        linalg.lstsq(a, b)
    assert np.isnan(error.value.solution.x[2]).all()
    assert (error.value.solution.x[3] == solution.x[3]).all()


@pytest.mark.parametrize("counts", [(0, 1), (1, 1), (2, 1), (3, 2), (5, 2)])
def test_sums_of_words_are_exact(counts):
    rng = np.random.default_rng(0)
    sizes = [2.0 ** rng.integers(-200, 60, (50, 2)) for _ in range(sum(counts))]
    words = [rng.standard_normal((50, 2)) * size for size in sizes]
    found = module._sum(words[: counts[0]], words[counts[0] :])
    assert len(found) == sum(counts)
    for i, j in np.ndindex(50, 2):
        exact = sum(Fraction(word[i, j]) for word in words)
        assert sum(Fraction(word[i, j]) for word in found) == exact


def test_each_right_side_has_its_best_step():
    def refined(x, bound):
        row = np.array([bound])
        return module._Refined(np.array([x]), row, row, row < 0.0)

    before = refined([1.0, 2.0], [1e-3, 1e-3])
    best, is_last = refined([3.0, 4.0], [1e-2, 1e-4]).after(before)
    assert best.x.tolist() == [[1.0, 4.0]]
    assert best.radius.tolist() == [[1e-3, 1e-4]]
    assert not is_last
    assert refined([3.0, 4.0], [1e-2, 0.6e-3]).after(before)[1]


def test_radius_has_all_words_behind_the_first():
    words = [np.ones((2, 1)), np.full((2, 1), 2.0**-60), np.full((2, 1), -(2.0**-61))]
    refined = module._Refined.of(words, np.full((2, 1), 2.0**-62), np.ones((1, 1)))
    assert (refined.radius >= 2.0**-60 + 2.0**-61 + 2.0**-62).all()
    assert refined.is_sharp.all()


def test_a_right_side_of_zeros_has_radius_zero():
    solution = linalg.lstsq(np.ones((4, 1)), np.zeros((4, 2)))
    assert (solution.x == 0.0).all()
    assert (solution.radius == 0.0).all()


def test_many_rows_take_memory_of_the_matrix_alone():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((20000, 4))
    x = np.array([1.0, -2.0, 3.0, 0.5])
    solution = linalg.lstsq(a, a @ x)
    assert (np.abs(solution.x - x) <= 1e-9).all()
    assert (solution.radius <= 1e-12).all()
