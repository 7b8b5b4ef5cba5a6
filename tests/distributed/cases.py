"""What every rank of a mesh does in a test: products on the mesh against those of one
process, bit for bit.

A case holds on CPUs and on GPUs alike; its tensors are those of the mesh's devices.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import re
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

import hifigemm as hg
from hifigemm import distributed
from hifigemm.base import store
from hifigemm.differentiable import torch_private as private
from hifigemm.distributed import api, layout, messages, method, panels, products, sums
from hifigemm.distributed.layout import MeshProduct, candidates, extent
from hifigemm.interop import torch_meshes
from tests import hard_matrices as gen

FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")
FAST = hg.Ozaki2(scaling="fast")
PLACEMENTS = Shard(0), Shard(1), Replicate()
SIZES = 21, 331, 18
"""m, k and n: none of them is a multiple of a number of ranks and of 256."""


def operands(mesh, m, k, n, kind="phi_0.5", dtype=np.float64, seed=0):
    """A and B on the device of this rank, the same on all."""
    rng = np.random.default_rng(seed)
    makers = {
        "phi_0.5": lambda shape: gen.phi_matrix(rng, shape, 0.5, real),
        "phi_4": lambda shape: gen.phi_matrix(rng, shape, 4.0, real),
        "full_range": lambda shape: gen.full_range(rng, shape, real),
        "integers": lambda shape: rng.integers(-9, 10, shape).astype(real),
    }
    real = np.empty(0, dtype).real.dtype

    def made(shape):
        x = makers[kind](shape)
        return x if real == dtype else (x + 1j * makers[kind](shape)).astype(dtype)

    return tuple(
        torch.from_numpy(made(shape)).to(mesh.device_type) for shape in ((m, k), (k, n))
    )


def spread(x, mesh, *placements):
    """A tensor that all ranks have, as a DTensor; no rank sends anything, so that NaN
    stays what it is.
    """
    return DTensor.from_local(
        x.clone(), mesh, [Replicate()] * mesh.ndim, run_check=False
    ).redistribute(placements=placements)


def room(mesh, nbytes):
    """A workspace that cuts products of these sizes on a CPU; tiles of a GPU take
    more.
    """
    return nbytes if mesh.device_type == "cpu" else max(nbytes, 2**26)


def assert_same(made, want):
    """The result on the mesh has the bits of the one of this process, signs of zeros
    included; NaN equals NaN.
    """
    got = made.full_tensor()
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    x, y = (
        torch.view_as_real(z.resolve_conj()) if z.is_complex() else z
        for z in (got, want)
    )
    assert torch.equal(x.isnan(), y.isnan())
    same = (x == y) & (torch.signbit(x) == torch.signbit(y)) | x.isnan()
    first = (
        ""
        if same.all()
        else f"the first is {x[~same][0].item()!r}, and should be {y[~same][0].item()!r}"
    )
    assert same.all(), (
        f"{made.placements}: {(~same).sum()} of {same.numel()} entries differ, {first}"
    )


def run_all(mesh, names):
    """Cases one after the other, in one group of processes. Sums over ranks are made at
    sizes at which they do not pay for what the host takes.
    """
    layout.WIRES = {k: replace(wire, sums=0.0) for k, wire in layout.WIRES.items()}
    for name in names:
        try:
            globals()[name](mesh)
        except Exception as error:
            raise AssertionError(f"{name} on a mesh of {tuple(mesh.shape)}") from error


def every_layout(mesh):
    """All placements of both operands."""
    a, b = operands(mesh, *SIZES)
    want = hg.matmul(a, b, scheme=FIXED)
    correct = hg.matmul(a, b, accuracy="correct")
    all_placements = list(product(PLACEMENTS, repeat=mesh.ndim))
    pairs = list(product(all_placements, repeat=2))
    for left, right in pairs if mesh.ndim == 1 else pairs[::7]:
        x, y = spread(a, mesh, *left), spread(b, mesh, *right)
        assert_same(distributed.matmul(x, y, scheme=FIXED), want)
        if left == right:
            assert_same(
                distributed.matmul(x, y, scheme=FIXED, workspace=room(mesh, 2**19)),
                want,
            )
            assert_same(distributed.matmul(x, y, accuracy="correct"), correct)
        if set(left) == {Shard(0)}:
            made = distributed.matmul(x, y, scheme=FIXED, placements=right)
            assert made.placements == right
            assert_same(made, want)


def panels_of_many_vectors(mesh):
    """Sizes at which operands arrive in several panels, and one rank has fewer vectors
    than the others.
    """
    # as if few vectors kept a device busy
    panels.MULTIPLE, panels.MIN_WIDTH, sums._MIN_WIDTH = 4, 8, 4
    for m, k, n in ((41, 40, 83), (82, 33, 31), (3, 50, 97)):
        a, b = operands(mesh, m, k, n)
        want = hg.matmul(a, b, scheme=FIXED)
        for left, right in product((Shard(0), Shard(1)), repeat=2):
            x, y = (
                spread(z, mesh, *[p] * mesh.ndim) for z, p in ((a, left), (b, right))
            )
            assert_same(distributed.matmul(x, y, scheme=FIXED), want)
            assert_same(
                distributed.matmul(x, y, accuracy=1e-13),
                hg.matmul(a, b, scheme=FAST, accuracy=1e-13),
            )
            assert_same(
                distributed.matmul(x, y, scheme=FIXED, workspace=room(mesh, 2**20)),
                want,
            )


SUMS = (
    ((9, 2500, 7), "phi_0.5", np.float64, FIXED),
    ((5, 4096, 6), "full_range", np.float64, hg.Ozaki2(num_moduli=20, scaling="fast")),
    ((6, 4096, 5), "phi_4", np.complex128, FIXED),
    ((1, 3000, 1), "phi_0.5", np.float32, hg.Ozaki2(num_moduli=8, scaling="fast")),
    ((300, 2048, 4), "integers", np.float64, FIXED),
    ((4, 700, 3), "phi_0.5", np.complex64, FIXED),
)


def sums_over_ranks(mesh):
    """A long inner dimension stays where it is, and what crosses the wire is added
    exactly.
    """
    for (m, k, n), kind, dtype, scheme in SUMS[:: mesh.ndim]:
        a, b = operands(mesh, m, k, n, kind, dtype)
        a[0], b[: k // 2, -1] = 0, 0
        want = hg.matmul(a, b, scheme=scheme)
        correct = hg.matmul(a, b, accuracy="correct")
        c = (
            operands(mesh, m, 1, n, "phi_0.5", dtype, 1)[0]
            @ operands(mesh, m, 1, n, "phi_0.5", dtype, 1)[1]
        )
        scalars = {"alpha": -0.75, "beta": 3.0, "scheme": scheme}
        combined = hg.gemm(a, b, c, **scalars)
        for left, right in _along_k(mesh):
            x = spread(a, mesh, *left)
            y = spread(b, mesh, *right)
            z = spread(c, mesh, *right)
            _, report = made = distributed.matmul(
                x, y, scheme=scheme, return_report=True
            )
            if (
                k > 2048
                and m < 100
                and mesh.ndim == 1 < mesh.size()
                and mesh.device_type == "cpu"
            ):
                assert "share the inner dimension" in report.reason
            assert_same(made[0], want)
            assert_same(distributed.matmul(x, y, scheme=scheme, workspace=2**25), want)
            assert_same(distributed.gemm(x, y, z, **scalars), combined)
            tensors = {name: torch.tensor(scalars[name]) for name in ("alpha", "beta")}
            assert_same(distributed.gemm(x, y, z, **tensors, scheme=scheme), combined)
            assert_same(distributed.matmul(x, y, accuracy="correct"), correct)


def invariant(mesh):
    """The bits of one process wherever rows, columns and terms lie, with the count of
    the request; ranks that cut k, at no multiple of 256, add sums.
    """
    layouts = [*product(PLACEMENTS, repeat=2)][mesh.ndim - 1 :: mesh.ndim]
    for dtype, r in ((np.float32, None), (np.complex64, 1e-5), (np.float64, "correct")):
        a, b = operands(mesh, 9, 2501, 7, "phi_4", dtype)
        accuracy = hg.Invariant(r)
        want = hg.matmul(a, b, accuracy=accuracy)
        assert torch.equal(want[4], hg.matmul(a[4], b, accuracy=accuracy))
        splits_k = False
        for left, right in layouts:
            x = spread(a, mesh, *[left] * mesh.ndim)
            y = spread(b, mesh, *[right] * mesh.ndim)
            made, report = distributed.matmul(
                x, y, accuracy=accuracy, return_report=True
            )
            assert_same(made, want)
            assert report.bits_depend_on == (set() if r == "correct" else {"k"})
            splits_k |= "share the inner dimension" in report.reason
            with hg.emulate(r, invariant=True):
                assert_same(x @ y, want)
        if mesh.ndim == 1 < mesh.size() and mesh.device_type == "cpu":
            assert splits_k
    # Counts that ranks agree on follow from all rows.
    _, report = distributed.matmul(x, y, return_report=True)
    assert "other rows" in report.bits_depend_on
    hg.uninstall()


def _along_k(mesh):
    if mesh.ndim == 1:
        return [((Shard(1),), (Shard(0),))]
    return [
        ((Shard(1), Shard(1)), (Shard(0), Shard(0))),
        ((Shard(0), Shard(1)), (Replicate(), Shard(0))),
        ((Shard(1), Replicate()), (Shard(0), Shard(1))),
        ((Shard(1), Shard(0)), (Shard(0), Replicate())),
    ]


def every_layout_of_the_model(mesh):
    """Each layout that the model knows, taken in turn whatever it costs."""
    for m, k, n in ((23, 2048, 22), (40, 900, 33)):
        a, b = operands(mesh, m, k, n)
        want = hg.matmul(a, b, scheme=FIXED)
        x = spread(a, mesh, *[Shard(0)] * mesh.ndim)
        y = spread(b, mesh, *[Shard(1)] * mesh.ndim)
        call = MeshProduct(
            (m, n, k),
            8,
            tuple(mesh.shape),
            x.placements,
            y.placements,
            None,
            planes=14,
            device="cpu",
        )
        count = len(candidates(call, adds=True))
        for i in range(count):
            products.candidates = lambda *given, i=i, **more: candidates(
                *given, **more
            )[i:]
            assert_same(distributed.matmul(x, y, scheme=FIXED), want)
        products.candidates = candidates


LARGE = ((4097, 5003, 2049), np.float64), ((1025, 20011, 1031), np.complex128)


def large_and_uneven(mesh):
    """Sizes at which a GPU takes its kernels for long vectors and large tiles, and no
    cut is even.
    """
    for (m, k, n), dtype in LARGE:
        a, b = (
            torch.rand(shape, dtype=torch.float64, device=mesh.device_type) - 0.5
            for shape in ((m, k), (k, n))
        )
        for x in (a, b):  # the same on all ranks
            dist.broadcast(x, 0)
        a, b = (
            x.to(torch.complex128) * (1 + 1j) if dtype == np.complex128 else x
            for x in (a, b)
        )
        a[:, ::7] *= 2.0**-20
        for options in ({"scheme": FIXED}, {"accuracy": "correct"}, {}):
            want = hg.matmul(a, b, **(options or {"scheme": FAST}))
            for left, right in product([Shard(0), Shard(1)], repeat=2):
                x = spread(a, mesh, *[left] * mesh.ndim)
                y = spread(b, mesh, *[right] * mesh.ndim)
                assert_same(distributed.matmul(x, y, **options), want)


def methods(mesh):
    """Counts that follow from the operands, slices, dtypes, and operands that no count
    serves.
    """
    left, right = [Shard(0)] * mesh.ndim, [Shard(1)] * mesh.ndim
    for kind, dtype, options, like in (
        ("phi_0.5", np.float64, {}, {"scheme": FAST}),
        ("phi_4", np.float64, {"accuracy": "fp64"}, {"accuracy": "correct"}),
        ("phi_0.5", np.float64, {"accuracy": 1e-9}, {"scheme": FAST, "accuracy": 1e-9}),
        ("phi_0.5", np.complex128, {}, {"scheme": FAST}),
        ("phi_0.5", np.float32, {}, {"scheme": FAST}),
        ("full_range", np.float64, {}, {"accuracy": "correct"}),
        ("full_range", np.complex64, {"accuracy": "correct"}, {"accuracy": "correct"}),
        (
            "phi_4",
            np.float64,
            {"accuracy": hg.Relative(1e-12)},
            {"accuracy": "correct"},
        ),
        (
            "phi_0.5",
            np.float64,
            {"scheme": hg.Ozaki1("int8", 6)},
            {"scheme": hg.Ozaki1("int8", 6)},
        ),
        (
            "phi_0.5",
            np.complex128,
            {"scheme": FIXED, "accuracy": 1e-10},
            {"scheme": FIXED, "accuracy": 1e-10},
        ),
    ):
        a, b = operands(mesh, 19, 150, 23, kind, dtype)
        want = hg.matmul(a, b, **like)
        for x, y in (
            (spread(a, mesh, *left), spread(b, mesh, *right)),
            (spread(a, mesh, *right), spread(b, mesh, *left)),
        ):
            assert_same(distributed.matmul(x, y, **options), want)
            assert_same(
                distributed.matmul(x, y, **options, workspace=room(mesh, 2**21)), want
            )
        _, report = distributed.matmul(x, y, **options, return_report=True)
        assert report.correct == (like.get("accuracy") == "correct")
        assert "a rank receives" in str(report)


def repeated_calls(mesh):
    """A mesh is planned once for calls of one kind, whatever the entries are."""
    a, b = operands(mesh, *SIZES)
    c = a @ b
    planned = []

    def counted(*call):
        planned.append(call)
        return make_plans(*call)

    x, y, z = (
        spread(a, mesh, Shard(0)),
        spread(b, mesh, Replicate()),
        spread(c, mesh, Shard(0)),
    )
    options = {"scheme": FIXED}
    make_plans = products._plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_plans", counted)
        store.forget()
        for factor in (1.0, 3.0):
            assert_same(
                distributed.matmul(factor * x, y, **options),
                hg.matmul(factor * a, b, **options),
            )
        assert len(planned) == 1
        for alpha, beta in ((-1.0, 1.0), (2.0, 0.5)):
            scalars = {"alpha": alpha, "beta": beta, **options}
            made = distributed.gemm(x, y, z, **scalars)
            assert_same(made, hg.gemm(a, b, c, **scalars))
        assert len(planned) == 2
        distributed.matmul(spread(a, mesh, Shard(1)), y, **options)
        distributed.matmul(x, y, accuracy="correct")
        distributed.matmul(x, y, workspace=2**28, **options)
        assert len(planned) == 5


def ranks_in_trouble(mesh):
    """A rank that has kept nothing, or has no memory for its result, does not block the
    others, and the next product is made.
    """
    a, b = operands(mesh, 24, 300, 20)
    x, y = (spread(t, mesh, *[Shard(0)] * mesh.ndim) for t in (a, b))
    is_last = dist.get_rank() == dist.get_world_size() - 1
    correct = {"accuracy": "correct"}
    for options in ({"scheme": FIXED}, correct, {}):
        want = hg.matmul(a, b, **(options or {"scheme": FAST}))
        for _ in range(2):
            assert_same(distributed.matmul(x, y, **options), want)
            if is_last:
                store.forget()

    def refuse(*given):
        raise MemoryError("nothing is left")

    # A rank has no memory for a message.
    for limit in ({}, {"workspace": room(mesh, 2**20)}):
        if mesh.device_type == "cuda" and not limit:
            continue  # these are copies
        with pytest.MonkeyPatch.context() as patch:
            words = hg.PlanError, "MemoryError: nothing is left"
            if is_last:
                patch.setattr(messages, "packed", refuse)
                words = MemoryError, "is left"
            expect(*words, distributed.matmul, x, y, scheme=FIXED, **limit)
        want = hg.matmul(a, b, scheme=FIXED)
        assert_same(distributed.matmul(x, y, scheme=FIXED, **limit), want)

    # A rank has no memory for its result.
    for options in ({"scheme": FIXED}, correct):
        want = hg.matmul(a, b, **options)
        with pytest.MonkeyPatch.context() as patch:
            if is_last:
                patch.setattr(products, "_empty_result", refuse)
                expect(MemoryError, "is left", distributed.matmul, x, y, **options)
            elif options == correct:
                words = "MemoryError: nothing is left"
                expect(hg.PlanError, words, distributed.matmul, x, y, **options)
            else:
                rows = distributed.matmul(x, y, **options).to_local()
                start = _first_row(x)
                assert torch.equal(rows, want[start : start + len(rows)])
        assert_same(distributed.matmul(x, y, **options), want)


def wires(mesh):
    """Panels are copies between GPUs where they can be, else messages, with the same
    bits: call after call, of growing sizes, and though operands are written to at once.
    """
    if mesh.size() == 1:
        return
    by_copies = mesh.device_type == "cuda"
    expected = "copies from GPU to GPU" if by_copies else "messages"
    for m, k, n in ((64, 70, 50), (640, 700, 1500), (70, 64, 60), (1300, 900, 1700)):
        a, b = operands(mesh, m, k, n, "integers")
        x, y = (spread(t, mesh, *[Shard(0)] * mesh.ndim) for t in (a, b))
        plan = distributed.make_plan(x, y, scheme=FIXED)
        assert plan.wire == expected
        assert expected in str(plan)
        limit = {"workspace": room(mesh, 2**24)}
        assert distributed.make_plan(x, y, scheme=FIXED, **limit).wire == "messages"
        _, report = distributed.matmul(x, y, scheme=FIXED, return_report=True)
        assert f"by {expected}" in report.reason
        assert_same(distributed.matmul(x, y, scheme=FIXED, **limit), a @ b)
        made = []
        for factor in range(1, 6):
            x.to_local().fill_(factor)
            y.to_local().fill_(factor)
            made.append(distributed.matmul(x, y, scheme=FIXED))
            y.to_local().zero_()
        for factor, c in enumerate(made, 1):
            assert_same(c, torch.full_like(a @ b, k * factor**2))
    x, y = (spread(t, mesh, *[Replicate()] * mesh.ndim) for t in (a, b))
    assert distributed.make_plan(x, y, scheme=FIXED).wire == ""


def _first_row(x):
    """The number of the first row that this rank holds."""
    mesh = x.device_mesh
    rows = extent(x.shape[0], 0, x.placements, mesh.shape, mesh.get_coordinate() or ())
    return rows.start


def special_values(mesh):
    """Inf and NaN on one rank alone, beside rows and columns on others."""
    for m, k, n in ((11, 40, 10), (4, 3000, 5)):
        for dtype in (np.float64, np.complex128):
            a, b = operands(mesh, m, k, n, "phi_0.5", dtype)
            a[0, 3], a[-1, -1], b[1, 2], b[k // 2, 0] = (
                math.inf,
                math.nan,
                -math.inf,
                math.inf,
            )
            a[0, k // 2] = -math.inf
            whole = a * math.inf
            for given, options in product(
                (a, whole), ({"scheme": FIXED}, {"accuracy": "correct"})
            ):
                want = hg.matmul(given, b, **options)
                for left, right in product([Shard(0), Shard(1)], repeat=2):
                    x = spread(given, mesh, *[left] * mesh.ndim)
                    y = spread(b, mesh, *[right] * mesh.ndim)
                    assert_same(distributed.matmul(x, y, **options), want)


def graphs(mesh):
    """Products that are captured, for GPUs: replayed with other entries, beside others
    of the same kind and of a larger one, for which the memory of copies grows.
    """
    rows = [Shard(0)] * mesh.ndim
    a, b = operands(mesh, 700, 520, 1100)
    larger = [spread(torch.ones(1500, 1500).to(a), mesh, *rows) for _ in range(2)]
    captured = []
    for left, right in product([Shard(0), Shard(1)], repeat=2):
        x = spread(a, mesh, *[left] * mesh.ndim)
        y = spread(b, mesh, *[right] * mesh.ndim)
        options = {"scheme": FIXED, "placements": rows}
        distributed.matmul(x, y, **options)  # what it compiles and allocates is there
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = distributed.matmul(x, y, **options)
        captured.append((graph, x, y, made))
    for factor in (1.0, -3.0, 0.5):
        want = hg.matmul(factor * a, b, scheme=FIXED)
        for graph, x, y, made in captured:
            whole = spread(factor * a, mesh, *x.placements)
            x.to_local().copy_(whole.to_local())
            for _ in range(2):
                made.to_local().zero_()
                graph.replay()
                assert_same(made, want)
                assert_same(distributed.matmul(x, y, scheme=FIXED), want)
        ones = distributed.matmul(*larger, scheme=FIXED)
        assert_same(ones, torch.full((1500, 1500), 1500.0).to(a))


def few_entries(mesh):
    """Fewer rows, columns or terms than ranks, and none."""
    for m, k, n in (
        (1, 1, 1),
        (2, 700, 1),
        (1, 3, 50),
        (0, 5, 4),
        (4, 5, 0),
        (3, 0, 4),
    ):
        a, b = operands(mesh, m, k, n, "integers")
        want = hg.matmul(a, b, scheme=FIXED)
        c = torch.ones((m, n), dtype=a.dtype, device=a.device)
        for left, right in product([Shard(0), Shard(1)], repeat=2):
            x, y, z = (
                spread(t, mesh, *[p] * mesh.ndim)
                for t, p in ((a, left), (b, right), (c, left))
            )
            for options in ({"scheme": FIXED}, {"accuracy": "correct"}, {}):
                assert_same(distributed.matmul(x, y, **options), want)
            assert_same(
                distributed.gemm(x, y, z, beta=2.0, scheme=FIXED),
                hg.gemm(a, b, c, beta=2.0, scheme=FIXED),
            )


def scalars_and_out(mesh):
    """alpha, beta, C and results that are written to tensors that exist, operands among
    them.
    """
    n = 24
    a, b = operands(mesh, n, n, n)
    c = operands(mesh, n, n, n, seed=1)[0]
    for left, right in product(PLACEMENTS, repeat=2):
        x, y, z = (
            spread(t, mesh, *[p] * mesh.ndim)
            for t, p in ((a, left), (b, right), (c, left))
        )
        for scalars in (
            {"alpha": 0.5, "beta": -1.0},
            {"alpha": -3.0},
            {"alpha": 0.0, "beta": 2.0},
            {"beta": 1e-3},
        ):
            given = (c, z) if "beta" in scalars else (None, None)
            for how in ({"scheme": FIXED}, {"accuracy": "correct"}):
                want = hg.gemm(a, b, given[0], **scalars, **how)
                assert_same(distributed.gemm(x, y, given[1], **scalars, **how), want)
        want = hg.matmul(a, b, scheme=FIXED)
        for which in range(3):
            x, y = (
                spread(t, mesh, *[p] * mesh.ndim) for t, p in ((a, left), (b, right))
            )
            out = (
                spread(torch.full_like(c, math.nan), mesh, *[right] * mesh.ndim),
                x,
                y,
            )[which]
            assert distributed.matmul(x, y, scheme=FIXED, out=out) is out
            assert_same(out, want)


def expect(error, words, function, *given, **options):
    """A call that is refused on this rank, with these words in its message."""
    with pytest.raises(error, match=re.escape(words)):
        function(*given, **options)


def refusals(mesh):
    """What one rank refuses, every rank refuses, and the next product is made."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    (a, b), (long, _) = operands(mesh, 12, 40, 12), operands(mesh, 12, 1024, 12)
    x = spread(a, mesh, *[Shard(0)] * mesh.ndim)
    y = spread(b, mesh, *[Shard(0)] * mesh.ndim)
    own = rank == last

    def everywhere(error, words, *given, **options):
        expect(
            error if own else hg.PlanError, words, distributed.matmul, *given, **options
        )

    wrong = x.to(torch.int32) if own else x
    everywhere(TypeError, "has dtype torch.int32", wrong, y)
    everywhere(TypeError, "expected a DTensor", a if own else x, y)
    everywhere(
        TypeError,
        "out is a ndarray: expected a DTensor",
        x,
        y,
        out=np.empty((12, 12)) if own else None,
    )
    longer = spread(torch.cat([b, b]), mesh, *y.placements)
    everywhere(ValueError, "40 != 80", x, longer if own else y)
    odd = DTensor.from_local(
        torch.zeros(5, 40, dtype=a.dtype, device=a.device),
        mesh,
        x.placements,
        run_check=False,
        shape=x.shape,
        stride=(40, 1),
    )
    if mesh.size() > 1:
        everywhere(ValueError, "so this rank should hold", odd if own else x, y)
        options = {"scheme": FIXED} if own else {}
        expect(
            hg.PlanError,
            "differ in what they ask for",
            distributed.matmul,
            x,
            y,
            **options,
        )
    for words, options in (
        ("their bits do not depend on the mesh", {"scheme": "native"}),
        ("scaling='fast'", {"scheme": "ozaki2"}),
        ("give num_slices", {"scheme": "ozaki1"}),
        ("expected a finite number", {"accuracy": -1.0}),
        *(
            ("expected a positive whole number of bytes", {"workspace": w})
            for w in (0, -3, True, 1.5, "1 MiB")
        ),
        ("workspace of 1 bytes is too small", {"workspace": 1, "scheme": FIXED}),
        ("still have to be summed", {"placements": [Partial()] * mesh.ndim}),
        (
            "expected Shard(0), Shard(1) or Replicate()",
            {"placements": [_StridedShard(0, split_factor=2)] * mesh.ndim},
        ),
        ("the mesh has", {"placements": [Shard(0)] * 3}),
        ("expected a sequence of Shard(0)", {"placements": Shard(0)}),
        ("expected a sequence of Shard(0)", {"placements": "r" * mesh.ndim}),
        ("workspace=True: expected", {"workspace": True}),
        ("workspace=1.5: expected", {"workspace": 1.5}),
        ("workspace of 1 bytes is too small", {"workspace": 1, "scheme": FIXED}),
    ):
        expect(hg.PlanError, words, distributed.matmul, x, y, **options)
    expect(
        hg.PlanError,
        "expected a positive whole number of bytes",
        distributed.make_plan,
        x,
        y,
        workspace=0,
    )
    for left, right in ((0, 0), (1, 0)):
        given = [
            spread(t, mesh, *[Shard(i)] * mesh.ndim)
            for t, i in ((long, left), (long.T, right), (a[:, :12], left))
        ]
        expect(TypeError, "expected a number", distributed.gemm, *given[:2], alpha="2")
        expect(TypeError, "beta = 2j is complex", distributed.gemm, *given, beta=2j)
    for options in ({}, {"return_report": True}):
        for multiply in (hg.matmul, hg.gemm):
            expect(
                TypeError,
                "is a DTensor: multiply it with hifigemm.distributed.matmul",
                multiply,
                x,
                y,
                **options,
            )
    unsummed = DTensor.from_local(a, mesh, [Partial()] * mesh.ndim, run_check=False)
    expect(hg.PlanError, "still have to be summed", distributed.matmul, unsummed, y)
    for words, alpha in (
        ("is complex, and the result has dtype float64", 1j),
        ("expected a number", "2"),
    ):
        given = {"alpha": alpha if own else 1.0}
        expect(
            TypeError if own else hg.PlanError, words, distributed.gemm, x, y, **given
        )
    scaled = distributed.gemm(x, y, alpha=torch.tensor(2.0), scheme=FIXED)
    assert_same(scaled, hg.gemm(a, b, alpha=2.0, scheme=FIXED))
    backwards = DeviceMesh(mesh.device_type, mesh.mesh.flatten().flip(0))
    u, v = (
        DTensor.from_local(t, backwards, [Replicate()], run_check=False) for t in (a, b)
    )
    if mesh.size() > 1:
        expect(ValueError, "not in ascending order", distributed.matmul, u, v)
        first = DeviceMesh(mesh.device_type, [0])
        u, v = (
            DTensor.from_local(t, first, [Replicate()], run_check=False) for t in (a, b)
        )
        if rank == 0:
            assert_same(
                distributed.matmul(u, v, scheme=FIXED), hg.matmul(a, b, scheme=FIXED)
            )
        else:
            expect(ValueError, "is not on the mesh", distributed.matmul, u, v)
    # One row needs more than the forced count has.
    hard = torch.ones_like(a)
    hard[-1] = torch.tensor([2.0**-i for i in range(0, 400, 10)], dtype=a.dtype)
    z = spread(hard, mesh, *[Shard(0)] * mesh.ndim)
    w = spread(
        (1.0 / hard[-1:]).T.repeat(1, 12).contiguous(), mesh, *[Replicate()] * mesh.ndim
    )
    few = hg.Ozaki2(num_moduli=4, scaling="fast")
    expect(
        hg.HifigemmError,
        "does not meet",
        distributed.matmul,
        z,
        w,
        scheme=few,
        accuracy=1e-8,
    )
    assert_same(distributed.matmul(x, y, scheme=FIXED), hg.matmul(a, b, scheme=FIXED))


