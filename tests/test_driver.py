"""Blocks and escalation: what is computed again, what is not asked of, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.accuracy import NO_PROMISE, Target
from hifigemm.driver import multiply, watch, whole_split, with_decision
from hifigemm.engine import Certificate
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.numerics.bounds import native_bound
from hifigemm.plan import Outliers
from hifigemm.study.reference import correctly_rounded

TWO_SLICES = hg.Ozaki1(num_slices=2)
"""Not enough for 2**-40 beside 1 where both are multiplied by 1, and never escalated."""


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_nothing_is_asked_of_entries_that_are_filled_in(special):
    # Without its Inf or NaN, the product of the first row and column would be 2**-40, beyond two slices of 8 bits.
    a, b = np.array([[1.0, 2.0**-40, 3.0], [1.0, 1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(hg.AccuracyError, match="for 1 of 4 entries"):
        hg.matmul(a, b, scheme=TWO_SLICES, accuracy=1e-3)
    a[0, 2] = special
    c = hg.matmul(a, b, scheme=TWO_SLICES, accuracy=1e-3)
    np.testing.assert_array_equal(c, [[np.nan, special], [1.0, 2.0]])
    c = hg.matmul(b.T, a.T, scheme=TWO_SLICES, accuracy=1e-3)
    np.testing.assert_array_equal(c, [[np.nan, 1.0], [special, 2.0]])


@pytest.mark.parametrize(("product", "bits"), [("int8", 8), ("fp64", 26)])
@pytest.mark.parametrize("share", [1, 3])
def test_entries_are_escalated_on_their_rows_and_columns_and_counted_by_their_share(
    assert_same_bits, product, bits, share
):
    # One slice for all vectors but two rows and two columns, which take two: where they meet, three diagonals.
    a, b = np.ones((3, 4, 3)), np.ones((3, 3, 5))
    a[[0, 2], [1, 0], 1] = b[[0, 2], 1, 2] = 2.0 ** -(bits + 2)
    scheme = hg.Ozaki1(product, 2, "correct")
    workspace = hg.make_plan(a, b, scheme=scheme).workspace // share
    plan, engine = hg.make_plan(a, b, scheme=scheme, workspace=workspace), engine_for("numpy")
    outcome = multiply(plan, a, b, engine, workspace)
    assert_same_bits(outcome.values, correctly_rounded(a, b))
    assert outcome.notes == [f"2 entries escalated by Ozaki1(product='{product}', num_slices=4, mode='correct')"]
    assert outcome.bound == 0.0
    if share == 1:  # elsewhere, blocks of few slices take fewer products
        assert outcome.num_products == 3 + 4 * (2 * 2 * 1) / 60


@pytest.mark.parametrize("stacks", [(3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("scheme", ["ozaki1", "ozaki2", hg.Ozaki2(scaling="fast"), hg.Ozaki1("fp64", 1, "correct")])
def test_stacks_are_escalated_as_their_matrices_are(make_pair, assert_same_bits, workspaces, stacks, scheme):
    options = {"scheme": scheme, "accuracy": None if getattr(scheme, "mode", None) else 1e-17}
    pairs = [make_pair("phi_8", 4, 7, 5, seed=seed) for seed in range(3)]
    a, b = (np.stack([pair[side] for pair in pairs][: stacks[side]]) for side in range(2))
    a[0, 1:3] = 1.0  # rows and a matrix that are not escalated
    a[1:2] = 2.0
    want = np.stack([hg.matmul(a[z % len(a)], b[z % len(b)], **options) for z in range(3)])
    for workspace in (None, workspaces(a, b, **options)[2]):
        c, report = hg.matmul(a, b, workspace=workspace, return_report=True, **options)
        assert "escalated by" in report.reason or "accurate" not in str(scheme)
        assert_same_bits(c, want)


def test_blocks_are_told_one_after_the_other():
    a, b = np.ones((2, 9, 4)), np.ones((2, 4, 7))
    plan = hg.make_plan(a, b, scheme="ozaki1", workspace=20000)
    told = []
    token = watch.set(lambda plan, block: told.append((plan, block)))
    try:
        hg.matmul(a, b, scheme="ozaki1", workspace=20000)
    finally:
        watch.reset(token)
    assert len(told) > 4
    assert told == [(plan, block) for block in plan.blocks()]


class JudgingEngine(NumpyEngine):
    """Carries plans of words out at once, with a certificate of this bound."""

    def __init__(self, bound, scheme=None):
        self.certificate = None if bound is None else lambda: Certificate(scheme, bound, 5, 32)

    def certified_product(self, plan):
        return lambda a, b, shift, epilogue, out: (np.full((1, 2, 3), 7.0, np.float32), self.certificate)


@pytest.fixture
def ones():
    return np.ones((1, 2, 4), np.float32), np.ones((1, 4, 3), np.float32)


def test_a_verdict_is_enough_where_it_keeps_target_and_worst_case(ones):
    plan, worst = hg.make_plan(*ones, scheme=hg.Corrected()), native_bound(4, 2.0**-24)
    for target, limit in ((NO_PROMISE, worst), (Target(1e-3), worst), (Target(worst / 2), worst / 2)):
        found = multiply(replace(plan, target=target), *ones, JudgingEngine(limit), 2**28)
        assert (found.values == 7.0).all()
        assert (found.bound, found.num_products, found.notes, found.certificate) == (limit, 3, [], None)
        beyond = JudgingEngine(np.nextafter(limit, 1))
        if target.r > worst:
            found = multiply(replace(plan, target=target), *ones, beyond, 2**28)
            assert (found.values == 4.0).all()


def test_a_verdict_that_cannot_be_read_is_refused_but_for_choices(ones):
    plan = hg.make_plan(*ones, scheme=hg.Corrected())
    with pytest.raises(hg.PlanError, match="while a graph is captured"):
        multiply(plan, *ones, JudgingEngine(None), 2**28)
    worst = native_bound(4, 2.0**-24)
    choices = replace(plan, choices=(hg.Corrected(), hg.Native()), target=Target(1e-9), worst_case=worst)
    found = multiply(choices, *ones, JudgingEngine(None), 2**28)
    assert (found.bound, found.num_products, found.certificate) == (worst, 3, None)
    plan, outcome = with_decision(choices, found)
    assert plan.fallback
    assert outcome.notes == ["which of them is not known, as nothing is read back"]
    assert not with_decision(replace(choices, choices=(hg.Corrected(), hg.Corrected("tf32"))), found)[0].fallback


@pytest.mark.parametrize(
    ("scheme", "falls_back", "note"),
    [
        (hg.Corrected("tf32"), False, "TF32 words taken"),
        (hg.Native(), True, "FP32 sums outside the tensor cores taken, which over- and underflow as a library's"),
    ],
)
def test_plans_with_choices_say_which_was_taken(ones, scheme, falls_back, note):
    plan = replace(
        hg.make_plan(*ones, scheme=hg.Corrected()), choices=(hg.Corrected(), hg.Corrected("tf32"), hg.Native())
    )
    plan = replace(plan, target=Target(1e-9), worst_case=0.25)
    found = multiply(plan, *ones, JudgingEngine(0.125, scheme), 2**28)
    assert found.bound == 0.25
    plan, outcome = with_decision(plan, found)
    assert (plan.scheme, plan.choices, plan.fallback, plan.k_block) == (scheme, (), falls_back, 32)
    assert (outcome.bound, outcome.num_products, outcome.notes, outcome.certificate) == (0.125, 5, [note], None)


class WholeEngine(NumpyEngine):
    """Carries any plan out at once."""

    def whole_product(self, plan):
        return lambda a, b, shift, epilogue, splits, out: np.full((1, 2, 3), 7.0)


def test_whole_products_say_what_their_scheme_states(ones):
    plan = hg.make_plan(*ones, scheme=hg.Ozaki2(num_moduli=9, scaling="fast"))
    found = multiply(plan, *ones, WholeEngine(), 2**28)
    assert (found.bound, found.num_products, found.notes) == (np.inf, 9, [])
    wide = Outliers(6, 8, 4, 0, (0,), (1, 2))
    found = multiply(replace(plan, exact=True, outliers=wide), *ones, WholeEngine(), 2**28)
    assert (found.bound, found.notes) == (0.0, [str(wide)])
    assert found.num_products == 6 + 8 * (1 / 2 + 2 / 3) + 9 * (1 / 2) * (2 / 3)
    found = multiply(hg.make_plan(*ones, scheme="native"), *ones, WholeEngine(), 2**28)
    assert (found.bound, found.notes) == (native_bound(4, 2.0**-24), [])


def test_vectors_with_special_values_are_marked_in_a_whole_split():
    plan, engine = hg.make_plan(np.ones((3, 4)), np.ones((4, 2)), scheme="ozaki1"), engine_for("numpy")
    x = np.ones((1, 3, 4))
    assert "marked" not in whole_split(plan, x, "left", engine).facts
    x[0, 1, 2] = np.nan
    left = whole_split(plan, x, "left", engine)
    assert left.facts["marked"].tolist() == [[[False], [True], [False]]]
    right = whole_split(plan, np.swapaxes(x, 1, 2), "right", engine)
    assert right.facts["marked"].tolist() == [[[False, True, False]]]
    assert left.planes[0, 1].tolist() == [64, 64, 0, 64]


class CountingEngine(NumpyEngine):
    """Counts native products."""

    calls = 0

    def native_product(self, a, b):
        self.calls += 1
        return super().native_product(a, b)


def test_an_ordinary_native_product_is_made_once(ones):
    engine, plan = CountingEngine(), hg.make_plan(*ones, scheme="native")
    outcome = multiply(plan, *ones, engine, 2**28)
    assert (engine.calls, outcome.num_products, outcome.notes) == (1, 1, [])
    ones[0][0, 0, 0] = np.inf
    outcome = multiply(plan, *ones, engine, 2**28)
    assert (engine.calls, outcome.num_products) == (3, 1)
    assert (outcome.values[0, 0] == np.inf).all()


@pytest.mark.parametrize(("scaling", "joint", "apart"), [("accurate", 1, 0), ("fast", 0, 1)])
def test_operands_are_scaled_together_or_where_no_split_is_at_hand(monkeypatch, ones, scaling, joint, apart):
    plan = hg.make_plan(*ones, scheme=hg.Ozaki2(num_moduli=9, scaling=scaling))
    seen = []
    for name in ("scales", "joint_scales"):
        method = getattr(hg.Ozaki2, name)
        monkeypatch.setattr(hg.Ozaki2, name, lambda *args, method=method, name=name: seen.append(name) or method(*args))
    left = hg.prepare(ones[0][0], "left", plan=plan)
    seen.clear()
    hg.matmul(left, ones[1][0])
    assert (seen.count("joint_scales"), seen.count("scales")) == (joint, apart)
