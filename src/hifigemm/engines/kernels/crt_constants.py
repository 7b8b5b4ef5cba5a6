"""Integers and floats of the way back from residues to V, in the form that the reconstruction kernel computes with.

Notation: p_l moduli, P their product, v_l = (P / p_l)**-1 mod p_l, r_l any INT8 representatives of V mod p_l.

1. Up to four moduli form a group, P_g < 2**32 their product. Its pairs give A = p_2 v_1 r_1 + p_1 v_2 r_2, |A| < 2**23,
   and B likewise; with q = floor(sum_l r_l f_l 2**-16 + 1/2), f_l = round(2**16 v_l / p_l), the residue of the group
       X = A p_3 p_4 + B p_1 p_2 - q P_g,    |X| <= (1/2 + 2**-8) P_g < 2**31,
   is computed modulo 2**32. The kernel holds Y = X + 2**31.
2. V = sum_g X_g (P / P_g) - Q P, so that V / P = sum_g X_g / P_g - Q. In float64 the sum F errs by less than
   2**-54 (G + 2)**2 for G groups, however each step is contracted; Q = round(F) is right since |V / P| <= 1/2 - 2**-21.
3. V = H 2**T + V_T with |V_T| <= 2**(T - 1). V_T is V modulo 2**T, from integers: V = sum_g Y_g M_g + (Q + 2**23) N + C
   mod 2**T; the kernel holds V_T + 2**(T - 1). H = round((F - Q) P 2**-T - V_T 2**-T) is right in float64 where
   2**-54 (G + 2)**2 P 2**-T < 1/4, the roundings of this step included. That fixes T: 52 where it is enough, and
   H + V_T 2**-T then has one rounding of two exact float64; else 64, or a word of 64 bits on top of limbs of at most
   28, whose sums stay below 2**64 for 13 groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hifigemm.numerics.residues import ModuliSet, centred

__all__ = ["CrtConstants", "crt_constants"]

_MAX_LIMB_BITS = 28
_QUOTIENT_OFFSET = 1 << 23
"""Added to Q, which makes it positive; with 256 among the moduli the low 32 bits of C vanish."""


def _signed(x: int, bits: int) -> int:
    """x modulo 2**bits in [-2**(bits - 1), 2**(bits - 1))."""
    half = 1 << (bits - 1)
    return (x + half) % (2 * half) - half


@dataclass(frozen=True, eq=False)
class CrtConstants:
    """Constants of a set of moduli; equal only to itself, printed in full (kernels are cached by it).

    Attributes
    ----------
    sizes : tuple of int
        Moduli of each group.
    weights, fractions : tuple of int
        p_2 v_1, p_1 v_2, ... and f_l for each modulus.
    pairs : tuple of (int, int)
        Products p_1 p_2 and p_3 p_4 of each group; 1 for a missing pair.
    products : tuple of int
        -P_g as INT32.
    ptx : tuple of str
        Y of four entries from the packed residues of a group.
    inverses : tuple of float
        1 / P_g.
    low_bits : int
        T.
    scale : float
        P 2**-T, or 0 where H = 0.
    head : tuple of (int, int)
        The upper 64 bits of M_g, then of N and of C + 2**(T - 1): the lower word unsigned, the upper one as INT32.
    limbs : tuple of tuple of int
        Limbs below them, the lowest first; one row a limb, same columns.
    limb_bits : int
    high_bits : int
        |V| < 2**(T + high_bits), negative where V is shorter than T.
    """

    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    fractions: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    products: tuple[int, ...]
    ptx: tuple[str, ...]
    inverses: tuple[float, ...]
    low_bits: int
    scale: float
    head: tuple[tuple[int, int], ...]
    limbs: tuple[tuple[int, ...], ...]
    limb_bits: int
    high_bits: int


def _layout_of_low_bits(big: int, groups: int) -> tuple[int, int, int]:
    """T, the number of limbs and their bits: T = 52, or 64 and as many bits in limbs as the error of F asks for."""
    needed = (big * (groups + 2) ** 2).bit_length() - 52
    if needed <= 64:
        return (52 if needed <= 52 else 64), 0, _MAX_LIMB_BITS
    count = -(-(needed - 64) // _MAX_LIMB_BITS)
    bits = -(-(needed - 64) // count)
    return 64 + count * bits, count, bits


def _group_ptx(weights: list[int], fractions: list[int], pairs: tuple[int, int], product: int) -> str:
    """PTX for the Y of a group: outputs $0 .. $3 for four entries, inputs packed bytes, a register a modulus."""

    def packed(x: list[int]) -> str:
        first, second = (*x, 0)[:2]
        return f"0x{(first & 0xFFFF) | (second & 0xFFFF) << 16:08x}"

    size = len(weights)
    second = size > 2
    lines = [".reg .b32 a, b, q, lo0, hi0, lo1, hi1;"]
    for pair in range(2 if second else 1):
        first, last = 4 + 2 * pair, 4 + min(2 * pair + 1, size - 1)
        lines += [f"prmt.b32 lo{pair}, ${first}, ${last}, 0x5140;", f"prmt.b32 hi{pair}, ${first}, ${last}, 0x7362;"]
    for entry in range(4):
        part, word = ("lo", "hi")[entry % 2], ("lo", "hi")[entry // 2]
        dot = f"dp2a.{part}.s32.s32"
        lines.append(f"{dot} q, {packed(fractions[:2])}, {word}0, 0x8000;")
        lines.append(f"{dot} a, {packed(weights[:2])}, {word}0, {'0' if second else '0x80000000'};")
        if second:
            lines.append(f"{dot} q, {packed(fractions[2:])}, {word}1, q;")
            lines.append(f"{dot} b, {packed(weights[2:])}, {word}1, 0;")
            lines.append(f"mad.lo.s32 a, a, {pairs[1]}, 0x80000000;")
            lines.append(f"mad.lo.s32 a, b, {pairs[0]}, a;")
        lines += ["shr.s32 q, q, 16;", f"mad.lo.s32 ${entry}, q, {product}, a;"]
    return "{ " + " ".join(lines) + " }"


@lru_cache
def crt_constants(moduli: ModuliSet) -> CrtConstants:
    """The constants for a set of at most 52 moduli."""
    p, big = moduli.moduli, moduli.modulus_product
    starts = range(0, len(p), 4)
    groups = [p[i : i + 4] for i in starts]
    inverse = [centred(pow(big // x, -1, x), x) for x in p]
    partner = [p[i ^ 1] if i ^ 1 < len(p) else 1 for i in range(len(p))]
    weights = [q * v for q, v in zip(partner, inverse)]
    fractions = [round(Fraction(v << 16, x)) for v, x in zip(inverse, p)]
    pairs = [(math.prod(g[:2]), math.prod(g[2:])) for g in groups]
    products = [-math.prod(g) for g in groups]
    low, count, bits = _layout_of_low_bits(big, len(groups))
    columns = [big // math.prod(g) for g in groups]
    columns += [-big, _QUOTIENT_OFFSET * big - (sum(columns) << 31) + (1 << (low - 1))]
    columns = [x % (1 << low) for x in columns]
    head = [x >> (bits * count) for x in columns]
    limbs = [tuple((x >> (bits * j)) & ((1 << bits) - 1) for x in columns) for j in range(count)]
    high = moduli.half_range.bit_length() - low
    return CrtConstants(
        sizes=tuple(len(g) for g in groups),
        weights=tuple(weights),
        fractions=tuple(fractions),
        pairs=tuple(pairs),
        products=tuple(_signed(x, 32) for x in products),
        ptx=tuple(
            _group_ptx(weights[i : i + 4], fractions[i : i + 4], pair, _signed(product, 32))
            for i, pair, product in zip(starts, pairs, products)
        ),
        inverses=tuple(1 / math.prod(g) for g in groups),
        low_bits=low,
        scale=float(Fraction(big, 1 << low)) if high >= 0 else 0.0,
        head=tuple((x & 0xFFFFFFFF, _signed(x >> 32, 32)) for x in head),
        limbs=tuple(limbs),
        limb_bits=bits,
        high_bits=high,
    )