def killed(mesh):
    """One rank ends without a word; the others raise what their backend says, and do
    not wait for ever.
    """
    a, b = operands(mesh, 64, 64, 64)
    x = spread(a, mesh, *[Shard(0)] * mesh.ndim)
    y = spread(b, mesh, *[Shard(0)] * mesh.ndim)
    distributed.matmul(x, y, scheme=FIXED)
    if dist.get_rank() == 1:
        os._exit(7)
    started = time.monotonic()
    try:
        for _ in range(1000):
            distributed.matmul(x, y, scheme=FIXED)
    except RuntimeError:
        assert time.monotonic() - started < 60
        os._exit(0)
    raise AssertionError("the product went on without rank 1")


def derivatives(mesh):
    """Gradients are products on the mesh by the same options, of second order too."""
    a, b = operands(mesh, 14, 300, 9)
    g = operands(mesh, 14, 1, 9, seed=2)
    g = g[0] @ g[1]
    for left, right in product([Shard(0), Shard(1)], repeat=2):
        x, y = (
            spread(t, mesh, *[p] * mesh.ndim).requires_grad_()
            for t, p in ((a, left), (b, right))
        )
        made = distributed.matmul(x, y, scheme=FIXED)
        made.backward(spread(g, mesh, *made.placements))
        assert x.grad.placements == x.placements
        assert_same(x.grad, hg.matmul(g, b.mT, scheme=FIXED))
        assert_same(y.grad, hg.matmul(a.mT, g, scheme=FIXED))
        z = spread(g, mesh, *[left] * mesh.ndim).requires_grad_()
        x = x.detach().requires_grad_()
        combined = distributed.gemm(
            x, y.detach(), z, alpha=2.0, beta=-0.5, accuracy="correct"
        )
        combined.backward(spread(g, mesh, *combined.placements))
        assert_same(x.grad, hg.gemm(g, b.mT, alpha=2.0, accuracy="correct"))
        assert_same(z.grad, -0.5 * g)


