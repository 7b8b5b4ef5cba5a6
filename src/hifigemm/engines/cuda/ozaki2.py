"""Ozaki scheme II on a GPU: residues of both operands, INT8 products, reconstruction,
in three launches for short k.

Where the number of moduli rests on the operands, the device decides. The record holds
the bits of the largest error ratio that was seen; every rung of the ladder, a number of
moduli, runs where the ratio lies between what the rung before it keeps and what it
keeps itself; a native product takes what no rung keeps. The ratio of a part of the
result is known first: where that is too large already, a rung does not begin. Rungs
with "inner" scaling come behind the others, by the ratio of A D and D**-1 B, which is a
number of its own in the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from hifigemm.engines.cuda.along_k import (
    Exponents,
    bytes_outside,
    exponents_of,
    scaled,
)
from hifigemm.engines.cuda.lowering import (
    Arguments,
    CudaLowering,
    Finding,
    blocks_of,
    is_triangle,
)
from hifigemm.engines.cuda.required_bits import required_bits_of_one
from hifigemm.engines.device_array import unwrap
from hifigemm.engines.rates import Rates
from hifigemm.kernels.endings import crt as crt_kernel
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.endings.special import restore_special_values
from hifigemm.kernels.products import native_gemm, residue_gemm
from hifigemm.kernels.products.epilogue import combine_in_place
from hifigemm.kernels.products.error_ratio import RATIO_UNIT, error_ratio_bits
from hifigemm.kernels.products.largest_sums import largest_sums
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.host_word import send
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.runtime.recording import recorded
from hifigemm.kernels.sums.rounded_sums import rounded_sums
from hifigemm.kernels.vectors import inner_scaling, scaled_residues
from hifigemm.kernels.vectors.block_sums import block_sums, halves_of
from hifigemm.kernels.vectors.scaled_residues import VectorScale
from hifigemm.kernels.vectors.upper_magnitudes import (
    scales_of_sums,
    upper_magnitudes,
)
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.executable import RecordedDecision, Signature, Splits
from hifigemm.model.plan import (
    Choice,
    Evidence,
    Plan,
    SeparateVectors,
    Verification,
)
from hifigemm.model.problem import Block, Problem
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.error_ratio import error_bound, largest_ratio
from hifigemm.numerics.estimates import MAGNITUDE_TERMS, accurate_bits
from hifigemm.numerics.residue_products import num_planes
from hifigemm.numerics.residues import MAX_MODULI, ModuliSet, moduli_set
from hifigemm.numerics.scaling import (
    balance,
    gained_bits,
    largest_square,
    norm_bits,
)
from hifigemm.numerics.strassen import NUM_PRODUCTS

Residues = tuple[Buffer, Buffer]
"""Planes of an operand and the scale exponents of its vectors."""
_ROWS, _COLUMNS = 128, 256
"""Results are padded to whole tiles of this size, which the Hopper kernel stores without
a mask.
"""
_PLANES_OF_SUMS = 8
"""Planes whose sums of blocks are in memory at a time: enough that the last round of
tiles is one of many.
"""
_FEW_TERMS_FROM = 2**36
"""m n k of products that take so long that a part of the terms saves more than the
launch of a second pass costs.
"""
_LEAST_TERMS = 512
"""Of sums whose smallest one, of all entries of a large product, is half of the mean or
more.
"""
_SAMPLE_FROM = 2**35
"""m n k of products beside which the ratio of a few vectors costs nothing."""
_SAMPLE_FROM_BEFORE_EXACT = 2**32
"""The same where the exact product is behind the ladder, which takes little longer than
its first rung.
"""
_SAMPLE = 128
"""Rows and columns whose ratio is known first."""
_SHIFT_OF_SECOND = 32
"""Bits of a number for the host behind which that of the second operand lies."""
_LOW_BITS = 2**_SHIFT_OF_SECOND - 1
_INNER = 2
"""Where the record has its word for inner scaling: 0 where it was not tried, a number
above all ratios where a sample gains nothing by it, else 1 or the bits of the largest
ratio. It is 16 bytes behind the first word, so that both are aligned alike.
"""
_RECORD = 3
"""Words of the record."""
_SPARE_MODULI = 2
"""Moduli beyond those for the plan of a prepared operand: the other operand of a correct
product may need some more bits.
"""
_SAMPLED_FROM = 12 * _SAMPLE
"""Rows and columns of products whose ratio is known first for some of them: of fewer,
as long sums have, the residues of the sample cost as much as they may save.
"""


class Rung(Choice, Protocol):
    """What launches are told by Ozaki scheme II with a number of moduli."""

    @property
    def count(self) -> int:
        """Number of moduli."""

    @property
    def scaling(self) -> str:
        """How rows and columns are scaled: "fast" or "inner"."""

    def planes(self, problem: Problem) -> int:
        """Number of INT8 products."""


@dataclass(frozen=True, eq=False)
class PreparedResidues:
    """Residues of an operand that was prepared."""

    planes: Tensor  # int8 (batch, products, vectors, pitch)
    exponents: Tensor  # int32 (batch, vectors) of its scales
    # the bits that exact integers of the operand require, by which it is scaled; None
    # for the scales of as many moduli as there are
    bits: int | None = None

    @property
    def count(self) -> int:
        """Number of planes."""
        return int(self.planes.shape[1])

    @property
    def vectors(self) -> int:
        """Number of rows or columns."""
        return int(self.planes.shape[2])


def lowering(
    plan: Plan, device: torch.device, costs: Rates | None
) -> CudaLowering | None:
    """The launches of a plan; None where entries are to be certified one by one, and for
    so many terms that one product of magnitudes does not hold their sums.
    """
    if not plan.scheme.by_norms:
        # A bound of |A||B| is worked out step by step.
        is_settled = not plan.certifies and plan.evidence is None
        is_short = plan.scheme.scaling == "largest" or plan.problem.k <= MAGNITUDE_TERMS
        return _FixedCount(plan, device, costs) if is_settled and is_short else None
    is_certified = plan.verification is Verification.ENTRYWISE
    if not plan.certifies and plan.verification is not Verification.ON_DEVICE:
        return _FixedCount(plan, device, costs)
    if plan.target.by_entry or (is_certified and plan.evidence is not None):
        return None  # the ratio is not enough
    if is_certified and _ratio_bits(plan, plan.scheme.count) < 0:
        return None
    return _Ladder(plan, device, costs)


@dataclass(frozen=True)
class _Residues(CudaLowering):
    """Launches of any number of moduli, chosen or not."""

    costs: Rates | None

    def in_halves(self, batch: int, rows: int, cols: int) -> bool:
        """Where that pays, for one matrix that is no mirror."""
        p = self.plan.problem
        planes = num_planes(moduli_of(self.plan), p.is_complex)
        return (
            self.costs is not None
            and batch == 1
            and not p.mirror
            and self.costs.halves_pay(rows, cols, p.k, planes)
        )

    def bytes_outside(self, batch: int, rows: int, cols: int) -> int:
        """The bytes that scaling along k takes, or the magnitudes of whole operands."""
        if self.plan.scheme.scaling == "accurate":
            p = self.plan.problem
            pitch = -(-p.k // 128) * 128 * (2 if p.is_complex else 1)
            return p.batch * (p.m + p.n) * pitch
        schemes = self.plan.scheme, *self.plan.alternatives
        if any(not x.is_native and x.scaling == "inner" for x in schemes):
            return bytes_outside(self.plan, batch, rows, cols)
        return 0


def moduli_of(plan: Plan, count: int | None = None) -> ModuliSet:
    """The moduli of a plan's scheme, or so many."""
    return moduli_set(
        plan.scheme.count if count is None else count, plan.problem.is_complex
    )


