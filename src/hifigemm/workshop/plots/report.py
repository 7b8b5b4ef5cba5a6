"""The pictures of the page: rates over sizes, and errors beside what was guaranteed.

They are so narrow that their letters can be read on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .style import COLOURS, Row, behind, choose, curve, decades, new_figure, unique

WIDTH = 4.6
"""Inches of a picture whose letters are 10 points high."""

_STYLES = (
    "black s",
    "blue o",
    "orange ^",
    "green D",
    "red v",
    "pink X",
    "sky P",
    "dark d",
    "grey *",
)
"""Colours and markers of the curves; those behind the last begin anew."""

_MARKS = {
    "error, random": ("black", "s"),
    "error, cancelling": ("orange", "^"),
    "guaranteed, random": ("blue", "o"),
}
"""Colours and markers of the kinds of numbers in `errors_figure`."""


def rates_figure(rows: Sequence[Row], dtype: str) -> Any:
    """Curves of GFLOP/s over n, one for each case."""
    figure, grid = new_figure(1, 1, (WIDTH, 4.8), "")
    axes = grid[0, 0]
    for i, name in enumerate(unique(rows, "case")):
        points = [
            {"n": row["n"], "gflops": 1e3 * row["burst_tflops"]}
            for row in choose(rows, case=name)
        ]
        curve(axes, points, "n", "gflops", name, _STYLES[i % len(_STYLES)])
    label = f"{dtype}: GFLOP/s, 2 n³ operations"
    decades(axes, [row["n"] for row in rows], "n, of n x n matrices", label)
    _legend_below(figure)
    return figure


def errors_figure(errors: Mapping[str, Mapping[str, float]], dtype: str) -> Any:
    """A line for each way to the product with marks for the kinds of numbers in
    `_MARKS`. What is not finite is left out.
    """
    figure, grid = new_figure(1, 1, (WIDTH, 1.7 + 0.27 * len(errors)), "")
    axes = grid[0, 0]
    positive = []
    for kind, (colour, marker) in _MARKS.items():
        values = []
        lines = []
        for line, marks in enumerate(errors.values()):
            value = marks.get(kind, math.inf)
            if math.isfinite(value):
                values.append(value)
                lines.append(line)
        positive += [x for x in values if x > 0]
        axes.scatter(values, lines, color=COLOURS[colour], marker=marker, label=kind)
    _scale_errors(axes, positive)
    axes.set_yticks(range(len(errors)), list(errors))
    axes.invert_yaxis()
    axes.set_xlabel(f"{dtype}: largest error / |A||B|")
    behind(axes)
    _legend_below(figure)
    return figure


def _scale_errors(axes: Any, positive: Sequence[float]) -> None:
    """A logarithmic axis for errors, at whose left end those of zero stand."""
    lowest = math.floor(math.log10(min(positive, default=1.0)))
    highest = math.ceil(math.log10(max(positive, default=1.0)))
    axes.set_xscale("symlog", linthresh=10.0**lowest, linscale=1.0)
    axes.set_xlim(-(10.0 ** (lowest - 1)), 3.0 * 10.0**highest)
    step = max((highest - lowest) // 4, 1)
    powers = range(lowest + step, highest + 1, step)
    ticks = [0.0, *(10.0**power for power in powers)]
    axes.set_xticks(ticks, ["0", *(f"1e{power}" for power in powers)])
    axes.set_xticks([], minor=True)


def _legend_below(figure: Any) -> None:
    """The names of all curves in two columns."""
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
