"""Triton kernels that scale the vectors of operands and make their residues; `scaled_residues.py` launches them.

Tiles of residues have pieces that are what a warp has of its vectors, 16 consecutive entries in a thread: residues are
stored 16 bytes wide, and loads across the vectors still fill sectors of 32 bytes, without an exchange between threads.
Where strides say nothing, Triton takes the first axis as the fastest.

Integers are cut into words by float64 arithmetic: z = sum_j h_j UNIT**j, |h_j| < 2**31. UNIT is a little less than
2**32, so that rounding cannot carry the lowest word out of its range; h_j + MAGIC has h_j + 2**31 in its low 32 bits.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from hifigemm.engines.kernels.elementary import power_of_two
from hifigemm.engines.kernels.predicate import holds
from hifigemm.engines.kernels.vector_norms_kernels import (
    NORM_BLOCK,
    NOT_FINITE,
    PANEL,
    block_sizes,
    exponent_factors,
    joined_sizes,
    low_word,
    magnitude,
    panel_sizes,
    place,
    scale_of,
    store_sizes,
)

__all__ = ["NOT_FINITE", "UNIT", "Form", "pieces_kernel", "ptx_of_residues", "whole_kernel"]

UNIT = tl.constexpr(3.0 * 2.0**30)
MAGIC = tl.constexpr(1.5 * 2.0**52 + 2.0**31)
MAGNITUDE_BITS = tl.constexpr(7)


@dataclass(frozen=True)
class Form:
    """What a kernel knows of the operands and its tile of residues when it is compiled.

    Attributes
    ----------
    left_along_k, right_along_k : bool
        The entries of the vectors of A or B lie side by side, and the other strides count in units of `vector`.
    even : bool
        k is a multiple of the tile.
    vector : int
        Entries that may be loaded at a time.
    width : int
        Components of an entry: 1, or 2 for complex operands.
    vectors, blocks : int
        Vectors and blocks of 256 along k in a tile.
    piece : int
        Entries of a piece: 512 / vectors.
    stream : bool
        Residues leave the cache first.
    """

    left_along_k: bool
    right_along_k: bool
    even: bool
    vector: int
    width: int
    vectors: int
    blocks: int
    piece: int
    stream: bool


_SHAPE = ["num_a", "num_b", "k", "sab", "sav", "sak", "sbb", "sbv", "sbk", "pitch16", "low_pitch16"]
_REST = ["num_planes", "stride_a", "stride_b", "total_a", "total", "balance_a", "balance_b", "least", "most"]


@triton.constexpr_function
def _constraints(num_words: int, outputs: int) -> str:
    return ",".join(["=r"] * outputs + ["r"] * (4 * (2 * num_words + 2 + outputs)))


@triton.constexpr_function
def ptx_of_residues(num_words: int, outputs: int) -> str:
    """PTX of four residues, or pairs of residues: operands w_0 .. | c_0 .. | add [, more], bits of 1 / p, -p.

    Each operand has four registers. f = sum_j dp4a(w_j, c_j) + add are the bits of a float32 integer that is congruent
    to the result; the fused multiply-add rounds its quotient by p, whose bits are the quotient modulo 256 in the lowest
    byte. For a pair the terms of re are x and those of im y: f is x + y + add, and then x - y + add + more.
    """
    at = [f"${outputs + 4 * i}" for i in range(2 * num_words + 2 + outputs)]
    factors = at[num_words : 2 * num_words]
    adds = at[2 * num_words : -2]
    inverse, minus_p = at[-2:]
    lines = ["{ .reg .b32 f<4>, g<4>, q, x, y; .reg .f32 u, v;"]
    for i in range(4):
        chains = [range(num_words)] if outputs == 1 else [range(num_words // 2), range(num_words // 2, num_words)]
        for chain, target, term in zip(chains, "fg", (adds[0], "0"), strict=False):
            for j in chain:
                lines.append(f"dp4a.u32.s32 {target}{i}, ${outputs + 4 * j + i}, {factors[j]}, {term};")
                term = f"{target}{i}"
        if outputs == 2:
            lines.append(f"sub.s32 x, f{i}, g{i}; add.s32 f{i}, f{i}, g{i}; add.s32 g{i}, x, {adds[1]};")
        for found in "fg"[:outputs]:
            lines.append(f"mov.b32 u, {found}{i}; mov.b32 v, {inverse}; fma.rn.f32 u, u, v, 0f4B400000;")
            lines.append(f"mov.b32 q, u; mad.lo.u32 {found}{i}, q, {minus_p}, {found}{i};")
    for to, x in enumerate("fg"[:outputs]):
        lines.append(f"prmt.b32 x, {x}0, {x}1, 0x0040; prmt.b32 y, {x}2, {x}3, 0x0040; prmt.b32 ${to}, x, y, 0x5410;")
    return " ".join([*lines, "}"])


@triton.jit
def _along_k(step, FORM: tl.constexpr):
    """Indices along k of tile number `step`."""
    blocks = (step * FORM.blocks + tl.arange(0, FORM.blocks)) * NORM_BLOCK
    pieces = tl.arange(0, NORM_BLOCK // FORM.piece) * FORM.piece
    return tl.arange(0, FORM.piece)[:, None, None, None] + pieces[None, None, :, None] + blocks[None, None, None, :]


@triton.jit
def _load(x, mask, FORM: tl.constexpr):
    """The components of entries as a tuple of float64, 0 where masked."""
    WIDTH: tl.constexpr = FORM.width
    parts = ()
    for i in tl.static_range(WIDTH):
        if FORM.even:
            parts += (tl.load(x + i).to(tl.float64),)
        else:
            parts += (tl.load(x + i, mask=mask, other=0.0).to(tl.float64),)
    return parts


@triton.jit
def _load_tile(
    operand,
    spot,
    ks,
    k,
    ALONG_K: tl.constexpr,
    FORM: tl.constexpr,
):
    """A tile of an operand. ALONG_K: entries lie side by side along k, the other strides are in units of VECTOR."""
    x, sb, sv, sk = operand
    _, batch, start, count = spot
    vs = tl.minimum(start + tl.arange(0, FORM.vectors), count - 1).to(tl.int64)
    if ALONG_K:
        at = x + ((batch * sb + vs * sv) * (FORM.vector * FORM.width))[None, :, None, None] + ks * FORM.width
    else:
        at = x + ((batch * sb + vs * sv) * FORM.width)[None, :, None, None] + ks.to(tl.int64) * (sk * FORM.width)
    return _load(at, ks < k, FORM)


@triton.jit
def _load_either(
    left,
    right,
    spot,
    ks,
    k,
    FORM: tl.constexpr,
):
    """A tile of the operand that the program takes."""
    first = spot[0]
    if FORM.left_along_k == FORM.right_along_k:
        x = tl.where(first, left[0], right[0])
        chosen = (
            x,
            tl.where(first, left[1], right[1]),
            tl.where(first, left[2], right[2]),
            tl.where(first, left[3], right[3]),
        )
        parts = _load_tile(chosen, spot, ks, k, FORM.left_along_k, FORM)
    elif first:
        parts = _load_tile(left, spot, ks, k, FORM.left_along_k, FORM)
    else:
        parts = _load_tile(right, spot, ks, k, FORM.right_along_k, FORM)
    return parts


@triton.jit
def _words(z, NUM_WORDS: tl.constexpr):
    """The words of the integer nearest to z, lowest first, each with MAGIC added."""
    words = ()
    for j in tl.static_range(NUM_WORDS - 1):
        word = z * (1.0 / UNIT ** (NUM_WORDS - 1 - j)) + MAGIC
        z -= (word - MAGIC) * UNIT ** (NUM_WORDS - 1 - j)
        words = (word,) + words  # noqa: RUF005
    return (z + MAGIC,) + words  # noqa: RUF005


@triton.jit
def _integer_words(parts, s, nearest, NUM_WORDS: tl.constexpr, TRUNCATES: tl.constexpr):
    """The words of 2**s x, rounded to nearest even or toward zero, of all components."""
    half = tl.minimum(tl.maximum(s, -2000), 2000) >> 1
    first = power_of_two(half)[None, :, None, None]
    second = power_of_two(tl.minimum(tl.maximum(s, -2000), 2000) - half)[None, :, None, None]
    words = ()
    for i in tl.static_range(len(parts)):
        z = parts[i] * first * second
        if TRUNCATES:  # noqa: SIM102
            if tl.min(nearest) == 0:
                toward_zero = tl.where(z < 0.0, tl.ceil(z), tl.floor(z))
                z = tl.where(nearest[None, :, None, None] != 0, z, toward_zero)
        words += _words(z, NUM_WORDS)
    return words


@triton.jit
def _residue(words, row, DP4A: tl.constexpr):
    """A representative of sum_j c_j h_j mod p as INT8; c_j and what p needs lie at `row`."""
    if DP4A:
        inputs = ()
        for j in tl.static_range(len(words)):
            inputs += (low_word(words[j]),)
        for j in tl.static_range(len(words) + 3):
            inputs += (tl.load(row + j),)
        constraints: tl.constexpr = _constraints(len(words), 1)
        text: tl.constexpr = ptx_of_residues(len(words), 1)
        return tl.inline_asm_elementwise(text, constraints, inputs, dtype=tl.int8, is_pure=True, pack=4)
    else:
        total = (words[0] - MAGIC) * tl.load(row)
        for j in tl.static_range(1, len(words)):
            total += (words[j] - MAGIC) * tl.load(row + j)
        # |total| < 2**44 is exact; for odd p the quotient is never within 1 / (2 p) of a tie.
        quotient = (total * tl.load(row + len(words)) + MAGIC) - MAGIC
        return low_word(total - quotient * tl.load(row + len(words) + 1) + MAGIC).to(tl.int8)


@triton.jit
def _residue_pair(words, row):
    """Representatives of x + y and x - y mod p, x and y the sums of c_j h_j over the words of re and of im, by dp4a."""
    inputs = ()
    for j in tl.static_range(len(words)):
        inputs += (low_word(words[j]),)
    for j in tl.static_range(len(words) + 4):
        inputs += (tl.load(row + j),)
    constraints: tl.constexpr = _constraints(len(words), 2)
    text: tl.constexpr = ptx_of_residues(len(words), 2)
    types: tl.constexpr = (tl.int8, tl.int8)
    return tl.inline_asm_elementwise(text, constraints, inputs, dtype=types, is_pure=True, pack=4)


@triton.jit
def _store_part(at, found, mask, FORM: tl.constexpr):
    if FORM.stream:
        tl.store(at, found, mask=mask, eviction_policy="evict_first")
    else:
        tl.store(at, found, mask=mask)


@triton.jit
def _store_residues(
    words,
    out_a,
    out_b,
    table,
    spot,
    ks,
    pitch16,
    num_planes,
    FORM: tl.constexpr,
    DP4A: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Residues of a tile, for every row of the table one or, with PAIRS, two; the pitch is in units of 16 bytes."""
    first, batch, start, count = spot
    vs = start + tl.arange(0, FORM.vectors)
    mask = (vs < count)[None, :, None, None] & (ks < pitch16 * 16)
    row = (batch * num_planes * count + vs) * pitch16
    at = tl.where(first, out_a, out_b) + row[None, :, None, None] * 16 + ks
    step = count.to(tl.int64) * pitch16 * 16
    if PAIRS:
        for l in range(0, num_planes, 2):
            plus, minus = _residue_pair(words, table + (l // 2) * (len(words) + 4))
            _store_part(at + l * step, plus, mask, FORM)
            _store_part(at + (l + 1) * step, minus, mask, FORM)
    else:
        LENGTH: tl.constexpr = len(words) + (3 if DP4A else 2)
        for l in range(num_planes):
            _store_part(at + l * step, _residue(words, table + l * LENGTH, DP4A), mask, FORM)


@triton.jit
def _store_magnitudes(parts, e, low_a, low_b, spot, ks, pitch16, FORM: tl.constexpr, PTX: tl.constexpr):
    """|x| 2**(7 - e) of a tile, rounded down; vectors with an Inf or NaN, whose exponent is INFINITE, have no say."""
    first, batch, start, count = spot
    vs = start + tl.arange(0, FORM.vectors)
    up, second = exponent_factors(e, MAGNITUDE_BITS)
    row = (batch * count + vs) * pitch16 * FORM.width
    at = tl.where(first, low_a, low_b) + row[None, :, None, None] * 16 + ks
    for i in tl.static_range(len(parts)):
        z = tl.where(tl.abs(parts[i]) < float("inf"), parts[i], 0.0)
        low = magnitude(z, up[None, :, None, None], second[None, :, None, None], False, PTX).to(tl.int8)
        tl.store(at + i * pitch16 * 16, low, mask=(vs < count)[None, :, None, None] & (ks < pitch16 * 16))


@triton.jit(do_not_specialize=[*_SHAPE, *_REST, "tiles_a"])
def whole_kernel(
    a,
    b,
    exponent_a,
    nearest_a,
    exponent_b,
    nearest_b,
    own,
    norms,
    range_ptr,
    out_a,
    out_b,
    low_a,
    low_b,
    table,
    tiles_a,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    pitch16,
    low_pitch16,
    num_planes,
    stride_a,
    stride_b,
    total_a,
    total,
    balance_a,
    balance_b,
    predicate,
    least,
    most,
    FORM: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    TRUNCATES: tl.constexpr,
    SUMS: tl.constexpr,
    PTX: tl.constexpr,
    DP4A: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Scales and residues, and sizes and magnitudes with SUMS, of vectors that stay in registers.

    Nothing where the predicate does not hold.
    """
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    spot = place(tl.program_id(0), tiles_a, num_a, num_b, FORM.vectors)
    first = spot[0]
    vs = spot[2] + tl.arange(0, FORM.vectors)
    ks = _along_k(0, FORM)
    parts = _load_either((a, sab, sav, sak), (b, sbb, sbv, sbk), spot, ks, k, FORM)
    block_e, sums = block_sizes(parts, 0, SUMS, PTX)
    e = tl.max(block_e, axis=1)
    block_n, block_s = joined_sizes(sums, block_e, e[:, None])
    n, s = tl.sum(block_n, axis=1), tl.sum(block_s, axis=1)
    scale, nearest = scale_of(n, e, range_ptr, tl.where(first, balance_a, balance_b))
    exponents, to_nearest = tl.where(first, exponent_a, exponent_b), tl.where(first, nearest_a, nearest_b)
    target = (exponents, to_nearest, tl.where(first, stride_a, stride_b), tl.where(first, 0, total_a))
    store_sizes((n, s, e, scale, nearest), spot, vs, target, (own, norms, total), SUMS)
    if SUMS:
        _store_magnitudes(parts, e, low_a, low_b, spot, ks, low_pitch16, FORM, PTX)
    words = _integer_words(parts, scale, nearest, NUM_WORDS, TRUNCATES)
    _store_residues(words, out_a, out_b, table, spot, ks, pitch16, num_planes, FORM, DP4A, PAIRS)


@triton.jit(do_not_specialize=[*_SHAPE, *_REST, "panels_a", "panels", "ahead"])
def pieces_kernel(
    a,
    b,
    exponent_a,
    nearest_a,
    exponent_b,
    nearest_b,
    own,
    norms,
    range_ptr,
    out_a,
    out_b,
    low_a,
    low_b,
    table,
    block_sums,
    block_e,
    arrivals,
    panels_a,
    panels,
    ahead,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    pitch16,
    low_pitch16,
    num_planes,
    stride_a,
    stride_b,
    total_a,
    total,
    balance_a,
    balance_b,
    predicate,
    least,
    most,
    FORM: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    TRUNCATES: tl.constexpr,
    SCALES: tl.constexpr,
    RESIDUES: tl.constexpr,
    SUMS: tl.constexpr,
    PTX: tl.constexpr,
    DP4A: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Scales with SCALES, else they are given, and residues with RESIDUES; sizes and magnitudes with SUMS.

    Panels of 16 vectors follow each other: in every round the first programs take the blocks of one panel, the others
    make the residues of a panel `ahead` rounds before, which a cache still holds. These wait for the scales of their
    panel, which depend on programs with smaller indices only, and those wait for nobody. Where the predicate does not
    hold, all programs leave at once, those that would wait and those that they would wait for.
    """
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    blocks = tl.cdiv(k, NORM_BLOCK) if SCALES else 0
    steps = tl.cdiv(k, FORM.blocks * NORM_BLOCK)
    per_round = blocks + (steps * (PANEL // FORM.vectors) if RESIDUES else 0)
    panel = tl.program_id(0) // per_round
    task = tl.program_id(0) % per_round
    left, right = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    if task < blocks:
        if SCALES:  # noqa: SIM102 - known when the kernel is compiled
            if panel < panels:
                spot = place(panel, panels_a, num_a, num_b, PANEL)
                first = spot[0]
                exponents, to_nearest = tl.where(first, exponent_a, exponent_b), tl.where(first, nearest_a, nearest_b)
                target = (exponents, to_nearest, tl.where(first, stride_a, stride_b), tl.where(first, 0, total_a))
                workspace = (block_sums, block_e, arrivals)
                panel_sizes(
                    *((left, right), spot, panel, task, blocks, k, workspace, target, (own, norms, total), range_ptr),
                    *(tl.where(first, balance_a, balance_b), LEFT, RIGHT, SUMS, PTX),
                )
    elif RESIDUES:
        panel -= ahead
        task -= blocks
        first, batch, start, count = place(panel, panels_a, num_a, num_b, PANEL)
        start += task // steps * FORM.vectors
        if (panel >= 0) & (start < count):
            spot = (first, batch, start, count)
            vs = start + tl.arange(0, FORM.vectors)
            ks = _along_k(task % steps, FORM)
            parts = _load_either(left, right, spot, ks, k, FORM)
            if SCALES:
                seen = tl.atomic_add(arrivals + panel, 0, sem="acquire")
                while seen <= blocks:
                    seen = tl.atomic_add(arrivals + panel, 0, sem="acquire")
            at = batch * tl.where(first, stride_a, stride_b) + vs
            scale = tl.load(tl.where(first, exponent_a, exponent_b) + at, mask=vs < count, other=0)
            nearest = tl.load(tl.where(first, nearest_a, nearest_b) + at, mask=vs < count, other=1)
            if SUMS:
                e = tl.load(own + tl.where(first, 0, total_a) + batch * count + vs, mask=vs < count, other=0)
                _store_magnitudes(parts, e, low_a, low_b, spot, ks, low_pitch16, FORM, PTX)
            words = _integer_words(parts, scale, nearest, NUM_WORDS, TRUNCATES)
            _store_residues(words, out_a, out_b, table, spot, ks, pitch16, num_planes, FORM, DP4A, PAIRS)
