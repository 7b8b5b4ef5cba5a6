"""INT8 products of residues equal the integer products of NumPy modulo p."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.products import residue_gemm as module
from hifigemm.kernels.products.int8_product import K_BLOCK
from hifigemm.kernels.products.residue_gemm import (
    constants_of,
    residue_constants,
    residue_gemm,
)
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    ProductShape,
    gpu_of,
    integer_unit,
    tile_for,
)
from hifigemm.numerics.residues import complex_moduli, real_moduli
from tests.kernels.residue_products import (
    DEVICE,
    FP16,
    HAS_GPU,
    HOPPER,
    TILES,
    check,
    empty_products,
    product,
    random_residues,
)

residue_gemm = partial(run_recorded, residue_gemm)

MODULI = sorted({*real_moduli(), *complex_moduli()})
EXTREME = next(tile for tile in TILES if (tile.block_m, tile.block_n) == (32, 32))
PLAIN = [tile for tile in TILES if tile.kernel == "triton"]


@pytest.mark.parametrize("p", MODULI)
def test_constants_reduce_every_accumulator(p):
    """The fused multiply-add on integers: f and inv have 24 bits, the sum stays below
    2**63.
    """
    word, added, inverse_bits, addend_bits, minus_p, _, _, _ = constants_of(p)
    c = np.array([word], "<i4").view(np.int8).astype(np.int64)
    assert all((c[j] - 2 ** (8 * j)) % p == 0 for j in range(4))
    base = struct.unpack("i", struct.pack("f", 2.0**23))[0]
    reach = 255 * np.abs(c).sum()
    sums = np.arange(-reach, reach + 1)
    f = added - base + sums + 2**23
    assert f.min() >= 2**23
    assert f.max() < 2**24
    inverse, addend = (
        struct.unpack("f", struct.pack("i", bits))[0]
        for bits in (inverse_bits, addend_bits)
    )
    mantissa, shift = int(inverse * 2.0**40), 40
    while mantissa % 2 == 0:
        mantissa, shift = mantissa // 2, shift - 1
    assert mantissa * 2.0**-shift == inverse
    exact = f * mantissa + (int(addend) << shift)
    g = exact >> shift
    rest, half = exact - (g << shift), (1 << shift) >> 1
    g += (rest > half) | ((rest == half) & (g & 1 == 1) & (half > 0))
    assert g.min() >= 2**23
    assert g.max() < 2**24
    low = ((base + f - 2**23) + (base + g - 2**23) * minus_p) & 255
    residue = low - 256 * (low > 127)
    assert not ((residue - (sums - 2**31)) % p).any()


@pytest.mark.parametrize("p", MODULI)
def test_portable_reduction_is_exact(p):
    """Every t = h c + l, with and without contraction of the multiply-add: the rounded
    quotient gives an INT8.
    """
    constants = constants_of(p)
    inverse = np.array([constants[2]], np.int32).view(np.float32)[0]
    c = constants[5]
    assert (c - 2**16) % p == 0
    reach = 2**15 * (abs(c) + 1)
    t = np.arange(-reach, reach + 1, dtype=np.int32)
    for q in (
        np.rint(t.astype(np.float32) * inverse),
        np.rint(t.astype(np.float64) * np.float64(inverse)),
    ):
        r = t - q.astype(np.int32) * p
        wrapped = r.astype(np.int8).astype(np.int32)
        assert not ((wrapped - t) % p).any()


def test_constants_are_made_once():
    assert residue_constants((256, 255), DEVICE) is residue_constants(
        (256, 255), DEVICE
    )


SHAPES = [
    (1, 1, 1),
    (1, 17, 16),
    (33, 45, 100),
    (128, 256, 128),
    (129, 257, 130),
    (7, 300, 31),
    (200, 3, 257),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_are_right_modulo_p(m, n, k):
    rng = np.random.default_rng([m, n, k])
    moduli = real_moduli()[:3]
    left, right = random_residues(rng, 1, 3, m, k), random_residues(rng, 1, 3, n, k)
    check(left, right, moduli, empty_products(1, 3, m, n), m, n)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 90, 200), (130, 20, 256)])
def test_bits_do_not_depend_on_tiles(tile, m, n, k):
    rng = np.random.default_rng([m, n, k])
    moduli = (256, 253)
    left, right = random_residues(rng, 1, 2, m, k), random_residues(rng, 1, 2, n, k)
    check(left, right, moduli, empty_products(1, 2, m, n), m, n, config=tile)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("m", [3, 300])
def test_triangles_are_right_on_and_below_the_diagonal(tile, m):
    """Beyond the squares on the diagonal nothing is written."""
    rng = np.random.default_rng(m)
    rows = random_residues(rng, 2, 2, m, 40)
    out = empty_products(2, 2, m, m)
    residue_gemm(
        rows,
        rows,
        residue_constants((256, 253), DEVICE),
        out,
        config=tile,
        triangle=True,
    )
    found = out[:, :, :m, :m].cpu().numpy().astype(np.int64)
    assert not np.tril(
        (found - product(rows, rows)) % np.array([256, 253])[:, None, None]
    ).any()
    square = np.arange(m) // max(tile.block_m, tile.block_n)
    assert (found[:, :, square[:, None] < square[None, :]] == 77).all()


@pytest.mark.parametrize(
    ("left_batch", "right_batch"), [(1, 3), (3, 1), (3, 3), (1, 1)]
)
def test_batches_are_broadcast(left_batch, right_batch):
    rng = np.random.default_rng(left_batch)
    left = random_residues(rng, left_batch, 2, 20, 40)
    right = random_residues(rng, right_batch, 2, 30, 40)
    check(
        left,
        right,
        (255, 29),
        empty_products(max(left_batch, right_batch), 2, 20, 30),
        20,
        30,
    )


@pytest.mark.parametrize("kernels", [KERNELS, ("triton",)])
def test_strided_views_are_operands(kernels):
    plain = kernels == ("triton",)
    rng = np.random.default_rng(5)
    left = random_residues(rng, 4, 5, 60, 112)[1:3, 1::2, 7:40]
    right = random_residues(rng, 1, 5, 50, 112)[:, :2, 3:]
    tile = tile_for(ProductShape(33, 47, 112, 4), gpu_of(DEVICE), kernels)
    whole = torch.full((4, 3, 128, 256), 77, dtype=torch.int8, device=DEVICE)
    check(
        left,
        right,
        (251, 256),
        whole[1:3, :2] if plain else whole[1:3, :2].contiguous(),
        33,
        47,
        config=tile,
    )
    if plain:
        assert (whole[0] == 77).all()
        assert (whole[:, 2] == 77).all()


@pytest.mark.parametrize("tile", [PLAIN[0], *HOPPER], ids=str)
@pytest.mark.parametrize("k_block", [16, 48, 128])
def test_blocks_of_k_are_added(tile, k_block):
    rng = np.random.default_rng(k_block)
    left = random_residues(rng, 2, 2, 40, 300)
    right = random_residues(rng, 1, 2, 20, 300)
    check(
        left,
        right,
        (256, 199),
        empty_products(2, 2, 40, 20),
        40,
        20,
        k_block=k_block,
        config=tile,
    )


@pytest.mark.parametrize("tile", [PLAIN[0], *HOPPER], ids=str)
@pytest.mark.parametrize(("spans", "k_block"), [(2, 1024), (3, 128), (9, 1024)])
def test_spans_of_k_change_no_value(tile, spans, k_block):
    """Of 300 terms or 1001, which no number of spans divides; some of 9 are empty. With
    the shorter blocks, residues of earlier blocks are added to each span.
    """
    rng = np.random.default_rng([spans, k_block])
    for left_batch, right_batch, m, n, k in ((1, 2, 40, 20, 300), (2, 1, 5, 70, 1001)):
        left = random_residues(rng, left_batch + 1, 3, m, k)[1:, ::2]
        right = random_residues(rng, right_batch, 2, n + 3, k)[:, :, 3:]
        check(
            left,
            right,
            (256, 199),
            empty_products(2, 2, m, n),
            m,
            n,
            k_block=k_block,
            config=tile,
            spans=spans,
        )


@pytest.mark.parametrize("rows", [9, 128])
def test_long_sums_of_few_entries_are_cut_into_spans(monkeypatch, rows):
    """No number is given: k is cut where that is quicker, unless the residues of the
    spans take much memory beside those of the operands.
    """
    cuts, own = [], module._launch_sums

    def launch_sums(residues, out, constants, product):
        cuts.append(product.spans)
        own(residues, out, constants, product)

    monkeypatch.setattr(module, "_launch_sums", launch_sums)
    rng = np.random.default_rng(8)
    left = random_residues(rng, 1, 1, 9, 9001, extreme=True)
    right = random_residues(rng, 1, 1, 7, 9001)
    out = torch.full((1, 1, rows, 2 * rows // 16 * 16), 77, dtype=torch.int8)
    check(left, right, (255,), out.to(DEVICE), 9, 7)
    assert len(cuts) == (rows == 9)
    assert all(spans > 1 for spans in cuts)


@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_extreme_accumulators_are_reduced(sign):
    """Accumulators at the limit of K_BLOCK, k (-128)**2 = 2145386496, then a second
    block that adds their residues.
    """
    moduli = tuple(MODULI) if HAS_GPU else (256, 255)
    left = torch.full(
        (1, len(moduli), 1, K_BLOCK + 16), -128, dtype=torch.int8, device=DEVICE
    )
    right = left if sign == 1 else -1 - left
    check(
        left, right, moduli, empty_products(1, len(moduli), 1, 1), 1, 1, config=EXTREME
    )


@pytest.mark.parametrize("k", [1024, 1040, 2049, 4111])
@pytest.mark.parametrize("value", [-128, 127])
def test_sums_of_fp16_are_exact_at_their_limit(k, value):
    """1024 products of 128 and 128 make 2**24; the next ones begin a sum of their own."""
    moduli = (256, 251)
    left = torch.zeros((1, 2, 3, -(-k // 16) * 16), dtype=torch.int8, device=DEVICE)
    left[..., :k] = value
    left[0, 0, 1, :k:2] += 1 if value < 0 else -1
    right = left if k % 2 else left.flip(2)
    check(left, right, moduli, empty_products(1, 2, 3, 3), 3, 3, config=FP16[-1])


def test_units_are_those_that_are_quick():
    capabilities = (8, 0), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0)
    units = {capability: integer_unit(capability) for capability in capabilities}
    assert [x for x, unit in units.items() if unit == "fp16"] == [(10, 3), (11, 0)]


@pytest.mark.parametrize("spans", [1, 2])
@pytest.mark.parametrize("tile", [PLAIN[0], *HOPPER], ids=str)
@pytest.mark.parametrize(
    ("number", "least", "most"),
    [
        (5, 5, 5),
        (4, 5, 9),
        (10, 5, 9),
        (-(2**62), -(2**63), 0),
        (2**62, 2**61, 2**63 - 1),
        (2**61 - 1, 2**61, 2**62),
    ],
)
def test_a_predicate_decides_on_the_device(tile, spans, number, least, most):
    rng = np.random.default_rng(9)
    left = random_residues(rng, 1, 2, 40, 300)
    right = random_residues(rng, 1, 2, 20, 300)
    out, predicate = empty_products(1, 2, 40, 20), torch.tensor([number], device=DEVICE)
    residue_gemm(
        left,
        right,
        residue_constants((256, 199), DEVICE),
        out,
        k_block=128,
        config=tile,
        spans=spans,
        predicate=Predicate(predicate, least, most),
    )
    if least <= number <= most:
        check(
            left,
            right,
            (256, 199),
            want := empty_products(1, 2, 40, 20),
            40,
            20,
            k_block=128,
            config=tile,
        )
        assert torch.equal(out[:, :, :40, :20], want[:, :, :40, :20])
    else:
        assert (out == 77).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 32), (5, 0, 32), (5, 6, 0)])
def test_empty_products(m, n, k):
    left = torch.zeros((1, 2, m, k), dtype=torch.int8, device=DEVICE)
    right = torch.zeros((1, 2, n, k), dtype=torch.int8, device=DEVICE)
    out = empty_products(1, 2, m, n)
    residue_gemm(left, right, residue_constants((256, 255), DEVICE), out)
    assert not out[:, :, :m, :n].any()


def test_what_does_not_fit_is_refused():
    table = residue_constants((256, 255), DEVICE)
    x = torch.zeros((1, 2, 8, 32), dtype=torch.int8, device=DEVICE)
    out = empty_products(1, 2, 8, 8)
    for k_block in (0, 8, K_BLOCK + 16):
        with pytest.raises(ValueError, match=f"k_block = {k_block} "):
            residue_gemm(x, x, table, out, k_block=k_block)
    with pytest.raises(ValueError, match="do not match"):
        residue_gemm(x, x[..., :16], table, out)
    with pytest.raises(ValueError, match="do not match"):
        residue_gemm(x, x, table[:1], out)
    with pytest.raises(ValueError, match="multiples of 16"):
        residue_gemm(x[..., :24], x[..., :24], table, out)
    with pytest.raises(ValueError, match="must be int8"):
        residue_gemm(x.int(), x, table, out)
    with pytest.raises(ValueError, match="need contiguous planes"):
        residue_gemm(x, x, table, empty_products(1, 3, 8, 8)[:, ::2], spans=2)


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("tile", TILES if HAS_GPU else [], ids=str)
    @pytest.mark.parametrize(("m", "n", "k"), [(1000, 1100, 1040), (129, 513, 4096)])
    def test_large_products(self, tile, m, n, k):
        rng = np.random.default_rng([m, n, k])
        moduli = real_moduli()[:14]
        left = random_residues(rng, 1, 14, m, k)
        right = random_residues(rng, 1, 14, n, k)
        check(left, right, moduli, empty_products(1, 14, m, n), m, n, config=tile)

    def test_streams_and_graph_captures(self):
        rng = np.random.default_rng(6)
        left = random_residues(rng, 1, 3, 512, 512)
        right = random_residues(rng, 1, 3, 512, 512)
        moduli, out = real_moduli()[:3], empty_products(1, 3, 512, 512)
        table = residue_constants(moduli, DEVICE)
        for tile in TILES:
            residue_gemm(left, right, table, out, config=tile)
            expected = out.clone()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                out.zero_()
                residue_gemm(left, right, table, out, config=tile)
            torch.cuda.current_stream().wait_stream(stream)
            assert torch.equal(out, expected)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                residue_gemm(left, right, table, out, config=tile)
            out.zero_()
            graph.replay()
            assert torch.equal(out, expected)


def test_compiled_products_of_residues(arch, compiled):
    for line in compiled("residues"):
        # On sm_100 one tile of slices stores a word, and loads it once.
        assert line["spills"] <= (
            2 if arch == 100 and "64x128x128" in line["case"] else 0
        ), line
        # Three waits for each of three widths in each of two consumers; more would mean
        # that wgmma is serialised.
        assert line["WARPGROUP.DEPBAR"] <= 18, line
        assert line["unguarded arrivals"] == 0, line
