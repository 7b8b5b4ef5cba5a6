"""Drawings that explain: python -m plots.diagrams [--output docs/pictures] writes one
SVG file each.

They are 480 units wide with letters of 14 units and more, so that they can be read on a
phone. Colours are those of Okabe and Ito, and no colour says what a word beside it does
not say.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from examples.orientation import grid, side, side_in_float64
from hifigemm.workshop.plots.style import COLOURS

WIDTH = 480
BLUE, ORANGE, GREEN, RED = (
    COLOURS[name] for name in ("blue", "orange", "green", "red")
)
TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"
BLACK, DARK = COLOURS["black"], COLOURS["dark"]
PALE = {
    BLUE: "#d9e9f4",
    ORANGE: "#fbeed1",
    GREEN: "#d6efe6",
    RED: "#f8e2d3",
    DARK: "#eeeeee",
}


class Drawing:
    """Shapes on a white page."""

    def __init__(self, height: int, title: str) -> None:
        self.height, self.title, self.shapes = height, title, [""]

    def text(
        self, x: float, y: float, words: str, *, size: int = 15, anchor: str = "middle", bold: bool = False,
        colour: str = BLACK,
    ) -> None:  # fmt: skip
        weight = ' font-weight="bold"' if bold else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}>'
            f"{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, words: str = "", *, colour: str = DARK, size: int = 15,
        dashed: bool = False, filled: bool = True,
    ) -> None:  # fmt: skip
        """A frame with lines of words in its middle."""
        fill, dashes = (
            (PALE[colour] if filled else "#ffffff"),
            ' stroke-dasharray="5 4"' if dashed else "",
        )
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{colour}" '
            f'stroke-width="1.5"{dashes}/>'
        )
        lines = words.split("\n") if words else []
        top = y + height / 2 - (len(lines) - 1) * (size + 4) / 2 + size * 0.35
        for i, line in enumerate(lines):
            self.text(x + width / 2, top + i * (size + 4), line, size=size)

    def line(
        self,
        x: float,
        y: float,
        to_x: float,
        to_y: float,
        *,
        colour: str = BLACK,
        dashed: bool = False,
    ) -> None:
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{colour}" stroke-width="1.5"{dashes}/>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A line with a head, straight down or to the right."""
        self.line(x, y, to_x, to_y)
        points = [(-4, -8), (4, -8)] if x == to_x else [(-8, -4), (-8, 4)]
        corners = " ".join(
            f"{to_x + dx:g},{to_y + dy:g}" for dx, dy in [(0, 0), *points]
        )
        self.shapes.append(f'<polygon points="{corners}" fill="{BLACK}"/>')

    def bits(
        self,
        x: float,
        y: float,
        pattern: str,
        *,
        colour: str,
        cell: float = 14,
        cut: int | None = None,
    ) -> None:
        """Boxes with a bit each; those from `cut` on are grey and struck out."""
        for i, bit in enumerate(pattern):
            lost = cut is not None and i >= cut
            self.box(
                x + i * cell,
                y,
                cell,
                20,
                bit,
                colour=DARK if lost else colour,
                size=14,
                dashed=lost,
            )

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" font-family="DejaVu Sans, Verdana, Arial, sans-serif">'
        )
        page = f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>'
        return "\n".join(
            [
                head,
                f"<title>{escape(self.title)}</title>",
                page,
                *self.shapes[1:],
                "</svg>",
                "",
            ]
        )


def overview() -> Drawing:
    d = Drawing(
        330, "NumPy rounds after every addition; hifigemm adds exactly and rounds once"
    )
    d.text(
        240, 24, f"10000000000000000 + 1 {MINUS} 10000000000000000", size=16, bold=True
    )
    large, less = "1" + 16 * "0", f"{MINUS} 1" + 16 * "0"
    ways = {
        "NumPy rounds each time": (
            10,
            RED,
            f"rounded:\n{large}\nthe 1 is lost",
            "result 0",
        ),
        "correct: rounded once": (
            250,
            BLUE,
            f"exact:\n{large[:-1]}1",
            "exact 1, result 1",
        ),
    }
    for head, (x, colour, middle, end) in ways.items():
        steps = f"{large} + 1", middle, less, end
        d.text(x + 110, 60, head, bold=True, colour=colour)
        y = 74
        for i, (words, height) in enumerate(zip(steps, (34, 72, 34, 38), strict=True)):
            d.box(x, y, 220, height, words, colour=colour, filled=i in (1, 3))
            if i < 3:
                d.arrow(x + 110, y + height, x + 110, y + height + 22)
            y += height + 22
    return d


