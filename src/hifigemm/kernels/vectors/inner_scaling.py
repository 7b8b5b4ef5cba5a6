"""Powers of two between the columns of A and the rows of B on a GPU: the overrides of
numerics.inner_scaling, with the same integers.

Every launch leaves integers that the next one reads, and no program waits for another:

1. gap: how far the largest entries of a row and a column lie above their products, in a
   sample. Where that is little, the next four launches do nothing.
2. exponents of the rows of A and of the columns of B: the largest, their sum, their
   number.
3. maxima along k of the exponents beside those of their vectors, for which the operands
   are read again, and how far the entries of vectors spread.
4. d from these maxima.
5. gap with d.
6. zeros instead of d, unless d closes the gap.

Programs share numbers by maxima and sums of integers alone, in memory that is zero
before they start, so that no order of programs shows. Numbers that may be negative are
stored above 0 by a bias.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    LARGEST,
    NO_PREDICATE,
    Predicate,
    holds,
    is_within,
)
from hifigemm.kernels.runtime.launch import Launch, Strided, real_view, unread
from hifigemm.kernels.vectors.statistics import (
    NO_POWER,
    entries_of,
    exponent_of,
    exponent_or,
    magnitude_bits,
    place_of_tile,
)
from hifigemm.numerics import inner_scaling as plain

_NO_EXPONENT = tl.constexpr(plain.NO_EXPONENT)
_BIAS = tl.constexpr(2560)
"""S_h + 2560 > 0: exponents of float64 differ by less than 2100."""
_CODE_BIAS = tl.constexpr(4096)
"""e + 4096 > 3000: a zero, which counts 0, lies below all of them by more than the bias
of S_h.
"""
_LEAST_BIAS = tl.constexpr(2048)
"""2048 - e > 0 for every exponent e."""
_MOST = tl.constexpr(plain._MOST)
_LEAST_NORMAL = tl.constexpr(plain._LEAST_NORMAL)
_NEARBY_SLACKS = tl.constexpr(plain._NEARBY_SLACKS)
_WIDE_GAP = tl.constexpr(plain.WIDE_GAP)
"""Launches 2 to 4 run for gaps from here to 2**40, which no gap reaches."""
_BLOCK = 1024
"""Terms that a program looks at together where only k is walked over."""
_STEPS = 8
"""Tiles that a program walks over before others see what it found."""
VECTOR_BYTES = 16
"""Of what is known of a vector: its largest exponent, the number of its entries, and
the sum of their exponents.
"""
KEPT = 1
"""What the mark says where d is taken; LARGEST where it is not."""


@dataclass(frozen=True)
class _Tile:
    """Vectors and terms of a tile, in which neighbours in memory are many."""

    vectors: int
    terms: int


_ALONG_K = _Tile(4, 512)
_ACROSS_K = _Tile(32, 64)


class _Vectors(NamedTuple):
    """What is known of the vectors of both operands, those of A first."""

    top: Any  # int32 tensor: exponents of the largest entries, above 0
    total: Any  # int64 tensor: sums of the exponents of entries
    entries: Any  # int32 tensor: how many entries count


class _Terms(NamedTuple):
    """What is known along k, biased maxima in int32 tensors that start as zeros."""

    largest: Any  # of A for all terms, then of B
    least: Any  # the same of the smallest components
    spread: Any  # of the vectors of A, and of B


@triton.jit
def _bits(x, mask, WIDTH: tl.constexpr):
    """Bits of the largest component of entries, and of the smallest other than zero.

    0 and those of infinity for entries that are zero, Inf or NaN, or masked.
    """
    most = magnitude_bits(tl.load(x, mask=mask, other=0.0).to(tl.float64))
    least = tl.where(most == 0, NO_POWER, most)
    for i in tl.static_range(1, WIDTH):
        bits = magnitude_bits(tl.load(x + i, mask=mask, other=0.0).to(tl.float64))
        least = tl.minimum(least, tl.where(bits == 0, NO_POWER, bits))
        most = tl.maximum(most, bits)
    counts = most < NO_POWER
    return tl.where(counts, most, 0), tl.where(counts, least, NO_POWER)


@triton.jit
def _code(bits):
    """Exponents of entries above 0, and 0 for those without, from their bits."""
    return tl.where(bits == 0, 0, exponent_of(bits) + _CODE_BIAS)


@triton.jit
def _largest_of_vectors(
    operand,
    task,
    count,
    k,
    known,
    first_vector,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """`vector_exponents_kernel` for STEPS tiles along k of one panel of vectors.

    A tile is TILE.vectors vectors, a panel, times TILE.terms terms. `first_vector` is
    the number of the operand's first vector among all that are `known`.
    """
    VECTORS: tl.constexpr = TILE.vectors
    TERMS: tl.constexpr = TILE.terms
    # Programs that follow each other take the terms of the same vectors.
    batch, panel, chunk = place_of_tile(
        task, tl.cdiv(count, VECTORS), tl.cdiv(k, STEPS * TERMS)
    )
    first = chunk * (STEPS * TERMS)
    vectors = panel * VECTORS + tl.arange(0, VECTORS)
    inside = vectors < count
    # Each place of a tile keeps its own numbers, which meet after the last tile.
    top = tl.zeros([VECTORS, TERMS], tl.int32)
    total = tl.zeros([VECTORS, TERMS], tl.int32)
    entries = tl.zeros([VECTORS, TERMS], tl.int32)
    for start in range(first, tl.minimum(first + STEPS * TERMS, k), TERMS):
        ks = start + tl.arange(0, TERMS)
        mask = inside[:, None] & (ks < k)[None, :]
        x = entries_of(operand, batch, vectors, ks)
        bits, _ = _bits(x, mask, WIDTH)
        code = _code(bits)
        top = tl.maximum(top, code)
        total += code
        entries += (bits != 0).to(tl.int32)
    # Integers, whose sums and maxima do not depend on the order of programs.
    at = first_vector + batch * count + vectors
    vector_top = tl.max(top, axis=1)
    vector_total = tl.sum(total, axis=1).to(tl.int64)
    vector_entries = tl.sum(entries, axis=1)
    tl.atomic_max(known.top + at, vector_top, mask=inside, sem="relaxed")
    tl.atomic_add(known.total + at, vector_total, mask=inside, sem="relaxed")
    tl.atomic_add(known.entries + at, vector_entries, mask=inside, sem="relaxed")


_FREE_OF_TASKS = ["num_a", "num_b", "k", "tasks_a", "total_a"]


@triton.jit(do_not_specialize=_FREE_OF_TASKS)
def vector_exponents_kernel(
    a,
    b,
    num_a,
    num_b,
    k,
    tasks_a,
    total_a,
    known,
    gap,
    STEPS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Twin: numerics.inner_scaling._maxima, R and Q.

    A program takes some vectors of A or of B, and STEPS tiles of their terms. R, Q, sums
    of exponents and numbers of entries are joined in memory that starts as zeros.
    Nothing where the gap is narrow.
    """
    if not is_within(gap, _WIDE_GAP, 1 << 40):
        return
    task = tl.program_id(0)
    if task < tasks_a:
        _largest_of_vectors(a, task, num_a, k, known, 0, STEPS, LEFT, WIDTH)
    else:
        task -= tasks_a
        _largest_of_vectors(b, task, num_b, k, known, total_a, STEPS, RIGHT, WIDTH)


