"""Counts of slices by the published estimate on the device: those of numerics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import slice_counts as kernel
from hifigemm.numerics.bits import NO_BIT, largest_exponent, lowest_bit
from hifigemm.numerics.estimates import published_num_slices
from hifigemm.numerics.special import clean

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DOUBLE, SINGLE = 2.0**-53, 2.0**-24
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def counted(a, b, beta, u):
    """The count that the kernels find; None where they need a longer look."""
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    found = run_recorded(kernel.launch, x, y, beta, u)
    return kernel.num_slices_from(found.tolist(), beta, u)


def check(a, b, beta, u):
    want = published_num_slices(a, b, beta, u)
    got = counted(a, b, beta, u)
    assert got == want or (got is None and want[0] > kernel.num_digits(beta, u))
    return got


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "family",
    [
        *("phi_1", "phi_8", "full_range", "subnormal", "largest", "integers"),
        *("empty_rows_and_columns", "opposed_spans", "subnormal_times_large", "zeros"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_are_those_of_the_plain_estimate(dtype, family, make_pair):
    a, b = (x[None] for x in make_pair(family, 9, 150, 35, dtype))
    for beta, u in ((8, DOUBLE), (8, SINGLE), (22, DOUBLE)):
        check(a, b, beta, u)


def test_typical_data_are_decided(make_pair):
    a, b = (x[None] for x in make_pair("phi_1", 70, 130, 66))
    assert check(a, b, 8, DOUBLE) is not None
    assert check(a, b, 9, SINGLE) is not None
    assert check(np.ones_like(a), np.ones_like(b), 8, DOUBLE) == (1, True)


def test_stacks_strides_and_special_values(make_pair):
    a, b = (np.stack([x, x * 2.0**9, x]) for x in make_pair("phi_2", 20, 70, 10))
    a[0, 3, 5], a[2, 4, 0], b[1, 2, 6], b[2, :, 1] = np.inf, np.nan, -np.inf, 0
    for left, right in (
        (a, b),
        (a[:1], b),
        (a, b[1:2]),
        (a[:, ::2, ::3], b[:, ::3, 1:]),
        (b.swapaxes(1, 2), a.swapaxes(1, 2)),
        (a[:, :1, :1], b[:, :1, :1]),
    ):
        assert check(left, right, 8, SINGLE) is not None


def test_long_vectors_shorten_the_weights():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((1, 2, 5000)), rng.standard_normal((1, 5000, 3))
    assert check(a, b, 23, DOUBLE) is not None
    assert check(a, b, 8, DOUBLE) is not None


def test_operands_that_need_many_slices_are_left_open(make_pair):
    a, b = (x[None] for x in make_pair("phi_8", 9, 150, 35))
    assert counted(a, b, 2, DOUBLE) is None


def test_exponents_and_lowest_bits_are_those_of_numerics(make_pair):
    for family in ("full_range", "subnormal", "empty_rows_and_columns"):
        a, b = (x[None] for x in make_pair(family, 9, 70, 66))
        a[0, 2, 3], b[0, 5, 60] = np.nan, np.inf
        x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
        facts = run_recorded(kernel.vector_facts, x, y)
        cleaned = clean(a), clean(b)
        for (high, low), v, axis in zip(facts, cleaned, (2, 1), strict=True):
            want, lowest = largest_exponent(v, axis), lowest_bit(v, axis)
            is_empty = lowest == NO_BIT
            want = np.where(is_empty, 0, want + 4096).squeeze(axis)
            np.testing.assert_array_equal(high.cpu().numpy(), want)
            want = np.where(is_empty, 0, 4096 - lowest).squeeze(axis)
            np.testing.assert_array_equal(low.cpu().numpy(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_at_full_size(dtype):
    rng = np.random.default_rng(2)
    for m, k, n, phi in ((700, 900, 800, 0.5), (1030, 2100, 40, 3.0), (1, 9000, 5, 1)):
        a, b = (
            ((rng.random(s) - 0.5) * np.exp(phi * rng.standard_normal(s))).astype(dtype)
            for s in ((1, m, k), (1, k, n))
        )
        for left, right in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            for u in (DOUBLE, SINGLE):
                assert check(left, right, 8, u) is not None


def test_compiled_counts_of_slices(compiled):
    for line in compiled("counts"):
        # Triton 3.9 keeps a few words of the sums of magnitudes in memory.
        assert line["spills"] <= 16, line
