"""What the ranks of a mesh tell each other beside matrices: words on which all have to
agree, and refusals.

Every function is called by all ranks of the mesh, or of a group of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hifigemm.exceptions import PlanError

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The first name is that of PyTorch 2.13, which deprecates the second one."""


def gather(out: Tensor, x: Tensor, group: Any) -> Any:
    """Start to gather the `x` of all ranks of a group, which are equally large, one
    behind the other in `out`.
    """
    return _gather(out, x, group=group, async_op=True)


def groups_of(mesh: DeviceMesh) -> list[Any]:
    """The groups through which a word reaches every rank of the mesh, one for each of
    its dimensions.
    """
    return [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]


def reduce_largest(x: Tensor, groups: Iterable[Any]) -> Tensor:
    """The largest values over the ranks of the groups, in place."""
    for group in groups:
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    return x


def reduce_sum(x: Tensor, groups: Iterable[Any]) -> Tensor:
    """The sums over the ranks of the groups, in place; exact where `x` are integers."""
    for group in groups:
        dist.all_reduce(x, group=group)
    return x


def largest(mesh: DeviceMesh, words: list[int]) -> list[int]:
    """The largest of each word over all ranks.

    The words travel from host to host where the groups of the mesh have a backend for
    that, as those of ``init_process_group("cpu:gloo,cuda:nccl")`` have, and nothing
    waits for a device then. Through NCCL alone they pass the device.
    """
    groups = groups_of(mesh)
    on_host = all("cpu:" in dist.get_backend_config(group) for group in groups)
    device = (
        "cpu"
        if on_host or mesh.device_type == "cpu"
        else f"cuda:{torch.cuda.current_device()}"
    )
    return list(
        map(
            int,
            reduce_largest(
                torch.tensor(words, dtype=torch.int64, device=device), groups
            ).tolist(),
        )
    )


def agree(mesh: DeviceMesh, error: Exception | None, facts: str = "") -> None:
    """Raise on every rank where one of them has an error, or where facts differ that
    all have to share.

    The rank with the error raises it itself; the others raise PlanError with its number
    and message.
    """
    digest = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:7], "big")
    if largest(mesh, [error is not None, digest, -digest]) == [0, digest, -digest]:
        return
    said: list[Any] = [
        (
            dist.get_rank(),
            None if error is None else f"{type(error).__name__}: {error}",
            facts,
        )
    ]
    for group in groups_of(mesh):
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, said, group=group)
        said = [entry for entries in lists for entry in entries]
    if error is not None:
        raise error
    refusals = [
        f"rank {rank} refuses the product: {why}"
        for rank, why, _ in sorted(said)
        if why
    ]
    if refusals:
        raise PlanError("; ".join(refusals))
    views = {facts: rank for rank, _, facts in sorted(said, reverse=True)}
    differing = "; ".join(
        f"rank {rank} asks for {facts}"
        for facts, rank in sorted(views.items(), key=lambda x: x[1])
    )
    raise PlanError(f"the ranks of a product differ in what they ask for: {differing}")


def caught(function: Any, *arguments: Any) -> tuple[Any, Exception | None]:
    """What a function returns, or the error that it raises, for `agree`: other ranks
    would wait for this one.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
