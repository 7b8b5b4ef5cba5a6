"""Operands on their way: panels cover all vectors once, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from hifigemm.distributed import panels  # noqa: E402


@given(
    st.integers(0, 9000),
    st.none() | st.integers(1, 3000),
    st.booleans(),
    st.booleans(),
)
def test_cuts_cover_all_vectors_in_order(size, widest, coarse, small):
    spans = list(panels._cuts(size, widest, coarse=coarse, small=small))
    points = [0, *(span.stop for span in spans)]
    assert points[-1] == size
    for span, (begin, end) in zip(spans, pairwise(points), strict=True):
        assert (span.start, span.stop) == (begin, end)
        assert begin < end
        assert widest is None or end - begin <= widest
        if widest is None:
            assert begin % panels._MULTIPLE == 0


def test_long_operands_come_in_quarters_after_a_small_panel():
    starts = [span.start for span in panels._cuts(8192, None)]
    assert starts == [0, 512, 2048, 4096, 6144]
    starts = [span.start for span in panels._cuts(8192, None, small=False)]
    assert starts == [0, 2048, 4096, 6144]
    assert [span.start for span in panels._cuts(8192, None, coarse=True)] == [0, 2048]
    assert [span.start for span in panels._cuts(700, None)] == [0, 512]


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_sent_is_filled_up_with_zeros(axis):
    x = torch.arange(6.0).reshape(2, 3)
    padded = panels._padded(x, axis, 5)
    assert padded.shape == ((5, 3) if axis == 0 else (2, 5))
    assert torch.equal(padded.narrow(axis, 0, x.shape[axis]), x)
    assert not padded.narrow(axis, x.shape[axis], 5 - x.shape[axis]).any()
    assert padded.is_contiguous()
    assert panels._padded(x, 0, 2) is x
    assert panels._padded(x.T, 0, 3).is_contiguous()


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
@pytest.mark.parametrize("side", [0, 1])
def test_what_a_rank_has_is_one_panel_without_a_way(one_rank, placement, side):
    x = torch.arange(12.0).reshape(3, 4)
    spread = DTensor.from_local(x, one_rank, [placement])
    needed = (Shard(side),)
    before, dim = panels.before_last_move(spread, needed)
    assert dim is None
    assert before.placements == needed
    (panel,) = panels.panels_of(spread, side, needed, None, coarse=False)
    assert panel.span == slice(0, x.shape[side])
    assert torch.equal(panel.start()(), x)
    empty = DTensor.from_local(x.narrow(side, 0, 0), one_rank, [placement])
    assert panels.panels_of(empty, side, needed, None, coarse=False) == []


def test_conjugates_that_wait_are_made_before_anything_is_sent(one_rank):
    x = torch.tensor([[1 + 2j, 3 - 1j]])
    spread = DTensor.from_local(x, one_rank, [Replicate()]).conj()
    (panel,) = panels.panels_of(spread, 0, (Shard(0),), None, coarse=False)
    made = panel.start()()
    assert not made.is_conj()
    assert made.tolist() == x.conj().resolve_conj().tolist()
