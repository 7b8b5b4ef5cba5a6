"""Operands that are scaled along k: copies on a GPU are those of the plain maths."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import scaled_along_k as kernels
from hifigemm.numerics.inner_scaling import scaled_along_k as plain
from tests.kernels.layouts import DEVICE, LAYOUTS, on_device

scaled_along_k = partial(run_recorded, kernels.scaled_along_k)

DTYPES = ["float32", "float64", "complex64", "complex128"]


def operand(rng, shape, dtype):
    """Entries far apart, with zeros of both signs, Inf and NaN."""
    x = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-40, 40, shape))
    x[rng.random(shape) < 0.1] = 0.0
    x[rng.random(shape) < 0.1] = -0.0
    x[rng.random(shape) < 0.02] = np.inf
    x[rng.random(shape) < 0.02] = np.nan
    if dtype.startswith("complex"):
        y = np.empty(shape, np.complex128)
        y.real, y.imag = x, x[..., ::-1]
        x = y
    return x.astype(dtype)


def assert_same_bits(found, want):
    assert found.cpu().numpy().dtype == want.dtype
    np.testing.assert_array_equal(found.cpu().numpy(), want)
    parts = found.cpu().numpy().view(np.float64)
    is_number = ~np.isnan(parts)
    signs = np.signbit(np.ascontiguousarray(want).view(np.float64))
    np.testing.assert_array_equal(np.signbit(parts)[is_number], signs[is_number])


def by_components(x, d, axis):
    """The plain maths, for which a complex Inf times a number may be NaN."""
    if x.dtype.kind != "c":
        return plain(x.astype(np.float64), d, axis)
    wide = np.empty(x.shape, np.complex128)
    wide.real, wide.imag = (plain(y, d, axis) for y in (x.real, x.imag))
    return wide


def check(a, b, d, layouts=("rows", "rows"), neighbours=1):
    """Both copies, and each of them alone."""
    each = np.repeat(d, neighbours)
    left, right = (on_device(x, how) for x, how in zip((a, b), layouts, strict=True))
    sides = (left, 2), (right, 1)
    exponents = torch.from_numpy(d.astype(np.int32)).to(DEVICE)
    copies = scaled_along_k(sides, exponents, neighbours=neighbours)
    for x, (y, axis), copy in zip((left, right), sides, copies, strict=True):
        want = by_components(y.cpu().numpy(), each, axis)
        assert_same_bits(copy.contiguous(), want)
        (alone,) = scaled_along_k(((y, axis),), exponents, neighbours=neighbours)
        assert_same_bits(alone.contiguous(), want)
        # Neighbours along k stay neighbours.
        if min(x.shape[1:]) > 1:
            assert (copy.stride(axis) == 1) == (x.stride(axis) == 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (17, 700, 9), (13, 70, 600)])
def test_copies_equal_plain_maths(shape, dtype):
    rng = np.random.default_rng(1)
    m, k, n = shape
    a, b = operand(rng, (2, m, k), dtype), operand(rng, (1, k, n), dtype)
    check(a, b, rng.integers(-900, 900, k))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts_change_no_entry(left, right, dtype):
    rng = np.random.default_rng(2)
    a, b = operand(rng, (3, 17, 70), dtype), operand(rng, (3, 70, 40), dtype)
    check(a, b, rng.integers(-60, 60, 70), (left, right))


def test_largest_factors_are_exact():
    """Entries of A D and D**-1 B from the least normal number to the largest."""
    d = np.array([-1022, -1021, 0, 1021, 1022])
    a = np.ldexp(1.5, -d)[None, None].repeat(3, axis=1)
    a[0, 0] = np.ldexp(1.25, np.minimum(1023 - d, 1023))
    b = np.ldexp(1.75, d)[None, :, None].repeat(4, axis=2)
    check(a, b, d)


def test_neighbours_share_an_exponent():
    rng = np.random.default_rng(3)
    a, b = operand(rng, (2, 9, 50), "float32"), operand(rng, (2, 50, 20), "float32")
    check(a, b, rng.integers(-100, 100, 25), neighbours=2)


def test_nothing_is_written_where_the_predicate_does_not_hold(monkeypatch):
    """Copies are in memory that a list allocates; there the values are those before."""
    a = torch.ones((1, 3, 4), dtype=torch.float64, device=DEVICE)
    d = torch.full((4,), 3, dtype=torch.int32, device=DEVICE)
    number = torch.full((1,), 3, dtype=torch.int64, device=DEVICE)
    old = torch.full((1, 3, 4), -1.0, dtype=torch.float64, device=DEVICE)
    monkeypatch.setattr(
        kernels, "_copy_of", lambda x, axis: x.launches.copies.pop(0), raising=True
    )

    def into_old(a, old, d, number, lowest):
        a.launches.copies = [old]
        return kernels.scaled_along_k(((a, 2),), d, Predicate(number, lowest, LARGEST))

    run_recorded(into_old, a, old, d, number, 4)
    assert (old == -1).all()
    run_recorded(into_old, a, old, d, number, 3)
    assert (old == 8).all()


def test_compiled_copies_move_two_numbers_at_a_time(compiled):
    """Those of complex operands too, and whatever their layout."""
    for line in compiled("along_k"):
        if line["kernel"] == "scaled_along_k_kernel":
            # 8 x 512 numbers of 256 threads.
            assert line["st.global.v2.b64"] == 8, line
            is_single = "float32" in line["case"] or "complex64" in line["case"]
            assert line["LDG.E.128"] == (0 if is_single else 8), line
            assert line["spills"] == 0, line
