"""Rows and columns of a system scaled by powers of two, without the loss of a bit.

Idea
    A' = 2^s A 2^t and b' = 2^s b 2^c have the solution x' = 2^-t x 2^c, s and t
    exponents of rows and columns of A and c those of the right sides. The largest
    entries of rows and columns of A', and of columns of b', are made to lie in
    [1/2, 1). Then a grading by rows and columns costs no digits, and nothing overflows
    on the way. Where that is not enough, a matching of rows and columns decides: the
    largest entries of two rows may lie in one column.
Exact when
    No entry has a bit below 2^-1074. Where one would, its row of A or its column of b
    is scaled to larger numbers; where these are then too large, nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hifigemm.linalg.arrays import (
    beside,
    check_finite,
    is_on_host,
    system_in_scale,
    to_device_of,
    to_host,
)
from hifigemm.linalg.bands import Band
from hifigemm.linalg.upward import above
from hifigemm.numerics.bits import LEAST, Array, least_exponent

Equilibration = Callable[[Array], tuple[Array, Array]]
"""Exponents of rows, n x 1, and of columns, 1 x n, from those of a matrix."""

_LOWEST = -1074
"""Exponent of the least float64 number."""
_ZERO = -(10**6)
"""In the place of the exponent of a zero: below all others, and no sum overflows."""
_FAR = np.int64(2**60)
"""Above the length of every path."""
_ENTRIES = 2**22
"""Costs that are looked at in one pass of a matching: 32 MiB."""
_HIGHEST = 500
"""Exponents of scaled entries up to here leave room for the products of two."""


@dataclass(frozen=True, eq=False)
class ScaledSystem:
    """A' x' = b', equal to A x = b bit for bit in other units."""

    a: Array
    b: Array
    exponents: Array
    """x = x' 2^exponents: t - c, of the shape of x."""
    determinant_exponent: Array | int = 0
    """det A' = det A 2^determinant_exponent: the sum of s and t."""
    band: Band | None = None
    """Where A' has its entries, if that is worth knowing."""

    def restored(self, x: Array, radius: Array) -> tuple[Array, Array]:
        """x and a radius of the system as it came, from those of the scaled one."""
        return restored(x, radius, self.exponents)

    def of_sides(self, sides: Array) -> ScaledSystem:
        """The system with some of its right sides."""
        return replace(self, b=self.b[:, sides], exponents=self.exponents[:, sides])

    def scaled_radii(
        self, a: Array, a_radius: Array, b_radius: Array
    ) -> tuple[Array, Array]:
        """2^s Da 2^t and 2^s db 2^c for radii of the system A x = b as it came, which has
        unknowns and right sides; rounded upwards where they are subnormal.

        s + t is what A' and A differ by where they are not zero, and t - c are the
        exponents of x. So s + c of the first right side is known for every row.
        """
        sizes, _ = _exponents(a)
        scaled_sizes, _ = _exponents(self.a)
        of_first_side = beside(a, self.exponents[:, :1].T)
        rows = np.where(a != 0.0, scaled_sizes - sizes - of_first_side, _ZERO)
        rows = rows.max(axis=1, keepdims=True)
        of_first_row = self.exponents[:1]
        sides = of_first_row[:, :1] - of_first_row
        return (
            scaled_upwards(a_radius, rows + of_first_side),
            scaled_upwards(b_radius, beside(b_radius, rows) + sides),
        )


def restored(x: Array, radius: Array, exponents: Array) -> tuple[Array, Array]:
    """(x 2^exponents, a radius of it) from x and its radius.

    An x that becomes subnormal is rounded by up to eta / 2 in each component, and so is
    the radius.
    """
    scaled_x = scaled(x, exponents)
    scaled_radius = scaled(radius, exponents)
    is_exact = scaled(scaled_x, -exponents) == x
    is_exact &= scaled(scaled_radius, -exponents) == radius
    if is_on_host(x) and is_exact.all():
        return scaled_x, scaled_radius
    loose = above(scaled_radius, 1, LEAST)
    return scaled_x, np.where(is_exact, scaled_radius, loose)


def scaled(x: Array, exponents: Array) -> Array:
    """x 2^exponents, rounded once where it is subnormal."""
    if x.dtype.kind != "c":
        return np.ldexp(x, exponents)
    y = np.empty(np.broadcast_shapes(x.shape, exponents.shape), x.dtype, like=x)
    y.real[...] = np.ldexp(x.real, exponents)
    y.imag[...] = np.ldexp(x.imag, exponents)
    return y


