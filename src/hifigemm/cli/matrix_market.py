"""Matrix Market files: a header, a line of sizes, and one entry a line, of all entries
or of those that are not zero.

An entry of the matrix is the exact sum of the numbers that the file writes at its
place, rounded once: decimal numbers to float64, or integers, which are not rounded.

SciPy's reader is not used: for some malformed files, and for arrays without entries, it
ends the interpreter, as it reads and writes beyond its buffers (1.17.1). Here NumPy
cuts lines into words, and Python reads the numbers.

References
----------
[BPR96] Boisvert, Pozo, Remington: The Matrix Market exchange formats, NISTIR 5935
(1996).
"""

from __future__ import annotations

import decimal
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Columns = list[tuple[str, type[Any]]]

_FIELDS: dict[str, Columns] = {
    "real": [("re", object)],
    "double": [("re", object)],
    "integer": [("re", object)],
    "unsigned-integer": [("re", object)],
    "complex": [("re", object), ("im", object)],
    "pattern": [],
}
"""What stands in a line for the value of an entry, as text; of a pattern it is 1."""
_PLACE: Columns = [("row", np.int64), ("column", np.int64)]
_LAYOUTS = "array", "coordinate"
_SYMMETRIES = "general", "symmetric", "skew-symmetric", "hermitian"

_FORTRAN = re.compile(
    r"(?P<mantissa>[+-]?[0-9.]+)(?:[DdQq](?P<exponent>[+-]?[0-9]+)|(?P<bare>[+-][0-9]+))"
)
"""A number of Fortran that Python cannot read: 0.123D-03, and 0.123-103, where an
exponent of three digits leaves no place for the letter.
"""
_EXACT = decimal.Context(
    prec=10_000,  # digits; sums of float64 numbers have at most 1,100
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.Inexact],
)
"""Sums of decimal numbers that raise rather than round; Inf - Inf is NaN."""


@dataclass(frozen=True)
class _Numbers:
    """How the numbers of a file are read: one by one, and the exact sum of several."""

    read: Callable[[Sequence[str]], list[Any]]
    add: Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class _Groups:
    """Entries of a file by their places in the matrix.

    `order` has the entries of one place side by side; those of place i are
    ``order[starts[i]:ends[i]]``.
    """

    order: NDArray[Any]
    starts: NDArray[Any]
    ends: NDArray[Any]

    @property
    def first(self) -> NDArray[Any]:
        """The first entry of each place."""
        return self.order[self.starts]


def read_matrix(file: BinaryIO) -> NDArray[Any]:
    """The dense matrix in a file: float64, complex128, or int64 or uint64 of integers.

    Raises ValueError: no such file, another number of entries than it says, integers
    beyond int64 and uint64.
    """
    text = io.TextIOWrapper(file, "latin-1")
    layout, field, symmetry = _header(text.readline())
    rows, cols, *count = _sizes(text, 2 if layout == "array" else 3)
    if symmetry != "general" and rows != cols:
        raise ValueError(f"a {symmetry} matrix of {rows} x {cols}")

    # The entries that are there, before memory is taken for all.
    in_triangle = rows * (rows - 1 if symmetry == "skew-symmetric" else rows + 1) // 2
    expected = (
        count[0] if count else rows * cols if symmetry == "general" else in_triangle
    )
    columns = _FIELDS[field] if layout == "array" else [*_PLACE, *_FIELDS[field]]
    table = _table(text, columns)
    if len(table) != expected:
        raise ValueError(f"{len(table)} entries, its sizes ask for {expected}")
    row, column = _places(table, layout, symmetry, rows, cols)
    texts = [table[name].tolist() for name, _ in _FIELDS[field]] or [["1"] * expected]
    if symmetry != "general":
        row, column = _add_mirror_images(row, column, texts, symmetry)

    # One number for each place that the file names.
    groups = _groups(row * cols + column)
    row = row[groups.first]
    column = column[groups.first]
    if field.endswith("integer"):
        integers = _values(texts[0], groups, _INTEGERS)
        values = _in_64_bits(integers, row, column)
    else:
        parts = [np.array(_values(part, groups, _FLOATS), float) for part in texts]
        values = parts[0]
        if field == "complex":
            values = np.empty(len(row), np.complex128)
            values.real, values.imag = parts
    matrix = np.zeros((rows, cols), values.dtype)
    matrix[row, column] = values
    return matrix


