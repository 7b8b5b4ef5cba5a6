"""What the public functions take and give back, for type checkers alone: at run time nothing is loaded from here.

Arrays of NumPy and lists give arrays of NumPy, tensors give tensors. A scalar, which is the product of two vectors of
NumPy, counts as an array, as it does for the operator @. A tensor that comes in is told by its looks: without PyTorch
its class could be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.operands.operands import Prepared
from hifigemm.schemes import Scheme

__all__ = [
    "Addend",
    "AnyAddend",
    "AnyTensor",
    "Arrays",
    "Asked",
    "Named",
    "No",
    "Numbers",
    "Operand",
    "OtherArray",
    "OtherNumbers",
    "OtherOperand",
    "Out",
    "Policy",
    "Scalar",
    "Scaled",
    "SchemeName",
    "TAddend",
    "Tensors",
    "TwoParts",
    "Yes",
]

Scalar: TypeAlias = complex | np.generic
_Row: TypeAlias = Sequence[Scalar | Sequence[Scalar | Sequence[Scalar]]]
Arrays: TypeAlias = NDArray[Any] | _Row | Prepared[NDArray[Any]]

class AnyTensor(Protocol):
    """What has the looks of a tensor."""

    @property
    def is_cuda(self) -> bool: ...
    @property
    def requires_grad(self) -> bool: ...

class OtherArray(Protocol):
    """What has the looks of an array of JAX."""

    def block_until_ready(self) -> Any: ...

Tensors: TypeAlias = AnyTensor | Prepared[AnyTensor]
Operand: TypeAlias = Arrays | Tensors
OtherOperand: TypeAlias = Tensors | OtherArray
Numbers: TypeAlias = NDArray[Any] | _Row | Scalar
OtherNumbers: TypeAlias = AnyTensor | OtherArray
Addend: TypeAlias = Numbers | None
TAddend: TypeAlias = AnyTensor | None
AnyAddend: TypeAlias = Addend | TAddend | OtherArray
Out = TypeVar("Out", bound=NDArray[Any] | AnyTensor)
No: TypeAlias = Literal[False]
Yes: TypeAlias = Literal[True]
TwoParts: TypeAlias = Literal["pair", "enclosure"]
SchemeName: TypeAlias = Literal[
    "auto", "native", "multiword", "corrected", "ozaki1", "ozaki2", "double-double"
]

class Named(TypedDict, total=False):
    """Keywords of all functions."""

    accuracy: Accuracy
    scheme: SchemeName | Scheme
    engine: str | None
    workspace: int | None

class Policy(Named, total=False):
    """Those of all products."""

    plan: Plan | None
    out_dtype: Any

class Asked(Policy, total=False):
    """Keywords of `matmul` that have no say in whose array it returns."""

    result: Literal["array", "int64", "object"]

class Scaled(Policy, total=False):
    """Those of `gemm`."""

    alpha: Scalar
    beta: Scalar
    trans_a: Literal["N", "T", "C"]
    trans_b: Literal["N", "T", "C"]
