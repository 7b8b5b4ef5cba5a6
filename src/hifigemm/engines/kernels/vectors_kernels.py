"""Triton kernels that scale the vectors of operands and make their residues; `vectors.py` launches them.

A vector is a row of A or a column of B. One launch treats both operands: the first programs take A, the others B.
Tiles have the axes (k within a piece, vector, piece of a block, block of k). A piece is what a warp has of its vectors,
16 consecutive entries in a thread: residues are stored 16 bytes wide, and loads across the vectors still fill sectors
of 32 bytes, without an exchange between threads. Where strides say nothing, Triton takes the first axis as the fastest.

Integers are cut into words by float64 arithmetic: z = sum_j h_j UNIT**j, |h_j| < 2**31. UNIT is a little less than
2**32, so that rounding cannot carry the lowest word out of its range; h_j + MAGIC has h_j + 2**31 in its low 32 bits.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

__all__ = ["block_norms_kernel", "join_norms_kernel", "residues_kernel", "scaled_residues_kernel"]

NOT_FINITE = tl.constexpr(-(2**30))
NORM_BLOCK = tl.constexpr(256)
NORM_BITS = tl.constexpr(15)
UNIT = tl.constexpr(3.0 * 2.0**30)
MAGIC = tl.constexpr(1.5 * 2.0**52 + 2.0**31)
SHRINK = tl.constexpr(1.0 - 2.0**-50)
INFINITE = tl.constexpr(1025)
MAGNITUDE = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Form:
    """What a kernel knows of its operands and its tile when it is compiled.

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
        Entries of a piece: 512 / vectors where residues are made, 32 / vectors where only norms are taken.
    """

    left_along_k: bool
    right_along_k: bool
    even: bool
    vector: int
    width: int
    vectors: int
    blocks: int
    piece: int


_SIZES = ["programs_a", "num_a", "num_b", "k", "sab", "sav", "sak", "sbb", "sbv", "sbk"]
_COLUMNS = ["total_a", "total_b", "balance_a", "balance_b"]
_PARTS = ["pitch16", "num_parts"]


@triton.constexpr_function
def _constraints(num_words: int) -> str:
    return ",".join(["=r", *["r"] * (4 * (2 * num_words + 3))])


@triton.constexpr_function
def _ptx(num_words: int) -> str:
    """PTX of four residues: operands w_0 .. | c_0 .. | add, bits of 1 / p, -p; four registers each.

    f = sum_j dp4a(w_j, c_j) + add are the bits of a float32 integer that is congruent to the result; the fused
    multiply-add rounds its quotient by p, whose bits are the quotient modulo 256 in the lowest byte.
    """
    at = [f"${1 + 4 * i}" for i in range(2 * num_words + 3)]
    factors = at[num_words : 2 * num_words]
    add, inverse, minus_p = at[2 * num_words :]
    lines = ["{ .reg .b32 f<4>, q, x, y; .reg .f32 u, v;"]
    for i in range(4):
        term = add
        for j in range(num_words):
            lines.append(f"dp4a.u32.s32 f{i}, ${1 + 4 * j + i}, {factors[j]}, {term};")
            term = f"f{i}"
        lines.append(f"mov.b32 u, f{i}; mov.b32 v, {inverse}; fma.rn.f32 u, u, v, 0f4B400000; mov.b32 q, u;")
        lines.append(f"mad.lo.u32 f{i}, q, {minus_p}, f{i};")
    lines.append("prmt.b32 x, f0, f1, 0x0040; prmt.b32 y, f2, f3, 0x0040; prmt.b32 $0, x, y, 0x5410; }")
    return " ".join(lines)


@triton.jit
def _power_of_two(e):
    """2.0**e for -1022 <= e <= 1023."""
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _exponent_of(bits):
    """Smallest e with x < 2**e from the bits of x >= 0; INFINITE for Inf and NaN, -2096 for zero."""
    biased = (bits >> 52).to(tl.int32)
    length = (bits.to(tl.float64).to(tl.int64, bitcast=True) >> 52).to(tl.int32) - 1022
    return tl.where(biased > 0, biased - 1022, length - 1074)


@triton.jit
def _low_word(x):
    """The low 32 bits of float64."""
    return x.to(tl.int64, bitcast=True).to(tl.int32)


@triton.jit
def _place(pid, programs_a, num_a, num_b, FORM: tl.constexpr):
    """Whether a program takes A, its matrix of the stack, its vectors, and how many there are."""
    first = pid < programs_a
    count = tl.where(first, num_a, num_b)
    own = tl.where(first, pid, pid - programs_a)
    tiles = tl.cdiv(count, FORM.vectors)
    return first, (own // tiles).to(tl.int64), (own % tiles) * FORM.vectors + tl.arange(0, FORM.vectors), count


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
    place,
    ks,
    k,
    ALONG_K: tl.constexpr,
    FORM: tl.constexpr,
):
    """A tile of an operand. ALONG_K: entries lie side by side along k, the other strides are in units of VECTOR."""
    x, sb, sv, sk = operand
    _, batch, vs, count = place
    vs = tl.minimum(vs, count - 1).to(tl.int64)
    if ALONG_K:
        at = x + ((batch * sb + vs * sv) * (FORM.vector * FORM.width))[None, :, None, None] + ks * FORM.width
    else:
        at = x + ((batch * sb + vs * sv) * FORM.width)[None, :, None, None] + ks.to(tl.int64) * (sk * FORM.width)
    return _load(at, ks < k, FORM)


@triton.jit
def _load_either(
    left,
    right,
    place,
    ks,
    k,
    FORM: tl.constexpr,
):
    """A tile of the operand that the program takes."""
    first = place[0]
    if FORM.left_along_k == FORM.right_along_k:
        x = tl.where(first, left[0], right[0])
        chosen = (
            x,
            tl.where(first, left[1], right[1]),
            tl.where(first, left[2], right[2]),
            tl.where(first, left[3], right[3]),
        )
        parts = _load_tile(chosen, place, ks, k, FORM.left_along_k, FORM)
    elif first:
        parts = _load_tile(left, place, ks, k, FORM.left_along_k, FORM)
    else:
        parts = _load_tile(right, place, ks, k, FORM.right_along_k, FORM)
    return parts


@triton.jit
def _ceil_magnitude(x, first, second, PTX: tl.constexpr):
    """ceil(|x| * first * second) below 2**31 as INT32, 1 where x is not zero but the product underflows."""
    if PTX:
        rounded = tl.inline_asm_elementwise(
            "fma.rp.f64 $0, $1, $2, 0d4330000000000000;",
            "=d,d,d",
            [tl.abs(x) * first, second],
            dtype=tl.float64,
            is_pure=True,
            pack=1,
        )
    else:
        size = tl.abs(x)
        rounded = tl.maximum(tl.ceil(size * first * second), tl.where(size > 0.0, 1.0, 0.0)) + 4503599627370496.0
    return _low_word(rounded)


@triton.jit
def _block_norms(parts, FORM: tl.constexpr, PTX: tl.constexpr):
    """Exponents e_q and sums of squares n_q of the blocks of a tile: INT32 and float64, shape (vectors, blocks)."""
    bits = parts[0].to(tl.int64, bitcast=True) & MAGNITUDE
    for i in tl.static_range(1, len(parts)):
        bits = tl.maximum(bits, parts[i].to(tl.int64, bitcast=True) & MAGNITUDE)
    # First the axis along which a thread has many entries.
    OUTER: tl.constexpr = 0 if FORM.piece * FORM.vectors == 512 else 2
    e = _exponent_of(tl.max(tl.max(bits, axis=OUTER), axis=1 - OUTER // 2))
    # 2**(15 - e) is no float64 for tiny entries, which a first factor brings up exactly.
    power = NORM_BITS - tl.maximum(e, -1074)
    up = tl.where(power > 900, 100, 0)
    first = _power_of_two(up)[None, :, None, :]
    second = _power_of_two(power - up)[None, :, None, :]
    count = _ceil_magnitude(parts[0], first, second, PTX)
    squares = (count * count).to(tl.int64)
    for i in tl.static_range(1, len(parts)):
        count = _ceil_magnitude(parts[i], first, second, PTX)
        squares += (count * count).to(tl.int64)
    return e, tl.sum(tl.sum(squares, axis=OUTER), axis=1 - OUTER // 2).to(tl.float64)


@triton.jit
def _joined(block_n, block_e, e):
    """ceil(n_q 4**(e_q - e)): block sums on the grid of the whole vector."""
    return tl.ceil(block_n * _power_of_two(tl.maximum(2 * (block_e - e), -1000)))


@triton.jit
def _scale_of(squares, e, range_ptr, balance):
    """numerics.scaling.scale_exponent plus `balance`, and 1 where integers are rounded to nearest, else 0."""
    mantissa = tl.load(range_ptr)
    power = tl.load(range_ptr + 1).to(tl.int32)
    quotient = (mantissa / tl.where(squares == 0.0, 1.0, squares)) * SHRINK
    log2 = ((quotient.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1023 + power
    finite = e < INFINITE
    e = tl.where(squares == 0.0, 0, e)
    s = tl.where(squares == 0.0, 0, (log2 >> 1) + NORM_BITS) - e + balance
    return tl.where(finite, s, NOT_FINITE), (finite & (s + e >= NORM_BITS)).to(tl.int32)


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
    first = _power_of_two(half)[None, :, None, None]
    second = _power_of_two(tl.minimum(tl.maximum(s, -2000), 2000) - half)[None, :, None, None]
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
            inputs += (_low_word(words[j]),)
        for j in tl.static_range(len(words) + 3):
            inputs += (tl.load(row + j),)
        constraints: tl.constexpr = _constraints(len(words))
        text: tl.constexpr = _ptx(len(words))
        return tl.inline_asm_elementwise(text, constraints, inputs, dtype=tl.int8, is_pure=True, pack=4)
    else:
        total = (words[0] - MAGIC) * tl.load(row)
        for j in tl.static_range(1, len(words)):
            total += (words[j] - MAGIC) * tl.load(row + j)
        # |total| < 2**44 is exact; for odd p the quotient is never within 1 / (2 p) of a tie.
        quotient = (total * tl.load(row + len(words)) + MAGIC) - MAGIC
        return _low_word(total - quotient * tl.load(row + len(words) + 1) + MAGIC).to(tl.int8)


@triton.jit
def _store_residues(
    words,
    out_a,
    out_b,
    table,
    place,
    ks,
    pitch16,
    num_parts,
    DP4A: tl.constexpr,
):
    """Residues of a tile for every row of the table; the pitch is in units of 16 bytes."""
    first, batch, vs, count = place
    mask = (vs < count)[None, :, None, None] & (ks < pitch16 * 16)
    start = (batch * num_parts * count + vs) * pitch16
    at = tl.where(first, out_a, out_b) + start[None, :, None, None] * 16 + ks
    step = count.to(tl.int64) * pitch16 * 16
    LENGTH: tl.constexpr = len(words) + (3 if DP4A else 2)
    for l in range(num_parts):
        tl.store(at + l * step, _residue(words, table + l * LENGTH, DP4A), mask=mask)


@triton.jit(do_not_specialize=[*_SIZES, *_COLUMNS, *_PARTS])
def scaled_residues_kernel(
    a,
    b,
    scale_a,
    scale_b,
    range_ptr,
    out_a,
    out_b,
    table,
    programs_a,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    total_a,
    total_b,
    balance_a,
    balance_b,
    pitch16,
    num_parts,
    FORM: tl.constexpr,
    STEPS: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    TRUNCATES: tl.constexpr,
    RESIDUES: tl.constexpr,
    PTX: tl.constexpr,
    DP4A: tl.constexpr,
):
    """Scales of whole vectors, and their residues where RESIDUES; STEPS = 1: the vectors stay in registers."""
    left, right = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    place = _place(tl.program_id(0), programs_a, num_a, num_b, FORM)
    first, batch, vs, count = place
    steps = tl.cdiv(k, FORM.blocks * NORM_BLOCK)
    if STEPS == 1:
        ks = _along_k(0, FORM)
        parts = _load_either(left, right, place, ks, k, FORM)
        block_e, block_n = _block_norms(parts, FORM, PTX)
        e = tl.max(block_e, axis=1)
        squares = tl.sum(_joined(block_n, block_e, e[:, None]), axis=1)
    else:
        all_e = tl.full([FORM.vectors, FORM.blocks, STEPS], -2096, tl.int32)
        all_n = tl.full([FORM.vectors, FORM.blocks, STEPS], 0.0, tl.float64)
        index = tl.arange(0, STEPS)[None, None, :]
        for step in range(steps):
            ks = _along_k(step, FORM)
            parts = _load_either(left, right, place, ks, k, FORM)
            block_e, block_n = _block_norms(parts, FORM, PTX)
            all_e = tl.where(index == step, block_e[:, :, None], all_e)
            all_n = tl.where(index == step, block_n[:, :, None], all_n)
        e = tl.max(tl.max(all_e, axis=2), axis=1)
        squares = tl.sum(tl.sum(_joined(all_n, all_e, e[:, None, None]), axis=2), axis=1)
    s, nearest = _scale_of(squares, e, range_ptr, tl.where(first, balance_a, balance_b))
    at = tl.where(first, scale_a, scale_b) + batch * count + vs
    tl.store(at, s, mask=vs < count)
    tl.store(at + tl.where(first, total_a, total_b), nearest, mask=vs < count)
    if RESIDUES:
        if STEPS == 1:
            words = _integer_words(parts, s, nearest, NUM_WORDS, TRUNCATES)
            _store_residues(words, out_a, out_b, table, place, ks, pitch16, num_parts, DP4A)
        else:
            for step in range(steps):
                ks = _along_k(step, FORM)
                parts = _load_either(left, right, place, ks, k, FORM)
                words = _integer_words(parts, s, nearest, NUM_WORDS, TRUNCATES)
                _store_residues(words, out_a, out_b, table, place, ks, pitch16, num_parts, DP4A)


@triton.jit(do_not_specialize=[*_SIZES, "total_a", "total"])
def block_norms_kernel(
    a,
    b,
    norms,
    exponents,
    programs_a,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    total_a,
    total,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Sums of squares and exponents of the blocks of one tile: (blocks of k, vectors of A, then of B)."""
    left, right = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    place = _place(tl.program_id(0), programs_a, num_a, num_b, FORM)
    first, batch, vs, count = place
    step = tl.program_id(1)
    ks = _along_k(step, FORM)
    parts = _load_either(left, right, place, ks, k, FORM)
    block_e, block_n = _block_norms(parts, FORM, PTX)
    column = tl.where(first, 0, total_a) + batch * count + vs
    blocks = step * FORM.blocks + tl.arange(0, FORM.blocks)
    at = blocks.to(tl.int64)[None, :] * total + column[:, None]
    mask = (blocks * NORM_BLOCK < k)[None, :] & (vs < count)[:, None]
    tl.store(norms + at, block_n, mask=mask)
    tl.store(exponents + at, block_e, mask=mask)


