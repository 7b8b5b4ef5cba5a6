"""Solutions and inverses against exact rational ones: no enclosure misses, nothing
false is proven.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import linalg

pytest.importorskip("flint")

from experiments.linalg_enclosures import (
    is_beyond_range,
    matrices,
    wrong,
)
from experiments.systems import (
    FAMILIES,
    exact_parts,
    misses,
    of_condition,
)

MAY_FAIL = {"near singular by an ulp", "exactly singular"}
"""Families with matrices that are singular."""


def drawn(family, seed):
    """The matrices of one draw of a family."""
    rng = np.random.default_rng([7, seed])
    return list(matrices(*FAMILIES[family](rng)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILIES)
def test_no_enclosure_misses_and_correct_solutions_are_the_nearest(family, seed):
    for a, b in drawn(family, seed):
        parts = exact_parts(a, b)
        may_fail = parts is None or is_beyond_range(parts, a.dtype)
        for accuracy in (None, "correct"):
            try:
                solution = linalg.solve(a, b, accuracy=accuracy)
            except linalg.VerificationError:
                assert may_fail or family in MAY_FAIL
                continue
            assert parts is not None, "a singular matrix was proven nonsingular"
            assert misses(solution.x, solution.radius, parts) == []
            assert solution.x.dtype == np.result_type(a, b)
            assert solution.radius.dtype == solution.x.real.dtype
            assert accuracy is None or wrong(solution.x, parts) == 0


@pytest.mark.parametrize("seed", range(100))
def test_singular_matrices_raise(seed):
    ((a, b),) = drawn("exactly singular", seed)
    with pytest.raises(linalg.VerificationError, match="nonsingular"):
        linalg.solve(a, b)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_radii_are_half_a_unit_where_the_condition_leaves_room(condition):
    rng = np.random.default_rng(0)
    radii = []
    for _ in range(20):
        a, b = of_condition(condition)(rng)
        solution = linalg.solve(a, b)
        radii.extend((solution.radius / np.spacing(np.abs(solution.x))).ravel())
    assert np.median(radii) <= 0.5


@pytest.mark.parametrize("family", ["random", "condition 1e8", "complex", "float32"])
def test_inverses_enclose_the_exact_ones(family):
    for seed in range(3):
        ((a, _),) = drawn(family, seed)
        inverse = linalg.inv(a)
        parts = exact_parts(a, np.eye(len(a)))
        assert misses(inverse.x, inverse.radius, parts) == []
        assert inverse.x.dtype == a.dtype


def test_a_vector_has_one_axis():
    a = np.array([[[2.0, 0.0], [0.0, 4.0]]] * 3)
    assert linalg.solve(a, np.ones(2)).x.shape == (3, 2)
    assert linalg.solve(a, np.ones((2, 5))).x.shape == (3, 2, 5)
    assert linalg.solve(a[0], np.ones((4, 1, 2, 5))).x.shape == (4, 1, 2, 5)
    assert linalg.solve(a, np.ones((4, 1, 2, 5))).x.shape == (4, 3, 2, 5)
    assert (linalg.solve(a, np.ones(2)).radius == 0.0).all()


def test_nothing_has_a_solution_of_nothing():
    assert linalg.solve(np.ones((0, 0)), np.ones((0, 3))).x.shape == (0, 3)
    assert linalg.solve(np.eye(2), np.ones((2, 0))).radius.shape == (2, 0)
    assert linalg.solve(np.ones((0, 2, 2)), np.ones(2)).x.shape == (0, 2)


def test_zeros_are_solved_by_zeros_with_radius_zero():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 5))
    b = rng.standard_normal((5, 3))
    b[:, 1] = 0.0
    solution = linalg.solve(a, b)
    assert (solution.x[:, 1] == 0.0).all()
    assert (solution.radius[:, 1] == 0.0).all()
    assert (solution.radius[:, 0] > 0.0).all()
    with pytest.raises(linalg.VerificationError):
        linalg.solve(np.ones((5, 5)), np.zeros(5))


def test_integers_count_as_float64_and_are_not_rounded():
    solution = linalg.solve([[1, 2], [3, 4]], np.array([5, 6], np.int32))
    assert solution.x.tolist() == [-4.0, 4.5]
    assert solution.radius.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="not exact"):
        linalg.solve(np.array([[2**53 + 1, 0], [0, 1]]), np.ones(2))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_inf_and_nan_raise(value):
    a = np.eye(3)
    b = np.ones(3)
    a[1, 2] = value
    with pytest.raises(linalg.VerificationError, match="1 of 9 entries of a"):
        linalg.solve(a, b)
    b[0] = value
    with pytest.raises(linalg.VerificationError, match="of b are Inf or NaN"):
        linalg.solve(np.eye(3), b)


def test_shapes_that_do_not_fit_raise():
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.solve(np.ones((2, 3)), np.ones(2))
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.inv(np.ones(2))
    with pytest.raises(ValueError, match="3 rows; expected 2"):
        linalg.solve(np.eye(2), np.ones(3))
    with pytest.raises(hg.PlanError, match="accuracy=1e-08"):
        linalg.solve(np.eye(2), np.ones(2), accuracy=1e-8)


def test_operands_stay_as_they_are():
    rng = np.random.default_rng(0)
    a = np.asfortranarray(rng.standard_normal((6, 6)))[::-1]
    b = rng.standard_normal((12, 2))[::2]
    copies = a.copy(), b.copy()
    a.flags.writeable = b.flags.writeable = False
    solution = linalg.solve(a, b)
    assert (a == copies[0]).all()
    assert (b == copies[1]).all()
    again = linalg.solve(*copies)
    assert (solution.x == again.x).all()


def test_prepared_operands_raise():
    plan = hg.make_plan(np.eye(2), np.eye(2), accuracy="correct")
    left = hg.prepare(np.eye(2), "left", plan=plan)
    with pytest.raises(TypeError, match="prepared"):
        linalg.solve(left, np.ones(2))
