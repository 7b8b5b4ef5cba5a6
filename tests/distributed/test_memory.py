"""What a rank holds on a mesh, as the plan says it."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from hifigemm.distributed import memory as module  # noqa: E402
from hifigemm.distributed.layout import MeshProduct, candidates  # noqa: E402
from hifigemm.distributed.memory import Memory, memory_of, of_sums, share  # noqa: E402
from tests.distributed import cases  # noqa: E402
from tests.distributed.processes import run  # noqa: E402

PLACEMENTS = Shard(0), Shard(1), Replicate()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=str)
def test_a_rank_holds_no_more_than_its_plan_says(mesh):
    run(mesh, cases.run_all, ["memory"])


def call(shape, mesh, left, right, result=None):
    return MeshProduct(shape, 8, mesh, left, right, result, planes=14, device="cpu")


def layouts(*args):
    return candidates(call(*args), adds=True)


def test_the_parts_of_a_workspace_are_no_more_than_it():
    for workspace in (1, 7, 100, 2**30):
        parts = [share(workspace, what) for what in module.SHARES]
        assert all(part >= 1 for part in parts)
        if workspace > 7:
            assert sum(parts) <= workspace
    assert share(None, "panels") is None


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)])
def test_operands_are_the_shards_of_the_caller(mesh):
    m, n, k = 21, 18, 30
    for left, right in product(product(PLACEMENTS, repeat=len(mesh)), repeat=2):
        shards = []
        for rows, cols, placements in ((m, k, left), (k, n, right)):
            sizes = [rows, cols]
            for p, ranks in zip(placements, mesh, strict=True):
                if isinstance(p, Shard):
                    sizes[p.dim] = -(-sizes[p.dim] // ranks)
            shards.append(sizes[0] * sizes[1])
        for layout in layouts((m, n, k), mesh, left, right):
            held = memory_of(layout, call((m, n, k), mesh, left, right), 2**20)
            assert held.operands == 8 * sum(shards)
            assert held.residues == 0  # a workspace limits them
            assert held.workspace == 2**20
            parts = held.operands, held.result, held.moved, held.residues, 2**20
            assert held.total == sum(parts)


def test_what_stays_where_it_is_takes_nothing_more():
    case = call((8, 6, 10), (2,), (Shard(0),), (Replicate(),))
    layout = next(x for x in candidates(case, adds=True) if x.roles == ("m",))
    held = memory_of(layout, case, None)
    assert (held.moved, held.residues, held.workspace) == (0, 0, None)
    assert held.result == 8 * 4 * 6


def test_a_result_in_other_placements_is_there_twice():
    case = call((8, 6, 10), (2,), (Shard(0),), (Replicate(),), (Replicate(),))
    layout = next(x for x in candidates(case, adds=True) if x.roles == ("m",))
    assert memory_of(layout, case, None).result == 8 * (4 * 6 + 8 * 6)


def test_sums_take_more_for_more_planes():
    found = layouts((64, 64, 2048), (2,), (Shard(1),), (Shard(0),))
    layout = next(x for x in found if x.roles == ("k",))
    sizes = [of_sums(layout, planes) for planes in (2, 14, 20)]
    assert sizes == sorted(set(sizes))
    # residues of the pieces of A and B, and those of C at both ends of the wire
    assert sizes[1] > 14 * ((64 + 64) * 1024 + 2 * 64 * 64)


def test_memory_prints_what_there_is():
    text = str(Memory(2**31, 2**20, 0, 0, 2**30))
    assert (
        text == "a rank holds 3 GiB: 2 GiB of operands, 1 MiB of C, 1 GiB of workspace"
    )
    assert "default workspace" in str(Memory(2**20, 0, 0, 0, None))
