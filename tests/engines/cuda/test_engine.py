"""The engine of a GPU: products in steps, native products, and which plans have
programs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base.formats import BF16, FP8_E4M3, FP16, FP32, INT8, TF32
from hifigemm.engines import engine_for
from hifigemm.engines.cuda import engine as module
from hifigemm.engines.cuda.engine import NativeLowering
from hifigemm.engines.cuda.lowering import CudaLowering
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine
from hifigemm.running import executor
from hifigemm.running.executor import execute
from hifigemm.testing.reference import meets_promise
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import DEVICE, arrays, lowered, on_host, planned

FIXED = hg.Ozaki2(num_moduli=3, scaling="fast")
NOTHING = (None, None)
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


CASES = {
    "matrices": ((5, 7), (7, 4)),
    "stacks": ((3, 5, 7), (3, 7, 4)),
    "stacks of one": ((1, 5, 7), (1, 7, 4)),
    "one matrix for a stack": ((1, 5, 7), (3, 7, 4)),
    "a matrix for a stack": ((5, 7), (3, 7, 4)),
    "a stack of stacks": ((2, 3, 5, 7), (2, 3, 7, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_native_products_of_matrices_and_stacks_are_repeated(engine, case):
    rng = np.random.default_rng(1)
    first, second = CASES[case]
    tensors = [
        torch.from_numpy(rng.standard_normal(shape)).to(DEVICE)
        for shape in (first, second)
    ]
    stacks = [wrap(x.reshape(-1, *x.shape[-2:])) for x in tensors]
    plan = planned("native", *stacks, engine)
    lowering = engine.lowering(plan)
    assert isinstance(lowering, NativeLowering)
    shape = (*np.broadcast_shapes(first[:-2], second[:-2]), 5, 4)
    again = lowered(lowering, *stacks, shape)
    want = torch.matmul(*tensors)
    # multiplied as matrices, for which a library may have another order of sums
    if case == "stacks of one":
        want = torch.matmul(tensors[0][0], tensors[1][0])[None]
    assert torch.equal(again(*tensors).values, want)
    out = torch.full(shape, np.nan, dtype=torch.float64, device=DEVICE)
    again = lowered(lowering, *stacks, shape, wrap(out.view(plan.problem.shape)))
    assert again(*tensors, out).values is out
    assert torch.equal(out, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "target", ["none", "C", "another", "a view", "behind another address"]
)
def test_repeated_native_products_take_scalars_and_an_addend(
    engine, dtype, target, assert_same_bits
):
    a, b = operands(batch=2, dtype=dtype)
    x, y, c = arrays(a, b, np.ones((2, 4, 5), dtype))
    lowering = engine.lowering(planned("native", x, y, engine))
    epilogue = Epilogue(1.5, 0.5, c)
    again = lowered(lowering, x, y, (2, 4, 5), shift=1, epilogue=epilogue)
    for alpha, beta in ((1.5, 0.5), (-1.25, 3.0)):
        third = unwrap(c).clone()
        out = {
            "none": None,
            "C": third,
            "another": torch.empty_like(third),
            "a view": torch.empty((2, 5, 4), dtype=third.dtype, device=DEVICE).mT,
            "behind another address": torch.empty(41, dtype=third.dtype, device=DEVICE)[
                1:
            ].view(2, 4, 5),
        }[target]
        t = torch.matmul(unwrap(x), unwrap(y)).cpu().numpy()
        want = combine(t, 2 * alpha, third.cpu().numpy(), beta)
        found = again(unwrap(x), unwrap(y), out, third, alpha, beta).values
        is_plain = target in ("C", "another")
        assert (found is out) == is_plain or target == "none"
        assert_same_bits(found.cpu().numpy(), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_native_products_are_those_of_the_library(engine, dtype, assert_same_bits):
    a, b = operands(batch=2, dtype=dtype)
    plan = planned("native", a, b, engine)
    lowering, x, y = engine.lowering(plan), *arrays(a, b)
    assert lowering.nbytes(2, 4, 5) == 0

    def product(shift=0, epilogue=PLAIN, out=None):
        return execute(plan, x, y, engine, 2**28, shift, epilogue, out=out)[1]

    want = torch.matmul(unwrap(x), unwrap(y)).cpu().numpy()
    target = arrays(np.zeros((2, 4, 5), dtype))[0]
    for out in (None, target):
        outcome = product(out=out)
        assert (outcome.bound, outcome.num_products) == (
            native_bound(plan.problem.terms, plan.problem.fmt.u),
            1,
        )
        assert_same_bits(on_host(outcome.values), want)
    assert_same_bits(on_host(target), want)
    assert_same_bits(
        on_host(product(3).values),
        want * want.dtype.type(8),
    )
    c = arrays(np.ones((2, 4, 5), dtype))[0]
    found = product(3, Epilogue(0.5, 2.0, c)).values
    np.testing.assert_allclose(
        on_host(found), 4 * want + 2, rtol=1e-5 if dtype == "float32" else 1e-14
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_native_product_for_a_number_is_looked_at_on_the_device(
    as_on_gpu, make_pair, monkeypatch, dtype
):
    """Where no entry is tiny or infinite, once; where one may have over- or
    underflowed, residues are taken.
    """
    a, b = make_pair("uniform", 5, 7, 4, dtype)
    u, options = (
        (2.0**-24, {"accuracy": 1e-5})
        if dtype == "float32"
        else (2.0**-53, {"accuracy": 1e-12})
    )
    root = float(np.sqrt(np.finfo(dtype).tiny))
    # products with the second row underflow
    wide, small = a.copy(), b * b.real.dtype.type(root)
    wide[1] *= a.real.dtype.type(root / 8)
    wide[2, :2] = np.finfo(dtype).max
    x, y, z, t = (torch.from_numpy(v).to(DEVICE) for v in (a, b, wide, small))
    found, report = hg.matmul(x, y, return_report=True, **options)
    assert (report.scheme, report.bound) == (
        hg.Native(),
        native_bound(14 if x.is_complex() else 7, u),
    )
    assert torch.equal(found, torch.matmul(x, y))
    want, report = hg.matmul(z, t, return_report=True, **options)
    assert meets_promise(on_host(want), wide, small, report.bound).all()
    assert torch.equal(hg.matmul(z, t, **options), want)
    c, out = torch.ones_like(want), torch.empty_like(want)
    sums = hg.gemm(z, t, c, alpha=0.5, beta=2.0, out=out, **options)
    assert torch.equal(sums, hg.gemm(z, t, c, alpha=0.5, beta=2.0, **options))
    monkeypatch.setattr(executor, "in_steps", None)
    for _ in range(3):
        assert torch.equal(hg.matmul(x, y, **options), found)
    x[3] = 0
    found[3] = 0
    assert torch.equal(hg.matmul(x, y, **options), found)
    # by sums in words, as if it was to be rounded correctly, or by residues
    assert torch.equal(hg.matmul(z, t, **options), want)
    is_complex = np.dtype(dtype).kind == "c"
    assert report.scheme.name == ("ozaki2" if is_complex else "double-double")


def test_a_native_product_is_not_looked_at_while_a_graph_is_captured(
    as_on_gpu, monkeypatch
):
    x, y = (torch.from_numpy(v[0]).to(DEVICE) for v in operands())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError, match="nothing can be read back"):
        hg.matmul(x, y, accuracy=1e-12)


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


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_a_small_alpha_is_no_late_one_for_a_product_that_overflows(
    as_on_gpu, dtype, beta
):
    large = np.finfo(dtype).max ** 0.6
    alpha = -1.2 * float(np.finfo(dtype).tiny)
    a = np.full((3, 4), large, dtype)
    b = np.full((4, 5), large, dtype)
    a[1] = 1.5
    a[2, 1] = np.inf
    c = np.full((3, 5), large, dtype)
    if np.dtype(dtype).kind == "c":
        # Only the real components of the first row overflow.
        a[0] *= 1 + 2.0**-20 * 1j
    scalars = {"alpha": alpha, "beta": beta, "scheme": "native"}
    tensors = [torch.from_numpy(x).to(DEVICE) for x in (a, b, c)]
    found = on_host(hg.gemm(*tensors, **scalars))
    assert np.isfinite(found[:2]).all()
    np.testing.assert_array_equal(found, hg.gemm(a, b, c, **scalars))
    np.testing.assert_array_equal(found[2].real, -np.inf)


@pytest.mark.parametrize("has_out", [False, True])
def test_repeated_native_products_of_stacks_and_vectors_have_their_shapes(
    as_on_gpu, has_out
):
    """The matrices of a stack stand below each other: 12 x 1 entries become 3 x 4."""
    rng = np.random.default_rng(2)
    a, b = (
        torch.from_numpy(rng.standard_normal(shape)).to(DEVICE)
        for shape in ((3, 4, 5), (5,))
    )
    want = a @ b
    for _ in range(3):
        out = torch.zeros_like(want) if has_out else None
        found = hg.matmul(a, b, scheme="native", out=out)
        assert found.shape == want.shape
        torch.testing.assert_close(found, want)
