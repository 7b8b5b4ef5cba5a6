"""A physics-informed network in FP64, trained with Adam: u_t + SPEED u_x = 0 on a
circle, u(0, x) = sin x.

    python examples/train_fp64.py [--size N] [--steps S] [--device
    cpu|cuda] [--accuracy A] [--summary]

The loss is the mean square of the residual and of the error at t = 0 (Raissi,
Perdikaris, Karniadakis, J. Comput. Phys. 378, 2019, doi:10.1016/j.jcp.2018.10.045).
Convection is one of the problems on which such networks fail in FP32 and converge in
FP64 (Xu, Liu, Nassereldine, Xiong, FP64 is All You Need, arXiv:2505.10949). One scope
of ``hifigemm.emulate`` holds the whole step: the network, its derivatives by t and x,
and the gradient of the loss.

The loss is that of the last step, the error the root mean square of u - sin(x - SPEED
t) then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

import torch
from common import Rows, compare, options, parser
from torch import Tensor, nn

SPEED = 2.0


def network(width: int, device: torch.device) -> nn.Module:
    """u of (t, cos x, sin x), so that it is periodic in x; the same weights in every
    call.
    """
    widths = 3, width, width, width, 1
    generator, layers = torch.Generator().manual_seed(0), []
    for m, n in pairwise(widths):
        layer = nn.Linear(m, n, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(
                torch.randn(n, m, dtype=torch.float64, generator=generator)
                / math.sqrt(m)
            )
            layer.bias.zero_()
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(device)


def evaluate(model: nn.Module, t: Tensor, x: Tensor) -> Tensor:
    """u at points (t, x)."""
    return model(torch.stack([t, x.cos(), x.sin()], 1))[:, 0]


def loss_of(model: nn.Module, t: Tensor, x: Tensor) -> Tensor:
    """Mean squares of the residual at points (t, x), and of the error at points (0,
    x).
    """
    t, x = t.clone().requires_grad_(), x.clone().requires_grad_()
    u_t, u_x = torch.autograd.grad(
        evaluate(model, t, x).sum(), (t, x), create_graph=True
    )
    start = evaluate(model, torch.zeros_like(x), x) - x.sin()
    return (u_t + SPEED * u_x).square().mean() + start.square().mean()


def train(width: int, steps: int, t: Tensor, x: Tensor) -> tuple[list[float], float]:
    """The loss before each step and after the last one, and the error then."""
    model = network(width, t.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3 / width)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, t, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses.append(loss_of(model, t, x).detach())
    with torch.no_grad():
        error = (evaluate(model, t, x) - (x - SPEED * t).sin()).square().mean().sqrt()
    return torch.stack(losses).tolist(), error.item()


def main(argv: Sequence[str] | None = None) -> dict[str, Rows]:
    """Run the program and return times, first and last losses, and errors."""
    made = parser(
        __doc__,
        32,
        4096,
        "width of the three hidden layers; there are about 4 N points",
    )
    made.add_argument(
        "--steps", type=int, default=20, help="steps of Adam; default: %(default)s"
    )
    found = options(made, argv)
    side = 2 * math.isqrt(found.size)
    times = torch.linspace(0, 1, side, dtype=torch.float64, device=found.device)
    places = torch.arange(side, dtype=torch.float64, device=found.device) * (
        math.tau / side
    )
    t, x = torch.cartesian_prod(times, places).unbind(1)

    def errors(result: tuple[list[float], float]) -> dict[str, float]:
        losses, error = result
        return {"first loss": losses[0], "last loss": losses[-1], "error": error}

    title = (
        f"Training, width {found.size}, {len(t)} points, {found.steps} steps, float64"
    )
    rows = compare(found, title, lambda: train(found.size, found.steps, t, x), errors)
    difference = abs(rows["emulated"]["last loss"] / rows["native"]["last loss"] - 1)
    milliseconds = ", ".join(
        f"{way} {1000 * row['seconds'] / found.steps:.3g}" for way, row in rows.items()
    )
    print(
        f"milliseconds a step: {milliseconds}; relative difference of the last losses: {difference:.1e}"
    )
    return {"float64": rows}


if __name__ == "__main__":
    main(sys.argv[1:])
