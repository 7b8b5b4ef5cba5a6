"""Default calls on CUDA tensors: the device decides, in every replay of a graph, and
the host never waits.
"""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAST = hg.Ozaki2(scaling="fast")
EASY, HARD = "phi_0.1", "phi_4"
SHAPES = [(60, 300, 70), (200, 1000, 300), (1100, 700, 1300)]


@pytest.fixture(autouse=True)
def nothing_kept():
    store.forget()


def on_gpu(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in arrays]


def put(tensors, arrays):
    for x, y in zip(tensors, arrays, strict=True):
        x.copy_(torch.from_numpy(np.ascontiguousarray(y)))


def within(found, a, b, r):
    """Whether a product keeps r, by the correctly rounded one, whose own error 2 u |AB|
    covers.
    """
    exact, size = hg.matmul(a, b, accuracy="correct"), a.abs() @ b.abs()
    return bool(
        ((found - exact).abs() <= 1.001 * (r * size + 2.0**-52 * exact.abs())).all()
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"out": True}], ids=str)
def test_bits_are_those_of_the_expected_count_or_of_fp64_sums(
    make_pair, shape, options
):
    easy, hard = on_gpu(*make_pair(EASY, *shape)), on_gpu(*make_pair(HARD, *shape))
    report = hg.matmul(*easy, scheme=FAST, return_report=True)[1]
    want = hg.matmul(*easy, scheme=report.scheme)
    fallback = hg.matmul(*hard, scheme=FAST)
    assert within(fallback, *hard, hg.make_plan(*hard, scheme=FAST).bound)
    assert not torch.equal(fallback, hg.matmul(*hard, scheme=report.scheme))
    out = torch.empty_like(want) if options else None
    for which in (0, 0, 1, 1, 0, 1, 0, 0):
        found = hg.matmul(*(easy, hard)[which], scheme=FAST, out=out)
        assert (found is out) == bool(options)
        assert torch.equal(found, (want, fallback)[which])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_captured_graph_decides_in_every_replay(make_pair, shape):
    pairs = {name: make_pair(name, *shape) for name in (EASY, HARD, "integers")}
    a, b = on_gpu(*pairs[EASY])
    report = hg.matmul(a, b, scheme=FAST, return_report=True)[1]
    want = {}
    for name in pairs:
        put((a, b), pairs[name])
        want[name] = hg.matmul(a, b, scheme=FAST).clone()
    assert torch.equal(
        want["integers"],
        torch.from_numpy(pairs["integers"][0] @ pairs["integers"][1]).cuda(),
    )
    out = torch.empty_like(want[EASY])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c, again = hg.matmul(a, b, scheme=FAST, return_report=True)
        hg.matmul(a, b, scheme=FAST, out=out)
    for name in (EASY, HARD, EASY, "integers", HARD, EASY):
        put((a, b), pairs[name])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(c, want[name])
        assert torch.equal(out, want[name])
        # the first look is at the record of the first replay
        assert again.scheme == report.scheme


def test_graphs_capture_gemm_with_alpha_beta_and_special_values(make_pair):
    shape = 120, 200, 130
    a, b = on_gpu(*make_pair(EASY, *shape))
    c = torch.randn(shape[0], shape[2], dtype=torch.float64, device="cuda")
    cases = [
        {"alpha": 0.3},
        {"alpha": -0.25, "beta": 1.5},
        {"alpha": 0.7, "beta": -2.0},
        {"alpha": 2.0**-1050},
    ]

    def products():
        return [hg.gemm(a, b, c, scheme=FAST, **options) for options in cases]

    products()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = products()
    for name in (EASY, HARD, EASY):
        x, y = make_pair(name, *shape)
        x[3, 5], y[7, 2], y[9, 4] = np.inf, np.nan, -np.inf
        put((a, b), (x, y))
        graph.replay()
        torch.cuda.synchronize()
        for made, options, own in zip(found, cases, products(), strict=True):
            torch.testing.assert_close(made, own, rtol=0, atol=0, equal_nan=True)
            alpha, beta = options["alpha"], options.get("beta", 0.0)
            plain = alpha * (a @ b) + beta * c
            finite = plain.isfinite()
            assert torch.equal(made.isfinite(), finite)
            assert torch.equal(
                made[~finite & ~plain.isnan()], plain[~finite & ~plain.isnan()]
            )
            size = abs(alpha) * (a.abs() @ b.abs()) + abs(beta) * c.abs()
            small = (made - plain).abs() <= 3 * 200 * 2.0**-53 * size + 2.0**-1073
            assert bool(small[finite].all())
        if name == EASY:
            scheme = hg.matmul(a, b, scheme=FAST, return_report=True)[1].scheme
            for made, options in zip(found, cases, strict=True):
                own = hg.gemm(a, b, c, scheme=scheme, **options)
                torch.testing.assert_close(made, own, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [EASY, HARD])
