"""The calls of a program's BLAS as a table: `run --blas correct --summary`.

The library counts them in a file that all processes of the program map, and this command
reads it when the program has ended: see core/blas/summary.c.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hifigemm.interop.summary import aligned

VARIABLE = "HIFIGEMM_BLAS_SUMMARY"

NUM_ROWS = 128

ROW = struct.Struct("@8s i 4x 3Q 3q")
"""Of the file: the name of a routine, whether a process writes to the row, calls,
nanoseconds, products, and m, n, k of the call with most of them.
"""

HEAD = ("calls", "routine", "largest", "seconds", "products")

NOT_SEEN = (
    "not reached: products inside LAPACK of the wheels (solve, qr, eigh), einsum, integers, "
    "a static BLAS; see docs/blas.md"
)


class Row(NamedTuple):
    """Calls of one routine.

    Attributes
    ----------
    routine : str
        With its type: ``dgemm``.
    calls : int
    seconds : float
        Of all calls, by the clock.
    products : int
        Of real numbers: a complex product has four.
    m, n, k : int
        Sizes of the call with the largest product, m x k by k x n.
    """

    routine: str
    calls: int
    seconds: float
    products: int
    m: int
    n: int
    k: int


def rows_of(content: bytes) -> list[Row]:
    """The rows of a file, those with most seconds first."""
    rows = []
    for name, _, calls, nanoseconds, products, m, n, k in ROW.iter_unpack(content):
        if calls:
            routine = name.rstrip(b"\0").decode("ascii")
            rows.append(Row(routine, calls, nanoseconds / 1e9, products, m, n, k))
    return sorted(rows, key=lambda row: (-row.seconds, row.routine))


def text_of(rows: Sequence[Row]) -> str:
    """A line for each row under headings, and what no row can show."""
    if not rows:
        return f"no call of the BLAS was seen in this program\n{NOT_SEEN}"
    lines = [HEAD]
    for row in rows:
        shapes = f"{row.m}x{row.k} by {row.k}x{row.n}"
        seconds = f"{row.seconds:.3g}"
        lines.append(
            (str(row.calls), row.routine, shapes, seconds, f"{row.products:.3g}")
        )
    return f"{aligned(lines)}\n{NOT_SEEN}"


def run_with_summary(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program, print the table on the standard error when it has ended, and return
    its exit code: 128 and the number of the signal, if one ended it.
    """
    with tempfile.NamedTemporaryFile(prefix="hifigemm-blas-") as file:
        file.truncate(ROW.size * NUM_ROWS)
        variables = {**environment, VARIABLE: file.name}
        code = _exit_code(subprocess.Popen(command, env=variables))
        text = text_of(rows_of(file.read()))
    # A program may leave a standard error that is never read.
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    return code


def _exit_code(process: subprocess.Popen[Any]) -> int:
    """The exit code of a program, which gets the signals that are meant for it."""
    with _signals_for(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_for(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Leave an interrupt to the program, as a terminal sends it to both processes, and
    hand a request to end on.
    """
    ended = signal.signal(
        signal.SIGTERM, lambda number, _: os.kill(process.pid, number)
    )
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, ended)
        signal.signal(signal.SIGINT, interrupted)
