"""Linear algebra with proof: every answer comes with a bound that holds, or the call
raises `VerificationError`.

The functions are made of products of `hifigemm.matmul` and `gemm`, of an approximate
inverse or factor from NumPy, which is trusted in nothing, and of bounds that are
rounded upwards.
"""

from hifigemm.exceptions import VerificationError
from hifigemm.linalg.solve import SolutionReport, VerifiedSolution, inv, solve

__all__ = [
    "SolutionReport",
    "VerificationError",
    "VerifiedSolution",
    "inv",
    "solve",
]
