"""Small systems solved by the kernel, compared with exact solutions and with the twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

pytest.importorskip("flint")

from hifigemm.engines import core
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.systems import small_systems
from hifigemm.kernels.systems.tiles import tile_of
from hifigemm.linalg import stacks
from hifigemm.numerics import sliced_residuals
from tests.linalg.test_stacks import (
    judge,
    mixed_stacks,
    solved_plainly,
    test_ordinary_systems_have_the_solutions_of_the_core,  # noqa: F401, for `solve_stack`
    test_pivots_are_found_in_any_row,  # noqa: F401
    test_solutions_that_are_float64_numbers_have_no_radius,  # noqa: F401
    test_solutions_that_lose_bits_in_their_units_are_left,  # noqa: F401
    test_wild_and_singular_systems_are_left_and_harm_no_other,  # noqa: F401
)

# The interpreter warns of systems that are not solved: they divide by zero
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def solve_stack():
    """`solved_stack` by the kernel, for arrays of NumPy and as such."""

    def solve(a, b):
        tensors = [torch.from_numpy(x).to(DEVICE) for x in (a, b)]
        solved = stacks.solved_stack(*map(wrap, tensors))
        return core.SolvedStack(*(unwrap(x).cpu().numpy() for x in solved))

    return solve


def test_no_radius_misses_and_the_nearest_numbers_are_the_nearest(solve_stack):
    assert (judge(solve_stack, 20, rows=4) > 5).all()


def test_the_kernel_has_the_answers_of_its_twin(solve_stack):
    """Other orders of sums change bounds by some roundings, and words that are not certain."""
    for a, b in mixed_stacks(10, rows=6):
        x, radius, proofs = solve_stack(a, b)
        want = solved_plainly(a, b)
        status = proofs[:, 0]
        assert (status == want.proofs[:, 0]).all()
        is_nearest = status == 2.0
        assert (x[is_nearest] == want.x[is_nearest]).all()
        is_proven = status > 0.0
        _, condition, norm, steps = proofs[is_proven].T
        _, wanted_condition, wanted_norm, wanted_steps = want.proofs[is_proven].T
        np.testing.assert_allclose(condition, wanted_condition, rtol=1e-6)
        np.testing.assert_allclose(norm, wanted_norm, rtol=0.9)
        assert (np.abs(steps - wanted_steps) <= 1.0).all()
        # Of entries that are not tiny beside others
        largest = np.abs(x).max(axis=1, keepdims=True, initial=0.0)
        counts = (np.abs(x) > 1e-25 * largest) & is_nearest[:, None, None]
        unit = np.spacing(np.abs(x))
        assert (np.abs(radius - want.radius) <= 2.0**-10 * unit)[counts].all()


def test_no_bit_depends_on_other_systems(solve_stack):
    rng = np.random.default_rng(6)
    a = rng.standard_normal((40, 4, 4))
    b = rng.standard_normal((40, 4, 3))
    # Some need more steps than others
    a[::3, 0] = a[::3, 1] + 2.0**-20 * a[::3, 0]
    b[::5] = a[::5] @ np.round(b[::5])
    want = solve_stack(a, b)
    assert len(np.unique(want.proofs[:, 3])) > 1
    for part in (slice(7, 8), slice(3, 30), slice(None, None, -1)):
        found = solve_stack(a[part].copy(), b[part].copy())
        for x, y in zip(found, want):
            assert (x == y[part]).all()
    for side in range(3):
        one_side = b[:, :, side : side + 1].copy()
        found = solve_stack(a, one_side)
        assert (found.x == want.x[:, :, side : side + 1]).all()
        assert (found.radius == want.radius[:, :, side : side + 1]).all()


def test_strides_and_stacks_of_stacks(solve_stack):
    rng = np.random.default_rng(9)
    a = rng.standard_normal((2, 5, 3, 3))
    b = rng.standard_normal((2, 5, 3, 2))
    want = solve_stack(a, b)
    by_columns = np.ascontiguousarray(np.swapaxes(a, -1, -2))
    tensors = [
        torch.from_numpy(by_columns).to(DEVICE).mT,
        torch.from_numpy(np.repeat(b, 2, axis=-1)).to(DEVICE)[..., ::2],
    ]
    found = stacks.solved_stack(*map(wrap, tensors))
    for x, y in zip(found, want):
        assert (unwrap(x).cpu().numpy() == y).all()
    one = torch.from_numpy(a[0, 0]).to(DEVICE).expand(4, 3, 3)
    sides = torch.from_numpy(np.stack([b[0, 0]] * 4)).to(DEVICE)
    found = stacks.solved_stack(wrap(one), wrap(sides))
    assert (unwrap(found.x).cpu().numpy() == want.x[0, 0]).all()


@triton.jit
def _step_kernel(
    a, inverse, row_bounds, norm, b, x, low, out, N: tl.constexpr, BOUNDS: tl.constexpr
):
    """A step for one system of N rows, a power of two, what `_rounded` says of it, and the
    errors of its residual.
    """
    rows = tl.arange(0, N)[None, :, None]
    columns = tl.arange(0, N)[None, None, :]
    matrix = tl.load(a + rows * N + columns)
    proof = (
        matrix,
        tl.load(inverse + rows * N + columns),
        tl.load(row_bounds + rows),
        tl.load(norm + tl.zeros((1, 1, 1), tl.int32)),
        rows < N,
    )
    start = tl.load(x + rows)
    start_low = tl.load(low + rows)
    words = small_systems._step(proof, tl.load(b + rows), start, start_low, BOUNDS)
    radius, is_nearest = small_systems._rounded(
        words[0], words[1], words[2], words[3], BOUNDS
    )
    for i in tl.static_range(4):
        tl.store(out + i * N + rows, words[i])
    tl.store(out + 4 * N + rows, radius)
    tl.store(out + 5 * N + rows, is_nearest.to(tl.float64))
    along = small_systems.along_columns(start), small_systems.along_columns(start_low)
    _, errors, _ = small_systems._residual(
        matrix, tl.load(b + rows), along[0], along[1], BOUNDS
    )
    tl.store(out + 6 * N + rows, errors)


_launch_step = Launch(_step_kernel)


def _stepped(a, inverse, row_bounds, norm, b, x, low, bounds):
    n = a.shape[0]
    out = a.launches.empty((7, n), torch.float64)
    operands = a, inverse, row_bounds, norm, b, x, low, out
    options = {"num_warps": 1, "enable_fp_fusion": False}
    _launch_step((1,), *operands, N=n, BOUNDS=bounds, **options)
    return out


def step_by_kernel(proof, a, b, x, low):
    """A step of one system, and what is said of it, as arrays."""
    arrays = (a, proof.inverse, proof.row_bounds, proof.norm, b, x, low)
    tensors = [torch.from_numpy(np.ascontiguousarray(y[0])).to(DEVICE) for y in arrays]
    bounds = stacks.bounds_of_systems(a.shape[1])
    found = run_recorded(_stepped, *tensors, bounds=bounds).cpu().numpy()
    return found[:, :, None]


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_steps_are_those_of_the_twin(n):
    rng = np.random.default_rng([n, 21])
    for case in range(30):
        a = rng.uniform(-0.5, 0.5, (1, n, n)) + 0.5 * np.eye(n)
        proof = stacks._proof(a)
        x = rng.uniform(-1.0, 1.0, (1, n, 1)) * 2.0 ** -rng.integers(0, 40, (1, n, 1))
        b = a @ x
        low = x * rng.uniform(-(2.0**-53), 2.0**-53, x.shape)
        if case % 3 == 0:
            x *= 1.0 + 2.0**-20  # large updates leave something
        if case % 5 == 0:
            b *= 1.0 + 2.0**-30
        if case == 7:
            x[0, n // 2, 0] = 1.5
        found = step_by_kernel(proof, a, b, x, low)
        matrices = sliced_residuals.sliced(a)
        step = stacks._step(proof, matrices, b, x, low)
        np.testing.assert_allclose(found[3], step.error[0], rtol=1e-3)
        residual = sliced_residuals.sliced_residual(matrices, b, x, low)
        np.testing.assert_allclose(found[6], residual.errors[0], rtol=1e-3)
        x, low, left, error = found[:4]
        differences = (x - step.x[0], low - step.low[0], left - step.left[0])
        assert (np.abs(sum(differences)) <= 2.0 * error)[error == error].all()

        # The same words are rounded in the same way
        words = (y[None] for y in found[:4])
        radius, is_nearest = stacks._rounded(stacks._Step(*words))
        np.testing.assert_array_equal(found[4], radius[0])
        np.testing.assert_array_equal(found[5], is_nearest[0])
        assert np.isnan(error).all() == (case == 7)


def _solved_into(a, b, x, radius, proofs, bounds):
    """The launch of `solved_systems`, to outputs with more rows than there are systems."""
    batch, n, sides = b.shape
    tile = tile_of(n)
    small_systems._launch(
        (triton.cdiv(batch, tile.systems),),
        *(a, b, x, radius, proofs, batch, sides),
        BOUNDS=bounds,
        SYSTEMS=tile.systems,
        ROWS=tile.rows,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )


@pytest.mark.parametrize("n", [1, 3, 5])
def test_nothing_is_written_beyond_the_last_system(n):
    rng = np.random.default_rng(n)
    count = 2 * tile_of(n).systems - 1
    a = torch.from_numpy(rng.standard_normal((count, n, n))).to(DEVICE)
    b = torch.from_numpy(rng.standard_normal((count, n, 2))).to(DEVICE)
    x, radius = torch.full((2, count + 9, n, 2), 7.0, dtype=a.dtype, device=DEVICE)
    proofs = torch.full((count + 9, 4), 7.0, dtype=a.dtype, device=DEVICE)
    bounds = stacks.bounds_of_systems(n)
    run_recorded(_solved_into, a, b, x, radius, proofs, bounds=bounds)
    for y in (x, radius, proofs):
        assert (y[count:] == 7.0).all()
        assert (y[:count] != 7.0).all()


def test_compiled_systems(compiled):
    for line in compiled("systems"):
        assert line["spills"] <= 400, line
        assert line["registers"] <= 255, line
