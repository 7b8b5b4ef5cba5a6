"""Layouts of a product on a mesh: who makes which part, and what crosses the wire.

Each dimension of the mesh has a role: the rows of C are cut along it ("m"), its columns
("n"), or the inner dimension ("k"), whose partial sums are added over the wire. The
layout with the fewest seconds in a simple model is chosen:

    seconds = max(products, moves in panels) + the first panel + other moves.

A move takes its bytes over a rate, and a latency for each message (the alpha-beta
model). The model depends only on shapes, placements, the mesh and the kind of device,
so that all ranks choose the same layout. No bit depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.distributed.panels import Pace, growing
from hifigemm.numerics.scaling import NORM_BLOCK

Placements = tuple[Placement, ...]
"""The placements of a matrix, one for each dimension of the mesh."""

_ROLES = {
    "m": (Shard(0), Replicate()),
    "n": (Replicate(), Shard(1)),
    "k": (Shard(1), Shard(0)),
}
"""Placements of A and B along a dimension of the mesh with this role."""
_PARTS_OF_SUMS = 16
"""The residues of one of so many parts of C travel while nothing is multiplied."""


@dataclass(frozen=True)
class MeshProduct:
    """What a layout is chosen by: the sizes of a product, and where its matrices lie."""

    shape: tuple[int, int, int]  # m, n, k
    itemsize: int  # bytes of an entry
    mesh: tuple[int, ...]  # ranks along each of its dimensions
    left: Placements  # of A
    right: Placements  # of B
    result: Placements | None  # that the caller wants of C; None for any
    # INT8 products behind one product, and residues of an entry of A or B
    planes: int
    device: str  # "cpu" or "cuda"
    # what one more panel of an operand takes; None: it comes as a whole
    panel_seconds: float | None = 0.0


@dataclass(frozen=True)
class Wire:
    """Sustained rates of one kind of device in the model."""

    bandwidth: float  # bytes a second that a rank receives while all ranks do
    latency: float  # seconds of a collective
    int8: float  # operations a second of residue products, 2 m n k for each modulus
    operand_entry: float  # seconds in which an entry of A or B becomes residues
    result_entry: float  # seconds in which residues become an entry of C
    # seconds in which a residue of a partial sum is packed, unpacked and added
    partial_residue: float
    sums: float  # seconds of the host for sums over k, which are planned in each call


WIRES = {
    # H200 with NVLink and NCCL 2.28: 205 to 330 GB/s from 32 MiB to 2 GiB, the same for
    # all dtypes.
    "cuda": Wire(
        bandwidth=3.0e11,
        latency=3e-5,
        int8=1.4e15,
        operand_entry=8.2e-12,
        result_entry=5.6e-12,
        partial_residue=1.6e-12,
        sums=1e-2,
    ),
    # Processes of one host with gloo, one core each.
    "cpu": Wire(
        bandwidth=1.0e9,
        latency=2e-4,
        int8=4.0e10,
        operand_entry=5e-8,
        result_entry=2e-7,
        partial_residue=5e-9,
        sums=1e-3,
    ),
}
"""Rates by type of device."""


def chunk(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """The range of piece `index` of the pieces into which `Shard` cuts a range.

    All pieces but the last ones are equally long.
    """
    length = -(-(stop - start) // parts)
    first = start + index * length
    return min(first, stop), min(first + length, stop)


def pieces(size: int, ranks: int) -> list[slice]:
    """The pieces into which `Shard` cuts `size` rows or columns, one for each rank."""
    return [slice(*chunk(0, size, ranks, rank)) for rank in range(ranks)]


def within(piece: slice, part: slice) -> slice:
    """The part of a piece, counted from its start and cut off at its end."""
    start = min(piece.start + part.start, piece.stop)
    stop = min(piece.start + part.stop, piece.stop)
    return slice(start, stop)


def extent(
    size: int,
    axis: int,
    placements: Sequence[Placement],
    mesh: Sequence[int],
    coordinate: Sequence[int],
) -> slice:
    """The part of an axis that the rank with this coordinate on the mesh holds."""
    start = 0
    stop = size
    for placement, parts, index in zip(placements, mesh, coordinate, strict=True):
        if placement == Shard(axis):
            start, stop = chunk(start, stop, parts, index)
    return slice(start, stop)


@dataclass(frozen=True)
class Layout:
    """The roles of the dimensions of a mesh in one product; printable.

    Bytes and seconds are estimates of the model.

    Attributes
    ----------
    roles : tuple of "m", "n" or "k"
        One for each dimension of the mesh.
    shape : tuple of int
        m, n and k.
    mesh : tuple of int
        Ranks along each dimension.
    result : tuple of Placement
        Placements of C that the caller gets.
    gathered : tuple of int
        Bytes of A and B that a rank receives.
    partial : int
        Bytes of residues of partial sums that a rank receives.
    moved : int
        Bytes of C that a rank receives, if the caller gets other placements than those
        in which the products leave it.
    products, seconds : float
        Seconds for the products of a rank, and in total.
    pace : Pace or None
        What decides the widths of panels; None if operands arrive as a whole.
    """

    roles: tuple[str, ...]
    shape: tuple[int, int, int]
    mesh: tuple[int, ...]
    result: Placements
    gathered: tuple[int, int]
    partial: int
    moved: int
    products: float
    seconds: float
    pace: Pace | None = None

    @cached_property
    def left(self) -> Placements:
        """Placements with which A is multiplied."""
        return tuple(_ROLES[role][0] for role in self.roles)

    @cached_property
    def right(self) -> Placements:
        """Placements with which B is multiplied."""
        return tuple(_ROLES[role][1] for role in self.roles)

    @cached_property
    def own(self) -> Placements:
        """Placements of C in which the products leave it.

        Each rank of a sum over k is left with a part of the sums.
        """
        return own_placements(self.roles)

    @property
    def streamed(self) -> int:
        """The operand that comes in panels: 0 for A, 1 for B; the other one is needed as
        a whole.
        """
        return _streamed(*self.gathered)

    def ranks(self, role: str) -> int:
        """Number of ranks that share the axis of this role."""
        return _num_ranks(self.roles, self.mesh, role)

    def __str__(self) -> str:
        axes = {
            "m": "rows of A and C",
            "n": "columns of B and C",
            "k": "the inner dimension",
        }
        shares = [
            f"{size} ranks share {axes[role]}"
            for size, role in zip(self.mesh, self.roles, strict=True)
        ]
        amounts = (
            (self.gathered[0], "A"),
            (self.gathered[1], "B"),
            (self.partial, "residues of sums"),
            (self.moved, "C"),
        )
        received = [
            f"{nbytes / 2**20:.3g} MiB of {name}" for nbytes, name in amounts if nbytes
        ]
        share = self.products / self.seconds if self.seconds else 1.0
        times = (
            f"{1e3 * self.products:.3g} ms of products, "
            f"{1e3 * self.seconds:.3g} ms in all ({share:.0%}) by the model"
        )
        return f"{', '.join(shares)}; a rank receives {', '.join(received) or 'nothing'}; {times}"


def _streamed(bytes_a: int, bytes_b: int) -> int:
    """`Layout.streamed`: the operand of which a rank receives more."""
    return int(bytes_b >= bytes_a)


def _num_ranks(roles: Sequence[str], mesh: Sequence[int], role: str) -> int:
    """Number of ranks along all dimensions of the mesh with this role."""
    return math.prod(size for size, x in zip(mesh, roles, strict=True) if x == role)


def own_placements(roles: Sequence[str]) -> Placements:
    """`Layout.own`: sums over k are cut along an axis of C that no other role cuts."""
    axes = {"m": Shard(0), "n": Shard(1)}
    cut_axes = [axes[role] for role in roles if role != "k"]
    placements: list[Placement] = []
    for role in roles:
        if role == "k":
            axis = next(axis for axis in axes.values() if axis not in cut_axes)
            cut_axes.append(axis)
        else:
            axis = axes[role]
        placements.append(axis)
    return tuple(placements)


def received(size: int, old: Placements, new: Placements, mesh: Sequence[int]) -> float:
    """Bytes that a rank receives when `size` bytes change their placements."""
    needed = float(size)
    present = 1.0  # share of the needed bytes that the rank holds before
    for before, after, ranks in zip(old, new, mesh, strict=True):
        if isinstance(after, Shard):
            needed /= ranks
        if isinstance(before, Shard) and before != after:
            present /= ranks
    return needed * (1.0 - present)


def candidates(call: MeshProduct, *, adds: bool) -> list[Layout]:
    """All layouts, the one with the least seconds first.

    `adds` says that sums over k may be made of partial sums.
    """
    choices = "mnk" if adds else "mn"
    layouts = []
    for roles in product(*[choices] * len(call.mesh)):
        layout = _layout_of_roles(roles, call)
        if layout is not None:
            layouts.append(layout)
    return sorted(layouts, key=lambda layout: (layout.seconds, layout.roles))


def _layout_of_roles(roles: tuple[str, ...], call: MeshProduct) -> Layout | None:
    """The layout with these roles, and its bytes and seconds by the model.

    None for a sum over one piece of k, and for sums along two dimensions of the mesh
    whose pieces of k do not consist of whole blocks of norms.
    """
    m, n, k = call.shape
    mesh = call.mesh
    itemsize = call.itemsize
    wire = WIRES[call.device]
    if any(role == "k" and size == 1 for role, size in zip(roles, mesh, strict=True)):
        return None
    if roles.count("k") > 1 and k % (NORM_BLOCK * math.prod(mesh)):
        return None

    # The part of a rank.
    ranks_k = _num_ranks(roles, mesh, "k")
    rows = -(-m // _num_ranks(roles, mesh, "m"))
    cols = -(-n // _num_ranks(roles, mesh, "n"))
    inner = -(-k // ranks_k)

    # Bytes that a rank receives.
    needed_left = tuple(_ROLES[role][0] for role in roles)
    needed_right = tuple(_ROLES[role][1] for role in roles)
    own = own_placements(roles)
    bytes_a = received(m * k * itemsize, call.left, needed_left, mesh)
    bytes_b = received(k * n * itemsize, call.right, needed_right, mesh)
    partial = call.planes * rows * cols * (1.0 - 1.0 / ranks_k)
    moved = 0.0
    if call.result is not None:
        moved = received(m * n * itemsize, own, call.result, mesh)

    # Seconds of products.
    products = 2.0 * rows * cols * inner * call.planes / wire.int8
    products += (rows + cols) * inner * wire.operand_entry
    products += rows * cols / ranks_k * wire.result_entry
    if ranks_k > 1:
        products += rows * cols * call.planes * wire.partial_residue

    # Panels of one operand travel while products run, but for the first one. The other
    # operand, and those of sums, come as a whole beforehand.
    in_panels = max(bytes_a, bytes_b) if ranks_k == 1 else 0.0
    transfer = in_panels / wire.bandwidth
    exposed = (bytes_a + bytes_b - in_panels + moved) / wire.bandwidth
    pace: Pace | None = None
    if ranks_k > 1:
        overlapped = partial / wire.bandwidth
        seconds = max(products, overlapped, wire.sums) + overlapped / _PARTS_OF_SUMS
    elif call.panel_seconds is None:
        seconds = products + transfer
    else:
        pace = Pace(transfer, products, call.panel_seconds)
        side = _streamed(int(bytes_a), int(bytes_b))
        needed = (needed_left, needed_right)[side]
        count, first = _panels(call, side, needed, (rows, cols)[side], pace)
        seconds = max(products, transfer) + first * transfer
        seconds += (count - 1) * pace.panel
    messages = 4 * ((bytes_a > 0) + (bytes_b > 0)) + 8 * (ranks_k > 1) + (moved > 0)
    seconds += exposed
    seconds += messages * wire.latency
    return Layout(
        roles=roles,
        shape=call.shape,
        mesh=mesh,
        result=own if call.result is None else call.result,
        gathered=(int(bytes_a), int(bytes_b)),
        partial=int(partial),
        moved=int(moved),
        products=products,
        seconds=seconds,
        pace=pace,
    )


def _panels(
    call: MeshProduct, side: int, needed: Placements, vectors: int, pace: Pace
) -> tuple[int, float]:
    """Number of panels of an operand, and the part of it that the first one is: none if
    ranks hold whole vectors, as each begins with its own.
    """
    placements = (call.left, call.right)[side]
    if vectors and not all(p in (Shard(side), Replicate()) for p in placements):
        spans = growing(vectors, pace)
        return len(spans), (spans[0].stop - spans[0].start) / vectors
    sources = [
        size
        for size, before, after in zip(call.mesh, placements, needed, strict=True)
        if before == Shard(side) != after
    ]
    return math.prod(sources), 0.0
