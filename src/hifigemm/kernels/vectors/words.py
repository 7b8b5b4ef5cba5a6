"""Words of both operands of a product on the device: numerics.words and the scaling of
schemes.word_scheme.

Words lie with k innermost for both operands, (batch, words, vectors, k_pitch) with
zeros beyond k. One launch makes the words of both operands, and reads them once; see
vector_tiles.py. One more before it clears what the programs of vectors longer than a
tile exchange.

The scaled entry is y = 2**(T - e) x with e the smallest integer such that |x| < 2**e in
the whole vector. FP32 holds y but for entries 2**-170 below the largest one, where TF32
and BF16 words could see the difference: these entries are rounded to odd, which changes
no later rounding. All other steps of the splitting are exact in FP32.

Entries in float64, as scaled_along_k.py writes them, are numbers of float32 times powers
of two that FP32 need not hold; y, which it holds, is made from them in FP64.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.base.formats import BF16, FP16, TF32, Format
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two, power_of_two_single
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.tiles import VECTOR_ENTRIES
from hifigemm.kernels.vectors.statistics import (
    exponent_of,
    exponent_or,
    magnitude_bits,
)
from hifigemm.kernels.vectors.vector_tiles import (
    COUNTS,
    NOT_FINITE,
    VectorTile,
    largest_magnitude,
    launch_both,
    load_tile,
    side_of,
)
from hifigemm.numerics.word_bounds import safe_exponent
from hifigemm.numerics.words import Splitting

FLOOR = -124
"""The largest `safe_exponent` of the tensor cores of numerics.tensor_core."""
ALL_LOSSES = (-(2**31), 2**31 - 1)
"""Any number of bits."""

STORED = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
_FORMAT = {torch.float16: FP16, torch.bfloat16: BF16}
_LARGEST_TOP = {"fp16": 15, "bf16": 126, "tf32": 126}
"""Scaled entries below 2**this round to no more than the largest number of the
format.
"""
_INFINITE = tl.constexpr(0x7F800000)
"""Bits of an infinite float32; those of finite magnitudes lie below."""
_BIAS = tl.constexpr(2048)
"""e + 2048 > 0 for every exponent e of a float64."""


@dataclass(frozen=True)
class _WordsForm:
    """What the kernel knows of the words of an operand when it is compiled."""

    kind: str  # format of the words
    num_words: int
    rounding: str
    low_shift: int
    scaled: bool
    saturates: bool  # whether a word may exceed the largest number of its format
    counts: bool  # whether the bits that are lost are noted
    safe: int  # sum of exponents from which on nothing is lost
    is_wide: bool  # whether entries are float64
    tile: VectorTile


@triton.jit
def _sizes(value, FORM: tl.constexpr):
    """Integers in the order of |x|, 0 for zeros and `_INFINITE` for Inf and NaN.

    They are bits of magnitudes, or biased exponents of wide entries, none of which is
    subnormal.
    """
    if FORM.is_wide:
        magnitude = magnitude_bits(value)
        # 2**(e - 1) <= |x| < 2**e.
        exponents = (magnitude >> 52).to(tl.int32) - 1022 + _BIAS
        sizes = tl.where(magnitude == 0, 0, exponents)
        return tl.where(magnitude < (0x7FF << 52), sizes, _INFINITE)
    else:
        return magnitude_bits(value)


@triton.jit
def _exponent_of_size(size, FORM: tl.constexpr):
    """Exponent of an entry from its size, 0 for a zero."""
    if FORM.is_wide:
        return tl.where(size == 0, 0, size - _BIAS)
    else:
        return exponent_or(size, 0)


@triton.jit
def _scaled(x, s, ODD: tl.constexpr):
    """2**s x for -126 <= s <= 252.

    With ODD, entries that are no FP32 number afterwards are rounded to odd.
    """
    # Two powers of two that float32 holds. Only the first one can lose bits, in
    # subnormal numbers.
    first = tl.minimum(s, 126)
    y = x * power_of_two_single(first)
    if ODD:
        # Rounding to odd: toward zero, and then the last bit is set where bits were
        # lost. One step away from zero in the bits is one in the number.
        back = y * power_of_two_single(-first)
        bits = y.to(tl.int32, bitcast=True) - (tl.abs(back) > tl.abs(x)).to(tl.int32)
        y = (bits | (back != x).to(tl.int32)).to(tl.float32, bitcast=True)
    return y * power_of_two_single(s - first)


@triton.jit
def _narrowed(x, s, ODD: tl.constexpr):
    """2**s x in float32, for float64 x and any s with |2**s x| < 2**128.

    With ODD, entries that are no FP32 number afterwards are rounded to odd. Without,
    what lies below 2**-124 may be any number below: its FP16 words are zeros.
    """
    # Two powers of two that float64 holds. Only small products lose bits, where they
    # become subnormal or zero.
    first = tl.minimum(tl.maximum(s, -1000), 1000)
    exact = x * power_of_two(first) * power_of_two(s - first)
    y = exact.to(tl.float32)
    if ODD:
        # Rounding to odd: as in `_scaled`.
        back = y.to(tl.float64)
        bits = y.to(tl.int32, bitcast=True)
        bits -= (tl.abs(back) > tl.abs(exact)).to(tl.int32)
        is_lost = (back != exact) | ((exact == 0.0) & (x != 0.0))
        y = (bits | is_lost.to(tl.int32)).to(tl.float32, bitcast=True)
    return y


@triton.jit
def _rounded(y, FORM: tl.constexpr):
    """Finite y rounded once to the format, saturating, as float32."""
    if FORM.kind == "fp16":
        if FORM.saturates:
            y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
        word = y.to(tl.float16)
        if FORM.rounding == "zero":
            # The conversion rounds to nearest: one step back where that went away from
            # zero.
            above = tl.abs(word.to(tl.float32)) > tl.abs(y)
            word = (word.to(tl.int16, bitcast=True) - above.to(tl.int16)).to(
                tl.float16, bitcast=True
            )
        return word.to(tl.float32)
    else:
        # TF32 keeps 10 of float32's 23 bits of fraction, BF16 7. Adding half of the
        # last place carries into the kept bits, and into the exponent, where it rounds
        # up.
        DROP: tl.constexpr = 13 if FORM.kind == "tf32" else 16
        bits = y.to(tl.int32, bitcast=True)
        size = bits
        if FORM.saturates:
            size = bits & 0x7FFFFFFF
        if FORM.rounding == "nearest":
            size += (1 << (DROP - 1)) - 1 + ((size >> DROP) & 1)
        elif FORM.rounding == "nearest-away":
            size += 1 << (DROP - 1)
        size = (size >> DROP) << DROP
        if FORM.saturates:
            size = tl.minimum(size, (0x7F7FFFFF >> DROP) << DROP) | (bits & -0x80000000)
        return size.to(tl.float32, bitcast=True)


@triton.jit
def _store_words(y, target, word_stride, inside, FORM: tl.constexpr):
    """Store the words of y, one plane after the other, at `target`."""
    WORDS: tl.constexpr = FORM.num_words
    remainder = y
    for p in tl.static_range(WORDS):
        # The nearest word, and what it leaves, exactly. The next word is scaled up by
        # 2**low_shift.
        word = _rounded(remainder * 2.0 ** (FORM.low_shift * p), FORM)
        remainder = remainder - word * 2.0 ** (-FORM.low_shift * p)
        stored = word.to(target.dtype.element_ty)
        # BF16 words are stored as INT16: the upper half of a float32 has their bits.
        if FORM.kind == "bf16":
            stored = (word.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
        if FORM.tile.even:
            tl.store(target + p * word_stride, stored)
        else:
            tl.store(target + p * word_stride, stored, mask=inside)


@triton.jit
def _smallest_size(sizes):
    """Smallest nonzero size of each vector less 1; -1 where all are zero."""
    # Zeros become the largest unsigned number.
    return tl.min((sizes - 1).to(tl.uint32, bitcast=True), axis=1).to(
        tl.int32, bitcast=True
    )


@triton.jit
def _note_loss(smallest, largest, shift, loss, FORM: tl.constexpr):
    """Raise `loss` to 1 + the bits that the finite vectors of a tile lose.

    See `words.Words`. Rounding is monotonic, so the smallest entries stay the smallest.
    """
    has_entries = (smallest >= 0) & (largest < _INFINITE)
    # A scaled entry counts as 2**-149 at least, whose bits are 1 and whose exponent is
    # -148.
    if FORM.is_wide:
        least = tl.maximum(smallest + 1 - _BIAS + shift, -148)
    else:
        value = tl.where(has_entries, smallest + 1, 0).to(tl.float32, bitcast=True)
        if FORM.scaled:
            value = _scaled(value, shift, FORM.kind != "fp16")
        least = exponent_of(tl.maximum(value.to(tl.int32, bitcast=True), 1))
    lost = tl.where(has_entries, FORM.safe + 1 - least, 0)
    # A maximum does not depend on the order of programs.
    tl.atomic_max(loss, 1 + tl.maximum(tl.max(lost, axis=0), 0), sem="relaxed")


@triton.jit
def _split_tile(operand, counts, program, k, pitch, top, FORM: tl.constexpr):
    """Words of a tile of an operand: block_v vectors times block_k entries along k."""
    vectors, _, chunks = counts
    value, z, v, h = load_tile(operand, counts, program, k, FORM)
    exists = v < vectors
    sizes = _sizes(value, FORM)
    row = z * vectors + v
    smallest = _smallest_size(sizes) if FORM.counts else 0
    largest = largest_magnitude(sizes, operand, counts, program, row, exists, FORM)
    # In the stage "magnitudes" the largest magnitude is not known yet, and a second
    # launch does what follows. Vectors with an Inf or NaN are marked and count as 0.
    if FORM.tile.stage != "magnitudes":
        finite = largest < _INFINITE
        shift = tl.zeros_like(largest)
        if FORM.scaled:
            shift = tl.where(finite, top - _exponent_of_size(largest, FORM), 0)
        if FORM.counts:
            _note_loss(smallest, largest, shift, operand.loss, FORM)
        # The first tile of a vector writes its exponent.
        if program % chunks == 0:
            tl.store(
                operand.exponents + row,
                tl.where(finite, -shift, NOT_FINITE),
                mask=exists,
            )
        y = tl.where(finite[:, None], value, 0.0)
        if FORM.is_wide:
            y = _narrowed(y, shift[:, None], FORM.kind != "fp16")
        elif FORM.scaled:
            y = _scaled(y, shift[:, None], FORM.kind != "fp16")
        # Entries beyond k are zeros up to the pitch, and so are their words. No other
        # program writes to this tile's part of the planes.
        target = (
            operand.planes
            + ((z * FORM.num_words * vectors + v) * pitch)[:, None]
            + h[None, :]
        )
        _store_words(
            y,
            target,
            pitch.to(tl.int64) * vectors,
            exists[:, None] & (h < pitch)[None, :],
            FORM,
        )


@triton.jit
def losses_in_range(losses, loss_from, loss_to):
    """True if the bits that two operands lose together lie in loss_from .. loss_to - 1.

    The sum is -2 as long as their words are not made. An earlier launch has joined both
    losses, so that all programs agree.
    """
    loss = tl.load(losses) + tl.load(losses + 1) - 2
    return (loss >= loss_from) & (loss < loss_to)


@triton.jit(do_not_specialize=[*COUNTS, "top", "loss_from", "loss_to"])
def split_kernel(
    left,
    left_vectors,
    left_total,
    left_chunks,
    right,
    right_vectors,
    right_total,
    right_chunks,
    programs,
    k,
    pitch,
    top,
    predicate,
    loss_from,
    loss_to,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Twin: numerics.words.Splitting.split of entries that are scaled by powers of two.

    A program makes one tile, of the left operand first, then of the right one. Nothing
    where the predicate does not hold.
    """
    if predicate is not None:  # noqa: SIM102
        if not losses_in_range(predicate, loss_from, loss_to):
            return
    # The first programs take the left operand, whose compiled code differs.
    program = tl.program_id(0)
    if program < programs:
        _split_tile(
            left,
            (left_vectors, left_total, left_chunks),
            program,
            k,
            pitch,
            top,
            LEFT,
        )
    else:
        _split_tile(
            right,
            (right_vectors, right_total, right_chunks),
            program - programs,
            k,
            pitch,
            top,
            RIGHT,
        )


