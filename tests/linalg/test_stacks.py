"""Stacks of small systems, all solved at once, compared with exact solutions."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import arguments, arrays, solution, stacks
from hifigemm.linalg.upward import UNIT
from hifigemm.numerics import sliced_residuals
from hifigemm.numerics.sliced_residuals import sums_of_products
from tests.linalg.worst_arithmetic import (
    deviation,
    flattering_product,
    worst_matmul,
)

pytest.importorskip("flint")

from experiments.linalg_enclosures import wrong
from experiments.systems import (
    FAMILIES,
    SPARSE,
    exact_parts,
    exact_solution,
    misses,
    of_condition,
)

REAL = {
    name: draw
    for name, draw in {**FAMILIES, **SPARSE}.items()
    if name not in ("complex", "complex64", "float32", "stacks")
}


def solved_plainly(a, b):
    """`solved_stack` by the plain twin."""
    with np.errstate(all="ignore"):
        return core.SolvedStack(*stacks.solved_systems(a, b))


@pytest.fixture
def solve_stack():
    """`solved_stack` by the plain twin; tests of the kernel have it by the kernel."""
    return solved_plainly


def small_systems(rng):
    """Up to six rows, with no right side or a few: short numbers, zeros, numbers that are
    not finite, subnormal, too large, or that cancel to nothing.
    """
    n = int(rng.integers(1, 7))
    k = int(rng.integers(0, 4))
    a = rng.integers(-3, 4, (n, n)).astype(float)
    b = rng.integers(-3, 4, (n, k)).astype(float)
    kind = int(rng.integers(8))
    if kind == 1:
        a = rng.standard_normal((n, n))
        b[...] = 0.0
    elif kind == 2:
        a = np.ldexp(a, int(rng.integers(-1074, 900)))
    elif kind == 3:
        b = np.ldexp(b, int(rng.integers(-1074, 900)))
    elif kind == 4:
        a[rng.integers(n), rng.integers(n)] = rng.choice([np.inf, -np.inf, np.nan])
    elif kind == 5:
        b += np.ldexp(1.0, -rng.integers(20, 80, b.shape))
    elif kind == 6:
        a = np.triu(rng.standard_normal((n, n)))
        b[n // 2 :] = 0.0
    elif kind == 7:
        a = np.eye(n)
        a[0, 1:] = rng.choice([2.0**-60, 2.0**-120, -(2.0**-60)], n - 1)
        b[...] = 1.0
    return a, b


def mixed_stacks(seed, rows=32):
    """Stacks of systems of all families that have the same shape, up to so many rows."""
    rng = np.random.default_rng([31, seed])
    draws = [*REAL.values()] * 2 + [small_systems] * 60
    by_shape = defaultdict(list)
    for i in rng.permutation(len(draws)):
        a, b = (np.asarray(x, float) for x in draws[i](rng))
        b = b[:, None] if b.ndim == 1 else b
        if len(a) <= rows:
            by_shape[b.shape].append((a, b))
            by_shape[a.shape].append((a, np.eye(len(a))))
    for systems in by_shape.values():
        yield tuple(map(np.stack, zip(*systems)))


@pytest.mark.parametrize("seed", range(3))
def test_no_radius_misses_and_the_nearest_numbers_are_the_nearest(seed):
    assert (judge(solved_plainly, seed) > 20).all()


def judge(solve_stack, seed, rows=32):
    """Solutions of systems of all families lie within their radii; how many systems have
    each status.
    """
    statuses = np.zeros(3, int)
    for a, b in mixed_stacks(seed, rows):
        x, radius, proofs = solve_stack(a, b)
        for i, (status, condition, norm, steps) in enumerate(proofs.tolist()):
            statuses[int(status)] += 1
            if status == 0.0:
                continue
            assert np.isfinite(a[i]).all()
            assert np.isfinite(b[i]).all()
            parts = exact_parts(a[i], b[i])
            assert parts is not None, "a singular matrix was proven nonsingular"
            assert misses(x[i], radius[i], parts) == []
            assert norm < 0.5
            assert condition >= 1.0 - 2.0**-50
            assert 1.0 <= steps <= stacks.MOST_STEPS
            if status == 2.0:
                assert wrong(x[i], parts) == 0
    return statuses


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32])
def test_ordinary_systems_have_the_solutions_of_the_core(solve_stack, n):
    rng = np.random.default_rng(n)
    for k in (0, 1, 3):
        a = rng.standard_normal((20, n, n))
        b = rng.standard_normal((20, n, k))
        x, radius, proofs = solve_stack(a, b)
        assert (proofs[:, 0] == 2.0).all()
        assert (radius <= 0.5 * (1.0 + 2.0**-10) * np.spacing(np.abs(x))).all()
        by_core = core.solved_stack(a, b)
        if by_core is not None:
            is_known = by_core.proofs[:, 0] == 2.0
            assert is_known.sum() >= 19
            assert (x[is_known] == by_core.x[is_known]).all()
            np.testing.assert_allclose(proofs[:, 1], by_core.proofs[:, 1], 1e-12)


@pytest.mark.parametrize("exponent", range(1, 13))
def test_systems_up_to_a_condition_of_1e12_are_solved(exponent):
    rng = np.random.default_rng(exponent)
    draw = of_condition(10.0 ** (exponent - 1.0))
    surplus = 0
    for _ in range(50):
        a, b = draw(rng)
        if len(a) <= 32:
            status = solved_plainly(a[None], b[None]).proofs[0, 0]
            surplus += 1 if status == 2.0 else -1
    assert surplus >= 20


def test_solutions_that_are_float64_numbers_have_no_radius(solve_stack):
    rng = np.random.default_rng(2)
    a = rng.integers(-9, 10, (200, 5, 5)) + 20.0 * np.eye(5)
    want = rng.integers(-9, 10, (200, 5, 2)).astype(float)
    want[:, 2] = 0.0
    x, radius, proofs = solve_stack(a, a @ want)
    assert (x == want).all()
    assert (radius == 0.0).all()
    assert (proofs[:, 0] == 2.0).all()

    x, radius, proofs = solve_stack(rng.standard_normal((9, 4, 4)), x[:9, :4] * 0.0)
    assert (x == 0.0).all()
    assert (radius == 0.0).all()
    assert (proofs[:, 0] == 2.0).all()


def test_zeros_beside_other_entries_have_tiny_radii():
    rng = np.random.default_rng(3)
    a = np.triu(rng.standard_normal((100, 6, 6))) + 3.0 * np.eye(6)
    b = rng.standard_normal((100, 6, 1))
    b[:, 3:] = 0.0
    x, radius, proofs = solved_plainly(a, b)
    assert (proofs[:, 0] == 1.0).all()
    assert (np.abs(x[:, 3:]) <= radius[:, 3:]).all()
    largest = np.abs(x).max(axis=1, keepdims=True)
    assert (radius[:, 3:] <= stacks.NEGLIGIBLE * largest).all()


def test_wild_and_singular_systems_are_left_and_harm_no_other(solve_stack):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((20, 3, 3))
    b = rng.standard_normal((20, 3, 2))
    want = solve_stack(a, b)
    bad = [2, 3, 5, 7, 8, 11, 13, 17]
    a[2] = 1.0
    a[3] = 0.0
    a[5, 1, 2] = np.nan
    b[7, 0, 1] = np.inf
    a[8] *= 2.0**300
    b[11, 2] = 5e-324
    a[13] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    a[17, :, 0] = a[17, :, 1] * (1.0 + 2.0**-50)
    found = solve_stack(a, b)
    good = np.setdiff1d(np.arange(20), bad)
    assert (found.proofs[bad, 0] == 0.0).all()
    for x, y in zip(found, want):
        assert (x[good] == y[good]).all()


def test_units_of_the_system_change_no_digit():
    rng = np.random.default_rng(5)
    a = rng.standard_normal((4, 3, 3))
    b = rng.standard_normal((4, 3, 1))
    a[1] *= 2.0**190
    b[1] *= 2.0**-190
    a[2] *= 2.0**-190
    b[2] *= 2.0**190
    x, radius, proofs = solved_plainly(a, b)
    for i in range(4):
        assert proofs[i, 0] == 2.0
        assert misses(x[i], radius[i], exact_parts(a[i], b[i])) == []


def in_order(a, b):
    """`sums_of_products` from left to right."""
    total = a[:, :, 0, None] * b[:, 0, None, :]
    for j in range(1, a.shape[2]):
        total = total + a[:, :, j, None] * b[:, j, None, :]
    return total


@pytest.mark.parametrize("n", range(1, 9))
def test_the_twin_has_the_answers_of_sums_in_another_order(monkeypatch, n):
    rng = np.random.default_rng([n, 19])
    a = rng.standard_normal((20, n, n))
    b = rng.standard_normal((20, n, 2))
    want = solved_plainly(a, b)
    monkeypatch.setattr(stacks, "sums_of_products", in_order)
    monkeypatch.setattr(sliced_residuals, "sums_of_products", in_order)
    found = solved_plainly(a, b)
    assert (found.proofs[:, 0] == want.proofs[:, 0]).all()
    assert (found.x == want.x).all()


def test_solutions_that_lose_bits_in_their_units_are_left(solve_stack):
    """x is 2^-190, 2^-490, 2^-790, 2^-1090, and float64 does not hold the last one."""
    a = 2.0**150 * np.eye(4) - np.diag([2.0**-150] * 3, -1)
    a[0, 0] = 1.0
    b = np.zeros((4, 1))
    b[0] = 2.0**-190
    for n, status in ((3, 1.0), (4, 0.0)):
        x, radius, proofs = solve_stack(a[None, :n, :n].copy(), b[None, :n].copy())
        assert proofs[0, 0] == status
        assert misses(x[0], radius[0], exact_parts(a[:n, :n], b[:n])) == []


def test_pivots_are_found_in_any_row(solve_stack):
    """Permutations, signed and scaled: each matrix is its own elimination."""
    rng = np.random.default_rng(8)
    for n in (1, 2, 3, 5, 8, 17, 32):
        a = np.zeros((12, n, n))
        for matrix in a:
            matrix[np.arange(n), rng.permutation(n)] = rng.choice([-4.0, 0.5, 3.0], n)
        want = np.round(8.0 * rng.standard_normal((12, n, 1)))
        x, radius, proofs = solve_stack(a, a @ want)
        assert (proofs[:, 0] == 2.0).all()
        assert (x == want).all()
        assert (radius == 0.0).all()


# Bounds, with sums that err by as much as they may


def worst_sums(a, b):
    """Sums of products that are too small, by all roundings that they have."""
    return np.stack([worst_matmul(x, y) for x, y in zip(a, b)])


def flattering_sums(a, b):
    """The same; products of two matrices are as close to the identity as they may be."""
    if b.shape[1] != b.shape[2]:
        return worst_sums(a, b)
    share = (b.shape[1] - 1) * UNIT
    return np.stack([flattering_product(x, y, share) for x, y in zip(a, b)])


def proof_of(a, inverse, monkeypatch):
    """The proof by given inverses."""
    monkeypatch.setattr(stacks, "_inverse", lambda a: inverse)
    return stacks._proof(a)


def excesses_of_proof(a, inverse, proof):
    """|I - R A| e less its bounds."""
    for i in range(len(a)):
        for row, deviations in enumerate(deviation(a[i], inverse[i])):
            yield sum(deviations) - Fraction(float(proof.row_bounds[i, row, 0]))


def proofs_for_judges(n, batch=12):
    """Matrices in scale, with inverses of all digits, of some, and of none."""
    rng = np.random.default_rng(n)
    a = rng.uniform(-1.0, 1.0, (batch, n, n))
    inverse = np.linalg.inv(a)
    change = 2.0 ** -rng.choice([53.0, 30.0, 3.0], (batch, 1, 1))
    return a, inverse * (1.0 + change * rng.uniform(-1.0, 1.0, a.shape))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_deviation_of_inverses_has_a_bound(monkeypatch, n):
    monkeypatch.setattr(stacks, "sums_of_products", flattering_sums)
    a, inverse = proofs_for_judges(n)
    proof = proof_of(a, inverse, monkeypatch)
    assert max(excesses_of_proof(a, inverse, proof)) <= 0


def test_the_deviation_counts_the_roundings_of_the_product(monkeypatch):
    monkeypatch.setattr(stacks, "sums_of_products", flattering_sums)
    monkeypatch.setattr(stacks, "gamma", lambda n: 0.0)
    a, inverse = proofs_for_judges(5)
    proof = proof_of(a, inverse, monkeypatch)
    assert max(excesses_of_proof(a, inverse, proof)) > 0


def worst_last_sums(a, b):
    """Sums of slices, exact but for the last ones, which err as much as they may."""
    is_exact = a.shape[2] < 4 * a.shape[1]
    return sums_of_products(a, b) if is_exact else worst_sums(a, b)


def excesses_of_steps(a, b, proof, monkeypatch):
    """Errors of solutions in two words less their bounds, after one step and after all."""
    monkeypatch.setattr(sliced_residuals, "sums_of_products", worst_last_sums)
    x = worst_sums(proof.inverse, b)
    for most_steps in (1, stacks.MOST_STEPS):
        monkeypatch.setattr(stacks, "MOST_STEPS", most_steps)
        is_proven = np.ones((len(a), 1, 1), bool)
        step, _ = stacks._refined(proof, a, b, x, is_proven)
        for i in range(len(a)):
            exact = exact_solution(a[i], b[i])
            for row, column in np.ndindex(x.shape[1:]):
                place = (i, row, column)
                words = (step.x[place], step.low[place], step.left[place])
                value = sum(Fraction(float(word)) for word in words)
                distance = abs(exact[row][column] - value)
                yield distance - Fraction(float(step.error[place]))


def steps_for_judges(n, change):
    """Systems in scale with solutions below 1, and inverses that are changed by a part."""
    rng = np.random.default_rng(n)
    a = rng.uniform(-0.5, 0.5, (8, n, n)) + 0.5 * np.eye(n)
    inverse = np.linalg.inv(a)
    inverse *= 1.0 + change * rng.uniform(-1.0, 1.0, a.shape)
    x = rng.uniform(-1.0, 1.0, (8, n, 2)) * 2.0 ** -rng.integers(0, 40, (8, n, 2))
    return a, a @ x, inverse


@pytest.mark.parametrize("change", [2.0**-53, 2.0**-30, 2.0**-8])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_errors_of_steps_have_bounds(monkeypatch, n, change):
    monkeypatch.setattr(stacks, "sums_of_products", worst_sums)
    a, b, inverse = steps_for_judges(n, change)
    proof = proof_of(a, inverse, monkeypatch)
    assert proof.norm.max() < 0.5
    assert max(excesses_of_steps(a, b, proof, monkeypatch)) <= 0


def test_errors_count_the_deviation_of_the_inverse(monkeypatch):
    monkeypatch.setattr(stacks, "sums_of_products", worst_sums)
    a, b, inverse = steps_for_judges(4, 2.0**-8)
    proof = proof_of(a, inverse, monkeypatch)
    proof = proof._replace(row_bounds=np.zeros_like(proof.row_bounds))
    assert max(excesses_of_steps(a, b, proof, monkeypatch)) > 0


@pytest.mark.parametrize("are_counted", [False, True])
def test_errors_count_the_roundings_of_updates(monkeypatch, are_counted):
    # Exact inverses: nothing else errs
    rng = np.random.default_rng(0)
    a = np.eye(4) + np.triu(rng.integers(-1, 2, (8, 4, 4)), 1)
    b = rng.uniform(-0.1, 0.1, (8, 4, 2))
    monkeypatch.setattr(stacks, "sums_of_products", worst_sums)
    proof = proof_of(a, np.rint(np.linalg.inv(a)), monkeypatch)
    proof = proof._replace(row_bounds=np.zeros_like(proof.row_bounds))
    if not are_counted:
        monkeypatch.setattr(stacks, "gamma", lambda n: 0.0)
    excess = max(excesses_of_steps(a, b, proof, monkeypatch))
    assert (excess <= 0) == are_counted


def test_slices_of_numbers_above_one_have_no_bound(monkeypatch):
    a, b, inverse = steps_for_judges(3, 2.0**-53)
    proof = proof_of(a, inverse, monkeypatch)
    x = np.full_like(b, 1.0)
    x[2, 1, 0] = 1.5
    step = stacks._step(proof, sliced_residuals.sliced(a), b, x, np.zeros_like(x))
    has_no_bound = np.isnan(step.error).any(axis=1)
    assert np.argwhere(has_no_bound).tolist() == [[2, 0]]


@pytest.mark.parametrize("tie", [1.0, -0.5])
def test_what_lies_close_to_a_tie_is_not_called_the_nearest(tie):
    # (1 + 2^-53 (1 + 2^-c), ..., 1 / 3), and what lies as far from the tie below 1
    for c, status in ((np.inf, 1.0), (7.0, 2.0)):
        a = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
        digits = tie * 2.0**-53 * (1.0 + 2.0**-c)
        b = np.array([[digits], [1.0], [1.0]])
        x, radius, proofs = solved_plainly(a[None], b[None])
        parts = exact_parts(a, b)
        assert misses(x[0], radius[0], parts) == []
        assert proofs[0, 0] == status
        if status == 2.0:
            assert wrong(x[0], parts) == 0


def test_ties_that_two_words_hold_are_rounded_to_even():
    # (1 + 2^-53, 1 - 2^-53, 0), whose zero asks for a second step
    a = np.array([[[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]])
    x, radius, proofs = solved_plainly(a, np.array([[[2.0], [2.0**-52], [2.0]]]))
    assert x.ravel().tolist() == [1.0, 1.0 - 2.0**-53, 0.0]
    assert 2.0**-53 <= radius[0, 0, 0] < 2.0**-52
    assert (radius[0, 1:] == 0.0).all()
    assert proofs[0, 0] == 2.0


@pytest.mark.parametrize("exponent", [13.0, 14.0, 15.0])
def test_solutions_with_few_digits_are_left(exponent):
    rng = np.random.default_rng(int(exponent))
    draw = of_condition(10.0**exponent)
    proven = []
    for _ in range(100):
        a, b = draw(rng)
        if len(a) <= 32:
            x, radius, proofs = solved_plainly(a[None], b[None])
            proven.append(proofs[0, 0] > 0.0)
            assert not proven[-1] or (radius <= np.spacing(np.abs(x))).all()
    assert not all(proven)


# Calls with tensors, of the CPU here, that are treated as those of a GPU are


@pytest.fixture
def on_device(monkeypatch, torch):
    """Tensors of the CPU are computed with as those of a GPU are; the plain twin stands for
    the kernel.
    """
    from hifigemm.engines.device_array import DeviceArray, unwrap, wrap
    from hifigemm.libraries import TorchLibrary

    to_native = TorchLibrary.to_native

    def unwrapped(library, x):
        return unwrap(x) if isinstance(x, DeviceArray) else to_native(library, x)

    any_array = arguments._any_array

    def wrapped(x, name, library):
        is_tensor = isinstance(x, torch.Tensor)
        return wrap(x) if is_tensor else any_array(x, name, library)

    monkeypatch.setattr(arguments, "_any_array", wrapped)

    def launched(function, *operands, bounds):
        solved = solved_plainly(*(unwrap(x).numpy() for x in operands))
        return tuple(wrap(torch.from_numpy(np.array(x))) for x in solved)

    monkeypatch.setattr(stacks, "launched", launched)
    monkeypatch.setattr(stacks, "bounds_of_systems", lambda n: None)
    monkeypatch.setattr(TorchLibrary, "on_host", False)
    monkeypatch.setattr(stacks, "has_triton", lambda a: not arrays.is_on_host(a))
    monkeypatch.setattr(TorchLibrary, "active", lambda library: nullcontext())
    monkeypatch.setattr(TorchLibrary, "to_native", unwrapped)


@pytest.fixture
def without_the_host(on_device, monkeypatch):
    """Nothing is moved, and no system is solved one by one."""
    monkeypatch.setattr(solution, "certified_system", None)
    monkeypatch.setattr(core, "solved_stack", None)
    for module in (arguments, arrays):
        monkeypatch.setattr(module, "is_small", lambda x: False)


def solved(solve, *operands, **options):
    """x and radius of tensors as arrays of NumPy."""
    import torch

    answer = solve(*(torch.from_numpy(x.copy()) for x in operands), **options)
    return answer.x.numpy(), answer.radius.numpy()


COUNT = 64


@pytest.fixture(autouse=True)
def few_systems(monkeypatch):
    """Stacks of few systems go to the device, too."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", COUNT)


