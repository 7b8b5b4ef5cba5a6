"""Ozaki scheme II as programs: ladders on the device, certified bounds, exact counts,
outliers, prepared operands.

Without a GPU the kernels run in Triton's interpreter, whose bits are those of NumPy
too.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base.exceptions import AccuracyError
from hifigemm.base.store import forget
from hifigemm.engines import engine_for
from hifigemm.engines.cuda import ozaki2
from hifigemm.engines.cuda.lowering import Arguments, layout
from hifigemm.kernels.endings.special import restore_special_values
from hifigemm.kernels.products import native_gemm
from hifigemm.kernels.products.error_ratio import RATIO_UNIT
from hifigemm.kernels.runtime import launch as launches
from hifigemm.kernels.runtime import launch_list as programs
from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.model.executable import RecordedDecision
from hifigemm.model.plan import Blocking, Evidence, Verification
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.error_ratio import error_bound, error_ratio, largest_ratio
from hifigemm.numerics.residue_products import num_planes
from hifigemm.numerics.residues import moduli_set
from hifigemm.running import road
from hifigemm.running.executor import execute, split_of
from hifigemm.schemes import inspection, outliers
from hifigemm.schemes.scheme import int8_product
from hifigemm.testing.reference import correctly_rounded, meets_promise
from tests.engines.stand_in import DEVICE, arrays, on_host, planned
from tests.planning import make

FAST = hg.Ozaki2(scaling="fast")
NUMPY = engine_for("numpy")
LEVEL = 2.0**-51
TIGHT = 2.0**-53
"""Tighter than the worst case of a native product, so that no device chooses that."""
DTYPES = ["float64", "complex128"]
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def costs(engine):
    """Costs by which all three counts of a ladder are sooner than a native product."""
    engine.costs = expected_costs(1.0)


def expected_costs(native):
    return SimpleNamespace(
        native_seconds=lambda problem: native,
        residue_seconds=lambda problem, count, estimate: 0.01 * count,
        word_seconds=lambda problem: 1.0,
        halves_pay=lambda m, n, k, planes: False,
        sum_seconds=lambda problem: 1e9,
    )


def fixed(count):
    return hg.Ozaki2(num_moduli=count, scaling="fast")


def by_numpy(a, b, scheme, **options):
    with np.errstate(all="ignore"):
        return hg.matmul(a, b, scheme=scheme, engine="numpy", **options)


def run(plan, a, b, engine, *, shift=0, epilogue=PLAIN, splits=(None, None), out=None):
    """The plan that was carried out in the end, the outcome, and the values."""
    with np.errstate(all="ignore"):
        plan, outcome = execute(
            plan, *arrays(a, b), engine, 2**28, shift, epilogue, splits, out
        )
    return plan, outcome, on_host(outcome.values)


def ratio_of(a, b):
    return error_ratio(a, b, int8_product(NUMPY), 2**14, 2**20)


def decision_of(plan, engine, record):
    return engine.lowering(plan).decision(record)


def bits_of(ratio):
    """What a record says of an error ratio."""
    return int(np.float64(ratio / RATIO_UNIT).view(np.int64))


# A ladder: the device takes the first count that is enough, or a native product.


def counts_of(plan):
    """The counts of a ladder without scaling along k, which ends in a native product."""
    assert plan.alternatives[-1] == hg.Native()
    rungs = plan.scheme, *plan.alternatives[:-1]
    return [rung.num_moduli for rung in rungs if rung.scaling == "fast"]


def taken(plan, rung):
    """The scheme of a rung of such a ladder, the last of which is a native product."""
    return [*map(fixed, counts_of(plan)), hg.Native()][rung]


def with_ratio(a, b, first, last):
    """Operands like a and b whose error ratio lies in (first, last]: perhaps one row
    meets small entries alone.
    """
    if first < ratio_of(a, b) <= last:
        return a, b
    for s in np.arange(0.0, 40.0, 0.25):
        x, y = a.copy(), b.copy()
        x[..., 0, :] = 0.0
        x[..., 0, 1] = 1.0
        y[..., 1, :] = (
            np.abs(y.real).max(axis=-2)
            * 2.0**-s
            * (1 + 1j if y.dtype.kind == "c" else 1)
        )
        if first < ratio_of(x, y) <= last:
            return x, y
    raise AssertionError("no such operands")


def operands_for(plan, a, b, rung):
    """Operands that this rung of a ladder is for, the last one being the native
    product.
    """
    p, counts = plan.problem, counts_of(plan)
    ends = [
        largest_ratio(p.terms, plan.target.r, moduli_set(c, p.is_complex).half_range)
        for c in counts
    ]
    ends = [0.0, *ends, np.inf]
    return with_ratio(a, b, ends[rung], ends[rung + 1])


def fp64(a, b):
    """The kernel's native product, with what a library gives for Inf and NaN."""
    x, y = (torch.from_numpy(np.ascontiguousarray(v)).to(DEVICE) for v in (a, b))
    out = torch.empty(
        (max(len(a), len(b)), a.shape[1], b.shape[2]), dtype=x.dtype, device=DEVICE
    )
    always = Predicate(torch.zeros(1, dtype=torch.int64, device=DEVICE), 0, 0)
    run_recorded(native_gemm.fp64_product, x, y, out, always)
    if out.is_complex():
        run_recorded(restore_special_values, x, y, out)
    return out.cpu().numpy()


