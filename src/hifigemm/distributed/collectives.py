"""Messages between the ranks of a mesh besides matrices: common numbers, and errors.

All ranks of the mesh, or of a group of it, call each function together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from hifigemm.base.exceptions import PlanError


def groups_of(mesh: DeviceMesh) -> list[ProcessGroup]:
    """The group of this rank in each dimension of the mesh with several ranks.

    A message that goes through all of them reaches every rank of the mesh.
    """
    return [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]


def reduce_largest(x: Tensor, groups: Iterable[ProcessGroup]) -> Tensor:
    """The largest values over the ranks of the groups, in place."""
    for group in groups:
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    return x


def reduce_sum(x: Tensor, groups: Iterable[ProcessGroup]) -> Tensor:
    """The sums over the ranks of the groups, in place; exact where `x` are integers."""
    for group in groups:
        dist.all_reduce(x, group=group)
    return x


def largest(mesh: DeviceMesh, numbers: list[int]) -> list[int]:
    """The largest of each number over all ranks.

    The numbers travel from host to host if the groups of the mesh have a backend for
    that, as after ``init_process_group("cpu:gloo,cuda:nccl")``; then nothing waits for
    a device. With NCCL alone they pass through the device.
    """
    groups = groups_of(mesh)
    on_host = all("cpu:" in dist.get_backend_config(group) for group in groups)
    device = "cpu"
    if not on_host and mesh.device_type != "cpu":
        device = f"cuda:{torch.cuda.current_device()}"
    tensor = torch.tensor(numbers, dtype=torch.int64, device=device)
    return [int(x) for x in reduce_largest(tensor, groups).tolist()]


def agree(mesh: DeviceMesh, error: Exception | None, request: str = "") -> None:
    """Raise on every rank if one of them has an error, or if their requests differ.

    The rank with the error raises it itself; the others raise PlanError with its number
    and message.
    """
    # One message tells if all is well: no error, and one hash of all requests.
    digest = int.from_bytes(hashlib.sha256(request.encode()).digest()[:7], "big")
    if largest(mesh, [error is not None, digest, -digest]) == [0, digest, -digest]:
        return

    # Rank, error and request of every rank.
    text = None if error is None else f"{type(error).__name__}: {error}"
    entries: list[Any] = [(dist.get_rank(), text, request)]
    for group in groups_of(mesh):
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, entries, group=group)
        entries = [entry for entries_of_rank in lists for entry in entries_of_rank]
    if error is not None:
        raise error

    errors = []
    for rank, text, _ in sorted(entries):
        if text:
            errors.append(f"rank {rank} refuses the product: {text}")
    if errors:
        raise PlanError("; ".join(errors))

    # The first rank of each request.
    first_ranks: dict[str, int] = {}
    for rank, _, rank_request in sorted(entries):
        first_ranks.setdefault(rank_request, rank)
    requests = [f"rank {rank} asks for {text}" for text, rank in first_ranks.items()]
    raise PlanError(
        f"the ranks of a product differ in what they ask for: {'; '.join(requests)}"
    )


def result_or_error(
    function: Callable[..., Any], *arguments: object
) -> tuple[Any, Exception | None]:
    """The result of a function, or the error that it raises.

    An error is for `agree`, as other ranks would wait for this one.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
