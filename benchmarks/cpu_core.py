"""The price of correct results on a CPU, in multiples of NumPy's time: small products,
long sums, stacks, pairs, weaker requests and operands with wide exponents.

Each result is checked against exact integers, in every entry, before it is timed. Times
are the least processor time of the thread over many calls, in turns with NumPy's own
product. Run from the root of the repository, with one thread, with and without the
compiled core:

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cpu_core
    OPENBLAS_NUM_THREADS=1 HIFIGEMM_CORE=0 python -m benchmarks.cpu_core --output results/cpu_core_off.csv

With `--float32` they are large float32 products alone, in turns with the core's own sums:

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cpu_core --float32 --output results/cpu_float32.csv
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.engines import core
from hifigemm.testing import matrices
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.environment import write_csv

SEED = 1
PHI = 0.5
LARGEST_CHECK = 2**20
"""Products of more multiplications are checked in some rows only."""

LONGEST_CHECK = 100_000
"""Terms of a dot product that are checked."""

Call = tuple[str, Any, Any, dict[str, Any]]
CORRECT = {"accuracy": "correct"}


def calls() -> Iterator[Call]:
    """What is timed: a name, operands and options."""
    rng = np.random.default_rng(SEED)

    def phi(*shape: int, phi: float = PHI) -> np.ndarray:
        return matrices.phi_matrix(rng, shape, phi)

    yield "dot 100,000", phi(100_000), phi(100_000), CORRECT
    yield "dot 10,000,000", phi(10_000_000), phi(10_000_000), CORRECT
    yield "1000 x 1000 by a vector", phi(1000, 1000), phi(1000), CORRECT
    yield "a vector by 1000 x 1000", phi(1000), phi(1000, 1000), CORRECT
    for n in (4, 16, 64, 128, 256, 1000):
        a, b = phi(n, n), phi(n, n)
        yield f"{n} x {n}", a, b, CORRECT
        if n in (4, 64, 256, 1000):
            yield f"{n} x {n} pair", a, b, {"result": "pair"}
            yield f"{n} x {n} enclosure", a, b, {"result": "enclosure"}
        if n == 4:
            yield "4 x 4 default", a, b, {}
        if n == 256:
            yield "256 x 256 1e-14", a, b, {"accuracy": 1e-14}
            yield "256 x 256 Relative(1e-12)", a, b, {"accuracy": hg.Relative(1e-12)}
    yield "10,000 of 4 x 4", phi(10_000, 4, 4), phi(10_000, 4, 4), CORRECT
    for n in (256,):
        yield f"{n} phi 20", phi(n, n, phi=20.0), phi(n, n, phi=20.0), CORRECT
        a, b = phi(n, n), phi(n, n)
        large = a.copy()
        large[n // 2, n // 3] = 2.0**300
        yield f"{n} one entry 2^300", large, b, CORRECT
        grades = np.exp2(np.linspace(-30, 30, n).round())
        yield f"{n} graded along k", a * grades, b / grades[:, None], CORRECT
        wide = [
            matrices.exp_rand(rng, (n, n), -1000, 1000, np.float64) for _ in range(2)
        ]
        yield f"{n} full range", *wide, CORRECT
        yield f"{n} overflowing", a * 2.0**600, b * 2.0**600, CORRECT
    yield "64 x 64 float32", *(phi(64, 64).astype(np.float32) for _ in "ab"), CORRECT
    yield (
        "256 x 256 float32",
        *(phi(256, 256).astype(np.float32) for _ in "ab"),
        CORRECT,
    )


def float32_calls() -> Iterator[Call]:
    """Large float32 products: of data that a float64 product rounds, and of orthogonal
    columns, which cancel.
    """
    rng = np.random.default_rng(SEED)
    for n in (128, 256, 1024, 2048):
        normal = rng.standard_normal((2, n, n)).astype(np.float32)
        positive = rng.random((2, n, n)).astype(np.float32)
        bfloat16 = (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        integers = rng.integers(-1000, 1000, (2, n, n)).astype(np.float32)
        columns = np.linalg.qr(normal[0])[0]
        yield f"{n} normal", *normal, CORRECT
        yield f"{n} positive", *positive, CORRECT
        yield f"{n} values of bfloat16", *bfloat16, CORRECT
        yield f"{n} integers", *integers, CORRECT
        yield f"{n} Q^T Q", np.ascontiguousarray(columns.T), columns, CORRECT
    n = 512
    complex_pair = rng.standard_normal((4, n, n)).astype(np.float32)
    yield (
        f"{n} normal complex64",
        complex_pair[0] + 1j * complex_pair[1],
        complex_pair[2] + 1j * complex_pair[3],
        CORRECT,
    )


def check(name: str, a: np.ndarray, b: np.ndarray, options: dict[str, Any]) -> None:
    """Raise RuntimeError unless the first rows of the result are correctly rounded."""
    if options not in (CORRECT, {"result": "pair"}):
        return
    if a.ndim == b.ndim == 1:
        a, b = a[:LONGEST_CHECK], b[:LONGEST_CHECK]
    result = hg.matmul(a, b, **options)
    values = np.asarray(result[0] if isinstance(result, tuple) else result)
    if a.ndim == 3:
        a, b, values = a[0], b[0], values[0]
    left = np.atleast_2d(a)
    right = b if b.ndim == 2 else b[:, None]
    rows = max(LARGEST_CHECK // right.size, 1)
    want = correctly_rounded(left[:rows], right)
    if not np.array_equal(values.reshape(len(left), -1)[:rows], want):
        raise RuntimeError(f"{name}: not correctly rounded, and not timed")


def least_times(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The least processor times of functions that are called in turns."""
    least = [np.inf] * len(functions)
    calls_of = [1] * len(functions)
    for i, function in enumerate(functions):
        function()
        started = time.perf_counter()
        function()
        elapsed = time.perf_counter() - started
        calls_of[i] = max(int(1e-4 / max(elapsed, 1e-9)), 1)  # the clock's steps
    deadline = time.perf_counter() + seconds
    turns = 0
    while turns < 3 or time.perf_counter() < deadline:
        turns += 1
        for i, function in enumerate(functions):
            started_ns = time.thread_time_ns()
            for _ in range(calls_of[i]):
                function()
            elapsed = (time.thread_time_ns() - started_ns) / calls_of[i]
            least[i] = min(least[i], 1e-9 * elapsed)
    return least