def derivatives_of_functions(mesh):
    """Transforms of `torch.func`, gradients of gradients; tangents, which DTensor does
    not have, are refused.
    """
    n = 12
    a, b = operands(mesh, n, n, n)
    dims = mesh.ndim

    def loss(product):
        return lambda x, y, c: (product(x, y, c) ** 2).sum()

    def slope(product):
        return lambda x, y, c: (torch.func.grad(loss(product))(x, y, c) ** 2).sum()

    def one(x, y, c):
        return hg.gemm(x, y, c, alpha=2.0, beta=0.5, accuracy="correct")

    def many(x, y, c):
        return distributed.gemm(x, y, c, alpha=2.0, beta=0.5, accuracy="correct")

    for left, right in product((Shard(0), Shard(1)), repeat=2):
        given = (
            spread(a, mesh, *[left] * dims),
            spread(b, mesh, *[right] * dims),
            spread(a + b, mesh, *[left] * dims),
        )
        for what in (loss, slope):
            want = torch.func.grad(what(one), (0, 1, 2))(a, b, a + b)
            for made, like in zip(
                torch.func.grad(what(many), (0, 1, 2))(*given), want, strict=True
            ):
                assert_same(made, like)
    x, y, z = (t.requires_grad_() for t in given)
    (g,) = torch.autograd.grad(loss(many)(x, y, z), x, create_graph=True)
    want = torch.func.grad(slope(one), (0, 1))(a, b, a + b)
    for made, like in zip(torch.autograd.grad((g**2).sum(), (x, y)), want, strict=True):
        assert_same(made, like)
    expect(
        RuntimeError,
        "vmap",
        torch.func.vmap(distributed.matmul),
        given[0].detach(),
        given[1].detach(),
    )
    x, y = x.detach(), y.detach()
    with forward_ad.dual_level():
        expect(
            NotImplementedError, "_has_same_storage_numel", forward_ad.make_dual, x, y
        )
        # What is refused if a PyTorch to come gives DTensors tangents.
        private.handle_on_meshes(
            torch.ops.aten._has_same_storage_numel.default, lambda *_: True
        )
        dual = forward_ad.make_dual(x, x)
        DTensor._op_dispatcher._custom_op_handlers.pop(
            torch.ops.aten._has_same_storage_numel.default
        )
        expect(
            TypeError,
            "a has a tangent (forward_ad), which would be lost",
            distributed.matmul,
            dual,
            y,
        )
        expect(NotImplementedError, "jvp", distributed.matmul, dual, y.requires_grad_())


