"""How much of the rate of one GPU do several keep together? Products on a mesh, checked
bit for bit, then timed.

    torchrun --nproc-per-node N -m benchmarks.distributed [--sizes N,N] [--parts P,P]
    [--output FILE.csv] [--quick]

alone      square products on each card by itself, one card after the other: the rate that shares refer to
everywhere rows of A on each card, all of B on all: nothing travels
rows       rows of A and of B on each card
inner      columns of A and rows of B on each card: a sharded inner dimension
mesh       blocks of both on a mesh of two dimensions, where the number of cards has two factors
weak       as many rows on each card as the square product has in all
long       8192 x 262144 x 8192 with the inner dimension sharded, against one card's share of it
correct, complex    "rows" with correctly rounded entries, and for complex128, against the same on one card

Operands are phi matrices with phi = 0.5 and products have 15 moduli, unless the part
says otherwise. Each rank holds its part of the result against the product of the same
rows and columns on its own card. A share is the rate of all cards over the sum of their
rates alone. Times are sustained: the second half of a run without a pause, of the
slowest card. Where the name of a host leads to no address, gloo wants
GLOO_SOCKET_IFNAME=lo.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import hifigemm as hg
from benchmarks.common import arrays_here, default_path, parse
from hifigemm import distributed
from hifigemm.distributed.layout import extent
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.timing import Clock, CudaClock

PARTS = ("everywhere", "rows", "inner", "mesh", "weak", "long", "correct", "complex")
FIXED: dict[str, Any] = {"scheme": hg.Ozaki2(num_moduli=15, scaling="fast")}
LONG = 8192, 8192, 262144
SUSTAINED = 3.2
"""Seconds of a run, as in the other benchmarks."""


def matrix(
    shape: tuple[int, int], seed: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """A phi matrix, the same on all cards of a kind."""
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(shape, generator=random, dtype=dtype, device=device)
    for rows in x.split(1024):
        rows *= torch.exp(
            0.5
            * torch.randn(
                rows.shape, generator=random, dtype=torch.float64, device=device
            )
        )
    return x


def operands(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of a square product, whole on each card."""
    a, b = (matrix((n, n), seed, torch.float64, device) for seed in (0, 1))
    return a, b


@contextmanager
def process_group() -> Iterator[None]:
    """The group of a process of torchrun; each process has its own card where there are
    any.
    """
    is_cuda = torch.cuda.is_available()
    if is_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if is_cuda else "gloo", timeout=timedelta(minutes=10)
    )
    yield
    dist.barrier()
    dist.destroy_process_group()


def shard(x: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """The part of this rank, copied, of a matrix that all ranks have."""
    at = mesh.get_coordinate() or ()
    spans = tuple(extent(x.shape[i], i, placements, mesh.shape, at) for i in (0, 1))
    local = x[spans].clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=x.shape, stride=(x.shape[1], 1)
    )


def same_bits(
    made: DTensor, a: torch.Tensor, b: torch.Tensor, options: dict[str, Any]
) -> bool:
    """Whether all ranks find in their parts what one card makes of the same rows and
    columns.
    """
    mesh = made.device_mesh
    rows, cols = (
        extent(
            made.shape[i], i, made.placements, mesh.shape, mesh.get_coordinate() or ()
        )
        for i in (0, 1)
    )
    same = torch.equal(made.to_local(), hg.matmul(a[rows], b[:, cols], **options))
    return bool(largest(float(not same), mesh.device_type) == 0.0)


def largest(x: float, device: str) -> float:
    """The largest value of all ranks."""
    word = torch.tensor(x, dtype=torch.float64, device=device)
    dist.all_reduce(word, dist.ReduceOp.MAX)
    return float(word)


