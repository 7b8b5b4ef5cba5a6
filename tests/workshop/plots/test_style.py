"""Curves, scales and legends of all pictures show the lines that they are given."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from hifigemm.workshop.plots import style

ROWS = [
    {"scheme": "ozaki1", "k": "16", "error": "2e-16"},
    {"scheme": "ozaki2", "k": "4", "error": "3e-16"},
    {"scheme": "ozaki1", "k": "4", "error": "1e-16"},
    {"scheme": "ozaki1", "k": "64", "error": ""},
]


@pytest.fixture
def axes():
    _, grid = style.new_figure(1, 1, (4, 3), "errors")
    return grid[0, 0]


def test_axes_are_a_grid_whatever_their_number():
    for shape in ((1, 1), (1, 3), (2, 2)):
        figure, grid = style.new_figure(*shape, (4, 3), "errors")
        assert grid.shape == shape
        assert figure.get_suptitle() == "errors"


def test_lines_are_chosen_by_all_the_values():
    assert style.choose(ROWS, scheme="ozaki1", k="4") == [ROWS[2]]
    assert style.choose(ROWS, scheme="ozaki1", k="5") == []
    assert style.choose(ROWS) == ROWS


def test_values_of_a_column_come_once_in_their_order():
    assert style.unique(ROWS, "k") == ["16", "4", "64"]


def test_a_curve_runs_in_the_order_of_x_and_leaves_out_what_is_empty(axes):
    rows = style.choose(ROWS, scheme="ozaki1")
    style.curve(axes, rows, "k", "error", "slices", "red o")
    (line,) = axes.lines
    assert list(line.get_xdata()) == [4.0, 16.0]
    assert list(line.get_ydata()) == [1e-16, 2e-16]
    assert line.get_color() == style.COLOURS["red"]
    assert (line.get_marker(), line.get_linestyle()) == ("o", "-")
    assert line.get_markerfacecolor() == style.COLOURS["red"]


def test_a_style_may_name_dashes_size_and_filling(axes):
    style.curve(axes, ROWS[:1], "k", "error", "slices", "blue s -- 9 white")
    (line,) = axes.lines
    assert (line.get_marker(), line.get_linestyle()) == ("s", "--")
    assert line.get_markersize() == 9.0
    assert line.get_markerfacecolor() == "white"


def test_a_curve_without_points_is_none(axes):
    style.curve(axes, ROWS[3:], "k", "error", "slices", "red o")
    assert not axes.lines


def test_every_x_is_a_tick_of_a_logarithmic_axis(axes):
    style.curve(axes, ROWS[:3], "k", "error", "slices", "red o")
    style.decades(axes, [16, 4, 16, 1], "k", "error")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.xaxis.get_major_locator().locs) == [1, 4, 16]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("k", "error")
    style.decades(axes, [1, 2], "k", "share", log_y=False)
    assert axes.get_xscale() == "log"


def test_a_legend_names_each_curve_once():
    figure, grid = style.new_figure(1, 2, (4, 3), "errors")
    for part in grid.flat:
        style.curve(part, ROWS[:1], "k", "error", "slices", "red o")
    style.curve(grid[0, 1], ROWS[1:2], "k", "error", "residues", "blue s")
    style.legend(figure, grid.flat, 2)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["slices", "residues"]


def test_a_note_stands_in_the_upper_left_corner(axes):
    style.note(axes, "n = 64")
    (text,) = axes.texts
    x, y = text.get_position()
    assert text.get_text() == "n = 64"
    assert x < 0.5
    assert y > 0.5
    assert text.get_transform() == axes.transAxes
