"""Scaling along k in programs of residues: the bits of the plain maths, rungs that the
device takes where no other one is enough, exact counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from experiments.grading import make_pair
from hifigemm.engines.cuda.required_bits import inner_inspection_of
from hifigemm.kernels.vectors.scaled_along_k import layout_of_copy
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.plan import Blocking, Verification
from hifigemm.numerics.inner_scaling import (
    inner_exponents,
    inner_required_bits,
    scaled_along_k,
)
from hifigemm.testing.reference import correctly_rounded, meets_promise
from tests.engines.cuda.test_ozaki2 import (
    by_numpy,
    costs,
    expected_costs,
    run,
)
from tests.engines.stand_in import DEVICE, arrays, planned, take_as_device

assert costs  # a fixture that all tests here use
TIGHT = 2.0**-50
"""Tighter than the worst case of a native product of 40 terms."""
INNER = hg.Ozaki2(num_moduli=14, scaling="inner")
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def graded(span, shape=(9, 40, 7), dtype="float64", batch=1, seed=0):
    """A with columns and B with rows graded against each other over `span` bits."""
    rng = np.random.default_rng(seed)
    m, k, n = shape
    exponents = rng.permutation(np.round(np.linspace(-span / 2, span / 2, k)))
    exponents = exponents.astype(int)
    a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
    a = np.ldexp(a / 3, exponents)
    b = np.ldexp(b / 3, -exponents[:, None])
    if dtype.startswith("complex"):
        a = a * (1 + 0.5j)
        b = b * (0.25 - 1j)
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_forced_counts_have_the_bits_of_numpy(engine, dtype, assert_same_bits):
    for span in (0, 40):
        a, b = graded(span, dtype=dtype)
        plan = planned(INNER, a, b, engine, states_bound=True)
        _, outcome, values = run(plan, a, b, engine)
        wanted, report = by_numpy(a, b, INNER, return_report=True)
        assert_same_bits(values, wanted)

        # The record says if the operands were scaled.
        certificate = outcome.decision()
        assert (SCALED_ALONG_K in certificate.notes) == (span > 0)
        assert (SCALED_ALONG_K in report.reason) == (span > 0)
        assert meets_promise(values[0], a[0], b[0], certificate.bound).all()

        # Without a report, and in blocks.
        plan = planned(INNER, a, b, engine)
        for shape in ((1, 9, 7), (1, 4, 3)):
            in_blocks = replace(plan, blocking=Blocking(shape))
            _, outcome, values = run(in_blocks, a, b, engine)
            assert outcome.decision is None
            assert_same_bits(values, wanted)


def test_stacks_and_special_values_have_the_bits_of_numpy(engine, assert_same_bits):
    a, b = graded(40, batch=3)
    a[1, 2, 5] = np.nan
    b[2, 4, 1] = -np.inf
    a[0, 3] = 0.0
    plan = planned(INNER, a, b[:1], engine)
    assert_same_bits(run(plan, a, b[:1], engine)[2], by_numpy(a, b[:1], INNER))
    assert_same_bits(run(plan, a, b, engine)[2], by_numpy(a, b, INNER))


def ladder(a, b, engine):
    """The plan at the level of float64, whose rungs the device chooses between."""
    plan = planned("auto", a, b, engine)
    assert plan.verification is Verification.ON_DEVICE
    return plan


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_device_scales_along_k_where_no_other_rung_is_enough(engine, dtype):
    a, b = graded(60, dtype=dtype)
    # A row of B, larger than all others, that meets zeros alone.
    a[:, :, abs(b[0]).max(axis=1).argmax()] = 0.0
    plan = ladder(a, b, engine)
    _, outcome, values = run(plan, a, b, engine)
    certificate = outcome.decision()
    assert certificate.scheme in plan.alternatives
    assert certificate.scheme.scaling == "inner"
    assert certificate.notes == (SCALED_ALONG_K,)
    assert meets_promise(values[0], a[0], b[0], plan.target.r).all()
    wanted = by_numpy(a, b, certificate.scheme)
    np.testing.assert_array_equal(values, wanted)


def test_rungs_without_scaling_come_first(engine, assert_same_bits):
    a, b = graded(0)
    plan = ladder(a, b, engine)
    _, outcome, values = run(plan, a, b, engine)
    certificate = outcome.decision()
    assert certificate.scheme.scaling == "fast"
    assert certificate.notes == ()
    assert_same_bits(values, by_numpy(a, b, certificate.scheme))


def test_operands_without_a_pattern_go_on_to_the_native_product(engine):
    rng = np.random.default_rng(3)
    for spread in (20, 2000):  # gaps that d does not close
        a, b = (
            np.ldexp(rng.uniform(-1, 1, s), rng.integers(-spread // 2, spread // 2, s))
            for s in ((1, 9, 40), (1, 40, 7))
        )
        _, outcome, _ = run(ladder(a, b, engine), a, b, engine)
        assert outcome.decision().scheme == hg.Native()


@pytest.mark.parametrize(
    ("dtype", "span"), [("float64", 200), ("complex128", 200), ("float64", 2000)]
)
def test_correct_products_take_the_moduli_of_data_without_the_pattern(
    engine, dtype, span, assert_same_bits
):
    a, b = graded(span, dtype=dtype)
    # A row of B that meets zeros alone.
    a[:, :, 5] = 0.0
    plan = planned("auto", *arrays(a, b), engine, "correct")
    assert plan.scheme.scaling == "inner"
    assert plan.scheme.num_moduli <= 22
    assert plan.bound == 0.0
    assert SCALED_ALONG_K in plan.reason
    _, _, values = run(plan, a, b, engine)
    assert_same_bits(values[0], correctly_rounded(a[0], b[0]))


def test_numbers_with_an_exact_product_behind_scale_all_rungs(engine, assert_same_bits):
    engine.costs = expected_costs(1e9)
    a, b = graded(60)
    plan = planned("auto", a, b, engine, TIGHT)
    assert plan.verification is Verification.ON_DEVICE
    assert {s.scaling for s in (plan.scheme, *plan.alternatives)} == {"inner"}
    _, outcome, values = run(plan, a, b, engine)
    certificate = outcome.decision()
    assert certificate.scheme == plan.scheme
    assert meets_promise(values[0], a[0], b[0], TIGHT).all()
    assert_same_bits(values, by_numpy(a, b, plan.scheme))


def test_bits_of_scaled_operands_take_one_look(engine):
    for a, b in (graded(200), graded(0), graded(60, dtype="complex128")):
        left, right = (torch.from_numpy(x).to(DEVICE) for x in (a, b))
        for limit in (0, 10**6):
            look = inner_inspection_of(left, right, limit)
            wanted = inner_required_bits(a, b, limit, 16384)
            bits, copies = look(left, right)
            assert bits == wanted
            if bits is not None:
                d = inner_exponents(a, b, 16384)
                for copy, x, axis in zip(copies, (a, b), (2, 1), strict=True):
                    copy_on_host = copy.cpu().numpy()
                    np.testing.assert_array_equal(
                        copy_on_host, scaled_along_k(x, d, axis)
                    )
                    shape, strides, dtype = layout_of_copy(torch.from_numpy(x), axis)
                    assert tuple(copy.shape) == shape
                    assert copy.stride() == strides
                    assert copy.dtype is dtype
            assert (wanted is None) == (limit == 0 or np.ptp(np.log2(abs(a))) < 30)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_slices_have_the_bits_of_numpy(engine, dtype, monkeypatch, assert_same_bits):
    take_as_device(engine, monkeypatch)
    scheme = hg.Ozaki1(num_slices=4, scaling="inner")
    for span in (0, 60):
        a, b = graded(span, dtype=dtype)
        x, y = (torch.from_numpy(z[0]).to(DEVICE) for z in (a, b))
        c, report = hg.matmul(x, y, scheme=scheme, return_report=True)
        assert_same_bits(c.cpu().numpy(), hg.matmul(a[0], b[0], scheme=scheme))
        assert (SCALED_ALONG_K in report.reason) == (span > 0)


WORDS = (
    (hg.Corrected("fp16"), "float32"),
    (hg.Corrected("fp16"), "complex64"),
    (hg.Corrected("tf32"), "float32"),
    (hg.Multiword("fp16", 2, 3), "float32"),
    (hg.Multiword("tf32", 2, 3, scale=False), "float32"),
    (hg.Multiword("fp32", 2, 3), "float64"),
    (hg.Multiword("fp32", 1, 1), "complex128"),
)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(("scheme", "dtype"), WORDS, ids=str)
def test_words_have_the_bits_of_data_without_units(
    engine, scheme, dtype, assert_same_bits
):
    """The graded operands are A D and D**-1 B of those of span 0; rows and columns with
    Inf and NaN among them.
    """
    inner = replace(scheme, scaling="inner")
    pair = graded(0, dtype=dtype, batch=2)
    plan = planned(scheme, *pair, engine, states_bound=False)
    _, _, wanted = run(plan, *pair, engine)
    for span in (0, 60):
        a, b = graded(span, dtype=dtype, batch=2)
        plan = planned(inner, a, b, engine, states_bound=False)
        assert engine.lowering(plan) is not None
        assert_same_bits(run(plan, a, b, engine)[2], wanted)

        a[0, 2, 5] = np.inf
        b[1, 7, 3] = np.nan
        _, _, values = run(plan, a, b, engine)
        twin = by_numpy(a, b, inner)
        finite = np.isfinite(twin)
        assert_same_bits(values[finite], wanted[finite])
        np.testing.assert_array_equal(values[~finite], twin[~finite])


@pytest.mark.parametrize(
    "scheme", [hg.Corrected("fp16"), hg.Multiword("fp16", 2, 3)], ids=str
)
def test_reports_say_if_words_were_scaled_along_k(engine, scheme, monkeypatch):
    """By the record of a program, or step by step."""
    take_as_device(engine, monkeypatch)
    inner = replace(scheme, scaling="inner")
    wanted = by_numpy(*graded(0, dtype="float32"), inner, return_report=True)[1]
    for span in (0, 60):
        a, b = graded(span, dtype="float32")
        x, y = (torch.from_numpy(z[0]).to(DEVICE) for z in (a, b))
        c, report = hg.matmul(x, y, scheme=inner, return_report=True)
        assert (SCALED_ALONG_K in report.reason) == (span > 0)
        assert report.bound <= wanted.bound * 1.01
        assert meets_promise(c.cpu().numpy(), a[0], b[0], report.bound).all()


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "scheme", [hg.Corrected("fp16"), hg.Corrected("tf32", scale=False)], ids=str
)
def test_words_of_blocks_are_scaled_by_the_whole_operands(engine, scheme):
    inner = replace(scheme, scaling="inner")
    a, b = graded(60, (70, 60, 90), "float32", batch=3)
    whole = planned(inner, a, b, engine, states_bound=False)
    limit = whole.workspace * 3 // 4
    blocks = planned(inner, a, b, engine, workspace=limit, states_bound=False)
    assert whole.is_whole
    assert not blocks.is_whole
    values = [run(plan, a, b, engine)[2] for plan in (whole, blocks)]
    np.testing.assert_allclose(*values, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_repeated_products_look_at_the_operands(engine, monkeypatch, assert_same_bits):
    take_as_device(engine, monkeypatch)
    looks = []
    evidence = hg.Ozaki2.evidence
    monkeypatch.setattr(
        hg.Ozaki2, "evidence", lambda *x: looks.append(1) or evidence(*x)
    )
    for seed in (0, 0, 0):
        for span in (200, 0):
            a, b = graded(span, seed=seed)
            x, y = (torch.from_numpy(z[0]).to(DEVICE) for z in (a, b))
            c = hg.matmul(x, y, accuracy="correct")
            assert_same_bits(c.cpu().numpy(), correctly_rounded(a[0], b[0]))

    # What the first two calls saw is seen again without a plan.
    assert len(looks) == 2


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_repeated_products_keep_inf_and_nan(
    engine, monkeypatch, assert_same_bits, dtype
):
    """Later calls multiply copies of operands, which hold them too."""
    take_as_device(engine, monkeypatch)
    a, b = (z[0].astype(dtype) for z in graded(60, (24, 40, 16), dtype=dtype))
    a[3, 5] = np.inf
    b[7, 2] = np.nan
    with np.errstate(invalid="ignore"):
        expected = hg.matmul(a, b, accuracy="correct")
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    for _ in range(3):
        c, report = hg.matmul(x, y, accuracy="correct", return_report=True)
        assert_same_bits(c.cpu().numpy(), expected)
        assert report.scheme.scaling == "inner"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
def test_repeated_pairs_and_enclosures_give_both_arrays(
    engine, monkeypatch, assert_same_bits, result
):
    take_as_device(engine, monkeypatch)
    a, b = (z[0] for z in graded(200, (3, 24, 2)))
    expected = hg.matmul(a, b, result=result)
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    for _ in range(3):
        parts = hg.matmul(x, y, result=result)
        for found, wanted in zip(parts, expected, strict=True):
            assert_same_bits(found.cpu().numpy(), wanted)


@pytest.mark.slow
def test_a_promise_by_the_error_ratio_is_not_repeated_for_other_operands(as_on_gpu):
    """Ratios are those of the operands at hand, though both look alike to a look at
    bits, which are more than any moduli hold.
    """
    scheme = hg.Ozaki2()
    scaled = [torch.from_numpy(x) for x in make_pair("inner dimension scaled", 16)]
    for _ in range(2):
        hg.matmul(*scaled, scheme=scheme, accuracy=1e-13)
    _, report = hg.matmul(*scaled, scheme=scheme, accuracy=1e-13, return_report=True)
    assert report.scheme.scaling == "inner"
    assert "in every entry" in report.reason
    circulants = [torch.from_numpy(x) for x in make_pair("circulants", 16)]
    with pytest.raises(hg.AccuracyError, match="49"):
        hg.matmul(*circulants, scheme=scheme, accuracy=1e-13)
