"""How far computed vectors are from solving an eigenvalue or singular value problem: the
residual A X - Y D, and the gap of X^H X and the identity.

Idea
    Both are differences of numbers that agree in nearly all of their digits, so
    products in float64 leave nothing of them.
Residual
    Y D is a pair of words, p + e, without an error, and A X - p a sum that is close: it errs
    by 2^-102 (k + 4)^2 of norms of A and X, k the terms of A X, and by u of itself. That is
    enough for bounds of u |A|, and for values that are not far below |A|. For others,
    `sharp_residual` takes A X as a pair h + l too. h - p and l - e are differences of
    numbers of one size. Four roundings leave about u of the residual, and u^2 of
    A X.
Gram matrix
    X = C + F, C being X on the grid of 2^-26. Entries of C^H C are integers times 2^-52
    below 2, and so are all partial sums, by the inequality of Cauchy and Schwarz. So a
    product in float64 is exact in any order of its additions, and

        X^H X = C^H C + N + N^H,   N = (X - F / 2)^H F,

    where roundings of N are relative to |X|^T |F|, that is to 2^-27.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hifigemm.linalg.arrays import (
    close_sums,
    diagonal,
    exact_square,
    matmul,
    numbers,
    product_of_numbers,
)
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_product

TINY = 2.0**-600
"""More than underflow takes from any bound here or in `separated`, for matrices whose
largest entry is about 1: fewer than 2^60 terms that lose a few eta = 2^-1074 each, times
at most 2^400.
"""
_FEW_TERMS = 48
"""Of products that are made as pairs at once. With 48 of them close sums save 5 % of
`eigvalsh`, and exact eigenvalues would have a radius of about 1e-29 of the norm.
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

    def is_enough_for(self, least: float) -> bool:
        """True if the error adds less than 1/32 of a unit in the last place to the radius
        of a value of this size.
        """
        return self.error <= least * (UNIT / 32.0)


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
    """A X - Y D for a real diagonal D, of which `d` is a row (1 x n); sharp for few terms, and
    where there are no sums that are only close.
    """
    if len(x) <= _FEW_TERMS:
        return sharp_residual(a, x, y, d)
    product, product_error = _times_diagonal(y, d)
    close = close_sums(a, x, product)
    if close is None:
        return sharp_residual(a, x, y, d)
    difference, share = close
    matrix = -(difference + product_error)

    # The sum errs by u of itself
    rows = column_norms(a.T).reshape(-1, 1)
    norms = share * rows * column_norms(x)
    sizes = 2.0 * moduli(difference) + moduli(matrix)
    return _bounded(matrix, above(UNIT * sizes + norms, 5, _UNDERFLOWS))


def sharp_residual(a: Array, x: Array, y: Array, d: Array) -> Residual:
    """A X - Y D, with an error of about u^2 of A X."""
    high, low = product_of_numbers(a, x, result="pair")
    product, product_error = _times_diagonal(y, d)
    difference = high - product
    remainder = low - product_error
    matrix = difference + remainder

    # Each of three sums errs by u of itself, and the pair by u of its second word
    sizes = moduli(difference) + moduli(remainder) + moduli(low) + moduli(matrix)
    return _bounded(matrix, above(UNIT * sizes, 5, _UNDERFLOWS))


def _bounded(matrix: Array, errors: Array) -> Residual:
    """The residual of which a matrix differs by no more than errors of entries."""
    magnitudes = moduli(matrix)
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
    products = exact_square(coarse)
    cross = matmul(half.conj().T, fine)
    largest_product = moduli(products).max()
    diagonal(products)[...] -= 1.0
    gap = products + (cross + cross.conj().T)

    # Roundings of N, with that of X - F / 2; then those of three sums
    columns_of_half = _sum_of_squares(half)
    columns_of_fine = _sum_of_squares(fine)
    sizes_of_products = moduli(products)
    sizes_of_cross = moduli(cross)
    magnitudes = moduli(gap)
    measures = numbers(
        largest_product,
        columns_of_half.max(),
        columns_of_fine.max(),
        columns_of_half.sum(),
        columns_of_fine.sum(),
        sizes_of_products.max(),
        sizes_of_cross.max(),
        _sum_of_squares(sizes_of_products).sum(),
        _sum_of_squares(sizes_of_cross).sum(),
        magnitudes.sum(axis=0).max(),
        _sum_of_squares(magnitudes).sum(),
    )
    largest_product, half_column, fine_column, half_norm, fine_norm = measures[:5]
    largest_size = measures[5] + 2.0 * measures[6]
    norm_of_sizes = _root(measures[7], terms) + 2.0 * _root(measures[8], terms)
    row_sum, size = measures[9:]
    share = 2.0 * (share_of_product(x) + 2.0 * UNIT)
    entry_error = _root(half_column, terms) * _root(fine_column, terms) * share
    entry_error = above(entry_error + 3.0 * UNIT * largest_size, 8, TINY)
    error = _root(half_norm, terms) * _root(fine_norm, terms) * share
    error = above(error + 3.0 * UNIT * norm_of_sizes, 8, TINY)

    # Below 2 all entries of C^H C are exact; one that is not would be above 1.5
    norm = above(row_sum + error, terms + 1) if largest_product < 1.5 else math.inf
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
