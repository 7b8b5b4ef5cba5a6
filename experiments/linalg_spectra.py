"""Does an enclosure of `hifigemm.linalg.eigvalsh`, `svdvals` or `cond` ever miss? Counts by
family of matrices.

    python -m experiments.linalg_spectra [--matrices 5000] [--seconds 300]
        [--output results/linalg_spectra.csv]

Matrices of each family are drawn in turns, Hermitian ones for `eigvalsh` and rectangular
ones for `svdvals` and `cond`, and judged by their exact characteristic polynomials:

- missed: values that lie outside of their radius, and conditions outside of their bounds;
- refused: matrices without a proof;
- median, largest radius in ulp: in units in the last place of the value, of values that
  are apart from all others by a thousandth of themselves and no less than 1e-12 of the
  norm;
- largest radius over the norm: of all values.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import hifigemm.linalg as verified
from experiments.spectra import MATRICES, Array, Spectrum, hermitian, rectangular
from hifigemm.workshop.environment import write_csv

SEED = 47
APART = 1e-3
SMALL = 1e-12


class Counts:
    """The line of one function and family."""

    def __init__(self) -> None:
        self.matrices = 0
        self.refused = 0
        self.missed = 0
        self.radii: list[float] = []
        self.largest_share = 0.0

    def add(self, spectrum: Spectrum, values: Array, radius: Array) -> None:
        """Judge ascending values."""
        self.missed += len(spectrum.misses(values, radius))
        sizes = np.abs(values.astype(float))
        largest = sizes.max()
        if largest > 0.0:
            self.largest_share = max(self.largest_share, float(radius.max() / largest))

        gaps = np.diff(values.astype(float), prepend=-np.inf, append=np.inf)
        is_apart = np.minimum(gaps[:-1], gaps[1:]) > APART * sizes
        is_large = (sizes >= SMALL * largest) & (sizes > 0.0)
        is_counted = is_apart & is_large
        units = np.spacing(np.abs(values[is_counted])).astype(float)
        self.radii.extend((radius[is_counted] / units).tolist())

    def row(self) -> dict[str, Any]:
        """What the table says."""
        return {
            "matrices": self.matrices,
            "refused": self.refused,
            "missed": self.missed,
            "separated values": len(self.radii),
            "median radius in ulp": float(np.median(self.radii)) if self.radii else "",
            "largest radius in ulp": max(self.radii, default=""),
            "largest radius over the norm": self.largest_share,
        }


def judge_eigenvalues(a: Array, counts: Counts) -> None:
    """One Hermitian matrix."""
    counts.matrices += 1
    try:
        eigenvalues = verified.eigvalsh(a)
    except verified.VerificationError:
        counts.refused += 1
        return
    spectrum = Spectrum(a, is_singular=False)
    counts.add(spectrum, eigenvalues.values, eigenvalues.radius)


def judge_singular_values(a: Array, counts: Counts) -> None:
    """One matrix, and its condition."""
    counts.matrices += 1
    try:
        singular_values = verified.svdvals(a)
    except verified.VerificationError:
        counts.refused += 1
        return
    spectrum = Spectrum(a, is_singular=True)
    counts.add(spectrum, singular_values.values[::-1], singular_values.radius[::-1])
    condition = verified.cond(a)
    counts.missed += spectrum.condition_misses(condition.lower, condition.upper)


KINDS = {
    "eigvalsh": (hermitian, judge_eigenvalues),
    "svdvals, cond": (rectangular, judge_singular_values),
}


def main() -> None:
    """Draw, enclose, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--matrices", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", default="results/linalg_spectra.csv")
    options = parser.parse_args()

    lines = {(kind, family): Counts() for kind in KINDS for family in MATRICES}
    end = time.monotonic() + options.seconds
    for number in range(-(-options.matrices // len(lines))):
        if time.monotonic() > end:
            break
        for index, ((kind, family), counts) in enumerate(lines.items()):
            draw, judge = KINDS[kind]
            rng = np.random.default_rng([options.seed, number, index])
            judge(draw(family, rng), counts)

    rows = [
        {"function": kind, "family": family, **counts.row()}
        for (kind, family), counts in lines.items()
    ]
    for row in rows:
        print(*row.values(), sep=", ")
    matrices = sum(row["matrices"] for row in rows)
    missed = sum(row["missed"] for row in rows)
    print(f"{matrices} matrices, {missed} missed")
    write_csv(options.output, rows, seed=options.seed)


if __name__ == "__main__":
    main()
