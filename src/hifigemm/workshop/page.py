"""The page of `hifigemm report`: HTML in one file, which asks for nothing else. Where
matplotlib is not installed it has tables alone.
"""

from __future__ import annotations

import ast
import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from importlib.util import find_spec
from typing import Any

import hifigemm as hg
from hifigemm.testing.primitives import Finding
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.runs import NATIVE
from hifigemm.workshop.plots.report import errors_figure, rates_figure
from hifigemm.workshop.table import percent

SETTINGS = (
    ("What the library itself gives, checked", "hg.matmul(a, b)", "float64", "auto"),
    ("The best float64 answer, and the same bits on every machine",
     'hg.matmul(a, b, accuracy="correct")', "float64", "auto@correct"),
    ("A relative error of 1e-12 in every entry, however much its terms cancel",
     "hg.matmul(a, b, accuracy=hg.Relative(1e-12))", "float64", "auto@Relative(1e-12)"),
    ("An error of 1e-12 of the sum of the magnitudes of the terms",
     "hg.matmul(a, b, accuracy=1e-12)", "float64", "auto@1e-12"),
    ("The best float32 answer, and the same bits on every machine",
     'hg.matmul(a, b, accuracy="correct")', "float32", "auto@correct"),
    ("More digits than float64 has", 'hg.matmul(a, b, result="pair")', "float64", ""),
    ("Integers that must not wrap around", 'hg.matmul(a, b, result="int64")', "integers", ""),
)  # fmt: skip
"""A question, what to write, and the case that shows its price."""

LIBRARIES = {
    "torch": "tensors, GPUs, products of PyTorch programs",
    "triton": "kernels of GPUs",
    "cupy": "CuPy arrays",
    "jax": "JAX arrays",
    "flint": "exact products in less time, for this page",
}

STYLE = """
body { margin: 0; color: #111; background: #fff; font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 48rem; margin: 0 auto; padding: .75rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 2px solid #0072b2; }
img { display: block; width: 100%; max-width: 36rem; height: auto; margin: 1rem 0; }
code { overflow-wrap: anywhere; background: #eee; padding: .1rem .3rem; }
dt { font-weight: bold; margin-top: 1rem; } dd { margin: .2rem 0 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1rem; }
caption { text-align: left; font-weight: bold; white-space: nowrap; } summary { cursor: pointer; }
th, td { padding: .3rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid #ccc; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.wrong { border: 3px solid #d55e00; padding: .5rem 1rem; }
"""


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


def page(measured: Measured) -> str:
    """The whole page."""
    machine = measured.device["device"]
    if machine == "cpu":
        machine = measured.environment["cpu"]
    taken = f"{measured.environment['date']}: {_plain(measured.device)}."
    sections = {
        "What to write": _settings(measured),
        "How fast": _rates(measured),
        "How accurate": _errors(measured),
        "What can be used": _usable(measured),
        "How this was measured": _list([taken, *measured.method]),
    }
    parts = [_summary(measured)]
    for head, text in sections.items():
        parts.append(f"<h2>{escape(head)}</h2>\n{text}")
    body = "\n".join(parts)
    title = f"hifigemm {measured.versions['hifigemm']} on {machine}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
