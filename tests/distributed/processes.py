"""Processes of a group, each of which runs a case on a mesh."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

TIMEOUT = timedelta(seconds=60)


def run(
    shape: tuple[int, ...],
    case: Callable[..., None],
    *arguments: Any,
    device: str = "cpu",
    backend: str = "",
) -> None:
    """Run ``case(mesh, *arguments)`` in as many processes as the mesh has places; an
    error in one is raised here.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        count = torch.Size(shape).numel()
        given = shape, store, case, arguments, device, backend
        mp.get_context("forkserver").set_forkserver_preload([case.__module__])
        mp.start_processes(
            _rank,
            given,
            count,
            start_method="spawn" if device == "cuda" else "forkserver",
        )


def _rank(
    rank: int,
    shape: tuple[int, ...],
    store: str,
    case: Callable[..., None],
    arguments: tuple[Any, ...],
    device: str,
    backend: str,
) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    # whether or not the name of the host leads to an address
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    place: Any = {}
    if device == "cuda":
        torch.cuda.set_device(rank)
        place = {"device_id": torch.device("cuda", rank)}
    count = torch.Size(shape).numel()
    backend = backend or ("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    dist.init_process_group(
        backend,
        init_method=store,
        rank=rank,
        world_size=count,
        timeout=TIMEOUT,
        **place,
    )
    case(init_device_mesh(device, shape), *arguments)
    dist.barrier()
    dist.destroy_process_group()
