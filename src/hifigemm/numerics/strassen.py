"""Strassen's product of matrices of residues in Winograd's form: 7 products, not 8.

With A and B cut in halves along m, n and k (missing rows, columns and terms are zeros),
all sums modulo p:

    S1 = A21 + A22    T1 = B12 - B11    P1 = A11 B11    C11 = P1 + P2
    S2 = S1 - A11     T2 = B22 - T1     P2 = A12 B21    C12 = P1 + P6 + P5 + P3
    S3 = A11 - A21    T3 = B22 - B12    P3 = S4 B22     C21 = P1 + P6 + P7 + P4
    S4 = A12 - S2     T4 = B21 - T2     P4 = A22 T4     C22 = P1 + P6 + P7 + P5
                                        P5 = S1 T1, P6 = S2 T2, P7 = S3 T3

Integers modulo p are a ring, so that C has the residues of the plain product: no bound
grows, no bit changes. In floating point the same sums would lose accuracy. T4 and P4
have the other sign than in [Win71], so that nothing is subtracted on the way back.

References
    Winograd, On multiplication of 2 x 2 matrices, doi:10.1016/0024-3795(71)90009-7
    [Win71].
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.residues import reduce_centred

VECTORS = 64
"""Halves have a multiple of these vectors, so that tiles of products are whole."""

TERMS = 128
"""Halves have a multiple of these terms of k, so that lines of memory are whole."""

NUM_PRODUCTS = 7
"""Products of half the order, P1 to P7, instead of eight."""


def half_of(length: int, unit: int) -> int:
    """Length of the longer half of rows, columns or terms, a multiple of `unit`."""
    return -(-length // (2 * unit)) * unit


def block_sums(
    planes: Array, moduli: tuple[int, ...], half: int, half_k: int, *, is_right: bool
) -> Array:
    """The sums that the products take of an operand: int8 (batch, 4, L, half, half_k).

    S1, S2, S3, S4 of a left operand (batch, L, m, k), and T1, T2, T3, T4 of a right one
    (batch, L, n, k).
    """
    # The quarters: A11, A12, A21, A22 of a left operand, B11, B21, B12, B22 of a right
    # one, whose columns are the rows of its planes.
    batch, count, vectors, k = planes.shape
    whole = np.zeros((batch, count, 2 * half, 2 * half_k), np.float64)
    whole[:, :, :vectors, :k] = planes
    upper = whole[:, :, :half]
    lower = whole[:, :, half:]
    x = upper[..., :half_k]
    y = upper[..., half_k:]
    z = lower[..., :half_k]
    w = lower[..., half_k:]

    # The sums of an operand in the order of the table above: T1 to T4 or S1 to S4.
    if is_right:
        t1 = z - x
        t2 = w - t1
        sums = [t1, t2, w - z, y - t2]
    else:
        s1 = z + w
        s2 = s1 - x
        sums = [s1, s2, x - z, y - s2]
    return _residues(np.stack(sums, axis=1), moduli)


def joined_products(products: Array, moduli: tuple[int, ...], m: int, n: int) -> Array:
    """Residues of A B from those of P1 .. P7, int8 (batch, L, m, n).

    `products` is (batch, 7, L, half of m, half of n).
    """
    p1, p2, p3, p4, p5, p6, p7 = np.moveaxis(products.astype(np.float64), 1, 0)
    c11 = p1 + p2
    c12 = p1 + p6 + p5 + p3
    c21 = p1 + p6 + p7 + p4
    c22 = p1 + p6 + p7 + p5
    upper = np.concatenate([c11, c12], axis=-1)
    lower = np.concatenate([c21, c22], axis=-1)
    whole = np.concatenate([upper, lower], axis=-2)
    return _residues(whole[..., :m, :n], moduli)


def _residues(x: Array, moduli: tuple[int, ...]) -> Array:
    """Centred residues of x (..., L, vectors, terms) for the L moduli, as int8."""
    p = np.array(moduli, np.float64)[:, None, None]
    return reduce_centred(x, p).astype(np.int8)