_split: Any = Launch(split_kernel)


class Words(NamedTuple):
    """The words of an operand."""

    # float16, bfloat16 or float32 (for TF32) tensor, shape (batch or 1, num_words,
    # vectors, k_pitch)
    planes: Any
    # int32 tensor, shape (batch or 1, vectors): 2**exponent is the unit of a row or
    # column; `NOT_FINITE` where it holds an Inf or NaN
    exponents: Any
    # int32 tensor, shape (2,), or None: on the device, of both operands, for decisions
    # without a transfer: 0 as long as the words are not made, then 1 + the bits that
    # the operand loses as in
    # `numerics.word_bounds.relative_error_at`, that is max(0,
    # `safe_exponent` - floor(log2 |y|)) for the least
    # nonzero scaled entry y, taken as 2**-149 at least
    losses: Any
    k: int
    # num_words is 1 where one word holds every value of the operand's dtype
    splitting: Splitting

    @property
    def vectors(self) -> int:
        """Number of rows of a left or columns of a right operand."""
        return int(self.planes.shape[2])


def k_pitch(k: int) -> int:
    """Length of a stored vector: k rounded up to 16 words, at least 16."""
    return max(16, -(-k // 16) * 16)


def split_words(
    operands: Sequence[tuple[Buffer, int]],
    splitting: Splitting,
    top: int | None,
    *,
    found: Buffer | None = None,
    predicate: Buffer | None = None,
    losses: tuple[int, int] = ALL_LOSSES,
) -> list[Words]:
    """Words of one or two operands, bit for bit those of
    `numerics.words.Splitting.split`.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float32, float16 or bfloat16 buffers of three dimensions and any strides, and the
        axis of k: 2 for a left operand, 1 for a right one. float64 ones hold A D or
        D**-1 B: numbers of 24 bits, none of them subnormal in float64 or as large as
        2**128.
    splitting : Splitting
        FP16 (rounding "nearest" or "zero"), TF32 or BF16. An operand whose dtype one
        word holds gets one word, which is exact where no bits are lost.
    top : int or None
        T: scaled entries lie below 2**T. None does not scale; words then saturate.
    found : int32 tensor, shape (2,), or None
        Zeros, where the bits that operands lose are noted; None does not count them.
    predicate : int32 tensor, shape (2,), or None
        Losses of other words of two operands: nothing is done unless they lie together
        in range(*losses).

    Returns
    -------
    list of Words, one an operand
    """
    if splitting.fmt.name not in STORED or (
        splitting.fmt is FP16 and splitting.rounding == "nearest-away"
    ):
        raise ValueError(f"no words on the device for {splitting}")
    is_wide = operands[0][0].dtype is torch.float64
    kind = "words of float64" if is_wide else splitting.fmt.name
    sides = [
        side_of(x, axis, k_pitch(x.shape[axis]), VECTOR_ENTRIES[kind])
        for x, axis in operands
    ]
    k = sides[0].k
    if any(side.k != k for side in sides):
        raise ValueError(f"operands of k = {', '.join(str(side.k) for side in sides)}")
    like = operands[0][0]
    words = []
    tensors = []
    forms = []
    for i, ((x, _), side) in enumerate(zip(operands, sides, strict=True)):
        splitting_of_x = splitting
        if _one_word(x.dtype, splitting.fmt):
            splitting_of_x = replace(splitting, num_words=1)
        planes = like.launches.empty(
            (side.batch, splitting_of_x.num_words, side.vectors, k_pitch(k)),
            STORED[splitting.fmt.name],
        )
        exponents = like.launches.empty((side.batch, side.vectors), torch.int32)
        words.append(Words(planes, exponents, found, k, splitting_of_x))
        target = planes.view(torch.int16) if splitting.fmt is BF16 else planes
        tensors.append((x, target, exponents, exponents if found is None else found[i]))
        forms.append(
            _form_of(splitting_of_x, top, found is not None, is_wide, side.tile)
        )
    launch_both(
        _split,
        sides,
        tensors,
        forms,
        torch.int32,
        k,
        k_pitch(k),
        top or 0,
        predicate,
        *losses,
    )
    return words


@lru_cache(maxsize=1024)
def _form_of(
    splitting: Splitting,
    top: int | None,
    counts: bool,
    is_wide: bool,
    tile: VectorTile,
) -> _WordsForm:
    scaled = top is not None
    name = splitting.fmt.name
    return _WordsForm(
        kind=name,
        num_words=splitting.num_words,
        rounding=splitting.rounding,
        low_shift=splitting.low_shift,
        scaled=scaled,
        saturates=not scaled or (top or 0) > _LARGEST_TOP[name],
        counts=counts,
        safe=safe_exponent(splitting, FLOOR),
        is_wide=is_wide,
        tile=tile,
    )


def _one_word(dtype: torch.dtype, fmt: Format) -> bool:
    """True if one word of the format holds every value of the dtype."""
    dtype_format = _FORMAT.get(dtype)
    return dtype_format is fmt or (dtype_format is not None and fmt is TF32)