@pytest.mark.usefixtures("without_the_host")
@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_large_stacks_are_solved_where_they_are(dtype, accuracy):
    rng = np.random.default_rng(10)
    for n, k in ((1, 1), (3, 2), (4, 1)):
        a = rng.standard_normal((COUNT, n, n)).astype(dtype)
        b = rng.standard_normal((COUNT, n, k)).astype(dtype)
        if dtype == np.complex128:
            a += 1j * rng.standard_normal(a.shape)
            b -= 1j * rng.standard_normal(b.shape)
        x, radius = solved(linalg.solve, a, b, accuracy=accuracy)
        assert x.dtype == dtype
        for i in range(0, COUNT, 7):
            parts = exact_parts(a[i], b[i])
            assert misses(x[i], radius[i], parts) == []
            assert accuracy is None or wrong(x[i], parts) == 0


@pytest.mark.usefixtures("on_device")
def test_large_stacks_are_not_moved(monkeypatch):
    monkeypatch.setattr(arguments, "to_host", None)
    monkeypatch.setattr(arrays, "to_host", None)
    a = np.random.default_rng(10).standard_normal((COUNT, 3, 3))
    for operands in ((linalg.solve, a, a[0, 0]), (linalg.inv, a), (linalg.lstsq, a, a)):
        x, radius = solved(*operands)
        assert (radius <= np.spacing(np.abs(x))).all()


