"""The picture of the demo, drawn from the rows of its CSV file. Loads matplotlib when it is called, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

__all__ = ["NUMBERS", "SUFFIXES", "UNIT_ROUNDOFF", "draw"]

SUFFIXES = (".png", ".svg", ".pdf")

NUMBERS = ("error", "guaranteed", "relative_error", "share_correct")
"""Columns that are drawn; problem and scheme name the rows."""

UNIT_ROUNDOFF = 2.0**-53

LOWEST = 2e-18
"""Errors below are drawn at this height, with their value."""

_STYLES = (("#4d4d4d", "X"), ("#e69f00", "o"), ("#d55e00", "D"), ("#56b4e9", "^"), ("#0072b2", "v"), ("#009e73", "s"))
"""Colours that stay apart for colour-blind readers (Okabe and Ito), each with a marker of its own."""


def draw(rows: Sequence[Mapping[str, Any]], file: BinaryIO, suffix: str = ".png") -> None:
    """Draw errors and shares of correctly rounded entries, for each problem and scheme.

    Parameters
    ----------
    rows : sequence of mappings
        Keys problem, scheme (text), error, guaranteed, relative_error, share_correct (numbers), as in the CSV file.
    file : binary file
        Receives the picture.
    suffix : ".png", ".svg" or ".pdf"
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 11), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(4, 4, 3))
    placed = _placed(rows)
    _errors(top, placed)
    _relative_errors(middle, placed)
    _shares(bottom, placed)
    problems = list(dict.fromkeys(str(row["problem"]) for row in rows))
    bottom.set_xticks(range(len(problems)), problems, fontsize=11)
    for axes in (top, middle, bottom):
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(problems) - 0.5)
        for edge in range(1, len(problems)):
            axes.axvline(edge - 0.5, color="0.75", linewidth=0.8)
    figure.suptitle("Products of float64 matrices against the exact product", fontsize=14)
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, format=suffix.lstrip("."), dpi=130)


def _placed(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Any, Mapping[str, Any]]]:
    """Each row with its place along x and its style: problems are groups, schemes stand side by side within them."""
    problems, schemes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("problem", "scheme"))
    step = 0.8 / len(schemes)
    placed = []
    for row in rows:
        i = schemes.index(row["scheme"])
        x = problems.index(row["problem"]) + (i - (len(schemes) - 1) / 2) * step
        placed.append((x, _STYLES[i % len(_STYLES)], row))
    return placed


def _errors(axes: Any, placed: Any) -> None:
    """Measured errors as markers, what is guaranteed as bars above them."""
    guaranteed = None
    for x, (colour, _), row in placed:
        limit = row["guaranteed"]
        axes.plot([x, x], [max(row["error"], LOWEST), limit], color=colour, linewidth=1, alpha=0.5)
        guaranteed = axes.plot([x - 0.045, x + 0.045], [limit, limit], color=colour, linewidth=2)[0]
    _markers(axes, placed, "error")
    if guaranteed is not None:
        axes.plot([], [], color="0.2", linewidth=2, label="guaranteed by the report: at most this")
    _log_scale(axes, "max |C - AB| / (|A||B|)", "Error relative to |A||B|, entry by entry: what the promises are about")


def _relative_errors(axes: Any, placed: Any) -> None:
    _markers(axes, placed, "relative_error")
    axes.axhline(1.0, color="0.4", linewidth=1, linestyle=":")
    axes.text(
        0.995, 1.0, "no correct digit ", ha="right", va="bottom", transform=axes.get_yaxis_transform(), color="0.3"
    )
    _log_scale(axes, "max |C - AB| / |AB|", "Error relative to the result, entry by entry: cancellation shows")


def _markers(axes: Any, placed: Any, key: str) -> None:
    """One marker for each row; values below the axis stand at its foot and are written out."""
    seen = set()
    for x, (colour, marker), row in placed:
        value, label = row[key], None if row["scheme"] in seen else row["scheme"]
        seen.add(row["scheme"])
        low = value < LOWEST
        axes.plot(
            [x], [LOWEST if low else value], color=colour, marker=marker, markersize=8, linestyle="none", label=label
        )
        if low:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            place = {"xytext": (0, 9), "textcoords": "offset points", "rotation": 90, "ha": "center", "bbox": box}
            axes.annotate(f"{value:.1e}", (x, LOWEST), fontsize=8, **place)


def _log_scale(axes: Any, label: str, title: str) -> None:
    axes.set_yscale("log")
    axes.set_ylim(bottom=LOWEST / 3)
    axes.set_ylabel(label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.axhline(UNIT_ROUNDOFF, color="black", linewidth=1.2, linestyle="--")
    where = {"ha": "left", "va": "center", "transform": axes.get_yaxis_transform()}
    axes.text(1.005, UNIT_ROUNDOFF, "unit\nroundoff\nu = 2⁻⁵³", fontsize=9, **where)


def _shares(axes: Any, placed: Any) -> None:
    """Bars with the share in percent written on them, cut rather than rounded: 100 stands for all entries only."""
    text = {"ha": "center", "va": "bottom", "fontsize": 8}
    for x, (colour, _), row in placed:
        share = 100 * row["share_correct"]
        axes.bar(x, share, width=0.11, color=colour)
        axes.text(x, share + 1.5, f"{int(10 * share) / 10:g}", **text)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 25))
    axes.set_ylabel("entries [%]")
    axes.set_title("Share of correctly rounded entries", loc="left", fontsize=11)
