"""Residue arithmetic: moduli, residues of scaled operands, residues of products, and
the way back (CRT).

An integer V with 2 |V| < P, P the product of pairwise coprime moduli p_l, is given by
its residues r_l (centred, INT8):

    V = sum_l r_l W_l - q P,    W_l = (P / p_l) v_l,  v_l = (P / p_l)**-1 mod p_l,    q = round(sum_l r_l v_l / p_l)

The sum over l is exact in float64 limb by limb (|r_l| <= 2**7, limbs below 2**32, at
most 64 moduli: below 2**45), and q is the right integer as long as 2 |V| <= P
(1 - 2**-20), because its float64 sum errs by less than 2**-36.

For a modulus whose prime factors are all 1 mod 4 there is j with j**2 = -1 mod p, and
(a + i b) -> (a + j b, a - j b) turns a complex product into two real ones; other moduli
take three (Karatsuba). See [UMIOG26].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import BLOCK_ENTRIES
from hifigemm.numerics.limbs import LIMB_BITS, num_limbs

MAX_MODULI = 49
_CHUNK_BITS = 27


def centred(x: int, p: int) -> int:
    """The representative of x mod p in [-p/2, p/2), which is an INT8 for every
    p <= 256.
    """
    return (x + p // 2) % p - p // 2


def _coprime(candidates: list[int]) -> tuple[int, ...]:
    """The first MAX_MODULI candidates, in order, that are coprime to all that were
    taken before.
    """
    taken: list[int] = []
    for p in candidates:
        if all(math.gcd(p, q) == 1 for q in taken):
            taken.append(p)
    return tuple(taken[:MAX_MODULI])


@lru_cache
def real_moduli() -> tuple[int, ...]:
    """Pairwise coprime moduli of at most 8 bits, largest first: 256 255 253 251 247 241
    ...
    """
    return _coprime(list(range(256, 1, -1)))


def square_root_of_minus_one(p: int) -> int | None:
    """The smallest j with j**2 = -1 mod p, or None where there is none. Found by trial:
    p <= 256.
    """
    return (
        next((j for j in range(1, p) if (j * j + 1) % p == 0), None) if p % 2 else None
    )


@lru_cache
def complex_moduli() -> tuple[int, ...]:
    """Pairwise coprime moduli by log2(p) per real product: two products where p splits,
    three elsewhere.
    """

    def bits_per_product(p: int) -> float:
        return math.log2(p) / (3 if square_root_of_minus_one(p) is None else 2)

    return _coprime(sorted(range(256, 1, -1), key=bits_per_product, reverse=True))


@dataclass(frozen=True)
class ModuliSet:
    """Moduli with everything that follows from them."""

    moduli: tuple[int, ...]
    # j with j**2 = -1 mod p where a complex product takes two real ones; none for
    # three, and for real products
    splits: tuple[int | None, ...]

    def of_planes(self, count: int) -> tuple[int, ...]:
        """The modulus of each of `count` parts: one for real operands, two or three for
        each of complex ones.
        """
        if count == len(self.moduli):
            return self.moduli
        many = (3 if j is None else 2 for j in self.splits)
        return tuple(
            p for p, times in zip(self.moduli, many, strict=True) for _ in range(times)
        )

    @cached_property
    def modulus_product(self) -> int:
        """P, the product of the moduli."""
        return math.prod(self.moduli)

    @cached_property
    def half_range(self) -> int:
        """Largest |V| that `reconstruct` recovers: P/2 less its 2**-20th part."""
        half = (self.modulus_product - 1) // 2
        return half - (half >> 20) - 1

    @cached_property
    def limb_count(self) -> int:
        """Limbs that hold -P .. P."""
        return num_limbs(self.modulus_product.bit_length() + 1)

    @cached_property
    def crt_weights(self) -> Array:
        """Limbs of W_l, and of P in the last column: float64, shape (limb_count,
        L + 1).
        """
        big = self.modulus_product
        columns = [big // p * pow(big // p, -1, p) for p in self.moduli] + [big]
        mask = (1 << LIMB_BITS) - 1
        return np.array(
            [
                [(w >> (LIMB_BITS * j)) & mask for w in columns]
                for j in range(self.limb_count)
            ],
            np.float64,
        )

    @cached_property
    def crt_fractions(self) -> Array:
        """v_l / p_l: float64, shape (L,)."""
        big = self.modulus_product
        return np.array([pow(big // p, -1, p) / p for p in self.moduli])

    def reconstruct(self, remainders: Array, at: slice = slice(None)) -> Array:
        """Limbs of some integers with these residues; int8 (L, N) in, int64
        (limb_count, N) out, not swept.
        """
        some = remainders[:, at]
        r = np.empty((len(self.moduli) + 1, some.shape[1]), like=some)
        r[:-1] = some
        r[-1] = -np.rint(self.crt_fractions @ r[:-1])
        return (self.crt_weights @ r).astype(np.int64)


@lru_cache
def moduli_set(count: int, is_complex: bool) -> ModuliSet:
    """The first `count` moduli, for real or for complex products."""
    moduli = (complex_moduli() if is_complex else real_moduli())[:count]
    return ModuliSet(
        moduli,
        tuple(square_root_of_minus_one(p) if is_complex else None for p in moduli),
    )


def count_for_range(least: int, is_complex: bool) -> int | None:
    """Smallest number of moduli, at least 2, whose half_range is `least` or more; None
    where none has.
    """
    counts = range(2, MAX_MODULI + 1)
    return next(
        (n for n in counts if moduli_set(n, is_complex).half_range >= least), None
    )


def count_for_bits(bits: int, is_complex: bool) -> int:
    """Smallest number of moduli, at least 2, whose half_range has that many bits; at
    most MAX_MODULI.
    """
    return count_for_range(1 << (bits - 1), is_complex) or MAX_MODULI


def reduce_centred(x: Array, p: int | Array) -> Array:
    """Centred residues of float64 integers |x| < 2**44 modulo p <= 256, as float64; p
    may be an array that broadcasts.

    x/p is never within 1/(2p) of a tie for odd p, so the rounded quotient is exact; for
    even p a tie may give +p/2, which is moved to -p/2.
    """
    r = x - p * np.rint(x * (1.0 / p))
    return np.where(2 * r == p, -r, r)


def residues(
    x: Array, moduli: tuple[int, ...], block_entries: int = BLOCK_ENTRIES
) -> Array:
    """Centred residues of float64 integers: int8 (len(moduli), *x.shape).

    x is cut into 27-bit pieces, exactly; each residue is the same small linear map of
    the pieces, reduced once, for as many moduli at a time as make `block_entries`
    together.
    """
    bits = int(np.frexp(np.abs(x).max(initial=0.0))[1])
    x = x.copy()
    pieces = []
    for j in reversed(range(1, -(-bits // _CHUNK_BITS))):
        piece = np.trunc(x * 2.0 ** (-_CHUNK_BITS * j))
        x -= piece * 2.0 ** (_CHUNK_BITS * j)
        pieces.append(piece)
    out = np.empty((len(moduli), *x.shape), np.int8, like=x)
    ps, *powers = _powers(moduli, len(pieces)).reshape(-1, len(moduli), *[1] * x.ndim)
    many = max(block_entries // max(x.size, 1), 1)
    for l in range(0, len(moduli), many):
        some = slice(l, l + many)
        total = np.repeat(x[None], len(moduli[some]), axis=0)
        for piece, factors in zip(pieces, powers, strict=True):
            total += factors[some] * piece
        out[some] = reduce_centred(total, ps[some])
    return out


@lru_cache
def _powers(moduli: tuple[int, ...], count: int) -> Array:
    """The moduli and, for each of `count` pieces, the highest first, the centred
    residues of its power of two.
    """
    powers = [
        [centred(pow(2, _CHUNK_BITS * j, p), p) for p in moduli]
        for j in range(count, 0, -1)
    ]
    return np.array([moduli, *powers], np.float64)
