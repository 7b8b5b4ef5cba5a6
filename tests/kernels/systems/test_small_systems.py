"""Small systems solved by the kernel, compared with exact solutions and with the twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flint")

from hifigemm.engines import core
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.linalg import stacks
from tests.linalg.test_stacks import (
    judge,
    mixed_stacks,
    solved_plainly,
    test_ordinary_systems_have_the_solutions_of_the_core,  # noqa: F401, for `solve_stack`
    test_pivots_are_found_in_any_row,  # noqa: F401
    test_solutions_that_are_float64_numbers_have_no_radius,  # noqa: F401
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
    judge(solve_stack, 20)


def test_the_kernel_has_the_answers_of_its_twin(solve_stack):
    """Other orders of sums change bounds by some roundings, and words that are not certain."""
    for a, b in mixed_stacks(10):
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


def test_compiled_systems(compiled):
    for line in compiled("systems"):
        assert line["spills"] <= 400, line
        assert line["registers"] <= 255, line