def products_of_pytorch(mesh):
    """``@`` of DTensors, linear and backward passes inside `emulate`; what no scope
    asks for is PyTorch's own.
    """
    a, b = operands(mesh, 14, 300, 9)
    want, native = hg.matmul(a, b, accuracy="correct"), a @ b
    assert not torch.equal(want, native)
    for left, right in product([Shard(0), Shard(1)], repeat=2):
        x, y = (
            spread(t, mesh, *[p] * mesh.ndim).requires_grad_()
            for t, p in ((a, left), (b, right))
        )
        with hg.emulate("correct", summary=True) as seen:
            made = x @ y
            assert [(row.operation, row.scheme, row.calls) for row in seen.rows] == [
                ("mm", "on a mesh", 1)
            ]
            assert seen.sightings.has_product
            assert_same(made.detach(), want)
            made.backward(spread(native, mesh, *made.placements))
            assert_same(x.grad, hg.matmul(native, b.mT, accuracy="correct"))
            bias = spread(b.mT.contiguous(), mesh, *[Replicate()] * mesh.ndim)
            line = torch.nn.functional.linear(
                x.detach(), bias, spread(b[0], mesh, *[Replicate()] * mesh.ndim)
            )
            assert_same(line, want + b[0])
            with hg.emulate("correct", min_size=1000):
                (x.detach() @ y.detach()).full_tensor()
        assert torch.allclose((x @ y).full_tensor(), native, rtol=1e-12, atol=1e-12)
    hg.uninstall()


