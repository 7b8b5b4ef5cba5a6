"""Training of a network whose layers are spread over processes by PyTorch's own tensor
parallelism, with weights that their number does not change.

    torchrun --nproc-per-node P examples/tensor_parallel_training.py [--width N]
    [--steps N] [--device cpu|cuda] [--accuracy A]

The first layer is cut by its outputs (ColwiseParallel), the second one by its inputs
(RowwiseParallel), so that its sums are spread over all ranks. Natively each step rounds
them in another way for another P, and the digest of the weights changes. In a scope of
`hg.emulate` all products of the forward and the backward pass are correctly rounded,
and the digest is that of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import hifigemm as hg

RATE = 2.0**-9
ROWS = 32
"""Samples of a step."""


def network(width: int, device: str) -> nn.Sequential:
    """Two layers, the same for every number of ranks. Biases are left out: PyTorch adds
    up their gradients, in an order that depends on shapes.
    """
    random = torch.Generator().manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(width, 4 * width, bias=False),
        nn.Tanh(),
        nn.Linear(4 * width, width, bias=False),
    ).double()
    with torch.no_grad():
        for weight in layers.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random).double() / width)
    return layers.to(device)


def train(layers: nn.Module, width: int, steps: int, device: str) -> float:
    """The loss of the last step."""
    random = torch.Generator().manual_seed(1)
    descent = torch.optim.SGD(layers.parameters(), RATE)
    last = 0.0
    for _ in range(steps):
        x = torch.randn(ROWS, width, generator=random).double().to(device)
        descent.zero_grad()
        loss = (layers(x) - x.sin()).square().sum()
        loss.backward()
        descent.step()
        last = loss.item()
    return last


def digest(layers: nn.Module) -> str:
    """A few letters that change with every bit of the weights."""
    found = hashlib.sha256()
    for weight in layers.parameters():
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        found.update(whole.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:12]


def run(mesh: DeviceMesh, width: int, steps: int, accuracy: str) -> dict[str, str]:
    """The digest of both ways, and of one process in a scope; rank 0 prints them."""
    device = mesh.device_type
    found = {}
    for way in ("native", "emulated", "one process, emulated"):
        scope = hg.emulate(accuracy, min_size=0)
        if way == "native":
            scope = hg.emulate(scheme="native")
        with scope:
            layers: nn.Module = network(width, device)
            if way != "one process, emulated":
                plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
                layers = parallelize_module(layers, mesh, plan)
            loss = train(layers, width, steps, device)
        found[way] = digest(layers)
        if dist.get_rank() == 0:
            print(f"{way:21}  {mesh.size()} ranks  loss {loss:.6f}  bits {found[way]}")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run in a process of torchrun."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--width", type=int, default=24, metavar="N")
    made.add_argument("--steps", type=int, default=5, metavar="N")
    made.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: %(default)s",
    )
    made.add_argument(
        "--accuracy", default="correct", help="of the products; default: %(default)s"
    )
    options = made.parse_args(argv)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(options.device, (int(os.environ["WORLD_SIZE"]),))
    run(mesh, options.width, options.steps, options.accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
