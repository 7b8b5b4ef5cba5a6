"""What a verified solution costs beside an ordinary one: `hifigemm.linalg.solve` beside
`numpy.linalg.solve` on a CPU, beside `torch.linalg.solve` on a GPU.

One right side, normal entries. Both are timed in turns, after two calls of each; `least`
and `median` are of all turns, and so are their ratios. On a CPU each is timed in a row as
well: a small `numpy.linalg.solve` takes half of its time when nothing runs between two
calls; and crlin beside them, where it is installed. On a GPU a turn ends when the device
is done, and rows of the steps inside follow.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.linalg_solve --device cpu
    python -m benchmarks.linalg_solve --device cuda --output results/linalg_solve_h200.csv
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import cuda_is_usable

try:
    import crlin
except ImportError:
    crlin = None

SIZES = {"cpu": "10,100,1000", "cuda": "4096,8192,16384"}
SEED = 43
WARMUPS = 2
LARGEST_IN_DETAIL = 8192
TURNS = {10: 500, 100: 100}
"""Of sizes up to these; larger ones take few turns."""

Row = dict[str, Any]
Call = Callable[[], Any]


def turns(n: int, device: str) -> int:
    """How often both are timed."""
    if device == "cuda":
        return 3 if n > 10000 else 7
    return next((count for size, count in TURNS.items() if n <= size), 7)


def timed(calls: list[Call], count: int, finish: Call) -> list[list[float]]:
    """Seconds of each call in each turn."""
    for _ in range(WARMUPS):
        for call in calls:
            call()
    finish()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for call, times in zip(calls, seconds):
            start = time.perf_counter()
            call()
            finish()
            times.append(time.perf_counter() - start)
    return seconds


def beside_numpy(n: int, dtype: str) -> Row:
    """The row of one size on the CPU."""
    rng = np.random.default_rng(SEED)
    a = rng.standard_normal((n, n)).astype(dtype)
    b = rng.standard_normal(n).astype(dtype)
    calls: list[Call] = [
        lambda: np.linalg.solve(a, b),
        lambda: hg.linalg.solve(a, b),
        lambda: hg.linalg.solve(a, b, accuracy="correct"),
    ]
    count = turns(n, "cpu")
    alone = [min(timed([call], count, lambda: None)[0]) for call in calls[:2]]
    if crlin is not None and dtype == "float64":
        calls.append(lambda: crlin.solve(a, b))
    plain, ours, correct, *others = timed(calls, count, lambda: None)
    line = row(n, dtype, plain, ours, correct)
    line["ratio in a row"] = alone[1] / alone[0]
    line["ratio of crlin"] = min(others[0]) / min(plain) if others else ""
    return line


def beside_torch(n: int, dtype: str, is_detailed: bool) -> Iterator[Row]:
    """The rows of one size on the GPU; in detail with "correct" and the steps inside."""
    import torch

    generator = torch.Generator("cuda").manual_seed(SEED)
    kind = getattr(torch, dtype)
    a = torch.randn((n, n), dtype=kind, device="cuda", generator=generator)
    b = torch.randn(n, dtype=kind, device="cuda", generator=generator)
    count = turns(n, "cuda")
    calls: list[Call] = [
        lambda: torch.linalg.solve(a, b),
        lambda: hg.linalg.solve(a, b),
    ]
    if is_detailed:
        calls.append(lambda: hg.linalg.solve(a, b, accuracy="correct"))
    yield row(n, dtype, *timed(calls, count, torch.cuda.synchronize))
    if is_detailed:
        steps = steps_on_gpu(a, b)
        seconds = timed(list(steps.values()), count, torch.cuda.synchronize)
        for name, times in zip(steps, seconds):
            yield {"n": n, "dtype": dtype, "what": name, **summary(times)}


def steps_on_gpu(a: Any, b: Any) -> dict[str, Call]:
    """Parts of a verified solution, each from what the ones before it left."""
    import torch

    from hifigemm.engines.device_array import wrap
    from hifigemm.linalg.arrays import correct_residual
    from hifigemm.linalg.certificate import Residual, prove
    from hifigemm.linalg.inverse import approximate_inverse
    from hifigemm.linalg.refinement import enclosure
    from hifigemm.linalg.scaling import scaled_system

    system = scaled_system(wrap(a), wrap(b[:, None]))
    inverse = approximate_inverse(system.a)
    certificate = prove(system.a, inverse)
    x = certificate.image(system.b)
    q = Residual([correct_residual(system.a, x, system.b)])
    return {
        "torch.linalg.inv": lambda: torch.linalg.inv(a),
        "torch.linalg.lu_factor": lambda: torch.linalg.lu_factor(a),
        "scaling": lambda: scaled_system(wrap(a), wrap(b[:, None])),
        "inverse": lambda: approximate_inverse(system.a),
        "certificate": lambda: prove(system.a, inverse),
        "product of the certificate": lambda: hg.matmul(
            inverse.tensor, system.a.tensor, accuracy=certificate.accuracy
        ),
        "refinement": lambda: enclosure(system, certificate, 1),
        "residual": lambda: correct_residual(system.a, x, system.b),
        "update": lambda: certificate.update(q),
    }


def row(
    n: int,
    dtype: str,
    plain: list[float],
    ours: list[float],
    correct: list[float] | None = None,
) -> Row:
    """Times of both and their ratios."""
    return {
        "n": n,
        "dtype": dtype,
        "what": "solve",
        **summary(ours),
        "ordinary": min(plain),
        "ratio of least": min(ours) / min(plain),
        "ratio of medians": float(np.median(ours) / np.median(plain)),
        "ratio of correct": min(correct) / min(plain) if correct else "",
    }


def summary(seconds: list[float]) -> Row:
    """Least and median."""
    return {"least": min(seconds), "median": float(np.median(seconds))}


def main() -> None:
    """Time and write."""
    here = "cuda" if cuda_is_usable() else "cpu"
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=sorted(SIZES), default=here)
    parser.add_argument("--sizes", help="(default: by device)")
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--output", type=Path, default="results/linalg_solve.csv")
    options = parser.parse_args()
    rows: list[Row] = []
    for dtype in options.dtypes.split(","):
        for size in (options.sizes or SIZES[options.device]).split(","):
            n = int(size)
            if options.device == "cuda":
                is_detailed = dtype == "float64" and n <= LARGEST_IN_DETAIL
                found = beside_torch(n, dtype, is_detailed)
            else:
                found = iter([beside_numpy(n, dtype)])
            for line in found:
                rows.append(line)
                print(*line.values(), sep=", ", flush=True)
    device = ""
    if options.device == "cuda":
        import torch

        device = torch.cuda.get_device_name()
    write_csv(options.output, rows, seed=SEED, gpu=device)


if __name__ == "__main__":
    main()
