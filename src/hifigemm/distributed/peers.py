"""Panels by the copy engines: each rank writes its pieces into the memory of the others.

A product fills all multiprocessors of a GPU, so that kernels which send or receive, as
those of NCCL, wait for it, or it for them. Copy engines need no multiprocessor.

Memory
    Each rank of one host has a region that all others may write to, from PyTorch's
    symmetric memory: words for marks, then the panels of a call. It stays, and grows
    with all ranks together.
Order
    A mark is a word that is 1 or 0. Before a rank writes to others, it waits until all
    of them have set their mark "free" with it, which says that they have read all of the
    call before; before it writes to itself, for its own, as calls may come from several
    streams. It then sets the mark "here" of a panel and of itself at each target.
    Before the product of a panel the target's stream waits for these marks of all its
    sources. Whoever has waited for a mark takes it back, and it is set again only
    behind that: each call finds marks as the one before did, and so does a CUDA graph.
    Streams wait and set by themselves (cuStreamBatchMemOp), no kernel does.
Operands
    A rank's stream goes on behind its own copies, so that the caller may write to an
    operand once the product is made.

This file alone uses torch.distributed._symmetric_memory, which PyTorch may change;
tests/distributed/test_peers.py says when it does. Without it panels are messages.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hifigemm.distributed.collectives import largest
from hifigemm.distributed.exchange import Exchange, Panel, Rectangle
from hifigemm.distributed.messages import part_of
from hifigemm.distributed.ranks import Ranks, gathered, host_name, ranks_of
from hifigemm.kernels.runtime.cuda_driver import check, driver_library

_MARKS = 1 << 16
"""Bytes of marks at the start of a region."""
_WORD = 4
_ALIGNMENT = 256
_SHARE = 8
"""A region takes this part of the device's memory at most; larger operands are
messages.
"""
_ON_DEVICE = 2
"""CU_MEMORYTYPE_DEVICE."""
_WAIT, _WRITE = 1, 2
"""CU_STREAM_MEM_OP_WAIT_VALUE_32 and _WRITE_VALUE_32."""


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("source_x", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_type", ctypes.c_int),
        ("source_host", ctypes.c_void_p),
        ("source", ctypes.c_uint64),
        ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("target_x", ctypes.c_size_t),
        ("target_y", ctypes.c_size_t),
        ("target_type", ctypes.c_int),
        ("target_host", ctypes.c_void_p),
        ("target", ctypes.c_uint64),
        ("target_array", ctypes.c_void_p),
        ("target_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


_MARK_TASK = np.dtype(
    {
        "names": ["operation", "address", "value", "flags", "alias", "end"],
        "formats": ["<u4", "<u8", "<u4", "<u4", "<u8", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40],
        "itemsize": 48,
    }
)
"""CUstreamBatchMemOpParams."""


class _Marks:
    """Marks that a stream sets or takes, by their addresses."""

    def __init__(self, tasks: Sequence[tuple[int, int, int]]) -> None:
        self._tasks = np.array([(*task, 0, 0, 0) for task in tasks], _MARK_TASK)
        self._arguments = len(tasks), self._tasks.ctypes.data, 0
        self._give = driver_library().cuStreamBatchMemOp_v2

    @classmethod
    def to_set(cls, addresses: Sequence[int]) -> _Marks:
        """Marks that are set once all earlier work of the stream is done."""
        return cls([(_WRITE, x, 1) for x in addresses])

    @classmethod
    def to_take(cls, addresses: Sequence[int]) -> _Marks:
        """Marks that the stream waits for, and takes back."""
        return cls(
            [(_WAIT, x, 1) for x in addresses] + [(_WRITE, x, 0) for x in addresses]
        )

    def __call__(self, stream: int) -> None:
        """Give them to a stream."""
        if len(self._tasks):
            check(self._give(stream, *self._arguments), "marks of copies")


class _CopyTask:
    """A copy whose target is known, of a shard that each call has."""

    def __init__(self, copy: Copy, there: int, itemsize: int) -> None:
        rows, cols = copy.where.shape
        self.operand = copy.operand
        self._first = copy.where.rows.start, itemsize * copy.where.cols.start
        self._width = itemsize * cols
        self._task = _Copy2D(
            source_type=_ON_DEVICE,
            target_type=_ON_DEVICE,
            target=there + copy.start,
            target_pitch=copy.pitch,
            width=self._width,
            height=rows,
        )
        self._arguments = ctypes.byref(self._task)
        self._send = driver_library().cuMemcpy2DAsync_v2

    def __call__(self, stream: int, address: int, pitch: int) -> None:
        """Give it to a stream, for a shard at an address with rows that begin so many
        bytes apart.
        """
        row, offset = self._first
        self._task.source = address + row * pitch + offset
        self._task.source_pitch = max(pitch, self._width)
        check(self._send(self._arguments, stream), "copy between GPUs")


class _Region(NamedTuple):
    """The memory of this rank that others write to, and where that of each rank is."""

    memory: Tensor
    handle: Any  # keeps the memory of the others open
    addresses: list[int]


class _Side:
    """A stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.is_done = torch.cuda.Event()