def stacks(make_pair, family="phi_0.1", m=5, k=200, n=6, dtype="float64", batch=(1, 1)):
    made = [make_pair(family, m, k, n, dtype, seed=seed) for seed in range(max(batch))]
    return np.stack([a for a, _ in made[: batch[0]]]), np.stack(
        [b for _, b in made[: batch[1]]]
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", [0, 1, 2, 3])
def test_the_first_count_that_is_enough_is_taken_or_a_native_product(
    make_pair, assert_same_bits, engine, rung, dtype
):
    a, b = stacks(make_pair, dtype=dtype)
    plan = planned("auto", a, b, engine)
    assert plan.verification is Verification.ON_DEVICE
    counts, p = counts_of(plan), plan.problem
    assert len(counts) == 3
    a, b = operands_for(plan, a, b, rung)
    same, outcome, values = run(plan, a, b, engine)
    assert same is plan
    found = outcome.decision()
    if rung == 3:
        assert found == RecordedDecision(
            True, hg.Native(), native_bound(p.terms, p.fmt.u), 1, p.k
        )
        assert_same_bits(values, fp64(a, b))
    else:
        scheme = fixed(counts[rung])
        products = FAST.expected_products(p, plan.target, rung)
        assert found == RecordedDecision(
            True, scheme, plan.target.r, products, plan.k_block
        )
        assert_same_bits(values, by_numpy(a, b, scheme))
    assert meets_promise(values[0], a[0], b[0], found.bound).all()
    assert (
        plan.bound
        == max(plan.target.r, native_bound(p.terms, p.fmt.u))
        == outcome.bound
    )


@pytest.mark.parametrize(
    "family", ["phi_4", "phi_8", "sparse", "integers", "zeros", "cancelling", "span_60"]
)
def test_the_rung_is_that_of_the_error_ratio(
    make_pair, assert_same_bits, engine, family
):
    a, b = stacks(make_pair, family)
    plan = planned(FAST, a, b, engine)
    _, outcome, values = run(plan, a, b, engine)
    found, ratio, p = outcome.decision(), ratio_of(a, b), plan.problem
    enough = (
        c
        for c in counts_of(plan)
        if ratio <= largest_ratio(p.k, LEVEL, moduli_set(c, False).half_range)
    )
    count = next(enough, None)
    assert found.scheme == (hg.Native() if count is None else fixed(count))
    assert_same_bits(
        values, fp64(a, b) if count is None else by_numpy(a, b, fixed(count))
    )
    assert meets_promise(values[0], a[0], b[0], found.bound).all()


def test_a_record_decides_as_the_launches_do(make_pair, engine):
    a, b = stacks(make_pair)
    plan, ends = planned(FAST, a, b, engine), []
    for count in counts_of(plan):
        ends.append(
            largest_ratio(200, plan.target.r, moduli_set(count, False).half_range)
        )
        assert ozaki2._ratio_bits(plan, count) == int(
            np.float64(ends[-1] / RATIO_UNIT).view(np.int64)
        )
        most = ozaki2._ratio_bits(plan, count)
        assert decision_of(plan, engine, [most, 0, 0]).scheme == fixed(count)
        assert decision_of(plan, engine, [most + 1, 0, 0]).scheme != fixed(count)
        inner = replace(fixed(count), scaling="inner")
        if inner in plan.alternatives:
            record = [bits_of(np.inf), 0, most]
            assert decision_of(plan, engine, record).scheme == inner
    assert ends == sorted(ends)
    for mark in (LARGEST, bits_of(np.inf)):
        record = [bits_of(np.inf), 0, mark]
        assert decision_of(plan, engine, record).scheme == hg.Native()
    entrywise = replace(plan, verification=Verification.ENTRYWISE, alternatives=())
    most = ozaki2._ratio_bits(plan, counts_of(plan)[0])
    assert decision_of(entrywise, engine, [most, 0, 0]).holds
    missed = decision_of(entrywise, engine, [most + 1, 0, 0])
    assert not missed.holds
    assert bits_of(missed.evidence.error_ratio) == most + 1
    assert ozaki2._ratio_bits(entrywise, 3) == -1
    anything = replace(entrywise, target=replace(plan.target, r=1e300))
    assert ozaki2._ratio_bits(anything, 14) < bits_of(np.inf)


@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("rung", [0, 1, 3])
def test_blocks_and_stacks_decide_alike(
    make_pair, assert_same_bits, engine, rung, dtype
):
    """One matrix, in the middle of the stack, decides for all of them."""
    a, b = stacks(make_pair, m=4, k=60, n=5, dtype=dtype, batch=(3, 1))
    plan = planned(FAST, a, b, engine)
    if rung:
        a[1:2], b = operands_for(planned(FAST, a[1:2], b, engine), a[1:2], b, rung)
    want = fp64(a, b) if rung == 3 else by_numpy(a, b, fixed(counts_of(plan)[rung]))
    for shape in ((3, 4, 5), (2, 3, 5)):
        _, outcome, values = run(replace(plan, blocking=Blocking(shape)), a, b, engine)
        assert_same_bits(values, want)
        assert outcome.decision().scheme == taken(plan, rung)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("parts", ["sample", "few terms", "both"])
@pytest.mark.parametrize(
    ("dtype", "rung"),
    [("float64", 0), ("float64", 1), ("float64", 3), ("complex128", 1)],
)
def test_parts_of_a_product_are_looked_at_first(
    make_pair, assert_same_bits, engine, monkeypatch, parts, dtype, rung
):
    """They change no decision; the record may end with a lower bound of the ratio."""
    a, b = stacks(make_pair, m=3, k=500, n=4, dtype=dtype)
    plan = planned(FAST, a, b, engine)
    a, b = operands_for(plan, a, b, rung)
    assert ozaki2._few_terms(plan, 1) is None
    if parts != "few terms":
        monkeypatch.setattr(ozaki2, "_SAMPLE_FROM", 0)
        monkeypatch.setattr(ozaki2, "_SAMPLE", 2)
    if parts != "sample":
        monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
        assert ozaki2._few_terms(plan, 1) == (384 if dtype == "complex128" else 256)
        assert ozaki2._few_terms(plan, 1, is_inner=True) == 384
    _, outcome, values = run(plan, a, b, engine)
    assert_same_bits(
        values,
        fp64(a, b) if rung == 3 else by_numpy(a, b, fixed(counts_of(plan)[rung])),
    )
    assert outcome.decision().scheme == taken(plan, rung)


def test_few_terms_are_no_fewer_or_all_that_count_of_short_and_long_sums(
    make_pair, engine, monkeypatch
):
    monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
    a, b = stacks(make_pair)
    plan = planned(FAST, a, b, engine)
    for k, few in (
        (128, None),
        (129, 128),
        (2**17, 2**16),
        (2**18, None),
        (2**18 - 1024, 2**17 - 512),
    ):
        at = replace(plan, problem=replace(plan.problem, k=k))
        found = ozaki2._few_terms(at, 5)
        assert found == (None if few is None or few >= 2**17 else few)


@pytest.mark.parametrize(
    ("is_complex", "ratio"), [(False, 2.0**1.75), (True, 2.0**2.25)]
)
def test_the_more_bits_are_to_spare_the_fewer_terms_are_looked_at(
    make_pair, engine, monkeypatch, is_complex, ratio
):
    monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
    a, b = stacks(make_pair, dtype="complex128" if is_complex else "float64")
    plan = planned(FAST, a, b, engine)
    at = replace(plan, problem=replace(plan.problem, k=8192))
    half = 5120 if is_complex else 4096
    for spare, few in (
        (0.5, half),
        (2.9, half),
        (3.1, 2048),
        (4.5, 1024),
        (5.5, 512),
        (20.0, 512),
    ):
        assert ozaki2._few_terms(at, bits_of(ratio * 2.0**spare * np.sqrt(8192))) == few


@pytest.mark.parametrize(
    ("dtype", "rung"),
    [("float64", 0), ("float64", 1), ("float64", 3), ("complex128", 3)],
)
def test_exactly_one_step_writes_the_result(
    make_pair, engine, monkeypatch, dtype, rung
):
    a, b = stacks(make_pair, dtype=dtype)
    plan = planned(FAST, a, b, engine)
    a, b = operands_for(plan, a, b, rung)
    target = torch.full(
        a.shape[:2] + b.shape[2:], 7.25, dtype=getattr(torch, dtype), device=DEVICE
    )
    own, wrote = launches.Launch.call_jit, []

    def watched(self, *args):
        before = target.clone()
        own(self, *args)
        if not torch.equal(before, target):
            wrote.append(self.kernel.__name__)

    # so that every launch goes through Triton's JIT
    monkeypatch.setattr(programs, "is_hooked", lambda: True)
    monkeypatch.setattr(launches.Launch, "call_jit", watched)
    run(plan, a, b, engine, out=ozaki2_wrap(target))
    assert wrote == ["_native_kernel" if rung == 3 else "crt_kernel"]
    assert (target != 7.25).all()


def ozaki2_wrap(tensor):
    from hifigemm.engines.device_array import wrap

    return wrap(tensor)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", [0, 3])
def test_inf_and_nan_lie_where_ieee_arithmetic_puts_them(
    make_pair, engine, rung, dtype
):
    a, b = stacks(make_pair, dtype=dtype, batch=(2, 1))
    plan = planned(FAST, a, b, engine)
    if rung:
        a[:1], b = operands_for(planned(FAST, a[:1], b, engine), a[:1], b, rung)
    a[1, 2, 3], a[0, 4, 1], b[0, 1, 4] = np.inf, np.nan, -np.inf
    _, outcome, values = run(plan, a, b, engine)
    assert outcome.decision().scheme == taken(plan, rung)
    want = by_numpy(a, b, fixed(15))
    for part in ("real", "imag"):
        x, y = getattr(values, part), getattr(want, part)
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_array_equal(
            np.where(np.isinf(x), x, 0), np.where(np.isinf(y), y, 0)
        )


# Plans that are certified: the ratio is read, and a finer plan is made by it.


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", [False, True])
def test_a_ratio_that_is_too_large_leads_to_a_finer_plan(
    make_pair, assert_same_bits, engine, monkeypatch, few, dtype
):
    """The ratio that is passed on is that of all terms, wherever the first plan had
    enough of few.
    """
    a, b = stacks(make_pair, m=3, k=300, n=4, dtype=dtype)
    plan = planned(FAST, a, b, engine, TIGHT)
    p = planned(FAST, a, b, engine, TIGHT).problem
    assert (plan.verification, plan.evidence) == (Verification.ENTRYWISE, None)
    if few:
        monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
    same, outcome, values = run(plan, a, b, engine)
    assert same is plan
    assert outcome.bound == plan.bound == TIGHT
    assert_same_bits(values, by_numpy(a, b, plan.scheme))
    largest = largest_ratio(
        p.terms, TIGHT, moduli_set(plan.scheme.count, p.is_complex).half_range
    )
    a, b = with_ratio(a, b, largest, 1e300)
    finer, outcome, values = run(plan, a, b, engine)
    assert finer.evidence == Evidence(error_ratio=ratio_of(a, b))
    assert finer.verification is Verification.A_PRIORI
    assert finer.scheme.count > plan.scheme.count
    assert (outcome.bound, outcome.num_products) == (TIGHT, finer.num_products)
    assert_same_bits(values, by_numpy(a, b, finer.scheme))
    assert (
        finer.scheme
        == execute(planned(FAST, a, b, NUMPY, TIGHT), a, b, NUMPY, 2**28)[0].scheme
    )
    assert meets_promise(values[0], a[0], b[0], TIGHT).all()


@pytest.mark.parametrize(
    ("dtype", "family"),
    [("float64", "phi_2"), ("float64", "phi_0.1"), ("complex128", "phi_2")],
)
def test_certified_plans_end_as_those_of_numpy(
    make_pair, assert_same_bits, engine, family, dtype
):
    a, b = stacks(make_pair, family, 5, 70, 6, dtype)
    for accuracy in (TIGHT, 2.0**-56):
        want, expected = execute(
            planned(FAST, a, b, NUMPY, accuracy), a, b, NUMPY, 2**28
        )
        plan, outcome, values = run(planned(FAST, a, b, engine, accuracy), a, b, engine)
        assert plan.scheme == want.scheme
        assert outcome.bound == expected.bound
        assert_same_bits(values, expected.values)


@pytest.mark.parametrize(
    ("dtype", "rung"),
    [
        ("float64", 0),
        ("float64", 1),
        ("float64", 3),
        ("complex128", 1),
        ("complex128", 2),
        ("complex128", 3),
    ],
)
def test_a_number_ends_with_the_exact_product(
    make_pair, assert_same_bits, engine, rung, dtype
):
    a, b = stacks(make_pair, k=100, dtype=dtype)
    a[..., 1, 5] *= 2.0**-40  # which makes the exact product long
    plan = planned("auto", a, b, engine, TIGHT)
    assert plan.verification is Verification.ON_DEVICE
    rungs, p = [plan.scheme, *plan.alternatives[:-1]], plan.problem
    ends = [
        largest_ratio(p.terms, TIGHT, moduli_set(x.count, p.is_complex).half_range)
        for x in rungs
    ]
    ends = [0.0, *ends, np.inf]
    assert len(rungs) == 3
    a, b = with_ratio(a, b, ends[rung], ends[rung + 1])
    plan = planned("auto", a, b, engine, TIGHT)
    assert (plan.scheme, *plan.alternatives[:-1]) == (*rungs,)
    _, outcome, values = run(plan, a, b, engine)
    found = outcome.decision()
    assert found.holds
    if rung < 3:
        assert (found.scheme, found.bound) == (rungs[rung], TIGHT)
        assert_same_bits(values, by_numpy(a, b, rungs[rung]))
    else:
        assert (found.scheme, found.bound) == (plan.alternatives[-1], 0.0)
        assert_same_bits(values, correctly_rounded(a, b))
    assert meets_promise(values[0], a[0], b[0], TIGHT).all()


@pytest.mark.parametrize(
    "family", ["phi_1", pytest.param("phi_4", marks=pytest.mark.slow)]
)
def test_blocks_mirrors_and_special_values_go_on_to_the_exact_product_too(
    make_pair, assert_same_bits, engine, monkeypatch, family
):
    monkeypatch.setattr(ozaki2, "_SAMPLE_FROM_BEFORE_EXACT", 0)
    a, b = stacks(make_pair, family, 9, 100, 8)
    a[0, 2, 3] = np.inf
    whole = planned("auto", a, b, engine, TIGHT)
    taken = run(whole, a, b, engine)[1].decision().scheme
    assert (taken == whole.alternatives[-1]) == (family == "phi_4")
    want = by_numpy(a, b, taken)
    for workspace in (2**28, whole.workspace - 1):
        plan = planned("auto", a, b, engine, TIGHT, workspace=workspace)
        assert_same_bits(run(plan, a, b, engine)[2], want)
        assert_same_bits(run(plan, a, b, engine, shift=-3)[2], want / 8)
    x = np.where(np.isfinite(a), a, 1.0)
    gram = replace(
        planned("auto", x, x.swapaxes(1, 2).copy(), engine, TIGHT).problem, mirror="T"
    )
    plan = make(
        gram,
        TIGHT,
        "auto",
        engine,
        2**28,
        lambda s, t: s.evidence(gram, t, *arrays(x, x.mT), engine, 2**28),
    )
    assert plan.verification is Verification.ON_DEVICE
    _, outcome, values = run(plan, x, np.ascontiguousarray(x.mT), engine)
    want = by_numpy(x, np.ascontiguousarray(x.mT), outcome.decision().scheme)
    assert_same_bits(np.tril(values), np.tril(want))


def test_no_target_is_promised_where_a_sum_of_magnitudes_may_be_zero(
    make_pair, assert_same_bits, engine, monkeypatch
):
    a, b = stacks(make_pair, m=5, k=300, n=4)
    a[:, 0, :150] *= 2.0**-20
    b[:, 150:, 0] *= 2.0**-20
    monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
    with hg.strict():  # no native product
        want, expected = execute(planned(FAST, a, b, NUMPY, 0.9), a, b, NUMPY, 2**28)
        plan, outcome, values = run(planned(FAST, a, b, engine, 0.9), a, b, engine)
    assert plan.evidence.error_ratio == np.inf
    assert plan.verification is Verification.ENTRYWISE
    assert plan.scheme == want.scheme
    assert outcome.notes == expected.notes
    assert_same_bits(values, expected.values)
    chosen = planned(FAST, a, b, engine, 0.9)
    assert run(chosen, a, b, engine)[1].decision().scheme == hg.Native()


def test_a_forced_count_keeps_an_accuracy_or_says_that_it_does_not(
    make_pair, assert_same_bits, engine
):
    scheme = fixed(9)
    a, b = stacks(make_pair, m=5, k=70, n=4)
    plan = planned(scheme, a, b, engine, 1e-6)
    assert plan.is_fixed
    same, outcome, values = run(plan, a, b, engine)
    assert same is plan
    assert outcome.bound == 1e-6
    assert_same_bits(values, by_numpy(a, b, scheme))
    x, y = stacks(make_pair, "phi_2", 5, 70, 4)
    want = by_numpy(x, y, scheme, accuracy=1e-6)
    plan, outcome, values = run(planned(scheme, x, y, engine, 1e-6), x, y, engine)
    assert plan.evidence.error_ratio == ratio_of(x, y)
    assert outcome.bound <= 1e-6
    assert_same_bits(values, want)
    x, y = stacks(make_pair, "phi_8", 5, 70, 4)
    for each in (NUMPY, engine):
        with pytest.raises(
            AccuracyError, match=r"does not meet .* in \d+ of 20 entries"
        ):
            execute(
                planned(scheme, x, y, each, 1e-6),
                *((x, y) if each is NUMPY else arrays(x, y)),
                each,
                2**28,
            )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["phi_0.1", "phi_4", "opposed_spans", "cancelling"])
