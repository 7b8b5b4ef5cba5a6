"""Products behind the operators of other libraries, set by `hifigemm` at import to
break a circle of imports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

matmul: Callable[..., Any]
"""The product of untracked arrays: `api.product_of_numbers`."""

gemm: Callable[..., Any]
"""alpha A B + beta C of untracked arrays: `gemm.gemm_of_numbers`."""

make_plan: Callable[..., Any]
"""The plan of a product: `api.make_plan`."""


def serve_meshes() -> None:
    """Serve the products of DTensors too, where a program has any; `hifigemm` puts a
    function here that does.
    """