def allowed() -> Drawing:
    d = Drawing(232, "What an accuracy of 1e-12 allows for an entry whose terms cancel")
    d.text(240, 24, f"1e16 + 1 {MINUS} 1e16: exact value 1, |A||B| = 2e16", bold=True)
    for y, colour, head, low, high, words in (
        (
            66,
            ORANGE,
            "accuracy=1e-12",
            40,
            440,
            f"{MINUS}19999 to 20001: 1e-12 of |A||B| off",
        ),
        (
            136,
            GREEN,
            "accuracy=hg.Relative(1e-12)",
            236,
            244,
            "0.999999999999 to 1.000000000001",
        ),
    ):
        d.text(240, y - 12, head, size=14)
        d.box(low, y, high - low, 16, colour=colour)
        d.text(240, y + 36, words, size=14)
    d.line(240, 62, 240, 84)
    d.line(240, 132, 240, 154)
    d.text(240, 204, "“correct” and Relative give 1. With 1e-12,", size=14)
    d.text(240, 222, "0 is allowed too: NumPy returns it here.", size=14)
    return d


def native() -> Drawing:
    d = Drawing(250, "Two orders of the same three additions")
    d.text(120, 24, "one order", bold=True)
    d.text(360, 24, "another order", bold=True)
    for x, first, second in (
        (10, ("1e16 + 1", "rounded to 1e16", f"1e16 {MINUS} 1e16"), "0"),
        (250, (f"1e16 {MINUS} 1e16", "0, nothing to round", "0 + 1"), "1"),
    ):
        for i, words in enumerate((*first, second)):
            d.box(
                x,
                40 + i * 52,
                220,
                34,
                words,
                colour=ORANGE if i == 1 else DARK,
                filled=i in (1, 3),
            )
            if i < 3:
                d.arrow(x + 110, 74 + i * 52, x + 110, 92 + i * 52)
    return d


def slices() -> Drawing:
    d = Drawing(264, "Numbers of one row cut into slices on one grid")
    d.text(240, 24, "one row of A, its numbers in binary, on one grid", bold=True)
    rows = ("101101001110100110", "000110100101101110", "000000110100111010")
    for i, row in enumerate(rows):
        d.bits(40, 44 + 34 * i, row, colour=BLUE, cell=22)
    for i, colour in enumerate((BLUE, GREEN, ORANGE)):
        x = 40 + 132 * i
        d.line(x, 36, x, 160, colour=RED, dashed=True)
        d.box(x + 4, 176, 124, 44, f"slice {i + 1}\nsix bits", colour=colour)
    d.line(436, 36, 436, 160, colour=RED, dashed=True)
    d.text(240, 250, "Each slice is a matrix of short integers.", size=15)
    return d


def slice_products() -> Drawing:
    d = Drawing(330, "Products of slices: those of one diagonal share a scale")
    d.text(250, 24, "slices of B", bold=True)
    for i in range(4):
        d.text(150 + 76 * i, 50, str(i + 1))
        d.text(92, 88 + 58 * i, str(i + 1))
        for j in range(4):
            kept = i + j < 4
            words = f"scale {i + j + 1}" if kept else "left out"
            d.box(
                112 + 76 * j,
                60 + 58 * i,
                72,
                50,
                words,
                colour=BLUE if kept else DARK,
                size=14,
                dashed=not kept,
                filled=kept,
            )
    d.text(40, 160, "slices", bold=True)
    d.text(40, 180, "of A", bold=True)
    d.text(240, 318, "4 slices: 10 products are made, 6 left out", size=15)
    return d


