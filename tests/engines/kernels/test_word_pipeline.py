"""Whole products of words, in the interpreter up to the order of sums; their bits are tested in test_cuda_sgemm.py."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm import api, libraries
from hifigemm.accuracy import NOTHING_STATED, resolve
from hifigemm.engine import Certificate
from hifigemm.engines import engine_for
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.engines.repetition import repeated
from hifigemm.engines.word_pipeline import ChosenProduct, word_product
from hifigemm.engines.word_sums import word_sums
from hifigemm.formats import BF16, FP16, FP32
from hifigemm.numerics.accumulation import in_any_order
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.tensor_core import H100, V100
from hifigemm.numerics.word_bounds import growth
from hifigemm.plan import Problem
from hifigemm.planning import Options, known_plan
from hifigemm.schemes.word_scheme import word
from hifigemm.select import words_plan
from hifigemm.study.matrices import EXPONENT_FAMILIES, exponent_family
from hifigemm.study.reference import meets_promise
from tests.engines.kernels.stand_in import DEVICE, StandIn, let_copies_arrive

WORDS = hg.Corrected("fp16"), hg.Corrected("tf32")
SINGLE = np.dtype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def on_device(*arrays):
    return [wrap(torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)) for x in arrays]


def planned(scheme, a, b, *, states_bound=False, workspace=2**28):
    """The plan of a forced scheme for NumPy stacks; the simulated engine has the device's blocks and units."""
    problem = Problem(max(len(a), len(b)), a.shape[1], b.shape[2], a.shape[2], SINGLE)
    target = replace(NOTHING_STATED, states_bound=states_bound)
    return scheme.plan(problem, a, b, target, engine_for("simulated-h100"), workspace)


def uniform(rng, *shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def unit_of(scheme):
    """The sums of the simulated engine."""
    return engine_for("simulated-h100").accumulation(scheme.splitting.fmt)


def in_interpreter(scheme):
    """The sums of the interpreter, whose order NumPy chooses."""
    return in_any_order("interpreter", scheme.splitting.fmt, FP32, 1)


def magnitudes(a, b):
    """|A||B|, without the entries that are not finite."""
    return np.matmul(*(np.abs(np.nan_to_num(x.astype(np.float64), posinf=0.0, neginf=0.0)) for x in (a, b)))


def differing(scheme, a, b, *units):
    """What two sums of the same words may differ by: the sum of c_pq |A_p||B_q| for both."""
    *sizes, _ = scheme.splitting.relative_bounds()
    errors = [scheme.pair_errors(unit, a.shape[-1]) for unit in units]
    return sum(c * sizes[p] * sizes[q] for kept in errors for (p, q), c in kept.items()) * magnitudes(a, b)


def assert_close(got, want, most):
    """Finite entries differ by at most so much each, the others are the same."""
    got, want = (np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x, np.float64) for x in (got, want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert (np.abs(got - want)[finite] <= np.broadcast_to(most, want.shape)[finite]).all()


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", block=16),
        hg.Corrected(shift_low=False, split_rounding="zero"),
        hg.Multiword("tf32", 1, 1),
        hg.Multiword("fp16", 1, 1, accumulate="blocked", block=32),
    ],
    ids=str,
)
def test_values_epilogue_and_stacks_are_those_of_the_scheme(scheme):
    rng = np.random.default_rng(1)
    a, b, c = uniform(rng, 1, 21, 70), uniform(rng, 2, 70, 18), uniform(rng, 2, 21, 18)
    a[0, 3, 5] = np.inf
    multiply = word_product(planned(scheme, a, b), H100)
    want = hg.gemm(a, b, c, alpha=0.3 * 2, beta=-1.5, scheme=scheme, engine="simulated-h100")
    x, y, z = on_device(a, b, c)
    target = wrap(torch.empty((2, 18, 21), device=DEVICE).transpose(1, 2))
    sums = differing(scheme, a, b, unit_of(scheme), in_interpreter(scheme))
    # Both round each scaled term and their sum.
    most = 0.6 * sums + 2 * growth((2.0**-24, 3)) * (0.6 * (magnitudes(a, b) + sums) + 1.5 * np.abs(c))
    for out in (None, target):
        made = multiply(x, y, 1, Epilogue(0.3, -1.5, z), (None, None), out)
        assert out is None or made is out
        assert_close(unwrap(made), want, most)
    plain = multiply(x, y, 0, PLAIN, (None, None), target)
    assert plain is target
    same = multiply(x, y, 0, PLAIN, (None, None), None)
    assert_close(unwrap(plain), unwrap(same), differing(scheme, a, b, *[in_interpreter(scheme)] * 2))


