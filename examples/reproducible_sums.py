"""Reproducible sums with NumPy alone: one product in seven ways that mathematics does
not tell apart, and a digest of the bits of each result.

The digests of "correct" are one, on every machine; those of NumPy depend on the way, and
on the machine.

Usage: python examples/reproducible_sums.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg

Multiply = Callable[[NDArray, NDArray], NDArray]


def digest(x: NDArray) -> str:
    """Eight letters for all bits of an array."""
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:8]


def ways(a: NDArray, b: NDArray, multiply: Multiply) -> dict[str, NDArray]:
    """The same product in several orders and pieces."""
    order = np.random.default_rng(1).permutation(a.shape[1])
    rows = [multiply(row[None, :], b) for row in a]
    columns = [multiply(a, column[:, None]) for column in b.T]
    return {
        "whole": multiply(a, b),
        "row by row": np.concatenate(rows, axis=0),
        "column by column": np.concatenate(columns, axis=1),
        "terms in reverse": multiply(a[:, ::-1], b[::-1]),
        "terms shuffled": multiply(a[:, order], b[order]),
        "transposed": multiply(b.T, a.T).T,
        "other memory order": multiply(np.asfortranarray(a), np.asfortranarray(b)),
    }


def correct(a: NDArray, b: NDArray) -> NDArray:
    """The exact product, rounded once."""
    return hg.matmul(a, b, accuracy="correct")


def main(size: int = 60, terms: int = 1000) -> dict[str, dict[str, str]]:
    """Print and return the digests."""
    rng = np.random.default_rng(0)
    # Made of integers, so that the operands are the same on every machine.
    a, b = (
        rng.integers(-(2**40), 2**40, shape) / 2**40
        for shape in ((size, terms), (terms, size))
    )
    found = {
        name: {way: digest(c) for way, c in ways(a, b, multiply).items()}
        for name, multiply in (("NumPy", np.matmul), ("correct", correct))
    }
    print(f"{'':<20}{'NumPy':<10}correct")
    for way, bits in found["NumPy"].items():
        print(f"{way:<20}{bits:<10}{found['correct'][way]}")
    return found


if __name__ == "__main__":
    main()
