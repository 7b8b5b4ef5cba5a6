"""Elimination of matrices of integers modulo many primes, and the integers behind
residues.

Idea
    The determinant of an integer matrix modulo p is that of its residues, which Gaussian
    elimination makes with numbers below p. Primes whose product exceeds 2 |det| give
    det itself (CRT), and a number that is 0 modulo primes whose product exceeds it is
    zero. So do leading minors, which are products of pivots of an elimination without
    exchanges, and the numerators of Cramer's rule, det(A) A^-1 B.
Complex
    Primes are 1 modulo 4, so there is a root j with j^2 = -1. u + i v goes to u + j v
    modulo p, and to u - j v with the other root: two images, of which u is the mean, and
    v half of the difference divided by j. Numbers that are known to be real are told by
    one image.
Exact when
    2^23 < p < 2^24: sums of 64 products of residues are below 2^53, which is what
    core/elimination.h adds in float64.

References
    [GG13] von zur Gathen, Gerhard, Modern Computer Algebra, 3rd edition, sections 5.4
    and 5.5, doi:10.1017/CBO9781139856065
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from hifigemm.numerics.bits import Array

PRIME_BITS = 24
"""Of a prime: the highest bit of all is set."""
SIDE_BY_SIDE = 8
"""Primes that are eliminated together, whose number is a multiple of it."""
_BLOCK = 2**16
"""Numbers that are sieved at a time: about 2,000 primes among them."""
_BLOCK_ENTRIES = 2**20
"""Residues that the plain elimination works on at a time: 8 MiB."""


class Eliminated(NamedTuple):
    """Of a matrix modulo each of L primes, as float64, from 0 to p - 1."""

    determinants: Array
    """L."""
    minors: Array
    """n x L: leading minors, 0 from the first one on that vanishes modulo the prime."""
    numerators: Array
    """n k x L: det(A) A^-1 B, by rows; 0 where the determinant vanishes."""


def eliminate(
    a: Array, rows: Array, columns: Array, primes: Array, roots: Array
) -> Eliminated:
    """The elimination of Z = 2^rows [A B] 2^columns modulo each prime.

    Parameters
    ----------
    a : n x (n + k), float64 or complex128
        [A B]; Z holds integers.
    rows, columns : float64 integers
    primes, roots : float64 integers
        2^23 < p < 2^24, and for a complex matrix root^2 = -1 modulo p.
    """
    n, width = a.shape
    step = max(_BLOCK_ENTRIES // max(a.size, 1), 1)
    blocks = []
    for start in range(0, len(primes), step):
        block = slice(start, start + step)
        p = primes[block].astype(np.int64)
        residues = _residues(a.real, rows, columns, p)
        if a.dtype.kind == "c":
            root = roots[block].astype(np.int64)[:, None, None]
            residues += root * _residues(a.imag, rows, columns, p)
            residues %= p[:, None, None]
        blocks.append(_eliminate(residues, p))
    determinants, minors, numerators = zip(*blocks)
    return Eliminated(
        np.concatenate(determinants).astype(float),
        np.concatenate(minors).T.astype(float),
        np.concatenate(numerators)
        .reshape(len(primes), n * (width - n))
        .T.astype(float),
    )


def _residues(x: Array, rows: Array, columns: Array, p: Array) -> Array:
    """Those of 2^rows x 2^columns modulo each prime, L x n x width."""
    mantissas, exponents = np.frexp(x)
    integers = (mantissas * 2.0**53).astype(np.int64)
    shifts = exponents - 53 + rows[:, None].astype(int) + columns.astype(int)

    # Bits below the units are zeros
    integers >>= np.clip(-shifts, 0, 63)
    shifts = np.where(integers == 0, 0, np.maximum(shifts, 0))
    powers = np.ones((int(shifts.max(initial=0)) + 1, len(p)), np.int64)
    for e in range(1, len(powers)):
        powers[e] = 2 * powers[e - 1] % p
    residues: Array = integers % p[:, None, None] * powers.T[:, shifts]
    return residues % p[:, None, None]


def _eliminate(z: Array, p: Array) -> tuple[Array, Array, Array]:
    """The determinants, minors and numerators of residues z (L x n x width), which are
    overwritten.
    """
    num_primes, n, _ = z.shape
    field = p[:, None, None]
    order = np.tile(np.arange(n), (num_primes, 1))
    product = np.ones(num_primes, np.int64)
    minors = np.zeros((num_primes, n), np.int64)
    has_minors = np.ones(num_primes, bool)
    for i in range(n):
        # Where a pivot vanishes, a later column takes its place
        for lane in np.flatnonzero(z[:, i, i] == 0):
            has_minors[lane] = False
            j = i + int(np.argmax(z[lane, i, i:n] != 0))
            exchanged = [j, i]
            z[lane][:, [i, j]] = z[lane][:, exchanged]
            order[lane, [i, j]] = order[lane, exchanged]
            product[lane] = -product[lane] if j != i else 0
        pivots = z[:, i, i].copy()
        product = product * pivots % p
        minors[has_minors, i] = product[has_minors]

        # The pivot row, divided by the pivot, clears the column below
        inverses = [
            pow(x, -1, q) if x else 0 for x, q in zip(pivots.tolist(), p.tolist())
        ]
        pivot_rows = z[:, i, i:]
        pivot_rows[...] = pivot_rows * np.array(inverses)[:, None] % p[:, None]
        columns = z[:, i + 1 :, i, None]
        rest = z[:, i + 1 :, i + 1 :]
        rest[...] = (rest - columns * pivot_rows[:, None, 1:]) % field

    # U X = C, whose unknowns are in the order of the columns
    numerators = np.zeros_like(z[:, :, n:])
    solved = z[:, :, n:]
    for i in reversed(range(n)):
        above = z[:, :i, i, None] * solved[:, i, None, :]
        solved[:, :i] = (solved[:, :i] - above) % field
    places = np.broadcast_to(order[:, :, None], solved.shape)
    np.put_along_axis(numerators, places, solved * product[:, None, None] % field, 1)
    return product, minors, numerators


# Primes -------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _divisors() -> list[int]:
    """The odd primes below 2^12, by which the others are sieved."""
    return [
        p
        for p in range(3, 2**12, 2)
        if all(p % d for d in range(3, math.isqrt(p) + 1, 2))
    ]


@cache
def _primes_of_block(block: int) -> Array:
    """The primes of a block of numbers, counted from 2^24 down, that are 1 modulo 4, from
    the largest one on.
    """
    first = 2**PRIME_BITS - (block + 1) * _BLOCK + 1
    is_prime = np.ones(_BLOCK // 4, bool)  # of first + 4 i
    for d in _divisors():
        # first + 4 i = 0 modulo d
        start = -first * pow(4, -1, d) % d
        is_prime[start::d] = False
    primes = first + 4 * np.flatnonzero(is_prime)
    return primes[::-1]


def primes_from(start: int, stop: int) -> Array:
    """Primes by their place in the list, from the largest one below 2^24 on."""
    blocks = []
    count = block = 0
    while count < stop:
        blocks.append(_primes_of_block(block))
        count += len(blocks[-1])
        block += 1
    return np.concatenate(blocks)[start:stop]


@lru_cache(maxsize=4096)
def root_of_minus_one(p: int) -> int:
    """A j with j^2 = -1 modulo p, p = 1 modulo 4: x^((p - 1) / 4), x no square."""
    for x in range(2, p):
        root = pow(x, (p - 1) // 4, p)
        if root * root % p == p - 1:
            return root
    raise ValueError(f"{p} has no root of -1: it is no prime that is 1 modulo 4")


# The way back -------------------------------------------------------------------------


@dataclass(frozen=True)
class RemainderSystem:
    """Integers |V| < P / 2 by their residues modulo primes, P the product of these.

    V = sum_l s_l P / p_l modulo P, s_l = r_l (P / p_l)^-1 modulo p_l, of which sums for two
    sets of primes make the sum for both: V_1 P_2 + V_2 P_1.
    """

    primes: Array
    inverses: Array
    """(P / p_l)^-1 modulo p_l."""
    products: tuple[tuple[int, ...], ...]
    """Of 2, 4, ... primes; the last one is P. The number of primes is even."""

    @classmethod
    def of(cls, primes: Sequence[int]) -> RemainderSystem:
        """The system of an even number of primes."""
        level = [p * q for p, q in zip(primes[::2], primes[1::2])]
        levels = [tuple(level)]
        while len(level) > 1:
            level = [math.prod(level[i : i + 2]) for i in range(0, len(level), 2)]
            levels.append(tuple(level))
        (product,) = level
        inverses = [pow(product // p, -1, p) for p in primes]
        return cls(np.array(primes), np.array(inverses), tuple(levels))

    @classmethod
    def beyond(cls, bits: int) -> RemainderSystem:
        """The system of the first primes whose product is more than 2^bits, as many as
        are eliminated side by side or a multiple.
        """
        groups = bits // (PRIME_BITS * SIDE_BY_SIDE) + 1
        system = _system_of(groups)
        while system.product >> bits == 0:
            groups += 1
            system = _system_of(groups)
        return system

    @property
    def product(self) -> int:
        """P."""
        return self.products[-1][0]

    def integers(self, residues: Array | list[Array]) -> list[int]:
        """The integer of each row of residues, m x L, integers from 0 to p - 1."""
        terms = np.asarray(residues).astype(np.int64) * self.inverses % self.primes
        # x / p + y / q = (x q + y p) / (p q) for each pair of primes
        p, q = self.primes[::2], self.primes[1::2]
        x, y = terms[:, ::2], terms[:, 1::2]
        sums = x * q + y * p
        return [self._integer(row) for row in sums.tolist()]

    def _integer(self, sums: list[int]) -> int:
        """The integer of sums for the pairs of primes."""
        for level in self.products[:-1]:
            pairs = range(0, len(sums) - 1, 2)
            joined = [sums[i] * level[i + 1] + sums[i + 1] * level[i] for i in pairs]
            if len(sums) % 2:
                joined.append(sums[-1])
            sums = joined
        value = sums[0] % self.product
        return value - self.product if 2 * value > self.product else value


@lru_cache(maxsize=32)
def _system_of(groups: int) -> RemainderSystem:
    """The system of the first primes, so many times as are eliminated side by side."""
    return RemainderSystem.of(primes_from(0, groups * SIDE_BY_SIDE).tolist())