class Peers:
    """The regions of the ranks of a mesh."""

    def __init__(
        self, mesh: DeviceMesh, ranks: Ranks, device: torch.device, most: int
    ) -> None:
        self.ranks = ranks
        self._mesh = mesh
        self.device = device
        self.to_others = _Side(device)
        self.to_itself = _Side(device)
        self.operands_are_ready = torch.cuda.Event()
        self.capacity = 0  # bytes of the region
        self._most = most  # that it may take
        self._region: _Region | None = None
        self._routes: WeakKeyDictionary[CopySchedule, _Route] = WeakKeyDictionary()
        # CUDA graphs write to the regions that they were captured with
        self._is_in_graph = False
        self._of_graphs: list[_Region] = []

    def takes(self, schedule: CopySchedule) -> bool:
        """True if a region may be as large as a call needs; the same on all ranks."""
        words = len(self.ranks.numbers) * (schedule.num_panels + 1)
        return _WORD * words <= _MARKS and schedule.nbytes <= self._most

    def holds(self, schedule: CopySchedule) -> bool:
        """True if the panels of a call that `takes` allows have room; the same on all
        ranks.

        The region grows where it is too small, but not while a graph is captured: all
        ranks call this together.
        """
        if self.capacity < schedule.nbytes:
            self._grow(schedule.nbytes)
        return schedule.nbytes <= self.capacity

    def _grow(self, nbytes: int) -> None:
        """A region of at least `nbytes` on every rank, if all have the memory."""
        wanted = min(max(nbytes, 2 * self.capacity), self._most)
        is_captured = torch.cuda.is_current_stream_capturing()
        memory: Tensor | None = None
        if not is_captured:
            with suppress(RuntimeError):
                memory = _symmetric().empty(
                    wanted, dtype=torch.uint8, device=self.device
                )
        waits, has_failed = largest(self._mesh, [is_captured, memory is None])
        if waits:
            return
        if has_failed or memory is None:
            self._most = nbytes - 1
            return
        handle: Any = None
        with suppress(RuntimeError):
            handle = _symmetric().rendezvous(memory, self.ranks.group)
        marks = memory[:_MARKS].view(torch.int32)
        marks.zero_()
        marks[: len(self.ranks.numbers)] = 1  # free
        # After this all ranks are done with the old region, and marks are set.
        torch.cuda.synchronize(self.device)
        if largest(self._mesh, [handle is None])[0]:
            self._most = nbytes - 1
            return
        by_order = [int(x) for x in handle.buffer_ptrs]
        order = sorted(self.ranks.numbers)
        addresses = [by_order[order.index(x)] for x in self.ranks.numbers]
        if self._is_in_graph and self._region is not None:
            self._of_graphs.append(self._region)
        self._region = _Region(memory, handle, addresses)
        self._routes.clear()
        self._is_in_graph = False
        self.capacity = wanted

    def call(self, schedule: CopySchedule, tensors: Sequence[Tensor]) -> Traffic:
        """The panels of the next call, for which there is room."""
        route = self._routes.get(schedule)
        if route is None:
            assert self._region is not None
            dtype = tensors[0].dtype
            route = _Route(schedule, self._region, self.ranks.here, dtype)
            self._routes[schedule] = route
        if torch.cuda.is_current_stream_capturing():
            self._is_in_graph = True
        return Traffic(self, route, tensors)


class Copy(NamedTuple):
    """A piece that this rank writes to a target, which may be itself."""

    operand: int
    where: Rectangle  # in this rank's shard
    target: int
    start: int  # bytes from the start of the target's region
    pitch: int  # bytes from a row to the next one there
    mark: int  # bytes to the mark that it is there


