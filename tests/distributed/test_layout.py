"""Layouts of products on a mesh: pieces cover an axis as DTensor cuts it, bytes are
those that move, and every rank comes to the same choice.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from hifigemm.distributed import layout  # noqa: E402
from hifigemm.distributed.layout import MeshProduct, candidates  # noqa: E402
from hifigemm.numerics.scaling import NORM_BLOCK  # noqa: E402

PLACEMENTS = Shard(0), Shard(1), Replicate()
MESHES = [(1,), (2,), (3,), (2, 2), (3, 2)]


@given(st.integers(0, 40), st.integers(1, 7))
def test_pieces_are_those_of_dtensor(size, ranks):
    x = torch.arange(size)
    spans = layout.pieces(size, ranks)
    chunks = list(torch.chunk(x, ranks)) if size else []
    chunks += [x[:0]] * (ranks - len(chunks))
    for span, part in zip(spans, chunks, strict=True):
        assert x[span].tolist() == part.tolist()


@given(st.integers(0, 30), st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
def test_parts_of_a_piece_stay_within_it(size, ranks, start, length):
    for piece in layout.pieces(size, ranks):
        whole = list(range(size))[piece]
        part = list(range(size))[layout.within(piece, slice(start, start + length))]
        assert part == whole[start : start + length]


@pytest.mark.parametrize("mesh", MESHES)
def test_the_extents_of_all_ranks_cover_each_axis(mesh):
    for placements in product(PLACEMENTS, repeat=len(mesh)):
        for axis, size in product((0, 1), (1, 7, 24)):
            counts = [0] * size
            for at in product(*map(range, mesh)):
                span = layout.extent(size, axis, placements, mesh, at)
                for i in range(span.start, span.stop):
                    counts[i] += 1
            copies = math.prod(
                n for n, p in zip(mesh, placements, strict=True) if p != Shard(axis)
            )
            assert counts == [copies] * size


@pytest.mark.parametrize("roles", list(product("mnk", repeat=2)))
def test_products_leave_the_result_where_the_roles_cut_it(roles):
    own = layout.own_placements(roles)
    for role, placement in zip(roles, own, strict=True):
        assert placement in (Shard(0), Shard(1))
        if role != "k":
            assert placement == {"m": Shard(0), "n": Shard(1)}[role]
    if roles in (("m", "k"), ("k", "m")):
        assert own[roles.index("k")] == Shard(1)


def bytes_that_move(size, old, new, mesh):
    """The part of a matrix that the rank in the corner lacks, entry by entry."""
    rows = cols = math.prod(mesh) * 2
    there = [
        layout.extent(n, i, old, mesh, [0] * len(mesh))
        for i, n in ((0, rows), (1, cols))
    ]
    needed = [
        layout.extent(n, i, new, mesh, [0] * len(mesh))
        for i, n in ((0, rows), (1, cols))
    ]
    lacking = [
        (i, j)
        for i in range(needed[0].start, needed[0].stop)
        for j in range(needed[1].start, needed[1].stop)
        if not (
            there[0].start <= i < there[0].stop and there[1].start <= j < there[1].stop
        )
    ]
    return size * len(lacking) / (rows * cols)


@pytest.mark.parametrize("mesh", [(2,), (4,), (8,)])
def test_a_rank_receives_what_it_lacks(mesh):
    for old, new in product(PLACEMENTS, repeat=2):
        found = layout.received(512, (old,), (new,), mesh)
        assert found == bytes_that_move(512, (old,), (new,), mesh)


def test_nothing_moves_where_placements_stay():
    for mesh in MESHES:
        for placements in product(PLACEMENTS, repeat=len(mesh)):
            assert layout.received(100, placements, placements, mesh) == 0


def some(shape=(64, 48, 512), mesh=(2, 2), adds=True, result=None, device="cpu"):
    left = (Shard(0),) * len(mesh)
    right = (Shard(1),) * len(mesh)
    call = MeshProduct(shape, 8, mesh, left, right, result, planes=14, device=device)
    return candidates(call, adds=adds)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mesh", MESHES)
def test_candidates_come_with_the_least_seconds_first(mesh, device):
    found = some(mesh=mesh, device=device, shape=(64, 48, NORM_BLOCK * 36))
    assert [x.seconds for x in found] == sorted(x.seconds for x in found)
    roles = {x.roles for x in found}
    assert len(roles) == len(found)
    k_is_cut = [r for r in product("mnk", repeat=len(mesh)) if "k" in r]
    expected = {
        r
        for r in k_is_cut
        if all(n > 1 for n, role in zip(mesh, r, strict=True) if role == "k")
    } | set(product("mn", repeat=len(mesh)))
    assert roles == expected


def test_sums_need_methods_that_add_and_blocks_that_fit():
    assert all("k" not in x.roles for x in some(adds=False))
    uneven = some(shape=(64, 48, NORM_BLOCK * 4 + 1))
    assert any("k" in x.roles for x in uneven)
    assert all(x.roles.count("k") < 2 for x in uneven)


@pytest.mark.parametrize(
    ("shape", "role"), [((2048, 2048, 2048), "m"), ((8192, 8192, 262144), "k")]
)
def test_sums_pay_for_what_the_host_takes(shape, role):
    rows = (Shard(0),)
    call = MeshProduct(shape, 8, (2,), (Shard(1),), rows, rows, 14, "cuda", 1e-4)
    assert candidates(call, adds=True)[0].roles == (role,)


def test_whole_operands_are_waited_for_and_panels_are_not():
    rows = (Shard(0),)
    shape = 8192, 8192, 8192
    seconds = []
    for panel in (1e-4, 3e-4, None):
        call = MeshProduct(shape, 8, (4,), rows, rows, rows, 14, "cuda", panel)
        found = candidates(call, adds=False)[0]
        assert (found.pace is None) == (panel is None)
        seconds.append(found.seconds)
    assert seconds == sorted(set(seconds))


def test_layouts_say_where_operands_and_results_lie():
    for x in some():
        for role, left, right in zip(x.roles, x.left, x.right, strict=True):
            assert (left == Shard(0)) == (role == "m")
            assert (right == Shard(1)) == (role == "n")
            assert (left == Shard(1)) == (right == Shard(0)) == (role == "k")
        assert x.result == x.own == layout.own_placements(x.roles)
        assert math.prod(x.ranks(role) for role in "mnk") == 4
    asked = (Replicate(), Replicate())
    for x in some(result=asked):
        assert x.result == asked
        assert x.moved > 0


def test_a_layout_prints_bytes_and_seconds():
    (first, *_) = some()
    big = replace(
        first, roles=("m", "k"), gathered=(3 * 2**20, 0), partial=2**19, moved=0
    )
    text = str(big)
    assert "2 ranks share rows of A and C, 2 ranks share the inner dimension" in text
    assert "receives 3 MiB of A, 0.5 MiB of residues of sums;" in text
    assert f"{1e3 * big.seconds:.3g} ms in all" in text
    alone = replace(first, gathered=(0, 0), partial=0, moved=0)
    assert "receives nothing" in str(alone)


def test_rates_are_positive():
    for wire in layout.WIRES.values():
        assert all(getattr(wire, field.name) > 0 for field in fields(wire))
