"""Programs of a GPU: one for each layout, written once; repeated calls; records,
captures.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda import lowering as module
from hifigemm.engines.cuda.lowering import CudaLowering, blocks_of
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.model.executable import (
    Outcome,
    RecordedDecision,
    Refusal,
    Signature,
)
from hifigemm.model.plan import Blocking, Outliers, Verification
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine
from hifigemm.running.executor import execute
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import DEVICE, arrays, lowered, on_host, planned

FIXED = hg.Ozaki2(num_moduli=3, scaling="fast")
FAST = hg.Ozaki2(scaling="fast")
TIGHT = 2.0**-53
NOTHING = (None, None)
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


@pytest.fixture
def writes(monkeypatch):
    """Shapes of the arguments for which launches are recorded from here on."""
    found, own = [], CudaLowering.recorded

    def recorded(self, plan, arguments, **options):
        found.append([None if x is None else tuple(x.shape) for x in arguments[:8]])
        return own(self, plan, arguments, **options)

    monkeypatch.setattr(CudaLowering, "recorded", recorded)
    return found


def run(plan, x, y, engine, shift=0, epilogue=PLAIN, out=None):
    return execute(plan, x, y, engine, 2**28, shift, epilogue, out=out)[1]


def test_launches_are_recorded_once_for_each_layout(engine, writes):
    a, b = operands()
    x, y = arrays(a, b)
    plan = planned(FIXED, a, b, engine)
    writes.clear()
    for seed in range(3):
        x, y = arrays(*operands(seed=seed))
        np.testing.assert_array_equal(
            on_host(run(plan, x, y, engine).values),
            hg.matmul(*operands(seed=seed), scheme=FIXED),
        )
    shapes = [(1, 4, 9), (1, 9, 5), (1, 4, 5), *[None] * 5]
    assert writes == [shapes]
    transposed = np.swapaxes(arrays(np.swapaxes(a, 1, 2))[0], 1, 2)
    odd = wrap(torch.zeros(37, dtype=torch.float64, device=DEVICE)[1:].view(1, 4, 9))
    c, out = arrays(np.ones((1, 4, 5)), np.zeros((1, 5, 4)))
    calls = [
        lambda: run(plan, transposed, y, engine),
        lambda: run(plan, odd, y, engine),
        lambda: run(plan, x, y, engine, shift=3),
        lambda: run(plan, x, y, engine, epilogue=Epilogue(0.5, 0.0, None)),
        lambda: run(plan, x, y, engine, epilogue=Epilogue(0.5, 2.0, c)),
        lambda: run(plan, x, y, engine, out=np.swapaxes(out, 1, 2)),
        lambda: run(replace(plan, blocking=Blocking((1, 2, 5))), x, y, engine),
    ]
    for i, call in enumerate(calls):
        call()
        call()
        assert len(writes) == i + 2


def test_scalars_are_those_of_the_call(engine, writes, assert_same_bits):
    a, b = operands()
    (x, y, c), plan = arrays(a, b, np.ones((1, 4, 5))), planned(FIXED, a, b, engine)
    writes.clear()
    for alpha, beta in ((1.5, 0.5), (1.5, -0.5), (0.25, 0.5)):
        found = run(plan, x, y, engine, epilogue=Epilogue(alpha, beta, c)).values
        assert_same_bits(
            on_host(found),
            hg.gemm(a, b, on_host(c), alpha=alpha, beta=beta, scheme=FIXED),
        )
    assert len(writes) == 1  # one list for all of them


def test_sizes_of_a_workspace_are_found_once(engine, writes):
    a, b = operands()
    lowering = engine.lowering(planned(FIXED, a, b, engine))
    writes.clear()
    blocks = (1, 2, 3), (1, 2, 3), (1, 4, 5)
    sizes = [lowering.nbytes(*block) for block in blocks]
    assert len(writes) == 2
    assert sizes[0] == sizes[1] <= sizes[2]
    assert writes[0] == [(1, 2, 9), (1, 9, 3), (1, 2, 3), *[None] * 5]


def test_blocks_clear_what_those_before_them_used(engine):
    a, b = operands(batch=2)
    plan = replace(planned(FIXED, a, b, engine), blocking=Blocking((1, 3, 5)))
    calls = []
    out = SimpleNamespace(
        launches=SimpleNamespace(reuse_zeros=lambda: calls.append("zeros"))
    )
    for block in blocks_of(plan, out):
        calls.append((block.batch.start, block.rows.start))
    assert calls == [(0, 0), "zeros", (0, 3), "zeros", (1, 0), "zeros", (1, 3)]


def again_of(plan, engine, a, b, shape, out=None, **ending):
    """The executable of such operands; behind a look at them where the plan rests on
    evidence.
    """
    x, y = arrays(a, b)
    lowering = engine.lowering(plan)
    executable = lowered(lowering, x, y, shape, out, **ending)
    if plan.evidence is None:
        return executable
    return lowering.inspecting(Signature(x, y, shape, out, **ending), executable)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("scheme", [FIXED, hg.Ozaki1(num_slices=2), FAST], ids=str)
def test_repeated_products_are_those_of_the_plan(
    scheme, given, engine, writes, assert_same_bits
):
    a, b = operands()
    plan = planned(scheme, a, b, engine)
    like = arrays(np.zeros((1, 4, 5)))[0] if given else None
    again = again_of(plan, engine, a, b, (4, 5), like)
    writes.clear()
    for seed in range(2):
        u, v = operands(seed=seed)
        want = on_host(run(plan, *arrays(u, v), engine).values)
        out = (
            torch.full((1, 4, 5), 3.0, dtype=torch.float64, device=DEVICE)
            if given
            else None
        )
        found = again(*(unwrap(z) for z in arrays(u, v)), out).values
        assert found is out or not given
        assert found.shape == ((1, 4, 5) if given else (4, 5))
        assert_same_bits(on_host(found).reshape(1, 4, 5), want)
    assert writes == []


@pytest.mark.parametrize("has_c", [False, True])
@pytest.mark.parametrize("scheme", [FIXED, hg.Ozaki1(num_slices=2), FAST], ids=str)
def test_repeated_products_take_scalars_and_an_addend(
    scheme, has_c, engine, writes, assert_same_bits
):
    a, b = operands()
    plan = planned(scheme, a, b, engine)
    (c,) = arrays(np.ones((1, 4, 5)))
    epilogue = Epilogue(1.5, 0.5, c) if has_c else Epilogue(1.5)
    again = again_of(plan, engine, a, b, (4, 5), shift=3, epilogue=epilogue)
    writes.clear()
    rng = np.random.default_rng(7)
    for alpha, beta in ((1.25, -0.5), (-1.0, 1.0)):
        u, v = operands(seed=3)
        addend = rng.standard_normal((1, 4, 5)) if has_c else None
        beta = beta if has_c else 0.0
        t = on_host(run(plan, *arrays(u, v), engine, shift=3).values)
        want = combine(t, alpha, addend, beta)
        third = None if addend is None else unwrap(arrays(addend)[0])[0]
        tensors = [unwrap(z) for z in arrays(u, v)]
        found = again(*tensors, None, third, alpha, beta).values
        assert_same_bits(on_host(found).reshape(1, 4, 5), want)
        if third is not None:  # which may be the target, too
            out = torch.full((5, 4), 3.0, dtype=torch.float64, device=DEVICE).mT
            found = again(*tensors, out, third, alpha, beta).values
            assert_same_bits(on_host(found)[None], want)
            found = again(*tensors, third, third, alpha, beta).values
            assert_same_bits(on_host(found)[None], want)
    assert len(writes) <= 1  # no more than that of T, which the steps above take


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("scheme", [FIXED, hg.Ozaki1(num_slices=2)], ids=str)
def test_multiples_are_repeated_in_a_result_that_is_given(
    scheme, is_plain, engine, assert_same_bits
):
    """alpha A B in `out`."""
    a, b = operands()
    x, y, out = arrays(a, b, np.zeros((1, 4, 5)))
    if not is_plain:
        (out,) = (np.swapaxes(z, 1, 2) for z in arrays(np.zeros((1, 5, 4))))
    plan = planned(scheme, a, b, engine)
    again = again_of(plan, engine, a, b, (1, 4, 5), out, epilogue=Epilogue(1.5))
    t = on_host(run(plan, x, y, engine).values)
    target = unwrap(out)
    found = again(unwrap(x), unwrap(y), target, None, -1.25).values
    # Other layouts than the kernels write to are copied there later.
    assert (found is target) == (is_plain or scheme == FIXED)
    assert_same_bits(on_host(found), combine(t, -1.25, None, 0.0))


def test_scalars_far_from_1_are_applied_behind_the_launches(engine, assert_same_bits):
    a, b = operands()
    x, y, c = arrays(a, b, np.ones((1, 4, 5)))
    plan = planned(FIXED, a, b, engine)
    t = on_host(run(plan, x, y, engine).values)
    for alpha, beta in ((1.0, 2.0**40), (2.0**40, 1.0)):
        epilogue = Epilogue(alpha, beta, c)
        again = again_of(plan, engine, a, b, (4, 5), epilogue=epilogue)
        third = unwrap(c)[0]
        found = again(unwrap(x), unwrap(y), None, third, alpha, beta).values
        want = combine(t, alpha, np.ones((1, 4, 5)), beta)
        assert_same_bits(on_host(found)[None], want)


def test_an_outcome_says_what_was_done(engine):
    a, b = operands()
    x, y = arrays(a, b)
    plan = planned(FIXED, a, b, engine)
    outcome = again_of(plan, engine, a, b, (4, 5))(unwrap(x), unwrap(y))
    assert outcome.bound == plan.bound
    assert outcome.num_products == plan.num_products
    np.testing.assert_array_equal(
        on_host(outcome.values), on_host(run(plan, x, y, engine).values)[0]
    )


def test_a_result_that_is_written_counts_as_changed(engine):
    a, b = operands()
    out = torch.empty((1, 4, 5), dtype=torch.float64, device=DEVICE)
    again = again_of(planned(FIXED, a, b, engine), engine, a, b, (1, 4, 5), wrap(out))
    x, y = (unwrap(z) for z in arrays(a, b))
    before = out._version
    again(x, y, out)
    assert out._version == before + 1
    with torch.inference_mode():
        again(x, y, torch.empty((1, 4, 5), dtype=torch.float64, device=DEVICE))


def test_a_certified_plan_is_repeated_as_long_as_its_record_says_so(
    engine, assert_same_bits
):
    a, b = operands()
    plan = planned(FAST, a, b, engine, TIGHT)
    assert plan.certifies
    again = again_of(plan, engine, a, b, (1, 4, 5))
    x, y = (unwrap(z) for z in arrays(a, b))
    want = on_host(run(plan, wrap(x), wrap(y), engine).values)
    assert_same_bits(on_host(again(x, y).values), want)
    fading = torch.logspace(0, -200, 9, dtype=torch.float64, device=DEVICE)
    hard = x.clone()
    hard[0, 0] *= fading
    refusal = again(hard, y * fading.flip(0)[:, None])
    assert isinstance(refusal, Refusal)
    assert refusal.evidence is not None
    assert isinstance(again(x, y), Outcome)


def test_out_is_as_before_where_a_certificate_does_not_hold(engine):
    a, b = operands()
    plan = planned(FAST, a, b, engine, TIGHT)
    assert plan.certifies
    x, y, given = arrays(a, b, np.full((1, 4, 5), 7.0))
    fading = torch.logspace(0, -200, 9, dtype=torch.float64, device=DEVICE)
    hard = unwrap(x).clone()
    hard[0, 0] *= fading
    out = unwrap(given)
    again = again_of(plan, engine, a, b, (1, 4, 5), given)
    refusal = again(hard, unwrap(y) * fading.flip(0)[:, None], out)
    assert isinstance(refusal, Refusal)
    assert bool((out == 7.0).all())


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Ozaki1(num_slices=2),
        hg.Ozaki2(num_moduli=4, scaling="fast"),
        hg.Ozaki2(num_moduli=4),
    ],
    ids=str,
)
def test_out_and_c_are_as_before_where_no_count_keeps_a_number(as_on_gpu, scheme):
    hard = torch.logspace(0, -30, 16, dtype=torch.float64, device=DEVICE).view(4, 4)
    options = {"scheme": scheme, "accuracy": 1e-15}
    given = torch.full_like(hard, 7.0)
    for _ in range(2):
        with pytest.raises(hg.AccuracyError):
            hg.matmul(hard, hard.mT.contiguous(), out=given, **options)
        with pytest.raises(hg.AccuracyError):
            hg.gemm(
                hard,
                hard.mT.contiguous(),
                given,
                alpha=1.5,
                beta=0.75,
                out=given,
                **options,
            )
        assert bool((given == 7.0).all())


def test_out_is_as_before_where_words_lose_too_much(as_on_gpu):
    hard = torch.logspace(0, -30, 16, device=DEVICE).view(4, 4)
    given = torch.full_like(hard, 7.0)
    options = {"scheme": "corrected", "accuracy": 1e-6}
    for _ in range(2):
        with pytest.raises(hg.AccuracyError, match="does not meet"):
            hg.matmul(hard, hard.mT.contiguous(), out=given, **options)
        assert bool((given == 7.0).all())
        easy = torch.ones_like(hard)
        hg.matmul(easy, easy, out=given, **options)
        assert bool((given == 4.0).all())
        given.fill_(7.0)


def test_a_plan_that_rests_on_bits_is_repeated_for_operands_that_require_as_many(
    engine, assert_same_bits
):
    rng = np.random.default_rng(1)
    first, second = (
        [rng.integers(-(2**w), 2**w, s) * 1.0 for s in ((1, 4, 9), (1, 9, 5))]
        for w in (3, 20)
    )
    plans = [
        planned(FAST, *arrays(*pair), engine, "correct") for pair in (first, second)
    ]
    assert plans[0].evidence != plans[1].evidence
    again = again_of(plans[0], engine, *first, (1, 4, 5))
    for pair in (first, second, first):
        found = again(*(unwrap(z) for z in arrays(*pair)))
        assert (found is module.UNSEEN) == (pair is second)
    # Each kind of operands is kept beside the others.
    later = again_of(plans[1], engine, *second, (1, 4, 5))
    for each in (again, later):
        for a, b in (first, second):
            found = each(*(unwrap(z) for z in arrays(a, b)))
            assert_same_bits(on_host(found.values), a @ b)


def test_a_ladder_that_ends_with_the_exact_product_is_repeated_by_the_bits_of_that(
    engine, assert_same_bits
):
    """Operands of the same bits are multiplied as by a first call, whatever their error
    ratio.
    """
    engine.costs = SimpleNamespace(
        residue_seconds=lambda problem, count, estimate: 1.0 * count,
        native_seconds=lambda problem: 99.0,
        halves_pay=lambda m, n, k, planes: False,
        sum_seconds=lambda problem: 1e9,
    )
    # Two small entries make the exact product long. A row that meets small entries only
    # has a large ratio.
    easy = operands()
    easy[0][0, 1, 5] *= 2.0**-40
    easy[1][0, 3, 2] *= 2.0**-40
    hard = [x.copy() for x in easy]
    hard[0][0, 0] = 0.0
    hard[0][0, 0, 1] = hard[0][0, 2, 1]
    hard[1][0, 1, [0, 1, 3, 4]] *= 2.0**-30
    plan = planned("auto", *arrays(*easy), engine, TIGHT)
    assert plan.verification is Verification.ON_DEVICE
    again = again_of(plan, engine, *easy, (1, 4, 5))
    taken = []
    for pair in (easy, hard):
        tensors = arrays(*pair)
        assert planned("auto", *tensors, engine, TIGHT) == plan
        outcome = run(plan, *tensors, engine)
        taken.append(outcome.decision().scheme)
        found = again(*(unwrap(z) for z in tensors))
        assert_same_bits(on_host(found.values), on_host(outcome.values))
    assert taken == [plan.scheme, plan.alternatives[-1]]
    other = [easy[0], easy[1] * 1.0]
    other[1][0, 4, 2] *= 2.0**-50
    assert again(*(unwrap(z) for z in arrays(*other))) is module.UNSEEN
    # What was only tried by its ratio is kept for no operands: others may be looked at
    # with another result.
    tried = replace(
        plan, verification=Verification.ENTRYWISE, evidence=None, alternatives=()
    )
    signature = Signature(*arrays(*easy), (1, 4, 5))
    assert engine.lowering(tried).inspecting(signature, again) is None


def test_evidence_that_one_look_does_not_see_again_is_kept_for_no_operands(engine):
    a, b = operands()
    x, y = arrays(a, b)
    exact = planned(FAST, x, y, engine, "correct")
    signature = Signature(x, y, (4, 5))
    for evidence in (
        None,
        replace(exact.evidence, required_bits=None),
        replace(exact.evidence, outliers=Outliers(3, 4, 1, 0, (0,), ())),
    ):
        unlike = CudaLowering(replace(exact, evidence=evidence), engine.place)
        assert unlike.inspecting(signature, lambda a, b: None) is None


def test_a_record_is_not_read_while_a_graph_is_captured(engine, monkeypatch):
    a, b = operands()
    lowering = engine.lowering(planned(FAST, a, b, engine))
    read = []
    record = SimpleNamespace(tolist=lambda: read.append(1) or [0, 0, 0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        hg.PlanError,
        match=r"while a CUDA graph is captured.*read the report after a replay",
    ):
        lowering.read(record)
    assert not read
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert isinstance(lowering.read(record), RecordedDecision)


def test_a_record_is_read_when_somebody_looks_and_once(as_on_gpu, monkeypatch):
    a, b = (torch.from_numpy(z[0]).to(DEVICE) for z in operands())
    asked, own = [], CudaLowering.read
    monkeypatch.setattr(
        CudaLowering,
        "read",
        lambda self, *given: asked.append(1) or own(self, *given),
    )
    _, report = hg.matmul(a, b, scheme=FAST, return_report=True)
    _, other = hg.matmul(a, b, scheme=FAST, return_report=True)
    assert not asked
    assert (report.engine, report.workspace > 0) == ("torch", True)
    assert not asked
    assert report.bound > 0
    assert str(report).startswith("Report")
    assert asked == [1]
    assert report == other
    assert len(asked) == 2


def test_warmup_leaves_nothing_to_compile(as_on_gpu, monkeypatch):
    finished, own = [], LaunchList.compile
    monkeypatch.setattr(
        LaunchList, "compile", lambda self: finished.append(1) or own(self)
    )
    a, b = (torch.from_numpy(z[0]).to(DEVICE) for z in operands())
    hg.warmup(torch.ones_like(a), torch.ones_like(b), scheme=FAST)
    made = len(finished)
    assert made > 0
    hg.matmul(a, b, scheme=FAST)
    assert len(finished) == made
