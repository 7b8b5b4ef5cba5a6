"""NumPy's products, each to an accuracy that you choose.

    >>> import hifigemm.numpy as hnp
    >>> float(hnp.dot([1e16, 1.0, -1e16], [1.0, 1.0, 1.0], accuracy="correct"))
    1.0

The functions have the arguments, shapes and errors of `numpy` and `numpy.linalg`, and
the options of `hifigemm.matmul`. They take NumPy arrays and array_likes, PyTorch
tensors on the CPU or a GPU, which PyTorch may differentiate, and arrays of CuPy and
JAX. The result belongs to the operands' library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hifigemm import api
from hifigemm.base.public import missing, shown
from hifigemm.functions.chains import matrix_power, multi_dot
from hifigemm.functions.congruences import congruence
from hifigemm.functions.contractions import (
    dot,
    inner,
    matvec,
    outer,
    tensordot,
    vdot,
    vecdot,
    vecmat,
)
from hifigemm.functions.einsum import einsum
from hifigemm.functions.products import BlocksReport, ChainReport
from hifigemm.functions.symmetric import herk, syrk
from hifigemm.functions.three_factors import ThreeFactorsReport
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName

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


def matmul(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    dtype: Any = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`hifigemm.matmul` with the positional arguments of `numpy.matmul`.

    Parameters
    ----------
    x1, x2 : array_like
        As a and b of `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    dtype : dtype, optional
        The dtype of the result, as `out_dtype` of `hifigemm.matmul`.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.matmul([[1e16, 1.0, -1e16]], [[1.0], [1.0], [1.0]], accuracy="correct")
    array([[1.]])
    """
    return api.matmul(
        x1,
        x2,
        accuracy=accuracy,
        scheme=scheme,
        out=out,
        engine=engine,
        workspace=workspace,
        out_dtype=dtype,
        return_report=return_report,
    )


def __getattr__(name: str) -> object:
    """Raise AttributeError, which says what to write for sums."""
    raise missing(__name__, name)


__dir__ = shown(globals())
