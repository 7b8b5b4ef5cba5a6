"""Linear algebra with proof: every answer has a bound that holds, or the call raises
`VerificationError`.

    >>> import hifigemm.linalg
    >>> hifigemm.linalg.solve([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]).x
    array([-1.,  1.])

The functions take an approximate inverse or factor from NumPy or PyTorch, and prove the
result with products of `hifigemm.matmul` and `gemm` and with bounds that are rounded
upwards. The proof assumes nothing about the approximation.
"""

import sys

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.public import shown
from hifigemm.linalg.condition import Condition, cond
from hifigemm.linalg.definite import DefinitenessReport, is_positive_definite
from hifigemm.linalg.determinant import ComplexDeterminant, Determinant, det
from hifigemm.linalg.eigenvalues import eigvalsh
from hifigemm.linalg.log_determinant import LogDeterminant
from hifigemm.linalg.singular_values import svdvals
from hifigemm.linalg.slogdet import slogdet
from hifigemm.linalg.solution import SolutionReport, VerifiedSolution
from hifigemm.linalg.solve import inv, lstsq, solve
from hifigemm.linalg.values import VerifiedValues

__all__ = [
    "ComplexDeterminant",
    "Condition",
    "DefinitenessReport",
    "Determinant",
    "LogDeterminant",
    "SolutionReport",
    "VerificationError",
    "VerifiedSolution",
    "VerifiedValues",
    "cond",
    "det",
    "eigvalsh",
    "inv",
    "is_positive_definite",
    "lstsq",
    "slogdet",
    "solve",
    "svdvals",
]

__dir__ = shown(globals())

if "jax" in sys.modules:  # then programs may take results of calls outside of them
    from hifigemm.differentiable.jax_callbacks import register_as_tree

    for _result in (
        ComplexDeterminant,
        Condition,
        Determinant,
        LogDeterminant,
        VerifiedSolution,
        VerifiedValues,
    ):
        register_as_tree(_result)
