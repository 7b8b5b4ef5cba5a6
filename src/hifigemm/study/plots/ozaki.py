"""Pictures of the modes of Ozaki scheme I."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .style import Row, Style, choose, curve, decades, legend_below, new_figure

__all__ = ["ozaki_modes"]

_STYLES: dict[str, Style] = {
    "SGEMM (this computer's BLAS)": {"colour": "grey", "marker": "v", "dashes": ":"},
    "SP mode, FP16 products": {"colour": "orange", "marker": "^"},
    "DGEMM (this computer's BLAS)": {"colour": "black", "marker": "o", "dashes": ":"},
    "DP mode, FP16 products": {"colour": "red", "marker": "D"},
    "DP mode, FP64 products": {"colour": "pink", "marker": "x", "dashes": "--", "size": 8},
    "correct mode, FP16 products": {"colour": "blue", "marker": "s", "size": 8, "fill": "white"},
    "correct mode, FP64 products": {"colour": "green", "marker": "*", "dashes": "--", "size": 7},
}
_FLOOR = 1e-17
"""Errors below, zero above all, are drawn here."""


def ozaki_modes(rows: Sequence[Row]) -> Any:
    """Errors, slices and products in three lines, a column for each phi."""
    phis = list(dict.fromkeys(row["phi"] for row in rows))
    title = "How accurate are the modes of Ozaki scheme I, and what do they cost?"
    figure, grid = new_figure(3, len(phis), (4.7 * len(phis), 13), title, sharex=True, sharey="row")
    sizes = [float(row["n"]) for row in rows]
    for column, phi in zip(grid.T, phis):
        for way, style in _STYLES.items():
            found = choose(rows, phi=phi, way=way)
            shown = [{**row, "error": str(max(float(row["max_relative_error"]), _FLOOR))} for row in found]
            curve(column[0], shown, "n", "error", way, style)
            curve(column[1], found, "n", "num_slices", way, style)
            curve(column[2], found, "n", "num_products", way, style)
        for mode, colour in (("SP", "orange"), ("DP", "red")):
            found = choose(rows, phi=phi, way=f"{mode} mode, FP16 products")
            dots = {"colour": colour, "marker": "+", "dashes": ":", "width": 1, "size": 9}
            curve(column[1], found, "n", "published_slices", f"{mode} mode, rule of the paper", dots)
        decades(column[0], sizes, "n", "largest |C - R| / |R|")
        decades(column[1], sizes, "n", "slices", log_y=False)
        decades(column[2], sizes, "n", "products of slices", log_y=False)
        column[0].set_title(f"φ = {float(phi):g}", loc="left", fontsize=11)
        column[0].text(
            0.03, _FLOOR * 5, "0: every entry correct", transform=column[0].get_yaxis_transform(), fontsize=9
        )
        column[0].set_ylim(_FLOOR / 2, None)
    for axes in grid[1]:
        axes.set_ylim(0, None)
    for axes in grid[2]:
        axes.set_ylim(0, None)
    legend_below(figure, [grid[0][0], grid[1][0]], 3)
    return figure
