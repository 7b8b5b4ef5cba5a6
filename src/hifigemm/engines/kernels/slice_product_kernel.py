"""The kernel of `slice_product`: INT8 slices to rounded values.

Every diagonal s holds s + 1 pairs of slices, which lie one after the other along k on both sides, the left ones in
order and the right ones in reverse: it is one INT8 product of length (s + 1) k. Few diagonals stay in INT32 tiles of
their own, so that a slice is loaded once for all its pairs; more are made one after the other, added to 64-bit words as
V = sum_s D_s 2**(beta (S - 1 - s)), the first word waiting in memory while the last is made. V has at most two words,
V = H 2**T + L, which become four integers that float64 holds; one addition rounds their sum.

Tiles with a row or column that holds an Inf or NaN, and float64 results that may leave the normal range, are rounded
again row by row from the words.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.elementary import power_of_two
from hifigemm.engines.kernels.rounding import round_integer
from hifigemm.engines.kernels.special import nonfinite_product
from hifigemm.engines.kernels.tile_order import place_of
from hifigemm.engines.kernels.vector_tiles import NOT_FINITE

__all__ = ["slice_product_kernel"]

_SIGN = tl.constexpr(-1 << 63)
_HALF = tl.constexpr(2.0**32)
_WHOLE = tl.constexpr(2.0**64)


@triton.jit
def _diagonal(left, right, start, stop, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The INT8 product of columns start .. stop of two sets of rows, given as columns of addresses."""
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    ks = tl.arange(0, BLOCK_K)[None, :]
    for at in range(start, stop, BLOCK_K):
        x = tl.load(left + (at + ks))
        y = tl.load(right + (at + ks))
        sums = tl.dot(x, tl.trans(y), sums, out_dtype=tl.int32)
    return sums