class Runner:
    """The rows of one run; rank 0 writes them as they come."""

    def __init__(self, options: Any) -> None:
        self.arrays = arrays_here()
        self.device = self.arrays.device
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.clock: Clock = CudaClock() if self.device == "cuda" else Clock()
        self.seconds = 0.4 if options.quick else SUSTAINED
        self.path: Path = options.output or default_path(
            f"distributed_{self.world}", self.arrays
        )
        self.rows: list[dict[str, Any]] = []
        self.mesh = init_device_mesh(self.device, (self.world,))
        self._alone: dict[Any, list[float]] = {}
        self.wrong = False

    def alone(
        self, shape: tuple[int, int, int], dtype: torch.dtype, options: dict[str, Any]
    ) -> list[float]:
        """Operations a second of each card by itself, one card after the other; noted
        once.
        """
        key = shape, dtype, str(options)
        if key in self._alone:
            return self._alone[key]
        (m, n, k), rates = shape, []
        a = matrix((m, k), 0, dtype, self.device)
        b = matrix((k, n), 1, dtype, self.device)
        out = torch.empty((m, n), dtype=dtype, device=self.device)
        for rank in range(self.world):
            own = 0.0
            if rank == self.rank:
                own = operations(shape, dtype) / self.sustained(
                    lambda: hg.matmul(a, b, out=out, **options)
                )
            rates.append(largest(own, self.device))
        self._alone[key] = rates
        self.note(
            {
                "part": "alone",
                **described(shape, dtype, options),
                "tflops_alone": " ".join(f"{r / 1e12:.1f}" for r in rates),
            }
        )
        return rates

    def measure(
        self,
        part: str,
        mesh: DeviceMesh,
        shape: tuple[int, int, int],
        left: Sequence[Any],
        right: Sequence[Any],
        dtype: torch.dtype = torch.float64,
        options: dict[str, Any] | None = None,
        reference: tuple[int, int, int] | None = None,
    ) -> None:
        """Check and time one product on a mesh."""
        options = FIXED if options is None else options
        (m, n, k), alone = shape, self.alone(reference or shape, dtype, options)
        a = matrix((m, k), 0, dtype, self.device)
        b = matrix((k, n), 1, dtype, self.device)
        x, y = shard(a, mesh, left), shard(b, mesh, right)
        made, report = distributed.matmul(x, y, **options, return_report=True)
        same = same_bits(made, a, b, options)
        self.wrong |= not same
        del a, b
        self.arrays.release()
        # C lies where the product leaves it, so that a run writes to the same memory.
        once = self.sustained(
            lambda: distributed.matmul(x, y, out=made, **options), together=True
        )
        rate = operations(shape, dtype) / once
        row = {
            "part": part,
            **described(shape, dtype, options),
            "mesh": "x".join(map(str, mesh.shape)),
            "left": str(tuple(left)),
            "right": str(tuple(right)),
            "seconds": once,
            "tflops_each": rate / self.world / 1e12,
            "share": rate / sum(alone),
            "share_of_slowest": rate / (self.world * min(alone)),
            "same_bits": same,
            "layout": report.reason,
        }
        self.note(row)

    def sustained(
        self, product: Callable[[], object], *, together: bool = False
    ) -> float:
        """Seconds of a call in the second half of a run; `together`, the run and its
        slowest rank are those of all.
        """

        def agreed(x: float) -> float:
            return largest(x, self.device) if together else x

        def run(count: int) -> float:
            start = self.clock.mark()
            for _ in range(count):
                product()
            end = self.clock.mark()
            self.clock.wait(end)
            return self.clock.seconds(start, end) / count

        run(2)
        half = max(math.ceil(self.seconds / 2 / agreed(run(2))), 2)
        for _ in range(half):
            product()
        return agreed(run(half))

    def note(self, row: dict[str, Any]) -> None:
        """Print a row and write all."""
        self.rows.append(row)
        if self.rank == 0:
            print(
                "  ".join(
                    f"{key} {value:.4g}"
                    if isinstance(value, float)
                    else f"{key} {value}"
                    for key, value in row.items()
                ),
                flush=True,
            )
            write_csv(
                self.path,
                self.rows,
                **self.arrays.describe(),
                ranks=self.world,
                sustained=self.seconds,
                cards=[
                    torch.cuda.get_device_name(i)
                    for i in range(torch.cuda.device_count())
                ],
            )


def described(
    shape: tuple[int, int, int], dtype: torch.dtype, options: dict[str, Any]
) -> dict[str, Any]:
    """The columns that say what is multiplied."""
    m, n, k = shape
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": str(dtype)[6:],
        "asked": " ".join(map(str, options.values())),
    }


def operations(shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Additions and multiplications of real numbers in one product."""
    return (8.0 if dtype.is_complex else 2.0) * math.prod(shape)


def run(
    runner: Runner, parts: Sequence[str], sizes: Sequence[int], *, quick: bool
) -> None:
    """All parts for all sizes."""
    mesh, world = runner.mesh, runner.world
    rows, cols, whole = [Shard(0)], [Shard(1)], [Replicate()]
    wide = next(
        (f for f in range(int(math.sqrt(world)), 1, -1) if world % f == 0), None
    )
    square = init_device_mesh(runner.device, (wide, world // wide)) if wide else None
    for n in sizes:
        cube = n, n, n
        if "everywhere" in parts:
            runner.measure("everywhere", mesh, cube, rows, whole)
        if "rows" in parts:
            runner.measure("rows", mesh, cube, rows, rows)
        if "inner" in parts:
            runner.measure("inner", mesh, cube, cols, rows)
        if "mesh" in parts and square is not None:
            runner.measure(
                "mesh", square, cube, [Shard(0), Shard(1)], [Shard(0), Shard(1)]
            )
        if "weak" in parts:
            runner.measure("weak", mesh, (n * world, n, n), rows, rows, reference=cube)
        if "correct" in parts:
            runner.measure(
                "correct", mesh, cube, rows, rows, options={"accuracy": "correct"}
            )
        if "complex" in parts and n <= 16384:
            runner.measure("complex", mesh, cube, rows, rows, torch.complex128)
    if "long" in parts:
        m, n, k = (256, 256, 8192) if quick or runner.device == "cpu" else LONG
        for options in (FIXED, {"accuracy": "correct"}):
            runner.measure(
                "long",
                mesh,
                (m, n, k),
                cols,
                rows,
                options=options,
                reference=(m, n, k // world),
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark in a process of torchrun."""
    options = parse(__doc__, PARTS, sys.argv[1:] if argv is None else argv)
    with process_group():
        runner = Runner(options)
        run(runner, options.parts, options.sizes, quick=options.quick)
    return int(runner.wrong)


if __name__ == "__main__":
    sys.exit(main())
