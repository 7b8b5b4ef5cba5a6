"""Solutions of which every component is the exact one, rounded once.

Idea
    x1 + x2 with its radius is an interval. Where both of its ends round to the same
    number, so does the solution [Ziv91]. What is left are ties between two numbers, and
    zeros, which no interval decides: an exact residual of zero does, or the solution in
    integers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NoReturn

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.linalg.arrays import to_host
from hifigemm.linalg.exact import MOST_ROWS, IntegerMatrix, nearest
from hifigemm.linalg.refinement import Enclosure
from hifigemm.linalg.scaling import ScaledSystem, scaled
from hifigemm.numerics.bits import Array

_SHOWN = 8
"""Entries that a message names."""


def correctly_rounded(
    system: ScaledSystem, enclosure: Enclosure, dtype: np.dtype[np.floating]
) -> Array:
    """The solution of the system as it came, in float64 or complex128, every component
    the number of `dtype`, float64 or float32, that is nearest; the enclosure is in the
    memory of the CPU, and so is the solution.

    Raises VerificationError: components that are ties, zeros, or too close to tell, of
    a system too large to be solved exactly.
    """
    result, is_open = rounded(system, enclosure, dtype)
    if is_open.any():
        parts = result.view(np.float64).reshape(is_open.shape)
        _settle(parts, is_open, system, enclosure, dtype)
    return result


def rounded(
    system: ScaledSystem, enclosure: Enclosure, dtype: np.dtype[np.floating]
) -> tuple[Array, Array]:
    """The rounded solution, n x k, and True for components that are open, n x k x 1 or
    n x k x 2 for re and im.
    """
    if enclosure.x.dtype.kind == "c":
        result: Array = np.empty(enclosure.x.shape, np.complex128)
        result.real, open_real = _rounded(_component(enclosure, "real"), system, dtype)
        result.imag, open_imag = _rounded(_component(enclosure, "imag"), system, dtype)
        return result, np.stack([open_real, open_imag], axis=-1)
    result, is_open = _rounded(enclosure, system, dtype)
    return result, is_open[..., None]


def _component(enclosure: Enclosure, name: str) -> Enclosure:
    """The real or the imaginary part, whose error the radius bounds as well."""
    assert enclosure.low is not None
    return Enclosure(
        np.ascontiguousarray(getattr(enclosure.x, name)),
        np.ascontiguousarray(getattr(enclosure.low, name)),
        enclosure.radius,
        enclosure.is_exact,
        enclosure.steps,
    )


def _rounded(
    enclosure: Enclosure, system: ScaledSystem, dtype: np.dtype[np.floating]
) -> tuple[Array, Array]:
    """The rounded components, and True where the two ends of the interval differ."""
    assert enclosure.low is not None
    info = np.finfo(dtype)

    # Ends of the interval, each rounded to nearest from x1 + (x2 -+ radius)
    lower_word = np.nextafter(enclosure.low - enclosure.radius, -np.inf)
    upper_word = np.nextafter(enclosure.low + enclosure.radius, np.inf)
    lower = enclosure.x + lower_word
    upper = enclosure.x + upper_word

    # A second rounding follows in float32 and for subnormal numbers: ends go outward
    _, exponents = np.frexp(lower)
    shifts = to_host(system.exponents)
    is_rounded_twice = (exponents + shifts <= info.minexp) | (info.nmant < 52)
    lower = np.where(is_rounded_twice, np.nextafter(lower, -np.inf), lower)
    upper = np.where(is_rounded_twice, np.nextafter(upper, np.inf), upper)
    # A zero that is known has no neighbours
    is_zero = (enclosure.x == 0.0) & (enclosure.low == 0.0) & (enclosure.radius == 0.0)
    lower = np.where(is_zero, 0.0, lower)
    upper = np.where(is_zero, 0.0, upper)
    lower = scaled(lower, shifts).astype(dtype)
    upper = scaled(upper, shifts).astype(dtype)
    return upper.astype(np.float64), lower != upper


def _settle(
    parts: Array,
    is_open: Array,
    system: ScaledSystem,
    enclosure: Enclosure,
    dtype: np.dtype[np.floating],
) -> None:
    """Fill in the open components: parts and is_open are n x k x 1, or n x k x 2 for re
    and im.
    """
    n = len(parts)
    sides = np.flatnonzero(is_open.any(axis=(0, 2)))
    unsolved = [k for k in sides.tolist() if not enclosure.is_exact[0, k]]
    exact: dict[int, list[list[Fraction]]] = {}
    if unsolved:
        matrix = _integers(system, unsolved)
        if matrix is None or not matrix.is_affordable:
            _refuse(is_open, matrix)
        exact = _solutions(matrix, unsolved, n)
    shifts = np.broadcast_to(to_host(system.exponents), parts.shape[:2])

    # Components of exact solutions, or of x1 + x2 where that is one
    for i, k, component in np.argwhere(is_open).tolist():
        if k in exact:
            value = exact[k][component][i]
        else:
            assert enclosure.low is not None
            value = Fraction(0)
            for word in (enclosure.x[i, k], enclosure.low[i, k]):
                part = (word.real, word.imag)[component]
                value += Fraction(float(part))
        value *= Fraction(2) ** int(shifts[i, k])
        parts[i, k, component] = nearest(value, dtype)


def _integers(system: ScaledSystem, sides: list[int]) -> IntegerMatrix | None:
    """The matrix with some right sides; None where there are too many rows.

    A complex system is a real one of twice the size, [Re -Im; Im Re].
    """
    a = to_host(system.a)
    b = to_host(system.b)[:, sides]
    if a.dtype.kind == "c":
        a = np.block([[a.real, -a.imag], [a.imag, a.real]])
        b = np.concatenate([b.real, b.imag])
    return IntegerMatrix.of(np.concatenate([a, b], axis=1))


def _solutions(
    matrix: IntegerMatrix, sides: list[int], n: int
) -> dict[int, list[list[Fraction]]]:
    """For right sides by number, the real parts of all n unknowns and the imaginary
    ones.
    """
    rows = matrix.solution()
    assert rows is not None, "the matrix was proven to be nonsingular"
    solutions = {}
    for position, side in enumerate(sides):
        column = [row[position] for row in rows]
        solutions[side] = [column[:n], column[n:]]
    return solutions


def _refuse(is_open: Array, matrix: IntegerMatrix | None) -> NoReturn:
    """Raise VerificationError with the indices of open entries."""
    indices = np.argwhere(is_open.any(axis=2)).tolist()
    named = ", ".join(str(tuple(index)) for index in indices[:_SHOWN])
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    limit = f"up to {MOST_ROWS} real rows, here n = {len(is_open)}"
    cost = limit if matrix is None else matrix.cost
    raise VerificationError(
        f"{len(indices)} of {is_open[..., 0].size} entries are not known to be rounded correctly, (row, right side) "
        f"{named}{more}: they are ties between two numbers, zeros, or too close to one to tell; such entries "
        f"are computed in integers where that is affordable ({cost}). accuracy=None encloses them"
    )