def write_matrix(file: BinaryIO, x: NDArray[Any]) -> None:
    """Write all entries of a matrix, each with as many digits as give it back: integers
    and bools as integers, others as real or complex numbers.
    """
    field = {"f": "real", "c": "complex"}.get(x.dtype.kind, "integer")
    rows, cols = x.shape
    file.write(f"%%MatrixMarket matrix array {field} general\n{rows} {cols}\n".encode())
    for column in x.T.tolist():
        if field == "complex":
            lines = [f"{z.real!r} {z.imag!r}\n" for z in column]
        elif field == "integer":
            lines = [f"{int(z)}\n" for z in column]
        else:
            lines = [f"{z!r}\n" for z in column]
        file.write("".join(lines).encode())


def _header(line: str) -> tuple[str, str, str]:
    """Layout, field and symmetry."""
    words = line.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError(
            'its first line is not "%%MatrixMarket matrix", with a layout, a field and a symmetry'
        )
    layout, field, symmetry = words[2:]
    known = layout in _LAYOUTS and field in _FIELDS and symmetry in _SYMMETRIES
    if not known or (layout == "array" and field == "pattern"):
        raise ValueError(f"{layout} {field} {symmetry} matrices are not known")
    return layout, field, symmetry


def _sizes(text: io.TextIOBase, count: int) -> list[int]:
    """The numbers in the first line that is neither empty nor a comment."""
    for line in text:
        words = line.partition("%")[0].split()
        if words:
            if len(words) != count or not all(
                word.isascii() and word.isdigit() for word in words
            ):
                raise ValueError(
                    f"its sizes are {line.strip()[:60]!r}, expected {count} numbers"
                )
            return [int(word) for word in words]
    raise ValueError("it ends before its sizes")


def _table(text: io.TextIOBase, columns: Columns) -> NDArray[Any]:
    """The lines that are left, as records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of no lines
        # and reads 1.5 as an integer
        warnings.simplefilter("error", DeprecationWarning)
        try:
            table = np.loadtxt(text, np.dtype(columns), comments="%", ndmin=1)
        except DeprecationWarning as error:
            raise ValueError(str(error)) from error
    for name, dtype in columns:
        # Only Python reads 1_000 as a number.
        if dtype is object and any("_" in word for word in table[name].tolist()):
            raise ValueError("one of its numbers contains an underscore")
    return table


def _places(
    table: NDArray[Any], layout: str, symmetry: str, rows: int, cols: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and columns of the entries of a file, both counted from 0."""
    if layout == "array" and symmetry == "general":
        column, row = np.divmod(np.arange(rows * cols), max(rows, 1))
        return row, column
    if layout == "array":
        # The lower triangle column by column, which is the upper one row by row.
        column, row = np.triu_indices(rows, 1 if symmetry == "skew-symmetric" else 0)
        return row, column
    row = table["row"] - 1
    column = table["column"] - 1
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < cols)
    if not inside.all():
        raise ValueError(
            f"an entry lies beyond {rows} rows and {cols} columns, both counted from 1"
        )
    return row, column


