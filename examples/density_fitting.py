"""Hartree-Fock iterations with density-fitted Coulomb and exchange matrices, in FP64.

    python examples/density_fitting.py [--size N] [--device
    cpu|cuda] [--accuracy A] [--summary]

Orbitals C and three-index integrals B give J[m, n] = sum_P B[P, m, n] g[P], where
g[P] = sum_mn B[P, m, n] D[m, n] and D = C C^T, and K[m, n] = sum_Pi X[P, i, m] X[P, i,
n], where X[P, i, n] = sum_m C[m, i] B[P, m, n] (Weigend, A Fully Direct RI-HF
Algorithm, Phys. Chem. Chem. Phys. 4, 2002, doi:10.1039/b204199p). F = H + 2 J - K gives
the next density, by products too: second-order spectral projection (Niklasson, Phys.
Rev. B 66, 155115, 2002, doi:10.1103/PhysRevB.66.155115), with one step of McWeeny's
purification at the end.

Integrals are random and symmetric, in an orthonormal basis, with a gap between occupied
and virtual orbitals. Errors are |V v - f| / |f| for V = 2 J - K and a vector v, where f
comes from B and C by correctly rounded products with vectors, and |C^T C - I| / sqrt(n)
in the Frobenius norm, for n orbitals.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from common import Rows, compare, options, parser
from torch import Tensor

import hifigemm as hg

BLOCK = 64
"""Auxiliary functions whose half-transformed integrals are kept at a time."""
ITERATIONS = 3


def integrals(
    n: int, fitting: int, occupied: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """H and B; the norms of J and K are below the gap of H."""
    generator = torch.Generator(device).manual_seed(0)
    b = torch.randn(
        fitting, n, n, dtype=torch.float64, device=device, generator=generator
    )
    for part in b.split(BLOCK):
        part.add_(part.mT.clone()).mul_((0.1 / (fitting * n)) ** 0.5)
    h = torch.linspace(0, 1, n, dtype=torch.float64, device=device)
    h[:occupied] -= 3
    return torch.diag(h), b


def potential(b: Tensor, c: Tensor) -> Tensor:
    """2 J - K of the orbitals c."""
    v = 2 * torch.einsum("P,Pmn->mn", torch.einsum("Pmn,mn->P", b, c @ c.T), b)
    for part in b.split(BLOCK):
        x = torch.einsum("mi,Pmn->Pin", c, part)
        v -= torch.einsum("Pim,Pin->mn", x, x)
    return v


def density(f: Tensor, occupied: int) -> Tensor:
    """The projector onto the lowest eigenvectors of f."""
    radii = f.abs().sum(1) - f.diagonal().abs()
    # Gershgorin's bounds
    low, high = (f.diagonal() - radii).min(), (f.diagonal() + radii).max()
    x = (high * torch.eye(len(f), dtype=f.dtype, device=f.device) - f) / (high - low)
    for _ in range(100):
        y = x @ x
        trace, square = x.trace().item(), y.trace().item()
        if trace - square < 1e-9 * occupied:  # the step below squares what is left
            return 3 * y - 2 * (y @ x)
        x = (
            y
            if abs(square - occupied) < abs(2 * trace - square - occupied)
            else 2 * x - y
        )
    raise ArithmeticError("no convergence: is there a gap?")


def iterate(h: Tensor, b: Tensor, occupied: int) -> tuple[Tensor, Tensor]:
    """2 J - K and the orbitals that it is made of, after some iterations."""
    c = torch.eye(len(h), occupied, dtype=h.dtype, device=h.device)
    for _ in range(ITERATIONS):
        c = density(h + potential(b, c), occupied) @ c
        factor = torch.linalg.cholesky(c.T @ c)
        c = torch.linalg.solve_triangular(factor.T, c, upper=True, left=False)
    return potential(b, c), c


def potential_times(b: Tensor, c: Tensor, v: Tensor) -> Tensor:
    """(2 J - K) v, by products with vectors that are rounded once."""
    product = torch.zeros_like(v)
    with hg.emulate("correct"):
        d = (c @ c.T).flatten()
        for part in b.split(BLOCK):
            w = part @ v
            product += 2 * ((part.flatten(1) @ d) @ w) - torch.einsum(
                "Pmn,Pn->m", part, w @ c @ c.T
            )
    return product


def main(argv: Sequence[str] | None = None) -> dict[str, Rows]:
    """Run the program and return times and errors: of 2 J - K times a vector, and of
    orthonormality.
    """
    found = options(
        parser(
            __doc__, 64, 2560, "number of basis functions; a third of them are occupied"
        ),
        argv,
    )
    n, occupied = found.size, found.size // 3
    # in larger bases what 24 GiB hold, one GPU's part
    fitting = min(3 * n, 24 * 2**30 // (8 * n * n))
    h, b = integrals(n, fitting, occupied, found.device)
    v = torch.linspace(-1, 1, n, dtype=h.dtype, device=h.device).sin()

    def errors(result: tuple[Tensor, Tensor]) -> dict[str, float]:
        made, c = result
        f = potential_times(b, c, v)
        difference = torch.linalg.norm(
            hg.matmul(made, v, accuracy="correct") - f
        ) / torch.linalg.norm(f)
        identity = torch.eye(occupied, dtype=c.dtype, device=c.device)
        defect = hg.gemm(c.T, c, identity, beta=-1.0, accuracy="correct")
        return {
            "V v": difference.item(),
            "C^T C - I": torch.linalg.norm(defect).item() / occupied**0.5,
        }

    title = f"Density fitting, {n} basis and {fitting} auxiliary functions, float64"
    return {"float64": compare(found, title, lambda: iterate(h, b, occupied), errors)}


if __name__ == "__main__":
    main(sys.argv[1:])