def stacks_and_vectors_of_pytorch(mesh):
    """What `matmul` of meshes does not take: each entry is made by one rank, so that
    sums are rounded once.
    """
    a, b = operands(mesh, 6, 40, 5)
    stacks = torch.stack([a, a.flip(0), 2 * a]), torch.stack([b, b.flip(1), -b])
    c = stacks[0][:, :, :5].contiguous()
    inner = (Shard(1), Shard(0))
    rows = (Shard(0), Shard(0))
    vector = b[:, 0].contiguous()
    stacked = [
        (Shard(2), Shard(1)),
        (Shard(0), Shard(1)),
        (Shard(1), Shard(2)),
        (Replicate(), Shard(2)),
    ]
    nan = torch.full_like(c, math.nan)
    scalars = {"alpha": 3, "beta": 2}
    cases = [(torch.mv, (a, vector), p) for p in (inner, rows)]
    cases += [
        (torch.dot, (a[0], vector), (Shard(0), Shard(0))),
        (torch.vdot, (a[0], vector), (Replicate(), Shard(0))),
    ]
    cases += [(torch.bmm, stacks, p) for p in stacked]
    cases += [
        (torch.matmul, (stacks[0], b), (Shard(2), Shard(0))),
        (torch.matmul, (a, stacks[1]), (Shard(1), Shard(1))),
    ]
    cut_rows = spread(stacks[0], mesh, *[Shard(1)] * mesh.ndim)
    with suppress(RuntimeError):  # PyTorch 2.11 has no such view
        cut_rows.flatten(0, 1)  # whose strided shards are moved too
        cases += [
            (
                torch.nn.functional.linear,
                (stacks[0], b.mT.contiguous()),
                (Shard(1), Shard(0)),
            )
        ]
    cases += [(lambda x, y: torch.einsum("ik,kj->ij", x, y), (a, b), inner)]
    cases += [(partial(torch.addmm, **scalars), (c[0], a, b), (Replicate(), *inner))]
    cases += [(partial(torch.addmm, beta=0), (nan[0], a, b), (Replicate(), *inner))]
    cases += [
        (partial(torch.baddbmm, **scalars), (c, *stacks), (Shard(0), *stacked[0]))
    ]
    cases += [(partial(torch.baddbmm, beta=0), (nan, *stacks), (Shard(0), *stacked[0]))]
    cases += [(torch.addmv, (c[0, :, 0].contiguous(), a, vector), (Shard(0), *inner))]
    cases += [(torch.addmm, (c[0], a * math.inf, b), (Replicate(), *inner))]
    deep = init_device_mesh(mesh.device_type, (*mesh.shape, *[1] * (3 - mesh.ndim)))
    for scope in ({"accuracy": "correct"}, {"scheme": FIXED}):
        for function, given, placements in cases:
            with hg.emulate(**scope):
                want = function(*given)
                made = function(
                    *(
                        spread(x, mesh, *[p] * mesh.ndim)
                        for x, p in zip(given, placements, strict=True)
                    )
                )
                assert not any(p.is_partial() for p in made.placements)
                assert_same(made, want)
        with hg.emulate(**scope):
            assert_same(
                spread(a, deep, *[Shard(1)] * 3) @ spread(b, deep, *[Shard(0)] * 3),
                a @ b,
            )
    # whose bits depend on shapes; its sums are not cut either
    with hg.emulate(scheme=hg.Corrected("tf32")):
        made = spread(a, mesh, *[Shard(1)] * mesh.ndim) @ spread(
            b, mesh, *[Shard(0)] * mesh.ndim
        )
        assert not any(p.is_partial() for p in made.placements)
    x = spread(a, mesh, *[Shard(1)] * mesh.ndim).requires_grad_()
    v = a[:, 0].contiguous()
    with hg.emulate("correct"):
        (
            x
            @ spread(vector, mesh, *[Shard(0)] * mesh.ndim)
            * spread(v, mesh, *[Replicate()] * mesh.ndim)
        ).sum().backward()
    assert_same(x.grad, torch.outer(v, vector))
    hg.uninstall()


