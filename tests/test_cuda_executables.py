"""Executables on a GPU: streams and graphs share them, they hold no memory of a call, and
what they refuse is not written.
"""

from __future__ import annotations

import gc

import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.model.executable import NO_MEMORY
from tests.conftest import on_gpu
from tests.kinds_of_calls import arrays_of, as_first_call, kept_calls

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAST = hg.Ozaki2(scaling="fast")
FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")
EASY, HARD = "phi_0.1", "phi_4"
SHAPE = 300, 500, 200
SMALL = 2**22
"""Bytes of constants and tables: half of those of the smallest matrix below."""

WITHOUT_A_WAIT = {
    "default": lambda a, b, c: hg.matmul(a, b),
    "chosen on the device": lambda a, b, c: hg.matmul(a, b, scheme=FAST),
    "fixed": lambda a, b, c: hg.matmul(a, b, scheme=FIXED),
    "slices": lambda a, b, c: hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=4)),
    "multiple": lambda a, b, c: hg.gemm(a, b, alpha=0.3, scheme=FAST),
    "two roundings": lambda a, b, c: hg.gemm(
        a, b, c, alpha=1.25, beta=-0.75, scheme=FAST
    ),
}
"""Calls that can be captured in a graph."""
KINDS = WITHOUT_A_WAIT | {
    "correct": lambda a, b, c: hg.matmul(a, b, accuracy="correct"),
    "pair": lambda a, b, c: hg.matmul(a, b, result="pair"),
    "one rounding": lambda a, b, c: hg.gemm(
        a, b, c, alpha=-1.0, beta=1.0, accuracy="correct"
    ),
}


@pytest.fixture(autouse=True)
def nothing_kept():
    store.forget()
    yield
    store.forget()


@pytest.fixture
def operands(make_pair):
    """operands(name, seed): A, B and C on the GPU."""

    def make(name, seed=0):
        m, k, n = SHAPE
        a, b = make_pair(name, m, k, n, seed=seed)
        c, _ = make_pair("phi_1", m, n, k, seed=seed)
        return on_gpu(a, b, c)

    return make


def assert_equal(found, want):
    """All arrays of two results have the same entries."""
    for x, y in zip(arrays_of(found), arrays_of(want), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_share_an_executable(operands, kind):
    call = KINDS[kind]
    given = [operands(EASY if seed % 2 else HARD, seed) for seed in range(4)]
    want = [as_first_call(call, *each) for each in given]
    store.forget()
    # Operands of either kind have been seen once, so that later calls run what is kept.
    for each in given:
        call(*each)
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for stream, each in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                found.append(call(*each))
    # No result is freed before all streams are at rest.
    torch.cuda.synchronize()
    for index, result in enumerate(found):
        assert_equal(result, want[index % len(given)])


@pytest.mark.parametrize("kind", WITHOUT_A_WAIT)
def test_a_kept_call_is_captured_and_replayed_with_other_operands(operands, kind):
    call = WITHOUT_A_WAIT[kind]
    given = operands(EASY)
    # The first call, and one that runs what it has left.
    call(*given)
    call(*given)
    assert kept_calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*given)
    for name, seed in ((HARD, 1), (EASY, 2), ("integers", 3), (HARD, 4)):
        others = operands(name, seed)
        for x, y in zip(given, others, strict=True):
            x.copy_(y)
        graph.replay()
        # An eager call takes no memory of the graph.
        want = call(*others)
        torch.cuda.synchronize()
        assert_equal(captured, want)


def test_two_graphs_of_one_executable_are_replayed_apart(operands):
    first, second = operands(EASY, 1), operands(EASY, 2)
    want = [WITHOUT_A_WAIT["fixed"](*each) for each in (first, second)]
    torch.cuda.synchronize()
    graphs = []
    captured = []
    for given in (first, second):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured.append(WITHOUT_A_WAIT["fixed"](*given))
        graphs.append(graph)
    for stream, graph in zip(
        [torch.cuda.Stream() for _ in graphs], graphs, strict=True
    ):
        with torch.cuda.stream(stream):
            for _ in range(3):
                graph.replay()
    torch.cuda.synchronize()
    for found, expected in zip(captured, want, strict=True):
        assert torch.equal(found, expected)


def test_reports_of_two_streams_read_records_of_their_own(operands):
    options = {"scheme": FAST, "return_report": True}
    given = [operands(name)[:2] for name in (EASY, HARD)]
    want = [hg.matmul(*each, **options)[1] for each in given]
    # They differ, so that a record of the other one would show.
    assert want[0].scheme != want[1].scheme
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    reports = []
    for _ in range(4):
        for stream, each in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                reports.append(hg.matmul(*each, **options)[1])
    # Their memory is taken again by other calls, whose reports nobody reads.
    for each in given:
        hg.matmul(*each, **options)
    for index, report in reversed(list(enumerate(reports))):
        expected = want[index % len(given)]
        assert report.scheme == expected.scheme
        assert report.bound == expected.bound
        assert report.num_products == expected.num_products


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_of_a_call_holds_no_operand_and_no_result(kind):
    def call():
        shapes = (1024, 2048), (2048, 1024), (1024, 1024)
        given = [torch.randn(s, dtype=torch.float64, device="cuda") for s in shapes]
        KINDS[kind](*given)

    # The library's workspace and constants that stay are made here.
    call()
    store.forget()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        call()
    assert kept_calls() or kind not in WITHOUT_A_WAIT
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= SMALL


def test_a_report_holds_a_record_and_no_values(operands):
    a, b, _ = operands(EASY)
    options = {"scheme": FAST, "return_report": True}
    hg.matmul(a, b, **options)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    report = hg.matmul(a, b, **options)[1]
    # Blocks of the allocator have 512 bytes.
    assert torch.cuda.memory_allocated() - before <= 512
    assert report.bound > 0.0


@pytest.mark.parametrize("kind", ["default", "fixed", "correct"])
def test_a_kept_call_without_memory_goes_the_whole_road(operands, kind):
    given = operands(EASY)
    want = KINDS[kind](*given)

    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    for call in kept_calls():
        call.executable = fail
        assert call(*given[:2]) is NO_MEMORY
    for _ in range(2):
        assert_equal(KINDS[kind](*given), want)


@pytest.mark.parametrize(
    ("scheme", "dtype", "accuracy"),
    [
        (hg.Ozaki1(num_slices=2), torch.float64, 1e-15),
        (hg.Ozaki2(num_moduli=4, scaling="fast"), torch.float64, 1e-15),
        ("corrected", torch.float32, 1e-6),
    ],
    ids=str,
)
def test_out_and_c_are_as_before_where_a_call_raises(scheme, dtype, accuracy):
    hard = torch.logspace(0, -30, 16, dtype=dtype, device="cuda").view(4, 4)
    turned = hard.mT.contiguous()
    given = torch.full_like(hard, 7.0)
    options = {"scheme": scheme, "accuracy": accuracy, "out": given}
    for _ in range(2):
        with pytest.raises(hg.AccuracyError):
            hg.matmul(hard, turned, **options)
        with pytest.raises(hg.AccuracyError):
            hg.gemm(hard, turned, given, alpha=1.5, beta=0.75, **options)
        assert bool((given == 7.0).all())