class Arriving(NamedTuple):
    """A panel of this rank."""

    shape: tuple[int, int]
    start: int  # bytes from the start of the region
    marks: tuple[int, ...]  # of its sources
    # in this rank's shard, if that holds all of it: nothing is copied
    in_shard: Rectangle | None


class CopySchedule:
    """The copies of all calls with the same exchanges.

    In a region come the marks "free" of all ranks, then the marks "here" of each panel
    and source, then the panels.
    """

    def __init__(self, exchanges: Sequence[Exchange], here: int, itemsize: int) -> None:
        count = len(exchanges[0].held)
        starts_and_ends = [
            _starts_and_end(exchanges, rank, itemsize) for rank in range(count)
        ]
        self.num_panels = sum(len(x.panels) for x in exchanges)
        self.nbytes = max(end for _, end in starts_and_ends)
        self.copies: list[Copy] = []
        self.arriving: list[list[Arriving]] = []
        first_mark = 0
        for i, exchange in enumerate(exchanges):
            self.arriving.append([])
            for j, panel in enumerate(exchange.panels):
                # The marks before those of the first panel say who is free.
                first_mark += _WORD * count
                starts = [of_rank[i, j] for of_rank, _ in starts_and_ends]
                own_mark = first_mark + _WORD * here
                self.copies += _copies(
                    exchange, panel, i, here, starts, own_mark, itemsize
                )
                sources = [x.source for x in panel.pieces if x.target == here]
                self.arriving[i].append(
                    Arriving(
                        panel.regions[here].shape,
                        starts[here],
                        tuple(first_mark + _WORD * x for x in sources),
                        exchange.in_shard(panel, here),
                    )
                )


def _starts_and_end(
    exchanges: Sequence[Exchange], rank: int, itemsize: int
) -> tuple[dict[tuple[int, int], int], int]:
    """The first byte of each panel in the region of a rank, and the end of all."""
    starts = {}
    end = _MARKS
    for i, exchange in enumerate(exchanges):
        for j, panel in enumerate(exchange.panels):
            starts[i, j] = end
            if exchange.in_shard(panel, rank) is None:
                nbytes = itemsize * math.prod(panel.regions[rank].shape)
                end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return starts, end


def _copies(
    exchange: Exchange,
    panel: Panel,
    operand: int,
    here: int,
    starts: Sequence[int],
    mark: int,
    itemsize: int,
) -> list[Copy]:
    """The copies of a panel; all ranks write to different ones at a time."""
    count = len(exchange.held)
    copies = []
    sent = [piece for piece in panel.pieces if piece.source == here]
    for _, target, where in sorted(sent, key=lambda x: (x.target - here) % count):
        if exchange.in_shard(panel, target) is not None:
            continue
        region = panel.regions[target]
        pitch = itemsize * region.shape[1]
        inside = where.inside(region)
        offset = pitch * inside.rows.start + itemsize * inside.cols.start
        copies.append(
            Copy(
                operand,
                where.inside(exchange.held[here]),
                target,
                starts[target] + offset,
                pitch,
                mark,
            )
        )
    return copies


class _Sent(NamedTuple):
    """Pieces of a panel, to other GPUs or to this one."""

    copies: list[_CopyTask]
    marks: _Marks  # that they are there


class _RoutePanel(NamedTuple):
    """Where a panel of this rank is."""

    place: Rectangle | Tensor  # in its shard, or the memory of the region
    arrived: _Marks  # that all of it is there


class _Route:
    """A schedule with the addresses of the regions: all that calls have in common."""

    def __init__(
        self, schedule: CopySchedule, region: _Region, here: int, dtype: torch.dtype
    ) -> None:
        addresses = region.addresses
        own = addresses[here]
        others = [x for x in range(len(addresses)) if x != here]
        self.others_are_free = _Marks.to_take([own + _WORD * x for x in others])
        self.itself_is_free = _Marks.to_take([own + _WORD * here])
        self.is_free = _Marks.to_set([x + _WORD * here for x in addresses])
        # by panel
        self.to_others: list[_Sent] = []
        self.to_itself: list[_Sent] = []
        for mark, group in groupby(schedule.copies, lambda copy: copy.mark):
            copies = list(group)
            for is_own, sent in ((False, self.to_others), (True, self.to_itself)):
                chosen = [x for x in copies if (x.target == here) == is_own]
                tasks = [
                    _CopyTask(x, addresses[x.target], dtype.itemsize) for x in chosen
                ]
                marks = [addresses[x.target] + mark for x in chosen]
                sent.append(_Sent(tasks, _Marks.to_set(marks)))
        # by operand
        self.panels: list[list[_RoutePanel]] = []
        for panels in schedule.arriving:
            self.panels.append([])
            for panel in panels:
                if panel.in_shard is not None:
                    in_shard = _RoutePanel(panel.in_shard, _Marks.to_take([]))
                    self.panels[-1].append(in_shard)
                    continue
                end = panel.start + dtype.itemsize * math.prod(panel.shape)
                memory = region.memory[panel.start : end].view(dtype).view(panel.shape)
                arrived = _Marks.to_take([own + x for x in panel.marks])
                self.panels[-1].append(_RoutePanel(memory, arrived))


