"""The ranks of a mesh: their numbers, their groups, and which of them share a host."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from hifigemm.base.store import once

_USUAL_TIMEOUT = timedelta(minutes=30)


class Ranks(NamedTuple):
    """The ranks of a mesh, counted row by row through it, and a group of all of them."""

    here: int  # this rank
    numbers: tuple[int, ...]  # of all ranks among those of the program
    group: ProcessGroup


_groups: dict[tuple[tuple[int, ...], ProcessGroup], ProcessGroup] = {}
"""Groups of meshes of two dimensions, by the numbers of their ranks and the group of
this rank's row or column. They stay: all ranks have to make a group together.
"""


def ranks_of(mesh: DeviceMesh) -> Ranks:
    """The ranks of a mesh; all of them call it together."""
    # Equal meshes may have other groups, once a program has begun anew. The mesh is kept
    # beside its ranks, so that no other one gets its number.
    key = "mesh ranks", id(mesh)
    _, ranks = once(key, lambda: (mesh, _ranks_of(mesh)), "mesh")
    return ranks


def _ranks_of(mesh: DeviceMesh) -> Ranks:
    """What `ranks_of` keeps."""
    numbers = tuple(mesh.mesh.flatten().tolist())
    here = numbers.index(dist.get_rank())
    groups = groups_of(mesh)
    first = groups[0] if groups else mesh.get_group(0)
    if len(groups) < 2:
        return Ranks(here, numbers, first)
    if len(numbers) == dist.get_world_size() and dist.group.WORLD is not None:
        return Ranks(here, numbers, dist.group.WORLD)
    key = numbers, first
    if key not in _groups:
        group = dist.new_group(sorted(numbers), use_local_synchronization=True)
        _groups[key] = group
    return Ranks(here, numbers, _groups[key])


def groups_of(mesh: DeviceMesh) -> list[ProcessGroup]:
    """The group of this rank in each dimension of the mesh with several ranks.

    A message that goes through all of them reaches every rank of the mesh.
    """
    return [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]


def gathered(mesh: DeviceMesh, entry: object) -> list[Any]:
    """An object of every rank of the mesh, in no order that means anything."""
    entries = [entry]
    for group in groups_of(mesh):
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, entries, group=group)
        entries = [entry for entries_of_rank in lists for entry in entries_of_rank]
    return entries


def timeout_of(group: ProcessGroup) -> timedelta:
    """How long a rank waits for the others of a group.

    PyTorch does not promise to tell; else it is PyTorch's own default.
    """
    try:
        device = torch.device(
            "cpu" if "cpu:" in dist.get_backend_config(group) else "cuda"
        )
        timeout = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return _USUAL_TIMEOUT
    return timeout if isinstance(timeout, timedelta) else _USUAL_TIMEOUT


def host_name() -> str:
    """What tells this host from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else socket.gethostname()
