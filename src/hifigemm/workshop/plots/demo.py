"""The picture of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .style import COLOURS, Row, behind, legend, new_figure, unique

UNIT_ROUNDOFF = 2.0**-53

LOWEST = 2e-18
"""Errors below are drawn at this height, with their value."""

_STYLES = ("dark X", "orange o", "red D", "sky ^", "blue v", "green s")

Placed = Sequence[tuple[float, str, str, Row]]
"""Each row with its place along x, its colour and its marker."""


def demo_figure(rows: Sequence[Row]) -> Any:
    """Errors and shares of correctly rounded entries: problems are groups, in which
    schemes stand side by side.
    """
    figure, grid = new_figure(
        3, 1, (10, 11), "", dpi=130, sharex=True, height_ratios=(4, 4, 3)
    )
    figure.suptitle(
        "Products of float64 matrices against the exact product", fontsize=14
    )
    top, middle, bottom = grid[:, 0]
    problems = unique(rows, "problem")
    placed = _placed(rows)
    _errors(top, placed)
    _relative_errors(middle, placed)
    _shares(bottom, placed)
    bottom.set_xticks(range(len(problems)), problems, fontsize=11)
    for axes in (top, middle, bottom):
        behind(axes, "y")
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(problems) - 0.5)
        for edge in range(1, len(problems)):
            axes.axvline(edge - 0.5, color="0.75", linewidth=0.8)
    legend(figure, [top], 3)
    return figure


def _placed(rows: Sequence[Row]) -> Placed:
    problems = unique(rows, "problem")
    schemes = unique(rows, "scheme")
    step = 0.8 / len(schemes)
    placed = []
    for row in rows:
        i = schemes.index(row["scheme"])
        colour, marker = _STYLES[i % len(_STYLES)].split()
        offset = (i - (len(schemes) - 1) / 2) * step
        x = problems.index(row["problem"]) + offset
        placed.append((x, COLOURS[colour], marker, row))
    return placed


def _errors(axes: Any, placed: Placed) -> None:
    """Measured errors as markers, what is guaranteed as bars above them."""
    for x, colour, _, row in placed:
        limit = float(row["guaranteed"])
        axes.plot(
            [x, x],
            [max(float(row["error"]), LOWEST), limit],
            color=colour,
            linewidth=1,
            alpha=0.5,
        )
        axes.plot([x - 0.045, x + 0.045], [limit, limit], color=colour, linewidth=2)
    title = "Error relative to |A||B|, entry by entry: what the promises are about"
    _markers(axes, placed, "error", "max |C - AB| / (|A||B|)", title)
    axes.plot(
        [], [], color="0.2", linewidth=2, label="guaranteed by the report: at most this"
    )


def _relative_errors(axes: Any, placed: Placed) -> None:
    axes.axhline(1.0, color="0.4", linewidth=1, linestyle=":")
    axes.text(
        0.995,
        1.0,
        "no correct digit ",
        ha="right",
        va="bottom",
        transform=axes.get_yaxis_transform(),
        color="0.3",
    )
    title = "Error relative to the result, entry by entry: cancellation shows"
    _markers(axes, placed, "relative_error", "max |C - AB| / |AB|", title)


def _markers(axes: Any, placed: Placed, key: str, label: str, title: str) -> None:
    """One marker for each row; values below the axis stand at its foot and are written
    out. The scale is set last.
    """
    seen = set()
    for x, colour, marker, row in placed:
        value = float(row[key])
        scheme = row["scheme"]
        axes.plot(
            [x],
            [LOWEST if value < LOWEST else value],
            color=colour,
            marker=marker,
            markersize=8,
            linestyle="none",
            label=None if scheme in seen else scheme,
        )
        seen.add(scheme)
        if value < LOWEST:
            axes.annotate(
                f"{value:.1e}",
                (x, LOWEST),
                fontsize=8,
                xytext=(0, 9),
                textcoords="offset points",
                rotation=90,
                ha="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    axes.set_yscale("log")
    axes.set_ylim(bottom=LOWEST / 3)
    axes.set_ylabel(label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.axhline(UNIT_ROUNDOFF, color="black", linewidth=1.2, linestyle="--")
    axes.text(
        1.005,
        UNIT_ROUNDOFF,
        "unit\nroundoff\nu = 2⁻⁵³",
        fontsize=9,
        ha="left",
        va="center",
        transform=axes.get_yaxis_transform(),
    )


def _shares(axes: Any, placed: Placed) -> None:
    """Bars with the share in percent written on them, cut rather than rounded: 100
    stands for all entries only.
    """
    text = {"ha": "center", "va": "bottom", "fontsize": 8}
    for x, colour, _, row in placed:
        share = 100 * float(row["share_correct"])
        axes.bar(x, share, width=0.11, color=colour)
        axes.text(x, share + 1.5, f"{int(10 * share) / 10:g}", **text)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 25))
    axes.set_ylabel("entries [%]")
    axes.set_title("Share of correctly rounded entries", loc="left", fontsize=11)
