"""The products of a program as a table: operations, shapes, schemes, counts and seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

NATIVE_SAMPLES = 3
"""Number of native products whose median gives a speed-up; a single one may hit a busy
moment. They run after the second, third and fourth emulated product.
"""


@dataclass
class Row:
    """Products of one kind.

    Attributes
    ----------
    operation, dtype, device : str
        Such as ``addmm``, ``float64``, ``cuda``.
    shapes : tuple of tuples of int
        Shapes of the two factors.
    scheme : str
        The scheme of the plan; "handed on" for products that PyTorch computed itself.
    reason : str
        Why this scheme was chosen, or why the product was handed on.
    calls : int
    seconds : float
        Time of `timed_calls` products, by events of the device or, on the CPU, by the
        clock; 0 for products that were handed on.
    timed_calls : int
    native_seconds : float
        Median time of the native products that ran after emulated ones for comparison;
        0 without any.
    native_calls : int
        The number of these native products, at most `NATIVE_SAMPLES`.
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
    native_calls: int = 0
    last_seconds: float = field(default=0.0, repr=False)
    # seconds of emulated products and of the native ones behind them
    pairs: list[tuple[float, float]] = field(default_factory=list, repr=False)
    pending: list[tuple[str, Any, Any]] = field(default_factory=list, repr=False)

    @property
    def gain(self) -> float | None:
        """How many times as fast as native products these were: the median over pairs
        of an emulated and a native product; None unless there are `NATIVE_SAMPLES`.
        """
        ratios = [native / emulated for emulated, native in self.pairs if emulated]
        return median(ratios) if len(ratios) >= NATIVE_SAMPLES else None

    @property
    def is_to_be_compared(self) -> bool:
        """True if a native product is to be made for its time behind this emulated
        one; the first one waits for plans and kernels.
        """
        return 1 <= self.calls <= NATIVE_SAMPLES


WITHOUT_OPERATOR = "vecdot, kron, outer, some cases of inner, tensordot and einsum"
"""Functions that PyTorch makes of ``mul`` and ``sum``, which no one can tell from those
of any other program.
"""


class Sightings:
    """Products and operations that a scope or a process came across.

    Attributes
    ----------
    library : str
        The one whose products the scope is for.
    place : str
        Where they are seen: "scope" or "process".
    has_product : bool
        True after the first product of PyTorch, made to the accuracy or handed on.
    unreached : Counter of str
        Calls of operations that multiply where no product is reached, by name; counted
        for summaries alone.
    """

    def __init__(self, library: str = "PyTorch", place: str = "scope") -> None:
        self.library = library
        self.place = place
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
        nothing = f"no product of {self.library} was seen in this {self.place}"
        if self.unreached:
            calls = ", ".join(
                f"{operation} {count}"
                for operation, count in self.unreached.most_common()
            )
            if not self.has_product:
                lines.append(f"{nothing} but inside operations that are not reached")
            lines.append(f"not reached: {calls}")
        elif not self.has_product:
            lines.append(
                f"{nothing}; products of NumPy and JAX are not reached: write hifigemm.numpy or hifigemm.jax"
            )
        return "\n".join(lines)


class Summary:
    """The products of a scope or of a process as a table; `save` writes it as JSON."""

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
            for name in ("pending", "pairs", "last_seconds"):
                del fields[name]
            rows.append(fields | {"gain": row.gain})
        content = {"products": rows, "not_reached": dict(self.sightings.unreached)}
        Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        rows = self.rows
        texts = [_table(rows)] if rows else []
        texts.append(str(self.sightings))
        if not rows:
            # What PyTorch made may be one of these.
            texts.append(
                f"not watched (PyTorch builds them from mul and sum): {WITHOUT_OPERATOR}; see docs/pytorch.md"
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
        seconds = ""
        gain = ""
        if row.timed_calls:
            seconds = f"{row.seconds:.3g}"
            gain = "not measured" if row.gain is None else f"{row.gain:.2f}"
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

    return aligned(lines)


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Lines of cells as a text, in columns of the width of their longest cell."""
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
        # A graph has no native products besides those requested.
        return function() if what == "seconds" else None
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
        row.last_seconds = seconds
    else:
        row.pairs.append((row.last_seconds, seconds))
        row.native_calls = len(row.pairs)
        row.native_seconds = median(native for _, native in row.pairs)
