"""Counts that operands decide, from the look to the result: the kernels give the plans and the bits of NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.driver import multiply
from hifigemm.engines import host_copy, residue_pipeline
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import HopeError
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.plan import Problem
from hifigemm.planning import plan_for, second_plan
from hifigemm.schemes import outliers, ozaki2

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has tests of its own in test_cuda_counts.py")

FAST = hg.Ozaki2(scaling="fast")
WORKSPACE = 2**28


def carried_out(engine, a, b, accuracy):
    """The plan that was carried out in the end, what came before it, and the values."""
    problem, hopes = Problem(1, a.shape[1], b.shape[2], a.shape[2], np.dtype(a.dtype)), []
    plan = plan_for(problem, a, b, accuracy, FAST, True, engine, WORKSPACE)
    try:
        return plan, hopes, multiply(plan, a, b, engine, WORKSPACE)
    except HopeError as failed:
        hopes.append(plan)
        plan = second_plan(plan, failed.ratio, a, b, engine, WORKSPACE)
        return plan, hopes, multiply(plan, a, b, engine, WORKSPACE)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        *(("float64", name) for name in ("phi_0.1", "phi_2", "integers", "uniform", "zeros", "cancelling")),
        *(("complex128", name) for name in ("phi_0.1", "integers")),
    ],
)
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_plans_and_bits_are_those_of_numpy(make_pair, assert_same_bits, engine, family, accuracy, dtype):
    a, b = (x[None] for x in make_pair(family, 9, 70, 8, dtype))
    want, _, expected = carried_out(NumpyEngine(), a, b, accuracy)
    with np.errstate(all="ignore"):
        plan, hopes, found = carried_out(engine, *(wrap(torch.from_numpy(x)) for x in (a, b)), accuracy)
    assert_same_bits(unwrap(found.values).numpy(), expected.values)
    assert (plan.scheme, plan.reason, found.bound) == (want.scheme, want.reason, expected.bound)
    assert all(hope.hopeful for hope in hopes)
    assert (plan.hopeful or bool(hopes)) == (not want.exact)


def later(a, b, first):
    """Operands whose terms from `first` on are all that counts."""
    a, b = a.copy(), b.copy()
    a[:, :, :first] *= 2.0**-30
    return a, b


@pytest.mark.parametrize(
    ("dtype", "family", "first", "few", "suffice", "hopes"),
    [
        ("float64", "phi_0.1", 0, 256, True, 0),
        ("float64", "phi_0.1", 256, 256, False, 0),
        ("float64", "phi_2", 0, 256, False, 1),
        ("float64", "integers", 0, 256, None, 0),
        ("complex128", "phi_0.1", 0, 384, True, 0),
        ("complex128", "phi_0.1", 384, 384, False, 0),
    ],
)
def test_few_terms_are_looked_at_first(
    make_pair, assert_same_bits, engine, monkeypatch, dtype, family, first, few, suffice, hopes
):
    """A ratio of 0 stands for one that few terms have shown to be small enough."""
    a, b = (x[None] for x in make_pair(family, 9, 500, 8, dtype))
    a, b = later(a, b, first)
    want, _, expected = carried_out(NumpyEngine(), a, b, None)
    looks, whole = [], residue_pipeline.error_ratio_bits

    def noted(sizes, few):
        bits, every = whole(sizes, few), whole(sizes)
        assert bits.item() in (0, every.item())
        looks.append((few[0], bits.item() == 0))
        return bits

    monkeypatch.setattr(residue_pipeline, "_FEW_TERMS_FROM", 0)
    monkeypatch.setattr(residue_pipeline, "error_ratio_bits", noted)
    with np.errstate(all="ignore"):
        plan, seen, found = carried_out(engine, *(wrap(torch.from_numpy(x)) for x in (a, b)), None)
    assert looks == ([] if suffice is None else [(few, suffice)])
    short = replace(plan.problem, k=128)  # few terms are no fewer there, or all that count
    assert residue_pipeline._few_terms(replace(plan, problem=short)) is None
    assert residue_pipeline._few_terms(replace(plan, problem=replace(short, k=2**18))) is None
    assert len(seen) == hopes
    assert_same_bits(unwrap(found.values).numpy(), expected.values)
    assert (plan.scheme, plan.reason, found.bound) == (want.scheme, want.reason, expected.bound)


def test_no_target_is_promised_where_a_sum_of_magnitudes_may_be_zero(make_pair, assert_same_bits, engine, monkeypatch):
    a, b = (x[None] for x in make_pair("phi_0.1", 9, 500, 8))
    a[:, 0, :250] *= 2.0**-20
    b[:, 250:, 0] *= 2.0**-20
    monkeypatch.setattr(residue_pipeline, "_FEW_TERMS_FROM", 0)
    want, _, expected = carried_out(NumpyEngine(), a, b, 1e300)
    with np.errstate(all="ignore"):
        plan, hopes, found = carried_out(engine, *(wrap(torch.from_numpy(x)) for x in (a, b)), 1e300)
    assert len(hopes) == 1
    assert_same_bits(unwrap(found.values).numpy(), expected.values)
    assert (plan.scheme, plan.reason) == (want.scheme, want.reason)


def test_what_a_look_leaves_is_read_back_once(make_pair, engine):
    a, b = (wrap(torch.from_numpy(x[None])) for x in make_pair("phi_0.1", 5, 20, 6))
    for _ in range(3):
        plan, hopes, _ = carried_out(engine, a, b, None)
        assert (plan.hopeful, hopes) == (True, [])
    assert len(host_copy._free[-1]) == 1


@pytest.mark.parametrize(
    ("accuracy", "scheme", "looks"),
    [
        (None, FAST, ["look at bits", "scaling, residues, magnitudes", "look at magnitudes"]),
        ("correct", FAST, ["look at bits", "scaling and residues"]),
        (None, hg.Ozaki2(num_moduli=5, scaling="fast"), ["scaling and residues"]),
    ],
)
def test_stages_are_the_launches_of_the_plan(make_pair, engine, accuracy, scheme, looks):
    a, b = (wrap(torch.from_numpy(x[None])) for x in make_pair("phi_1", 5, 20, 6, "complex128"))
    problem = Problem(1, 5, 6, 20, np.dtype("complex128"))
    found = engine.stages(plan_for(problem, a, b, accuracy, scheme, False, engine, WORKSPACE), a, b)
    assert [name for name, *_ in found] == [*looks, "INT8 products", "reconstruction"]
    for _, run, nbytes, work in found:
        run()
        assert nbytes > 0
        assert work >= 0


def wide_pair(make_pair, m, k, n, rows, cols):
    """Operands of which few rows and columns have one entry that is far smaller than the others."""
    a, b = make_pair("phi_0.1", m, k, n)
    a[list(rows), 3] *= 2.0**-34
    b[2, list(cols)] *= 2.0**-36
    return a[None], b[None]


@pytest.fixture
def eager(monkeypatch):
    """Wide vectors are set apart in small products too."""
    monkeypatch.setattr(ozaki2, "may_pay", lambda problem: problem.batch == 1 and not problem.is_complex)
    monkeypatch.setattr(outliers, "_TILE", 1)
    monkeypatch.setattr(outliers, "_RESIDUES", 1)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("blocks", [(1, 45, 40), (1, 20, 25)])
@pytest.mark.parametrize(("rows", "cols"), [((1, 7, 44), (0, 11)), ((4,), ()), ((), (12,))])
def test_wide_rows_and_columns_are_set_apart(make_pair, assert_same_bits, engine, eager, rows, cols, blocks):
    a, b = wide_pair(make_pair, 45, 70, 40, rows, cols)
    problem = Problem(1, 45, 40, 70, np.dtype("float64"))
    want = multiply(plan_for(problem, a, b, "correct", FAST, True, NumpyEngine(), WORKSPACE), a, b, NumpyEngine(), 0)
    x, y = (wrap(torch.from_numpy(z)) for z in (a, b))
    with np.errstate(all="ignore"):
        plan = replace(plan_for(problem, x, y, "correct", FAST, True, engine, WORKSPACE), block_shape=blocks)
        found = multiply(plan, x, y, engine, WORKSPACE)
    assert plan.outliers is not None
    assert set(rows) <= set(plan.outliers.rows)
    assert set(cols) <= set(plan.outliers.cols)
    assert plan.outliers.num_moduli < plan.outliers.shared <= plan.scheme.count
    assert plan.num_products == plan.scheme.count
    (note,) = found.notes
    assert note.startswith(f"{plan.outliers.num_moduli} moduli without {len(plan.outliers.rows)} row")
    assert plan.outliers.num_moduli < found.num_products < plan.num_products
    assert_same_bits(unwrap(found.values).numpy(), want.values)


def test_outliers_with_inf_and_nan_and_an_epilogue(make_pair, assert_same_bits, engine, eager):
    a, b = wide_pair(make_pair, 45, 70, 40, (1, 7), (0, 11))
    a[0, 7, 5], a[0, 2, 1], b[0, 3, 11] = np.inf, np.nan, -np.inf
    c = np.random.default_rng(1).uniform(-1, 1, (1, 45, 40))
    c[0, 7, 11] = np.nan
    problem, epilogue = Problem(1, 45, 40, 70, np.dtype("float64")), Epilogue(1.5, -0.75, c)
    target = wrap(torch.zeros((1, 45, 40), dtype=torch.float64))
    plan = plan_for(problem, a, b, "correct", FAST, True, NumpyEngine(), WORKSPACE)
    want = multiply(plan, a, b, NumpyEngine(), WORKSPACE, epilogue=epilogue)
    x, y, c = (wrap(torch.from_numpy(z)) for z in (a, b, c))
    with np.errstate(all="ignore"):
        plan = plan_for(problem, x, y, "correct", FAST, True, engine, WORKSPACE)
        assert plan.outliers is not None
        found = multiply(plan, x, y, engine, WORKSPACE, epilogue=replace(epilogue, c=c), out=target)
    assert_same_bits(unwrap(found.values).numpy(), want.values)
    assert_same_bits(unwrap(target).numpy(), want.values)
