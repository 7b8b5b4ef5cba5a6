"""Panels as messages of torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from hifigemm.distributed.exchange import Exchange, Panel, Rectangle
from hifigemm.distributed.ranks import Ranks

Arrival = Callable[[], Tensor]
"""Waits for a panel, and returns it."""


def part_of(x: Tensor, part: Rectangle) -> Tensor:
    """A rectangle of a matrix."""
    return x[part.rows, part.cols]


class Messages:
    """The panels of some operands, one exchange after the other.

    `ahead` panels of an operand are under way beside the one that is needed next; for
    None all of them are from the start.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        exchanges: Sequence[Exchange],
        ranks: Ranks,
        ahead: int | None,
    ) -> None:
        self._starts = [
            _starts(x, exchange, ranks)
            for x, exchange in zip(tensors, exchanges, strict=True)
        ]
        self._ahead = ahead
        self._under_way: list[deque[Arrival]] = [deque() for _ in exchanges]
        if ahead is None:
            for starts, under_way in zip(self._starts, self._under_way, strict=True):
                under_way.extend(starts)

    def panels(self, index: int) -> Iterator[Tensor]:
        """The panels of an operand. The memory of one is free once nothing refers to
        it.
        """
        under_way = self._under_way[index]
        if self._ahead is not None:
            under_way.extend(islice(self._starts[index], self._ahead + 1))
        while under_way:
            # No name for the function that waits: it holds memory that was sent.
            x = under_way.popleft()()
            under_way.extend(islice(self._starts[index], 1))
            yield x

    def finish(self) -> None:
        """Wait for what nobody has asked for: other ranks send it."""
        for index in range(len(self._starts)):
            for _ in self.panels(index):
                pass


def _starts(x: Tensor, exchange: Exchange, ranks: Ranks) -> Iterator[Arrival]:
    """Begins the way of one panel after the other."""
    for panel in exchange.panels:
        yield start(x, exchange, panel, ranks)


def start(local: Tensor, exchange: Exchange, panel: Panel, ranks: Ranks) -> Arrival:
    """Send the pieces of a panel that this rank holds, and receive its own.

    The function that is returned waits for the whole panel.
    """
    here = ranks.here
    region = panel.regions[here]
    held = exchange.held[here]
    in_shard = exchange.in_shard(panel, here)
    if in_shard is not None:
        whole = part_of(local, in_shard)  # no copy
    else:
        whole = local.new_empty(region.shape)
        for source, target, where in panel.pieces:
            if source == target == here:
                target_part = part_of(whole, where.inside(region))
                target_part.copy_(part_of(local, where.inside(held)))
    wait_for_messages = _sent_and_received(local, whole, held, panel, ranks)

    def wait() -> Tensor:
        wait_for_messages()
        return whole

    return wait


def _sent_and_received(
    local: Tensor, whole: Tensor, held: Rectangle, panel: Panel, ranks: Ranks
) -> Callable[[], None]:
    """Start all messages of a panel; what is returned waits for them."""
    here = ranks.here
    region = panel.regions[here]
    sent: dict[tuple[int, ...], Tensor] = {}
    received: list[tuple[Tensor, Tensor]] = []
    operations = []
    for source, target, where in panel.pieces:
        if source == here != target:
            key = where.edges
            if key not in sent:
                sent[key] = _as_bytes(part_of(local, where.inside(held)).contiguous())
            operations.append(
                dist.P2POp(dist.isend, sent[key], ranks.numbers[target], ranks.group)
            )
        elif target == here != source:
            there = part_of(whole, where.inside(region))
            memory = (
                there
                if there.is_contiguous()
                else torch.empty_like(there, memory_format=torch.contiguous_format)
            )
            if memory is not there:
                received.append((there, memory))
            operations.append(
                dist.P2POp(
                    dist.irecv, _as_bytes(memory), ranks.numbers[source], ranks.group
                )
            )
    works = dist.batch_isend_irecv(operations) if operations else []

    def wait() -> None:
        for work in works:
            work.wait()
        for there, memory in received:
            there.copy_(memory)
        # The memory that is sent stays until it has arrived.
        sent.clear()

    return wait


def _as_bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor: not every backend sends complex numbers."""
    if x.is_complex():
        x = torch.view_as_real(x)
    return x.reshape(-1).view(torch.uint8)
