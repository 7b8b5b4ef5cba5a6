"""Integers and floats of the way back from residues to V, in the form that the
reconstruction kernel computes with.

Notation: p_l moduli, P their product, v_l = (P / p_l)**-1 mod p_l, r_l any INT8
representatives of V mod p_l.

1. Up to four moduli form a group, P_g < 2**32 their product. Its pairs give A = p_2 v_1
   r_1 + p_1 v_2 r_2, |A| < 2**23, and B likewise; with q = floor(sum_l r_l f_l
   2**-16 + 1/2), f_l = round(2**16 v_l / p_l), the residue of the group
       X = A p_3 p_4 + B p_1 p_2 - q P_g,    |X| <= (1/2 + 2**-8) P_g < 2**31,
   is computed modulo 2**32. The kernel holds Y = X + 2**31.
   A component of a complex V has the residues sum_i c_i t_i, t_i the two or three parts
   of a modulus, INT8 too. A part takes the place of r_l, and c_i v_l mod p_l that of
   v_l: no residue is made. Each fraction errs by 2**-17 at most, so that 12 parts give
   |X| <= (1/2 + 3 2**-8) P_g, still below 2**31; A may exceed 2**23, but only counts
   modulo 2**32.
2. V = sum_g X_g (P / P_g) - Q P, so that V / P = sum_g X_g / P_g - Q. In float64 the
   sum F errs by less than 2**-54 (G + 2)**2 for G groups, however each step is
   contracted; Q = round(F) is right since |V / P| <= 1/2 - 2**-21. More sharply, and so
   for complex V: with |X_g / P_g| <= x, x = 1/2 + 3 2**-8, the rounding of 1 / P_g and
   that of the product take 2**-53 x each, and the sum of h terms 2**-53 h x: in all
   2**-54 x (G**2 + 5 G).
3. V = H 2**T + V_T with |V_T| <= 2**(T - 1). V_T is V modulo 2**T, from integers:
   V = sum_g Y_g M_g + (Q + 2**23) N + C mod 2**T; the kernel holds V_T + 2**(T - 1).
   H = round((F - Q) P 2**-T - V_T 2**-T) is right in float64 where 2**-54 (G + 2)**2 P
   2**-T < 1/4, the roundings of this step included; these are less than 3 2**-54 P
   2**-T, which the sharper bound has to add. That fixes T: 52 where it is enough, and
   H + V_T 2**-T then has one rounding of two exact float64; else 64, or a word of 64
   bits on top of limbs of at most 28, whose sums stay below 2**64 for 13 groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from itertools import product as product_of

from hifigemm.kernels.vectors.block_sums import ptx_of_join
from hifigemm.numerics.residues import ModuliSet, centred

_MAX_LIMB_BITS = 28
_QUOTIENT_OFFSET = 1 << 23
"""Added to Q, which makes it positive; with 256 among the moduli the low 32 bits of C
vanish.
"""


def _signed(x: int, bits: int) -> int:
    """x modulo 2**bits in [-2**(bits - 1), 2**(bits - 1))."""
    half = 1 << (bits - 1)
    return (x + half) % (2 * half) - half


@dataclass(frozen=True, eq=False)
class CrtConstants:
    """Constants of a set of moduli; equal only to itself.

    Triton keeps kernels by what is printed of it. So all PTX is printed, though it
    follows from other fields.
    """

    # `starts`, `sizes`: first part of each group, and how many it has: one for each
    # modulus, or two or three for complex V
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    # which parts belong to the second pair of moduli of their group
    second: tuple[bool, ...]
    moduli: tuple[int, ...]  # p of each part
    # PTX of the residues of sums of four residues, for each part
    joins: tuple[str, ...]
    # `weights`, `fractions`: p_2 v_1, p_1 v_2, ... and f_l for each part: one row for a
    # real V, rows of re and im for a complex one
    weights: tuple[tuple[int, ...], ...]
    fractions: tuple[tuple[int, ...], ...]
    # products p_1 p_2 and p_3 p_4 of each group; 1 for a missing pair
    pairs: tuple[tuple[int, int], ...]
    products: tuple[int, ...]  # -P_g as INT32
    # Y of four entries from the packed parts of a group; for complex V those of re,
    # then those of im
    ptx: tuple[str, ...]
    inverses: tuple[float, ...]  # 1 / P_g
    low_bits: int  # T
    scale: float  # P 2**-T, or 0 where H = 0
    # the upper 64 bits of M_g, then of N and of C + 2**(T - 1): the lower word
    # unsigned, the upper one as INT32
    head: tuple[tuple[int, int], ...]
    # limbs below them, the lowest first; one row a limb, same columns
    limbs: tuple[tuple[int, ...], ...]
    limb_bits: int
    high_bits: int  # |V| < 2**(T + high_bits), negative where V is shorter than T


def _layout_of_low_bits(big: int, error: int) -> tuple[int, int, int]:
    """T, the number of limbs and their bits: T = 52, or 64 and more in limbs where F
    errs by 2**-54 `error`.
    """
    needed = (big * error).bit_length() - 52
    if needed <= 64:
        return (52 if needed <= 52 else 64), 0, _MAX_LIMB_BITS
    count = -(-(needed - 64) // _MAX_LIMB_BITS)
    bits = -(-(needed - 64) // count)
    return 64 + count * bits, count, bits


def _words_of(parts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Pairs of parts whose bytes share a word, for the parts of one or two moduli; the
    third ones come last.
    """
    order = [x for own in parts for x in own[:2]] + [
        x for own in parts for x in own[2:]
    ]
    return [
        (order[i], order[min(i + 1, len(order) - 1)]) for i in range(0, len(order), 2)
    ]