def test_forced_counts_with_a_report_state_a_bound_that_holds(
    make_pair, assert_same_bits, engine, family, dtype
):
    a, b = stacks(make_pair, family, 5, 40, 6, dtype)
    for count in (5, 12):
        plan = planned(fixed(count), a, b, engine, states_bound=True)
        assert (plan.verification, plan.certifies) == (Verification.NONE, True)
        same, outcome, values = run(plan, a, b, engine)
        assert same is plan
        found, p = outcome.decision(), plan.problem
        assert found.holds
        assert found.bound == error_bound(
            p.terms, ratio_of(a, b), moduli_set(count, p.is_complex).half_range
        )
        assert (found.scheme, found.num_products, found.k_block) == (
            fixed(count),
            plan.num_products,
            plan.k_block,
        )
        if np.isfinite(found.bound):
            assert meets_promise(values[0], a[0], b[0], found.bound).all()
        silent = planned(fixed(count), a, b, engine)
        assert not silent.certifies
        _, outcome, plain = run(silent, a, b, engine)
        assert outcome.decision is None
        assert_same_bits(values, plain)
        assert_same_bits(values, by_numpy(a, b, fixed(count)))


def test_a_stated_bound_is_that_of_all_terms_and_blocks(make_pair, engine, monkeypatch):
    a, b = stacks(make_pair, "phi_1", 5, 300, 6)
    monkeypatch.setattr(ozaki2, "_FEW_TERMS_FROM", 0)
    plan = replace(
        planned(fixed(9), a, b, engine, states_bound=True), blocking=Blocking((1, 3, 4))
    )
    assert ozaki2._few_terms(plan, 1) is None
    found = run(plan, a, b, engine)[1].decision()
    assert found.bound == error_bound(
        300, ratio_of(a, b), moduli_set(9, False).half_range
    )


