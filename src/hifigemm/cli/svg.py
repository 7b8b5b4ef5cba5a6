"""Pictures as SVG text, drawn without matplotlib: curves over a size, and errors beside
what was guaranteed.

They are 440 units wide with letters of 14 units, so that they can be read on a phone.
Colours are those of Okabe and Ito, and every curve and every kind of mark has a shape
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from hifigemm.workshop.plots.style import COLOURS

WIDTH = 440
_LETTERS = 14
_STEP = 22  # from line to line
_GRID, _INK = "#d9d9d9", COLOURS["black"]
_TINTS = [
    COLOURS[name]
    for name in (
        "black",
        "blue",
        "orange",
        "green",
        "red",
        "pink",
        "sky",
        "dark",
        "grey",
    )
]
_SHAPES = (
    "M-4,-4H4V4H-4Z",
    "M-5,0A5,5 0 1 0 5,0A5,5 0 1 0 -5,0Z",
    "M0,-6L6,5H-6Z",
    "M0,-6L6,0L0,6L-6,0Z",
    "M0,6L6,-5H-6Z",
    "M-5,-5L5,5M-5,5L5,-5",
    "M-6,0H6M0,-6V6",
    "M-2,-6H2V6H-2Z",
    "M-6,-2H6V2H-6Z",
)
"""Marks around the origin. Two are crosses, which have no inside."""

Curve = Sequence[tuple[float, float]]


def curves(title: str, x_label: str, y_label: str, series: Mapping[str, Curve]) -> str:
    """Curves of positive numbers in logarithmic axes, with a tick at each x."""
    xs = sorted({x for curve in series.values() for x, _ in curve})
    low, high = _decades([y for curve in series.values() for _, y in curve])
    left, right, top, bottom = 52, WIDTH - 16, 34, 284

    def across(x: float) -> float:
        share = math.log(x / xs[0]) / math.log(xs[-1] / xs[0]) if len(xs) > 1 else 0.5
        return left + 12 + share * (right - left - 24)

    def up(y: float) -> float:
        return bottom - (math.log10(y) - low) / (high - low) * (bottom - top)

    shapes = [_text(left, 18, y_label)]
    for power in range(low, high + 1):
        y = up(10.0**power)
        shapes += [
            _line(left, y, right, y),
            _text(left - 6, y + 5, f"{10.0**power:g}", "end"),
        ]
    shapes += [_text(across(x), bottom + 20, f"{x:g}", "middle") for x in xs]
    shapes.append(_text((left + right) / 2, bottom + 42, x_label, "middle"))
    for i, curve in enumerate(series.values()):
        points = [(across(x), up(y)) for x, y in sorted(curve)]
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shapes.append(
            f'<polyline points="{way}" fill="none" stroke="{_tint(i)}" stroke-width="2"/>'
        )
        shapes += [_mark(i, x, y) for x, y in points]
    return _picture(title, shapes, list(series), bottom + 52)


def ranges(title: str, x_label: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each name with marks on a logarithmic axis, one for each kind of
    number, which have names too.

    Numbers that are not positive stand at the left end, which says 0. Those that are
    not finite are left out.
    """
    numbers = [x for marks in rows.values() for x in marks.values() if x < math.inf]
    low, high = _decades([x for x in numbers if x > 0])
    left, right, top = 176, WIDTH - 16, 12
    bottom = top + _STEP * len(rows)
    zeros = [(0.0, "0")] if any(x <= 0 for x in numbers) else []
    start = left + 48 * len(zeros)  # of the logarithmic axis

    def across(x: float) -> float:
        return (
            start + (math.log10(x) - low) / (high - low) * (right - start)
            if x > 0
            else left
        )

    step = max(-(-(high - low) // 4), 1)
    shapes = []
    for x, label in [
        *zeros,
        *((10.0**power, f"1e{power}") for power in range(low, high + 1, step)),
    ]:
        shapes += [
            _line(across(x), top, across(x), bottom),
            _text(across(x), bottom + 20, label, "middle"),
        ]
    kinds = list(dict.fromkeys(kind for marks in rows.values() for kind in marks))
    for i, (name, marks) in enumerate(rows.items()):
        y = top + _STEP * (i + 0.5)
        shapes += [_text(left - 14, y + 5, name, "end"), _line(left, y, right, y)]
        shapes += [
            _mark(kinds.index(kind), across(x), y)
            for kind, x in marks.items()
            if x < math.inf
        ]
    shapes.append(_text((left + right) / 2, bottom + 42, x_label, "middle"))
    return _picture(title, shapes, kinds, bottom + 52)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around positive numbers, two different ones."""
    low = math.floor(math.log10(min(values, default=1.0)))
    return low, max(math.ceil(math.log10(max(values, default=1.0))), low + 1)


def _picture(
    title: str, shapes: Sequence[str], legend: Sequence[str], height: float
) -> str:
    """The shapes with a legend below them, in two columns."""
    half = -(-len(legend) // 2)
    entries = []
    for i, name in enumerate(legend):
        x, y = 20 + WIDTH / 2 * (i // half), height + _STEP * (i % half + 0.5)
        entries += [_mark(i, x, y), _text(x + 14, y + 5, name)]
    size = f'viewBox="0 0 {WIDTH} {height + _STEP * half + 4:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-size="{_LETTERS}" font-family="sans-serif">'
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", *shapes, *entries, "</svg>"]
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}">{escape(words)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{_GRID}"/>'


def _mark(i: int, x: float, y: float) -> str:
    at = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path d="{_SHAPES[i % len(_SHAPES)]}" {at} fill="{_tint(i)}" stroke="{_tint(i)}" stroke-width="1.5"/>'


def _tint(i: int) -> str:
    """The colour of a curve; those behind the last shape take the shapes again, with
    other colours.
    """
    return _TINTS[(i + i // len(_SHAPES)) % len(_TINTS)]
