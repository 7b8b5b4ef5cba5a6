"""Other implementations that a benchmark sets beside hifigemm, where they are
installed.

A peer is a function that prepares a product of two operands into a given result. Those
of CUDA devices are in `cuda_peers`, those of CPUs in `cpu_peers`; others join as entry
points of the group "hifigemm.peers" that name a `Peer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from . import cpu_peers, cuda_peers
from .arrays import Workload


@dataclass(frozen=True)
class Peer:
    """One way to a product."""

    name: str
    available: Callable[[], bool]  # on this machine
    supports: Callable[[str, Workload], bool]  # a workload on a device
    # takes a, b, out; what it returns writes A B into out
    prepare: Callable[[Any, Any, Any], Callable[[], object]]


def peers() -> dict[str, Peer]:
    """All peers by name, whether they can be used here or not."""
    others: list[Peer] = [
        point.load() for point in entry_points(group="hifigemm.peers")
    ]
    return {peer.name: peer for peer in (*others, *_PEERS)}


def available(device: str, load: Workload) -> list[Peer]:
    """The peers that can multiply this here."""
    usable = []
    for peer in peers().values():
        if peer.available() and peer.supports(device, load):
            usable.append(peer)
    return usable


_PEERS = [
    *(Peer(*fields) for fields in cuda_peers.facts()),
    *(Peer(*fields) for fields in cpu_peers.facts()),
]