# Counts that hold exact products.


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        *(
            ("float64", name)
            for name in (
                "phi_0.1",
                "phi_2",
                "integers",
                "opposed_spans",
                "zeros",
                "cancelling",
            )
        ),
        *(("complex128", name) for name in ("phi_0.1", "integers")),
    ],
)
def test_correct_results_are_those_of_numpy(
    make_pair, assert_same_bits, engine, family, dtype
):
    a, b = stacks(make_pair, family, 5, 40, 6, dtype)
    first, x = planned(FAST, a, b, NUMPY, "correct"), arrays(a, b)
    want, expected = execute(first, a, b, NUMPY, 2**28)
    plan, outcome, values = run(planned(FAST, *x, engine, "correct"), a, b, engine)
    assert_same_bits(values, expected.values)
    assert (plan.scheme, plan.reason, outcome.bound) == (
        want.scheme,
        want.reason,
        expected.bound,
    )
    assert plan.verification is want.verification


def test_bits_are_balanced_between_the_operands(make_pair, assert_same_bits, engine):
    """Rows that need many bits, columns that need few."""
    a, b = stacks(make_pair, "integers", 5, 40, 6)
    a *= np.ldexp(1.0, np.random.default_rng(1).integers(0, 30, a.shape))
    plan = planned(FAST, *arrays(a, b), engine, "correct")
    left, right = plan.evidence.required_bits
    assert left - right > 20
    assert ozaki2.ordinary_moduli(plan)[2] != (0, 0)
    assert_same_bits(run(plan, a, b, engine)[2], a @ b)
    reused = replace(plan, blocking=Blocking((1, 2, 5)))
    assert_same_bits(run(reused, a, b, engine)[2], a @ b)


