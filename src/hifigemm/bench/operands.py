"""What is multiplied in a benchmark: sizes, dtype, family of inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hifigemm.study.matrices import EXPONENT_FAMILIES

__all__ = ["DTYPES", "FAMILIES", "Workload", "check_family", "phi_of"]

FAMILIES = ("uniform", "uniform01", "phi0.5", *EXPONENT_FAMILIES)
"""Uniform on (-1, 1) and on (0, 1); (rand - 0.5) exp(phi randn), any number for phi; the exponent ranges of [OY22]."""

DTYPES = ("float64", "float32", "complex128", "complex64")

_PHI = re.compile(r"phi(\d+(?:\.\d*)?)")


def check_family(family: str) -> None:
    """Raise ValueError unless the family is known."""
    if family not in FAMILIES and phi_of(family) is None:
        raise ValueError(f"no family {family!r}; known: {', '.join(FAMILIES)}, and phi with any number")


def phi_of(family: str) -> float | None:
    """The phi in the name of a family, None for other families."""
    found = _PHI.fullmatch(family)
    return float(found[1]) if found else None


@dataclass(frozen=True)
class Workload:
    """A stack of products of m x k by k x n matrices."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float64"
    family: str = "phi0.5"
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise ValueError(f"{self}: sizes start at 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        check_family(self.family)

    @property
    def is_complex(self) -> bool:
        """Whether entries are complex."""
        return self.dtype.startswith("complex")

    @property
    def real(self) -> str:
        """Dtype of the real components."""
        return {"complex128": "float64", "complex64": "float32"}.get(self.dtype, self.dtype)

    @property
    def u(self) -> float:
        """Unit roundoff of the result."""
        return float(np.finfo(self.real).eps) / 2

    @property
    def terms(self) -> int:
        """Real products in the sum behind a real component of the result."""
        return 2 * self.k if self.is_complex else self.k

    @property
    def operations(self) -> float:
        """2 m n k, and 8 m n k for complex entries, over the stack."""
        return (8.0 if self.is_complex else 2.0) * self.batch * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Bytes of both operands and the result."""
        entries = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * entries * np.dtype(self.dtype).itemsize

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Shape of a matrix or of a stack of them."""
        return (rows, columns) if self.batch == 1 else (self.batch, rows, columns)

    def __str__(self) -> str:
        stack = f"{self.batch} x " if self.batch > 1 else ""
        return f"{stack}{self.m} x {self.k} times {self.k} x {self.n}, {self.dtype}, {self.family}"
