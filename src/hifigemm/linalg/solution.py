"""Solutions of A x = b with their radii: what `solve` and `inv` return, and how it is
made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import opaque
from hifigemm.engines import core
from hifigemm.libraries import Library
from hifigemm.linalg.arguments import (
    Answer,
    Answers,
    WideOperands,
    as_native,
    beyond_range,
    check_square,
    data_radius,
    exact_operands,
    in_dtype,
    verifying,
    wide_operands,
)
from hifigemm.linalg.arrays import (
    all_where_quick,
    beside,
    check_finite,
    identity,
    is_on_host,
    numbers,
    to_device_of,
    to_host,
    where_quick,
)
from hifigemm.linalg.banded import banded_system
from hifigemm.linalg.certificate import Certificate, Proof
from hifigemm.linalg.correct import correctly_rounded, rounded
from hifigemm.linalg.inverse import CertifiedSystem, certified_system
from hifigemm.linalg.rational import solved
from hifigemm.linalg.refinement import enclosure
from hifigemm.linalg.stacks import completed_by_core, is_stack, solved_stack
from hifigemm.linalg.uncertain import uncertain_radius
from hifigemm.linalg.upward import moduli
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.embedding import embed_left, embed_right, unembed
from hifigemm.operands.operands import broadcast_stacks

MOST_SMALL = 64
"""Rows of real systems that the compiled core solves from end to end."""
MOST_ENTRIES_OF_SIDES = 2**16
"""Entries of all right sides of such a system, which the core refines at once, with ten
times their memory and no look at Ctrl-C in its products.
"""
_LINE = 88
"""The longest line of a solution that is shown in one."""


@dataclass(frozen=True, eq=False)
class VerifiedSolution:
    """x and a radius with ``|x - x*| <= radius`` in every entry.

    ``x*`` is the exact solution. If the data have radii, ``x*`` is any solution for
    data within them.

    Attributes
    ----------
    x : array
        In the operands' library, with the dtype that they promote to.
    radius : array
        Real, with the shape of x. For complex x it bounds the modulus of the error.
    """

    x: Any
    radius: Any

    def __repr__(self) -> str:
        fields = []
        for name in ("x", "radius"):
            text = f"{name}={getattr(self, name)!r}"
            # The rows of a matrix stand below each other.
            fields.append(text.replace("\n", "\n" + " " * len(f"    {name}=")))
        line = f"VerifiedSolution({', '.join(fields)})"
        if "\n" not in line and len(line) <= _LINE:
            return line
        return f"VerifiedSolution(\n    {fields[0]},\n    {fields[1]},\n)"


@dataclass(frozen=True)
class SolutionReport:
    """How a solution was proven; for a stack, the worst value of all its matrices.

    Systems with entries that float64 does not hold are solved in integers: then
    condition is NaN, and all else is 0.

    Attributes
    ----------
    condition : float
        An estimate of ``|| |A^-1| |A| ||`` for the scaled matrix: the change of the
        solution, relative to its largest entry, for a relative change of the entries of
        A. For `lstsq` with m != n, an estimate of ``|| |A| |A^+| ||`` in the Frobenius
        norm; the error of x depends on its square if the residual is large. If the
        compiled core solves a least-squares problem of up to 64 rows and columns, it is
        the condition of the augmented system for the residual and x, which is as large
        as this square.
    norm : float
        A bound of the norm of ``I - R A`` for the approximate inverse R. Below 1 it
        proves that A is nonsingular. For `lstsq` with m != n it measures how far the
        columns of A R are from orthonormal, and proves full rank.
    attempts : int
        The number of R that were tried: one in float64, up to four with other scales if
        it proves nothing or loses digits, then two in two words. For `lstsq` with m !=
        n, up to three in two words.
    words : int
        1 if an R in float64 gave the proof, 2 if an R in two words did.
    steps : int
        The number of refinements of x.
    """

    condition: float
    norm: float
    attempts: int
    words: int
    steps: int


@opaque
def solution_of_numbers(
    named_operands: Mapping[str, object],
    accuracy: Any,
    return_report: bool,
    a_radius: object = None,
    b_radius: object = None,
) -> Any:
    """`solve` of the operands a and b, or of a and the identity, whose operations
    nothing records.
    """
    # Data with radii are no exact ones
    has_radii = a_radius is not None or b_radius is not None
    operands_of = wide_operands if has_radii else partial(exact_operands, is_stack)
    operands = operands_of(**named_operands)
    a = operands.arrays[0]
    check_square(a)
    # The inverse is the solution for the identity.
    if len(operands.arrays) > 1:
        b = operands.arrays[1]
    elif operands.are_fractions:
        b = np.eye(a.shape[-1], dtype=int).astype(object)
    else:
        b = identity(a.shape[-1], like=a)
    return solution_of_operands(
        operands, a, b, accuracy, return_report, a_radius, b_radius
    )


def solution_of_operands(
    operands: WideOperands,
    a: Array,
    b: Array,
    accuracy: Any,
    return_report: bool,
    a_radius: object = None,
    b_radius: object = None,
) -> Any:
    """`solve` of square matrices A, where operands have been read."""
    solve: Callable[..., tuple[Array, Array, SolutionReport]]
    solve_small = None
    radii: tuple[Array, ...] = ()
    if operands.are_fractions:
        solve = in_integers(solved)
    else:
        options = {"dtype": operands.dtype, "is_correct": accuracy == "correct"}
        solve = partial(_system, **options)
        radii = _radii_of_data(operands.library, a, b, a_radius, b_radius)
        if not radii:
            solve_small = partial(small_systems, solved_by_core, **options)
    solution, reports = solutions(operands, a, b, solve, radii, solve_small)
    return (solution, worst(reports)) if return_report else solution


def _radii_of_data(
    library: Library, a: Array, b: Array, a_radius: object, b_radius: object
) -> tuple[Array, ...]:
    """Radii of all entries of A and B; nothing where all are zero."""
    if a_radius is None and b_radius is None:
        return ()
    of_a = data_radius(library, "a_radius", a_radius, "a", a)
    of_b = data_radius(library, "b_radius", b_radius, "b", b)
    largest = numbers(of_a.max(initial=0.0), of_b.max(initial=0.0))
    if max(largest) == 0.0:
        return ()
    return of_a, of_b[:, None] if b.ndim == 1 else of_b


def in_integers(
    solve: Callable[[Array, Array], tuple[Array, Array]],
) -> Callable[[Array, Array], tuple[Array, Array, SolutionReport]]:
    """A solver of fractions with the report of all of its solutions."""
    report = SolutionReport(math.nan, 0.0, 0, 0, 0)
    return lambda a, b: (*solve(a, b), report)


def solutions(
    operands: WideOperands,
    a: Array,
    b: Array,
    solve: Callable[..., tuple[Array, Array, Answer]],
    radii: tuple[Array, ...] = (),
    solve_small: Callable[[Array, Array], Small[Answer] | None] | None = None,
) -> tuple[VerifiedSolution, list[Answer]]:
    """The solutions of all systems of a stack, and the reports on them; `solve` gives x,
    its radius and a report for matrices A and B, and their radii, if there are any.

    `solve_small` takes the whole stack first, and leaves what it cannot prove.

    Raises ValueError: A and B have different numbers of rows. VerificationError: for the
    first system that fails, after all were tried.
    """
    is_vector = b.ndim == 1
    b = b[:, None] if is_vector else b
    rows = a.shape[-2]
    if b.shape[-2] != rows:
        raise ValueError(
            f"a has shape {a.shape} and b has {b.shape[-2]} rows; expected {rows}"
        )
    with verifying(operands.library):
        stack: tuple[int, ...] = ()
        if a.ndim > 2 or b.ndim > 2:
            stack = broadcast_stacks(a.shape[:-2], b.shape[:-2])
            a = np.broadcast_to(a, stack + a.shape[-2:])
            b = np.broadcast_to(b, stack + b.shape[-2:])
            radii = tuple(np.broadcast_to(y, stack + y.shape[-2:]) for y in radii)
        small = None if solve_small is None else solve_small(a, b)
        if small is None and not stack:
            x, radius, report = solve(a, b, *radii)
            return _as_solution(x, radius, operands, is_vector), [report]

        # One system after the other, with NaN where nothing is proven.
        if small is None:
            shape = (*stack, a.shape[-1], b.shape[-1])
            x = np.full(shape, np.nan, operands.dtype, like=b)
            radius = np.full(shape, np.inf, operands.real, like=b)
            small = Small(x, radius, list(np.ndindex(stack)), [])
        x, radius, left, reports = small
        stacks = (a, b, *radii)
        if left:
            stacks = all_where_quick(*stacks)

        def report_of(index: tuple[int, ...]) -> Answer:
            system = [array[index] for array in stacks]
            x_of_one, radius_of_one, report = solve(*system)
            x[index] = beside(x, x_of_one)
            radius[index] = beside(x, radius_of_one)
            return report

        def solution_of_all() -> VerifiedSolution:
            return _as_solution(x, radius, operands, is_vector)

        answers = Answers(stack, report_of, left)
        answers.check(solution_of_all)
        return solution_of_all(), [*reports, *answers.values.values()]


class Small(NamedTuple, Generic[Answer]):
    """What is known of a stack of small systems: x is NaN and the radius Inf where a
    system is left.
    """

    x: Array
    radius: Array
    left: list[tuple[int, ...]]  # indices
    reports: list[Answer]


def small_systems(
    solve: Callable[[Array, Array], core.SolvedStack | None],
    a: Array,
    b: Array,
    dtype: DType,
    is_correct: bool = False,
) -> Small[SolutionReport] | None:
    """Stacks of small systems at once, by the compiled core, whose answer `solve` gives for
    real matrices on the host; None where it does not serve them. A device solves large
    stacks itself, and the core what the device leaves.
    """
    if not is_on_host(a) and not is_stack(a, b):
        return None
    # Components of float64 are the nearest ones where the proof says so
    if is_correct and np.finfo(dtype).dtype != np.float64:
        return None
    is_complex = a.dtype.kind == "c"
    if is_complex:
        # Each entry of A becomes [re -im; im re]
        a = embed_right(a.conj())
        b = _by_rows(embed_left, b.astype(np.complex128))
    least_status = 2.0 if is_correct else 1.0
    if is_on_host(a):
        solved = solve(a, b)
    else:
        solved = _solved_by_device(solve, a, b, least_status)
    if solved is None:
        return None
    x, radius, proofs = solved
    if is_complex:
        x = _by_rows(unembed, x)
        radius = moduli(_by_rows(unembed, radius))
    if dtype != x.dtype:
        x, radius = in_dtype(x, radius, dtype)

    # Solutions that are not proven, or lie beyond the range of the dtype, are left. A device
    # takes four launches for `isfinite`
    is_left = proofs[..., 0] < least_status
    is_finite = (np.abs(x) < np.inf) & (radius < np.inf)
    is_left = is_left | ~is_finite.all(axis=(-2, -1))

    # How many, and the worst of all others, in one reading
    facts = np.where(is_left[..., None], 0.0, proofs).reshape(-1, 4).max(axis=0)
    count, _, condition, norm, steps = numbers(is_left.sum(), *facts)
    left = []
    if count:
        x[is_left] = np.nan
        radius[is_left] = np.inf
        left = list(map(tuple, np.argwhere(to_host(is_left)).tolist()))
    reports = []
    if count < is_left.size:
        reports.append(SolutionReport(condition, norm, 1, 1, int(steps)))
    return Small(x, radius, left, reports)


def _by_rows(embedding: Callable[[Array], Array], x: Array) -> Array:
    """An embedding that pairs columns, with pairs of rows instead."""
    return np.swapaxes(embedding(np.swapaxes(x, -1, -2)), -1, -2)


def _solved_by_device(
    solve: Callable[[Array, Array], core.SolvedStack | None],
    a: Array,
    b: Array,
    least_status: float,
) -> core.SolvedStack:
    """A large stack of small real systems of a device: by the device, and by `solve` on the
    host where the device reaches a lower status.
    """
    solved = solved_stack(a, b)
    is_left = solved.proofs[..., 0] < least_status
    return completed_by_core(solved, is_left, solve, a, b)


def solved_by_core(a: Array, b: Array) -> core.SolvedStack | None:
    """Stacks of small real systems by the compiled core; None where it does not serve
    them.
    """
    n, k = b.shape[-2:]
    if not (0 < n <= MOST_SMALL and n * k <= MOST_ENTRIES_OF_SIDES):
        return None
    return stack_by_core(a, b)


def stack_by_core(a: Array, b: Array) -> core.SolvedStack | None:
    """`core.solved_stack` for matrices in a stack of any shape; None for an empty one."""
    m, n = a.shape[-2:]
    k = b.shape[-1]
    stack = a.shape[:-2]
    batch = math.prod(stack)
    if not batch:
        return None
    solved = core.solved_stack(a.reshape(batch, m, n), b.reshape(batch, m, k))
    if solved is None:
        return None
    x, radius, proofs = solved
    shape = (*stack, n, k)
    return core.SolvedStack(
        x.reshape(shape), radius.reshape(shape), proofs.reshape(*stack, 4)
    )


def _system(
    a: Array, b: Array, *radii: Array, dtype: DType, is_correct: bool
) -> tuple[Array, Array, SolutionReport]:
    """x in a dtype, its radius and the report of one system; with radii of A and B, of all
    systems within them.
    """
    is_uncertain = False
    if radii:
        largest = numbers(*(radius.max(initial=0.0) for radius in radii))
        is_uncertain = max(largest) > 0.0
    if is_uncertain and b.shape[1] == 0:
        # One right side of zeros, for the proof that no matrix is singular
        zeros = np.zeros((len(a), 1), like=a)
        a_radius, _ = radii
        x, radius, report = _system(
            a, zeros, a_radius, zeros, dtype=dtype, is_correct=is_correct
        )
        return x[:, :0], radius[:, :0], report
    b = where_quick(b)
    # Bounds for radii multiply by R many times, so it is stored for them
    certified: CertifiedSystem[Proof] | None
    certified = None if is_uncertain else banded_system(a, b)
    if certified is None:
        certified = certified_system(a, b)
    system = certified.system
    certificate = certified.certificate

    # Where R has two words, one word of x would leave a residual too large to be of use
    words = 2 if is_correct else certificate.words
    enclosed = enclosure(system, certificate, words)
    nearest = None
    if is_correct:
        kind = np.finfo(dtype).dtype
        if rounded(system, enclosed.on_host(), kind)[1].any():
            # Once more, before ties and zeros are looked for
            enclosed = enclosure(system, certificate, words, enclosed)
        nearest = correctly_rounded(system, enclosed.on_host(), kind)
        nearest = to_device_of(enclosed.x, nearest)
    radius = enclosed.of_one_word()
    if is_uncertain:
        of_a, of_b = radii
        assert isinstance(certificate, Certificate)
        scaled_radii = system.scaled_radii(a, of_a, beside(b, of_b))
        radius = uncertain_radius(certificate, enclosed.x, radius, *scaled_radii)
    x, radius = system.restored(enclosed.x, radius)
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


def _check_range(x: Array, radius: Array, b: Array, certificate: Proof) -> None:
    """Raise VerificationError where x or its radius is no finite number."""
    beyond = beyond_range(x, radius, "entries of x")
    if beyond:
        check_finite(b=b)
        raise VerificationError(
            f"{beyond} (condition about {certificate.condition:.0e} after scaling). What helps: b times a power of "
            "two, or other units for the rows and columns of a"
        )


def worst(reports: list[SolutionReport]) -> SolutionReport:
    """The largest numbers of all reports; zeros for none."""
    return SolutionReport(
        max((report.condition for report in reports), default=0.0),
        max((report.norm for report in reports), default=0.0),
        max((report.attempts for report in reports), default=0),
        max((report.words for report in reports), default=0),
        max((report.steps for report in reports), default=0),
    )


def _as_solution(
    x: Array, radius: Array, operands: WideOperands, is_vector: bool
) -> VerifiedSolution:
    """Arrays of the operands' library."""
    if is_vector:
        x = x[..., 0]
        radius = radius[..., 0]
    return VerifiedSolution(as_native(operands, x), as_native(operands, radius))
