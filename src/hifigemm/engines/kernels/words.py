"""Words of both operands of a product on the device: numerics.words and the scaling of schemes.word_scheme.

Words lie with k innermost for both operands, (batch, words, vectors, k_pitch) with zeros beyond k. One launch makes
the words of both operands: a program reads whole vectors for their largest magnitudes and again, from the cache, for
their words. Few and long vectors are cut, and two launches do the same.

The scaled entry is y = 2**(T - e) x with e the smallest integer such that |x| < 2**e in the whole vector. FP32 holds
y but for entries 2**-170 below the largest one, where TF32 and BF16 words could see the difference: these entries are
rounded to odd, which changes no later rounding. All other steps of the splitting are exact in FP32.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch
from hifigemm.formats import BF16, FP16, TF32, Format
from hifigemm.numerics.word_bounds import safe_exponent
from hifigemm.numerics.words import Splitting

__all__ = [
    "ALL_LOSSES",
    "FLOOR",
    "LOSS",
    "NONFINITE",
    "NOT_FINITE",
    "NUM_FACTS",
    "SPREAD",
    "Words",
    "k_pitch",
    "new_facts",
    "split_words",
]

NOT_FINITE = -(2**30)
"""Exponent of a vector that holds an Inf or NaN; its words are zeros."""

LOSS, SPREAD, NONFINITE, NUM_FACTS = 0, 1, 2, 3
"""Places in `Words.facts`."""

FLOOR = -124
"""The largest `safe_exponent` of the tensor cores of numerics.tensor_core."""
ALL_LOSSES = (-(2**31), 2**31 - 1)
"""Any number of bits."""

_STORED = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
_FORMAT = {torch.float16: FP16, torch.bfloat16: BF16}
_PROGRAMS = 128
"""Programs that occupy the device."""
_LEAST_CHUNK = 8192
"""Entries of a vector below which it is not cut."""
_NONE = tl.constexpr(0x7FFFFFFF)
_NOT_FINITE = tl.constexpr(NOT_FINITE)


@dataclass(frozen=True)
class Words:
    """The words of an operand.

    Attributes
    ----------
    parts : float16, bfloat16 or float32 (for TF32) tensor, shape (batch or 1, num_words, vectors, k_pitch)
    exponents : int32 tensor, shape (batch or 1, vectors)
        2**exponent is the unit of a row or column; `NOT_FINITE` where it holds an Inf or NaN.
    facts : int32 tensor, shape (NUM_FACTS,)
        On the device, for decisions without a transfer. [LOSS]: 0 as long as the words are not made, then 1 + the bits
        that the operand loses as in `numerics.word_bounds.relative_error_at`, that is max(0, `safe_exponent` -
        floor(log2 |y|)) for the least nonzero scaled entry y, taken as 2**-149 at least. [SPREAD]: largest |exponent|.
        [NONFINITE]: number of vectors with an Inf or NaN.
    k : int
    splitting : Splitting
        num_words is 1 where one word holds every value of the operand's dtype.
    """

    parts: torch.Tensor
    exponents: torch.Tensor
    facts: torch.Tensor
    k: int
    splitting: Splitting

    @property
    def vectors(self) -> int:
        """Number of rows of a left or columns of a right operand."""
        return self.parts.shape[2]


def k_pitch(k: int) -> int:
    """Length of a stored vector: k rounded up to 16 words, at least 16."""
    return max(16, -(-k // 16) * 16)


def new_facts(device: torch.device) -> torch.Tensor:
    """Facts of two operands whose words are not made."""
    return torch.zeros((2, NUM_FACTS), dtype=torch.int32, device=device)


def split_words(
    operands: Sequence[tuple[torch.Tensor, int]],
    splitting: Splitting,
    top: int | None,
    *,
    facts: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    losses: tuple[int, int] = ALL_LOSSES,
) -> list[Words]:
    """Words of one or two operands, bit for bit those of `numerics.words.Splitting.split`.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float32, float16 or bfloat16 tensors of three dimensions and any strides on the current device, and the axis
        of k: 2 for a left operand, 1 for a right one.
    splitting : Splitting
        FP16 (rounding "nearest" or "zero"), TF32 or BF16. An operand whose dtype one word holds gets one word and no
        scaling.
    top : int or None
        T: scaled entries lie below 2**T. None does not scale; words then saturate.
    facts : int32 tensor, shape (2, NUM_FACTS), or None
        From `new_facts`; None makes them.
    gate : int32 tensor, shape (2, NUM_FACTS), or None
        Facts of other words of two operands: nothing is done unless the bits they lose together lie in range(*losses).

    Returns
    -------
    list of Words, one an operand
    """
    if splitting.fmt.name not in _STORED or (splitting.fmt is FP16 and splitting.rounding == "nearest-away"):
        raise ValueError(f"no words on the device for {splitting}")
    device = operands[0][0].device
    facts = new_facts(device) if facts is None else facts
    made = [_empty(x, axis, splitting, row) for (x, axis), row in zip(operands, facts)]
    sides = list(zip(operands, made, strict=True))
    k = made[0].k
    if any(words.k != k for words in made):
        raise ValueError(f"operands of k = {', '.join(str(words.k) for words in made)}")
    block_v, block_k, chunk = _tile(max(w.vectors * w.parts.shape[0] for w in made), k, splitting.fmt)
    chunks = -(-k_pitch(k) // chunk)
    scratch = [w.exponents if chunks == 1 else torch.zeros_like(w.exponents) for w in made]
    programs: list[int] = []
    arguments: list[Any] = []
    constants: dict[str, Any] = {}
    for name, ((x, axis), words), magnitudes in zip(("LEFT", "RIGHT"), sides * 2, scratch * 2):
        programs.append(words.parts.shape[0] * -(-words.vectors // block_v))
        strides = x.stride(0) if x.shape[0] > 1 else 0, x.stride(3 - axis), x.stride(axis)
        parts = words.parts.view(torch.int16) if splitting.fmt is BF16 else words.parts
        arguments += [x, parts, words.exponents, magnitudes, words.facts, words.vectors, *strides]
        constants[f"{name}_WORDS"] = words.splitting.num_words
        constants[f"{name}_SCALED"] = top is not None and not _one_word(x.dtype, splitting.fmt)
        constants[f"{name}_SAFE"] = safe_exponent(words.splitting, FLOOR)
    constants |= {"KIND": splitting.fmt.name, "ROUNDING": splitting.rounding, "LOW_SHIFT": splitting.low_shift}
    constants |= {"BLOCK_V": block_v, "BLOCK_K": block_k, "num_warps": 8, "ONCE": k_pitch(k) <= block_k}
    grid = sum(programs[: len(made)]), chunks
    stages = ("whole",) if chunks == 1 else ("magnitudes", "words")
    for stage in stages if grid[0] else ():
        _launch(grid, *arguments, gate, *losses, programs[0], k, k_pitch(k), chunk, top or 0, STAGE=stage, **constants)
    return made


def _empty(x: torch.Tensor, axis: int, splitting: Splitting, facts: torch.Tensor) -> Words:
    """Room for the words of an operand."""
    batch, vectors, k = x.shape[0], x.shape[3 - axis], x.shape[axis]
    if _one_word(x.dtype, splitting.fmt):
        splitting = Splitting(splitting.fmt, 1, splitting.rounding, splitting.low_shift)
    shape = (batch, splitting.num_words, vectors, k_pitch(k))
    parts = torch.empty(shape, dtype=_STORED[splitting.fmt.name], device=x.device)
    exponents = torch.empty((batch, vectors), dtype=torch.int32, device=x.device)
    return Words(parts, exponents, facts, k, splitting)


def _one_word(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether one word of the format holds every value of the dtype."""
    own = _FORMAT.get(dtype)
    return own is fmt or (own is not None and fmt is TF32)


