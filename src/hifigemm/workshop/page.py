"""The page of `hifigemm report`: `page.html`, filled in. It is one file that asks for
nothing else. Where matplotlib is not installed it has tables alone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from hifigemm.testing.primitives import Finding
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.runs import NATIVE
from hifigemm.workshop.plots.report import errors_figure, rates_figure
from hifigemm.workshop.table import percent

TEMPLATE = Path(__file__).with_name("page.html")

PRICES = {
    "price_of_default": ("float64", "auto"),
    "price_of_correct": ("float64", "auto@correct"),
    "price_of_relative": ("float64", "auto@Relative(1e-12)"),
    "price_of_number": ("float64", "auto@1e-12"),
    "price_of_correct_float32": ("float32", "auto@correct"),
}
"""The dtype and the case that show what the answer to a question of the page costs."""

LIBRARIES = {
    "torch": "tensors, GPUs, products of PyTorch programs",
    "triton": "kernels of GPUs",
    "cupy": "CuPy arrays",
    "jax": "JAX arrays",
    "flint": "exact products in less time, for this page",
}

_RATE_COLUMNS = (
    "case",
    "n",
    "time",
    "GFLOP/s",
    "x native time",
    "error",
    "guaranteed",
    "what runs",
)

_ERROR_COLUMNS = (
    "way",
    "matrices",
    "error",
    "guaranteed",
    "relative error",
    "correctly rounded",
    "products",
    "scheme",
)


@dataclass
class Measured:
    """All that the page says."""

    environment: dict[str, Any]  # see `workshop.environment`
    device: dict[str, Any]  # see `Arrays.describe`
    versions: dict[str, str]  # this and the next two: see `hifigemm.info`
    engines: dict[str, str]
    gpus: tuple[str, ...]
    method: list[str]  # how it was measured, in sentences
    findings: list[Finding] = field(default_factory=list)
    # bytes and operations a second
    ceilings: dict[str, float] = field(default_factory=dict)
    rates: list[Row] = field(default_factory=list)  # see `measuring.rows`
    # see `demo.against_exact`, and the dtype
    errors: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # what is not possible
    left_out: list[str] = field(default_factory=list)  # what would have taken too long
    broken: list[str] = field(default_factory=list)  # what is wrong
    busy: list[str] = field(default_factory=list)  # times that say nothing

    @property
    def library(self) -> str:
        """The library whose product is the native one."""
        return "NumPy" if self.device["device"] == "cpu" else "PyTorch"

    def largest(self, dtype: str) -> dict[str, Row]:
        """The cases that were timed at the largest size of a dtype, by name."""
        timed = _timed(row for row in self.rates if row["dtype"] == dtype)
        largest = max((row["n"] for row in timed), default=0)
        return {row["case"]: row for row in timed if row["n"] == largest}


def page(measured: Measured) -> str:
    """The whole page."""
    machine = measured.device["device"]
    if machine == "cpu":
        machine = measured.environment["cpu"]
    taken = f"{measured.environment['date']}: {_plain(measured.device)}."
    prices = {name: _price(measured, *case) for name, case in PRICES.items()}
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        prices,
        title=escape(f"hifigemm {measured.versions['hifigemm']} on {machine}"),
        wrong=_list(measured.broken, "Something is wrong"),
        summary=_list(_summary(measured)),
        rates="\n".join(_rates(measured)),
        errors="\n".join(_errors(measured)),
        usable="\n".join(_usable(measured)),
        method=_list([taken, *measured.method]),
    )


def _summary(measured: Measured) -> list[str]:
    """The summary for a reader who stops there: speed, and what was checked."""
    lines = list(measured.busy)
    for dtype in ("float64", "float32"):
        timed = measured.largest(dtype)
        if NATIVE in timed:
            lines.append(_speed(timed, dtype, measured.library))

    num_timed = sum(row["status"] == "timed" for row in measured.rates)
    num_checked = len(measured.errors) + num_timed
    if measured.broken:
        num_broken = len(measured.broken)
        lines.append(
            f"{num_broken} results or functions are wrong; {num_checked} results were held against the truth."
        )
        return lines
    num_used = sum(finding.used for finding in measured.findings)
    lines += [
        f"Each of {num_checked} results kept the error that its report guarantees.",
        f"{num_used} functions of other libraries, on which exactness rests, work as they should.",
    ]
    return lines


def _speed(timed: Mapping[str, Row], dtype: str, library: str) -> str:
    """The native product, the price of correct rounding, and the quickest scheme."""
    native = timed[NATIVE]
    text = f"{dtype}, n = {native['n']}: {library}'s own product makes {_rate(native)} GFLOP/s."
    if not _times_native(native):
        return f"{text} Nothing is compared with it, as the machine was busy."
    if "auto@correct" in timed:
        ratio = _times_native(timed["auto@correct"])
        text += f" A correctly rounded one takes {ratio} times as long."
    schemes = []
    for row in timed.values():
        if not row["scheme"].lower().startswith(NATIVE):
            schemes.append(row)
    best = max(schemes, key=lambda row: row["burst_tflops"], default=native)
    if best["burst_tflops"] <= native["burst_tflops"]:
        return text + " No scheme is quicker than it here: accuracy costs time."
    text += f" {best['case']} is quicker than it: {_rate(best)} GFLOP/s,"
    return text + f" with an error of {best['error']:.1e}."


def _price(measured: Measured, dtype: str, case: str) -> str:
    """Time and error of a case at the largest size, and what runs; the empty text where
    it was not timed.
    """
    row = measured.largest(dtype).get(case)
    if row is None:
        return ""
    ratio = _times_native(row)
    time = "no time, as the machine was busy"
    if ratio:
        time = f"{ratio} times as long as {measured.library}'s own"
    bound = "correctly rounded"
    if row["bound"]:
        bound = f"at most {_error(row['bound'])} is guaranteed"
    error = _error(row["error"])
    text = f"{dtype}, n = {row['n']}: {time}; error {error}, {bound}."
    return escape(f"{text} What runs: {row['scheme']}.")


def _rates(measured: Measured) -> list[str]:
    """Times of all cases: a picture and a table for each dtype."""
    roofs = []
    for name, rate in measured.ceilings.items():
        unit = "GB/s" if name == "copy" else "GFLOP/s"
        roofs.append((name, f"{_number(rate * 1e-9)} {unit}"))
    caption = "At best: a copy in memory, and plain products"
    parts = [_table(caption, ("what", "rate"), roofs)]
    for dtype in dict.fromkeys(row["dtype"] for row in measured.rates):
        lines = [row for row in measured.rates if row["dtype"] == dtype]
        timed = _timed(lines)
        if timed and _can_draw():
            title = f"Rate of {dtype} products over their size"
            parts.append(_picture(title, rates_figure(timed, dtype)))
        body = [_rate_cells(row) for row in timed]
        caption = f"Times of {dtype} products in numbers"
        parts.append(_table(caption, _RATE_COLUMNS, body, is_open=not _can_draw()))
        untimed = [row for row in lines if row["burst_seconds"] == ""]
        parts.append(
            _list(f"{row['case']}, n = {row['n']}: {row['status']}" for row in untimed)
        )
    if not _can_draw():
        parts.append(
            "<p>Tables alone: pictures need matplotlib, which is not installed here.</p>"
        )
    if measured.left_out:
        sizes = escape("; ".join(measured.left_out))
        parts.append(f"<p>Left out, as they would have taken too long: {sizes}.</p>")
    return parts


def _timed(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["burst_seconds"] != ""]


def _rate_cells(row: Row) -> list[str]:
    """A line of `_RATE_COLUMNS`."""
    return [
        row["case"],
        str(row["n"]),
        f"{_number(1e3 * row['burst_seconds'])} ms",
        _rate(row),
        _times_native(row),
        _error(row["error"]),
        _error(row["bound"]),
        row["scheme"],
    ]


def _errors(measured: Measured) -> list[str]:
    """Errors against the exact product: a picture and a table for each dtype."""
    parts = []
    for dtype in dict.fromkeys(row["dtype"] for row in measured.errors):
        lines = [row for row in measured.errors if row["dtype"] == dtype]
        if _can_draw():
            title = f"Errors of {dtype} products"
            parts.append(_picture(title, errors_figure(_marks(lines), dtype)))
        body = [_error_cells(row) for row in lines]
        caption = f"Errors of {dtype} products in numbers"
        parts.append(_table(caption, _ERROR_COLUMNS, body, is_open=not _can_draw()))
    parts.append(_list(measured.refused, "Not possible:"))
    return parts


def _marks(lines: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The numbers of `errors_figure`, by the way to the product and their kind."""
    marks: dict[str, dict[str, float]] = {}
    for row in lines:
        numbers = marks.setdefault(row["scheme"], {})
        numbers[f"error, {row['problem']}"] = row["error"]
        if row["problem"] == "random":
            numbers["guaranteed, random"] = row["guaranteed"]
    return marks


