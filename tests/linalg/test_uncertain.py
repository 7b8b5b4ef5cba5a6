"""Solutions of uncertain data: every system within the radii, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import linalg
from hifigemm.linalg import uncertain
from hifigemm.linalg.certificate import Magnitudes, prove
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.scaling import matching, scaled_system, scaled_upwards
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import (
    deviation,
    exact_matmul,
    fractions,
    make_certificates_worst,
    moduli,
)

pytest.importorskip("flint")

from experiments.linalg_uncertain import FAMILIES, Counts, in_flint, solution_of


def drawn(family, seed):
    """A box of a family."""
    return FAMILIES[family](np.random.default_rng([11, seed]))


# All systems within the radii


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_no_corner_lies_outside_and_small_boxes_are_sharp(family, seed):
    counts = Counts()
    counts.add(drawn(family, seed), is_inverse=seed == 3)
    numbers = counts.numbers
    assert numbers["vertex systems"] > 0
    assert numbers["missed"] == 0
    assert numbers["proven singular"] == 0
    assert numbers["factor failed"] == 0
    assert max(counts.ratios["small"], default=1.0) < 1.01


def test_the_judge_sees_radii_that_are_too_small(monkeypatch):
    sharp = linalg.solve

    def short(*operands, **options):
        solution, report = sharp(*operands, **options)
        shortened = linalg.VerifiedSolution(solution.x, 0.99 * solution.radius)
        return shortened, report

    box = drawn("one radius", 0)
    exact = linalg.solve(box.a, box.b)
    monkeypatch.setattr(linalg, "solve", short)
    solution, _ = solution_of(box, False)
    monkeypatch.undo()
    counts = Counts()
    counts.judge(box, solution, 1)
    assert counts.numbers["missed"] > 0
    assert (solution.x == exact.x).all()


@pytest.mark.parametrize("seed", range(50))
def test_boxes_with_a_singular_matrix_are_refused(seed):
    box = drawn("singular in the box", seed)
    with pytest.raises(linalg.VerificationError) as error:
        linalg.solve(box.a, box.b, a_radius=box.a_radius, b_radius=box.b_radius)
    factor = error.value.proven_factor
    assert factor is None or factor < 1.0


def test_a_refusal_says_how_large_radii_are_proven():
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    b = np.ones(2)
    with pytest.raises(linalg.VerificationError, match=r"up to 0\.1998 times") as error:
        linalg.solve(a, b, a_radius=1.0)

    # |A^-1| E has the eigenvalues 5 and 0
    factor = error.value.proven_factor
    assert 0.2 * (1.0 - 2.0**-29) < factor < 0.2
    assert np.isfinite(linalg.solve(a, b, a_radius=factor).radius).all()
    with pytest.raises(linalg.VerificationError) as error:
        linalg.solve(np.ones((2, 2)), b, a_radius=1.0)
    assert error.value.proven_factor is None


@pytest.mark.parametrize("seed", range(10))
def test_factors_come_close_to_the_reciprocal_of_the_spectral_radius(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    a = rng.standard_normal((n, n))
    shape = rng.uniform(0.0, 1.0, (n, n)) * (rng.random((n, n)) < 0.7)
    product = np.abs(np.linalg.inv(a)) @ shape
    spectral_radius = np.abs(np.linalg.eigvals(product)).max()
    with pytest.raises(linalg.VerificationError) as error:
        linalg.inv(a, a_radius=100.0 * shape / spectral_radius)
    assert 0.99 < 100.0 * error.value.proven_factor < 1.0 + 1e-9


@pytest.mark.parametrize(
    "shape",
    [
        [[0.5, 100.0], [0.0, 0.5]],  # one eigenvector with a zero
        [[0.0, 100.0], [0.009, 0.0]],  # eigenvalues of both signs
        [[0.0, 0.0], [100.0, 0.0]],  # none but zero
    ],
)
def test_weights_prove_what_sums_of_rows_do_not(shape):
    solution = linalg.solve(np.eye(2), np.ones(2), a_radius=shape)
    assert np.isfinite(solution.radius).all()
    neighbour = np.eye(2) + np.multiply(shape, [[1.0, -1.0], [-1.0, 1.0]])
    change = np.abs(np.linalg.solve(neighbour, np.ones(2)) - solution.x)
    assert (change <= solution.radius).all()


def test_small_entries_have_small_radii():
    # One row is far more uncertain than the other, and they do not depend on each other
    a = np.array([[1.0, 0.0], [0.0, 2.0]])
    radius = np.array([[0.9, 0.0], [0.0, 2.0**-30]])
    solution = linalg.solve(a, np.ones(2), a_radius=radius)
    assert 8.9 < solution.radius[0] < 10.0
    assert solution.radius[1] < 2.0**-31


# Radii of nothing, and what is no radius

KINDS = "float32", "float64", "complex64", "complex128", "int64"


@pytest.mark.parametrize("kind", KINDS)
def test_radii_of_zero_are_no_radii(kind):
    rng = np.random.default_rng(5)
    stack = np.rint(8.0 * rng.standard_normal((3, 4, 4))).astype(kind)
    b = np.rint(8.0 * rng.standard_normal((4, 2))).astype(kind)
    for a in (stack[0], stack):
        want = linalg.solve(a, b)
        for options in (
            {"a_radius": 0.0},
            {"a_radius": 0, "b_radius": np.float32(0.0)},
            {"b_radius": np.zeros(2)},
            {"a_radius": np.zeros((4, 4)), "b_radius": np.zeros((4, 2))},
        ):
            got = linalg.solve(a, b, **options)
            np.testing.assert_array_equal(got.x, want.x)
            np.testing.assert_array_equal(got.radius, want.radius)
            assert got.radius.dtype == want.radius.dtype
        inverse = linalg.inv(a, a_radius=np.zeros((4, 4)))
        np.testing.assert_array_equal(inverse.radius, linalg.inv(a).radius)


def test_one_system_of_a_stack_may_be_exact():
    a = np.stack([np.eye(2), 2.0 * np.eye(2)])
    radii = np.array([0.0, 0.125]).reshape(2, 1, 1)
    solution = linalg.solve(a, np.ones(2), a_radius=radii)
    assert (solution.radius[0] == 0.0).all()
    assert (solution.radius[1] > 0.06).all()


def test_stacks_broadcast_and_vectors_are_columns():
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((2, 3, 3)), rng.standard_normal((4, 1, 3, 2))
    a_radius = rng.uniform(0.0, 1e-3, (2, 1, 3))
    b_radius = rng.uniform(0.0, 1e-3, (4, 1, 1, 2))
    solution = linalg.solve(a, b, a_radius=a_radius, b_radius=b_radius)
    assert solution.radius.shape == (4, 2, 3, 2)
    for i, j in np.ndindex(4, 2):
        options = {"a_radius": a_radius[j], "b_radius": b_radius[i, 0]}
        one = linalg.solve(a[j], b[i, 0], **options)
        np.testing.assert_array_equal(solution.x[i, j], one.x)
        np.testing.assert_array_equal(solution.radius[i, j], one.radius)
    vector = linalg.solve(a, b[0, 0, :, 0], b_radius=[0.1, 0.2, 0.3])
    column = linalg.solve(a, b[0, 0, :, :1], b_radius=[[0.1], [0.2], [0.3]])
    np.testing.assert_array_equal(vector.radius, column.radius[..., 0])


def test_a_stack_that_fails_has_the_least_factor_and_what_was_proven():
    a = np.stack([np.eye(2), 8.0 * np.eye(2), 2.0 * np.eye(2)])
    with pytest.raises(linalg.VerificationError, match="2 of 3 systems") as error:
        linalg.solve(a, np.ones(2), a_radius=2.0)
    assert 0.2499 < error.value.proven_factor < 0.25
    radius = error.value.solution.radius
    assert np.isinf(radius[[0, 2]]).all()
    assert np.isfinite(radius[1]).all()
    a[0] = 1.0
    with pytest.raises(linalg.VerificationError) as error:
        linalg.solve(a, np.ones(2), a_radius=2.0)
    assert error.value.proven_factor is None


def test_without_right_sides_the_matrices_are_proven_nonsingular():
    empty = np.zeros((2, 0))
    assert linalg.solve(np.eye(2), empty, a_radius=0.1).x.shape == (2, 0)
    with pytest.raises(linalg.VerificationError, match="a_radius"):
        linalg.solve(np.eye(2), empty, a_radius=0.6)
    nothing = linalg.solve(np.zeros((0, 0)), np.zeros(0), a_radius=1.0)
    assert nothing.x.shape == (0,)


def test_a_report_is_that_of_the_matrix_itself():
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    solution, report = linalg.solve(a, np.ones(2), a_radius=0.1, return_report=True)
    plain = linalg.solve(a, np.ones(2), return_report=True)[1]
    assert report.condition == pytest.approx(plain.condition)
    assert report.norm == pytest.approx(plain.norm, rel=1.0)
    assert (solution.radius > 0.01).all()


@pytest.mark.parametrize(
    ("radius", "message"),
    [
        (-1.0, "1 negative entries and 0 that are Inf or NaN, of 1"),
        ([[1.0, -1.0], [-2.0, np.nan]], "2 negative entries and 1 that are Inf"),
        (np.inf, "0 negative entries and 1 that are Inf or NaN"),
        (-np.inf, "1 negative entries and 0 that are Inf or NaN"),
        (np.ones((3, 2)), r"shape \(3, 2\), .* to \(2, 2\), the shape of a"),
        (np.ones((1, 2, 2)), r"shape \(1, 2, 2\), .* to \(2, 2\)"),
        (np.array([2**53 + 1]), "not exact"),
    ],
)
def test_what_is_no_radius_raises(radius, message):
    with pytest.raises(ValueError, match=message):
        linalg.solve(np.eye(2), np.ones(2), a_radius=radius)
    with pytest.raises(ValueError, match=message):
        linalg.inv(np.eye(2), a_radius=radius)


def test_other_errors():
    with pytest.raises(ValueError, match=r"b_radius has shape \(2, 2\).* of b"):
        linalg.solve(np.eye(2), np.ones(2), b_radius=np.ones((2, 2)))
    for radius in (1j, np.ones(2, complex), np.ones(2, np.longdouble), "1"):
        with pytest.raises(TypeError):
            linalg.solve(np.eye(2), np.ones(2), b_radius=radius)
    for radii in ({"a_radius": 1e-9}, {"b_radius": np.zeros(2)}):
        with pytest.raises(hg.PlanError, match="'correct' with a_radius or b_radius"):
            linalg.solve(np.eye(2), np.ones(2), accuracy="correct", **radii)
    exact = linalg.solve(np.eye(2), np.ones(2), accuracy="correct", a_radius=0)
    assert (exact.radius == 0.0).all()


def test_radii_of_other_dtypes_and_their_operands_stay_as_they_are():
    a = np.eye(2, dtype=np.float32)
    b = np.ones(2, np.float32)
    radius = np.array([0.125, 0.25])
    solutions = [
        linalg.solve(a, b, a_radius=0.125, b_radius=radius.astype(kind))
        for kind in (np.float16, np.float32, np.float64)
    ]
    for solution in solutions:
        assert solution.x.dtype == solution.radius.dtype == np.float32
        np.testing.assert_array_equal(solution.radius, solutions[0].radius)
    assert radius.tolist() == [0.125, 0.25]


# Radii in scale


def exponents_of_rows(system, a):
    """s of each row by an entry that is not zero, and t, from a right side of zeros."""
    columns = system.exponents[:, -1]
    places = np.abs(a).argmax(axis=1)
    rows = [
        np.frexp(system.a[i, j].real)[1] - np.frexp(a[i, j].real)[1] - columns[j]
        for i, j in enumerate(places)
    ]
    return np.array(rows)[:, None], columns


@pytest.mark.parametrize(
    "kind", ["moderate", "wide", "complex", "matching", "in steps"]
)
def test_radii_are_scaled_as_the_system_is(kind):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 8))
        spread = 150 if kind == "wide" else 60
        units = rng.integers(-spread, spread + 1, (n, 1)) + rng.integers(-60, 61, n)
        a = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n)
        a = np.ldexp(a, units)
        b = np.ldexp(rng.standard_normal((n, 3)), rng.integers(-60, 61, 3))
        b[:, -1] = 0.0
        if kind == "complex":
            a = a * (1.0 - 0.25j)
        if kind == "in steps":
            system = certified_system(a, b, most_condition=0.0).system
        else:
            system = scaled_system(a, b, matching if kind == "matching" else None)
        rows, columns = exponents_of_rows(system, a)
        a_radius, b_radius = (
            rng.uniform(0.5, 1.0, (n, n)),
            rng.uniform(0.5, 1.0, (n, 3)),
        )
        got_a, got_b = system.scaled_radii(a, a_radius, b_radius)
        sides = columns[:1] - system.exponents[0]
        np.testing.assert_array_equal(got_a, np.ldexp(a_radius, rows + columns))
        np.testing.assert_array_equal(got_b, np.ldexp(b_radius, rows + sides))
        np.testing.assert_array_equal(
            system.scaled_radii(a, a_radius, np.abs(b))[1], np.abs(system.b)
        )


def test_radii_that_become_subnormal_are_rounded_upwards():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.0, 1.0, 200), [0.0, 1.0, LEAST]])
    exponents = rng.integers(-1100, -1000, x.size)
    for value, exponent, got in zip(x, exponents, scaled_upwards(x, exponents)):
        exact = Fraction(value) * Fraction(2) ** int(exponent)
        assert exact <= Fraction(got) <= exact + Fraction(LEAST) * 2


# Bounds against fractions, with products that err by as much as they may


@pytest.fixture
def worst(monkeypatch):
    """Products err by as much as they may."""
    make_certificates_worst(monkeypatch)


def systems(count):
    """Proofs with good and bad inverses, of one word and two, and radii up to what is
    proven.
    """
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        a = rng.standard_normal((n, n))
        inverse = np.linalg.inv(a)
        if seed % 3 == 1:
            inverse *= 1.0 + 0.02 * rng.standard_normal((n, n))
        if seed % 3 == 2:
            low = 2.0**-53 * inverse * rng.uniform(-1.0, 1.0, (n, n))
            inverse = np.concatenate([inverse, low], axis=1)
        shape = rng.uniform(0.0, 1.0, (n, n))
        size = np.linalg.norm(np.abs(np.linalg.inv(a)) @ shape, np.inf)
        a_radius = 2.0 ** -float(rng.integers(1, 40)) / size * shape
        b_radius = 2.0 ** -float(rng.integers(1, 40)) * rng.uniform(0.0, 1.0, (n, 2))
        x = rng.standard_normal((n, 2))
        radius = 2.0 ** -float(rng.integers(1, 60)) * np.abs(x)
        proof = prove(a, inverse)
        if proof.norm < 0.4:
            yield a, inverse, proof, x, radius, a_radius, b_radius


def exact_radius(a, inverse, x, radius, a_radius, b_radius):
    """r + (I - |G| - |R| Da)^-1 |R| (db + Da (|x| + r)) in fractions, |R| that of words."""
    n = len(a)
    rows = moduli(fractions(inverse))
    sizes = [[sum(row[i::n]) for i in range(n)] for row in rows]
    of_box = exact_matmul(sizes, fractions(a_radius))
    of_gap = deviation(a, inverse)
    gap = [
        [int(i == j) - of_gap[i][j] - of_box[i][j] for j in range(n)] for i in range(n)
    ]
    magnitudes = fractions(np.abs(x))
    within = fractions(radius)
    of_x = [[v + r for v, r in zip(*pair)] for pair in zip(magnitudes, within)]
    changes = exact_matmul(fractions(a_radius), of_x)
    sides = [
        [p + q for p, q in zip(*pair)] for pair in zip(changes, fractions(b_radius))
    ]
    errors = in_flint(gap).solve(in_flint(exact_matmul(sizes, sides))).tolist()
    return [
        [r + Fraction(int(v.p), int(v.q)) for r, v in zip(*pair)]
        for pair in zip(within, errors)
    ]


def test_radii_are_no_less_than_the_exact_bound_and_close_to_it(worst):
    count = 0
    for a, inverse, proof, x, radius, a_radius, b_radius in systems(90):
        got = uncertain.uncertain_radius(proof, x, radius, a_radius, b_radius)
        want = exact_radius(a, inverse, x, radius, a_radius, b_radius)
        for i, j in np.ndindex(got.shape):
            assert Fraction(got[i, j]) >= want[i][j]
            assert Fraction(got[i, j]) <= want[i][j] * Fraction(3, 2)
        count += 1
    assert count > 60


def test_products_are_no_less_than_exact_ones(worst):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        for words in (1, 2):
            matrix = rng.standard_normal((n, words * n))
            v = rng.uniform(0.0, 1.0, (n, 2))
            rows = moduli(fractions(matrix))
            sums = [[sum(row[i::n]) for i in range(n)] for row in rows]
            got = uncertain._above_product(Magnitudes(matrix, words), v)
            want = exact_matmul(sums, fractions(v))
            for i, j in np.ndindex(got.shape):
                assert Fraction(got[i, j]) >= want[i][j]


def test_products_count_what_underflows():
    # Each of eight products is 0.49 eta
    matrix = np.full((8, 8), 0.98 * 2.0**-537)
    v = np.full((8, 1), 2.0**-538)
    got = uncertain._above_product(Magnitudes(matrix), v)
    assert not (matrix @ v).any()
    assert Fraction(got[0, 0]) >= 8 * Fraction(matrix[0, 0]) * Fraction(v[0, 0])


def test_sums_of_both_parts_are_rounded_upwards():
    parts = uncertain.Neighbours(gap=lambda v: v, box=lambda v: 2.0**-54 * v)
    ((got,),) = parts.images(np.ones((1, 1)))
    assert Fraction(got) >= 1 + Fraction(1, 2**54)


def test_the_factor_is_the_best_of_all_weights():
    # Smaller weights of the second row let |G| of the first one count more
    gap = np.array([[0.0, 0.0], [0.9, 0.0]])
    box = np.array([[100.0, 0.0], [0.0, 0.001]])
    parts = uncertain.Neighbours(gap=lambda v: gap @ v, box=lambda v: box @ v)
    with pytest.raises(linalg.VerificationError) as error:
        parts.weights(np.ones((2, 1)))
    assert 0.00999 < error.value.proven_factor < 0.01


@pytest.mark.parametrize("power", [-1074, -1060, -530])
def test_bounds_count_what_underflows(power):
    # All products are below 2^-1074, or the squares of small numbers are
    a = np.eye(2)
    proof = prove(a, np.eye(2))
    radii = np.ldexp(np.ones((2, 2)), power)
    x = np.ldexp(np.array([[1.0], [0.75]]), power)
    args = x, np.zeros((2, 1)), radii, np.zeros((2, 1))
    with np.errstate(over="ignore"):
        got = uncertain.uncertain_radius(proof, *args)
    want = exact_radius(a, np.eye(2), *args)
    assert all(Fraction(got[i, 0]) >= want[i][0] for i in range(2))


def test_large_inverses_magnify_what_underflows():
    # Da |x| is 0.75 eta / 2 and vanishes; |R| of 2^1000 makes it count
    a = np.array([[2.0**-1000]])
    inverse = np.array([[2.0**1000]])
    proof = prove(a, inverse)
    x = np.array([[0.375]])
    args = x, np.zeros((1, 1)), np.array([[LEAST]]), np.zeros((1, 1))
    got = uncertain.uncertain_radius(proof, *args)
    assert Fraction(got[0, 0]) >= exact_radius(a, inverse, *args)[0][0]


def test_factors_are_rounded_downwards(worst):
    for a, inverse, proof, x, radius, a_radius, b_radius in systems(30):
        n = len(a)
        with pytest.raises(linalg.VerificationError) as error:
            uncertain.uncertain_radius(proof, x, radius, 2.0**50 * a_radius, b_radius)
        factor = Fraction(error.value.proven_factor) * 2**50

        # I - |G| - t |R| Da is an M-matrix: its inverse is nonnegative
        rows = moduli(fractions(inverse))
        sizes = [[sum(row[i::n]) for i in range(n)] for row in rows]
        of_box = exact_matmul(sizes, fractions(a_radius))
        of_gap = deviation(a, inverse)
        gap = [
            [int(i == j) - of_gap[i][j] - factor * of_box[i][j] for j in range(n)]
            for i in range(n)
        ]
        assert all(v >= 0 for row in in_flint(gap).inv().tolist() for v in row)
