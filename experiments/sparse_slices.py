"""How many zeros are there in slices and residues, and could a product skip them?

    python -m experiments.sparse_slices [--terms 4096] [--output results/sparse_slices.csv]

[MOOI20] remarks that slices of wide data are sparse. 256 rows of (rand - 0.5)
exp(phi randn) are cut by the published rule for FP16 (experiments/sigma.py), into the
library's slices of eight bits, and into residues of 14 moduli. For each plane: the
share of zeros; of groups of four terms with two zeros at least, as sparse tensor cores
ask of all groups of one operand; of tiles of 64 rows and 64 terms that are zero, which
a dense kernel could leave out. `terms_left` is the share of terms a_h b_h with neither
factor zero in all products p + q < S of the first S slices, A and B alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from experiments.phi import phi_matrix
from experiments.sigma import sigma_slice
from hifigemm.numerics.residue_products import scaled_residues
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import norm_scale
from hifigemm.numerics.slicing import digit_limit, slice_vectors, unit_exponent
from hifigemm.workshop.environment import write_csv

SEED = 5
PHIS = (0.1, 1.0, 2.0, 4.0)
ROWS = 256
COUNT = 12
MODULI = 14
SLICE_BITS = 8
GROUP = 4
TILE = 64


def published_slices(x: Any) -> Iterator[Any]:
    """Slices by the published rule, as floats."""
    remainder = x
    while True:
        found = sigma_slice(remainder)
        remainder = remainder - found
        yield found


def slices(x: Any) -> Iterator[Any]:
    """The library's slices of eight bits, as integers in two's complement."""
    largest = abs(x).max(axis=1, keepdims=True)
    fraction, exponent = np.frexp(largest)
    exponent = exponent + (fraction >= digit_limit(SLICE_BITS))
    return slice_vectors(
        x.copy(), unit_exponent(exponent, SLICE_BITS), SLICE_BITS, True
    )


def residue_planes(x: Any) -> Iterator[Any]:
    """Residues of 14 moduli, scaled by norms."""
    moduli = moduli_set(MODULI, False)
    scale = norm_scale(x[None], 2, moduli, 0, x.size)
    return iter(scaled_residues(x[None], scale, moduli, x.size)[0])


WAYS = {
    "published FP16 slices": published_slices,
    "INT8 slices": slices,
    "residues": residue_planes,
}


def shares(plane: Any) -> dict[str, float]:
    """Zeros of a plane: single ones, in groups along k, in tiles."""
    zero = plane == 0
    rows, terms = zero.shape
    groups = zero.reshape(rows, -1, GROUP).sum(axis=2)
    tiles = zero.reshape(rows // TILE, TILE, terms // TILE, TILE).all(axis=(1, 3))
    return {
        "zeros": float(zero.mean()),
        "groups_with_two_zeros": float((groups >= GROUP // 2).mean()),
        "zero_tiles": float(tiles.mean()),
    }


def terms_left(zeros: list[float]) -> float:
    """Share of terms without a zero in the products of the first slices, those of A
    and B independent.
    """
    count = len(zeros)
    pairs = [(p, q) for p in range(count) for q in range(count - p)]
    return sum((1 - zeros[p]) * (1 - zeros[q]) for p, q in pairs) / len(pairs)


def measure(phi: float, terms: int) -> list[dict[str, Any]]:
    """One line for each plane of each way."""
    x = phi_matrix(np.random.default_rng([SEED, int(10 * phi)]), (ROWS, terms), phi)
    rows = []
    for way, planes in WAYS.items():
        zeros: list[float] = []
        for p, plane in enumerate(islice(planes(x), COUNT)):
            row = {"phi": phi, "k": terms, "way": way, "plane": p + 1} | shares(plane)
            zeros.append(row["zeros"])
            left = "" if way == "residues" else terms_left(zeros)
            rows.append(row | {"terms_left": left})
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--terms", type=int, default=4096)
    parser.add_argument("--output", default="results/sparse_slices.csv")
    options = parser.parse_args()
    rows = []
    for phi in PHIS:
        rows += measure(phi, options.terms)
    for row in rows:
        print(*(f"{x:.4g}" if isinstance(x, float) else x for x in row.values()))
    write_csv(options.output, rows, rows_of_a=ROWS, seed=SEED)


if __name__ == "__main__":
    main()