def _add_mirror_images(
    row: NDArray[Any], column: NDArray[Any], texts: list[list[str]], symmetry: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and columns of all entries, those across the diagonal last, whose texts are
    added to the others.
    """
    apart = np.flatnonzero(row != column)
    for part, is_negated in zip(texts, _NEGATED[symmetry]):
        images = [part[i] for i in apart.tolist()]
        part += map(_negated, images) if is_negated else images
    return (
        np.concatenate([row, column[apart]]),
        np.concatenate([column, row[apart]]),
    )


def _groups(places: NDArray[Any]) -> _Groups:
    """The entries of each place, which is a number."""
    order = np.argsort(places, kind="stable")
    is_new = np.ones(len(places), bool)
    is_new[1:] = np.diff(places[order]) != 0
    starts = np.flatnonzero(is_new)
    return _Groups(order, starts, np.append(starts[1:], len(places)))


def _values(texts: Sequence[str], groups: _Groups, numbers: _Numbers) -> list[Any]:
    """The number at each place: the exact sum of its entries, rounded at most once."""
    values = numbers.read([texts[entry] for entry in groups.first.tolist()])
    for i in np.flatnonzero(groups.ends - groups.starts > 1).tolist():
        entries = groups.order[groups.starts[i] : groups.ends[i]]
        values[i] = numbers.add([texts[entry] for entry in entries.tolist()])
    return values


def _floats(texts: Sequence[str]) -> list[float]:
    """The float64 numbers nearest to decimal numbers; Inf and NaN as they are."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return [_float(text) for text in texts]


def _float(text: str) -> float:
    """The float64 number nearest to a decimal number of Python or of Fortran."""
    try:
        return float(_of_python(text))
    except ValueError as error:
        raise ValueError(f"could not convert {text[:60]!r} to a number") from error


def _float_of_sum(texts: Sequence[str]) -> float:
    """The exact sum of decimal numbers, rounded once; a sum of zero is +0."""
    total = decimal.Decimal(0)
    _floats(texts)  # raises for what is no number
    try:
        for text in texts:
            x = _EXACT.create_decimal(_of_python(text))
            total = _EXACT.add(total, x)
    except decimal.Inexact as error:
        raise ValueError(
            f"the sum of the entries {', '.join(texts)[:60]} of one place has more than {_EXACT.prec} digits"
        ) from error
    return float(total)


def _of_python(text: str) -> str:
    """A number as Python writes it, where Fortran has other exponents."""
    fortran = _FORTRAN.fullmatch(text)
    if fortran is None:
        return text
    return f"{fortran['mantissa']}e{fortran['exponent'] or fortran['bare']}"


def _integers(texts: Sequence[str]) -> list[int]:
    """Integers of any size."""
    integers = []
    for text in texts:
        try:
            integers.append(int(text))
        except ValueError as error:
            raise ValueError(
                f"could not convert {text[:60]!r} to an integer"
            ) from error
    return integers


def _sum_of_integers(texts: Sequence[str]) -> int:
    """The exact sum of integers."""
    return sum(_integers(texts))


_FLOATS = _Numbers(_floats, _float_of_sum)
_INTEGERS = _Numbers(_integers, _sum_of_integers)

_NEGATED = {
    "symmetric": (False, False),
    "skew-symmetric": (True, True),
    "hermitian": (False, True),
}
"""True for a part of an entry, real or imaginary, whose mirror image has the other
sign.
"""


def _negated(text: str) -> str:
    """The text of a number with the other sign."""
    return text[1:] if text.startswith("-") else f"-{text.removeprefix('+')}"


def _in_64_bits(
    values: list[int], row: NDArray[Any], column: NDArray[Any]
) -> NDArray[Any]:
    """Integers as int64 or, if that does not hold them, as uint64.

    Raises ValueError with the first one beyond both.
    """
    for dtype in (np.int64, np.uint64):
        info = np.iinfo(dtype)
        if all(info.min <= value <= info.max for value in values):
            return np.array(values, dtype)
    fits = [-(2**63) <= value < 2**63 for value in values]
    i = fits.index(False)
    raise ValueError(
        f"row {row[i] + 1}, column {column[i] + 1} holds the integer {values[i]}: "
        "all entries have to fit into int64, or all into uint64; written as real numbers they are rounded to float64"
    )
