"""Products of DTensors inside scopes: each sum is made by one rank."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from hifigemm.interop import torch_meshes  # noqa: E402
from hifigemm.interop.policy import Policy  # noqa: E402
from tests.distributed import cases  # noqa: E402
from tests.distributed.processes import run  # noqa: E402


@pytest.mark.parametrize(
    "mesh", [(3,), pytest.param((2, 2), marks=pytest.mark.slow)], ids=str
)
def test_axes_shorter_than_the_mesh_leave_no_pending_sums(mesh):
    run(mesh, cases.run_all, ["axes_shorter_than_the_mesh"])


@pytest.mark.slow  # each rank compiles C++
@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=str)
def test_compiled_programs_have_the_bits_of_those_that_are_not(mesh):
    run(mesh, cases.run_all, ["compiled"])


def test_programs_of_torchrun_may_import_dtensor_after_install():
    code = "import sys, hifigemm; hifigemm.install('correct'); assert 'hifigemm.interop.torch_meshes' in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"WORLD_SIZE": "1"}, check=True
    )


def spread(mesh, placement, *shape):
    return DTensor.from_local(torch.ones(shape, dtype=torch.float64), mesh, [placement])


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((Shard(0), 4, 3), (Replicate(), 3, 2), Shard(0)),
        ((Replicate(), 4, 3), (Shard(1), 3, 2), Shard(1)),
        ((Shard(1), 4, 3), (Shard(0), 3, 2), Replicate()),
        ((Shard(0), 5, 4, 3), (Shard(0), 5, 3, 2), Shard(0)),
        ((Shard(1), 5, 4, 3), (Replicate(), 5, 3, 2), Shard(1)),
        ((Shard(2), 5, 4, 3), (Shard(1), 5, 3, 2), Replicate()),
        ((Shard(0), 4, 3), (Shard(0), 3), Shard(0)),
        ((Shard(0), 3), (Shard(0), 3), Replicate()),
    ],
)
def test_the_inner_dimension_is_never_cut(one_rank, left, right, result):
    a, b = spread(one_rank, *left), spread(one_rank, *right)
    (cut,) = torch_meshes._shared_axes(a, b)
    assert cut.result == result
    assert cut.left != Shard(a.ndim - 1)
    assert cut.right != Shard(max(b.ndim - 2, 0)) or b.ndim == 3


def test_pending_sums_and_strided_shards_are_made_plain(one_rank):
    x = spread(one_rank, Shard(0), 4, 3)
    assert torch_meshes._in_plain_shards(x) is x
    from torch.distributed.tensor import Partial

    pending = DTensor.from_local(torch.ones(4, 3), one_rank, [Partial()])
    assert torch_meshes._in_plain_shards(pending).placements == (Replicate(),)


def test_what_no_policy_asks_for_is_left_to_pytorch(one_rank):
    a, b = spread(one_rank, Shard(0), 4, 3), spread(one_rank, Shard(0), 3, 2)
    asked = Policy("correct")
    assert torch_meshes._is_emulated(asked, a, b)
    for policy, x, y in (
        (Policy(hands_on=True), a, b),
        (Policy("correct", min_size=3), a, b),
        (Policy(), a, b),  # on a CPU native products keep the level
        (asked, a, b.to_local()),
        (asked, a, b.to(torch.float32)),
        (asked, a.to(torch.int32), b.to(torch.int32)),
        (asked, a, a),
    ):
        assert not torch_meshes._is_emulated(policy, x, y)


def test_products_and_sums_of_one_rank_are_those_of_its_tensors(one_rank):
    generator = torch.Generator().manual_seed(1)
    a, b, c = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((4, 70), (70, 3), (4, 3))
    )
    x, y, z = (DTensor.from_local(t, one_rank, [Shard(0)]) for t in (a, b, c))
    with hg.emulate("correct", summary=True) as products:
        assert torch.equal((x @ y).to_local(), hg.matmul(a, b, accuracy="correct"))
        assert torch.equal(
            torch.addmm(z, x, y, alpha=2, beta=3).to_local(),
            torch.addmm(c, a, b, alpha=2, beta=3),
        )
    hg.uninstall()
    assert "on a mesh" in {row.scheme for row in products.rows}
