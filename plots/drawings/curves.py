"""Pictures of curves: errors over n and k, what the modes of Ozaki scheme I cost, speed
over n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import (
    Row,
    choose,
    curve,
    decades,
    legend,
    new_figure,
    note,
    unique,
)

from .names import case_name, family_name

_FORWARD: dict[str, dict[str, str]] = {
    "fp32, FP32 level": {
        "1x FP16": "pink v - 8",
        "1x TF32": "red ^ --",
        "3x TF32": "orange D - 8",
        "4x TF32": "green s -- 4",
        "3x TF32, summed outside": "blue * -- 8",
        "|SGEMM - 3x TF32|": "sky x :",
        "SGEMM": "black o",
        "SGEMM by this computer's BLAS": "grey . :",
    },
    "fp64, one FP32 word": {"SGEMM": "black o", "1x TF64": "red ^"},
    "fp64, FP64 level": {
        "3x TF64": "orange D",
        "3x TF64, words to nearest": "orange D -- 5.5 white",
        "4x TF64": "green s",
        "4x TF64, words to nearest": "green s -- 5.5 white",
        "|DGEMM - 3x TF64|": "sky x :",
        "DGEMM": "blue o",
        "DGEMM by this computer's BLAS": "grey . :",
    },
}
"""Lines of panels: precision of the inputs and title, then the curves."""

_NORMS = {
    "norm_1": "sum of magnitudes",
    "norm_2": "Frobenius norm",
    "norm_inf": "largest magnitude",
}
_PUBLISHED = "black + none 15"


def forward_errors(rows: Sequence[Row]) -> Any:
    """Three norms side by side; what was published on an A100 as crosses."""
    unit = rows[-1].get("unit", "the model of an A100")
    title = f"Do two TF32 words reach SGEMM, and two FP32 words DGEMM?\nError over n on {unit}"
    figure, grid = new_figure(
        3, 3, (10.5, 14), title, sharex=True, height_ratios=(4, 2.2, 4)
    )
    sizes, last = [float(row["n"]) for row in rows], list(_FORWARD)[-1]
    for line, (name, styles) in zip(grid, _FORWARD.items()):
        precision, level = name.split(", ")
        for axes, (norm, norm_name) in zip(line, _NORMS.items()):
            for label, style in styles.items():
                curve(
                    axes,
                    choose(rows, precision=precision, curve=label, source="computed"),
                    "n",
                    norm,
                    label,
                    style,
                )
            published = [
                row
                for row in choose(rows, source="published")
                if row["curve"] in styles
            ]
            curve(
                axes,
                choose(published, precision=precision),
                "n",
                norm,
                "published",
                _PUBLISHED,
            )
            decades(
                axes,
                sizes,
                "n" if name == last else "",
                "‖C - AB‖ / (‖A‖ ‖B‖)" if axes is line[0] else "",
            )
            axes.set_title(f"{level}:\n{norm_name}", loc="left", fontsize=11)
    legend(figure, grid[:, 1], 3)
    return figure


_METHODS = [
    "grey v",
    "pink ^ --",
    "red x : 8",
    "sky s - 8",
    "blue D - 4.5",
    "green * -- 8",
    "black o",
]


def residuals(rows: Sequence[Row]) -> Any:
    """One panel for each kind of inputs."""
    title = "What does error correction repair on tensor cores?\nRelative residual over k on the model of an H100"
    figure, grid = new_figure(3, 2, (10, 13), title, sharex=True)
    for axes in _panels(grid.ravel(), rows, _METHODS):
        axes.axhline(1.0, color="0.5", linewidth=0.8)
        axes.set_ylim(3e-8, 4)
    legend(figure, grid.ravel(), 2)
    return figure


def accumulation(rows: Sequence[Row]) -> Any:
    """FP16 inputs, so that only the sums err."""
    title = "Rounding to nearest or towards zero in the accumulator: what does it cost?"
    return _one_line(
        rows, title, _METHODS[1:], "inputs are FP16 numbers: products are exact"
    )


def last_bit(rows: Sequence[Row]) -> Any:
    """FP32 products of operands that were cut short."""
    title = "Do bits missing at the end of the operands explain the error of Markidis' method?"
    styles = (*_METHODS[:1], *_METHODS[2:])
    return _one_line(
        rows, title, styles, "R is the product of the operands before bits are dropped"
    )


def _one_line(rows: Sequence[Row], title: str, styles: Sequence[str], text: str) -> Any:
    """Panels for each kind of inputs side by side."""
    count = len(unique(rows, "inputs"))
    figure, grid = new_figure(1, count, (5.5 * count, 6.3), title, sharey=True)
    _panels(grid[0], rows, styles)
    legend(figure, grid[0], 2)
    note(grid[0][0], text)
    return figure


def _panels(
    grid: Sequence[Any], rows: Sequence[Row], styles: Sequence[str]
) -> Sequence[Any]:
    """Residual over k for each method, a panel for each kind of inputs; the axes that
    were taken.
    """
    lengths = [float(row["k"]) for row in rows]
    inputs = unique(rows, "inputs")
    methods = unique(rows, "method")
    for axes, panel in zip(grid, inputs):
        for method, style in zip(methods, styles):
            curve(
                axes,
                choose(rows, inputs=panel, method=method),
                "k",
                "residual",
                method,
                style,
            )
        decades(axes, lengths, "k", "‖C - R‖ / ‖R‖ (Frobenius)")
        axes.set_title(panel, loc="left", fontsize=11)
    return grid[: len(inputs)]


_MODES: dict[str, str] = {
    "SGEMM (this computer's BLAS)": "grey v :",
    "SP mode, FP16 products": "orange ^",
    "DGEMM (this computer's BLAS)": "black o :",
    "DP mode, FP16 products": "red D",
    "DP mode, FP64 products": "pink x -- 8",
    "correct mode, FP16 products": "blue s - 8 white",
    "correct mode, FP64 products": "green * -- 7",
}
_FLOOR = 1e-17
"""Errors below, zero above all, are drawn here."""


def ozaki_modes(rows: Sequence[Row]) -> Any:
    """Errors, slices and products in three lines, a column for each phi."""
    phis = unique(rows, "phi")
    title = "How accurate are the modes of Ozaki scheme I, and what do they cost?"
    figure, grid = new_figure(
        3, len(phis), (4.7 * len(phis), 13), title, sharex=True, sharey="row"
    )
    sizes = [float(row["n"]) for row in rows]
    for column, phi in zip(grid.T, phis):
        for way, style in _MODES.items():
            found = choose(rows, phi=phi, way=way)
            shown = [
                {**row, "error": str(max(float(row["max_relative_error"]), _FLOOR))}
                for row in found
            ]
            curve(column[0], shown, "n", "error", way, style)
            curve(column[1], found, "n", "num_slices", way, style)
            curve(column[2], found, "n", "num_products", way, style)
        for mode, style in (("SP", "orange + : 9"), ("DP", "red + : 9")):
            found = choose(rows, phi=phi, way=f"{mode} mode, FP16 products")
            curve(
                column[1],
                found,
                "n",
                "published_slices",
                f"{mode} mode, rule of the paper",
                style,
                width=1,
            )
        decades(column[0], sizes, "n", "largest |C - R| / |R|")
        decades(column[1], sizes, "n", "slices", log_y=False)
        decades(column[2], sizes, "n", "products of slices", log_y=False)
        column[0].set_title(f"φ = {float(phi):g}", loc="left", fontsize=11)
        across = column[0].get_yaxis_transform()
        column[0].text(
            0.03, _FLOOR * 5, "0: every entry correct", transform=across, fontsize=9
        )
        column[0].set_ylim(_FLOOR / 2, None)
    for axes in grid[1:].ravel():
        axes.set_ylim(0, None)
    legend(figure, [grid[0][0], grid[1][0]], 3)
    return figure


_NATIVE = "black o :"
_PEERS = ["grey v --", "pink ^ --", "sky x -- 8"]
_OURS = ["red D", "orange s", "blue s - 8 white", "green * - 8", "sky ^", "pink v"]
_SPEEDS = {"sustained_tflops": "sustained", "burst_tflops": "bursts"}


def throughput(rows: Sequence[Row]) -> Any:
    """Sustained speed and bursts side by side, a line of panels for each dtype, family
    of inputs and mode.

    The top edge is the highest roof of a scheme: the peak of its format divided by the
    number of its products. Only square products are drawn, one at a time.
    """
    drawn = [
        row for row in rows if row["m"] == row["n"] == row["k"] and row["batch"] == "1"
    ]
    kinds = list(
        dict.fromkeys((row["dtype"], row["family"], row["mode"]) for row in drawn)
    ) or [("", "", "")]
    devices = ", ".join(unique(drawn, "device"))
    title = f"How fast are products of n x n matrices, each checked before it was timed?  {devices}"
    figure, grid = new_figure(len(kinds), 2, (13, 1.5 + 5 * len(kinds)), title)
    styles = _styles(drawn)
    for line, (dtype, family, mode) in zip(grid, kinds):
        shown = choose(drawn, dtype=dtype, family=family, mode=mode)
        for axes, (speed, name) in zip(line, _SPEEDS.items()):
            for case, style in styles.items():
                curve(
                    axes, choose(shown, case=case), "n", speed, case_name(case), style
                )
            decades(
                axes,
                [float(row["n"]) for row in shown],
                "n",
                "TFLOP/s, counted as 2 n³",
                log_y=False,
            )
            how = "" if mode == "eager" else ", from CUDA graphs"
            axes.set_title(
                f"{dtype}, {family_name(family)}, {name}{how}", loc="left", fontsize=11
            )
            _set_top(axes, shown)
    legend(figure, grid.ravel(), 4)
    return figure


def _styles(rows: Sequence[Row]) -> dict[str, str]:
    """The native product and peers in dots and dashes, schemes in full lines."""
    ours, peers, styles = iter(_OURS * 9), iter(_PEERS * 9), {}
    for case in unique(rows, "case"):
        is_peer = any(row["case"] == case and row["scheme"] == case for row in rows)
        styles[case] = _NATIVE if case == "native" else next(peers if is_peer else ours)
    return styles


def _set_top(axes: Any, rows: Sequence[Row]) -> None:
    """The roof as the top edge, where the file has one for a scheme other than the
    native product.
    """
    ours = [row for row in rows if row["case"] not in ("native", "auto")]
    roofs = {
        row["case"]: float(row["roof_tflops"]) for row in ours if row["roof_tflops"]
    }
    axes.set_ylim(0, None)
    if roofs:
        case = max(roofs, key=roofs.__getitem__)
        axes.set_ylim(0, roofs[case])
        note(
            axes,
            f"top edge: {case_name(case)} at the peak of their unit, {roofs[case]:.0f} TFLOP/s",
        )
