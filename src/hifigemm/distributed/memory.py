"""Bytes that a rank holds during a product on a mesh, known before it allocates any."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hifigemm.distributed.layout import (
    Layout,
    MeshProduct,
    Placements,
    extent,
)
from hifigemm.numerics.scaling import NORM_BLOCK

SHARES = {"panels": 4, "residues": 4, "products": 2}
"""Divisors of a workspace: the share of panels on their way, of residues that serve
several products, and of products.
"""
UNDER_WAY = 5
"""Copies of a panel: one is multiplied and two are on their way, and this rank sends at
most as much.
"""


def share(workspace: int | None, purpose: str) -> int | None:
    """The part of a workspace for one of `SHARES`; None if there is no limit."""
    return None if workspace is None else max(workspace // SHARES[purpose], 1)


@dataclass(frozen=True)
class Memory:
    """Bytes that the rank with the largest shards holds at a time; printable."""

    operands: int  # the shards that the caller holds anyhow
    # C, and once more if the caller wants other placements than the products leave
    result: int
    moved: int  # operands that travel and are needed as a whole
    residues: int  # residues of operands, if no workspace limits them
    # everything else; None for the default of each product of a rank
    workspace: int | None

    @property
    def total(self) -> int:
        """Sum of all; without a workspace, products take what is free besides."""
        named = self.operands + self.result + self.moved + self.residues
        return named + (self.workspace or 0)

    def __str__(self) -> str:
        amounts = (
            (self.operands, "operands"),
            (self.result, "C"),
            (self.moved, "operands that travelled"),
            (self.residues, "residues"),
            (self.workspace or 0, "workspace"),
        )
        parts = [f"{_size(nbytes)} of {name}" for nbytes, name in amounts if nbytes]
        if not self.workspace:
            parts.append(
                "and the default workspace of its products, at most half of what is free"
            )
        return f"a rank holds {_size(self.total)}: {', '.join(parts)}"


def memory_of(layout: Layout, call: MeshProduct, workspace: int | None) -> Memory:
    """Bytes that a rank holds during a product in one of its layouts."""
    m, n, k = layout.shape
    mesh = layout.mesh
    is_sum = "k" in layout.roles
    is_even = k % (NORM_BLOCK * layout.ranks("k")) == 0
    travels = [nbytes > 0 for nbytes in layout.gathered]
    streamed = layout.streamed

    shards = 0
    moved = 0
    residues = 0
    operands = (
        ((m, k), call.left, layout.left),
        ((k, n), call.right, layout.right),
    )
    for i, (shape, old, new) in enumerate(operands):
        shard = _entries(shape, old, mesh)
        needed = _entries(shape, new, mesh)
        shards += shard

        # Entries that travel and are needed as a whole.
        if is_sum:
            # Uneven pieces of k are exchanged first, which takes two more copies.
            moved += needed * (travels[i] + 2 * (not is_even))
        elif travels[i] and workspace is None:
            # What is sent lies in a row, which the shard may not.
            moved += needed + shard
        elif travels[i] and i != streamed:
            # It meets all panels of the other operand.
            moved += needed + shard

        # Residues that serve several products.
        if workspace is None and (is_sum or (travels[1 - i] and i != streamed)):
            residues += call.planes * needed

    result = _entries((m, n), layout.own, mesh)
    if layout.result != layout.own:
        result += _entries((m, n), layout.result, mesh)
    return Memory(
        operands=call.itemsize * shards,
        result=call.itemsize * result,
        moved=call.itemsize * moved,
        residues=residues,
        workspace=workspace,
    )


def of_sums(layout: Layout, planes: int) -> int:
    """Bytes that sums over ranks take at least.

    These are residues of the pieces of A and B, and residues of C that travel.
    """
    m, n, k = layout.shape
    rows = -(-m // layout.ranks("m"))
    cols = -(-n // layout.ranks("n"))
    inner = -(-k // layout.ranks("k"))
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
    """Bytes in a unit that is easy to read."""
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.3g} GiB"
    return f"{nbytes / 2**20:.3g} MiB"
