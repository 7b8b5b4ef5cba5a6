"""Few rows and columns with wide exponents, set apart so that the others take fewer
moduli for the exact product.

Idea
    How many moduli hold the exact product A B is decided by the row and the column
    whose lowest bits lie furthest below their norms. Of random data few vectors come
    near: a small entry among many. With P0 < P1 < P2 the products of num_moduli,
    `shared` and all moduli, scales S of sqrt(P1) and P1 <= P0 4**d: vectors whose bits
    fit in S - d are multiplied modulo P0, wide ones by them at scales S + d modulo P1
    with the residues they have already, and wide ones by wide ones modulo P2.
Exact when
    Every vector lacks, compared with the scales of two moduli, no more bits than
    `gained_bits(shared)` - d, or + d for wide ones; a balance moves bits from one
    operand to the other. Products of norms stay below P0 / 2, P1 / 2, P2 / 2.
Cost
    num_moduli products, `shared` of the wide rows and columns in whole tiles, and all
    moduli where they meet; residues of all vectors for `shared` moduli, and two more
    times those of the wide ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import gained_bits
from hifigemm.plan import Outliers
from hifigemm.problem import Problem

_LEAST_WORK = 2**40
"""m n k from which fewer moduli save more than it costs to read all residues again for
few rows and columns, and to let the host choose them. On an H200, random operands: 2 to
4 % longer than without at n = 8192, a tenth less at 16384.
"""
_RESIDUES = 200
"""Entries of the result whose products take the time in which the residues of a vector
are made and read.
"""
_TILE = 128
_GAIN = 0.97
_FEWER, _MOST = 6, 2048
"""Moduli that may be saved; wide rows, or columns, at most."""


def may_pay(problem: Problem) -> bool:
    """Whether a problem is large enough, and one of those that are looked at: real and
    not a stack.
    """
    work = problem.m * problem.n * problem.k
    return problem.batch == 1 and not problem.is_complex and work >= _LEAST_WORK


def find_outliers(
    problem: Problem, required: tuple[Array, Array], count: int
) -> Outliers | None:
    """The rows and columns to set apart, where `count` moduli hold the exact product of
    all; None where none pays.

    `required` is what numerics.scaling.required_bits_of_vectors found.
    """
    rows, cols = (np.sort(x.ravel()) for x in required)
    m, n = problem.m, problem.n

    def cost(num_moduli: int, shared: int, wide_rows: int, wide_cols: int) -> int:
        tiles = -(-wide_rows // _TILE) * n + -(-wide_cols // _TILE) * m
        return num_moduli * m * n + shared * (tiles * _TILE + _RESIDUES * (m + n))

    best, least = None, _GAIN * cost(count, count, 0, 0)
    for found in _scales(count, rows, cols):
        num_moduli, shared, *_ = found
        wide = [
            len(x) - int(np.searchsorted(x, r, "right"))
            for x, r in zip((rows, cols), _reach(*found), strict=True)
        ]
        if max(wide) <= _MOST and (needed := cost(num_moduli, shared, *wide)) < least:
            best, least = found, needed
    if best is None:
        return None
    where = [
        tuple(np.flatnonzero(x > r).tolist())
        for x, r in zip(required, _reach(*best), strict=True)
    ]
    return Outliers(*best, where[0], where[1])


def _reach(num_moduli: int, shared: int, lowered: int, balance: int) -> tuple[int, int]:
    """What rows and what columns may lack that are not outliers."""
    reach = gained_bits(shared, False) - lowered
    return reach + balance, reach - balance


def _scales(
    count: int, rows: Array, cols: Array
) -> Iterator[tuple[int, int, int, int]]:
    """The first four attributes of `Outliers` that are possible.

    The usual row and column get what they lack and share the rest, as long as the
    widest still find their place.
    """
    wanted = (int(rows[len(rows) // 2]) - int(cols[len(cols) // 2])) // 2
    for num_moduli in range(max(count - _FEWER, 2), count):
        for shared in range(num_moduli + 1, count + 1):
            gained, lowered = gained_bits(shared, False), _lowered(num_moduli, shared)
            least, most = (
                int(rows[-1]) - gained - lowered,
                gained + lowered - int(cols[-1]),
            )
            if least <= most:
                yield num_moduli, shared, lowered, min(max(wanted, least), most)


@lru_cache
def _lowered(num_moduli: int, shared: int) -> int:
    """Fewest d for which half the range of `shared` moduli is at most 4**d times that
    of `num_moduli`.
    """
    small, large = (moduli_set(x, False).half_range for x in (num_moduli, shared))
    return next(d for d in range(large.bit_length()) if large <= small << (2 * d))
