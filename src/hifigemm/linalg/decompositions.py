"""How far computed vectors are from solving an eigenvalue or singular value problem: the
residual A X - Y D, and the gap of X^H X and the identity.

Idea
    Both are differences of numbers that agree in nearly all of their digits, so
    products in float64 leave nothing of them.
Residual
    A X as a pair of words, h + l, and Y D as another, p + e, without an error. h - p and
    l - e are differences of numbers of one size. What four roundings leave is about u of
    the residual, and u^2 of A X.
Gram matrix
    X = C + F, C being X on the grid of 2^-26. Entries of C^H C are integers times 2^-52
    below 2, so that a product that is rounded once is exact, and

        X^H X = C^H C + N + N^H,   N = (X - F / 2)^H F,

    where roundings of N are relative to |X|^T |F|, that is to 2^-27.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hifigemm.linalg.arrays import diagonal, matmul, numbers, product_of_numbers
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_product

TINY = 2.0**-600
"""More than underflow takes from any bound here or in `separated`, for matrices whose
largest entry is about 1: fewer than 2^60 terms that lose a few eta = 2^-1074 each, times
at most 2^400.
"""
_GRID = 2.0**26
_UNDERFLOWS = 12.0 * LEAST
"""Of an entry of a residual: two_product loses less than 8 eta, each other step 1."""


@dataclass(frozen=True, eq=False)
class Residual:
    """A X - Y D up to an error."""

    matrix: Array
    norm: float
    """At least the spectral norm of the exact residual."""
    size: float
    """At least the Frobenius norm of `matrix`."""
    error: float
    """At least the Frobenius norm of what `matrix` differs by from the exact one."""


@dataclass(frozen=True, eq=False)
class Gram:
    """X^H X - I up to an error, X having columns close to orthonormal ones."""

    gap: Array
    norm: float
    """At least the spectral norm of X^H X - I; not finite where X is of no use."""
    size: float
    """At least the Frobenius norm of `gap`."""
    error: float
    """At least the Frobenius norm of the error of `gap`."""
    entry_error: float
    """At least the error of each entry of `gap`."""


def residual(a: Array, x: Array, y: Array, d: Array) -> Residual:
    """A X - Y D for a real diagonal D, of which `d` is a row (1 x n)."""
    high, low = product_of_numbers(a, x, result="pair")
    product, product_error = _times_diagonal(y, d)
    difference = high - product
    remainder = low - product_error
    matrix = difference + remainder

    # Each of three sums errs by u of itself, and the pair by u of its second word
    magnitudes = moduli(matrix)
    sizes = moduli(difference) + moduli(remainder) + moduli(low) + magnitudes
    errors = above(UNIT * sizes, 5, _UNDERFLOWS)
    largest = above(magnitudes + errors, 1)
    terms = max(largest.shape)
    rows, columns, size, error = numbers(
        largest.sum(axis=1).max(),
        largest.sum(axis=0).max(),
        _sum_of_squares(magnitudes).sum(),
        _sum_of_squares(errors).sum(),
    )

    # ||R||_2^2 <= ||R||_1 ||R||_inf
    norm = math.sqrt(above(rows, terms)) * math.sqrt(above(columns, terms))
    return Residual(matrix, above(norm, 3), _root(size, terms), _root(error, terms))


def _times_diagonal(y: Array, d: Array) -> tuple[Array, Array]:
    """(p, e) with p + e = Y D for finite entries, up to 8 eta."""
    if y.dtype.kind != "c":
        return two_product(y, d)
    product = np.zeros_like(y)
    error = np.zeros_like(y)
    for part in ("real", "imag"):
        words = two_product(getattr(y, part), d)
        getattr(product, part)[...] = words[0]
        getattr(error, part)[...] = words[1]
    return product, error


def gram(x: Array) -> Gram:
    """X^H X - I with its bounds."""
    terms = max(x.shape)
    coarse = _on_grid(x)
    fine = x - coarse
    half = x - 0.5 * fine
    products = product_of_numbers(coarse.conj().T, coarse, "correct")
    cross = matmul(half.conj().T, fine)
    largest_product = moduli(products).max()
    diagonal(products)[...] -= 1.0
    gap = products + (cross + cross.conj().T)

    # Roundings of N, with that of X - F / 2; then those of three sums
    columns_of_half = _sum_of_squares(half)
    columns_of_fine = _sum_of_squares(fine)
    magnitudes = moduli(cross)
    sizes = moduli(products) + magnitudes + magnitudes.T
    magnitudes = moduli(gap)
    measures = numbers(
        largest_product,
        columns_of_half.max(),
        columns_of_fine.max(),
        columns_of_half.sum(),
        columns_of_fine.sum(),
        sizes.max(),
        _sum_of_squares(sizes).sum(),
        magnitudes.sum(axis=0).max(),
        _sum_of_squares(magnitudes).sum(),
    )
    largest_product, half_column, fine_column, half_norm, fine_norm = measures[:5]
    largest_size, norm_of_sizes, row_sum, size = measures[5:]
    share = 2.0 * (share_of_product(x) + 2.0 * UNIT)
    entry_error = _root(half_column, terms) * _root(fine_column, terms) * share
    entry_error = above(entry_error + 3.0 * UNIT * largest_size, 8, TINY)
    error = _root(half_norm, terms) * _root(fine_norm, terms) * share
    error = above(error + 3.0 * UNIT * _root(norm_of_sizes, terms), 8, TINY)

    # Below 2 all entries of C^H C are exact
    norm = above(row_sum + error, terms + 1) if largest_product < 2.0 else math.inf
    return Gram(gap, norm, _root(size, terms), error, entry_error)


def share_of_product(a: Array, b: Array | None = None) -> float:
    """The share of |A||B| that `matmul` may err by, in modulus, for m x k matrices A^H
    and B.
    """
    is_complex = a.dtype.kind == "c" or (b is not None and b.dtype.kind == "c")
    terms = len(a)
    return 1.5 * gamma(2 * terms) if is_complex else gamma(terms)


def norm_of(x: Array) -> float:
    """At least the Frobenius norm of a matrix."""
    (size,) = numbers(_sum_of_squares(x).sum())
    return _root(size, max(x.shape))


def column_norms(x: Array) -> Array:
    """At least the lengths of columns, 1 x n, or TINY."""
    return above(np.sqrt(_sum_of_squares(x)), len(x) + 4, TINY)


def _sum_of_squares(x: Array) -> Array:
    """Squares of the lengths of columns, 1 x n, each term after m + 2 roundings."""
    squares = x.real * x.real
    if x.dtype.kind == "c":
        squares = squares + x.imag * x.imag
    return squares.sum(axis=0, keepdims=True)


def _root(sum_of_squares: float, terms: int) -> float:
    """At least the root of a sum of squares of columns, or TINY."""
    return above(math.sqrt(sum_of_squares), 2 * terms + 8, TINY)


def _on_grid(x: Array) -> Array:
    """Each component at a multiple of 2^-26."""
    if x.dtype.kind != "c":
        return np.rint(x * _GRID) / _GRID
    coarse = np.zeros_like(x)
    coarse.real[...] = np.rint(x.real * _GRID) / _GRID
    coarse.imag[...] = np.rint(x.imag * _GRID) / _GRID
    return coarse
