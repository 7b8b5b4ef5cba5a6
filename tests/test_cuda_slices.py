"""Ozaki scheme I by slices on a GPU: the bits of the CPU, in a few launches."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from tests.conftest import PAIRS, SINGLES, on_gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def device_product(scheme, *arrays, **options):
    return hg.matmul(*on_gpu(*arrays), scheme=scheme, **options).cpu().numpy()


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_those_of_the_cpu(dtype, family, make_pair, assert_same_bits):
    for m, k, n in ((130, 300, 140), (70, 129, 5), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        for count in (1, 2, 3, 4, 7, 9):
            scheme = hg.Ozaki1(num_slices=count)
            assert_same_bits(
                device_product(scheme, a, b),
                hg.matmul(a, b, scheme=scheme, engine="numpy"),
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [3, 7])
def test_bits_do_not_depend_on_tiles(count, dtype, make_pair):
    from hifigemm.kernels.products.slice_product import slice_product
    from hifigemm.kernels.runtime.recording import run_recorded
    from hifigemm.kernels.runtime.tiles import gpu_of, valid_tiles
    from hifigemm.kernels.vectors.slices import slice_operands

    x, y = on_gpu(*(v[None] for v in make_pair("phi_2", 500, 700, 420, dtype)))
    made = run_recorded(slice_operands, ((x, 2), (y, 1)), count, 8)
    found = []
    for tile in valid_tiles(gpu_of(x.device)):
        for layout in ("rows", "columns"):
            out = torch.full((1, 500, 420), torch.nan, dtype=x.dtype, device="cuda")
            out = (
                out
                if layout == "rows"
                else out.transpose(1, 2).contiguous().transpose(1, 2)
            )
            options = {"operands": (x, y), "config": tile}
            run_recorded(slice_product, *made, out, 700, **options)
            found.append(out)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_products_are_those_of_the_steps(dtype):
    """Entries far beyond a tile, k beyond the accumulator of diagonals side by side;
    judged plans go step by step.
    """
    rng = np.random.default_rng(1)
    for m, k, n in ((700, 5000, 900), (40, 50000, 60), (30, 150000, 20)):
        x, y = on_gpu(
            rng.standard_normal((m, k)).astype(dtype),
            rng.standard_normal((k, n)).astype(dtype),
        )
        for count in (3, 7):
            scheme = hg.Ozaki1(num_slices=count)
            want, _ = hg.matmul(x, y, scheme=scheme, return_report=True)
            assert torch.equal(hg.matmul(x, y, scheme=scheme), want)


def test_all_slices_at_their_limit(assert_same_bits):
    """Digits of -128 as far as k = 131071."""
    a = np.full((2, 2**17 - 1), -sum(128 * 256.0**-p for p in range(7)))
    for count in (1, 2, 3, 7):
        scheme = hg.Ozaki1(num_slices=count)
        assert_same_bits(
            device_product(scheme, a, a.T),
            hg.matmul(a, a.T, scheme=scheme, engine="numpy"),
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_strides_stacks_and_epilogues(
    dtype, make_pair, assert_same_bits
):
    a, b = (
        np.stack([x * dtype(2.0**e) for e in range(4)])
        for x in make_pair("phi_1", 133, 150, 160, dtype)
    )
    a[0, 0, 0], a[1, -1, 1], b[2, 0, 1], b[3, 7, 150] = np.inf, np.nan, -np.inf, np.inf
    c = make_pair("phi_2", 133, 150, 160, dtype)[1][:133].copy()
    x, y, z = on_gpu(a, b, c)
    for count in (3, 7):
        scheme = hg.Ozaki1(num_slices=count)
        for cut in (
            lambda t: t,
            lambda t: t[:, ::2, ::2],
            lambda t: t[1],
            lambda t: t[:1, :133, :133],
        ):
            want = hg.matmul(
                cut(a)[..., :70], cut(b)[..., :70, :], scheme=scheme, engine="numpy"
            )
            got = (
                hg.matmul(cut(x)[..., :70], cut(y)[..., :70, :], scheme=scheme)
                .cpu()
                .numpy()
            )
            np.testing.assert_array_equal(got, want)
            assert_same_bits(np.nan_to_num(got), np.nan_to_num(want))
        for alpha, beta in (
            (2.0, 0.0),
            (-0.3, 0.0),
            (1.0, 1.0),
            (-4.0, 0.7),
            (2.0**-1040, 0.0),
            (2.0**900, 0.0),
        ):
            want = hg.gemm(
                a, b, c, alpha=alpha, beta=beta, scheme=scheme, engine="numpy"
            )
            got = hg.gemm(x, y, z, alpha=alpha, beta=beta, scheme=scheme).cpu().numpy()
            np.testing.assert_array_equal(got, want)


def test_products_are_captured_repeated_and_cut(make_pair):
    x, y = on_gpu(*make_pair("phi_1", 300, 260, 200))
    scheme = hg.Ozaki1(num_slices=7)
    want = hg.matmul(x, y, scheme=scheme)
    for _ in range(3):
        assert torch.equal(hg.matmul(x, y, scheme=scheme), want)
    assert torch.equal(hg.matmul(x, y, scheme=scheme, workspace=2**21), want)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = hg.matmul(x, y, scheme=scheme)
    x.normal_()
    graph.replay()
    assert torch.equal(c, hg.matmul(x, y, scheme=scheme))


def test_counts_that_rest_on_data_are_not_repeated_for_other_data(make_pair):
    scheme = hg.Ozaki1(mode="dp")
    for name in ("integers", "phi_1", "phi_8"):
        a, b = make_pair(name, 60, 50, 40)
        for _ in range(3):
            got = device_product(scheme, a, b)
        assert np.array_equal(got, hg.matmul(a, b, scheme=scheme, engine="numpy"))


@pytest.mark.parametrize("family", [*SINGLES, *PAIRS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slices_in_floating_point_have_the_bits_of_the_cpu(
    dtype, family, make_pair, assert_same_bits
):
    for m, k, n in ((130, 300, 140), (70, 1129, 5), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        for scheme in (
            hg.Ozaki1(product="fp16", num_slices=2),
            hg.Ozaki1(product="fp16", num_slices=7),
            hg.Ozaki1(product="bf16", num_slices=5),
            hg.Ozaki1(product="fp64", num_slices=2),
            hg.Ozaki1(product="fp16", mode="sp"),
            hg.Ozaki1(product="bf16", mode="sp"),
        ):
            assert_same_bits(
                device_product(scheme, a, b),
                hg.matmul(a, b, scheme=scheme, engine="numpy"),
            )


@pytest.mark.parametrize("product", ["int8", "fp16", "bf16", "fp64"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_correct_rounding_has_the_bits_of_the_cpu(
    dtype, product, make_pair, assert_same_bits
):
    scheme = hg.Ozaki1(product=product, mode="correct")
    for family in ("phi_1", "phi_4", "ties", "subnormal", "cancelling", "integers"):
        for m, k, n in ((130, 300, 140), (70, 1129, 5), (1, 1, 1)):
            a, b = make_pair(family, m, k, n, dtype)
            want = hg.matmul(a, b, scheme=scheme, engine="numpy")
            assert_same_bits(device_product(scheme, a, b), want)
