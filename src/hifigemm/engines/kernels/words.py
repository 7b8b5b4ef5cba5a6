"""Words of both operands of a product on the device: numerics.words and the scaling of schemes.word_scheme.

Words lie with k innermost for both operands, (batch, words, vectors, k_pitch) with zeros beyond k. One launch makes
the words of both operands, and reads them once; see words_kernels.py. One more before it clears what the programs of
vectors longer than a tile exchange.

The scaled entry is y = 2**(T - e) x with e the smallest integer such that |x| < 2**e in the whole vector. FP32 holds
y but for entries 2**-170 below the largest one, where TF32 and BF16 words could see the difference: these entries are
rounded to odd, which changes no later rounding. All other steps of the splitting are exact in FP32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from hifigemm.engines.kernels import words_kernels
from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.vector_tiles import WARPS, Side, forms_of_launches, num_sms, stage_of, tile_of
from hifigemm.engines.kernels.words_kernels import Form
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.formats import BF16, FP16, TF32, Format
from hifigemm.numerics.word_bounds import safe_exponent
from hifigemm.numerics.words import Splitting

__all__ = ["ALL_LOSSES", "FLOOR", "NOT_FINITE", "STORED", "Words", "k_pitch", "split_words"]

NOT_FINITE: int = words_kernels.NOT_FINITE.value
"""Exponent of a vector that holds an Inf or NaN; its words are zeros."""

FLOOR = -124
"""The largest `safe_exponent` of the tensor cores of numerics.tensor_core."""
ALL_LOSSES = (-(2**31), 2**31 - 1)
"""Any number of bits."""

STORED = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
_FORMAT = {torch.float16: FP16, torch.bfloat16: BF16}
_LARGEST_TOP = {"fp16": 15, "bf16": 126, "tf32": 126}
"""Scaled entries below 2**this round to no more than the largest number of the format."""
_ENTRIES = {"fp16": 8192, "bf16": 4096, "tf32": 4096}
"""Of a tile: 64 or 32 in each thread, so that four programs share the registers of a multiprocessor."""

_split = Launch(words_kernels.split_kernel)


@dataclass(frozen=True)
class Words:
    """The words of an operand.

    Attributes
    ----------
    planes : float16, bfloat16 or float32 (for TF32) tensor, shape (batch or 1, num_words, vectors, k_pitch)
    exponents : int32 tensor, shape (batch or 1, vectors)
        2**exponent is the unit of a row or column; `NOT_FINITE` where it holds an Inf or NaN.
    losses : int32 tensor, shape (2,), or None
        On the device, of both operands, for decisions without a transfer: 0 as long as the words are not made, then 1 +
        the bits that the operand loses as in `numerics.word_bounds.relative_error_at`, that is max(0, `safe_exponent` -
        floor(log2 |y|)) for the least nonzero scaled entry y, taken as 2**-149 at least.
    k : int
    splitting : Splitting
        num_words is 1 where one word holds every value of the operand's dtype.
    """

    planes: torch.Tensor
    exponents: torch.Tensor
    losses: torch.Tensor | None
    k: int
    splitting: Splitting

    @property
    def vectors(self) -> int:
        """Number of rows of a left or columns of a right operand."""
        return self.planes.shape[2]


def k_pitch(k: int) -> int:
    """Length of a stored vector: k rounded up to 16 words, at least 16."""
    return max(16, -(-k // 16) * 16)


def split_words(
    operands: Sequence[tuple[torch.Tensor, int]],
    splitting: Splitting,
    top: int | None,
    *,
    found: torch.Tensor | None = None,
    predicate: torch.Tensor | None = None,
    losses: tuple[int, int] = ALL_LOSSES,
) -> list[Words]:
    """Words of one or two operands, bit for bit those of `numerics.words.Splitting.split`.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float32, float16 or bfloat16 tensors of three dimensions and any strides on the current device, and the axis
        of k: 2 for a left operand, 1 for a right one.
    splitting : Splitting
        FP16 (rounding "nearest" or "zero"), TF32 or BF16. An operand whose dtype one word holds gets one word, which
        is exact where no bits are lost.
    top : int or None
        T: scaled entries lie below 2**T. None does not scale; words then saturate.
    found : int32 tensor, shape (2,), or None
        Zeros, where the bits that operands lose are noted; None does not count them.
    predicate : int32 tensor, shape (2,), or None
        Losses of other words of two operands: nothing is done unless they lie together in range(*losses).

    Returns
    -------
    list of Words, one an operand
    """
    if splitting.fmt.name not in STORED or (splitting.fmt is FP16 and splitting.rounding == "nearest-away"):
        raise ValueError(f"no words on the device for {splitting}")
    sides = [_side(x, axis, splitting, top, found is not None) for x, axis in operands]
    k = sides[0].k
    if any(side.k != k for side in sides):
        raise ValueError(f"operands of k = {', '.join(str(side.k) for side in sides)}")
    like = operands[0][0]
    planes = [empty(side.shape, STORED[splitting.fmt.name], like) for side in sides]
    zeros = cleared(sum(side.scratch for side in sides), like)
    workspaces = [zeros[: sides[0].scratch], zeros[sides[0].scratch :]]
    made = []
    for side, own in zip(sides, planes, strict=True):
        exponents = empty((side.batch, side.vectors), torch.int32, like)
        made.append(Words(own, exponents, found, k, side.splitting))
    arguments: list[Any] = []
    for i, ((x, _), side, words) in enumerate(zip(operands, sides, made, strict=True)):
        target = words.planes.view(torch.int16) if splitting.fmt is BF16 else words.planes
        own = words.exponents if found is None else found[i]
        zeros = workspaces[i] if side.scratch else words.exponents
        arguments += [x, target, words.exponents, zeros, own, side.vectors, side.batch * side.vectors]
        arguments += [*side.strides, side.chunks]
    both = arguments * (3 - len(sides))
    for programs, forms in forms_of_launches(sides):
        _split(
            (sum(programs),),
            *(*both, predicate, *losses, programs[0], k, k_pitch(k), top or 0),
            LEFT=forms[0],
            RIGHT=forms[-1],
            num_warps=WARPS,
        )
    return made


@dataclass(frozen=True)
class _Side(Side):
    """With the splitting that this operand gets."""

    splitting: Splitting

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the words."""
        return self.batch, self.splitting.num_words, self.vectors, k_pitch(self.k)


