"""The unitary polar factor of a matrix, by Newton-Schulz iterations of fifth order, in
FP32 and FP64.

    python examples/newton_schulz.py [--size N] [--device
    cpu|cuda] [--accuracy A] [--summary]

X <- X + X (Q / 2 + 3/8 Q**2), where Q = I - X^T X, takes every singular value in (0, 1]
to 1, with cubic convergence: Bjorck and Bowie, An Iterative Algorithm for Computing the
Best Estimate of an Orthogonal Matrix, SIAM J. Numer. Anal. 8, 1971; Higham, Functions
of Matrices, 2008, Chapter 8. The iteration consists of products alone. Optimizers such
as Muon (Jordan and others, 2024) run it with other coefficients on every weight of a
network.

Errors are those of orthonormality, |U^T U - I| / sqrt(n) in the Frobenius norm, and for
up to 1024 columns |U - U'| / sqrt(n), where U' comes from a singular value
decomposition in FP64 and has an error of some 1e-15 itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from common import Rows, compare, options, parser
from torch import Tensor

import hifigemm as hg


def polar_factor(a: Tensor, limit: int = 60) -> Tensor:
    """The nearest matrix with orthonormal columns; iterations end when the defect of
    orthonormality does not fall.
    """
    x = a / torch.linalg.norm(a.T @ a).sqrt()  # no singular value is larger
    identity = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    before = float("inf")
    for _ in range(limit):
        q = torch.addmm(identity, x.T, x, alpha=-1)
        defect = torch.linalg.norm(q).item()
        if defect < 0.1 and defect > before / 2:
            return x
        before = defect
        x = torch.addmm(x, x, torch.addmm(q, q, q, beta=0.5, alpha=0.375))
    raise ArithmeticError(
        f"no convergence in {limit} iterations: the defect is {defect:.1e}"
    )


def nearest_by_svd(a: Tensor) -> Tensor:
    """The polar factor U V^T of A = U S V^T."""
    u, _, v = torch.linalg.svd(a.double(), full_matrices=False)
    return hg.matmul(u, v, accuracy="correct")


def main(argv: Sequence[str] | None = None) -> dict[str, Rows]:
    """Run the program and return times and errors of both dtypes."""
    found = options(
        parser(__doc__, 256, 16384, "number of rows; there are half as many columns"),
        argv,
    )
    columns, tables = found.size // 2, {}
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(
        found.size, columns, dtype=torch.float32, generator=generator
    ).to(found.device)
    reference = nearest_by_svd(matrix) if columns <= 1024 else None

    def errors(u: Tensor) -> dict[str, float]:
        u = u.double()
        identity = torch.eye(columns, dtype=u.dtype, device=u.device)
        defect = hg.gemm(u.T, u, identity, beta=-1.0, accuracy="correct")
        norms = {"U^T U - I": torch.linalg.norm(defect).item()}
        if reference is not None:
            norms["U - SVD"] = torch.linalg.norm(u - reference).item()
        return {name: norm / columns**0.5 for name, norm in norms.items()}

    for dtype in (torch.float32, torch.float64):
        a, name = matrix.to(dtype), str(dtype)[6:]
        title = f"Polar factor, {found.size} x {columns}, {name}"
        tables[name] = compare(found, title, lambda a=a: polar_factor(a), errors)
    return tables


if __name__ == "__main__":
    main(sys.argv[1:])
