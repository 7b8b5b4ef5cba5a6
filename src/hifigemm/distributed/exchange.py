"""Which rectangles of an operand travel between which ranks of a mesh.

Each rank of a mesh holds a rectangle of an operand, and multiplies another one, which
the roles of the mesh's dimensions give: whole rows of A, whole columns of B. What it
lacks comes from ranks that hold it, in panels of some of its rows or columns. All of
this follows from shapes, placements and the mesh, so that every rank knows what every
other one sends and receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from torch.distributed.tensor import Replicate

from hifigemm.distributed.layout import Placements, extent
from hifigemm.distributed.panels import Pace, growing


class Rectangle(NamedTuple):
    """Rows and columns of a matrix."""

    rows: slice
    cols: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return (
            self.rows.stop - self.rows.start,
            self.cols.stop - self.cols.start,
        )

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """The first row and the one behind the last, and the same of columns."""
        return self.rows.start, self.rows.stop, self.cols.start, self.cols.stop

    @property
    def is_empty(self) -> bool:
        """True if it has no entries."""
        return 0 in self.shape

    def common(self, other: Rectangle) -> Rectangle:
        """The rectangle that lies in both."""
        return Rectangle(_common(self.rows, other.rows), _common(self.cols, other.cols))

    def inside(self, other: Rectangle) -> Rectangle:
        """The same rectangle, counted from the first row and column of another one."""
        return Rectangle(
            _shifted(self.rows, -other.rows.start),
            _shifted(self.cols, -other.cols.start),
        )


class Piece(NamedTuple):
    """A rectangle of the matrix that one rank of the mesh sends to another one, or
    copies for itself.

    Ranks are counted row by row through the mesh.
    """

    source: int
    target: int
    where: Rectangle


@dataclass(frozen=True)
class Panel:
    """The part that each rank multiplies next: some whole rows of A, or columns of B."""

    regions: tuple[Rectangle, ...]  # of the matrix, by rank; some may be empty
    pieces: tuple[Piece, ...]  # that fill the regions

    @cached_property
    def travels(self) -> bool:
        """True if a rank lacks a piece."""
        return any(piece.source != piece.target for piece in self.pieces)


@dataclass(frozen=True)
class Exchange:
    """How all ranks of a mesh come to what they multiply of an operand.

    `side` is 0 for A, whose rows are its vectors, and 1 for B with its columns.
    """

    side: int
    held: tuple[Rectangle, ...]  # by rank
    needed: tuple[Rectangle, ...]  # by rank
    panels: tuple[Panel, ...]

    @property
    def travels(self) -> bool:
        """True if a rank lacks a piece of what it needs."""
        return any(panel.travels for panel in self.panels)

    def in_shard(self, panel: Panel, rank: int) -> Rectangle | None:
        """Where a panel of a rank lies in its own shard; None if it lacks a piece."""
        region = panel.regions[rank]
        shard = self.held[rank]
        return region.inside(shard) if region.common(shard) == region else None

    def span(self, panel: Panel, rank: int) -> slice:
        """The vectors of a panel, counted from the first that a rank needs."""
        return _shifted(
            panel.regions[rank][self.side], -self.needed[rank][self.side].start
        )


def exchange_of(
    shape: tuple[int, int],
    side: int,
    placements: Placements,
    needed: Placements,
    mesh: tuple[int, ...],
    *,
    pace: Pace | None = None,
    widest: int | None = None,
) -> Exchange:
    """The exchange of an operand from its placements to those that are needed.

    Parameters
    ----------
    shape : tuple of int
        Of the whole matrix.
    pace : Pace, optional
        By which small panels come first: nothing is multiplied while the first one
        travels. None: each rank gets its part as one panel.
    widest : int, optional
        Vectors of a panel at most.
    """
    ranks = list(product(*map(range, mesh)))
    held = tuple(_part(shape, placements, mesh, rank) for rank in ranks)
    parts = tuple(_part(shape, needed, mesh, rank) for rank in ranks)
    sources = []
    regions_by_rank = []
    for rank, part in enumerate(parts):
        sources.append(_sources(rank, ranks, held, part, placements))
        spans = [part[side]]
        if pace is not None and not part.is_empty:
            shards = [held[source] for source in sources[rank]]
            spans = _spans(part, side, held[rank], shards, pace)
        regions_by_rank.append(list(_cut(part, side, spans, widest)))
    panels = []
    for index in range(max(map(len, regions_by_rank))):
        regions = tuple(
            of_rank[index] if index < len(of_rank) else _nothing(part)
            for of_rank, part in zip(regions_by_rank, parts, strict=True)
        )
        pieces = [
            Piece(source, target, rectangle)
            for target, region in enumerate(regions)
            for source in sources[target]
            if not (rectangle := held[source].common(region)).is_empty
        ]
        panels.append(Panel(regions, tuple(pieces)))
    return Exchange(side, held, parts, tuple(panels))


def _part(
    shape: tuple[int, int],
    placements: Placements,
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
) -> Rectangle:
    """The rectangle that the rank with this coordinate holds."""
    rows, cols = (
        extent(size, axis, placements, mesh, coordinate)
        for axis, size in enumerate(shape)
    )
    return Rectangle(rows, cols)


def _sources(
    rank: int,
    ranks: Sequence[tuple[int, ...]],
    held: Sequence[Rectangle],
    needed: Rectangle,
    placements: Placements,
) -> list[int]:
    """The ranks whose rectangles together hold each needed entry once, first this rank
    and then those after it, so that all ranks send to different ones at a time.

    Of equal rectangles it is the one along this rank's own dimensions of the mesh.
    """
    sources = []
    for step in range(len(ranks)):
        source = (rank + step) % len(ranks)
        is_nearest = all(
            i == j
            for i, j, p in zip(ranks[source], ranks[rank], placements, strict=True)
            if isinstance(p, Replicate)
        )
        if is_nearest and not held[source].common(needed).is_empty:
            sources.append(source)
    return sources


def _spans(
    needed: Rectangle,
    side: int,
    own_shard: Rectangle,
    shards: Sequence[Rectangle],
    pace: Pace,
) -> list[slice]:
    """The vectors of the panels of a rank, in the order in which it multiplies them;
    `shards` are those of its sources.

    Where ranks hold different vectors, a panel has those of one source, or of several
    that share them, this rank's own first. Where they hold pieces of the same vectors,
    the first panel is small: nothing is multiplied while it travels.
    """
    spans: list[slice] = []
    for shard in shards:
        span = _common(shard[side], needed[side])
        if span not in spans:
            spans.append(span)
    first_span, *later_spans = spans
    held_part = own_shard.common(needed)
    is_whole = held_part[1 - side] == needed[1 - side]
    if held_part[side] == first_span and is_whole:
        return spans
    widths = growing(first_span.stop - first_span.start, pace)
    return [*(_shifted(x, first_span.start) for x in widths), *later_spans]


def _cut(
    needed: Rectangle, side: int, spans: Sequence[slice], widest: int | None
) -> Iterator[Rectangle]:
    """Rectangles with these vectors, none of more than `widest`."""
    for span in spans:
        size = span.stop - span.start
        width = max(size, 1) if widest is None else min(widest, max(size, 1))
        # An empty one is a panel too.
        for start in range(span.start, max(span.stop, span.start + 1), width):
            part = slice(start, min(start + width, span.stop))
            yield (
                Rectangle(part, needed.cols)
                if side == 0
                else Rectangle(needed.rows, part)
            )


def _common(x: slice, y: slice) -> slice:
    """The range that lies in both; an empty one begins where the second does."""
    start = max(x.start, y.start)
    stop = min(x.stop, y.stop)
    return slice(start, stop) if start < stop else slice(y.start, y.start)


def _shifted(x: slice, by: int) -> slice:
    return slice(x.start + by, x.stop + by)


def _nothing(needed: Rectangle) -> Rectangle:
    """An empty rectangle at the start of a part."""
    rows, cols = needed
    return Rectangle(slice(rows.start, rows.start), slice(cols.start, cols.start))
