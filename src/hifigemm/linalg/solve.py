"""solve and inv: solutions of A x = b in which every entry is enclosed."""

from __future__ import annotations

from typing import Any, Literal, overload

from hifigemm.base.exceptions import PlanError
from hifigemm.base.transforms import belongs_to_torch
from hifigemm.linalg.solution import (
    SolutionReport,
    VerifiedSolution,
    solution_of_numbers,
)


@overload
def solve(
    a: Any,
    b: Any,
    *,
    accuracy: Literal["correct"] | None = None,
    return_report: Literal[False] = False,
) -> VerifiedSolution: ...
@overload
def solve(
    a: Any,
    b: Any,
    *,
    accuracy: Literal["correct"] | None = None,
    return_report: Literal[True],
) -> tuple[VerifiedSolution, SolutionReport]: ...
def solve(
    a: Any,
    b: Any,
    *,
    accuracy: Literal["correct"] | None = None,
    return_report: bool = False,
) -> VerifiedSolution | tuple[VerifiedSolution, SolutionReport]:
    """x with A x = b, the proof that A is nonsingular, and a radius for every entry.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n); float32, float64, complex64 or complex128. Integers count as
        float64, and those that it does not hold raise ValueError.
    b : array_like
        A vector (n,), if it has one axis, or matrices (..., n, k), as for
        `numpy.linalg.solve` of NumPy 2. Stacks broadcast.
    accuracy : None or "correct"
        "correct": every real component of x is that of the exact solution, rounded
        once, to nearest, ties to even.
    return_report : bool
        Return (solution, report).

    Returns
    -------
    VerifiedSolution, or (VerifiedSolution, SolutionReport)
        ``.x`` and ``.radius``: ``|x - x*| <= radius`` in every entry, ``x*`` being the
        exact solution for the entries of a and b as they are. Systems of float32 are solved in
        float64, and the radius has the rounding of x to float32 in it.

    Raises
    ------
    VerificationError
        Nothing could be proven: the matrix is singular or closer to a singular one than
        1e-30, an entry is Inf or NaN, an entry of x lies beyond the range of its dtype,
        or, for "correct", an entry cannot be told from a tie. Of a stack the attribute
        ``solution`` has what was proven. It is a `numpy.linalg.LinAlgError`, for
        tensors a torch.linalg.LinAlgError as well.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes that do not fit; arrays that JAX traces.
    PlanError
        A graph of CUDA is captured, or an unknown `accuracy`.

    Notes
    -----
    Rows and columns are scaled by powers of two as far as no bit is lost; if the largest
    entries of rows and columns are no good scale, others are tried. The proof is
    Theorem 10.2 of [Rum10], with products of `hifigemm.matmul` to the accuracy that it
    needs and residuals that are rounded once. Matrices of a GPU stay there, unless they
    are small; the host computes with vectors, and waits for them. The data are taken as
    exact: what their own uncertainty does to x is no part of the radius.

    Examples
    --------
    >>> import numpy as np, hifigemm.linalg
    >>> solution = hifigemm.linalg.solve([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    >>> solution.x
    array([-1.,  1.])
    """
    if accuracy is not None and accuracy != "correct":
        raise PlanError(f'accuracy={accuracy!r}: expected None or "correct"')
    if not return_report and belongs_to_torch(a, b):
        from hifigemm.linalg import torch_operators

        return VerifiedSolution(*torch_operators.solve(a, b, accuracy))
    return solution_of_numbers({"a": a, "b": b}, accuracy, return_report)


@overload
def inv(a: Any, *, return_report: Literal[False] = False) -> VerifiedSolution: ...
@overload
def inv(
    a: Any, *, return_report: Literal[True]
) -> tuple[VerifiedSolution, SolutionReport]: ...
def inv(
    a: Any, *, return_report: bool = False
) -> VerifiedSolution | tuple[VerifiedSolution, SolutionReport]:
    """The inverse of A with a radius for every entry: `solve` of the identity.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`.
    return_report : bool
        Return (solution, report).

    Returns
    -------
    VerifiedSolution, or (VerifiedSolution, SolutionReport)
        ``.x`` and ``.radius``: ``|x - A^-1| <= radius`` in every entry.

    Raises
    ------
    VerificationError, LinAlgError, ValueError, TypeError
        As for `solve`.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).x
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    if not return_report and belongs_to_torch(a):
        from hifigemm.linalg import torch_operators

        return VerifiedSolution(*torch_operators.inv(a))
    return solution_of_numbers({"a": a}, None, return_report)
