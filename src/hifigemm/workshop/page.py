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


def page(found: Measured) -> str:
    """The whole page."""
    where = (
        found.device["device"]
        if found.device["device"] != "cpu"
        else found.environment["cpu"]
    )
    sections = {
        "": _summary(found),
        "What to write": _settings(found),
        "How fast": _rates(found),
        "How accurate": _errors(found),
        "What can be used": _usable(found),
        "How this was measured": _list(
            [f"{found.environment['date']}: {_plain(found.device)}.", *found.method]
        ),
    }
    body = "\n".join(
        (f"<h2>{escape(head)}</h2>\n" if head else "") + text
        for head, text in sections.items()
    )
    title = f"hifigemm {found.versions['hifigemm']} on {where}"
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


def _summary(found: Measured) -> str:
    """What somebody reads who reads no more."""
    entries = []
    for dtype in ("float64", "float32"):
        timed = _largest(found, dtype)
        if NATIVE not in timed:
            continue
        native, n = timed[NATIVE], timed[NATIVE]["n"]
        text = f"{dtype}, n = {n}: {_library(found)}'s own product makes {_rate(native)} GFLOP/s."
        if "auto@correct" in timed:
            text += f" A correctly rounded one takes {_times_native(timed['auto@correct'])} times as long."
        others = [
            row
            for row in timed.values()
            if not row["scheme"].lower().startswith(NATIVE)
        ]
        best = max(others, key=lambda row: row["burst_tflops"], default=native)
        if best["burst_tflops"] > native["burst_tflops"]:
            text += f" {best['case']} is quicker than it: {_rate(best)} GFLOP/s, with an error of {best['error']:.1e}."
        else:
            text += " No scheme is quicker than it here: accuracy costs time."
        entries.append(text)
    held = len(found.errors) + len(
        [row for row in found.rates if row["status"] == "timed"]
    )
    if found.broken:
        entries.append(
            f"{len(found.broken)} results or functions are wrong; {held} results were held against the truth."
        )
    else:
        entries.append(
            f"Each of {held} results kept the error that its report guarantees."
        )
        used = sum(finding.used for finding in found.findings)
        entries.append(
            f"{used} functions of other libraries, on which exactness rests, work as they should."
        )
    alarm = (
        f'<div class="wrong"><strong>Something is wrong</strong>{_list(found.broken)}</div>'
        if found.broken
        else ""
    )
    return alarm + _list(entries)


def _settings(found: Measured) -> str:
    """Each question with what to write and, where it was measured, its price."""
    text = (
        "Times are those at the largest size that was measured. Errors are relative to |A||B|, the sum of the "
        'magnitudes of the terms of an entry. In doubt write <code>accuracy="correct"</code>.'
    )
    entries = []
    for question, code, dtype, case in SETTINGS:
        row, price = _largest(found, dtype).get(case), ""
        if row is not None:
            bound = (
                f"at most {_error(row['bound'])} is guaranteed"
                if row["bound"]
                else "correctly rounded"
            )
            price = f"<br/>{dtype}, n = {row['n']}: {_times_native(row)} times as long as {_library(found)}'s own; "
            price += f"error {_error(row['error'])}, {bound}. What runs: {escape(_short(row['scheme']))}."
        entries.append(
            f"<dt>{escape(question)}</dt>\n<dd><code>{escape(code)}</code>{price}</dd>"
        )
    return "\n".join([f"<p>{text}</p>", "<dl>", *entries, "</dl>"])


def _rates(found: Measured) -> str:
    parts = []
    roofs = [
        (name, f"{_number(rate * 1e-9)} {'GB/s' if name == 'copy' else 'GFLOP/s'}")
        for name, rate in found.ceilings.items()
    ]
    parts.append(
        _table("At best: a copy in memory, and plain products", ("what", "rate"), roofs)
    )
    for dtype in dict.fromkeys(row["dtype"] for row in found.rates):
        lines = [row for row in found.rates if row["dtype"] == dtype]
        timed = [row for row in lines if row["burst_seconds"] != ""]
        if timed and _can_draw():
            title = f"Rate of {dtype} products over their size"
            parts.append(_picture(title, rates_figure(timed, dtype)))
        body = [
            (
                *(
                    row["case"],
                    str(row["n"]),
                    f"{_number(1e3 * row['burst_seconds'])} ms",
                    _rate(row),
                    _times_native(row),
                ),
                *(_error(row["error"]), _error(row["bound"]), _short(row["scheme"])),
            )
            for row in timed
        ]
        head = (
            "case",
            "n",
            "time",
            "GFLOP/s",
            "x native time",
            "error",
            "guaranteed",
            "what runs",
        )
        caption = f"Times of {dtype} products in numbers"
        parts.append(_table(caption, head, body, folded=_can_draw()))
        parts.append(
            _list(
                f"{row['case']}, n = {row['n']}: {row['status']}"
                for row in lines
                if row not in timed
            )
        )
    if not _can_draw():
        parts.append(
            "<p>Tables alone: pictures need matplotlib, which is not installed here.</p>"
        )
    if found.left_out:
        parts.append(
            f"<p>Left out, as they would have taken too long: {escape('; '.join(found.left_out))}.</p>"
        )
    return "\n".join(parts)


