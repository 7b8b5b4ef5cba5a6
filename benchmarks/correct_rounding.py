"""What does a guarantee cost on the CPU? Time and extra memory of every way to a
product, against NumPy's own.

Matrices are phi matrices of [MOOI20] with phi = 0.5. Every result is checked before it
is timed: the correctly rounded ones in every entry against an exact integer product,
the others against the bound of their own report. A wrong result gets no time. Run from
the root of the repository:

    python -m benchmarks.correct_rounding [--sizes 256 512 1024 2048] [--repeats 7] [--output FILE.csv]
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.testing import matrices, reference
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.timing import Clock, Method, time_bursts

PHI = 0.5
SEED = 1


def ways() -> dict[str, dict[str, Any]]:
    """Name and options of each way to the product; engine "torch" where PyTorch is
    installed.
    """
    torch = (
        {"correct, torch": {"accuracy": "correct", "engine": "torch"}}
        if "torch" in hg.engines()
        else {}
    )
    return {
        "auto": {},
        "correct": {"accuracy": "correct"},
        **torch,
        "correct, ozaki1": {"accuracy": "correct", "scheme": "ozaki1"},
        "correct, ozaki2": {"accuracy": "correct", "scheme": "ozaki2"},
        "ozaki1 dp fp64": {"scheme": hg.Ozaki1(product="fp64", mode="dp")},
        "ozaki1 dp int8": {"scheme": hg.Ozaki1(product="int8", mode="dp")},
        "ozaki2 15 fast": {"scheme": hg.Ozaki2(num_moduli=15, scaling="fast")},
    }


def measure(n: int, repeats: int) -> list[dict[str, Any]]:
    """One row for each way to an n x n x n product."""
    rng = np.random.default_rng(SEED)
    a, b = (matrices.phi_matrix(rng, (n, n), PHI) for _ in range(2))
    exact = reference.correctly_rounded(a, b)
    calls: dict[str, Callable[[], Any]] = {"native": lambda: np.matmul(a, b)}
    reports = {}
    for name, options in ways().items():
        _, reports[name] = hg.matmul(a, b, return_report=True, **options)
        calls[name] = lambda options=options: hg.matmul(a, b, **options)

    def check(name: str, c: np.ndarray) -> bool:
        if name == "native":
            return bool(np.allclose(c, exact))
        if reports[name].correct:
            return bool(np.array_equal(c, exact))
        return bool(reference.meets_promise(c, a, b, reports[name].bound).all())

    for name, call in calls.items():
        if not check(name, call()):
            raise RuntimeError(f"{name!r} gave a wrong result and is not timed")
    times = time_bursts(
        calls, Clock(), Method(pause=0.0, warm=0, calls=(1, 1), bursts=repeats)
    )
    rows = []
    for name, timing in times.items():
        report = reports.get(name)
        rows.append(
            {
                "n": n,
                "way": name,
                "engine": report.engine if report else "",
                "scheme": str(report.scheme) if report else "",
                "seconds_median": timing.median,
                "seconds_p20": timing.low,
                "seconds_p80": timing.high,
                "ratio_to_native": timing.median / times["native"].median,
                "gflops": 2 * n**3 / timing.median / 1e9,
                "num_products": report.num_products if report else 1,
                "bound": report.bound if report else "",
                "correct_entries": float(np.mean(calls[name]() == exact)),
                "peak_memory_over_operands": peak_memory(calls[name])
                / (a.nbytes + b.nbytes),
            }
        )
    return rows


def peak_memory(call: Callable[[], Any]) -> int:
    """Largest number of bytes that NumPy held during the call, the result included, the
    operands not.
    """
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", default="results/correct_rounding_cpu.csv")
    options = parser.parse_args()
    rows = [row for n in options.sizes for row in measure(n, options.repeats)]
    print(
        f"{'n':>6} {'way':<18} {'ms':>9} {'x native':>9} {'products':>9} {'correct':>8} {'memory':>7}"
    )
    for row in rows:
        print(
            f"{row['n']:>6} {row['way']:<18} {row['seconds_median'] * 1e3:>9.2f} {row['ratio_to_native']:>9.2f} "
            f"{row['num_products']:>9} {row['correct_entries']:>8.1%} {row['peak_memory_over_operands']:>7.1f}"
        )
    write_csv(options.output, rows, phi=PHI, seed=SEED)


if __name__ == "__main__":
    main()
