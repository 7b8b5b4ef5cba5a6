"""Operands on their way: panels of rows of A or of columns of B, gathered in their own
format beside the products.

A panel that is gathered is as long as k and as wide as the memory allows. Wires are
busy while the panel before is multiplied; the ranks of a group cut alike, since they
hold the same number of rows or columns or pad what they send.
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
_LEAST = 512
"""Vectors of the first panel: a product of fewer leaves a GPU idle."""


@dataclass(frozen=True)
class Panel:
    """Some rows of A or columns of B, as they stand in the part of C that this rank
    makes.
    """

    at: slice
    # begins the way over the wire, and returns what waits for its end
    start: Callable[[], Callable[[], Tensor]]


def panel_here(at: slice, x: Tensor) -> Panel:
    """A panel that lies in the memory of this rank already."""
    return Panel(at, lambda: lambda: x)


def staged(x: DTensor, side: int, needed: Placements) -> tuple[DTensor, int | None]:
    """x as it is before its last move along a dimension of the mesh, which panels make;
    None where none is left.

    Panels put pieces together, or cut vectors along k that were cut across:
    [Shard(1 - side)] becomes [Shard(side)].
    """
    move = last_move(x.placements, needed, x.device_mesh.shape)
    if move is not None:
        return x.redistribute(placements=move[0]), move[1]
    return x.redistribute(placements=needed), None


def panels_of(
    x: DTensor, side: int, needed: Placements, widest: int | None, *, coarse: bool
) -> list[Panel]:
    """The panels of rows (side 0) of A or of columns (side 1) of B, with at most so
    many vectors where that is given.

    Local panels come first, so that there is something to multiply before anything has
    arrived. `coarse`: two panels, where the other operand comes in several too.
    """
    x, dim = staged(x, side, needed)
    local = x.to_local().resolve_conj().resolve_neg()
    if dim is None:
        return (
            [panel_here(slice(0, local.shape[side]), local)]
            if local.shape[side]
            else []
        )
    mesh, cut = x.device_mesh, x.placements[dim]
    if cut != Shard(1 - side):
        return _of_shards(local, side, _whole(x, side, dim), mesh, dim, widest)
    inner, size = _whole(x, 1 - side), local.shape[side]
    if needed[dim] == Shard(side):
        full = -(-size // mesh.size(dim))
        return [
            _exchanged(local, side, at, inner, mesh, dim)
            for at in _edges(full, widest, coarse=coarse)
        ]
    return [
        _along_k(local, side, at, inner, mesh, dim)
        for at in _edges(size, widest, coarse=coarse)
    ]


def _whole(x: DTensor, axis: int, without: int | None = None) -> int:
    """The length of an axis of x before the pieces of it were cut along the last
    dimension that cuts it.
    """
    start, stop = 0, x.shape[axis]
    mesh = x.device_mesh
    cutting = [
        i for i, p in enumerate(x.placements) if p == Shard(axis) and mesh.size(i) > 1
    ]
    for i in cutting[:-1]:
        start, stop = chunk(start, stop, mesh.size(i), mesh.get_local_rank(i))
    return stop - start


def _edges(
    size: int, widest: int | None, *, coarse: bool = False, small: bool = True
) -> Iterator[slice]:
    """Panels of `size` vectors: quarters, where a GPU is busy with them, a `small` one
    first; or one and the rest.
    """
    parts = max(min(4, size // _LEAST), 1)
    if coarse:
        points = [0, size // parts, size]
    else:
        points = [size * i // parts for i in range(parts + 1)] + [
            max(size // FIRST, _LEAST)
        ] * small
    rounded = sorted(
        {min(-(-point // _MULTIPLE) * _MULTIPLE, size) for point in points}
    )
    for begin, end in pairwise(rounded):
        width = end - begin if widest is None else min(widest, end - begin)
        for start in range(begin, end, width):
            yield slice(start, min(start + width, end))


def _padded(x: Tensor, axis: int, size: int) -> Tensor:
    """x in row-major order, with zeros behind it up to a size of an axis, which all
    ranks of a gathering have.
    """
    shape = list(x.shape)
    shape[axis] = size - shape[axis]
    return (torch.cat([x, x.new_zeros(shape)], axis) if shape[axis] else x).contiguous()


def _along_k(
    local: Tensor, side: int, at: slice, inner: int, mesh: DeviceMesh, dim: int
) -> Panel:
    """Vectors whose pieces along k lie on the ranks of a group: all gather, and all
    pieces but the last are full.
    """

    def start() -> Callable[[], Tensor]:
        group, ranks = mesh.get_group(dim), mesh.size(dim)
        piece = local.narrow(side, at.start, at.stop - at.start)
        # k first, so that pieces lie one behind the other
        piece = piece if side == 1 else piece.T
        full = -(-inner // ranks)
        sent = _padded(piece, 0, full)
        whole = sent.new_empty((ranks * full, sent.shape[1]))
        # what is sent has to stay until it has arrived
        under_way = gather(whole, sent, group), sent

        def wait() -> Tensor:
            under_way[0].wait()
            return whole[:inner] if side == 1 else whole[:inner].T

        return wait

    return Panel(at, start)


def _exchanged(
    local: Tensor, side: int, at: slice, inner: int, mesh: DeviceMesh, dim: int
) -> Panel:
    """Whole vectors of this rank, whose pieces along k lie on the ranks of a group,
    while it has pieces of theirs.
    """
    ranks, own = mesh.size(dim), mesh.get_local_rank(dim)
    kept = pieces(local.shape[side], ranks)
    spans = [within(piece, at) for piece in kept]
    widths = [span.stop - span.start for span in spans]
    lengths = [piece.stop - piece.start for piece in pieces(inner, ranks)]

    def start() -> Callable[[], Tensor]:
        # k first, so that pieces lie one behind the other
        vectors = local if side == 1 else local.T
        sent = torch.cat([vectors[:, span].reshape(-1) for span in spans])
        whole = sent.new_empty(inner * widths[own])
        counts = (
            [n * widths[own] for n in lengths],
            [lengths[own] * width for width in widths],
        )
        work = dist.all_to_all_single(
            whole, sent, *counts, group=mesh.get_group(dim), async_op=True
        )
        under_way = work, sent

        def wait() -> Tensor:
            under_way[0].wait()
            made = whole.view(inner, widths[own])
            return made if side == 1 else made.T

        return wait

    first = spans[own].start - kept[own].start
    return Panel(slice(first, first + widths[own]), start)


def _of_shards(
    local: Tensor, side: int, size: int, mesh: DeviceMesh, dim: int, widest: int | None
) -> list[Panel]:
    """Whole vectors that lie on the ranks of a group: the own ones, then a piece of
    those of every other rank.
    """
    ranks, own = mesh.size(dim), mesh.get_local_rank(dim)
    spans, full = pieces(size, ranks), -(-size // ranks)
    panels = [panel_here(spans[own], local)] if local.shape[side] else []
    for at in _edges(
        full, None if widest is None else max(widest // ranks, 1), small=False
    ):
        arrival = _Arrival(local, side, at, mesh, dim)
        parts = [(i, within(span, at)) for i, span in enumerate(spans) if i != own]
        found = [
            Panel(part, arrival.of(i, part.stop - part.start))
            for i, part in parts
            if part.stop > part.start
        ]
        # this rank sends what the others multiply
        panels += found or [Panel(slice(0, 0), arrival.of(own, 0))]
    return panels


class _Arrival:
    """One gathering, from which several panels are taken."""

    def __init__(
        self, local: Tensor, side: int, at: slice, mesh: DeviceMesh, dim: int
    ) -> None:
        self._local, self._side, self._at, self._mesh, self._dim = (
            local,
            side,
            at,
            mesh,
            dim,
        )
        self._begun: tuple[Tensor, Tensor, Any] | None = None
        # panels, after which nothing but the panels themselves keeps what is gathered
        self._to_start = 0

    def of(self, rank: int, count: int) -> Callable[[], Callable[[], Tensor]]:
        """The vectors of one rank; the first one that is asked for starts the
        gathering, the last one ends it.
        """
        self._to_start += 1

        def start() -> Callable[[], Tensor]:
            begun = self._begun or self._start()
            self._to_start -= 1
            self._begun = begun if self._to_start else None

            def wait() -> Tensor:
                whole, _, work = begun
                work.wait()
                return whole[rank].narrow(self._side, 0, count)

            return wait

        return start

    def _start(self) -> tuple[Tensor, Tensor, Any]:
        local, side, (begin, end) = (
            self._local,
            self._side,
            (self._at.start, self._at.stop),
        )
        count = max(min(end, local.shape[side]) - begin, 0)
        sent = _padded(
            local.narrow(side, min(begin, local.shape[side]), count), side, end - begin
        )
        ranks = self._mesh.size(self._dim)
        whole = sent.new_empty((ranks * len(sent), sent.shape[1]))
        return (
            whole.view(ranks, *sent.shape),
            sent,
            gather(whole, sent, self._mesh.get_group(self._dim)),
        )