def sums_of_the_core(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B rounded once by the sums of the core alone."""
    values = np.empty((1, len(a), b.shape[1]), np.float32)
    core.multiply(a, b, None, values, None, 0, 0)
    return values[0]


@np.errstate(all="ignore")
def measure_float32(seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each large float32 product."""
    for name, a, b, options in float32_calls():
        check(name, a, b, options)
        ways: list[Callable[[], Any]] = [
            lambda a=a, b=b: np.matmul(a, b),
            lambda a=a, b=b: hg.matmul(a, b, accuracy="correct"),
        ]
        if a.dtype == np.float32:
            ways.append(lambda a=a, b=b: sums_of_the_core(a, b))
        numpy_time, time_of_call, *times = least_times(ways, seconds)
        yield {
            "call": name,
            "numpy_us": round(1e6 * numpy_time, 3),
            "us": round(1e6 * time_of_call, 3),
            "ratio": round(time_of_call / numpy_time, 2),
            "ratio_of_sums": round(times[0] / numpy_time, 2) if times else "",
        }


@np.errstate(all="ignore")
def measure(seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each call."""
    for name, a, b, options in calls():
        check(name, a, b, options)

        def ours(a: Any = a, b: Any = b, options: Any = options) -> Any:
            return hg.matmul(a, b, **options)

        def native(a: Any = a, b: Any = b) -> Any:
            return np.matmul(a, b)

        numpy_time, time_of_call = least_times([native, ours], seconds)
        yield {
            "call": name,
            "numpy_us": round(1e6 * numpy_time, 3),
            "us": round(1e6 * time_of_call, 3),
            "ratio": round(time_of_call / numpy_time, 2),
        }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--output", default="results/cpu_core.csv")
    parser.add_argument("--instructions", help="of the core, such as avx2")
    parser.add_argument("--float32", action="store_true", help="large float32 products")
    options = parser.parse_args()
    core_version = hg.info().versions["core"]
    if options.instructions:
        from hifigemm import _core

        _core.use(options.instructions)
        core_version = f"compiled, {options.instructions} by choice"
    print(f"core: {core_version}")
    rows = []
    rows_of = measure_float32 if options.float32 else measure
    for row in rows_of(options.seconds):
        print(
            f"{row['call']:<28} {row['numpy_us']:>12} {row['us']:>12} {row['ratio']:>8}"
        )
        rows.append(row)
    write_csv(options.output, rows, phi=PHI, seed=SEED, core=core_version)


if __name__ == "__main__":
    main()
