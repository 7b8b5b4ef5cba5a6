"""Products with and without the compiled core, bit for bit, and some against exact
fractions:

    python -m tests.fuzz.core --products 1000000 --judged 100000 --jobs 16 \\
        --output results/core_bits.csv

Products come in stacks, each matrix of a family of its own: random ones, and those that
cancel, tie, over- or underflow or have exponents over the whole range; in half of the
stacks nearly all that is left of them is zero. In every second batch float32 products of
any size take a float64 product first. What differs, be it the sign of a zero,
is printed with its seed and index.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines import core, core_sums
from hifigemm.workshop.environment import write_csv
from tests.conftest import PAIRS, SINGLES, real_pair
from tests.exact_values import exact_results, same_bits
from tests.hard_matrices import as_complex

REQUESTS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
    "enclosure": {"result": "enclosure"},
    "gemm": {"accuracy": "correct"},
    "integers": {},
}
"""What is asked of a product; gemm is alpha A B + beta C, rounded once, for powers of
two with a sign.
"""

DTYPES = ("float64", "float64", "float32", "complex128", "complex64")
FAMILIES = (*SINGLES, *PAIRS)
VANISHING = ("vanishing", "half_the_smallest", "signed_zeros", "underflowing")
"""Families of products that underflow, or are exact zeros."""
BATCH = 25
"""Stacks that are multiplied with the core, and then without it."""


Result = tuple[np.ndarray, ...] | str
"""The arrays of a result, or the name of the exception that was raised."""


@dataclass(frozen=True)
class Case:
    """A stack of products; c, alpha and beta are those of gemm."""

    at: tuple[int, int]
    request: str
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None = None
    alpha: float = 1.0
    beta: float = 0.0

    def result(self) -> Result:
        """What the library gives."""
        try:
            if self.c is not None:
                return (
                    hg.gemm(
                        self.a,
                        self.b,
                        self.c,
                        alpha=self.alpha,
                        beta=self.beta,
                        **REQUESTS[self.request],
                    ),
                )
            result = hg.matmul(self.a, self.b, **REQUESTS[self.request])
        except hg.HifigemmError as refusal:
            return type(refusal).__name__
        return tuple(result) if isinstance(result, tuple) else (result,)

    def expected(self, z: int) -> tuple[np.ndarray, ...]:
        """The arrays of matrix z, by fractions or Python's integers."""
        a, b = self.a[z], self.b[z]
        if self.request == "integers":
            return (a.astype(object) @ b.astype(object),)
        kind = "nearest" if self.request in ("correct", "gemm") else self.request
        c = None if self.c is None else self.c[z]
        return exact_results(a, b, kind, alpha=self.alpha, beta=self.beta, c=c)


