"""Messages between the ranks of a mesh besides matrices: common numbers, and errors.

All ranks of the mesh, or of a group of it, call each function together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from hifigemm.base.exceptions import PlanError
from hifigemm.distributed.board import Board, new_file
from hifigemm.distributed.ranks import (
    Ranks,
    gathered,
    groups_of,
    host_name,
    ranks_of,
    timeout_of,
)


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


def largest(mesh: DeviceMesh, numbers: Sequence[int]) -> list[int]:
    """The largest of each number over all ranks.

    On one host they stand in memory that the ranks share. Elsewhere they travel from
    host to host if the groups of the mesh have a backend for that, as after
    ``init_process_group("cpu:gloo,cuda:nccl")``; then nothing waits for a device. With
    NCCL alone they pass through the device.
    """
    ranks = ranks_of(mesh)
    if len(ranks.numbers) == 1:
        return [int(x) for x in numbers]
    board = _board_of(mesh, ranks)
    return (
        _largest_by_backend(mesh, numbers) if board is None else board.largest(numbers)
    )


_boards: dict[Ranks, Board | None] = {}
"""None where ranks lie on several hosts. They stay, as all ranks make them together."""


def _board_of(mesh: DeviceMesh, ranks: Ranks) -> Board | None:
    """The board of a mesh; None without one. All ranks get the same answer."""
    if ranks not in _boards:
        _boards[ranks] = _new_board(mesh, ranks)
    return _boards[ranks]


def _new_board(mesh: DeviceMesh, ranks: Ranks) -> Board | None:
    """What `_board_of` keeps."""
    path = new_file(len(ranks.numbers)) if ranks.here == 0 else None
    hosts_and_paths = gathered(mesh, (host_name(), path))
    paths = [x for _, x in hosts_and_paths if x is not None]
    board: Board | None = None
    if paths and len({host for host, _ in hosts_and_paths}) == 1:
        with suppress(OSError):
            timeout = timeout_of(ranks.group)
            board = Board(paths[0], ranks.here, ranks.numbers, timeout)
    (has_failed,) = _largest_by_backend(mesh, [board is None])
    if path is not None:
        path.unlink()  # all ranks have opened it, or none will
    return None if has_failed else board


def _largest_by_backend(mesh: DeviceMesh, numbers: Sequence[int]) -> list[int]:
    """The same by messages."""
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

    text = None if error is None else f"{type(error).__name__}: {error}"
    entries = gathered(mesh, (dist.get_rank(), text, request))
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
