"""Complex CUDA tensors: the bits of the NumPy engine from fused residues, in every way
in.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from tests.conftest import PAIRS, SINGLES, on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAST = {
    count: hg.Ozaki2(num_moduli=count, scaling="fast")
    for count in (2, 8, 14, 15, 16, 18, 20, 22, 28, 49)
}
DTYPES = ["complex64", "complex128"]
SHAPES = (5, 300, 7), (130, 65, 257), (1, 1, 1)


def host(x):
    return x.resolve_conj().cpu().numpy()


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", [FAST[c] for c in (2, 14, 15, 22)], ids=str)
def test_fused_residues_give_the_bits_of_numpy(
    make_pair, assert_same_bits, family, dtype, scheme
):
    for m, k, n in SHAPES:
        a, b = make_pair(family, m, k, n, dtype)
        assert_same_bits(
            host(hg.matmul(*on_gpu(a, b), scheme=scheme)),
            hg.matmul(a, b, scheme=scheme),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", FAST.values(), ids=str)
def test_long_inner_dimensions_and_every_count(
    make_pair, assert_same_bits, dtype, scheme
):
    a, b = make_pair("phi_1", 20, 3000, 130, dtype)
    assert_same_bits(
        host(hg.matmul(*on_gpu(a, b), scheme=scheme)), hg.matmul(a, b, scheme=scheme)
    )


@pytest.mark.parametrize(
    "family", ["uniform", "phi_1", "phi_4", "span_60", "badly_scaled", "sparse"]
)
@pytest.mark.parametrize("accuracy", ["fp64", 1e-10, 1e-18])
def test_promises_are_kept_with_the_bits_of_the_count_that_was_taken(
    make_pair, assert_same_bits, family, accuracy
):
    a, b = make_pair(family, 40, 300, 50, "complex128")
    scheme = hg.Ozaki2(scaling="fast")
    found, report = hg.matmul(
        *on_gpu(a, b), scheme=scheme, accuracy=accuracy, return_report=True
    )
    found, exact = host(found), hg.matmul(a, b, accuracy="correct")
    re = np.abs(a.real) @ np.abs(b.real) + np.abs(a.imag) @ np.abs(b.imag)
    im = np.abs(a.real) @ np.abs(b.imag) + np.abs(a.imag) @ np.abs(b.real)
    for error, value, size in (
        ((found - exact).real, exact.real, re),
        ((found - exact).imag, exact.imag, im),
    ):
        assert (
            np.abs(error) <= 1.001 * (report.bound * size + 2.0**-52 * np.abs(value))
        ).all()
    if not report.native and "escalated" not in report.reason:
        assert_same_bits(found, hg.matmul(a, b, scheme=report.scheme))


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_rounding_is_that_of_numpy(make_pair, assert_same_bits, dtype):
    a, b = make_pair("phi_2", 30, 200, 40, dtype)
    found, report = hg.matmul(*on_gpu(a, b), accuracy="correct", return_report=True)
    assert report.correct
    assert_same_bits(host(found), hg.matmul(a, b, accuracy="correct"))


def test_auto_takes_residues_where_they_pay(assert_same_bits):
    n = 2048
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (
        torch.rand((n, n), dtype=torch.complex128, device="cuda", generator=generator)
        - 0.5
        for _ in range(2)
    )
    found, report = hg.matmul(a, b, return_report=True)
    if "H200" not in report.device and "H100" not in report.device:
        pytest.skip("the choice is that of the device")
    assert isinstance(report.scheme, hg.Ozaki2)
    for _ in range(2):
        assert_same_bits(host(hg.matmul(a, b)), host(found))
    rows = slice(0, 40)
    want = hg.matmul(
        host(a[rows]),
        host(b),
        scheme=hg.Ozaki2(num_moduli=report.scheme.num_moduli, scaling="fast"),
    )
    assert_same_bits(host(found[rows]), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", [FAST[8], FAST[15]], ids=str)
def test_special_values_are_those_of_numpy(make_pair, dtype, scheme):
    a, b = (x.copy() for x in make_pair("phi_1", 40, 30, 50, dtype))
    a[0, 0], a[3, 7], a[-1, 1] = (
        complex(np.inf, 0),
        complex(1, -np.inf),
        complex(np.nan, 1),
    )
    b[0, 1], b[2, 0], b[5, 49] = complex(2, -np.inf), 0, complex(0, np.nan)
    found = host(hg.matmul(*on_gpu(a, b), scheme=scheme))
    want = hg.matmul(a, b, scheme=scheme)
    real = found.real.dtype
    np.testing.assert_array_equal(found.view(real), want.view(real))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_stacks_conjugates_and_broadcasts(make_pair, assert_same_bits, dtype):
    scheme = FAST[14]
    a, b = (
        np.stack([x * np.float32(2.0) ** e for e in range(6)])
        for x in make_pair("phi_1", 33, 40, 35, dtype)
    )
    x, y = on_gpu(a, b)
    cases = (
        (
            lambda t: t[0].T,
            lambda t: t[1].T[:, :33] if t.shape[-1] == 33 else t[1][:33],
        ),
        (lambda t: t[0].conj(), lambda t: t[1]),
        (lambda t: t[0], lambda t: t[1].conj()),
        (
            lambda t: t.reshape(2, 3, *t.shape[1:])[:, :1],
            lambda t: t.reshape(2, 3, *t.shape[1:]),
        ),
        (lambda t: t[:, ::2, ::3], lambda t: t[0, ::3, 1::2]),
        (lambda t: t[0, 0], lambda t: t),
        (lambda t: t, lambda t: t[0, :, 0]),
        (lambda t: t[0].real, lambda t: t[0]),
    )
    for left, right in cases:
        want = hg.matmul(left(a), right(b), scheme=scheme)
        for _ in range(2):
            assert_same_bits(host(hg.matmul(left(x), right(y), scheme=scheme)), want)


@pytest.mark.parametrize(
    ("alpha", "beta"), [(2.0, 0.0), (-0.3, 0.0), (1.0, 1.0), (-4.0, 0.7), (0.0, 2.0)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_with_real_scalars_gives_the_bits_of_numpy(
    make_pair, assert_same_bits, alpha, beta, dtype
):
    a, b = make_pair("phi_1", 40, 30, 50, dtype)
    c = make_pair("phi_2", 40, 30, 50, dtype)[1][:1].copy()
    options = {"alpha": alpha, "beta": beta, "scheme": FAST[14]}
    want = hg.gemm(a, b, c, **options)
    assert_same_bits(host(hg.gemm(*on_gpu(a, b, c), **options)), want)
    want = hg.gemm(b, a, alpha=alpha, trans_a="C", trans_b="C", scheme=FAST[14])
    assert_same_bits(
        host(
            hg.gemm(
                *on_gpu(b, a), alpha=alpha, trans_a="C", trans_b="C", scheme=FAST[14]
            )
        ),
        want,
    )


def test_gemm_with_complex_scalars(make_pair):
    a, b = make_pair("phi_1", 40, 30, 50, "complex128")
    c = make_pair("phi_2", 40, 30, 50, "complex128")[1][:1].copy()
    for alpha, beta in ((1j, 0.0), (0.5 - 2j, 1.0), (1.0, 3j)):
        options = {"alpha": alpha, "beta": beta, "scheme": FAST[15]}
        want = hg.gemm(a, b, c, **options)
        np.testing.assert_allclose(
            host(hg.gemm(*on_gpu(a, b, c), **options)), want, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_filled_and_returned(make_pair, assert_same_bits, dtype):
    a, b = on_gpu(*make_pair("phi_1", 30, 40, 50, dtype))
    want = host(hg.matmul(a, b, scheme=FAST[14]))
    for out in (
        a.new_full((30, 50), torch.nan),
        a.new_full((50, 30), torch.nan).T,
        a.new_full((30, 100), torch.nan)[:, ::2],
    ):
        for _ in range(3):
            assert hg.matmul(a, b, scheme=FAST[14], out=out) is out
            assert_same_bits(host(out), want)
            out.fill_(torch.nan)


def test_prepared_operands_keep_their_parts(make_pair, assert_same_bits):
    a, b = (x.copy() for x in make_pair("phi_1", 60, 50, 40, "complex128"))
    a[0, 0], b[2, 1] = complex(1, np.inf), complex(np.nan, 0)
    x, y = on_gpu(a, b)
    plan = hg.make_plan(x, y, scheme=FAST[15])
    want = host(hg.matmul(x, y, plan=plan))
    left, right = hg.prepare(x, "left", plan=plan), hg.prepare(y, "right", plan=plan)
    assert left.split is not None
    for pair in ((left, y), (x, right), (left, right)):
        np.testing.assert_array_equal(
            host(hg.matmul(*pair)).view(float), want.view(float)
        )


def test_blocks_do_not_change_bits(make_pair, assert_same_bits):
    x, y = on_gpu(*make_pair("phi_2", 700, 300, 600, "complex128"))
    want = host(hg.matmul(x, y, scheme=FAST[15]))
    whole = hg.make_plan(x, y, scheme=FAST[15]).workspace
    for limit in (whole // 2, whole // 5):
        found, report = hg.matmul(
            x, y, scheme=FAST[15], workspace=limit, return_report=True
        )
        assert report.workspace <= limit
        assert_same_bits(host(found), want)


@pytest.mark.parametrize("shape", [(100, 70, 90), (300, 3000, 200)])
def test_a_captured_graph_follows_its_operands(make_pair, assert_same_bits, shape):
    a, b = on_gpu(*make_pair("phi_1", *shape, "complex128"))
    hg.matmul(a, b, scheme=FAST[15])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = hg.matmul(a, b, scheme=FAST[15])
    for seed in (1, 2):
        x, y = make_pair("phi_2", *shape, "complex128", seed=seed)
        a.copy_(torch.from_numpy(x))
        b.copy_(torch.from_numpy(y))
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(host(c), hg.matmul(x, y, scheme=FAST[15]))


def test_repeated_calls_follow_their_operands(make_pair, assert_same_bits):
    for seed in range(4):
        a, b = make_pair("phi_1", 100, 80, 60, "complex128", seed=seed)
        found = host(hg.matmul(*on_gpu(a, b), scheme=FAST[15]))
        assert_same_bits(found, hg.matmul(a, b, scheme=FAST[15]))
        x = on_gpu(a)[0]
        square = host(hg.matmul(x, x.mH.contiguous(), scheme=FAST[15]))
        assert_same_bits(square, hg.matmul(a, a.conj().T.copy(), scheme=FAST[15]))