class Traffic:
    """The panels of one call."""

    def __init__(self, peers: Peers, route: _Route, tensors: Sequence[Tensor]) -> None:
        self._peers = peers
        self._route = route
        self._tensors = [_with_rows(x) for x in tensors]
        # addresses, and bytes from a row to the next one
        self._sources = [
            (x.data_ptr(), x.dtype.itemsize * x.stride(0)) for x in self._tensors
        ]
        self._current = torch.cuda.current_stream(peers.device)
        # by operand: those that the current stream has not waited for
        self._panels = [iter(panels) for panels in route.panels]
        self._send()

    def _send(self) -> None:
        """Write all pieces: to others once they have read those of the call before, to
        this GPU at once, on another stream, as its memory is no quicker for an engine
        that copies.
        """
        peers = self._peers
        route = self._route
        peers.operands_are_ready.record(self._current)
        self._give(peers.to_others.stream, route.others_are_free, route.to_others)
        self._give(peers.to_itself.stream, route.itself_is_free, route.to_itself)

    def _give(
        self, stream: torch.cuda.Stream, is_free: _Marks, panels: Sequence[_Sent]
    ) -> None:
        stream.wait_event(self._peers.operands_are_ready)
        number = stream.cuda_stream
        is_free(number)
        for copies, marks in panels:
            for copy in copies:
                copy(number, *self._sources[copy.operand])
            marks(number)

    def panels(self, index: int) -> Iterator[Tensor]:
        """The panels of an operand; the current stream waits for each."""
        for place, arrived in self._panels[index]:
            arrived(self._current.cuda_stream)
            if isinstance(place, Rectangle):
                yield part_of(self._tensors[index], place)
            else:
                yield place

    def finish(self) -> None:
        """All that has arrived is read, or not wanted: others may write here again.
        This rank's stream goes on behind its own copies.
        """
        for panel in chain(*self._panels):
            panel.arrived(self._current.cuda_stream)
        self._route.is_free(self._current.cuda_stream)
        for side in (self._peers.to_others, self._peers.to_itself):
            side.is_done.record(side.stream)
            self._current.wait_event(side.is_done)


def _with_rows(x: Tensor) -> Tensor:
    """x with the entries of a row one after the other, and rows that share none."""
    rows, cols = x.shape
    has_rows = cols <= 1 or x.stride(1) == 1
    are_apart = rows <= 1 or x.stride(0) >= cols
    return x if has_rows and are_apart else x.contiguous()


_peers: dict[Ranks, Peers | None] = {}
"""None where copies between the ranks are impossible. They stay, as all ranks make them
together.
"""


def peers_of(mesh: DeviceMesh) -> Peers | None:
    """The peers of a mesh; None where panels have to be messages. All ranks of the mesh
    call it together, and all get the same answer.
    """
    ranks = ranks_of(mesh)
    if mesh.device_type != "cuda" or len(ranks.numbers) == 1:
        return None
    if ranks not in _peers:
        _peers[ranks] = _found(mesh, ranks)
    return _peers[ranks]


def _found(mesh: DeviceMesh, ranks: Ranks) -> Peers | None:
    """What `peers_of` keeps."""
    device = torch.device("cuda", torch.cuda.current_device())
    hosts = gathered(mesh, host_name())
    total = torch.cuda.get_device_properties(device).total_memory
    has_failed = len(set(hosts)) > 1
    try:
        _symmetric()
        driver_library()
    except (ImportError, OSError):
        has_failed = True
    failed, least = largest(mesh, [has_failed, -(total // _SHARE)])
    return None if failed else Peers(mesh, ranks, device, -least)


def _symmetric() -> Any:
    """PyTorch's symmetric memory, which is not public yet."""
    import torch.distributed._symmetric_memory as symmetric

    return symmetric