def scaled_upwards(x: Array, exponents: Array) -> Array:
    """At least x 2^exponents for x >= 0, equal to it where that is a float64 number."""
    y = np.ldexp(x, exponents)
    is_exact = np.ldexp(y, -exponents) == x
    return np.where(is_exact, y, y + LEAST)


def scaled_columns(x: Array) -> tuple[Array, Array]:
    """(x 2^t, t) with the largest entry of each column in [1/2, 1), t being 1 x k; x
    itself and zeros where a bit would be lost.
    """
    larger, smaller = _exponents(x)
    columns = -_largest(larger, axis=0)
    columns = columns + _deficit(smaller + columns, axis=0)
    is_too_large = (larger + columns).max(initial=0) > _HIGHEST
    columns = np.where(is_too_large, 0, columns)
    return scaled(x, columns), columns


def scaled_system(
    a: Array, b: Array, exponents_of: Equilibration | None = None
) -> ScaledSystem:
    """The system A x = b, float64 or complex128, with rows and columns in scale, by
    `equilibration` or another function of the exponents of A.

    Raises VerificationError: Inf and NaN.
    """
    if exponents_of is None and a.dtype.kind == b.dtype.kind == "f":
        system = system_in_scale(a, b)
        if system is not None:
            return ScaledSystem(*system)
    check_finite(a=a, b=b)

    # Rows and columns of A, the largest entries in [1/2, 1) unless a bit would be lost
    sizes_of_a, small_of_a = _exponents(a)
    rows, columns = (exponents_of or equilibration)(sizes_of_a)
    rows = rows + _deficit(small_of_a + rows + columns, axis=1)

    # Right sides alike
    rows_of_b = beside(b, rows)
    sizes_of_b, small_of_b = _exponents(b)
    sides = -_largest(sizes_of_b + rows_of_b, axis=0)
    sides = sides + _deficit(small_of_b + rows_of_b + sides, axis=0)

    # Nothing is scaled where entries would be too large; a device does not wait here
    highest_of_a = (sizes_of_a + rows + columns).max(initial=0)
    highest_of_b = (sizes_of_b + rows_of_b + sides).max(initial=0)
    is_too_large = beside(a, highest_of_b) > _HIGHEST
    is_too_large = is_too_large | (highest_of_a > _HIGHEST)
    # A matching goes through zeros where no permutation avoids them
    is_singular = np.abs(rows).max(initial=0) > -_ZERO // 2
    is_too_large = is_too_large | is_singular
    rows = np.where(is_too_large, 0, rows)
    columns = np.where(is_too_large, 0, columns)
    sides = np.where(beside(b, is_too_large), 0, sides)
    return ScaledSystem(
        scaled(a, rows + columns),
        scaled(b, beside(b, rows) + sides),
        beside(b, columns).reshape(-1, 1) - sides,
        rows.sum() + columns.sum(),
    )


def weighted_system(system: ScaledSystem, weights: Array) -> ScaledSystem:
    """The same system with its columns times weights (n x 1), rounded to powers of two,
    and the largest entry of each row in [1/2, 1).
    """
    _, columns = np.frexp(weights)
    columns = beside(system.a, columns.astype(np.int64).reshape(1, -1))

    def weighted(sizes: Array) -> tuple[Array, Array]:
        return -_largest(sizes + columns, axis=1), columns

    rescaled = scaled_system(system.a, system.b, weighted)
    return ScaledSystem(
        rescaled.a,
        rescaled.b,
        system.exponents + rescaled.exponents,
        system.determinant_exponent + rescaled.determinant_exponent,
    )


def zeros_are_exact(a: Array, *words: Array) -> bool:
    """True if a correctly rounded A x, or b - A x, that is zero is no number that
    underflowed: no term has a bit below 2^-1074. x is the sum of words.
    """
    lowest_of_x = min(least_exponent(word) for word in words)
    return least_exponent(a) - 52 + lowest_of_x - 52 >= _LOWEST


def equilibration(sizes: Array) -> tuple[Array, Array]:
    """(s, t): exponents of rows, then of columns, that bring the largest of `sizes` of
    each to 0.

    The columns come second and gain at most 0 by definition, so rows stay in scale.
    """
    rows = -_largest(sizes, axis=1)
    columns = -_largest(sizes + rows, axis=0)
    return rows, columns


