"""Tiles of vectors cover an operand, each entry once, within what a program holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.vectors import vector_norms, vector_tiles
from hifigemm.kernels.vectors.vector_tiles import VectorTile, _StridedOperand, load_tile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [
    (1, 1, 1),
    (1, 9, 150),
    (3, 40, 17),
    (2, 300, 1024),
    (1, 7, 3000),
    (1, 7, 5000),
]


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("entries", [1024, 4096])
def test_tiles_hold_no_more_entries_than_a_program(entries, along_k):
    for vectors, pitch in product((1, 3, 8, 100, 5000), (1, 16, 100, 1024, 70000)):
        block_v, block_k = vector_tiles._tile_of(
            vectors, pitch, entries, along_k=along_k
        )
        for size in (block_v, block_k):
            assert size & (size - 1) == 0
        assert block_v * block_k <= entries
        if not along_k:
            assert block_v >= 8  # float32 side by side fill a sector
        elif pitch <= entries:
            assert block_k >= pitch  # a vector lies in one tile


@pytest.mark.parametrize("sms", [0, 2, 132])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [2, 1])
def test_programs_of_a_side_cover_all_vectors(shape, axis, sms):
    batch, vectors, k = shape
    shape = shape if axis == 2 else (batch, k, vectors)
    x = torch.empty(shape, device="meta")
    side = vector_tiles._planned(tuple(x.shape), x.stride(), axis, k, 1024, sms)
    tile = side.tile
    assert (side.batch, side.vectors, side.k) == (batch, vectors, k)
    assert (side.chunks - 1) * tile.block_k < k <= side.chunks * tile.block_k
    assert side.programs == batch * -(-vectors // tile.block_v) * side.chunks
    assert tile.even == (k % tile.block_k == 0 and vectors % tile.block_v == 0)
    if side.chunks == 1:
        assert (tile.stage, side.scratch) == ("whole", 0)
    else:
        # programs that wait for each other all have a place on the device
        assert tile.stage == ("together" if side.chunks <= sms else "magnitudes")
        panels = side.programs // side.chunks
        assert side.scratch >= batch * vectors + panels
        assert side.scratch % 4 == 0


def test_one_matrix_of_a_stack_has_no_stride():
    for batch, stride in ((1, 0), (2, 12)):
        x = torch.empty((batch, 3, 4), device="meta")
        side = vector_tiles._planned(tuple(x.shape), x.stride(), 2, 4, 1024, 0)
        assert side.strides == (stride, 4, 1)


@dataclass(frozen=True)
class Form:
    """What the kernel below is compiled for."""

    tile: VectorTile


@triton.jit
def _copy(x, out, counts, sb, sv, sk, vectors, total, chunks, k, FORM: tl.constexpr):
    operand = _StridedOperand(x, out, out, out, out, sb, sv, sk)
    value, z, v, h = load_tile(
        operand, (vectors, total, chunks), tl.program_id(0), k, FORM
    )
    at = ((z * vectors + v) * k)[:, None] + h[None, :]
    mask = (v < vectors)[:, None] & (h < k)[None, :]
    tl.store(out + at, value, mask=mask)
    tl.atomic_add(counts + at, 1, mask=mask)


@pytest.mark.skipif(DEVICE == "cuda", reason="records are passed by the launches there")
@pytest.mark.parametrize("axis", [2, 1])
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_every_entry_is_loaded_once(shape, axis):
    batch, vectors, k = shape
    x = torch.randn((batch, vectors, k), dtype=torch.float32)
    given = x if axis == 2 else x.mT.contiguous()
    side = vector_tiles.side_of(given, axis, k, 1024)
    out, counts = torch.zeros_like(x), torch.zeros(x.shape, dtype=torch.int32)
    total = batch * vectors
    _copy[(side.programs,)](
        given,
        out,
        counts,
        *side.strides,
        vectors,
        total,
        side.chunks,
        k,
        Form(side.tile),
    )
    assert torch.equal(out, x)
    assert (counts == 1).all()


def test_the_interpreter_has_no_multiprocessors():
    """So that no program waits for another one there."""
    assert vector_tiles.num_sms(torch.zeros(1)) == 0


def test_vectors_that_are_not_finite_have_one_mark_in_all_kernels():
    assert vector_tiles.NOT_FINITE.value == vector_norms.NOT_FINITE.value