def _errors(found: Measured) -> str:
    text = (
        "Every scheme against the exact product, of random matrices whose entries differ widely "
        "and of a Hilbert matrix with its inverse, whose terms cancel. The error is the largest of an entry, relative "
        "to |A||B|; the relative error is relative to the entry itself."
    )
    parts = [f"<p>{text}</p>"]
    for dtype in dict.fromkeys(row["dtype"] for row in found.errors):
        lines = [row for row in found.errors if row["dtype"] == dtype]
        marks: dict[str, dict[str, float]] = {}
        for row in lines:
            kinds = marks.setdefault(row["scheme"], {})
            kinds[f"error, {row['problem']}"] = row["error"]
            if row["problem"] == "random":
                kinds["guaranteed, random"] = row["guaranteed"]
        if _can_draw():
            title = f"Errors of {dtype} products"
            parts.append(_picture(title, errors_figure(marks, dtype)))
        body = [
            (
                *(
                    row["scheme"],
                    row["problem"],
                    _error(row["error"]),
                    _error(row["guaranteed"]),
                ),
                *(_error(row["relative_error"]), percent(row["share_correct"])),
                *(f"{row['num_products']} {row['product']}", _short(row["chosen"])),
            )
            for row in lines
        ]
        head = (
            "way",
            "matrices",
            "error",
            "guaranteed",
            "relative error",
            "correctly rounded",
            "products",
            "scheme",
        )
        caption = f"Errors of {dtype} products in numbers"
        parts.append(_table(caption, head, body, folded=_can_draw()))
    if found.refused:
        parts.append(f"<p>Not possible:</p>{_list(found.refused)}")
    return "\n".join(parts)


def _usable(found: Measured) -> str:
    facts = found.environment
    named = {
        "cpu": facts["cpu"],
        "cores": str(facts["cores"]),
        "threads": _plain(facts["threads"]) or "not limited",
    }
    versions = found.versions | named
    parts = [_table("Machine and versions", ("what", "found"), versions.items())]
    parts.append(
        _table("Engines", ("engine", "what it multiplies"), found.engines.items())
    )
    if found.gpus:
        parts.append(f"<p>GPUs:</p>{_list(found.gpus)}")
    there = [
        (name, "installed" if find_spec(name) else "not installed", use)
        for name, use in LIBRARIES.items()
    ]
    parts.append(
        _table("Libraries that may be there", ("library", "here", "for"), there)
    )
    return "\n".join(parts)


def _largest(found: Measured, dtype: str) -> dict[str, Row]:
    """The cases that were timed at the largest size of a dtype, by name."""
    timed = [
        row
        for row in found.rates
        if row["dtype"] == dtype and row["burst_seconds"] != ""
    ]
    largest = max((row["n"] for row in timed), default=0)
    return {row["case"]: row for row in timed if row["n"] == largest}


def _number(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def _rate(row: Row) -> str:
    return _number(1e3 * row["burst_tflops"])


def _library(found: Measured) -> str:
    """Whose product is the native one."""
    return "NumPy" if found.device["device"] == "cpu" else "PyTorch"


def _times_native(row: Row) -> str:
    ratio = row["burst_ratio_to_native"]
    return _number(float(f"{1 / ratio:.2g}")) if ratio != "" else ""


def _error(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _short(text: str) -> str:
    """A scheme without the fields that are what they usually are; a name as it is."""
    if "(" not in text:
        return text
    call: Any = ast.parse(text, mode="eval").body
    name = call.func.id
    usual = {field.name: field.default for field in fields(getattr(hg, name))}
    unusual = [
        ast.unparse(keyword)
        for keyword in call.keywords
        if ast.literal_eval(keyword.value) != usual[keyword.arg]
    ]
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
    lines = [
        "<tr>"
        + "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        + "</tr>"
    ]
    for first, *others in body:
        cells = [
            f'<td class="number">{escape(x)}</td>'
            if x[:1].isdigit()
            else f"<td>{escape(x)}</td>"
            for x in others
        ]
        lines.append(
            "".join(["<tr>", f'<th scope="row">{escape(first)}</th>', *cells, "</tr>"])
        )
    name = "" if folded else f"<caption>{escape(caption)}</caption>"
    table = f'<div class="wide"><table>{name}\n' + "\n".join(lines) + "\n</table></div>"
    return (
        f"<details><summary>{escape(caption)}</summary>{table}</details>"
        if folded
        else table
    )