def _side(x: torch.Tensor, axis: int, splitting: Splitting, top: int | None, counts: bool) -> _Side:
    return _planned(tuple(x.shape), x.stride(), x.dtype, axis, splitting, top, counts, num_sms(x))


@lru_cache(maxsize=1024)
def _planned(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    axis: int,
    splitting: Splitting,
    top: int | None,
    counts: bool,
    sms: int,
) -> _Side:
    """The tiles of an operand on a device of so many multiprocessors."""
    batch, vectors, k = shape[0], shape[3 - axis], shape[axis]
    one_word = _one_word(dtype, splitting.fmt)
    if one_word:
        splitting = replace(splitting, num_words=1)
    entries, along_k = _ENTRIES[splitting.fmt.name], stride[axis] == 1 or vectors == 1
    block_v, block_k = tile_of(batch * vectors, k_pitch(k), entries, along_k=along_k)
    chunks, panels = -(-k_pitch(k) // block_k), -(-vectors // block_v)
    scaled = top is not None
    form = Form(
        kind=splitting.fmt.name,
        num_words=splitting.num_words,
        rounding=splitting.rounding,
        low_shift=splitting.low_shift,
        scaled=scaled,
        saturates=not scaled or (top or 0) > _LARGEST_TOP[splitting.fmt.name],
        counts=counts,
        safe=safe_exponent(splitting, FLOOR),
        block_v=block_v,
        block_k=block_k,
        even=k % block_k == 0 and vectors % block_v == 0 and k > 0,
        stage=stage_of(chunks, sms),
    )
    strides = stride[0] if batch > 1 else 0, stride[3 - axis], stride[axis]
    return _Side(batch, vectors, k, strides, chunks, batch * panels * chunks, form, splitting)


def _one_word(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether one word of the format holds every value of the dtype."""
    own = _FORMAT.get(dtype)
    return own is fmt or (own is not None and fmt is TF32)