def wide_pair(make_pair, m, k, n, rows, cols):
    """Operands of which few rows and columns have one entry that is far smaller than
    the others.
    """
    a, b = make_pair("phi_0.1", m, k, n)
    a[list(rows), 3] *= 2.0**-34
    b[2, list(cols)] *= 2.0**-36
    return a[None], b[None]


@pytest.fixture
def eager(monkeypatch):
    """Outliers are set apart in small products too."""
    monkeypatch.setattr(
        inspection,
        "may_pay",
        lambda problem: problem.batch == 1 and not problem.is_complex,
    )
    monkeypatch.setattr(outliers, "_TILE", 1)
    monkeypatch.setattr(outliers, "_RESIDUES", 1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("shape", [(1, 30, 26), (1, 16, 13)])
@pytest.mark.parametrize(
    ("rows", "cols"), [((1, 29), (0, 15)), ((4,), ()), ((), (12,))]
)
def test_outlier_rows_and_columns_are_set_apart(
    make_pair, assert_same_bits, engine, eager, rows, cols, shape
):
    a, b = wide_pair(make_pair, 30, 30, 26, rows, cols)
    want = by_numpy(a, b, FAST, accuracy="correct")
    plan = replace(
        planned(FAST, *arrays(a, b), engine, "correct"), blocking=Blocking(shape)
    )
    found = plan.evidence.outliers
    assert set(rows) <= set(found.rows)
    assert set(cols) <= set(found.cols)
    assert found.num_moduli < found.shared <= plan.scheme.count
    assert plan.num_products == plan.scheme.count
    same, outcome, values = run(plan, a, b, engine)
    assert same is plan
    assert outcome.bound == 0
    assert found.num_moduli < outcome.num_products < plan.num_products
    assert any(
        f"{found.num_moduli} moduli without" in note
        for note in [plan.reason, *outcome.notes]
    )
    assert_same_bits(values, want)


def test_outliers_with_inf_and_nan_and_an_epilogue(
    make_pair, assert_same_bits, engine, eager
):
    a, b = wide_pair(make_pair, 30, 30, 26, (1, 7), (0, 11))
    a[0, 7, 5], a[0, 2, 1], b[0, 3, 11] = np.inf, np.nan, -np.inf
    c = np.random.default_rng(1).uniform(-1, 1, (1, 30, 26))
    c[0, 7, 11] = np.nan
    product = hg.matmul(a, b, scheme=FAST, engine="numpy", accuracy="correct")
    want = Epilogue(1.5, -0.75, c).apply(product)
    z, target = arrays(c, np.zeros_like(c))
    plan = planned(FAST, *arrays(a, b), engine, "correct")
    assert plan.evidence.outliers is not None
    _, _, values = run(plan, a, b, engine, epilogue=Epilogue(1.5, -0.75, z), out=target)
    for found in (on_host(target), values):
        assert_same_bits(
            np.where(np.isnan(found), np.nan, found),
            np.where(np.isnan(want), np.nan, want),
        )


def test_a_workspace_is_free_when_the_product_is_made(
    make_pair, as_on_gpu, monkeypatch, eager
):
    """Of a correct product whose outliers are set apart, whose launches call functions
    between its launches.
    """
    made, (a, b) = [], wide_pair(make_pair, 30, 30, 26, (1, 7), (0, 11))
    x, y = tensors(a[0], b[0])

    def empty(*args, **options):
        made.append(weakref.ref(tensor := torch.empty(*args, **options)))
        return tensor

    monkeypatch.setattr(
        programs, "torch", SimpleNamespace(**vars(torch) | {"empty": empty})
    )
    gc.disable()
    try:
        _, report = hg.matmul(x, y, accuracy="correct", scheme=FAST, return_report=True)
        assert "moduli without" in report.reason
        assert made
        assert not any(found() is not None for found in made)
    finally:
        gc.enable()


# Prepared operands, blocks, epilogues.


@pytest.mark.parametrize(
    ("count", "dtype"),
    [(2, "complex64"), (7, "complex128"), (9, "float32"), (21, "float64")],
)
def test_whole_products_give_the_bits_of_numpy(
    make_pair, assert_same_bits, engine, count, dtype
):
    a, b = stacks(make_pair, "phi_1", 5, 70, 9, dtype, (1, 2))
    assert_same_bits(
        run(planned(fixed(count), a, b, engine), a, b, engine)[2],
        by_numpy(a, b, fixed(count)),
    )


def both_splits(plan, a, b, engine):
    x, y = arrays(a, b)
    return split_of(plan, x, "left", engine), split_of(plan, y, "right", engine)


@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_blocks_and_prepared_operands_give_the_bits_of_numpy(
    make_pair, assert_same_bits, engine, dtype
):
    a, b = stacks(make_pair, "phi_1", 5, 20, 9, dtype, (1, 2))
    a[0, 4, 1], b[1, 2, 6] = np.inf, np.nan
    plan = replace(planned(fixed(4), a, b, engine), blocking=Blocking((1, 3, 5)))
    assert_same_bits(run(plan, a, b, engine)[2], by_numpy(a, b, fixed(4)))
    splits, c = both_splits(plan, a, b, engine), np.ones((2, 5, 9), dtype)
    epilogue = Epilogue(-0.3, 1.7, arrays(c)[0])
    want = hg.gemm(a, b, c, alpha=-0.3, beta=1.7, scheme=fixed(4), engine="numpy")
    for kept in (splits, (None, splits[1])):
        assert_same_bits(
            run(plan, a, b, engine, epilogue=epilogue, splits=kept)[2], want
        )


@pytest.mark.parametrize(
    ("shape", "batch", "made"),
    [
        ((1, 3, 9), (1, 2), [2, 1, 2, 1]),
        ((1, 5, 5), (2, 1), [2, 1, 2, 1]),
        ((1, 5, 9), (1, 2), [2, 1]),
    ],
)
def test_blocks_use_residues_again(
    make_pair, assert_same_bits, engine, monkeypatch, shape, batch, made
):
    a, b = stacks(make_pair, "phi_1", 5, 20, 9, batch=batch)
    plan = replace(planned(fixed(4), a, b, engine), blocking=Blocking(shape))
    found, own = [], ozaki2.scaled_residues.scaled_residues

    def watched(operands, *args, **options):
        found.append(len(operands))
        return own(operands, *args, **options)

    monkeypatch.setattr(ozaki2.scaled_residues, "scaled_residues", watched)
    assert_same_bits(run(plan, a, b, engine)[2], by_numpy(a, b, fixed(4)))
    assert found == made


@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_rows_of_one_prepared_operand_are_as_long_as_those_of_the_other(
    make_pair, assert_same_bits, engine, dtype
):
    """From k = 1024 on rows are padded to more than 16."""
    a, b = stacks(make_pair, "phi_1", 2, 1030, 3, dtype)
    plan = planned(fixed(3), a, b, engine)
    left, right = both_splits(plan, a, b, engine)
    want = by_numpy(a, b, fixed(3))
    for splits in ((left, None), (None, right), (left, right)):
        assert_same_bits(run(plan, a, b, engine, splits=splits)[2], want)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "family",
    ["full_range", "subnormal_times_large", "overflowing", "cancelling", "zeros"],
)
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_hard_operands(make_pair, assert_same_bits, engine, family, dtype):
    a, b = stacks(make_pair, family, 5, 30, 9, dtype)
    assert_same_bits(
        run(planned(fixed(5), a, b, engine), a, b, engine)[2], by_numpy(a, b, fixed(5))
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.5 - 2j])
@pytest.mark.parametrize("beta", [0.0, -1.5, 1j])
def test_alpha_and_beta(make_pair, assert_same_bits, engine, alpha, beta):
    a, b = stacks(make_pair, "phi_1", 5, 20, 9, "complex128", (1, 2))
    c = stacks(make_pair, "phi_2", 5, 5, 9, "complex128", (1, 2))[1]
    want = Epilogue(alpha, beta, c if beta else None).apply(
        by_numpy(a, b, fixed(2)) * 4.0
    )
    epilogue = Epilogue(alpha, beta, arrays(c)[0] if beta else None)
    target = np.swapaxes(arrays(np.zeros((2, 9, 5), complex))[0], 1, 2)
    plan = planned(fixed(2), a, b, engine)
    for out in (None, target):
        found = run(plan, a, b, engine, shift=2, epilogue=epilogue, out=out)[2]
        if isinstance(alpha, complex) or isinstance(beta, complex):
            # The complex product of NumPy and that of PyTorch need not round alike.
            np.testing.assert_allclose(found, want, rtol=1e-13)
        else:
            assert_same_bits(found, want)
            assert_same_bits(on_host(target) if out is not None else found, want)