def residues() -> Drawing:
    d = Drawing(392, "A product of integers from its remainders")
    d.box(40, 12, 180, 38, "A' = 13", colour=BLUE)
    d.box(260, 12, 180, 38, "B' = 11", colour=ORANGE)
    d.text(240, 80, "divide by 5, 7 and 9, keep the remainders", bold=True)
    for i, (p, a, b, product) in enumerate(
        ((5, 3, 1, "3"), (7, 6, 4, "24, so 3"), (9, 4, 2, "8"))
    ):
        x = 12 + 156 * i
        d.text(x + 72, 110, f"divided by {p}", size=14)
        d.box(x, 120, 68, 36, f"13 → {a}", colour=BLUE, size=14)
        d.box(x + 76, 120, 68, 36, f"11 → {b}", colour=ORANGE, size=14)
        d.arrow(x + 72, 160, x + 72, 186)
        d.box(x, 188, 144, 50, f"{a} {TIMES} {b} = {product}", colour=GREEN)
        d.arrow(x + 72, 240, x + 72, 266)
    d.box(
        12,
        268,
        456,
        56,
        f"the only integer from {MINUS}157 to 157 with\nthe remainders 3, 3 and 8 is 143",
        colour=DARK,
    )
    d.text(240, 352, f"13 {TIMES} 11 = 143, from products of one digit", bold=True)
    d.text(240, 376, "(the library: 2 to 49 divisors up to 256)", size=14)
    return d


def words() -> Drawing:
    d = Drawing(
        352, "A number as a sum of two short words, and the products that are made"
    )
    d.text(240, 24, "a number of 24 bits as two words", bold=True)
    d.bits(24, 40, "101101001110100110101101", colour=BLUE, cell=18)
    d.box(24, 74, 198, 34, "high word: 11 bits", colour=BLUE)
    d.box(222, 74, 198, 34, "low word: 11 bits", colour=ORANGE)
    d.box(420, 74, 36, 34, "2", colour=DARK, size=14, dashed=True)
    d.text(240, 130, "The sign of the low word is worth one bit more.", size=14)
    d.text(240, 168, "products", bold=True)
    sizes = (("2⁰", "2⁻¹¹"), ("2⁻¹¹", "2⁻²²"))
    for i, row in enumerate(("high of A", "low of A")):
        d.text(70, 226 + 66 * i, row)
        d.text(205 + 170 * i, 192, row.replace("A", "B"))
        for j in range(2):
            made = i + j < 2
            label = f"size {sizes[i][j]}\n{'made' if made else 'may be left out'}"
            d.box(
                125 + 170 * j,
                200 + 66 * i,
                160,
                56,
                label,
                colour=BLUE if made else DARK,
                dashed=not made,
                filled=made,
            )
    return d


def corrected() -> Drawing:
    d = Drawing(368, "Where the three products of two words are added")
    d.text(120, 24, f"high {TIMES} high", bold=True)
    d.text(360, 24, f"high {TIMES} low, low {TIMES} high", bold=True)
    d.text(120, 44, "in blocks of 64 terms", size=14)
    d.text(360, 44, "all terms", size=14)
    for i in range(3):
        d.box(10, 56 + 62 * i, 110, 44, f"block {i + 1}\nfrom 0", colour=BLUE, size=14)
        d.arrow(122, 78 + 62 * i, 148, 78 + 62 * i)
    d.box(
        150,
        56,
        86,
        168,
        "FP32 sum\nto nearest,\noutside of\nthe tensor\ncore",
        colour=GREEN,
        size=14,
    )
    d.box(
        256,
        56,
        214,
        168,
        "one sum inside of\nthe tensor core;\nits error is\n2000 times smaller",
        colour=ORANGE,
    )
    d.arrow(193, 226, 193, 276)
    d.arrow(363, 226, 363, 276)
    d.text(374, 256, f"{TIMES} 2⁻¹¹", anchor="start")
    d.box(150, 278, 256, 40, "added once, at the end", colour=DARK)
    d.arrow(278, 320, 278, 346)
    d.text(278, 362, "C")
    return d


def tensor_core() -> Drawing:
    d = Drawing(
        316, "A tensor core cuts the terms of a block where the largest one ends"
    )
    d.text(240, 24, "terms of one block, each shifted to its size", bold=True)
    rows = (
        (0, "110100111010", "largest"),
        (3, "101110010110", ""),
        (7, "111001010011", ""),
        (11, "110101110100", ""),
    )
    for i, (shift, pattern, label) in enumerate(rows):
        d.bits(
            20 + 18 * shift,
            44 + 34 * i,
            pattern,
            colour=BLUE,
            cell=18,
            cut=max(0, 12 - shift),
        )
        if label:
            d.text(420, 60 + 34 * i, label, size=14)
    d.line(236, 36, 236, 190, colour=RED)
    d.text(236, 208, "cut here", size=14, colour=RED)
    d.text(240, 238, "Dashed bits are dropped, never rounded up.", size=15)
    d.text(240, 262, "The rest is added exactly, the sum is cut to 24", size=15)
    d.text(240, 282, "bits: positive terms give too small a sum.", size=15)
    d.text(240, 306, "(drawn with 12 bits; an H200 keeps 25 fraction bits)", size=14)
    return d