@triton.jit
def _largest_of_terms(
    operand,
    task,
    count,
    k,
    top,
    terms,
    first_term,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """`inner_maxima_kernel` for the TILE.terms terms of a chunk, and STEPS tiles of
    TILE.vectors vectors.

    `first_term` is where the operand begins among the `terms` of both.
    """
    VECTORS: tl.constexpr = TILE.vectors
    TERMS: tl.constexpr = TILE.terms
    # Programs that follow each other take neighbouring terms of the same vectors.
    batch, panel, chunk = place_of_tile(
        task, tl.cdiv(count, STEPS * VECTORS), tl.cdiv(k, TERMS)
    )
    ks = chunk * TERMS + tl.arange(0, TERMS)
    first = panel * (STEPS * VECTORS)
    most = tl.zeros([VECTORS, TERMS], tl.int32)
    deepest = tl.zeros([VECTORS, TERMS], tl.int32)
    for start in range(first, tl.minimum(first + STEPS * VECTORS, count), VECTORS):
        vectors = start + tl.arange(0, VECTORS)
        inside = vectors < count
        r = tl.load(top + batch * count + vectors, mask=inside, other=0)
        # A zero entry, 0 - R + 2560, has to come out below 0. It does, as R with its
        # bias is above 3000; for a vector of zeros, where R is 0, the bias is taken.
        r = tl.where(r == 0, _CODE_BIAS, r)
        mask = inside[:, None] & (ks < k)[None, :]
        x = entries_of(operand, batch, vectors, ks)
        bits, smallest = _bits(x, mask, WIDTH)
        most = tl.maximum(most, _code(bits) - r[:, None] + _BIAS)
        depth = tl.where(bits == 0, 0, _LEAST_BIAS - exponent_of(smallest))
        deepest = tl.maximum(deepest, depth)
    # Maxima do not depend on the order of programs; terms without entries stay 0.
    most_of_terms = tl.max(most, axis=0)
    is_seen = (ks < k) & (most_of_terms > 0)
    largest = terms.largest + first_term
    least = terms.least + first_term
    tl.atomic_max(largest + ks, most_of_terms, mask=is_seen, sem="relaxed")
    tl.atomic_max(least + ks, tl.max(deepest, axis=0), mask=is_seen, sem="relaxed")


@triton.jit(do_not_specialize=[*_FREE_OF_TASKS, "vectors"])
def inner_maxima_kernel(
    a,
    b,
    num_a,
    num_b,
    k,
    tasks_a,
    total_a,
    vectors,
    known,
    terms,
    gap,
    STEPS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.inner_scaling._maxima, S, T, the smallest components and spreads.

    Programs join maxima of biased numbers in memory that starts as zeros: A's first,
    then B's. For the spreads, all programs share the `vectors` of both operands, of
    which the first `total_a` are A's. Nothing where the gap is narrow.
    """
    if not is_within(gap, _WIDE_GAP, 1 << 40):
        return
    task = tl.program_id(0)
    for start in range(task * BLOCK, vectors, tl.num_programs(0) * BLOCK):
        # The mean of R_i - e_ih, which is no less than 0, rounded down.
        at = start + tl.arange(0, BLOCK)
        inside = at < vectors
        count = tl.load(known.entries + at, mask=inside, other=0).to(tl.int64)
        r = tl.load(known.top + at, mask=inside, other=0)
        below = count * r - tl.load(known.total + at, mask=inside, other=0)
        mean = (below // tl.maximum(count, 1)).to(tl.int32)
        largest_a = tl.max(tl.where(at < total_a, mean, 0))
        largest_b = tl.max(tl.where(at < total_a, 0, mean))
        tl.atomic_max(terms.spread, largest_a, sem="relaxed")
        tl.atomic_max(terms.spread + 1, largest_b, sem="relaxed")
    if task < tasks_a:
        _largest_of_terms(a, task, num_a, k, known.top, terms, 0, STEPS, LEFT, WIDTH)
    else:
        task -= tasks_a
        top = known.top + total_a
        _largest_of_terms(b, task, num_b, k, top, terms, k, STEPS, RIGHT, WIDTH)


@triton.jit
def _chosen(largest, ks, k, slack_left, slack_right, flat):
    """d of some terms, and whether A and B have entries there.

    S and T are read with their bias, which cancels in their difference. They are 0 for
    terms without entries: there the other operand is made flat.
    """
    s = tl.load(largest + ks, mask=ks < k, other=0)
    t = tl.load(largest + k + ks, mask=ks < k, other=0)
    flat_left = flat - (s - _BIAS)
    flat_right = (t - _BIAS) - flat
    near = tl.abs(slack_left - slack_right) <= _NEARBY_SLACKS
    d = tl.where(slack_left < slack_right, flat_left, flat_right)
    d = tl.where(near, (t - s) >> 1, d)
    d = tl.where(s == 0, flat_right, tl.where(t == 0, flat_left, d))
    d = tl.minimum(tl.maximum(d, -_MOST), _MOST)
    return tl.where((s > 0) | (t > 0), d, 0), s > 0, t > 0


@triton.jit(do_not_specialize=["k"])
def inner_exponents_kernel(terms, k, exponents, gap, BLOCK: tl.constexpr):
    """Twin: numerics.inner_scaling.chosen_exponents.

    Every program reads the maxima of all terms, BLOCK at a time, and finds the same
    means. It writes d of BLOCK terms of its own. Nothing where the gap is narrow.
    """
    if not is_within(gap, _WIDE_GAP, 1 << 40):
        return
    largest = terms.largest
    least = terms.least
    offsets = tl.arange(0, BLOCK)
    # The means of -S and -T over the terms that have entries, rounded down.
    below_left = tl.zeros([BLOCK], tl.int64)
    below_right = tl.zeros([BLOCK], tl.int64)
    entries_left = tl.zeros([BLOCK], tl.int64)
    entries_right = tl.zeros([BLOCK], tl.int64)
    # The largest S + T of terms that both have entries in.
    common = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        ks = start + offsets
        s = tl.load(largest + ks, mask=ks < k, other=0)
        t = tl.load(largest + k + ks, mask=ks < k, other=0)
        below_left += tl.where(s > 0, _BIAS - s, 0)
        below_right += tl.where(t > 0, _BIAS - t, 0)
        entries_left += (s > 0).to(tl.int64)
        entries_right += (t > 0).to(tl.int64)
        common = tl.maximum(common, tl.where((s > 0) & (t > 0), s + t, 0))
    mean_left = tl.sum(below_left) // tl.maximum(tl.sum(entries_left), 1)
    mean_right = tl.sum(below_right) // tl.maximum(tl.sum(entries_right), 1)
    slack_left = tl.load(terms.spread) - mean_left.to(tl.int32)
    slack_right = tl.load(terms.spread + 1) - mean_right.to(tl.int32)
    # Flat vectors have half of it along k, of A and of B alike.
    most = tl.max(common)
    flat = tl.where(most > 0, (most - 2 * _BIAS) >> 1, 0)
    # Is every entry of A D and of D**-1 B a normal number?
    smallest = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        ks = start + offsets
        d, has_left, has_right = _chosen(largest, ks, k, slack_left, slack_right, flat)
        left = _LEAST_BIAS - tl.load(least + ks, mask=ks < k, other=0) + d
        right = _LEAST_BIAS - tl.load(least + k + ks, mask=ks < k, other=0) - d
        smallest = tl.minimum(smallest, tl.where(has_left, left, 0))
        smallest = tl.minimum(smallest, tl.where(has_right, right, 0))
    is_normal = tl.min(smallest) >= _LEAST_NORMAL
    ks = tl.program_id(0) * BLOCK + offsets
    d, _, _ = _chosen(largest, ks, k, slack_left, slack_right, flat)
    tl.store(exponents + ks, tl.where(is_normal, d, 0), mask=ks < k)


_FREE_OF_GAPS = ["a", "b", "num_a", "num_b", "k", "num_exponents", "predicate"]


@triton.jit(do_not_specialize=_FREE_OF_GAPS)
def sampled_gap_kernel(
    a,
    b,
    num_a,
    num_b,
    k,
    exponents,
    num_exponents,
    gap,
    predicate,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.inner_scaling.sampled_gap.

    There are k exponents, or none. A program takes a pair of a row and a column of the
    first matrices, walks over k, BLOCK terms at a time, and raises `gap` to the gap of
    the pair. Nothing where the predicate does not hold: it reads another number than
    `gap`, so that all programs agree.
    """
    if not holds(predicate):
        return
    pair = tl.program_id(0)
    row = (pair % num_a).to(tl.int64)
    column = (pair % num_b).to(tl.int64)
    row_entries = a.entries + row * a.row
    column_entries = b.entries + column * b.row
    left = tl.full([BLOCK], _NO_EXPONENT, tl.int32)
    right = tl.full([BLOCK], _NO_EXPONENT, tl.int32)
    meeting = tl.full([BLOCK], 2 * _NO_EXPONENT, tl.int32)
    for start in range(0, k, BLOCK):
        ks = start + tl.arange(0, BLOCK)
        x, _ = _bits(row_entries + ks.to(tl.int64) * a.column, ks < k, WIDTH)
        y, _ = _bits(column_entries + ks.to(tl.int64) * b.column, ks < k, WIDTH)
        e = exponent_or(x, _NO_EXPONENT)
        f = exponent_or(y, _NO_EXPONENT)
        meeting = tl.maximum(meeting, e + f)
        d = tl.load(exponents + ks, mask=ks < num_exponents, other=0)
        left = tl.maximum(left, e + d)
        right = tl.maximum(right, f - d)
    nearest = tl.max(meeting)
    below = tl.max(left) + tl.max(right) - nearest
    # A pair whose products are all zeros has no gap. A maximum, whatever the order.
    below = tl.where(nearest > _NO_EXPONENT // 2, below, 0)
    tl.atomic_max(gap, tl.maximum(below, 0).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["k", "predicate"])
def keep_kernel(
    exponents,
    k,
    gaps,
    mark,
    predicate,
    BLOCK: tl.constexpr,
):
    """Zeros instead of d, unless numerics.inner_scaling.closes.

    A program clears d of BLOCK terms. `gaps` has the gap without d and, as number 2,
    the gap with d; earlier launches have finished both. The first program leaves a
    mark: 1 where d is taken, else the largest number. Nothing where the predicate does
    not hold.
    """
    if not holds(predicate):
        return
    before = tl.load(gaps)
    is_kept = (before >= _WIDE_GAP) & (2 * tl.load(gaps + 2) <= before)
    ks = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if is_kept == 0:
        tl.store(exponents + ks, 0, mask=ks < k)
    if mark is not None:  # noqa: SIM102
        if tl.program_id(0) == 0:
            tl.store(mark, tl.where(is_kept, 1, 0x7FFFFFFFFFFFFFFF))


_exponents_of_vectors = Launch(vector_exponents_kernel)
_maxima = Launch(inner_maxima_kernel)
_exponents_of_terms = Launch(inner_exponents_kernel)
_gap = Launch(sampled_gap_kernel)
_keep = Launch(keep_kernel)


def sampled_gap(
    left: Buffer,
    right: Buffer,
    gap: Buffer,
    exponents: Buffer | None = None,
    predicate: Predicate | None = None,
) -> None:
    """Raise `gap`, an int64 tensor of one entry, to numerics.inner_scaling.sampled_gap.

    left (batch or 1, m, k) and right (batch or 1, k, n) are real or complex, `exponents`
    int32 (k,).
    """
    k = left.shape[2]
    _gap(
        (plain.SAMPLES,),
        _operand(left, 2),
        _operand(right, 1),
        left.shape[1],
        right.shape[2],
        k,
        unread(torch.int32) if exponents is None else exponents,
        0 if exponents is None else k,
        gap,
        predicate or NO_PREDICATE,
        WIDTH=1 + left.is_complex(),
        BLOCK=_BLOCK,
        num_warps=8,
    )


def _operand(x: Buffer, axis: int) -> Strided:
    """The real numbers of a stack, with rows of vectors and columns along k."""
    width = 1 + x.is_complex()
    stack_stride = x.stride(0) if len(x) > 1 else 0
    strides = stack_stride, x.stride(3 - axis), x.stride(axis)
    return Strided(real_view(x), *(width * stride for stride in strides))


def inner_exponents(left: Buffer, right: Buffer, gap: Buffer) -> Buffer:
    """numerics.inner_scaling.inner_exponents, int32 (k,).

    Undefined where `gap`, an int64 tensor of one entry, is less than a wide one.
    """
    k = left.shape[2]
    width = 1 + left.is_complex()
    stacks = (left, 2), (right, 1)
    tiles = [
        _ALONG_K if k == 1 or x.stride(axis) == 1 else _ACROSS_K for x, axis in stacks
    ]
    counts = [(x.shape[0], x.shape[3 - axis]) for x, axis in stacks]
    total_a, total_b = (batch * count for batch, count in counts)
    vectors = total_a + total_b

    # What is known of vectors: R and Q, sums of exponents, numbers of entries. Then
    # biased maxima and the smallest components along k, and the spreads.
    known = _Vectors(
        top=left.launches.zeros((vectors,), torch.int32),
        total=left.launches.zeros((vectors,), torch.int64),
        entries=left.launches.zeros((vectors,), torch.int32),
    )
    maxima = left.launches.zeros((4 * k,), torch.int32)
    terms = _Terms(
        maxima[: 2 * k], maxima[2 * k :], spread=left.launches.zeros((4,), torch.int32)
    )
    operands = (
        _operand(left, 2),
        _operand(right, 1),
        counts[0][1],
        counts[1][1],
        k,
    )
    form: dict[str, Any] = {
        "STEPS": _STEPS,
        "LEFT": tiles[0],
        "RIGHT": tiles[1],
        "WIDTH": width,
        "num_warps": 8,
    }

    tasks = [
        batch * -(-count // tile.vectors) * -(-k // (_STEPS * tile.terms))
        for (batch, count), tile in zip(counts, tiles, strict=True)
    ]
    _exponents_of_vectors(
        (sum(tasks),), *operands, tasks[0], total_a, known, gap, **form
    )
    tasks = [
        batch * -(-count // (_STEPS * tile.vectors)) * -(-k // tile.terms)
        for (batch, count), tile in zip(counts, tiles, strict=True)
    ]
    _maxima(
        (sum(tasks),),
        *operands,
        tasks[0],
        total_a,
        vectors,
        known,
        terms,
        gap,
        BLOCK=_BLOCK,
        **form,
    )
    exponents: Buffer = left.launches.empty((k,), torch.int32)
    grid = (-(-k // _BLOCK),)
    _exponents_of_terms(grid, terms, k, exponents, gap, BLOCK=_BLOCK, num_warps=4)
    return exponents


def gaining_exponents(
    left: Buffer,
    right: Buffer,
    mark: Buffer | None = None,
    predicate: Predicate | None = None,
) -> Buffer:
    """d, int32 (k,), where the operands gain by it, else zeros.

    Parameters
    ----------
    mark : int64 tensor of one entry, optional
        Is set to KEPT where they gain, else to LARGEST.
    predicate : Predicate, optional
        Decides on the device: unless the entry, which is not the mark, lies within the
        limits the operands are not read, and what is returned means nothing.
    """
    # The gap without d and, 16 bytes further on, the gap with d: aligned alike.
    gaps = left.launches.zeros((4,), torch.int64)
    before = gaps[:1]
    after = gaps[2:3]
    sampled_gap(left, right, before, predicate=predicate)
    exponents = inner_exponents(left, right, before)
    wide = Predicate(before, plain.WIDE_GAP, LARGEST)
    sampled_gap(left, right, after, exponents, wide)
    k = left.shape[2]
    _keep(
        (-(-k // _BLOCK),),
        exponents,
        k,
        gaps,
        mark,
        predicate or NO_PREDICATE,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return exponents
