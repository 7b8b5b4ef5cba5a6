"""solve, inv and lstsq: solutions of A x = b in which every entry is enclosed."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.transforms import belongs_to_torch, check_untraced, is_traced
from hifigemm.linalg.least_squares import least_squares_of_numbers
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
    a_radius: Any = None,
    b_radius: Any = None,
    return_report: Literal[False] = False,
) -> VerifiedSolution: ...
@overload
def solve(
    a: Any,
    b: Any,
    *,
    accuracy: Literal["correct"] | None = None,
    a_radius: Any = None,
    b_radius: Any = None,
    return_report: Literal[True],
) -> tuple[VerifiedSolution, SolutionReport]: ...
def solve(
    a: Any,
    b: Any,
    *,
    accuracy: Literal["correct"] | None = None,
    a_radius: Any = None,
    b_radius: Any = None,
    return_report: bool = False,
) -> VerifiedSolution | tuple[VerifiedSolution, SolutionReport]:
    """x with A x = b, the proof that A is nonsingular, and a radius for every entry.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n); float32, float64, complex64 or complex128, and integers, which
        count as float64. Real numbers that it does not hold are taken exactly, see Notes.
    b : array_like
        A vector (n,), if it has one axis, or matrices (..., n, k), as for
        `numpy.linalg.solve` of NumPy 2. Stacks broadcast.
    accuracy : None or "correct"
        "correct": every real component of x is that of the exact solution, rounded
        once, to nearest, ties to even. Not with radii, as no one solution is exact then.
    a_radius, b_radius : array_like or number, optional
        How far each entry of a and b may lie from the true one: real numbers of 0 or more, of
        shapes that broadcast to those of a and b. For complex data they bound the modulus of
        the difference. x and radius then enclose the solutions of all systems with
        ``|a' - a| <= a_radius``, ``|b' - b| <= b_radius`` in every entry. The number 0 is
        the same as None.
    return_report : bool
        Return (solution, report).

    Returns
    -------
    VerifiedSolution, or (VerifiedSolution, SolutionReport)
        ``.x`` and ``.radius``: ``|x - x*| <= radius`` in every entry, ``x*`` being the
        exact solution for the entries of a and b as they are; with radii, the solution of each
        system within them. Systems of float32 are solved in float64, and the radius has the
        rounding of x to float32 in it.

    Raises
    ------
    VerificationError
        Nothing could be proven: the matrix is singular or closer to a singular one than
        1e-30, an entry is Inf or NaN, an entry of x lies beyond the range of its dtype,
        numbers that float64 does not hold would take too long, or, for "correct", an entry
        cannot be told from a tie. Or `a_radius` is too large: the attribute
        ``proven_factor`` says within how many times `a_radius` all matrices are proven
        nonsingular. Of a stack the attribute ``solution`` has what was proven. It is a
        `numpy.linalg.LinAlgError`, for tensors a torch.linalg.LinAlgError as well.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes that do not fit; radii that are negative, Inf or NaN; with radii or
        a report, arrays that JAX traces, and tensors that PyTorch differentiates.
    PlanError
        A graph of CUDA is captured, an unknown `accuracy`, or "correct" with radii.

    Notes
    -----
    Rows and columns are scaled by powers of two as far as no bit is lost; if the largest
    entries of rows and columns are no good scale, others are tried. The proof is
    Theorem 10.2 of [Rum10], with products of `hifigemm.matmul` to the accuracy that it
    needs and residuals that are rounded once. Matrices of a GPU stay there, unless they
    are small; the host computes with vectors, and waits for them.

    Real matrices of 64 rows and more that are triangular, or have few diagonals, are
    recognised by their zeros on the host. Their inverse is made row by row, and not kept.

    PyTorch and JAX differentiate x, batch the call and compile it, unless it has radii of the
    data or a report. The radius of x has no gradient.

    Without `a_radius` and `b_radius` the data are taken as exact. With them the proof is
    ``|I - R A'| <= |I - R A| + |R| a_radius`` for an approximate inverse R [RR98]. For
    small radii no smaller radius of x holds, up to terms of their second order.

    If float64 does not hold a real entry on the host, the system is solved in integers, by
    eliminations modulo primes: of integers of any size, `fractions.Fraction`,
    `decimal.Decimal`, numpy.longdouble, and numbers of mpmath, gmpy2 and python-flint, in
    lists or arrays of objects. x is the exact solution in float64, rounded once, and the
    radius its distance, rounded upwards. More than 512 rows, and what would take more than
    two seconds, raise VerificationError; such entries cannot have radii.

    Examples
    --------
    >>> import numpy as np, hifigemm.linalg
    >>> solution = hifigemm.linalg.solve([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    >>> solution.x
    array([-1.,  1.])

    Measured data, each entry to 0.001:

    >>> a, b = [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]
    >>> solution = hifigemm.linalg.solve(a, b, a_radius=1e-3, b_radius=1e-3)
    >>> solution.radius.round(4)
    array([0.009, 0.006])

    Decimals, of which float64 holds none:

    >>> from decimal import Decimal
    >>> a = [[Decimal("0.1"), Decimal("0.3")], [Decimal("0.2"), Decimal("0.7")]]
    >>> hifigemm.linalg.solve(a, [Decimal("0.4"), Decimal("0.9")])
    VerifiedSolution(x=array([1., 1.]), radius=array([0., 0.]))
    """
    if accuracy is not None and accuracy != "correct":
        raise PlanError(f'accuracy={accuracy!r}: expected None or "correct"')
    a_radius = _without_zero(a_radius)
    b_radius = _without_zero(b_radius)
    has_radii = a_radius is not None or b_radius is not None
    if has_radii and accuracy is not None:
        raise PlanError(
            f"accuracy={accuracy!r} with a_radius or b_radius: uncertain systems have many solutions, so none is the "
            "correct one; leave the accuracy out"
        )
    if is_traced(a, b, a_radius, b_radius):
        radii = {"a_radius": a_radius, "b_radius": b_radius}
        check_untraced({"a": a, "b": b} | radii, **radii, return_report=return_report)
        from hifigemm.linalg import jax_primitives

        return jax_primitives.solve(a, b, accuracy)
    if not return_report and not has_radii and belongs_to_torch(a, b):
        from hifigemm.linalg import torch_operators

        return torch_operators.solve(a, b, accuracy)
    return solution_of_numbers(
        {"a": a, "b": b}, accuracy, return_report, a_radius, b_radius
    )


@overload
def inv(
    a: Any, *, a_radius: Any = None, return_report: Literal[False] = False
) -> VerifiedSolution: ...
@overload
def inv(
    a: Any, *, a_radius: Any = None, return_report: Literal[True]
) -> tuple[VerifiedSolution, SolutionReport]: ...
def inv(
    a: Any, *, a_radius: Any = None, return_report: bool = False
) -> VerifiedSolution | tuple[VerifiedSolution, SolutionReport]:
    """The inverse of A with a radius for every entry: `solve` of the identity.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`.
    a_radius : array_like or number, optional
        As for `solve`: x and radius enclose the inverses of all matrices with
        ``|a' - a| <= a_radius`` in every entry.
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
    a_radius = _without_zero(a_radius)
    if is_traced(a, a_radius):
        operands = {"a": a, "a_radius": a_radius}
        check_untraced(operands, a_radius=a_radius, return_report=return_report)
        from hifigemm.linalg import jax_primitives

        return jax_primitives.inv(a)
    if not return_report and a_radius is None and belongs_to_torch(a):
        from hifigemm.linalg import torch_operators

        return torch_operators.inv(a)
    return solution_of_numbers({"a": a}, None, return_report, a_radius)


@overload
def lstsq(
    a: Any, b: Any, *, return_report: Literal[False] = False
) -> VerifiedSolution: ...
@overload
def lstsq(
    a: Any, b: Any, *, return_report: Literal[True]
) -> tuple[VerifiedSolution, SolutionReport]: ...
def lstsq(
    a: Any, b: Any, *, return_report: bool = False
) -> VerifiedSolution | tuple[VerifiedSolution, SolutionReport]:
    """The x that minimises ``|b - A x|``, or of least norm with ``A x = b``, and a radius
    for every entry.

    Parameters
    ----------
    a : array_like
        Shape (..., m, n), of full rank; dtype as for `solve`.
    b : array_like
        A vector (m,), if it has one axis, or matrices (..., m, k). Stacks broadcast.
    return_report : bool
        Return (solution, report).

    Returns
    -------
    VerifiedSolution, or (VerifiedSolution, SolutionReport)
        ``.x`` and ``.radius``, of shape (..., n) or (..., n, k): ``|x - x*| <= radius``
        in every entry. For m >= n, ``x*`` is the solution of least squares, for m < n
        that of least norm.

    Raises
    ------
    VerificationError
        Full rank could not be proven: A has none, or a condition of 1e30 or more after
        its columns (for m < n its rows, for m = n both) were scaled by powers of two; an
        entry is Inf or NaN, an entry of x lies beyond the range of its dtype, or numbers
        that float64 does not hold would take too long. Of a stack the attribute
        ``solution`` has what was proven.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes that do not fit; with a report, arrays that JAX traces, and tensors
        that PyTorch differentiates.

    Notes
    -----
    PyTorch and JAX differentiate x, batch the call and compile it, unless it has a report.

    Numbers that float64 does not hold are taken exactly, as by `solve`: the normal
    equations are made and solved in integers, whatever the condition of A is.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.lstsq([[1.0], [1.0], [1.0]], [1.0, 2.0, 6.0]).x
    array([3.])
    """
    if is_traced(a, b):
        check_untraced({"a": a, "b": b}, return_report=return_report)
        from hifigemm.linalg import jax_primitives

        return jax_primitives.lstsq(a, b)
    if not return_report and belongs_to_torch(a, b):
        from hifigemm.linalg import torch_operators

        return torch_operators.lstsq(a, b)
    result: VerifiedSolution | tuple[VerifiedSolution, SolutionReport]
    result = least_squares_of_numbers(a, b, return_report)
    return result


def _without_zero(radius: Any) -> Any:
    """None for the number 0, which says that data are exact."""
    is_number = isinstance(radius, (int, float, np.generic))
    return None if is_number and radius == 0 else radius
