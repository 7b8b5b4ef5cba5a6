"""Pictures of promises over families of operands: what came out, and what was asked
for.
"""

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
    note,
    unique,
)

_METHODS: dict[str, str] = {
    "native": "grey v",
    "auto": "black o",
    "Ozaki II, fast scaling": "orange ^",
    "Ozaki II, accurate scaling": "blue s",
    "Ozaki I": "green D",
}
_ESTIMATES: dict[str, str] = {
    "magnitudes": "blue s",
    "BF16 magnitudes": "green D",
    "ESC, blocks of 1": "orange ^",
    "ESC, blocks of 16": "red v",
    "ESC, blocks of 128": "pink x",
    "ESC, W bits": "grey +",
}


def guarantees(rows: Sequence[Row]) -> Any:
    """Largest error over families, a column for each n, lines for the targets."""
    sizes = sorted({row["n"] for row in rows}, key=int)
    accuracies = unique(rows, "accuracy")
    title = "Is the promise kept whatever the exponents?"
    size = 5.5 * len(sizes), 3.4 * len(accuracies) + 1.5
    figure, grid = new_figure(
        len(accuracies), len(sizes), size, title, sharex=True, sharey="row"
    )
    for line, accuracy in zip(grid, accuracies):
        for axes, n in zip(line, sizes):
            _points(
                axes,
                choose(rows, accuracy=accuracy, n=n),
                "method",
                "constant",
                _METHODS,
            )
            bounds = [
                float(row["bound_over_u"])
                for row in choose(rows, accuracy=accuracy, n=n, method="Ozaki I")
            ]
            if max(bounds, default=0.0) > 0:
                axes.axhline(max(bounds), color="0.5", linestyle="--", linewidth=1)
                note(axes, "dashed: the promise")
            axes.set_yscale("log")
            axes.set_title(f"{accuracy}, n = {n}", loc="left", fontsize=11)
    for axes in grid[:, 0]:
        axes.set_ylabel("largest |C - AB| / (u |A||B|)")
    legend(figure, grid[0][:1], 5)
    return figure


def estimates(rows: Sequence[Row]) -> Any:
    """Moduli more than needed over families, a line for each target."""
    targets = unique(rows, "target")
    title = "How many moduli too many do the estimates ask for?"
    figure, grid = new_figure(
        len(targets), 1, (9, 3.6 * len(targets) + 1.5), title, sharex=True
    )
    for axes, target in zip(grid[:, 0], targets):
        found = choose(rows, target=target)
        known = [
            row for row in found if row["num_moduli"] != "" and row["needed"] != ""
        ]
        extra = [
            {**row, "extra": str(int(row["num_moduli"]) - int(row["needed"]))}
            for row in known
        ]
        _points(
            axes,
            extra,
            "estimate",
            "extra",
            _ESTIMATES,
            [row["family"] for row in found],
        )
        axes.set_title(f"{target}, n = {found[0]['n']}", loc="left", fontsize=11)
        axes.set_ylabel("moduli beyond those needed")
        axes.set_ylim(-1, None)
        note(axes, "no mark: the estimate, or all moduli, cannot say")
    legend(figure, grid[0], 3)
    return figure


def _points(
    axes: Any,
    rows: Sequence[Row],
    by: str,
    y: str,
    styles: dict[str, str],
    families: Sequence[str] = (),
) -> None:
    """One mark for each line that has a value, over the families in order of their
    first appearance.
    """
    names = list(dict.fromkeys(families)) or unique(rows, "family")
    for name, style in styles.items():
        found = [
            (names.index(row["family"]), float(row[y]))
            for row in rows
            if row[by] == name and row[y] != ""
        ]
        colour, marker = style.split()
        if found:
            axes.plot(
                *zip(*found),
                linestyle="",
                marker=marker,
                color=COLOURS[colour],
                label=name,
                alpha=0.8,
            )
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    behind(axes)
