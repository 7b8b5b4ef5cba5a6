"""Pictures of products whose operands carry powers of two along k, alone and inside a
factorisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import (
    Row,
    behind,
    choose,
    curve,
    decades,
    legend,
    new_figure,
    unique,
)

from .names import case_name

_STYLES = {
    "native": "black o :",
    "cublas-emulated": "grey v --",
    "cublas-emulated-dynamic": "pink ^ --",
    "ozaki2:14": "orange s",
    "ozaki2:15": "sky x -- 8",
    "auto": "red D",
    "auto@fp64": "blue P - 8 white",
    "auto@correct": "green * - 8",
}


def spans(rows: Sequence[Row]) -> Any:
    """Error on the left, time on the right, over the bits that the diagonal spans."""
    n = rows[0]["n"]
    machine = rows[0].get("device", "")
    title = f"A D times D⁻¹ B, D a diagonal of powers of two: n = {n}\n{machine}"
    figure, grid = new_figure(1, 2, (11, 6.5), title)
    timed = choose(rows, n=n, status="timed")
    ticks = sorted({int(row["span"]) for row in rows})
    columns = {
        "error": "largest |C - AB| / |A||B|",
        "milliseconds": "time of a call [ms]",
    }
    for axes, (column, label) in zip(grid[0], columns.items()):
        for case in unique(timed, "case"):
            found = choose(timed, case=case)
            curve(axes, found, "span", column, case_name(case), _STYLES[case])
        # Narrow diagonals lie wider apart than wide ones.
        axes.set_xscale("function", functions=(_root, _square))
        axes.set_xticks(ticks)
        axes.tick_params(axis="x", labelrotation=90, labelsize=8)
        axes.set_yscale("log")
        axes.set_xlabel("bits that D spans")
        axes.set_ylabel(label)
        behind(axes)
    legend(figure, grid[0], 3)
    return figure


_WAYS = {
    "native": "black o :",
    "14 moduli": "orange s",
    "15 moduli": "sky x -- 8",
    "8 INT8 slices": "pink v",
    "default": "red D - 8 white",
    "residues, promised": "blue P -- 7",
    "correct": "green * : 8",
}


def graded_lu(rows: Sequence[Row]) -> Any:
    """Backward error over the span of the grading, and over n."""
    size = max(unique(rows, "n"), key=int)
    span = max(unique(rows, "span"), key=int)
    title = "LU of a graded matrix: largest |A - LU| / (u |L||U|)"
    figure, grid = new_figure(1, 2, (10, 6), title, sharey=True)
    by_span, by_size = grid[0]
    for way, style in _WAYS.items():
        own = choose(rows, way=way)
        curve(by_span, choose(own, n=size), "span", "backward_error", way, style)
        curve(by_size, choose(own, span=span), "n", "backward_error", way, style)
    decades(by_size, [float(row["n"]) for row in rows], "n", "")
    by_span.set_yscale("log")
    by_span.set_xticks(sorted({int(row["span"]) for row in rows}))
    by_span.set_xlabel("bits that D spans")
    by_span.set_ylabel("backward error")
    by_span.set_title(f"n = {size}", loc="left", fontsize=11)
    by_size.set_title(f"D over {span} bits", loc="left", fontsize=11)
    behind(by_span)
    legend(figure, grid[0], 4)
    return figure


def _root(x: Any) -> Any:
    """The square root with its sign, which the margins of an axis ask for."""
    return abs(x) ** 0.5 * ((x > 0) * 2.0 - 1.0)


def _square(x: Any) -> Any:
    return x * abs(x)
