"""The choice of tiles: it fits the GPU and covers the product."""

from __future__ import annotations

import pytest

from hifigemm.kernels.runtime import tiles
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    Gpu,
    ProductShape,
    Tile,
    span_length,
    spans_for,
    summary,
    tile_for,
    valid_tiles,
)

GPUS = {
    "h200": Gpu("H200", (9, 0), 132, 232448, 233472),
    "a100": Gpu("A100", (8, 0), 108, 166912, 167936),
    "4090": Gpu("RTX 4090", (8, 9), 128, 101376, 102400),
    "b200": Gpu("B200", (10, 0), 148, 232448, 233472),
    "5090": Gpu("RTX 5090", (12, 0), 170, 101376, 102400),
    "t4": Gpu("T4", (7, 5), 40, 65536, 65536),
    "amd": Gpu("MI300X", (0, 0), 304, 65536, 65536),
}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("kernels", [KERNELS, ("triton",)])
def test_every_tile_offered_fits_the_gpu(gpu, kernels):
    found = valid_tiles(gpu, kernels)
    for tile in found:
        assert tile.shared <= gpu.shared_per_block
    assert {tile.kernel for tile in found} == (
        {*kernels} if gpu.capability == (9, 0) else {"triton"}
    )


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (64, 4096, 512, 14), (4096, 4096, 4096, 14), (100000, 3, 77, 2)],
)
def test_the_grid_holds_no_idle_program(gpu, shape):
    shape = ProductShape(*shape)
    tile = tile_for(shape, gpu)
    count = -(-shape.m // tile.block_m) * -(-shape.n // tile.block_n) * shape.planes
    assert 1 <= tiles.grid_size(tile, shape, gpu) <= count


def test_large_products_on_hopper_take_the_large_tile():
    for n in (4096, 8192, 16384):
        assert tile_for(ProductShape(n, n, n, 14), GPUS["h200"]) == Tile(
            "hopper", 128, 256, 128, 4, 4
        )


def test_without_gluon_large_products_take_the_plain_kernel():
    for n in (4096, 8192, 16384):
        assert tile_for(ProductShape(n, n, n, 14), GPUS["h200"], ("triton",)) == Tile(
            "triton", 128, 128, 128, 3, 8
        )


def test_small_edges_take_small_tiles():
    for gpu in GPUS.values():
        assert tile_for(ProductShape(8, 8, 4096, 1), gpu).block_m <= 32


def test_spans_are_whole_lines_that_cover_k():
    for k in (1, 127, 128, 300, 2**18, 2**18 + 1):
        for spans in (1, 2, 7, 32):
            length = span_length(k, spans)
            assert length % 128 == 0
            assert spans * length >= k
            # Each is as short as whole lines allow.
            assert spans * (length - 128) < k


@pytest.mark.parametrize(("planes", "waves"), [(14, 2.97), (22, 1.0)])
def test_long_sums_of_few_entries_are_cut(planes, waves):
    """The large tiles of all spans fill nearly all SMs in every round."""
    gpu = GPUS["h200"]
    shape = ProductShape(256, 256, 2**18, planes)
    tile, spans = spans_for(shape, gpu)
    assert (tile.block_m, tile.block_n) == (128, 256)
    assert 2 * planes * spans / gpu.num_sms == pytest.approx(waves, abs=0.01)
    for most in (0, 1, 2):
        assert spans_for(shape, gpu, most=most)[1] <= max(most, 1)


def test_other_products_are_not_cut():
    """Not for the large ones, whose tiles are many, nor for small ones, which end
    before a second launch begins.
    """
    for m in (512, 1024, 2048):
        shape = ProductShape(m, m, 2**16, 14)
        assert spans_for(shape, GPUS["h200"]) == (tile_for(shape, GPUS["h200"]), 1)
    for gpu in GPUS.values():
        for n in (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384):
            shape = ProductShape(n, n, n, 14)
            assert spans_for(shape, gpu) == (tile_for(shape, gpu), 1)


def test_a_tile_prints_itself():
    assert (
        str(Tile("triton", 64, 32, 128, 3, 4))
        == "triton 64x32x128, 3 stages, 4 warps, groups of 8"
    )


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_every_family_has_a_tile_for_large_products(gpu):
    found = dict(line.split(": ") for line in summary(gpu))
    assert list(found) == list(tiles.TILES)
    assert all(text.startswith(("hopper ", "triton ")) for text in found.values())


def test_blocks_of_k_end_where_spans_and_slices_begin():
    gpu = GPUS["a100"]
    assert tiles.fits(Tile("triton", 32, 32, 128, 3, 4), gpu)
    assert not tiles.fits(Tile("triton", 32, 32, 256, 3, 4), gpu)
    assert not tiles.fits(Tile("triton", 32, 32, 96, 3, 4), gpu)
