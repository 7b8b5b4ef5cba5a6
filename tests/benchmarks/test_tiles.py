"""The search for a tile: bursts pass the near ones on, and sustained times decide among
them.
"""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.tiles import ranking
from tests.workshop.measuring.test_timing import Device

MS = 2.0**-10


class Card(Device):
    """Tiles take their first time in the first calls, and the other one later."""

    def __init__(self, times):
        super().__init__()
        self.times, self.calls = times, dict.fromkeys(times, 0)

    def run(self, tile):
        first, last = self.times[tile]
        self.calls[tile] += 1
        self.queued += first if sum(self.calls.values()) < 150 else last

    def ranking(self):
        return list(
            ranking(
                {tile: partial(self.run, tile) for tile in self.times}, self
            ).items()
        )


def near(*found):
    return [(tile, pytest.approx(seconds)) for tile, seconds in found]


def test_tiles_far_behind_in_bursts_are_not_looked_at_again():
    card = Card({"a": (2 * MS, 2 * MS), "b": (MS, MS), "c": (2 * MS, MS / 4)})
    assert card.ranking() == near(("b", MS), ("a", 2 * MS))
    assert card.calls["c"] < 100


def test_near_ones_are_ranked_by_sustained_times():
    card = Card({"a": (MS, 2 * MS), "b": (1.03 * MS, 1.5 * MS), "c": (1.2 * MS, MS)})
    assert card.ranking() == near(("b", 1.5 * MS), ("a", 2 * MS))


def test_the_first_tile_is_always_ranked():
    card = Card({"a": (4 * MS, 4 * MS), "b": (MS, MS)})
    assert card.ranking() == near(("b", MS), ("a", 4 * MS))
