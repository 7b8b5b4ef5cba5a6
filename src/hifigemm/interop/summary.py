"""The products of a program as a table: operations, shapes, schemes, counts and seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """Products of one kind.

    Attributes
    ----------
    operation, dtype, device : str
        Such as ``addmm``, ``float64``, ``cuda``.
    shapes : tuple of tuples of int
        Of the two factors.
    scheme : str
        The scheme of the plan; "handed on" for products that PyTorch made itself.
    reason : str
        Why this scheme was taken, or why the product was handed on.
    calls : int
    seconds : float
        Of `timed_calls` products, by events of the device or, on the CPU, by the clock;
        0 for those handed on.
    timed_calls : int
    native_seconds : float
        Of one native product, made once behind the second emulated one; 0 where there
        was none.
    """

    operation: str
    dtype: str
    device: str
    shapes: tuple[tuple[int, ...], ...]
    scheme: str
    reason: str
    calls: int = 0
    seconds: float = 0.0
    timed_calls: int = 0
    native_seconds: float = 0.0
    pending: list[tuple[str, Any, Any]] = field(default_factory=list, repr=False)

    @property
    def gain(self) -> float | None:
        """How many times as fast as native products these were; None where that is not
        known.
        """
        if not (self.native_seconds and self.seconds):
            return None
        return self.native_seconds * self.timed_calls / self.seconds


WITHOUT_OPERATOR = (
    "vecdot, kron, outer; inner and tensordot of strided operands with one number as result; einsum where the summed "
    "axes have length 1, or belong to one operand alone"
)
"""Functions that PyTorch makes of ``mul`` and ``sum``, which no one can tell from those
of any other program.
"""


class Sightings:
    """Products and operations that a scope or a process came across.

    Attributes
    ----------
    library : str
        The one whose products the scope is for.
    has_product : bool
        True after the first product of PyTorch, made to the accuracy or handed on.
    unreached : Counter of str
        Calls of operations that multiply where no product is reached, by name; counted
        for summaries alone.
    """

    def __init__(self, library: str = "PyTorch") -> None:
        self.library = library
        self.has_product = False
        self.unreached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, operation: str) -> None:
        """One more call of an operation that is not reached."""
        with self._lock:
            self.unreached[operation] += 1

    def __str__(self) -> str:
        """Lines for what a table of products does not show; the empty text without any."""
        lines = []
        if not self.has_product:
            lines.append(
                f"no product of {self.library} was seen in this scope; products of NumPy and JAX are not reached: "
                "write hifigemm.numpy or hifigemm.jax"
            )
        if self.unreached:
            calls = ", ".join(
                f"{operation} {count}"
                for operation, count in self.unreached.most_common()
            )
            lines.append(f"not reached: {calls}")
        return "\n".join(lines)


class Summary:
    """The products of a scope or of a process, in rows; printable, and `save` writes
    JSON.
    """

    def __init__(self) -> None:
        self.sightings = Sightings()
        self._rows: dict[Any, Row] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """The rows, those with most seconds first; waits for the products that are
        timed on a device.
        """
        with self._lock:
            for row in self._rows.values():
                _collect(row, wait=True)
            rows = self._rows.values()
            return sorted(rows, key=lambda row: (-row.seconds, -row.calls))

    def row(self, key: Any, make: Callable[[], Row]) -> Row:
        """The row of a kind of products."""
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                row = make()
                self._rows[key] = row
        return row

    def save(self, path: str | Path) -> None:
        """Write the rows to a JSON file."""
        import json

        rows = []
        for row in self.rows:
            fields = asdict(row)
            del fields["pending"]
            rows.append(fields | {"gain": row.gain})
        content = {"products": rows, "not_reached": dict(self.sightings.unreached)}
        Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        rows = self.rows
        texts = [_table(rows)] if rows else []
        texts.append(str(self.sightings))
        texts.append(
            f"never counted, as PyTorch makes them of mul and sum: {WITHOUT_OPERATOR}"
        )
        return "\n".join(text for text in texts if text)


def _table(rows: Sequence[Row]) -> str:
    """A line for each row, under headings."""
    head = (
        "calls",
        "operation",
        "dtype",
        "device",
        "shapes",
        "seconds",
        "speed-up",
        "scheme",
        "reason",
    )
    lines = [head]
    for row in rows:
        shapes = " by ".join("x".join(map(str, shape)) for shape in row.shapes)
        gain = "" if row.gain is None else f"{row.gain:.2f}"
        seconds = f"{row.seconds:.3g}" if row.timed_calls else ""
        lines.append(
            (
                str(row.calls),
                row.operation,
                row.dtype,
                row.device,
                shapes,
                seconds,
                gain,
                row.scheme,
                row.reason,
            )
        )

    # All columns but the last one have the width of their longest text.
    *columns, _ = zip(*lines, strict=True)
    widths = [max(map(len, column)) for column in columns]
    texts = []
    for line in lines:
        cells = [x.ljust(width) for x, width in zip(line, widths, strict=False)]
        texts.append("  ".join([*cells, line[-1]]).rstrip())
    return "\n".join(texts)


def timed(
    rows: Sequence[Row], what: str, device: Any, function: Callable[[], Any]
) -> Any:
    """The value of a function whose time is added to rows, as `seconds` or
    `native_seconds`.
    """
    if device.type != "cuda":
        started = time.perf_counter()
        value = function()
        seconds = time.perf_counter() - started
        for row in rows:
            _add(row, what, seconds)
        return value
    import torch

    if torch.cuda.is_current_stream_capturing():
        return function()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    value = function()
    end.record()
    for row in rows:
        row.pending.append((what, start, end))
        _collect(row, wait=False)
    return value


def _collect(row: Row, *, wait: bool) -> None:
    """Add up the times of products that the device has finished."""
    while row.pending:
        what, start, end = row.pending[0]
        if wait:
            end.synchronize()
        elif not end.query():
            return
        row.pending.pop(0)
        _add(row, what, start.elapsed_time(end) / 1000)


def _add(row: Row, what: str, seconds: float) -> None:
    """Add a time to a row, as `seconds` or `native_seconds`."""
    if what == "seconds":
        row.seconds += seconds
        row.timed_calls += 1
    else:
        row.native_seconds = seconds
