"""Magnitudes rounded up, the largest sums of their products, and the scales that follow:
the numbers of the plain functions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.engines import engine_for
from hifigemm.kernels.products.largest_sums import largest_sums
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.upper_magnitudes import (
    NOT_FINITE,
    scales_of_sums,
    upper_magnitudes,
)
from hifigemm.numerics import scaling
from hifigemm.numerics.embedding import components
from hifigemm.numerics.estimates import accurate_bits, magnitudes_up
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.special import clean, nonfinite_vectors
from hifigemm.schemes.ozaki2 import Ozaki2
from tests.engines.stand_in import planned
from tests.kernels.vectors.test_block_norms import FAMILIES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUMPY = engine_for("numpy")
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


@pytest.fixture
def rng():
    return np.random.default_rng(64)


def everything(left, right, moduli):
    """Magnitudes, largest sums and scales of two buffers, or of one that stands on both
    sides.
    """
    sides = [(left, 2)] if right is None else [(left, 2), (right, 1)]
    magnitudes = upper_magnitudes(tuple(sides))
    sums = largest_sums(magnitudes)
    return magnitudes, sums, scales_of_sums(magnitudes, sums, moduli)


def plain_scales(a, b, count):
    """The scales of the plain scheme for finite operands."""
    plan = planned(Ozaki2(num_moduli=count), a, b, NUMPY)
    return plan.scheme.scales(plan, a, b, NUMPY)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_numbers_are_those_of_the_plain_functions(make_pair, family, dtype):
    for m, k, n in ((5, 600, 7), (17, 130, 3), (1, 1, 1)):
        a, b = (x[None] for x in make_pair(family, m, k, n, dtype))
        x, y = torch.from_numpy(a).to(DEVICE), torch.from_numpy(b).to(DEVICE)
        moduli = moduli_set(9, a.dtype.kind == "c")
        magnitudes, _, scales = run_recorded(everything, x, y, moduli)
        with np.errstate(all="ignore"):
            want = plain_scales(a, b, 9)
        pitch = -(-k // 128) * 128
        for operand, axis, entries, scale, wanted in zip(
            (a, b), (2, 1), magnitudes.entries, scales, want, strict=True
        ):
            e = scaling.exponents(operand, axis, 2**20)
            for i, part in enumerate(components(operand)):
                up = np.moveaxis(magnitudes_up(part, e), axis, 2)
                found = entries.cpu().numpy()[..., i * pitch : (i + 1) * pitch]
                np.testing.assert_array_equal(found[..., :k], up)
                assert not found[..., k:].any()
            exponent, nearest = (z.cpu().numpy() for z in scale)
            np.testing.assert_array_equal(exponent, wanted.exponent.squeeze(axis))
            np.testing.assert_array_equal(nearest, wanted.nearest.squeeze(axis))
            assert wanted.bits == accurate_bits(moduli)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("batch_a", "batch_b"), [(1, 3), (3, 1)])
def test_stacks_and_strides(rng, dtype, batch_a, batch_b):
    def random(*shape):
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, shape)
        return x if dtype == "float64" else x + 1j * rng.standard_normal(shape)

    a = random(batch_a, 200, 9).swapaxes(1, 2)
    b = random(batch_b, 6, 200).swapaxes(1, 2)
    x, y = torch.from_numpy(a).to(DEVICE), torch.from_numpy(b).to(DEVICE)
    moduli = moduli_set(12, dtype == "complex128")
    *_, scales = run_recorded(everything, x, y, moduli)
    for scale, wanted in zip(scales, plain_scales(a, b, 12), strict=True):
        axis = wanted.axis
        found = scale.exponent.cpu().numpy()
        np.testing.assert_array_equal(found, wanted.exponent.squeeze(axis))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_one_operand_stands_on_both_sides(rng, dtype):
    a = rng.standard_normal((1, 150, 40))
    if dtype == "complex128":
        a = a + 1j * rng.standard_normal(a.shape)
    a[0, 3] *= 1e30
    b = a.swapaxes(1, 2).conj()
    moduli = moduli_set(8, dtype == "complex128")
    x = torch.from_numpy(a).to(DEVICE)
    _, _, (scale,) = run_recorded(everything, x, None, moduli)
    rows, _ = plain_scales(a, b, 8)
    np.testing.assert_array_equal(
        scale.exponent.cpu().numpy(), rows.exponent.squeeze(2)
    )


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_inf_and_nan_count_as_zeros_and_mark_their_vectors(rng, dtype, bad):
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((1, 20, 70), (1, 70, 9)))
    a[0, 2, 5] = bad
    a[0, 3] = bad
    b[0, 60, 1] = complex(1.0, bad) if dtype == "complex128" else bad
    b[0, :, 2] = bad
    x, y = torch.from_numpy(a).to(DEVICE), torch.from_numpy(b).to(DEVICE)
    moduli = moduli_set(10, dtype == "complex128")
    *_, scales = run_recorded(everything, x, y, moduli)
    want = plain_scales(clean(a), clean(b), 10)
    for operand, scale, wanted in zip((a, b), scales, want, strict=True):
        axis = wanted.axis
        with np.errstate(all="ignore"):
            marked = nonfinite_vectors(operand, axis).squeeze(axis)
        exponent = np.where(marked, NOT_FINITE.value, wanted.exponent.squeeze(axis))
        np.testing.assert_array_equal(scale.exponent.cpu().numpy(), exponent)


def test_integers_are_as_short_as_their_bits_say():
    """Entries that meet nothing but tiny ones have the longest integers."""
    a = np.array([[[1.0 - 2.0**-53, 2.0**-500, 0.0]]])
    b = np.array([[[0.0], [2.0**-500], [1.0]]])
    for count in (5, 14, 30):
        moduli = moduli_set(count, False)
        rows, _ = plain_scales(a, b, count)
        bits = accurate_bits(moduli)
        assert bits - 1 <= rows.exponent[0, 0, 0] < bits