def test_bits_do_not_depend_on_the_workspace():
    rng = np.random.default_rng(2)
    a, b = uniform(rng, 3, 40, 30), uniform(rng, 3, 30, 50)
    whole, planes = (planned(hg.Corrected(), a, b, workspace=limit) for limit in (2**28, 2**16))
    assert whole.block_shape == (3, 40, 50) != planes.block_shape
    values = [
        unwrap(word_product(p, H100)(*on_device(a, b), 0, PLAIN, (None, None), None)).cpu() for p in (whole, planes)
    ]
    if DEVICE == "cuda":
        assert torch.equal(*values)
    assert_close(*values, differing(whole.scheme, a, b, *[in_interpreter(whole.scheme)] * 2))


@pytest.mark.parametrize("family", ["uniform", "phi_4", "sparse", "span_60", "opposed_spans", "badly_scaled"])
def test_bound_from_the_losses_holds(family, make_pair):
    """In the interpreter sums are those of FP32 to nearest, which err less than those of the unit."""
    for product in ("fp16", "tf32"):
        a, b = (x[None] for x in make_pair(family, 9, 130, 8, np.float32))
        values, certificate = word_product(planned(hg.Corrected(product), a, b, states_bound=True), H100).certify(
            *on_device(a, b), 0, PLAIN, None
        )
        bound = certificate().bound
        assert np.isfinite(bound) or family not in ("uniform", "phi_4")
        if np.isfinite(bound):
            assert meets_promise(unwrap(values).cpu().numpy()[0], a[0], b[0], bound).all()


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", block=16),
        hg.Corrected(scale=False, block=64),
        hg.Multiword("fp16", 1, 1),
        hg.Multiword("tf32", 1, 1, accumulate="blocked", scale=False, block=32),
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [1, 16, 70])
def test_sums_of_given_words_are_those_of_the_scheme(scheme, k):
    rng = np.random.default_rng(6)
    a, b = uniform(rng, 3, 11, k), uniform(rng, 1, k, 9)
    engine, count = engine_for("simulated-h100"), scheme.splitting.num_words
    plan = planned(scheme, a, b)
    left, right = (scheme.split(plan, x, side, None, engine) for x, side in ((a, "left"), (b, "right")))
    assert left.planes.shape == (3, 11, count * k)
    sums = word_sums(scheme, k, H100)
    assert sums.unit == engine.accumulation(scheme.splitting.fmt)
    got = unwrap(sums(*on_device(left.planes, right.planes))).cpu().numpy()
    want = scheme.sum_products(plan, left.planes, right.planes, engine)
    shift, most = scheme.splitting.low_shift, 0.0
    for unit in (sums.unit, in_interpreter(scheme)):
        for (p, q), c in scheme.pair_errors(unit, k).items():
            x, y = word(left.planes, p, k, left=True), word(right.planes, q, k, left=False)
            most = most + c * 2.0 ** (-shift * (p + q)) * magnitudes(x, y)
    assert_close(got, want, most)


class Tensors(StandIn):
    """With costs by which words are taken."""

    word_costs = 0.5

    @property
    def costs(self):
        times = {"native_seconds": 1.0, "word_seconds": self.word_costs, "residue_seconds": 9.0}
        return SimpleNamespace(**{name: lambda *_, t=t: t for name, t in times.items()})


ENGINE = Tensors()


@pytest.fixture(autouse=True)
def no_capture(monkeypatch):
    """PyTorch for CPUs cannot tell."""
    if DEVICE == "cpu":
        let_copies_arrive(monkeypatch)


