"""Residuals, and the steps that lead to one or two words of a solution."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.systems import exact_parts, misses
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import arrays, certificate, refinement
from hifigemm.linalg.certificate import Residual, prove
from hifigemm.linalg.inverse import approximate_inverse
from hifigemm.linalg.refinement import (
    SHARP,
    _is_sharp,
    _step,
    enclosure,
    residual,
)
from hifigemm.linalg.scaling import ScaledSystem, scaled_system
from hifigemm.linalg.upward import above
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import (
    UNIT,
    exact_matmul,
    fractions,
    worst_magnitude_product,
    worst_matmul,
)


def drawn(seed, n=5, sides=2):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, n)), rng.standard_normal((n, sides))


def exact_residual(a, b, *words):
    """b - A (x1 + x2 ...) in fractions."""
    x = [[sum(v) for v in zip(*rows)] for rows in zip(*(fractions(w) for w in words))]
    product = exact_matmul(fractions(a), x)
    return [[s - p for s, p in zip(*rows)] for rows in zip(fractions(b), product)]


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("residual_words", [1, 2])
def test_residuals_keep_their_bound(words, residual_words):
    a, b = drawn(words)
    x = np.linalg.solve(a, b)
    low = x * 2.0**-60 if words == 2 else None
    exact = exact_residual(a, b, *([x] if low is None else [x, low]))
    q = residual(a, b, x, low, residual_words)
    assert len(q.words) == residual_words
    share = UNIT**residual_words
    for i, j in np.ndindex(b.shape):
        value = sum(Fraction(word[i, j]) for word in q.words)
        room = share * abs(exact[i][j]) + Fraction(LEAST)
        assert abs(value - exact[i][j]) <= room


@pytest.mark.parametrize("sum_words", [2, 3])
@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_residuals_count_what_close_sums_err_by(
    monkeypatch, words, sum_words, direction
):
    # As far off as their promise allows, in one direction
    promises = {2: 2.0**-30, 3: 2.0**-40}

    def worst(a, x, b, sum_words):
        promise = promises[sum_words]
        q = arrays.correct_residual(a, x, b)
        norms = np.sqrt((a * a).sum(axis=1, keepdims=True)) * np.sqrt(
            (x * x).sum(axis=0)
        )
        return q + direction * promise * norms * (1.0 - 2.0**-20), promise

    monkeypatch.setattr(arrays, "close_sums", worst)
    a, b = drawn(words, n=6, sides=arrays.FEW_SIDES + 1)
    x = np.linalg.solve(a, b)
    low = x * 2.0**-60 if words == 2 else None
    pieces = [x] if low is None else [x, low]
    q = residual(a, b, x, low, 1, sum_words)
    value = q.words[0]
    for i, j in np.ndindex(b.shape):
        error = abs(Fraction(value[i, j]) - exact_residual(a, b, *pieces)[i][j])
        room = UNIT * abs(Fraction(value[i, j])) + Fraction(q.errors[i, j])
        assert 0.99 * room < error <= room


@pytest.mark.parametrize("place", ["nowhere", "a", "x", "b"])
def test_close_sums_prove_that_a_residual_is_zero(monkeypatch, place):
    # Integers, and one number with a last bit that is smaller than the error of the sums
    rng = np.random.default_rng(5)
    a, x = (np.rint(9.0 * rng.standard_normal(shape)) for shape in ((6, 6), (6, 5)))
    b = a @ x
    tiny = 2.0**-30
    if place == "a":
        a[0, 0] += tiny
    if place == "x":
        x[0, 0] += tiny
    if place == "b":
        b[0, 0] += tiny
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(x, axis=0)
    largest = max(abs(value) for row in exact_residual(a, b, x) for value in row)
    promise = max(2.0**-40, 2.0 * float(largest) / norms.min())
    monkeypatch.setattr(arrays, "close_sums", lambda *_: (np.zeros(b.shape), promise))
    q = residual(a, b, x, None, 1, 2)
    is_known = (q.errors == 0.0).all(axis=0)
    expected = {"nowhere": range(5), "a": [], "x": range(1, 5), "b": range(1, 5)}
    for j in range(5):
        assert is_known[j] == (j in expected[place])


@pytest.mark.parametrize("words", [1, 2])
def test_a_step_bounds_its_error_where_everything_is_as_bad_as_it_may(
    monkeypatch, words
):
    # R = I / 2, so G = I - A / 2 with entries of one sign, and no product is exact
    monkeypatch.setattr(certificate, "matmul", worst_matmul)
    monkeypatch.setattr(certificate, "magnitude_product", worst_magnitude_product)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        g = rng.uniform(0.0, 0.18, (5, 5))
        a = 2.0 * (np.eye(5) - g)
        b = rng.uniform(0.0, 1.0, (5, 1))
        proof = prove(a, 0.5 * np.eye(5))
        assert proof.is_proof
        x = np.zeros((5, 1))
        low = None if words == 1 else x
        step = _step(proof, x, low, Residual([b]))
        left = fractions(step.left)
        pieces = [fractions(word) for word in step.words]
        solution = solved(a, fractions(b))
        for i in range(5):
            value = sum(piece[i][0] for piece in pieces) + left[i][0]
            assert abs(solution[i][0] - value) <= Fraction(step.error[i, 0])


@pytest.mark.parametrize("a", [0.1, 1.0])
def test_a_step_counts_what_its_update_is_off_by(monkeypatch, a):
    # d = 0 says that |R q*| is 1 at most: x* - x is 1 / a then, with R = 1, G = 1 - a
    proof = prove(np.array([[a]]), np.ones((1, 1)))
    update = np.zeros((1, 1)), np.ones((1, 1))
    monkeypatch.setattr(type(proof), "update", lambda *_: update)
    step = _step(proof, np.zeros((1, 1)), None, Residual([np.ones((1, 1))]))
    assert Fraction(step.error[0, 0]) >= 1 / Fraction(a)


def test_the_radius_counts_what_the_words_leave():
    # 1 / 3 lies between two numbers, and x + d to twice the digits between them
    system = ScaledSystem(np.array([[3.0]]), np.array([[1.0]]), np.zeros((1, 1), int))
    for words in (1, 2):
        enclosed = enclosure(system, prove(system.a, np.array([[1 / 3]])), words)
        value = Fraction(enclosed.x[0, 0])
        if enclosed.low is not None:
            value += Fraction(enclosed.low[0, 0])
        error = abs(value - Fraction(1, 3))
        assert 0 < error <= Fraction(enclosed.radius[0, 0])


def test_small_entries_get_a_residual_that_is_rounded_once():
    a, _ = drawn(4)
    x = np.array([[1.0], [2.0**-30], [2.0**-20], [1.0], [2.0**-25]])
    b = a @ x
    system = ScaledSystem(a, b, np.zeros((5, 1), int))
    enclosed = enclosure(system, prove(a, approximate_inverse(a)), 1)
    in_ulps = enclosed.radius / np.spacing(np.abs(enclosed.x))
    assert (in_ulps <= 1.0).all()


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("bits", [58, 54])
def test_bounds_that_hardly_show_in_a_radius_are_left(monkeypatch, bits, words):
    # Quick residuals with errors that leave some entry about 2^-bits of itself
    a, b = drawn(3, n=12, sides=1)
    system = scaled_system(a, b)
    proof = prove(system.a, approximate_inverse(system.a))
    solution = np.abs(np.linalg.solve(system.a, system.b))
    images = np.abs(proof.inverse).sum(axis=1, keepdims=True)
    errors = np.full((12, 1), 2.0**-bits * (solution / images).min())
    rounded_once = refinement.correct_residual
    calls = []

    def quick(a, b, words, sum_words):
        copies = np.concatenate([a] * len(words), axis=1)
        return [rounded_once(copies, np.concatenate(words), b), errors]

    def counted(*given):
        calls.append(given)
        return rounded_once(*given)

    monkeypatch.setattr(refinement, "_first_enclosure", lambda *given: None)
    monkeypatch.setattr(refinement, "quick_residual", quick)
    monkeypatch.setattr(refinement, "correct_residual", counted)
    enclosed = enclosure(system, proof, words)
    assert bool(calls) == (bits == 54 or words == 2)
    radius = enclosed.of_one_word()
    assert (radius <= 0.625 * np.spacing(np.abs(enclosed.x))).all()
    exact = solved(system.a, fractions(system.b))
    for x, bound, value in zip(fractions(enclosed.x), fractions(radius), exact):
        assert abs(x[0] - value[0]) <= bound[0]


@pytest.mark.parametrize("words", [1, 2])
def test_an_enclosure_holds_whatever_the_inverse(words):
    for seed in range(10):
        a, b = drawn(seed)
        rng = np.random.default_rng(seed)
        inverse = np.linalg.inv(a)
        inverse = inverse * (1.0 + 0.05 * rng.uniform(-1.0, 1.0, a.shape))
        proof = prove(a, inverse)
        if not proof.is_proof:
            continue
        system = ScaledSystem(a, b, np.zeros((5, 1), int))
        enclosed = enclosure(system, proof, words)
        x = [enclosed.x] if enclosed.low is None else [enclosed.x, enclosed.low]
        gap = exact_residual(a, b, *x)
        # |x* - x| = |A^-1 q|: held against A times the radius would be weaker, so solve
        error = solved(a, gap)
        for i, j in np.ndindex(b.shape):
            assert abs(error[i][j]) <= Fraction(enclosed.radius[i, j])


def solved(a, b):
    """A^-1 b in fractions."""
    rows = [row + side for row, side in zip(fractions(a), b)]
    n = len(rows)
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(n):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k])]
    return [[value / rows[i][i] for value in rows[i][n:]] for i in range(n)]


@pytest.mark.parametrize("exponent", [11, 13])
def test_few_open_sides_do_not_take_the_same_step_for_ever(exponent):
    # A chain with an ill-conditioned block, whose inverse has entries of all sizes
    def orthogonal(rng):
        return np.linalg.qr(rng.standard_normal((40, 40)))[0]

    rng = np.random.default_rng(1)
    a = 2.05 * np.eye(160) - np.eye(160, k=1) - np.eye(160, k=-1)
    scales = np.logspace(0.0, -exponent, 40)
    a[:40, :40] = orthogonal(rng) * scales @ orthogonal(rng)
    _, report = linalg.inv(a, return_report=True)
    assert report.steps < 20


def test_steps_end_where_nothing_is_gained(monkeypatch):
    calls = []
    exact = refinement.residual

    def counted(*arguments):
        calls.append(arguments)
        return exact(*arguments)

    monkeypatch.setattr(refinement, "residual", counted)
    a, b = drawn(0)
    system = scaled_system(a, b)
    enclosed = enclosure(system, prove(system.a, approximate_inverse(system.a)), 1)
    assert enclosed.steps == len(calls) == 1


def test_a_poor_inverse_needs_more_steps():
    a, b = drawn(0)
    system = scaled_system(a, b)
    inverse = approximate_inverse(system.a) * (1.0 + 2.0**-10)
    enclosed = enclosure(system, prove(system.a, inverse), 1)
    assert 4 <= enclosed.steps <= 7
    assert (enclosed.radius <= 0.51 * np.spacing(np.abs(enclosed.x))).all()


def test_two_words_are_good_to_twice_the_digits():
    a, b = drawn(1)
    system = scaled_system(a, b)
    proof = prove(system.a, approximate_inverse(system.a))
    enclosed = enclosure(system, proof, 2)
    assert (enclosed.radius < 2.0**-68 * np.abs(enclosed.x)).all()
    assert all(x.shape == (5, 2) for x in (enclosed.x, enclosed.low, enclosed.radius))
    assert (np.abs(enclosed.low) <= np.spacing(np.abs(enclosed.x))).all()
    assert (enclosed.of_one_word() > enclosed.radius).all()


def test_a_residual_that_underflowed_is_no_zero():
    # A x differs from b by less than the least number
    a = np.array([[1.0 + 2.0**-52]])
    b = np.array([[2.0**-1060]])
    system = ScaledSystem(a, b, np.zeros((1, 1), int))
    enclosed = enclosure(system, prove(a, approximate_inverse(a)), 1)
    assert not enclosed.is_exact.any()
    error = abs(Fraction(enclosed.x[0, 0]) - Fraction(b[0, 0]) / Fraction(a[0, 0]))
    assert 0 < error <= Fraction(enclosed.radius[0, 0])


def test_right_sides_of_different_sizes_are_refined_each_for_itself():
    a, b = drawn(2, sides=3)
    b[:, 1] *= 2.0**-900
    b[:, 2] = a.sum(axis=1)
    system = ScaledSystem(a, b, np.zeros((5, 3), int))
    enclosed = enclosure(system, prove(a, approximate_inverse(a)), 1)
    in_ulps = enclosed.radius / np.spacing(np.abs(enclosed.x))
    assert (in_ulps <= 1.0).all()


def diagonal_systems():
    """Systems whose sums have one term, so that their order does not matter, inverses that
    are off by 2^-29 and less, and right sides that leave sharp bounds or none.
    """
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 20))
        entries = np.ldexp(rng.uniform(0.5, 1.0, n), rng.integers(-3, 4, n))
        errors = rng.uniform(-1.0, 1.0, n) * 2.0 ** -float(rng.integers(29, 54))
        a = np.diag(entries)
        inverse = np.diag(1.0 / entries * (1.0 + errors))
        power = int(rng.choice([0, 0, -900, -1000, -1040]))
        b = np.ldexp(rng.standard_normal((n, 1)), power)
        yield ScaledSystem(a, b, np.zeros((n, 1), int)), prove(a, inverse)


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_the_core_has_the_bits_of_the_plain_step():
    sharp = 0
    for system, proof in diagonal_systems():
        x = proof.image(system.b)
        step = _step(proof, x, None, residual(system.a, system.b, x, None, 1))
        got = refinement._first_enclosure(system, proof)
        if got is None:
            assert step.is_zero.any() or not _is_sharp(step, SHARP[1])
            continue
        sharp += 1
        assert _is_sharp(step, SHARP[1])
        np.testing.assert_array_equal(got.x, step.x)
        radius = above(step.error + np.abs(step.left), 1)
        np.testing.assert_array_equal(got.radius, radius)
    assert 60 < sharp < 180


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_enclosures_of_the_core_hold_whatever_the_inverse():
    sharp = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        a, b = drawn(seed, n, 1)
        noise = 2.0 ** -float(rng.integers(10, 54)) * rng.uniform(-1.0, 1.0, (n, n))
        inverse = approximate_inverse(a) * (1.0 + noise)
        for layout in (inverse, np.asfortranarray(inverse)):
            proof = prove(a, layout)
            system = ScaledSystem(a, b, np.zeros((n, 1), int))
            enclosed = refinement._first_enclosure(system, proof)
            if enclosed is None:
                continue
            sharp += 1
            error = solved(a, exact_residual(a, b, enclosed.x))
            for i in range(n):
                assert abs(error[i][0]) <= Fraction(enclosed.radius[i, 0])
    assert 100 < sharp < 500


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_the_core_leaves_others_what_it_does_not_settle():
    a = np.diag([2.0, 4.0])
    proof = prove(a, np.linalg.inv(a))
    for b in ([[1.0], [3.0]], [[0.0], [0.0]]):
        # The residual is zero, which proves more than any bound
        system = ScaledSystem(a, np.array(b), np.zeros((2, 1), int))
        assert refinement._first_enclosure(system, proof) is None
        assert (enclosure(system, proof, 1).radius == 0.0).all()
    module, _ = core.loaded()
    good = [a, np.ones((2, 1)), a, np.ones((2, 1)), np.empty((2, 1)), np.empty((2, 1))]
    with pytest.raises(ValueError, match="do not fit"):
        module.enclose(*good, 1.0, 1.0)
    with pytest.raises(ValueError, match="do not fit"):
        module.enclose(*good[:5], np.empty((3, 1)), 0.5, 1.0)
    with pytest.raises(TypeError, match="eight"):
        module.enclose(*good)


@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_further_steps_are_for_the_few_right_sides_that_need_them(
    monkeypatch, accuracy
):
    rng = np.random.default_rng(3)
    n = 70
    a = np.rint(9.0 * rng.standard_normal((n, n)))
    b = rng.standard_normal((n, 20))
    x = np.rint(9.0 * rng.standard_normal(n))
    x[7] = 0.0
    b[:, 4] = a @ x
    plain = linalg.solve(a, np.delete(b, 4, axis=1), accuracy=accuracy)
    columns = []
    original = refinement.residual

    def counted(a, b, *others):
        columns.append(b.shape[1])
        return original(a, b, *others)

    monkeypatch.setattr(refinement, "residual", counted)
    solution, report = linalg.solve(a, b, accuracy=accuracy, return_report=True)
    assert 20 in columns
    assert max(set(columns) - {20}) <= 2
    assert accuracy or len(columns) == report.steps
    assert (np.abs(solution.x[:, 4] - x) <= solution.radius[:, 4]).all()
    assert solution.radius[7, 4] <= 2.0**-100
    others = np.delete(solution.x, 4, axis=1)
    assert (others == plain.x).all()
    radii = np.delete(solution.radius, 4, axis=1)
    np.testing.assert_allclose(radii, plain.radius, rtol=1e-3)


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
@pytest.mark.parametrize(
    "kind", ["ordinary", "condition 1e10", "triangle", "permutation"]
)
def test_inverses_take_few_steps_and_few_residuals_that_are_rounded_once(
    monkeypatch, kind
):
    pytest.importorskip("flint")
    rng = np.random.default_rng(11)
    n = 70
    a = rng.standard_normal((n, n))
    if kind == "condition 1e10":
        u, _, v = np.linalg.svd(a)
        a = (u * np.logspace(0.0, -10.0, n)) @ v
    if kind == "triangle":
        a = np.triu(a) + 10.0 * np.eye(n)
    if kind == "permutation":
        a = np.eye(n)[rng.permutation(n)]
    sides = [0]
    rounded_once = refinement.correct_residual

    def counted(a, x, b):
        sides.append(b.shape[1])
        return rounded_once(a, x, b)

    monkeypatch.setattr(refinement, "correct_residual", counted)
    solution, report = linalg.inv(a, return_report=True)
    assert report.steps <= 5
    assert max(sides) <= arrays.FEW_SIDES
    assert misses(solution.x, solution.radius, exact_parts(a, np.eye(n))) == []
    exact_zeros = (
        np.tril(np.ones((n, n)), -1) if kind == "triangle" else np.zeros((n, n))
    )
    in_ulps = solution.radius / np.spacing(np.abs(solution.x))
    assert (in_ulps[exact_zeros == 0.0] <= 0.625).all()
    assert (solution.radius[exact_zeros == 1.0] <= 2.0**-100).all()
    assert kind != "permutation" or (solution.radius == 0.0).all()
