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
    ulps,
    wrong,
)
from experiments.systems import (
    FAMILIES,
    SPARSE,
    exact_parts,
    misses,
    of_condition,
)

ALL = {**FAMILIES, **SPARSE}
MAY_FAIL = {"near singular by an ulp", "exactly singular"}
"""Families with matrices that are singular."""


def drawn(family, seed):
    """The matrices of one draw of a family."""
    rng = np.random.default_rng([7, seed])
    return list(matrices(*ALL[family](rng)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", ALL)
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


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("family", SPARSE)
def test_sparse_systems_in_any_units_are_solved_to_a_unit(family, seed):
    """Of all entries that a column of normal numbers leads to."""
    ((a, _),) = drawn(family, seed)
    b = np.random.default_rng(seed).standard_normal((len(a), 1))
    solution = linalg.solve(a, b)
    parts = exact_parts(a, b)
    assert misses(solution.x, solution.radius, parts) == []
    assert max(ulps(solution.x, solution.radius, parts)) <= 1.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", SPARSE)
def test_inverses_and_square_least_squares_of_sparse_matrices(family, seed):
    ((a, b),) = drawn(family, seed)
    solution = linalg.lstsq(a, b)
    assert misses(solution.x, solution.radius, exact_parts(a, b)) == []
    identity = np.eye(len(a))
    parts = exact_parts(a, identity)
    if not is_beyond_range(parts, a.dtype):
        inverse = linalg.inv(a)
        assert misses(inverse.x, inverse.radius, parts) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [np.float32, np.complex128])
def test_other_dtypes_are_scaled_alike(kind, seed):
    rng = np.random.default_rng([13, seed])
    n = 60
    units = 4.0 ** (np.arange(n) % 30 if kind is np.float32 else np.arange(n))
    a = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    a = (units[:, None] * a * units).astype(kind)
    if kind is np.complex128:
        a = a * (1j ** rng.integers(0, 4, (n, 1)))
    b = rng.standard_normal((n, 1)).astype(kind)
    solution = linalg.solve(a, b)
    assert misses(solution.x, solution.radius, exact_parts(a, b)) == []


def test_a_vector_has_one_axis():
    a = np.array([[[2.0, 0.0], [0.0, 4.0]]] * 3)
    assert linalg.solve(a, np.ones(2)).x.shape == (3, 2)
    assert linalg.solve(a, np.ones((2, 5))).x.shape == (3, 2, 5)
    assert linalg.solve(a[0], np.ones((4, 1, 2, 5))).x.shape == (4, 1, 2, 5)
    assert linalg.solve(a, np.ones((4, 1, 2, 5))).x.shape == (4, 3, 2, 5)
    assert (linalg.solve(a, np.ones(2)).radius == 0.0).all()


EMPTY = (
    ((0, 0), (0,)),
    ((0, 0), (0, 2)),
    ((0, 0), (0, 0)),
    ((2, 2), (2, 0)),
    ((3, 0, 0), (0, 2)),
    ((0, 0), (3, 0, 2)),
    ((0, 2, 2), (2,)),
    ((0, 2, 2), (0, 2, 3)),
    ((2, 0, 3, 3), (3, 1)),
)
"""Shapes of systems without an entry of x."""
DTYPES = "float32", "float64", "complex64", "complex128", "int64", "int8", "bool"


@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize("shapes", EMPTY)
@pytest.mark.parametrize("kind", DTYPES)
def test_nothing_has_a_solution_of_nothing(kind, shapes, accuracy):
    shape_of_a, shape_of_b = shapes
    a = np.broadcast_to(np.eye(shape_of_a[-1]), shape_of_a).astype(kind)
    for kind_of_b in DTYPES:
        b = np.ones(shape_of_b, kind_of_b)
        solution, report = linalg.solve(a, b, accuracy=accuracy, return_report=True)
        same = linalg.solve(a, b, accuracy=accuracy)
        least = linalg.lstsq(a, b)

        # Integers and bools count as float64 for numpy.linalg too
        numbers = [x.astype(float) if x.dtype.kind == "b" else x for x in (a, b)]
        expected = np.linalg.solve(*numbers)
        for x in (solution, same, least):
            assert x.x.shape == x.radius.shape == expected.shape
            assert x.x.dtype == expected.dtype
            assert x.radius.dtype == expected.real.dtype
        assert report.norm < 1.0


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 2, 2), (2, 0, 3, 3)])
@pytest.mark.parametrize("kind", DTYPES)
def test_matrices_of_nothing(kind, shape):
    a = np.ones(shape, kind)
    assert linalg.inv(a).x.shape == shape
    assert np.shape(linalg.is_positive_definite(a)) == shape[:-2]
    assert np.all(linalg.is_positive_definite(a))

    # Without rows the determinant is one
    d = linalg.det(a)
    if a.dtype.kind == "c":
        assert np.all(d.center == 1.0)
        assert np.all(d.radius == 0.0)
        assert np.shape(d.center) == shape[:-2]
    else:
        assert np.all(d.lower == 1.0)
        assert np.all(d.upper == 1.0)
        assert np.shape(d.sign) == shape[:-2]


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
    beyond = linalg.solve(np.array([[2**53 + 1, 0], [0, 1]]), [2**53 + 1, 1])
    assert beyond.x.tolist() == [1.0, 1.0]
    assert beyond.radius.tolist() == [0.0, 0.0]


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
