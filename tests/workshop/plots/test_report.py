from __future__ import annotations

import math

import pytest

from hifigemm.workshop.plots.report import errors_figure, rates_figure

pytest.importorskip("matplotlib")


def test_every_case_has_its_curve_in_gflops():
    rows = [
        {"case": case, "n": n, "burst_tflops": rate * n}
        for case, rate in (("native", 0.001), ("auto", 0.002))
        for n in (8, 4)
    ]
    (axes,) = rates_figure(rows, "float64").axes
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert curves == {
        "native": [[4.0, 4.0], [8.0, 8.0]],
        "auto": [[4.0, 8.0], [8.0, 16.0]],
    }
    assert "float64: GFLOP/s" in axes.get_ylabel()


def test_more_cases_than_styles_are_drawn():
    rows = [{"case": str(i), "n": 4, "burst_tflops": 1.0} for i in range(20)]
    (axes,) = rates_figure(rows, "float64").axes
    assert len(axes.lines) == 20


def test_zeros_stand_at_the_left_end_and_infinities_are_left_out():
    errors = {
        "correct": {"error, random": 1e-16, "error, cancelling": 0.0},
        "native": {"error, random": 1e-14, "guaranteed, random": math.inf},
    }
    figure = errors_figure(errors, "float32")
    (axes,) = figure.axes
    points = {
        marks.get_label(): marks.get_offsets().tolist() for marks in axes.collections
    }
    assert points == {
        "error, random": [[1e-16, 0.0], [1e-14, 1.0]],
        "error, cancelling": [[0.0, 0.0]],
        "guaranteed, random": [],
    }
    low, high = axes.get_xlim()
    assert low < 0.0 < 1e-14 < high
    assert axes.get_xticklabels()[0].get_text() == "0"
    assert [label.get_text() for label in axes.get_yticklabels()] == list(errors)


@pytest.mark.filterwarnings("error")
def test_errors_of_zero_alone_are_drawn():
    figure = errors_figure({"correct": {"error, random": 0.0}}, "float64")
    figure.canvas.draw()
