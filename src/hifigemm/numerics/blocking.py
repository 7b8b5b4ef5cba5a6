"""Operands a few rows or columns at a time, so that working copies stay in the cache
and out of the workspace.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hifigemm.numerics.bits import Array

BLOCK_ENTRIES = 16384
"""Entries that are worked on at a time where memory is no concern: their copies stay in
the second-level cache.
"""

_LEAST_VECTORS = 8
_ON_DEVICE = 2**24
"""Entries at a time where each time takes launches."""

Where = tuple[slice, ...]


def entries_within(workspace: int, limit: int = BLOCK_ENTRIES) -> int:
    """Entries to work on at a time within so many bytes, at most `limit`."""
    return min(max(workspace // 1024, 64), limit)


def vector_blocks(x: Array, axis: int, size: int = BLOCK_ENTRIES) -> list[Where]:
    """Indices of x (batch, m, k) or (batch, k, n): whole vectors along `axis`, about
    `size` entries at a time.
    """
    batch, vectors, k = x.shape[0], x.shape[3 - axis], x.shape[axis]
    many = largest_block(k, size) // max(k, 1)
    stack = max(many // max(vectors, 1), 1)
    found: list[Where] = []
    for z in range(0, batch, stack):
        for i in range(0, vectors, many):
            matrices, where = slice(z, z + stack), slice(i, min(i + many, vectors))
            found.append(
                (matrices, where) if axis == 2 else (matrices, slice(None), where)
            )
    return found


def parts_of(x: Array, size: int = BLOCK_ENTRIES) -> list[Where]:
    """Rows of the matrices of a stack for one pass over it: few on the host, many where
    each part takes launches.
    """
    return vector_blocks(x, 2, size if isinstance(x, np.ndarray) else _ON_DEVICE)


def largest_block(k: int, size: int) -> int:
    """Largest number of entries of a part: `size`, but a vector of length k, or eight
    of them for large sizes.
    """
    return max(size, (_LEAST_VECTORS if size >= BLOCK_ENTRIES else 1) * k)


def widen(where: Where, width: int) -> Where:
    """The same part of an array that has `width` vectors for each."""
    *rest, last = where
    return (*rest, slice(last.start * width, last.stop * width))


def map_vectors(
    function: Callable[[Array], Array], x: Array, axis: int, size: int = BLOCK_ENTRIES
) -> Array:
    """function of each part, which gives one number a vector with `axis` kept, as one
    array.
    """
    if x.size <= size:
        return function(x)
    shape = (x.shape[0], x.shape[1], 1) if axis == 2 else (x.shape[0], 1, x.shape[2])
    found: dict[str, Array] = {}
    for where in vector_blocks(x, axis, size):
        put(found, "all", shape, where, function(x[where]))
    return found["all"] if found else function(x)


def put(
    arrays: dict[str, Array],
    name: str,
    shape: tuple[int, ...],
    where: Where,
    values: Array,
) -> None:
    """arrays[name][where] = values, the array being made when its first part comes."""
    if name not in arrays:
        arrays[name] = np.empty(shape, values.dtype, like=values)
    arrays[name][where] = values
