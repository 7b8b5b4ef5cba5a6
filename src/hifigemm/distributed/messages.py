"""Panels as messages of torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hifigemm.distributed.collectives import result_or_error
from hifigemm.distributed.exchange import Exchange, Panel, Rectangle
from hifigemm.distributed.ranks import Ranks

Arrival = Callable[[], Tensor]
"""Waits for a panel, and returns it."""


def part_of(x: Tensor, part: Rectangle) -> Tensor:
    """A rectangle of a matrix."""
    return x[part.rows, part.cols]


Agree = Callable[[Exception | None], None]
"""Raises an error of this rank or of another one on all ranks, which call it together."""


class Messages:
    """The panels of some operands, one exchange after the other.

    `ahead` panels of an operand are under way beside the one that is needed next; for
    None all of them are from the start. Nothing is sent before all ranks have the memory
    for it: one that cannot receive would block the others.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        exchanges: Sequence[Exchange],
        ranks: Ranks,
        agree: Agree,
        ahead: int | None,
    ) -> None:
        self._agree = agree
        self._parcels = [
            _parcels(x, exchange, ranks)
            for x, exchange in zip(tensors, exchanges, strict=True)
        ]
        self._travels = [exchange.travels for exchange in exchanges]
        self._ahead = ahead
        self._under_way: list[deque[Arrival]] = [deque() for _ in exchanges]
        if ahead is None:
            parcels, error = result_or_error(lambda: [[*x] for x in self._parcels])
            self._settle(error, any(self._travels))
            for of_operand, under_way in zip(parcels, self._under_way, strict=True):
                under_way.extend(parcel.send() for parcel in of_operand)

    def panels(self, index: int) -> Iterator[Tensor]:
        """The panels of an operand. The memory of one is free once nothing refers to
        it.
        """
        under_way = self._under_way[index]
        for _ in range(0 if self._ahead is None else self._ahead + 1):
            self._start(index)
        while under_way:
            # No name for the function that waits: it holds memory that was sent.
            x = under_way.popleft()()
            self._start(index)
            yield x

    def _start(self, index: int) -> None:
        """Send the next panel of an operand, if there is one."""
        parcel, error = result_or_error(next, self._parcels[index], None)
        if parcel is None and error is None:
            return
        self._settle(error, self._travels[index])
        self._under_way[index].append(parcel.send())

    def _settle(self, error: Exception | None, travels: bool) -> None:
        """Raise an error of this rank, and of others if something travels."""
        if travels:
            self._agree(error)
        elif error is not None:
            raise error

    def finish(self) -> None:
        """Wait for messages that other ranks send unasked."""
        for index in range(len(self._parcels)):
            for _ in self.panels(index):
                pass


@dataclass(eq=False)
class Parcel:
    """A panel whose memory is there: what this rank sends of it and what it receives."""

    whole: Tensor
    sends: list[Tensor]  # memory that stays until it has arrived
    receives: list[tuple[Tensor, Tensor]]  # a part of the panel, and memory for it
    operations: list[dist.P2POp]

    def send(self) -> Arrival:
        """Start all messages."""
        works = dist.batch_isend_irecv(self.operations) if self.operations else []

        def wait() -> Tensor:
            for work in works:
                work.wait()
            for target_part, memory in self.receives:
                target_part.copy_(memory)
            return self.whole

        return wait


def _parcels(x: Tensor, exchange: Exchange, ranks: Ranks) -> Iterator[Parcel]:
    """The panels of an operand, one after the other."""
    for panel in exchange.panels:
        yield packed(x, exchange, panel, ranks)


def packed(local: Tensor, exchange: Exchange, panel: Panel, ranks: Ranks) -> Parcel:
    """A panel with this rank's own pieces, and memory for those of others."""
    here = ranks.here
    region = panel.regions[here]
    held = exchange.held[here]
    in_shard = exchange.in_shard(panel, here)
    if in_shard is not None:
        whole = part_of(local, in_shard)  # no copy
    else:
        whole = local.new_empty(region.shape)
    parcel = Parcel(whole, [], [], [])
    sent: dict[tuple[int, ...], Tensor] = {}
    for source, target, where in panel.pieces:
        if source == target == here:
            if in_shard is None:
                target_part = part_of(whole, where.inside(region))
                target_part.copy_(part_of(local, where.inside(held)))
        elif source == here:
            key = where.edges
            if key not in sent:
                sent[key] = _as_bytes(part_of(local, where.inside(held)).contiguous())
                parcel.sends.append(sent[key])
            parcel.operations.append(
                dist.P2POp(dist.isend, sent[key], ranks.numbers[target], ranks.group)
            )
        elif target == here:
            target_part = part_of(whole, where.inside(region))
            memory = target_part
            if not target_part.is_contiguous():
                memory = torch.empty_like(
                    target_part, memory_format=torch.contiguous_format
                )
                parcel.receives.append((target_part, memory))
            bytes_ = _as_bytes(memory)
            parcel.operations.append(
                dist.P2POp(dist.irecv, bytes_, ranks.numbers[source], ranks.group)
            )
    return parcel


def _as_bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor: not every backend sends complex numbers."""
    if x.is_complex():
        x = torch.view_as_real(x)
    return x.reshape(-1).view(torch.uint8)
