"""Triton kernels that scale and split vectors into words; `words.py` launches them.

A program holds one tile of vectors in registers, so that operands are read once. Where a vector is longer than a tile,
its programs exchange the largest magnitudes through memory and wait for each other: they have consecutive indices, and
there are no more of them than the device runs at a time.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from hifigemm.engines.kernels.elementary import power_of_two_single

__all__ = ["NOT_FINITE", "Form", "largest_magnitude", "load_tile", "losses_in_range", "split_kernel"]

NOT_FINITE = tl.constexpr(-(2**30))
_INFINITE = tl.constexpr(0x7F800000)


@dataclass(frozen=True)
class Form:
    """What a kernel knows of the words and tiles of an operand when it is compiled.

    Attributes
    ----------
    kind : {"fp16", "bf16", "tf32"}
        Format of the words.
    num_words : int
    rounding : str
    low_shift : int
    scaled : bool
    saturates : bool
        Whether a word may exceed the largest number of its format.
    counts : bool
        Whether the bits that are lost are noted.
    safe : int
        Sum of exponents from which on nothing is lost.
    block_v, block_k : int
        Vectors and entries of a tile.
    even : bool
        Tiles cover the operand exactly.
    stage : {"whole", "together", "magnitudes", "given"}
        Vectors lie in one tile; in several, whose programs wait for each other; in several and two launches.
    """

    kind: str
    num_words: int
    rounding: str
    low_shift: int
    scaled: bool
    saturates: bool
    counts: bool
    safe: int
    block_v: int
    block_k: int
    even: bool
    stage: str


@triton.jit
def _exponent(magnitude):
    """Smallest e with |x| < 2**e for finite x given by the bits of its magnitude; 0 for 0."""
    subnormal = (magnitude.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 275
    e = tl.where(magnitude < 0x800000, subnormal, (magnitude >> 23) - 126)
    return tl.where(magnitude == 0, 0, e)


@triton.jit
def _scaled(x, s, ODD: tl.constexpr):
    """2**s x for -126 <= s <= 252; with ODD, entries that are no FP32 number afterwards are rounded to odd."""
    first = tl.minimum(s, 126)
    y = x * power_of_two_single(first)
    if ODD:
        back = y * power_of_two_single(-first)
        bits = y.to(tl.int32, bitcast=True) - (tl.abs(back) > tl.abs(x)).to(tl.int32)
        y = (bits | (back != x).to(tl.int32)).to(tl.float32, bitcast=True)
    return y * power_of_two_single(s - first)


@triton.jit
def _rounded(y, FORM: tl.constexpr):
    """Finite y rounded once to the format, saturating, as float32."""
    if FORM.kind == "fp16":
        if FORM.saturates:
            y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
        word = y.to(tl.float16)
        if FORM.rounding == "zero":
            above = tl.abs(word.to(tl.float32)) > tl.abs(y)
            word = (word.to(tl.int16, bitcast=True) - above.to(tl.int16)).to(tl.float16, bitcast=True)
        return word.to(tl.float32)
    else:
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
def _store_words(y, at, word_stride, inside, FORM: tl.constexpr):
    """Store the words of y."""
    WORDS: tl.constexpr = FORM.num_words
    rest = y
    for p in tl.static_range(WORDS):
        word = _rounded(rest * 2.0 ** (FORM.low_shift * p), FORM)
        rest = rest - word * 2.0 ** (-FORM.low_shift * p)
        stored = word.to(at.dtype.element_ty)
        if FORM.kind == "bf16":
            stored = (word.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
        if FORM.even:
            tl.store(at + p * word_stride, stored)
        else:
            tl.store(at + p * word_stride, stored, mask=inside)


@triton.jit
def load_tile(source, program, k, FORM: tl.constexpr):
    """A tile of an operand, and where it lies: panel, chunk, matrix of the stack, vectors, entries along k."""
    x, vectors, batch_stride, vector_stride, k_stride, chunks = source
    panel = program // chunks
    chunk = program % chunks
    panels = tl.cdiv(vectors, FORM.block_v)
    z = (panel // panels).to(tl.int64)
    v = (panel % panels) * FORM.block_v + tl.arange(0, FORM.block_v)
    h = chunk * FORM.block_k + tl.arange(0, FORM.block_k)
    at = (x + z * batch_stride + v.to(tl.int64) * vector_stride)[:, None] + h[None, :].to(tl.int64) * k_stride
    # Nobody reads an operand again; what is made of it is read soon.
    if FORM.even:
        value = tl.load(at, eviction_policy="evict_first")
    else:
        inside = (v < vectors)[:, None] & (h < k)[None, :]
        value = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
    return value, panel, chunk, z, v, h


@triton.jit
def largest_magnitude(magnitude, magnitudes, arrivals, exists, chunks, FORM: tl.constexpr):
    """The largest magnitude of each vector, from all programs that hold a part of it."""
    if FORM.stage == "given":
        size = tl.load(magnitudes, mask=exists, other=0)
    else:
        size = tl.max(magnitude, axis=1)
        if FORM.stage != "whole":
            tl.atomic_max(magnitudes, size, mask=exists, sem="relaxed")
        if FORM.stage == "together":
            tl.debug_barrier()
            seen = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
            while seen < chunks:
                seen = tl.atomic_add(arrivals, 0, sem="acquire")
            size = tl.load(magnitudes, mask=exists, other=0, cache_modifier=".cg")
    return size


@triton.jit
def _least(magnitude):
    """1 less than the least nonzero magnitude of each vector of a tile, -1 where all are zero."""
    # Zeros become the largest unsigned number.
    return tl.min((magnitude - 1).to(tl.uint32, bitcast=True), axis=1).to(tl.int32, bitcast=True)


@triton.jit
def _note_loss(least, size, shift, loss, FORM: tl.constexpr):
    """Raise `loss` to 1 + the bits that the finite vectors of a tile lose; see `words.Words`.

    Rounding is monotonic, so least entries stay the least.
    """
    some = (least >= 0) & (size < _INFINITE)
    value = tl.where(some, least + 1, 0).to(tl.float32, bitcast=True)
    if FORM.scaled:
        value = _scaled(value, shift, FORM.kind != "fp16")
    bits = tl.maximum(value.to(tl.int32, bitcast=True), 1)
    lost = tl.where(some, FORM.safe + 1 - _exponent(bits), 0)
    tl.atomic_max(loss, 1 + tl.maximum(tl.max(lost, axis=0), 0), sem="relaxed")


@triton.jit
def _split_tile(operand, program, k, pitch, top, FORM: tl.constexpr):
    """One tile of an operand."""
    x, parts, exponents, workspace, loss, vectors, total, batch_stride, vector_stride, k_stride, chunks = operand
    source = x, vectors, batch_stride, vector_stride, k_stride, chunks
    value, panel, chunk, z, v, h = load_tile(source, program, k, FORM)
    value = value.to(tl.float32)
    exists = v < vectors
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    row = z * vectors + v
    least = _least(magnitude) if FORM.counts else 0
    size = largest_magnitude(magnitude, workspace + row, workspace + total + panel, exists, chunks, FORM)
    if FORM.stage != "magnitudes":
        finite = size < _INFINITE
        shift = tl.zeros_like(size)
        if FORM.scaled:
            shift = tl.where(finite, top - _exponent(size), 0)
        if FORM.counts:
            _note_loss(least, size, shift, loss, FORM)
        if chunk == 0:
            tl.store(exponents + row, tl.where(finite, -shift, NOT_FINITE), mask=exists)
        y = tl.where(finite[:, None], value, 0.0)
        if FORM.scaled:
            y = _scaled(y, shift[:, None], FORM.kind != "fp16")
        to = parts + ((z * FORM.num_words * vectors + v) * pitch)[:, None] + h[None, :]
        _store_words(y, to, pitch.to(tl.int64) * vectors, exists[:, None] & (h < pitch)[None, :], FORM)


@triton.jit
def losses_in_range(losses, loss_from, loss_to):
    """Whether the bits that two operands lose together lie in a range; -2 as long as their words are not made."""
    loss = tl.load(losses) + tl.load(losses + 1) - 2
    return (loss >= loss_from) & (loss < loss_to)


_SIDE = ["vectors", "total", "chunks"]
_FREE = ["loss_from", "loss_to", "programs", "top", *(f"{side}_{name}" for side in ("left", "right") for name in _SIDE)]


@triton.jit(do_not_specialize=_FREE)
def split_kernel(
    left_x,
    left_parts,
    left_exponents,
    left_workspace,
    left_loss,
    left_vectors,
    left_total,
    left_batch_stride,
    left_vector_stride,
    left_k_stride,
    left_chunks,
    right_x,
    right_parts,
    right_exponents,
    right_workspace,
    right_loss,
    right_vectors,
    right_total,
    right_batch_stride,
    right_vector_stride,
    right_k_stride,
    right_chunks,
    predicate,
    loss_from,
    loss_to,
    programs,
    k,
    pitch,
    top,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Tiles of the left operand, then of the right one; nothing where the predicate does not hold."""
    if predicate is not None:  # noqa: SIM102
        if not losses_in_range(predicate, loss_from, loss_to):
            return
    left = (left_x, left_parts, left_exponents, left_workspace, left_loss, left_vectors, left_total)
    left += (left_batch_stride, left_vector_stride, left_k_stride, left_chunks)
    right = (right_x, right_parts, right_exponents, right_workspace, right_loss, right_vectors, right_total)
    right += (right_batch_stride, right_vector_stride, right_k_stride, right_chunks)
    program = tl.program_id(0)
    if program < programs:
        _split_tile(left, program, k, pitch, top, LEFT)
    else:
        _split_tile(right, program - programs, k, pitch, top, RIGHT)
