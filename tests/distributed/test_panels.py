"""Widths of the panels of an operand that travels while it is multiplied."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg

pytest.importorskip("torch")

from hifigemm.distributed import panels as module
from hifigemm.distributed.method import Method
from hifigemm.distributed.panels import Pace, growing, panel_seconds_of


@pytest.fixture(autouse=True)
def _few_vectors_keep_a_device_busy(monkeypatch):
    monkeypatch.setattr(module, "MULTIPLE", 4)
    monkeypatch.setattr(module, "MIN_WIDTH", 8)


@given(st.integers(1, 9000), st.floats(0.1, 30))
def test_widths_grow_by_what_is_multiplied_meanwhile(size, growth):
    spans = growing(size, Pace(1.0, growth))
    assert [spans[0].start, spans[-1].stop] == [0, size]
    assert all(x.stop == y.start for x, y in pairwise(spans))
    widths = [x.stop - x.start for x in spans]
    assert min(widths) > 0
    assert all(x.start % module.MULTIPLE == 0 for x in spans)
    for width, wider in pairwise(widths):
        steps = min(max(growth, 1), 16)
        assert wider <= steps * (width + module.MULTIPLE) + module.MULTIPLE


def test_another_panel_comes_where_it_saves_time():
    def starts(transfer, products, size=800):
        return [x.start for x in growing(size, Pace(transfer, products, 1.0))]

    assert starts(30.0, 30.0) == [0, 268, 536]
    assert starts(30.0, 90.0) == [0, 64, 248]
    # The third one would save 1 / 4 - 1 / 13 of the transfer, the second one 3 / 4.
    assert starts(5.7, 17.1) == [0, 200]
    assert starts(5.8, 17.4) == [0, 64, 248]
    assert starts(1.3, 3.9) == [0]
    assert starts(1.4, 4.2) == [0, 200]
    assert starts(0.0, 1.0) == [0]
    # A panel may be too narrow, or too wide beside the one before.
    assert starts(30.0, 450.0) == [0, 52]
    assert starts(30.0, 3000.0) == [0, 48]
    assert growing(20, Pace(30.0, 90.0)) == [slice(0, 8), slice(8, 20)]
    assert growing(12, Pace(30.0, 90.0)) == [slice(0, 12)]


def test_products_that_wait_for_both_operands_take_them_as_a_whole():
    fixed = Method(hg.Ozaki2(num_moduli=14, scaling="fast"), None)
    correct = Method(None, "correct")
    waiting = Method(hg.Ozaki2(scaling="fast"), None, waits=True)
    assert panel_seconds_of(waiting, None) is None
    assert panel_seconds_of(waiting, 2**20) == panel_seconds_of(fixed, None)
    assert panel_seconds_of(fixed, None) < panel_seconds_of(correct, None)