def double_double() -> Drawing:
    d = Drawing(396, "Six products of operands in three parts, five of large ones")
    d.text(285, 24, "parts of B", bold=True)
    for j, name in enumerate(("first", "second", "third")):
        d.text(165 + 120 * j, 48, name)
        d.text(60, 92 + 68 * j, f"{name} of A" if j < 2 else "third of A")
    labels = {
        (0, 0): ("exact", BLUE), (0, 1): ("exact", BLUE), (1, 0): ("exact", BLUE),
        (0, 2): ("rounded", ORANGE), (1, 1): ("rounded", ORANGE), (2, 0): ("rounded", ORANGE),
    }  # fmt: skip
    for i in range(3):
        for j in range(3):
            label, colour = labels.get(
                (i, j), ("in the rounded\nones of its row", DARK)
            )
            made = (i, j) in labels
            d.box(
                110 + 120 * j,
                60 + 68 * i,
                112,
                60,
                label,
                colour=colour,
                size=14,
                dashed=not made,
                filled=made,
            )
    d.box(24, 280, 200, 56, "exact ones: sum kept\nas high + low", colour=BLUE, size=14)
    d.box(
        256, 280, 200, 56, "rounded ones: tiny,\nadded to low", colour=ORANGE, size=14
    )
    d.text(240, 362, "Where m, n and k are 128 or more,", size=14)
    d.text(240, 382, "five products cover the same nine squares.", size=14)
    return d


def rounding_test() -> Drawing:
    d = Drawing(268, "When a sum with a known error can be rounded")
    d.text(240, 24, "float64 numbers, and the middles between them", bold=True)
    for y, centre, colour, words in (
        (92, 206, GREEN, "rounded: all of the interval\nrounds to the same number"),
        (
            196,
            160,
            RED,
            "not certified: a middle lies inside,\nso the entry goes on to more digits",
        ),
    ):
        d.line(20, y, 460, y)
        for i in range(3):
            x = 80 + 160 * i
            d.line(x, y - 14, x, y + 14)
            if i < 2:
                d.line(x + 80, y - 10, x + 80, y + 10, colour=DARK, dashed=True)
        d.box(centre - 30, y - 8, 60, 16, colour=colour)
        d.text(centre, y - 24, "sum ± error bound", size=14)
        for i, line in enumerate(words.split("\n")):
            d.text(240, y + 34 + 18 * i, line, size=14)
    return d


def orientation() -> Drawing:
    """Sides of a line by the formula in float64, and by exact dot products."""
    cells = 64
    size = 224 / cells
    names = {1.0: ("above", BLUE), -1.0: ("below", ORANGE), 0.0: ("on it", BLACK)}
    d = Drawing(320, "Which points lie above a line? Float64 and exact dot products")
    p = grid(cells)
    for left, title, signs in (
        (8, "float64", side_in_float64(p)),
        (248, 'accuracy="correct"', side(p)),
    ):
        d.text(left + 112, 24, title, bold=True)
        for i, row in enumerate(signs):
            edges = [0, *(np.flatnonzero(np.diff(row)) + 1), cells]
            for start, stop in pairwise(edges):
                x, y = left + start * size, 36 + (cells - 1 - i) * size
                colour = names[float(row[start])][1]
                d.shapes.append(
                    f'<rect x="{x:g}" y="{y:g}" width="{(stop - start) * size:g}" '
                    f'height="{size:g}" fill="{colour}"/>'
                )
    for i, (word, colour) in enumerate(names.values()):
        d.shapes.append(
            f'<rect x="{96 + 110 * i}" y="276" width="14" height="14" fill="{colour}"/>'
        )
        d.text(118 + 110 * i, 288, word, anchor="start")
    return d


PICTURES: Sequence[Callable[[], Drawing]] = (
    orientation,
    overview,
    allowed,
    native,
    slices,
    slice_products,
    residues,
    words,
    corrected,
    tensor_core,
    double_double,
    rounding_test,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--output", default="docs/pictures", type=Path, metavar="FOLDER"
    )
    options = parser.parse_args()
    for draw in PICTURES:
        path = options.output / f"{draw.__name__.replace('_', '-')}.svg"
        path.write_text(str(draw()), "utf-8")
        print(path)


if __name__ == "__main__":
    main()