@pytest.fixture
def tensors(monkeypatch):
    """CPU tensors are multiplied as those of a GPU are."""
    if DEVICE == "cpu":
        monkeypatch.setattr(libraries.Library, "on_host", property(lambda self: self.name == "numpy"))
        monkeypatch.setattr(libraries.Library, "active", lambda self: nullcontext())
    monkeypatch.setattr(api, "engine_for", lambda *_: ENGINE)
    return lambda *arrays: [unwrap(x) for x in on_device(*arrays)]


def pair(family, rng, m=9, k=200, n=8):
    if family == "wide":
        return tuple(np.ldexp(uniform(rng, *s), rng.integers(-70, 60, s)).astype(np.float32) for s in ((m, k), (k, n)))
    if family == "uniform":
        return uniform(rng, m, k), uniform(rng, k, n)
    return exponent_family(rng, family, m, k, n)


@pytest.mark.parametrize("family", [*EXPONENT_FAMILIES, "uniform", "wide"])
def test_auto_takes_the_words_that_hold_the_exponents(family, tensors):
    a, b = pair(family, np.random.default_rng(3))
    x, y = tensors(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    assert torch.equal(c, hg.matmul(x, y))
    if family in ("uniform", "wide"):
        assert report.scheme == {"uniform": hg.Corrected("fp16"), "wide": hg.Native()}[family]
    assert report.native == (report.scheme == hg.Native())
    assert report.num_products == (1 if report.native else 3)
    assert report.bound <= native_bound(200, 2.0**-24)  # of the product that is taken where no words are
    assert meets_promise(c.cpu().numpy(), a, b, report.bound).all()
    if not report.native:
        assert f"{report.scheme.product.upper()} words taken" in report.reason
        assert torch.equal(c, hg.matmul(x, y, scheme=report.scheme))


def test_auto_is_asked_only_where_somebody_listens(tensors, monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(
        ChosenProduct, "certificate", lambda self, losses: asked.append(losses) or Certificate(WORDS[1], 1.0, 3, 32)
    )
    x, y = tensors(*pair("uniform", np.random.default_rng(4)))
    hg.matmul(x, y)
    hg.gemm(x, y, alpha=0.0)
    assert not asked
    with caplog.at_level(logging.INFO, "hifigemm"):
        hg.matmul(x, y)
    assert "TF32 words taken" in caplog.text
    assert hg.matmul(x, y, return_report=True)[1].scheme == WORDS[1]
    assert len(asked) == 2


def test_strict_mode_refuses_sums_outside_the_tensor_cores(tensors):
    rng = np.random.default_rng(5)
    with hg.strict():
        hg.matmul(*tensors(*pair("uniform", rng)))
        with pytest.raises(hg.AccuracyError, match="would fall back to Native"):
            hg.matmul(*tensors(*pair("wide", rng)))


def test_while_a_graph_is_captured_nothing_is_asked(tensors, monkeypatch):
    x, y = tensors(*pair("uniform", np.random.default_rng(4)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    report = hg.matmul(x, y, return_report=True)[1]
    assert (report.scheme, report.bound) == (WORDS[0], native_bound(200, 2.0**-24))
    assert "not known, as nothing is read back" in report.reason
    with pytest.raises(hg.PlanError, match="while a graph is captured"):
        hg.matmul(x, y, scheme="corrected", accuracy=1e-3)
    with hg.strict(), pytest.raises(hg.AccuracyError, match="would fall back"):
        hg.matmul(x, y)


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
    # The error of the product, r |A||B| + u |AB|, and the roundings of both scaled terms and of their sum.
    terms = 0.3 * (1.0 + report.bound) * magnitudes(a, b) + 2.0 * np.abs(c)
    assert_close(out, want, 0.3 * (report.bound + 2.0**-24) * magnitudes(a, b) + growth((2.0**-24, 3)) * terms)


def test_plans_leave_the_choice_to_the_device(tensors):
    rng = np.random.default_rng(8)
    a, b = pair("uniform", rng)
    x, y = tensors(a, b)
    plan = hg.make_plan(x, y)
    assert plan.choices == (*WORDS, hg.Native())
    assert "Corrected(product='tf32'" in str(plan)
    want, wide = hg.matmul(x, y), tensors(*pair("wide", rng))
    assert torch.equal(hg.matmul(x, y, plan=plan), want)
    left = hg.prepare(x, "left", plan=plan)
    assert left.split is None
    assert torch.equal(hg.matmul(left, y), want)
    assert hg.matmul(*wide, plan=plan, return_report=True)[1].native
    assert hg.matmul(x, y, plan=plan, workspace=100, return_report=True)[1].native
    assert hg.matmul(x, y, workspace=100, return_report=True)[1].native
    known = known_plan(plan, plan.problem, Options(None, "auto", None, plan, None, False), NumpyEngine(), 2**28)
    assert known.scheme == hg.Native()


def test_auto_takes_words_only_where_they_are_expected_to_be_quicker(tensors, monkeypatch):
    x, y = tensors(*pair("uniform", np.random.default_rng(9)))
    for options, taken in (
        ({}, WORDS[0]),
        ({"accuracy": "fp32"}, WORDS[0]),
        ({"accuracy": 1e-3}, hg.Native()),
        ({"accuracy": "fp64"}, hg.Native(product="fp64")),
    ):
        assert hg.matmul(x, y, return_report=True, **options)[1].scheme == taken
    monkeypatch.setattr(Tensors, "word_costs", 0.7)
    assert hg.matmul(x, y, return_report=True)[1].native


@pytest.mark.parametrize("scheme", WORDS, ids=str)
def test_judged_products_are_those_that_are_not(scheme, tensors):
    """One bound for all entries where that is enough, else a closer look; the values are the same."""
    rng = np.random.default_rng(10)
    a, b = pair("uniform", rng)
    for lost in (0, 40):
        a[3, 5] = 2.0 ** (-lost - 60)
        x, y = tensors(a, b)
        want = hg.matmul(x, y, scheme=scheme)
        for options in ({}, {"accuracy": 1e-4}):
            got, report = hg.matmul(x, y, scheme=scheme, return_report=True, **options)
            assert_close(got, want, differing(scheme, a, b, *[in_interpreter(scheme)] * 2))
            assert report.bound <= options.get("accuracy", np.inf)
            assert report.scheme == scheme
            assert meets_promise(got.cpu().numpy(), a, b, report.bound).all()
    with pytest.raises(hg.AccuracyError):
        hg.matmul(x, y, scheme=scheme, accuracy=1e-7)


NARROW = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # the interpreter has no products of BF16


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
    assert meets_promise(c.cpu().numpy(), a.cpu().numpy(), b.cpu().numpy(), report.bound).all()
    assert torch.equal(c, hg.matmul(x, y))
    assert torch.equal(c, hg.matmul(a, b, scheme=scheme))
    assert torch.equal(-c, hg.gemm(x, y, alpha=-1.0))
    plan = hg.make_plan(x, y)
    assert torch.equal(c, hg.matmul(hg.prepare(x, "left", plan=plan), y))
    # The plan of narrow operands is none of other ones.
    assert hg.matmul(a, b, plan=plan, return_report=True)[1].scheme == WORDS[0]
    x[0, 0], y[0, 1] = torch.inf, torch.nan
    sizes = magnitudes(*(t.float().cpu().numpy() for t in (x, y)))
    most = (report.bound + 2.0**-24 + native_bound(200, 2.0**-24)) * sizes
    assert_close(hg.matmul(x, y), x.float() @ y.float(), most)


def test_subnormal_float16_operands_take_words_with_more_exponents(tensors):
    """In FP16 a subnormal number is aligned like 2**-14, and what lies 25 bits below that is lost."""
    a, b = np.full((1, 16), 2.0**-24, np.float16), np.full((16, 1), 2.0**-7 * (1 + 2.0**-10), np.float16)
    a[0, 0], b[0, 0] = 2.0**-23, 1.0
    a = np.tile(np.concatenate([a, [[*[0.0] * 15, 60000.0]]]).astype(np.float16), (1, 8))
    a[0], b = np.where(np.arange(128) < 127, a[0], np.float16(60000.0)), np.tile(b, (8, 1))
    b[-1] = 0.0
    x, y = tensors(a, b)
    c, report = hg.matmul(x, y, return_report=True)
    assert report.scheme == hg.Multiword("tf32", 1, 1, accumulate="blocked", block=16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.abs(c.cpu().numpy() - exact) <= (report.bound + 2.0**-24) * np.abs(exact)).all()


def test_narrow_operands_go_through_float32_otherwise(tensors):
    rng = np.random.default_rng(12)
    a, b = (x.astype(np.float16) for x in pair("uniform", rng))
    x, y = tensors(a, b)
    wide = [t.float() for t in (x, y)]
    for options in ({"accuracy": "fp64"}, {"scheme": hg.Corrected()}, {"accuracy": 1e-3}):
        assert torch.equal(hg.matmul(x, y, **options), hg.matmul(*wide, **options))
    for other, dtype in (
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
    ):
        c = hg.matmul(x, y.to(other), accuracy=1e-3)
        assert c.dtype is dtype
        assert torch.equal(c, hg.matmul(x.to(dtype), y.to(other).to(dtype), accuracy=1e-3))


def test_what_the_kernels_do_not_have_is_left_to_the_steps():
    a, b = np.ones((1, 4, 99), np.float32), np.ones((1, 99, 4), np.float32)
    for scheme in (hg.Corrected(scale=False), hg.Corrected(block=24), hg.Multiword("bf16", 3, 6)):
        assert word_product(planned(scheme, a, b), H100) is None
    assert word_product(planned(hg.Corrected(block=100), a, b), H100) is None
    short = planned(hg.Corrected(block=100), a[..., :40], b[:, :40])
    assert word_product(short, H100).sums.block == 64
    assert word_product(planned(hg.Corrected(), a, b), V100) is None


@pytest.mark.parametrize("narrow", [None, FP16, BF16])
def test_products_of_few_terms_are_better_in_fp32(narrow):
    def plan(k, dtype=SINGLE, engine=ENGINE):
        problem = Problem(1, 4, 4, k, dtype, narrow)
        return words_plan(problem, resolve(None, FP32, k), engine, 2**28)

    assert plan(32 if narrow is None else 8) is None
    assert plan(128 if narrow is None else 64).choices
    assert plan(128, np.dtype(np.complex64)) is None
    assert plan(128, engine=NumpyEngine()) is None


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", WORDS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(40, 30, 50), (300, 3000, 260)])
def test_repeated_products_are_those_of_the_plan(scheme, m, k, n):
    rng = np.random.default_rng(4)
    plan = planned(scheme, uniform(rng, 1, m, k), uniform(rng, 1, k, n))
    for given in (False, True):
        x, y = on_device(uniform(rng, 1, m, k), uniform(rng, 1, k, n))
        target = wrap(torch.empty((1, m, n), device=DEVICE)) if given else None
        for _ in range(3):  # the first one compiles
            again = repeated(word_product(plan, H100), plan, (x, y), (x, y), (m, n), target)
        u, v = on_device(uniform(rng, 1, m, k), uniform(rng, 1, k, n))
        want = unwrap(word_product(plan, H100)(u, v, 0, PLAIN, (None, None), None))
        made = torch.empty((1, m, n), device=DEVICE) if given else None
        got = again(unwrap(u), unwrap(v), made)
        assert torch.equal(got.reshape(1, m, n), want)
        assert made is None or got is made


def test_copied_operands_are_not_repeated():
    rng = np.random.default_rng(5)
    a, b = uniform(rng, 1, 8, 9), uniform(rng, 1, 9, 7)
    x, y, copied = on_device(a, b, a)
    plan = planned(hg.Corrected(), a, b)
    assert repeated(word_product(plan, H100), plan, (copied, y), (x, y), (8, 7), None) is None
