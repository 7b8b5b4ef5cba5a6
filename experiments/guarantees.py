"""Is the promise kept whatever the exponents, and by how much? The constant
|C - AB| / (u |A||B|) over families and n.

    python -m experiments.guarantees [--sizes 64 256] [--device cuda] [--limit 120] [--output results/guarantees.csv]

Families: experiments/grading.py. Each is multiplied for "fp64", r = max(4, sqrt(n) / 4)
u, for r = 1e-13, and for "correct", by "auto" and by schemes that must keep their
promise or refuse. The judge is exact; it looks at `--sample` rows and columns, the same
of both so that the diagonal is among their entries, with all of k = n. u = 2**-53. An
error of half a unit in the last place alone can be a constant of 1. The native product
stands beside.

With --device cuda the operands are CUDA tensors. After `--limit` seconds no further
product is begun; what is missing is said at the end and left out of the file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.grading import FAMILIES, make_pair
from hifigemm.base.formats import FP64
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.environment import write_csv

SEED = 8
ACCURACIES: tuple[float | str, ...] = ("fp64", 1e-13, "correct")


def methods(device: str) -> dict[str, Any]:
    """Schemes by name. Slices go to the widest exact product that is quick on the
    device.
    """
    slices = hg.Ozaki1(product="int8" if device == "cuda" else "fp64")
    return {
        "auto": "auto",
        "Ozaki II, fast scaling": hg.Ozaki2(scaling="fast"),
        "Ozaki II, accurate scaling": hg.Ozaki2(),
        "Ozaki I": slices,
    }


class Operands:
    """A pair on a device, with the judge of a sample of its product."""

    def __init__(self, family: str, n: int, sample: int, device: str) -> None:
        a, b = make_pair(family, n, SEED)
        at = np.sort(
            np.random.default_rng(SEED).choice(n, min(n, sample), replace=False)
        )
        self._where = np.ix_(at, at)
        self._exact = ExactProduct(a[at], b[:, at])
        self.a, self.b = (self._moved(x, device) for x in (a, b))

    @staticmethod
    def _moved(x: np.ndarray, device: str) -> Any:
        if device == "cpu":
            return x
        import torch

        return torch.from_numpy(x).to(device)

    def judge(self, c: Any, bound: float) -> tuple[float, bool]:
        """Largest error in units of u |A||B|, and whether the bound was kept."""
        sampled = (c if isinstance(c, np.ndarray) else c.cpu().numpy())[self._where]
        return self._exact.error(sampled) / FP64.u, bool(
            self._exact.meets(sampled, bound).all()
        )


def measure(
    family: str,
    n: int,
    operands: Operands,
    accuracy: float | str,
    method: str,
    scheme: Any,
) -> dict[str, Any]:
    """One line: what was taken, what was promised, what came out; or that it was
    refused.
    """
    row: dict[str, Any] = {
        "family": family,
        "n": n,
        "accuracy": accuracy,
        "method": method,
    }
    try:
        c, report = hg.matmul(
            operands.a, operands.b, accuracy=accuracy, scheme=scheme, return_report=True
        )
    except hg.AccuracyError:
        return row | {"outcome": "refused"}
    constant, kept = operands.judge(c, report.bound)
    return row | {
        "outcome": "kept" if kept else "broken",
        "taken": report.scheme.name,
        "count": getattr(
            report.scheme, "num_moduli", getattr(report.scheme, "num_slices", 1)
        ),
        "num_products": report.num_products,
        "bound_over_u": report.bound / FP64.u,
        "constant": constant,
        "refined": "refined" in report.reason,
    }


def cases(sizes: list[int], sample: int, device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `measure`; every family in turn, so that a time limit leaves the
    last families out.
    """
    for family in FAMILIES:
        for n in sizes:
            operands = Operands(family, n, sample, device)
            yield family, n, operands, "fp64", "native", "native"
            for accuracy in ACCURACIES:
                for method, scheme in methods(device).items():
                    yield family, n, operands, accuracy, method, scheme


def main() -> None:
    """Measure, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument(
        "--sample", type=int, default=64, help="rows and columns that are judged"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--limit",
        type=float,
        default=600.0,
        help="seconds after which nothing further is begun",
    )
    parser.add_argument("--output", default="results/guarantees.csv")
    options = parser.parse_args()
    start, rows, missing = time.perf_counter(), [], 0
    for case in cases(options.sizes, options.sample, options.device):
        if time.perf_counter() - start > options.limit:
            missing += 1
            continue
        row = measure(*case)
        rows.append(row)
        shown = (
            row.get("taken", ""),
            row.get("count", ""),
            f"{row['constant']:.3g}" if "constant" in row else "",
        )
        print(
            f"{time.perf_counter() - start:6.1f} s",
            *list(row.values())[:5],
            *shown,
            flush=True,
        )
    write_csv(
        options.output, rows, seed=SEED, device=options.device, sample=options.sample
    )
    broken = [row for row in rows if row["outcome"] == "broken"]
    print(
        f"{len(rows)} products, {len(broken)} broken promises; {missing} not begun within {options.limit:g} s"
    )


if __name__ == "__main__":
    main()
