"""Blocks of a few rows or columns, so that working copies of them stay small.

Such copies stay in the cache, and take little of the workspace.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hifigemm.numerics.bits import Array

BLOCK_ENTRIES = 16384
"""Entries of a block where only the second-level cache limits them."""

_MIN_VECTORS = 8
"""Vectors of a block of `BLOCK_ENTRIES` or more, however long they are."""

_DEVICE_ENTRIES = 2**24
"""Entries of a block on a device, where each block costs launches."""

Index = tuple[slice, ...]
"""Index of a block: matrices of the stack and, along one axis, vectors of each."""


def entries_within(workspace: int, limit: int = BLOCK_ENTRIES) -> int:
    """Entries of a block: one for each KiB of the workspace, from 64 to `limit`."""
    return min(max(workspace // 1024, 64), limit)


def vector_blocks(x: Array, axis: int, size: int = BLOCK_ENTRIES) -> list[Index]:
    """Indices of blocks of about `size` entries: whole vectors along `axis`.

    x is (batch, m, k) for axis 2, (batch, k, n) for axis 1.
    """
    batch = x.shape[0]
    vectors = x.shape[3 - axis]
    k = x.shape[axis]
    vectors_at_once = largest_block(k, size) // max(k, 1)
    # A block holds several matrices where one of them does not fill it.
    matrices_at_once = max(vectors_at_once // max(vectors, 1), 1)

    blocks: list[Index] = []
    for z in range(0, batch, matrices_at_once):
        matrices = slice(z, z + matrices_at_once)
        for i in range(0, vectors, vectors_at_once):
            block = slice(i, min(i + vectors_at_once, vectors))
            if axis == 2:
                blocks.append((matrices, block))
            else:
                blocks.append((matrices, slice(None), block))
    return blocks


def parts_of(x: Array, size: int = BLOCK_ENTRIES) -> list[Index]:
    """Blocks of rows for one pass over a stack of matrices, large ones on a device."""
    return vector_blocks(x, 2, size if isinstance(x, np.ndarray) else _DEVICE_ENTRIES)


def largest_block(k: int, size: int) -> int:
    """Largest number of entries of a block of vectors of length k.

    That is `size`, but at least one vector, or eight of them from `BLOCK_ENTRIES` on.
    """
    min_vectors = _MIN_VECTORS if size >= BLOCK_ENTRIES else 1
    return max(size, min_vectors * k)


def widen(index: Index, width: int) -> Index:
    """The index of the same block where each vector has become `width` vectors."""
    *matrices, vectors = index
    return (*matrices, slice(vectors.start * width, vectors.stop * width))


def product_shape(a: Array, b: Array) -> tuple[int, int, int]:
    """(batch, m, n) of A B for stacks (batch or 1, m, k) and (batch or 1, k, n)."""
    return max(len(a), len(b)), a.shape[1], b.shape[2]


def shape_of_vectors(x: Array, axis: int) -> tuple[int, ...]:
    """Shape of one number for each vector along `axis`, which has length 1."""
    shape = list(x.shape)
    shape[axis] = 1
    return tuple(shape)


def map_vectors(
    function: Callable[[Array], Array], x: Array, axis: int, size: int = BLOCK_ENTRIES
) -> Array:
    """function(x), computed block by block, for a function of each vector along `axis`.

    `function` gives one number for each vector and leaves `axis` with length 1.
    """
    if x.size <= size:
        return function(x)
    shape = shape_of_vectors(x, axis)
    results: dict[str, Array] = {}
    for block in vector_blocks(x, axis, size):
        put(results, "all", shape, block, function(x[block]))
    return results["all"] if results else function(x)


def put(
    arrays: dict[str, Array],
    name: str,
    shape: tuple[int, ...],
    index: Index,
    values: Array,
) -> None:
    """arrays[name][index] = values; the first block of a name makes its array."""
    if name not in arrays:
        arrays[name] = np.empty(shape, values.dtype, like=values)
    arrays[name][index] = values
