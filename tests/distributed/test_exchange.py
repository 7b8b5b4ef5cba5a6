"""Exchanges: each rank gets what it needs once, in panels, from ranks that hold it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard

from hifigemm.distributed import panels
from hifigemm.distributed.exchange import Rectangle, exchange_of
from hifigemm.distributed.layout import extent
from hifigemm.distributed.panels import Pace

PLACEMENTS = Shard(0), Shard(1), Replicate()
MESHES = (1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 3)


@st.composite
def exchanges(draw):
    """Arguments of `exchange_of`, with the roles of a product."""
    mesh = draw(st.sampled_from(MESHES))
    side = draw(st.integers(0, 1))
    # Whole vectors: rows of A, columns of B, cut by some dimensions of the mesh.
    needed = tuple(draw(st.sampled_from((Shard(side), Replicate()))) for _ in mesh)
    return {
        "shape": (draw(st.integers(0, 40)), draw(st.integers(0, 40))),
        "side": side,
        "placements": tuple(draw(st.sampled_from(PLACEMENTS)) for _ in mesh),
        "needed": needed,
        "mesh": mesh,
        "widest": draw(st.none() | st.integers(1, 20)),
        "pace": draw(st.none() | st.builds(Pace, st.just(1.0), st.floats(0.1, 10))),
    }


@pytest.fixture(autouse=True)
def _few_vectors_keep_a_device_busy(monkeypatch):
    monkeypatch.setattr(panels, "MULTIPLE", 4)
    monkeypatch.setattr(panels, "MIN_WIDTH", 8)


@given(exchanges())
def test_panels_hold_what_a_rank_needs_once(arguments):
    made = exchange_of(**arguments)
    side, needed = made.side, made.needed
    for rank, whole in enumerate(needed):
        coordinate = list(product(*map(range, arguments["mesh"])))[rank]
        for axis in (0, 1):
            assert whole[axis] == extent(
                arguments["shape"][axis],
                axis,
                arguments["needed"],
                arguments["mesh"],
                coordinate,
            )
        vectors = np.zeros(whole.shape[side], int)
        for panel in made.panels:
            span = made.span(panel, rank)
            vectors[span] += 1
            region = panel.regions[rank]
            assert region.is_empty or region[1 - side] == whole[1 - side]
            if arguments["widest"] is not None:
                assert span.stop - span.start <= arguments["widest"]
        if not whole.is_empty:
            assert (vectors == 1).all()


@given(exchanges())
def test_pieces_fill_the_regions_and_lie_where_they_come_from(arguments):
    made = exchange_of(**arguments)
    for panel in made.panels:
        filled = [np.zeros(region.shape, int) for region in panel.regions]
        for source, target, where in panel.pieces:
            assert made.held[source].common(where) == where
            assert not where.is_empty
            rows, cols = where.inside(panel.regions[target])
            filled[target][rows, cols] += 1
            # What a rank holds does not come from another one.
            assert source == target or made.held[target].common(where).is_empty
        assert all((x == 1).all() for x in filled)
        assert panel.travels == any(x.source != x.target for x in panel.pieces)


def test_without_panels_there_is_one():
    made = exchange_of((64, 64), 1, (Shard(0),), (Replicate(),), (4,))
    (panel,) = made.panels
    assert panel.regions == made.needed


def test_what_a_rank_holds_comes_first_and_then_that_of_the_next_one():
    made = exchange_of(
        (9, 12), 1, (Shard(1),), (Replicate(),), (3,), pace=Pace(1.0, 4.0)
    )
    for rank in range(3):
        starts = [panel.regions[rank].cols.start for panel in made.panels]
        assert starts == [4 * ((rank + step) % 3) for step in range(3)]
    assert [panel.travels for panel in made.panels] == [False, True, True]
    # Each rank sends to one other at a time.
    for panel in made.panels:
        assert len({piece.source for piece in panel.pieces}) == 3


def test_the_first_of_panels_that_all_ranks_fill_is_the_smallest():
    made = exchange_of(
        (40, 84),
        1,
        (Shard(0),),
        (Replicate(),),
        (4,),
        pace=Pace(1.0, 2.0),
    )
    widths = [panel.regions[0].shape[1] for panel in made.panels]
    assert widths == [12, 24, 48]
    for panel in made.panels:
        assert len(panel.pieces) == 16


def test_rectangles():
    x = Rectangle(slice(2, 8), slice(0, 5))
    y = Rectangle(slice(4, 10), slice(3, 9))
    both = x.common(y)
    assert both == Rectangle(slice(4, 8), slice(3, 5))
    assert (both.shape, both.edges) == ((4, 2), (4, 8, 3, 5))
    assert both.inside(x) == Rectangle(slice(2, 6), slice(3, 5))
    apart = x.common(Rectangle(slice(9, 12), slice(0, 5)))
    assert apart.is_empty
    assert math.prod(apart.shape) == 0
