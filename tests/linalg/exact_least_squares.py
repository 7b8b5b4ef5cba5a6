"""Matrices for least squares, exact solutions of the normal equations, and determinants."""

from __future__ import annotations

import math
from fractions import Fraction

import flint
import numpy as np

from tests.linalg.worst_arithmetic import exact_matmul, fractions


def transposed(a):
    return [list(column) for column in zip(*a)]


def exact_solve(a, b):
    """A^-1 b in fractions."""

    def matrix(x):
        entries = [flint.fmpq(v.numerator, v.denominator) for row in x for v in row]
        return flint.fmpq_mat(len(x), len(x[0]), entries)

    x = matrix(a).solve(matrix(b))
    return [
        [Fraction(int(x[i, j].p), int(x[i, j].q)) for j in range(x.ncols())]
        for i in range(x.nrows())
    ]


def exact_determinant(rows):
    """The determinant of rows of floats, integers or fractions, as a fraction."""
    ratios = [x.as_integer_ratio() for row in rows for x in row]
    common = math.lcm(*(below for _, below in ratios))
    entries = [above * (common // below) for above, below in ratios]
    determinant = int(flint.fmpz_mat(len(rows), len(rows), entries).det())
    return Fraction(determinant, common ** len(rows))


def exact_lstsq(a, b):
    """[re, im] or [re] of the solution, as `misses` takes it."""
    if a.dtype.kind == "c":
        a = np.block([[a.real, -a.imag], [a.imag, a.real]])
        both = exact_lstsq(a, np.concatenate([b.real, b.imag]))[0]
        return [both[: len(both) // 2], both[len(both) // 2 :]]
    rows, sides = fractions(a), fractions(b)
    turned = transposed(rows)
    if len(rows) >= len(turned):
        return [exact_solve(exact_matmul(turned, rows), exact_matmul(turned, sides))]
    return [exact_matmul(turned, exact_solve(exact_matmul(rows, turned), sides))]


def of_condition(rng, m, n, condition, kind=float):
    """m x n with singular values down to 1 / condition."""
    least = min(m, n)
    parts = [rng.standard_normal((size, least)) for size in (m, n)]
    if kind is complex:
        parts = [x + 1j * rng.standard_normal(x.shape) for x in parts]
    u, v = (np.linalg.qr(x)[0] for x in parts)
    return (u * np.logspace(0.0, -np.log10(condition), least)) @ v.conj().T


def nearly_dependent(rng, m, n, condition, kind=float):
    """m x n, m >= 2 n: a matrix of rank 1 above entries that are smaller by the condition,
    so that no rounding is as large as these.
    """
    top = rng.integers(1, 99, (m - n, 1)) * rng.integers(1, 9, n)
    bottom = rng.standard_normal((n, n)) / condition
    if kind is complex:
        bottom = bottom + 1j * rng.standard_normal((n, n)) / condition
    return np.concatenate([top, bottom])[rng.permutation(m)]


def gradient_of_least_squares(a, b, g):
    """The gradient of A for matrices of fractions, and what it may be off for roundings of
    x, u, the residual and what it is multiplied with, and products with errors of 16 units.
    """
    is_tall = len(a) > len(a[0])
    tall = a if is_tall else a.T
    eye = np.array(fractions(np.eye(len(tall[0]))))
    inverse = np.array(exact_solve((tall.T @ tall).tolist(), eye.tolist()))
    pseudoinverse = inverse @ tall.T
    if is_tall:
        x = pseudoinverse @ b
        u = pseudoinverse.T @ g
        side, solution, other = b, x, u
    else:
        x = pseudoinverse.T @ b
        u = pseudoinverse @ g
        side, solution, other = g, u, x
    residual = side - tall @ solution
    factor = pseudoinverse @ other
    product = residual @ factor.T
    gradient = (product if is_tall else product.T) - u @ x.T

    unit = Fraction(1, 2**53)
    noise_of_residual = abs(residual) + unit * abs(tall) @ abs(solution)
    noise_of_factor = abs(factor) + abs(pseudoinverse) @ abs(other)
    noise = noise_of_residual @ noise_of_factor.T
    noise = (noise if is_tall else noise.T) + abs(u) @ abs(x.T)
    return gradient, 32 * unit * noise
