"""Pictures of what was measured on a GPU: speed, energy and accuracy of schemes, and
where their time goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import (
    COLOURS,
    Row,
    behind,
    choose,
    curve,
    decades,
    legend,
    new_figure,
    unique,
)

from .names import case_name, family_name

_MODES: dict[str, dict[str, str]] = {
    "float64": {
        "native": "black o :",
        "ozaki1:fp16:dp": "red D",
        "ozaki1:int8:dp": "orange ^",
        "ozaki1:fp64:correct": "green * - 8",
        "ozaki1:fp16:correct": "blue s - 8 white",
        "ozaki1:int8:correct": "sky v",
        "ozaki2:14": "pink P --",
        "auto@correct": "dark X -- 7",
    },
    "float32": {
        "native": "grey o :",
        "ozaki1:fp16:sp": "red + -- 9",
        "ozaki1:int8:sp": "orange x -- 7",
    },
}
_OWN_NAMES = {
    "auto@correct": "Ozaki scheme II, correctly rounded",
    "ozaki2:14": "Ozaki scheme II, 14 moduli",
}
_STAGES = {
    "count": ("counting slices", "pink"),
    "slices": ("slicing A and B", "orange"),
    "products": ("products of slices", "blue"),
    "sums": ("sums and rounding", "green"),
    "passes": ("other passes", "sky"),
    "rest": ("host and gaps", "grey"),
}
_BARS = {
    "DP and SP": (
        "ozaki1:fp16:dp",
        "ozaki1:int8:dp",
        "ozaki1:fp16:sp",
        "ozaki1:int8:sp",
    ),
    "correct": ("ozaki1:fp64:correct", "ozaki1:fp16:correct", "ozaki1:int8:correct"),
}
"""Modes whose time is shown in one panel."""


def with_speed(rows: Sequence[Row]) -> list[Row]:
    """Rows with the TFLOP/s that they sustain as `speed`; bursts of what takes long are
    sustained by themselves.
    """
    return [
        {**row, "speed": row["sustained_tflops"] or row["burst_tflops"]} for row in rows
    ]


def modes(rows: Sequence[Row]) -> Any:
    """Speed and number of products, a line for each phi; rate of the products of slices
    and gain over the native product for the first one, and its shares of time over n.
    """
    families = unique(rows, "family")
    title = f"How fast are the modes of Ozaki scheme I, and where does their time go?\n{rows[0]['device']}"
    heights = [4.4] * (len(families) + 1) + [9.0]
    figure, grid = new_figure(
        len(heights), 2, (10, sum(heights) + 1.4), title, height_ratios=heights
    )
    for (left, right), family in zip(grid, families):
        found = with_speed(choose(rows, family=family))
        _curves_of_modes(left, found, "speed", "TFLOP/s, counted as 2 n³")
        sliced = [row for row in found if row["num_slices"]]
        _curves_of_modes(
            right, sliced, "num_products", "products of slices", log_y=False
        )
        right.set_ylim(0, None)
        left.set_title(f"{family_name(family)}: speed", loc="left", fontsize=11)
        right.set_title(f"{family_name(family)}: products", loc="left", fontsize=11)

    first = with_speed(choose(rows, family=families[0]))
    name = family_name(families[0])
    rates, gains = grid[-2]
    timed = [row for row in first if row["products_tflops"]]
    _curves_of_modes(
        rates, timed, "products_tflops", "TFLOP/s of the products of slices"
    )
    _peaks(rates, timed)
    rates.set_title(f"{name}: rate of the products", loc="left", fontsize=11)
    _curves_of_modes(gains, first, "burst_ratio_to_native", "speed over the native one")
    gains.axhline(1.0, color="0.4", linewidth=0.9, linestyle="--")
    gains.set_title(f"{name}: beside DGEMM and SGEMM", loc="left", fontsize=11)

    for axes, (kind, cases) in zip(grid[-1], _BARS.items()):
        bars = [row for case in cases for row in choose(first, case=case)]
        _shares(axes, [row for row in bars if row["seconds_total"]])
        axes.set_title(f"{name}: {kind}, shares of time", loc="left", fontsize=11)
    legend(figure, [grid[0][0], *grid[-1]], 3)
    return figure


def _curves_of_modes(
    axes: Any, rows: Sequence[Row], y: str, label: str, *, log_y: bool = True
) -> None:
    """A curve over n for each mode."""
    for dtype, styles in _MODES.items():
        kind = " of float32" if dtype == "float32" else ""
        for case, style in styles.items():
            name = _OWN_NAMES.get(case, case_name(case)) + (
                "" if ":sp" in case else kind
            )
            curve(axes, choose(rows, dtype=dtype, case=case), "n", y, name, style)
    decades(axes, [float(row["n"]) for row in rows], "n", label, log_y=log_y)


def _peaks(axes: Any, rows: Sequence[Row]) -> None:
    """Peaks of the units, as lines."""
    from matplotlib.patheffects import withStroke

    known = {
        row["unit"]: float(row["roof_tflops"]) * int(row["num_products"])
        for row in rows
        if row["roof_tflops"]
    }
    for unit, peak in known.items():
        axes.axhline(peak, color="0.4", linewidth=0.9, linestyle="--")
        place: dict[str, Any] = {
            "xytext": (-4, -2),
            "textcoords": "offset points",
            "ha": "right",
            "va": "top",
        }
        place |= {
            "fontsize": 9,
            "color": "0.3",
            "path_effects": [withStroke(linewidth=3, foreground="white")],
        }
        axes.annotate(
            f"peak of {unit.upper()}, {peak:.0f}",
            (1, peak),
            xycoords=("axes fraction", "data"),
            **place,
        )


def _shares(axes: Any, rows: Sequence[Row]) -> None:
    """Shares of time as bars over n for each case, with the counts beside them."""
    rows = sorted(rows, key=lambda row: (row["dtype"], row["case"], float(row["n"])))
    for y, row in enumerate(rows):
        left = 0.0
        for stage, (name, colour) in _STAGES.items():
            share = 100 * float(row[f"seconds_{stage}"]) / float(row["seconds_total"])
            axes.barh(
                y,
                share,
                left=left,
                color=COLOURS[colour],
                height=0.55,
                label=name if y == 0 else None,
            )
            left += share
        counts = f"{row['num_slices']} slices, {row['num_products']} products, {_time(row['seconds_total'])}"
        axes.annotate(
            counts,
            (0, y - 0.45),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    axes.set_yticks(
        range(len(rows)),
        [f"{_short(row['case'])}, {row['n']}" for row in rows],
        fontsize=8,
    )
    axes.set_ylim(len(rows) - 0.5, -0.8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of time [%]")
    behind(axes, "x")


def _time(text: str) -> str:
    seconds = float(text)
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"


_WORDS: dict[str, dict[str, str]] = {
    "float32": {
        "native": "black o :",
        "corrected:fp16": "red D",
        "corrected:tf32": "blue s - 8 white",
        "corrected:tf32:chained": "sky x -- 7",
        "multiword:tf32:1:1": "grey v --",
        "multiword:tf32:2:3": "orange ^ --",
        "multiword:tf32:2:4": "green P --",
        "multiword:fp16:1:1": "dark + : 8",
        "multiword:fp16:2:3": "pink d -- 7",
        "multiword:bf16:3:6": "green * : 8",
    },
    "float64": {
        "native": "black o :",
        "multiword:fp32:1:1": "grey v --",
        "multiword:fp32:2:3": "orange ^ --",
        "multiword:fp32:2:4": "green P --",
    },
}


def word_products(rows: Sequence[Row]) -> Any:
    """Speed of float32 and float64 above, their errors, energy of float32 below."""
    title = f"How fast are products of short words, and at what energy?\n{rows[0]['device']}"
    figure, grid = new_figure(3, 2, (10, 15), title)
    rows = with_speed(rows)
    for column, dtype in zip(grid.T, _WORDS):
        found = choose(rows, dtype=dtype)
        _curves_of_words(
            column[0], found, "speed", "TFLOP/s, counted as 2 n³", log_y=False
        )
        _peaks(column[0], choose(found, case="native"))
        column[0].set_ylim(0, None)
        _curves_of_words(
            column[1], found, "sample_error", "largest |C - AB| / |A||B| of a sample"
        )
    single = choose(rows, dtype="float32")
    _curves_of_words(grid[2][0], single, "joules", "energy of a product [J]")
    _curves_of_words(
        grid[2][1], single, "gflops_per_watt", "GFLOP/s for each watt", log_y=False
    )
    legend(figure, grid[0], 3)
    return figure


def _curves_of_words(
    axes: Any, rows: Sequence[Row], y: str, label: str, *, log_y: bool = True
) -> None:
    """A curve over n for each scheme of the dtype of the rows."""
    dtype = rows[0]["dtype"] if rows else "float32"
    for case, style in _WORDS[dtype].items():
        curve(axes, choose(rows, case=case), "n", y, case_name(case), style)
    decades(axes, [float(row["n"]) for row in rows], "n", label, log_y=log_y)
    axes.set_title(f"{dtype} matrices", loc="left", fontsize=11)


def predicted(rows: Sequence[Row]) -> Any:
    """Predicted speeds on cards that were not at hand: modes of Ozaki scheme I on the
    left, of float32 with words on the right.
    """
    cards = unique(rows, "card")
    title = "Predicted from datasheets and stages on a Hopper card, not measured"
    figure, grid = new_figure(len(cards), 2, (10, 4.6 * len(cards) + 1.6), title)
    sliced = choose(rows, source="modes")
    family = unique(sliced, "family")[0]
    for (left, right), card in zip(grid, cards):
        modes_of_card = choose(sliced, card=card, family=family)
        _curves_of_modes(
            left,
            choose(modes_of_card, dtype="float64"),
            "predicted_tflops",
            "TFLOP/s, counted as 2 n³",
        )
        found = choose(modes_of_card, dtype="float32")
        found += [
            row
            for row in choose(rows, card=card, source="words")
            if row["case"] != "native"
        ]
        for case, style in (_MODES["float32"] | _WORDS["float32"]).items():
            if case == "native":
                style = _MODES["float32"][case]
            name = "native product of float32" if case == "native" else case_name(case)
            curve(right, choose(found, case=case), "n", "predicted_tflops", name, style)
        sizes = [float(row["n"]) for row in found]
        decades(right, sizes, "n", "TFLOP/s, counted as 2 n³")
        for axes, kind in ((left, "float64"), (right, "float32")):
            axes.set_title(
                f"{card}, {kind}: predicted, {family_name(family)}",
                loc="left",
                fontsize=11,
            )
    legend(figure, grid[0], 3)
    return figure


_RESIDUALS = [
    "grey v",
    "pink ^",
    "orange x",
    "sky s",
    "blue D",
    "green *",
    "black o",
    "dark P",
]


def residuals_on_gpu(rows: Sequence[Row]) -> Any:
    """Lines for the model of the unit, marks for what was measured; a panel for each
    kind of inputs.
    """
    machine = next((row["unit"] for row in rows if row["unit"] != "model"), "")
    title = f"What does error correction repair on tensor cores?\nMarks: {machine}; lines: the model of an H100"
    figure, grid = new_figure(3, 2, (10, 13), title, sharex=True, sharey=True)
    lengths = [float(row["k"]) for row in rows]
    for axes, inputs in zip(grid.ravel(), unique(rows, "inputs")):
        for method, style in zip(unique(rows, "method"), _RESIDUALS):
            colour, marker = style.split()
            found = choose(rows, inputs=inputs, method=method)
            measured = choose(found, unit=machine)
            label = "" if measured else method
            curve(
                axes,
                choose(found, unit="model"),
                "k",
                "residual",
                label,
                f"{colour} , -",
                width=1.2,
            )
            curve(
                axes,
                measured,
                "k",
                "residual",
                method,
                f"{colour} {marker} none 7 none",
            )
        decades(axes, lengths, "k", "‖C - R‖ / ‖R‖ (Frobenius)")
        axes.set_title(inputs, loc="left", fontsize=11)
        axes.set_ylim(3e-8, 4)
    legend(figure, grid.ravel()[:1], 2)
    return figure


_KINDS: dict[str, tuple[str, str, str]] = {
    "native": ("native product", "black", "o"),
    "auto": ("matmul of hifigemm, by the accuracy asked for", "red", "D"),
    "ozaki2": ("Ozaki scheme II: number of moduli", "blue", "s"),
    "ozaki1": ("Ozaki scheme I: number of slices, or mode", "green", "^"),
    "corrected": ("two words, corrected", "orange", "P"),
    "multiword": ("words: number of products", "pink", "v"),
    "cublas": ("cuBLAS, emulated", "grey", "X"),
}
_SIDES = ((-6, 5), (-8, 0), (8, 0), (0, 8), (6, 5), (6, -5), (-6, -5), (0, -8))
"""Where a label may stand, in points from what it names; first what the Pareto front
leaves free.
"""


def schemes(rows: Sequence[Row]) -> Any:
    """Speed over error, a panel for each dtype; the Pareto front is a line."""
    dtypes = unique(rows, "dtype")
    title = f"Which accuracy at which speed?  Products of n = {rows[0]['n']}, φ = 0.5\n{rows[0]['device']}"
    figure, grid = new_figure(len(dtypes), 1, (9.5, 6.8 * len(dtypes)), title)
    for axes, dtype in zip(grid[:, 0], dtypes):
        timed = [
            row
            for row in with_speed(choose(rows, dtype=dtype))
            if row["speed"] and row["sample_error"]
        ]
        points = [
            (float(row["sample_error"]), float(row["speed"]), row["case"])
            for row in timed
        ]
        front = pareto_front([(error, speed) for error, speed, _ in points])
        axes.plot(
            *zip(*front),
            color="0.3",
            linewidth=1.2,
            drawstyle="steps-post",
            label="Pareto front: nothing is better in both",
        )
        for kind, (name, colour, marker) in _KINDS.items():
            chosen = [point for point in points if point[2].startswith(kind)]
            if chosen:
                x, y, _ = zip(*chosen)
                axes.plot(
                    x,
                    y,
                    linestyle="none",
                    marker=marker,
                    markersize=7,
                    color=COLOURS[colour],
                    label=name,
                )
        axes.set_xscale("log")
        axes.set_xlabel("largest error of sampled entries, |C - AB| / |A||B|")
        axes.set_ylabel("TFLOP/s, counted as 2 n³")
        axes.margins(x=0.16)
        axes.set_ylim(0, None)
        axes.set_title(
            f"{dtype} matrices; better is up and to the left", loc="left", fontsize=11
        )
        behind(axes)
        _write_labels(axes, points)
    legend(figure, grid[:, 0], 2)
    return figure


def _write_labels(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """The name of each point beside it, where it covers as few points and names as
    possible.
    """
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()
    taken = [
        Bbox.from_extents(x - 5, y - 5, x + 5, y + 5)
        for x, y in axes.transData.transform([p[:2] for p in points])
    ]
    for error, speed, case in points:
        colour = next(
            colour for kind, (_, colour, _) in _KINDS.items() if case.startswith(kind)
        )
        texts = [
            axes.annotate(
                _short(case),
                (error, speed),
                (x, y),
                textcoords="offset points",
                ha=("center", "left", "right")[(x > 0) - (x < 0)],
                va=("center", "bottom", "top")[(y > 0) - (y < 0)],
                fontsize=9,
                color=COLOURS[colour],
            )
            for x, y in _SIDES
        ]
        best = min(
            texts, key=lambda text: text.get_window_extent().count_overlaps(taken)
        )
        taken.append(best.get_window_extent())
        for text in texts:
            if text is not best:
                text.remove()


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (error, speed) than which none is better in one and as good in the
    other, by rising error.
    """
    front: list[tuple[float, float]] = []
    for error, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or speed > front[-1][1]:
            front.append((error, speed))
    return front


