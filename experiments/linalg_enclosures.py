"""Does an enclosure of `hifigemm.linalg.solve` ever miss? Counts by family of systems.

    python -m experiments.linalg_enclosures [--systems 100000] [--processes 2]
        [--seconds 300] [--first 0] [--pieces DIRECTORY]
        [--large | --sparse | --banded | --inverses]
        [--output results/linalg_enclosures.csv]

Systems of each family are drawn in turns, solved with accuracy=None, each fourth of them
with "correct" as well, and judged by the exact solution in integers:

- missed: entries whose exact value lies outside of their radius, of both calls;
- rounded wrongly: components of "correct" that are not the nearest number;
- refused: systems without a proof, by accuracy; `singular` is how many of them have no
  solution, `beyond range` how many have one that the dtype does not hold, and `proven
  singular` counts proofs of something false. `needless` are refused ones with a
  solution that the dtype holds and a condition, || |A^-1| |A| || after scaling, below
  1e25, in the scale that makes it least; `largest needless condition` is for all that have a solution;
- median, largest radius: in units in the last place of x, for accuracy=None, of the
  entries whose exact value is not zero.

A round is one draw of each family, and has a seed of its own: runs with other rounds,
from --first on, add up. With --pieces each leaves its counts in a file, and the table is
that of all files there. --large is for systems of 100 to 300 rows, --sparse
for sparse ones and those in units of their own, --banded for bands and triangles of 64
to 128 rows. With --inverses the right sides are those of the identity, and systems of each
second round go the way of those that are too large for the compiled core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm.linalg as verified
from experiments.systems import (
    BANDED,
    FAMILIES,
    LARGE,
    SPARSE,
    Array,
    exact_parts,
    misses,
)
from hifigemm.linalg import solution as solution_module
from hifigemm.linalg.scaling import scaled_system
from hifigemm.workshop.environment import write_csv

SEED = 43
ALL = {**FAMILIES, **LARGE, **SPARSE, **BANDED}

Parts = list[list[list[Fraction]]]
"""[re, im] or [re] of a solution, each as rows."""


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
    number = dtype(value)
    is_odd = int(number.view(f"i{number.itemsize}")) & 1
    above, below = value.as_integer_ratio()
    for direction in (-np.inf, np.inf):
        other = float(np.nextafter(number, dtype(direction)))
        if not np.isfinite(other):
            continue

        # The middle of both, less the exact value, times the denominators
        numerator, denominator = other.as_integer_ratio()
        middle = above * denominator + numerator * below
        gap = middle * exact.denominator - 2 * below * denominator * exact.numerator
        is_closer = gap > 0 if direction < 0 else gap < 0
        if is_closer or (gap == 0 and is_odd):
            return False
    return True


COUNTED = (
    "systems",
    "singular",
    "beyond range",
    "missed",
    "proven singular",
    "refused",
    "needless",
    "correct",
    "refused correct",
    "rounded wrongly",
    "two words",
)
MOST_CONDITION = 1e25
"""Of systems that are to be solved."""
SHARE_OF_CORRECT = 4
"""Every fourth round is solved with accuracy="correct" as well."""


class Counts:
    """The line of one family."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(COUNTED, 0)
        self.radii: Counter[float] = Counter()
        self.needless_condition = 0.0

    def add(self, a: Array, b: Array, *, also_correct: bool) -> None:
        """Solve and judge one system."""
        parts = exact_parts(a, b)
        self.numbers["systems"] += 1
        self.numbers["singular"] += parts is None
        is_beyond = parts is not None and is_beyond_range(parts, a.dtype)
        self.numbers["beyond range"] += is_beyond
        self._solve(a, b, parts, is_beyond)
        if also_correct:
            self._solve_correctly(a, b, parts)

    def _solve(self, a: Array, b: Array, parts: Parts | None, is_beyond: bool) -> None:
        """With accuracy=None."""
        try:
            solution, report = verified.solve(a, b, return_report=True)
        except verified.VerificationError:
            self.numbers["refused"] += 1
            if parts is not None and not is_beyond:
                size = condition(a)
                self.numbers["needless"] += size < MOST_CONDITION
                self.needless_condition = max(self.needless_condition, size)
            return
        if parts is None:
            self.numbers["proven singular"] += 1
            return
        self.numbers["missed"] += len(misses(solution.x, solution.radius, parts))
        self.numbers["two words"] += report.words == 2
        for radius in ulps(solution.x, solution.radius, parts):
            self.radii[float(f"{radius:.3g}")] += 1

    def _solve_correctly(self, a: Array, b: Array, parts: Parts | None) -> None:
        """With accuracy="correct"."""
        self.numbers["correct"] += 1
        try:
            solution = verified.solve(a, b, accuracy="correct")
        except verified.VerificationError:
            self.numbers["refused correct"] += 1
            return
        if parts is None:
            self.numbers["proven singular"] += 1
            return
        self.numbers["missed"] += len(misses(solution.x, solution.radius, parts))
        self.numbers["rounded wrongly"] += wrong(solution.x, parts)

    def merge(self, other: dict[str, Any]) -> None:
        """Add what a piece has counted."""
        for name, number in other["numbers"].items():
            self.numbers[name] += number
        for radius, count in other["radii"]:
            self.radii[radius] += count
        condition_of_piece = other["needless condition"]
        self.needless_condition = max(self.needless_condition, condition_of_piece)

    def piece(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {
            "numbers": self.numbers,
            "radii": sorted(self.radii.items()),
            "needless condition": self.needless_condition,
        }

    def row(self) -> dict[str, Any]:
        """What the table says of a family."""
        return {
            **self.numbers,
            "largest needless condition": self.needless_condition or "",
            "median radius in ulp": median(self.radii),
            "largest radius in ulp": max(self.radii, default=""),
        }


def median(counts: Counter[float]) -> Any:
    """The median of numbers with their counts; an empty string for none."""
    half = sum(counts.values()) / 2
    for number in sorted(counts):
        half -= counts[number]
        if half <= 0:
            return number
    return ""


STEPS = 100
"""Towards the least condition, by powers of |A^-1| |A|."""


def condition(a: Array) -> float:
    """|| |A^-1| |A| || of a nonsingular real or complex matrix, in the scale of its
    columns that makes it least: max(|A^-1| |A| v / v) for any v > 0 is no less, and v
    comes close to the eigenvector where they are equal.
    """
    n = len(a)
    wide = a.astype(complex if a.dtype.kind == "c" else float)
    scaled = scaled_system(wide, np.zeros((n, 0), wide.dtype)).a
    parts = exact_parts(scaled, np.eye(n))
    assert parts is not None
    magnitudes = [
        [float(sum(abs(part[i][j]) for part in parts)) for j in range(n)]
        for i in range(n)
    ]
    sizes = np.array(magnitudes) @ np.abs(scaled)
    v = np.ones(n)
    least = np.inf
    for _ in range(STEPS):
        image = sizes @ v
        least = min(least, float((image / v).max()))
        v = image / image.max()
    return least


def wrong(x: Array, parts: list[list[list[Fraction]]]) -> int:
    """Number of components that are not the nearest number."""
    components = [x.real, x.imag][: len(parts)]
    return sum(
        not is_nearest(float(component[i, j]), part[i][j], x.real.dtype.type)
        for component, part in zip(components, parts)
        for i, j in np.ndindex(x.shape)
    )


Task = tuple[int, int, str, bool]
"""A seed, a round, a family, and whether its matrices are to be inverted."""


def judge(task: Task) -> tuple[str, dict[str, Any]]:
    """One draw of a family."""
    seed, number, family, are_inverses = task
    counts = Counts()
    rng = np.random.default_rng([seed, number, list(ALL).index(family)])
    most_small = solution_module.MOST_SMALL
    if are_inverses and number % 2:
        solution_module.MOST_SMALL = 0
    for a, b in matrices(*ALL[family](rng)):
        sides = np.eye(len(a), dtype=a.dtype) if are_inverses else b
        # Of two rounds, where these go different ways
        is_fourth = number // 2 % SHARE_OF_CORRECT == 0
        also_correct = is_fourth if are_inverses else number % SHARE_OF_CORRECT == 0
        counts.add(a, sides, also_correct=also_correct)
    solution_module.MOST_SMALL = most_small
    return family, counts.piece()


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Draws until the time is over."""
    end = time.monotonic() + options.seconds
    groups = {"large": LARGE, "sparse": SPARSE, "banded": BANDED}
    families = groups.get(options.kind, FAMILIES)
    last = options.first + -(-options.systems // len(families))
    for number in range(options.first, last):
        if time.monotonic() > end:
            return
        for family in families:
            yield options.seed, number, family, options.kind == "inverses"


def judged(options: argparse.Namespace) -> dict[str, Counts]:
    """Counts of each family, by one process or several."""
    counts = {family: Counts() for family in ALL}
    if options.processes == 1:
        for family, piece in map(judge, tasks(options)):
            counts[family].merge(piece)
        return counts

    # Few tasks wait at a time, so that the end is that of the clock
    with ProcessPoolExecutor(options.processes) as pool:
        waiting: set[Future[tuple[str, dict[str, Any]]]] = set()
        remaining = tasks(options)
        while True:
            for task in islice(remaining, 4 * options.processes - len(waiting)):
                waiting.add(pool.submit(judge, task))
            if not waiting:
                return counts
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                family, piece = future.result()
                counts[family].merge(piece)


def main() -> None:
    """Draw, solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--systems", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--first", type=int, default=0, help="the first round")
    parser.add_argument("--processes", type=int, default=1)
    kinds = parser.add_mutually_exclusive_group()
    for kind in ("large", "sparse", "banded", "inverses"):
        kinds.add_argument(f"--{kind}", action="store_const", dest="kind", const=kind)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--pieces", type=Path)
    parser.add_argument("--output", default="results/linalg_enclosures.csv")
    options = parser.parse_args()

    counts = judged(options) if options.systems else {}
    if options.pieces:
        if counts:
            piece = {family: line.piece() for family, line in counts.items()}
            options.pieces.mkdir(exist_ok=True)
            kind = options.kind or "small"
            path = options.pieces / f"{kind}-{options.seed}-{options.first}.json"
            path.write_text(json.dumps(piece))
        counts = {family: Counts() for family in ALL}
        for path in sorted(options.pieces.glob("*.json")):
            for family, piece in json.loads(path.read_text()).items():
                counts[family].merge(piece)

    rows = [
        {"family": family, **line.row()}
        for family, line in counts.items()
        if line.numbers["systems"]
    ]
    for row in rows:
        print(*row.values(), sep=", ")
    systems = sum(row["systems"] for row in rows)
    missed = sum(row["missed"] for row in rows)
    print(f"{systems} systems, {missed} entries missed")
    write_csv(options.output, rows, seed=options.seed)


if __name__ == "__main__":
    main()
