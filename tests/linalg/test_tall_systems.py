"""Least squares of tall matrices, which the compiled core solves from end to end."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.systems import misses
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import least_squares, solution
from hifigemm.linalg.full_rank import proven_full_rank
from hifigemm.linalg.scaling import scaled_columns
from tests.linalg.exact_least_squares import exact_lstsq, nearly_dependent, of_condition

if core.loaded()[0] is None:
    pytest.skip("the compiled core is not here", allow_module_level=True)

MODULE = core.loaded()[0]


def by_core(a, b):
    """What the core makes of one problem, and what it says of it."""
    solved = core.solved_stack(a[None], b[None])
    return solved.x[0], solved.radius[0], solved.proofs[0]


@pytest.mark.parametrize("name", MODULE.instructions)
@pytest.mark.parametrize("exponent", range(0, 14, 2))
def test_no_radius_misses_at_any_condition(exponent, name):
    MODULE.use(name)
    try:
        solved = 0
        for seed in range(20):
            rng = np.random.default_rng([exponent, seed])
            n = int(rng.integers(1, 9))
            m = n + int(rng.integers(1, 30))
            draw = nearly_dependent if seed % 4 == 3 and m >= 2 * n else of_condition
            a = draw(rng, m, n, 10.0**exponent)
            b = rng.standard_normal((m, 2))
            if seed % 2:
                b[:, 1] = a @ rng.standard_normal(n)
            x, radius, proof = by_core(a, b)
            if proof[0] == 0.0:
                continue
            solved += 1
            assert misses(x, radius, exact_lstsq(a, b)) == []
            assert (radius <= 0.65 * np.spacing(np.abs(x).max())).all()
        assert solved >= (15 if exponent <= 10 else 0)
    finally:
        MODULE.use(MODULE.instructions[0])


@pytest.mark.parametrize(("m", "n"), [(40, 3), (4, 3), (25, 12)])
def test_the_norm_has_the_parts_of_the_theorem(m, n):
    # What products may err by is most of it, for whatever Q and V
    rng = np.random.default_rng(m)
    a = np.linalg.qr(rng.standard_normal((m, n)))[0]
    tall, _ = scaled_columns(a)
    proof, _ = proven_full_rank(tall)
    _, condition, norm, _ = by_core(a, rng.standard_normal((m, 1)))[2]
    # Norms here are those of squares, and there a little more
    assert 0.75 * proof.norm <= norm <= proof.norm
    assert 0.7 * proof.condition <= condition <= proof.condition


def test_units_of_columns_and_sides_do_not_matter():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((12, 4)), rng.standard_normal((12, 2))
    x, radius, _ = by_core(a, b)
    columns, sides = np.array([100, -150, 3, 0]), np.array([-90, 120])
    got = by_core(np.ldexp(a, columns), np.ldexp(b, sides))
    exponents = sides - columns[:, None]
    np.testing.assert_array_equal(got[0], np.ldexp(x, exponents))
    np.testing.assert_array_equal(got[1], np.ldexp(radius, exponents))


def test_a_side_of_zeros_is_solved_exactly_and_whole_numbers_closely():
    rng = np.random.default_rng(2)
    a = np.rint(9.0 * rng.standard_normal((9, 3)))
    b = np.stack([np.zeros(9), a @ [1.0, 0.0, -2.0]], axis=1)
    x, radius, proof = by_core(a, b)
    assert proof[0] == 1.0
    assert (x[:, 0] == 0.0).all()
    assert (radius[:, 0] == 0.0).all()
    assert (np.abs(x[:, 1] - [1.0, 0.0, -2.0]) <= radius[:, 1]).all()
    assert radius.max() <= 2.0**-100


@pytest.mark.parametrize("kind", ["rank", "wild", "not finite", "side"])
def test_what_is_left_is_deficient_or_wild(kind):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((9, 3)), rng.standard_normal((9, 1))
    if kind == "rank":
        a[:, 2] = a[:, 0] + a[:, 1]
    if kind == "wild":
        a[1, 1] = 2.0**300
    if kind == "not finite":
        a[1, 1] = np.nan
    if kind == "side":
        b[2, 0] = np.inf
    assert by_core(a, b)[2][0] == 0.0


def test_problems_of_a_middle_size_never_reach_the_general_way(monkeypatch):
    monkeypatch.setattr(least_squares, "_solved", None)
    rng = np.random.default_rng(4)
    m, n = solution.MOST_SMALL, 8
    for dtype in (float, complex, np.float32):
        for condition in (1e1, 1e4) if dtype == np.float32 else (1e1, 1e9):
            a = np.stack([of_condition(rng, m, n, condition) for _ in range(3)])
            b = rng.standard_normal((3, m, 2))
            if dtype is complex:
                a = a * (1.0 + 0.5j)
            a, b = a.astype(dtype), b.astype(dtype)
            found, report = linalg.lstsq(a, b, return_report=True)
            assert found.x.dtype == dtype
            assert condition / 4 < report.condition
            assert report.steps >= (1 if condition < 1e5 else 2)
            for x, radius, matrix, side in zip(found.x, found.radius, a, b):
                assert misses(x, radius, exact_lstsq(matrix, side)) == []


def test_large_problems_and_many_sides_go_the_general_way(monkeypatch):
    rng = np.random.default_rng(5)
    few = rng.standard_normal((90, 5)), rng.standard_normal(90)
    many = few[0], rng.standard_normal((90, least_squares._MOST_TERMS // 3600 + 1))
    large = rng.standard_normal((1200, 40)), rng.standard_normal(1200)
    expected = [linalg.lstsq(*operands) for operands in (many, large)]
    monkeypatch.setattr(core, "solved_stack", None)
    for operands, solved in zip((many, large), expected):
        np.testing.assert_array_equal(linalg.lstsq(*operands).x, solved.x)
    with pytest.raises(TypeError):
        linalg.lstsq(*few)


def test_shapes_that_do_not_fit_raise():
    good = [np.ones(shape) for shape in ((1, 5, 2), (1, 5, 1), (1, 2, 1), (1, 2, 1))]
    proofs = np.empty((1, 1, 4))
    MODULE.solve_small(*good, proofs)
    for position, shape in ((0, (1, 2, 5)), (1, (1, 2, 1)), (2, (1, 5, 1))):
        bad = list(good)
        bad[position] = np.ones(shape)
        with pytest.raises(ValueError, match="do not fit"):
            MODULE.solve_small(*bad, proofs)