def matching(sizes: Array) -> tuple[Array, Array]:
    """(s, t) that bring every exponent to 0 or below, and to 0 along one permutation,
    that of the largest product of entries [ON96].

    The Hungarian method: s and t are the dual variables of the assignment of rows to
    columns, whose costs are exponents with the other sign. Among all such t they are the
    largest that are 0 or below, whatever the order of the search.
    """
    n = len(sizes)
    costs = -to_host(sizes)
    rows = np.zeros(n, np.int64)
    columns = np.zeros(n, np.int64)
    row_of = np.full(n, -1)
    for row in range(n):
        column, settled, distances = _shortest_path(row, costs, rows, columns, row_of)

        # Dual variables change so that no edge on the way costs anything.
        distance = distances[column]
        change = distance - distances[settled]
        rows[row] += distance
        rows[row_of[settled]] += change
        columns[settled] -= change

        # From its end on, each column of the path takes the row of the one before: the
        # first that was settled of those with an edge to it without costs.
        while costs[row, column] != rows[row] + columns[column]:
            settled_rows = row_of[settled]
            reduced = costs[settled_rows, column] - rows[settled_rows]
            before = settled[np.argmax(reduced == columns[column])]
            row_of[column] = row_of[before]
            column = before
        row_of[column] = row
    return to_device_of(sizes, rows[:, None]), to_device_of(sizes, columns[None, :])


def _shortest_path(
    row: int, costs: Array, rows: Array, columns: Array, row_of: Array
) -> tuple[int, Array, Array]:
    """The nearest column that has no row yet, the columns that were settled before it in
    their order, and the distances of all columns from a row.

    Exponents are small integers, so that many columns have the same distance. They are
    settled at once, in one pass over their rows.
    """
    distances = costs[row] - rows[row] - columns
    open_distances = distances.copy()
    settled: list[Array] = []
    most_columns = max(_ENTRIES // len(columns), 1)
    while True:
        nearest = open_distances.min()
        nearest_columns = np.flatnonzero(open_distances == nearest)
        has_no_row = row_of[nearest_columns] < 0
        if has_no_row.any():
            column = int(nearest_columns[np.argmax(has_no_row)])
            none = np.zeros(0, np.intp)
            return column, np.concatenate([none, *settled]), distances

        new = nearest_columns[:most_columns]
        settled.append(new)
        open_distances[new] = _FAR

        # Shorter ways by the rows of these columns.
        by_row = costs[row_of[new]]
        by_row -= (rows[row_of[new]] - nearest)[:, None]
        lengths = by_row.min(axis=0) - columns
        is_shorter = (lengths < distances) & (open_distances < _FAR)
        distances[is_shorter] = lengths[is_shorter]
        open_distances[is_shorter] = lengths[is_shorter]


def _exponents(x: Array) -> tuple[Array, Array]:
    """e with 2^(e - 1) <= |v| < 2^e for the larger component v of every entry, and for
    the smaller one that is not zero.
    """
    if x.dtype.kind != "c":
        exponents = _exponents_of_reals(x)
        return exponents, exponents
    real = _exponents_of_reals(x.real)
    imag = _exponents_of_reals(x.imag)
    larger = np.maximum(real, imag)
    smaller = np.minimum(real, imag)
    return larger, np.where(smaller > _ZERO, smaller, larger)


def _exponents_of_reals(x: Array) -> Array:
    """Exponents of real entries; `_ZERO` for zeros."""
    _, exponents = np.frexp(x)
    return np.where(x != 0.0, exponents, _ZERO)


def _largest(sizes: Array, axis: int) -> Array:
    """The largest exponent along an axis (kept with length 1); 0 where all are zeros."""
    largest = sizes.max(axis=axis, keepdims=True, initial=_ZERO)
    return np.where(largest > _ZERO // 2, largest, 0)


def _deficit(sizes: Array, axis: int) -> Array:
    """By how much entries of these exponents have to grow so that all their 53 bits lie
    at 2^-1074 or above.
    """
    lowest = np.where(sizes > _ZERO // 2, sizes - 53, 0)
    return np.maximum(_LOWEST - lowest.min(axis=axis, keepdims=True, initial=0), 0)
