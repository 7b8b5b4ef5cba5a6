"""The workspace limit: kept, stated, and refused with numbers where it is too small."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.engine import MemoryLimits
from hifigemm.model.problem import Problem
from hifigemm.running import planner
from hifigemm.running.planner import DefaultWorkspace, steady

SCHEMES = (
    hg.DoubleDouble(),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(),
    hg.Ozaki1(product="fp16"),
    hg.Ozaki1(mode="dp"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
)


def peak_of(call):
    """Largest number of bytes that NumPy held at a time during the call, and the call's
    result.
    """
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("which", [1, 2, 3])
def test_memory_stays_within_the_limit(make_pair, workspaces, scheme, dtype, which):
    a, b = make_pair("phi_1", 60, 260, 50, dtype)
    options = {"scheme": scheme, "accuracy": None if scheme.explicit else "correct"}
    workspace = workspaces(a, b, **options)[which]
    hg.matmul(a[:2], b[:, :2], **options)  # constants that stay are made here
    peak, (c, report) = peak_of(
        lambda: hg.matmul(a, b, workspace=workspace, return_report=True, **options)
    )
    assert report.workspace <= workspace
    flags = 2 * c.size  # which entries keep their promise
    assert peak <= workspace + c.nbytes + flags + 2**16


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_memory_without_a_limit_is_below_twelve_times_the_operands(make_pair, scheme):
    a, b = make_pair("phi_1", 256, 256, 256)
    accuracy = None if scheme.explicit else "correct"
    peak, c = peak_of(lambda: hg.matmul(a, b, scheme=scheme, accuracy=accuracy))
    assert peak <= 12 * (a.nbytes + b.nbytes + c.nbytes)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_report_states_the_bytes_of_the_largest_block(
    make_pair, workspaces, scheme
):
    a, b = make_pair("phi_1", 30, 40, 20)
    limits = workspaces(a, b, scheme=scheme)
    for limit in limits[1:]:
        report = hg.matmul(a, b, scheme=scheme, workspace=limit, return_report=True)[1]
        assert limits[0] <= report.workspace <= limit


@pytest.mark.usefixtures("without_core")  # its memory hardly depends on blocks
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_smallest_workspace_computes_entry_by_entry_and_one_byte_less_is_refused(
    make_pair, assert_same_bits, workspaces, scheme
):
    a, b = make_pair("phi_1", 3, 8, 4)
    smallest = workspaces(a, b, scheme=scheme)[0]
    plan = hg.make_plan(a, b, scheme=scheme, workspace=smallest)
    assert plan.block_shape == (1, 1, 1)
    assert plan.workspace == smallest
    with pytest.raises(
        hg.PlanError,
        match=f"workspace of {smallest - 1} bytes is too small.*takes {smallest}",
    ):
        hg.make_plan(a, b, scheme=scheme, workspace=smallest - 1)
    if scheme.explicit:  # others may escalate, which takes more
        assert_same_bits(
            hg.matmul(a, b, scheme=scheme, workspace=smallest),
            hg.matmul(a, b, scheme=scheme),
        )


@pytest.mark.parametrize("workspace", [0, -1, "1 GiB", 1.5])
def test_what_is_no_positive_number_of_bytes_is_refused(workspace):
    with pytest.raises((hg.PlanError, TypeError), match="workspace"):
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), workspace=workspace)


def test_the_native_product_needs_none():
    assert (
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), workspace=1, return_report=True)[
            1
        ].workspace
        == 0
    )


def test_blocks_cover_every_entry_once(make_pair, workspaces):
    for shape in ((1, 2), (7, 3), (16, 5), (3, 17)):
        a, b = make_pair("phi_1", shape[0], 6, shape[1])
        a, b = np.stack([a] * 3), np.stack([b] * 3)
        for limit in workspaces(a, b, scheme="ozaki1"):
            plan = hg.make_plan(a, b, scheme="ozaki1", workspace=limit)
            counts = np.zeros((3, *shape), int)
            for block in plan.blocks():
                counts[block.batch, block.rows, block.cols] += 1
            assert (counts == 1).all()


@pytest.mark.parametrize(
    ("dtype", "k", "options"),
    [
        ("complex128", 420_000, {"accuracy": "correct"}),
        ("complex128", 450_000, {"accuracy": 1e-18}),
        ("float64", 2_200_000, {}),
        pytest.param(
            "float32", 4_000_000, {"scheme": "ozaki2"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "float32", 4_000_000, {"scheme": "corrected"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_long_sum_takes_what_it_needs_where_no_limit_was_asked_for(dtype, k, options):
    # products that underflow are escalated
    entry = 1e-160 if dtype == "float64" else 1.0
    x = np.full(k, entry, dtype)
    want = k * entry * entry
    np.testing.assert_allclose(
        hg.matmul(x, x, **options),
        want,
        rtol=1e-6,
        atol=np.finfo(float).smallest_subnormal,
    )
    with pytest.raises(hg.PlanError, match="workspace of 1048576 bytes is too small"):
        hg.matmul(x, x, workspace=2**20, **({"scheme": "ozaki1"} | options))


def test_a_limit_that_was_asked_for_is_not_the_one_that_was_not():
    engine = NumpyEngine()
    plan = hg.make_plan(np.ones((8, 9)), np.ones((9, 8)), scheme="ozaki1")
    smaller = replace(plan.problem, m=5)
    by_default = planner.for_problem(plan, smaller, engine, DefaultWorkspace(999), True)
    assert by_default.block_shape == (1, 1, 1)
    with pytest.raises(hg.PlanError, match="workspace of 999 bytes is too small"):
        planner.for_problem(plan, smaller, engine, 999, True)


GIB = 2**30


@pytest.fixture
def free(monkeypatch):
    """free(nbytes, large): so much memory is free, and products of operands and results
    from `large` bytes on ask.
    """

    def pretend(nbytes, large=planner._LARGE):
        monkeypatch.setattr(NumpyEngine, "memory", MemoryLimits(free=lambda: nbytes))
        monkeypatch.setattr(planner, "_LARGE", large)

    return pretend


LARGE, SMALL = (Problem(1, n, n, n, np.dtype(float)) for n in (20000, 8))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("gib", [5, 23, 61, 2000])
def test_default_plans_of_large_products_leave_half_of_the_free_memory(
    free, dtype, gib
):
    free(gib * GIB)
    x = np.broadcast_to(np.ones((), dtype), (20000, 20000))
    limit = planner.workspace_limit(replace(LARGE, dtype=x.dtype), None, NumpyEngine())
    result_and_copies = 3 * 20000**2 * x.itemsize
    assert (
        planner._LARGE
        <= limit
        <= max((gib * GIB - result_and_copies) // 2, planner._LARGE)
    )
    assert (limit == steady(limit)) == (gib == 2000)
    # neither looks at the entries
    for scheme in (hg.Ozaki1(product="fp64"), hg.Ozaki2(num_moduli=15)):
        assert hg.make_plan(x, x, scheme=scheme, accuracy="correct").workspace <= limit


def test_nobody_looks_at_the_free_memory_for_small_products_or_where_a_limit_was_given(
    free,
):
    for nbytes in (0, GIB, None):
        free(nbytes)
        assert planner.workspace_limit(SMALL, None, NumpyEngine()) == DefaultWorkspace(
            2**28
        )
        assert planner.workspace_limit(LARGE, 2**40, NumpyEngine()) == 2**40
    assert planner.workspace_limit(LARGE, None, NumpyEngine()) == DefaultWorkspace(
        8 * 3 * 8 * 20000**2
    )


@pytest.mark.usefixtures("without_core")  # its memory hardly depends on blocks
@pytest.mark.parametrize("scheme", [*SCHEMES, hg.Multiword(), hg.Corrected()], ids=str)
def test_no_bit_depends_on_the_free_memory(make_pair, assert_same_bits, free, scheme):
    a, b = make_pair("phi_1", 60, 90, 50, "float32")
    a, b = np.stack([a] * 2), np.stack([b] * 2)
    options = {"scheme": scheme, "accuracy": None if scheme.explicit else "correct"}
    free(2**60, large=1)
    want, report = hg.matmul(a, b, return_report=True, **options)
    room = report.workspace // 8
    free(2 * room + a.nbytes + b.nbytes + want.nbytes, large=1)
    plan = hg.make_plan(a, b, **options)
    c, held = hg.matmul(a, b, return_report=True, **options)
    assert_same_bits(c, want)
    assert held.workspace == plan.workspace
    # a library's sums may follow the blocks
    if isinstance(scheme, hg.Multiword | hg.Corrected):
        assert plan.is_whole
        assert held.workspace == report.workspace
    else:
        assert not plan.is_whole
        assert held.workspace <= room


def test_one_entry_at_least_is_made_in_any_memory(make_pair, assert_same_bits, free):
    a, b = make_pair("phi_1", 3, 8, 4)
    want = hg.matmul(a, b, accuracy="correct")
    free(0, large=4)
    plan = hg.make_plan(a, b, accuracy="correct")
    assert plan.block_shape == (1, 1, 1)
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), want)


def test_limits_by_the_free_memory_are_few(free):
    """So that few plans follow from them while the free memory moves."""
    limits = set()
    for nbytes in range(16 * GIB, 32 * GIB, 2**24):
        free(nbytes)
        limits.add(planner.workspace_limit(LARGE, None, NumpyEngine()))
    assert len(limits) <= 4 * 3 + 1


def test_products_in_blocks_for_want_of_memory_are_not_repeated_in_them(
    make_pair, monkeypatch, free
):
    a, b = make_pair("phi_1", 30, 40, 20)
    operands = a.nbytes + b.nbytes + 8 * 30 * 20
    whole = hg.make_plan(a, b, scheme="ozaki1", accuracy="correct").workspace
    for nbytes, workspace, is_kept in (
        (operands + 2 * (whole // 2), None, False),
        (operands + 4 * whole, None, True),
        (operands + 2 * (whole // 2), whole // 2, True),
    ):
        free(nbytes, large=1)
        made = {}
        monkeypatch.setattr(store, "_programs", made)
        hg.matmul(a, b, scheme="ozaki1", accuracy="correct", workspace=workspace)
        assert any(key[0] != "plan" for key in made) is is_kept


@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_a_result_that_does_not_fit_is_a_memory_error(accuracy):
    x = np.ones((2**24, 1))
    with pytest.raises(MemoryError):
        hg.matmul(x, x.T, accuracy=accuracy)
