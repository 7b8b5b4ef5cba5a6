"""Looks at large and hostile operands on a GPU: every kernel finds the float64 of the
plain maths.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hifigemm.base import store  # noqa: E402
from hifigemm.engines import engine_for  # noqa: E402
from hifigemm.kernels.products import error_ratio  # noqa: E402
from hifigemm.kernels.products.error_ratio import RATIO_UNIT, error_ratio_bits  # noqa: E402
from hifigemm.kernels.runtime.recording import run_recorded  # noqa: E402
from hifigemm.kernels.runtime.tiles import gpu_of, valid_tiles  # noqa: E402
from hifigemm.kernels.vectors import scaled_residues  # noqa: E402
from hifigemm.kernels.vectors.scaled_residues import Sizes  # noqa: E402
from hifigemm.numerics.error_ratio import error_ratio as plain_ratio  # noqa: E402
from hifigemm.numerics.residues import moduli_set  # noqa: E402
from hifigemm.schemes.scheme import int8_product  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
TILES = (
    [t for t in valid_tiles(gpu_of(DEVICE)) if t.kernel == "hopper"]
    if torch.cuda.is_available()
    else []
)
KERNELS = ["as chosen", "plain", *map(str, TILES)]


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    """Every kernel and tile in turn, whatever the shape."""
    store.forget()
    if request.param == "plain":
        monkeypatch.setattr(error_ratio, "hopper_module", lambda *_: None)
    elif request.param != "as chosen":
        (tile,) = (t for t in TILES if str(t) == request.param)
        monkeypatch.setattr(error_ratio, "tile_for", lambda *_, **__: tile)


def found(sizes, *few):
    bits = run_recorded(error_ratio_bits, sizes, *few)
    return float(bits.view(torch.float64)) * RATIO_UNIT


def by_hand(m, n, k, *, width=1, batches=(1, 1), seed=0, top=128, spread=0.3):
    """Sizes that no operands need to have, so that magnitudes and norms are as hostile
    as wanted.
    """
    made = torch.Generator(DEVICE).manual_seed(seed)
    pitch = -(-k // 128) * 128
    rows = []
    for batch, count in zip(batches, (m, n), strict=True):
        x = torch.randint(
            0,
            top,
            (batch, count, width, pitch),
            dtype=torch.int8,
            device=DEVICE,
            generator=made,
        )
        x[..., k:] = 0
        rows.append(x.flatten(2))
    total = batches[0] * m + batches[1] * n
    norms = (
        torch.rand((2, total), dtype=torch.float64, device=DEVICE, generator=made)
        * spread
        + 1.0
    )
    norms *= torch.tensor([[2.0**20], [2.0**25]], dtype=torch.float64, device=DEVICE)
    return Sizes(None, norms, tuple(rows), width)


def expected(sizes, m, n, terms=error_ratio.MAGNITUDE_TERMS):
    """The largest ratio, from products in float64, which are exact."""
    (left, right), width = sizes.magnitudes, sizes.width
    norms = [x.split([left.shape[0] * m, right.shape[0] * n]) for x in sizes.norms]
    (g, h), (s, t) = (
        (x.view(left.shape[0], m, 1), y.view(right.shape[0], 1, n)) for x, y in norms
    )
    above = g * t + h * s
    worst = 0.0
    a, b = (x.double().unflatten(2, (width, -1))[..., :terms] for x in (left, right))
    for order in (b, b.flip(2))[:width]:
        low = sum(a[:, :, i] @ order[:, :, i].mT for i in range(width))
        ratio = torch.where(above == 0, 0.0, above / low)
        worst = max(worst, float(ratio.max()))
    return worst * RATIO_UNIT


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("m", "n", "k", "batches"),
    [
        (1, 1, 1, (1, 1)),
        (1, 3000, 200, (1, 1)),
        (2900, 1, 130, (1, 1)),
        (64, 256, 128, (2, 1)),
        (65, 257, 129, (1, 3)),
        (1000, 1100, 1040, (2, 2)),
        (4095, 4097, 700, (1, 1)),
    ],
)
def test_ratios_of_random_sizes(kernel, width, m, n, k, batches):
    for seed, top in ((1, 128), (2, 2)):
        sizes = by_hand(m, n, k, width=width, batches=batches, seed=seed, top=top)
        assert found(sizes) == expected(sizes, m, n)


@pytest.mark.parametrize("width", [1, 2])
def test_ratios_of_few_terms(kernel, width):
    m, n, k = 700, 900, 1100
    sizes = by_hand(m, n, k, width=width)
    few, every = expected(sizes, m, n, 384), found(sizes)
    bits, own = (int(np.float64(x / RATIO_UNIT).view(np.int64)) for x in (few, every))
    clear = 2**33  # bits between numbers that FP32 tells apart
    assert own + clear < bits - clear
    assert [
        found(sizes, 384, enough)
        for enough in (bits, bits - clear, own + clear, 2**63 - 2)
    ] == [0.0] * 4
    assert [found(sizes, None, enough) for enough in (own + clear, 2**63 - 2)] == [
        0.0
    ] * 2
    assert [
        found(sizes, terms, enough)
        for terms in (None, 384)
        for enough in (own - 1, 0, -1)
    ] == [every] * 6
    assert found(sizes, 4096, -1) == every


@pytest.mark.parametrize("width", [1, 2])
def test_zeros_and_sums_without_terms(kernel, width):
    m, n, k = 700, 900, 512
    sizes = by_hand(m, n, k, width=width)
    sizes.norms[:, 3], sizes.norms[:, m + 5] = 0, 0
    sizes.magnitudes[0][:, 3], sizes.magnitudes[1][:, 5] = 0, 0
    assert found(sizes) == expected(sizes, m, n) < np.inf
    sizes.magnitudes[0][:, 699] = 0
    assert found(sizes) == np.inf
    sizes.norms[:] = 0
    assert found(sizes) == 0.0


@pytest.mark.parametrize("width", [1, 2])
def test_ratios_that_differ_in_the_last_bits(kernel, width):
    """All entries of FP32 are alike; only float64 tells the largest."""
    m, n, k = 1500, 1300, 256
    sizes = by_hand(m, n, k, width=width, spread=2.0**-50)
    for x in sizes.magnitudes:
        x[:] = 101
    assert found(sizes) == expected(sizes, m, n)


@pytest.mark.parametrize("width", [1, 2])
def test_sums_of_all_terms_that_count(kernel, width):
    """127**2 times 2**17 terms of two components exceed 2**31; terms beyond do not
    count.
    """
    m, n, k = 70, 300, 2**17 + 1000
    sizes = by_hand(m, n, k, width=width)
    for x in sizes.magnitudes:
        x.view(1, -1, width, x.shape[2] // width)[..., :k] = 127
    assert found(sizes) == expected(sizes, m, n)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 5000, 300), (257, 1000, 1), (300, 1100, 515)]
)
@pytest.mark.parametrize("batches", [(1, 1), (2, 1)])
def test_ratios_of_operands_with_special_values(kernel, m, k, n, batches):
    rng = np.random.default_rng([m, k, n])
    a = rng.standard_normal((batches[0], m, k)) * 2.0 ** rng.integers(
        -4, 5, (batches[0], m, k)
    )
    b = rng.standard_normal((batches[1], k, n))
    a[:, m // 2, 3] = 2.0**700
    if min(m, n) > 1:
        a[:, 1], b[:, :, 2], a[0, 0, 7], b[0, 9, n - 1] = 0, 0, np.inf, np.nan
    operands = tuple(
        (torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))
    )
    residues = scaled_residues.sized_residues
    *_, sizes = run_recorded(residues, operands, moduli_set(15, False))
    assert found(sizes) == plain_ratio(
        a, b, int8_product(engine_for("numpy")), 16384, 10**6
    )


def test_looks_are_captured_in_graphs():
    sizes = by_hand(1000, 1200, 640)
    want = found(sizes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bits = run_recorded(error_ratio_bits, sizes)
    graph.replay()
    assert float(bits.view(torch.float64)) * RATIO_UNIT == want
