"""What products hold on a GPU, prepared operands of long rows, and stacks of very many
matrices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.word_bounds import growth
from hifigemm.schemes import inspection
from tests.conftest import on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
SMALL = 2**22
"""Bytes of scales and of what programs exchange."""


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        (hg.Ozaki2(num_moduli=14, scaling="fast"), torch.float64),
        (hg.Ozaki2(num_moduli=8, scaling="fast"), torch.complex64),
        (hg.Ozaki1(num_slices=7), torch.float64),
        (hg.Corrected("tf32"), torch.float32),
        (hg.Ozaki2(scaling="fast"), torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("workspace", [2**27, 2**30])
def test_memory_stays_within_the_workspace(scheme, dtype, workspace):
    a = torch.randn(3000, 4096, dtype=dtype, device="cuda")
    b = torch.randn(4096, 2500, dtype=dtype, device="cuda")
    out = torch.empty(3000, 2500, dtype=dtype, device="cuda")
    # constants that stay are made here
    hg.matmul(a, b, scheme=scheme, workspace=workspace, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    hg.matmul(a, b, scheme=scheme, workspace=workspace, out=out)
    assert torch.cuda.max_memory_allocated() - before <= workspace + SMALL


@pytest.mark.parametrize("workspace", [2**28, 2**30])
def test_outliers_stay_within_the_workspace(monkeypatch, workspace):
    monkeypatch.setattr(inspection, "may_pay", lambda problem: True)
    a, b = (
        torch.randn(s, dtype=torch.float64, device="cuda")
        for s in ((3000, 4096), (4096, 2500))
    )
    a[:40, 7] *= 2.0**-40
    b[9, :60] *= 2.0**-40
    out = torch.empty(3000, 2500, dtype=torch.float64, device="cuda")
    hg.matmul(a, b, accuracy="correct", workspace=workspace, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _, report = hg.matmul(
        a, b, accuracy="correct", workspace=workspace, out=out, return_report=True
    )
    assert " without " in report.reason
    assert torch.cuda.max_memory_allocated() - before <= workspace + SMALL


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"accuracy": "correct"}, torch.float64),
        ({"scheme": hg.Ozaki2(scaling="fast")}, torch.float64),
        ({"scheme": hg.Ozaki1(num_slices=7)}, torch.float64),
        ({}, torch.float32),
    ],
    ids=str,
)
def test_default_workspaces_leave_half_of_the_free_memory_and_change_no_bit(
    monkeypatch, options, dtype
):
    a = torch.randn(3000, 4096, dtype=dtype, device="cuda")
    b = torch.randn(4096, 2500, dtype=dtype, device="cuda")
    out = torch.empty(3000, 2500, dtype=dtype, device="cuda")
    want = hg.matmul(a, b, **options)
    held, besides = 2**27, sum(x.nbytes for x in (a, b, out))
    engine, peaks = engine_for(None, "torch", "cuda:0"), []
    native_product = engine.native_product

    def uncounted(x, y):
        peaks.append(torch.cuda.max_memory_allocated())
        made = native_product(x, y)
        torch.cuda.reset_peak_memory_stats()
        return made

    monkeypatch.setattr(
        engine, "memory", replace(engine.memory, free=lambda: besides + 2 * held)
    )
    monkeypatch.setattr(engine, "native_product", uncounted)
    for turn in range(3):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _, report = hg.matmul(a, b, out=out, return_report=True, **options)
        peaks.append(torch.cuda.max_memory_allocated())
        assert torch.equal(out, want)
        if options:  # words take what they take
            assert report.workspace <= held
        if options and turn:  # the first turn leaves memory to the library
            assert max(peaks) - before <= held + SMALL
        peaks.clear()


def test_free_memory_is_that_of_the_driver_and_of_the_allocator():
    engine = engine_for(None, "torch", "cuda:0")
    torch.cuda.synchronize()
    before = engine.memory.free()
    x = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert before - engine.memory.free() >= x.nbytes
    del x
    assert before - engine.memory.free() < 2**28
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert engine.memory.free() is None
        torch.ones(1, device="cuda")


@pytest.mark.parametrize("k", [1000, 1030, 1100, 2049])
def test_one_prepared_operand(make_pair, k):
    a, b = on_gpu(*make_pair("phi_1", 70, k, 90))
    scheme = hg.Ozaki2(num_moduli=13, scaling="fast")
    plan, want = hg.make_plan(a, b, scheme=scheme), hg.matmul(a, b, scheme=scheme)
    left, right = hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)
    for x, y in ((left, b), (a, right), (left, right)):
        assert torch.equal(hg.matmul(x, y), want)


@pytest.mark.parametrize(
    ("dtype", "scheme"),
    [
        (np.float32, hg.Corrected()),
        (np.float64, hg.Ozaki2(num_moduli=12, scaling="fast")),
        (np.float64, hg.Ozaki1(num_slices=3)),
    ],
    ids=str,
)
def test_stacks_of_more_matrices_than_a_grid_is_high(dtype, scheme):
    a, b = _stacks(dtype)
    c = torch.ones(4, dtype=a.dtype, device="cuda")
    found = hg.gemm(a, b, c, alpha=0.3, beta=2.0, scheme=scheme)
    at = [0, 1, 65534, 65535, 65536, 69999]
    assert torch.equal(
        found[at], hg.gemm(a[at], b[at], c, alpha=0.3, beta=2.0, scheme=scheme)
    )
    # The errors of both products, r |A||B| + u |AB| and gamma |A||B|, and the roundings
    # of scaled terms and their sum.
    bound = hg.matmul(a, b, scheme=scheme, return_report=True)[1].bound
    u, size = torch.finfo(a.dtype).eps / 2, a.double().abs() @ b.double().abs()
    most = 0.3 * (bound + u + native_bound(5, u)) * size + 2 * growth((u, 3)) * (
        0.3 * 2 * size + 2.0
    )
    assert ((found.double() - (0.3 * (a @ b) + 2.0)).abs() <= most).all()


def test_looks_and_fp64_sums_of_large_stacks():
    from hifigemm.kernels.products.native_gemm import fp64_product
    from hifigemm.kernels.runtime.common import Predicate
    from hifigemm.kernels.runtime.recording import run_recorded

    a, b = _stacks(np.float64)
    scheme = hg.Ozaki2(scaling="fast")
    size = a.abs() @ b.abs()
    native = native_bound(5, 2.0**-53)
    found = hg.matmul(a, b, scheme=scheme)
    bound = hg.matmul(a, b, scheme=scheme, return_report=True)[1].bound
    assert ((found - a @ b).abs() <= (bound + 2.0**-53 + native) * size).all()
    out = torch.empty(70000, 3, 4, dtype=torch.float64, device="cuda")
    zero = torch.zeros(1, dtype=torch.int64, device="cuda")
    always = Predicate(zero, 0, 0)
    run_recorded(fp64_product, a, b, out, always)
    assert ((out - a @ b).abs() <= 2 * native * size).all()


def _stacks(dtype):
    rng = np.random.default_rng(3)
    return on_gpu(
        *(
            rng.uniform(-1, 1, shape).astype(dtype)
            for shape in ((70000, 3, 5), (70000, 5, 4))
        )
    )