def axes_shorter_than_the_mesh(mesh):
    """Stacks and rows of which some rank has none, in all placements, and `mm` of
    schemes that meshes do not take.

    DTensor does not cut such an axis up, and would cut the inner dimension instead: a
    pending sum of native products.
    """
    rows, k, cols = 30, 600, 20
    a, b = operands(mesh, rows, k, cols)
    one, two = (a[None], b[None]), (a[:2], b[:, :2])
    stacks = torch.stack([two[0], -two[0].flip(1)]), torch.stack([two[1], 3 * two[1]])
    long = operands(mesh, mesh.size() - 1, 3000, 1)
    doubled = {"scheme": hg.DoubleDouble(), "accuracy": "correct"}
    assert not isinstance(doubled["scheme"], method.SCHEMES)
    cases = [
        (torch.bmm, one, {"accuracy": "correct"}),
        (torch.bmm, stacks, {"accuracy": "correct"}),
        (torch.mv, (long[0], long[1][:, 0].contiguous()), {"accuracy": "correct"}),
        (torch.mv, (a[:1], b[:, 0].contiguous()), {"accuracy": "correct"}),
        (torch.mm, (two[0], two[1]), doubled),
        (torch.mm, (a[:1], b[:, :1]), doubled),
    ]
    for function, given, scope in cases:
        with hg.emulate(**scope):
            want = function(*given)
        places = [[Replicate(), *(Shard(i) for i in range(x.ndim))] for x in given]
        pairs = list(product(*(product(place, repeat=mesh.ndim) for place in places)))
        for pair in pairs[:: 1 if mesh.ndim == 1 else 5]:
            operand, other = (
                spread(x, mesh, *place) for x, place in zip(given, pair, strict=True)
            )
            with hg.emulate(**scope):
                made = function(operand, other)
            assert not any(p.is_partial() for p in made.placements), (function, pair)
            assert_same(made, want)
    hg.uninstall()