def _group_ptx(
    parts: Sequence[Sequence[int]],
    weights: Sequence[Sequence[int]],
    fractions: Sequence[Sequence[int]],
    pairs: tuple[int, int],
    product: int,
) -> str:
    """PTX for the Y of a group: four outputs for each component, $0 .. $3 and on, then
    packed bytes, a register a part.

    Parameters
    ----------
    parts : sequence of sequence of int
        Numbers of the parts of each modulus.
    weights, fractions : sequence of sequence of int
        For each component and part.
    pairs, product : int
        Products of pairs, and -P_g.
    """
    halves = [_words_of(own) for own in (parts[:2], parts[2:]) if own]
    words = [word for own in halves for word in own]
    start = 4 * len(weights)

    def packed(x: Sequence[int], word: tuple[int, int]) -> str:
        first, second = x[word[0]], x[word[1]] if word[1] != word[0] else 0
        return f"0x{(first & 0xFFFF) | (second & 0xFFFF) << 16:08x}"

    names = [name for i in range(max(len(words), 2)) for name in (f"lo{i}", f"hi{i}")]
    lines = [f".reg .b32 a, b, q, {', '.join(names)};"]
    for i, (first, last) in enumerate(words):
        for name, select in (("lo", "0x5140"), ("hi", "0x7362")):
            lines.append(
                f"prmt.b32 {name}{i}, ${start + first}, ${start + last}, {select};"
            )
    for component, entry in product_of(range(len(weights)), range(4)):
        part, word = ("lo", "hi")[entry % 2], ("lo", "hi")[entry // 2]
        dot = f"dp2a.{part}.s32.s32"
        sums = {"q": "0x8000", "a": "0" if len(halves) > 1 else "0x80000000", "b": "0"}
        for i, pair in enumerate(words):
            for target, factors in (
                ("q", fractions),
                ("ab"[i >= len(halves[0])], weights),
            ):
                factor = packed(factors[component], pair)
                if int(factor, 16):
                    lines.append(
                        f"{dot} {target}, {factor}, {word}{i}, {sums[target]};"
                    )
                    sums[target] = target
        if len(halves) > 1:
            lines += [
                f"mad.lo.s32 a, a, {pairs[1]}, 0x80000000;",
                f"mad.lo.s32 a, b, {pairs[0]}, a;",
            ]
        lines += [
            "shr.s32 q, q, 16;",
            f"mad.lo.s32 ${4 * component + entry}, q, {product}, a;",
        ]
    return "{ " + " ".join(lines) + " }"


def _part_weights(p: int, j: int | None, is_complex: bool) -> list[tuple[int, ...]]:
    """c_i of the components for each part of a modulus, as
    `numerics.residue_products.product_residues` has them.
    """
    if not is_complex:
        return [(1,)]
    if j is None:
        return [(1, -1), (-1, -1), (0, 1)]
    half, other = pow(2, -1, p), pow(2 * j, -1, p)
    return [(half, other), (half, -other)]


def _of_parts(
    moduli: ModuliSet, columns: list[list[tuple[int, ...]]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Weights and fractions of the components, from c_i for the parts of each
    modulus.
    """
    p, big = moduli.moduli, moduli.modulus_product
    weights, fractions = [], []
    for component in range(len(columns[0][0])):
        own, parts = [], []
        for l, x in enumerate(p):
            partner = p[l ^ 1] if l ^ 1 < len(p) else 1
            for c in columns[l]:
                v = centred(pow(big // x, -1, x) * c[component], x)
                own.append(partner * v)
                parts.append(round(Fraction(v << 16, x)))
        weights.append(own)
        fractions.append(parts)
    return weights, fractions


@lru_cache
def crt_constants(moduli: ModuliSet, is_complex: bool = False) -> CrtConstants:
    """The constants for a set of at most 52 moduli; for the parts of complex products,
    or for residues of V.
    """
    p, big = moduli.moduli, moduli.modulus_product
    groups = [range(i, min(i + 4, len(p))) for i in range(0, len(p), 4)]
    whole = [math.prod(p[l] for l in own) for own in groups]
    pairs = [
        (math.prod(p[l] for l in own[:2]), math.prod(p[l] for l in own[2:]))
        for own in groups
    ]
    products = [_signed(-x, 32) for x in whole]
    columns = [
        _part_weights(x, j, is_complex) for x, j in zip(p, moduli.splits, strict=True)
    ]
    first = list(accumulate((len(own) for own in columns), initial=0))
    weights, fractions = _of_parts(moduli, columns)
    ptx = []
    for own, pair, product in zip(groups, pairs, products, strict=True):
        start, stop = first[own[0]], first[own[-1] + 1]
        parts = [range(first[l] - start, first[l + 1] - start) for l in own]
        factors = ([x[start:stop] for x in weights], [x[start:stop] for x in fractions])
        ptx.append(_group_ptx(parts, *factors, pair, product))
    of_parts = tuple(x for x, own in zip(p, columns, strict=True) for _ in own)
    count = len(groups)
    error = -(-131 * count * (count + 5) // 256) + 3 if is_complex else (count + 2) ** 2
    low, num_limbs, bits = _layout_of_low_bits(big, error)
    sums = [big // x for x in whole]
    sums += [-big, _QUOTIENT_OFFSET * big - (sum(sums) << 31) + (1 << (low - 1))]
    sums = [x % (1 << low) for x in sums]
    head = [x >> (bits * num_limbs) for x in sums]
    high = moduli.half_range.bit_length() - low
    return CrtConstants(
        starts=tuple(first[own[0]] for own in groups),
        sizes=tuple(first[own[-1] + 1] - first[own[0]] for own in groups),
        second=tuple(l % 4 >= 2 for l, own in enumerate(columns) for _ in own),
        moduli=of_parts,
        joins=tuple(map(ptx_of_join, of_parts)),
        weights=tuple(map(tuple, weights)),
        fractions=tuple(map(tuple, fractions)),
        pairs=tuple(pairs),
        products=tuple(products),
        ptx=tuple(ptx),
        inverses=tuple(1 / x for x in whole),
        low_bits=low,
        scale=float(Fraction(big, 1 << low)) if high >= 0 else 0.0,
        head=tuple((x & 0xFFFFFFFF, _signed(x >> 32, 32)) for x in head),
        limbs=tuple(
            tuple((x >> (bits * j)) & ((1 << bits) - 1) for x in sums)
            for j in range(num_limbs)
        ),
        limb_bits=bits,
        high_bits=high,
    )
