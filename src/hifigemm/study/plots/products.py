"""Pictures of errors of products: forward errors over n, residuals over k, accumulation, operands cut short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .style import Row, Style, choose, curve, decades, legend_below, new_figure, remark

__all__ = ["accumulation", "forward_errors", "last_bit", "residuals"]

_FORWARD: dict[str, dict[str, Style]] = {
    "fp32, FP32 level": {
        "1x FP16": {"colour": "pink", "marker": "v", "size": 8},
        "1x TF32": {"colour": "red", "marker": "^", "dashes": "--"},
        "3x TF32": {"colour": "orange", "marker": "D", "size": 8},
        "4x TF32": {"colour": "green", "marker": "s", "size": 4, "dashes": "--"},
        "|SGEMM - 3x TF32|": {"colour": "sky", "marker": "x", "dashes": ":"},
        "SGEMM": {"colour": "black", "marker": "o"},
        "SGEMM by this computer's BLAS": {"colour": "grey", "marker": ".", "dashes": ":"},
    },
    "fp64, one FP32 word": {
        "SGEMM": {"colour": "black", "marker": "o"},
        "1x TF64": {"colour": "red", "marker": "^"},
    },
    "fp64, FP64 level": {
        "3x TF64": {"colour": "orange", "marker": "D"},
        "3x TF64, words to nearest": {"colour": "orange", "marker": "D", "fill": "white", "dashes": "--"},
        "4x TF64": {"colour": "green", "marker": "s"},
        "4x TF64, words to nearest": {"colour": "green", "marker": "s", "fill": "white", "dashes": "--"},
        "|DGEMM - 3x TF64|": {"colour": "sky", "marker": "x", "dashes": ":"},
        "DGEMM": {"colour": "blue", "marker": "o"},
        "DGEMM by this computer's BLAS": {"colour": "grey", "marker": ".", "dashes": ":"},
    },
}
"""Lines of panels: precision of the inputs and title, then the curves."""

_NORMS = {"norm_1": "sum of magnitudes", "norm_2": "Frobenius norm", "norm_inf": "largest magnitude"}
_PUBLISHED = {"marker": "+", "size": 15, "dashes": "none", "colour": "black"}


def forward_errors(rows: Sequence[Row]) -> Any:
    """Three norms side by side; what was published on an A100 as crosses."""
    title = "Do two TF32 words reach SGEMM, and two FP32 words DGEMM?  Error over n on the model of an A100"
    figure, grid = new_figure(3, 3, (14, 14), title, sharex=True, height_ratios=(4, 2.2, 4))
    sizes = [float(row["n"]) for row in rows]
    for line, (name, styles) in zip(grid, _FORWARD.items()):
        precision, level = name.split(", ")
        for axes, (norm, norm_name) in zip(line, _NORMS.items()):
            for label, style in styles.items():
                curve(axes, choose(rows, precision=precision, curve=label, source="computed"), "n", norm, label, style)
            published = [row for row in choose(rows, source="published") if row["curve"] in styles]
            curve(axes, choose(published, precision=precision), "n", norm, "published", _PUBLISHED)
            decades(axes, sizes, "n" if line is grid[-1] else "", "‖C - AB‖ / (‖A‖ ‖B‖)")
            axes.set_title(f"{level}, {norm_name}", loc="left", fontsize=11)
        handles, labels = line[1].get_legend_handles_labels()
        line[2].legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=10)
    return figure


_METHODS: tuple[Style, ...] = (
    {"colour": "grey", "marker": "v"},
    {"colour": "pink", "marker": "^", "dashes": "--"},
    {"colour": "red", "marker": "x", "dashes": ":", "size": 8},
    {"colour": "sky", "marker": "s", "size": 8},
    {"colour": "blue", "marker": "D", "size": 4.5},
    {"colour": "green", "marker": "*", "dashes": "--", "size": 8},
    {"colour": "black", "marker": "o"},
)


def residuals(rows: Sequence[Row]) -> Any:
    """One panel for each kind of inputs."""
    title = "What does error correction repair on tensor cores?  Relative residual over k on the model of an H100"
    figure, grid = new_figure(2, 3, (14, 9.5), title, sharex=True)
    panels = list(dict.fromkeys(row["inputs"] for row in rows))
    _panels(grid.ravel(), rows, "inputs", panels, "‖C - R‖ / ‖R‖ (Frobenius)", _METHODS)
    for axes in grid.ravel()[: len(panels)]:
        axes.axhline(1.0, color="0.5", linewidth=0.8)
        axes.set_ylim(3e-8, 4)
    legend_below(figure, grid.ravel(), 3)
    return figure


def accumulation(rows: Sequence[Row]) -> Any:
    """FP16 inputs, so that only the sums err."""
    title = "Rounding to nearest or towards zero in the accumulator: what does it cost?"
    return _one_line(rows, title, _METHODS[1:], "inputs are FP16 numbers: products are exact")


def last_bit(rows: Sequence[Row]) -> Any:
    """FP32 products of operands that were cut short."""
    title = "Do bits missing at the end of the operands explain the error of Markidis' method?"
    styles = (*_METHODS[:1], *_METHODS[2:])
    return _one_line(rows, title, styles, "R is the product of the operands before bits are dropped")


def _one_line(rows: Sequence[Row], title: str, styles: Sequence[Style], note: str) -> Any:
    """Panels for each kind of inputs side by side."""
    panels = list(dict.fromkeys(row["inputs"] for row in rows))
    figure, grid = new_figure(1, len(panels), (5.5 * len(panels), 6.3), title, sharey=True)
    _panels(grid[0], rows, "inputs", panels, "‖C - R‖ / ‖R‖ (Frobenius)", styles)
    legend_below(figure, grid[0], 2)
    remark(grid[0][0], note)
    return figure


def _panels(
    grid: Any, rows: Sequence[Mapping[str, str]], key: str, panels: Sequence[str], y_label: str, styles: Sequence[Style]
) -> None:
    """Residual over k for each method; curves in the order of the file."""
    lengths = [float(row["k"]) for row in rows]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for axes, panel in zip(grid, panels):
        for method, style in zip(methods, styles):
            curve(axes, choose(rows, **{key: panel, "method": method}), "k", "residual", method, style)
        decades(axes, lengths, "k", y_label)
        axes.set_title(panel, loc="left", fontsize=11)
