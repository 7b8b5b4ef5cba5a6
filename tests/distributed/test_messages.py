"""Panels as messages: those of one rank have no way; others are in tests of products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from hifigemm.distributed import messages as module  # noqa: E402
from hifigemm.distributed.exchange import exchange_of  # noqa: E402
from hifigemm.distributed.messages import Messages  # noqa: E402
from hifigemm.distributed.panels import Pace  # noqa: E402
from hifigemm.distributed.ranks import ranks_of  # noqa: E402


def agree(error):
    assert error is None


def own(shape, side, widest):
    """An operand of one rank, in panels."""
    return exchange_of(
        shape,
        side,
        (Shard(0),),
        (Replicate(),),
        (1,),
        pace=Pace(1.0, 4.0),
        widest=widest,
    )


def test_what_a_rank_has_is_not_copied(one_rank):
    x = torch.arange(12.0).reshape(3, 4)
    wire = Messages([x], [own((3, 4), 1, 3)], ranks_of(one_rank), agree, None)
    first, last = wire.panels(0)
    assert first.data_ptr() == x.data_ptr()
    assert torch.equal(torch.cat([first, last], 1), x)


class Parcel:
    """A panel whose way is noted."""

    def __init__(self, events, name, local):
        self.events, self.name, self.local = events, name, local

    def send(self):
        self.events.append(("start", self.name))

        def wait():
            self.events.append(("wait", self.name))
            return self.local

        return wait


@pytest.fixture
def events(monkeypatch):
    """What becomes of panels, by their numbers."""
    noted = []
    names = []

    def packed(local, exchange, panel, ranks):
        names.append(panel)
        return Parcel(noted, len(names) - 1, local)

    monkeypatch.setattr(module, "packed", packed)
    return noted


@pytest.mark.parametrize("ahead", [None, 0, 1, 9])
def test_panels_start_as_far_ahead_as_they_may(one_rank, events, ahead):
    x = torch.zeros((3, 8))
    wire = Messages([x], [own((3, 8), 1, 2)], ranks_of(one_rank), agree, ahead)
    assert len(list(wire.panels(0))) == 4
    assert [x for x in events if x[0] == "wait"] == [("wait", i) for i in range(4)]
    under_way = most = 0
    for kind, _ in events:
        under_way += 1 if kind == "start" else -1
        most = max(most, under_way)
    assert most == (4 if ahead is None else min(ahead + 1, 4))


@pytest.mark.parametrize("ahead", [None, 1])
def test_what_nobody_asks_for_arrives_at_the_end(one_rank, events, ahead):
    exchanges = [own((3, 8), 1, 2), own((3, 4), 0, 1)]
    tensors = [torch.zeros((3, 8)), torch.zeros((3, 4))]
    wire = Messages(tensors, exchanges, ranks_of(one_rank), agree, ahead)
    next(wire.panels(0))
    wire.finish()
    waited = [number for kind, number in events if kind == "wait"]
    assert sorted(waited) == list(range(7))


@pytest.mark.parametrize("ahead", [None, 1])
def test_without_memory_for_a_panel_nothing_of_it_is_sent(one_rank, monkeypatch, ahead):
    """All ranks hear of it."""
    exchange = own((3, 8), 1, 2)
    told = []

    def packed(local, exchange, panel, ranks):
        raise MemoryError("nothing is left")

    def tell(error):
        told.append(error)
        raise error

    monkeypatch.setattr(module, "packed", packed)
    monkeypatch.setattr(type(exchange), "travels", True)
    with pytest.raises(MemoryError, match="nothing is left"):
        list(
            Messages(
                [torch.zeros((3, 8))], [exchange], ranks_of(one_rank), tell, ahead
            ).panels(0)
        )
    assert len(told) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_messages_are_bytes(dtype):
    x = torch.ones((3, 2), dtype=dtype)
    sent = module._as_bytes(x)
    assert (sent.dtype, sent.numel()) == (torch.uint8, 6 * x.element_size())
    sent.zero_()
    assert not x.any()
