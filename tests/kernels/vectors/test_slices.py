"""Slices on the device: the digits of numerics.slicing."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import vector_tiles
from hifigemm.kernels.vectors.slices import k_pitch, slice_operands
from hifigemm.numerics.bits import largest_exponent
from hifigemm.numerics.slicing import digit_limit, slice_vectors, unit_exponent

slice_operands = partial(run_recorded, slice_operands)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


def mixed(rng, shape, dtype):
    """Every exponent of the format, zeros of both signs."""
    info = np.finfo(dtype)
    e = rng.integers(info.minexp - info.nmant, info.maxexp, shape)
    x = np.ldexp(rng.uniform(-1, 1, shape), e).astype(dtype)
    return np.where(rng.random(shape) < 0.1, np.copysign(dtype(0), x), x)


def boundaries(rng, shape, dtype):
    """Ties, long runs of the largest digit, and what is next to them; each row on a
    scale of its own.
    """
    digits = [sum(127 * 256.0**-p for p in range(n)) for n in range(1, 7)]
    edges = np.array(
        [
            127.5,
            128 - 2.0**-10,
            254 / 2,
            127.498,
            64.5,
            0.5,
            1.5,
            127 / 256,
            128 / 256,
            0.0,
            *digits,
        ]
    )
    edges = np.concatenate(
        [edges, edges + 2.0**-17, edges - 2.0**-17, edges * (1 - 2.0**-50)]
    ).astype(dtype)
    x = rng.choice(edges, shape) * rng.choice(np.array([-1, 1], dtype), shape)
    info = np.finfo(dtype)
    scale = rng.integers(info.minexp - info.nmant, info.maxexp - 8, (*shape[:-1], 1))
    return np.ldexp(x, np.where(rng.random(scale.shape) < 0.5, 0, scale)).astype(dtype)


def narrow(rng, shape, dtype):
    """Rows within a few binades of their own: tiny, huge, subnormal."""
    info = np.finfo(dtype)
    size = rng.integers(info.minexp - info.nmant, info.maxexp - 3, (*shape[:-1], 1))
    return np.ldexp(rng.uniform(-4, 4, shape), size).astype(dtype)


def largest(rng, shape, dtype):
    return rng.choice(np.array([-1, 1, 0.5], dtype), shape) * np.finfo(dtype).max


def smallest(rng, shape, dtype):
    return (
        rng.choice(np.array([-1, 1, 0, 3], dtype), shape)
        * np.finfo(dtype).smallest_subnormal
    )


def zeros(rng, shape, dtype):
    return np.full(shape, -0.0, dtype)


FAMILIES = [mixed, boundaries, narrow, largest, smallest, zeros]


def expected(x, axis, count, beta, dtype=torch.int8):
    """Slices (batch, vectors, count, k) and exponents of the first grid."""
    y, two = x.astype(np.float64), beta == 8 and dtype is torch.int8
    unit = unit_exponent(
        largest_exponent(y, axis, digit_limit(beta) if two else 1.0), beta
    )
    words = list(itertools.islice(slice_vectors(y, unit, beta, two), count))
    words = np.stack([np.moveaxis(w, axis, 2) for w in words], axis=2)
    return words[:, :, ::-1] if axis == 1 else words, np.squeeze(unit, axis)


def check(found, x, axis, count, beta, dtype=torch.int8):
    want, unit = expected(x, axis, count, beta, dtype)
    k = x.shape[axis]
    assert found.planes.dtype is dtype
    got = found.planes.to(torch.float64).cpu().numpy()
    np.testing.assert_array_equal(got[..., :k], want)
    assert not got[..., k:].any()
    assert got.shape[-1] == k_pitch(k)
    np.testing.assert_array_equal(found.exponents.cpu().numpy(), unit)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("count", "beta"), [(3, 8), (1, 8), (9, 8), (10, 7)])
def test_slices_equal_numerics_bitwise(count, beta, dtype, family, device):
    rng = np.random.default_rng([1, count, beta])
    a = family(rng, (1, 9, 150), dtype)
    b = np.moveaxis(family(rng, (2, 11, 150), dtype), 1, 2)
    operands = [(torch.tensor(x, device=device), axis) for x, axis in ((a, 2), (b, 1))]
    for found, x, axis in zip(
        slice_operands(operands, count, beta), (a, b), (2, 1), strict=True
    ):
        check(found, x, axis, count, beta)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("stored", "count", "beta"),
    [
        (torch.float16, 3, 8),
        (torch.float16, 5, 12),
        (torch.bfloat16, 4, 9),
        (torch.float64, 4, 22),
    ],
)
def test_slices_of_floats_equal_numerics_bitwise(
    stored, count, beta, dtype, family, device
):
    rng = np.random.default_rng([1, count, beta])
    a = family(rng, (1, 9, 150), dtype)
    b = np.moveaxis(family(rng, (2, 11, 150), dtype), 1, 2)
    operands = [(torch.tensor(x, device=device), axis) for x, axis in ((a, 2), (b, 1))]
    for found, x, axis in zip(
        slice_operands(operands, count, beta, stored), (a, b), (2, 1), strict=True
    ):
        check(found, x, axis, count, beta, stored)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (3, 130, 300),
        (1, 64, 4096),
        (2, 300, 2048),
        (1, 3, 40001),
        (1, 9, 2**21),
    ],
)
def test_slices_equal_numerics_bitwise_at_full_size(dtype, shape):
    rng = np.random.default_rng(2)
    for family in FAMILIES:
        a, b = family(rng, shape, dtype), np.moveaxis(family(rng, shape, dtype), 1, 2)
        for left, right in ((a, b), (np.asfortranarray(a), np.ascontiguousarray(b))):
            operands = [
                (torch.from_numpy(x).cuda(), axis)
                for x, axis in ((left, 2), (right, 1))
            ]
            for found, x, axis in zip(
                slice_operands(operands, 3, 8), (a, b), (2, 1), strict=True
            ):
                check(found, x, axis, 3, 8)


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("num_sms", [0, 132])
def test_bits_do_not_depend_on_the_launch(num_sms, device, monkeypatch):
    """One tile, programs that wait for each other (on a GPU), two launches."""
    rng = np.random.default_rng(3)
    a, b = mixed(rng, (1, 11, 300), np.float64), mixed(rng, (1, 300, 9), np.float64)
    operands = [(torch.tensor(x, device=device), axis) for x, axis in ((a, 2), (b, 1))]
    for tile in ((8, 512), (16, 128), (2, 64)):
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
            slice_operands(operands, 4, 8), (a, b), (2, 1), strict=True
        ):
            check(found, x, axis, 4, 8)
        monkeypatch.undo()


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize(
    "dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64]
)
def test_any_strides(dtype, device):
    """Transposed, with gaps, a part of a stack, broadcast along rows, k = 1."""
    whole = torch.tensor(
        mixed(np.random.default_rng(4), (3, 40, 60), dtype), device=device
    )
    views = (
        whole.transpose(1, 2),
        whole[:, ::3, 5:],
        whole[1:2, :, ::7],
        whole[:, :1].expand(3, 10, 60),
        whole[..., :1],
    )
    for view in views:
        both = slice_operands([(view, 2), (view.transpose(1, 2), 1)], 3, 8)
        check(both[0], view.cpu().numpy(), 2, 3, 8)
        check(both[1], view.transpose(1, 2).cpu().numpy(), 1, 3, 8)


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_entries_of_16_bits_have_the_slices_of_their_float32(dtype, device):
    """Every number of the format, next to float32 entries of the other operand."""
    if device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter takes subnormal bfloat16 for zeros")
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=device)
    x = bits.view(dtype)
    x = torch.where(torch.isfinite(x), x, 0).view(1, 256, 256)
    wide = torch.randn(1, 256, 8, device=device)
    for left, right in ((x, wide), (wide.mT, x), (x, x.mT)):
        slices = slice_operands(((left, 2), (right, 1)), 3, 8)
        expected = slice_operands(((left.float(), 2), (right.float(), 1)), 3, 8)
        for one, other in zip(slices, expected, strict=True):
            assert torch.equal(one.planes, other.planes)
            assert torch.equal(one.exponents, other.exponents)


@pytest.mark.parametrize("device", where_devices)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_with_inf_or_nan_are_marked(dtype, device):
    x = np.ones((2, 5, 30), dtype)
    x[0, 1, 4], x[1, 2, 29], x[1, 4, 0] = np.inf, -np.inf, np.nan
    (slices,) = slice_operands([(torch.tensor(x, device=device), 2)], 2, 8)
    marked = slices.exponents == vector_tiles.NOT_FINITE.value
    assert marked.nonzero().tolist() == [[0, 1], [1, 2], [1, 4]]
    assert not slices.planes[marked].any()


def test_unsupported_operands_are_refused():
    x = torch.zeros((1, 4, 5), device=DEVICE)
    with pytest.raises(ValueError, match="k = 5, 4"):
        slice_operands([(x, 2), (x, 1)], 3, 8)
    with pytest.raises(ValueError, match=r"13 torch\.int8 slices"):
        slice_operands([(x, 2)], 13, 8)
    with pytest.raises(ValueError, match=r"2 torch.int8 slices of 2 bits: .* 3 .. 8"):
        slice_operands([(x, 2)], 2, 2)
    with pytest.raises(ValueError, match="of 13 bits"):
        slice_operands([(x, 2)], 3, 13, torch.float16)
