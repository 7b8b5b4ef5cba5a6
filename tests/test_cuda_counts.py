"""CUDA tensors whose operands decide the number of moduli: the same bits and reports,
however often they come.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.schemes import inspection
from tests.conftest import PAIRS, SINGLES, on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAST = hg.Ozaki2(scaling="fast")
SHAPE = 60, 300, 70
KINDS = (
    "phi_0.1",
    "integers",
    "phi_2",
    "uniform",
    "zeros",
    "phi_4",
    "single_nonzero",
    "cancelling",
    "sparse",
)
"""Operands that take the count that was hoped for, more, fewer, and none that is known
beforehand.
"""


@pytest.fixture(autouse=True)
def nothing_kept():
    store.forget()


def first(a, b, **options):
    """Bits of a first call of its kind, which keep what its report says."""
    store.forget()
    x, y = on_gpu(a, b)
    found, report = hg.matmul(x, y, return_report=True, **options)
    exact, size = hg.matmul(a, b, accuracy="correct"), np.abs(a) @ np.abs(b)
    found = found.cpu().numpy()
    assert (
        np.abs(found - exact)
        <= 1.001 * (report.bound * size + 2.0**-52 * np.abs(exact))
    ).all()
    store.forget()
    return found


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_exact_counts_are_those_of_numpy(make_pair, assert_same_bits, family, dtype):
    a, b = make_pair(family, 9, 300, 7, dtype)
    try:
        want, stated = hg.matmul(
            a, b, scheme=FAST, accuracy="correct", return_report=True
        )
    except hg.AccuracyError:
        with pytest.raises(hg.AccuracyError):
            hg.matmul(*on_gpu(a, b), scheme=FAST, accuracy="correct")
        return
    found, report = hg.matmul(
        *on_gpu(a, b), scheme=FAST, accuracy="correct", return_report=True
    )
    assert_same_bits(found.cpu().numpy(), want)
    assert (report.scheme, report.reason, report.bound) == (
        stated.scheme,
        stated.reason,
        stated.bound,
    )


def test_short_data_take_few_moduli(make_pair, assert_same_bits):
    accuracy = "correct"
    rng = np.random.default_rng(1)
    integers = make_pair("integers", *SHAPE)
    short = [
        x.astype(np.float32).astype(np.float64) for x in make_pair("uniform", *SHAPE)
    ]
    wide = (
        rng.integers(-(2**20), 2**20, SHAPE[:2]).astype(float),
        rng.integers(-1, 2, SHAPE[1:]).astype(float),
    )
    for a, b, most in ((*integers, 3), (*short, 11), (*wide, 5)):
        want, stated = hg.matmul(
            a, b, scheme=FAST, accuracy=accuracy, return_report=True
        )
        found, report = hg.matmul(
            *on_gpu(a, b), scheme=FAST, accuracy=accuracy, return_report=True
        )
        # of the operands, or of those before, whose moduli have served these too
        assert "moduli hold" in report.reason
        assert report.scheme.num_moduli <= most
        assert (report.scheme, report.correct) == (stated.scheme, True)
        assert_same_bits(found.cpu().numpy(), want)


@pytest.mark.parametrize(
    "options",
    [{"scheme": FAST}, {"scheme": FAST, "accuracy": 1e-17}, {"accuracy": "correct"}],
)
@pytest.mark.parametrize("given", [False, True])
def test_changing_data_get_their_own_bits_in_every_order(
    make_pair, assert_same_bits, options, given
):
    pairs = {name: make_pair(name, *SHAPE) for name in KINDS}
    want = {name: first(*pair, **options) for name, pair in pairs.items()}
    a, b = on_gpu(*pairs["phi_0.1"])
    out = a.new_empty(SHAPE[0], SHAPE[2]) if given else None
    for seed in range(3):
        for name in np.random.default_rng(seed).permutation([*KINDS, *KINDS]):
            for x, y in zip((a, b), pairs[name], strict=True):
                x.copy_(torch.from_numpy(y))
            found = hg.matmul(a, b, out=out, **options)
            assert (found is out) or not given
            assert_same_bits(found.cpu().numpy(), want[name])


def test_every_call_is_decided_by_its_own_operands(make_pair, assert_same_bits):
    easy = on_gpu(*make_pair("phi_0.1", 400, 900, 300))
    hard = on_gpu(*make_pair("phi_2", 400, 900, 300))
    want = [hg.matmul(*pair, scheme=FAST, return_report=True) for pair in (easy, hard)]
    assert want[0][1].scheme != want[1][1].scheme
    for which in (0, 0, 1, 1, 0, 1, 0, 0):
        found = hg.matmul(*(easy, hard)[which], scheme=FAST)
        assert_same_bits(found.cpu().numpy(), want[which][0].cpu().numpy())


@pytest.mark.parametrize(
    "options", [{"scheme": FAST}, {"accuracy": "correct"}], ids=str
)
def test_looks_see_operands_as_they_are_in_the_stream(
    make_pair, assert_same_bits, options
):
    pairs = {name: on_gpu(*make_pair(name, *SHAPE)) for name in KINDS}
    want = {
        name: hg.matmul(*pair, **options).cpu().numpy() for name, pair in pairs.items()
    }
    a, b = (torch.empty_like(x) for x in pairs["zeros"])
    for seed in range(2):
        for name in np.random.default_rng(seed).permutation([*KINDS, *KINDS]):
            # half a millisecond, in which nothing is there yet
            torch.cuda._sleep(10**6)
            for x, y in zip((a, b), pairs[name], strict=True):
                x.copy_(y)
            found = hg.matmul(a, b, **options)
            for x in (a, b):
                x.fill_(float("nan"))
            assert_same_bits(found.cpu().numpy(), want[name])


def test_strides_stacks_and_special_values(make_pair):
    a, b = (
        np.stack([x * 2.0**e for e in range(3)]) for x in make_pair("phi_1", 40, 50, 44)
    )
    a[1, 2, 3], b[0, 1, 4], b[2, 2, 2] = np.inf, np.nan, -np.inf
    x, y = on_gpu(a, b)
    options = {"scheme": FAST, "accuracy": "correct"}
    cases = (
        (lambda t: t[0].T[:40, :40], lambda t: t[1][:40].T[:40]),
        (lambda t: t, lambda t: t[0, :, ::2]),
        (lambda t: t[:, ::3, ::5], lambda t: t[:, ::5, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
    )
    for left, right in cases:
        want = hg.matmul(left(a), right(b), **options)
        for _ in range(5):
            found = hg.matmul(left(x), right(y), **options).cpu().numpy()
            np.testing.assert_array_equal(found, want)
            assert (np.signbit(found) == np.signbit(want))[np.isfinite(want)].all()


@pytest.mark.parametrize(
    "options", [{"scheme": FAST}, {"accuracy": "correct"}], ids=str
)
def test_streams_wait_for_their_own_look(make_pair, assert_same_bits, options):
    names = ("phi_0.1", "phi_2", "integers", "uniform")
    pairs = [on_gpu(*make_pair(name, 500, 400, 300)) for name in names]
    want = [hg.matmul(*pair, **options).cpu().numpy() for pair in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(5):
        found = []
        for stream, pair in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                found.append(hg.matmul(*pair, **options))
        torch.cuda.synchronize()
        for x, y in zip(found, want, strict=True):
            assert_same_bits(x.cpu().numpy(), y)


@pytest.mark.parametrize(
    "options", [{"scheme": FAST}, {"accuracy": "correct"}], ids=str
)
def test_threads_read_back_what_is_theirs(make_pair, assert_same_bits, options):
    names = ("phi_0.1", "phi_2", "integers", "uniform", "phi_1", "zeros")
    pairs = [on_gpu(*make_pair(name, 200, 300, 100)) for name in names]
    want = [hg.matmul(*pair, **options).cpu().numpy() for pair in pairs]
    torch.cuda.synchronize()
    wrong = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                found = hg.matmul(*pairs[i], **options).cpu().numpy()
                if found.tobytes() != want[i].tobytes():
                    wrong.append(names[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inference_mode_comes_and_goes(make_pair, assert_same_bits):
    a, b = make_pair("phi_0.1", *SHAPE)
    want = first(a, b, scheme=FAST)
    x, y = on_gpu(a, b)
    for enabled in (True, False, True, False):
        with torch.inference_mode(enabled):
            assert_same_bits(hg.matmul(x, y, scheme=FAST).cpu().numpy(), want)


@pytest.mark.multigpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_devices_read_back_apart(make_pair, assert_same_bits):
    a, b = make_pair("phi_0.1", *SHAPE)
    want = hg.matmul(a, b, scheme=FAST)
    for index in (0, 1, 1, 0):
        x, y = (torch.from_numpy(z).to(f"cuda:{index}") for z in (a, b))
        for current in (0, 1):
            with torch.cuda.device(current):
                assert_same_bits(hg.matmul(x, y, scheme=FAST).cpu().numpy(), want)


def test_what_waits_is_not_captured(make_pair):
    # "auto" adds the terms of small products one by one, without a wait.
    options = {"accuracy": "correct", "scheme": FAST}
    a, b = on_gpu(*make_pair("phi_0.1", *SHAPE))
    for _ in range(2):  # the second time as a repeated call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            a.clone()
            with pytest.raises(hg.PlanError, match="set num_moduli"):
                hg.matmul(a, b, **options)
        torch.cuda.synchronize()
        hg.matmul(a, b, **options)
        hg.matmul(a, b, **options)


def test_a_result_that_repeats_write_counts_as_changed(make_pair):
    a, b = on_gpu(*make_pair("phi_0.1", 50, 50, 50))
    out = torch.empty_like(a)
    for _ in range(5):
        before = out._version
        hg.matmul(a, b, scheme=FAST, out=out)
        assert out._version > before


def test_the_host_goes_on_while_the_product_is_made(make_pair):
    a, b = (
        torch.rand(8192, 8192, dtype=torch.float64, device="cuda") * 1.1**0.5
        for _ in range(2)
    )
    a[0, 0], b[0, 0] = 3.0**-20, 3.0**-20
    for _ in range(3):
        hg.matmul(a, b, scheme=FAST)
    torch.cuda.synchronize()
    hg.matmul(a, b, scheme=FAST)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_operands_that_nobody_reads_are_not_looked_at():
    a = torch.full((3000, 3000), torch.nan, dtype=torch.float64, device="cuda")
    c = torch.ones(3000, 3000, dtype=torch.float64, device="cuda")
    for options in ({}, {"accuracy": "correct"}, {"scheme": FAST}):
        assert torch.equal(hg.gemm(a, a, c, alpha=0.0, beta=2.0, **options), 2 * c)


def test_large_products_follow_their_operands(assert_same_bits):
    n = 2048
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (
        torch.randn(n, n, dtype=torch.float64, device="cuda", generator=generator)
        for _ in range(2)
    )
    rows = slice(0, 40)
    for _ in range(3):
        found = hg.matmul(a, b, scheme=FAST)
        again, report = hg.matmul(a, b, scheme=FAST, return_report=True)
        assert torch.equal(found, again)
        correct = hg.matmul(a, b, accuracy="correct")
        part = hg.matmul(
            a[rows].cpu().numpy(), b.cpu().numpy()[:, rows], accuracy="correct"
        )
        assert_same_bits(correct[rows, rows].cpu().numpy(), part)
        assert (
            (found - correct).abs()
            <= (report.bound + 2.0**-52) * (a.abs() @ b.abs()) * 1.01
        ).all()
        a = (a * 16).round() / 16
        b = b * torch.exp(
            torch.randn(n, n, dtype=torch.float64, device="cuda", generator=generator)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_rows_and_columns_of_large_products_are_set_apart(monkeypatch, dtype):
    generator = torch.Generator("cuda").manual_seed(5)

    def operand(rows, columns):
        x = (
            torch.rand(
                (rows, columns), generator=generator, dtype=torch.float64, device="cuda"
            )
            - 0.5
        )
        return x.mul_(torch.randn_like(x).mul_(0.5).exp_()).to(getattr(torch, dtype))

    a, b = operand(2600, 2700), operand(2700, 2650)
    a[7, 5] *= 2.0**-30
    b[3, 2649] *= 2.0**-40
    a[100, 9], b[4, 8], b[5, 2649] = torch.inf, torch.nan, -torch.inf
    c = torch.rand((2600, 2650), dtype=a.dtype, device="cuda")
    monkeypatch.setattr(inspection, "may_pay", lambda problem: True)
    found, report = hg.matmul(a, b, accuracy="correct", return_report=True)
    blocks = hg.matmul(a, b, accuracy="correct", workspace=2**27)
    combined = hg.gemm(
        a,
        b,
        (target := c.clone()),
        alpha=-0.5,
        beta=2.0,
        accuracy="correct",
        out=target,
    )
    monkeypatch.setattr(inspection, "may_pay", lambda problem: False)
    want, stated = hg.matmul(a, b, accuracy="correct", return_report=True)
    assert report.correct
    assert " without " in report.reason
    assert " without " not in stated.reason
    assert report.num_products <= stated.num_products
    for x, y in (
        (found, want),
        (blocks, want),
        (combined, hg.gemm(a, b, c, alpha=-0.5, beta=2.0, accuracy="correct")),
    ):
        assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0))
    assert combined is target


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    "kind", ["phi_0.1", "later", "phi_2", "uniform", "integers", "zeros"]
)
def test_few_terms_tell_enough_or_all_are_looked_at(
    monkeypatch, make_pair, assert_same_bits, kind, dtype
):
    from hifigemm.engines.cuda import ozaki2 as ladder

    a, b = make_pair("phi_0.1" if kind == "later" else kind, *SHAPE, dtype)
    if kind == "later":  # half of the terms do not suffice, all do
        a[:, :256] *= 2.0**-30
    want = first(a, b, scheme=FAST)
    monkeypatch.setattr(ladder, "_FEW_TERMS_FROM", 0)
    monkeypatch.setattr(ladder, "_SAMPLE_FROM", 0)
    for _ in range(5):
        assert_same_bits(hg.matmul(*on_gpu(a, b), scheme=FAST).cpu().numpy(), want)