</body>
</html>
"""


def _summary(measured: Measured) -> str:
    """The lines of somebody who reads no more: an alarm, speed, what was checked."""
    entries = list(measured.busy)
    for dtype in ("float64", "float32"):
        timed = _largest(measured, dtype)
        if NATIVE in timed:
            entries.append(_speed(timed, dtype, _library(measured)))

    num_timed = sum(row["status"] == "timed" for row in measured.rates)
    num_checked = len(measured.errors) + num_timed
    if measured.broken:
        entries.append(
            f"{len(measured.broken)} results or functions are wrong; {num_checked} results were held against the truth."
        )
        alarm = f"<strong>Something is wrong</strong>{_list(measured.broken)}"
        return f'<div class="wrong">{alarm}</div>' + _list(entries)
    entries.append(
        f"Each of {num_checked} results kept the error that its report guarantees."
    )
    num_used = sum(finding.used for finding in measured.findings)
    entries.append(
        f"{num_used} functions of other libraries, on which exactness rests, work as they should."
    )
    return _list(entries)


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


def _settings(measured: Measured) -> str:
    """Each question with what to write and, where it was measured, its price."""
    text = (
        "Times are those at the largest size that was measured. Errors are relative to |A||B|, the sum of the "
        'magnitudes of the terms of an entry. In doubt write <code>accuracy="correct"</code>.'
    )
    entries = []
    for question, code, dtype, case in SETTINGS:
        row = _largest(measured, dtype).get(case)
        price = "" if row is None else _price(row, dtype, _library(measured))
        entries.append(
            f"<dt>{escape(question)}</dt>\n<dd><code>{escape(code)}</code>{price}</dd>"
        )
    return "\n".join([f"<p>{text}</p>", "<dl>", *entries, "</dl>"])


def _price(row: Row, dtype: str, library: str) -> str:
    """Time and error of a case that was timed, and what runs."""
    ratio = _times_native(row)
    time = f"{dtype}, n = {row['n']}: "
    if ratio:
        time += f"{ratio} times as long as {library}'s own"
    else:
        time += "no time, as the machine was busy"
    bound = "correctly rounded"
    if row["bound"]:
        bound = f"at most {_error(row['bound'])} is guaranteed"
    scheme = escape(_short(row["scheme"]))
    error = _error(row["error"])
    return f"<br/>{time}; error {error}, {bound}. What runs: {scheme}."


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


def _rates(measured: Measured) -> str:
    """Times of all cases: a picture and a table for each dtype."""
    roofs = []
    for name, rate in measured.ceilings.items():
        unit = "GB/s" if name == "copy" else "GFLOP/s"
        roofs.append((name, f"{_number(rate * 1e-9)} {unit}"))
    caption = "At best: a copy in memory, and plain products"
    parts = [_table(caption, ("what", "rate"), roofs)]
    for dtype in dict.fromkeys(row["dtype"] for row in measured.rates):
        lines = [row for row in measured.rates if row["dtype"] == dtype]
        parts += _rates_of_dtype(lines, dtype)
    if not _can_draw():
        parts.append(
            "<p>Tables alone: pictures need matplotlib, which is not installed here.</p>"
        )
    if measured.left_out:
        sizes = escape("; ".join(measured.left_out))
        parts.append(f"<p>Left out, as they would have taken too long: {sizes}.</p>")
    return "\n".join(parts)


def _rates_of_dtype(lines: Sequence[Row], dtype: str) -> list[str]:
    """The picture, the table, and the cases that have no time."""
    parts = []
    timed = [row for row in lines if row["burst_seconds"] != ""]
    if timed and _can_draw():
        title = f"Rate of {dtype} products over their size"
        parts.append(_picture(title, rates_figure(timed, dtype)))
    body = [_rate_cells(row) for row in timed]
    caption = f"Times of {dtype} products in numbers"
    parts.append(_table(caption, _RATE_COLUMNS, body, folded=_can_draw()))
    untimed = [row for row in lines if row["burst_seconds"] == ""]
    parts.append(
        _list(f"{row['case']}, n = {row['n']}: {row['status']}" for row in untimed)
    )
    return parts


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
        _short(row["scheme"]),
    ]


def _errors(measured: Measured) -> str:
    """Errors against the exact product: a picture and a table for each dtype."""
    text = (
        "Every scheme against the exact product, of random matrices whose entries differ widely "
        "and of a Hilbert matrix with its inverse, whose terms cancel. The error is the largest of an entry, relative "
        "to |A||B|; the relative error is relative to the entry itself."
    )
    parts = [f"<p>{text}</p>"]
    for dtype in dict.fromkeys(row["dtype"] for row in measured.errors):
        lines = [row for row in measured.errors if row["dtype"] == dtype]
        if _can_draw():
            title = f"Errors of {dtype} products"
            parts.append(_picture(title, errors_figure(_marks(lines), dtype)))
        body = [_error_cells(row) for row in lines]
        caption = f"Errors of {dtype} products in numbers"
        parts.append(_table(caption, _ERROR_COLUMNS, body, folded=_can_draw()))
    if measured.refused:
        parts.append(f"<p>Not possible:</p>{_list(measured.refused)}")
    return "\n".join(parts)


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
        _short(row["chosen"]),
    ]


def _usable(measured: Measured) -> str:
    """The machine, versions, engines, and libraries that may be there."""
    facts = measured.environment
    machine = {
        "cpu": facts["cpu"],
        "cores": str(facts["cores"]),
        "threads": _plain(facts["threads"]) or "not limited",
    }
    versions = measured.versions | machine
    parts = [
        _table("Machine and versions", ("what", "found"), versions.items()),
        _table("Engines", ("engine", "what it multiplies"), measured.engines.items()),
    ]
    if measured.gpus:
        parts.append(f"<p>GPUs:</p>{_list(measured.gpus)}")
    libraries = []
    for name, use in LIBRARIES.items():
        state = "installed" if find_spec(name) else "not installed"
        libraries.append((name, state, use))
    head = ("library", "here", "for")
    parts.append(_table("Libraries that may be there", head, libraries))
    return "\n".join(parts)


def _largest(measured: Measured, dtype: str) -> dict[str, Row]:
    """The cases that were timed at the largest size of a dtype, by name."""
    timed = [
        row
        for row in measured.rates
        if row["dtype"] == dtype and row["burst_seconds"] != ""
    ]
    largest = max((row["n"] for row in timed), default=0)
    return {row["case"]: row for row in timed if row["n"] == largest}


def _number(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def _rate(row: Row) -> str:
    return _number(1e3 * row["burst_tflops"])


def _library(measured: Measured) -> str:
    """Whose product is the native one."""
    return "NumPy" if measured.device["device"] == "cpu" else "PyTorch"


def _times_native(row: Row) -> str:
    ratio = row["burst_ratio_to_native"]
    if ratio == "":
        return ""
    two_digits = float(f"{1 / ratio:.2g}")
    return _number(two_digits)


def _error(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _short(text: str) -> str:
    """A scheme without the fields that are what they usually are; a name as it is."""
    if "(" not in text:
        return text
    call: Any = ast.parse(text, mode="eval").body
    name = call.func.id
    defaults = {field.name: field.default for field in fields(getattr(hg, name))}
    unusual = []
    for keyword in call.keywords:
        if ast.literal_eval(keyword.value) != defaults[keyword.arg]:
            unusual.append(ast.unparse(keyword))
    return f"{name}({', '.join(unusual)})"


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


def _list(entries: Iterable[str]) -> str:
    lines = [f"<li>{escape(text)}</li>" for text in entries]
    return "\n".join(["<ul>", *lines, "</ul>"]) if lines else ""


def _table(
    caption: str,
    head: Sequence[str],
    body: Iterable[Sequence[str]],
    *,
    folded: bool = False,
) -> str:
    """A table whose lines begin with their names; numbers are to the right. A folded
    one opens when it is asked for.
    """
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = [f"<tr>{heads}</tr>"]
    for name, *others in body:
        cells = "".join(map(_cell, others))
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    rows = "\n".join(lines)
    if not folded:
        title = f"<caption>{escape(caption)}</caption>"
        return f'<div class="wide"><table>{title}\n{rows}\n</table></div>'
    table = f'<div class="wide"><table>\n{rows}\n</table></div>'
    return f"<details><summary>{escape(caption)}</summary>{table}</details>"


def _cell(text: str) -> str:
    """A cell, with numbers to the right."""
    if text[:1].isdigit():
        return f'<td class="number">{escape(text)}</td>'
    return f"<td>{escape(text)}</td>"
