"""Spans of k: sums of words over a long k that are made side by side and added at the
end.

Where the result has few entries, only a cut along k gives all multiprocessors of a GPU
something to do. FP32 sums depend on where k is cut, so the cut is a function of the
shape alone, the same for every engine and GPU: the number of multiprocessors, the tile
and the size of a block of the result have no part in it.
"""

from __future__ import annotations

import math

_PARTS = 128
"""Parts of a product that are made side by side: the multiprocessors of a large GPU, 132
on an H100, 108 on an A100, down to the next power of two.
"""
_TILE = 128
"""Rows and columns of the result in such a part, the tile at which kernels are quickest."""
_SHORTEST = 4096
"""Terms of a span at least: it takes 20 us on an H100, several times what the addition
of all spans takes.
"""
_LONG = 2**15
"""k from which on it is cut, so that products with a shorter k are one sum."""
_GRID = 256
"""Spans are whole blocks of k, and of so many terms, so that blocks of different lengths
mostly have the same spans.
"""


def num_spans(k: int, span: int) -> int:
    """How many spans of so many terms k has; one where `span` is 0."""
    return -(-k // span) if span else 1


def span_length(m: int, n: int, k: int, block: int) -> int:
    """Number of terms of a span of k; 0 where all of k is one.

    The result has m x n real entries, and `block` terms of k make a sum of their own.
    The last span may be shorter. The sums of all spans have at most
    `_PARTS` x `_TILE` x `_TILE` entries, 8 MiB in FP32, whatever k is.
    """
    tiles = -(-m // _TILE) * -(-n // _TILE)
    spans = min(_PARTS // max(tiles, 1), k // _SHORTEST)
    if k < _LONG or spans < 2:
        return 0
    whole = math.lcm(block, _GRID)
    length = -(-k // (spans * whole)) * whole
    return length if length < k else 0
