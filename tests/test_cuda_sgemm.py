"""Error-corrected products of CUDA tensors: the bits of the simulated tensor cores, and
choices made on the device.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.testing.matrices import EXPONENT_FAMILIES, exponent_family
from tests.conftest import PAIRS, SINGLES, on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MODELS = {(8, 0): "a100", (9, 0): "h100", (10, 0): "b200"}
SCHEMES = [
    hg.Corrected(),
    hg.Corrected("tf32"),
    *(hg.Corrected(block=b) for b in (16, 32)),
    hg.Corrected("tf32", block=16),
    hg.Corrected(shift_low=False, split_rounding="zero"),
    hg.Corrected("tf32", split_rounding="zero"),
    hg.Multiword("fp16", 1, 1),
    hg.Multiword("bf16", 1, 1),
    hg.Multiword("tf32", 1, 1, accumulate="blocked", block=32),
    hg.Multiword("tf32", 2, 3),
    hg.Multiword("fp16", 2, 4, split_rounding="zero"),
    hg.Multiword("bf16", 3, 9),
]


@pytest.fixture(scope="module")
def engine():
    """The name of the engine that simulates the tensor cores of this device."""
    capability = torch.cuda.get_device_capability()
    if capability not in MODELS:
        pytest.skip(f"no model of the tensor cores of capability {capability}")
    return f"simulated-{MODELS[capability]}"


@pytest.fixture(scope="module")
def model(engine):
    return engine_for(engine).model


def positive(rng, *shape):
    return rng.random(shape, np.float32)


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bits_are_those_of_the_simulated_unit(
    scheme, family, engine, make_pair, assert_same_bits
):
    for m, k, n in ((70, 200, 90), (130, 129, 5), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, np.float32)
        want = hg.matmul(a, b, scheme=scheme, engine=engine)
        assert_same_bits(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want)


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_complex_products_have_the_bits_of_the_simulated_unit(
    scheme, family, engine, make_pair, assert_same_bits
):
    for m, k, n in ((70, 100, 90), (3, 129, 131)):
        a, b = make_pair(family, m, k, n, np.complex64)
        want = hg.matmul(a, b, scheme=scheme, engine=engine)
        x, y = on_gpu(a, b)
        assert_same_bits(hg.matmul(x, y, scheme=scheme).cpu().numpy(), want)
        assert_same_bits(
            hg.matmul(x.mT.contiguous().mT, y.mT.contiguous().mT, scheme=scheme)
            .cpu()
            .numpy(),
            want,
        )
        if family == "uniform":
            wide = hg.matmul(
                x.conj(),
                y.conj(),
                scheme=scheme,
                out=torch.empty_like(x @ y).mT.contiguous().mT,
            )
            assert_same_bits(wide.conj().resolve_conj().cpu().numpy(), want)


def test_large_complex_products_take_words():
    generator = torch.Generator("cuda").manual_seed(3)
    x, y = (
        torch.randn(
            2048, 2048, dtype=torch.complex64, device="cuda", generator=generator
        )
        for _ in range(2)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        c = hg.matmul(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found, report = hg.matmul(x, y, return_report=True)
    assert torch.equal(found, c)
    assert (report.scheme, report.num_products) == (hg.Corrected("fp16"), 12)
    errors = [
        (z - x.to(torch.complex128) @ y.to(torch.complex128)).abs().mean()
        for z in (c, x @ y)
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_long_positive_sums_are_added_outside_the_unit(
    product, engine, assert_same_bits
):
    """Bits tell: a compiler that chains the sum gives those of the other scheme."""
    rng = np.random.default_rng(1)
    a, b = positive(rng, 40, 5000), positive(rng, 5000, 33)
    outside, chained = (
        hg.Corrected(product, accumulate=how) for how in ("outside", "chained")
    )
    want, other = (hg.matmul(a, b, scheme=s, engine=engine) for s in (outside, chained))
    found = hg.matmul(*on_gpu(a, b), scheme=outside).cpu().numpy()
    assert_same_bits(found, want)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    in_unit = hg.matmul(*on_gpu(a, b), scheme=chained).cpu().numpy()
    errors = [np.mean(np.abs(c / exact - 1)) for c in (found, other, in_unit)]
    assert min(errors[1:]) > 20 * errors[0]


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_error_of_positive_data_stays_within_the_bound(product, model):
    """k = 65536, as one sum and in spans of 4096."""
    from hifigemm.engines.cuda.words import unit_of

    rng = np.random.default_rng(2)
    a, b = positive(rng, 64, 65536), positive(rng, 65536, 64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    largest = []
    for scheme in (
        hg.Corrected(product, spans=True),
        hg.Corrected(product),
        hg.Corrected(product, accumulate="chained"),
    ):
        c, report = hg.matmul(*on_gpu(a, b), scheme=scheme, return_report=True)
        error = np.abs(c.cpu().numpy() / exact - 1)
        unit = unit_of(model, product)
        span = 4096 if scheme.spans else 0
        bound = scheme.worst_case(unit, 65536, 0, span)
        assert report.bound == pytest.approx(bound, rel=1e-12)
        assert error.max() <= bound + 2.0**-24
        largest.append(error.max())
    assert largest[1] > largest[0]
    assert largest[2] > 20 * largest[0]


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", scale=False),
        hg.Multiword("bf16", 3, 6, accumulate="blocked"),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["uniform", "phi_4", "full_range", "largest"])
def test_a_long_k_has_the_bits_of_the_model_with_spans_and_without(
    scheme, family, engine, make_pair
):
    a, b = make_pair(family, 3, 2**15 + 70, 5, np.float32)
    a = a.copy()
    a[1, 30000] = np.inf
    for cut in (scheme, replace(scheme, spans=True)):
        with np.errstate(all="ignore"):
            want = hg.matmul(a, b, scheme=cut, engine=engine)
        found = hg.matmul(*on_gpu(a, b), scheme=cut)
        np.testing.assert_array_equal(found.cpu().numpy(), want)


@pytest.mark.usefixtures("words_always")
@pytest.mark.parametrize(("k", "is_cut"), [(2**15 - 1, False), (2**15 + 70, True)])
def test_auto_cuts_a_long_k_into_spans_and_says_so(k, is_cut, engine):
    rng = np.random.default_rng(12)
    a, b = positive(rng, 40, k), positive(rng, k, 33)
    x, y = on_gpu(a, b)
    plan = hg.make_plan(x, y)
    c, report = hg.matmul(x, y, return_report=True)
    assert plan.scheme.spans == report.scheme.spans == is_cut == bool(plan.k_span)
    assert report.scheme == hg.Corrected(spans=is_cut)
    want = hg.matmul(a, b, scheme=report.scheme, engine=engine)
    np.testing.assert_array_equal(c.cpu().numpy(), want)


@pytest.mark.parametrize("scheme", [hg.Corrected(), hg.Corrected("tf32")], ids=str)
def test_special_values_are_those_of_numpy(scheme, engine, make_pair):
    a, b = make_pair("phi_1", 140, 150, 160, np.float32)
    a, b = a.copy(), b.copy()
    a[0, 0], a[-1, 1], b[0, 1], b[2, 0], b[7, 150] = (
        np.inf,
        np.nan,
        -np.inf,
        0.0,
        np.inf,
    )
    want = hg.matmul(a, b, scheme=scheme, engine=engine)
    np.testing.assert_array_equal(
        hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want
    )
    half = on_gpu(a[:, ::2], b[::2])
    want = hg.matmul(a[:, ::2], b[::2], scheme=scheme, engine=engine)
    np.testing.assert_array_equal(hg.matmul(*half, scheme=scheme).cpu().numpy(), want)


@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(2.0, 0.0), (-0.3, 0.0), (1.0, 1.0), (-4.0, 0.7), (0.0, 2.0), (1.5, -1.0)],
)
def test_gemm_gives_the_bits_of_the_steps(
    alpha, beta, engine, make_pair, assert_same_bits
):
    a, b = make_pair("phi_1", 40, 130, 50, np.float32)
    c = make_pair("phi_2", 40, 30, 50, np.float32)[1][:1].copy()
    for scheme in (hg.Corrected(), hg.Corrected("tf32")):
        want = hg.gemm(a, b, c, alpha=alpha, beta=beta, scheme=scheme, engine=engine)
        x, y, z = on_gpu(a, b, c)
        assert_same_bits(
            hg.gemm(x, y, z, alpha=alpha, beta=beta, scheme=scheme).cpu().numpy(), want
        )


def test_strides_stacks_and_broadcasts(engine, make_pair, assert_same_bits):
    a, b = (
        np.stack([x * np.float32(2.0**e) for e in range(6)])
        for x in make_pair("phi_1", 33, 40, 35, np.float32)
    )
    x, y = on_gpu(a, b)
    cases = (
        (
            lambda t: t.reshape(2, 3, *t.shape[1:])[:, :1],
            lambda t: t.reshape(2, 3, *t.shape[1:]),
        ),
        (lambda t: t[:, ::2, ::3], lambda t: t[0, ::3, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
        (lambda t: t, lambda t: t[0, :, 0]),
        (lambda t: t[1].T, lambda t: t[2][:33]),
    )
    for left, right in cases:
        want = hg.matmul(left(a), right(b), scheme=hg.Corrected(), engine=engine)
        assert_same_bits(
            hg.matmul(left(x), right(y), scheme=hg.Corrected()).cpu().numpy(), want
        )


def test_bits_do_not_depend_on_the_workspace_or_the_run(make_pair):
    x, y = on_gpu(*make_pair("phi_2", 300, 500, 400, np.float32))
    whole = hg.matmul(x, y, scheme=hg.Corrected())
    for _ in range(3):
        assert torch.equal(hg.matmul(x, y, scheme=hg.Corrected()), whole)
    assert torch.equal(hg.matmul(x, y, scheme=hg.Corrected(), workspace=2**24), whole)


def test_products_are_captured_and_repeated(make_pair):
    x, y = on_gpu(*make_pair("phi_1", 200, 300, 100, np.float32))
    hg.matmul(x, y, scheme=hg.Corrected())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = hg.matmul(x, y, scheme=hg.Corrected())
    x.normal_()
    x[0, 0] = torch.inf
    graph.replay()
    torch.testing.assert_close(
        c, hg.matmul(x, y, scheme=hg.Corrected()), rtol=0, atol=0, equal_nan=True
    )


@pytest.fixture
def words_always(monkeypatch):
    """Small products are left to the device too, with all choices."""
    from hifigemm.base import store
    from hifigemm.running import auto

    monkeypatch.setattr(auto, "_WORDS_MARGIN", 0.0)
    monkeypatch.setattr(auto, "_SHORT", 0.0)
    store.forget()
    yield
    store.forget()


def spread_out(rng, spread, *shapes):
    """Exponents from -spread / 2 to spread / 2 in every row and column."""
    return [
        np.ldexp(
            rng.uniform(1, 2, s), rng.integers(-spread, spread + 1, s) // 2
        ).astype(np.float32)
        for s in shapes
    ]


def errors(c, x, y):
    """|C - AB| and |A||B|, with AB in float64, on the device."""
    exact = x.double() @ y.double()
    return (c.double() - exact).abs(), x.double().abs() @ y.double().abs(), exact


def assert_kept(c, x, y, bound):
    """The promise, with room for results in the subnormal range and for those beyond
    the largest number.
    """
    error, size, exact = errors(c, x, y)
    kept = error <= bound * (1 + 1e-6) * size + 2.0**-24 * exact.abs() + 2.0**-149
    beyond = (c.abs() == torch.inf) & (
        exact.abs() + bound * size > 2.0**128 * (1 - 2.0**-25)
    )
    assert (kept | beyond).all()


@pytest.mark.usefixtures("words_always")
@pytest.mark.parametrize(
    ("spread", "product"), [(0, "fp16"), (40, "tf32"), (120, None)]
)
@pytest.mark.parametrize("shape", [(70, 200, 90), (300, 5000, 40)])
def test_exponents_choose_the_words_on_the_device(
    spread, product, shape, engine, assert_same_bits
):
    m, k, n = shape
    a, b = spread_out(np.random.default_rng(spread), spread, (m, k), (k, n))
    x, y = on_gpu(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    assert report.scheme == (hg.Native() if product is None else hg.Corrected(product))
    assert report.native == (product is None)
    assert report.bound <= k * 2.0**-24 * 1.001
    assert_kept(c, x, y, report.bound)
    assert torch.equal(hg.matmul(x, y), c)
    if product is not None:
        assert_same_bits(
            c.cpu().numpy(), hg.matmul(a, b, scheme=report.scheme, engine=engine)
        )


@pytest.mark.usefixtures("words_always")
def test_recordings_choose_anew_in_every_call():
    rng = np.random.default_rng(4)
    out = torch.empty(150, 90, device="cuda")
    for spread in (0, 120, 0, 40, 0, 120, 40, 40, 0):
        x, y = on_gpu(*spread_out(rng, spread, (150, 3000), (3000, 90)))
        want, report = hg.matmul(x, y, return_report=True)
        assert report.native == (spread == 120)
        for _ in range(3):
            assert torch.equal(hg.matmul(x, y), want)
            assert torch.equal(hg.matmul(x, y, out=out), want)


@pytest.mark.parametrize("family", EXPONENT_FAMILIES)
def test_exponent_families_are_multiplied_at_the_level_of_float32(family):
    """The four families of [OY22]."""
    x, y = on_gpu(*exponent_family(np.random.default_rng(5), family, 2048, 2048, 2048))
    c, report = hg.matmul(x, y, return_report=True)
    assert not report.native
    assert torch.equal(c, hg.matmul(x, y, scheme=report.scheme))
    assert_kept(c, x, y, report.bound)
    error, size, _ = errors(c, x, y)
    native = errors(hg.matmul(x, y, scheme="native"), x, y)[0]
    normal = size > 2.0**-100
    if normal.any():
        assert (error / size)[normal].mean() <= (native / size)[normal].mean()


def test_auto_takes_large_products_and_leaves_small_ones():
    for m, k, n, native in (
        (1024, 1024, 1024, False),
        (256, 256, 256, True),
        (4096, 4096, 1, True),
    ):
        x = torch.rand(m, k, device="cuda") - 0.5
        y = torch.rand(k, n, device="cuda") - 0.5
        assert hg.matmul(x, y, return_report=True)[1].native == native


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_auto_waits_for_nothing_unless_it_is_asked():
    x, y = on_gpu(
        *(np.random.default_rng(6).random((1024, 1024), np.float32) for _ in range(2))
    )
    out = torch.empty_like(x)
    for _ in range(2):
        hg.matmul(x, y)
        hg.matmul(x, y, out=out)
        hg.gemm(x, y, x, beta=0.5)
    torch.cuda.set_sync_debug_mode("error")
    try:
        c, d = hg.matmul(x, y), hg.gemm(x, y, x, alpha=-0.3, beta=0.5)
        hg.matmul(x, y, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, c)
    torch.testing.assert_close(
        d, (0.5 * x.double() - 0.3 * c.double()).float(), rtol=1e-6, atol=1e-6
    )


def test_auto_is_captured_and_chooses_in_every_replay():
    rng = np.random.default_rng(7)
    x, y = on_gpu(*spread_out(rng, 0, (1024, 1024), (1024, 1024)))
    hg.matmul(x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = hg.matmul(x, y)
    for spread in (0, 120, 40, 0):
        u, v = on_gpu(*spread_out(rng, spread, (1024, 1024), (1024, 1024)))
        x.copy_(u)
        y.copy_(v)
        graph.replay()
        want, report = hg.matmul(u, v, return_report=True)
        assert torch.equal(c, want)
        assert report.native == (spread > 0)


@pytest.mark.usefixtures("words_always")
def test_stacks_strides_epilogues_and_special_values_under_auto(make_pair):
    a, b = make_pair("phi_1", 140, 150, 160, np.float32)
    a, b = a.copy(), b.copy()
    a[0, 0], a[-1, 1], b[0, 1], b[2, 0] = np.inf, np.nan, -np.inf, 0.0
    x, y = on_gpu(np.stack([a, 2 * a]), b)
    for left, right in (
        (x, y),
        (x[:, ::2], y),
        (x.mT[:, :, :9].mT, y),
        (x[:, :, ::2], y[::2, ::2]),
        (x[0], y),
    ):
        want, report = hg.matmul(left, right, return_report=True)
        assert report.scheme == hg.Corrected()
        same = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(
            want, hg.matmul(left, right, scheme=hg.Corrected()), **same
        )
        torch.testing.assert_close(
            want, left @ right, rtol=1e-3, atol=1e-2, equal_nan=True
        )
        out = torch.empty_like(want.mT.contiguous()).mT
        torch.testing.assert_close(hg.matmul(left, right, out=out), want, **same)
        got = hg.gemm(left, right, want, alpha=-0.7, beta=2.0)
        torch.testing.assert_close(
            got,
            hg.gemm(left, right, want, alpha=-0.7, beta=2.0, scheme=hg.Corrected()),
            **same,
        )


@pytest.mark.usefixtures("words_always")
def test_strict_mode_refuses_sums_outside_the_tensor_cores():
    rng = np.random.default_rng(8)
    easy, wide = (on_gpu(*spread_out(rng, s, (64, 200), (200, 64))) for s in (0, 120))
    for _ in range(2):
        hg.matmul(*wide)
        with hg.strict():
            hg.matmul(*easy)
            with pytest.raises(hg.AccuracyError, match="would fall back"):
                hg.matmul(*wide)


@pytest.mark.usefixtures("words_always")
def test_the_log_says_what_the_device_chooses_from(caplog):
    rng = np.random.default_rng(9)
    for _ in range(3):
        hg.matmul(*on_gpu(*spread_out(rng, 0, (64, 200), (200, 64))))
    with caplog.at_level("INFO", "hifigemm"):
        hg.matmul(*on_gpu(*spread_out(rng, 40, (64, 200), (200, 64))))
    assert (
        "FP16, else TF32, else FP32 sums by the exponents of the operands"
        in caplog.text
    )


@pytest.mark.parametrize(
    "family",
    ["uniform", "phi_4", "sparse", "span_60", "badly_scaled", "subnormal_rows"],
)
@pytest.mark.parametrize(
    "scheme", [hg.Corrected(), hg.Corrected("tf32"), hg.Corrected(scale=False)], ids=str
)
def test_certified_products_have_the_bits_of_the_simulated_unit(
    scheme, family, engine, make_pair, assert_same_bits
):
    a, b = make_pair(family, 70, 200, 90, np.float32)
    x, y = on_gpu(a, b)
    want, stated = hg.matmul(a, b, scheme=scheme, engine=engine, return_report=True)
    c, report = hg.matmul(x, y, scheme=scheme, return_report=True)
    assert_same_bits(c.cpu().numpy(), want)
    if np.isfinite(report.bound):
        assert_kept(c, x, y, report.bound)
        # entry by entry a bound is known wherever one for all entries is
        assert np.isfinite(stated.bound)
    assert_same_bits(hg.matmul(x, y, scheme=scheme).cpu().numpy(), want)
    for accuracy in (1e-4, 1e-5):
        try:
            want, stated = hg.matmul(
                a,
                b,
                scheme=scheme,
                engine=engine,
                accuracy=accuracy,
                return_report=True,
            )
        except hg.AccuracyError:
            continue
        c, report = hg.matmul(
            x, y, scheme=scheme, accuracy=accuracy, return_report=True
        )
        assert report.bound <= accuracy
        assert_same_bits(c.cpu().numpy(), want)


@pytest.mark.parametrize(
    "scheme", [hg.Corrected(), hg.Multiword("bf16", 1, 1)], ids=str
)
@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_words_of_other_dtypes_are_added_by_the_same_unit(
    scheme, dtype, engine, make_pair, assert_same_bits
):
    a, b = make_pair("phi_1", 20, 100, 30, dtype)
    want = hg.matmul(a, b, scheme=scheme, engine=engine)
    assert_same_bits(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want)


NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@pytest.mark.usefixtures("words_always")
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(1, 100, 1), (70, 200, 90), (130, 1001, 120)])
def test_narrow_operands_take_one_product(dtype, shape, engine, assert_same_bits):
    m, k, n = shape
    rng = np.random.default_rng(10)
    x, y = (
        t.to(dtype)
        for t in on_gpu(
            *(rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        )
    )
    scheme = hg.Multiword(NARROW[dtype], 1, 1, accumulate="blocked", block=32)
    for left, right in ((x, y), (x, y.mT.contiguous().mT), (x[:, ::2], y[::2])):
        c, report = hg.matmul(left, right, return_report=True)
        assert (c.dtype, report.scheme, report.num_products) == (
            torch.float32,
            scheme,
            1,
        )
        assert report.bound <= left.shape[1] * 2.0**-24
        assert_kept(c, left, right, report.bound)
        for _ in range(3):
            assert torch.equal(hg.matmul(left, right), c)
            assert torch.equal(hg.matmul(left, right, out=torch.empty_like(c)), c)
        assert torch.equal(hg.matmul(left.float(), right.float(), scheme=scheme), c)
        assert torch.equal(hg.gemm(left, right, alpha=-2.0), -2.0 * c)
        a, b = left.float().cpu().numpy(), right.float().cpu().numpy()
        assert_same_bits(c.cpu().numpy(), hg.matmul(a, b, scheme=scheme, engine=engine))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_positive_narrow_operands_err_less_than_in_float32(dtype):
    rng = np.random.default_rng(11)
    x, y = (
        t.to(dtype)
        for t in on_gpu(positive(rng, 1024, 4096), positive(rng, 4096, 1024))
    )
    c, report = hg.matmul(x, y, return_report=True)
    assert report.scheme.name == "multiword"
    error, size, _ = errors(c, x, y)
    native = errors(hg.matmul(x, y, scheme="native"), x, y)[0]
    assert (error / size).mean() < (native / size).mean()


@pytest.mark.usefixtures("words_always")
def test_subnormal_float16_operands_take_words_with_more_exponents():
    """Wide rows with subnormal numbers; rows of subnormal numbers alone are scaled."""
    rng = np.random.default_rng(12)
    for wide, product in ((False, "fp16"), (True, "tf32")):
        a, b = (rng.uniform(-1, 1, s) * 2.0**-16 for s in ((64, 500), (500, 64)))
        if wide:
            a[:, 0], b[0] = 60000.0, 60000.0
        x, y = (torch.from_numpy(t.astype(np.float16)).cuda() for t in (a, b))
        c, report = hg.matmul(x, y, return_report=True)
        assert report.scheme.product == product
        assert_kept(c, x, y, report.bound)
        assert torch.equal(c, hg.matmul(x, y))


@pytest.mark.usefixtures("words_always")
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_special_values_and_mixed_dtypes(dtype):
    rng = np.random.default_rng(13)
    x, y = (t.to(dtype) for t in on_gpu(positive(rng, 40, 100), positive(rng, 100, 50)))
    x[0, 0], x[1, 1], y[0, 1], y[2, 0] = torch.inf, torch.nan, -torch.inf, 0.0
    torch.testing.assert_close(
        hg.matmul(x, y), x.float() @ y.float(), rtol=1e-5, atol=1e-4, equal_nan=True
    )
    correct = hg.matmul(x.cpu(), y.cpu(), accuracy="correct")
    torch.testing.assert_close(
        hg.matmul(x, y, accuracy="correct").cpu(),
        correct,
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    for other in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        c = hg.matmul(x, y.to(other))
        assert c.dtype is (torch.float64 if other is torch.float64 else torch.float32)
        want = x.double() @ y.to(other).double()
        torch.testing.assert_close(
            c.double(), want, rtol=1e-5, atol=1e-4, equal_nan=True
        )
    c = hg.gemm(x, y, x[:, :50], beta=1.0)
    torch.testing.assert_close(
        c, hg.matmul(x, y) + x[:, :50].float(), rtol=1e-6, atol=1e-5, equal_nan=True
    )
    with pytest.raises(TypeError, match="out has dtype"):
        hg.matmul(x, y, out=torch.empty(40, 50, dtype=dtype, device="cuda"))


def test_largest_entries_do_not_overflow(engine, assert_same_bits):
    """Entries up to 3e38 in rows and columns whose products are representable."""
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((64, 100), (100, 64)))
    a *= np.float32(3e38)
    b *= np.float32(1e-38)
    for product in ("fp16", "tf32"):
        got = hg.matmul(*on_gpu(a, b), scheme=hg.Corrected(product)).cpu().numpy()
        assert np.isfinite(got).all()
        assert_same_bits(
            got, hg.matmul(a, b, scheme=hg.Corrected(product), engine=engine)
        )
