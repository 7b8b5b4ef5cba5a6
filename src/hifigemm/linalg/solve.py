"""solve and inv: solutions of A x = b in which every entry is enclosed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from hifigemm.exceptions import PlanError, VerificationError
from hifigemm.linalg.arguments import (
    Answers,
    WideOperands,
    as_native,
    check_square,
    in_dtype,
    verifying,
    wide_operands,
)
from hifigemm.linalg.arrays import check_finite, identity, to_device_of
from hifigemm.linalg.certificate import Certificate
from hifigemm.linalg.correct import correctly_rounded, rounded
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.refinement import Accuracy, enclosure
from hifigemm.numerics.bits import Array
from hifigemm.transforms import belongs_to_torch, opaque


@dataclass(frozen=True, eq=False)
class VerifiedSolution:
    """x and a radius with |x - x*| <= radius in every entry, x* the exact solution.

    Attributes
    ----------
    x : array
        Of the operands' library, in the dtype that they promote to.
    radius : array
        Real, of the shape of x; for complex x it bounds the modulus of the error.
    """

    x: Any
    radius: Any


@dataclass(frozen=True)
class SolutionReport:
    """What proved a solution; of a stack the worst of all its matrices.

    Attributes
    ----------
    condition : float
        An estimate of || |A^-1| |A| || after rows and columns were scaled: the change
        of the solution, relative to its largest entry, for a relative change of the
        entries of A.
    norm : float
        The bound of the norm of I - R A, R the approximate inverse; below 1 it proves
        that A is nonsingular.
    attempts : int
        How many inverses were tried: one in float64, one in another scale where
        entries differ widely, two in two words.
    words : int
        1 where an inverse in float64 proved it, 2 where one in two words did.
    steps : int
        How often x was refined.
    """

    condition: float
    norm: float
    attempts: int
    words: int
    steps: int


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
        ``.x`` and ``.radius``: |x - x*| <= radius in every entry, x* the exact solution
        for the entries of a and b as they are. Systems of float32 are solved in
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
    Rows and columns are scaled by powers of two as far as no bit is lost. The proof is
    Theorem 10.2 of [Rum10], with products of `hifigemm.matmul` to the accuracy that it
    needs and residuals that are rounded once. On a GPU all of it runs there; the host
    reads two numbers for each proof and one for each step, and waits for them. The data are taken as exact: what their
    own uncertainty does to x is no part of the radius.

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
        ``.x`` and ``.radius``: |x - A^-1| <= radius in every entry.

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


@opaque
def solution_of_numbers(
    given: dict[str, Any], accuracy: Any, return_report: bool
) -> Any:
    """`solve` of the operands a and b, or of a and the identity, of which nothing but
    their numbers is asked.
    """
    operands = wide_operands(**given)
    a = operands.arrays[0]
    check_square(a)
    if len(operands.arrays) > 1:
        b = operands.arrays[1]
    else:
        b = identity(a.shape[-1], like=a)
    is_vector = b.ndim == 1
    b = b[:, None] if is_vector else b
    if b.shape[-2] != a.shape[-1]:
        raise ValueError(
            f"a has shape {a.shape} and b has {b.shape[-2]} rows; expected {a.shape[-1]}"
        )
    with verifying(operands.library):
        x, radius, reports = _stack(a, b, operands, accuracy == "correct", is_vector)
        solution = as_solution(x, radius, operands, is_vector)
    if not return_report:
        return solution
    return solution, _worst(reports)


def _stack(
    a: Array, b: Array, operands: WideOperands, is_correct: bool, is_vector: bool
) -> tuple[Array, Array, list[SolutionReport]]:
    """Solutions and radii of all systems of a stack.

    Raises VerificationError: for the first system that fails, after all were tried.
    """
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, stack + a.shape[-2:])
    b = np.broadcast_to(b, stack + b.shape[-2:])
    x = np.full(b.shape, np.nan, operands.dtype, like=b)
    radius = np.full(b.shape, np.inf, operands.real, like=b)

    def report_of(index: tuple[int, ...]) -> SolutionReport:
        x[index], radius[index], report = _system(
            a[index], b[index], operands.dtype, is_correct
        )
        return report

    reports = Answers(stack, report_of)
    reports.check(lambda: as_solution(x, radius, operands, is_vector))
    return x, radius, list(reports.values.values())


def _system(
    a: Array, b: Array, dtype: np.dtype[Any], is_correct: bool
) -> tuple[Array, Array, SolutionReport]:
    """x in a dtype, its radius and the report of one system."""
    certified = certified_system(a, b)
    system = certified.system
    certificate = certified.certificate

    # Where R has two words, one word of x would leave a residual too large to be of use
    words = 2 if is_correct else certificate.words
    enclosed = enclosure(system, certificate, words)
    kind = np.finfo(dtype).dtype
    nearest = None
    if is_correct:
        check_finite(b=b)
        if rounded(system, enclosed.on_host(), kind)[1].any():
            # All digits of the residual, before ties and zeros are looked for
            best: Accuracy = "pair" if certificate.words == 2 else "correct"
            enclosed = enclosure(system, certificate, words, [best])
        nearest = correctly_rounded(system, enclosed.on_host(), kind)
        nearest = to_device_of(enclosed.x, nearest)
    x, radius = system.restored(enclosed.x, enclosed.of_one_word())
    x, radius = in_dtype(x, radius, dtype, nearest)
    _check_range(x, radius, b, certificate)
    report = SolutionReport(
        certificate.condition,
        certificate.norm,
        certified.attempts,
        certificate.words,
        enclosed.steps,
    )
    return x, radius, report


def _check_range(x: Array, radius: Array, b: Array, certificate: Certificate) -> None:
    """Raise VerificationError where x or its radius is no finite number."""
    is_finite = np.isfinite(x) & np.isfinite(radius)
    if not is_finite.all():
        check_finite(b=b)
        raise VerificationError(
            f"{x.size - int(np.count_nonzero(is_finite))} of {x.size} entries of x lie beyond the range of {x.dtype}, "
            f"or their bounds do (estimated condition {certificate.condition:.1e}): scale the system"
        )


def _worst(reports: list[SolutionReport]) -> SolutionReport:
    """The largest numbers of all reports; zeros for none."""
    return SolutionReport(
        max((report.condition for report in reports), default=0.0),
        max((report.norm for report in reports), default=0.0),
        max((report.attempts for report in reports), default=0),
        max((report.words for report in reports), default=0),
        max((report.steps for report in reports), default=0),
    )


def as_solution(
    x: Array, radius: Array, operands: WideOperands, is_vector: bool
) -> VerifiedSolution:
    """Arrays of the operands' library."""
    if is_vector:
        x, radius = x[..., 0], radius[..., 0]
    return VerifiedSolution(as_native(operands, x), as_native(operands, radius))