def _tile(vectors: int, k: int, fmt: Format) -> tuple[int, int, int]:
    """Vectors and entries of a block, and the entries of a vector that one program takes.

    Eight float32 vectors side by side fill a sector of memory where k is strided. Vectors are cut where there are too
    few of them to occupy the device. Larger blocks take more than 128 registers a thread.
    """
    pitch = k_pitch(k)
    block_k = min(512 if fmt is FP16 else 256, triton.next_power_of_2(pitch))
    block_v = max(8, 2048 // block_k)
    if vectors < block_v * _PROGRAMS:
        block_v = 8
    chunks = min(max(1, _PROGRAMS * block_v // max(vectors, 1)), -(-pitch // _LEAST_CHUNK))
    chunk = -(-pitch // (chunks * block_k)) * block_k
    return block_v, block_k, chunk


@triton.jit
def _power(e):
    """2**e for -126 <= e <= 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _magnitude(x):
    """The bits of |x|, which are ordered like |x|."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _exponent(magnitude):
    """Smallest e with |x| < 2**e for finite x given by the bits of its magnitude; 0 for 0."""
    subnormal = (magnitude.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 275
    e = tl.where(magnitude < 0x800000, subnormal, (magnitude >> 23) - 126)
    return tl.where(magnitude == 0, 0, e)


@triton.jit
def _scaled(x, s, ODD: tl.constexpr):
    """2**s x for -126 <= s <= 252; with ODD, entries that are no FP32 number afterwards are rounded to odd."""
    down = tl.minimum(s, 0)
    up = tl.maximum(s, 0)
    y = x * _power(down)
    if ODD:
        back = y * _power(-down)
        bits = y.to(tl.int32, bitcast=True) - (tl.abs(back) > tl.abs(x)).to(tl.int32)
        y = (bits | (back != x).to(tl.int32)).to(tl.float32, bitcast=True)
    return y * _power(up >> 1) * _power(up - (up >> 1))


@triton.jit
def _rounded(y, KIND: tl.constexpr, ROUNDING: tl.constexpr):
    """Finite y rounded once to the format, saturating, as float32."""
    if KIND == "fp16":
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
        word = y.to(tl.float16)
        if ROUNDING == "zero":
            above = tl.abs(word.to(tl.float32)) > tl.abs(y)
            word = (word.to(tl.int16, bitcast=True) - above.to(tl.int16)).to(tl.float16, bitcast=True)
        return word.to(tl.float32)
    else:
        DROP: tl.constexpr = 13 if KIND == "tf32" else 16
        bits = y.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        sign = bits ^ size
        if ROUNDING == "nearest":
            size += (1 << (DROP - 1)) - 1 + ((size >> DROP) & 1)
        elif ROUNDING == "nearest-away":
            size += 1 << (DROP - 1)
        size = tl.minimum((size >> DROP) << DROP, (0x7F7FFFFF >> DROP) << DROP)
        return (sign | size).to(tl.float32, bitcast=True)


@triton.jit
def _load(at, h, k, k_stride, exists):
    """Entries h of the vectors at these addresses, as float32; zeros beyond the operand."""
    where = at[:, None] + h[None, :].to(tl.int64) * k_stride
    return tl.load(where, mask=exists[:, None] & (h < k)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _store_words(
    y,
    at,
    word_stride,
    inside,
    WORDS: tl.constexpr,
    KIND: tl.constexpr,
    ROUNDING: tl.constexpr,
    LOW_SHIFT: tl.constexpr,
):
    """Store the words of y; the magnitudes of nonzero entries, else `_NONE`."""
    rest = y
    for p in tl.static_range(WORDS):
        word = _rounded(rest * 2.0 ** (LOW_SHIFT * p), KIND, ROUNDING)
        rest = rest - word * 2.0 ** (-LOW_SHIFT * p)
        if KIND == "bf16":
            tl.store(at + p * word_stride, (word.to(tl.int32, bitcast=True) >> 16).to(tl.int16), mask=inside)
        else:
            tl.store(at + p * word_stride, word.to(at.dtype.element_ty), mask=inside)
    return tl.where(y != 0.0, _magnitude(y), _NONE)


@triton.jit
def _split_block(
    x,
    parts,
    exponents,
    magnitudes,
    facts,
    vectors,
    batch_stride,
    vector_stride,
    k_stride,
    program,
    k,
    pitch,
    chunk,
    top,
    WORDS: tl.constexpr,
    SCALED: tl.constexpr,
    SAFE: tl.constexpr,
    KIND: tl.constexpr,
    ROUNDING: tl.constexpr,
    LOW_SHIFT: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGE: tl.constexpr,
    ONCE: tl.constexpr,
):
    """A block of vectors of an operand over one chunk of k, which the second pass takes backwards for the cache."""
    blocks = tl.cdiv(vectors, BLOCK_V)
    z = (program // blocks).to(tl.int64)
    v = (program % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    exists = v < vectors
    at = x + z * batch_stride + v.to(tl.int64) * vector_stride
    start = tl.program_id(1) * chunk
    h = start + tl.arange(0, BLOCK_K)
    steps = tl.cdiv(tl.minimum(chunk, pitch - start), BLOCK_K)
    if ONCE:
        value = _load(at, h, k, k_stride, exists)
    if STAGE == "words":
        size = tl.load(magnitudes + z * vectors + v, mask=exists, other=0)
    elif ONCE:
        size = tl.max(_magnitude(value), axis=1)
    else:
        largest = tl.zeros([BLOCK_V, BLOCK_K], tl.int32)
        for i in range(steps):
            largest = tl.maximum(largest, _magnitude(_load(at, h + i * BLOCK_K, k, k_stride, exists)))
        size = tl.max(largest, axis=1)
    if STAGE == "magnitudes":
        tl.atomic_max(magnitudes + z * vectors + v, size, mask=exists, sem="relaxed")
    else:
        finite = size < 0x7F800000
        shift = tl.where(finite, top - _exponent(size), 0) if SCALED else tl.zeros_like(size)
        to = parts + (z * WORDS * vectors + v) * pitch
        word_stride = pitch.to(tl.int64) * vectors
        lost = tl.full([BLOCK_V, BLOCK_K], _NONE, tl.int32)
        for i in range(steps - 1, -1, -1):
            g = h + i * BLOCK_K
            if not ONCE:
                value = _load(at, g, k, k_stride, exists)
            y = tl.where(finite[:, None], value, 0.0)
            if SCALED:
                y = _scaled(y, shift[:, None], ODD=KIND != "fp16")
            inside = exists[:, None] & (g < pitch)[None, :]
            to_g = to[:, None] + g[None, :]
            lost = tl.minimum(lost, _store_words(y, to_g, word_stride, inside, WORDS, KIND, ROUNDING, LOW_SHIFT))
            if SCALED and KIND == "fp16":
                lost = tl.where((y == 0.0) & (value != 0.0) & finite[:, None], 1, lost)
        least = tl.min(tl.min(lost, axis=1), axis=0)
        loss = tl.where(least == _NONE, 0, SAFE + 1 - _exponent(tl.where(least == _NONE, 0, least)))
        tl.atomic_max(facts, 1 + tl.maximum(loss, 0), sem="relaxed")
        if tl.program_id(1) == 0:
            tl.store(exponents + z * vectors + v, tl.where(finite, -shift, _NOT_FINITE), mask=exists)
            tl.atomic_max(facts + 1, tl.max(tl.where(exists, tl.abs(shift), 0), axis=0), sem="relaxed")
            hostile = tl.sum((exists & (size >= 0x7F800000)).to(tl.int32), axis=0)
            if hostile > 0:
                tl.atomic_add(facts + 2, hostile, sem="relaxed")


@triton.jit
def losses_in_range(left_facts, right_facts, loss_from, loss_to):
    """Whether the bits that two operands lose together lie in a range; -2 as long as their words are not made."""
    loss = tl.load(left_facts) + tl.load(right_facts) - 2
    return (loss >= loss_from) & (loss < loss_to)


@triton.jit(do_not_specialize=["loss_from", "loss_to", "left_programs", "top"])
def _split_kernel(
    left_x,
    left_parts,
    left_exponents,
    left_magnitudes,
    left_facts,
    left_vectors,
    left_batch_stride,
    left_vector_stride,
    left_k_stride,
    right_x,
    right_parts,
    right_exponents,
    right_magnitudes,
    right_facts,
    right_vectors,
    right_batch_stride,
    right_vector_stride,
    right_k_stride,
    gate,
    loss_from,
    loss_to,
    left_programs,
    k,
    pitch,
    chunk,
    top,
    LEFT_WORDS: tl.constexpr,
    LEFT_SCALED: tl.constexpr,
    LEFT_SAFE: tl.constexpr,
    RIGHT_WORDS: tl.constexpr,
    RIGHT_SCALED: tl.constexpr,
    RIGHT_SAFE: tl.constexpr,
    KIND: tl.constexpr,
    ROUNDING: tl.constexpr,
    LOW_SHIFT: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGE: tl.constexpr,
    ONCE: tl.constexpr,
):
    """Programs of the left operand, then of the right one."""
    if gate is not None:  # noqa: SIM102
        if not losses_in_range(gate, gate + 3, loss_from, loss_to):
            return
    program = tl.program_id(0)
    if program < left_programs:
        _split_block(
            left_x,
            left_parts,
            left_exponents,
            left_magnitudes,
            left_facts,
            left_vectors,
            left_batch_stride,
            left_vector_stride,
            left_k_stride,
            program,
            k,
            pitch,
            chunk,
            top,
            LEFT_WORDS,
            LEFT_SCALED,
            LEFT_SAFE,
            KIND,
            ROUNDING,
            LOW_SHIFT,
            BLOCK_V,
            BLOCK_K,
            STAGE,
            ONCE,
        )
    else:
        _split_block(
            right_x,
            right_parts,
            right_exponents,
            right_magnitudes,
            right_facts,
            right_vectors,
            right_batch_stride,
            right_vector_stride,
            right_k_stride,
            program - left_programs,
            k,
            pitch,
            chunk,
            top,
            RIGHT_WORDS,
            RIGHT_SCALED,
            RIGHT_SAFE,
            KIND,
            ROUNDING,
            LOW_SHIFT,
            BLOCK_V,
            BLOCK_K,
            STAGE,
            ONCE,
        )


_launch: Any = Launch(_split_kernel)
