"""The engine of a GPU: products in steps, and which plans have programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base.formats import BF16, FP8_E4M3, FP16, FP32, INT8, TF32
from hifigemm.engines import engine_for
from hifigemm.engines.cuda import engine as module
from hifigemm.engines.cuda.lowering import CudaLowering
from hifigemm.engines.cuda.native import NativeLowering
from hifigemm.engines.device_array import wrap
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import DEVICE, arrays, on_host, planned

FIXED = hg.Ozaki2(num_moduli=3, scaling="fast")
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def test_engines_have_programs_for_what_the_device_does_whole(engine):
    a, b = operands()
    with_bound = planned(hg.Ozaki2(num_moduli=5), a, b, engine, states_bound=True)
    assert engine.lowering(with_bound) is None
    assert isinstance(
        engine.lowering(planned(hg.Native(), a, b, engine, 1e-3)), NativeLowering
    )
    single = operands(dtype="float32")
    assert engine.lowering(planned(hg.Native(product="fp64"), *single, engine)) is None
    assert engine_for("numpy").lowering(planned(FIXED, a, b, engine)) is None
    assert isinstance(engine.lowering(planned(FIXED, a, b, engine)), CudaLowering)


@pytest.mark.parametrize("fmt", [INT8, FP16, BF16, FP32])
def test_exact_products_are_those_of_integers(engine, fmt):
    rng = np.random.default_rng(4)
    spec = next(s for s in engine.products.values() if s.operand is fmt)
    top = min(spec.max_integer, 40)
    a, b = (rng.integers(-top, top + 1, s) for s in ((2, 5, 9), (2, 9, 4)))
    dtype = np.int8 if fmt is INT8 else np.float32
    if fmt in (FP16, BF16) and DEVICE == "cpu":
        pytest.skip("torch.bmm has no out_dtype on a CPU")
    x, y = arrays(a.astype(dtype), b.astype(dtype))
    product = on_host(engine.exact_product(spec, x, y, top, top))
    np.testing.assert_array_equal(product.astype(np.int64), a @ b)
    k = spec.accumulator_max // top**2 + 1
    long = [wrap(torch.empty(shape, device="meta")) for shape in ((1, 1, k), (1, k, 1))]
    with pytest.raises(hg.InexactProductError, match=f"at most {k - 1}"):
        engine.exact_product(spec, *long, top, top)


def test_sums_of_float32_words_are_made_in_float64(engine):
    a, b = operands(dtype="float32")
    c = np.full((1, 4, 5), 2.0**30)
    x, y, z = arrays(a, b, c)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    # a product of two float32 is one of float64, and nine terms round at most 8 times
    product = on_host(engine.rounded_product(FP32, x, y))
    magnitudes = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    assert (abs(product - wide) <= 16 * 2.0**-53 * magnitudes).all()
    sums = on_host(engine.rounded_product(FP32, x, y, z))
    np.testing.assert_array_equal(sums, product + c)


def test_tensor_cores_are_those_of_the_generation(monkeypatch):
    for capability, name in (((7, 0), "V100"), ((8, 9), "A100"), ((9, 0), "H100")):
        engine = module.CudaEngine(torch.device("cuda:0"))
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda place, c=capability: c
        )
        assert engine.model.name.lower() == name.lower()
    engine = module.CudaEngine(torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (12, 0))
    assert engine.model.name.lower() == "b200"


def test_words_that_the_tensor_cores_do_not_take_are_named(engine):
    with pytest.raises(hg.PlanError, match="not fp8_e4m3 words"):
        engine.accumulation(FP8_E4M3)
    assert engine.accumulation(TF32).step == 1
    assert engine.accumulation(FP32).unit.startswith("cuBLAS in FP64")


def test_free_memory_is_not_asked_for_while_a_graph_is_captured(engine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert engine._free_memory() is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stats = {"reserved_bytes.all.current": 70, "allocated_bytes.all.current": 40}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda place: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (1000, 5000))
    assert engine._free_memory() == 1000 + 70 - 40