def test_stacks_and_strides(make_pair, name):
    a, b = (
        np.stack([x * 2.0**e for e in range(3)]) for x in make_pair(name, 40, 50, 44)
    )
    x, y = on_gpu(a, b)
    for left, right in (
        (lambda t: t[0].T[:40, :40], lambda t: t[1][:40].T[:40]),
        (lambda t: t, lambda t: t[0, :, ::2]),
        (lambda t: t[:, ::3, ::5], lambda t: t[:, ::5, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
    ):
        for _ in range(3):
            found, report = hg.matmul(
                left(x), right(y), scheme=FAST, return_report=True
            )
            again = hg.matmul(left(x), right(y), scheme=FAST)
            assert torch.equal(found, again)
            assert within(found, left(x), right(y), report.bound)


def test_the_host_goes_on_at_once():
    a, b = (
        torch.rand(8192, 8192, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    for _ in range(3):
        hg.matmul(a, b, scheme=FAST)
    torch.cuda.synchronize()
    a @ b  # keeps the device busy, so that a look at the operands would be waited for
    before = torch.cuda.Event()
    before.record()
    hg.matmul(a, b, scheme=FAST)
    assert not before.query()
    torch.cuda.synchronize()


def test_auto_takes_it_where_residues_pay():
    a, b = (
        torch.randn(4096, 4096, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    found, report = hg.matmul(a, b, return_report=True)
    assert within(found, a, b, report.bound)
    assert report.native or "the device decides by the operands" in report.reason
    assert torch.equal(found, hg.matmul(a, b))


def test_words_need_nothing(make_pair):
    x, y = on_gpu(*make_pair("phi_1", 300, 400, 200, np.float32))
    found, report = hg.matmul(x, y, return_report=True)
    assert torch.equal(found, hg.matmul(x, y))
    assert report.bound <= 400 * 2.0**-24 * 1.001


@pytest.mark.parametrize(
    "options", [{}, {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")}], ids=str
)
def test_a_thread_may_call_nothing_of_cuda_before(options):
    """It has no context then, which encoding the tensor maps of a new program takes."""
    from hifigemm.kernels.runtime.launch import map_at

    x, y = (
        torch.randn(1792, 1792, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    hg.matmul(x, y, **options)  # leaves memory in reserve
    found = []
    for _ in range(2):
        store.forget()
        map_at.cache_clear()
        thread = threading.Thread(
            target=lambda: found.append(hg.matmul(x, y, **options))
        )
        thread.start()
        thread.join()
    assert torch.equal(*found)
    assert torch.equal(found[0], hg.matmul(x, y, **options))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    "options", [{}, {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")}], ids=str
)
def test_nothing_waits_and_graphs_have_the_bits_of_eager_calls(dtype, options):
    n = 2304  # from where on residues pay for complex operands
    x, y = (
        torch.randn(n, n, dtype=getattr(torch, dtype), device="cuda") for _ in range(2)
    )
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        eager, report = hg.matmul(x, y, return_report=True, **options)
        again = hg.matmul(x, y, **options)
        combined = hg.gemm(x, y, eager, alpha=-0.5, beta=2.0, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(eager, again)
    assert (
        within(eager, x, y, report.bound)
        if dtype[-2:] == "64" and not options
        else report.bound >= 0
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = hg.matmul(x, y, **options)
        into = hg.gemm(x, y, eager, alpha=-0.5, beta=2.0, **options)
    graph.replay()
    assert torch.equal(captured, eager)
    assert torch.equal(into, combined)


@pytest.mark.parametrize("count", [14, 18])
@pytest.mark.parametrize("accuracy", ["fp64", 1e-12, 1e-16, "correct"])
def test_a_forced_count_with_an_accuracy_keeps_it_or_says_that_it_cannot(
    make_pair, count, accuracy
):
    a, b = on_gpu(*make_pair("phi_0.1", 300, 700, 200))
    exact, size = hg.matmul(a, b, accuracy="correct"), a.abs() @ b.abs()
    scheme = hg.Ozaki2(num_moduli=count, scaling="fast")
    try:
        found, report = hg.matmul(
            a, b, scheme=scheme, accuracy=accuracy, return_report=True
        )
    except hg.AccuracyError:
        assert accuracy in (1e-16, "correct") or (count, accuracy) == (14, "fp64")
        return
    assert report.scheme.num_moduli == count
    assert (
        (found - exact).abs() <= 1.001 * (report.bound * size + 2.0**-53 * exact.abs())
    ).all()
