"""Words on the device: the bits of numerics.words, and what the facts promise."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.base.formats import BF16, FP16, TF32
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import vector_tiles
from hifigemm.kernels.vectors.words import FLOOR, split_words
from hifigemm.numerics.bits import largest_exponent, scale_by_power
from hifigemm.numerics.inner_scaling import scaled_along_k
from hifigemm.numerics.word_bounds import safe_exponent
from hifigemm.numerics.words import Splitting
from hifigemm.testing.matrices import exponent_family

split_words = partial(run_recorded, split_words)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPLITTINGS = [
    Splitting(FP16, 2, "nearest", 11),
    Splitting(FP16, 2, "nearest", 0),
    Splitting(FP16, 2, "zero", 11),
    Splitting(TF32, 2, "nearest-away"),
    Splitting(TF32, 2, "nearest"),
    Splitting(TF32, 2, "zero"),
    Splitting(BF16, 3, "nearest"),
]
TOPS = {"fp16": 16, "bf16": 54, "tf32": 54}
where_devices = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter is off"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def mixed(rng, shape):
    """Every exponent of float32, zeros of both signs."""
    x = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(-149, 128, shape)).astype(
        np.float32
    )
    return np.where(
        rng.random(shape) < 0.1, np.copysign(np.float32(0), x), np.clip(x, -3e38, 3e38)
    )


def boundaries(rng, shape):
    """Limits and ties of FP16 and of the scaled words, subnormal numbers, the largest
    floats.
    """
    edges = [
        65504.0,
        65519.996,
        65520.0,
        65536.0,
        2.0**-14,
        2.0**-24,
        2.0**-25,
        1.5 * 2.0**-25,
        2.0**-36,
        2.0**-149,
    ]
    edges += [
        3e38,
        float(np.finfo(np.float32).max),
        2.0**-126,
        2.0**-127,
        2.0**-137,
        1 + 2.0**-11,
        1 + 3 * 2.0**-11,
    ]
    edges += [
        1 + 2.0**-12 + 2.0**-23,
        1 + 2.0**-22,
        1 + 2.0**-23,
        2 - 2.0**-23,
        32767.998,
        1e-40,
        0.0,
    ]
    return rng.choice(np.array(edges, np.float32), shape) * rng.choice(
        np.array([-1, 1], np.float32), shape
    )


def narrow_rows(rng, shape):
    """Each row within a few binades of its own: tiny, huge, subnormal."""
    x = rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)
    size = rng.integers(-149, 127, (*shape[:-1], 1))
    return (
        np.ldexp(x, size + rng.integers(0, 2, shape))
        .clip(-3.4e38, 3.4e38)
        .astype(np.float32)
    )


def zeros(rng, shape):
    return np.full(shape, -0.0, np.float32)


FAMILIES = [mixed, boundaries, narrow_rows, zeros]


def expected(x, axis, splitting, top):
    """Words (batch, words, vectors, k), units and remainders of numerics.words."""
    x = x.astype(np.float64)
    unit = largest_exponent(x, axis) - (top if top is not None else 0)
    unit = unit if top is not None else np.zeros_like(unit)
    scaled = scale_by_power(x, -unit)
    words, rest = splitting.split(scaled)
    words = np.stack([np.moveaxis(w, axis, 2) for w in words], axis=1)
    return (
        words,
        np.squeeze(unit, axis),
        np.moveaxis(scaled, axis, 2),
        np.moveaxis(rest, axis, 2),
    )


def graded_pair(rng, family, left, right):
    """Operands of a family, and exponents d along k by which no entry of A D or D**-1 B
    reaches 2**128.
    """
    d = rng.integers(-276, 277, left[2])
    a = family(rng, left)
    b = np.moveaxis(family(rng, right), 1, 2).copy()

    def within(x, exponents):
        # One bit less than there is room for: subnormal entries are rounded.
        excess = np.maximum(np.frexp(x)[1] + exponents - 127, 0)
        return np.ldexp(x.astype(np.float64), -excess).astype(np.float32)

    return within(a, d), within(b, -d[:, None]), d


def split(operands, splitting, top):
    """The words of operands, and 1 + the bits that each of them loses."""
    found = torch.zeros(2, dtype=torch.int32, device=operands[0][0].device)
    made = split_words(operands, splitting, top, found=found)
    uncounted = split_words(operands, splitting, top)
    for words, plain in zip(made, uncounted, strict=True):
        assert words.losses is found
        assert plain.losses is None
        assert torch.equal(words.planes, plain.planes)
        assert torch.equal(words.exponents, plain.exponents)
    return list(zip(made, found.tolist()))


def check(words, lost, x, axis, splitting, top, *, is_wide=False):
    want, unit, scaled, rest = expected(x, axis, splitting, top)
    got = words.planes.float().cpu().numpy()
    np.testing.assert_array_equal(got[..., : words.k], want)
    assert not got[..., words.k :].any()
    np.testing.assert_array_equal(words.exponents.cpu().numpy(), unit)
    least = np.min(np.abs(scaled), where=scaled != 0, initial=np.inf)
    # Scaled entries of FP16 words are rounded to nearest, but for those of float64.
    if splitting.fmt is FP16 and not is_wide and np.isfinite(least):
        least = float(np.float32(least))
    safe = safe_exponent(words.splitting, FLOOR)
    loss = (
        max(0, safe - (np.frexp(max(least, 2.0**-149))[1] - 1)) if scaled.any() else 0
    )
    assert lost == 1 + loss
    bound = splitting.relative_bounds()[-1]
    assert (
        np.abs(rest) <= bound * np.maximum(np.abs(scaled), 2.0**safe)
    ).all() or top is None
    if loss == 0:
        assert (np.abs(rest) <= bound * np.abs(scaled)).all()


@pytest.mark.thinned(11)
@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
def test_words_equal_numerics_bitwise(splitting, scaled, family, device):
    rng = np.random.default_rng(1)
    a, b = family(rng, (1, 9, 53)), np.moveaxis(family(rng, (2, 21, 53)), 1, 2)
    top = TOPS[splitting.fmt.name] if scaled else None
    operands = [(torch.tensor(x, device=device), axis) for x, axis in ((a, 2), (b, 1))]
    for found, x, axis in zip(
        split(operands, splitting, top), (a, b), (2, 1), strict=True
    ):
        check(*found, x, axis, splitting, top)


@pytest.mark.thinned(11)
@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
def test_words_of_operands_scaled_along_k_equal_numerics_bitwise(
    splitting, scaled, family, device
):
    """In one tile, and in tiles that two launches join."""
    rng = np.random.default_rng(7)
    top = TOPS[splitting.fmt.name] if scaled else None
    for k in (53, 3001) if family is mixed else (53,):
        a, b, d = graded_pair(rng, family, (1, 9, k), (2, 21, k))
        wide = [(scaled_along_k(x, d, axis), axis) for x, axis in ((a, 2), (b, 1))]
        operands = [(torch.tensor(x, device=device), axis) for x, axis in wide]
        pair = split(operands, splitting, top)
        for words_and_loss, (x, axis) in zip(pair, wide, strict=True):
            check(*words_and_loss, x, axis, splitting, top, is_wide=True)


@pytest.mark.gpu
@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 130, 300), (1, 64, 4096), (2, 300, 2048), (1, 3, 40001)]
)
def test_words_equal_numerics_bitwise_at_full_size(splitting, shape):
    rng = np.random.default_rng(2)
    top = TOPS[splitting.fmt.name]
    for family in FAMILIES:
        a, b = family(rng, shape), np.moveaxis(family(rng, shape), 1, 2)
        for left, right in ((a, b), (np.asfortranarray(a), np.ascontiguousarray(b))):
            operands = [
                (torch.from_numpy(x).cuda(), axis)
                for x, axis in ((left, 2), (right, 1))
            ]
            for found, x, axis in zip(
                split(operands, splitting, top), (a, b), (2, 1), strict=True
            ):
                check(*found, x, axis, splitting, top)


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("num_sms", [0, 132])
def test_bits_do_not_depend_on_the_launch(num_sms, device, monkeypatch):
    """One tile, programs that wait for each other (on a GPU), two launches."""
    rng = np.random.default_rng(3)
    splitting = Splitting(TF32, 2, "nearest-away")
    a, b = mixed(rng, (1, 11, 90)), mixed(rng, (1, 90, 9))
    operands = [(torch.tensor(x, device=device), axis) for x, axis in ((a, 2), (b, 1))]
    for tile in ((8, 128), (16, 16), (2, 32)):
        planned = vector_tiles._planned.__wrapped__
        sms = num_sms if device == "cuda" else 0
        monkeypatch.setattr(
            vector_tiles,
            "_planned",
            lambda *args, f=planned, sms=sms: f(*args[:-1], sms),
        )
        monkeypatch.setattr(
            vector_tiles, "_tile_of", lambda *_, along_k, tile=tile: tile
        )
        for found, x, axis in zip(
            split(operands, splitting, 54), (a, b), (2, 1), strict=True
        ):
            check(*found, x, axis, splitting, 54)
        monkeypatch.undo()


@pytest.mark.parametrize("device", where_devices)
def test_any_strides(device):
    """Transposed, with gaps, a part of a stack, broadcast along rows."""
    rng = np.random.default_rng(4)
    whole = torch.tensor(mixed(rng, (3, 40, 60)), device=device)
    splitting = Splitting(FP16, 2, "nearest", 11)
    for view in (
        whole.transpose(1, 2),
        whole[:, ::3, 5:],
        whole[1:2, :, ::7],
        whole[:, :1].expand(3, 10, 60),
    ):
        for found in split([(view, 2), (view.transpose(1, 2), 1)], splitting, 15):
            check(*found, view.cpu().numpy(), 2, splitting, 15)


def test_unsupported_operands_are_refused():
    x = torch.zeros((1, 4, 5), device=DEVICE)
    with pytest.raises(ValueError, match="k = 5, 4"):
        split_words([(x, 2), (x, 1)], SPLITTINGS[0], 15)
    with pytest.raises(ValueError, match="no words on the device"):
        split_words([(x, 2)], Splitting(FP16, 2, "nearest-away"), 15)


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize(
    ("dtype", "fmt"),
    [(torch.float16, FP16), (torch.bfloat16, BF16), (torch.bfloat16, TF32)],
)
def test_one_word_holds_short_operands(dtype, fmt, device):
    x = torch.tensor(
        np.random.default_rng(5).standard_normal((1, 6, 20)), dtype=dtype, device=device
    )
    x[0, 0, :2], x[0, 1, 2] = (
        torch.tensor([0.0, torch.finfo(dtype).tiny]),
        torch.finfo(dtype).max,
    )
    rounding = "nearest-away" if fmt is TF32 else "nearest"
    ((words, lost),) = split(
        [(x, 2)], Splitting(fmt, 2, rounding), 54 if fmt is TF32 else 15
    )[:1]
    assert words.planes.shape[1] == 1
    scaled = np.ldexp(
        x.double().cpu().numpy(), -words.exponents.cpu().numpy()[:, :, None]
    )
    assert np.array_equal(words.planes[:, 0, :, :20].double().cpu().numpy(), scaled)
    least = np.frexp(np.abs(scaled[scaled != 0]).min())[1] - 1
    assert lost == 1 + max(0, safe_exponent(words.splitting, FLOOR) - least)


@pytest.mark.parametrize("device", where_devices)
def test_vectors_with_inf_or_nan_are_marked(device):
    x = np.ones((2, 5, 30), np.float32)
    x[0, 1, 4], x[1, 2, 29], x[1, 4, 0] = np.inf, -np.inf, np.nan
    (words,) = split_words(
        [(torch.tensor(x, device=device), 2)], Splitting(FP16, 2, "nearest", 11), 15
    )
    marked = words.exponents == vector_tiles.NOT_FINITE.value
    assert marked.nonzero().tolist() == [[0, 1], [1, 2], [1, 4]]
    assert not words.planes.permute(0, 2, 1, 3)[marked].any()


@pytest.mark.parametrize("device", where_devices)
def test_loss_tells_the_exponent_families_apart(device):
    """Rows that span more than FP16 words hold lose bits, TF32 words do not; zeros are
    no loss.
    """
    rng = np.random.default_rng(6)
    a, b = exponent_family(rng, "type3", 8, 256, 8)
    operands = [
        (torch.tensor(x[None], device=device), axis) for x, axis in ((a, 2), (b, 1))
    ]
    assert all(
        lost > 21 for _, lost in split(operands, Splitting(FP16, 2, "nearest", 11), 15)
    )
    assert all(
        lost == 1 for _, lost in split(operands, Splitting(TF32, 2, "nearest-away"), 54)
    )
    sparse = torch.tensor(
        rng.uniform(1, 2, (1, 8, 256)) * (rng.random((1, 8, 256)) < 0.1), device=device
    ).float()
    assert split([(sparse, 2)], Splitting(FP16, 2, "nearest", 11), 15)[0][1] == 1


def test_compiled_words_of_float64(compiled):
    for line in compiled("words_of_float64"):
        assert line["spills"] == 0, line
        # Three programs share the registers of a multiprocessor at least, two of TF32
        # words, which FP64 rounds to odd. They cost no more time than with exponents
        # added to those of float32 (n = 4096, H200: the copies alone).
        limit = 255 if "tf32" in line["case"] else 180
        assert line["registers"] <= limit, line