def test_infinities_and_nans_of_complex_operands(make_pair, engine):
    a, b = stacks(make_pair, "phi_1", 5, 20, 9, "complex128", (1, 2))
    a[0, 1, 3], a[0, 4, 5] = complex(np.inf, 1), complex(0, np.nan)
    b[0, 3, 2], b[1, 0, 0], b[1, 19, 8] = (
        complex(2, -np.inf),
        0,
        complex(np.nan, np.inf),
    )
    want = by_numpy(a, b, fixed(3))
    plan = planned(fixed(3), a, b, engine)
    np.testing.assert_array_equal(
        run(plan, a, b, engine)[2].view(float), want.view(float)
    )
    splits = both_splits(plan, a, b, engine)
    for given in ((splits[0], None), (None, splits[1])):
        again = run(plan, a, b, engine, splits=given)[2]
        np.testing.assert_array_equal(again.view(float), want.view(float))


# The workspace of a plan.


def written(plan, engine):
    """Bytes of the workspace of all blocks of a plan, as its launches are recorded for
    the operands.
    """
    p = plan.problem
    lowering = engine.lowering(plan)
    shapes = [(p.batch, p.m, p.k), (p.batch, p.k, p.n), (p.batch, p.m, p.n)]
    tensors = [layout(shape, torch.float64) for shape in shapes]
    arguments = Arguments(*tensors, lowering.layout_of_record())
    return lowering.recorded(plan, arguments).finish().nbytes


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "shape", [(2, 140, 512, 300), (1, 20, 20000, 20), (1, 700, 64, 900)]
)
@pytest.mark.parametrize(
    ("scheme", "accuracy"),
    [(FAST, None), (FAST, TIGHT), (fixed(10), None), (fixed(10), 1e-3)],
    ids=str,
)
def test_a_program_takes_the_workspace_of_its_plan(engine, scheme, accuracy, shape):
    """Whole and in blocks; nothing is run."""
    batch, m, k, n = shape
    a, b = (np.broadcast_to(1.0, x) for x in ((batch, m, k), (batch, k, n)))
    whole = planned(scheme, a, b, engine, accuracy)
    assert whole.is_whole
    assert written(whole, engine) == whole.workspace
    for part in (3, 9):
        plan = planned(
            scheme, a, b, engine, accuracy, workspace=whole.workspace // part
        )
        assert len(list(plan.blocks())) >= part
        assert written(plan, engine) <= plan.workspace <= whole.workspace // part


def test_a_run_allocates_the_workspace_of_its_plan(engine, monkeypatch):
    a, b = np.ones((2, 3, 20)), np.ones((2, 20, 4))
    plan, found, own = planned(fixed(2), a, b, engine), [], torch.empty

    def empty(*args, **given):
        found.append(own(*args, **given))
        return found[-1]

    monkeypatch.setattr(torch, "empty", empty)
    run(plan, a, b, engine)
    assert [x.nbytes for x in found if x.dtype is torch.int8 and x.ndim == 1] == [
        plan.workspace
    ]


def test_outliers_anywhere_stay_within_the_workspace(make_pair, engine, eager):
    """Most of them lie in the last block."""
    a, b = wide_pair(make_pair, 145, 70, 140, range(130, 145), (120, 139))
    whole = planned(FAST, *arrays(a, b), engine, "correct")
    assert set(range(130, 145)) <= set(whole.evidence.outliers.rows)
    assert written(whole, engine) == whole.workspace
    plan = planned(
        FAST, *arrays(a, b), engine, "correct", workspace=whole.workspace // 2
    )
    assert not plan.is_whole
    assert written(plan, engine) <= plan.workspace <= whole.workspace // 2


# The public functions: calls at the level of the result never wait.


@pytest.fixture
def unread(as_on_gpu, monkeypatch):
    """The engine; whatever is read back by the host fails as long as `.reads` is
    false.
    """
    state = SimpleNamespace(reads=False)

    def refuse(name):
        own = getattr(torch.Tensor, name)

        def read(self, *args, **options):
            assert state.reads, f"{name}: something was read back"
            return own(self, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, read)

    for name in (
        "tolist",
        "item",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
    ):
        refuse(name)
    return state


