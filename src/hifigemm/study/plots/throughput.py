"""Pictures of benchmarks: effective TFLOP/s over n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .style import Row, Style, choose, curve, decades, legend, new_figure, note, unique

__all__ = ["throughput"]

_NATIVE: Style = {"colour": "black", "marker": "o", "dashes": ":"}
_PEERS: tuple[Style, ...] = (
    {"colour": "grey", "marker": "v", "dashes": "--"},
    {"colour": "pink", "marker": "^", "dashes": "--"},
    {"colour": "sky", "marker": "x", "dashes": "--", "size": 8},
)
_OURS: tuple[Style, ...] = (
    {"colour": "red", "marker": "D"},
    {"colour": "orange", "marker": "s"},
    {"colour": "blue", "marker": "s", "size": 8, "fill": "white"},
    {"colour": "green", "marker": "*", "size": 8},
    {"colour": "sky", "marker": "^"},
    {"colour": "pink", "marker": "v"},
)
_SPEEDS = {"sustained_tflops": "sustained", "burst_tflops": "bursts"}


def throughput(rows: Sequence[Row]) -> Any:
    """Sustained speed and bursts side by side, a line of panels for each dtype, family of inputs and mode.

    The top edge is the highest roof of a scheme: the peak of its format divided by the number of its products. Only
    square products are drawn, one at a time.
    """
    drawn = [row for row in rows if row["m"] == row["n"] == row["k"] and row["batch"] == "1"]
    kinds = list(dict.fromkeys((row["dtype"], row["family"], row["mode"]) for row in drawn)) or [("", "", "")]
    devices = ", ".join(unique(drawn, "device"))
    title = f"How fast are n x n products of checked accuracy?  {devices}"
    figure, grid = new_figure(len(kinds), 2, (13, 1.5 + 5 * len(kinds)), title)
    styles = _styles(drawn)
    for line, (dtype, family, mode) in zip(grid, kinds):
        shown = choose(drawn, dtype=dtype, family=family, mode=mode)
        for axes, (speed, name) in zip(line, _SPEEDS.items()):
            for case, style in styles.items():
                curve(axes, choose(shown, case=case), "n", speed, case, style)
            decades(axes, [float(row["n"]) for row in shown], "n", "effective TFLOP/s", log_y=False)
            axes.set_title(f"{dtype}, {family}, {mode}, {name}", loc="left", fontsize=11)
            _set_top(axes, shown)
    legend(figure, grid.ravel(), 4)
    return figure


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    """The native product and peers in dots and dashes, schemes in full lines."""
    ours, peers, styles = iter(_OURS * 9), iter(_PEERS * 9), {}
    for case in unique(rows, "case"):
        is_peer = any(row["case"] == case and row["scheme"] == case for row in rows)
        styles[case] = _NATIVE if case == "native" else next(peers if is_peer else ours)
    return styles


def _set_top(axes: Any, rows: Sequence[Row]) -> None:
    """The roof as the top edge, where the file has one for a scheme other than the native product."""
    roofs = {row["case"]: float(row["roof_tflops"]) for row in rows if row["roof_tflops"] and row["case"] != "native"}
    roofs = {case: roof for case, roof in roofs.items() if case != "auto"}
    axes.set_ylim(0, None)
    if roofs:
        case = max(roofs, key=lambda each: roofs[each])
        axes.set_ylim(0, roofs[case])
        note(axes, f"top edge: roof of {case}, {roofs[case]:.0f} TFLOP/s")
