"""Residue arithmetic: moduli, residues of integers, and the way back (CRT).

An integer V with 2 |V| < P, P the product of pairwise coprime moduli p_l, is given by
its residues r_l (centred, INT8):

    V = sum_l r_l W_l - q P,    q = round(sum_l r_l v_l / p_l),

    W_l = (P / p_l) v_l,        v_l = (P / p_l)**-1 mod p_l.

Exact when 2 |V| <= P (1 - 2**-20): the sum over l is exact in float64 limb by limb
(|r_l| <= 2**7, limbs below 2**32, at most 64 moduli: below 2**45), and q is the right
integer because its float64 sum errs by less than 2**-36.

For a modulus whose prime factors are all 1 mod 4 there is j with j**2 = -1 mod p, and
(a + i b) -> (a + j b, a - j b) turns a complex product into two real ones; other moduli
take three (Karatsuba). See [UMIOG26] and numerics.residue_products.
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
"""Largest number of moduli of a set, and the length of both lists: no further number up
to 256 is coprime to all of one.
"""

_LONG = 27, np.float64
"""Bits of a piece of an integer: pieces times residues sum to less than 2**44."""

_SHORT = 11, np.float32
"""Those of a shorter integer, whose sums float32 holds: less than 2**21."""

_SHORT_BITS = 8 * 11
"""Bits of such an integer."""

_TERM_BITS = 38
"""Bits of a float64 of `ModuliSet.crt_terms`."""


def centred(x: int, p: int) -> int:
    """Representative of x mod p in [-p/2, p/2): an INT8 for every p <= 256."""
    return (x + p // 2) % p - p // 2


def _coprime(candidates: list[int]) -> tuple[int, ...]:
    """The first MAX_MODULI candidates that are coprime to all chosen before them."""
    chosen: list[int] = []
    for p in candidates:
        if all(math.gcd(p, q) == 1 for q in chosen):
            chosen.append(p)
    return tuple(chosen[:MAX_MODULI])


@lru_cache
def real_moduli() -> tuple[int, ...]:
    """Pairwise coprime moduli up to 256, largest first: 256 255 253 251 247 241 ..."""
    return _coprime(list(range(256, 1, -1)))


def square_root_of_minus_one(p: int) -> int | None:
    """The smallest j with j**2 = -1 mod p for an odd p, or None where there is none.

    None for an even p, too, where 2 has no inverse. Found by trial, as p <= 256.
    """
    if p % 2 == 0:
        return None
    return next((j for j in range(1, p) if (j * j + 1) % p == 0), None)


@lru_cache
def complex_moduli() -> tuple[int, ...]:
    """Pairwise coprime moduli by log2(p) for each real product, largest first.

    A modulus that splits takes two real products, any other one takes three.
    """

    def bits_per_product(p: int) -> float:
        return math.log2(p) / (3 if square_root_of_minus_one(p) is None else 2)

    return _coprime(sorted(range(256, 1, -1), key=bits_per_product, reverse=True))


@dataclass(frozen=True)
class ModuliSet:
    """Moduli with everything that follows from them."""

    moduli: tuple[int, ...]
    # j with j**2 = -1 mod p where a complex product takes two real ones; None where it
    # takes three, and for real products.
    splits: tuple[int | None, ...]

    def of_planes(self, count: int) -> tuple[int, ...]:
        """The modulus of each of `count` planes.

        A modulus has one plane of a real operand, two or three of a complex one.
        """
        if count == len(self.moduli):
            return self.moduli
        moduli: list[int] = []
        for p, j in zip(self.moduli, self.splits, strict=True):
            moduli += [p] * (3 if j is None else 2)
        return tuple(moduli)

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
        """Number of limbs that hold -P .. P."""
        return num_limbs(self.modulus_product.bit_length() + 1)

    @cached_property
    def crt_weights(self) -> Array:
        """Limbs of W_l, and of P in the last column: float64 (limb_count, L + 1)."""
        product = self.modulus_product
        weights = [product // p * pow(product // p, -1, p) for p in self.moduli]
        mask = (1 << LIMB_BITS) - 1
        limbs = [
            [(w >> (LIMB_BITS * j)) & mask for w in [*weights, product]]
            for j in range(self.limb_count)
        ]
        return np.array(limbs, np.float64)

    @cached_property
    def crt_fractions(self) -> Array:
        """v_l / p_l: float64, shape (L,)."""
        product = self.modulus_product
        return np.array([pow(product // p, -1, p) / p for p in self.moduli])

    @cached_property
    def crt_terms(self) -> Array:
        """W_l, and P in the last column, as sums of few floats: float64 (T, L + 1).

        A row has 38 bits of each at one place, the highest first, so that sums of
        residues times entries of a row are exact: below 2**52.
        """
        product = self.modulus_product
        weights = [product // p * pow(product // p, -1, p) for p in self.moduli]
        mask = (1 << _TERM_BITS) - 1
        places = range(0, product.bit_length(), _TERM_BITS)
        terms = [
            [((w >> place) & mask) * 2.0**place for w in [*weights, product]]
            for place in reversed(places)
        ]
        return np.array(terms)

    def reconstruct(self, remainders: Array, entries: slice = slice(None)) -> Array:
        """Limbs, not swept, of the integers V with these residues, for some `entries`.

        `remainders` is int8 (L, N), the result int64 (limb_count, entries).
        """
        multiples = self._with_quotients(remainders[:, entries])
        return (self.crt_weights @ multiples).astype(np.int64)

    def terms(self, remainders: Array, entries: slice = slice(None)) -> Array:
        """Integers in float64 whose sums are those V, (T, entries)."""
        return self.crt_terms @ self._with_quotients(remainders[:, entries])

    def _with_quotients(self, remainders: Array) -> Array:
        """The residues r_l and below them -q: float64 (L + 1, entries)."""
        r = np.empty((len(self.moduli) + 1, remainders.shape[1]), like=remainders)
        r[:-1] = remainders
        r[-1] = -np.rint(self.crt_fractions @ r[:-1])
        return r


@lru_cache
def moduli_set(count: int, is_complex: bool) -> ModuliSet:
    """The first `count` moduli, for real or for complex products."""
    moduli = (complex_moduli() if is_complex else real_moduli())[:count]
    splits = tuple(square_root_of_minus_one(p) if is_complex else None for p in moduli)
    return ModuliSet(moduli, splits)


def count_for_range(needed: int, is_complex: bool) -> int | None:
    """Smallest number of moduli with a half_range of `needed` or more, or None.

    It is at least 2.
    """
    counts = range(2, MAX_MODULI + 1)
    return next(
        (n for n in counts if moduli_set(n, is_complex).half_range >= needed), None
    )


def count_for_bits(bits: int, is_complex: bool) -> int:
    """Smallest number of moduli with a half_range of so many bits, 2 to MAX_MODULI."""
    return count_for_range(1 << (bits - 1), is_complex) or MAX_MODULI


def reduce_centred(x: Array, p: int | Array) -> Array:
    """Centred residues modulo p of integers in float64 or float32; p may broadcast.

    Exact when |x| < 2**44, or 2**21 in float32, and p <= 256 is odd or a power of two:
    for odd p, x/p is never within 1/(2p) of a tie, so that the rounded quotient is
    right; for powers of two the quotient is exact, and ties go to the next integer.
    """
    quotient = x * (1.0 / p)
    quotient += 0.5
    np.floor(quotient, out=quotient)
    quotient *= p
    return x - quotient


def residues(
    x: Array, moduli: tuple[int, ...], block_entries: int = BLOCK_ENTRIES
) -> Array:
    """Centred residues of float64 integers: int8 (len(moduli), *x.shape).

    x is cut into pieces, exactly, and a residue is that of a short sum of pieces times
    residues of powers of two. Four times `block_entries` residues are computed at a
    time.
    """
    # Pieces, the lowest first: the quotients by powers of two, less those by the next.
    bits = int(np.frexp(np.abs(x).max(initial=0.0))[1])
    piece_bits, dtype = _SHORT if bits <= _SHORT_BITS else _LONG
    count = max(-(-bits // piece_bits), 1)
    factors = np.array([2.0 ** (-piece_bits * j) for j in range(count)])
    pieces = np.trunc(x * factors.reshape(-1, *[1] * x.ndim))
    pieces[:-1] -= pieces[1:] * 2.0**piece_bits

    # Their sums for some moduli at a time, reduced once.
    out = np.empty((len(moduli), *x.shape), np.int8, like=x)
    flat = pieces.reshape(count, -1).astype(dtype, copy=False)
    divisors, powers = _moduli_and_powers(moduli, count, piece_bits, dtype)
    divisors = divisors.reshape(-1, *[1] * x.ndim)
    moduli_at_once = max(4 * block_entries // max(x.size, 1), 1)
    for l in range(0, len(moduli), moduli_at_once):
        group = slice(l, l + moduli_at_once)
        total = (powers[group] @ flat).reshape(-1, *x.shape)
        out[group] = reduce_centred(total, divisors[group])
    return out


@lru_cache
def _moduli_and_powers(
    moduli: tuple[int, ...], count: int, piece_bits: int, dtype: type[np.floating]
) -> tuple[Array, Array]:
    """Moduli, and for each of them the residues of the powers of two of all pieces."""
    powers = [
        [centred(pow(2, piece_bits * j, p), p) for j in range(count)] for p in moduli
    ]
    return np.array(moduli, dtype), np.array(powers, dtype)
