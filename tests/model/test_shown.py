"""Plans and reports as dicts, JSON and HTML: the same facts as in their text."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

import hifigemm as hg
from tests.test_public_interface import ATTRIBUTES

CALLS = {
    "default": {},
    "correct": {"accuracy": "correct"},
    "relative": {"accuracy": hg.Relative(1e-12)},
    "counted": {"scheme": hg.Ozaki2(num_moduli=14)},
    "slices": {"scheme": hg.Ozaki1(product="fp16", mode="dp")},
}


@pytest.fixture(params=CALLS)
def records(request):
    """The plan and the report of a product."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 2))
    options = CALLS[request.param]
    plan = hg.make_plan(a, b, **options)
    _, report = hg.matmul(a, b, return_report=True, **options)
    return {"Plan": plan, "Report": report}


@pytest.mark.parametrize("kind", ["Plan", "Report"])
def test_a_dict_has_every_public_attribute_and_json_has_the_dict(records, kind):
    record = records[kind]
    values = record.to_dict()
    assert {*ATTRIBUTES[kind]} <= values.keys()
    assert values["bound"] == record.bound
    assert values["scheme"] == str(record.scheme)
    assert values["num_products"] == record.num_products
    from_json = json.loads(record.to_json())
    assert from_json.keys() == values.keys()
    assert from_json == {
        name: None if isinstance(x, float) and math.isinf(x) else x
        for name, x in values.items()
    }


def test_the_problem_of_a_plan_is_a_dict_too(records):
    problem = records["Plan"].to_dict()["problem"]
    assert problem == {"batch": 1, "m": 3, "n": 2, "k": 4, "dtype": "float64"}


class Cells(HTMLParser):
    """The texts of a table's cells."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def handle_starttag(self, tag, attrs):
        if tag in ("th", "td", "caption"):
            self.texts.append("")

    def handle_data(self, data):
        if data.strip():
            self.texts[-1] += data


@pytest.mark.parametrize("kind", ["Plan", "Report"])
def test_the_table_of_a_notebook_has_the_lines_of_the_text(records, kind):
    record = records[kind]
    parser = Cells()
    parser.feed(record._repr_html_())
    title, *cells = parser.texts
    lines = str(record).splitlines()
    assert title == lines[0] == kind
    assert [name + text for name, text in zip(cells[::2], cells[1::2])] == [
        name + text.strip()
        for name, _, text in (line.strip().partition("  ") for line in lines[1:])
    ]


@pytest.mark.parametrize("kind", ["Plan", "Report"])
def test_a_terminal_shows_one_line(records, kind):
    record = records[kind]
    text = repr(record)
    assert text.startswith(f"<{kind}: ")
    assert str(record.scheme) in text
    assert "\n" not in text
    assert len(text) < 240


def test_a_terminal_shows_engines_and_versions_as_they_print():
    assert repr(hg.info()) == str(hg.info())


@pytest.mark.parametrize("shape", [(2,), (3, 2), (40, 40), (0, 3)])
def test_a_terminal_shows_rows_of_a_solution_below_each_other(shape):
    a = 2.0 * np.eye(shape[0])
    solution = hg.linalg.solve(a, np.ones(shape))
    lines = repr(solution).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("VerifiedSolution(")
    for name in ("x", "radius"):
        # As NumPy shows the array, moved to the right.
        text = repr(getattr(solution, name)).splitlines()
        first = next(i for i, line in enumerate(lines) if f"{name}={text[0]}" in line)
        column = lines[first].index(text[0])
        for i, row in enumerate(text):
            assert lines[first + i][column : column + len(row)] == row
