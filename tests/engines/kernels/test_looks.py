"""What operands tell beforehand: scales and error ratios are those of the plain maths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.engines import engine_for
from hifigemm.engines.kernels.looks import ratio_of
from hifigemm.engines.kernels.vectors import Config, scaled_residues, sized_residues
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import norm_scale
from hifigemm.schemes import promise

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
FAMILIES = ["uniform", "phi_1", "phi_4", "full_range", "subnormal", "largest", "sparse", "single_nonzero", "zeros"]
FAMILIES += ["empty_rows_and_columns", "subnormal_rows", "badly_scaled"]


def compare(a, b, config=Config()):  # noqa: B008
    moduli = moduli_set(15, False)
    left, right = (torch.from_numpy(x).to(DEVICE) for x in (a, b))
    operands = (left, 2), (right, 1)
    with np.errstate(all="ignore"):
        parts, found, sizes = sized_residues(operands, moduli, config=config)
        plain, _ = scaled_residues(operands, moduli, config=config)
    for scale, part, other, x, axis in zip(found, parts, plain, (a, b), (2, 1), strict=True):
        want = norm_scale(x, axis, moduli, 0, 16384)
        finite = np.isfinite(x).all(axis=axis)
        np.testing.assert_array_equal(scale.exponent.cpu().numpy()[finite], want.exponent.squeeze(axis)[finite])
        np.testing.assert_array_equal(scale.nearest.cpu().numpy()[finite], want.nearest.squeeze(axis)[finite])
        assert torch.equal(part, other)
    want = promise.error_ratio(a, b, engine_for("numpy"), 16384, 10**6)
    assert float(ratio_of(sizes)) == want


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_looks_are_those_of_the_plain_maths(make_pair, family, dtype):
    for m, k, n in ((5, 300, 7), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        compare(a[None], b[None])
        compare(a[None], b[None], Config(blocks=1))


def test_stacks_strides_and_special_values(make_pair):
    a, b = make_pair("phi_1", 6, 40, 5)
    a, b = np.stack([a, 3 * a]), b[None].copy()
    a[0, 1, 2], b[0, 3, 4] = np.nan, -np.inf
    compare(a, b)
    compare(
        np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2), np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    )
    compare(a[:, ::2, ::3], b[:, ::3, 1::2])


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_looks_at_larger_operands(make_pair, family):
    for m, k, n in ((300, 1000, 257), (33, 5000, 130)):
        a, b = make_pair(family, m, k, n)
        compare(a[None], b[None])
