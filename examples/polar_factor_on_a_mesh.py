"""The polar factor of a matrix that is spread over processes, with bits that their
number does not change.

    torchrun --nproc-per-node P examples/polar_factor_on_a_mesh.py [--size N] [--device
    cpu|cuda] [--accuracy A]

The iteration of Newton and Schulz, X <- 1.5 X - 0.5 X (X^T X), on DTensors whose rows
are sharded: the inner product of X^T X is spread over all ranks, that of the second
product over none. Natively the sums over ranks are rounded, and the digest of the
result changes with P; in a scope of `hg.emulate` it is the same for every P.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import hifigemm as hg

STEPS = 30


def spread_matrix(rows: int, columns: int, mesh: DeviceMesh) -> DTensor:
    """A random matrix, the same for every number of ranks, whose singular values lie
    below 1.
    """
    random = torch.Generator().manual_seed(0)
    x = torch.rand(rows, columns, dtype=torch.float64, generator=random) - 0.5
    return distribute_tensor(
        (x / (rows * columns) ** 0.5).to(mesh.device_type), mesh, [Shard(0)] * mesh.ndim
    )


def polar_factor(x: DTensor) -> DTensor:
    """The nearest matrix with orthonormal columns."""
    for _ in range(STEPS):
        x = (1.5 * x - 0.5 * (x @ (x.T @ x))).redistribute(placements=x.placements)
    return x


def digest(x: DTensor) -> str:
    """A few letters that change with every bit of the whole matrix."""
    return hashlib.sha256(x.full_tensor().cpu().numpy().tobytes()).hexdigest()[:12]


def run(mesh: DeviceMesh, size: int, accuracy: str) -> dict[str, str]:
    """The digest of both ways; rank 0 prints it with the time and the loss of
    orthonormality.
    """
    found = {}
    for way in ("native", "emulated"):
        scope = (
            hg.emulate(accuracy, min_size=0)
            if way == "emulated"
            else hg.emulate(scheme="native")
        )
        start = time.perf_counter()
        with scope:
            x = polar_factor(spread_matrix(2 * size, size, mesh))
            loss = (x.T @ x).full_tensor() - torch.eye(
                size, dtype=x.dtype, device=mesh.device_type
            )
        found[way] = digest(x)
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - start
            print(
                f"{way:8}  {mesh.size()} ranks  {seconds:6.3g} s  X^T X - I {loss.abs().max():.1e}  bits {found[way]}"
            )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run both ways in a process of torchrun."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--size",
        type=int,
        default=96,
        metavar="N",
        help="columns; there are twice as many rows",
    )
    made.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: %(default)s",
    )
    made.add_argument(
        "--accuracy",
        default="correct",
        help='"correct", or "fp64" on GPUs; default: %(default)s',
    )
    options = made.parse_args(argv)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(options.device, (int(os.environ["WORLD_SIZE"]),))
    run(mesh, options.size, options.accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
