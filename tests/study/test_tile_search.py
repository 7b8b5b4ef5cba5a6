"""The search for a tile: bursts pass the near ones on, and sustained times decide among them."""

from __future__ import annotations

import pytest

from hifigemm.study.tile_search import fastest

from .test_gpu_timing import Device

MS = 2.0**-10


class Card(Device):
    """Tiles take their first time in the first second of work, the other one later."""

    def __init__(self, times):
        super().__init__()
        self.times, self.runs = times, dict.fromkeys(times, 0)

    def run(self, tile):
        first, last = self.times[tile]
        self.runs[tile] += 1
        self.queued += first if sum(self.runs.values()) < 150 else last


def test_the_shortest_burst_wins_where_no_other_is_near():
    card = Card({"a": (2 * MS, 2 * MS), "b": (MS, MS), "c": (2 * MS, MS / 4)})
    assert fastest(card.run, ["a", "b", "c"], card) == "b"
    assert sum(card.runs.values()) < 150


def test_near_ones_are_compared_sustained():
    card = Card({"a": (MS, 2 * MS), "b": (1.03 * MS, 1.5 * MS), "c": (1.2 * MS, MS)})
    assert fastest(card.run, ["a", "b", "c"], card) == "b"
    assert card.runs["c"] < card.runs["a"] // 4


def test_there_must_be_a_tile():
    with pytest.raises(ValueError, match="no tiles"):
        fastest(lambda tile: None, [], Device())