def pair_of(
    rng: np.random.Generator, family: str, m: int, k: int, n: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a family, real or complex."""
    if dtype.kind == "c":
        real = np.zeros(0, dtype).real.dtype
        return as_complex(real_pair, rng, family, m, k, n, real)
    return real_pair(rng, family, m, k, n, dtype)


@np.errstate(all="ignore")
def draw(seed: int, index: int) -> Case:
    """The case of an index."""
    rng = np.random.default_rng([seed, index])
    request = str(rng.choice(list(REQUESTS)))
    # Small products in large stacks, and some with many tiles, chunks and pieces.
    largest, log_terms, log_count = (
        (40, 10.5, 3) if rng.random() < 0.05 else (6, 6.5, 11)
    )
    m, n = (int(x) for x in rng.integers(1, largest + 1, 2))
    k = int(2 ** rng.uniform(1, log_terms))
    count = int(2 ** rng.uniform(0, log_count))
    if request == "integers":
        bits = int(rng.integers(1, 29))
        a = rng.integers(-(2**bits), 2**bits, (count, m, k))
        b = rng.integers(-(2**bits), 2**bits, (count, k, n))
        return Case((seed, index), request, a, b)

    dtype = np.dtype(str(rng.choice(DTYPES)))
    pairs = []
    families = VANISHING if rng.random() < 0.5 else FAMILIES
    for family in rng.choice(families, count):
        pairs.append(pair_of(rng, str(family), m, k, n, dtype))
    a = np.stack([left for left, _ in pairs])
    b = np.stack([right for _, right in pairs])
    if request != "gemm":
        return Case((seed, index), request, a, b)

    # C and the rest nearly cancel, or C is anything else. Both have powers of two that
    # may take the sum out of range.
    sign, other_sign = (float(x) for x in rng.choice([-1.0, 1.0], 2))
    exponent = int(rng.integers(-9, 10))
    if rng.random() < 0.3:
        exponent = int(rng.integers(-300, 300))
    alpha = sign * 2.0**exponent
    beta = other_sign * 2.0 ** (exponent + int(rng.integers(-3, 4)))
    c = _addend(rng, a, b, alpha / beta)
    return Case((seed, index), request, a, b, c, alpha, beta)


def _addend(
    rng: np.random.Generator, a: np.ndarray, b: np.ndarray, factor: float
) -> np.ndarray:
    """C of a gemm, for alpha / beta: near -factor A B, zeros, or random numbers."""
    product = hg.matmul(a, b, accuracy="correct")
    parts = product.view(product.real.dtype)
    real = parts.dtype.type
    opposite = np.nan_to_num(real(-factor) * parts, nan=1.0, posinf=1.0, neginf=-1.0)
    beside = np.nextafter(opposite, real(0))
    others = rng.standard_normal(parts.shape).astype(real)
    kind = rng.integers(0, 6, parts.shape)
    choices = [opposite, opposite, opposite, beside, others, real(0) * others]
    return np.choose(kind, choices).view(product.dtype)


@contextmanager
def without_core() -> Iterator[None]:
    """The core is left alone, as where it is not built."""
    loaded = core.loaded
    store.forget()
    core.loaded = lambda: (None, "left alone")  # type: ignore[assignment]
    try:
        yield
    finally:
        core.loaded = loaded
        store.forget()


@contextmanager
def in_float64() -> Iterator[None]:
    """float32 products of any size take a float64 product first, with the core."""
    steps = core_sums.FLOAT64_STEPS
    store.forget()
    core_sums.FLOAT64_STEPS = -np.inf
    try:
        yield
    finally:
        core_sums.FLOAT64_STEPS = steps
        store.forget()


@dataclass(frozen=True)
class Share:
    """What one process does: the cases of each `jobs`-th index from `first` on."""

    seed: int
    first: int
    jobs: int
    products: int
    every: int  # of so many matrices of a stack one is held against fractions
    deadline: float


Counts = Counter[tuple[str, str]]


@np.errstate(all="ignore")
def run(share: Share) -> tuple[Counts, list[str]]:
    """Counts by request and outcome, and what is wrong."""
    counts: Counts = Counter()
    wrong: list[str] = []
    indices = itertools.count(share.first, share.jobs)
    ways = itertools.cycle([nullcontext, in_float64])
    while (
        _sum(counts, "products") < share.products and time.monotonic() < share.deadline
    ):
        cases = [draw(share.seed, next(indices)) for _ in range(BATCH)]
        with next(ways)():
            compiled = [case.result() for case in cases]
        with without_core():
            plain = [case.result() for case in cases]
        for case, with_core, without in zip(cases, compiled, plain, strict=True):
            wrong += compare(case, with_core, without, share.every, counts)
    return counts, wrong


def compare(
    case: Case, with_core: Result, without: Result, every: int, counts: Counts
) -> Iterator[str]:
    """What is wrong with the results of a case, each so many matrices of which one is
    held against fractions. Adds to the counts.
    """
    request = case.request
    counts[request, "products"] += len(case.a)
    if isinstance(with_core, str) or isinstance(without, str):
        counts[request, "refused"] += len(case.a)
        if str(with_core) != str(without):
            counts[request, "other bits"] += len(case.a)
            yield f"{case.at}: {with_core!s:.60} and {without!s:.60}"
        return
    for z in range(len(case.a)):
        pairs = zip(with_core, without, strict=True)
        if not all(same_bits(x[z], y[z]) for x, y in pairs):
            counts[request, "other bits"] += 1
            yield f"{case.at} {request}, matrix {z}: other bits"
        if z % every == 0:
            counts[request, "judged"] += 1
            pairs = zip(with_core, case.expected(z), strict=True)
            if not all(_is_as_expected(x[z], y) for x, y in pairs):
                counts[request, "wrong"] += 1
                yield f"{case.at} {request}, matrix {z}: wrong"


def _is_as_expected(x: np.ndarray, y: np.ndarray) -> bool:
    """True for the bits of y, and for the integers of y in another dtype."""
    return np.array_equal(x, y) if y.dtype.kind == "O" else same_bits(x, y)


def main() -> int:
    """Draw, multiply, compare; the exit status is 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--products", type=int, default=10_000)
    parser.add_argument("--judged", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--output")
    options = parser.parse_args()
    started = time.monotonic()
    jobs = options.jobs
    shares = [
        Share(
            options.seed,
            first,
            jobs,
            -(-options.products // jobs),
            max(options.products // options.judged, 1),
            started + options.seconds,
        )
        for first in range(jobs)
    ]
    with get_context("fork").Pool(jobs) as pool:
        results = pool.map(run, shares)
    total: Counts = Counter()
    wrong = []
    for counts, faults in results:
        total += counts
        wrong += faults
    print(*wrong[:100], sep="\n")

    rows = []
    for request in REQUESTS:
        row: dict[str, Any] = {"request": request}
        for name in ("products", "refused", "other bits", "judged", "wrong"):
            row[name.replace(" ", "_")] = total[request, name]
        rows.append(row)
        print(row)
    seconds = round(time.monotonic() - started, 1)
    print(f"{_sum(total, 'products')} products in {seconds} s, {len(wrong)} faults")
    if options.output:
        text = core.loaded()[1]
        write_csv(options.output, rows, seed=options.seed, core=text, seconds=seconds)
    return 1 if wrong else 0


def _sum(counts: Counts, outcome: str) -> int:
    return sum(count for (_, name), count in counts.items() if name == outcome)


if __name__ == "__main__":
    raise SystemExit(main())
