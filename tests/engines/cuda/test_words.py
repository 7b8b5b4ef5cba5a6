"""Products of words as programs, in the interpreter up to the order of sums;
test_cuda_sgemm.py tests their bits.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base.formats import BF16, FP16, FP32
from hifigemm.base.store import forget
from hifigemm.engines import engine_for
from hifigemm.engines.cuda import words as of_words
from hifigemm.engines.cuda.lowering import Arguments, layout
from hifigemm.engines.cuda.words import sums_of
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.model.accuracy import resolve
from hifigemm.model.executable import RecordedDecision
from hifigemm.model.plan import Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.tensor_core import H100, V100
from hifigemm.running.auto import chosen_native, words_by_exponents
from hifigemm.running.executor import execute
from hifigemm.running.planner import for_problem
from hifigemm.testing.matrices import EXPONENT_FAMILIES, exponent_family
from hifigemm.testing.reference import meets_promise
from tests.engines.stand_in import DEVICE, arrays, lowered, on_host, planned

WORDS = hg.Corrected("fp16"), hg.Corrected("tf32")
NUMPY = engine_for("numpy")
SINGLE = np.dtype(np.float32)
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def uniform(rng, *shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def run(plan, a, b, engine, shift=0, epilogue=PLAIN, out=None):
    """The outcome of a plan that has launches, and the values."""
    assert engine.lowering(plan) is not None
    _, outcome = execute(plan, *arrays(a, b), engine, 2**28, shift, epilogue, out=out)
    return outcome, on_host(outcome.values)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", block=16),
        hg.Corrected(shift_low=False, split_rounding="zero"),
        hg.Multiword("tf32", 1, 1),
        hg.Multiword("fp16", 1, 1, accumulate="blocked", block=32),
        hg.Multiword("tf32", 2, 3),
        # the interpreter has no products of BF16
        hg.Multiword("fp16", 2, 4, split_rounding="zero"),
        hg.Multiword("fp16", 2, 4, accumulate="separate"),
        hg.Multiword("tf32", 2, 3, accumulate="blocked", block=48),
    ],
    ids=str,
)
def test_values_epilogue_and_stacks_are_those_of_the_scheme(scheme, engine):
    rng = np.random.default_rng(1)
    a, b, c = uniform(rng, 1, 21, 70), uniform(rng, 2, 70, 18), uniform(rng, 2, 21, 18)
    a[0, 3, 5] = np.inf
    plan = planned(scheme, a, b, engine)
    want = hg.gemm(
        a, b, c, alpha=0.3 * 2, beta=-1.5, scheme=scheme, engine="simulated-h100"
    )
    (z,), target = (
        arrays(c),
        np.swapaxes(arrays(np.zeros((2, 18, 21), np.float32))[0], 1, 2),
    )
    for out in (None, target):
        _, values = run(plan, a, b, engine, 1, Epilogue(0.3, -1.5, z), out)
        np.testing.assert_allclose(values, want, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(on_host(target), values)
    plain = run(plan, a, b, engine, out=target)[0].values
    assert unwrap(plain).data_ptr() == unwrap(target).data_ptr()
    np.testing.assert_allclose(
        on_host(plain), run(plan, a, b, engine)[1], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Multiword("fp32", 2, 3),
        hg.Multiword("fp32", 2, 4, split_rounding="zero", accumulate="separate"),
        hg.Multiword("fp32", 1, 1, scale=False),
    ],
    ids=str,
)
def test_words_of_float64_operands_have_the_bits_of_the_scheme(scheme, engine):
    """Entries of 28 bits, whose products of words add up exactly in any order: so the
    order in which a library adds them does not matter.
    """
    rng = np.random.default_rng(22)

    def entries(*shape):
        return rng.integers(2**27, 2**28, shape) * rng.choice([-1.0, 1.0], shape)

    a, b, c = entries(1, 21, 20), entries(2, 20, 18), entries(2, 21, 18)
    a[0, 7, 3], b[1, 4, 5] = np.inf, np.nan
    if scheme.scale:
        a[0, 3] *= 2.0**900
        b[1, :, 4] *= 2.0**-700
    plan = planned(scheme, a, b, engine)
    with np.errstate(all="ignore"):
        want = hg.matmul(a, b, scheme=scheme, engine="numpy")
    np.testing.assert_array_equal(run(plan, a, b, engine)[1], want)
    blocks = planned(scheme, a, b, engine, workspace=plan.workspace // 2)
    assert not blocks.is_whole
    np.testing.assert_array_equal(run(blocks, a, b, engine)[1], want)
    (z,), target = arrays(c), arrays(np.zeros((2, 18, 21)))[0]
    target = np.swapaxes(target, 1, 2)
    with np.errstate(all="ignore"):
        want = hg.gemm(
            a, b, c, alpha=0.25 * 2, beta=-1.5, scheme=scheme, engine="numpy"
        )
    _, values = run(plan, a, b, engine, 1, Epilogue(0.25, -1.5, z), target)
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(on_host(target), want)


def test_complex_words_of_float64_operands_are_those_of_the_embedding(engine):
    rng = np.random.default_rng(23)
    scheme = hg.Multiword("fp32", 2, 3)
    a, b = (
        rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)
        for shape in ((1, 9, 40), (2, 40, 7))
    )
    plan = planned(scheme, a, b, engine)
    values = run(plan, a, b, engine)[1]
    np.testing.assert_allclose(values, a @ b, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Multiword("tf32", 2, 3, scale=False),
        hg.Multiword("tf32", 2, 4, scale=False, accumulate="separate"),
        hg.Corrected("tf32", scale=False),
        hg.Corrected("fp16", scale=False),
        hg.Multiword("fp16", 2, 4, scale=False, split_rounding="zero"),
    ],
    ids=str,
)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("shift", [0, 2])
def test_sums_of_unscaled_words_that_overflow_are_completed(scheme, shift, engine):
    """Products of 2**140 cancel in the first block of k: an Inf or NaN in FP32, and
    exactly 2**60. FP16 words saturate.
    """
    rng = np.random.default_rng(24)
    a, b = uniform(rng, 2, 21, 70), uniform(rng, 1, 70, 18)
    if scheme.product == "tf32":
        a[1, 2] = 2.0**70
        b[0, :64, 3] = np.where(np.arange(64) % 2, 2.0**70, -(2.0**70))
        b[0, 64:, 3] = 0.0
        b[0, 66, 3] = 2.0**-10
    a[0, 5, 5], b[0, 3, 2] = np.inf, np.nan
    with np.errstate(all="ignore"):
        want = hg.gemm(a, b, alpha=2.0**shift, scheme=scheme, engine="simulated-h100")
    plan = planned(scheme, a, b, engine)
    _, values = run(plan, a, b, engine, shift)
    if scheme.product == "tf32":
        assert values[1, 2, 3] == want[1, 2, 3] == 2.0 ** (60 + shift)
        large = np.abs(want) > 2.0**50
        np.testing.assert_allclose(values[large], want[large], rtol=1e-5)
        values[large] = want[large] = 0.0
    np.testing.assert_allclose(values, want, rtol=0, atol=2e-3)


def complex_uniform(rng, *shape):
    return (uniform(rng, *shape) + 1j * uniform(rng, *shape)).astype(np.complex64)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "scheme",
    [hg.Corrected(), hg.Corrected("tf32"), hg.Multiword("fp16", 1, 1)],
    ids=str,
)
def test_complex_products_are_those_of_the_embedding(scheme, engine):
    rng = np.random.default_rng(21)
    a, b, c = (complex_uniform(rng, *s) for s in ((1, 9, 40), (2, 40, 7), (2, 9, 7)))
    a[0, 3, 5] = complex(np.inf, 1)
    plan = planned(scheme, a, b, engine)
    assert plan.num_products == 4 * len(
        scheme.pair_errors(sums_of(scheme, 80, H100).unit, 80)
    )
    with np.errstate(all="ignore"):
        want = hg.gemm(
            a, b, c, alpha=0.6, beta=-1.5j, scheme=scheme, engine="simulated-h100"
        )
    (z,), room = arrays(c), np.zeros((2, 7, 9), np.complex64)
    turned = np.swapaxes(np.swapaxes(a, 1, 2).copy(), 1, 2)
    outs = (
        None,
        arrays(np.zeros((2, 9, 7), np.complex64))[0],
        np.swapaxes(arrays(room)[0], 1, 2),
    )
    for out, left in zip(outs, (a, turned, a), strict=True):
        _, outcome = execute(
            plan,
            *arrays_as_they_lie(left, b),
            engine,
            2**28,
            1,
            Epilogue(0.3, -1.5j, z),
            out=out,
        )
        values = on_host(outcome.values)
        np.testing.assert_allclose(values.real, want.real, rtol=0, atol=2e-5)
        np.testing.assert_allclose(values.imag, want.imag, rtol=0, atol=2e-5)
        if out is not None:
            np.testing.assert_array_equal(on_host(out), values)
    blocks = planned(scheme, a, b, engine, workspace=2**13)
    assert not blocks.is_whole
    np.testing.assert_allclose(
        run(blocks, a, b, engine)[1], run(plan, a, b, engine)[1], rtol=0, atol=2e-5
    )


def arrays_as_they_lie(*given):
    return [wrap(torch.from_numpy(x).to(DEVICE)) for x in given]


def test_bits_do_not_depend_on_the_workspace(engine):
    rng = np.random.default_rng(2)
    a, b = uniform(rng, 3, 40, 30), uniform(rng, 3, 30, 50)
    whole, blocks = (
        planned(hg.Corrected(), a, b, engine, workspace=limit)
        for limit in (2**28, 2**15)
    )
    assert whole.is_whole
    assert not blocks.is_whole
    values = [run(p, a, b, engine)[1] for p in (whole, blocks)]
    if DEVICE != "cpu":
        np.testing.assert_array_equal(*values)
    # the interpreter leaves the order of sums to NumPy
    np.testing.assert_allclose(*values, rtol=0, atol=1e-5)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("product", ["fp16", "tf32"])
@pytest.mark.parametrize(
    "family", ["uniform", "phi_4", "sparse", "span_60", "opposed_spans", "badly_scaled"]
)
def test_bound_from_the_losses_holds(family, product, make_pair, engine):
    """In the interpreter sums are those of FP32 to nearest, which err less than those
    of the unit.
    """
    a, b = (x[None] for x in make_pair(family, 9, 130, 8, np.float32))
    plan = planned(hg.Corrected(product), a, b, engine, states_bound=True)
    assert plan.verification is Verification.NONE
    outcome, values = run(plan, a, b, engine)
    found = outcome.decision()
    assert (found.holds, found.scheme, found.num_products) == (True, plan.scheme, 3)
    assert np.isfinite(found.bound) or family not in ("uniform", "phi_4")
    if np.isfinite(found.bound):
        assert meets_promise(values[0], a[0], b[0], found.bound).all()
    blocks = planned(
        hg.Corrected(product),
        a,
        b,
        engine,
        states_bound=True,
        workspace=plan.workspace // 3,
    )
    assert not blocks.is_whole
    assert run(blocks, a, b, engine)[0].decision().bound == found.bound


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", block=16),
        hg.Corrected(scale=False, block=64),
        hg.Multiword("fp16", 1, 1),
        hg.Multiword("tf32", 1, 1, accumulate="blocked", scale=False, block=32),
        hg.Multiword("fp16", 1, 1, accumulate="separate"),
        hg.Multiword("tf32", 2, 4, accumulate="separate"),
        hg.Multiword("fp16", 2, 3, accumulate="blocked", block=16),
        hg.Multiword("tf32", 2, 3, accumulate="blocked", block=48),
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [1, 16, 70])
def test_sums_of_given_words_are_those_of_the_scheme(scheme, k):
    rng = np.random.default_rng(6)
    a, b = uniform(rng, 3, 11, k), uniform(rng, 1, k, 9)
    simulated, count = engine_for("simulated-h100"), scheme.splitting.num_words
    plan = planned(scheme, a, b, simulated)
    left, right = (
        scheme.split(plan, x, side, None, simulated)
        for x, side in ((a, "left"), (b, "right"))
    )
    assert left.planes.shape == (3, 11, count * k)
    sums = sums_of(scheme, k, H100)
    assert sums.unit == simulated.accumulation(scheme.splitting.fmt)
    got = on_host(sums(*arrays(left.planes, right.planes)))
    want = scheme.sum_products(plan, left.planes, right.planes, simulated)
    scale = np.abs(left.planes).max() * np.abs(right.planes).max() * k
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale)


@pytest.fixture
def costs(engine):
    """Costs by which words are taken."""
    times = SimpleNamespace(native=1.0, word=0.5)
    engine.costs = SimpleNamespace(
        native_seconds=lambda problem: times.native,
        word_seconds=lambda problem: times.word,
        residue_seconds=lambda problem, count, estimate: 9.0,
        halves_pay=lambda m, n, k, planes: False,
        sum_seconds=lambda problem: 1e9,
    )
    return times


@pytest.fixture
def tensors(as_on_gpu, costs):
    """Tensors that are multiplied as those of a GPU are."""
    return lambda *given: [unwrap(x) for x in arrays(*given)]


def pair(family, rng, m=9, k=200, n=8):
    if family == "wide":
        return tuple(
            np.ldexp(uniform(rng, *s), rng.integers(-70, 60, s)).astype(np.float32)
            for s in ((m, k), (k, n))
        )
    if family == "uniform":
        return uniform(rng, m, k), uniform(rng, k, n)
    return exponent_family(rng, family, m, k, n)


@pytest.mark.parametrize("family", [*EXPONENT_FAMILIES, "uniform", "wide"])
def test_short_products_have_two_choices_and_plans_keep_theirs(family, tensors, costs):
    """Launches of a third choice would take a sixth of the time; a plan says which
    choices products of it have.
    """
    x, y = tensors(*pair(family, np.random.default_rng(3)))
    long, whole = hg.make_plan(x, y), hg.matmul(x, y, return_report=True)[1]
    costs.native, costs.word = 9e-5, 1e-5
    forget()  # plans are kept, as the costs of an engine stay as they are
    short, (c, report) = hg.make_plan(x, y), hg.matmul(x, y, return_report=True)
    assert (short.scheme, *short.alternatives) == (hg.Corrected("fp16"), hg.Native())
    assert (long.scheme, *long.alternatives) == (
        hg.Corrected("fp16"),
        hg.Corrected("tf32"),
        hg.Native(),
    )
    assert report.scheme == (
        whole.scheme if whole.scheme == hg.Corrected("fp16") else hg.Native()
    )
    assert report.bound <= 200 * 2.0**-24 * 1.001
    assert torch.equal(c, hg.matmul(x, y, plan=short))
    assert hg.matmul(x, y, plan=long, return_report=True)[1].scheme == whole.scheme
    parts = [
        hg.matmul(part, y, plan=plan) for plan in (long, short) for part in (x, x[:5])
    ]
    assert torch.equal(parts[0][:5], parts[1])
    assert torch.equal(parts[2][:5], parts[3])
    costs.native, costs.word = 1.0, 0.5
    forget()
    assert hg.matmul(x, y, plan=short, return_report=True)[1].scheme == report.scheme


@pytest.mark.parametrize("family", [*EXPONENT_FAMILIES, "uniform", "wide"])
def test_auto_takes_the_words_that_hold_the_exponents(family, tensors):
    a, b = pair(family, np.random.default_rng(3))
    x, y = tensors(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    assert torch.equal(c, hg.matmul(x, y))
    if family in ("uniform", "wide"):
        assert (
            report.scheme
            == {"uniform": hg.Corrected("fp16"), "wide": hg.Native()}[family]
        )
    assert report.native == (report.scheme == hg.Native())
    assert report.num_products == (1 if report.native else 3)
    assert report.bound <= 200 * 2.0**-24 * 1.001
    assert meets_promise(c.cpu().numpy(), a, b, report.bound).all()
    if not report.native:
        assert f"{report.scheme} taken" in report.reason
        assert torch.equal(c, hg.matmul(x, y, scheme=report.scheme))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", [*EXPONENT_FAMILIES, "uniform", "wide"])
def test_auto_takes_words_for_complex_operands_too(family, tensors):
    rng = np.random.default_rng(13)
    a, b = (
        (re + 1j * im).astype(np.complex64)
        for re, im in zip(pair(family, rng), pair(family, rng), strict=True)
    )
    x, y = tensors(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    if family in ("uniform", "wide"):
        assert (
            report.scheme
            == {"uniform": hg.Corrected("fp16"), "wide": hg.Native()}[family]
        )
    assert report.num_products == (1 if report.native else 12)
    assert report.bound <= 400 * 2.0**-24 * 1.001
    assert meets_promise(c.cpu().numpy(), a, b, report.bound).all()
    assert torch.equal(c, hg.matmul(x, y))
    out = torch.empty((8, 9), dtype=torch.complex64, device=DEVICE).T
    for _ in range(2):
        assert torch.equal(hg.matmul(x, y, out=out), c)
    assert torch.equal(hg.matmul(x.conj(), y.conj()), c.conj().resolve_conj())
    if not report.native:
        assert torch.equal(c, hg.matmul(x, y, scheme=report.scheme))


def test_auto_is_asked_only_where_somebody_listens(tensors, monkeypatch, caplog):
    asked = []

    def decision(self, words):
        asked.append(words)
        return RecordedDecision(True, WORDS[1], 1.0, 3, 32)

    monkeypatch.setattr(of_words._Choice, "decision", decision)
    # a problem of its own
    x, y = tensors(*pair("uniform", np.random.default_rng(4), m=7))
    hg.matmul(x, y)
    hg.gemm(x, y, alpha=0.0)
    report = hg.matmul(x, y, return_report=True)[1]
    assert not asked
    assert report.scheme == WORDS[1]
    assert (report.bound, report.num_products, report.k_block) == (1.0, 3, 32)
    assert len(asked) == 1
    forget()  # products that are made as before ask nobody
    with caplog.at_level(logging.INFO, "hifigemm"):
        hg.matmul(x, y)
    assert f"{WORDS[1]} taken" in caplog.text
    assert len(asked) == 2


def test_strict_mode_refuses_sums_outside_the_tensor_cores(tensors):
    rng = np.random.default_rng(5)
    with hg.strict():
        hg.matmul(*tensors(*pair("uniform", rng)))
        with pytest.raises(hg.AccuracyError, match="would fall back to Native"):
            hg.matmul(*tensors(*pair("wide", rng)))


def test_gemm_out_stacks_and_special_values_under_auto(tensors):
    rng = np.random.default_rng(7)
    a, b, c = uniform(rng, 2, 1, 8, 70), uniform(rng, 3, 70, 9), uniform(rng, 9)
    a[1, 0, 2, 3] = np.inf
    x, y, z = tensors(a, b, c)
    out = torch.full((2, 3, 9, 8), 7.0, device=DEVICE).transpose(2, 3)
    got, report = hg.gemm(x, y, z, alpha=0.3, beta=-2.0, out=out, return_report=True)
    assert got is out
    assert report.scheme == WORDS[0]
    with np.errstate(all="ignore"):
        want = 0.3 * (a.astype(np.float64) @ b) - 2.0 * c
    np.testing.assert_allclose(out.cpu().numpy(), want, rtol=0, atol=1e-5)


def test_plans_leave_the_choice_to_the_device(tensors):
    rng = np.random.default_rng(8)
    a, b = pair("uniform", rng)
    x, y = tensors(a, b)
    plan = hg.make_plan(x, y)
    assert (plan.scheme, *plan.alternatives) == (*WORDS, hg.Native())
    assert plan.verification is Verification.ON_DEVICE
    assert "Corrected(product='tf32'" in str(plan)
    want, wide = hg.matmul(x, y), tensors(*pair("wide", rng))
    assert torch.equal(hg.matmul(x, y, plan=plan), want)
    left = hg.prepare(x, "left", plan=plan)
    assert left.split is None
    assert torch.equal(hg.matmul(left, y), want)
    assert hg.matmul(*wide, plan=plan, return_report=True)[1].native
    assert hg.matmul(x, y, plan=plan, workspace=100, return_report=True)[1].native
    assert hg.matmul(x, y, workspace=100, return_report=True)[1].native
    assert (
        for_problem(plan, plan.problem, NUMPY, 2**28, states_bound=False).scheme
        == hg.Native()
    )


def test_auto_takes_words_only_where_they_are_expected_to_be_quicker(tensors, costs):
    x, y = tensors(*pair("uniform", np.random.default_rng(9)))
    for options, taken in (
        ({}, WORDS[0]),
        ({"accuracy": "fp32"}, WORDS[0]),
        ({"accuracy": 1e-3}, hg.Native()),
        # The exact product of numbers of 24 bits takes fewer moduli than the bound of
        # float64 asks for.
        ({"accuracy": "fp64"}, hg.Ozaki2(num_moduli=10, scaling="fast")),
    ):
        assert hg.matmul(x, y, return_report=True, **options)[1].scheme == taken
    costs.word = 0.7
    forget()
    chosen_native.cache_clear()
    assert hg.matmul(x, y, return_report=True)[1].native


@pytest.mark.parametrize("scheme", WORDS, ids=str)
def test_certified_products_are_those_that_are_not(scheme, tensors):
    """One bound for all entries where that is enough, else a closer look; the values
    are the same.

    A report of a call without an accuracy states the one bound, as nothing was looked
    at again.
    """
    rng = np.random.default_rng(10)
    a, b = pair("uniform", rng)
    for lost in (0, 40):
        a[3, 5] = 2.0 ** (-lost - 60)
        x, y = tensors(a, b)
        want = hg.matmul(x, y, scheme=scheme)
        for options in ({}, {"accuracy": 1e-4}):
            got, report = hg.matmul(x, y, scheme=scheme, return_report=True, **options)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
            assert report.bound <= 1e-4 or not options
            assert report.scheme == scheme
            if np.isfinite(report.bound):
                assert meets_promise(got.cpu().numpy(), a, b, report.bound).all()
    with pytest.raises(hg.AccuracyError):
        hg.matmul(x, y, scheme=scheme, accuracy=1e-7)


# the interpreter has no products of BF16
NARROW = [torch.float16, *([torch.bfloat16] if DEVICE != "cpu" else [])]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_operands_take_one_product(dtype, tensors):
    rng = np.random.default_rng(11)
    x, y = (t.to(dtype) for t in tensors(*pair("uniform", rng)))
    product = "fp16" if dtype is torch.float16 else "bf16"
    scheme = hg.Multiword(product, 1, 1, accumulate="blocked", block=32)
    c, report = hg.matmul(x, y, return_report=True)
    assert (c.dtype, report.scheme, report.num_products) == (torch.float32, scheme, 1)
    a, b = x.float(), y.float()
    assert report.bound < 200 * 2.0**-24
    assert meets_promise(
        c.cpu().numpy(), a.cpu().numpy(), b.cpu().numpy(), report.bound
    ).all()
    assert torch.equal(c, hg.matmul(x, y))
    assert torch.equal(c, hg.matmul(a, b, scheme=scheme))
    assert torch.equal(-c, hg.gemm(x, y, alpha=-1.0))
    plan = hg.make_plan(x, y)
    assert torch.equal(c, hg.matmul(hg.prepare(x, "left", plan=plan), y))
    # The plan of narrow operands is none of other ones.
    assert hg.matmul(a, b, plan=plan, return_report=True)[1].scheme == WORDS[0]
    x[0, 0], y[0, 1] = torch.inf, torch.nan
    torch.testing.assert_close(
        hg.matmul(x, y), x.float() @ y.float(), rtol=1e-3, atol=1e-3, equal_nan=True
    )


def test_subnormal_float16_operands_take_words_with_more_exponents(tensors):
    """In FP16 a subnormal number is aligned like 2**-14, and what lies 25 bits below
    that is lost.
    """
    a = np.full((1, 16), 2.0**-24, np.float16)
    b = np.full((16, 1), 2.0**-7 * (1 + 2.0**-10), np.float16)
    a[0, 0], b[0, 0] = 2.0**-23, 1.0
    a = np.tile(
        np.concatenate([a, [[*[0.0] * 15, 60000.0]]]).astype(np.float16), (1, 8)
    )
    a[0], b = (
        np.where(np.arange(128) < 127, a[0], np.float16(60000.0)),
        np.tile(b, (8, 1)),
    )
    b[-1] = 0.0
    x, y = tensors(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    assert report.scheme == hg.Multiword("tf32", 1, 1, accumulate="blocked", block=16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (
        np.abs(c.cpu().numpy() - exact) <= (report.bound + 2.0**-24) * np.abs(exact)
    ).all()


def test_narrow_operands_go_through_float32_otherwise(tensors):
    rng = np.random.default_rng(12)
    a, b = (x.astype(np.float16) for x in pair("uniform", rng))
    x, y = tensors(a, b)
    wide = [t.float() for t in (x, y)]
    for options in (
        {"accuracy": "fp64"},
        {"accuracy": "correct"},
        {"scheme": hg.Corrected()},
        {"accuracy": 1e-3},
    ):
        assert torch.equal(hg.matmul(x, y, **options), hg.matmul(*wide, **options))
    for other, dtype in (
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
    ):
        c = hg.matmul(x, y.to(other), accuracy=1e-3)
        assert c.dtype is dtype
        assert torch.equal(
            c, hg.matmul(x.to(dtype), y.to(other).to(dtype), accuracy=1e-3)
        )


def test_what_the_kernels_do_not_have_is_left_to_the_steps(engine):
    a, b = np.ones((1, 4, 99), np.float32), np.ones((1, 99, 4), np.float32)
    odd_blocks = hg.Multiword("bf16", 3, 6, accumulate="blocked", block=24)
    for scheme in (
        hg.Corrected(block=24),
        odd_blocks,
        hg.Corrected(block=100),
    ):
        assert engine.lowering(planned(scheme, a, b, engine)) is None
    assert sums_of(odd_blocks, 24, H100).sums == "chained"
    doubles = a.astype(np.float64), b.astype(np.float64)
    for scheme in (
        hg.Multiword("fp32", 2, 3, split_rounding="nearest-away"),
        hg.Multiword("fp32", 2, 3, accumulate="blocked"),
    ):
        assert engine.lowering(planned(scheme, *doubles, engine)) is None
    assert sums_of(hg.Corrected(block=100), 40, H100).block == 64
    assert (
        engine.lowering(
            planned(hg.Corrected(block=100), a[..., :40], b[:, :40], engine)
        )
        is not None
    )
    assert (
        of_words.lowering(planned(hg.Corrected(), a, b, engine), engine.place, V100)
        is None
    )
    assert (
        engine.lowering(
            planned(hg.Corrected(), a.astype(complex), b.astype(complex), NUMPY)
        )
        is None
    )


@pytest.mark.parametrize("narrow", [None, FP16, BF16])
def test_products_of_few_terms_are_better_in_fp32(narrow, engine, costs):
    def plan(k, dtype=SINGLE, engine=engine):
        problem = Problem(1, 4, 4, k, dtype, narrow)
        return words_by_exponents(problem, resolve(None, FP32, k), engine, 2**28)

    assert plan(32 if narrow is None else 8) is None
    assert plan(128 if narrow is None else 64).alternatives
    if narrow is None:
        assert plan(16, np.dtype(np.complex64)) is None
        assert plan(64, np.dtype(np.complex64)).alternatives
    assert plan(128, engine=NUMPY) is None


@pytest.mark.parametrize("lost", [(0, 0), (5, 0), (24, 0), (30, 24), (30, 40)])
def test_a_record_says_which_words_were_taken(lost, engine, costs):
    """Two numbers for each format: 1 and the bits that either operand loses, 0 where no
    words were made.
    """
    a = uniform(np.random.default_rng(1), 1, 4, 200)
    b = uniform(np.random.default_rng(2), 1, 200, 4)
    plan = planned("auto", a, b, engine)
    assert plan.verification is Verification.ON_DEVICE
    known = tuple(sums_of(scheme, 200, H100) for scheme in WORDS)
    most = tuple(of_words._most_lost(plan, sums) for sums in known)
    record = np.zeros(8, np.int32)
    record[0:2] = 1 + lost[0], 1
    record[4:6] = (1, 1 + lost[1]) if lost[0] > most[0] else (0, 0)
    found = engine.lowering(plan).decision(record.view(np.int64).tolist())
    taken = next((i for i in range(2) if lost[i] <= most[i]), None)
    if taken is None:
        assert found == RecordedDecision(
            True, hg.Native(), native_bound(200, 2.0**-24), 1, 200
        )
    else:
        bound = WORDS[taken].worst_case(known[taken].unit, 200, lost[taken])
        assert (found.scheme, found.bound, found.num_products) == (
            WORDS[taken],
            bound,
            3,
        )
        assert found.bound <= plan.bound


CUT = [
    hg.Corrected(),
    hg.Corrected("tf32", block=16, scale=False),
    hg.Multiword("fp16", 2, 3, accumulate="blocked", block=32),
]


@pytest.mark.parametrize("scheme", CUT, ids=str)
def test_programs_add_the_sums_of_spans(scheme, engine):
    """Of a stack, with an epilogue, in blocks, and with Inf in an operand."""
    rng = np.random.default_rng(3)
    a, b, c = (
        uniform(rng, 1, 21, 300),
        uniform(rng, 2, 300, 18),
        uniform(rng, 2, 21, 18),
    )
    a[0, 3, 5] = np.inf
    options = {"alpha": 0.6, "beta": -1.5, "engine": "simulated-h100"}
    simulated = hg.make_plan(a, b, scheme=scheme, engine="simulated-h100")
    cut = replace(simulated, k_span=128)
    want = hg.gemm(a, b, c, plan=cut, **options)
    z = arrays(c)[0]
    for workspace in (2**28, 2**16):
        plan = planned(scheme, a, b, engine, workspace=workspace)
        assert plan.is_whole == (workspace == 2**28)
        plan = replace(plan, k_span=128)
        values = run(plan, a, b, engine, 1, Epilogue(0.3, -1.5, z))[1]
        np.testing.assert_allclose(values, want, rtol=0, atol=2e-5)


def test_sums_of_given_words_are_cut_as_the_plan_says(engine):
    rng = np.random.default_rng(4)
    a, b = uniform(rng, 1, 5, 200), uniform(rng, 1, 200, 6)
    scheme = hg.Corrected()
    simulated = engine_for("simulated-h100")
    plan = replace(planned(scheme, a, b, simulated), k_span=64)
    left = scheme.split(plan, a, "left", None, simulated)
    right = scheme.split(plan, b, "right", None, simulated)
    sums = sums_of(scheme, 200, H100, plan.k_span)
    assert sums.span == 64
    got = on_host(sums(*arrays(left.planes, right.planes)))
    want = scheme.sum_products(plan, left.planes, right.planes, simulated)
    scale = np.abs(left.planes).max() * np.abs(right.planes).max() * 200
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_bounds_of_programs_count_spans(product, engine):
    rng = np.random.default_rng(5)
    a, b = uniform(rng, 1, 4, 1000), uniform(rng, 1, 1000, 3)
    scheme = hg.Corrected(product)
    plan = planned(scheme, a, b, engine, states_bound=True)
    bounds = []
    for span in (0, 256):
        outcome, values = run(replace(plan, k_span=span), a, b, engine)
        certificate = outcome.decision()
        unit = sums_of(scheme, 1000, H100).unit
        lost = 0 if product == "tf32" else None
        if lost is not None:
            assert certificate.bound == scheme.worst_case(unit, 1000, lost, span)
        assert meets_promise(values[0], a[0], b[0], certificate.bound).all()
        bounds.append(certificate.bound)
    assert bounds[1] < bounds[0]


@pytest.mark.parametrize("narrow", [None, FP16, BF16])
@pytest.mark.parametrize("k", [2**15 - 1, 2**15, 2**16 + 70])
def test_auto_says_where_it_cuts_a_long_k(k, narrow, engine, costs):
    """Spans of all choices are the same; those of a plan for a shorter k are none of
    a longer one's.
    """
    problem = Problem(1, 40, 33, k, SINGLE, narrow)
    target = resolve(None, FP32, k)
    plan = words_by_exponents(problem, target, engine, 2**28)
    words = [s for s in (plan.scheme, *plan.alternatives) if s != hg.Native()]
    assert {scheme.spans for scheme in words} == {k >= 2**15}
    assert bool(plan.k_span) == (k >= 2**15)
    assert ("spans=True" in str(plan)) == ("in spans of" in str(plan)) == (k >= 2**15)
    short = replace(problem, k=500)
    other = words_by_exponents(short, target, engine, 2**28, passed_plan=plan)
    assert (other.scheme.spans, other.k_span) == (False, 0)
    again = words_by_exponents(problem, target, engine, 2**28, passed_plan=other)
    assert (again.scheme, again.k_span) == (plan.scheme, plan.k_span)


@pytest.mark.parametrize("span", [0, 64])
def test_the_device_chooses_between_words_in_spans(span, engine, costs):
    rng = np.random.default_rng(6)
    a, b = uniform(rng, 1, 9, 200), uniform(rng, 1, 200, 7)
    a[0, 0, 0] = 2.0**-60  # FP16 words lose it
    plan = planned("auto", a, b, engine)
    assert plan.verification is Verification.ON_DEVICE
    outcome, values = run(replace(plan, k_span=span), a, b, engine)
    found = outcome.decision()
    assert found.scheme == WORDS[1]
    unit = sums_of(WORDS[1], 200, H100).unit
    assert found.bound == WORDS[1].worst_case(unit, 200, 0, span)
    assert meets_promise(values[0], a[0], b[0], found.bound).all()


@pytest.mark.parametrize("k", [5000, 2**15])
@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_launches_take_the_workspace_of_its_plan(product, k, engine, costs):
    """Nothing is run."""
    a = np.broadcast_to(np.float32(1), (2, 300, k))
    b = np.broadcast_to(np.float32(1), (2, k, 200))

    def written(plan):
        p = plan.problem
        lowering = engine.lowering(plan)
        shapes = [(p.batch, p.m, p.k), (p.batch, p.k, p.n), (p.batch, p.m, p.n)]
        tensors = [layout(shape, torch.float32) for shape in shapes]
        arguments = Arguments(*tensors, lowering.layout_of_record())
        return lowering.recorded(plan, arguments).finish().nbytes

    for states_bound in (False, True):
        for spans in (False, True):
            scheme = hg.Corrected(product, spans=spans)
            whole = planned(scheme, a, b, engine, states_bound=states_bound)
            assert written(whole) == whole.workspace
            assert bool(whole.k_span) == (spans and k == 2**15)
        for part in (3, 10):
            plan = planned(
                hg.Corrected(product),
                a,
                b,
                engine,
                states_bound=states_bound,
                workspace=whole.workspace // part,
            )
            assert len(list(plan.blocks())) >= part
            assert written(plan) <= plan.workspace <= whole.workspace // part
    chosen = planned("auto", a, b, engine)
    assert chosen.alternatives
    assert written(chosen) == chosen.workspace
    assert (
        planned("auto", a, b, engine, workspace=chosen.workspace - 1).scheme
        == hg.Native()
    )


CHAINS = [
    hg.Multiword("tf32", 1, 1),
    hg.Multiword("tf32", 2, 3),
    hg.Multiword("tf32", 2, 4, split_rounding="zero"),
    hg.Multiword("fp16", 1, 1),
    hg.Multiword("fp16", 2, 3),
    hg.Multiword("bf16", 3, 6),
    hg.Multiword("bf16", 3, 9),
    hg.Multiword("tf32", 2, 3, accumulate="separate"),
    hg.Multiword("bf16", 3, 6, accumulate="separate"),
    hg.Multiword("tf32", 2, 4, accumulate="blocked"),
    hg.Multiword("fp16", 2, 3, accumulate="blocked", block=128),
    hg.Multiword("bf16", 3, 9, accumulate="blocked", block=48),
    hg.Multiword("tf32", 2, 4, scale=False),
    hg.Multiword("bf16", 3, 6, scale=False, accumulate="blocked"),
    hg.Multiword("fp16", 2, 4, scale=False, split_rounding="zero"),
    hg.Corrected("tf32", scale=False),
]


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", CHAINS, ids=str)
@pytest.mark.parametrize(
    ("family", "m", "k", "n"),
    [("uniform", 150, 520, 270), ("phi_4", 67, 129, 300), ("full_range", 33, 200, 40)],
)
def test_chains_have_the_bits_of_the_model(scheme, family, m, k, n, make_pair, engine):
    a, b = (x[None] for x in make_pair(family, m, k, n, np.float32))
    a[0, 1, 2] = np.inf
    plan = planned(scheme, a, b, engine)
    with np.errstate(all="ignore"):
        want = hg.matmul(a, b, scheme=scheme, engine="simulated-h100")
    np.testing.assert_array_equal(run(plan, a, b, engine)[1], want)


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", WORDS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(40, 30, 50), (300, 3000, 260)])
def test_repeated_products_are_those_of_the_plan(scheme, m, k, n, engine):
    rng = np.random.default_rng(4)
    x, y = arrays(uniform(rng, 1, m, k), uniform(rng, 1, k, n))
    plan = planned(scheme, x, y, engine)
    lowering = engine.lowering(plan)
    for given in (False, True):
        target = arrays(np.zeros((1, m, n), np.float32))[0] if given else None
        again = lowered(lowering, x, y, (m, n), target)
        u, v = uniform(rng, 1, m, k), uniform(rng, 1, k, n)
        want = run(plan, u, v, engine)[1]
        made = torch.empty((1, m, n), device=DEVICE) if given else None
        got = again(*(unwrap(z) for z in arrays(u, v)), made).values
        np.testing.assert_array_equal(on_host(got).reshape(1, m, n), want)
        assert made is None or got is made
