"""Pictures of packages side by side: solvers, by errors and radii over the condition, and
products on a CPU, by their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import (
    Row,
    choose,
    curve,
    legend,
    new_figure,
    unique,
)

_ERRORS = {
    "numpy": "black o",
    "gesvx": "orange ^",
    "arb": "green s",
    "hifigemm": "blue D - 7",
}
_RADII = {"gesvx": "orange ^ : 6 white", "arb": "green s : 6 white"}


def solvers(rows: Sequence[Row]) -> Any:
    """A panel for each n."""
    sizes = unique(rows, "n")
    title = "Largest relative error of an entry, and what the solver says of it"
    figure, grid = new_figure(1, len(sizes), (5.5 * len(sizes), 6), title, sharey=True)
    for axes, n in zip(grid[0], sizes):
        for solver, style in _ERRORS.items():
            lines = choose(rows, n=n, solver=solver)
            curve(axes, lines, "condition", "error", f"{solver}, error", style)
        for solver, style in _RADII.items():
            lines = choose(rows, n=n, solver=solver)
            name = "estimate" if solver == "gesvx" else "radius"
            curve(axes, lines, "condition", "radius", f"{solver}, {name}", style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("condition that is meant")
        axes.set_title(f"n = {n}", loc="left", fontsize=11)
    grid[0][0].set_ylabel("relative to the exact entry")
    legend(figure, grid[0], 3)
    return figure


_WAYS = {
    "numpy": "black o",
    "correct": "blue D - 7",
    "pair": "blue D : 6 white",
    "accupy": "orange ^",
    "sumprod": "pink v",
    "fsum": "pink v : 6 white",
    "python-flint": "green s",
    "mpmath": "green s : 6 white",
}


def products_on_a_cpu(rows: Sequence[Row]) -> Any:
    """Times of square products over n, and of dot products over their lengths."""
    title = "Accurate products on a CPU, one thread"
    figure, (panels,) = new_figure(1, 2, (11, 6), title, sharey=True)
    squares = [row for row in rows if row["m"] != "1"]
    dots = choose(rows, m="1")
    for axes, lines, name in (
        (panels[0], squares, "square matrices, n"),
        (panels[1], dots, "dot products, terms"),
    ):
        for way, style in _WAYS.items():
            curve(axes, choose(lines, way=way), "k", "seconds_least", way, style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(name)
    panels[0].set_ylabel("seconds")
    legend(figure, panels, 4)
    return figure
