from __future__ import annotations

import io

import pytest

from hifigemm.workshop.plots import save
from hifigemm.workshop.plots.demo import demo_figure

pytest.importorskip("matplotlib")


def test_values_below_the_axis_are_written_out():
    row = {
        "problem": "p",
        "error": 0.0,
        "relative_error": 1e-16,
        "guaranteed": 2e-16,
        "share_correct": 1.0,
    }
    rows = [row | {"scheme": "s"}, row | {"scheme": "t", "error": 3e-29}]
    file = io.BytesIO()
    save(demo_figure(rows), file, ".svg")
    assert b"3.0e-29" in file.getvalue()
