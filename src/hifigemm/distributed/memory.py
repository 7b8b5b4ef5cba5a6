"""What a rank holds during a product on a mesh, in bytes, as its plan says it before
anything is allocated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hifigemm.distributed.layout import Layout, Placements, extent, last_move
from hifigemm.numerics.scaling import NORM_BLOCK

SHARES = {"panels": 4, "residues": 4, "products": 2}
"""A workspace is divided by these for panels on their way, residues that serve several
products, and products.
"""
UNDER_WAY = 5
"""Copies of a panel: one is multiplied, two are under way, with what this rank sends of
them, half as much at most.
"""


def share(workspace: int | None, what: str) -> int | None:
    """The part of a workspace for `what`; None where it has no limit."""
    return None if workspace is None else max(workspace // SHARES[what], 1)


@dataclass(frozen=True)
class Memory:
    """Bytes that the rank with the largest shards holds at a time; printable."""

    operands: int  # the shards that the caller has anyhow
    # once more where it is asked for in other placements than those in which it is made
    result: int
    moved: int  # what travels and has to be there as a whole
    residues: int  # of operands, where no workspace limits them
    # for everything else; None for the default of each product of a rank
    workspace: int | None

    @property
    def total(self) -> int:
        """All but products without a workspace, which take what is free."""
        return (
            self.operands
            + self.result
            + self.moved
            + self.residues
            + (self.workspace or 0)
        )

    def __str__(self) -> str:
        named = (
            (self.operands, "operands"),
            (self.result, "C"),
            (self.moved, "operands that travelled"),
            (self.residues, "residues"),
            (self.workspace or 0, "workspace"),
        )
        parts = ", ".join(
            f"{_size(nbytes)} of {what}" for nbytes, what in named if nbytes
        )
        rest = (
            ""
            if self.workspace
            else ", and the default workspace of its products, at most half of what is free"
        )
        return f"a rank holds {_size(self.total)}: {parts}{rest}"


def memory_of(
    layout: Layout,
    itemsize: int,
    left: Placements,
    right: Placements,
    planes: int,
    workspace: int | None,
) -> Memory:
    """What a rank holds in a layout of operands with these placements; `planes`
    residues or slices are an entry's.
    """
    m, n, k = layout.shape
    mesh, sums = layout.mesh, "k" in layout.roles
    given = _entries((m, k), left, mesh), _entries((k, n), right, mesh)
    needed = _entries((m, k), layout.left, mesh), _entries((k, n), layout.right, mesh)
    travels = [nbytes > 0 for nbytes in layout.gathered]
    whole = (m * k, k * n)
    is_even = k % (NORM_BLOCK * layout.ranks("k")) == 0
    moved = residues = 0
    for i, (old, new) in enumerate(
        zip((left, right), (layout.left, layout.right), strict=True)
    ):
        move = last_move(old, new, mesh)
        if sums:
            moved += needed[i] * (travels[i] + 2 * (not is_even))
        elif travels[i] and (move is None or move[0] != old):
            # DTensor moves it, and may gather all of it for that
            moved += needed[i] + whole[i]
        elif travels[i] and workspace is None:
            moved += needed[i] + given[i]
        elif i == 0 and all(travels):
            # each panel of A meets the panels of B that arrive later
            moved += needed[i]
        if workspace is None:
            residues += planes * needed[i] if sums or travels[1 - i] else 0
    own = _entries((m, n), layout.own, mesh)
    result = own + (
        _entries((m, n), layout.result, mesh) if layout.result != layout.own else 0
    )
    return Memory(
        itemsize * sum(given), itemsize * result, itemsize * moved, residues, workspace
    )


def of_sums(layout: Layout, planes: int) -> int:
    """Bytes that sums over ranks take at least: residues of the pieces of A and B, and
    those of C that travel.
    """
    rows, cols, inner = (
        -(-size // layout.ranks(role))
        for size, role in zip(layout.shape, "mnk", strict=True)
    )
    return planes * ((rows + cols + NORM_BLOCK) * inner + 9 * rows * cols) + 2**22


def _entries(
    shape: tuple[int, int], placements: Placements, mesh: tuple[int, ...]
) -> int:
    """Entries of the largest shard, which is the first."""
    return math.prod(
        extent(size, axis, placements, mesh, [0] * len(mesh)).stop
        for axis, size in enumerate(shape)
    )


def _size(nbytes: int) -> str:
    return (
        f"{nbytes / 2**30:.3g} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.3g} MiB"
    )
