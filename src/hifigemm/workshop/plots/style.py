"""What all pictures share: colours, curves, scales, legends. matplotlib is loaded by
`new_figure`, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A line of a CSV file, or what is to become one."""

COLOURS = {
    "black": "#000000",
    "dark": "#4d4d4d",
    "grey": "#7f7f7f",
    "orange": "#e69f00",
    "sky": "#56b4e9",
    "green": "#009e73",
    "blue": "#0072b2",
    "red": "#d55e00",
    "pink": "#cc79a7",
}
"""Colours that stay apart for colour-blind readers (Okabe and Ito); curves differ in
their markers too.
"""


def new_figure(
    rows: int,
    columns: int,
    size: tuple[float, float],
    title: str,
    *,
    dpi: int = 100,
    **options: Any,
) -> tuple[Any, Any]:
    """A figure with a title and rows x columns axes (always a 2-D array)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=dpi)
    figure.suptitle(title, fontsize=13)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def choose(rows: Iterable[Row], **values: str) -> list[Row]:
    """The lines that have these values."""
    pairs = values.items()
    return [row for row in rows if all(row[key] == value for key, value in pairs)]


def unique(rows: Iterable[Row], key: str) -> list[str]:
    """The values of a column, each once, in the order of the file."""
    return list(dict.fromkeys(row[key] for row in rows))


def curve(
    axes: Any,
    rows: Sequence[Row],
    x: str,
    y: str,
    label: str,
    style: str,
    width: float = 1.6,
) -> None:
    """A curve through the lines, in the order of x.

    A style is "colour marker", then, where they are not as usual, dashes (or "none"),
    size and filling of the markers.
    """
    words = style.split()
    colour, marker, dashes, size, fill = words + ["-", "5.5", ""][len(words) - 2 :]
    drawn = [row for row in rows if row[y] != ""]
    points = sorted((float(row[x]), float(row[y])) for row in drawn)
    if points:
        axes.plot(
            *zip(*points),
            label=label,
            marker=marker,
            linestyle=dashes,
            markersize=float(size),
            color=COLOURS[colour],
            markerfacecolor=fill or COLOURS[colour],
            linewidth=width,
        )


def decades(
    axes: Any, x: Sequence[float], x_label: str, y_label: str, *, log_y: bool = True
) -> None:
    """A logarithmic x axis to base 2 with all its values as ticks, and a logarithmic y
    axis unless told otherwise.
    """
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
    behind(axes)


def behind(axes: Any, axis: str = "both") -> None:
    """A grey grid behind what is drawn."""
    axes.grid(axis=axis, color="0.9")
    axes.set_axisbelow(True)


def legend(figure: Any, axes: Sequence[Any], columns: int) -> None:
    """One legend for all axes, below them."""
    curves: dict[str, Any] = {}
    for part in axes:
        handles, labels = part.get_legend_handles_labels()
        for handle, label in zip(handles, labels):
            curves.setdefault(label, handle)
    figure.legend(
        curves.values(),
        curves.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10,
    )


def note(axes: Any, text: str) -> None:
    """A small text in the upper left corner of the axes."""
    axes.text(
        0.02, 0.98, text, transform=axes.transAxes, fontsize=9, color="0.3", va="top"
    )
