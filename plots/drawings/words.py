"""Pictures of what two short words keep of a number: mantissa length, underflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import (
    COLOURS,
    Row,
    behind,
    choose,
    legend,
    new_figure,
)

_NAMES = {"nearest": "RN", "zero": "RZ", "nearest-away": "RNA"}
_FORMATS = {
    "fp16": "FP16 (low word scaled) and TF32: 11 bits a word",
    "bf16": "BF16: 8 bits a word",
}


def mantissa(rows: Sequence[Row]) -> Any:
    """Expected length above, shares of each length below; the words of TF32 keep what
    those of FP16 keep.
    """
    title = "How many of the 23 stored bits of an FP32 number do two short words keep?"
    figure, grid = new_figure(2, 2, (13, 9), title, height_ratios=(3, 4))
    for (top, bottom), (fmt, name) in zip(grid.T, _FORMATS.items()):
        found = choose(rows, format=fmt)
        labels = [f"{_NAMES[row['high']]}\n{_NAMES[row['low']]}" for row in found]
        _lengths(top, found)
        _shares(bottom, found)
        top.set_title(name, loc="left", fontsize=11)
        for axes in (top, bottom):
            axes.set_xticks(range(len(found)), labels, fontsize=8.5)
            behind(axes, "y")
        bottom.set_xlabel(
            "rounding of the high word (above) and of the low word (below)"
        )
    legend(figure, grid[0], 2)
    return figure


def _lengths(axes: Any, rows: Sequence[Row]) -> None:
    """Enumerated means as bars' tops, samples with their interval."""
    for x, row in enumerate(rows):
        expected, sampled, error = (
            float(row[key])
            for key in ("expected_length", "sampled_length", "sampling_error")
        )
        labels = (
            ("enumerated", "sampled, with three standard deviations")
            if x == 0
            else (None, None)
        )
        axes.plot(
            [x - 0.35, x + 0.35],
            [expected] * 2,
            color=COLOURS["blue"],
            linewidth=3,
            label=labels[0],
        )
        axes.errorbar(
            x,
            sampled,
            error,
            color=COLOURS["red"],
            marker="o",
            markersize=4,
            capsize=4,
            label=labels[1],
        )
        place = {
            "xytext": (0, 7),
            "textcoords": "offset points",
            "ha": "center",
            "fontsize": 8.5,
        }
        axes.annotate(f"{expected:.4f}".rstrip("0"), (x, expected), **place)
    values = [float(row["expected_length"]) for row in rows]
    margin = max(max(values) - min(values), 0.1) * 0.25
    axes.set_ylim(min(values) - margin, max(values) + margin)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylabel("expected length [bits]")


def _shares(axes: Any, rows: Sequence[Row]) -> None:
    """Stacked shares of each kept length."""
    from matplotlib import colormaps

    lengths = [
        key
        for key in rows[0]
        if key.startswith("share_") and any(float(row[key]) > 0 for row in rows)
    ]
    for x, row in enumerate(rows):
        foot = 0.0
        for i, key in enumerate(lengths):
            colour = colormaps["cividis"](i / max(len(lengths) - 1, 1))
            share = 100 * float(row[key])
            label = f"{key.removeprefix('share_')} bits" if x == 0 else None
            axes.bar(x, share, bottom=foot, color=colour, width=0.7, label=label)
            foot += share
    axes.set_ylim(0, 100)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylabel("share of numbers [%]")
    tight = {
        "handlelength": 0.8,
        "columnspacing": 0.7,
        "handletextpad": 0.4,
        "fontsize": 8.5,
        "frameon": False,
    }
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(lengths), **tight
    )


_EVENTS = {"subnormal or zero": ("blue", "o"), "zero": ("red", "s")}
_FLOOR = 2.0**-15


def underflow(rows: Sequence[Row]) -> Any:
    """Rounding of the high word across, scaling down."""
    title = "How often does the low FP16 word of an FP32 number underflow, over the exponent of the number?"
    figure, grid = new_figure(2, 2, (13, 9), title, sharex=True, sharey=True)
    for line, shift in zip(grid, ("0", "11")):
        for axes, rounding in zip(line, ("nearest", "zero")):
            for event, (colour, marker) in _EVENTS.items():
                _probability(
                    axes,
                    choose(rows, shift=shift, rounding=rounding, event=event),
                    event,
                    colour,
                    marker,
                )
            scaled = "low word as it is" if shift == "0" else "low word times 2¹¹"
            axes.set_title(
                f"{scaled}, high word by {_NAMES[rounding]}", loc="left", fontsize=11
            )
            axes.axhline(2.0**-13, color="0.6", linewidth=0.8, linestyle="--")
            axes.text(
                -24,
                2.0**-13.1,
                "2⁻¹³: no bits left over",
                fontsize=8.5,
                color="0.35",
                va="top",
            )
            axes.axvspan(-24.5, -14.5, color="0.95", zorder=0)
            axes.text(
                -24, 1.15 * _FLOOR, "high word subnormal", fontsize=8.5, color="0.35"
            )
            axes.set_yscale("log", base=2)
            axes.set_ylim(_FLOOR, 2.5)
            axes.set_xlim(-24.5, 15.5)
            behind(axes)
    for axes in grid[1]:
        axes.set_xlabel("exponent e of the number, 2ᵉ ≤ |v| < 2ᵉ⁺¹")
    for axes in grid[:, 0]:
        axes.set_ylabel("probability")
    legend(figure, grid[0], 2)
    return figure


def _probability(
    axes: Any, rows: Sequence[Row], event: str, colour: str, marker: str
) -> None:
    """Formula as a line, the exact count as a thin dashed one, samples as markers."""
    x = [int(row["exponent"]) for row in rows]
    formula, counted, sampled = (
        [float(row[key]) for row in rows] for key in ("formula", "counted", "sampled")
    )
    shade = COLOURS[colour]
    axes.plot(x, formula, color=shade, linewidth=1.4, label=f"{event}: formula")
    axes.plot(
        x, counted, color=shade, linewidth=1.2, linestyle=":", label=f"{event}: counted"
    )
    dots = {
        "marker": marker,
        "markersize": 5,
        "markerfacecolor": "none",
        "linestyle": "none",
    }
    axes.plot(x, sampled, color=shade, label=f"{event}: sampled", **dots)