def padded(planes: Tensor) -> Tensor:
    """Residues (batch, L, vectors, k) with the zeros behind k that their rows are
    padded with, up to the next row.
    """
    return planes.as_strided((*planes.shape[:3], planes.stride(2)), planes.stride())


def padded_shape(m: int, n: int) -> tuple[int, int]:
    """Rows and columns of products, as the kernels write them."""
    return -(-m // _ROWS) * _ROWS, -(-n // _COLUMNS) * _COLUMNS


def products_of(
    left: Buffer,
    right: Buffer,
    moduli: ModuliSet,
    predicate: Predicate | None = None,
    *,
    triangle: bool = False,
) -> Buffer:
    """Residues of the products of padded planes: int8 (batch, L, m_pad, n_pad),
    undefined without the predicate.
    """
    shape = (
        max(len(left), len(right)),
        left.shape[1],
        *padded_shape(left.shape[2], right.shape[2]),
    )
    products: Buffer = left.launches.empty(shape, torch.int8)
    constants = residue_gemm.residue_constants(
        moduli.of_planes(left.shape[1]), left.device
    )
    residue_gemm.residue_gemm(
        left, right, constants, products, predicate=predicate, triangle=triangle
    )
    return products


def products_of_halves(
    left: Buffer, right: Buffer, moduli: ModuliSet, predicate: Predicate | None = None
) -> tuple[Buffer, tuple[int, int]]:
    """P1 .. P7 of numerics/strassen.py for padded planes of one matrix: int8 (1, 7 L,
    m_pad, n_pad), padded halves.

    The halves of m and n come with them. Blocks of the operands are taken as they lie
    there, sums of blocks for a few planes at a time.
    """
    count = left.shape[1]
    k = left.shape[3]
    half_m: int
    half_n: int
    half_m, half_k = halves_of(left)
    half_n, _ = halves_of(right)
    shape = 1, NUM_PRODUCTS * count, *padded_shape(half_m, half_n)
    products: Buffer = left.launches.empty(shape, torch.int8)
    upper = slice(0, half_m)
    lower = slice(half_m, None)
    first_terms = slice(0, half_k)
    last_terms = slice(half_k, None)
    # Sums of blocks with the last terms, of which there may be fewer.
    terms_of_sums = slice(0, max(k - half_k, 0))
    for group in _even_slices(count, _PLANES_OF_SUMS):
        x = left[:, group]
        y = right[:, group]
        constants = residue_gemm.residue_constants(
            moduli.of_planes(count)[group], left.device
        )
        s = block_sums(x, constants, is_right=False, predicate=predicate)
        t = block_sums(y, constants, is_right=True, predicate=predicate)
        planes = x.shape[1]
        *pairs, (s4, t4) = (
            (s[:, i : i + planes], t[:, i : i + planes])
            for i in range(0, 4 * planes, planes)
        )
        cases = [
            (x[:, :, upper, first_terms], y[:, :, :half_n, first_terms]),
            (x[:, :, upper, last_terms], y[:, :, :half_n, last_terms]),
            (s4[:, :, :, terms_of_sums], y[:, :, half_n:, last_terms]),
            (x[:, :, lower, last_terms], t4[:, :, :, terms_of_sums]),
            *pairs,
        ]
        for i, (p, q) in enumerate(cases):
            to = products[:, i * count + group.start : i * count + group.stop]
            residue_gemm.residue_gemm(p, q, constants, to, predicate=predicate)
    return products, (half_m, half_n)


def _even_slices(count: int, longest: int) -> list[slice]:
    """The fewest slices no longer than that, whose lengths differ by one at most."""
    parts = -(-count // longest)
    ends = [count * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def ordinary_moduli(plan: Plan) -> tuple[ModuliSet, ModuliSet, tuple[int, int]]:
    """Of all rows and columns but outliers: the moduli that residues are made of, those
    used, the balances.
    """
    evidence = plan.evidence or Evidence()
    outliers = evidence.outliers
    if outliers is not None:
        balances = (
            outliers.balance - outliers.lowered,
            -outliers.balance - outliers.lowered,
        )
        return (
            moduli_set(outliers.shared, False),
            moduli_set(outliers.num_moduli, False),
            balances,
        )
    moduli = moduli_of(plan)
    even = _even_balance(plan, plan.scheme.count)
    return moduli, moduli, (even, -even)


class _FixedCount(_Residues):
    """Launches of as many moduli as the plan says."""

    def checked(self, signature: Signature) -> CudaLowering | None:
        """For exact products whose residues are made in one launch."""
        are_prepared = None not in signature.splits
        if not self._counts_bits(self.plan) or are_prepared:
            return None
        return _CheckedCount(self.plan, self.device, self.costs)

    def _counts_bits(self, plan: Plan) -> bool:
        """True if one launch makes the residues, of integers that hold all bits."""
        has_bits = _required_bits(plan) is not None
        return has_bits and self._has_one_scale and plan.is_whole

    def predicate_of(
        self, missing: Buffer | None, given: Arguments
    ) -> Predicate | None:
        """When products are made, by the number of bits that their integers miss; None
        for all operands.
        """
        return None

    @property
    def applies_scalars(self) -> bool:
        """True: the reconstruction does."""
        return True

    @property
    def rounds(self) -> bool:
        """Whether the integers are those of the exact product."""
        return self.plan.bound == 0.0

    def preparing(
        self, x: Array, side: str
    ) -> Callable[[Array], PreparedResidues] | None:
        """It makes the residues of all vectors, those with Inf or NaN marked.

        Of an exact product the integers of an operand are as short as its bits allow,
        so that they serve with more and with fewer moduli.
        """
        if not self._has_one_scale:
            return None
        plan = self.plan
        is_right = side == "right"
        operand = ((unwrap(x), 1 if is_right else 2),)
        bits = _required_bits(plan)
        if bits is None:
            launches = recorded(
                scaled_residues.scaled_residues,
                operand,
                moduli_of(plan),
                least_square=_least_square(plan),
            )
            return partial(_prepared_residues, launches, None)
        gained = max(bits[is_right], 0)
        count = min(plan.scheme.count + _SPARE_MODULI, MAX_MODULI)
        moduli = moduli_of(plan, count)
        two = moduli_of(plan, 2)
        launches = recorded(_residues_by_bits, operand, moduli, two, gained)
        return partial(_prepared_residues, launches, bits[is_right])

    def takes(self, split: Any, side: str) -> bool:
        """True if the moduli are among those of the residues, and the bits the same."""
        if not (self._has_one_scale and isinstance(split, PreparedResidues)):
            return False
        bits = _required_bits(self.plan)
        count = num_planes(moduli_of(self.plan), self.plan.problem.is_complex)
        if bits is None:
            return split.bits is None and split.count == count
        return split.bits == bits[side == "right"] and split.count >= count

    @property
    def _has_one_scale(self) -> bool:
        """True if all vectors of an operand are scaled alike, whatever the other is."""
        evidence = self.plan.evidence or Evidence()
        has_parts = evidence.outliers is not None or evidence.separate is not None
        scheme = self.plan.scheme
        is_apart = not scheme.scales_along_k and scheme.scaling != "accurate"
        return is_apart and not has_parts

    def inspection(
        self, left: Tensor, right: Tensor, splits: Splits
    ) -> Callable[[Tensor, Tensor, Splits], Hashable]:
        """The bits of both operands; a prepared operand brings its own."""
        has_left, has_right = (split is not None for split in splits)
        if not (has_left or has_right):
            return super().inspection(left, right, splits)
        bits_of_left = None if has_left else required_bits_of_one(left, "left")
        bits_of_right = None if has_right else required_bits_of_one(right, "right")

        def inspect(a: Tensor, b: Tensor, splits: Splits) -> Hashable:
            left_split, right_split = splits
            left = left_split.bits if bits_of_left is None else bits_of_left(a)
            right = right_split.bits if bits_of_right is None else bits_of_right(b)
            return None if left is None or right is None else (left, right)

        return inspect

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block; residues that the block before has made are used again."""
        moduli, used_moduli, balances = ordinary_moduli(plan)
        num_residues = num_planes(moduli, plan.problem.is_complex)
        evidence = plan.evidence or Evidence()
        exponents = exponents_of(plan, given)
        gained = _gained_bits(plan, given)
        if gained is not None:
            balances = (gained, -gained)
        scales = None
        if plan.scheme.scaling == "accurate":
            scales = _accurate_scales(plan, given, moduli)
        # The same kernel makes the residues whether or not the number is asked for.
        missing: Buffer | None = None
        if self._counts_bits(plan):
            missing = given.out.launches.zeros((3,), torch.int64)
        previous: list[tuple[tuple[slice, ...], Residues]] = []
        for block in blocks_of(plan, given.out):
            # Residues that are there: of prepared operands, or of the block before.
            places = block.places(given.a, given.b)
            operands = block.operands(given.a, given.b)
            prepared_planes = [
                _residues_at(place, split, num_residues)
                for place, split in zip(places, given.prepared, strict=True)
            ]
            for side, (place, residues_there) in enumerate(previous):
                if place == places[side]:
                    prepared_planes[side] = residues_there
            block_scales = None
            if scales is not None:
                block_scales = [
                    VectorScale(*(_vectors_at(place, x) for x in scale))
                    for place, scale in zip(places, scales, strict=True)
                ]

            # The others, by one launch. A matrix and its transpose have the same ones.
            is_gram = is_triangle(plan, block) and plan.problem.is_of_one_operand
            if is_gram and balances[0] == balances[1]:
                residues = 2 * _residues_of(
                    operands[:1],
                    moduli,
                    balances[:1],
                    [None],
                    least_square=_least_square(plan),
                    missing=missing,
                    scales=block_scales,
                )
            else:
                residues = _residues_of(
                    operands,
                    moduli,
                    balances,
                    prepared_planes,
                    exponents=exponents,
                    least_square=_least_square(plan),
                    missing=missing,
                    scales=block_scales,
                )
            predicate = self.predicate_of(missing, given)
            previous = list(zip(places, residues, strict=True))

            # Products of the first residues; outliers, which take all, are written over.
            used_residues = residues
            if used_moduli is not moduli:
                count = len(used_moduli.moduli)
                used_residues = [
                    (planes[:, :count], scale) for planes, scale in residues
                ]
            entries = _entries_of(plan, block, given)
            _write_entries(operands, used_residues, used_moduli, entries, predicate)
            if evidence.outliers is not None:
                _write_outliers(plan, block, operands, residues, entries, exponents)
            if evidence.separate is not None:
                _write_separate(evidence.separate, block, operands, entries)


class _CheckedCount(_FixedCount):
    """The same for other operands than those whose bits the plan rests on.

    The residues tell how many bits the integers miss. Nothing is multiplied where that
    is one or more.
    """

    @property
    def is_checked(self) -> bool:
        """True."""
        return True

    @property
    def checked_reason(self) -> str:
        """Why the product has these moduli."""
        return f"{self.plan.scheme.count} moduli hold all bits of the operands"

    def finding(self, number: int) -> Finding:
        """Of the numbers of `scaled_residues` for both operands, in one.

        Two moduli less hold a product of so many bits less; scales may be a bit larger
        than `required_bits` counts.
        """
        missing = [number >> shift & _LOW_BITS for shift in (0, _SHIFT_OF_SECOND)]
        if max(missing) > scaled_residues.NONE_MISSING:
            return Finding.REFUSED
        if self.plan.problem.is_of_one_operand:
            missing[1] = missing[0]
        spare = sum(scaled_residues.NONE_MISSING - bits for bits in missing if bits)
        count = self.plan.scheme.count
        is_complex = self.plan.problem.is_complex
        fewer = gained_bits(max(count - 2, 2), is_complex)
        has_idle = spare >= 2 * (gained_bits(count, is_complex) - fewer) + 2
        return Finding.WASTEFUL if has_idle or not any(missing) else Finding.SERVED

    def predicate_of(
        self, missing: Buffer | None, given: Arguments
    ) -> Predicate | None:
        """True where no bit is missing; the host gets both numbers."""
        assert missing is not None
        send(missing[1:], given.host_word, _SHIFT_OF_SECOND)
        return Predicate(missing[:1], 0, scaled_residues.NONE_MISSING)


def _prepared_residues(
    launches: LaunchList, bits: int | None, x: Array
) -> PreparedResidues:
    """Residues of an operand, by launches for its layout."""
    (planes,), (scale,) = launches(unwrap(x))
    return PreparedResidues(planes, scale.exponent, bits)


def _least_square(plan: Plan) -> int:
    """The least square norm of a vector, by which scales follow from the largest
    entries; 0 for scales by norms.
    """
    is_largest = plan.scheme.scaling == "largest"
    return largest_square(plan.problem.terms, moduli_of(plan)) if is_largest else 0


def _residues_by_bits(
    operand: tuple[tuple[Buffer, int]], moduli: ModuliSet, two: ModuliSet, gained: int
) -> Any:
    """Residues of integers that are as short as the bits of an operand allow."""
    scales = scaled_residues.norm_scales(operand, two, (gained, gained))
    return scaled_residues.scaled_residues(
        operand, moduli, scales, bits=norm_bits(two, gained)
    )


def _residues_at(
    place: tuple[slice, ...], split: Residues | None, count: int
) -> Residues | None:
    """The first residues of the vectors of a block of a prepared operand."""
    if split is None:
        return None
    planes, exponents = split
    planes = planes[place[0]] if len(planes) > 1 else planes
    return planes[:, :count, place[-1]], _vectors_at(place, exponents)


def _vectors_at(place: tuple[slice, ...], numbers: Buffer) -> Buffer:
    """The numbers (batch or 1, vectors) of the vectors of a block."""
    of_stack = numbers[place[0]] if len(numbers) > 1 else numbers
    return of_stack[:, place[-1]]


def _accurate_scales(
    plan: Plan, given: Arguments, moduli: ModuliSet
) -> tuple[VectorScale, VectorScale]:
    """The scales of all rows and columns by one more product, of magnitudes."""
    sides = [(given.a, 2), (given.b, 1)]
    if plan.problem.is_of_one_operand:
        del sides[1]
    magnitudes = upper_magnitudes(tuple(sides))
    sums = largest_sums(magnitudes)
    scales = scales_of_sums(magnitudes, sums, moduli)
    return scales[0], scales[-1]


def _required_bits(plan: Plan) -> tuple[int, int] | None:
    """Those that the plan of an exact product rests on."""
    return None if plan.evidence is None else plan.evidence.required_bits


def _gained_bits(plan: Plan, given: Arguments) -> int | None:
    """Bits that rows get at the expense of columns where an operand is prepared for an
    exact product; None for all else.

    The integers of the prepared operand hold its bits and no more. All that the moduli
    hold beyond them goes to the other one, whose scale so reaches down to its own bits:
    see `moduli_counts.exact_count`.
    """
    bits = _required_bits(plan)
    if bits is None or given.prepared == (None, None):
        return None
    held = gained_bits(plan.scheme.count, plan.problem.is_complex)
    left, right = bits
    return held - max(right, 0) if given.left is None else max(left, 0) - held


def _residues_of(
    operands: tuple[Buffer, ...],
    moduli: ModuliSet,
    balances: tuple[int, ...],
    prepared_planes: Sequence[Residues | None],
    predicate: Predicate | None = None,
    exponents: Exponents = None,
    least_square: int = 0,
    missing: Buffer | None = None,
    scales: Sequence[VectorScale] | None = None,
) -> list[Residues]:
    """Residues of both operands, or of the left one, in one launch for those that are
    not ready. `scales` come from `_accurate_scales`; without them the launch finds scales.
    """
    residues = list(prepared_planes)
    to_make = [i for i in range(len(operands)) if prepared_planes[i] is None]
    if to_make:
        sides = tuple((operands[i], 2 - i) for i in to_make)
        of_sides = None if scales is None else tuple(scales[i] for i in to_make)
        planes, scales_of_planes = scaled_residues.scaled_residues(
            scaled(sides, exponents, predicate),
            moduli,
            of_sides,
            balances=tuple(balances[i] for i in to_make),
            bits=None if scales is None else accurate_bits(moduli),
            predicate=predicate,
            least_square=least_square,
            missing=missing,
        )
        for i, x, scale in zip(to_make, planes, scales_of_planes, strict=True):
            residues[i] = x, scale.exponent
    return cast(list[Residues], residues)


class _Entries(NamedTuple):
    """The entries of a block: where they go, and what is made of their integers."""

    targets: Targets
    shift: int
    # `alpha` and `beta` are 1 and 0 where a later step applies them
    alpha: Any
    beta: Any
    triangle: bool = False  # only those on and below the diagonal are made
    in_halves: bool = False  # by the products of numerics/strassen.py


def _entries_of(plan: Plan, block: Block, given: Arguments) -> _Entries:
    """Those of a block of the plan."""
    targets = Targets(
        given.out[block.entries],
        plan.rounding,
        c=None if given.c is None else given.c[block.entries],
        second=None if given.second is None else given.second[block.entries],
    )
    return _Entries(
        targets,
        given.shift,
        given.alpha,
        given.beta,
        triangle=is_triangle(plan, block),
        in_halves=plan.blocking.in_halves,
    )


def _write_entries(
    operands: tuple[Buffer, Buffer],
    residues: Sequence[Residues],
    moduli: ModuliSet,
    entries: _Entries,
    predicate: Predicate | None = None,
    *,
    few_programs: bool = False,
) -> None:
    """Products of residues and what they stand for, nothing where the predicate does
    not hold.

    `few_programs` says that it seldom holds.
    """
    (left, row_scales), (right, col_scales) = residues
    halves = None
    if entries.in_halves:
        products, halves = products_of_halves(left, right, moduli, predicate)
    else:
        products = products_of(
            left, right, moduli, predicate, triangle=entries.triangle
        )
    crt_kernel.crt(
        products,
        (row_scales, col_scales),
        moduli,
        entries.targets,
        shift=entries.shift,
        alpha=entries.alpha,
        beta=entries.beta,
        operands=operands,
        predicate=predicate,
        few_programs=few_programs,
        triangle=entries.triangle,
        halves=halves,
    )


class _Ladder(_Residues):
    """Launches of several numbers of moduli, of which the device takes one."""

    def checked(self, signature: Signature) -> CudaLowering | None:
        """The first rung alone, before which exact products need no look at the
        operands.
        """
        plan = self.plan
        chooses = plan.verification is Verification.ON_DEVICE
        is_by_bits = chooses and _required_bits(plan) is not None
        if not is_by_bits or plan.scheme.scales_along_k or not plan.is_whole:
            return None
        return _CheckedLadder(plan, self.device, self.costs)

    @property
    def record_words(self) -> int:
        """For the error ratio, and that of operands scaled along k."""
        return _RECORD

    def decision(self, words: Sequence[int]) -> RecordedDecision:
        """What the largest error ratio says: the rung that was taken, or the bound of a
        forced count.
        """
        plan = self.plan
        bits = words[0]
        inner_bits = words[_INNER]
        notes: tuple[str, ...] = ()
        if plan.scheme.scaling == "inner" and inner_bits == inner_scaling.KEPT:
            notes = (SCALED_ALONG_K,)
        ratio = float(np.int64(bits).view(np.float64)) * RATIO_UNIT
        p = plan.problem
        k_block = plan.k_block
        if plan.verification is Verification.NONE:
            bound = error_bound(p.terms, ratio, moduli_of(plan).half_range)
            return RecordedDecision(
                True, plan.scheme, bound, plan.num_products, k_block, notes=notes
            )

        # The first rung that keeps the target for this ratio.
        rungs, inner_rungs = _ladder(plan)
        keeping = [rung for rung in rungs if bits <= _ratio_bits(plan, rung.count)]
        if not keeping and inner_bits:
            keeping = [
                x for x in inner_rungs if inner_bits <= _ratio_bits(plan, x.count)
            ]
            notes = (SCALED_ALONG_K,)
        if keeping:
            rung = keeping[0]
            return RecordedDecision(
                True, rung, plan.target.r, rung.planes(p), k_block, notes=notes
            )

        # No rung: a finer plan, the exact product, or the native one.
        if plan.verification is Verification.ENTRYWISE:
            evidence = Evidence(error_ratio=ratio)
            return RecordedDecision(
                False, plan.scheme, plan.bound, plan.num_products, k_block, evidence
            )
        last = plan.alternatives[-1]
        if plan.evidence is not None:
            return RecordedDecision(True, last, 0.0, last.planes(p), k_block)
        return RecordedDecision(True, last, native_bound(p.terms, p.fmt.u), 1, p.k)

    def record(self, plan: Plan, given: Arguments) -> None:
        """Rung by rung; the record ends with the largest error ratio, or with a lower
        bound that decides alike.

        A plan that is to be certified has one rung; a ratio that this does not keep is
        made known in full. Behind the last rung comes what keeps the bound for any
        ratio: a native product, or moduli that hold the exact product.
        """
        words = cast(Buffer, given.record)
        record = words[:1]
        inner_record = words[_INNER : _INNER + 1]
        chooses = plan.verification is Verification.ON_DEVICE
        is_exact_behind = chooses and plan.evidence is not None
        exponents = exponents_of(plan, given, inner_record)
        rungs, inner_rungs = _ladder(plan)
        samples_from = _SAMPLE_FROM_BEFORE_EXACT if is_exact_behind else _SAMPLE_FROM
        if chooses and _is_sampled(plan.problem, samples_from):
            _look_at_sample(plan, given, record, exponents)
        last = _write_rungs(plan, given, rungs, (record, 0), exponents)
        no_rung_taken = Predicate(record, last + 1, LARGEST)
        if is_exact_behind:
            exact = plan.alternatives[-1]
            _write_exact(plan, given, exact, no_rung_taken, exponents)
        elif chooses:
            if inner_rungs:
                # Exponents are looked for where no rung was taken, and rungs begin where the
                # operands gain by them.
                exponents = inner_scaling.gaining_exponents(
                    given.a,
                    given.b,
                    inner_record,
                    no_rung_taken,
                )
                start = inner_record, inner_scaling.KEPT
                last = _write_rungs(plan, given, inner_rungs, start, exponents)
                no_rung_taken = Predicate(inner_record, last + 1, LARGEST)
            native_gemm.fp64_product(
                given.a, given.b, given.out, no_rung_taken, given.shift
            )
            if given.out.is_complex():
                restore_special_values(
                    given.a, given.b, given.out, predicate=no_rung_taken
                )


class _CheckedLadder(_Ladder):
    """The first rung of a ladder whose last one is the exact product, for operands whose
    bits nobody knows. Nothing is written where it does not keep their error ratio.
    """

    @property
    def is_checked(self) -> bool:
        """True."""
        return True

    @property
    def checked_reason(self) -> str:
        """Why the product has these moduli."""
        return f"{self.plan.scheme.count} moduli keep {self.plan.target} for the error ratio of the operands"

    def finding(self, number: int) -> Finding:
        """Of the bits of a ratio."""
        is_kept = number <= _ratio_bits(self.plan, self.plan.scheme.count)
        return Finding.SERVED if is_kept else Finding.REFUSED

    def record(self, plan: Plan, given: Arguments) -> None:
        """The residues and the ratio, which the host gets, then the product."""
        record = cast(Buffer, given.record)[:1]
        rungs, _ = _ladder(plan)
        if _is_sampled(plan.problem, _SAMPLE_FROM_BEFORE_EXACT):
            _look_at_sample(plan, given, record, None)
        _write_rungs(
            plan, given, rungs[:1], (record, 0), None, host_word=given.host_word
        )


def _is_sampled(problem: Problem, least: int) -> bool:
    """True if the ratio of a few vectors comes first, from so many multiplications on."""
    is_large = problem.multiplications >= least
    return is_large and min(problem.m, problem.n) >= _SAMPLED_FROM


def _look_at_sample(
    plan: Plan, given: Arguments, record: Buffer, exponents: Exponents
) -> None:
    """Raise the record to the error ratio of a few rows and columns."""
    rows = given.a[:, :_SAMPLE]
    columns = given.b[:, :, :_SAMPLE]
    sides = scaled(((rows, 2), (columns, 1)), exponents)
    sizes = scaled_residues.sized_residues(sides, moduli_of(plan))[2]
    error_ratio_bits(sizes, enough=_ratio_bits(plan, plan.scheme.count), into=record)


def _write_rungs(
    plan: Plan,
    given: Arguments,
    rungs: Sequence[Rung],
    start: tuple[Buffer, int],
    exponents: Exponents,
    host_word: Buffer | None = None,
) -> int:
    """Rungs, the first of which is for ratios from a number on that a record holds. The
    host gets that number as each rung leaves it, before its product.

    The largest number that the last one is for is returned.
    """
    record, lowest_bits = start
    highest_bits = lowest_bits
    chooses = plan.verification is Verification.ON_DEVICE
    has_limit = chooses or plan.verification is Verification.ENTRYWISE
    is_first = True
    for rung in rungs:
        moduli = moduli_of(plan, rung.count)
        highest_bits = LARGEST
        predicate = None
        if has_limit:
            highest_bits = _ratio_bits(plan, rung.count)
            predicate = Predicate(record, lowest_bits, highest_bits)
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            triangle = is_triangle(plan, block)
            sides = [(operands[0], 2), (operands[1], 1)]
            if triangle and plan.problem.is_of_one_operand:
                del sides[1]

            # Where the device chooses, a rung does not begin with too large a ratio.
            begun = predicate if chooses else None
            planes, scales, sizes = scaled_residues.sized_residues(
                scaled(tuple(sides), exponents, begun), moduli, predicate=begun
            )
            few_terms = _few_terms(plan, highest_bits, is_inner=rung.scaling == "inner")
            error_ratio_bits(
                sizes,
                few_terms,
                highest_bits if has_limit else 0,
                into=record,
                predicate=begun,
            )
            if host_word is not None:
                send(record, host_word)
            residues = [(planes[i], scales[i].exponent) for i in (0, -1)]
            entries = _entries_of(plan, block, given)
            _write_entries(
                operands,
                residues,
                moduli,
                entries,
                predicate,
                few_programs=not is_first,
            )
        lowest_bits = highest_bits + 1
        is_first = False
    return highest_bits


def _write_exact(
    plan: Plan,
    given: Arguments,
    scheme: Rung,
    predicate: Predicate,
    exponents: Exponents,
) -> None:
    """Block by block, by moduli that hold the exact product, where the predicate
    holds.
    """
    moduli = moduli_of(plan, scheme.count)
    even = _even_balance(plan, scheme.count)
    for block in blocks_of(plan, given.out):
        operands = block.operands(given.a, given.b)
        triangle = is_triangle(plan, block)
        if triangle and plan.problem.is_of_one_operand and even == 0:
            residues = (
                _residues_of(operands[:1], moduli, (even,), [None], predicate) * 2
            )
        else:
            residues = _residues_of(
                operands, moduli, (even, -even), [None, None], predicate, exponents
            )
        entries = _entries_of(plan, block, given)
        _write_entries(
            operands, residues, moduli, entries, predicate, few_programs=True
        )


def _even_balance(plan: Plan, count: int) -> int:
    """Bits that rows get at the expense of columns, where `count` moduli hold the exact
    product; 0 where nothing is known of the operands.
    """
    bits = None if plan.evidence is None else plan.evidence.required_bits
    return 0 if bits is None else balance(bits, count, plan.problem.is_complex)


def _ladder(plan: Plan) -> tuple[list[Rung], list[Rung]]:
    """The schemes with a number of moduli that the ratio decides on, and those with
    inner scaling that come behind them; behind all comes what needs no ratio.
    """
    rungs = [plan.scheme, *plan.alternatives[:-1]]
    own_scaling = [rung for rung in rungs if rung.scaling == plan.scheme.scaling]
    return own_scaling, rungs[len(own_scaling) :]


def _few_terms(plan: Plan, ratio_bits: int, *, is_inner: bool = False) -> int | None:
    """The part of the terms of a large product that is looked at first; None for all.

    Moduli keep their target up to ratios with these bits, see `_ratio_bits`.

    From a part of 2**-s of the terms ratios come out 2**s times as large. Operands with
    phi = 0.5 have a ratio of about 2**1.75 sqrt(k), complex ones 2**2.25 sqrt(k); what
    moduli leave beyond that, less one bit, is s. The fewest moduli leave 1.5 bits for
    real operands, 1.0 to 1.1 for complex ones, so that a half, or five eighths, are the
    most. Powers of two along k meet the pattern of entries to a bit or two, and leave
    ratios of real operands a quarter of a bit larger.
    """
    p = plan.problem
    if plan.verification is Verification.NONE or p.multiplications < _FEW_TERMS_FROM:
        return None
    largest = max(float(np.int64(ratio_bits).view(np.float64)) * RATIO_UNIT, 1.0)
    usual = 3.25 if p.is_complex else 3.0 if is_inner else 2.75
    spare = math.log2(largest / math.sqrt(p.k)) - usual
    share = 5 / 8 if p.is_complex or is_inner else 1 / 2
    if spare >= 2:
        share = 2.0 ** -math.floor(spare)
    few = max(
        math.ceil(p.k * share / 128) * 128, min(_LEAST_TERMS, -(-p.k // 256) * 128)
    )
    return few if few < min(-(-p.k // 128) * 128, MAGNITUDE_TERMS) else None


@lru_cache(maxsize=1024)
def _ratio_bits(plan: Plan, count: int) -> int:
    """The bits of the largest error ratio, in units of RATIO_UNIT, for which moduli
    keep the target; -1 for none.

    No target is kept where |A||B| may be 0, be it as large as it likes.
    """
    largest = largest_ratio(
        plan.problem.terms, plan.target.r, moduli_of(plan, count).half_range
    )
    largest = min(largest / RATIO_UNIT, float(np.finfo(np.float64).max))
    return int(np.float64(largest).view(np.int64)) if largest >= 0 else -1


# Outliers: rows and columns whose entries take more moduli than all others.


_Vectors = tuple[int, ...] | None
"""Some rows or columns; None for all."""


class _Case(NamedTuple):
    """Some rows and columns, and how their entries are made."""

    rows: _Vectors
    cols: _Vectors
    moduli: ModuliSet
    balances: tuple[int, int]
    prepared_planes: list[Residues | None]


def _write_outliers(
    plan: Plan,
    block: Block,
    operands: tuple[Buffer, Buffer],
    residues: Sequence[Residues],
    entries: _Entries,
    exponents: Exponents,
) -> None:
    """Write the entries of the outlier rows and columns of a block over; see
    `Outliers`.

    Those of outlier rows in outlier columns come last: they are wrong among those of
    either.
    """
    if plan.evidence is None or plan.evidence.outliers is None:
        return
    outliers = plan.evidence.outliers
    i = _inside(outliers.rows, block.rows)
    j = _inside(outliers.cols, block.cols)
    shared = moduli_set(outliers.shared, False)
    raised = outliers.balance + outliers.lowered, -outliers.balance + outliers.lowered
    even = _even_balance(plan, plan.scheme.count)
    cases = [
        _Case(i, None, shared, raised, [None, residues[1]]),
        _Case(None, j, shared, raised, [residues[0], None]),
        _Case(i, j, moduli_of(plan), (even, -even), [None, None]),
    ]
    for rows, cols, moduli, balances, prepared_planes in cases:
        if rows == () or cols == ():
            continue
        pair = _gathered(operands[0], 1, rows), _gathered(operands[1], 2, cols)
        residues_of_pair = _residues_of(
            pair, moduli, balances, prepared_planes, exponents=exponents
        )
        part = _part_of(entries, rows, cols)
        _write_entries(pair, residues_of_pair, moduli, part)
        _write_back(entries.targets, part.targets, rows, cols)


def _write_separate(
    separate: SeparateVectors,
    block: Block,
    operands: tuple[Buffer, Buffer],
    entries: _Entries,
) -> None:
    """Write the entries of the rows and columns of a block over that no moduli hold;
    see `SeparateVectors`.
    """
    rows = _inside(separate.rows, block.rows)
    cols = _inside(separate.cols, block.cols)
    cases: list[tuple[_Vectors, _Vectors]] = [(rows, None), (None, cols)]
    for i, j in cases:
        if i == () or j == ():
            continue
        part = _part_of(entries, i, j)
        left = _gathered(operands[0], 1, i)
        right = _gathered(operands[1], 2, j)
        # C is a term of the only rounding, or comes behind it by alpha and beta.
        targets = part.targets
        adds = targets.rounding.has_addend
        terms = targets if adds else targets._replace(c=None)
        rounded_sums(left, right, terms, shift=part.shift)
        is_combined = part.alpha != 1.0 or targets.c is not None
        if is_combined and not adds:
            combine_in_place(targets.out, part.alpha, part.beta, targets.c)
        _write_back(entries.targets, targets, i, j)


def _part_of(entries: _Entries, rows: _Vectors, cols: _Vectors) -> _Entries:
    """Memory for the entries of some rows and columns, and their entries of C."""
    targets = entries.targets
    out = targets.out
    shape = (
        1,
        out.shape[1] if rows is None else len(rows),
        out.shape[2] if cols is None else len(cols),
    )
    part = targets._replace(out=out.launches.empty(shape, out.dtype))
    if targets.second is not None:
        part = part._replace(second=out.launches.empty(shape, out.dtype))
    if targets.c is not None:
        part = part._replace(c=_gathered(_gathered(targets.c, 1, rows), 2, cols))
    return entries._replace(targets=part, triangle=False, in_halves=False)


def _write_back(
    targets: Targets, part: Targets, rows: _Vectors, cols: _Vectors
) -> None:
    """Put the entries of some rows and columns in their places."""
    scatter = partial(_scatter, rows, cols)
    targets.out.launches.call(scatter, targets.out, part.out)
    if targets.second is not None:
        targets.out.launches.call(scatter, targets.second, part.second)


def _inside(vectors: tuple[int, ...], part: slice) -> tuple[int, ...]:
    """Those of the vectors that lie in a part, counted from its first."""
    return tuple(i - part.start for i in vectors if part.start <= i < part.stop)


def _gathered(x: Buffer, axis: int, vectors: _Vectors) -> Buffer:
    """Some rows (axis 1) or columns (axis 2) of a buffer, copied; all of them for
    None.
    """
    if vectors is None:
        return x
    shape = tuple(len(vectors) if i == axis else n for i, n in enumerate(x.shape))
    copy: Buffer = x.launches.empty(shape, x.dtype)
    x.launches.call(partial(_gather, axis, vectors), x, copy)
    return copy


def _gather(axis: int, vectors: tuple[int, ...], x: Tensor, copy: Tensor) -> None:
    torch.index_select(x, axis, _index(vectors, x.device), out=copy)


def _scatter(rows: _Vectors, cols: _Vectors, out: Tensor, values: Tensor) -> None:
    everything = slice(None)
    i = everything if rows is None else _index(rows, out.device)
    j = everything if cols is None else _index(cols, out.device)
    if isinstance(i, Tensor) and isinstance(j, Tensor):
        i = i[:, None]
    out[:, i, j] = values


def _index(vectors: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(vectors, dtype=torch.int64).to(device, non_blocking=True)
