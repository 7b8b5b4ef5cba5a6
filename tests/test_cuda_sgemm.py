"""Error-corrected products of CUDA tensors: the bits of the simulated tensor cores, and choices made on the device."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from tests.conftest import PAIRS, SINGLES

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

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


def on_gpu(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in arrays]


def positive(rng, *shape):
    return rng.random(shape, np.float32)


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bits_are_those_of_the_simulated_unit(scheme, family, engine, make_pair, assert_same_bits):
    for m, k, n in ((70, 200, 90), (130, 129, 5), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, np.float32)
        want = hg.matmul(a, b, scheme=scheme, engine=engine)
        assert_same_bits(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want)


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_long_positive_sums_are_added_outside_the_unit(product, engine, assert_same_bits):
    """Bits tell: a compiler that chains the sum gives those of the other scheme."""
    rng = np.random.default_rng(1)
    a, b = positive(rng, 40, 5000), positive(rng, 5000, 33)
    outside, chained = (hg.Corrected(product, accumulate=how) for how in ("outside", "chained"))
    want, other = (hg.matmul(a, b, scheme=s, engine=engine) for s in (outside, chained))
    found = hg.matmul(*on_gpu(a, b), scheme=outside).cpu().numpy()
    assert_same_bits(found, want)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = [np.mean(np.abs(c / exact - 1)) for c in (found, other)]
    assert errors[1] > 20 * errors[0]


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_error_of_positive_data_stays_within_the_bound(product, model):
    """k = 65536."""
    from hifigemm.engines.word_pipeline import unit_of

    rng = np.random.default_rng(2)
    a, b = positive(rng, 64, 65536), positive(rng, 65536, 64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scheme = hg.Corrected(product)
    error = np.max(np.abs(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy() / exact - 1))
    assert error <= scheme.worst_case(unit_of(model, product), 65536) + 2.0**-24


@pytest.mark.parametrize("scheme", [hg.Corrected(), hg.Corrected("tf32")], ids=str)
def test_special_values_are_those_of_numpy(scheme, engine, make_pair):
    a, b = make_pair("phi_1", 140, 150, 160, np.float32)
    a, b = a.copy(), b.copy()
    a[0, 0], a[-1, 1], b[0, 1], b[2, 0], b[7, 150] = np.inf, np.nan, -np.inf, 0.0, np.inf
    want = hg.matmul(a, b, scheme=scheme, engine=engine)
    np.testing.assert_array_equal(hg.matmul(*on_gpu(a, b), scheme=scheme).cpu().numpy(), want)
    half = on_gpu(a[:, ::2], b[::2])
    want = hg.matmul(a[:, ::2], b[::2], scheme=scheme, engine=engine)
    np.testing.assert_array_equal(hg.matmul(*half, scheme=scheme).cpu().numpy(), want)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (-0.3, 0.0), (1.0, 1.0), (-4.0, 0.7), (0.0, 2.0), (1.5, -1.0)])
def test_gemm_gives_the_bits_of_the_steps(alpha, beta, engine, make_pair, assert_same_bits):
    a, b = make_pair("phi_1", 40, 130, 50, np.float32)
    c = make_pair("phi_2", 40, 30, 50, np.float32)[1][:1].copy()
    for scheme in (hg.Corrected(), hg.Corrected("tf32")):
        want = hg.gemm(a, b, c, alpha=alpha, beta=beta, scheme=scheme, engine=engine)
        x, y, z = on_gpu(a, b, c)
        assert_same_bits(hg.gemm(x, y, z, alpha=alpha, beta=beta, scheme=scheme).cpu().numpy(), want)


def test_strides_stacks_and_broadcasts(engine, make_pair, assert_same_bits):
    a, b = (np.stack([x * np.float32(2.0**e) for e in range(6)]) for x in make_pair("phi_1", 33, 40, 35, np.float32))
    x, y = on_gpu(a, b)
    cases = (
        (lambda t: t.reshape(2, 3, *t.shape[1:])[:, :1], lambda t: t.reshape(2, 3, *t.shape[1:])),
        (lambda t: t[:, ::2, ::3], lambda t: t[0, ::3, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
        (lambda t: t, lambda t: t[0, :, 0]),
        (lambda t: t[1].T, lambda t: t[2][:33]),
    )
    for left, right in cases:
        want = hg.matmul(left(a), right(b), scheme=hg.Corrected(), engine=engine)
        assert_same_bits(hg.matmul(left(x), right(y), scheme=hg.Corrected()).cpu().numpy(), want)


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
    torch.testing.assert_close(c, hg.matmul(x, y, scheme=hg.Corrected()), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("spread", "product"), [(0, "fp16"), (40, "tf32"), (120, "fp32")])
def test_exponents_choose_the_words_on_the_device(spread, product, engine, model, assert_same_bits):
    from hifigemm.engines.device_array import unwrap, wrap
    from hifigemm.engines.word_pipeline import ranged_product
    from hifigemm.numerics.epilogue import PLAIN
    from hifigemm.plan import Problem
    from hifigemm.study.reference import meets_promise

    rng = np.random.default_rng(spread)
    a, b = (
        np.ldexp(rng.uniform(1, 2, s), rng.integers(-spread, spread + 1, s) // 2).astype(np.float32)
        for s in ((70, 200), (200, 90))
    )
    schemes = hg.Corrected("fp16"), hg.Corrected("tf32")
    multiply = ranged_product(Problem(1, 70, 90, 200, np.dtype(np.float32)), model, schemes)
    x, y = (wrap(t[None]) for t in on_gpu(a, b))
    values, losses = multiply.run(x, y, 0, PLAIN)
    taken, bound = multiply.bound(losses)
    got = unwrap(values)[0].cpu().numpy()
    assert taken == product
    assert meets_promise(got, a, b, bound).all()
    if product != "fp32":
        assert_same_bits(got, hg.matmul(a, b, scheme=hg.Corrected(product), engine=engine))


def test_largest_entries_do_not_overflow(engine, assert_same_bits):
    """Entries up to 3e38 in rows and columns whose products are representable."""
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((64, 100), (100, 64)))
    a *= np.float32(3e38)
    b *= np.float32(1e-38)
    for product in ("fp16", "tf32"):
        got = hg.matmul(*on_gpu(a, b), scheme=hg.Corrected(product)).cpu().numpy()
        assert np.isfinite(got).all()
        assert_same_bits(got, hg.matmul(a, b, scheme=hg.Corrected(product), engine=engine))
