"""Gaussian process regression in FP64 and FP32: log marginal likelihood, means and
variances of as many test points.

    python examples/gaussian_process.py [--size N] [--device
    cpu|cuda] [--accuracy A] [--summary]

The method is Alg. 2.1 of Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, with the periodic kernel of its Eq. (4.31). The Cholesky factorisation
and the triangular solves are recursive (Elmroth, Gustavson, Jonsson, Kagstrom, SIAM
Review 46, 2004, doi:10.1137/S0036144503428693): nearly all their operations are
products of large matrices, which ``hifigemm.emulate`` reaches. It does not reach into
``torch.linalg``, which takes the leaves: it factors them and inverts the factors, so
that solutions with them are products too.

The training points form a grid on a torus, and the test points are the same grid
shifted by half a cell. All matrices are block circulant then, and Fourier transforms
give the exact answers. The regression makes no use of that.

Entries of these matrices range over more orders of magnitude the shorter SCALE is, and
FP64 accuracy of every entry of a product takes more residue products then. With
SCALE = 0.6 and 16384 points most are left to FP64 units.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch
from common import Rows, compare, options, parser
from torch import Tensor

SCALE, NOISE = 1.5, 0.01
"""Length scale of the kernel and variance of the noise."""

Inverses = Tensor | tuple["Inverses", "Inverses"]
"""Of the leaves of a triangular matrix: of its only one, or of those of its halves."""


def grid(rows: int, columns: int, shift: float, device: torch.device) -> Tensor:
    """Points of a grid on a torus, in cells by which they are shifted, as vectors in
    four dimensions.
    """
    s, t = (
        torch.arange(n, dtype=torch.float64, device=device) for n in (rows, columns)
    )
    angles = torch.cartesian_prod(
        (s + shift) * (math.tau / rows), (t + shift) * (math.tau / columns)
    )
    return torch.cat([angles.cos(), angles.sin()], 1)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x - y|**2 / (2 SCALE**2)), where |x|**2 = |y|**2 = 2."""
    return ((x / SCALE) @ (y / SCALE).T).sub_(2 / SCALE**2).exp_()


def factor_(a: Tensor, leaf: int) -> Inverses:
    """Cholesky factor of a, in its lower triangle; the upper one is left undefined.
    Returns inverses of its leaves.
    """
    if len(a) <= leaf:
        a.copy_(torch.linalg.cholesky(a))
        return torch.linalg.solve_triangular(
            a, torch.eye(len(a), dtype=a.dtype, device=a.device), upper=False
        )
    h = len(a) // 2
    first = factor_(a[:h, :h], leaf)
    solve_(a[:h, :h], first, a[h:, :h].T)
    a[h:, h:].addmm_(a[h:, :h], a[h:, :h].T, alpha=-1)
    return first, factor_(a[h:, h:], leaf)


def solve_(l: Tensor, inverses: Inverses, b: Tensor) -> None:
    """Solution of L X = B for a lower triangular L, in place of b."""
    if isinstance(inverses, Tensor):
        b.copy_(inverses @ b)
        return
    h = len(l) // 2
    solve_(l[:h, :h], inverses[0], b[:h])
    b[h:].addmm_(l[h:, :h], b[:h], alpha=-1)
    solve_(l[h:, h:], inverses[1], b[h:])


def regress(x: Tensor, y: Tensor, tests: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log marginal likelihood of y, means and variances at the test points."""
    leaf = max(32, len(x) // 32)
    l, z, v = kernel(x, x), y[:, None].clone(), kernel(x, tests)
    l.diagonal().add_(NOISE)
    inverses = factor_(l, leaf)
    solve_(l, inverses, z)
    solve_(l, inverses, v)
    likelihood = (
        -z.square().sum() / 2
        - l.diagonal().log().sum()
        - len(y) / 2 * math.log(math.tau)
    )
    return likelihood, v.T @ z[:, 0], 1 - torch.linalg.vector_norm(v, dim=0).square()


def regress_by_fourier(
    first: Tensor, y: Tensor, cross: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `regress`, of the first columns of the kernel matrices and of y, all as
    grids.
    """
    values, waves = torch.fft.fft2(first).real + NOISE, torch.fft.fft2(cross)
    weights, n = torch.fft.fft2(y) / values, y.numel()
    fit = (weights * torch.fft.fft2(y).conj()).real.sum() / n
    likelihood = -(fit + values.log().sum() + n * math.log(math.tau)) / 2
    means = torch.fft.ifft2(waves.conj() * weights).real.flatten()
    return likelihood, means, 1 - (waves.abs().square() / values).sum() / n


def main(argv: Sequence[str] | None = None) -> dict[str, Rows]:
    """Run the program and return times and errors: of the likelihood per point, of
    means and of variances.
    """
    found = options(
        parser(__doc__, 1024, 32768, "number of training points, and of test points"),
        argv,
    )
    rows = max(d for d in range(1, math.isqrt(found.size) + 1) if found.size % d == 0)
    shape = rows, found.size // rows
    x, tests = (grid(*shape, shift, found.device) for shift in (0.0, 0.5))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(found.size, dtype=torch.float64, generator=generator).to(
        found.device
    )
    y = x[:, 0] * x[:, 3] + torch.tanh(x[:, 1]) + NOISE**0.5 * noise
    grids = kernel(x, x[:1]), y, kernel(x, tests[:1])
    exact = regress_by_fourier(*(g.reshape(shape) for g in grids))

    def errors(result: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
        differences = [
            (a - b).abs().max().item() for a, b in zip(result, exact, strict=True)
        ]
        return dict(
            zip(
                ("likelihood", "mean", "variance"),
                (differences[0] / found.size, *differences[1:]),
            )
        )

    tables = {}
    for dtype in (torch.float64, torch.float32):
        given, name = [points.to(dtype) for points in (x, y, tests)], str(dtype)[6:]
        title = f"Gaussian process, {found.size} points, {name}"
        tables[name] = compare(
            found, title, lambda given=given: regress(*given), errors
        )
    return tables


if __name__ == "__main__":
    main(sys.argv[1:])
