"""sync=False: without a device to wait for it changes nothing; with one, plans rest on no look at the operands."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.accuracy import resolve
from hifigemm.driver import multiply
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.formats import FP64
from hifigemm.numerics.bounds import native_bound
from hifigemm.plan import Problem
from hifigemm.planning import Options, check_unwaiting, unwaiting_plan

FAST = hg.Ozaki2(scaling="fast")
WORKSPACE = 2**28


class DeviceEngine(NumpyEngine):
    """Checks hopeful plans on the way, and carries out whole products alone."""

    looks_on_the_way = True
    fused = True

    def whole_product(self, plan):
        p = plan.problem
        whole = plan.block_shape == (p.batch, p.m, p.n) and not plan.certifies
        return (lambda *args: None) if plan.scheme.name == "ozaki2" and whole else None


def planned(problem, accuracy=None, scheme=FAST, workspace=WORKSPACE):
    """The plan of sync=False, made from operands that nobody may look at."""
    unread = np.empty((problem.batch, 0, 0))
    options = Options(accuracy, scheme, None, None, None, return_report=True, sync=False)
    return unwaiting_plan(problem, unread, unread, options, DeviceEngine(), workspace)


@pytest.mark.parametrize(
    "options", [{}, {"accuracy": "correct"}, {"scheme": FAST}, {"scheme": FAST, "accuracy": 1e-18}]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_without_a_device_nothing_changes(make_pair, assert_same_bits, options, dtype):
    for family in ("integers", "phi_0.1", "phi_4"):
        a, b = make_pair(family, 6, 20, 5, dtype)
        for call in (hg.matmul, hg.gemm):
            want, stated = call(a, b, return_report=True, **options)
            found, report = call(a, b, sync=False, return_report=True, **options)
            assert_same_bits(found, want)
            assert report == stated


@pytest.mark.parametrize("k", [30, 60, 5000])
def test_a_gated_plan_is_what_would_be_hoped_for(make_pair, k):
    a, b = make_pair("phi_0.1", 5, k, 6)
    problem, target = Problem(1, 5, 6, k, a.dtype), resolve(None, FP64, k)
    hopeful = FAST.plan(problem, a[None], b[None], target, DeviceEngine(), WORKSPACE)
    plan = planned(problem)
    assert (hopeful.hopeful, plan.hopeful, plan.gated, plan.certifies) == (True, False, True, False)
    assert (plan.scheme, plan.target, plan.block_shape) == (hopeful.scheme, hopeful.target, hopeful.block_shape)
    assert plan.scheme.largest_ratio(plan) == hopeful.scheme.largest_ratio(hopeful)
    assert plan.scheme.stated_bound(plan) == max(target.r, native_bound(k, 2.0**-53))
    check_unwaiting(plan, DeviceEngine())


@pytest.mark.parametrize(
    ("dtype", "accuracy", "scheme"),
    [
        ("float64", "correct", FAST),
        ("float64", 1e-12, FAST),
        ("float64", None, hg.Ozaki2()),
        ("float64", None, hg.Ozaki1(mode="dp")),
        ("float32", None, FAST),
        ("complex128", None, FAST),
        ("complex64", "correct", "auto"),
    ],
)
def test_what_rests_on_a_look_is_refused_before_it(dtype, accuracy, scheme):
    with pytest.raises(hg.PlanError, match="sync=False reads nothing back"):
        planned(Problem(1, 5, 6, 60, np.dtype(dtype)), accuracy, scheme)


def test_a_forced_count_that_is_judged_or_cut_is_refused():
    problem, scheme = Problem(1, 50, 60, 70, np.dtype("float64")), hg.Ozaki2(num_moduli=12, scaling="fast")
    check_unwaiting(planned(problem, None, scheme), DeviceEngine())
    with pytest.raises(hg.PlanError, match="rests on what is seen"):
        check_unwaiting(planned(problem, 1e-9, scheme), DeviceEngine())
    whole = planned(problem)
    with pytest.raises(hg.PlanError, match="larger workspace"):
        check_unwaiting(planned(problem, workspace=whole.workspace - 1), DeviceEngine())


def test_native_products_at_their_own_level_need_nothing(make_pair):
    a, b = make_pair("phi_1", 5, 6, 7)
    plan = planned(Problem(1, 5, 7, 6, a.dtype), None, "native")
    np.testing.assert_allclose(multiply(plan, a[None], b[None], NumpyEngine(), WORKSPACE).values[0], a @ b)
