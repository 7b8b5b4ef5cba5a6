"""Types of `hifigemm.numpy`, for type checkers: arrays of NumPy and what becomes one give
arrays of NumPy, tensors give tensors. A scalar that NumPy returns counts as an array.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Literal, TypeAlias, overload

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from hifigemm.functions.products import BlocksReport as BlocksReport
from hifigemm.functions.products import ChainReport as ChainReport
from hifigemm.functions.three_factors import ThreeFactorsReport as ThreeFactorsReport
from hifigemm.model.plan import Report
from hifigemm.model.signatures import (
    AnyTensor,
    Named,
    No,
    Numbers,
    OtherArray,
    OtherNumbers,
    Yes,
)

__all__ = [
    "BlocksReport",
    "ChainReport",
    "ThreeFactorsReport",
    "congruence",
    "dot",
    "einsum",
    "herk",
    "inner",
    "matmul",
    "matrix_power",
    "matvec",
    "multi_dot",
    "outer",
    "syrk",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]

Axes: TypeAlias = (
    int | tuple[int | Sequence[int], int | Sequence[int]] | Sequence[Sequence[int]]
)

@overload
def matmul(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    dtype: Any = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def matmul(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    dtype: Any = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def matmul(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    dtype: Any = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def matmul(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    dtype: Any = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def matmul(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    dtype: Any = None,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def matmul(
    x1: OtherNumbers,
    x2: OtherNumbers,
    /,
    out: AnyTensor | OtherArray | None = None,
    *,
    dtype: Any = None,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def dot(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def dot(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def dot(
    a: AnyTensor,
    b: AnyTensor,
    out: AnyTensor | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def dot(
    a: AnyTensor,
    b: AnyTensor,
    out: AnyTensor | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def dot(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def dot(
    a: OtherNumbers,
    b: OtherNumbers,
    out: AnyTensor | OtherArray | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def inner(
    a: Numbers, b: Numbers, /, *, return_report: No = False, **options: Unpack[Named]
) -> NDArray[Any]: ...
@overload
def inner(
    a: Numbers, b: Numbers, /, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[NDArray[Any], Report]: ...
@overload
def inner(
    a: AnyTensor,
    b: AnyTensor,
    /,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def inner(
    a: AnyTensor, b: AnyTensor, /, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[Tensor, Report]: ...
@overload
def inner(
    a: Numbers, b: Numbers, /, *, return_report: bool, **options: Unpack[Named]
) -> Any: ...
@overload
def inner(
    a: OtherNumbers,
    b: OtherNumbers,
    /,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def outer(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def outer(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def outer(
    a: AnyTensor,
    b: AnyTensor,
    out: AnyTensor | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def outer(
    a: AnyTensor,
    b: AnyTensor,
    out: AnyTensor | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def outer(
    a: Numbers,
    b: Numbers,
    out: NDArray[Any] | None = None,
    *,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def outer(
    a: OtherNumbers,
    b: OtherNumbers,
    out: AnyTensor | OtherArray | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def vdot(
    a: Numbers, b: Numbers, /, *, return_report: No = False, **options: Unpack[Named]
) -> NDArray[Any]: ...
@overload
def vdot(
    a: Numbers, b: Numbers, /, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[NDArray[Any], Report]: ...
@overload
def vdot(
    a: AnyTensor,
    b: AnyTensor,
    /,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def vdot(
    a: AnyTensor, b: AnyTensor, /, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[Tensor, Report]: ...
@overload
def vdot(
    a: Numbers, b: Numbers, /, *, return_report: bool, **options: Unpack[Named]
) -> Any: ...
@overload
def vdot(
    a: OtherNumbers,
    b: OtherNumbers,
    /,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def vecdot(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    axis: int = -1,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def vecdot(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    axis: int = -1,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def vecdot(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    axis: int = -1,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def vecdot(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    axis: int = -1,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def vecdot(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    axis: int = -1,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def vecdot(
    x1: OtherNumbers,
    x2: OtherNumbers,
    /,
    out: AnyTensor | OtherArray | None = None,
    *,
    axis: int = -1,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def matvec(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def matvec(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def matvec(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def matvec(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def matvec(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def matvec(
    x1: OtherNumbers,
    x2: OtherNumbers,
    /,
    out: AnyTensor | OtherArray | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def vecmat(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def vecmat(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def vecmat(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def vecmat(
    x1: AnyTensor,
    x2: AnyTensor,
    /,
    out: AnyTensor | None = None,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def vecmat(
    x1: Numbers,
    x2: Numbers,
    /,
    out: NDArray[Any] | None = None,
    *,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def vecmat(
    x1: OtherNumbers,
    x2: OtherNumbers,
    /,
    out: AnyTensor | OtherArray | None = None,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def tensordot(
    a: Numbers,
    b: Numbers,
    axes: Axes = 2,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def tensordot(
    a: Numbers,
    b: Numbers,
    axes: Axes = 2,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report]: ...
@overload
def tensordot(
    a: AnyTensor,
    b: AnyTensor,
    axes: Axes = 2,
    *,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def tensordot(
    a: AnyTensor,
    b: AnyTensor,
    axes: Axes = 2,
    *,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report]: ...
@overload
def tensordot(
    a: Numbers,
    b: Numbers,
    axes: Axes = 2,
    *,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def tensordot(
    a: OtherNumbers,
    b: OtherNumbers,
    axes: Axes = 2,
    *,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: Numbers,
    out: NDArray[Any] | None = None,
    optimize: Any = False,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: Numbers,
    out: NDArray[Any] | None = None,
    optimize: Any = False,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report | ChainReport | ThreeFactorsReport]: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: AnyTensor,
    out: AnyTensor | None = None,
    optimize: Any = False,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: AnyTensor,
    out: AnyTensor | None = None,
    optimize: Any = False,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report | ChainReport | ThreeFactorsReport]: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: Numbers,
    out: NDArray[Any] | None = None,
    optimize: Any = False,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def einsum(
    operand: Numbers | OtherNumbers,
    sublist: Sequence[Hashable],
    /,
    *operands: object,
    out: NDArray[Any] | AnyTensor | OtherArray | None = None,
    optimize: Any = False,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def einsum(
    subscripts: str,
    /,
    *operands: OtherNumbers,
    out: AnyTensor | OtherArray | None = None,
    optimize: Any = False,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def multi_dot(
    arrays: Sequence[Numbers],
    *,
    out: NDArray[Any] | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def multi_dot(
    arrays: Sequence[Numbers],
    *,
    out: NDArray[Any] | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report | ChainReport | ThreeFactorsReport]: ...
@overload
def multi_dot(
    arrays: Sequence[AnyTensor],
    *,
    out: AnyTensor | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def multi_dot(
    arrays: Sequence[AnyTensor],
    *,
    out: AnyTensor | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report | ChainReport | ThreeFactorsReport]: ...
@overload
def multi_dot(
    arrays: Sequence[Numbers],
    *,
    out: NDArray[Any] | None = None,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def multi_dot(
    arrays: Sequence[OtherNumbers],
    *,
    out: AnyTensor | OtherArray | None = None,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def matrix_power(
    a: Numbers, n: int, *, return_report: No = False, **options: Unpack[Named]
) -> NDArray[Any]: ...
@overload
def matrix_power(
    a: Numbers, n: int, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[NDArray[Any], Report | ChainReport | ThreeFactorsReport]: ...
@overload
def matrix_power(
    a: AnyTensor, n: int, *, return_report: No = False, **options: Unpack[Named]
) -> Tensor: ...
@overload
def matrix_power(
    a: AnyTensor, n: int, *, return_report: Yes, **options: Unpack[Named]
) -> tuple[Tensor, Report | ChainReport | ThreeFactorsReport]: ...
@overload
def matrix_power(
    a: Numbers, n: int, *, return_report: bool, **options: Unpack[Named]
) -> Any: ...
@overload
def matrix_power(
    a: OtherNumbers, n: int, *, return_report: bool = False, **options: Unpack[Named]
) -> Any: ...
@overload
def syrk(
    a: Numbers,
    trans: Literal["N", "T"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def syrk(
    a: Numbers,
    trans: Literal["N", "T"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report | BlocksReport]: ...
@overload
def syrk(
    a: AnyTensor,
    trans: Literal["N", "T"] = "N",
    *,
    out: AnyTensor | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def syrk(
    a: AnyTensor,
    trans: Literal["N", "T"] = "N",
    *,
    out: AnyTensor | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report | BlocksReport]: ...
@overload
def syrk(
    a: Numbers,
    trans: Literal["N", "T"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def syrk(
    a: OtherNumbers,
    trans: Literal["N", "T"] = "N",
    *,
    out: AnyTensor | OtherArray | None = None,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def herk(
    a: Numbers,
    trans: Literal["N", "C"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def herk(
    a: Numbers,
    trans: Literal["N", "C"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], Report | BlocksReport]: ...
@overload
def herk(
    a: AnyTensor,
    trans: Literal["N", "C"] = "N",
    *,
    out: AnyTensor | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def herk(
    a: AnyTensor,
    trans: Literal["N", "C"] = "N",
    *,
    out: AnyTensor | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, Report | BlocksReport]: ...
@overload
def herk(
    a: Numbers,
    trans: Literal["N", "C"] = "N",
    *,
    out: NDArray[Any] | None = None,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def herk(
    a: OtherNumbers,
    trans: Literal["N", "C"] = "N",
    *,
    out: AnyTensor | OtherArray | None = None,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
@overload
def congruence(
    c: Numbers,
    s: Numbers,
    *,
    out: NDArray[Any] | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> NDArray[Any]: ...
@overload
def congruence(
    c: Numbers,
    s: Numbers,
    *,
    out: NDArray[Any] | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[NDArray[Any], ChainReport | ThreeFactorsReport]: ...
@overload
def congruence(
    c: AnyTensor,
    s: AnyTensor,
    *,
    out: AnyTensor | None = None,
    return_report: No = False,
    **options: Unpack[Named],
) -> Tensor: ...
@overload
def congruence(
    c: AnyTensor,
    s: AnyTensor,
    *,
    out: AnyTensor | None = None,
    return_report: Yes,
    **options: Unpack[Named],
) -> tuple[Tensor, ChainReport | ThreeFactorsReport]: ...
@overload
def congruence(
    c: Numbers,
    s: Numbers,
    *,
    out: NDArray[Any] | None = None,
    return_report: bool,
    **options: Unpack[Named],
) -> Any: ...
@overload
def congruence(
    c: OtherNumbers,
    s: OtherNumbers,
    *,
    out: AnyTensor | OtherArray | None = None,
    return_report: bool = False,
    **options: Unpack[Named],
) -> Any: ...
