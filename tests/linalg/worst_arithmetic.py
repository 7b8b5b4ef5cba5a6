"""Products of matrices that err by as much as their promises allow, in the direction
that does the most harm to a bound, and exact products in fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hifigemm.linalg import certificate

UNIT = Fraction(1, 2**53)


def fractions(x):
    """Rows of a real matrix as fractions."""
    return [[Fraction(v) for v in row] for row in np.asarray(x, float).tolist()]


def exact_matmul(a, b):
    """The product of two matrices of fractions."""
    columns = list(zip(*b))
    return [
        [sum(x * y for x, y in zip(row, column)) for column in columns] for row in a
    ]


def moduli(a):
    """Magnitudes of the entries of a matrix of fractions."""
    return [[abs(x) for x in row] for row in a]


def worst_matmul(a, b):
    """A product in float64 with errors of up to n u |A||B|, n the number of terms, each
    towards zero: sums of nonnegative terms come out as small as they may.
    """
    left, right = fractions(a), fractions(b)
    exact = exact_matmul(left, right)
    sizes = exact_matmul(moduli(left), moduli(right))
    allowed = (max(len(right), 1) - 1) * UNIT
    result = np.empty((len(a), np.shape(b)[1]))
    for i, j in np.ndindex(result.shape):
        error = min(allowed * sizes[i][j], abs(exact[i][j]))
        size = abs(exact[i][j]) - error
        result[i, j] = float(size if exact[i][j] > 0 else -size)
    return result


def worst_magnitude_product(a, v):
    """|A| V with the same errors."""
    return worst_matmul(np.abs(a), v)


def flattering_product(a, b, accuracy):
    """D with |D - A B| <= r |A||B|, as close to the identity as that allows."""
    left, right = fractions(a), fractions(b)
    exact = exact_matmul(left, right)
    sizes = exact_matmul(moduli(left), moduli(right))
    result = np.empty((len(a), np.shape(b)[1]))
    for i, j in np.ndindex(result.shape):
        allowed = Fraction(accuracy) * sizes[i][j]
        change = int(i == j) - exact[i][j]
        result[i, j] = float(exact[i][j] + min(max(change, -allowed), allowed))
    return result


def deviation(a, inverse):
    """|I - R A| in fractions; R may be words side by side."""
    n = len(a)
    rows = fractions(inverse)
    total = [[sum(row[i::n]) for i in range(n)] for row in rows]
    product = exact_matmul(total, fractions(a))
    return [[abs(int(i == j) - product[i][j]) for j in range(n)] for i in range(n)]


def make_certificates_worst(monkeypatch):
    """Products of `linalg.certificate` err by as much as they may."""
    monkeypatch.setattr(certificate, "matmul", worst_matmul)
    monkeypatch.setattr(certificate, "magnitude_product", worst_magnitude_product)
    monkeypatch.setattr(certificate, "product_of_numbers", flattering_product)
    monkeypatch.setattr(certificate, "is_on_host", lambda _: False)
