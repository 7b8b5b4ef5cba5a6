"""Least squares and least norm against exact solutions of the normal equations."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from experiments.linalg_enclosures import ulps
from experiments.systems import misses
from hifigemm import linalg
from hifigemm.linalg import least_squares as module
from hifigemm.linalg.least_squares import AugmentedSystem
from tests.linalg.worst_arithmetic import exact_matmul, fractions, worst_matmul

flint = pytest.importorskip("flint")


def transposed(a):
    return [list(column) for column in zip(*a)]


def exact_solve(a, b):
    """A^-1 b in fractions."""

    def matrix(x):
        entries = [flint.fmpq(v.numerator, v.denominator) for row in x for v in row]
        return flint.fmpq_mat(len(x), len(x[0]), entries)

    x = matrix(a).solve(matrix(b))
    return [
        [Fraction(int(x[i, j].p), int(x[i, j].q)) for j in range(x.ncols())]
        for i in range(x.nrows())
    ]


def exact_lstsq(a, b):
    """[re, im] or [re] of the solution, as `misses` takes it."""
    if a.dtype.kind == "c":
        a = np.block([[a.real, -a.imag], [a.imag, a.real]])
        both = exact_lstsq(a, np.concatenate([b.real, b.imag]))[0]
        return [both[: len(both) // 2], both[len(both) // 2 :]]
    rows, sides = fractions(a), fractions(b)
    turned = transposed(rows)
    if len(rows) >= len(turned):
        return [exact_solve(exact_matmul(turned, rows), exact_matmul(turned, sides))]
    return [exact_matmul(turned, exact_solve(exact_matmul(rows, turned), sides))]


def of_condition(rng, m, n, condition, kind=float):
    """m x n with singular values down to 1 / condition."""
    least = min(m, n)
    parts = [rng.standard_normal((size, least)) for size in (m, n)]
    if kind is complex:
        parts = [x + 1j * rng.standard_normal(x.shape) for x in parts]
    u, v = (np.linalg.qr(x)[0] for x in parts)
    return (u * np.logspace(0.0, -np.log10(condition), least)) @ v.conj().T


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
    if condition <= 1e4:
        assert np.median(ulps(solution.x, solution.radius, parts)) <= 1.0


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


def augmented(b):
    """M in fractions."""
    m, n = b.shape
    rows = [[Fraction(int(i == j)) for j in range(m)] for i in range(m)]
    matrix = [row + entries for row, entries in zip(rows, fractions(b))]
    return matrix + [row + [Fraction(0)] * n for row in transposed(fractions(b))]


def approximate(system):
    """R in fractions, from its factors as they are."""
    q, v = fractions(system.q), fractions(system.v)
    m, n = len(q), len(v)
    both = exact_matmul(q, transposed(v))
    first = exact_matmul(q, transposed(q))
    last = exact_matmul(v, transposed(v))
    rows = [[int(i == j) - first[i][j] for j in range(m)] + both[i] for i in range(m)]
    turned = transposed(both)
    return rows + [turned[i] + [-x for x in last[i]] for i in range(n)]


def flattering_products(b):
    """A product in the place of product_of_numbers, off by all that r allows: T
    upwards, and the others towards what they should be close to, Q, B and I.
    """
    targets = iter([np.inf, np.linalg.qr(b)[0], b, np.eye(b.shape[1])])

    def product(left, right, r):
        exact = left @ right
        allowed = 0.99 * r * (np.abs(left) @ np.abs(right))
        return exact + np.clip(next(targets) - exact, -allowed, allowed)

    return product


@pytest.mark.parametrize("accuracy", [None, 1e-3, 0.1])
@pytest.mark.parametrize("parts", [(1.0, 0.0), (0.0, 1.0), (1.0, 1e3), (1.0, 1e-3)])
def test_contraction_is_no_less_than_the_exact_product(monkeypatch, accuracy, parts):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        m, n = int(rng.integers(3, 6)), int(rng.integers(1, 4))
        b = of_condition(rng, m, n, 1e2)
        if accuracy is not None:
            monkeypatch.setattr(module, "accuracy_of_product", lambda *_: accuracy)
            monkeypatch.setattr(module, "product_of_numbers", flattering_products(b))
        system = AugmentedSystem.of(b)
        product = exact_matmul(approximate(system), augmented(b))
        exact = [
            [abs(int(i == j) - product[i][j]) for j in range(m + n)]
            for i in range(m + n)
        ]
        of_s = parts[0] * rng.uniform(0.0, 1.0, (m, 1))
        of_x = parts[1] * rng.uniform(0.0, 1.0, (n, 1))
        bounds = np.concatenate(system.contraction(of_s, of_x))
        images = exact_matmul(exact, fractions(np.concatenate([of_s, of_x])))
        for bound, image in zip(bounds[:, 0], images):
            assert Fraction(float(bound)) >= image[0]


@pytest.mark.parametrize("condition", [1e1, 1e6])
def test_update_bounds_the_exact_residual(monkeypatch, condition):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        m, n = int(rng.integers(3, 6)), int(rng.integers(1, 4))
        b = of_condition(rng, m, n, condition)
        system = AugmentedSystem.of(b)
        s, f = rng.standard_normal((2, m, 1))
        x, h = rng.standard_normal((2, n, 1))

        # q1 is close to a sum of columns of Q and a vector that cancels in Q^H q1
        f = s + b @ x + np.linalg.qr(b)[0] @ h * 1e-3
        monkeypatch.setattr(module, "matmul", worst_matmul)
        _, _, of_s, of_x = system._update(s, x, f, h)
        monkeypatch.undo()
        both = exact_matmul(augmented(b), fractions(np.concatenate([s, x])))
        gaps = [
            [Fraction(float(side)) - value[0]]
            for side, value in zip(np.concatenate([f, h])[:, 0], both)
        ]
        exact = exact_matmul(approximate(system), gaps)
        for bound, value in zip(np.concatenate([of_s, of_x])[:, 0], exact):
            assert Fraction(float(bound)) >= abs(value[0])


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("accuracy", [0.01, 0.1])
def test_errors_of_two_products_add_up(monkeypatch, accuracy, power):
    # Q is so short that T and the product behind it hide that together
    b = np.ones((1, 1))
    q = (1.0 + 0.98 * accuracy) ** -power * b
    monkeypatch.setattr(np.linalg, "qr", lambda _: (q, b))
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: accuracy)
    monkeypatch.setattr(module, "product_of_numbers", flattering_products(b))
    system = AugmentedSystem.of(b)
    product = exact_matmul(approximate(system), augmented(b))
    of_s, of_x = system.contraction(np.zeros((1, 1)), np.ones((1, 1)))
    assert Fraction(float(of_s[0, 0])) >= abs(product[0][1])
    assert Fraction(float(of_x[0, 0])) >= abs(1 - product[1][1])


def exact_gaps(system, b):
    """|I - R M| in fractions."""
    size = sum(b.shape)
    product = exact_matmul(approximate(system), augmented(b))
    return [
        [abs(int(i == j) - product[i][j]) for j in range(size)] for i in range(size)
    ]


@pytest.mark.parametrize("q", [1.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("v", [1.0, 1.0 - 2.0**-53])
def test_contraction_counts_the_last_rounding_of_each_product(monkeypatch, q, v):
    # All products come out as 1, from which they differ by u at most
    one = np.ones((1, 1))
    monkeypatch.setattr(np.linalg, "qr", lambda _: (q * one, one))
    monkeypatch.setattr(module, "inverse", lambda _: v * one)
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 0.0)
    monkeypatch.setattr(module, "product_of_numbers", lambda *_: one)
    system = AugmentedSystem.of(one)
    system = replace(system, gap_of_q=np.abs(one - system.q))
    exact = exact_gaps(system, one)
    for j, parts in enumerate([(one, 0.0 * one), (0.0 * one, one)]):
        for i, bound in enumerate(system.contraction(*parts)):
            assert Fraction(float(bound[0, 0])) >= exact[i][j]


def test_contraction_holds_where_its_sums_come_out_too_small(monkeypatch):
    rng = np.random.default_rng(0)
    b = rng.uniform(0.5, 1.0, (12, 4))
    system = AugmentedSystem.of(b)
    exact = exact_gaps(system, b)
    monkeypatch.setattr(module, "matmul", worst_matmul)

    # Gaps that are known exactly: what is left are the roundings of the sums
    zeros = Fraction(0)
    of_s, of_x = np.ones((12, 1)), np.zeros((4, 1))
    bounds = system.contraction(of_s, of_x)
    w = [[abs(x) for x in row] for row in fractions(system.gap_of_q)]
    sums = exact_matmul(transposed(w), fractions(of_s))
    q = [[abs(x) for x in row] for row in fractions(system.q)]
    v = [[abs(x) for x in row] for row in fractions(system.v)]
    for bound, factor in zip(bounds, (q, v)):
        for value, row in zip(bound[:, 0], exact_matmul(factor, sums)):
            assert Fraction(float(value)) >= row[0] > zeros
    images = exact_matmul(exact, fractions(np.concatenate([of_s, of_x])))
    for value, image in zip(np.concatenate(bounds)[:, 0], images):
        assert Fraction(float(value)) >= image[0]


def test_sums_are_lifted_above_all_that_their_roundings_took(monkeypatch):
    # Of W and Q with 600 ones a sum of 600 terms, twice, loses up to 1200 u
    m = 600
    system = AugmentedSystem.of(np.ones((m, 1)))
    ones = np.ones((m, 1))
    system = replace(system, q=ones, gap_of_q=ones, t=0.0 * system.t, accuracy=0.0)
    monkeypatch.setattr(module, "UNIT", 0.0)
    monkeypatch.setattr(module, "matmul", lambda a, b: (1.0 - m * 2.0**-53) * (a @ b))
    of_s, _ = system.contraction(ones, np.zeros((1, 1)))
    assert Fraction(float(of_s[0, 0])) >= m


def test_contraction_counts_what_underflows_behind_large_factors(monkeypatch):
    # |B|^T v = 2^-1080 vanishes, and |V| makes it large again
    b = np.array([[2.0**-500]])
    monkeypatch.setattr(module, "accuracy_of_product", lambda *_: 0.1)
    monkeypatch.setattr(module, "product_of_numbers", flattering_products(b))
    monkeypatch.setattr(np.linalg, "qr", lambda _: (np.full((1, 1), 0.95), b))
    system = AugmentedSystem.of(b)
    v = np.array([[2.0**-580]])
    exact = exact_gaps(system, b)
    of_s, of_x = system.contraction(v, 0.0 * v)
    assert Fraction(float(of_s[0, 0])) >= exact[0][0] * Fraction(v[0, 0])
    assert Fraction(float(of_x[0, 0])) >= exact[1][0] * Fraction(v[0, 0])


@pytest.mark.parametrize("which", ["f", "h", "both"])
def test_update_bounds_products_that_are_as_bad_as_they_may(monkeypatch, which):
    # gamma has no room of its own here, and products of 20 terms err by 19 u and more
    for seed in range(3):
        rng = np.random.default_rng(seed)
        m, n = 20, 8
        b = of_condition(rng, m, n, 1e2)
        system = AugmentedSystem.of(b)
        s, x = np.zeros((m, 1)), np.zeros((n, 1))
        f, h = rng.standard_normal((m, 1)), rng.standard_normal((n, 1))
        f = f * (which != "h")
        h = h * (which != "f")
        if which == "f":
            # All but nothing of f lies in the range of B
            f = f - system.q @ (system.q.T @ f)
        with monkeypatch.context() as worst:
            worst.setattr(module, "matmul", worst_matmul)
            _, _, of_s, of_x = system._update(s, x, f, h)
        exact = exact_matmul(approximate(system), fractions(np.concatenate([f, h])))
        for bound, value in zip(np.concatenate([of_s, of_x])[:, 0], exact):
            assert Fraction(float(bound)) >= abs(value[0])


def test_update_counts_the_roundings_of_both_residuals():
    # z = 0 from q1 = q2 = 1, which stand for 1 + 2^-53 and 1 + 2^-54
    b = np.ones((1, 1))
    system = AugmentedSystem.of(b)
    small = np.array([[-(2.0**-54)]])
    _, dx, _, of_x = system._update(small, small, b, b)
    assert dx[0, 0] == 0.0
    assert of_x[0, 0] >= 2.0**-54


@pytest.mark.parametrize("share", [0.9, 0.95])
def test_radius_holds_for_factors_that_are_too_short(monkeypatch, share):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        m, n = int(rng.integers(1, 5)), 1
        b = rng.uniform(0.5, 1.0, (m, n))
        f = rng.uniform(0.5, 1.0, (m, 1))
        q, u = np.linalg.qr(b)
        monkeypatch.setattr(np.linalg, "qr", lambda _, q=q, u=u: (share * q, u))
        system = AugmentedSystem.of(b)
        monkeypatch.undo()
        s, x = np.zeros((m, 1)), np.zeros((n, 1))
        _, _, of_s, of_x = system._update(s, x, f, x)
        assert system.norm() < 1.0
        radius_of_s, radius_of_x = system._radius(of_s, of_x, system.norm())
        ((solution,),) = exact_lstsq(b, f)[0]
        assert Fraction(float(radius_of_x[0, 0])) >= abs(solution)
        for i in range(m):
            gap = Fraction(f[i, 0]) - Fraction(b[i, 0]) * solution
            assert Fraction(float(radius_of_s[i, 0])) >= abs(gap)


def test_update_counts_the_roundings_of_its_products(monkeypatch):
    # Q = V = 1, q1 = 1 and q2 = 0: z = 1, and ds = 0, of which no part is lifted
    one = np.ones((1, 1))
    system = replace(AugmentedSystem.of(one), q=one, v=one)
    residuals = iter([one, 0.0 * one])
    monkeypatch.setattr(module, "correct_residual", lambda *_: next(residuals))
    monkeypatch.setattr(type(system), "_gamma", lambda self, terms: terms * 2.0**-53)
    _, _, of_s, _ = system._update(0.0 * one, 0.0 * one, one, one)

    # z is off by 3 u and by u for its sum, Q z by u, q1 and ds by u
    assert Fraction(of_s[0, 0]) >= Fraction(13, 2) / 2**53


def test_radius_has_its_second_term(monkeypatch):
    # y + max(y / v) / (1 - a) |G| v bounds s and x where |G| y alone does not
    one = np.ones((1, 1))
    system = AugmentedSystem.of(one)
    monkeypatch.setattr(type(system), "_weighted_bounds", lambda _: (0.5 * one, one))
    monkeypatch.setattr(type(system), "contraction", lambda _, s, x: (0.5 * s, 0.5 * x))
    radius_of_s, radius_of_x = system._radius(one, 0.0 * one, 0.5)

    # beta = 1 / (1 - 1 / 2) = 2: z = (1 + 2 / 2, 2), and the radius (1 + z1 / 2, z2 / 2)
    assert radius_of_s[0, 0] >= 2.0
    assert radius_of_x[0, 0] >= 1.0


def test_sums_are_lifted_by_what_underflows_behind_the_factors():
    # Sums of rows and columns of Q and V may enlarge a number that vanished twice
    system = AugmentedSystem.of(np.array([[2.0**-300]]))
    vector = np.ones((1, 1))
    bound = system._above(0.0 * vector, vector)
    assert bound[0, 0] >= 2.0**600 * 2.0**-1074


def short_factors(monkeypatch, share):
    """The system of B = 1 whose Q is shorter than it should be."""
    b = np.ones((1, 1))
    q, u = np.linalg.qr(b)
    with monkeypatch.context() as context:
        context.setattr(np.linalg, "qr", lambda _: (share * q, u))
        return AugmentedSystem.of(b)


def test_radius_holds_where_the_norm_is_close_to_one(monkeypatch):
    norms = []
    for share in np.linspace(0.3, 0.95, 40):
        system = short_factors(monkeypatch, share)
        norm = system.norm()
        if not norm < 1.0:
            continue
        norms.append(norm)
        for side in (1.0, -1.0):
            f, h = np.ones((1, 1)), np.full((1, 1), side)
            zero = np.zeros((1, 1))
            _, _, of_s, of_x = system._update(zero, zero, f, h)
            radius_of_s, radius_of_x = system._radius(of_s, of_x, norm)
            # s + x = f and s = h, as B is 1
            assert radius_of_s[0, 0] >= abs(side)
            assert radius_of_x[0, 0] >= abs(1.0 - side)
    assert max(norms) > 0.8


def test_a_norm_of_one_and_more_is_no_proof(monkeypatch):
    refused = 0
    for share in np.linspace(0.05, 0.95, 40):
        system = short_factors(monkeypatch, share)
        if 1.0 <= system.norm() < 2.0:
            refused += 1
            with pytest.raises(linalg.VerificationError, match="full rank"):
                system.enclosure(np.ones((1, 1)), np.zeros((1, 1)))
    assert refused > 3


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
