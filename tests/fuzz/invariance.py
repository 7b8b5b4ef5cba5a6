"""Parts of products, in other orders, batches and engines, against the rows of the whole,
bit for bit, for all requests that promise the same bits:

    python -m tests.fuzz.invariance --draws 100000 --output results/invariance_bits.csv

What differs is printed with its seed and index.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.workshop.environment import write_csv
from tests.exact_values import same_bits
from tests.fuzz.core import DTYPES, FAMILIES, pair_of
from tests.test_invariant import operands

REQUESTS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "invariant": {"accuracy": hg.Invariant()},
    "invariant, 1e-5": {"accuracy": hg.Invariant(1e-5)},
    "invariant, 1e-12": {"accuracy": hg.Invariant(1e-12)},
    "3 slices": {"accuracy": hg.Invariant(), "scheme": hg.Ozaki1(num_slices=3)},
}

Change = Callable[[Any, np.ndarray, np.ndarray, dict[str, Any]], tuple[Any, Any]]
"""Takes a generator, A, B and a request. The result is what a change of the call gives,
and where this lies in the whole.
"""


def part(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """Some rows and columns in any order, some of them twice."""
    rows = rng.integers(0, len(a), int(rng.integers(1, len(a) + 3)))
    columns = rng.integers(0, b.shape[1], int(rng.integers(1, b.shape[1] + 3)))
    return hg.matmul(a[rows], b[:, columns], **request), np.ix_(rows, columns)


def order(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """The terms in another order."""
    terms = rng.permutation(a.shape[1])
    return hg.matmul(a[:, terms], b[terms], **request), ...


def others(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """More rows and columns, with entries of any size."""
    scale = 2.0 ** int(rng.integers(-60, 60))
    rows = np.concatenate([rng.permutation(a) * a.dtype.type(scale), a])
    columns = np.concatenate([b, 0 * b], axis=1)
    product = hg.matmul(rows, columns, **request)
    return product[len(a) :, : b.shape[1]], ...


def stack(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """A matrix of a stack."""
    matrices = np.stack([0 * a, a, a[::-1]])
    return hg.matmul(matrices, b, **request)[1], ...


def prepared(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """A row by an operand that was prepared."""
    i = int(rng.integers(len(a)))
    return hg.matmul(a[i : i + 1], hg.prepare(b, "right", **request)), [i]


def engine(rng: Any, a: np.ndarray, b: np.ndarray, request: dict[str, Any]) -> Any:
    """The plain functions of another engine."""
    return hg.matmul(a, b, engine="simulated-ideal-zero", **request), ...


CHANGES: dict[str, Change] = {
    "part": part,
    "order of k": order,
    "others": others,
    "stack": stack,
    "prepared": prepared,
    "engine": engine,
}


@np.errstate(all="ignore")
def fault(seed: int, index: int) -> tuple[str, str, bool]:
    """Request and change of a draw, and whether a bit differs."""
    rng = np.random.default_rng([seed, index])
    name = list(REQUESTS)[index % len(REQUESTS)]
    change = str(rng.choice(list(CHANGES)))
    dtype = np.dtype(str(rng.choice(DTYPES)))
    m, n = (int(x) for x in rng.integers(4, 9, 2))
    k = int(2 ** rng.uniform(1, 9.5))
    if rng.random() < 0.5:
        a, b = operands(dtype, int(rng.integers(2**32)), m, k, n)
    else:
        a, b = pair_of(rng, str(rng.choice(FAMILIES)), m, k, n, dtype)
        # Inf and NaN stay in their rows, but not in those of other entries of zeros.
        a, b = (np.nan_to_num(x, posinf=1.0, neginf=-1.0) for x in (a, b))
    request = REQUESTS[name]
    whole = hg.matmul(a, b, **request)
    product, place = CHANGES[change](rng, a, b, request)
    return name, change, not same_bits(product, np.ascontiguousarray(whole[place]))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, change, compare; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--output")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    started = time.monotonic()
    draws: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for index in range(options.draws):
        if time.monotonic() - started > options.seconds:
            break
        name, change, differs = fault(options.seed, index)
        draws[name, change] += 1
        wrong[name, change] += differs
        if differs:
            print(f"{(options.seed, index)}: {name}, {change}")
    seconds = round(time.monotonic() - started, 1)
    print(f"{draws.total()} draws in {seconds} s, {wrong.total()} with other bits")
    if options.output:
        rows = [
            {"request": name, "change": change, "draws": draws[name, change], "other bits": wrong[name, change]}
            for name, change in itertools.product(REQUESTS, CHANGES)
        ]  # fmt: skip
        write_csv(options.output, rows, seed=options.seed, seconds=seconds)
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    raise SystemExit(main())