@triton.jit
def _tile_at(kept, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Addresses of a tile that lies row by row."""
    return kept + tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def _together(
    left,
    right,
    pitch,
    COUNT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Up to three diagonals that are made side by side, INT32."""
    zero = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    first, second, third = zero, zero, zero
    ks = tl.arange(0, BLOCK_K)[None, :]
    last = (COUNT - 1) * pitch
    for at in range(0, pitch, BLOCK_K):
        x = tl.load(left + (at + ks))
        y = tl.trans(tl.load(right + (last + at + ks)))
        first = tl.dot(x, y, first, out_dtype=tl.int32)
        if COUNT > 1:
            x_next = tl.load(left + (pitch + at + ks))
            y_next = tl.trans(tl.load(right + (last - pitch + at + ks)))
            second = tl.dot(x, y_next, second, out_dtype=tl.int32)
            second = tl.dot(x_next, y, second, out_dtype=tl.int32)
            if COUNT > 2:
                third = tl.dot(x_next, y_next, third, out_dtype=tl.int32)
                third = tl.dot(x, tl.trans(tl.load(right + (at + ks))), third, out_dtype=tl.int32)
                third = tl.dot(tl.load(left + (2 * pitch + at + ks)), y, third, out_dtype=tl.int32)
    sums = (first,)
    if COUNT > 1:
        sums += (second,)
    if COUNT > 2:
        sums += (third,)
    return sums


@triton.jit
def _one_by_one(
    left,
    right,
    pitch,
    kept,
    COUNT: tl.constexpr,
    HIGH: tl.constexpr,
    BETA: tl.constexpr,
    K_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The last word of V; the first one, of HIGH diagonals, is left at `kept` where there are two."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int64)
    for s in range(COUNT):
        if HIGH < COUNT:  # noqa: SIM102 - known when the kernel is compiled
            if s == HIGH:
                tl.store(_tile_at(kept, BLOCK_M, BLOCK_N), total)
                total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int64)
        total = total << BETA
        skipped = (COUNT - 1 - s) * pitch
        length = (s + 1) * pitch
        for start in range(0, length, K_BLOCK):
            stop = tl.minimum(start + K_BLOCK, length)
            sums = _diagonal(left, right + skipped, start, stop, BLOCK_M, BLOCK_N, BLOCK_K)
            total += sums.to(tl.int64)
    return total


@triton.jit
def _wide(high, low, T: tl.constexpr):
    """H 2**T + L as X 2**64 + Y, Y signed; 0 <= T < 64."""
    if T == 0:
        return high, low
    else:
        shifted = high << T
        total = shifted + low
        carried = total.to(tl.uint64, bitcast=True) < shifted.to(tl.uint64, bitcast=True)
        above = (high >> (64 - T)) + (low >> 63) + carried.to(tl.int64)
        return above + (total < 0).to(tl.int64), total


@triton.jit
def _joined(sums, BETA: tl.constexpr):
    """sum_s sums[s] 2**(beta (last - s)) in INT64."""
    total = sums[0].to(tl.int64)
    for i in tl.static_range(1, len(sums)):
        total = (total << BETA) + sums[i].to(tl.int64)
    return total


@triton.jit
def _row_of(sums, own):
    """The row of each tile that the mask marks."""
    found = ()
    for i in tl.static_range(len(sums)):
        found += (tl.sum(tl.where(own, sums[i], 0), axis=0),)
    return found


@triton.jit
def _rounded(above, low, WIDE: tl.constexpr, SINGLE: tl.constexpr):
    """above 2**64 + low, |above| < 2**41, rounded once to float64: to nearest, or with SINGLE to odd."""
    s = (low >> 32).to(tl.int32).to(tl.float64) * _HALF
    rest = (low & 0xFFFFFFFF).to(tl.uint32).to(tl.float64)
    if WIDE:
        # Every term is a multiple of 2**32 until `rest` is added, and what a first sum leaves is below 2**53.
        top = above.to(tl.float64) * _WHOLE
        total = top + s
        rest += (top - total) + s
        s = total
    value = s + rest
    if SINGLE:
        lost = rest - (value - s)
        bits = value.to(tl.int64, bitcast=True)
        bits -= ((lost != 0.0) & ((lost < 0.0) != (value < 0.0))).to(tl.int64)
        value = (bits | (lost != 0.0).to(tl.int64)).to(tl.float64, bitcast=True)
    return value


@triton.constexpr_function
def value_ptx(num_sums: int, beta: int, low_diagonals: int, single: bool) -> str:
    """PTX of `_value`: operands are the INT32 sums, or the last word and then the first where there are two; exponent.

    INT32 sums make an integer that float64 holds.
    """
    lines = ["{ .reg .b32 p, q, e; .reg .b64 v, w, x; .reg .f64 a, r, s, t; .reg .pred some, down, minus;"]
    if num_sums:
        lines.append("cvt.s64.s32 v, $1;")
        lines += [f"shl.b64 v, v, {beta}; cvt.s64.s32 w, ${i}; add.s64 v, v, w;" for i in range(2, num_sums + 1)]
        lines.append("cvt.rn.f64.s64 a, v;")
    else:
        shift = beta * low_diagonals
        if shift:
            lines.append(f"shl.b64 v, $2, {shift}; shr.s64 w, $2, {64 - shift}; shr.s64 x, $1, 63;")
            lines.append("add.cc.u64 v, v, $1; addc.u64 w, w, x; shr.u64 x, v, 63; add.u64 w, w, x;")
        else:
            lines.append("mov.b64 v, $1;")
        lines.append(
            "mov.b64 {p, q}, v; cvt.rn.f64.s32 s, q; mul.rn.f64 s, s, 0d41F0000000000000; cvt.rn.f64.u32 r, p;"
        )
        if shift:
            lines.append("cvt.rn.f64.s64 t, w; mul.rn.f64 t, t, 0d43F0000000000000; add.rn.f64 a, t, s;")
            lines.append("sub.rn.f64 t, t, a; add.rn.f64 t, t, s; add.rn.f64 r, r, t; mov.f64 s, a;")
        lines.append("add.rn.f64 a, s, r;")
        if single:
            lines.append("sub.rn.f64 t, a, s; sub.rn.f64 t, r, t; setp.neu.f64 some, t, 0d0000000000000000;")
            lines.append("setp.lt.f64 down, t, 0d0000000000000000; setp.lt.f64 minus, a, 0d0000000000000000;")
            lines.append("xor.pred down, down, minus; and.pred down, down, some; mov.b64 v, a;")
            lines.append("@down add.s64 v, v, -1; @some or.b64 v, v, 1; mov.b64 a, v;")
    last = num_sums + 1 if num_sums else 3 if low_diagonals else 2
    lines.append(f"add.s32 e, ${last}, 1023; shl.b32 e, e, 20; mov.b32 p, 0; mov.b64 s, {{p, e}}; mul.rn.f64 a, a, s;")
    lines.append("cvt.rn.f32.f64 $0, a; }" if single else "mov.f64 $0, a; }")
    return " ".join(lines)


@triton.jit
def _value(
    sums,
    kept,
    exponent,
    LOW: tl.constexpr,
    BETA: tl.constexpr,
    SINGLE: tl.constexpr,
    PTX: tl.constexpr,
):
    """V 2**exponent, rounded once, from INT32 sums or a word, and the first word at `kept` where there are two.

    With PTX the steps of an entry follow each other, so that few registers are needed beside the sums.
    """
    NUM_SUMS: tl.constexpr = len(sums) if sums[0].dtype == tl.int32 else 0
    if PTX:
        inputs = sums
        if LOW > 0:
            inputs += (tl.load(kept),)
        text: tl.constexpr = value_ptx(NUM_SUMS, BETA, LOW, SINGLE)
        constraints: tl.constexpr = ("=f" if SINGLE else "=d") + (",r" * NUM_SUMS or (",l,l" if LOW else ",l")) + ",r"
        return tl.inline_asm_elementwise(
            text,
            constraints,
            inputs + (exponent,),  # noqa: RUF005
            dtype=tl.float32 if SINGLE else tl.float64,
            is_pure=True,
            pack=1,
        )
    else:
        low = _joined(sums, BETA)
        above = low
        if LOW > 0:
            above, low = _wide(tl.load(kept), low, BETA * LOW)
        value = _rounded(above, low, LOW > 0, SINGLE) * power_of_two(exponent)
        return value.to(tl.float32 if SINGLE else tl.float64)


@triton.jit(do_not_specialize=["m", "n", "k", "shift", "tiles_m", "tiles_n", "num_tiles"])
def slice_product_kernel(
    left,
    left_batch,
    left_exponents,
    left_exponents_batch,
    right,
    right_batch,
    right_exponents,
    right_exponents_batch,
    out,
    out_batch,
    out_row,
    out_column,
    words,
    left_operand,
    left_operand_batch,
    left_operand_row,
    left_operand_k,
    right_operand,
    right_operand_batch,
    right_operand_k,
    right_operand_column,
    shift,
    m,
    n,
    k,
    pitch,
    tiles_m,
    tiles_n,
    num_tiles,
    COUNT: tl.constexpr,
    HIGH: tl.constexpr,
    BETA: tl.constexpr,
    TOGETHER: tl.constexpr,
    K_BLOCK: tl.constexpr,
    SINGLE: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Tiles of all matrices of a stack; `words` holds a tile for each program where V has two; see `slice_product`."""
    LOW: tl.constexpr = COUNT - HIGH
    for index in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        plane, tile_m, tile_n = place_of(index, tiles_m, tiles_n, GROUP)
        z, row0 = plane.to(tl.int64), tile_m * BLOCK_M
        kept = words
        if LOW > 0:
            kept += tl.program_id(0).to(tl.int64) * (BLOCK_M * BLOCK_N)
        rows = row0 + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        x = left + z * left_batch + (tl.minimum(rows, m - 1).to(tl.int64) * (pitch * COUNT))[:, None]
        y = right + z * right_batch + (tl.minimum(columns, n - 1).to(tl.int64) * (pitch * COUNT))[:, None]
        if TOGETHER:
            sums = _together(x, y, pitch, COUNT, BLOCK_M, BLOCK_N, BLOCK_K)
        else:
            sums = (_one_by_one(x, y, pitch, kept, COUNT, HIGH, BETA, K_BLOCK, BLOCK_M, BLOCK_N, BLOCK_K),)
        row_exponents = left_exponents + z * left_exponents_batch
        column_exponents = right_exponents + z * right_exponents_batch
        e = tl.load(row_exponents + rows, mask=rows < m, other=0)
        f = tl.load(column_exponents + columns, mask=columns < n, other=0)
        to = out + z * out_batch
        base = shift - BETA * (COUNT - 1)
        least = tl.min(e) + tl.min(f) + base
        rare = (tl.min(e) == NOT_FINITE) | (tl.min(f) == NOT_FINITE)
        if not SINGLE:
            rare |= (least < -1022) | (tl.max(e) + tl.max(f) + base > 1023)
        if not rare:
            exponent = (e + base)[:, None] + f[None, :]
            if SINGLE:
                # Outside of this range results are zeros or Inf in float32.
                exponent = tl.minimum(tl.maximum(exponent, -1022), 1023)
            value = _value(sums, _tile_at(kept, BLOCK_M, BLOCK_N), exponent, LOW, BETA, SINGLE, PTX)
            place = to + rows[:, None].to(tl.int64) * out_row + columns[None, :].to(tl.int64) * out_column
            tl.store(place, value, mask=(rows < m)[:, None] & (columns < n)[None, :])
        else:
            inside = columns < n
            right_columns = right_operand + z * right_operand_batch + columns.to(tl.int64) * right_operand_column
            for i in range(0, tl.minimum(BLOCK_M, m - row0)):
                row = tl.cast(row0 + i, tl.int64)
                low = _joined(_row_of(sums, (rows == row0 + i)[:, None]), BETA)
                above = tl.zeros_like(low)
                if LOW > 0:
                    above, low = _wide(tl.load(kept + i * BLOCK_N + tl.arange(0, BLOCK_N)), low, BETA * LOW)
                own = tl.load(row_exponents + row)
                marked = (own == NOT_FINITE) | (f == NOT_FINITE)
                exponent = tl.where(marked, 0, own + f + base) + 64
                # Exponents beyond +-4000 give what these give.
                exponent = tl.minimum(tl.maximum(exponent, -4000), 4000)
                value = round_integer(above.to(tl.float64), low ^ _SIGN, (), exponent, SINGLE, 64, 32)
                if tl.max(marked.to(tl.int32)) > 0:
                    filled = nonfinite_product(
                        left_operand + z * left_operand_batch + row * left_operand_row,
                        right_columns,
                        k,
                        left_operand_k,
                        right_operand_k,
                        inside,
                        1,
                    )
                    value = tl.where(marked, filled, value)
                place = to + row * out_row + columns.to(tl.int64) * out_column
                tl.store(place, value.to(out.dtype.element_ty), mask=inside)
