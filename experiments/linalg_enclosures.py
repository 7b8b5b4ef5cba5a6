"""Does an enclosure of `hifigemm.linalg.solve` ever miss? Counts by family of systems.

    python -m experiments.linalg_enclosures [--seconds 300] [--output results/linalg_enclosures.csv]

Systems of each family are drawn in turns until the time is over, solved with
accuracy=None and with "correct", and judged by the exact solution in integers:

- missed: entries whose exact value lies outside of their radius, of both calls;
- rounded wrongly: components of "correct" that are not the nearest number;
- refused: systems without a proof, by accuracy; `singular` is how many of them have no
  solution, `beyond range` how many have one that the dtype does not hold, and `proven
  singular` counts proofs of something false;
- median, largest radius: in units in the last place of x, for accuracy=None, of the
  entries whose exact value is not zero.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

import hifigemm.linalg as verified
from experiments.systems import FAMILIES, Array, exact_parts, misses
from hifigemm.workshop.environment import write_csv

SEED = 43


def matrices(a: Array, b: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """The matrices of a stack and what belongs to them, or the one that there is."""
    if a.ndim == 2:
        yield a, b, *others
        return
    stack = [np.broadcast_to(x, a.shape[:1] + x.shape[-2:]) for x in (a, b, *others)]
    yield from zip(*stack)


def ulps(x: Array, radius: Array, parts: list[list[list[Fraction]]]) -> list[float]:
    """Radii in units in the last place of the larger component of x, where the exact
    value is not zero.
    """
    sizes = np.abs(x)
    if x.dtype.kind == "c":
        sizes = np.maximum(np.abs(x.real), np.abs(x.imag))
    in_ulps = radius.astype(float) / np.spacing(sizes).astype(float)
    return [
        float(in_ulps[i, j])
        for i, j in np.ndindex(x.shape)
        if any(part[i][j] for part in parts)
    ]


def is_beyond_range(parts: list[list[list[Fraction]]], dtype: Any) -> bool:
    """True if an exact component is larger than all numbers of the dtype."""
    largest = Fraction(float(np.finfo(dtype).max))
    return any(abs(v) > largest for part in parts for row in part for v in row)


def is_nearest(value: float, exact: Fraction, dtype: Any) -> bool:
    """True if no other finite number of the dtype is closer to an exact value; of two
    that are equally close the one with an even last bit.
    """
    distance = abs(Fraction(value) - exact)
    number = dtype(value)
    for direction in (-np.inf, np.inf):
        other = float(np.nextafter(number, dtype(direction)))
        if not np.isfinite(other):
            continue
        its_distance = abs(Fraction(other) - exact)
        if its_distance < distance:
            return False
        is_odd = int(number.view(f"i{number.itemsize}")) & 1
        if its_distance == distance and is_odd:
            return False
    return True


class Counts:
    """The line of one family."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.numbers = dict.fromkeys(
            (
                "systems",
                "singular",
                "beyond range",
                "missed",
                "proven singular",
                "refused",
                "refused correct",
                "rounded wrongly",
                "two words",
            ),
            0,
        )
        self.radii: list[float] = []

    def add(self, a: Array, b: Array) -> None:
        """Solve and judge one system."""
        parts = exact_parts(a, b)
        self.numbers["systems"] += 1
        self.numbers["singular"] += parts is None
        if parts is not None:
            self.numbers["beyond range"] += is_beyond_range(parts, a.dtype)
        for accuracy in (None, "correct"):
            try:
                solution, report = verified.solve(
                    a, b, accuracy=accuracy, return_report=True
                )
            except verified.VerificationError:
                self.numbers["refused correct" if accuracy else "refused"] += 1
                continue
            if parts is None:
                self.numbers["proven singular"] += 1
                continue
            self.numbers["missed"] += len(misses(solution.x, solution.radius, parts))
            if accuracy:
                self.numbers["rounded wrongly"] += wrong(solution.x, parts)
            else:
                self.numbers["two words"] += report.words == 2
                self.radii += ulps(solution.x, solution.radius, parts)

    def row(self) -> dict[str, Any]:
        """The line for the table."""
        radii = {
            "median radius in ulp": float(np.median(self.radii)) if self.radii else "",
            "largest radius in ulp": max(self.radii, default=""),
        }
        return {"family": self.family, **self.numbers, **radii}


def wrong(x: Array, parts: list[list[list[Fraction]]]) -> int:
    """Number of components that are not the nearest number."""
    components = [x.real, x.imag][: len(parts)]
    return sum(
        not is_nearest(float(component[i, j]), part[i][j], x.real.dtype.type)
        for component, part in zip(components, parts)
        for i, j in np.ndindex(x.shape)
    )


def main() -> None:
    """Draw, solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", default="results/linalg_enclosures.csv")
    options = parser.parse_args()

    counts = {family: Counts(family) for family in FAMILIES}
    end = time.monotonic() + options.seconds
    rounds = 0
    while time.monotonic() < end:
        for number, (family, draw) in enumerate(FAMILIES.items()):
            rng = np.random.default_rng([options.seed, rounds, number])
            for a, b in matrices(*draw(rng)):
                counts[family].add(a, b)
        rounds += 1

    rows = [counts[family].row() for family in FAMILIES]
    for row in rows:
        print(*row.values(), sep=", ")
    systems = sum(row["systems"] for row in rows)
    print(f"{systems} systems, {sum(row['missed'] for row in rows)} entries missed")
    write_csv(options.output, rows, seed=options.seed, seconds=options.seconds)


if __name__ == "__main__":
    main()
