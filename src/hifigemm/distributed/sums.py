"""Sums over an inner dimension that is spread over ranks: exact, and rounded once.

Scales
    A row of A has one scale, wherever its pieces lie. Its norm is a sum of integers for
    blocks of 256 entries, each on a grid of its own, so that the largest exponent and
    then the sum of these integers are agreed on; pieces begin at multiples of 256.
Partial sums
    Each rank multiplies its pieces modulo each p, in INT8. The residues of the partial
    sums, a byte for each modulus and entry, go to the rank that keeps the entry, which
    adds them modulo p: exactly, in whatever order they arrive. A sum of INT8 by the
    library would wrap modulo 256. Exact integers in limbs of int64, which any library
    adds, would be 16 bytes where 14 moduli take 14, and 24 from 16 moduli on.
End
    Chinese remainders and one rounding, then alpha and beta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hifigemm.distributed.collectives import largest, reduce_largest, reduce_sum
from hifigemm.distributed.layout import Layout, pieces, within
from hifigemm.distributed.memory import of_sums
from hifigemm.distributed.method import Method, library_and_engine
from hifigemm.libraries import Library
from hifigemm.model.accuracy import CORRECT, NOTHING_STATED
from hifigemm.model.engine import Engine
from hifigemm.model.plan import Blocking, Evidence, Plan, Split
from hifigemm.model.problem import Problem
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.epilogue import Epilogue, frexp
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.scaling import INFINITE, NO_EXPONENT, NORM_BLOCK, Scale
from hifigemm.schemes import Ozaki2
from hifigemm.schemes.moduli_counts import exact_count

_STEPS = 4
"""Number of parts of C: the residues of one travel while the next one is multiplied."""
_MIN_WIDTH = 128
"""Least rows or columns of a part, for which a product still keeps a GPU busy."""


@dataclass(frozen=True)
class _SplitDimension:
    """A dimension of the mesh along which k is spread.

    Each of its ranks is left with a piece of C along an axis.
    """

    group: ProcessGroup
    ranks: int
    rank: int  # the number of this rank in the group
    axis: int  # the axis of C

    def piece(self, size: int, rank: int) -> slice:
        """The piece of a rank, of `size` rows or columns."""
        return pieces(size, self.ranks)[rank]


@dataclass(frozen=True)
class _Side:
    """An operand: the piece of this rank as a stack of one, and the axis of k."""

    x: Array
    axis: int


@dataclass(frozen=True)
class PartialSums:
    """alpha A B + beta C of this rank's part of C, by sums over ranks that cut k."""

    method: Method
    problem: Problem
    layout: Layout
    alpha: complex = 1.0
    beta: complex = 0.0
    workspace: int | None = None

    def write(
        self, a: DTensor, b: DTensor, c: Tensor | None, local: Tensor
    ) -> Method | None:
        """The method with its count, once this rank's part of the result is in `local`.

        None, with nothing written, if the operands hold an Inf or NaN or need more bits
        than moduli hold, or if their residues exceed the workspace: products of whole
        rows and columns handle these cases.
        """
        layout = self.layout
        problem = self.problem
        method = self.method
        workspace = self.workspace

        # The pieces of this rank, without a conjugate or a sign that is still to be taken.
        mesh = a.device_mesh
        dims = [i for i, role in enumerate(layout.roles) if role == "k"]
        groups = [mesh.get_group(i) for i in dims]
        x = _in_blocks(a.redistribute(placements=layout.left), 1, dims)
        y = _in_blocks(b.redistribute(placements=layout.right), 0, dims)

        # alpha = mantissa 2**shift. The sign of -1 goes into A, so that zeros get theirs.
        mantissa, shift = frexp(self.alpha)
        if mantissa == -1.0:
            mantissa = 1.0
            x = -x

        library, engine = library_and_engine(x)
        with library.active():
            left = _Side(library.asarray(x, "a")[None], 2)
            right = _Side(library.asarray(y, "b")[None], 1)
            sides = (left, right)
            norms = _norms(sides, groups, library, engine, mesh)
            if norms is None:
                return None

            # The plan: with a forced count, or with the moduli of the exact product.
            scheme = method.scheme
            target = NOTHING_STATED
            evidence = None
            if scheme is None:
                scheme = Ozaki2(scaling="fast")
                target = CORRECT
                bits = _required_bits(
                    sides, norms, groups, library, engine, mesh, problem
                )
                if exact_count(problem.is_complex, *bits) > MAX_MODULI:
                    return None
                evidence = Evidence(required_bits=bits)
            plan = scheme.plan(problem, target, engine, evidence, method.scheme)
            if workspace is not None and of_sums(layout, plan.num_products) > workspace:
                return None
            shape = problem.batch, problem.m, problem.n
            blocking = Blocking(shape, 0, engine.memory.block_entries)
            plan = replace(plan, blocking=blocking)
            scheme = cast(Ozaki2, plan.scheme)

            epilogue = Epilogue(mantissa, self.beta)
            scales = scheme.scales_of_norms(plan, *norms)
            sums = _Sums(sides, scales, plan, scheme, engine, library, shift, epilogue)
            sums.write(local, c, layout, mesh, dims, workspace)
        return Method(scheme, method.accuracy)


