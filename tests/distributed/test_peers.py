"""Copies from GPU to GPU, played through with the memory of this process: panels are what
they should be, and no rank writes where another one still reads.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from hifigemm.distributed import peers as module  # noqa: E402
from hifigemm.distributed.exchange import exchange_of  # noqa: E402
from hifigemm.distributed.panels import Pace  # noqa: E402
from hifigemm.distributed.peers import CopySchedule, Traffic  # noqa: E402

PLACEMENTS = Shard(0), Shard(1), Replicate()
MESHES = (2,), (3,), (2, 2)


STREAM = SimpleNamespace(cuda_stream=0, wait_event=lambda _: None)
EVENT = SimpleNamespace(record=lambda _: None)


class Driver:
    """Does at once what a stream would do; a wait that would not end is an error."""

    def cuMemcpy2DAsync_v2(self, copy, stream):
        task = copy._obj
        assert min(task.source_pitch, task.target_pitch) >= task.width
        for row in range(task.height):
            ctypes.memmove(
                task.target + row * task.target_pitch,
                task.source + row * task.source_pitch,
                task.width,
            )
        return 0

    def cuStreamBatchMemOp_v2(self, stream, count, tasks, flags):
        for i in range(count):
            task = tasks + 48 * i
            operation = ctypes.c_uint32.from_address(task).value
            word = ctypes.c_uint32.from_address(
                ctypes.c_uint64.from_address(task + 8).value
            )
            value = ctypes.c_uint32.from_address(task + 16).value
            if operation == module._WRITE:
                word.value = value
                continue
            assert (operation, value) == (module._WAIT, 1)
            assert word.value == 1, "would wait"
        return 0


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(module, "driver_library", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: STREAM)
    monkeypatch.setattr(module, "_MARKS", 1 << 12)


class Host:
    """The ranks of a mesh, one after the other, with a matrix for each operand."""

    def __init__(self, exchanges, matrices):
        self.exchanges = exchanges
        self.count = len(exchanges[0].held)
        size = matrices[0].element_size()
        self.schedules = [
            CopySchedule(exchanges, rank, size) for rank in range(self.count)
        ]
        self.regions = [
            torch.zeros(x.nbytes, dtype=torch.uint8) for x in self.schedules
        ]
        for region in self.regions:
            region[: 4 * self.count].view(torch.int32).fill_(1)
        addresses = [x.data_ptr() for x in self.regions]
        self.routes = [
            module._Route(
                schedule,
                module._Region(region, None, addresses),
                rank,
                matrices[0].dtype,
            )
            for rank, (schedule, region) in enumerate(
                zip(self.schedules, self.regions, strict=True)
            )
        ]

    def send(self, matrices, rank):
        """The copies of a rank in the next call."""
        side = SimpleNamespace(stream=STREAM, is_done=EVENT)
        peers = SimpleNamespace(
            to_others=side, to_itself=side, operands_are_ready=EVENT, device=None
        )
        shards = [
            x[exchange.held[rank].rows, exchange.held[rank].cols].clone()
            for x, exchange in zip(matrices, self.exchanges, strict=True)
        ]
        return Traffic(peers, self.routes[rank], shards)

    def call(self, matrices):
        """All ranks send, receive and look at what has arrived."""
        traffic = [self.send(matrices, rank) for rank in range(self.count)]
        for rank, one in enumerate(traffic):
            for i, exchange in enumerate(self.exchanges):
                panels = list(one.panels(i))
                assert len(panels) == len(exchange.panels)
                for panel, x in zip(exchange.panels, panels, strict=True):
                    region = panel.regions[rank]
                    want = matrices[i][region.rows, region.cols]
                    assert torch.equal(x, want)
        return traffic


@st.composite
def hosts(draw):
    """Exchanges of A and B, and matrices."""
    mesh = draw(st.sampled_from(MESHES))
    dtype = draw(st.sampled_from((torch.float64, torch.float32, torch.complex128)))
    exchanges = []
    matrices = []
    for side in (0, 1):
        shape = draw(st.integers(0, 30)), draw(st.integers(0, 30))
        needed = tuple(draw(st.sampled_from((Shard(side), Replicate()))) for _ in mesh)
        placements = tuple(draw(st.sampled_from(PLACEMENTS)) for _ in mesh)
        exchanges.append(
            exchange_of(
                shape,
                side,
                placements,
                needed,
                mesh,
                pace=Pace(1.0, 4.0) if side == 1 else None,
                widest=draw(st.none() | st.integers(3, 20)),
            )
        )
        matrices.append(torch.arange(1, 1 + shape[0] * shape[1]).to(dtype).view(shape))
    return exchanges, matrices


@settings(max_examples=40)
@given(hosts())
def test_panels_arrive_in_call_after_call(given_host):
    exchanges, matrices = given_host
    host = Host(exchanges, matrices)
    for factor in (1, -1, 3):
        traffic = host.call([factor * x for x in matrices])
        for one in traffic:
            one.finish()


def small_host():
    exchanges = [
        exchange_of((8, 6), 0, (Shard(0),), (Shard(0),), (2,)),
        exchange_of((6, 8), 1, (Shard(0),), (Replicate(),), (2,), pace=Pace(1.0, 4.0)),
    ]
    matrices = [torch.ones((8, 6)), torch.ones((6, 8))]
    return Host(exchanges, matrices), matrices


def test_nothing_is_written_over_what_is_still_read():
    host, matrices = small_host()
    first, second = host.call(matrices)
    first.finish()
    with pytest.raises(AssertionError, match="would wait"):
        host.send(matrices, 0)
    second.finish()
    host.send(matrices, 0)


def test_a_rank_does_not_write_over_what_it_reads_itself_on_another_stream():
    host, matrices = small_host()
    first, second = host.call(matrices)
    second.finish()
    with pytest.raises(AssertionError, match="would wait"):
        host.send(matrices, 0)
    first.finish()


def test_a_panel_waits_for_all_its_sources():
    host, matrices = small_host()
    one = host.send(matrices, 0)
    with pytest.raises(AssertionError, match="would wait"):
        list(one.panels(1))
    host, _ = small_host()
    one = host.send(matrices, 0)
    host.send(matrices, 1)
    assert torch.equal(torch.cat(list(one.panels(1)), 1), matrices[1])


def test_panels_that_nobody_wanted_are_not_those_of_the_next_call():
    """As after an error between two panels."""
    host, matrices = small_host()
    traffic = [host.send(matrices, rank) for rank in range(2)]
    next(traffic[0].panels(1))
    for one in traffic:
        one.finish()
    one = host.send(matrices, 0)
    with pytest.raises(AssertionError, match="would wait"):
        list(one.panels(1))


def test_what_a_rank_holds_takes_no_region():
    host, _ = small_host()
    (whole,), _ = host.schedules[0].arriving
    assert whole.in_shard is not None
    assert whole.marks == (4 * 2 * 1,)
    assert {x.operand for x in host.schedules[0].copies} == {1}


def test_shards_with_columns_apart_are_put_in_rows():
    x = torch.arange(6.0).view(2, 3)
    assert module._with_rows(x) is x
    assert module._with_rows(x.T).is_contiguous()
    assert module._with_rows(x[:, :2]).data_ptr() == x.data_ptr()
    assert module._with_rows(x[:1].expand(5, 3)).is_contiguous()
    assert module._with_rows(x[:, :1].expand(2, 3)).is_contiguous()
    assert module._with_rows(x[:, :1]).data_ptr() == x.data_ptr()


def test_what_pytorch_does_not_promise_is_there():
    symmetric = module._symmetric()
    for name in ("empty", "rendezvous"):
        assert callable(getattr(symmetric, name))


def test_meshes_without_gpus_have_no_peers(one_rank):
    assert module.peers_of(one_rank) is None
