"""What solutions, radii and reports hold, and which systems have none."""

from __future__ import annotations

import inspect
import re
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from tests.linalg.worst_arithmetic import UNIT

pytest.importorskip("flint")

from experiments.systems import of_condition


def test_solutions_beyond_the_range_raise():
    with pytest.raises(linalg.VerificationError, match="beyond the range of float64"):
        linalg.solve([[1e-300]], [1e300])
    small = np.array([[1e-30]], np.float32)
    for accuracy in (None, "correct"):
        with pytest.raises(linalg.VerificationError, match="range of float32"):
            linalg.solve(small, np.array([1e30], np.float32), accuracy=accuracy)


def test_a_stack_that_fails_in_places_carries_what_was_proven():
    a = np.stack([np.eye(2), np.ones((2, 2)), 2.0 * np.eye(2)])
    with pytest.raises(linalg.VerificationError, match=r"1 of 3 systems.*\(1,\)") as e:
        linalg.solve(a, np.ones(2))
    solution = e.value.solution
    assert solution.x[[0, 2]].tolist() == [[1.0, 1.0], [0.5, 0.5]]
    assert np.isinf(solution.radius[1]).all()
    assert np.isnan(solution.x[1]).all()
    assert (solution.radius[[0, 2]] == 0.0).all()


@pytest.mark.parametrize("num_axes", [33, 35, 64])
def test_stacks_have_as_many_axes_as_arrays_of_numpy(num_axes):
    a = np.reshape([4.0, 1.0, 1.0, 2.0], (*(1,) * (num_axes - 2), 2, 2))
    b = np.reshape([5.0, 3.0] * 2, (*(1,) * (num_axes - 3), 2, 2, 1))
    for solution in (linalg.solve(a, b), linalg.lstsq(a, b)):
        assert solution.x.shape == b.shape
        assert (abs(solution.x - 1.0) <= solution.radius).all()
    with pytest.raises(
        ValueError, match=r"stacks .* of a and .* of b do not broadcast"
    ):
        linalg.solve(np.concatenate([a] * 3, -3), b)


def test_the_report_says_what_proved_it():
    rng = np.random.default_rng(0)
    a, b = of_condition(1e6)(rng)
    solution, report = linalg.solve(a, b, return_report=True)
    assert (solution.x == linalg.solve(a, b).x).all()
    assert (report.attempts, report.words) == (1, 1)
    assert report.norm < 1e-6
    inverse = np.abs(np.linalg.inv(a))
    assert 0.1 < report.condition / (inverse @ np.abs(a)).sum(axis=1).max() < 10.0


def test_float32_radii_have_the_rounding_of_x_in_them():
    a = np.array([[3.0]], np.float32)
    solution = linalg.solve(a, np.ones(1, np.float32))
    error = abs(Fraction(float(solution.x[0])) - Fraction(1, 3))
    assert error > UNIT
    assert Fraction(float(solution.radius[0])) >= error


def test_dir_shows_the_public_names_alone():
    assert dir(linalg) == sorted(linalg.__all__)
    assert all(hasattr(linalg, name) for name in dir(linalg))


@pytest.mark.parametrize("name", linalg.__all__)
def test_formulas_of_docstrings_are_code_so_that_markdown_leaves_them_alone(name):
    documentation = inspect.getdoc(getattr(linalg, name))
    prose = re.sub(r"``.*?``|`.*?`|>>>.*", "", documentation, flags=re.DOTALL)
    assert not re.search(r"[*^|]", prose)
