"""What the operators of other libraries do; `hifigemm` says it when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

matmul: Callable[..., Any]
"""The product of operands of which nothing but their numbers is asked."""

gemm: Callable[..., Any]
"""alpha A B + beta C of such operands."""

make_plan: Callable[..., Any]
"""The plan of a product."""


solution: Callable[..., Any]
"""The verified solution of systems, where `hifigemm.linalg` has been imported."""


def serve_meshes() -> None:
    """Have the products of DTensors made too, where a program has any; `hifigemm` puts
    another function here.
    """
