"""Corrected products on the device: the bits of the model of the tensor core, the
bound, any shape and stride.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base.formats import BF16, FP16, FP32, TF32
from hifigemm.engines import engine_for
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.products.word_gemm import BLOCKS, loaded_block, word_gemm
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    Gpu,
    ProductShape,
    candidates,
    fits,
    gpu_of,
    tile_for,
    valid_tiles,
)
from hifigemm.kernels.sums.rounded_sums import finish_entries
from hifigemm.kernels.vectors.words import k_pitch, split_words
from hifigemm.numerics.accumulation import add_outside, in_any_order
from hifigemm.numerics.bits import largest_exponent, scale_by_power
from hifigemm.numerics.tensor_core import A100, B200, H100, tensor_core_product
from hifigemm.numerics.word_bounds import relative_error
from hifigemm.numerics.words import Splitting
from hifigemm.schemes.corrected import BLOCK, Corrected
from hifigemm.schemes.multiword import Multiword

word_gemm = partial(run_recorded, word_gemm)
split_words = partial(run_recorded, split_words)

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
H200 = Gpu("NVIDIA H200", (9, 0), 132, 232448, 233472)
SPLITTINGS = {
    "fp16": Splitting(FP16, 2, "nearest", 11),
    "tf32": Splitting(TF32, 2, "nearest-away"),
}
TOPS = {"fp16": 16, "tf32": 50}
SUMS = {False: "blocked", True: "chained"}
INSTRUCTION = {"fp16": 16, "tf32": 8}
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)
HOSTILE = [
    "uniform",
    "phi_4",
    "full_range",
    "subnormal",
    "largest",
    "sparse",
    "nearly_cancelling",
    "underflowing",
]
HOSTILE += [
    "largest_times_smallest",
    "span_60",
    "opposed_spans",
    "badly_scaled",
    "subnormal_rows",
    "zeros",
]


def product(a, b, fmt, *, out=None, **options):
    """The product on the device for NumPy operands of three dimensions."""
    operands = [(torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))]
    left, right = split_words(operands, SPLITTINGS[fmt], TOPS[fmt])
    if out is None:
        out = torch.empty(
            (max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), device=DEVICE
        )
    word_gemm(left, right, out, **options)
    return out.cpu().numpy()


def simulated(a, b, fmt, block, model, *, chained=False, shift=0):
    """The same arithmetic with the model of a tensor core, from the words of NumPy."""
    splitting, k = SPLITTINGS[fmt], a.shape[2]
    units = [
        largest_exponent(x.astype(np.float64), axis) - TOPS[fmt]
        for x, axis in ((a, 2), (b, 1))
    ]
    (a_hi, a_lo), (b_hi, b_lo) = (
        splitting.split(scale_by_power(x.astype(np.float64), -unit))[0]
        for x, unit in zip((a, b), units)
    )
    unit = partial(tensor_core_product, fmt=splitting.fmt, model=model)
    correction = None
    for start in range(0, k, block):
        part = slice(start, start + block)
        correction = unit(a_lo[..., part], b_hi[:, part], correction)
        correction = unit(a_hi[..., part], b_lo[:, part], correction)
    main = add_outside(unit, a_hi, b_hi, None, None if chained else block)
    with np.errstate(over="ignore"):
        sums = main + correction * np.float32(2.0**-splitting.low_shift)
        return scale_by_power(
            sums.astype(np.float64) + 0.0, units[0] + units[1] + shift
        ).astype(np.float32)


def cube(n, fmt="fp16", block=64):
    return ProductShape(n, n, n, 1, "words", fmt, block)


def uniform(rng, *shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def test_the_reference_is_the_simulated_engine():
    rng = np.random.default_rng(7)
    a, b = uniform(rng, 1, 5, 300), uniform(rng, 1, 300, 6)
    for fmt, whole in BLOCK.items():
        for block in BLOCKS[fmt]:
            want = hg.matmul(
                a, b, scheme=Corrected(fmt, block=block), engine="simulated-h100"
            )
            np.testing.assert_array_equal(simulated(a, b, fmt, block, H100), want)
        want = hg.matmul(
            a, b, scheme=Corrected(fmt, accumulate="chained"), engine="simulated-h100"
        )
        np.testing.assert_array_equal(
            simulated(a, b, fmt, whole, H100, chained=True), want
        )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("fmt", SPLITTINGS)
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 70, 100), (65, 9, 17)])
def test_error_stays_within_the_bound(fmt, chained, m, n, k):
    """Every device keeps the bound of its unit; the interpreter adds in FP32 to nearest
    in any order.
    """
    rng = np.random.default_rng([m, n, k])
    a, b = uniform(rng, 1, m, k), uniform(rng, 3, k, n)
    a[:, : m // 2] *= np.float32(2.0**70)
    b[1] *= np.float32(2.0**-60)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b)
    accumulation = in_any_order("interpreter", SPLITTINGS[fmt].fmt, FP32, 16)
    if HAS_GPU:
        accumulation = engine_for("simulated-h100").accumulation(SPLITTINGS[fmt].fmt)
    scheme = Corrected(fmt, "chained" if chained else "outside")
    bound = (
        relative_error(SPLITTINGS[fmt], scheme.pair_errors(accumulation, 2 * k))
        + 2.0**-24
    )
    for block in BLOCKS[fmt]:
        got = product(a, b, fmt, block=block, sums=SUMS[chained])
        assert (np.abs(got - exact) <= bound * size).all()


@pytest.mark.parametrize("fmt", SPLITTINGS)
def test_bits_do_not_depend_on_tile_or_strides(fmt):
    rng = np.random.default_rng(1)
    a, b = uniform(rng, 2, 70, 90), uniform(rng, 1, 90, 50)
    block = BLOCKS[fmt][-2]
    tiles = valid_tiles(
        gpu_of(torch.device(DEVICE)), family="words", fmt=fmt, block=block
    )
    want = product(a, b, fmt, block=block, config=tiles[0])
    # the interpreter leaves the order of sums to NumPy
    for tile in tiles[1:] if HAS_GPU else []:
        np.testing.assert_array_equal(
            product(a, b, fmt, block=block, config=tile), want
        )
    whole = torch.full((50, 2, 150), 7.0, device=DEVICE)
    view = whole.permute(1, 2, 0)[:, 3:143:2]
    np.testing.assert_array_equal(
        product(a, b, fmt, block=block, config=tiles[0], out=view), want
    )
    view.fill_(7.0)
    assert (whole == 7.0).all()


CHAINS = {
    ("fp16", 2): ((1, 0), (0, 1), (0, 0)),
    ("tf32", 2): ((1, 1), (1, 0), (0, 1), (0, 0)),
    ("tf32", 3): ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("fmt", "num_words"), CHAINS)
@pytest.mark.parametrize(
    ("sums", "block"), [("chained", None), ("separate", None), ("blocked", 16)]
)
@pytest.mark.parametrize("several", [1, 3])
def test_chains_add_in_the_order_of_the_scheme(fmt, num_words, sums, block, several):
    """One term in each block of k that is loaded has products: their sum is exact in
    every unit, and where sums are rounded only the order of the chain counts.

    Terms are positive and of one size, so that what a tensor core truncates differs
    from what FP32 rounds; the interpreter rounds.
    """
    if HAS_GPU:
        pytest.skip("sums of tensor cores are those of their model: see the gpu tests")
    pairs = CHAINS[fmt, num_words]
    block = block and block * several
    loaded = loaded_block(fmt, block or 16, sums, pairs)
    rng = np.random.default_rng([num_words, several])
    m, n, k = 5, 7, 6 * loaded + 9
    a, b = (np.zeros(shape, np.float32) for shape in ((1, m, k), (1, k, n)))
    a[:, :, 3::loaded] = rng.uniform(0.5, 1, a[:, :, 3::loaded].shape)
    b[:, 3::loaded] = rng.uniform(0.5, 1, b[:, 3::loaded].shape)
    splitting = Splitting(FP16 if fmt == "fp16" else TF32, num_words)
    operands = [(torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))]
    left, right = split_words(operands, splitting, None)
    out = torch.empty((1, m, n), device=DEVICE)
    word_gemm(left, right, out, block=block, sums=sums, pairs=pairs)

    x, y = (splitting.split(z.astype(np.float64))[0] for z in (a[0], b[0]))
    span = block if sums == "blocked" else k
    total = np.zeros((m, n), np.float32)
    chain = np.zeros((m, n), np.float32)
    for start in range(0, k, span):
        for p, q in pairs:
            for h in range(start, min(start + span, k)):
                chain = chain + np.outer(x[p][:, h], y[q][h])
            if sums == "separate":
                total, chain = total + chain, np.zeros_like(chain)
        if sums == "blocked":
            total, chain = total + chain, np.zeros_like(chain)
    want = chain if sums == "chained" else total
    assert want.dtype == np.float32
    np.testing.assert_array_equal(out.numpy()[0], want)


def words_of(a, b, splitting, top):
    """Words of NumPy operands of three dimensions."""
    operands = [(torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))]
    return split_words(operands, splitting, top)


def terms_of(words, start, stop):
    """Some terms of scaled words, whose exponents count as 0."""
    planes = words.planes[..., start : min(stop, words.k)]
    k = planes.shape[-1]
    whole = torch.zeros(
        (*planes.shape[:-1], k_pitch(k)), dtype=planes.dtype, device=planes.device
    )
    whole[..., :k] = planes
    return words._replace(
        planes=whole, exponents=torch.zeros_like(words.exponents), k=k
    )


SPANS = [
    # (m, n, k, span)
    (1, 1, 200, 64),
    (33, 70, 300, 128),
    (40, 1, 1000, 64),
    (5, 6, 1100, 64),
    (34, 35, 256, 128),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fmt", SPLITTINGS)
@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize(("m", "n", "k", "span"), SPANS)
def test_sums_of_spans_are_added_in_their_order(fmt, has_pairs, m, n, k, span):
    """Each of them is the product of its own terms."""
    rng = np.random.default_rng([m, n, k])
    a, b = uniform(rng, 2, m, k), uniform(rng, 1, k, n)
    a[1, m // 2] *= np.float32(2.0**-30)
    options = {}
    splitting = SPLITTINGS[fmt]
    if has_pairs:
        options = {"pairs": ((1, 0), (0, 1), (0, 0)), "block": 32}
        splitting = replace(splitting, low_shift=0)
    left, right = words_of(a, b, splitting, 10)
    out = torch.empty((2, m, n), device=DEVICE)
    word_gemm(left, right, out, span=span, shift=3, **options)

    total = None
    for start in range(0, k, span):
        part = torch.empty((2, m, n), device=DEVICE)
        terms = (terms_of(x, start, start + span) for x in (left, right))
        word_gemm(*terms, part, **options)
        part = part.cpu().numpy()
        total = part if total is None else total + part
    exponents = left.exponents[:, :, None] + right.exponents[:, None, :] + 3
    want = np.ldexp(total, exponents.cpu().numpy())
    np.testing.assert_array_equal(out.cpu().numpy(), want)


@pytest.mark.parametrize(
    "scheme",
    [
        Corrected("fp16"),
        Corrected("tf32", block=16),
        Multiword("fp16", 1, 1, accumulate="blocked", block=64),
        Multiword("tf32", 2, 3, accumulate="blocked", block=32),
    ],
    ids=str,
)
def test_spans_have_the_bits_of_the_scheme(scheme):
    """One term in each block of k has products, whose sum is exact in every unit; what
    FP32 rounds are the sums of blocks and spans.
    """
    rng = np.random.default_rng(0)
    m, n, k, block = 5, 7, 1000, scheme.block or 64
    a, b = (np.zeros(shape, np.float32) for shape in ((1, m, k), (1, k, n)))
    a[:, :, 3::block] = rng.uniform(0.5, 1, a[:, :, 3::block].shape)
    b[:, 3::block] = rng.uniform(0.5, 1, b[:, 3::block].shape)
    engine = _model()[1] if HAS_GPU else "numpy"
    plan = hg.make_plan(a, b, scheme=scheme, engine=engine)
    want = hg.matmul(a, b, plan=replace(plan, k_span=192), engine=engine)
    assert (want != hg.matmul(a, b, plan=plan, engine=engine)).any()

    top = scheme.top_exponent(plan.problem)
    left, right = words_of(a, b, scheme.splitting, top)
    out = torch.empty((1, m, n), device=DEVICE)
    pairs = () if scheme.chains_corrections else scheme.pairs()
    word_gemm(left, right, out, block=block, pairs=pairs, span=192)
    np.testing.assert_array_equal(out.cpu().numpy(), want)


def test_spans_that_overflow_are_completed(monkeypatch):
    """Scratch memory that nothing was written to is not read, whatever it holds."""

    own = torch.empty

    def filled(*arguments, **options):
        made = own(*arguments, **options)
        # Bytes of a workspace are those of a NaN.
        return made.fill_(-1) if made.dtype is torch.int8 else made

    monkeypatch.setattr(torch, "empty", filled)
    rng = np.random.default_rng(1)
    a = uniform(rng, 1, 70, 300)
    # Sums of 2**129 and -2**129 in two spans, which cancel.
    a[0, 5] = 0.0
    a[0, 5, [10, 20, 100, 110]] = 2.0**64
    b = a.copy()
    b[0, 5, [100, 110]] *= -1
    a[0, 5, 30] = b[0, 5, 30] = 3.0
    b = b.swapaxes(1, 2)
    left, right = words_of(a, b, SPLITTINGS["tf32"], None)
    # No entry above the diagonal is made, or looked at.
    out = torch.full((1, 70, 70), np.nan, device=DEVICE)
    word_gemm(left, right, out, block=32, span=64, triangle=True)
    lower = np.tril(out[0].cpu().numpy())
    assert np.argwhere(~np.isfinite(lower)).tolist() == [[5, 5]]
    x, y = (torch.from_numpy(np.ascontiguousarray(z)).to(DEVICE) for z in (a, b))
    run_recorded(finish_entries, x, y, Targets(out), triangle=True)
    lower[5, 5] = 9.0
    np.testing.assert_array_equal(np.tril(out[0].cpu().numpy()), lower)
    assert np.isnan(out[0, 0, 69].item())


def test_results_are_rounded_once():
    """Powers of two take results through the subnormal numbers to zero, and to Inf."""
    rng = np.random.default_rng(2)
    a, b = uniform(rng, 1, 20, 16), uniform(rng, 1, 16, 20)
    for fmt in SPLITTINGS:
        plain = product(a, b, fmt).astype(np.float64)
        for shift in (-170, -148, -140, -126, -70, 3, 60, 127, 200):
            with np.errstate(over="ignore"):
                want = (plain * 2.0**shift).astype(np.float32)
            np.testing.assert_array_equal(product(a, b, fmt, shift=shift), want)
            half = shift // 2
            with np.errstate(over="ignore"):
                rows = a * np.float32(2.0**half)
                cols = b * np.float32(2.0 ** (shift - half))
            if half > -100:
                np.testing.assert_array_equal(product(rows, cols, fmt), want)


def test_the_range_of_losses_decides_on_the_device():
    rng = np.random.default_rng(3)
    a, b = uniform(rng, 1, 8, 40), uniform(rng, 1, 40, 8)
    b[0, :, 0] = 1.0
    a[0, 0, 0] = 1.1 * 2.0**-29
    operands = [(torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))]
    found = torch.zeros(2, dtype=torch.int32, device=operands[0][0].device)
    split_words(operands, SPLITTINGS["fp16"], 15, found=found)
    assert found.tolist() == [1, 1]
    a[0, 0, 0] = np.float32(2.0**-40) * np.float32(1.1)
    b[0, 0, 0] = 2.0**-31
    operands = [(torch.from_numpy(x).to(DEVICE), axis) for x, axis in ((a, 2), (b, 1))]
    found = torch.zeros(2, dtype=torch.int32, device=operands[0][0].device)
    left, right = split_words(operands, SPLITTINGS["fp16"], 15, found=found)
    loss = int(found.sum()) - 2
    assert loss == 11 + 3
    for losses, runs in (
        ((0, loss), False),
        ((0, loss + 1), True),
        ((loss, 99), True),
        ((loss + 1, 99), False),
    ):
        out = torch.full((1, 8, 8), 7.0, device=DEVICE)
        word_gemm(left, right, out, losses=losses)
        assert bool((out == 7.0).all()) != runs


@pytest.mark.parametrize(
    "dtype", [torch.float16, *([torch.bfloat16] if HAS_GPU else [])]
)
def test_short_operands_take_one_product(dtype):
    """float32 results of float16 and bfloat16 operands: blocked sums of the operands
    themselves.
    """
    rng = np.random.default_rng(4)
    a, b = (
        torch.from_numpy(uniform(rng, 1, *shape)).to(dtype)
        for shape in ((70, 150), (150, 40))
    )
    splitting = Splitting(FP16 if dtype is torch.float16 else BF16, 2, "nearest", 0)
    left, right = split_words([(a.to(DEVICE), 2), (b.to(DEVICE), 1)], splitting, None)
    out = torch.empty((1, 70, 40), device=DEVICE)
    word_gemm(left, right, out)
    a, b = a.float().numpy(), b.float().numpy()
    if HAS_GPU:
        scheme = Multiword(
            splitting.fmt.name, 1, 1, accumulate="blocked", block=64, scale=False
        )
        np.testing.assert_array_equal(
            out.cpu().numpy(), hg.matmul(a, b, scheme=scheme, engine=_model()[1])
        )
    assert np.abs(out.cpu().numpy() - a @ b).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("fmt", SPLITTINGS)
def test_infinities_and_nans_are_those_of_the_steps(fmt):
    rng = np.random.default_rng(8)
    a, b = uniform(rng, 2, 37, 20), uniform(rng, 1, 20, 41)
    a[0, 3, 4], a[1, 36, 19], a[1, 0, 0], b[0, 5, 7], b[0, 6, 40] = (
        np.inf,
        -np.inf,
        np.nan,
        np.inf,
        -np.inf,
    )
    b[0, 4, 11], a[0, 5, 5] = 0.0, 0.0
    operands = [torch.from_numpy(x).to(DEVICE) for x in (a, b)]
    strided = [
        operands[0].transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([operands[1]] * 2, 2)[:, :, :41],
    ]
    want = hg.matmul(a, b, scheme=Corrected(fmt), engine="simulated-h100")
    odd = ~np.isfinite(want)
    block = BLOCKS[fmt][0]
    cuts = {}, {"block": block, "span": block}
    for given, shift, cut in itertools.product((operands, strided), (0, 3), cuts):
        got = product(a, b, fmt, operands=tuple(given), shift=shift, **cut)
        np.testing.assert_array_equal(got[odd], want[odd])
        np.testing.assert_allclose(
            got[~odd], want[~odd] * 2.0**shift, atol=1e-5 * 2.0**shift
        )


def test_predicates_leave_everything_as_it_is():
    """Words that are not made have losses of zeros, which no range from 0 on holds."""
    rng = np.random.default_rng(9)
    operands = [
        (torch.from_numpy(uniform(rng, 1, 8, 8)).to(DEVICE), axis) for axis in (2, 1)
    ]
    predicate, found = (
        torch.zeros(2, dtype=torch.int32, device=operands[0][0].device)
        for _ in range(2)
    )
    split_words(operands, SPLITTINGS["fp16"], 15, found=predicate)
    shut = split_words(
        operands,
        SPLITTINGS["tf32"],
        50,
        found=found,
        predicate=predicate,
        losses=(1, 99),
    )
    out = torch.full((1, 8, 8), 7.0, device=DEVICE)
    word_gemm(*shut, out, losses=(0, 99))
    assert not found.any()
    assert (out == 7.0).all()
    made = split_words(
        operands,
        SPLITTINGS["tf32"],
        50,
        found=found,
        predicate=predicate,
        losses=(0, 1),
    )
    word_gemm(*made, out, losses=(0, 1))
    assert (out != 7.0).all()


def test_wrong_arguments_are_refused():
    a, b = np.ones((1, 3, 5), np.float32), np.ones((1, 5, 4), np.float32)
    with pytest.raises(ValueError, match="block = 24"):
        product(a, b, "fp16", block=24)
    with pytest.raises(ValueError, match="block = 24"):
        product(a, b, "tf32", block=24, pairs=((0, 0),))
    with pytest.raises(ValueError, match="sums = 'separate'"):
        product(a, b, "fp16", sums="separate")
    with pytest.raises(ValueError, match="no pair of 2 and 2 words"):
        product(a, b, "tf32", pairs=((0, 2), (2, 0)))
    with pytest.raises(ValueError, match="result of shape"):
        product(a, b, "fp16", out=torch.empty((1, 4, 3), device=DEVICE))
    with pytest.raises(ValueError, match="spans of 96 terms: expected whole blocks"):
        product(a, b, "fp16", span=96)
    with pytest.raises(ValueError, match="not chained sums"):
        product(a, b, "fp16", span=64, sums="chained")
    with pytest.raises(ValueError, match="stacks of"):
        product(
            a.repeat(2, axis=0), b, "fp16", out=torch.empty((3, 3, 4), device=DEVICE)
        )


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_products(m, n, k):
    a, b = np.ones((1, m, k), np.float32), np.ones((1, k, n), np.float32)
    np.testing.assert_array_equal(
        product(a, b, "fp16"), np.zeros((1, m, n), np.float32)
    )


def test_chains_of_large_products_take_wide_tiles():
    """A tile of 256 columns reads fewer words; sums of chains need room for two."""
    for fmt, block in (("fp16", 64), ("tf32", 32)):
        shape = replace(cube(8192, fmt, block), family="chains")
        tile = tile_for(shape, H200)
        assert (tile.block_m, tile.block_n, tile.stages) == (128, 256, 4)
        small = tile_for(replace(shape, m=1024, n=1024), H200)
        assert (small.block_m, small.block_n) == (128, 64)
        outside = tile_for(replace(shape, family="sums of chains"), H200)
        assert (outside.block_m, outside.block_n, outside.stages) == (128, 128, 7)


def test_small_problems_take_small_tiles():
    """More tiles than the two fifths of the SMs that 128 x 128 would occupy at
    n = 1024.
    """
    for gpu in (H200, replace(H200, name="NVIDIA H100")):  # known, and by arithmetic
        assert tile_for(cube(8192), gpu).block_n == 128
        small = tile_for(cube(1024), gpu)
        assert (small.kernel, small.block_m, small.block_n) == ("hopper", 128, 64)
    assert tile_for(cube(1024), H200, ("triton",)).kernel == "triton"
    assert all(
        t.kernel == "triton"
        for t in valid_tiles(H200, ("triton",), "words", "fp16", 64)
    )


def test_searches_try_valid_tiles_only():
    for fmt in BLOCKS:
        for block in BLOCKS[fmt]:
            for n in (1024, 8192):
                found = candidates(shape := cube(n, fmt, block), H200)
                assert len(set(found)) == len(found)
                assert tile_for(shape, H200) in found
                assert all(fits(t, H200, "words", fmt, block) for t in found)
                assert len({t.block_n for t in found}) > 1
                assert {t.group for t in found if t.block_m == 128} == (
                    {4, 8, 16} if n == 8192 else {4, 8}
                )
                assert len({replace(t, group=8, stages=0) for t in found}) < len(
                    valid_tiles(H200, family="words", fmt=fmt, block=block)
                )
    tile = tile_for(cube(4096), H200)
    for change in (
        {"stages": 9},
        {"block_k": 32},
        {"block_n": 96},
        {"group": 0},
        {"kernel": "other"},
    ):
        assert not fits(replace(tile, **change), H200, "words", "fp16", 64)
    assert not fits(tile, replace(H200, capability=(8, 0)), "words", "fp16", 64)


def test_classes_of_shapes_print_what_shares_a_tile():
    assert cube(1000).kind == cube(1024).kind == "1024 1024 1024 x 1 fp16 words by 64"
    assert (
        len(
            {
                cube(512).kind,
                cube(1024).kind,
                cube(1024, "tf32", 32).kind,
                cube(1024, "fp16", 32).kind,
            }
        )
        == 4
    )


def _model():
    """The model of the tensor core of the current device and the name of its engine."""
    capability = torch.cuda.get_device_capability()
    models = {
        (8, 0): (A100, "simulated-a100"),
        (9, 0): (H100, "simulated-h100"),
        (10, 0): (B200, "simulated-b200"),
    }
    if capability not in models:
        pytest.skip(f"no model of the tensor cores of capability {capability}")
    return models[capability]


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("fmt", SPLITTINGS)
    @pytest.mark.parametrize("chained", [False, True])
    @pytest.mark.parametrize(
        ("m", "n", "k"), [(1, 1, 1), (130, 70, 129), (200, 190, 2000)]
    )
    def test_bits_are_those_of_the_model(self, fmt, chained, m, n, k):
        rng = np.random.default_rng([m, n, k])
        a, b = uniform(rng, 1, m, k), np.abs(uniform(rng, 1, k, n))
        for block in BLOCKS[fmt]:
            want = simulated(a, b, fmt, block, _model()[0], chained=chained)
            for tile in valid_tiles(
                gpu_of(torch.device(DEVICE)), family="words", fmt=fmt, block=block
            ):
                got = product(a, b, fmt, block=block, sums=SUMS[chained], config=tile)
                np.testing.assert_array_equal(
                    got, want, err_msg=f"{tile}, block {block}"
                )

    @pytest.mark.parametrize("fmt", SPLITTINGS)
    @pytest.mark.parametrize("family", HOSTILE)
    def test_bits_are_those_of_the_model_on_hostile_operands(
        self, fmt, family, make_pair
    ):
        a, b = (x[None] for x in make_pair(family, 70, 200, 60, np.float32))
        for block in BLOCKS[fmt]:
            for kernels in (KERNELS, ("triton",)):
                shape = ProductShape(70, 60, 200, 1, "words", fmt, block)
                tile = tile_for(shape, gpu_of(torch.device(DEVICE)), kernels)
                got = product(a, b, fmt, block=block, config=tile)
                want = simulated(a, b, fmt, block, _model()[0])
                np.testing.assert_array_equal(
                    got, want, err_msg=f"{tile}, block {block}"
                )

    @pytest.mark.parametrize("fmt", SPLITTINGS)
    @pytest.mark.parametrize("family", HOSTILE)
    def test_bits_of_spans_are_those_of_the_scheme(self, fmt, family, make_pair):
        _, engine = _model()
        a, b = (x[None] for x in make_pair(family, 70, 500, 60, np.float32))
        for block in BLOCKS[fmt]:
            scheme = Corrected(fmt, block=block)
            plan = hg.make_plan(a, b, scheme=scheme, engine=engine)
            want = hg.matmul(a, b, plan=replace(plan, k_span=128), engine=engine)
            top = scheme.top_exponent(plan.problem)
            left, right = words_of(a, b, scheme.splitting, top)
            for tile in valid_tiles(
                gpu_of(torch.device(DEVICE)), family="words", fmt=fmt, block=block
            ):
                out = torch.empty((1, 70, 60), device=DEVICE)
                word_gemm(left, right, out, block=block, span=128, config=tile)
                np.testing.assert_array_equal(
                    out.cpu().numpy(), want, err_msg=f"{tile}, block {block}"
                )

    @pytest.mark.parametrize("fmt", SPLITTINGS)
    def test_sums_outside_the_unit_do_not_drift(self, fmt):
        """Positive operands: the chained sum truncates in every step, always towards
        zero.
        """
        rng = np.random.default_rng(5)
        a, b = (
            rng.random(shape, np.float32) for shape in ((1, 64, 16384), (1, 16384, 64))
        )
        exact = a.astype(np.float64) @ b.astype(np.float64)
        outside, chained = (
            float(np.mean(np.abs(product(a, b, fmt, sums=sums) / exact - 1)))
            for sums in SUMS.values()
        )
        assert chained > 20 * outside

    def test_full_size(self):
        rng = np.random.default_rng(6)
        a, b = uniform(rng, 1, 1111, 1500), uniform(rng, 1, 1500, 1300)
        rows, cols = rng.choice(1111, 9), rng.choice(1300, 7)
        for fmt in SPLITTINGS:
            whole = product(a, b, fmt)[:, rows][..., cols]
            want = simulated(
                a[:, rows], b[..., cols], fmt, 64 if fmt == "fp16" else 32, _model()[0]
            )
            np.testing.assert_array_equal(whole, want)


WORD_TILES = valid_tiles(
    gpu_of(torch.device(DEVICE)), family="words", fmt="fp16", block=64
)


@pytest.mark.slow
@pytest.mark.parametrize("tile", WORD_TILES, ids=str)
@pytest.mark.parametrize("m", [3, 140])
@pytest.mark.parametrize("span", [0, 64])
def test_triangles_have_the_bits_of_whole_products(tile, m, span):
    """Beyond the squares on the diagonal nothing is written."""
    a = uniform(np.random.default_rng(m), 2, m, 100)
    b = a.swapaxes(1, 2)
    out = torch.full((2, m, m), 7.0, device=DEVICE)
    found = product(a, b, "fp16", out=out, config=tile, triangle=True, span=span)
    np.testing.assert_array_equal(
        np.tril(found), np.tril(product(a, b, "fp16", config=tile, span=span))
    )
    square = np.arange(m) // max(tile.block_m, tile.block_n)
    assert (found[:, square[:, None] < square[None, :]] == 7).all()


def _case(tile, block_k, warps, how):
    return f"triton {tile}x{block_k}, 3 stages, {warps} warps, groups of 8, {how}"


MEASURED_SPILLS = {
    # Chains of pairs, whose tile is the default one of large products but on sm_90. 64
    # sums of a thread that are scaled in FP64 and stored at the end fill all 255
    # registers. Loops spill nothing on sm_90, and on sm_100 with Triton 3.9, where the
    # machine code was read; elsewhere nobody knows.
    _case("128x128", 64, 8, "fp16, pairs, chained"): {
        "3.6": {86: 44, 89: 44, 100: 42, 120: 13},
        "3.9": {80: 14, 86: 16, 89: 16, 90: 6, 100: 62, 120: 28},
    },
    _case("128x128", 32, 8, "tf32, pairs, chained"): {
        "3.6": {86: 60, 89: 60, 100: 51, 120: 13},
        "3.9": {80: 8, 86: 10, 89: 10, 100: 62, 120: 28},
    },
    # Two sums of this tile and products in flight fill them too. The default on sm_90 is
    # a tile of the kernel for Hopper.
    _case("128x128", 64, 8, "fp16, added outside"): {"3.9": {90: 10}},
    _case("128x128", 32, 8, "tf32, added outside"): {"3.9": {90: 6}},
    # Both sums through four loops, one for each pair: 142 of these stores and loads
    # stand in stretches of code with products. The default on sm_90 is another tile
    # here too: see docs/negative-results.md.
    _case("128x128", 64, 8, "fp16, pairs, separate"): {
        "3.6": {90: 287},
        "3.9": {90: 293},
    },
    # The PTX compiler keeps threads to 168 registers, so that three programs fit, and
    # to 128 in programs of two warps, so that eight do.
    _case("64x64", 64, 4, "fp16, pairs, separate"): {"3.6": {120: 12}},
    _case("64x64", 32, 4, "tf32, chained, triangle"): {"3.6": {120: 13}},
    _case("32x32", 64, 2, "fp16, spans"): {"3.6": {100: 5}, "3.9": {100: 7}},
    _case("32x32", 32, 2, "tf32, spans"): {"3.6": {100: 5}, "3.9": {100: 7}},
}
"""Stores and loads by case, Triton and architecture, where they are more than usual."""


def _starts(line, arch):
    """Products that start from zero in the machine code, or None where it does not say.

    The product of each block does unless sums are chained. What a chain starts from
    depends on where its sums are.
    """
    case = line["case"]
    has_pairs = "pairs" in case
    # On sm_100 all tiles but the least have sums in tensor memory. Triton writes the
    # first product of a chain apart, before the loop, and tells it that the sum is
    # zero: it starts from zero, and no other one does. Separate pairs are four chains,
    # and all other pairs are one.
    if arch == 100 and "triton 32x32" not in case:
        if has_pairs:
            return 4 if "separate" in case else 1
        return 1 if "chained" in case else line["blocks"]
    # Sums in registers are cleared before a chain. In the plain kernel those of pairs
    # always are, blocks or not.
    if has_pairs and "hopper" not in case:
        return None
    return 0 if "chained" in case else line["blocks"]


def test_compiled_products_of_words(arch, compiled, most_spills):
    for line in compiled("words"):
        assert line["unguarded arrivals"] == 0, line
        if line["kernel"] == "double_words_kernel":
            # A few addresses of tiles at an edge.
            assert line["spills"] <= 24, line
        if line["kernel"] == "_add_spans_kernel":
            assert line["spills"] == 0, line
        if "blocks" not in line:
            continue
        # Two registers, once; of the 256 columns of a wide tile one half waits in
        # memory while the other one is scaled.
        is_wide = "hopper 128x256" in line["case"]
        # Two sums of this tile, and three of TF32 words of it in flight, fill all
        # registers of the plain kernel.
        is_full = "triton 128x128x32" in line["case"] and "blocked" in line["case"]
        usual = 400 if is_wide else 10 if is_full else 4
        assert line["spills"] <= most_spills(line, usual, MEASURED_SPILLS), line
        starts = _starts(line, arch)
        assert starts is None or line["restarts"] == starts, line
        if "hopper" in line["case"]:
            assert line["moves"] == line["spills in loops"] == 0, line
            # At most three waits in each of two consumers; more would mean that wgmma is
            # serialised.
            assert line["WARPGROUP.DEPBAR"] <= 6, line
