"""Matrix Market files: a header, a line of sizes, and one entry a line, of all entries
or of those that are not zero.

SciPy's reader is not used: for some malformed files, and for arrays without entries, it
ends the interpreter, as it reads and writes beyond its buffers (1.17.1). Here NumPy
reads the numbers.

References
----------
[BPR96] Boisvert, Pozo, Remington: The Matrix Market exchange formats, NISTIR 5935
(1996).
"""

from __future__ import annotations

import io
import warnings
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Columns = list[tuple[str, type[np.generic]]]

_FIELDS: dict[str, Columns] = {
    "real": [("re", np.float64)],
    "double": [("re", np.float64)],
    "integer": [("re", np.int64)],
    "unsigned-integer": [("re", np.uint64)],
    "complex": [("re", np.float64), ("im", np.float64)],
    "pattern": [],
}
"""What stands in a line for the value of an entry; of a pattern it is 1."""
_PLACE: Columns = [("row", np.int64), ("column", np.int64)]
_LAYOUTS = "array", "coordinate"
_SYMMETRIES = "general", "symmetric", "skew-symmetric", "hermitian"


def read_matrix(file: BinaryIO) -> NDArray[Any]:
    """The dense matrix in a file, float64 or complex128; values of one place are added.

    Raises ValueError: no such file, another number of entries than it says, integers
    that float64 cannot hold.
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
    values = _values(table, field)

    if layout == "array" and symmetry == "general":
        return values.reshape(cols, rows).T
    if layout == "array":
        # The lower triangle column by column, which is the upper one row by row.
        column, row = np.triu_indices(rows, 1 if symmetry == "skew-symmetric" else 0)
    else:
        row, column = table["row"] - 1, table["column"] - 1
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < cols)
        if not inside.all():
            raise ValueError(
                f"an entry lies beyond {rows} rows and {cols} columns, both counted from 1"
            )
    matrix = np.zeros((rows, cols), values.dtype)
    np.add.at(matrix, (row, column), values)
    if symmetry != "general":
        apart = row != column
        np.add.at(
            matrix, (column[apart], row[apart]), _mirrored(values[apart], symmetry)
        )
    return matrix


def write_matrix(file: BinaryIO, x: NDArray[Any]) -> None:
    """Write all entries of a real or complex matrix, each with as many digits as give
    it back.
    """
    is_complex = x.dtype.kind == "c"
    header = f"%%MatrixMarket matrix array {'complex' if is_complex else 'real'} general\n{x.shape[0]} {x.shape[1]}\n"
    file.write(header.encode())
    for column in x.T:
        lines = [
            f"{z.real!r} {z.imag!r}\n" if is_complex else f"{z!r}\n"
            for z in column.tolist()
        ]
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
            return np.loadtxt(text, np.dtype(columns), comments="%", ndmin=1)
        except DeprecationWarning as error:
            raise ValueError(str(error)) from error


def _values(table: NDArray[Any], field: str) -> NDArray[Any]:
    """The values of entries as float64 or complex128."""
    if field == "pattern":
        return np.ones(len(table))
    values = table["re"]
    if field == "complex":
        values = np.empty(len(table), np.complex128)
        values.real, values.imag = table["re"], table["im"]
    elif (
        values.dtype.kind in "iu"
        and max(int(values.max(initial=0)), -int(values.min(initial=0))) > 2**53
    ):
        raise ValueError(
            f"it holds values of {values.dtype} that float64 cannot hold; round them first"
        )
    return values if field == "complex" else values.astype(np.float64)


def _mirrored(values: NDArray[Any], symmetry: str) -> NDArray[Any]:
    """The values of the entries on the other side of the diagonal."""
    if symmetry == "symmetric":
        return values
    return -values if symmetry == "skew-symmetric" else values.conj()
