"""What all pictures share: colours, curves, scales, legends. matplotlib is loaded by `new_figure`, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["COLOURS", "Row", "Style", "choose", "curve", "decades", "legend_below", "new_figure", "remark"]

Row = Mapping[str, str]
"""A line of a CSV file."""

Style = Mapping[str, Any]

COLOURS = {
    "black": "#000000",
    "grey": "#7f7f7f",
    "orange": "#e69f00",
    "sky": "#56b4e9",
    "green": "#009e73",
    "blue": "#0072b2",
    "red": "#d55e00",
    "pink": "#cc79a7",
}
"""Colours that stay apart for colour-blind readers (Okabe and Ito); curves differ in their markers too."""


def new_figure(rows: int, columns: int, size: tuple[float, float], title: str, **options: Any) -> tuple[Any, Any]:
    """A figure with a title and rows x columns axes (always a 2-D array)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=13)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def choose(rows: Iterable[Row], **wanted: str) -> list[Row]:
    """The lines that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def curve(axes: Any, rows: Sequence[Row], x: str, y: str, label: str, style: Style) -> Any:
    """A curve through the lines, in the order of x; style: colour, marker, dashes ("-", "--", ":"), or nothing."""
    points = sorted((float(row[x]), float(row[y])) for row in rows if row[y] != "")
    options = {"color": COLOURS[style.get("colour", "black")], "linestyle": style.get("dashes", "-")}
    options |= {"marker": style.get("marker", "o"), "linewidth": style.get("width", 1.6)}
    options |= {"markersize": style.get("size", 5.5), "markerfacecolor": style.get("fill", options["color"])}
    drawn = axes.plot(*zip(*points), label=label, **options) if points else [None]
    return drawn[0]


def decades(axes: Any, x: Sequence[float], x_label: str, y_label: str, *, log_y: bool = True) -> None:
    """A logarithmic x axis to base 2 with all its values as ticks, and a logarithmic y axis unless told otherwise."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(x))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", labelrotation=45 if len(set(x)) > 6 else 0)
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def legend_below(figure: Any, axes: Sequence[Any], columns: int) -> None:
    """One legend for all axes, below them."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels()):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


def remark(axes: Any, text: str) -> None:
    """A small text in the upper left corner of the axes."""
    axes.text(0.02, 0.98, text, transform=axes.transAxes, fontsize=9, color="0.3", va="top")