@triton.jit(do_not_specialize=["blocks", *_COLUMNS])
def join_norms_kernel(
    norms,
    exponents,
    scale_a,
    scale_b,
    range_ptr,
    blocks,
    total_a,
    total_b,
    balance_a,
    balance_b,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Scales from the norms of all blocks: exponents, then what is rounded to nearest, for each operand."""
    total = total_a + total_b
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = columns < total_a
    rows = tl.arange(0, ROWS)
    inside = columns < total
    e = tl.full([COLUMNS], -2096, tl.int32)
    for start in range(0, blocks, ROWS):
        at = (start + rows).to(tl.int64)[:, None] * total + columns[None, :]
        mask = (start + rows < blocks)[:, None] & inside[None, :]
        e = tl.maximum(e, tl.max(tl.load(exponents + at, mask=mask, other=-2096), axis=0))
    squares = tl.zeros([COLUMNS], tl.float64)
    for start in range(0, blocks, ROWS):
        at = (start + rows).to(tl.int64)[:, None] * total + columns[None, :]
        mask = (start + rows < blocks)[:, None] & inside[None, :]
        block_e = tl.load(exponents + at, mask=mask, other=-2096)
        block_n = tl.load(norms + at, mask=mask, other=0.0)
        squares += tl.sum(_joined(block_n, block_e, e[None, :]), axis=0)
    s, nearest = _scale_of(squares, e, range_ptr, tl.where(first, balance_a, balance_b))
    at = tl.where(first, scale_a + columns, scale_b + (columns - total_a))
    tl.store(at, s, mask=inside)
    tl.store(at + tl.where(first, total_a, total_b), nearest, mask=inside)


@triton.jit(do_not_specialize=[*_SIZES, "stride_a", "stride_b", *_PARTS])
def residues_kernel(
    a,
    b,
    scale_a,
    nearest_a,
    scale_b,
    nearest_b,
    out_a,
    out_b,
    table,
    programs_a,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    stride_a,
    stride_b,
    pitch16,
    num_parts,
    FORM: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    TRUNCATES: tl.constexpr,
    DP4A: tl.constexpr,
):
    """Residues of one tile with given scales."""
    left, right = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    place = _place(tl.program_id(0), programs_a, num_a, num_b, FORM)
    first, batch, vs, count = place
    ks = _along_k(tl.program_id(1), FORM)
    parts = _load_either(left, right, place, ks, k, FORM)
    at = batch * tl.where(first, stride_a, stride_b) + vs
    s = tl.load(tl.where(first, scale_a, scale_b) + at, mask=vs < count, other=0)
    nearest = tl.load(tl.where(first, nearest_a, nearest_b) + at, mask=vs < count, other=1)
    words = _integer_words(parts, s, nearest, NUM_WORDS, TRUNCATES)
    _store_residues(words, out_a, out_b, table, place, ks, pitch16, num_parts, DP4A)
