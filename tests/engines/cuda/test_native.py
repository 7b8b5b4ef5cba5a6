"""Native products on a GPU, completed where their entries are to be certified."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines.cuda import native
from hifigemm.engines.cuda.native import NativeLowering
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.kernels.sums import rounded_sums
from hifigemm.model.executable import Refusal
from hifigemm.numerics.bits import real_components
from hifigemm.numerics.bounds import free_of_underflow, native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine
from hifigemm.running import auto, executor
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


def for_a_number(dtype):
    """The unit roundoff, and options with an accuracy that the native product keeps."""
    if np.dtype(dtype).name in ("float32", "complex64"):
        return 2.0**-24, {"accuracy": 1e-5, "scheme": "native"}
    return 2.0**-53, {"accuracy": 1e-12, "scheme": "native"}


def hostile_pair(make_pair, dtype):
    """Products with the second row of the first operand underflow, the third row
    overflows, the last two are zeros and NaN.
    """
    a, b = make_pair("uniform", 5, 7, 4, dtype)
    root = float(np.sqrt(np.finfo(dtype).tiny))
    b *= b.real.dtype.type(root)
    a[1] *= a.real.dtype.type(root / 8)
    a[2, :2] = np.finfo(dtype).max
    a[3] = 0
    a[4, 1] = np.nan
    return a, b


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_native_product_for_a_number_is_the_library_s(as_on_gpu, make_pair, dtype):
    """Zeros as well, as no product of two entries underflows."""
    a, b = make_pair("uniform", 5, 7, 4, dtype)
    u, options = for_a_number(dtype)
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    terms = 14 if x.is_complex() else 7
    for _ in range(3):
        found, report = hg.matmul(x, y, return_report=True, **options)
        assert (report.scheme, report.bound) == (hg.Native(), native_bound(terms, u))
        assert torch.equal(found, torch.matmul(x, y))
        assert torch.equal(hg.matmul(x, y, **options), found)
        x[3] = 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_entries_that_may_over_or_underflow_are_made_again(
    as_on_gpu, make_pair, monkeypatch, assert_same_bits, dtype
):
    """Rounded once, where the device finds them: the host waits for nothing."""
    a, b = hostile_pair(make_pair, dtype)
    _, options = for_a_number(dtype)
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    rounded = hg.matmul(a, b, accuracy="correct")
    monkeypatch.setattr(executor, "in_steps", None)
    found, report = hg.matmul(x, y, return_report=True, **options)
    assert report.scheme == hg.Native()
    assert meets_promise(on_host(found)[:4], a[:4], b, report.bound).all()
    library, again = (real_components(on_host(v)) for v in (torch.matmul(x, y), found))
    problem = hg.make_plan(x, y, **options).problem
    terms, emin = problem.terms, problem.fmt.emin
    is_kept = free_of_underflow(library, a, b, terms, emin) & np.isfinite(library)
    assert is_kept[0].all()
    assert not is_kept[[1, 3, 4]].any()
    assert_same_bits(again, np.where(is_kept, library, real_components(rounded)))
    assert_same_bits(on_host(hg.matmul(x, y, **options)), on_host(found))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("power", [-700, -1, 3, 100])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_powers_of_two_scale_products_before_entries_are_made_again(
    as_on_gpu, make_pair, monkeypatch, assert_same_bits, dtype, power
):
    """What only 2**power brings back into the range, or out of it, is rounded once."""
    a, b = hostile_pair(make_pair, dtype)
    b /= b.real.dtype.type(2.0**-300)
    a[0] *= a.real.dtype.type(2.0**-300)
    _, options = for_a_number(dtype)
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    want = hg.gemm(a, b, alpha=2.0**power, accuracy="correct")
    monkeypatch.setattr(executor, "in_steps", None)
    found = on_host(hg.gemm(x, y, alpha=2.0**power, **options))
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=0)
    is_remade = (abs(want.real) < 2.0**-1020) | ~np.isfinite(want.real)
    assert_same_bits(found.real[is_remade], want.real[is_remade])

    # A C and any scalars come behind it.
    c = torch.ones_like(x[:, :4]).contiguous()
    for out in (None, torch.empty_like(c)):
        sums = hg.gemm(x, y, c, alpha=2.0**power, beta=2.0, out=out, **options)
        np.testing.assert_allclose(on_host(sums), want + 2, rtol=1e-12)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_complex_operands_are_read_in_parts(
    as_on_gpu, make_pair, monkeypatch, assert_same_bits, layout
):
    """An operand as a real matrix has up to four times as many entries."""
    a, b = hostile_pair(make_pair, "complex128")
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    if layout == "columns":
        x = x.mT.contiguous().mT
    _, options = for_a_number("complex128")
    store.forget()
    want = hg.matmul(x, y, **options)
    store.forget()
    # two rows, and a column
    monkeypatch.setattr(native, "_EMBEDDED_BYTES", 2 * 16 * 7)
    shapes = []
    finish = rounded_sums.finish_entries

    def finish_and_count(left, right, targets, **given):
        shapes.append(tuple(targets.out.shape))
        finish(left, right, targets, **given)

    monkeypatch.setattr(rounded_sums, "finish_entries", finish_and_count)
    assert_same_bits(on_host(hg.matmul(x, y, **options)), on_host(want))
    rows = [5] if layout == "rows" else [2, 2, 1]
    assert shapes == [(1, m, 1) for m in rows for _ in range(4)]
    store.forget()


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_large_product_with_such_entries_is_refused(
    as_on_gpu, make_pair, monkeypatch, dtype
):
    """By one wait of the host; the product is made in another way then. Zeros of which
    no term underflows are none of them.
    """
    monkeypatch.setattr(native, "_MOST_FINISHED", 5 * 7 * 4 - 1)
    u, options = for_a_number(dtype)
    options["scheme"] = "auto"
    monkeypatch.setattr(auto, "_CERTIFICATE", -1.0)
    a, b = make_pair("uniform", 5, 7, 4, dtype)
    x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
    x[3] = 0
    terms = 14 if x.is_complex() else 7
    for _ in range(3):
        found, report = hg.matmul(x, y, return_report=True, **options)
        assert (report.scheme, report.bound) == (hg.Native(), native_bound(terms, u))
        assert torch.equal(found, torch.matmul(x, y))
    hostile = hostile_pair(make_pair, dtype)
    hostile[0][4] = 1.0
    z, t = (torch.from_numpy(v).to(DEVICE) for v in hostile)
    given = torch.full_like(found, 7.0)
    for out in (None, given):
        found, report = hg.matmul(z, t, return_report=True, out=out, **options)
        assert report.scheme != hg.Native()
        assert meets_promise(on_host(found), *hostile, report.bound).all()


def test_out_is_as_before_where_an_entry_of_the_library_overflows(engine, monkeypatch):
    monkeypatch.setattr(native, "_MOST_FINISHED", 0)
    a, b = operands()
    plan = planned("native", a, b, engine, 1e-12)
    assert plan.certifies
    x, y, given = arrays(a, b, np.full((1, 4, 5), 7.0))
    again = lowered(engine.lowering(plan), x, y, (1, 4, 5), given)
    out = unwrap(given)
    assert isinstance(again(unwrap(x) * 2.0**1000, unwrap(y) * 2.0**1000, out), Refusal)
    assert bool((out == 7.0).all())


def test_the_host_does_not_ask_while_a_graph_is_captured(as_on_gpu, monkeypatch):
    monkeypatch.setattr(native, "_MOST_FINISHED", 0)
    x, y = (torch.from_numpy(v[0]).to(DEVICE) for v in operands())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError, match="nothing can be read back"):
        hg.matmul(x, y, accuracy=1e-12, scheme="native")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_native_product_for_a_number_goes_into_a_graph(make_pair, dtype):
    ordinary = make_pair("uniform", 5, 7, 4, dtype)
    hostile = hostile_pair(make_pair, dtype)
    _, options = for_a_number(dtype)
    x, y = (torch.from_numpy(v).to(DEVICE) for v in ordinary)
    hg.matmul(x, y, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hg.matmul(x, y, **options)
    for pair in (hostile, ordinary, hostile):
        for static, values in zip((x, y), pair, strict=True):
            static.copy_(torch.from_numpy(values))
        graph.replay()
        want = hg.matmul(x, y, **options)
        np.testing.assert_array_equal(on_host(out), on_host(want))


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
