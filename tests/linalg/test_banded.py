"""Bands and triangles, proven by rows of an inverse that nobody writes down: bounds against
exact fractions, and solutions against exact ones.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.linalg_enclosures import ulps, wrong
from experiments.systems import BANDED, exact_parts, misses
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import banded, solution
from hifigemm.linalg.banded import (
    BandedCertificate,
    RowsOfInverse,
    banded_system,
    pays,
)
from hifigemm.linalg.bands import Band
from hifigemm.linalg.certificate import Residual
from hifigemm.linalg.scaling import ScaledSystem, scaled_system
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import (
    UNIT,
    deviation,
    exact_matmul,
    flattering_product,
    fractions,
    moduli,
    worst_magnitude_product,
    worst_matmul,
)

if core.loaded()[0] is None:
    pytest.skip("the compiled core is not here", allow_module_level=True)

MODULE = core.loaded()[0]
SHAPES = [(1, 0, 0), (5, 1, 1), (6, 0, 5), (6, 5, 0), (7, 2, 1), (7, 0, 2), (40, 1, 3)]
"""Rows, and diagonals below the main one and above it."""


def band(rng, n, lower, upper):
    """Normal entries within a band."""
    return np.triu(np.tril(rng.standard_normal((n, n)), upper), -lower)


def in_band(a, b):
    """A system that is not scaled, with its band."""
    zeros = np.zeros(b.shape, int)
    return ScaledSystem(a, b, zeros, band=Band.of(a))


def rows_of_inverse(system):
    """R itself, of which `banded` asks products only."""
    n = len(system.a)
    none = np.zeros((n, 0))
    return RowsOfInverse.of(system).products(np.eye(n), none, none).images


def assert_no_less(bound, exact):
    """Every entry of a float array is no less than the fraction in its place."""
    for i, j in np.ndindex(bound.shape):
        assert Fraction(float(bound[i, j])) >= exact[i][j], (i, j)


@pytest.fixture(params=MODULE.instructions)
def instructions(request):
    """Each set of instructions that this machine has."""
    MODULE.use(request.param)
    yield request.param
    MODULE.use(MODULE.instructions[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_of_one_matrix_and_within_their_roundings(instructions, shape):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, lower, upper = shape
        a = band(rng, n, lower, upper) + 2.0 * np.eye(n)
        system = in_band(a, np.zeros((n, 1)))
        inverse = rows_of_inverse(system)
        q = rng.standard_normal((n, 2))
        s = rng.uniform(0.0, 1.0, (n, 3))
        products = RowsOfInverse.of(system).products(q, s, s[:, :1])

        # Each term of R Q and |R| S passes n roundings
        images = exact_matmul(fractions(inverse), fractions(q))
        sizes = exact_matmul(moduli(fractions(inverse)), moduli(fractions(q)))
        room = n * UNIT / (1 - n * UNIT)
        for i, j in np.ndindex(q.shape):
            error = abs(Fraction(products.images[i, j]) - images[i][j])
            assert error <= room * sizes[i][j] + n * Fraction(LEAST)
        sums = exact_matmul(moduli(fractions(inverse)), fractions(s))
        for i, j in np.ndindex(s.shape):
            error = abs(Fraction(products.sizes[i, j]) - sums[i][j])
            assert error <= room * sums[i][j] + n * Fraction(LEAST)

        # |R A - I| V, where an entry of R A has as many terms as A has diagonals
        gaps = exact_matmul(deviation(a, inverse), fractions(s[:, :1]))
        products_of_sizes = exact_matmul(
            moduli(fractions(inverse)), moduli(fractions(a))
        )
        sizes = exact_matmul(products_of_sizes, fractions(s[:, :1]))
        terms = lower + upper + 1
        for i in range(n):
            error = abs(Fraction(products.gaps[i, 0]) - gaps[i][0])
            assert error <= (terms + 1) * UNIT * sizes[i][0] + room * 2 * gaps[i][0]


def test_rows_of_a_triangle_are_those_of_an_inverse_triangle():
    a = np.triu(np.random.default_rng(0).standard_normal((70, 70))) + 9.0 * np.eye(70)
    for matrix in (a, a.T):
        inverse = rows_of_inverse(in_band(matrix, np.zeros((70, 1))))
        assert (inverse[matrix == 0.0] == 0.0).all()
        assert np.abs(inverse @ matrix - np.eye(70)).max() < 1e-13


def test_entries_of_rows_that_decay_do_not_become_subnormal():
    a = np.eye(300) * 100.0 + np.eye(300, k=1) + np.eye(300, k=-1)
    inverse = rows_of_inverse(in_band(a, np.zeros((300, 1))))
    sizes = np.abs(inverse[inverse != 0.0])
    assert sizes.min() >= 2.0**-900
    assert sizes.min() < 2.0**-890
    assert (inverse == 0.0).any()


@pytest.fixture
def worst(monkeypatch):
    """Products with an inverse, in `worst.inverse`, err by as much as they may."""

    class Worst:
        inverse = None

        @classmethod
        def of(cls, system):
            rows = cls()
            rows.system = system
            return rows

        def products(self, q, s, v):
            inverse = self.inverse
            a = self.system.a
            band = self.system.band
            terms = band.lower + band.upper + 1
            product = flattering_product(inverse, a, terms * UNIT)
            return core.BandedProducts(
                worst_matmul(inverse, q),
                worst_matmul(np.abs(inverse), s),
                worst_matmul(np.abs(product - np.eye(len(a))), v),
            )

    monkeypatch.setattr(banded, "RowsOfInverse", Worst)
    monkeypatch.setattr(banded, "magnitude_product", worst_magnitude_product)
    return Worst


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["close", "off", "any"])
def test_bounds_are_no_less_than_exact_ones_where_products_are_worst(worst, kind, seed):
    rng = np.random.default_rng(seed)
    n, lower, upper = SHAPES[seed % 6]
    a = band(rng, n, lower, upper) + 2.0 * np.eye(n)
    inverse = np.linalg.inv(a)
    if kind == "off":
        inverse = inverse * (1.0 + 0.1 * rng.standard_normal((n, n)))
    elif kind == "any":
        inverse = rng.standard_normal((n, n))
    worst.inverse = inverse
    proof = banded._certificate(in_band(a, np.ones((n, 1))))
    exact = deviation(a, inverse)
    assert_no_less(proof.row_bounds, exact_matmul(exact, [[1]] * n))
    sums = exact_matmul(moduli(fractions(inverse)), [[1]] * n)
    assert Fraction(proof.inverse_norm) >= max(row[0] for row in sums)
    v = np.abs(rng.standard_normal((n, 2)))
    assert_no_less(proof.contraction(v), exact_matmul(exact, fractions(v)))

    # An exact residual that q is rounded from, and errors of q of its own
    q = rng.standard_normal((n, 1))
    errors = np.full((n, 1), 2.0**-20)
    for errors_of_q in (None, errors):
        d, bound = proof.update(Residual([q], errors_of_q))
        for signs in (np.ones((n, 1)), np.sign(inverse.T[:, :1])):
            changes = UNIT * np.abs(q) * signs
            if errors_of_q is not None:
                changes = changes + errors * signs
            residual = [
                [Fraction(x) + Fraction(y)] for x, y in zip(q[:, 0], changes[:, 0])
            ]
            image = exact_matmul(fractions(inverse), residual)
            for i in range(n):
                error = abs(image[i][0] - Fraction(d[i, 0]))
                assert error <= Fraction(bound[i, 0])


def test_updates_count_what_underflows():
    # The entries of R on and above the diagonal are 1/2
    n = 9
    a = 2.0 * (np.eye(n) - np.eye(n, k=1))
    proof = banded._certificate(in_band(a, np.zeros((n, 1))))
    d, bound = proof.update(Residual([np.full((n, 1), LEAST)]))
    assert (d == 0.0).all()
    assert bound[0, 0] >= 5.0 * LEAST


def test_contractions_count_what_underflows():
    # |A| v vanishes, and |R| makes it large again
    a = 2.0**-540 * (np.eye(2) + 2.0**-60 * np.eye(2, k=1))
    v = np.full((2, 1), 2.0**-540)
    system = in_band(a, np.zeros((2, 1)))
    exact = exact_matmul(deviation(a, rows_of_inverse(system)), fractions(v))
    assert_no_less(banded._certificate(system).contraction(v), exact)


@pytest.mark.parametrize("seed", range(10))
def test_radii_count_all_powers_of_the_deviation(worst, seed):
    # R = I and G = I - A >= 0, for y that are eigenvectors of G, or close to them
    rng = np.random.default_rng(seed)
    g = np.triu(np.tril(rng.uniform(0.0, 0.2, (6, 6)), 1), -1)
    a = np.eye(6) - g
    worst.inverse = np.eye(6)
    proof = banded._certificate(in_band(a, np.zeros((6, 1))))
    assert proof.norm < 1.0
    values, vectors = np.linalg.eig(np.eye(6) - a)
    perron = np.abs(vectors[:, [np.argmax(values.real)]].real)
    steep = 2.0 ** np.array([[0.0, -1.0, -3.0, -30.0, -60.0, -200.0]]).T
    for y in (perron, steep, np.zeros((6, 1)), np.concatenate([perron, steep], axis=1)):
        radius = proof.radius(y)
        for k in range(y.shape[1]):
            parts = exact_parts(a, y[:, [k]])
            assert_no_less(radius[:, [k]], parts[0])


def test_a_radius_follows_errors_that_decay():
    a = np.eye(200) * 4.0 - np.eye(200, k=1) - np.eye(200, k=-1)
    b = np.zeros((200, 1))
    b[0] = 1.0
    certificate = banded_system(a, b).certificate
    y = np.abs(np.linalg.solve(a, b)) * 2.0**-60
    assert (certificate.radius(y) <= y * (1.0 + 2.0**-40)).all()
    # Ones as weights leave more than that
    plain = super(BandedCertificate, certificate).radius(y)
    assert (plain > 2.0 * y).any()


def drawn(family, seed):
    return BANDED[family](np.random.default_rng([31, seed]))


@pytest.fixture
def calls(monkeypatch):
    """Which systems went another way than bands."""
    systems = []
    original = solution.certified_system

    def counted(a, b):
        systems.append(a)
        return original(a, b)

    monkeypatch.setattr(solution, "certified_system", counted)
    return systems


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", BANDED)
def test_no_enclosure_misses_and_correct_solutions_are_the_nearest(calls, family, seed):
    a, b = drawn(family, seed)
    parts = exact_parts(a, b)
    for accuracy in (None, "correct"):
        if parts is None:
            with pytest.raises(linalg.VerificationError, match="nonsingular"):
                linalg.solve(a, b, accuracy=accuracy)
            continue
        try:
            solved = linalg.solve(a, b, accuracy=accuracy)
        except linalg.VerificationError:
            assert accuracy == "correct"  # zeros of large systems
            continue
        assert misses(solved.x, solved.radius, parts) == []
        assert accuracy is None or wrong(solved.x, parts) == 0
    assert parts is None or not calls


@pytest.mark.parametrize("family", ["long band", "differences", "long triangle"])
def test_radii_are_half_a_unit(family):
    for seed in range(6):
        a, b = drawn(family, seed)
        solved = linalg.solve(a, b)
        assert max(ulps(solved.x, solved.radius, exact_parts(a, b))) <= 0.51


def test_solutions_that_decay_are_sharp_down_to_the_least_numbers(calls):
    for seed in range(6):
        a, b = drawn("decaying band", seed)
        solved = linalg.solve(a, b)
        is_normal = np.abs(solved.x) > 1e-280
        in_ulps = solved.radius / np.spacing(np.abs(solved.x))
        assert in_ulps[is_normal].max() <= 0.51
        assert misses(solved.x, solved.radius, exact_parts(a, b)) == []
    assert not calls


def test_solutions_may_decay_further_than_rows_of_the_inverse(calls):
    # 2^-6 from each entry to the next one, over 1,000 powers of two
    a = 64.0 * np.eye(170) - np.eye(170, k=1) - np.eye(170, k=-1)
    b = np.zeros((170, 1))
    b[0] = 1.0
    solved = linalg.solve(a, b)
    in_ulps = solved.radius / np.spacing(np.abs(solved.x))
    assert in_ulps[np.abs(solved.x) > 1e-280].max() <= 0.51
    assert misses(solved.x, solved.radius, exact_parts(a, b)) == []
    assert not calls


def test_every_set_of_instructions_encloses(instructions, calls):
    for family in ("long band", "decaying band", "long triangle"):
        a, b = drawn(family, 1)
        solved = linalg.solve(a, b)
        assert misses(solved.x, solved.radius, exact_parts(a, b)) == []
    assert not calls


def test_triangles_beyond_all_conditions_get_weights(calls):
    # || |A^-1| |A| || is 3^n for ones and twos, and about n after weights
    n = 300
    a = np.eye(n) + 2.0 * np.eye(n, k=1)
    b = np.ones((n, 1))
    solved, report = linalg.solve(a, b, return_report=True)
    assert misses(solved.x, solved.radius, exact_parts(a, b)) == []
    assert report.attempts == 2
    assert report.condition < 1e4
    assert not calls


def test_what_one_word_does_not_prove_goes_the_other_way(calls):
    n = 100
    differences = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    a = np.linalg.matrix_power(differences, 5)
    b = np.random.default_rng(0).standard_normal((n, 1))
    solved, report = linalg.solve(a, b, return_report=True)
    assert misses(solved.x, solved.radius, exact_parts(a, b)) == []
    assert report.words == 2
    assert len(calls) == 1


@pytest.mark.parametrize("change", ["a pivot of zero", "rounding"])
def test_singular_bands_raise(calls, change):
    # 1 - 2 cos(pi k / (n + 1)) is zero for n = 101 and k = 34
    a = np.eye(101) - np.eye(101, k=1) - np.eye(101, k=-1)
    if change == "rounding":
        scales = np.random.default_rng(0).integers(1, 2**20, (101, 1))
        a = a * scales
    with pytest.raises(linalg.VerificationError, match="nonsingular"):
        linalg.solve(a, np.ones(101))
    assert len(calls) == 1


def test_other_matrices_do_not_pay():
    n = 200
    assert pays(Band(n, 1, 1), 1)
    assert pays(Band(n, 0, n - 1), 1)
    assert pays(Band(n, n - 1, 0), 1)
    assert not pays(Band(n, n - 1, n - 1), 1)
    assert not pays(Band(n, 1, n - 1), 1)
    assert not pays(Band(n, 1, 1), n)
    assert not pays(Band(n, 0, n - 1), n)
    assert not pays(Band(banded.SMALLEST - 1, 1, 1), 1)


def test_nothing_is_asked_of_a_core_that_is_not_there(monkeypatch):
    monkeypatch.setattr(core, "loaded", lambda: (None, "not built"))
    a, b = drawn("long band", 0)
    assert banded_system(a, b) is None
    solved = linalg.solve(a, b)
    assert misses(solved.x, solved.radius, exact_parts(a, b)) == []


def test_complex_numbers_go_the_other_way(calls):
    a, b = drawn("long band", 0)
    solved = linalg.solve(a * 1j, b)
    assert len(calls) == 1
    assert misses(solved.x, solved.radius, exact_parts(a * 1j, b)) == []


def test_single_precision_and_stacks_are_recognised(calls):
    rng = np.random.default_rng(0)
    a = np.stack([band(rng, 64, 1, 2), band(rng, 64, 0, 63) + 8.0 * np.eye(64)])
    a = a.astype(np.float32)
    b = rng.standard_normal((2, 64, 2)).astype(np.float32)
    solved = linalg.solve(a, b)
    assert solved.x.dtype == np.float32
    for matrix, sides, x, radius in zip(a, b, solved.x, solved.radius):
        assert misses(x, radius, exact_parts(matrix, sides)) == []
    assert not calls


def test_data_with_radii_go_the_other_way(calls):
    a, b = drawn("long band", 2)
    solved = linalg.solve(a, b, b_radius=1e-3)
    assert len(calls) == 1
    moved = exact_parts(a, b + 1e-3)
    assert misses(solved.x, solved.radius, moved) == []


def test_threads_share_rows_without_another_bit(monkeypatch):
    a, b = drawn("long triangle", 0)
    a = np.kron(np.eye(4), a)
    b = np.concatenate([b] * 4)
    alone = linalg.solve(a, b)
    monkeypatch.setattr(core, "SHARE", 1.0)
    monkeypatch.setattr(core.threads, "limit", lambda: 3)
    shared = linalg.solve(a, b)
    np.testing.assert_array_equal(alone.x, shared.x)
    np.testing.assert_array_equal(alone.radius, shared.radius)


def test_a_scale_keeps_the_band():
    a, b = drawn("long band", 3)
    system = replace(scaled_system(a, b), band=Band.of(a))
    certified = banded_system(a, b)
    assert certified.system.band == system.band
    assert Band.of(certified.system.a) == system.band
