"""Sums over an inner dimension that is spread over ranks, made exactly and rounded
once.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from hifigemm.distributed.collectives import largest, reduce_largest, reduce_sum
from hifigemm.distributed.layout import Layout, pieces, within
from hifigemm.distributed.memory import of_sums
from hifigemm.distributed.method import Method, library_and_engine
from hifigemm.engine import Engine
from hifigemm.libraries import Library
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.epilogue import Epilogue, frexp
from hifigemm.numerics.residue_products import (
    crt,
    num_planes,
    residue_gemm,
    scaled_residues,
)
from hifigemm.numerics.residues import MAX_MODULI, ModuliSet, moduli_set
from hifigemm.numerics.scaling import INFINITE, NO_EXPONENT, NORM_BLOCK, Scale
from hifigemm.problem import Problem
from hifigemm.schemes import Ozaki2
from hifigemm.schemes.ozaki2 import exact_count
from hifigemm.schemes.scheme import finished, int8_product

_STEPS = 4
"""Parts of C whose residues travel while the next one is multiplied."""
_LEAST = 128
"""Rows or columns of a part, for which a product still keeps a GPU busy."""


@dataclass(frozen=True)
class _Cut:
    """A dimension of the mesh along which k is spread: each of its ranks keeps a piece
    of C along an axis.
    """

    group: Any
    ranks: int
    own: int  # the number of this rank
    axis: int

    def piece(self, size: int, rank: int) -> slice:
        """What a rank keeps of so many rows or columns."""
        return pieces(size, self.ranks)[rank]


@dataclass(frozen=True)
class _Side:
    """An operand: the piece of this rank as a stack of one, and the axis of k."""

    x: Array
    axis: int


def summed(
    a: DTensor,
    b: DTensor,
    c: Tensor | None,
    local: Tensor,
    layout: Layout,
    method: Method,
    problem: Problem,
    alpha: complex,
    beta: complex,
    workspace: int | None,
) -> Method | None:
    """Write this rank's part of alpha A B + beta C to `local`; the method with its
    count.

    None, with nothing written, where the operands hold an Inf or NaN or need more bits
    than moduli have, or where their residues take more than the workspace: products of
    whole rows and columns know what to do there.
    """
    mesh = a.device_mesh
    dims = [i for i, role in enumerate(layout.roles) if role == "k"]
    groups = [mesh.get_group(i) for i in dims]
    mantissa, shift = frexp(alpha)
    x = _in_blocks(a.redistribute(placements=layout.left), 1, dims)
    y = _in_blocks(b.redistribute(placements=layout.right), 0, dims)
    if mantissa == -1.0:  # so that -0 is right
        mantissa, x = 1.0, -x
    library, engine = library_and_engine(x)
    with library.active():
        sides = (
            _Side(library.asarray(x, "a")[None], 2),
            _Side(library.asarray(y, "b")[None], 1),
        )
        norms = _norms(sides, groups, library, engine, mesh)
        if norms is None:
            return None
        scheme, balance = method.scheme, 0
        if scheme is None:
            bits = _required_bits(sides, norms, groups, library, engine, mesh, problem)
            count = exact_count(problem.is_complex, *bits)
            if count > MAX_MODULI:
                return None
            scheme, balance = (
                Ozaki2(num_moduli=count, scaling="fast"),
                scaling.balance(bits, count, problem.is_complex),
            )
        assert isinstance(scheme, Ozaki2)
        moduli = moduli_set(scheme.count, problem.is_complex)
        if (
            workspace is not None
            and of_sums(layout, num_planes(moduli, problem.is_complex)) > workspace
        ):
            return None
        scales = [
            scaling.scale_of_norms(*norm, side.axis, moduli, sign * balance)
            for side, norm, sign in zip(sides, norms, (1, -1), strict=True)
        ]
        sums = _Sums(
            sides,
            scales,
            moduli,
            problem,
            engine,
            library,
            shift,
            Epilogue(mantissa, beta),
        )
        sums.write(local, c, layout, mesh, dims, workspace)
    return Method(scheme, method.accuracy)


def _in_blocks(x: DTensor, axis: int, dims: list[int]) -> Tensor:
    """The piece of x along k that this rank multiplies: whole blocks of 256, but for
    the last one.
    """
    local, mesh, size = (
        x.to_local().resolve_conj().resolve_neg(),
        x.device_mesh,
        x.shape[axis],
    )
    if size % (NORM_BLOCK * math.prod(mesh.size(i) for i in dims)) == 0:
        return local
    (dim,) = dims
    ranks, own = mesh.size(dim), mesh.get_local_rank(dim)
    old, blocks = pieces(size, ranks), pieces(-(-size // NORM_BLOCK), ranks)
    new = [
        slice(min(x.start * NORM_BLOCK, size), min(x.stop * NORM_BLOCK, size))
        for x in blocks
    ]
    sent = [_common(old[own], span) for span in new]
    taken = [_common(new[own], span) for span in old]
    rows = (local if axis == 0 else local.T).contiguous()
    made = rows.new_empty((sum(taken), rows.shape[1]))
    dist.all_to_all_single(made, rows, taken, sent, group=mesh.get_group(dim))
    return made if axis == 0 else made.T


def _common(one: slice, other: slice) -> int:
    """How many integers two ranges share."""
    return max(min(one.stop, other.stop) - max(one.start, other.start), 0)


def _norms(
    sides: tuple[_Side, _Side],
    groups: list[Any],
    library: Library,
    engine: Engine,
    mesh: Any,
) -> list[tuple[Array, Array]] | None:
    """`square_norms` and exponents of whole rows of A and columns of B; None where an
    entry is Inf or NaN.
    """
    entries = engine.memory.block_entries
    blocks = [
        engine.override(scaling.block_norms)(side.x, side.axis, entries)
        for side in sides
    ]
    own = [
        e.max(axis=side.axis, keepdims=True, initial=NO_EXPONENT)
        for side, (_, e) in zip(sides, blocks, strict=True)
    ]
    exponents = _reduced(own, library, lambda x: reduce_largest(x, groups))
    top = max((int(e.max(initial=NO_EXPONENT)) for e in exponents), default=NO_EXPONENT)
    if largest(mesh, [top])[0] >= INFINITE:
        return None
    exponents = [np.where(e == NO_EXPONENT, 0, e) for e in exponents]
    squares = [
        scaling.squares_of_blocks(*block, exponent, side.axis)
        for side, block, exponent in zip(sides, blocks, exponents, strict=True)
    ]
    return list(
        zip(
            _reduced(squares, library, lambda x: reduce_sum(x, groups)),
            exponents,
            strict=True,
        )
    )


def _reduced(arrays: list[Array], library: Library, reduce: Any) -> list[Array]:
    """Arrays that are reduced over ranks in one message."""
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
    groups: list[Any],
    library: Library,
    engine: Engine,
    mesh: Any,
    problem: Problem,
) -> tuple[int, int]:
    """See `scaling.required_bits`, of the whole operands."""
    entries, two = engine.memory.block_entries, moduli_set(2, problem.is_complex)
    lowest = [
        -engine.override(scaling.lowest_bits)(side.x, side.axis, entries)
        for side in sides
    ]
    found = []
    for side, norm, low in zip(
        sides,
        norms,
        _reduced(lowest, library, lambda x: reduce_largest(x, groups)),
        strict=True,
    ):
        scale = scaling.scale_of_norms(*norm, side.axis, two, 0)
        found.append(
            int(
                np.where(low == -NO_BIT, -NO_BIT, low - scale.exponent).max(
                    initial=-NO_BIT
                )
            )
        )
    left, right = largest(mesh, found)
    return left, right


@dataclass(frozen=True)
class _Sums:
    """Products of the pieces of this rank, and what becomes of them."""

    sides: tuple[_Side, _Side]
    scales: list[Scale]
    moduli: ModuliSet
    problem: Problem
    engine: Engine
    library: Library
    shift: int
    epilogue: Epilogue

    def write(
        self,
        local: Tensor,
        c: Tensor | None,
        layout: Layout,
        mesh: Any,
        dims: list[int],
        workspace: int | None,
    ) -> None:
        """Part after part: its residues travel while the next one is multiplied."""
        own: Any = layout.own
        cuts = [
            _Cut(mesh.get_group(i), mesh.size(i), mesh.get_local_rank(i), own[i].dim)
            for i in dims
        ]
        split = self.engine.override(scaled_residues)
        planes = [
            split(side.x, scale, self.moduli, self.engine.memory.block_entries)
            if side.x.size
            else None
            for side, scale in zip(self.sides, self.scales, strict=True)
        ]
        under_way = None
        for at, sent in self._parts(planes, cuts[0], workspace):
            arriving = sent.new_empty(sent.shape)
            work = dist.all_to_all_single(
                arriving, sent, group=cuts[0].group, async_op=True
            )
            if under_way is not None:
                self._finish(*under_way[:3], local, c, cuts)
            # what is sent has to stay until it has arrived
            under_way = at, arriving, work, sent
        if under_way is not None:
            self._finish(*under_way[:3], local, c, cuts)

    def _parts(
        self, planes: list[Array | None], cut: _Cut, workspace: int | None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Residues (ranks, planes, rows, columns) of what each rank of the group keeps,
        as a part of its vectors.
        """
        sizes = [self.sides[0].x.shape[1], self.sides[1].x.shape[2]]
        full, count = (
            -(-sizes[cut.axis] // cut.ranks),
            num_planes(self.moduli, self.problem.is_complex),
        )
        steps = max(min(_STEPS, full // _LEAST), 1)
        if workspace is not None:
            steps = max(
                steps,
                min(
                    -(-4 * count * cut.ranks * full * sizes[1 - cut.axis] // workspace),
                    full,
                ),
            )
        width = max(-(-full // steps), 1)
        like = self.library.to_native(self.sides[0].x)
        for start in range(0, full if sizes[1 - cut.axis] else 0, width):
            at = slice(start, min(start + width, full))
            shape = [cut.ranks, count, *sizes]
            shape[2 + cut.axis] = at.stop - at.start
            sent = torch.zeros(shape, dtype=torch.int8, device=like.device)
            for rank in range(cut.ranks):
                some = within(cut.piece(sizes[cut.axis], rank), at)
                made = self._products(planes, cut.axis, some)
                if made is not None:
                    place = sent[rank].narrow(1 + cut.axis, 0, some.stop - some.start)
                    place.copy_(self.library.to_native(made)[0])
            yield at, sent

    def _products(
        self, planes: list[Array | None], axis: int, some: slice
    ) -> Array | None:
        """Residues of the products of some rows of A, or columns of B, with all of the
        other operand.
        """
        x, y = planes
        if x is None or y is None or some.stop == some.start:
            return None
        x, y = (x[:, :, some], y) if axis == 0 else (x, y[:, :, some])
        return self.engine.override(residue_gemm)(
            x, y, self.moduli, int8_product(self.engine)
        )

    def _finish(
        self,
        at: slice,
        arriving: Tensor,
        work: Any,
        local: Tensor,
        c: Tensor | None,
        cuts: list[_Cut],
    ) -> None:
        """Add what arrived, round it, and write it to its place."""
        work.wait()
        residues, first = self._added(arriving), cuts[0]
        places = [slice(0, self.sides[axis].x.shape[1 + axis]) for axis in (0, 1)]
        places[first.axis] = within(first.piece(places[first.axis].stop, first.own), at)
        for cut in cuts[1:]:
            residues = self._exchanged(residues, cut)
            places[cut.axis] = cut.piece(places[cut.axis].stop, cut.own)
        rows, cols = (place.stop - place.start for place in places)
        if not (rows and cols):
            return
        starts = [at.start if axis == first.axis else 0 for axis in (0, 1)]
        entries = slice(starts[0], starts[0] + rows), slice(starts[1], starts[1] + cols)
        values = self._rounded(residues[None, :, :rows, :cols], places)
        own = None if c is None else self.library.asarray(c[entries], "c")[None]
        values = replace(self.epilogue, c=own).apply(values)
        local[entries] = self.library.to_native(values)[0]

    def _exchanged(self, residues: Tensor, cut: _Cut) -> Tensor:
        """Residues (planes, rows, columns) that were added in one dimension of the
        mesh, added in another one.
        """
        shape, axis = list(residues.shape), 1 + cut.axis
        size, shape[axis] = shape[axis], -(-shape[axis] // cut.ranks)
        sent = residues.new_zeros((cut.ranks, *shape))
        for rank in range(cut.ranks):
            piece = cut.piece(size, rank)
            some = residues.narrow(axis, piece.start, piece.stop - piece.start)
            sent[rank].narrow(axis, 0, piece.stop - piece.start).copy_(some)
        arrived = sent.new_empty(sent.shape)
        dist.all_to_all_single(arrived, sent, group=cut.group)
        return self._added(arrived)

    def _added(self, residues: Tensor) -> Tensor:
        """Sums modulo p of the residues (ranks, planes, rows, columns) of partial sums,
        centred.
        """
        p = torch.tensor(
            self.moduli.of_planes(residues.shape[1]),
            dtype=torch.int32,
            device=residues.device,
        )[:, None, None]
        half = p // 2
        return (
            torch.remainder(residues.sum(0, dtype=torch.int32) + half, p) - half
        ).to(torch.int8)

    def _rounded(self, residues: Tensor, places: list[slice]) -> Array:
        """The entries that have these residues, in the places of this rank's part of
        C.
        """
        width = 2 if self.problem.is_complex else 1
        every = slice(None)
        left, right = (
            scale.take(every, at).exponent
            for scale, at in zip(self.scales, places, strict=True)
        )
        units = -left, -np.repeat(right, width, axis=2)
        products = self.library.asarray(residues, "a")
        entries = self.engine.memory.block_entries
        values = self.engine.override(crt)(
            products, *units, self.shift, self.moduli, self.problem.fmt, entries
        )
        return finished(self.problem, values, None, 0.0, 0).values