def tensors(*given):
    return [torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE) for x in given]


def called(unread, *operands, call=hg.matmul, **options):
    """Result and report of a call that reads nothing; the report is looked at
    afterwards.
    """
    given = tensors(*operands)
    with np.errstate(all="ignore"):
        found, report = call(*given, return_report=True, **options)
        again = call(*given, **options)
    unread.reads = True
    assert torch.equal(torch.nan_to_num(found), torch.nan_to_num(again))
    report.decision  # noqa: B018
    values = found.cpu().numpy()
    unread.reads = False
    return values, report


SHAPE = 5, 70, 6
EASY, HARD = "phi_0.1", "phi_4"


@pytest.mark.parametrize(
    "options", [{}, {"scheme": FAST}, {"accuracy": "fp64"}], ids=str
)
def test_operands_of_one_size_give_the_bits_of_the_expected_count(
    make_pair, assert_same_bits, unread, options
):
    a, b = make_pair(EASY, *SHAPE)
    found, report = called(unread, a, b, **options)
    assert report.scheme == fixed(15)
    assert (report.num_products, report.native, report.correct) == (15, False, False)
    assert report.bound == LEVEL
    assert (
        "the device decides by the operands between 15 or 16 or 17 moduli, "
        "15 with powers of two along k, and an FP64 product" in report.reason
    )
    assert f"accepted at the level of fp64 (r = {LEVEL:.3g})" in report.reason
    assert f"{fixed(15)} taken" in report.reason
    assert_same_bits(found, by_numpy(a, b, fixed(15)))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "family",
    [HARD, "phi_8", "sparse", "opposed_spans", "integers", "zeros", "cancelling"],
)
def test_all_operands_keep_the_bound_of_the_report(make_pair, unread, family):
    a, b = make_pair(family, *SHAPE)
    found, report = called(unread, a, b)
    assert meets_promise(found, a, b, report.bound).all()
    assert report.native == (report.scheme == hg.Native())
    if family == HARD:
        assert report.native
        assert (report.bound, report.num_products, report.k_block) == (
            native_bound(70, 2.0**-53),
            1,
            70,
        )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", [EASY, HARD])
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(4.0, 0.0), (-(2.0**-1050), 0.0), (0.3, 0.0), (1.0, 2.0), (-8.0, 0.7)],
)
def test_gemm_does_the_same_to_either_product(
    make_pair, assert_same_bits, unread, family, alpha, beta
):
    a, b = make_pair(family, *SHAPE)
    c = make_pair(EASY, SHAPE[0], 3, SHAPE[2])[0][:, :1] + np.zeros(
        (SHAPE[0], SHAPE[2])
    )
    found, report = called(unread, a, b, c, call=hg.gemm, alpha=alpha, beta=beta)
    if family == EASY:
        want = hg.gemm(
            a, b, c, alpha=alpha, beta=beta, scheme=report.scheme, engine="numpy"
        )
        assert_same_bits(found, want)
        return
    assert report.native
    unread.reads = True
    # A power of two belongs to the product, any other factor comes after it.
    scale, rest = (alpha, 1.0) if abs(np.frexp(alpha)[0]) == 0.5 else (1.0, alpha)
    want = scale * fp64(a[None], b[None])[0]
    if beta or rest != 1.0:
        want = Epilogue(rest, beta, c[None] if beta else None).apply(want[None])[0]
    assert_same_bits(found, want)


@pytest.mark.parametrize("family", [EASY, HARD])
def test_outputs_stacks_strides_and_special_values(make_pair, unread, family):
    a, b = (
        np.stack([x * 2.0**e for e in range(2)]) for x in make_pair(family, 5, 9, 6)
    )
    a[1, 2, 3], b[0, 1, 4] = np.inf, np.nan
    with np.errstate(all="ignore"):
        want = a @ b
    x, y = tensors(a, b)
    out = torch.full((2, 6, 5), 5.0, dtype=torch.float64, device=DEVICE).transpose(1, 2)
    for left, right in ((x, y), (x.mT.contiguous().mT, y.mT.contiguous().mT)):
        forget()  # strides do not tell calls on a CPU apart
        with np.errstate(all="ignore"):
            assert hg.matmul(left, right, out=out) is out
        unread.reads = True
        found = out.cpu().numpy()
        np.testing.assert_array_equal(
            np.where(np.isfinite(want), 0, found), np.where(np.isfinite(want), 0, want)
        )
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(want))
        unread.reads = False


def test_what_is_known_beforehand_needs_no_ladder(
    make_pair, assert_same_bits, unread, engine
):
    a, b = make_pair(HARD, *SHAPE)
    found, report = called(unread, a, b, scheme=fixed(12))
    assert_same_bits(found, by_numpy(a, b, fixed(12)))
    assert report.bound == error_bound(
        70, ratio_of(a[None], b[None]), moduli_set(12, False).half_range
    )
    assert called(unread, a, b, scheme="native")[1].native
    assert called(unread, a[:0], b)[1].num_products == 0
    single = called(unread, a.astype(np.float32), b.astype(np.float32))[1]
    assert single.native
    engine.costs = expected_costs(0.1)
    assert called(unread, a, b)[1].native


@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "correct"},
        {"accuracy": 1e-17},
        {"accuracy": 1e-10, "scheme": FAST},
        {"accuracy": 1e-8, "scheme": fixed(14)},
        {"scheme": "ozaki1"},
        {"scheme": "ozaki2"},
    ],
    ids=str,
)
def test_tighter_accuracies_may_wait(make_pair, assert_same_bits, as_on_gpu, options):
    a, b = make_pair(EASY, *SHAPE)
    with np.errstate(all="ignore"):
        found, report = hg.matmul(*tensors(a, b), return_report=True, **options)
        want, wanted = hg.matmul(
            a, b, return_report=True, engine="numpy", **({"scheme": FAST} | options)
        )
    accuracy = options.get("accuracy", "fp64")
    assert report.bound <= {"correct": 0.0, "fp64": LEVEL}.get(accuracy, accuracy)
    if report.scheme == wanted.scheme:
        assert_same_bits(found.cpu().numpy(), want)
    assert meets_promise(found.cpu().numpy(), a, b, report.bound).all()


@pytest.mark.parametrize("family", [EASY, HARD])
def test_plans_and_prepared_operands_leave_the_choice_to_the_device(
    make_pair, unread, family
):
    a, b = make_pair(family, *SHAPE)
    x, y = tensors(a, b)
    plan = hg.make_plan(x, y)
    assert "Ozaki2(product='int8', num_moduli=16" in str(plan)
    want, report = called(unread, a, b)
    left = hg.prepare(x, "left", plan=plan)
    assert left.split is None
    results = [
        hg.matmul(x, y, plan=plan, return_report=True),
        hg.matmul(left, y, return_report=True),
    ]
    unread.reads = True
    for found, own in results:
        assert found.cpu().numpy().tobytes() == want.tobytes()
        assert own.scheme == report.scheme


