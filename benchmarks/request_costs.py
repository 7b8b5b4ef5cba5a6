"""Does a weaker request ever cost more than a stronger one? Times of requests over
families of data, and where it does.

Every request multiplies the same n x n float64 matrices of
`hifigemm.testing.matrices.COST_FAMILIES`. A result is checked before it is timed: 24 x
24 of its entries against the exact product. The time of a cell is the least of several
calls, in turns with the other requests; a call is over when the device is done, as
calls that look at operands wait.

    python -m benchmarks.request_costs [--n 256] [--seconds 3] [--families "phi 2;Hilbert"] [--output FILE]
    python -m benchmarks.request_costs --device cuda --n 4096
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.testing.matrices import COST_FAMILIES
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.environment import write_csv

SEED = 1
SAMPLE = 24
MARGIN = 1.1
"""Times of one call differ by that much from run to run."""
REQUESTS: dict[str, dict[str, Any]] = {
    "None": {},
    "1e-6": {"accuracy": 1e-6},
    "1e-12": {"accuracy": 1e-12},
    "1e-14": {"accuracy": 1e-14},
    "Relative(1e-12)": {"accuracy": hg.Relative(1e-12)},
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
}
"""Options of `hifigemm.matmul`."""
ORDER = (
    ("1e-6", "1e-12"),
    ("1e-12", "1e-14"),
    ("1e-14", "correct"),
    ("1e-12", "Relative(1e-12)"),
    ("Relative(1e-12)", "correct"),
    ("None", "correct"),
    ("correct", "pair"),
)
"""A request and one that promises at least as much."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a weaker request costs more than a stronger
    one.
    """
    options = parse(sys.argv[1:] if argv is None else argv)
    device = Device(options.device)
    path = options.output or Path(f"results/request_costs_{device.short_name}.csv")
    rows: list[dict[str, Any]] = []
    violations: list[str] = []
    print(f"milliseconds at n = {options.n}: {', '.join(REQUESTS)}")

    for family in options.families:
        cells = measure(family, options.n, options.seconds, device)
        rows += cells
        times = {row["request"]: row["seconds_least"] for row in cells}
        print(
            f"{family:<36}"
            + "".join(f"{1e3 * seconds:>10.3g}" for seconds in times.values()),
            flush=True,
        )
        for weaker, stronger in ORDER:
            ratio = times[weaker] / times[stronger]
            if ratio > MARGIN:
                violations.append(
                    f"{family}: {weaker} costs {ratio:.2f} times {stronger}"
                )
        write_csv(path, rows, device=device.name, seed=SEED, seconds=options.seconds)

    print(f"{len(violations)} violations of the order by more than {MARGIN}")
    for violation in violations:
        print(f"  {violation}")
    return int(bool(violations))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="for the calls of one family, at least seven of each",
    )
    parser.add_argument(
        "--families",
        type=lambda text: text.split(";"),
        default=list(COST_FAMILIES),
        metavar="F;F",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="(default: by device)"
    )
    options = parser.parse_args(argv)
    unknown = set(options.families) - set(COST_FAMILIES)
    if unknown:
        parser.error(
            f"no family {', '.join(sorted(unknown))}; known: {', '.join(COST_FAMILIES)}"
        )
    return options


class Device:
    """Where operands lie, and what waits for the work on them."""

    def __init__(self, kind: str) -> None:
        self.is_cuda = kind == "cuda"
        self.name, self.short_name = "cpu", "cpu"
        if self.is_cuda:
            import torch

            self.torch = torch
            self.name = torch.cuda.get_device_name()
            self.short_name = (
                self.name.split()[1].lower()
                if self.name.startswith("NVIDIA ")
                else "cuda"
            )

    def put(self, x: np.ndarray) -> Any:
        """The array on the device."""
        return self.torch.from_numpy(x).cuda() if self.is_cuda else x

    def fetch(self, x: Any) -> np.ndarray:
        """The array on the host."""
        return x.cpu().numpy() if self.is_cuda else x

    def seconds(self, call: Callable[[], Any]) -> float:
        """Time of one call, until its result is there; on a CPU that of the processor,
        whatever else it does.
        """
        clock = time.perf_counter if self.is_cuda else time.process_time
        self.wait()
        start = clock()
        call()
        self.wait()
        return clock() - start

    def wait(self) -> None:
        """Return when the device is done."""
        if self.is_cuda:
            self.torch.cuda.synchronize()


def measure(family: str, n: int, budget: float, device: Device) -> list[dict[str, Any]]:
    """One row for each request, and one for the library's own product."""
    a, b = COST_FAMILIES[family](np.random.default_rng(SEED), n)
    x, y = device.put(a), device.put(b)
    rng = np.random.default_rng(SEED)
    sample = (
        np.sort(rng.choice(n, min(n, SAMPLE), replace=False)),
        np.sort(rng.choice(n, min(n, SAMPLE), replace=False)),
    )
    exact = ExactProduct(a[sample[0]], b[:, sample[1]])

    # Nothing is timed before its result has been checked.
    calls, reports = {}, {}
    for request, options in REQUESTS.items():
        result, reports[request] = hg.matmul(x, y, return_report=True, **options)
        parts = [
            device.fetch(part) for part in (result if request == "pair" else (result,))
        ]
        if not keeps(
            request, [part[np.ix_(*sample)] for part in parts], exact, reports[request]
        ):
            raise RuntimeError(
                f"{family}: {request} gave a wrong result and is not timed"
            )
        calls[request] = lambda options=options: hg.matmul(x, y, **options)

    # All requests in turns, so that a busy moment of the machine harms none of them
    # alone.
    least = dict.fromkeys(calls, float("inf"))
    stop, turns = time.perf_counter() + budget, 0
    names = list(calls)
    while turns < len(names) or time.perf_counter() < stop:
        for name in names:
            least[name] = min(least[name], device.seconds(calls[name]))
        # each comes after each other one, whose data are in the cache
        names.append(names.pop(0))
        turns += 1

    return [
        {
            "family": family,
            "n": n,
            "request": request,
            "seconds_least": least[request],
            "turns": turns,
            "scheme": str(reports[request].scheme),
            "num_products": reports[request].num_products,
            "bound": reports[request].bound,
            "reason": reports[request].reason,
        }
        for request in REQUESTS
    ]


def keeps(
    request: str, parts: list[np.ndarray], exact: ExactProduct, report: hg.Report
) -> bool:
    """True if the sampled entries keep what was asked for."""
    if request in ("correct", "pair"):
        return bool(np.array_equal(parts[0], exact.rounded))
    if request.startswith("Relative"):
        return exact.error(parts[0], relative=True) <= 1e-12
    return bool(exact.meets(parts[0], report.bound).all())


if __name__ == "__main__":
    sys.exit(main())
