"""Stacks of small systems, which the compiled core solves from end to end."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.linalg_enclosures import wrong
from experiments.linalg_full_rank import FAMILIES as LEAST_SQUARES
from experiments.systems import (
    FAMILIES,
    SPARSE,
    exact_parts,
    misses,
    of_condition,
)
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.engines.threads import side_by_side
from hifigemm.linalg import least_squares, solution
from tests.linalg.exact_least_squares import exact_lstsq

if core.loaded()[0] is None:
    pytest.skip("the compiled core is not here", allow_module_level=True)

REAL = [
    name
    for name in {**FAMILIES, **SPARSE}
    if name not in ("complex", "complex64", "float32", "stacks")
]
MODULE = core.loaded()[0]


def by_core(a, b):
    """What the core makes of one system, and what it says of it."""
    b = b[:, None] if b.ndim == 1 else b
    solved = core.solved_stack(a[None], b[None])
    return solved.x[0], solved.radius[0], solved.proofs[0]


@pytest.mark.parametrize("name", MODULE.instructions)
@pytest.mark.parametrize("family", REAL)
def test_no_radius_misses_and_the_nearest_numbers_are_the_nearest(family, name):
    MODULE.use(name)
    try:
        for seed in range(10):
            rng = np.random.default_rng([23, seed])
            a, b = {**FAMILIES, **SPARSE}[family](rng)
            for side in (b, np.eye(len(a))):
                x, radius, (status, condition, norm, _) = by_core(
                    a.astype(float), side.astype(float)
                )
                if status == 0.0:
                    continue
                parts = exact_parts(a, side)
                assert parts is not None, "a singular matrix was proven nonsingular"
                assert misses(x, radius, parts) == []
                assert norm < 0.5
                assert condition >= 1.0 - 2.0**-50
                if status == 2.0:
                    assert wrong(x, parts) == 0
    finally:
        MODULE.use(MODULE.instructions[0])


@pytest.mark.parametrize("exponent", range(1, 14, 2))
def test_ordinary_systems_are_solved_up_to_a_condition_of_1e12(exponent):
    rng = np.random.default_rng(exponent)
    draw = of_condition(10.0 ** (exponent - 1.0))
    solved = 0
    for _ in range(50):
        a, b = draw(rng)
        b = b[:, :1] if b.ndim == 2 else b
        x, radius, proof = by_core(a, b)
        solved += proof[0] > 0.0
        if proof[0] > 0.0:
            assert (radius[:, 0] <= np.spacing(np.abs(x[:, 0]))).all()
    assert solved >= 45


def test_solutions_with_zeros_and_whole_numbers_are_exact_or_nearly_so():
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    x, radius, proof = by_core(a, np.array([1.0, 1.0]))
    assert (x[:, 0] == [-1.0, 1.0]).all()
    assert (radius == 0.0).all()
    assert proof[0] == 2.0

    rng = np.random.default_rng(2)
    for _ in range(200):
        triangle = np.triu(rng.standard_normal((6, 6)))
        b = np.zeros(6)
        b[:3] = rng.standard_normal(3)
        x, radius, proof = by_core(triangle, b)
        assert proof[0] > 0.0
        assert (np.abs(x[3:]) <= radius[3:]).all()
        assert radius.max() <= np.spacing(np.abs(x).max())

    x, radius, proof = by_core(rng.standard_normal((5, 5)), np.zeros(5))
    assert (x == 0.0).all()
    assert (radius == 0.0).all()
    assert proof[0] == 2.0


def test_what_is_left_is_singular_wild_or_subnormal():
    for a, b in (
        (np.ones((2, 2)), np.ones(2)),
        (np.zeros((3, 3)), np.ones(3)),
        (np.diag([1.0, 2.0**300]), np.ones(2)),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), np.ones(2)),
        (np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([np.inf, 1.0])),
        (np.diag([2.0**199] * 2) * 3.0, np.array([2.0**-200, 1.0])),
    ):
        *_, proof = by_core(a, b)
        assert proof[0] == 0.0 or np.isfinite(b).all()
    *_, proof = by_core(np.ones((2, 2)), np.ones(2))
    assert proof[0] == 0.0


def test_one_failure_in_a_stack_harms_no_other():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((5, 4, 4))
    b = rng.standard_normal((5, 4, 2))
    want = linalg.solve(a, b)
    a[1] = 1.0
    b[3, 2, 1] = np.inf
    with pytest.raises(
        linalg.VerificationError, match=r"2 of 5 systems .* \(1,\)"
    ) as error:
        linalg.solve(a, b)
    found = error.value.solution
    good = [0, 2, 4]
    assert (found.x[good] == want.x[good]).all()
    assert (found.radius[good] == want.radius[good]).all()
    assert np.isnan(found.x[[1, 3]]).all()
    assert np.isinf(found.radius[[1, 3]]).all()


@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_stack_has_the_solutions_of_its_systems(dtype, accuracy):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((2, 1, 5, 5)).astype(dtype)
    b = rng.standard_normal((3, 5, 2)).astype(dtype)
    a[1, 0] = np.triu(a[1, 0])
    found, report = linalg.solve(a, b, accuracy=accuracy, return_report=True)
    assert found.x.shape == (2, 3, 5, 2)
    assert found.x.dtype == dtype
    for i, j in np.ndindex(2, 3):
        one, of_one = linalg.solve(a[i, 0], b[j], accuracy=accuracy, return_report=True)
        assert (found.x[i, j] == one.x).all()
        assert (found.radius[i, j] == one.radius).all()
        assert of_one.condition <= report.condition
        assert misses(one.x, one.radius, exact_parts(a[i, 0], b[j])) == []


def test_larger_systems_and_many_sides_go_the_general_way(monkeypatch):
    monkeypatch.setattr(core, "solved_stack", None)
    rng = np.random.default_rng(5)
    n = solution.MOST_SMALL + 1
    linalg.solve(rng.standard_normal((n, n)), rng.standard_normal(n))
    few, many = 8, solution.MOST_ENTRIES_OF_SIDES // 8 + 1
    linalg.solve(rng.standard_normal((few, few)), rng.standard_normal((few, many)))
    n = solution.MOST_SMALL // 2 + 1
    complex_matrix = rng.standard_normal((n, n)) + 1j
    linalg.solve(complex_matrix, np.ones(n))


@pytest.mark.parametrize("name", MODULE.instructions)
def test_radii_count_what_close_sums_err_by(name):
    # Equal terms leave equal rests, whose sum is rounded in one direction; without the share
    # of the sums 13 radii of these miss
    MODULE.use(name)
    try:
        for seed in range(10):
            rng = np.random.default_rng(seed)
            a = np.eye(64)
            a[0, 1:] = rng.uniform(0.5, 1.0)
            b = np.tile(rng.uniform(0.5, 1.0, 64), (64, 1))
            b[0] = rng.uniform(1.0, 2.0, 64)
            x, radius, proof = by_core(a, b)
            assert proof[0] > 0.0
            assert misses(x, radius, exact_parts(a, b)) == []
    finally:
        MODULE.use(MODULE.instructions[0])


def test_exact_solutions_of_several_sides_have_no_radius():
    rng = np.random.default_rng(9)
    a = np.eye(6) + np.triu(rng.integers(-1, 2, (6, 6)), 1)
    x = np.rint(9.0 * rng.standard_normal((6, 5)))
    x[5] = 0.0
    solution, radius, _ = by_core(a, a @ x)
    assert (solution == x).all()
    assert (radius == 0.0).all()


@pytest.mark.parametrize("place", ["a", "x"])
def test_residuals_of_several_sides_that_are_lost_are_not_zero(place):
    # The second word is 2^-60 where 2^-120 is added to it, and then zero
    a = np.eye(4)
    x = np.ones((4, 5))
    terms = np.array([2.0**-60, 2.0**-120, -(2.0**-60)])
    a[0, 1:] = terms if place == "a" else 1.0
    if place == "x":
        x[1:] = terms[:, None]
    solution, radius, _ = by_core(a, x)
    assert (solution == x).all()
    assert misses(solution, radius, exact_parts(a, x)) == []


@pytest.fixture
def without_the_general_way(monkeypatch):
    monkeypatch.setattr(solution, "certified_system", None)


@pytest.mark.usefixtures("without_the_general_way")
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_complex_systems_are_real_ones_of_twice_the_rows(accuracy):
    rng = np.random.default_rng(6)
    for n, k in ((1, 1), (2, 3), (5, 1), (16, 2)):
        re, im = rng.standard_normal((2, 4, n, n))
        of_re, of_im = rng.standard_normal((2, 4, n, k))
        a = re + 1j * im
        b = of_re + 1j * of_im
        solved = linalg.solve(a, b, accuracy=accuracy)
        assert solved.x.dtype == complex
        for i in range(4):
            parts = exact_parts(a[i], b[i])
            assert misses(solved.x[i], solved.radius[i], parts) == []
            if accuracy == "correct":
                assert wrong(solved.x[i], parts) == 0
    inverse = linalg.inv(a)
    parts = exact_parts(a[0], np.eye(n))
    assert misses(inverse.x[0], inverse.radius[0], parts) == []


@pytest.mark.usefixtures("without_the_general_way")
def test_complex_systems_of_float32_are_rounded_to_complex64():
    rng = np.random.default_rng(7)
    a = (rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))).astype("c8")
    b = rng.standard_normal((3, 1)).astype(np.float32)
    solved = linalg.solve(a, b)
    assert solved.x.dtype == np.complex64
    assert solved.radius.dtype == np.float32
    assert misses(solved.x, solved.radius, exact_parts(a, b)) == []


def test_least_squares_of_small_complex_matrices_need_no_general_way(monkeypatch):
    monkeypatch.setattr(least_squares, "proven_full_rank", None)
    rng = np.random.default_rng(8)
    for m, n in ((8, 3), (3, 8), (12, 4)):
        a = rng.standard_normal((2, m, n)) + 1j * rng.standard_normal((2, m, n))
        b = rng.standard_normal((2, m, 2)) - 1j
        solved = linalg.lstsq(a, b)
        for i in range(2):
            exact = exact_lstsq(a[i], b[i])
            assert misses(solved.x[i], solved.radius[i], exact) == []


def test_threads_share_a_stack_and_change_no_bit(monkeypatch):
    rng = np.random.default_rng(9)
    a = rng.standard_normal((1001, 4, 4))
    b = rng.standard_normal((1001, 4, 1))
    alone = core.solved_stack(a, b)
    sizes = []

    def counted(task, shares):
        sizes.extend(share.stop - share.start for share in shares)
        return side_by_side(task, shares)

    monkeypatch.setattr(core, "SHARE", 1e5)
    monkeypatch.setattr(core.threads, "limit", lambda: 3)
    monkeypatch.setattr(core.threads, "side_by_side", counted)
    shared = core.solved_stack(a, b)
    assert sizes == [334] * 3
    for of_one, of_three in zip(alone, shared):
        assert (of_one == of_three).all()


def test_an_error_in_one_thread_ends_the_others():
    def check():
        raise KeyError

    a = np.tile(np.eye(8) + 0.1, (200_000, 1, 1))
    b = np.ones((200_000, 8, 1))
    out = [np.empty_like(b), np.empty_like(b), np.empty((200_000, 1, 4))]
    with pytest.raises(KeyError):
        MODULE.solve_small(a, b, *out, check)


def test_arguments_that_do_not_fit_are_refused():
    good = [
        np.ones((2, 3, 3)),
        np.ones((2, 3, 1)),
        np.ones((2, 3, 1)),
        np.ones((2, 3, 1)),
        np.ones((2, 1, 4)),
    ]
    MODULE.solve_small(*good)
    with pytest.raises(TypeError, match="five arguments"):
        MODULE.solve_small(*good[:4])
    for i, shape in ((0, (2, 3, 2)), (1, (1, 3, 1)), (2, (2, 2, 1)), (4, (2, 1, 3))):
        bad = [*good]
        bad[i] = np.ones(shape)
        with pytest.raises(ValueError, match="shapes"):
            MODULE.solve_small(*bad)
    bad = [*good]
    bad[0] = good[0].astype(np.float32)
    with pytest.raises(TypeError, match="float64"):
        MODULE.solve_small(*bad)


@pytest.mark.parametrize("family", LEAST_SQUARES)
def test_least_squares_and_least_norm_of_few_rows_and_columns(family):
    rng = np.random.default_rng([29, len(family)])
    for seed in range(25):
        a = LEAST_SQUARES[family](rng)
        if a.shape[0] == a.shape[1] or sum(a.shape) > solution.MOST_SMALL:
            continue
        a = a.T if seed % 3 == 0 else a
        b = rng.standard_normal((a.shape[0], 2))
        try:
            found = linalg.lstsq(a, b)
        except linalg.VerificationError:
            continue
        assert misses(found.x, found.radius, exact_lstsq(a, b)) == []


def test_stacks_of_least_squares_have_the_answers_of_their_matrices():
    rng = np.random.default_rng(8)
    a = rng.standard_normal((6, 7, 3))
    a[2, :, 2] = a[2, :, 1]
    b = rng.standard_normal((6, 7, 2))
    with pytest.raises(
        linalg.VerificationError, match=r"1 of 6 systems .* \(2,\)"
    ) as error:
        linalg.lstsq(a, b)
    found = error.value.solution
    for i in (0, 1, 3, 4, 5):
        one = linalg.lstsq(a[i], b[i])
        assert (found.x[i] == one.x).all()
        assert (found.radius[i] == one.radius).all()
        assert (one.radius <= np.spacing(np.abs(one.x))).all()
    graded = a[0] * [1.0, 2.0**-180, 2.0**150]
    assert (
        linalg.lstsq(graded, b[0]).radius < 1e-14 * np.abs(linalg.lstsq(graded, b[0]).x)
    ).all()


def test_least_squares_beyond_the_range_of_float64_are_refused():
    small = 2.0**-1000
    b = np.array([2.0**100, 2.0**100])
    for a in ([[small], [small]], [[small], [3.0 * small]]):
        with pytest.raises(linalg.VerificationError, match="beyond the range"):
            linalg.lstsq(np.array(a), b)
    stack = np.array([[[small], [3.0 * small]], [[1.0], [2.0]]])
    with pytest.raises(
        linalg.VerificationError, match=r"1 of 2 systems .* \(0,\)"
    ) as error:
        linalg.lstsq(stack, b[:, None])
    assert np.isfinite(error.value.solution.radius[1]).all()
