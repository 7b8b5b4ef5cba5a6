"""CUDA tensors: the bits of the NumPy engine, in every scheme, on hostile operands, in
streams, graphs and blocks.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hifigemm as hg
from tests.conftest import PAIRS, SINGLES, on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAST = [hg.Ozaki2(num_moduli=count, scaling="fast") for count in (2, 8, 14, 15, 16, 20)]
OTHERS = [
    hg.Ozaki2(num_moduli=15),
    hg.Ozaki2(num_moduli=49, scaling="fast"),
    hg.Ozaki1(num_slices=5),
    hg.Ozaki1(product="fp16", num_slices=6),
    hg.Ozaki1(product="bf16", num_slices=6),
    hg.Ozaki1(product="tf32", num_slices=4),
    hg.Ozaki1(product="fp64", num_slices=3),
]


def with_special_values(a, b):
    a, b = a.copy(), b.copy()
    a[0, 0], a[-1, 1], b[0, 1], b[2, 0] = np.inf, np.nan, -np.inf, 0.0
    return a, b


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", FAST, ids=str)
def test_fused_residues_give_the_bits_of_numpy(
    make_pair, assert_same_bits, family, dtype, scheme
):
    for m, k, n in ((5, 300, 7), (130, 65, 257), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        want = hg.matmul(a, b, scheme=scheme)
        assert_same_bits(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want)


@pytest.mark.parametrize(
    "family",
    ["phi_1", "full_range", "cancelling", "subnormal_times_large", "overflowing"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("scheme", OTHERS, ids=str)
def test_other_schemes_give_the_bits_of_numpy(
    make_pair, assert_same_bits, family, dtype, scheme
):
    a, b = make_pair(family, 9, 70, 11, dtype)
    found, report = hg.matmul(*on_gpu(a, b), scheme=scheme, return_report=True)
    want, stated = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert_same_bits(found.cpu().numpy(), want)
    assert (report.scheme, report.num_products, report.engine) == (
        stated.scheme,
        stated.num_products,
        "torch",
    )
    # from the error ratio of all entries instead of entry by entry
    if getattr(scheme, "scaling", "") == "fast":
        assert report.bound >= stated.bound * (1 - 1e-10)
    else:
        assert report.bound == pytest.approx(stated.bound, rel=1e-10)


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_correct_rounding_is_that_of_numpy(make_pair, assert_same_bits, family, dtype):
    a, b = make_pair(family, 12, 90, 10, dtype)
    found, report = hg.matmul(*on_gpu(a, b), accuracy="correct", return_report=True)
    assert report.correct
    assert_same_bits(found.cpu().numpy(), hg.matmul(a, b, accuracy="correct"))


@pytest.mark.parametrize(
    "family", ["uniform", "phi_1", "phi_4", "span_60", "badly_scaled", "sparse"]
)
@pytest.mark.parametrize("accuracy", ["fp64", 1e-10, 1e-18])
def test_promises_are_kept_with_the_bits_of_the_count_that_was_taken(
    make_pair, assert_same_bits, family, accuracy
):
    a, b = make_pair(family, 40, 300, 50)
    scheme = hg.Ozaki2(scaling="fast")
    found, report = hg.matmul(
        *on_gpu(a, b), scheme=scheme, accuracy=accuracy, return_report=True
    )
    found, exact = found.cpu().numpy(), hg.matmul(a, b, accuracy="correct")
    most = report.bound * (np.abs(a) @ np.abs(b)) + 2.0**-52 * np.abs(exact)
    assert (np.abs(found - exact) <= 1.001 * most).all()
    if not report.native and "escalated" not in report.reason:
        assert_same_bits(found, hg.matmul(a, b, scheme=report.scheme))


@pytest.mark.parametrize(
    "scheme", [FAST[2], hg.Ozaki2(num_moduli=14), hg.Ozaki1(num_slices=4)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_are_those_of_numpy(make_pair, scheme, dtype):
    a, b = with_special_values(*make_pair("phi_1", 40, 30, 50, dtype))
    found = hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy()
    np.testing.assert_array_equal(found, hg.matmul(a, b, scheme=scheme))


@pytest.mark.parametrize(
    "scheme", [FAST[2], hg.Ozaki2(num_moduli=15), hg.Ozaki1(num_slices=4)], ids=str
)
def test_strides_stacks_and_broadcasts(make_pair, assert_same_bits, scheme):
    a, b = (
        np.stack([x * 2.0**e for e in range(6)]) for x in make_pair("phi_1", 33, 40, 35)
    )
    x, y = on_gpu(a, b)
    cases = (
        (
            lambda t: t[0].T,
            lambda t: t[1].T[:, :33] if t.shape[-1] == 33 else t[1][:33],
        ),
        (
            lambda t: t.reshape(2, 3, *t.shape[1:])[:, :1],
            lambda t: t.reshape(2, 3, *t.shape[1:]),
        ),
        (lambda t: t[:, ::2, ::3], lambda t: t[0, ::3, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
        (lambda t: t, lambda t: t[0, :, 0]),
    )
    for left, right in cases:
        want = hg.matmul(left(a), right(b), scheme=scheme)
        assert_same_bits(
            hg.matmul(left(x), right(y), scheme=scheme).cpu().numpy(), want
        )


def test_zero_strides_and_empty_operands(assert_same_bits):
    a = torch.rand(1, 30, dtype=torch.float64, device="cuda").expand(20, 30)
    b = torch.rand(30, 1, dtype=torch.float64, device="cuda").expand(30, 9)
    found = hg.matmul(a, b, scheme=FAST[2]).cpu().numpy()
    assert_same_bits(found, hg.matmul(a.cpu().numpy(), b.cpu().numpy(), scheme=FAST[2]))
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
        x, y = (
            torch.ones(s, dtype=torch.float64, device="cuda") for s in ((m, k), (k, n))
        )
        for scheme in (FAST[2], "auto"):
            c = hg.matmul(x, y, scheme=scheme)
            assert c.shape == (m, n)
            assert not c.any()


@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(2.0, 0.0), (-0.3, 0.0), (1.0, 1.0), (-4.0, 0.7), (0.0, 2.0), (1.5, -1.0)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gemm_gives_the_bits_of_numpy(make_pair, assert_same_bits, alpha, beta, dtype):
    a, b = make_pair("phi_1", 40, 30, 50, dtype)
    c = make_pair("phi_2", 40, 30, 50, dtype)[1][:1].copy()
    want = hg.gemm(a, b, c, alpha=alpha, beta=beta, scheme=FAST[2])
    x, y, z = on_gpu(a, b, c)
    assert_same_bits(
        hg.gemm(x, y, z, alpha=alpha, beta=beta, scheme=FAST[2]).cpu().numpy(), want
    )
    assert torch.equal(z.cpu(), torch.from_numpy(c))


def test_c_is_not_read_where_beta_is_zero():
    a = torch.rand(20, 20, dtype=torch.float64, device="cuda")
    c = torch.full((20, 20), torch.nan, dtype=torch.float64, device="cuda")
    for scheme in (FAST[2], hg.Ozaki2(), "native", "auto"):
        assert hg.gemm(a, a, c, beta=0.0, scheme=scheme, out=c).isfinite().all()
        c.fill_(torch.nan)


def test_a_long_inner_dimension_is_cut_exactly(assert_same_bits):
    rng = np.random.default_rng(1)
    a = rng.choice([-1.0, 1.0], (3, 300_001)) * (2 - 2.0**-50)
    b = rng.choice([-1.0, 1.0], (300_001, 2))
    a[0], b[:, 0] = np.abs(a[0]), 1.0
    assert_same_bits(
        hg.matmul(*on_gpu(a, b), scheme=FAST[2]).cpu().numpy(),
        hg.matmul(a, b, scheme=FAST[2]),
    )


@pytest.mark.parametrize(
    "options", [{"scheme": FAST[2]}, {"accuracy": "correct"}], ids=str
)
def test_blocks_do_not_change_bits(make_pair, assert_same_bits, options):
    a, b = make_pair("phi_1", 700, 300, 600)
    x, y = on_gpu(a, b)
    want = hg.matmul(x, y, **options).cpu().numpy()
    whole = hg.make_plan(x, y, **options).workspace
    for limit in (whole // 2, whole // 5):
        found, report = hg.matmul(x, y, workspace=limit, return_report=True, **options)
        assert report.workspace <= limit
        assert_same_bits(found.cpu().numpy(), want)
        assert_same_bits(
            hg.matmul(x, y, workspace=limit, **options).cpu().numpy(), want
        )


@pytest.mark.parametrize(
    "scheme", [FAST[2], "native", hg.Ozaki1(num_slices=3)], ids=str
)
def test_out_is_filled_and_returned(make_pair, assert_same_bits, scheme):
    a, b = on_gpu(*make_pair("phi_1", 30, 40, 50))
    want = hg.matmul(a, b, scheme=scheme).cpu().numpy()
    for out in (
        a.new_full((30, 50), torch.nan),
        a.new_full((50, 30), torch.nan).T,
        a.new_full((30, 100), torch.nan)[:, ::2],
    ):
        for _ in range(3):
            assert hg.matmul(a, b, scheme=scheme, out=out) is out
            assert_same_bits(out.cpu().numpy(), want)
            out.fill_(torch.nan)


def test_out_may_be_an_operand(make_pair, assert_same_bits):
    x, y = make_pair("phi_1", 40, 40, 40)
    x[3, 4] = np.inf
    want = hg.matmul(x, y, scheme=FAST[2])
    for which in (0, 1):
        pair = on_gpu(x, y)
        hg.matmul(*pair, scheme=FAST[2], out=pair[which])
        np.testing.assert_array_equal(pair[which].cpu().numpy(), want)


def test_repeated_calls_follow_their_operands(make_pair, assert_same_bits):
    for seed in range(4):
        a, b = make_pair("phi_1", 100, 80, 60, seed=seed)
        for scheme in (FAST[2], "auto"):
            x, y = on_gpu(a, b)
            found = hg.matmul(x, y, scheme=scheme).cpu().numpy()
            want = (
                hg.matmul(a, b, scheme=scheme)
                if scheme != "auto"
                else (x @ y).cpu().numpy()
            )
            assert_same_bits(found, want)
            same = hg.matmul(x, x.T.contiguous(), scheme=FAST[2]).cpu().numpy()
            assert_same_bits(same, hg.matmul(a, a.T.copy(), scheme=FAST[2]))


def test_two_streams_at_once(make_pair, assert_same_bits):
    pairs = [on_gpu(*make_pair("phi_1", 500, 400, 300, seed=s)) for s in range(4)]
    want = [hg.matmul(*pair, scheme=FAST[2]) for pair in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(5):
        found = []
        for stream, pair in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                found.append(hg.matmul(*pair, scheme=FAST[2]))
        torch.cuda.synchronize()
        for x, y in zip(found, want, strict=True):
            assert_same_bits(x.cpu().numpy(), y.cpu().numpy())


@pytest.mark.parametrize("shape", [(100, 70, 90), (600, 3000, 500)])
def test_a_captured_graph_follows_its_operands(make_pair, assert_same_bits, shape):
    a, b = on_gpu(*make_pair("phi_1", *shape))
    hg.matmul(a, b, scheme=FAST[2])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = hg.matmul(a, b, scheme=FAST[2])
    for seed in (1, 2):
        x, y = make_pair("phi_2", *shape, seed=seed)
        a.copy_(torch.from_numpy(x))
        b.copy_(torch.from_numpy(y))
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(c.cpu().numpy(), hg.matmul(x, y, scheme=FAST[2]))


def test_a_capture_before_a_first_call_says_what_it_needs(make_pair, assert_same_bits):
    x, y = on_gpu(*make_pair("phi_1", 100, 70, 90))
    hg.matmul(x, y, scheme=FAST[2])
    # Kernels are compiled by now; the constants of 37 moduli are on no device yet.
    scheme = hg.Ozaki2(num_moduli=37, scaling="fast")
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.clone()
        with pytest.raises(hg.PlanError, match="once before"):
            hg.matmul(x, y, scheme=scheme)
    want = hg.matmul(x.cpu().numpy(), y.cpu().numpy(), scheme=scheme)
    assert_same_bits(hg.matmul(x, y, scheme=scheme).cpu().numpy(), want)


def test_prepared_operands_keep_their_residues(make_pair, assert_same_bits):
    a, b = with_special_values(*make_pair("phi_1", 60, 50, 40))
    x, y = on_gpu(a, b)
    plan = hg.make_plan(x, y, scheme=FAST[2])
    want = hg.matmul(x, y, plan=plan).cpu().numpy()
    left, right = hg.prepare(x, "left", plan=plan), hg.prepare(y, "right", plan=plan)
    assert left.split is not None
    for pair in ((left, y), (x, right), (left, right)):
        np.testing.assert_array_equal(hg.matmul(*pair).cpu().numpy(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "scheme", ["auto", "native", "ozaki1", FAST[2], hg.Ozaki2()], ids=str
)
def test_later_changes_of_a_tensor_do_not_reach_the_prepared_operand(scheme, dtype):
    a, b = (torch.rand(30, 30, dtype=dtype, device="cuda") for _ in range(2))
    plan = hg.make_plan(a, b, scheme=scheme)
    left, want = hg.prepare(a, "left", plan=plan), hg.matmul(a, b, plan=plan)
    a.data.fill_(2.0)
    assert torch.equal(hg.matmul(left, b), want)


def test_devices_and_libraries_are_not_mixed():
    a = torch.rand(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="different libraries or devices"):
        hg.matmul(a.cuda(), a)
    with pytest.raises(TypeError, match="different libraries"):
        hg.matmul(a.cuda(), a.numpy())
    with pytest.raises(hg.PlanError, match="CPU"):
        hg.matmul(a.cuda(), a.cuda(), engine="numpy")


def test_auto_reports_what_it_took(caplog):
    a = torch.rand(64, 64, dtype=torch.float64, device="cuda") - 0.5
    with caplog.at_level(logging.INFO, "hifigemm"):
        c, report = hg.matmul(a, a, return_report=True)
    assert report.native
    assert "native" in caplog.text
    torch.testing.assert_close(c, a @ a, rtol=0, atol=0)
    big = torch.rand(8192, 8192, dtype=torch.float64, device="cuda") - 0.5
    found, report = hg.matmul(big, big, return_report=True)
    if "H200" in report.device:
        assert isinstance(report.scheme, hg.Ozaki2)
        assert report.bound <= 24 * 2.0**-53
    assert ((found - big @ big).abs() <= 1e-14 * (big.abs() @ big.abs())).all()
