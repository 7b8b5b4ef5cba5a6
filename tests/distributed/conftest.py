"""A mesh of one rank in the process of the tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def one_rank():
    """The mesh; its group ends with the tests of a module."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