@pytest.mark.usefixtures("without_the_host")
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_radii_include_the_rounding_to_float32(dtype):
    rng = np.random.default_rng(11)
    a = rng.standard_normal((COUNT, 4, 4)).astype(dtype)
    b = rng.standard_normal((4, 2)).astype(dtype)
    x, radius = solved(linalg.solve, a, b)
    assert x.dtype == dtype
    assert radius.dtype == np.float32
    for i in range(COUNT):
        assert misses(x[i], radius[i], exact_parts(a[i], b)) == []


@pytest.mark.usefixtures("without_the_host")
def test_inverses_vectors_and_least_squares_of_large_stacks():
    rng = np.random.default_rng(12)
    a = rng.standard_normal((2, COUNT // 2 + 1, 4, 4))
    b = rng.standard_normal(4)
    inverses = solved(linalg.inv, a)
    solutions = solved(linalg.solve, a, b)
    assert solutions[0].shape == (2, COUNT // 2 + 1, 4)
    x, _ = solved(linalg.lstsq, a, b)
    assert (x == solutions[0]).all()
    for i, j in ((0, 0), (1, 3), (1, COUNT // 2)):
        assert (
            misses(*(y[i, j] for y in inverses), exact_parts(a[i, j], np.eye(4))) == []
        )
        columns = [y[i, j][:, None] for y in solutions]
        assert misses(*columns, exact_parts(a[i, j], b[:, None])) == []


@pytest.mark.usefixtures("without_the_host")
def test_one_matrix_serves_a_stack_of_right_sides_and_a_report_has_the_worst():
    import torch

    rng = np.random.default_rng(13)
    a = torch.from_numpy(rng.standard_normal((3, 3)))
    b = torch.from_numpy(rng.standard_normal((COUNT, 3, 1)))
    answer, report = linalg.solve(a, b, return_report=True)
    assert answer.x.shape == b.shape
    assert report.condition >= 1.0
    assert report.norm < 0.5
    assert (report.attempts, report.words) == (1, 1)
    assert 1 <= report.steps <= stacks.MOST_STEPS


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_what_the_device_leaves_is_solved_by_the_core(monkeypatch, accuracy):
    solved_stack = solution.solved_stack

    def leaving_some(a, b):
        stack = solved_stack(a, b)
        stack.proofs[..., 0][3] = 0.0
        stack.proofs[..., 0][5] = 1.0
        stack.x[3] = 7.0
        stack.x[5] = 7.0
        return stack

    monkeypatch.setattr(solution, "solved_stack", leaving_some)
    monkeypatch.setattr(solution, "certified_system", None)
    rng = np.random.default_rng(17)
    a = rng.standard_normal((COUNT, 3, 3))
    b = rng.standard_normal((COUNT, 3, 1))
    x, radius = solved(linalg.solve, a, b, accuracy=accuracy)
    for i in (3, 4, 5) if accuracy else (3, 4):
        assert misses(x[i], radius[i], exact_parts(a[i], b[i])) == []
    # Systems with a radius are good enough unless the nearest number is asked for
    assert (x[5] == 7.0).all() == (accuracy is None)


@pytest.mark.usefixtures("on_device")
def test_any_number_of_systems_may_be_left(monkeypatch):
    solved_stack = solution.solved_stack

    def leaving_all(a, b):
        stack = solved_stack(a, b)
        stack.proofs[..., 0] = 0.0
        return stack

    monkeypatch.setattr(solution, "solved_stack", leaving_all)
    rng = np.random.default_rng(23)
    a = rng.standard_normal((2, 2500, 1, 1))
    b = rng.standard_normal((2, 2500, 1, 1))
    x, radius = solved(linalg.solve, a, b)
    assert (x == b / a).all()
    assert (radius <= np.spacing(np.abs(x))).all()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_what_is_left_goes_the_general_way(accuracy):
    rng = np.random.default_rng(14)
    a = rng.standard_normal((COUNT, 3, 3))
    b = rng.standard_normal((COUNT, 3, 1))
    a[5] = [[1.0, 2.0**-60, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]
    a[5] *= 2.0**300
    a[9] = np.diag([1.0, 1.0, 3.0])
    a[9, :2, :2] = [[1.0, 1.0], [1.0, -1.0]]
    b[9, :, 0] = [2.0, 2.0**-52, 1.0]
    x, radius = solved(linalg.solve, a, b, accuracy=accuracy)
    for i in range(COUNT):
        parts = exact_parts(a[i], b[i])
        assert misses(x[i], radius[i], parts) == []
        assert accuracy is None or wrong(x[i], parts) == 0


@pytest.mark.usefixtures("on_device")
def test_errors_have_what_was_proven_of_large_stacks():
    rng = np.random.default_rng(15)
    a = rng.standard_normal((COUNT, 2, 2))
    b = rng.standard_normal((COUNT, 2, 1))
    a[7] = 1.0
    b[9] = np.nan
    match = rf"2 of {COUNT} systems .* \(7,\)"
    with pytest.raises(linalg.VerificationError, match=match) as error:
        solved(linalg.solve, a, b)
    x, radius = (
        y.numpy() for y in (error.value.solution.x, error.value.solution.radius)
    )
    assert np.isnan(x[[7, 9]]).all()
    assert np.isinf(radius[[7, 9]]).all()
    good = np.setdiff1d(np.arange(COUNT), [7, 9])
    want = solved(linalg.solve, a[good].repeat(2, 0), b[good].repeat(2, 0))
    assert (x[good] == want[0][::2]).all()
    assert (radius[good] == want[1][::2]).all()


@pytest.mark.usefixtures("on_device")
def test_solutions_beyond_the_range_of_float32_are_no_solutions():
    a = np.tile(np.eye(2, dtype=np.float32), (COUNT, 1, 1))
    b = np.ones((COUNT, 2, 1), np.float32)
    a[3] *= 1e-30
    b[3] *= 1e30
    with pytest.raises(linalg.VerificationError, match=f"1 of {COUNT} .* the range"):
        solved(linalg.solve, a, b)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("systems", "rows", "options"),
    [
        (COUNT // 3, 3, {}),
        (COUNT // 6, 3, {"dtype": complex}),
        (COUNT, stacks.MOST_ROWS + 1, {}),
        (COUNT, 3, {"a_radius": 1e-20}),
        (COUNT, 3, {"accuracy": "correct"}),
        (COUNT, stacks.MOST_ROWS // 2 + 1, {"dtype": complex}),
    ],
)
def test_other_stacks_are_solved_by_the_host(monkeypatch, systems, rows, options):
    monkeypatch.setattr(stacks, "launched", None)
    rng = np.random.default_rng(16)
    a = rng.standard_normal((systems, rows, rows))
    b = rng.standard_normal((systems, rows, 1))
    dtype = np.float32 if "accuracy" in options else options.pop("dtype", float)
    a, b = a.astype(dtype), b.astype(dtype)
    x, radius = solved(linalg.solve, a, b, **options)
    assert misses(x[0], radius[0], exact_parts(a[0], b[0])) == []


def test_other_arrays_of_a_device_are_neither_copied_nor_solved(torch):
    from hifigemm.engines.device_array import wrap

    kind = np.dtype(complex)
    a = wrap(torch.eye(3, dtype=torch.complex128))
    b = wrap(torch.ones(3, arrays.MOST_ON_HOST, dtype=torch.complex128))
    assert solution.small_systems(None, a, b, kind) is None


@pytest.mark.usefixtures("on_device")
def test_few_rows_many_systems_and_few_sides_make_a_stack(torch):
    from hifigemm.engines.device_array import wrap

    def zeros(*shape, dtype=torch.float64):
        return wrap(torch.zeros(1, dtype=dtype).expand(shape))

    matrices = zeros(COUNT, 4, 4)
    assert stacks.is_stack(matrices)
    assert stacks.is_stack(zeros(COUNT // 4, 4, 4))
    assert stacks.is_stack(zeros(COUNT // 8, 4, 4, dtype=torch.complex128))
    assert stacks.is_stack(matrices, zeros(4))
    assert stacks.is_stack(zeros(4, 4), zeros(2, COUNT, 4, 1))
    assert stacks.is_stack(zeros(COUNT, stacks.MOST_ROWS, stacks.MOST_ROWS))
    for a, *sides in (
        [zeros(4, 4), zeros(4, COUNT)],
        [zeros(COUNT // 4 - 1, 4, 4)],
        [zeros(COUNT // 8 - 1, 4, 4, dtype=torch.complex128)],
        [zeros(COUNT, 4, 5)],
        [zeros(COUNT, 0, 0)],
        [zeros(COUNT), zeros(COUNT)],
        [zeros(COUNT, stacks.MOST_ROWS + 1, stacks.MOST_ROWS + 1)],
        [matrices, zeros(4, arrays.MOST_ON_HOST)],
        [zeros(COUNT, 20, 20), zeros(20, 1, dtype=torch.complex128)],
        [np.zeros((COUNT, 4, 4))],
    ):
        assert not stacks.is_stack(a, *sides)