def _short(case: str) -> str:
    """What stands at a point whose kind is known."""
    scheme, _, accuracy = case.partition("@")
    name, *details = scheme.split(":")
    if accuracy:
        return {"fp64": "promised", "correct": "correct"}.get(accuracy, accuracy)
    match name, details:
        case (("ozaki1" | "ozaki2"), [count]):
            return count
        case "ozaki1", [product, mode]:
            return f"{mode.upper() if mode != 'correct' else mode}, {product.upper()}"
        case "corrected", [product, *rest]:
            return product.upper() + (" in the unit" if rest else "")
        case "multiword", [product, _, count]:
            return f"{count} {product.upper()}"
    return "by the data" if case.endswith("dynamic") else ""


_PHIS = ["black o", "blue s", "orange ^", "red D"]
_SCALINGS = {"fast": "scaled by norms", "accurate": "scaled by one INT8 product more"}


def moduli(rows: Sequence[Row]) -> Any:
    """Error over the number of moduli, a panel for each way to scale, a curve for each
    phi.
    """
    title = f"How accurate is Ozaki scheme II?  Products of n = {rows[0]['n']}"
    figure, grid = new_figure(1, 2, (10, 6), title, sharey=True)
    for axes, (scaling, name) in zip(grid[0], _SCALINGS.items()):
        found = choose(rows, way=scaling)
        for phi, style in zip(unique(rows, "phi"), _PHIS):
            curve(
                axes,
                choose(found, phi=phi),
                "num_moduli",
                "error",
                f"φ = {float(phi):g}",
                style,
            )
            for row in choose(rows, phi=phi, way="native"):
                axes.axhline(
                    float(row["error"]),
                    color=COLOURS[style.split()[0]],
                    linewidth=1,
                    linestyle=":",
                )
        axes.set_yscale("log")
        axes.set_xticks(sorted({int(row["num_moduli"]) for row in found})[::2])
        axes.set_xlabel("number of moduli, and of INT8 products")
        axes.set_ylabel("largest |C - AB| / |A||B|")
        axes.set_title(name, loc="left", fontsize=11)
        axes.text(
            0.98,
            0.97,
            "dotted: native product\nφ: width of the exponents",
            ha="right",
            va="top",
            transform=axes.transAxes,
        )
        behind(axes)
    legend(figure, grid[0], 4)
    return figure
