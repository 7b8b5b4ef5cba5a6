"""Residues of float64 integers: the words of an integer, and for each residue the
factors of the words.

z = sum_j h_j UNIT**j, |h_j| < 2**31, by float64 arithmetic, so that z mod p is the same
small sum of h_j UNIT**j mod p, reduced once: in float64, or of the bytes of
w_j = h_j + 2**31 with the dp4a instruction. UNIT is a little less than 2**32, so that
rounding cannot carry the lowest word out of its range; h_j + MAGIC has w_j in its low
32 bits. The parts x + j y and x - j y of a complex operand have the same sums of x and
of j y, which dp4a then makes once for both.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import uploaded
from hifigemm.kernels.vectors.vector_norms import low_word
from hifigemm.numerics.residues import ModuliSet, centred
from hifigemm.numerics.scaling import NORM_BITS

UNIT = 3 << 30
DP4A_WORDS = 4
"""Words, of all components, up to which dp4a makes the residues; the sums of so many
are tested one by one.
"""
_UNIT = tl.constexpr(float(UNIT))
_MAGIC = tl.constexpr(1.5 * 2.0**52 + 2.0**31)
_BIAS = 2**31


def num_words_for(top: int) -> int:
    """Words that hold integers of magnitude up to `top`."""
    count, reach = 1, 2**31 - 2
    while reach < top:
        count, reach = count + 1, reach * UNIT
    return count


@dataclass(frozen=True)
class Arithmetic:
    """How a kernel makes integers and their residues, known when it is compiled."""

    ptx: bool  # whether inline PTX may be used
    num_words: int  # words of an integer
    dp4a: bool  # whether rows of the table are made for dp4a
    pairs: bool  # whether the two parts of a modulus share a row


@dataclass(frozen=True, eq=False)
class VectorConstants:
    """What the kernels know of a set of moduli, on a device."""

    half_range: int  # of the moduli
    num_planes: int  # products of all moduli
    arithmetic: Arithmetic
    table: Any  # tensor: rows made by `pair_row` or by `table_row`
    # float64 tensor: mantissa and power of half_range as
    # numerics.scaling.scale_exponent takes them, and the least square norm
    range: Any

    def truncates(self, terms: int, balances: tuple[int, ...]) -> bool:
        """True if any vector of so many components could be rounded toward zero.

        That is where half_range / N < 4**-balance.
        """
        largest = terms << (2 * NORM_BITS + 1)
        return self.half_range < largest << 2 * max(-min(balances), 0)


@cache
def vector_constants(
    moduli: ModuliSet,
    width: int,
    num_words: int,
    device: Any,
    ptx: bool,
    least_square: int = 0,
) -> VectorConstants:
    """Constants of real (width 1) or complex (width 2) operands, kept for good.

    Square norms, in units of 4**(e - NORM_BITS), count as `least_square` where they are
    smaller.
    """
    dp4a = ptx and width * num_words <= DP4A_WORDS
    of_moduli = list(zip(moduli.moduli, moduli.splits, strict=True))
    roots = [(p, j) for p, j in of_moduli if j is not None]
    pairs = dp4a and width == 2 and len(roots) == len(of_moduli)
    weights = [(p, weight) for p, j in of_moduli for weight in _weights(j, width)]
    if pairs:
        values = [pair_row(j, num_words, p) for p, j in roots]
    else:
        values = [
            table_row(factors_of(weight, num_words), p, dp4a) for p, weight in weights
        ]
    table = torch.tensor(values, dtype=torch.int32 if dp4a else torch.float64)
    shift = max(moduli.half_range.bit_length() - 53, 0)
    mantissa, power = math.frexp(moduli.half_range >> shift)
    numbers = [mantissa, power + shift, least_square]
    bounds = torch.tensor(numbers, dtype=torch.float64)
    return VectorConstants(
        half_range=moduli.half_range,
        num_planes=len(weights),
        arithmetic=Arithmetic(ptx, num_words, dp4a, pairs),
        table=uploaded(table, device),
        range=uploaded(bounds, device),
    )


def _weights(j: int | None, width: int) -> list[tuple[int, ...]]:
    """Coefficients of re and im in the operands of the products of a modulus."""
    if width == 1:
        return [(1,)]
    return [(1, 0), (0, 1), (1, 1)] if j is None else [(1, j), (1, -j)]


def factors_of(weights: tuple[int, ...], num_words: int) -> list[int]:
    """Factors of all words, the lowest of re first."""
    return [weight * UNIT**i for weight in weights for i in range(num_words)]


def table_row(factors: list[int], p: int, dp4a: bool) -> list[Any]:
    """Constants of one residue sum_j factors[j] h_j mod p.

    Portable: the centred factors, 1 / p, p. With dp4a (`ptx_of_residues`) the four
    bytes of w_j = h_j + 2**31 have a factor each, packed into c_j. f = sum_j dp4a(w_j,
    c_j) + add has the bits of a float32 F >= 2**23, congruent to the result. With 1 / p
    rounded up, round(F / p) is the nearest integer or the one above a near tie, so that
    F - p round(F / p) lies in [-128, 127], or is 128 = -128 mod 256.
    """
    if not dp4a:
        return [*(float(centred(c, p)) for c in factors), 1.0 / p, float(p)]
    return [
        *(_packed(c, p) for c in factors),
        _start(factors, p),
        _bits_above(1.0 / p),
        -p,
    ]


def pair_row(j: int, num_words: int, p: int) -> list[int]:
    """Constants of the two residues x + j y and x - j y with dp4a, as in `table_row`.

    Their sums over the words of x and of y are the same but for a sign. Behind what is
    added for the first one comes what the second one takes besides.
    """
    x, y = factors_of((1,), num_words), factors_of((j,), num_words)
    plus, minus = _start([*x, *y], p), _start([*x, *(-c for c in y)], p)
    return [
        *(_packed(c, p) for c in (*x, *y)),
        plus,
        minus - plus,
        _bits_above(1.0 / p),
        -p,
    ]


def _packed(c: int, p: int) -> int:
    """c 256**i mod p for the four bytes of a word."""
    return int.from_bytes(
        struct.pack("4b", *(centred(c << (8 * i), p) for i in range(4))),
        "little",
        signed=True,
    )


def _start(factors: list[int], p: int) -> int:
    """The bits of the float32 1.5 2**23 + d; d < p makes up for the words' bias.

    0x4B000000 are the bits of 2**23; up to 2**24 the bits and the number grow alike.
    """
    start = 2**23 + 2**22
    start += (-_BIAS * sum(factors) - start) % p
    return 0x4B000000 - 2**23 + start


def _bits_above(x: float) -> int:
    """Bits of the least float32 that is not below x."""
    bits: int = struct.unpack("i", struct.pack("f", x))[0]
    return bits + (struct.unpack("f", struct.pack("i", bits))[0] < x)


@triton.constexpr_function
def _constraints(num_words: int, outputs: int) -> str:
    return ",".join(["=r"] * outputs + ["r"] * (4 * (2 * num_words + 2 + outputs)))


@triton.constexpr_function
def ptx_of_residues(num_words: int, outputs: int) -> str:
    """PTX of four residues, or pairs of residues: operands w_0 .. | c_0 .. | add [,
    more], bits of 1 / p, -p.

    Each operand has four registers. f = sum_j dp4a(w_j, c_j) + add are the bits of a
    float32 integer that is congruent to the result; the fused multiply-add with
    1.5 2**23, 0f4B400000, rounds its quotient by p, whose bits are the quotient modulo
    256 in the lowest byte. `prmt` packs the lowest bytes of four results. For a pair
    the terms of re are x and those of im y: f is x + y + add, and then
    x - y + add + more.
    """
    count = 2 * num_words + 2 + outputs
    registers = [f"${outputs + 4 * i}" for i in range(count)]
    factors = registers[num_words : 2 * num_words]
    adds = registers[2 * num_words : -2]
    inverse, minus_p = registers[-2:]
    lines = ["{ .reg .b32 f<4>, g<4>, q, x, y; .reg .f32 u, v;"]
    for i in range(4):
        chains = (
            [range(num_words)]
            if outputs == 1
            else [range(num_words // 2), range(num_words // 2, num_words)]
        )
        for chain, target, term in zip(chains, "fg", (adds[0], "0"), strict=False):
            for j in chain:
                lines.append(
                    f"dp4a.u32.s32 {target}{i}, ${outputs + 4 * j + i}, {factors[j]}, {term};"
                )
                term = f"{target}{i}"
        if outputs == 2:
            lines.append(
                f"sub.s32 x, f{i}, g{i}; add.s32 f{i}, f{i}, g{i}; add.s32 g{i}, x, {adds[1]};"
            )
        for total in "fg"[:outputs]:
            lines.append(
                f"mov.b32 u, {total}{i}; mov.b32 v, {inverse}; fma.rn.f32 u, u, v, 0f4B400000;"
            )
            lines.append(
                f"mov.b32 q, u; mad.lo.u32 {total}{i}, q, {minus_p}, {total}{i};"
            )
    for output, x in enumerate("fg"[:outputs]):
        lines.append(
            f"prmt.b32 x, {x}0, {x}1, 0x0040; prmt.b32 y, {x}2, {x}3, 0x0040; prmt.b32 ${output}, x, y, 0x5410;"
        )
    return " ".join([*lines, "}"])


@triton.jit
def _words(z, NUM_WORDS: tl.constexpr):
    """The words of the integer nearest to z, lowest first, each with MAGIC added."""
    words = ()
    for j in tl.static_range(NUM_WORDS - 1):
        # The highest word first. The sum with MAGIC rounds it to an integer, and what
        # it leaves of z is exact.
        word = z * (1.0 / _UNIT ** (NUM_WORDS - 1 - j)) + _MAGIC
        z -= (word - _MAGIC) * _UNIT ** (NUM_WORDS - 1 - j)
        words = (word,) + words  # noqa: RUF005
    return (z + _MAGIC,) + words  # noqa: RUF005


@triton.jit
def integer_words(parts, s, nearest, NUM_WORDS: tl.constexpr, TRUNCATES: tl.constexpr):
    """Twin: numerics.scaling.round_to_integers, as words of all components.

    2**s x is rounded to nearest even, or toward zero where `nearest` is 0.
    """
    # 2**s by two powers of two. Scales lie within +-2000 but for that of a marked
    # vector, whose residues mean nothing.
    half = tl.minimum(tl.maximum(s, -2000), 2000) >> 1
    first = power_of_two(half)
    second = power_of_two(tl.minimum(tl.maximum(s, -2000), 2000) - half)
    words = ()
    for i in tl.static_range(len(parts)):
        z = parts[i] * first * second
        if TRUNCATES:  # noqa: SIM102
            # Few tiles have a vector that is rounded toward zero.
            if tl.min(nearest) == 0:
                toward_zero = tl.where(z < 0.0, tl.ceil(z), tl.floor(z))
                z = tl.where(nearest != 0, z, toward_zero)
        words += _words(z, NUM_WORDS)
    return words


@triton.jit
def _inputs(words, row, COUNT: tl.constexpr):
    """What the PTX of a residue reads.

    These are the low words, and the first COUNT numbers of a row of the table.
    """
    inputs = ()
    for j in tl.static_range(len(words)):
        inputs += (low_word(words[j]),)
    for j in tl.static_range(COUNT):
        inputs += (tl.load(row + j),)
    return inputs


@triton.jit
def residue(words, row, DP4A: tl.constexpr):
    """Twin: numerics.residues.residues, any representative as INT8.

    It is that of sum_j c_j h_j mod p; c_j and what p needs lie at `row`.
    """
    if DP4A:
        # Behind the factors of the words: the number that is added, bits of 1 / p, -p.
        inputs = _inputs(words, row, len(words) + 3)
        constraints: tl.constexpr = _constraints(len(words), 1)
        text: tl.constexpr = ptx_of_residues(len(words), 1)
        return tl.inline_asm_elementwise(
            text, constraints, inputs, dtype=tl.int8, is_pure=True, pack=4
        )
    else:
        # Behind the factors of the words: 1 / p, p.
        total = (words[0] - _MAGIC) * tl.load(row)
        for j in tl.static_range(1, len(words)):
            total += (words[j] - _MAGIC) * tl.load(row + j)
        # |total| < 2**44 is exact; for odd p the quotient is never within 1 / (2 p) of
        # a tie.
        quotient = (total * tl.load(row + len(words)) + _MAGIC) - _MAGIC
        return low_word(total - quotient * tl.load(row + len(words) + 1) + _MAGIC).to(
            tl.int8
        )


@triton.jit
def residue_pair(words, row):
    """Representatives of x + y and x - y mod p, by dp4a.

    x and y are the sums of c_j h_j over the words of re and of im.
    """
    # Behind the factors of the words: what is added for each, bits of 1 / p, -p.
    inputs = _inputs(words, row, len(words) + 4)
    constraints: tl.constexpr = _constraints(len(words), 2)
    text: tl.constexpr = ptx_of_residues(len(words), 2)
    return tl.inline_asm_elementwise(
        text, constraints, inputs, dtype=(tl.int8, tl.int8), is_pure=True, pack=4
    )
