"""From residues of C to rounded values in one launch.

The bits are those of `ModuliSet.reconstruct` and `round_limbs`, of `fill_nonfinite`
where a vector holds an Inf or NaN, and of `combine` for alpha and beta. Pairs,
enclosures, and sums with an addend that are rounded once are those of
`numerics.integer_sums.rounded_integers`: all of their entries come from whole integers.

The integers are those of `crt_constants.py`. In almost every program the result is one
float64 addition v = H + V_T 2**-T, V_T 2**-T held with 52 bits of which the last is
sticky (rounded to odd), and a product with a power of two. Rounding to odd asks for
|v| >= 8; for float32 it drops so many bits that v is exact, and asks for more. Those
with an entry 0 < |v| below that, with scales that may leave the normal range of
float64, or with a marked vector are rounded again from the whole integers.

Triton's inline PTX makes the residues of a group: four consecutive columns, one byte
each, lie in a register, and the dot product of two bytes with two constants of 16 bits
takes one instruction. Both components of a complex result come from the same loads;
result, C and operands are then seen as real numbers, re and im of an entry side by
side, under strides that count entries.

Where the products are those of halves (numerics/strassen.py), the residues of a quarter
of the result are sums of two or four of them, which are reduced before anything else.
Programs of the two rows with the same products follow each other, so that these come
from the cache.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, misc, assignment, var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl

from hifigemm.kernels.endings.crt_constants import CrtConstants, crt_constants
from hifigemm.kernels.endings.integer_sums import rounded_integers
from hifigemm.kernels.endings.rounding import (
    Targets,
    finite,
    round_integer,
    with_addend,
)
from hifigemm.kernels.endings.special import nonfinite_product
from hifigemm.kernels.products.epilogue import combine
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    ROUND_DOUBLE,
    ROUND_SINGLE,
    Predicate,
    as_mask,
    holds,
    power_of_two,
    runs_ptx,
    tiles_of,
    unfolded,
)
from hifigemm.kernels.runtime.launch import (
    Launch,
    float64_bits,
    strided,
)
from hifigemm.kernels.runtime.tiles import gpu_of, tiles_along
from hifigemm.kernels.vectors.vector_norms import NOT_FINITE
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.residues import ModuliSet

_RESIDENT = 16
"""Programs of a warp that a multiprocessor holds at a time, at least."""
_TURNS = 4
"""Times as many programs where a predicate decides: idle ones leave soon, and those that
work take turns, so that no multiprocessor waits for another one.
"""
_REGISTERS = {14: 96, 16: 128, 28: 168}
"""At most, of a thread that joins products of halves with 8 columns, by the most
moduli. On an H200 at n = 16384, 14 moduli take 2.9 ms, and 3.3 with the 130 that the
compiler takes. On an H100, 16 moduli take 4.9 with 96 registers and 3.9 with 128, 18
take 9.9, 5.0 and with 168 registers 4.8, 21 take 12.6, 6.3 and 5.6, and 24 take 19.6,
11.3 and 7.3.
"""
_ROUND_OFFSET = tl.constexpr(1.5 * 2.0**52 + 2.0**23)
"""It rounds as ROUND_DOUBLE does, and the low 32 bits of the sum with Q are
Q + 2**23.
"""
_INTEGER_BITS = tl.constexpr(0x433 << 52)
"""The exponent of 2**52: with n in the bits behind it, the float64 is 2**52 + n."""
_INTEGER_ZERO = tl.constexpr(2.0**52 + 2.0**31)
"""What such a number is above the X of a group, as n is Y = X + 2**31."""
_FRACTION_BITS = tl.constexpr(0x3FF << 52)
"""The exponent of 1: with 52 bits behind it, the float64 is 1 + bits / 2**52."""
_BELOW_EXPONENT = tl.constexpr((1 << 52) - 1)
"""The bits behind the exponent."""


@triton.constexpr_function
def _registers(width: int, parts: int) -> str:
    """Constraints of the PTX of a group."""
    return ",".join(["=r"] * (4 * width) + ["r"] * parts)


@triton.jit
def _joined(
    address, distances, SET: tl.constexpr, PART: tl.constexpr, PTX: tl.constexpr
):
    """Twin: numerics.strassen.joined_products.

    Residues of a quarter of the result are those of the sum of the entry at `address`,
    the one at the first of `distances` from it, and two more where `four`.
    """
    second, third, fourth, four = distances
    # Bytes of the same place in two or four products of halves; the two that are not
    # asked for count 0.
    w = tl.load(address)
    x = tl.load(address + second)
    has_four = as_mask(four, w)
    y = tl.load(address + third, mask=has_four, other=0)
    z = tl.load(address + fourth, mask=has_four, other=0)
    if PTX:
        text: tl.constexpr = SET.joins[PART]
        return tl.inline_asm_elementwise(
            text, "=r,r,r,r,r", (w, x, y, z), dtype=tl.int8, is_pure=True, pack=4
        )
    else:
        P: tl.constexpr = SET.moduli[PART]
        # A sum of four bytes is exact in float32, and its quotient by P rounds to the
        # nearest integer or beside it.
        s = w.to(tl.int32) + x.to(tl.int32) + y.to(tl.int32) + z.to(tl.int32)
        q = (s.to(tl.float32) * (1.0 / P) + ROUND_SINGLE) - ROUND_SINGLE
        return (s - q.to(tl.int32) * P).to(tl.int8)


@triton.jit
def _group_residues(
    address, step, distances, SET: tl.constexpr, GROUP: tl.constexpr, PTX: tl.constexpr
):
    """Y of a group (see crt_constants) as UINT32, for each component.

    `distances` are for `_joined`, or None.
    """
    FIRST: tl.constexpr = SET.starts[GROUP]
    SIZE: tl.constexpr = SET.sizes[GROUP]
    WIDTH: tl.constexpr = len(SET.weights)
    # The residues of the group: bytes, of which four neighbouring columns share a
    # register.
    parts = ()
    for l in tl.static_range(SIZE):
        product = address + (FIRST + l) * step
        if distances is None:
            parts = parts + (tl.load(product),)  # noqa: RUF005
        else:
            parts = parts + (_joined(product, distances, SET, FIRST + l, PTX),)  # noqa: RUF005
    ys = ()
    # In PTX a thread has four columns of each component, whose bytes share a register.
    if PTX:
        code: tl.constexpr = SET.ptx[GROUP]
        constraints: tl.constexpr = _registers(WIDTH, SIZE)
        if WIDTH == 1:
            y = tl.inline_asm_elementwise(
                code, constraints, parts, dtype=tl.int32, is_pure=True, pack=4
            )
            ys = (y.to(tl.uint32, bitcast=True),)
        else:
            re, im = tl.inline_asm_elementwise(
                code,
                constraints,
                parts,
                dtype=(tl.int32, tl.int32),
                is_pure=True,
                pack=4,
            )
            ys = (re.to(tl.uint32, bitcast=True), im.to(tl.uint32, bitcast=True))
    else:
        # Step 1 of crt_constants: q, whose 2**15 makes the shift round, the sums A and
        # B of the two pairs of moduli, and Y.
        for i in tl.static_range(WIDTH):
            q = tl.zeros_like(parts[0]).to(tl.int32) + (1 << 15)
            a = tl.zeros_like(q)
            b = tl.zeros_like(q)
            for l in tl.static_range(SIZE):
                r = parts[l].to(tl.int32)
                q += r * SET.fractions[i][FIRST + l]
                if SET.second[FIRST + l]:
                    b += r * SET.weights[i][FIRST + l]
                else:
                    a += r * SET.weights[i][FIRST + l]
            y = (
                a * SET.pairs[GROUP][1]
                + b * SET.pairs[GROUP][0]
                + (q >> 16) * SET.products[GROUP]
                + (-1 << 31)
            )
            ys = ys + (y.to(tl.uint32, bitcast=True),)  # noqa: RUF005
    return ys


@triton.jit
def _residues(address, step, distances, SET: tl.constexpr, PTX: tl.constexpr):
    """Y of all groups. Both components of complex entries lie side by side: the steps
    behind this one are the same for them.
    """
    ys = ()
    for g in tl.static_range(len(SET.sizes)):
        components = _group_residues(address, step, distances, SET, g, PTX)
        if len(SET.weights) == 1:
            ys = ys + components
        else:
            ys = ys + (tl.join(components[0], components[1]),)  # noqa: RUF005
    return ys


@triton.jit
def _integers(ys, SET: tl.constexpr):
    """V from Y of all groups, by the steps of crt_constants.

    The results are F - Q, the upper 64 bits of V_T + 2**(T - 1), and the limbs below
    them.
    """
    GROUPS: tl.constexpr = len(SET.sizes)
    # Step 2: F = sum_g X_g / P_g, Q = round(F), and F - Q.
    fraction = tl.zeros_like(ys[0]).to(tl.float64)
    for g in tl.static_range(GROUPS):
        x = (ys[g].to(tl.int64) | _INTEGER_BITS).to(
            tl.float64, bitcast=True
        ) - _INTEGER_ZERO
        fraction = tl.fma(x, tl.full(x.shape, SET.inverses[g], tl.float64), fraction)
    quotient = fraction + _ROUND_OFFSET
    fraction = fraction - (quotient - _ROUND_OFFSET)
    # Q + 2**23 comes behind the numbers of the groups.
    ys = ys + (quotient.to(tl.int64, bitcast=True).to(tl.uint32),)  # noqa: RUF005
    # Step 3: V_T + 2**(T - 1) modulo 2**T, limb by limb from the lowest one.
    carry = tl.zeros_like(ys[0]).to(tl.int64)
    limbs = ()
    for j in tl.static_range(len(SET.limbs)):
        total = carry + SET.limbs[j][GROUPS + 1]
        for g in tl.static_range(GROUPS + 1):
            total += ys[g].to(tl.int64) * SET.limbs[j][g]
        unsigned = total.to(tl.uint64, bitcast=True)
        carry = (unsigned >> SET.limb_bits).to(tl.int64)
        limbs = limbs + (unsigned & ((1 << SET.limb_bits) - 1),)  # noqa: RUF005
    # The upper 64 bits, modulo 2**64: products of the low words in 64 bits, those of
    # the high words in 32.
    low = carry + SET.head[GROUPS + 1][0]
    high = tl.zeros_like(ys[0]).to(tl.int32, bitcast=True) + SET.head[GROUPS + 1][1]
    for g in tl.static_range(GROUPS + 1):
        low += ys[g].to(tl.int64) * SET.head[g][0]
        high += ys[g].to(tl.int32, bitcast=True) * SET.head[g][1]
    high += (low >> 32).to(tl.int32)
    return fraction, (high.to(tl.int64) << 32) | (low & 0xFFFFFFFF), limbs


@triton.jit
def _minus_fraction(word, limbs, LOW_BITS: tl.constexpr, CUT: tl.constexpr):
    """-V_T 2**-T, rounded to odd at the bit 2**CUT of the word.

    The limbs below the word count as lost bits.
    """
    # All that is cut off sets the last bit that stays.
    if LOW_BITS > 52:
        MASK: tl.constexpr = (1 << CUT) - 1
        lost_bits = word & MASK
        for j in tl.static_range(len(limbs)):
            lost_bits |= limbs[j].to(tl.int64)
        word |= tl.where(lost_bits != 0, MASK + 1, 0)
        word = (word.to(tl.uint64, bitcast=True) >> CUT << (CUT - 12)).to(
            tl.int64, bitcast=True
        )
    elif CUT > 12:
        KEPT: tl.constexpr = _BELOW_EXPONENT - ((1 << (CUT - 12)) - 1)
        REST: tl.constexpr = (1 << (CUT - 12)) - 1
        word = (word & KEPT) | tl.where((word & REST) != 0, REST + 1, 0)
    else:
        word &= _BELOW_EXPONENT
    # The word is V_T 2**-T + 1/2 as a fraction of 2**52; behind the exponent of 1 it is
    # the float64 3/2 + V_T 2**-T.
    return 1.5 - (word | _FRACTION_BITS).to(tl.float64, bitcast=True)


@triton.jit
def _values(ys_of_groups, SET: tl.constexpr, CUT: tl.constexpr):
    """v, its term H, and the integers behind the other term."""
    fraction, word, limbs = _integers(ys_of_groups, SET)
    minus_low = _minus_fraction(word, limbs, SET.low_bits, CUT)
    # H = round((F - Q) P 2**-T - V_T 2**-T), which is 0 where V has no more than T
    # bits.
    high = tl.zeros_like(minus_low)
    if SET.high_bits >= 0:
        high = (
            tl.fma(fraction, tl.full(high.shape, SET.scale, tl.float64), minus_low)
            + ROUND_DOUBLE
        ) - ROUND_DOUBLE
    return high - minus_low, high, word, limbs


@triton.jit
def _pin(value, PTX: tl.constexpr):
    """The value itself, past which Triton moves no change of layout.

    The only one then comes right before the store.
    """
    if PTX:
        if value.dtype.primitive_bitwidth == 64:
            value = tl.inline_asm_elementwise(
                "mov.b64 $0, $1;",
                "=l,l",
                [value],
                dtype=value.dtype,
                is_pure=False,
                pack=1,
            )
        else:
            value = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;",
                "=r,r",
                [value],
                dtype=value.dtype,
                is_pure=False,
                pack=1,
            )
    return value


@dataclass(frozen=True)
class Form:
    """What a launch writes, known when the kernel is compiled."""

    ptx: bool  # whether inline PTX may be used
    combines: bool  # whether it writes alpha T + beta C
    adds: bool  # whether C is added before the only rounding
    result: str  # "array", or what goes to two arrays, see `Rounding`
    triangle: bool  # whether only the lower triangle is written
    halves: bool  # whether products are those of halves
    block: int  # columns of a tile


_FREE = [
    "left",
    "right",
    "shift",
    "alpha_bits",
    "beta_bits",
    "addition",
    "m",
    "k",
    "rows",
    "half_m",
    "predicate",
]


@triton.jit(do_not_specialize=_FREE)
def crt_kernel(
    products,
    row_scales,
    column_scales,
    out,
    second,
    c,
    left,
    right,
    shift,
    alpha_bits: tl.int64,
    beta_bits: tl.int64,
    addition,
    m,
    n,
    k,
    rows,
    half_m,
    half_n,
    predicate,
    SET: tl.constexpr,
    FORM: tl.constexpr,
):
    """Twin: numerics.residue_products.crt, then numerics.special.fill_nonfinite and
    combine; numerics.residue_products.crt_rounded_once where C is added before the only
    rounding, or for another result than "array".

    A tile is FORM.block columns of a row of the result, and programs, each a warp, walk
    over the tiles of all `rows` of the stack. Nothing where the predicate does not
    hold. See `crt` for the arguments.
    """
    if not holds(predicate):
        return
    # Bits of the word below 2**CUT are cut off; for float32 they are so many that v is
    # exact. Rounding to odd asks for two bits more than the result has: for |v| >= 2**3
    # above a last bit of 2**-52, or |v| >= 2**(CUT - 38) above one of 2**(CUT - 64).
    # SMALLEST are the upper 32 bits of that bound, less 1. Exponents from
    # LOWEST_EXPONENT on keep all of v in the normal range.
    WIDTH: tl.constexpr = len(SET.weights)
    PTX: tl.constexpr = FORM.ptx
    BLOCK: tl.constexpr = FORM.block
    RESULT: tl.constexpr = FORM.result
    SINGLE: tl.constexpr = out.entries.dtype.element_ty == tl.float32
    HAS_C: tl.constexpr = c.entries is not None
    FILL: tl.constexpr = left.entries is not None
    CUT: tl.constexpr = max(12, SET.high_bits + 11) if SINGLE else 12
    ODD: tl.constexpr = SET.low_bits > 52 or CUT > 12
    SMALLEST: tl.constexpr = ((1023 + (CUT - 38 if SINGLE else 3)) << 20) - 1
    LOWEST_EXPONENT: tl.constexpr = -1022 + 52
    height, tiles = tiles_of(m, n, 1, BLOCK, FORM.triangle)
    if FORM.halves:
        height = 2 * half_m
        tiles = 2 * tl.cdiv(half_n, BLOCK)
    c_exponent, c_sign, sign = addition
    # A program goes on to tiles that lie apart by the number of programs: a tile is a
    # part of a row of a matrix `z`. Its entries of C are read before it writes to
    # `out`, which may be C: no other program touches them.
    for index in range(tl.program_id(0), rows * tiles, tl.num_programs(0)):
        row = index // tiles
        z = (row // height).to(tl.int64)
        result_row, part = unfolded(
            row % height, index - row * tiles, m, 1, BLOCK, FORM.triangle
        )
        columns = part * BLOCK + tl.arange(0, BLOCK)
        columns_of_products = columns
        inside = columns < n
        distances = None
        # Tiles of the folded triangle may lie below the last row: they read it, and
        # store nothing.
        if FORM.triangle:
            inside &= as_mask(result_row < m, columns)
            result_row = tl.minimum(result_row, m - 1)
        row_of_products = result_row
        # Quarters of the result from products of halves: the rows of both lower and
        # upper ones follow each other.
        if FORM.halves:
            is_lower = result_row % 2
            is_right = part * 2 // tiles
            row_of_products = result_row // 2
            result_row = row_of_products + is_lower * half_m
            columns_of_products -= is_right * (tiles // 2 * BLOCK)
            columns = columns_of_products + is_right * half_n
            inside = (
                (columns_of_products < half_n)
                & (columns < n)
                & as_mask(result_row < m, columns)
            )
            result_row = tl.minimum(result_row, m - 1)
            distances = _distances(
                is_lower, is_right, len(SET.moduli) * tl.cast(products.part, tl.int64)
            )
        # Scales of the columns, and the smallest and largest of them, by which the
        # whole tile is judged.
        row_index = tl.cast(result_row, tl.int64)
        stored = inside if WIDTH == 1 else inside[:, None]
        j = columns.to(tl.int64)
        t = tl.load(
            column_scales.exponents + z * column_scales.batch + columns,
            mask=inside,
            other=0,
        )
        largest_t = tl.max(t)
        smallest_t = tl.min(t)
        # The scalars come as integers, as kernels get floats in FP32 only.
        alpha = alpha_bits.to(tl.int64).to(tl.float64, bitcast=True)
        beta = beta_bits.to(tl.int64).to(tl.float64, bitcast=True)
        # v of all entries of the tile, from the residues of their products.
        address_of_products = (
            products.entries
            + z * products.batch
            + tl.cast(row_of_products, tl.int64) * products.row
            + columns_of_products
        )
        ys_of_groups = _residues(
            address_of_products, tl.cast(products.part, tl.int64), distances, SET, PTX
        )
        s = tl.load(row_scales.exponents + z * row_scales.batch + row_index)
        base = shift + SET.low_bits - s
        exponent = base - t if WIDTH == 1 else (base - t)[:, None]
        address = _places(
            out.entries, z * out.batch + row_index * out.row, j * out.column, WIDTH
        )
        address_of_c = address
        if HAS_C:
            address_of_c = _places(
                c.entries, z * c.batch + row_index * c.row, j * c.column, WIDTH
            )
        marked = (s == NOT_FINITE) | (t == NOT_FINITE)

        if FORM.adds or RESULT != "array":
            # Both roundings of whole integers, or the one of a sum with C.
            y = tl.zeros_like(exponent).to(tl.float64)
            if FORM.adds:
                y = tl.load(address_of_c, mask=stored, other=0.0).to(tl.float64)
                y *= tl.cast(c_sign, tl.int32).to(tl.float64)
            result, second_result = _rounded_once(
                ys_of_groups, exponent, finite(y), c_exponent + shift, sign,
                SET, CUT, SINGLE, FORM,
            )  # fmt: skip
            if FILL and tl.max(marked.to(tl.int32)) > 0:
                filled = _filled(left, right, (z, row_index, j), k, inside, WIDTH)
                is_filled = marked if WIDTH == 1 else marked[:, None]
                filled *= tl.cast(sign, tl.int32).to(tl.float64)
                result = tl.where(is_filled, filled, result)
                # Nothing is left of what is not finite.
                second_result = tl.where(
                    is_filled, 0.0 if RESULT == "pair" else filled, second_result
                )
            if FORM.adds:
                result = with_addend(result, y)
            _store(address, result, stored, PTX)
            if RESULT != "array":
                address = _places(
                    second.entries,
                    z * second.batch + row_index * second.row,
                    j * second.column,
                    WIDTH,
                )
                _store(address, second_result, stored, PTX)
        else:
            v, high, word, limbs = _values(ys_of_groups, SET, CUT)

            # The way of almost every tile: a product with a power of two. It is not
            # taken where that power may leave the normal range, where a row or column
            # holds an Inf or NaN, or where rounding to odd has too few bits.
            special = (
                (s == NOT_FINITE)
                | (base - largest_t < LOWEST_EXPONENT)
                | (base - smallest_t > 1023)
            )
            if ODD:
                special |= _is_small(v, SMALLEST)
            result = v * power_of_two(exponent)
            # alpha, beta and C, then the result; entries of a special tile are rounded
            # again from whole integers.
            y = tl.zeros_like(result)
            if HAS_C:
                y = tl.load(address_of_c, mask=stored, other=0.0).to(tl.float64)
            addend = y, alpha, beta
            if not special:
                _store_combined(address, result, addend, stored, HAS_C, FORM)
            else:
                # V 2**(exponent - T) from whole integers, rounded once.
                result = round_integer(
                    high, word, limbs, exponent, SINGLE, SET.low_bits, SET.limb_bits
                )
                # Entries of a marked row or column come from A and B themselves.
                if FILL and tl.max(marked.to(tl.int32)) > 0:
                    filled = _filled(left, right, (z, row_index, j), k, inside, WIDTH)
                    result = tl.where(
                        marked if WIDTH == 1 else marked[:, None], filled, result
                    )
                _store_combined(address, result, addend, stored, HAS_C, FORM)


@triton.jit
def _filled(left, right, place, k, inside, WIDTH: tl.constexpr):
    """Entries of a row of the result as Inf and NaN of A and B make them.

    `place` is a matrix, a row and columns.
    """
    z, row, columns = place
    row_entries = left.entries + WIDTH * (z * left.batch + row * left.row)
    offsets = z * right.batch + columns * right.column
    column_entries = right.entries + WIDTH * offsets
    return nonfinite_product(
        row_entries, column_entries, k, left.column, right.row, inside, WIDTH
    )


@triton.jit
def _rounded_once(
    ys_of_groups,
    exponent,
    addend,
    addend_exponent,
    sign,
    SET: tl.constexpr,
    CUT: tl.constexpr,
    SINGLE: tl.constexpr,
    FORM: tl.constexpr,
):
    """Both values of all entries, from whole integers and a finite addend."""
    RESULT: tl.constexpr = FORM.result
    _, high, word, limbs = _values(ys_of_groups, SET, CUT)
    return rounded_integers(
        high, word, limbs, exponent, addend, addend_exponent, sign,
        RESULT, FORM.adds, SINGLE, SET.low_bits, SET.limb_bits,
    )  # fmt: skip


@triton.jit
def _distances(is_lower, is_right, step):
    """Distances of the products that a quarter takes from P1, and whether it takes
    four.

    Products lie one `step` apart. C11 = P1 + P2, C12 = P1 + P6 + P5 + P3, C21 = P1 + P6
    + P7 + P4, C22 = P1 + P6 + P7 + P5.
    """
    # Indices of products are counted from 0: P6 is 5 steps behind P1.
    four = (is_lower | is_right) != 0
    second = tl.where(four, 5, 1)
    third = tl.where(is_lower != 0, 6, 4)
    fourth = tl.where(is_lower == 0, 2, tl.where(is_right != 0, 4, 3))
    return second * step, third * step, fourth * step, four


@triton.jit
def _is_small(v, SMALLEST: tl.constexpr):
    """True if any 0 < |v| lies below what rounding to odd asks for."""
    # The upper 32 bits without the sign, less 1: zeros become the largest unsigned
    # number.
    head = ((v.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FFFFFFF) - 1
    return tl.min(head.to(tl.uint32, bitcast=True)) < SMALLEST


@triton.jit
def _places(x, row, columns, WIDTH: tl.constexpr):
    """Addresses of the entries of a row, or those of their components."""
    if WIDTH == 1:
        return x + row + columns
    else:
        return (
            x + WIDTH * row + (WIDTH * columns)[:, None] + tl.arange(0, WIDTH)[None, :]
        )


@triton.jit
def _store(address, x, inside, PTX: tl.constexpr):
    """Store x, rounded to the type of the output."""
    tl.store(address, _pin(x.to(address.dtype.element_ty), PTX), mask=inside)


@triton.jit
def _store_combined(
    address, x, addend, inside, HAS_C: tl.constexpr, FORM: tl.constexpr
):
    """Store x or, where the launch combines, alpha x + beta y of an addend (y, alpha,
    beta) and of x as the output holds it.
    """
    if FORM.combines:
        y, alpha, beta = addend
        x = x.to(address.dtype.element_ty).to(tl.float64)
        x = combine(x, y, alpha, beta, HAS_C, FORM.ptx)
    _store(address, x, inside, FORM.ptx)


_launch = Launch(crt_kernel)
_form = cache(Form)
"""The form with these fields, made once: a launch compares it with those it knows."""


class _Products(NamedTuple):
    """Residues of products as the kernel takes them, one part for each plane."""

    entries: Any
    batch: int
    part: int
    row: int


class _Scales(NamedTuple):
    """Exponents of rows or columns as the kernel takes them."""

    exponents: Any
    batch: int


def _columns(constants: CrtConstants, *, whole: bool = False) -> int:
    """Columns of a tile, which a warp makes.

    A thread has 8 columns up to 28 real moduli, 4 of more, of complex ones, or where
    all entries are made from `whole` integers.
    """
    if whole or len(constants.sizes) > 7 or len(constants.weights) == 2:
        return 128
    return 256


def _batch_stride(x: Any) -> int:
    """The stride along a stack, 0 of one."""
    return int(x.stride(0)) if x.shape[0] > 1 else 0


def crt(
    products: Any,
    scales: tuple[Any, Any],
    moduli: ModuliSet,
    targets: Targets,
    *,
    shift: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    operands: tuple[Any, Any] | None = None,
    predicate: Predicate | None = None,
    few_programs: bool = False,
    triangle: bool = False,
    halves: tuple[int, int] | None = None,
) -> None:
    """Write alpha T + beta C to targets.out, T the integers with these residues, scaled.

    T = V 2**(shift - s_i - t_j) is rounded once, V the integers.

    An exact zero T is +0; a negative value that rounds to zero is -0. alpha = 1 with
    beta = 0 leaves T as it is, any other pair gives what `numerics.epilogue.combine`
    gives. For vectors with an Inf or NaN, T is what `numerics.special.fill_nonfinite`
    gives. All of this holds for re and im of complex results.

    Another rounding than NEAREST takes the place of alpha and beta: both arrays of a
    pair or an enclosure go to `out` and `second` of the targets, or +-V 2**(shift - s_i - t_j) +
    2**shift s C is rounded once, signs and s as the rounding has them. |V| is exact then, see
    numerics/integer_sums.py. What is not finite of C is added to the rounded V.

    Parameters
    ----------
    products : int8 tensor, shape (batch, planes, m_pad, n_pad)
        Residues of V, any representatives, |V| <= moduli.half_range: one part for each
        modulus; or for complex results the residues of the products of
        `numerics.residue_products.product_operands`. n_pad is a multiple of 256, the
        last stride 1.
    scales : (int32 tensor, shape (batch or 1, m); int32 tensor, shape (batch or 1, n))
        s and t, last strides 1; `NOT_FINITE` marks a vector with an Inf or NaN.
    moduli : ModuliSet
    targets : Ends
        float64, float32, complex128 or complex64, shape (batch, m, n), any strides. C
        may be `out` itself; it is not read where beta = 0, unless the rounding has an
        addend.
    shift : int
    alpha, beta : float
        Moderate ones, see `numerics.epilogue.Epilogue`.
    operands : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        Read for marked vectors only; None where no vector is marked.
    predicate : Predicate, optional
        As for `residue_gemm`: nothing is written unless the entry lies within the
        limits.
    few_programs : bool
        The predicate is expected not to hold: as few programs as run at a time then do
        all of the work if it does. With any predicate they are not many times as many:
        a launch of 262144 idle programs takes 154 us on an H200.
    triangle : bool
        Write what lies on and below the diagonal of a square result; what is written
        above it means nothing.
    halves : (half of m, half of n), optional
        `products` are (1, 7 planes, m_pad, n_pad), P1 .. P7 of halves as in
        numerics/strassen.py, all planes of each.
    """
    out, rounding, c, second = targets
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    s, t = scales
    constants = crt_constants(moduli, out.is_complex())
    adds = rounding.has_addend
    columns = _columns(constants, whole=rounding != NEAREST)
    c = c.expand(batch, m, n) if c is not None and (adds or beta != 0.0) else None
    left, right = operands or (None, None)
    height, parts = tiles_along(m, n, 1, columns, triangle=triangle)
    if halves is not None:
        height, parts = 2 * halves[0], 2 * -(-halves[1] // columns)
    rows = batch * height
    programs = rows * parts
    ptx = runs_ptx(out)
    options = {}
    if halves is not None and ptx and columns == 256:
        options["maxnreg"] = next(
            registers
            for count, registers in _REGISTERS.items()
            if len(constants.moduli) <= count
        )
    if predicate is not None:
        turns = 1 if few_programs else _TURNS
        programs = min(programs, turns * _RESIDENT * gpu_of(out.device).num_sms)
    has_c = c is not None
    k = 0 if left is None else left.shape[2]
    _, part, product_row, _ = products.stride()
    half_m, half_n = halves or (0, 0)
    _launch(
        (programs,),
        _Products(products, _batch_stride(products), part, product_row),
        _Scales(s, _batch_stride(s)),
        _Scales(t, _batch_stride(t)),
        strided(out),
        strided(second),
        strided(c),
        strided(left),
        strided(right),
        shift,
        float64_bits(alpha),
        float64_bits(beta),
        (rounding.c_exponent, rounding.c_sign, rounding.sign),
        m,
        n,
        k,
        rows,
        half_m,
        half_n,
        predicate or NO_PREDICATE,
        SET=constants,
        FORM=_form(
            ptx,
            has_c or alpha != 1.0,
            adds,
            rounding.result,
            triangle,
            halves is not None,
            columns,
        ),
        num_warps=1,
        enable_fp_fusion=False,
        **options,
    )
