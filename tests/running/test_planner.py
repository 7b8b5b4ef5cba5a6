"""Plans: from what was asked, what an engine offers and what was seen of the operands,
in blocks that fit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED, resolve
from hifigemm.model.engine import MemoryLimits
from hifigemm.model.plan import Blocking, Evidence, Outliers, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.error_ratio import largest_ratio
from hifigemm.numerics.residues import moduli_set
from hifigemm.running.planner import (
    DefaultWorkspace,
    check_strict,
    fitted,
    for_problem,
    reusable,
    with_evidence,
)
from tests.host_programs import ProgramEngine
from tests.planning import make

FAST = hg.Ozaki2(scaling="fast")
ENGINE = NumpyEngine()
PLENTY = 2**28


def problem(dtype="float64", m=30, n=20, k=50, batch=1):
    return Problem(batch, m, n, k, np.dtype(dtype))


def unread(scheme, target):
    pytest.fail("the operands are looked at")


def nothing(scheme, target):
    return None


def made(
    accuracy=None,
    scheme="auto",
    engine=ENGINE,
    look=nothing,
    states_bound=True,
    workspace=PLENTY,
    **sizes,
):
    return make(
        problem(**sizes), accuracy, scheme, engine, workspace, look, states_bound
    )


def test_what_was_forced_is_kept_beside_what_was_chosen():
    for scheme in (
        hg.Native(),
        hg.Ozaki1(),
        hg.Ozaki1(num_slices=3),
        hg.Corrected(),
        hg.Ozaki2(num_moduli=9),
    ):
        plan = made(scheme=scheme, dtype="float32", look=nothing)
        assert plan.asked == scheme
        assert type(plan.scheme) is type(scheme)
        assert plan.is_fixed is scheme.explicit
    for accuracy in (None, "fp64", 1e-20, "correct"):
        assert made(accuracy, look=nothing).asked is None


def test_a_forced_native_product_that_cannot_keep_the_accuracy_is_refused():
    assert made(None, hg.Native()).scheme == hg.Native()
    for accuracy in (1e-20, "correct", 0.0):
        with pytest.raises(hg.AccuracyError, match="errs by up to"):
            made(accuracy, hg.Native())
        assert made(accuracy, FAST, look=nothing).scheme.count > 2


def test_forced_counts_without_an_accuracy_promise_nothing_and_state_what_is_wanted():
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")
    for states_bound, target in ((True, NO_PROMISE), (False, NOTHING_STATED)):
        plan = made(None, scheme, look=nothing, states_bound=states_bound)
        assert plan.target == target
        assert plan.certifies is states_bound
        assert plan.verification is Verification.NONE
        for accuracy in (1e-6, "correct"):
            plan = made(accuracy, scheme, look=nothing, states_bound=states_bound)
            assert plan.certifies
            assert plan.target == resolve(accuracy, problem().fmt, 50)


def test_operands_are_looked_at_by_the_scheme_that_was_chosen_for_its_target():
    seen = []

    def look(scheme, target):
        seen.append((scheme, target))
        return Evidence(required_bits=(30, 20))

    plan = made(1e-20, FAST, look=look)
    assert seen == [(FAST, resolve(1e-20, problem().fmt, 50))]
    assert plan.evidence == Evidence(required_bits=(30, 20))
    assert (plan.verification, plan.bound) == (Verification.A_PRIORI, 0.0)


def test_nobody_looks_at_operands_of_native_products_or_where_the_device_decides():
    for accuracy in (None, "fp32", 1e-3):
        assert made(accuracy, look=unread).scheme == hg.Native()
    for accuracy in (None, "fp64", 1e-9):
        for scheme in ("auto", FAST):
            assert (
                made(accuracy, scheme, ProgramEngine(), unread).verification
                is Verification.ON_DEVICE
            )


def test_strict_mode_leaves_no_native_product_to_the_device():
    engine = ProgramEngine()
    with hg.strict():
        plan = made(None, "auto", engine, nothing)
    assert (plan.scheme.name, plan.verification, plan.alternatives) == (
        "ozaki2",
        Verification.ENTRYWISE,
        (),
    )
    assert plan.bound == plan.target.r


@pytest.mark.parametrize(
    ("accuracy", "refused"), [(None, True), ("fp64", True), (1e-9, False)]
)
def test_strict_mode_refuses_native_products_that_exceed_the_target(accuracy, refused):
    chosen, forced = made(accuracy), made(accuracy, hg.Native())
    check_strict(chosen)
    device = made(accuracy, "auto", ProgramEngine())
    with hg.strict():
        check_strict(forced)
        check_strict(device)  # it is not known yet what is taken
        check_strict(device, device.scheme)
        # and its over- and underflow
        with pytest.raises(hg.AccuracyError, match="would fall back to Native"):
            check_strict(device, hg.Native())
        if not refused:
            check_strict(chosen)
            return
        with pytest.raises(hg.AccuracyError) as caught:
            check_strict(chosen)
    text = str(caught.value)
    assert f" u = {chosen.bound:.3g} |A||B|; " in text
    assert f"for {chosen.target} would fall back to Native(product=None)" in text
    assert len(text.split()) < 45


class CutProgram:
    """A program that takes a kilobyte for each entry."""

    def in_halves(self, batch, rows, cols):
        return False

    def nbytes(self, batch, rows, cols):
        return 1000 * batch * rows * cols


class CutEngine(NumpyEngine):
    """Has programs, whatever the blocks."""

    def lowering(self, plan):
        return CutProgram()


@pytest.mark.parametrize(
    ("workspace", "shape"),
    [
        (10**6, (3, 16, 20)),
        (960_000, (3, 16, 20)),
        (959_999, (2, 16, 20)),
        (320_000, (1, 16, 20)),
        (319_999, (1, 16, 10)),
        (1000, (1, 1, 1)),
    ],
)
def test_blocks_are_the_largest_that_fit_and_stacks_are_cut_first(workspace, shape):
    plan = hg.Ozaki1(num_slices=3).plan(
        problem(batch=3, m=16), NO_PROMISE, ENGINE, None, None
    )
    found = fitted(plan, workspace, CutEngine())
    assert found.block_shape == shape
    assert found.workspace == 1000 * np.prod(shape) <= workspace
    assert replace(found, blocking=Blocking()) == plan


def test_plans_in_steps_are_cut_by_the_bytes_of_their_scheme():
    engine, scheme = CutEngine(), hg.Ozaki1(num_slices=3)
    plan = scheme.plan(problem(), NO_PROMISE, engine, None, None)
    for limit in (PLENTY, 50_000):
        found = fitted(plan, limit, engine, in_steps=True)
        assert found == fitted(plan, limit, ENGINE)
        assert (
            found.workspace
            == scheme.nbytes(found, *found.block_shape)
            != 1000 * np.prod(found.block_shape)
        )


def test_an_entry_that_does_not_fit_is_refused_where_the_limit_was_asked_for():
    plan = hg.Ozaki1(num_slices=3).plan(problem(), NO_PROMISE, ENGINE, None, None)
    with pytest.raises(
        hg.PlanError,
        match=r"workspace of 999 bytes is too small: one entry of .* takes 1000",
    ):
        fitted(plan, 999, CutEngine())
    assert fitted(plan, DefaultWorkspace(999), CutEngine()).block_shape == (1, 1, 1)


def test_empty_problems_take_no_workspace():
    for sizes in ({"m": 0}, {"n": 0}, {"k": 0}, {"batch": 0}):
        plan = fitted(
            hg.Ozaki1(num_slices=3).plan(
                problem(**sizes), NO_PROMISE, ENGINE, None, None
            ),
            1,
            ENGINE,
        )
        p = plan.problem
        assert (plan.workspace, plan.block_shape) == (0, (p.batch, p.m, p.n))


def test_blocks_of_rounded_sums_do_not_follow_the_free_memory():
    held = DefaultWorkspace(PLENTY, 20_000)
    words, slices = (
        s.plan(problem("float32"), NO_PROMISE, ENGINE, None, s)
        for s in (hg.Corrected(), hg.Ozaki1(num_slices=3))
    )
    assert fitted(words, held, ENGINE).is_whole
    assert not fitted(slices, held, ENGINE).is_whole


def test_entries_that_are_worked_on_at_a_time_fit_in_a_small_workspace():
    class LargeEngine(NumpyEngine):
        memory = MemoryLimits(block_entries=2**20)

    plan = hg.Ozaki1(num_slices=3).plan(problem(), NO_PROMISE, ENGINE, None, None)
    for workspace, engine, entries in (
        (PLENTY, ENGINE, 2**14),
        (PLENTY, LargeEngine(), 2**18),
        (2**20, ENGINE, 2**10),
    ):
        assert fitted(plan, workspace, engine).blocking.entries == entries


def test_evidence_of_a_larger_ratio_gives_as_many_moduli_as_it_asks_for():
    for accuracy in (1e-17, 1e-25):
        for scheme in ("auto", FAST):
            first = made(accuracy, scheme, ProgramEngine(), nothing)
            enough = largest_ratio(
                50, accuracy, moduli_set(first.scheme.count, False).half_range
            )
            plan = with_evidence(
                first, Evidence(error_ratio=64 * enough), ENGINE, PLENTY
            )
            assert (plan.asked, plan.target) == (first.asked, first.target)
            if scheme == "auto":  # an engine that has no programs
                assert plan.scheme == hg.DoubleDouble()
                plan = with_evidence(
                    first, Evidence(error_ratio=64 * enough), ProgramEngine(), PLENTY
                )
            assert plan.scheme.count > first.scheme.count
            assert (plan.verification, plan.bound) == (Verification.A_PRIORI, accuracy)
            hopeless = with_evidence(
                first, Evidence(error_ratio=np.inf), ProgramEngine(), PLENTY
            )
            if scheme == FAST:
                taken = first.scheme, Verification.ENTRYWISE
            else:
                taken = hg.DoubleDouble(), Verification.A_PRIORI
            assert (hopeless.scheme, hopeless.verification) == taken


def test_a_plan_that_may_be_passed_on_promises_nothing_by_what_was_seen():
    wide = Outliers(6, 8, 4, 0, (0,), (1, 2))
    for evidence in (
        Evidence(required_bits=(30, 30), outliers=wide),
        Evidence(required_bits=(90, 1)),
        Evidence(error_ratio=1e6),
        Evidence(num_slices=(4, True)),
    ):
        first = made(1e-20, FAST, look=lambda *args, evidence=evidence: evidence)
        plan = reusable(first, ENGINE, PLENTY)
        assert (plan.scheme, plan.verification, plan.bound) == (
            first.scheme,
            Verification.ENTRYWISE,
            1e-20,
        )
        assert plan.certifies
        # for the balance
        kept = (
            Evidence(required_bits=(90, 1))
            if evidence.required_bits == (90, 1)
            else None
        )
        assert plan.evidence == kept
        assert reusable(plan, ENGINE, PLENTY) == plan
    for plan in (made(), made("correct"), made(None, hg.Ozaki1(num_slices=3))):
        assert reusable(plan, ENGINE, PLENTY) is plan


@pytest.mark.parametrize(
    "scheme", [hg.Native(), hg.Ozaki1(num_slices=3), FAST, hg.Corrected()], ids=str
)
def test_plans_serve_problems_of_the_same_k_and_dtype(scheme):
    given = made(
        None,
        scheme,
        look=nothing,
        dtype="float32" if scheme.name == "corrected" else "float64",
    )
    other = replace(given.problem, batch=3, m=7, n=300)
    plan = for_problem(given, other, ENGINE, PLENTY, True)
    assert plan == make(other, None, scheme, ENGINE, PLENTY, nothing)
    assert (
        for_problem(given, given.problem, ENGINE, DefaultWorkspace(PLENTY), True)
        == given
    )


def test_chosen_native_plans_serve_other_problems_as_if_they_were_made_for_them():
    for dtype, accuracy in (
        ("float64", None),
        ("float64", 1e-9),
        ("float32", None),
        ("float32", 1e-12),
    ):
        given = made(accuracy, dtype=dtype, k=5000)
        other = replace(given.problem, batch=3, m=7, n=300)
        assert given.scheme.name == "native"
        assert for_problem(given, other, ENGINE, PLENTY, True) == make(
            other, accuracy, "auto", ENGINE, PLENTY, unread
        )


def test_a_plan_states_no_bound_where_no_report_is_asked_for():
    given = made(None, hg.Ozaki1(num_slices=3))
    assert given.target == NO_PROMISE
    assert (
        for_problem(given, given.problem, ENGINE, PLENTY, False).target
        == NOTHING_STATED
    )
    promising = made(1e-6, hg.Ozaki1(num_slices=3))
    assert (
        for_problem(promising, promising.problem, ENGINE, PLENTY, False).target
        == promising.target
    )


def test_a_plan_for_a_device_certifies_its_entries_where_nothing_chooses():
    given = made(None, "auto", ProgramEngine())
    plan = for_problem(given, given.problem, ENGINE, PLENTY, True)
    assert (plan.scheme, plan.alternatives) == (given.scheme, ())
    assert (plan.verification, plan.bound, plan.certifies) == (
        Verification.ENTRYWISE,
        plan.target.r,
        True,
    )
    assert (
        for_problem(
            given, given.problem, ProgramEngine(), DefaultWorkspace(PLENTY), True
        )
        is given
    )


def test_blocks_cover_the_result_in_order():
    plan = replace(made(batch=2, m=5, n=3), blocking=Blocking((1, 2, 2)))
    blocks = list(plan.blocks())
    counts = np.zeros((2, 5, 3), int)
    for block in blocks:
        counts[block.entries] += 1
    assert (counts == 1).all()
    assert len(blocks) == 2 * 3 * 2
    assert [block.cols for block in blocks[:4]] == [slice(0, 2)] * 3 + [slice(2, 3)]


def test_plans_print_how_their_bound_is_verified():
    for plan, text in (
        (
            made(),
            "the bound holds without a look at the result; entries that may over-",
        ),
        (made(1e-20, hg.Ozaki2()), "entries are certified"),
        (made(None, hg.Ozaki1(num_slices=3)), "nothing is promised"),
        (made(None, "auto", ProgramEngine()), "the device chooses"),
        (
            made(1e-20, FAST, look=lambda *args: Evidence(required_bits=(30, 20))),
            "the bound holds",
        ),
    ):
        assert f"  verified   {text}" in str(plan)
        assert str(plan).count(", else ") == len(plan.alternatives)