def compiled(mesh):
    """Compiled programs call the products between their graphs, whichever policy held
    when they were compiled.
    """
    torch_meshes._is_registered = False
    for operator in (*torch_meshes._PRODUCTS, *torch_meshes._SUMS):
        DTensor._op_dispatcher._custom_op_handlers.pop(operator, None)
    a, b = operands(mesh, 6, 40, 5)
    want, native = hg.matmul(a, b, accuracy="correct"), a @ b
    assert not torch.equal(want, native)
    for place in ((Shard(1), Shard(0)), (Shard(0), Shard(1))):
        x, y = (
            spread(t, mesh, *[p] * mesh.ndim)
            for t, p in zip((a, b), place, strict=True)
        )
        bias = spread(b[0], mesh, *[Replicate()] * mesh.ndim)
        for backend in ("eager", "aot_eager"):
            compiling = partial(torch.compile, backend=backend)
            older = compiling(lambda x, y: (x * 1.0) @ y + 1.0)
            assert torch.allclose(
                older(x, y).full_tensor(), native + 1, rtol=1e-12, atol=1e-12
            )
            with hg.emulate("correct"):  # the first time, handlers are registered here
                assert_same(older(x, y), want + 1)
                newer = compiling(lambda x, y: (2.0 * x) @ y - 1.0)
                assert_same(newer(x, y), 2 * want - 1)
                assert_same(
                    compiling(lambda x, y, c: torch.addmm(c, x, y) * 2.0)(x, y, bias),
                    2 * (want + b[0]),
                )
                p = x.clone().requires_grad_()
                compiling(lambda x, y: (2.0 * x) @ y)(p, y).backward(
                    spread(native, mesh, *[Replicate()] * mesh.ndim)
                )
                assert_same(p.grad, 2 * hg.matmul(native, b.mT, accuracy="correct"))
                whole = compiling(lambda x, y: x @ y, fullgraph=True)
                expect(
                    Exception,
                    "no part of a graph once hifigemm makes such products",
                    whole,
                    x,
                    y,
                )
            assert torch.allclose(
                newer(x, y).full_tensor(), 2 * native - 1, rtol=1e-12, atol=1e-12
            )

            @compiling
            def inside(x, y):
                x = 2.0 * x
                with hg.emulate("correct"):
                    return x @ y + 1.0

            assert_same(inside(x, y), 2 * want + 1)

            @compiling
            def by_name(x, y):
                return distributed.matmul(2.0 * x, y, accuracy="correct") + 1.0

            p = x.clone().requires_grad_()
            made = by_name(p, y)
            assert_same(made, 2 * want + 1)
            made.backward(spread(native, mesh, *made.placements))
            assert_same(p.grad, 2 * hg.matmul(native, b.mT, accuracy="correct"))
            torch.compiler.reset()
    hg.uninstall()