def _in_blocks(x: DTensor, axis: int, dims: list[int]) -> Tensor:
    """The piece of x along k that this rank multiplies.

    All pieces are whole blocks of 256, but for the last one. Pieces that are not are
    exchanged among the ranks of the one dimension that cuts k.
    """
    local = x.to_local().resolve_conj().resolve_neg()
    mesh = x.device_mesh
    size = x.shape[axis]
    if size % (NORM_BLOCK * math.prod(mesh.size(i) for i in dims)) == 0:
        return local

    # Ranges of k before and after the exchange, by rank.
    (dim,) = dims
    ranks = mesh.size(dim)
    rank = mesh.get_local_rank(dim)
    old = pieces(size, ranks)
    new = []
    for blocks in pieces(-(-size // NORM_BLOCK), ranks):
        start = min(blocks.start * NORM_BLOCK, size)
        stop = min(blocks.stop * NORM_BLOCK, size)
        new.append(slice(start, stop))

    sent = [_overlap(old[rank], span) for span in new]
    received = [_overlap(new[rank], span) for span in old]
    rows = (local if axis == 0 else local.T).contiguous()
    piece = rows.new_empty((sum(received), rows.shape[1]))
    dist.all_to_all_single(piece, rows, received, sent, group=mesh.get_group(dim))
    return piece if axis == 0 else piece.T


def _overlap(x: slice, y: slice) -> int:
    """Number of integers that two ranges share."""
    return max(min(x.stop, y.stop) - max(x.start, y.start), 0)


def _norms(
    sides: tuple[_Side, _Side],
    groups: list[ProcessGroup],
    library: Library,
    engine: Engine,
    mesh: DeviceMesh,
) -> list[tuple[Array, Array]] | None:
    """`square_norms` and exponents of whole rows of A, and of whole columns of B.

    None if an entry is Inf or NaN.
    """
    # The largest exponent of each vector, over all ranks.
    entries = engine.memory.block_entries
    norm_blocks = [
        engine.override(scaling.block_norms)(side.x, side.axis, entries)
        for side in sides
    ]
    local_exponents = [
        exponents.max(axis=side.axis, keepdims=True, initial=NO_EXPONENT)
        for side, (_, exponents) in zip(sides, norm_blocks, strict=True)
    ]
    left, right = _reduce_together(
        local_exponents, library, lambda x: reduce_largest(x, groups)
    )
    top = max(int(left.max(initial=NO_EXPONENT)), int(right.max(initial=NO_EXPONENT)))
    if largest(mesh, [top])[0] >= INFINITE:
        return None
    left = np.where(left == NO_EXPONENT, 0, left)
    right = np.where(right == NO_EXPONENT, 0, right)

    # The sums of squares of each vector, integers at the scale of its exponent.
    local_squares = [
        scaling.squares_of_blocks(*norm_blocks[0], left, sides[0].axis),
        scaling.squares_of_blocks(*norm_blocks[1], right, sides[1].axis),
    ]
    left_squares, right_squares = _reduce_together(
        local_squares, library, lambda x: reduce_sum(x, groups)
    )
    return [(left_squares, left), (right_squares, right)]


def _reduce_together(
    arrays: list[Array], library: Library, reduce: Callable[[Tensor], Tensor]
) -> list[Array]:
    """Arrays reduced over ranks in one message."""
    tensors = [library.to_native(x) for x in arrays]
    flat = reduce(torch.cat([x.flatten() for x in tensors]))
    parts = flat.split([x.numel() for x in tensors])
    return [
        library.asarray(y.view(x.shape), "a")
        for x, y in zip(tensors, parts, strict=True)
    ]


def _required_bits(
    sides: tuple[_Side, _Side],
    norms: list[tuple[Array, Array]],
    groups: list[ProcessGroup],
    library: Library,
    engine: Engine,
    mesh: DeviceMesh,
    problem: Problem,
) -> tuple[int, int]:
    """`scaling.required_bits` of the whole operands."""
    # The exponent of the lowest bit of each vector, negated: the lowest is the largest.
    entries = engine.memory.block_entries
    local_bits = [
        -engine.override(scaling.lowest_bits)(side.x, side.axis, entries)
        for side in sides
    ]
    negated_bits = _reduce_together(
        local_bits, library, lambda x: reduce_largest(x, groups)
    )

    # How far they lie below the integers at the scales of two moduli.
    two_moduli = moduli_set(2, problem.is_complex)
    required = []
    for side, norm, bits in zip(sides, norms, negated_bits, strict=True):
        scale = scaling.scale_of_norms(*norm, side.axis, two_moduli, 0)
        extra_bits = np.where(bits == -NO_BIT, -NO_BIT, bits - scale.exponent)
        required.append(int(extra_bits.max(initial=-NO_BIT)))
    left, right = largest(mesh, required)
    return left, right


@dataclass(frozen=True)
class _Sums:
    """The partial sums of this rank: products of its pieces of A and B."""

    sides: tuple[_Side, _Side]
    scales: tuple[Scale, Scale]  # of whole rows and columns
    plan: Plan  # of the whole product
    scheme: Ozaki2  # of the plan, with its number of moduli
    engine: Engine
    library: Library
    shift: int
    epilogue: Epilogue

    def write(
        self,
        local: Tensor,
        c: Tensor | None,
        layout: Layout,
        mesh: DeviceMesh,
        dims: list[int],
        workspace: int | None,
    ) -> None:
        """Write this rank's part of alpha A B + beta C to `local`.

        The residues of one part of C travel while the next one is multiplied.
        """
        placements: Any = layout.own
        cuts = [
            _SplitDimension(
                group=mesh.get_group(i),
                ranks=mesh.size(i),
                rank=mesh.get_local_rank(i),
                axis=placements[i].dim,
            )
            for i in dims
        ]
        left = self._split(0)
        right = self._split(1)
        under_way = None
        for part, sent in self._parts(left, right, cuts[0], workspace):
            arriving = sent.new_empty(sent.shape)
            work = dist.all_to_all_single(
                arriving, sent, group=cuts[0].group, async_op=True
            )
            if under_way is not None:
                self._finish(*under_way[:3], local, c, cuts)
            # The memory that is sent has to stay until it has arrived.
            under_way = part, arriving, work, sent
        if under_way is not None:
            self._finish(*under_way[:3], local, c, cuts)

    def _split(self, axis: int) -> Split | None:
        """The split of a piece of A (axis 0) or B (axis 1); None if it has no
        entries.
        """
        x = self.sides[axis].x
        if not x.size:
            return None
        side = ("left", "right")[axis]
        scale = self.scales[axis]
        return self.scheme.split(self.plan, x, side, scale, self.engine)

    def _parts(
        self,
        left: Split | None,
        right: Split | None,
        cut: _SplitDimension,
        workspace: int | None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Parts of the piece of every rank of a group, and their residues.

        A part is a range of rows or columns, counted from the start of each piece. The
        residues (ranks, planes, rows, columns) are those of partial sums of this rank.
        """
        sizes = [self.sides[0].x.shape[1], self.sides[1].x.shape[2]]
        piece = -(-sizes[cut.axis] // cut.ranks)
        other = sizes[1 - cut.axis]
        count = self.plan.num_products

        # Few parts, unless the workspace asks for more.
        steps = max(min(_STEPS, piece // _MIN_WIDTH), 1)
        if workspace is not None:
            nbytes = 4 * count * cut.ranks * piece * other
            steps = max(steps, min(-(-nbytes // workspace), piece))
        width = max(-(-piece // steps), 1)

        device = self.library.to_native(self.sides[0].x).device
        for start in range(0, piece if other else 0, width):
            part = slice(start, min(start + width, piece))
            shape = [cut.ranks, count, *sizes]
            shape[2 + cut.axis] = part.stop - part.start
            sent = torch.zeros(shape, dtype=torch.int8, device=device)
            for rank in range(cut.ranks):
                vectors = within(cut.piece(sizes[cut.axis], rank), part)
                if left is None or right is None or vectors.stop == vectors.start:
                    continue
                products = self._products(left, right, cut.axis, vectors)
                length = vectors.stop - vectors.start
                target = sent[rank].narrow(1 + cut.axis, 0, length)
                target.copy_(self.library.to_native(products)[0])
            yield part, sent

    def _products(self, left: Split, right: Split, axis: int, vectors: slice) -> Array:
        """Residues of A B for some rows of A (axis 0) or columns of B (axis 1)."""
        if axis == 0:
            left = left.take(slice(None), vectors)
        else:
            right = right.take(slice(None), vectors)
        planes = left.planes, right.planes
        return self.scheme.residues(*planes, self.plan, self.engine)

    def _finish(
        self,
        part: slice,
        arriving: Tensor,
        work: Work,
        local: Tensor,
        c: Tensor | None,
        cuts: list[_SplitDimension],
    ) -> None:
        """Add the residues of a part over the ranks, round, and write the entries."""
        work.wait()
        first = cuts[0]
        residues = self._sum_over_ranks(arriving)

        # Rows and columns of A B that this rank is left with.
        spans = [slice(0, self.sides[axis].x.shape[1 + axis]) for axis in (0, 1)]
        piece = first.piece(spans[first.axis].stop, first.rank)
        spans[first.axis] = within(piece, part)
        for cut in cuts[1:]:
            residues = self._exchange(residues, cut)
            spans[cut.axis] = cut.piece(spans[cut.axis].stop, cut.rank)
        rows, cols = (span.stop - span.start for span in spans)
        if not (rows and cols):
            return

        # Where they lie in this rank's part of C.
        starts = [0, 0]
        starts[first.axis] = part.start
        entries = slice(starts[0], starts[0] + rows), slice(starts[1], starts[1] + cols)
        values = self._round(residues[None, :, :rows, :cols], spans)
        addend = None if c is None else self.library.asarray(c[entries], "c")[None]
        values = self.epilogue._replace(c=addend).apply(values)
        local[entries] = self.library.to_native(values)[0]

    def _exchange(self, residues: Tensor, cut: _SplitDimension) -> Tensor:
        """Residues (planes, rows, columns), added along one more mesh dimension."""
        axis = 1 + cut.axis
        size = residues.shape[axis]
        shape = list(residues.shape)
        shape[axis] = -(-size // cut.ranks)
        sent = residues.new_zeros((cut.ranks, *shape))
        for rank in range(cut.ranks):
            piece = cut.piece(size, rank)
            length = piece.stop - piece.start
            source = residues.narrow(axis, piece.start, length)
            sent[rank].narrow(axis, 0, length).copy_(source)
        arrived = sent.new_empty(sent.shape)
        dist.all_to_all_single(arrived, sent, group=cut.group)
        return self._sum_over_ranks(arrived)

    def _sum_over_ranks(self, residues: Tensor) -> Tensor:
        """Sums modulo p of residues (ranks, planes, rows, columns), centred."""
        moduli = moduli_set(self.scheme.count, self.plan.problem.is_complex)
        divisors = moduli.of_planes(residues.shape[1])
        p = torch.tensor(divisors, dtype=torch.int32, device=residues.device)
        p = p[:, None, None]
        half = p // 2
        sums = residues.sum(0, dtype=torch.int32)
        return (torch.remainder(sums + half, p) - half).to(torch.int8)

    def _round(self, residues: Tensor, spans: list[slice]) -> Array:
        """The entries of A B with these residues, in these rows and columns."""
        left, right = (
            scale.take(slice(None), span)
            for scale, span in zip(self.scales, spans, strict=True)
        )
        return self.scheme.rounded(
            self.library.asarray(residues, "a"),
            self.scheme.unit(self.plan, left),
            self.scheme.unit(self.plan, right),
            self.plan,
            self.engine,
            self.shift,
        )
