"""Products that are the same for everyone, by the kernels of a GPU: the bits of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from tests.engines.stand_in import DEVICE, take_as_device
from tests.test_invariant import operands

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")

OPTIONS = (
    {"accuracy": hg.Invariant()},
    {"accuracy": hg.Invariant(1e-5)},
    {"scheme": hg.Ozaki2(num_moduli=5, scaling="largest")},
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_bits_are_those_of_numpy(engine, monkeypatch, assert_same_bits, dtype, options):
    take_as_device(engine, monkeypatch)
    a, b = operands(dtype, k=301)
    want, report = hg.matmul(a, b, return_report=True, **options)
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    made, of_device = hg.matmul(x, y, return_report=True, **options)
    assert_same_bits(made.cpu().numpy(), want)
    # Without a report launches make it, as nothing has to be worked out.
    assert_same_bits(hg.matmul(x, y, **options).cpu().numpy(), want)
    if "accuracy" in options:
        plan = hg.make_plan(x, y, **options)
        assert engine.lowering(plan) is not None
    assert of_device.scheme == report.scheme
    assert of_device.bits_depend_on == report.bits_depend_on
    order = np.random.default_rng(0).permutation(301)
    row = hg.matmul(x[2:3, order], y[order], **options)
    assert_same_bits(row.cpu().numpy(), want[2:3])


def test_special_values_and_prepared_operands(engine, monkeypatch, assert_same_bits):
    take_as_device(engine, monkeypatch)
    a, b = operands("float32", k=80)
    a[2, 7], b[9, 1] = np.inf, np.nan
    options = {"accuracy": hg.Invariant(1e-5)}
    want = hg.matmul(a, b, **options)
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    assert_same_bits(hg.matmul(x, y, **options).cpu().numpy(), want)
    right = hg.prepare(y, "right", **options)
    assert right.split is not None
    assert_same_bits(hg.matmul(x, right).cpu().numpy(), want)
    # Residues by norms would have other bits.
    plan = hg.make_plan(x, y, **options)
    fast = hg.Ozaki2(num_moduli=plan.scheme.num_moduli, scaling="fast")
    other = hg.prepare(y, "right", scheme=fast)
    with pytest.raises(hg.PlanError, match="of different plans"):
        hg.matmul(x, other, plan=plan)
