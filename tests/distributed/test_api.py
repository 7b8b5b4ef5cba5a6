"""matmul, gemm and make_plan of DTensors on a mesh of one rank, and their
derivatives.
"""

from __future__ import annotations

import inspect
import sys

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: E402

from hifigemm import distributed  # noqa: E402
from hifigemm.differentiable import torch_private as private  # noqa: E402
from hifigemm.distributed import api  # noqa: E402

FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, dtype=torch.complex128, generator=generator)
        for shape in ((4, 70), (70, 3), (4, 3))
    ]


@pytest.fixture
def spread(one_rank):
    def make(x, placement=None):
        return DTensor.from_local(x, one_rank, [placement or Shard(0)])

    return make


@pytest.mark.parametrize("options", [{"scheme": FIXED}, {"accuracy": "correct"}])
def test_one_rank_has_the_bits_of_its_tensors(tensors, spread, options):
    a, b, c = tensors
    x, y, z = map(spread, tensors)
    made, report = distributed.matmul(x, y, **options, return_report=True)
    assert torch.equal(made.to_local(), hg.matmul(a, b, **options))
    assert "a rank receives nothing" in report.reason
    out = spread(torch.empty_like(c))
    scalars = {"alpha": 2.0 - 1j, "beta": 0.5j}
    assert distributed.gemm(x, y, z, **scalars, **options, out=out) is out
    assert torch.equal(out.to_local(), hg.gemm(a, b, c, **scalars, **options))


def test_gradients_are_products_by_the_same_options(tensors, spread):
    a, b, c = tensors
    x, y, z = (spread(t).requires_grad_() for t in tensors)
    g = c.flip(0)
    scalars = {"alpha": 2.0 - 1j, "beta": 0.5j}
    made = distributed.gemm(x, y, z, **scalars, accuracy="correct")
    made.backward(spread(g))
    exact = {"alpha": 2.0 + 1j, "accuracy": "correct"}
    assert torch.equal(x.grad.to_local(), hg.gemm(g, b.mH.resolve_conj(), **exact))
    assert torch.equal(y.grad.to_local(), hg.gemm(a.mH.resolve_conj(), g, **exact))
    assert torch.equal(z.grad.to_local(), g * -0.5j)
    for options in ({"out": made.detach()}, {"return_report": True}):
        with pytest.raises(TypeError, match="requires a gradient"):
            distributed.matmul(x, y, **options)
    with torch.no_grad():
        assert not distributed.matmul(x, y, scheme=FIXED).requires_grad


def test_a_plan_needs_no_memory_and_says_what_is_done(one_rank):
    shape = torch.Size((2**20, 2**20))
    x = DTensor.from_local(
        torch.empty(shape, dtype=torch.float64, device="meta"),
        one_rank,
        [Shard(0)],
        shape=shape,
        stride=(2**20, 1),
        run_check=False,
    )
    plan = distributed.make_plan(x, x, scheme=FIXED, placements=[Shard(1)])
    assert plan.layout.result == (Shard(1),)
    assert plan.memory.operands == 2 * 8 * 2**40
    lines = str(plan).splitlines()
    assert lines[0] == "MeshPlan"
    assert [line.split()[0] for line in lines[1:]] == [
        "problem",
        "method",
        "layout",
        "memory",
    ]


def test_placements_may_be_any_sequence():
    assert api._tuple([Shard(0)]) == (Shard(0),)
    assert api._tuple(None) is None
    assert api._tuple(Shard(0)) == Shard(0)  # which the plan names


def test_pending_sums_of_gradients_are_added_up(tensors, spread):
    pending = spread(tensors[0], Partial())
    plain = api.without_partial(pending)
    assert plain.placements == (Replicate(),)
    assert torch.equal(plain.to_local(), tensors[0])
    x = spread(tensors[0])
    assert api.without_partial(x) is x


@pytest.mark.parametrize("name", ["matmul", "gemm", "make_plan"])
def test_options_have_the_defaults_of_one_process(name):
    ours = inspect.signature(getattr(distributed, name)).parameters
    theirs = inspect.signature(getattr(hg, name)).parameters
    assert set(ours) - set(theirs) == {"placements"}
    for option, parameter in ours.items():
        if option != "placements":
            assert parameter.default == theirs[option].default
            assert parameter.kind == theirs[option].kind


@pytest.mark.parametrize("is_moved", [False, True])
def test_matrices_on_a_mesh_are_those_of_the_public_function(
    one_rank, monkeypatch, is_moved
):
    with monkeypatch.context() as patch:
        if is_moved:
            name = "torch.distributed.tensor._dtensor_spec"
            patch.setitem(sys.modules, name, None)
        make = private.maker_of_matrices(one_rank, (Shard(0),), (3, 4), torch.float64)
    local = torch.rand(3, 4, dtype=torch.float64)
    with monkeypatch.context() as patch:
        if not is_moved:
            patch.setattr(DTensor, "from_local", None)
        made = make(local)
    want = DTensor.from_local(local, one_rank, (Shard(0),))
    assert made._spec == want._spec
    assert made.to_local().data_ptr() == local.data_ptr()
    assert (made.shape, made.stride(), made.dtype) == ((3, 4), (4, 1), torch.float64)
    assert not made.requires_grad
    assert torch.equal((2 * made).to_local(), 2 * local)
