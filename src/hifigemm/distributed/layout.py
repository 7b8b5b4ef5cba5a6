"""How a product is spread over a mesh: who makes which part, what crosses the wire for
it, and what that takes.

Each dimension of the mesh has a role: the rows of C are cut along it ("m"), its columns
("n"), or the inner dimension ("k"), whose partial sums are added up over the wire. The
roles with the least seconds of a simple model are taken:

    seconds = max(products, pipelined wire) + the first panel + what is moved beforehand
    and afterwards,

bytes over a rate and a latency for each message (the alpha-beta model). The model knows
shapes, placements, the mesh and the kind of device alone, so that all ranks come to the
same layout. No bit depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.numerics.scaling import NORM_BLOCK

Placements = tuple[Placement, ...]

_ROLES = {
    "m": (Shard(0), Replicate()),
    "n": (Replicate(), Shard(1)),
    "k": (Shard(1), Shard(0)),
}
"""Placements of A and B along a dimension of the mesh with this role."""
FIRST = 16
"""The first panel of an operand is this part of it: nothing can hide its way over the
wire.
"""


@dataclass(frozen=True)
class Wire:
    """Rates of one kind of device behind the model; sustained."""

    bandwidth: float  # bytes a second that a rank receives while all do
    latency: float  # seconds of a collective
    int8: float  # operations a second of the residue products, 2 m n k for each modulus
    converted: float  # seconds of an entry of an operand that becomes residues
    made: float  # seconds of an entry of the result
    # seconds of a residue of a partial sum that is packed, unpacked and added
    added: float


WIRES = {
    # H200 with NVLink and NCCL 2.28: 205 to 330 GB/s from 32 MiB to 2 GiB, the same for
    # all dtypes.
    "cuda": Wire(
        bandwidth=3.0e11,
        latency=3e-5,
        int8=1.4e15,
        converted=8.2e-12,
        made=5.6e-12,
        added=1.6e-12,
    ),
    # Processes of one host with gloo, one core each.
    "cpu": Wire(
        bandwidth=1.0e9,
        latency=2e-4,
        int8=4.0e10,
        converted=5e-8,
        made=2e-7,
        added=5e-9,
    ),
}


def chunk(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """The piece of a range that `Shard` gives to one of some ranks: all pieces but the
    last ones are equally long.
    """
    length = -(-(stop - start) // parts)
    return min(start + index * length, stop), min(start + (index + 1) * length, stop)


def pieces(size: int, ranks: int) -> list[slice]:
    """The pieces of so many rows or columns that `Shard` gives to the ranks of a
    group.
    """
    return [slice(*chunk(0, size, ranks, rank)) for rank in range(ranks)]


def within(piece: slice, at: slice) -> slice:
    """A part of a piece, counted from its beginning, as far as the piece goes."""
    return slice(
        min(piece.start + at.start, piece.stop), min(piece.start + at.stop, piece.stop)
    )


def extent(
    size: int,
    axis: int,
    placements: Sequence[Placement],
    mesh: Sequence[int],
    at: Sequence[int],
) -> slice:
    """What the rank at some place of the mesh has of an axis."""
    start, stop = 0, size
    for placement, parts, index in zip(placements, mesh, at, strict=True):
        if placement == Shard(axis):
            start, stop = chunk(start, stop, parts, index)
    return slice(start, stop)


@dataclass(frozen=True)
class Layout:
    """The roles of the dimensions of a mesh in one product, and the seconds and bytes
    of the model; printable.
    """

    roles: tuple[str, ...]
    shape: tuple[int, int, int]  # m, n, k
    mesh: tuple[int, ...]
    result: Placements  # as the caller gets it
    gathered: tuple[int, int]  # bytes of A and B that a rank receives
    partial: int  # bytes of residues of partial sums that a rank receives
    # bytes of the result that a rank receives, for placements that were asked for
    moved: int
    products: float  # seconds of the products of a rank
    seconds: float  # of all

    @property
    def left(self) -> Placements:
        """Placements with which A is multiplied."""
        return tuple(_ROLES[role][0] for role in self.roles)

    @property
    def right(self) -> Placements:
        """Placements with which B is multiplied."""
        return tuple(_ROLES[role][1] for role in self.roles)

    @property
    def own(self) -> Placements:
        """Placements in which the products leave C: a sum over k leaves each of its
        ranks a part of the sums.
        """
        return own_placements(self.roles)

    def ranks(self, role: str) -> int:
        """How many ranks share what this role cuts."""
        return math.prod(
            size for size, own in zip(self.mesh, self.roles, strict=True) if own == role
        )

    def __str__(self) -> str:
        words = {
            "m": "rows of A and C",
            "n": "columns of B and C",
            "k": "the inner dimension",
        }
        dims = ", ".join(
            f"{size} ranks share {words[role]}"
            for size, role in zip(self.mesh, self.roles, strict=True)
        )
        amounts = zip(
            (*self.gathered, self.partial, self.moved),
            ("A", "B", "residues of sums", "C"),
            strict=True,
        )
        parts = [
            f"{nbytes / 2**20:.3g} MiB of {what}" for nbytes, what in amounts if nbytes
        ]
        wire = "receives " + (", ".join(parts) or "nothing")
        share = self.products / self.seconds if self.seconds else 1.0
        times = (
            f"{1e3 * self.products:.3g} ms of products, "
            f"{1e3 * self.seconds:.3g} ms in all ({share:.0%}) by the model"
        )
        return f"{dims}; a rank {wire}; {times}"


def own_placements(roles: Sequence[str]) -> Placements:
    """See `Layout.own`: sums over k are cut along the axis of C that nothing else
    cuts.
    """
    taken = {"m": Shard(0), "n": Shard(1)}
    axes = [taken[role] for role in roles if role != "k"]
    found: list[Placement] = []
    for role in roles:
        free = [axis for axis in taken.values() if axis not in axes]
        if role == "k":
            axes.append(free[0])
        found.append(free[0] if role == "k" else taken[role])
    return tuple(found)


def received(size: int, old: Placements, new: Placements, mesh: Sequence[int]) -> float:
    """The part of an array of `size` bytes that a rank receives where its placements
    change.
    """
    needed, there = float(size), 1.0
    for before, after, parts in zip(old, new, mesh, strict=True):
        if isinstance(after, Shard):
            needed /= parts
        if isinstance(before, Shard) and before != after:
            there /= parts
    return needed * (1.0 - there)


def _moves_once(old: Placements, new: Placements) -> bool:
    """Whether an operand moves along one dimension of the mesh, which panels do."""
    return sum(before != after for before, after in zip(old, new, strict=True)) < 2


def last_move(
    old: Placements, needed: Placements, mesh: Sequence[int]
) -> tuple[Placements, int] | None:
    """Placements before a last move along a dimension of the mesh, and that dimension;
    None where none can be last.
    """
    for i, (before, after) in enumerate(zip(old, needed, strict=True)):
        if mesh[i] == 1 or before == after or not isinstance(before, Shard):
            continue
        almost = tuple(before if j == i else p for j, p in enumerate(needed))
        later = [p for j, p in enumerate(almost) if j > i and mesh[j] > 1]
        if all(p not in (before, after) for p in later) or (
            isinstance(after, Replicate) and before not in later
        ):
            return almost, i
    return None


def candidates(
    shape: tuple[int, int, int],
    itemsize: int,
    mesh: tuple[int, ...],
    left: Placements,
    right: Placements,
    result: Placements | None,
    planes: int,
    device: str,
    *,
    adds: bool,
) -> list[Layout]:
    """All layouts, the one with the least seconds first.

    Parameters
    ----------
    shape : m, n, k
    left, right : placements of A and B as they are given
    result : placements that are asked for of C; None for any
    planes : INT8 products behind one product
    device : "cpu" or "cuda"
    adds : whether sums over k may be made of partial ones
    """
    roles = "mnk" if adds else "mn"
    several = [
        _modelled(r, shape, itemsize, mesh, left, right, result, planes, device)
        for r in product(*[roles] * len(mesh))
    ]
    sensible = [x for x in several if x is not None]
    return sorted(sensible, key=lambda x: (x.seconds, x.roles))


def _modelled(
    roles: tuple[str, ...],
    shape: tuple[int, int, int],
    itemsize: int,
    mesh: tuple[int, ...],
    left: Placements,
    right: Placements,
    result: Placements | None,
    planes: int,
    device: str,
) -> Layout | None:
    """One layout; None for a sum over one piece of k, and for two over pieces that the
    blocks of norms do not fit.
    """
    (m, n, k), wire = shape, WIRES[device]
    if any(role == "k" and size == 1 for role, size in zip(roles, mesh, strict=True)):
        return None
    if roles.count("k") > 1 and k % (NORM_BLOCK * math.prod(mesh)):
        return None
    needs = [tuple(_ROLES[role][i] for role in roles) for i in (0, 1)]
    parts = {
        role: math.prod(s for s, r in zip(mesh, roles, strict=True) if r == role)
        for role in "mnk"
    }
    rows, cols, inner = -(-m // parts["m"]), -(-n // parts["n"]), -(-k // parts["k"])
    gathered = [
        received(size * itemsize, old, new, mesh)
        for size, old, new in ((m * k, left, needs[0]), (k * n, right, needs[1]))
    ]
    partial = planes * rows * cols * (1.0 - 1.0 / parts["k"])
    own = own_placements(roles)
    moved = 0.0 if result is None else received(m * n * itemsize, own, result, mesh)
    products = 2.0 * rows * cols * inner * planes / wire.int8
    products += (rows + cols) * inner * wire.converted + rows * cols / parts[
        "k"
    ] * wire.made
    products += rows * cols * planes * wire.added if parts["k"] > 1 else 0.0
    # Panels hide what moves along one dimension; what moves along two, or goes before a
    # sum, moves as a whole.
    in_panels = [
        nbytes * (parts["k"] == 1 and _moves_once(old, new))
        for nbytes, old, new in zip(gathered, (left, right), needs, strict=True)
    ]
    hidden = (sum(in_panels) + partial) / wire.bandwidth
    open_ = (sum(gathered) - sum(in_panels) + moved) / wire.bandwidth
    messages = 4 * sum(x > 0 for x in gathered) + 8 * (parts["k"] > 1) + (moved > 0)
    seconds = max(products, hidden) + hidden / FIRST + open_ + messages * wire.latency
    whole = (int(gathered[0]), int(gathered[1])), int(partial), int(moved)
    return Layout(
        roles, shape, mesh, own if result is None else result, *whole, products, seconds
    )
