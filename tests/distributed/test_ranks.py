"""The ranks of a mesh, their groups, and what they tell each other of themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from hifigemm.base import store  # noqa: E402
from hifigemm.distributed.ranks import (  # noqa: E402
    gathered,
    groups_of,
    host_name,
    ranks_of,
    timeout_of,
)


class Mesh:
    """A mesh of which only the number of ranks in each dimension is asked."""

    def __init__(self, *shape):
        self.shape = shape
        self.ndim = len(shape)

    def size(self, i):
        return self.shape[i]

    def get_group(self, i):
        return f"group {i}"


def test_groups_are_those_of_dimensions_with_several_ranks():
    assert groups_of(Mesh(2, 1)) == ["group 0"]
    assert groups_of(Mesh(2, 3)) == ["group 0", "group 1"]
    assert groups_of(Mesh(1)) == []


def test_ranks_are_known_by_their_mesh_and_found_again(one_rank):
    ranks = ranks_of(one_rank)
    assert (ranks.here, ranks.numbers) == (0, (0,))
    assert ranks.group is one_rank.get_group(0)
    assert ranks_of(one_rank) is ranks
    other = init_device_mesh("cpu", (1,))
    assert ranks_of(other).numbers == (0,)
    store.forget()
    assert ranks_of(one_rank) == ranks


def test_one_rank_gathers_its_own_entry(one_rank):
    assert gathered(one_rank, ("here", None)) == [("here", None)]


def test_a_group_tells_how_long_it_waits(one_rank):
    group = one_rank.get_group(0)
    assert timeout_of(group) == group._get_backend(torch.device("cpu")).options._timeout
    assert timeout_of(group) > timedelta(seconds=1)


def test_a_group_that_does_not_tell_waits_as_long_as_pytorch_does(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: "cpu:x")
    assert timeout_of(object()) == timedelta(minutes=30)


def test_a_host_has_a_name():
    assert host_name() == host_name() != ""
