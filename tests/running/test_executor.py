"""Programs and steps, blocks and escalation: what is computed again, what is not asked
of, and what is said of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.engine import Lowering
from hifigemm.model.executable import Outcome, RecordedDecision, certify
from hifigemm.model.plan import Evidence, Verification
from hifigemm.model.problem import Problem
from hifigemm.running.executor import execute, split_of, usable_split
from hifigemm.running.planner import with_evidence
from hifigemm.testing.reference import correctly_rounded, meets_promise
from tests.host_programs import ProgramEngine
from tests.planning import make

FAST = hg.Ozaki2(scaling="fast")
TWO_SLICES = hg.Ozaki1(num_slices=2)
"""Not enough for 2**-40 beside 1 where both are multiplied by 1, and never
escalated.
"""


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_nothing_is_asked_of_entries_that_are_filled_in(special):
    # Without its Inf or NaN, the product of the first row and column would be 2**-40,
    # beyond two slices of 8 bits.
    a = np.array([[1.0, 2.0**-40, 3.0], [1.0, 1.0, 1.0]])
    b = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(hg.AccuracyError, match="in 1 of 4 entries"):
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
    # One slice for all vectors but two rows and two columns, which take two: where they
    # meet, three diagonals.
    a, b = np.ones((3, 4, 3)), np.ones((3, 3, 5))
    a[[0, 2], [1, 0], 1] = b[[0, 2], 1, 2] = 2.0 ** -(bits + 2)
    scheme = hg.Ozaki1(product, 2, "correct")
    workspace = hg.make_plan(a, b, scheme=scheme).workspace // share
    plan = hg.make_plan(a, b, scheme=scheme, workspace=workspace)
    engine = engine_for("numpy")
    done, outcome = execute(plan, a, b, engine, workspace)
    assert done is plan
    assert_same_bits(outcome.values, correctly_rounded(a, b))
    escalated = hg.Ozaki1(product, 4, "correct")
    assert outcome.notes == (f"2 entries escalated by {escalated}",)
    assert outcome.bound == 0.0
    if share == 1:  # elsewhere, blocks of few slices take fewer products
        assert outcome.num_products == 3 + 4 * (2 * 2 * 1) / 60


@pytest.mark.parametrize("stacks", [(3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize(
    "scheme",
    ["ozaki1", "ozaki2", hg.Ozaki2(scaling="fast"), hg.Ozaki1("fp64", 1, "correct")],
)
def test_stacks_are_escalated_as_their_matrices_are(
    make_pair, assert_same_bits, workspaces, stacks, scheme
):
    options = {
        "scheme": scheme,
        "accuracy": None if getattr(scheme, "mode", None) else 1e-17,
    }
    pairs = [make_pair("phi_8", 4, 7, 5, seed=seed) for seed in range(3)]
    a, b = (
        np.stack([pair[side] for pair in pairs][: stacks[side]]) for side in range(2)
    )
    a[0, 1:3] = 1.0  # rows and a matrix that are not escalated
    a[1:2] = 2.0
    want = np.stack(
        [hg.matmul(a[z % len(a)], b[z % len(b)], **options) for z in range(3)]
    )
    for workspace in (None, workspaces(a, b, **options)[2]):
        c, report = hg.matmul(a, b, workspace=workspace, return_report=True, **options)
        assert "escalated by" in report.reason or "accurate" not in str(scheme)
        assert_same_bits(c, want)


class CertainEngine(NumpyEngine):
    """Carries any plan out at once and is asked what it found; what it runs is
    noted.
    """

    def __init__(self, *found):
        self.found, self.ran, self.read = list(found), [], 0

    def lowering(self, plan):
        return CertainLowering(self, plan) if self.found else None


class CertainLowering(Lowering):
    """7 in every entry, with the next certificate of the engine."""

    def __init__(self, engine, plan):
        self.engine, self.plan = engine, plan

    def in_halves(self, batch, rows, cols):
        return False

    def nbytes(self, batch, rows, cols):
        return 10 * batch * rows * cols

    def lower(self, signature):
        return self.multiply

    def multiply(self, a, b, out=None, c=None, alpha=1.0, beta=0.0, splits=None):
        self.engine.ran.append(self.plan)
        found = self.engine.found.pop(0)

        def told():
            self.engine.read += 1
            return found

        p = self.plan.problem
        values = np.full(p.shape, 7.0, p.dtype)
        outcome = Outcome(
            values,
            self.plan.bound,
            self.plan.num_products,
            decision=None if found is None else told,
        )
        return certify(outcome, self.plan)


@pytest.fixture
def ones():
    return np.ones((1, 2, 4), np.float32), np.ones((1, 4, 3), np.float32)


def certificate(holds, bound, evidence=None, scheme=None):
    return RecordedDecision(holds, scheme or hg.Corrected(), bound, 5, 32, evidence)


@pytest.mark.parametrize(
    "verification", [Verification.NONE, Verification.A_PRIORI, Verification.ON_DEVICE]
)
def test_nothing_is_read_unless_entries_are_to_be_certified(ones, verification):
    plan = replace(
        hg.make_plan(*ones, scheme=hg.Corrected()), verification=verification
    )
    for found in (None, certificate(True, 0.25), certificate(False, np.inf)):
        engine = CertainEngine(found)
        done, outcome = execute(plan, *ones, engine, 2**28)
        assert done is plan
        assert (outcome.values == 7.0).all()
        assert (outcome.bound, outcome.num_products, outcome.notes) == (
            plan.bound,
            plan.num_products,
            (),
        )
        assert engine.read == 0
        assert (outcome.decision is None) == (found is None)


def test_a_program_that_certifies_all_entries_is_enough(ones):
    plan = hg.make_plan(*ones, scheme=hg.Corrected(), accuracy=1e-3)
    engine = CertainEngine(certificate(True, 1e-5))
    done, outcome = execute(plan, *ones, engine, 2**28)
    assert (done, engine.ran, engine.read) == (plan, [plan], 1)
    assert (outcome.values == 7.0).all()
    assert outcome.bound == 1e-5
    # whatever is carried out keeps the bound
    done, outcome = execute(plan, *ones, CertainEngine(None), 2**28)
    assert (outcome.values == 7.0).all()
    assert outcome.bound == plan.bound


def test_a_program_that_certifies_nothing_is_followed_by_steps(ones):
    plan = hg.make_plan(*ones, scheme=hg.Corrected(), accuracy=1e-3)
    done, outcome = execute(
        plan, *ones, CertainEngine(certificate(False, np.inf)), 2**28
    )
    assert (outcome.values == 4.0).all()
    assert outcome.bound <= 1e-3
    assert replace(done, blocking=plan.blocking) == plan
    assert done.workspace == plan.scheme.nbytes(done, *done.block_shape)


def test_evidence_that_a_program_leaves_makes_a_finer_plan():
    a, b = np.ones((1, 2, 4)), np.ones((1, 4, 3))
    first = make(
        Problem(1, 2, 3, 4, a.dtype),
        1e-17,
        FAST,
        ProgramEngine(),
        2**28,
        lambda *args: None,
    )
    evidence = Evidence(error_ratio=2.0**20)
    engine = CertainEngine(
        certificate(False, np.inf, evidence), certificate(True, 1e-18), None
    )
    done, outcome = execute(first, a, b, engine, 2**28)
    finer = with_evidence(first, evidence, engine, 2**28)
    assert done == finer != first
    assert done.scheme.count > first.scheme.count
    assert engine.ran == [first, finer]
    assert engine.read == 1  # the finer plan is known to be enough
    assert outcome.bound == 1e-17
    assert (outcome.values == 7.0).all()


@pytest.mark.parametrize(
    "family", ["phi_4", "phi_8", "cancelling", "single_nonzero", "zeros"]
)
@pytest.mark.parametrize("accuracy", [1e-17, 1e-20])
def test_programs_finer_plans_and_steps_keep_what_was_asked(
    make_pair, family, accuracy
):
    a, b = make_pair(family, 12, 60, 9)
    engine = ProgramEngine()
    plan = make(
        Problem(1, 12, 9, 60, a.dtype),
        accuracy,
        FAST,
        engine,
        2**28,
        lambda *args: None,
    )
    _, outcome = execute(plan, a[None], b[None], engine, 2**28)
    assert engine.done[0] == plan
    assert len(engine.done) <= 2
    assert outcome.bound <= accuracy
    assert meets_promise(outcome.values[0], a, b, outcome.bound).all()


def test_inf_and_nan_of_prepared_operands_count_as_zeros():
    plan = hg.make_plan(np.ones((3, 4)), np.ones((4, 2)), scheme="ozaki1")
    x = np.ones((1, 3, 4))
    x[0, 1, 2] = np.nan
    left = split_of(plan, x, "left", engine_for("numpy"))
    assert left.planes[0, 1].tolist() == [64, 64, 0, 64]


class CountingEngine(NumpyEngine):
    """Counts native products."""

    calls = 0

    def native_product(self, a, b):
        self.calls += 1
        return super().native_product(a, b)


def test_an_ordinary_native_product_is_made_once(ones):
    engine, plan = CountingEngine(), hg.make_plan(*ones, scheme="native")
    _, outcome = execute(plan, *ones, engine, 2**28)
    assert (engine.calls, outcome.num_products, outcome.notes) == (1, 1, ())
    ones[0][0, 0, 0] = np.inf
    _, outcome = execute(plan, *ones, engine, 2**28)
    assert (engine.calls, outcome.num_products) == (3, 1)
    assert (outcome.values[0, 0] == np.inf).all()


@pytest.mark.parametrize(
    ("scaling", "left_is_read"), [("accurate", True), ("fast", False)]
)
def test_operands_are_scaled_together_or_where_no_split_is_at_hand(
    monkeypatch, ones, scaling, left_is_read
):
    plan = hg.make_plan(*ones, scheme=hg.Ozaki2(num_moduli=9, scaling=scaling))
    left = hg.prepare(ones[0][0], "left", plan=plan)
    seen, scales = [], hg.Ozaki2.scales

    def watched(self, plan, a, b, engine):
        seen.append((a is not None, b is not None))
        return scales(self, plan, a, b, engine)

    monkeypatch.setattr(hg.Ozaki2, "scales", watched)
    hg.matmul(left, ones[1][0])
    assert seen == [(left_is_read, True)]


def test_steps_that_are_refused_leave_out_as_it_was():
    a = np.array([[[1.0, 2.0**-40]]])
    b = np.array([[[0.0], [1.0]]])
    engine = engine_for("numpy")
    out = np.full((1, 1, 1), 7.0)
    plan = hg.make_plan(a[0], b[0], scheme=TWO_SLICES, accuracy=1e-3)
    with pytest.raises(hg.AccuracyError, match="does not meet"):
        execute(plan, a, b, engine, 2**28, out=out)
    assert out == 7.0
    # Without a promise there is no refusal, and no copy.
    plan = hg.make_plan(a[0], b[0], scheme=TWO_SLICES)
    _, outcome = execute(plan, a, b, engine, 2**28, out=out)
    assert outcome.values is out
    assert out == 0.0


def test_splits_are_used_where_the_plan_and_the_layout_are_theirs():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    scheme = hg.Ozaki2(num_moduli=6, scaling="fast")
    plan = hg.make_plan(a, b, scheme=scheme)
    left = hg.prepare(a, "left", scheme=scheme)
    usable = partial(usable_split, left, "left")
    assert usable((1, 3, 4), plan, None) is left.split
    assert usable((1, 5, 4), plan, None) is None
    assert usable((2, 3, 4), plan, None) is None
    other = hg.make_plan(a, b, scheme=hg.Ozaki2(num_moduli=7, scaling="fast"))
    assert usable((1, 3, 4), other, None) is None
    assert usable_split(b, "right", (1, 4, 2), plan, None) is None

    # A lowering says by itself what it takes.
    for takes in (True, False):
        lowering = SimpleNamespace(takes=lambda split, side, takes=takes: takes)
        expected = left.split if takes else None
        assert usable((1, 3, 4), other, lowering) is expected
