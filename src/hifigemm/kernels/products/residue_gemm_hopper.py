"""The reduction modulo p as an epilogue of `int8_product_hopper.py`: residues go to
shared memory, and from there by TMA.

Rows beyond m and columns beyond n of a plane are stored with the others: `out` is
padded.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from hifigemm.kernels.products import int8_product_hopper as hopper
from hifigemm.kernels.products.hopper_ring import tma_store
from hifigemm.kernels.products.int8_product import Int8Product
from hifigemm.kernels.products.int8_product_hopper import entries_in_results
from hifigemm.kernels.products.residue_gemm import CONSTANTS, reduce_ptx
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import tensor_map
from hifigemm.kernels.runtime.tiles import Tile


@gluon.jit
def _two_tiles(out, TILE: gl.constexpr):
    """Room for the residues of half a tile of each consumer, on their way to TMA."""
    return gl.allocate_shared_memory(
        gl.int8, [2, TILE.block_m // 2, TILE.block_n], out.layout
    )


@gluon.jit
def store_residues(
    HALF: gl.constexpr, sums, tile_origin, m, n, out, target, numbers, memory
):
    """The epilogue of `residue_gemm`; `target` are the constants of all moduli, and the
    memory of the result or None.

    Twin: numerics.residue_products.residue_gemm, any representatives.
    """
    constants, earlier = target
    plane, _, l, row, column = tile_origin
    # Residues of earlier blocks of k: written by the launch before, and in this one by
    # this warpgroup alone, later.
    if earlier is not None:
        address = entries_in_results(sums, tile_origin, earlier, numbers)
        sums += gl.load(address).to(gl.int32)
    reduced = reduce_ptx(sums, constants + l * CONSTANTS)
    # The copy of the tile before this one has read the memory that is written now: the
    # thread that asked for it waits, and Triton puts a barrier of all warps after that.
    # Columns beyond those of a narrow tile are stored as they are: they lie beyond n.
    tma.store_wait(0)
    tile = memory.index(HALF)
    tile.slice(0, sums.shape[1], 1).store(reduced.to(gl.int8))
    # TMA sees what threads wrote to shared memory only after their fences, for which a
    # second barrier waits.
    fence_async_shared()
    tma_store(out, [plane * numbers[0] + row, column], tile)


RESIDUES = hopper.Epilogue(store_residues, _two_tiles)


def supports(left: Buffer, right: Buffer, out: Buffer) -> bool:
    """True if TMA can move these operands and products in tiles of 128 x 256.

    Their axes are (batch, part, vector, entry).
    """
    whole = (
        out.is_contiguous()
        and out.shape[2] % 128 == 0
        and out.shape[3] % 256 == 0
        and out.data_ptr() % 16 == 0
    )
    return (
        whole
        and out.shape[0] * out.shape[1] * out.shape[2] < 2**31
        and _is_stacked(left)
        and _is_stacked(right)
    )


def _is_stacked(x: Buffer) -> bool:
    """True if the planes of an operand are rows of one matrix that TMA can read."""
    batch, part, pitch, unit = x.stride()
    if unit != 1 or pitch <= 0 or pitch % 16 or x.data_ptr() % 16:
        return False
    whole = all(
        s % pitch == 0 and s >= 0
        for s, size in ((batch, x.shape[0]), (part, x.shape[1]))
        if size > 1
    )
    return whole and pitch < 2**32 and _rows(x) < 2**31


def _rows(x: Buffer) -> int:
    """Rows of the matrix in which the planes of an operand are stacked."""
    return (
        sum(
            (size - 1) * step
            for size, step in zip(x.shape[:2], _steps_between_planes(x), strict=True)
        )
        + x.shape[2]
    )


def _steps_between_planes(x: Buffer) -> tuple[int, int]:
    """Rows from one matrix of the batch to the next, and from one modulus to the next.

    The first is 0 where the batch is broadcast.
    """
    batch, part, pitch = x.stride()[:3]
    return (batch // pitch if x.shape[0] > 1 else 0), (
        part // pitch if x.shape[1] > 1 else 0
    )


def _rows_of(x: Buffer, terms: int, start: int) -> hopper.Rows:
    """An operand, whose terms begin at `start`."""
    batch, part = _steps_between_planes(x)
    return hopper.Rows(x, _rows(x), terms, x.stride(2), batch, part, start)


def launch(
    product: Int8Product,
    left: Buffer,
    right: Buffer,
    out: Buffer,
    constants: Buffer,
    start: int,
    tile: Tile,
) -> None:
    """Launch the product of the terms from `start` on, whose residues are added to those
    of the terms before.

    Operands are not empty, and `supports` accepts them.
    """
    stack, parts, rows, columns = out.shape
    box = tile.block_m // 2, tile.block_n
    hopper.launch(
        product,
        _rows_of(left, product.k, start),
        _rows_of(right, product.k, start),
        tile,
        RESIDUES,
        (constants, out if start else None),
        (rows, columns),
        tensor_map(out, stack * parts * rows, columns, columns, box),
    )
