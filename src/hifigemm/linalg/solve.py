"""solve, inv and lstsq: solutions of A x = b with a proven radius for every entry."""

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
    """Solve A x = b and prove a radius for the error of every entry of x.

    The proof also shows that A is nonsingular.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n); float32, float64, complex64 or complex128. Integers become
        float64. Real numbers that float64 does not hold are used exactly, see Notes.
    b : array_like
        A vector (n,), if it has one axis, or matrices (..., n, k), as for
        `numpy.linalg.solve` of NumPy 2. Stacks broadcast.
    accuracy : None or "correct"
        "correct": every real component of x is the exact one rounded once, to nearest,
        ties to even. Not with radii: uncertain data have no single exact solution.
    a_radius, b_radius : array_like or number, optional
        The uncertainty of each entry of a and b: nonnegative numbers that broadcast to
        the shapes of a and b. x and radius then enclose the solutions of all systems
        with ``|a' - a| <= a_radius``, ``|b' - b| <= b_radius`` in every entry, with
        moduli for complex data. The number 0 is the same as None.
    return_report : bool
        Return (solution, report).

    Returns
    -------
    VerifiedSolution, or (VerifiedSolution, SolutionReport)
        ``.x`` and ``.radius``: ``|x - x*| <= radius`` in every entry. ``x*`` is the
        exact solution for the entries of a and b as stored; with radii, the solution of
        any system within them. Systems of float32 are solved in float64; the radius
        includes the rounding of x to float32.

    Raises
    ------
    VerificationError
        The library could not prove the solution: A is singular or within 1e-30 of a
        singular matrix, an entry is Inf or NaN, an entry of x lies beyond the range of its
        dtype, numbers that float64 does not hold would take too long, or, for "correct", an
        entry cannot be distinguished from a tie. Or `a_radius` is too large: all matrices
        within ``proven_factor`` times `a_radius`, an attribute of the error, are proven
        nonsingular. For a stack the attribute ``solution`` has the proven solutions. The
        error is a `numpy.linalg.LinAlgError`, for tensors also a torch.linalg.LinAlgError.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes do not fit. Radii are negative, Inf or NaN. With radii or a report:
        JAX traces an array, or PyTorch differentiates a tensor.
    PlanError
        The call is captured in a CUDA graph, the `accuracy` is unknown, or "correct" comes
        with radii.

    Notes
    -----
    Proof. The library scales rows and columns by powers of two, as far as this loses
    no bit. If their largest entries give no good scale, it tries others. The proof is
    Theorem 10.2 of [Rum10], with products of `hifigemm.matmul` to the accuracy that it
    needs and residuals that are rounded once. Large matrices on a GPU stay there; the
    host computes with vectors, and waits for the GPU. The GPU also solves stacks of small
    systems, of up to 32 rows each and at least 1024 in all, where a complex row counts
    as two. The host solves other small systems, and the hard systems of such a stack.

    Uncertain data. Without `a_radius` and `b_radius` the data count as exact. With
    them the proof is ``|I - R A'| <= |I - R A| + |R| a_radius`` for an approximate
    inverse R [RR98]. For small radii, no smaller radius of x holds, up to second-order
    terms.

    Bands and triangles. For arrays on the host, the zeros of a real matrix of 64 rows
    or more show that it is triangular or has few diagonals. Its inverse is then
    computed row by row and not stored.

    Derivatives. PyTorch and JAX differentiate x, batch the call and compile it,
    unless it has radii of the data or a report. The radius of x has no gradient.

    Exact numbers. If float64 does not hold a real entry on the host, the system is
    solved in integers, by elimination modulo primes. Entries may be integers of any
    size, `fractions.Fraction`, `decimal.Decimal`, numpy.longdouble, and numbers of
    mpmath, gmpy2 and python-flint, in lists or object arrays. x is the exact solution
    rounded once to float64; the radius is its distance from the exact solution, rounded
    upwards. Systems of more than 512 rows, or that would take more than two seconds,
    raise VerificationError. Such entries cannot have radii.

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

    Decimals that float64 does not hold:

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
    """The inverse of A, with a radius for every entry.

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
    """Least-squares or minimum-norm solution of A x = b, a radius for every entry.

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
        in every entry. For m >= n, ``x*`` minimises ``|b - A x|``; for m < n, it is the
        solution of ``A x = b`` with the least norm.

    Raises
    ------
    VerificationError
        Full rank could not be proven: A does not have it, or its condition is 1e30 or more
        after scaling its columns (for m < n its rows, for m = n both) by powers of two. Or
        an entry is Inf or NaN, an entry of x lies beyond the range of its dtype, or numbers
        that float64 does not hold would take too long. For a stack the attribute
        ``solution`` has the proven solutions.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes do not fit. With a report: JAX traces an array, or PyTorch
        differentiates a tensor.

    Notes
    -----
    PyTorch and JAX differentiate x, batch the call and compile it, unless it has a report.

    Numbers that float64 does not hold are used exactly, as in `solve`: the normal
    equations are formed and solved in integers, whatever the condition of A.

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
