"""When do the GPUs of a mesh copy, and when do they multiply?

    torchrun --nproc-per-node N -m benchmarks.mesh_timeline [--size 8192]
    [--output FILE.csv]

Rows of A and of B, 14 moduli: a few products one after the other, of which PyTorch's
profiler sees the last two. A row of the file is a kernel or a copy of a GPU, in
microseconds since the first one. `python -m plots.experiments FILE.csv` draws them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import arrays_here, default_path
from benchmarks.distributed import operands, process_group
from benchmarks.mesh_calls import cases_of
from hifigemm.workshop.environment import write_csv

WARM_CALLS = 5
CALLS = 2
LANES = {"kernel": "multiplies", "gpu_memcpy": "copies"}
"""By the category of an event."""


def events_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernels and copies of a trace of PyTorch's profiler, by their start."""
    events = [
        {
            "lane": LANES[x["cat"]],
            "name": x["name"],
            "start_us": float(x["ts"]),
            "stop_us": float(x["ts"]) + float(x["dur"]),
        }
        for x in trace["traceEvents"]
        if x.get("cat") in LANES
    ]
    return sorted(events, key=lambda x: x["start_us"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark in a process of torchrun."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)

    with process_group():
        measure(options.size, options.output)
    return 0


def measure(size: int, output: Path | None) -> None:
    """Write what all GPUs do in the last products of a few."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    multiply = cases_of(mesh, *operands(size, "cuda"))["0x0"]
    for _ in range(WARM_CALLS):
        multiply()
    torch.cuda.synchronize()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        multiply()  # whose start the profiler delays
        for _ in range(CALLS):
            multiply()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = events_of(json.loads(trace.read_text()))

    gathered: list[Any] = [None] * mesh.size()
    dist.all_gather_object(gathered, events)
    if dist.get_rank() == 0:
        arrays = arrays_here()
        first = min(x["start_us"] for of_rank in gathered for x in of_rank)
        rows = [
            {
                "gpu": rank,
                **x,
                "start_us": round(x["start_us"] - first, 3),
                "stop_us": round(x["stop_us"] - first, 3),
            }
            for rank, of_rank in enumerate(gathered)
            for x in of_rank
        ]
        path = output or default_path(f"mesh_timeline_{mesh.size()}", arrays)
        write_csv(path, rows, **arrays.describe(), ranks=mesh.size(), n=size)
        print(path)


if __name__ == "__main__":
    sys.exit(main())
