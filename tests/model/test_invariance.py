"""What plans and reports say of the bits of a row, for every scheme and request."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.model.invariance import EVERYTHING

OTHERS = {"other rows", "other columns"}
ROUNDED_IN_ORDER = EVERYTHING - OTHERS

BY_SCHEME = {
    hg.Native(): EVERYTHING,
    hg.Multiword(): ROUNDED_IN_ORDER,
    hg.Corrected(): ROUNDED_IN_ORDER,
    hg.DoubleDouble(): set(),
    hg.Ozaki1(): EVERYTHING,
    hg.Ozaki1(num_slices=4): {"k"},
    hg.Ozaki1("fp64", num_slices=2): {"k"},
    hg.Ozaki1(mode="correct"): set(),
    hg.Ozaki1(mode="dp"): EVERYTHING,
    hg.Ozaki1(mode="dp", num_slices=4): {"k"},
    hg.Ozaki1(num_slices=4, scaling="inner"): {*OTHERS, "shape", "k", "order of k"},
    hg.Ozaki2(): EVERYTHING,
    hg.Ozaki2(num_moduli=14): OTHERS,
    hg.Ozaki2(num_moduli=14, scaling="fast"): {"order of k"},
    hg.Ozaki2(num_moduli=14, scaling="inner"): {*OTHERS, "shape", "k", "order of k"},
    hg.Ozaki2(num_moduli=14, scaling="largest"): {"k"},
    hg.Ozaki2(scaling="largest"): EVERYTHING,
}
BY_ACCURACY = {
    None: EVERYTHING,
    1e-7: EVERYTHING,
    1e-18: EVERYTHING,
    hg.Relative(1e-12): EVERYTHING,
    "fp64": EVERYTHING,
    "correct": set(),
    0: set(),
    hg.Invariant(): {"k"},
    hg.Invariant(1e-7): {"k"},
    hg.Invariant("fp32"): {"k"},
    hg.Invariant(1e-30): set(),
    hg.Invariant("correct"): set(),
    hg.Invariant(hg.Relative(1e-3)): set(),
}


def assert_says(options, causes):
    """Plan and report name these causes, and print them."""
    a = np.arange(12.0).reshape(3, 4) / 7
    plan = hg.make_plan(a, a.T, **options)
    _, report = hg.matmul(a, a.T, return_report=True, **options)
    for x in (plan, report):
        assert x.bits_depend_on == causes
        assert x.invariant == (causes <= {"k"})
        assert x.to_dict()["bits_depend_on"] == sorted(causes)
        for cause in causes or ["nothing else"]:
            assert cause in str(x)


@pytest.mark.parametrize(("scheme", "causes"), BY_SCHEME.items(), ids=str)
def test_a_named_scheme_says_what_a_row_depends_on(scheme, causes):
    assert_says({"scheme": scheme}, causes)


@pytest.mark.parametrize(("accuracy", "causes"), BY_ACCURACY.items(), ids=str)
def test_an_accuracy_says_what_a_row_depends_on(accuracy, causes):
    assert_says({"accuracy": accuracy}, causes)


@pytest.mark.parametrize("scheme", [x for x in BY_SCHEME if x != hg.Native()], ids=str)
def test_correct_rounding_depends_on_nothing_whatever_the_scheme(scheme):
    try:
        assert_says({"scheme": scheme, "accuracy": "correct"}, set())
    except hg.AccuracyError:  # too few slices or moduli for these operands
        assert scheme.explicit


def test_products_of_integers_depend_on_nothing():
    a = np.arange(12).reshape(3, 4)
    for options in ({}, {"accuracy": "correct"}):
        _, report = hg.matmul(a, a.T, return_report=True, **options)
        assert report.bits_depend_on == set()


@pytest.mark.parametrize(("scheme", "causes"), BY_SCHEME.items(), ids=str)
def test_invariant_takes_the_schemes_that_depend_on_k_alone(scheme, causes):
    a = np.ones((3, 4))
    if causes <= {"k"} or scheme == hg.Ozaki2(scaling="largest"):
        plan = hg.make_plan(a, a.T, accuracy=hg.Invariant(), scheme=scheme)
        assert plan.invariant
    else:
        with pytest.raises(hg.PlanError, match="the bits of a row depend on") as error:
            hg.matmul(a, a.T, accuracy=hg.Invariant(), scheme=scheme)
        assert all(cause in str(error.value) for cause in causes)


def test_a_count_that_is_too_small_for_a_number_is_refused_with_the_right_one():
    a = np.ones((3, 256))
    options = {"accuracy": hg.Invariant(1e-7)}
    needed = hg.make_plan(a, a.T, **options).scheme.num_moduli
    for count in range(2, 20):
        scheme = hg.Ozaki2(num_moduli=count, scaling="largest")
        if count >= needed:
            assert hg.make_plan(a, a.T, scheme=scheme, **options).scheme == scheme
        else:
            with pytest.raises(hg.AccuracyError, match=f"takes {needed} moduli"):
                hg.matmul(a, a.T, scheme=scheme, **options)


def test_other_schemes_promise_no_number_by_norms():
    a = np.ones((3, 4))
    with pytest.raises(hg.PlanError, match="has no error bound relative to norms"):
        hg.matmul(a, a.T, accuracy=hg.Invariant(1e-7), scheme=hg.Ozaki1(num_slices=4))
    # What is rounded once keeps every number.
    for scheme in (hg.DoubleDouble(), hg.Ozaki1(mode="correct")):
        _, report = hg.matmul(
            a,
            a.T,
            accuracy=hg.Invariant(1e-7),
            scheme=scheme,
            return_report=True,
        )
        assert report.correct


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_scheme_and_count_follow_from_dtype_k_and_request_alone(dtype):
    rng = np.random.default_rng(0)
    for k in (1, 7, 300):
        for r in (None, 1e-5, 1e-12):
            schemes = set()
            for m, n, batch in ((1, 1, 1), (40, 30, 1), (2, 500, 3)):
                a = (rng.standard_normal((batch, m, k)) * 2.0**100).astype(dtype)
                b = np.zeros((k, n), dtype)
                plan = hg.make_plan(a, b, accuracy=hg.Invariant(r), workspace=2**20 * m)
                schemes.add(plan.scheme)
            assert len(schemes) == 1


def test_invariant_is_an_accuracy_of_products():
    assert hg.Invariant(np.float32(0.5)) == hg.Invariant(0.5)
    for wrong in ("fp16", -1.0, 3, True, hg.Invariant(1e-7)):
        with pytest.raises(hg.PlanError):
            hg.Invariant(wrong)
