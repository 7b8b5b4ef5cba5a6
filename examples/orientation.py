"""Exact dot products in geometry, with NumPy alone: on which side of a line does a
point lie?

The sign of a determinant says so. It is a dot product of six terms, and its value
rounded once has the exact sign; the formula in float64 gets it wrong near the line.

Usage: python examples/orientation.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import hifigemm.numpy as hnp

SIZE = 64
Q, R = (12.0, 12.0), (24.0, 24.0)
"""Two points of the diagonal."""


def grid(size: int) -> NDArray:
    """Points near (0.5, 0.5), a unit in the last place apart."""
    steps = 0.5 + np.arange(size) * 2.0**-53
    x, y = np.meshgrid(steps, steps)
    return np.stack([x, y], axis=-1)


def side_in_float64(p: NDArray) -> NDArray:
    """The sign of (q - p) x (r - p), every operation rounded."""
    x, y = p[..., 0], p[..., 1]
    return np.sign((Q[0] - x) * (R[1] - y) - (Q[1] - y) * (R[0] - x))


def side(p: NDArray) -> NDArray:
    """The exact sign: six products, added exactly and rounded once.

    (q - p) x (r - p) = qx ry - qy rx - px ry + py rx - qx py + qy px.
    """
    x, y = p[..., 0], p[..., 1]
    one = np.ones_like(x)
    left = [Q[0] * one, -Q[1] * one, -x, y, -y, x]
    right = [R[1] * one, R[0] * one, R[1] * one, R[0] * one, Q[0] * one, Q[1] * one]
    terms = np.stack(left, axis=-1), np.stack(right, axis=-1)
    return np.sign(hnp.vecdot(*terms, accuracy="correct"))


def main(size: int = SIZE) -> tuple[NDArray, NDArray]:
    """Print how many sides are wrong; both arrays of signs."""
    p = grid(size)
    naive, exact = side_in_float64(p), side(p)
    wrong = int((naive != exact).sum())
    print(f"{wrong} of {exact.size} points are on the wrong side in float64")
    return naive, exact


if __name__ == "__main__":
    main()
