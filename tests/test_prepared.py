"""Prepared operands: the same bits as the operands themselves, for one plan and on one
side.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import meets_promise

SCHEMES = (
    "auto",
    "native",
    hg.Ozaki1(),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(product="bf16", num_slices=3),
    hg.Ozaki1(mode="dp"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
    hg.Ozaki2(num_moduli=6, scaling="fast"),
)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_prepared_operands_give_the_bits_of_the_operands(
    make_pair, assert_same_bits, scheme, dtype
):
    for name in ("phi_1", "phi_8", "cancelling", "empty_rows_and_columns"):
        a, b = make_pair(name, 7, 12, 5, dtype)
        plan = hg.make_plan(a, b, scheme=scheme)
        c = hg.matmul(a, b, plan=plan)
        left = hg.prepare(a, "left", plan=plan)
        right = hg.prepare(b, "right", plan=plan)
        for x, y in ((left, b), (a, right), (left, right)):
            assert_same_bits(hg.matmul(x, y), c)
            assert_same_bits(hg.matmul(x, y, plan=plan), c)
            assert_same_bits(hg.gemm(x, y), c)
            assert_same_bits(hg.matmul(x, y, workspace=plan.workspace + 1), c)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("accuracy", [None, 1e-16, "correct"])
def test_without_a_plan_the_promise_is_the_one_that_was_asked_for(
    make_pair, side, scheme, accuracy
):
    for name in ("phi_1", "phi_8", "cancelling"):
        a, b = make_pair(name, 7, 12, 5, "float64")
        try:
            c, report = hg.matmul(
                a, b, accuracy=accuracy, scheme=scheme, return_report=True
            )
        except hg.AccuracyError:
            continue
        pair = [a, b]
        index = ["left", "right"].index(side)
        pair[index] = hg.prepare(pair[index], side, accuracy=accuracy, scheme=scheme)
        c, report = hg.matmul(*pair, return_report=True)
        assert meets_promise(c, a, b, report.bound).all()
        if accuracy == "correct":
            assert report.correct
        elif accuracy is not None and not getattr(scheme, "explicit", False):
            assert report.bound <= accuracy


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(12,), (3, 12, 12), (0, 12), (12, 12)])
def test_vectors_stacks_lists_and_empty_operands_need_no_plan(
    assert_same_bits, shape, dtype
):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    left = hg.prepare(x, "left", accuracy="correct")
    ones = np.ones(12, left.plan.problem.dtype)
    assert_same_bits(
        hg.matmul(left, ones),
        hg.matmul(x.astype(ones.dtype), ones, accuracy="correct"),
    )
    if x.size:
        listed = hg.prepare(x.tolist(), "left", accuracy="correct")
        assert listed.shape == shape


def test_a_plan_beside_an_accuracy_or_a_scheme_raises():
    a = np.ones((2, 3))
    plan = hg.make_plan(a, a.T)
    for options in ({"accuracy": "correct"}, {"scheme": "ozaki1"}):
        with pytest.raises(hg.PlanError, match="either the plan or accuracy"):
            hg.prepare(a, "left", plan=plan, **options)
    with pytest.raises(hg.PlanError, match="accuracy='corect'"):
        hg.prepare(a, "left", accuracy="corect")


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("accuracy", [None, "correct", 1e-6])
@pytest.mark.parametrize(
    "scheme",
    ["auto", hg.Ozaki1(product="fp64"), hg.Ozaki1(), hg.Ozaki2(scaling="fast")],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_copies_of_plans_and_prepared_operands_do_the_same(
    make_pair, assert_same_bits, how, accuracy, scheme, dtype
):
    a, b = make_pair("uniform", 20, 400, 10, dtype)
    plan = hg.make_plan(a, b, scheme=scheme, accuracy=accuracy)
    want = hg.matmul(a, b, scheme=scheme, accuracy=accuracy)
    twin = COPIES[how](plan)
    assert twin == plan
    for each in (twin, plan):
        assert_same_bits(hg.matmul(a, b, plan=each), want)
    left = hg.prepare(a, "left", plan=twin)
    for each in (left, copy.copy(left), copy.deepcopy(left)):
        assert_same_bits(hg.matmul(each, b), want)


def test_prepared_operands_are_equal_to_themselves_only():
    a = np.ones((2, 3))
    left, other = (hg.prepare(a, "left", plan=hg.make_plan(a, a.T)) for _ in range(2))
    assert left == left
    assert left != other
    assert len({left, other}) == 2


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("accuracy", ["correct", 1e-16])
def test_promises_hold_for_prepared_operands(make_pair, scheme, accuracy):
    a, b = make_pair("phi_2", 7, 12, 5)
    try:
        plan = hg.make_plan(a, b, scheme=scheme, accuracy=accuracy)
        left = hg.prepare(a, "left", plan=plan)
        right = hg.prepare(b, "right", plan=plan)
        c, report = hg.matmul(left, right, return_report=True)
    except hg.AccuracyError:
        assert scheme == "native" or scheme.explicit
        return
    r = 0.0 if accuracy == "correct" else accuracy
    assert meets_promise(c, a, b, r).all()
    assert report.bound <= r


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(num_slices=2), hg.Ozaki1("fp64", 2), hg.Ozaki2(scaling="fast")],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_change_of_sign_gives_the_same_bits_whatever_is_prepared(
    make_pair, assert_same_bits, scheme, dtype
):
    for m, k, n in ((7, 12, 5), (3, 1, 4), (12, 30, 9)):
        a, b = make_pair("phi_2", m, k, n, dtype)
        plan = hg.make_plan(a, b, scheme=scheme)
        left = hg.prepare(a, "left", plan=plan)
        right = hg.prepare(b, "right", plan=plan)
        expected = hg.matmul(-a, b, plan=plan)
        for x, y in ((a, b), (left, b), (a, right), (left, right)):
            assert_same_bits(hg.gemm(x, y, alpha=-1, plan=plan), expected)


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(product="fp64"), hg.Ozaki2(scaling="fast"), hg.Ozaki2()],
    ids=str,
)
def test_a_prepared_operand_serves_other_partners(make_pair, assert_same_bits, scheme):
    a, b = make_pair("phi_1", 7, 12, 5)
    plan = hg.make_plan(a, b, scheme=scheme, accuracy=1e-15)
    left = hg.prepare(a, "left", plan=plan)
    for name, n in (("phi_1", 3), ("phi_4", 9), ("zeros", 1)):
        other = make_pair(name, 1, 12, n)[1]
        c = hg.matmul(left, other)
        assert_same_bits(c, hg.matmul(a, other, plan=plan))
        assert meets_promise(c, a, other, 1e-15).all()


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(product="fp64"), hg.Ozaki1(num_slices=3), hg.Ozaki2(scaling="fast")],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_prepared_stacks_and_vectors(make_pair, assert_same_bits, scheme, dtype):
    a, b = make_pair("phi_2", 12, 6, 10, dtype)
    stack_a, stack_b = a.reshape(3, 4, 6), b.reshape(6, 2, 5).transpose(1, 0, 2)
    shapes = (
        (stack_a, b),
        (a, stack_b),
        (stack_a[:, None], stack_b),
        (stack_a[:1], stack_b),
        (stack_a[:, None], stack_b[:1]),
        (a[0], b),
        (a, b[:, 0]),
        (a[0], b[:, 0]),
        (a[0], stack_b),
        (stack_a, b[:, 0]),
    )
    for x, y in shapes:
        plan = hg.make_plan(x, y, scheme=scheme)
        c = hg.matmul(x, y, plan=plan)
        left = hg.prepare(x, "left", plan=plan)
        right = hg.prepare(y, "right", plan=plan)
        for p, q in ((left, y), (x, right), (left, right)):
            assert_same_bits(hg.matmul(p, q), c)
    plan = hg.make_plan(a, b, scheme=scheme)
    for x, y in shapes:
        c = hg.matmul(x, y, plan=plan)
        left = hg.prepare(x, "left", plan=plan)
        right = hg.prepare(y, "right", plan=plan)
        for p, q in ((left, y), (x, right), (left, right)):
            assert_same_bits(hg.matmul(p, q), c)


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(product="fp64"), hg.Ozaki2(scaling="fast"), hg.Ozaki2(), "native"],
    ids=str,
)
def test_later_changes_of_the_array_do_not_reach_the_prepared_operand(
    make_pair, assert_same_bits, scheme
):
    a, b = make_pair("phi_1", 7, 12, 5)
    plan = hg.make_plan(a, b, scheme=scheme)
    c = hg.matmul(a, b, plan=plan)
    left, right = hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)
    a[:], b[:] = np.nan, np.nan
    assert_same_bits(hg.matmul(left, right), c)


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(product="fp64"), hg.Ozaki2(scaling="fast"), hg.Ozaki2(), "native"],
    ids=str,
)
def test_prepared_operands_keep_their_inf_and_nan(make_pair, assert_same_bits, scheme):
    a, b = make_pair("phi_1", 7, 12, 5)
    plan = hg.make_plan(a, b, scheme=scheme)
    a[1, 2], b[3, 4] = np.inf, np.nan
    c = hg.matmul(a, b, plan=plan)
    assert_same_bits(
        hg.matmul(hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)),
        c,
    )
    assert not np.isfinite(c[1]).any()


def test_fast_schemes_keep_parts_and_others_say_that_they_do_not(make_pair):
    a, b = make_pair("phi_1", 7, 12, 5)
    kept = hg.prepare(
        a,
        "left",
        plan=hg.make_plan(a, b, scheme=hg.Ozaki2(num_moduli=6, scaling="fast")),
    )
    assert kept.split.count == 6
    assert "6 planes" in repr(kept)
    assert (kept.shape, kept.dtype) == ((7, 12), np.dtype("float64"))
    assert "no planes" in repr(
        hg.prepare(a, "left", plan=hg.make_plan(a, b, scheme="ozaki2"))
    )


def test_a_prepared_operand_stands_on_its_side(make_pair):
    a, _ = make_pair("phi_1", 6, 6, 6)
    left = hg.prepare(a, "left", plan=hg.make_plan(a, a, scheme="ozaki1"))
    with pytest.raises(hg.PlanError, match="left stands on the right"):
        hg.matmul(a, left)
    with pytest.raises(hg.PlanError, match="up"):
        hg.prepare(a, "up", plan=left.plan)
    with pytest.raises(hg.PlanError, match="prepared already"):
        hg.prepare(left, "left", plan=left.plan)
    with pytest.raises(hg.PlanError, match="transpose"):
        hg.gemm(left, a, trans_a="T")


def test_plans_that_differ_are_not_mixed(make_pair):
    a, b = make_pair("phi_1", 7, 12, 5)
    one, two = (
        hg.make_plan(a, b, scheme=hg.Ozaki1(num_slices=count)) for count in (3, 4)
    )
    left, right = hg.prepare(a, "left", plan=one), hg.prepare(b, "right", plan=two)
    for call in (lambda: hg.matmul(left, right), lambda: hg.matmul(left, b, plan=two)):
        with pytest.raises(hg.PlanError, match="different plans"):
            call()
    for options in ({"accuracy": "correct"}, {"scheme": "ozaki2"}, {"engine": "torch"}):
        with pytest.raises(hg.PlanError):
            hg.matmul(left, b, **options)


@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(num_slices=3), hg.Ozaki2(num_moduli=9, scaling="fast")],
    ids=str,
)
def test_plans_of_equal_counts_and_other_promises_are_not_mixed_silently(
    make_pair, scheme
):
    a, b = make_pair("phi_1", 7, 12, 5)
    free = hg.make_plan(a, b, scheme=scheme)
    bound = hg.make_plan(a, b, scheme=scheme, accuracy=1e-4)
    correct = hg.make_plan(a, b, scheme=scheme, accuracy="correct")
    for own, other in (
        (free, bound),
        (bound, free),
        (free, correct),
        (correct, bound),
        (bound, correct),
    ):
        left = hg.prepare(a, "left", plan=own)
        try:
            c, report = hg.matmul(left, b, plan=other, return_report=True)
        except hg.HifigemmError:
            continue
        assert meets_promise(c, a, b, report.bound).all()
        assert report.bound <= other.target.r


def test_operands_that_do_not_fit_the_plan_are_refused(make_pair):
    a, b = make_pair("phi_1", 7, 12, 5, "float32")
    plan = hg.make_plan(a, b, scheme="ozaki1")
    for x in (
        a[:, :5],
        a.astype(np.float64),
        a.astype(np.complex64),
        np.zeros(3, np.float32),
    ):
        with pytest.raises(hg.PlanError, match="does not fit"):
            hg.prepare(x, "left", plan=plan)
    with pytest.raises(hg.PlanError, match="float32"):
        hg.matmul(hg.prepare(a, "left", plan=plan), b.astype(np.float64))
    with pytest.raises(ValueError, match="inner dimensions"):
        hg.matmul(hg.prepare(a, "left", plan=plan), b[:5])


def test_integers_are_prepared_exactly_or_not_at_all():
    plan = hg.make_plan(np.ones((1, 2)), np.ones((2, 1)), scheme="ozaki1")
    prepared = hg.prepare([[2**53 - 1, 3]], "left", plan=plan)
    assert hg.matmul(prepared, np.array([[1.0], [0.0]])) == 2**53 - 1
    with pytest.raises(ValueError, match="not exact"):
        hg.prepare(np.array([[2**53 + 1, 3]]), "left", plan=plan)