def memory(mesh):
    """What a rank allocates stays below what the plan says; a plan of huge operands
    needs none of their memory.
    """
    rows, cols = [Shard(0)] * mesh.ndim, [Shard(1)] * mesh.ndim
    blocks = [Shard(0), Shard(1)][: mesh.ndim]
    for (m, k, n), left, right, workspace in (
        ((1024, 1024, 1024), rows, rows, 2**24),
        ((1024, 1024, 1024), blocks, blocks, 2**24),
        ((256, 8192, 256), cols, rows, 2**26),
        ((256, 8192, 256), cols, rows, 2**25),
    ):
        a, b = (torch.rand(shape, dtype=torch.float64) for shape in ((m, k), (k, n)))
        x, y = spread(a, mesh, *left), spread(b, mesh, *right)
        options = {"scheme": FIXED, "workspace": workspace}
        plan = distributed.make_plan(x, y, **options)
        distributed.matmul(x, y, **options)
        tracemalloc.start()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, profile_memory=True, acc_events=True
        ) as profile:
            distributed.matmul(x, y, **options)
        arrays = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        events = [
            e
            for e in profile.profiler.kineto_results.events()
            if e.name() == "[memory]"
        ]
        events.sort(key=lambda e: e.start_ns())
        tensors = max(accumulate(e.nbytes() for e in events))
        held = plan.memory.total - plan.memory.operands
        assert held // 8 < arrays + tensors <= held, (plan, arrays, tensors)
    n, count = 65536, mesh.size()
    shard = torch.empty(-(-n // count), n, dtype=torch.float64, device="meta")
    flat = init_device_mesh(mesh.device_type, (count,))
    large = DTensor.from_local(
        shard,
        flat,
        [Shard(0)],
        run_check=False,
        shape=torch.Size((n, n)),
        stride=(n, 1),
    )
    plan = distributed.make_plan(large, large, scheme=FIXED, workspace=2**34)
    assert plan.memory.operands == 2 * n * n * 8 // count
    assert f"{n * n * 8 // count / 2**30:.3g} GiB of C, 16 GiB of workspace" in str(
        plan
    )


def kernels_of_gpus(mesh):
    """The programs and kernels of a GPU, which Triton's interpreter runs, under panels
    and sums alike.
    """
    from tests.engines import conftest  # noqa: F401, which has the interpreter run them
    from tests.engines.stand_in import StandIn, take_as_device

    a, b = operands(mesh, 5, 520, 4)
    a[0, :300] *= 2.0**-70
    c = a[:, :1] @ b[:1]
    spoiled = a.clone()
    spoiled[1, 2], spoiled[3, 4] = math.nan, math.inf
    few = hg.Ozaki2(num_moduli=3, scaling="fast")
    panels.MULTIPLE = panels.MIN_WIDTH = 2
    rows, inner = (Shard(0), Shard(0)), (Shard(1), Shard(0))
    scaled = {"alpha": 0.5, "beta": -3.0, "scheme": few}
    products = [
        (a, inner, {"scheme": few}),
        (spoiled, inner, {"scheme": few}),
        (a * math.inf, inner, {"scheme": few}),
        (a, inner, {"accuracy": "correct"}),
    ]
    products += [(a, rows, {"scheme": few}), (spoiled, rows, {"scheme": few})]
    wanted = [hg.matmul(x, b, **options) for x, _, options in products]
    combined = hg.gemm(a, b, c, **scaled)
    engine = StandIn()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        take_as_device(engine, patch)
        patch.setattr(method, "engine_for", lambda *_: engine)
        for (x, (left, right), options), want in zip(products, wanted, strict=True):
            given = spread(x, mesh, left), spread(b, mesh, right)
            assert_same(distributed.matmul(*given, **options), want)
        given = (
            spread(x, mesh, p) for x, p in ((a, inner[0]), (b, inner[1]), (c, inner[0]))
        )
        assert_same(distributed.gemm(*given, **scaled), combined)


def example(mesh):
    """The bits of the example are those of its products by one process, correctly
    rounded.
    """
    program = _example_named("polar_factor_on_a_mesh")
    found = program.run(mesh, 12, "correct")
    x = program.spread_matrix(24, 12, mesh).full_tensor()
    for _ in range(program.STEPS):
        x = 1.5 * x - 0.5 * hg.matmul(
            x, hg.matmul(x.T, x, accuracy="correct"), accuracy="correct"
        )
    assert (
        found["emulated"] == hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest()[:12]
    )


def tensor_parallel(mesh):
    """PyTorch's tensor-parallel layers have the weights of one process after training,
    bit for bit.
    """
    if mesh.ndim > 1:
        return
    program = _example_named("tensor_parallel_training")
    found = program.run(mesh, 6, 3, "correct")
    assert found["emulated"] == found["one process, emulated"]
    # Two products forward and three backward in each step go this road.
    shapes = []

    def counted(a, b, *given, **options):
        shapes.append((*a.shape, b.shape[1]))
        return multiply(a, b, *given, **options)

    multiply = api.multiply
    layers = program.network(6, mesh.device_type)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    layers = parallelize_module(layers, mesh, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "multiply", counted)
        with hg.emulate("correct", min_size=0):
            program.train(layers, 6, 3, mesh.device_type)
    forward = (32, 6, 24), (32, 24, 6)
    backward = (32, 6, 24), (6, 32, 24), (24, 32, 6)
    found = Counter(tuple(sorted(shape)) for shape in shapes)
    assert found == Counter(tuple(sorted(x)) for x in 3 * (*forward, *backward))


def small_gpt(mesh):
    """Logits and gradients of the small GPT have the bits of one process, for ranks
    that share its heads.
    """
    program = _example_named("small_gpt")
    if mesh.ndim > 1 or program.HEADS % mesh.size():
        return
    rows = program.compare_ranks(mesh, 16, "fp32")
    assert [row.counts["invariant"] for row in rows] == [0, 0, 0]
    # Gradients are rounded sums of the ranks natively.
    assert mesh.size() == 1 or rows[-1].counts["native"] > 0


def _example_named(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program
