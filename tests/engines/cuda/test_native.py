"""Native products on a GPU, looked at where their entries are to be certified."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda.native import NativeLowering
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine
from hifigemm.running import executor
from hifigemm.running.executor import execute
from hifigemm.testing.reference import meets_promise
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import DEVICE, arrays, lowered, on_host, planned

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