def test_a_small_workspace_changes_no_bit(make_pair, assert_same_bits, unread):
    a, b = make_pair(EASY, 5, 3000, 6)
    want, report = called(unread, a, b, scheme=fixed(2))
    found, small = called(unread, a, b, scheme=fixed(2), workspace=report.workspace - 1)
    assert small.workspace < report.workspace
    assert_same_bits(found, want)


def test_strict_mode_takes_no_native_product(make_pair, assert_same_bits, as_on_gpu):
    for family in (EASY, HARD):
        a, b = make_pair(family, *SHAPE)
        with hg.strict(), np.errstate(all="ignore"):
            found, report = hg.matmul(*tensors(a, b), return_report=True)
        assert not report.native
        assert report.bound <= LEVEL
        assert meets_promise(found.cpu().numpy(), a, b, report.bound).all()


def test_while_a_graph_is_captured_a_record_is_not_read(
    make_pair, as_on_gpu, monkeypatch
):
    from hifigemm.engines.cuda import required_bits

    x, y = tensors(*make_pair(EASY, *SHAPE))

    def refuse():
        raise hg.PlanError("while a graph is captured")

    monkeypatch.setattr(required_bits, "check_not_capturing", refuse)
    with pytest.raises(hg.PlanError, match="while a graph is captured"):
        hg.matmul(x, y, accuracy="correct", scheme=FAST)


# Both roundings of one product, and C before the one rounding.


@pytest.fixture
def repeats(as_on_gpu, monkeypatch):
    """A function after which calls are repeated, or fail."""

    def fail(*arguments, **options):
        raise AssertionError("this call was planned anew")

    return lambda: monkeypatch.setattr(road, "plan_for", fail)


FAMILIES = ["phi_1", "nearly_cancelling", "underflowing", "overflowing"]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_both_arrays_come_from_one_product(
    make_pair, assert_same_bits, as_on_gpu, repeats, result, dtype
):
    # Wide exponents of float64 and complex operands take other ways, which are slow in
    # the interpreter.
    for family in FAMILIES if dtype == "float32" else FAMILIES[:2]:
        a, b = make_pair(family, 4, 6, 5, dtype)
        options = {"result": result}
        parts, report = hg.matmul(*tensors(a, b), **options, return_report=True)
        want = hg.matmul(a, b, result=result)
        for x, y in zip(parts, want, strict=True):
            assert_same_bits(on_host(x), y)
        assert report.correct
        # Sums in words take what no moduli hold, products what is complex beyond them.
        if isinstance(report.scheme, hg.Ozaki2) and family == "phi_1":
            moduli = moduli_set(report.scheme.count, dtype == "complex128")
            planes = num_planes(moduli, dtype == "complex128")
            assert report.num_products == planes

    # A call of the same kind goes straight to its launches. (Complex tensors of a CPU
    # have no key.)
    if dtype == "complex128" and DEVICE == "cpu":
        return
    a, b = make_pair("phi_1", 4, 6, 5, dtype, seed=1)
    hg.matmul(*tensors(a, b), **options)
    want = hg.matmul(a, b, result=result)
    repeats()
    parts = hg.matmul(*tensors(a, b), **options)
    for x, y in zip(parts, want, strict=True):
        assert_same_bits(on_host(x), y)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize(("alpha", "beta"), [(-1.0, 1.0), (0.5, -4.0)])
def test_c_is_added_before_the_one_rounding(
    make_pair, assert_same_bits, as_on_gpu, repeats, dtype, alpha, beta
):
    scalars = {"alpha": alpha, "beta": beta, "accuracy": "correct"}
    for family in FAMILIES[:3]:
        a, b = make_pair(family, 4, 6, 5, dtype)
        c = hg.matmul(a, b, accuracy="correct")
        c[1] *= 1e-30
        c.real[0, :2] = np.inf, np.nan
        x, report = hg.gemm(*tensors(a, b, c), **scalars, return_report=True)
        assert_same_bits(on_host(x), hg.gemm(a, b, c, **scalars))
        assert "C among the terms" in report.reason
        assert report.correct

    # Calls of the same kind go straight to their launches, into C as well. (Complex
    # tensors of a CPU have no key.)
    if dtype == "complex128" and DEVICE == "cpu":
        return
    a, b = make_pair("phi_1", 4, 6, 5, dtype, seed=1)
    x, y, z = tensors(a, b, c)
    hg.gemm(x, y, z, **scalars)
    hg.gemm(x, y, z.clone(), **scalars, out=torch.empty_like(z))
    want = hg.gemm(a, b, c, **scalars)
    repeats()
    assert_same_bits(on_host(hg.gemm(x, y, z, **scalars)), want)
    out = torch.empty_like(z)
    assert hg.gemm(x, y, z, **scalars, out=out) is out
    assert_same_bits(on_host(out), want)
    assert hg.gemm(x, y, z, **scalars, out=z) is z
    assert_same_bits(on_host(z), want)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_vectors_that_no_moduli_hold_are_sums_in_words(
    make_pair, assert_same_bits, as_on_gpu, monkeypatch, dtype
):
    monkeypatch.setattr(outliers, "_LEAST_WORK_SEPARATE", 1)
    a, b = make_pair("phi_1", 6, 7, 9, dtype)
    c = make_pair("phi_1", 6, 9, 9, dtype)[0]
    large, small = (300, -300) if dtype == "float64" else (110, -120)
    a[2, 3:5] = np.ldexp(a[2, 3:5], [large, small])
    b[1:3, 4] = np.ldexp(b[1:3, 4], [large, small])
    x, y, z = tensors(a, b, c)
    for accuracy in ("correct", hg.Relative(1e-3), 1e-20):
        found, report = hg.matmul(x, y, accuracy=accuracy, return_report=True)
        assert_same_bits(on_host(found), correctly_rounded(a, b))
        assert "1 row and 1 column by sums in words" in report.reason
    for found, want in zip(
        hg.matmul(x, y, result="pair"), hg.matmul(a, b, result="pair"), strict=True
    ):
        assert_same_bits(on_host(found), want)
    for alpha, beta in ((1.0, 1.0), (1.5, 0.25), (1.5, 0.0)):
        scalars = {"alpha": alpha, "beta": beta, "accuracy": "correct"}
        want = hg.gemm(a, b, c, **scalars)
        assert_same_bits(on_host(hg.gemm(x, y, z, **scalars)), want)
