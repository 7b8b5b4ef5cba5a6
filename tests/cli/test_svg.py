from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

from hifigemm.cli.svg import curves, ranges

SVG = "{http://www.w3.org/2000/svg}"
AT = re.compile(r"translate\(([-\d.]+) ([-\d.]+)\)")


def drawn(text):
    """Places of the marks, in order, and the words, of a picture that is
    well-formed.
    """
    root = ET.fromstring(text)
    marks = [
        tuple(map(float, AT.fullmatch(path.get("transform")).groups()))
        for path in root.iter(f"{SVG}path")
    ]
    return root, marks, [each.text for each in root.iter(f"{SVG}text")]


def test_marks_of_a_curve_lie_in_the_order_of_its_numbers():
    root, marks, words = drawn(
        curves(
            "rates", "n", "GFLOP/s", {"a & b": [(256, 30.0), (128, 2.0), (512, 400.0)]}
        )
    )
    *points, _ = marks  # the last one belongs to the legend
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert {
        "n",
        "GFLOP/s",
        "a & b",
        "128",
        "256",
        "512",
        "1",
        "10",
        "100",
        "1000",
    } == set(words)
    assert root.find(f"{SVG}title").text == "rates"


def test_a_decade_is_as_high_as_any_other():
    _, marks, _ = drawn(curves("", "n", "y", {"a": [(1, 1.0), (2, 10.0), (4, 100.0)]}))
    (x0, y0), (x1, y1), (x2, y2), _ = marks
    assert (y0 - y1, x1 - x0) == (y1 - y2, x2 - x1)


def test_curves_have_shapes_and_colours_of_their_own():
    root, _, _ = drawn(
        curves("", "n", "y", {str(i): [(8, 1.0 + i)] for i in range(18)})
    )
    looks = [(path.get("d"), path.get("fill")) for path in root.iter(f"{SVG}path")]
    assert len(set(looks)) == 18
    assert (
        len({shape for shape, _ in looks[:9]})
        == len({colour for _, colour in looks[:9]})
        == 9
    )


def test_zero_stands_left_of_all_and_infinity_is_left_out():
    errors = {
        "exact": {"error": 0.0},
        "fine": {"error": 1e-17},
        "lost": {"error": math.inf, "guaranteed": 1e-3},
    }
    _, marks, words = drawn(ranges("errors", "error", errors))
    zero, fine, guaranteed, *legend = marks
    assert zero[0] < fine[0] < guaranteed[0]
    assert zero[1] < fine[1] < guaranteed[1]
    assert len(legend) == 2
    assert "0" in words
    _, _, words = drawn(ranges("errors", "error", {"fine": {"error": 1e-17}}))
    assert "0" not in words


def test_numbers_that_are_all_alike_are_drawn():
    for text in (
        ranges("", "error", {"a": {"error": 1.0}}),
        curves("", "n", "y", {"a": [(4, 1.0)]}),
    ):
        assert all(math.isfinite(x) for mark in drawn(text)[1] for x in mark)