def _error_cells(row: Row) -> list[str]:
    """A line of `_ERROR_COLUMNS`."""
    return [
        row["scheme"],
        row["problem"],
        _error(row["error"]),
        _error(row["guaranteed"]),
        _error(row["relative_error"]),
        percent(row["share_correct"]),
        f"{row['num_products']} {row['product']}",
        row["chosen"],
    ]


def _usable(measured: Measured) -> list[str]:
    """The machine, versions, engines, and libraries that may be there."""
    facts = measured.environment
    machine = {
        "cpu": facts["cpu"],
        "cores": str(facts["cores"]),
        "threads": _plain(facts["threads"]) or "not limited",
    }
    versions = measured.versions | machine
    libraries = []
    for name, use in LIBRARIES.items():
        state = "installed" if find_spec(name) else "not installed"
        libraries.append((name, state, use))
    return [
        _table("Machine and versions", ("what", "found"), versions.items()),
        _table("Engines", ("engine", "what it multiplies"), measured.engines.items()),
        _list(measured.gpus, "GPUs:"),
        _table("Libraries that may be there", ("library", "here", "for"), libraries),
    ]


def _number(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def _rate(row: Row) -> str:
    return _number(1e3 * row["burst_tflops"])


def _times_native(row: Row) -> str:
    ratio = row["burst_ratio_to_native"]
    if ratio == "":
        return ""
    two_digits = float(f"{1 / ratio:.2g}")
    return _number(two_digits)


def _error(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None


def _picture(title: str, figure: Any) -> str:
    """The figure as a part of the page."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(title)}"/>'


def _plain(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value}" for name, value in facts.items() if value is not None
    )


def _list(entries: Iterable[str], title: str = "") -> str:
    """A list below a title; the empty text without entries."""
    lines = [f"<li>{escape(text)}</li>" for text in entries]
    if not lines:
        return ""
    head = f"<strong>{title}</strong>" if title else ""
    return "\n".join([f"{head}<ul>", *lines, "</ul>"])


def _table(
    caption: str,
    head: Sequence[str],
    body: Iterable[Sequence[str]],
    *,
    is_open: bool = True,
) -> str:
    """A table behind its caption, which opens and closes it; lines begin with their
    names, and numbers are to the right.
    """
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = [f"<tr>{heads}</tr>"]
    for name, *others in body:
        cells = "".join(map(_cell, others))
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    rows = "\n".join(lines)
    state = ' open="open"' if is_open else ""
    table = f'<div class="wide"><table>\n{rows}\n</table></div>'
    return f"<details{state}><summary>{escape(caption)}</summary>\n{table}\n</details>"


def _cell(text: str) -> str:
    """A cell, with numbers to the right."""
    if text[:1].isdigit():
        return f'<td class="number">{escape(text)}</td>'
    return f"<td>{escape(text)}</td>"
