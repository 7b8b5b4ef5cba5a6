"""Panels of rows of A or columns of B, which travel while other panels are multiplied.

A gathered panel is as long as k and as wide as the memory allows, in the format of its
operand. All ranks of a group cut an operand at the same places, because they hold the
same number of rows or columns or pad what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hifigemm.distributed.collectives import gather
from hifigemm.distributed.layout import (
    FIRST,
    Placements,
    chunk,
    last_move,
    pieces,
    within,
)

_MULTIPLE = 256
"""Panels begin at multiples of it, as tiles of products on a GPU do."""
_MIN_WIDTH = 512
"""Vectors of the first panel: a product of fewer leaves a GPU idle."""


@dataclass(frozen=True)
class Panel:
    """Some rows of A or columns of B."""

    # their numbers in the part of C that this rank computes
    span: slice
    # begins the way over the wire, and returns a function that waits for its end
    start: Callable[[], Callable[[], Tensor]]


def panel_here(span: slice, x: Tensor) -> Panel:
    """A panel that lies in the memory of this rank already."""
    return Panel(span, lambda: lambda: x)


def before_last_move(x: DTensor, needed: Placements) -> tuple[DTensor, int | None]:
    """x before its last move along one dimension of the mesh, and that dimension.

    Panels make this move. For None x has the needed placements, with no move left.
    """
    move = last_move(x.placements, needed, x.device_mesh.shape)
    if move is None:
        return x.redistribute(placements=needed), None
    placements, dim = move
    return x.redistribute(placements=placements), dim


def panels_of(
    x: DTensor, side: int, needed: Placements, widest: int | None, *, coarse: bool
) -> list[Panel]:
    """The panels of rows (side 0) of A or of columns (side 1) of B.

    A panel has at most `widest` vectors unless that is None. Local panels come first,
    so that there is something to multiply before anything has arrived. With `coarse`
    there are two panels, for an operand whose partner comes in panels too.
    """
    x, dim = before_last_move(x, needed)
    local = x.to_local().resolve_conj().resolve_neg()
    num_vectors = local.shape[side]
    if dim is None:
        if not num_vectors:
            return []
        return [panel_here(slice(0, num_vectors), local)]

    # Each rank of the group holds whole vectors, which all ranks need.
    mesh = x.device_mesh
    if x.placements[dim] != Shard(1 - side):
        size = _length_in_group(x, side)
        return _panels_of_shards(local, side, size, mesh, dim, widest)

    # Each rank holds a piece of every vector along k. In the end it needs either some
    # of the vectors or all of them.
    inner = _length_in_group(x, 1 - side)
    if needed[dim] == Shard(side):
        cuts = _cuts(-(-num_vectors // mesh.size(dim)), widest, coarse=coarse)
        return [_exchanged(local, side, cut, inner, mesh, dim) for cut in cuts]
    cuts = _cuts(num_vectors, widest, coarse=coarse)
    return [_gathered_along_k(local, side, cut, inner, mesh, dim) for cut in cuts]


def _length_in_group(x: DTensor, axis: int) -> int:
    """The length of an axis that the ranks of the last dimension to cut it share."""
    mesh = x.device_mesh
    dims = [
        i for i, p in enumerate(x.placements) if p == Shard(axis) and mesh.size(i) > 1
    ]
    start = 0
    stop = x.shape[axis]
    for dim in dims[:-1]:
        start, stop = chunk(start, stop, mesh.size(dim), mesh.get_local_rank(dim))
    return stop - start


def _cuts(
    size: int, widest: int | None, *, coarse: bool = False, small: bool = True
) -> Iterator[slice]:
    """Panels of `size` vectors, as ranges.

    They are quarters if a GPU is busy with them, with `small` a smaller one first; with
    `coarse` one quarter, then all others together.
    """
    parts = max(min(4, size // _MIN_WIDTH), 1)
    if coarse:
        points = [0, size // parts, size]
    else:
        points = [size * i // parts for i in range(parts + 1)]
        if small:
            points.append(max(size // FIRST, _MIN_WIDTH))
    edges = sorted({min(-(-x // _MULTIPLE) * _MULTIPLE, size) for x in points})
    for begin, end in pairwise(edges):
        width = end - begin if widest is None else min(widest, end - begin)
        for start in range(begin, end, width):
            yield slice(start, min(start + width, end))


def _padded(x: Tensor, axis: int, size: int) -> Tensor:
    """x in row-major order, with zeros after it up to `size` along an axis.

    All ranks of a gathering send the same size.
    """
    shape = list(x.shape)
    shape[axis] = size - shape[axis]
    if shape[axis]:
        x = torch.cat([x, x.new_zeros(shape)], axis)
    return x.contiguous()


def _gathered_along_k(
    local: Tensor, side: int, cut: slice, inner: int, mesh: DeviceMesh, dim: int
) -> Panel:
    """A panel of vectors whose pieces along k lie on the ranks of a group.

    All ranks gather all pieces.
    """

    def start() -> Callable[[], Tensor]:
        ranks = mesh.size(dim)
        piece = local.narrow(side, cut.start, cut.stop - cut.start)
        # k first, so that the pieces of the ranks lie one after the other.
        piece = piece if side == 1 else piece.T
        length = -(-inner // ranks)
        sent = _padded(piece, 0, length)
        whole = sent.new_empty((ranks * length, sent.shape[1]))
        # The memory that is sent has to stay until it has arrived.
        under_way = gather(whole, sent, mesh.get_group(dim)), sent

        def wait() -> Tensor:
            under_way[0].wait()
            return whole[:inner] if side == 1 else whole[:inner].T

        return wait

    return Panel(cut, start)


def _exchanged(
    local: Tensor, side: int, cut: slice, inner: int, mesh: DeviceMesh, dim: int
) -> Panel:
    """A panel of whole vectors of this rank, whose pieces lie on the ranks of a group.

    In exchange this rank sends its pieces of the vectors of the others.
    """
    ranks = mesh.size(dim)
    rank = mesh.get_local_rank(dim)
    vectors_of_ranks = pieces(local.shape[side], ranks)
    spans = [within(vectors, cut) for vectors in vectors_of_ranks]
    widths = [span.stop - span.start for span in spans]
    lengths = [piece.stop - piece.start for piece in pieces(inner, ranks)]

    def start() -> Callable[[], Tensor]:
        # k first, so that the pieces of the ranks lie one after the other.
        vectors = local if side == 1 else local.T
        sent = torch.cat([vectors[:, span].reshape(-1) for span in spans])
        whole = sent.new_empty(inner * widths[rank])
        work = dist.all_to_all_single(
            whole,
            sent,
            [length * widths[rank] for length in lengths],
            [lengths[rank] * width for width in widths],
            group=mesh.get_group(dim),
            async_op=True,
        )
        # The memory that is sent has to stay until it has arrived.
        under_way = work, sent

        def wait() -> Tensor:
            under_way[0].wait()
            panel = whole.view(inner, widths[rank])
            return panel if side == 1 else panel.T

        return wait

    first = spans[rank].start - vectors_of_ranks[rank].start
    return Panel(slice(first, first + widths[rank]), start)


def _panels_of_shards(
    local: Tensor, side: int, size: int, mesh: DeviceMesh, dim: int, widest: int | None
) -> list[Panel]:
    """Panels of whole vectors that lie on the ranks of a group.

    The vectors of this rank come first, then panels of the vectors of every other rank.
    """
    ranks = mesh.size(dim)
    this_rank = mesh.get_local_rank(dim)
    spans = pieces(size, ranks)
    panels = []
    if local.shape[side]:
        panels.append(panel_here(spans[this_rank], local))
    if widest is not None:
        widest = max(widest // ranks, 1)
    for cut in _cuts(-(-size // ranks), widest, small=False):
        gathering = _Gathering(local, side, cut, mesh, dim)
        gathered = []
        for rank, span in enumerate(spans):
            part = within(span, cut)
            if rank != this_rank and part.stop > part.start:
                start = gathering.starter(rank, part.stop - part.start)
                gathered.append(Panel(part, start))
        # Without a panel for itself, this rank still sends those for the others.
        if not gathered:
            gathered.append(Panel(slice(0, 0), gathering.starter(this_rank, 0)))
        panels += gathered
    return panels


class _Gathering:
    """The vectors of one cut of all ranks of a group, gathered for several panels."""

    def __init__(
        self, local: Tensor, side: int, cut: slice, mesh: DeviceMesh, dim: int
    ) -> None:
        self._local = local
        self._side = side
        self._cut = cut
        self._mesh = mesh
        self._dim = dim
        # vectors by rank, the memory that is sent, and the work
        self._under_way: tuple[Tensor, Tensor, Any] | None = None
        # panels that have yet to start; after them this object holds no memory
        self._num_waiting = 0

    def starter(self, rank: int, count: int) -> Callable[[], Callable[[], Tensor]]:
        """`Panel.start` for `count` vectors of one rank.

        The first panel starts the gathering.
        """
        self._num_waiting += 1

        def start() -> Callable[[], Tensor]:
            under_way = self._under_way or self._start()
            self._num_waiting -= 1
            self._under_way = under_way if self._num_waiting else None

            def wait() -> Tensor:
                vectors, _, work = under_way
                work.wait()
                return vectors[rank].narrow(self._side, 0, count)

            return wait

        return start

    def _start(self) -> tuple[Tensor, Tensor, Any]:
        """Vectors by rank, the memory that is sent, and the work that gathers them."""
        num_vectors = self._local.shape[self._side]
        begin = min(self._cut.start, num_vectors)
        end = min(self._cut.stop, num_vectors)
        part = self._local.narrow(self._side, begin, end - begin)
        sent = _padded(part, self._side, self._cut.stop - self._cut.start)
        ranks = self._mesh.size(self._dim)
        whole = sent.new_empty((ranks * len(sent), sent.shape[1]))
        work = gather(whole, sent, self._mesh.get_group(self._dim))
        return whole.view(ranks, *sent.shape), sent, work
