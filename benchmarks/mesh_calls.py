"""What does a product on a mesh cost, compared with the part of it that each rank makes?

    torchrun --nproc-per-node N -m benchmarks.mesh_calls [--sizes N,N] [--parts P,P]
    [--output FILE.csv] [--quick]

one card      the whole product on each card, all cards at the same time
local         a rank's rows of A times all of B, which lies on its card: nothing travels; `over_local` refers to it
0x0, 0x1, 1x0 operands sharded along these dimensions, the result in rows
gathered      two lines of a user: PyTorch gathers B, then the local product
native        PyTorch's product of the same DTensors as "0x0"
correct local, correct, default    correct rounding, and a count that follows from the operands, as "0x0"

Products have 14 moduli unless the part says otherwise; operands are phi matrices with
phi = 0.5. Calls are made one after the other, and the slowest card counts. `host_ms` is
the time in which the host issues a call while the card is idle before. A share is the
rate of all cards divided by their number and by the rate of one card.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import hifigemm as hg
from benchmarks.common import arrays_here, default_path, parse
from benchmarks.distributed import (
    largest,
    operands,
    process_group,
    same_bits,
    shard,
)
from hifigemm import distributed
from hifigemm.distributed.layout import extent
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.timing import Clock, CudaClock

Case = Callable[[], Any]

PARTS = (
    "one card",
    "local",
    "0x0",
    "0x1",
    "1x0",
    "gathered",
    "native",
    "correct local",
    "correct",
    "default",
)
FIXED: dict[str, Any] = {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")}
CORRECT: dict[str, Any] = {"accuracy": "correct"}
SECONDS = 0.6
"""Of the timed calls of a case."""
HOST_CALLS = 5
"""Behind an idle card: a queue of more launches than it holds would make the host wait."""


def cases_of(mesh: DeviceMesh, a: torch.Tensor, b: torch.Tensor) -> dict[str, Case]:
    """The products of two square matrices, by the name of their part."""
    n = len(a)
    rows = [Shard(0)]
    cols = [Shard(1)]
    span = extent(n, 0, rows, mesh.shape, mesh.get_coordinate() or ())
    own = a[span]
    a_rows = shard(a, mesh, rows)
    b_rows = shard(b, mesh, rows)
    a_cols = shard(a, mesh, cols)
    b_cols = shard(b, mesh, cols)

    def gathered() -> torch.Tensor:
        whole = b_rows.redistribute(placements=[Replicate()])
        return hg.matmul(own, whole.to_local(), **FIXED)

    def on_mesh(x: Any, y: Any, **options: Any) -> Case:
        return lambda: distributed.matmul(x, y, placements=rows, **options)

    return {
        "one card": lambda: hg.matmul(a, b, **FIXED),
        "local": lambda: hg.matmul(own, b, **FIXED),
        "0x0": on_mesh(a_rows, b_rows, **FIXED),
        "0x1": on_mesh(a_rows, b_cols, **FIXED),
        "1x0": on_mesh(a_cols, b_rows, **FIXED),
        "gathered": gathered,
        "native": lambda: a_rows @ b_rows,
        "correct local": lambda: hg.matmul(own, b, **CORRECT),
        "correct": on_mesh(a_rows, b_rows, **CORRECT),
        "default": on_mesh(a_rows, b_rows),
    }


def check(case: str, made: Any, a: torch.Tensor, b: torch.Tensor) -> bool | None:
    """Whether a product on the mesh has the bits of one card; None where it has no such
    promise.
    """
    if case not in ("0x0", "0x1", "1x0", "correct"):
        return None
    return same_bits(made, a, b, CORRECT if case == "correct" else FIXED)


def times(case: Case, clock: Clock, device: str, seconds: float) -> tuple[float, float]:
    """Seconds of a call, and seconds in which the host issues it, on the slowest rank."""

    def run(count: int) -> float:
        start = clock.mark()
        for _ in range(count):
            case()
        end = clock.mark()
        clock.wait(end)
        return largest(clock.seconds(start, end) / count, device)

    run(2)
    once = run(max(int(seconds / 4 / run(2)), 2))
    once = run(max(int(seconds / once), 3))

    dist.barrier()
    clock.wait(clock.mark())
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        case()
    host = (time.perf_counter() - start) / HOST_CALLS
    clock.wait(clock.mark())
    return once, largest(host, device)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark in a process of torchrun."""
    options = parse(__doc__, PARTS, sys.argv[1:] if argv is None else argv)
    with process_group():
        is_wrong = measure(options)
    return int(is_wrong)


def measure(options: Any) -> bool:
    """Write the rows of all sizes; True if a product had other bits."""
    arrays = arrays_here()
    mesh = init_device_mesh(arrays.device, (dist.get_world_size(),))
    clock: Clock = CudaClock() if arrays.device == "cuda" else Clock()
    path = options.output or default_path(f"mesh_calls_{mesh.size()}", arrays)
    seconds = SECONDS / 4 if options.quick else SECONDS
    rows: list[dict[str, Any]] = []
    is_wrong = False
    for n in options.sizes:
        found: dict[str, float] = {}
        a, b = operands(n, mesh.device_type)
        for name, case in cases_of(mesh, a, b).items():
            if name not in options.parts:
                continue
            is_same = check(name, case(), a, b)
            is_wrong |= is_same is False
            arrays.release()
            found[name], host = times(case, clock, mesh.device_type, seconds)
            row = {
                "n": n,
                "case": name,
                "same_bits": is_same,
                "ms": 1e3 * found[name],
                "host_ms": 1e3 * host,
                "over_local": _ratio(found, name, _local_of(name)),
                "share": _ratio(found, "one card", name, mesh.size()),
            }
            rows.append(row)
            if dist.get_rank() == 0:
                print("  ".join(f"{k} {_short(v)}" for k, v in row.items()), flush=True)
                write_csv(path, rows, **arrays.describe(), ranks=mesh.size())
    return is_wrong


def _local_of(name: str) -> str:
    """The product without traffic that a case is compared with."""
    return "correct local" if name.startswith("correct") else "local"


def _ratio(found: dict[str, float], x: str, y: str, times: int = 1) -> float | None:
    """The time of x over so many of y; None where one was not measured."""
    return found[x] / (times * found[y]) if x in found and y in found else None


def _short(x: object) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


if __name__ == "__main__":
    sys.exit(main())
