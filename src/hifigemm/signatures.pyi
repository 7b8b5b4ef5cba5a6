"""What the public functions take and give back, for type checkers alone: at run time nothing is loaded from here.

Arrays of NumPy and lists give arrays of NumPy, tensors give tensors. A scalar, which is the product of two vectors of
NumPy, counts as an array, as it does for the operator @. Without PyTorch a tensor is anything, so overloads for arrays
come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hifigemm.accuracy import Accuracy
from hifigemm.plan import Plan, Prepared
from hifigemm.schemes import Scheme

__all__ = ["Addend", "Arrays", "Asked", "GemmAsked", "No", "Operand", "Out", "Scalar", "SchemeName", "Tensors", "Yes"]

Scalar: TypeAlias = complex | np.number[Any] | np.bool
_Row: TypeAlias = Sequence[Scalar | Sequence[Scalar | Sequence[Scalar]]]
Arrays: TypeAlias = NDArray[Any] | _Row | Prepared[NDArray[Any]]
Tensors: TypeAlias = Tensor | Prepared[Tensor]
Operand: TypeAlias = Arrays | Tensors
Addend: TypeAlias = NDArray[Any] | _Row | Scalar | None
Out = TypeVar("Out", bound=NDArray[Any] | Tensor)
No: TypeAlias = Literal[False]
Yes: TypeAlias = Literal[True]
SchemeName: TypeAlias = Literal["auto", "native", "multiword", "corrected", "ozaki1", "ozaki2"]

class Asked(TypedDict, total=False):
    """Keywords of `matmul` that have no say in what it returns."""

    accuracy: Accuracy
    scheme: SchemeName | Scheme
    engine: str | None
    plan: Plan | None
    workspace: int | None
    sync: bool

class GemmAsked(Asked, total=False):
    """Those of `gemm`."""

    alpha: Scalar
    beta: Scalar
    trans_a: Literal["N", "T", "C"]
    trans_b: Literal["N", "T", "C"]
