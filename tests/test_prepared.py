"""Prepared operands: the same bits as the operands themselves, for one plan and on one
side.
"""

from __future__ import annotations

import base64
import copy
import pickle

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import meets_promise
from tests.planning import forbid_plans

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
    with pytest.raises(hg.PlanError, match="left is used on the right"):
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


STORED = {
    hg.Ozaki1("fp16", 3): """
        gAJjaGlmaWdlbW0ub3BlcmFuZHMKUHJlcGFyZWQKcQApgXEBfXECKFgHAAAAb3BlcmFuZHEDY251bXB5Ll9jb3JlLm11bHRpYXJyYXkK
        X3JlY29uc3RydWN0CnEEY251bXB5Cm5kYXJyYXkKcQVLAIVxBmNfY29kZWNzCmVuY29kZQpxB1gBAAAAYnEIWAYAAABsYXRpbjFxCYZx
        ClJxC4dxDFJxDShLAUsCSwOGcQ5jbnVtcHkKZHR5cGUKcQ9YAgAAAGY4cRCJiIdxEVJxEihLA1gBAAAAPHETTk5OSv////9K/////0sA
        dHEUYoloB1g8AAAAAMKAw6A3ecODQUMAAAAAAADDsD8AwoDDoDd5w4NBw4MAAAAAAADDoD86wowww6LCjnlFPgAAAAAAAAhAcRVoCYZx
        FlJxF3RxGGJYBQAAAHNwbGl0cRljaGlmaWdlbW0ucGxhbgpTcGxpdApxGimBcRt9cRwoWAQAAABzaWRlcR1YBAAAAGxlZnRxHlgHAAAA
        dmVjdG9yc3EfSwJYBgAAAHBsYW5lc3EgaARoBUsAhXEhaAuHcSJScSMoSwFLAUsCSwmHcSRoD1gCAAAAZjJxJYmIh3EmUnEnKEsDaBNO
        Tk5K/////0r/////SwB0cShiiWgHWCcAAABxZAAAccOkNsOgAAA2YBDDoAAAEGAAXAAAAGYAAAAAAAAAAGBVAABxKWgJhnEqUnErdHEs
        YlgEAAAAdW5pdHEtaARoBUsAhXEuaAuHcS9ScTAoSwFLAUsCSwGHcTFoD1gCAAAAaThxMomIh3EzUnE0KEsDaBNOTk5K/////0r/////
        SwB0cTViiWgHWBgAAAArAAAAAAAAAMO3w7/Dv8O/w7/Dv8O/w79xNmgJhnE3UnE4dHE5YlgFAAAAY291bnRxOksDWAUAAABmYWN0c3E7
        fXE8KFgIAAAAZXhwb25lbnRxPWgEaAVLAIVxPmgLh3E/UnFAKEsBSwFLAksBh3FBaDSJaAdYEAAAADYAAAAAAAAAAgAAAAAAAABxQmgJ
        hnFDUnFEdHFFYlgGAAAAbmVlZGVkcUZoBGgFSwCFcUdoC4dxSFJxSShLAUsBSwJLAYdxSmg0iWgHWBAAAAAFAAAAAAAAAAcAAAAAAAAA
        cUtoCYZxTFJxTXRxTmJYBwAAAG5vbnplcm9xT2gEaAVLAIVxUGgLh3FRUnFSKEsBSwFLAksDh3FTaA9YAgAAAGkxcVSJiIdxVVJxVihL
        A1gBAAAAfHFXTk5OSv////9K/////0sAdHFYYoloB1gGAAAAAQEBAQEBcVloCYZxWlJxW3RxXGJYCQAAAG1hZ25pdHVkZXFdaARoBUsA
        hXFeaAuHcV9ScWAoSwFLAUsCSwOHcWFoEoloB1g+AAAAAMKAw6A3ecODw6E/AAAAAAAAwpA8AMKAw6A3ecODw6E/AAAAAAAAw4A/OsKM
        MMOiwo55JT4AAAAAAADDqD9xYmgJhnFjUnFkdHFlYnVYBwAAAGtfbWFqb3JxZol1YmgdaB5YBAAAAHBsYW5xZ2NoaWZpZ2VtbS5wbGFu
        ClBsYW4KcWgpgXFpfXFqKFgHAAAAcHJvYmxlbXFrY2hpZmlnZW1tLnByb2JsZW0KUHJvYmxlbQpxbCmBcW19cW4oWAUAAABiYXRjaHFv
        SwFYAQAAAG1xcEsCWAEAAABucXFLAlgBAAAAa3FySwNYBQAAAGR0eXBlcXNoElgGAAAAbmFycm93cXROWAYAAABtaXJyb3JxdVgAAAAA
        cXZYDwAAAG11bHRpcGxpY2F0aW9uc3F3SwxYAwAAAGZtdHF4Y2hpZmlnZW1tLmZvcm1hdHMKX25hbWVkCnF5WAQAAABmcDY0cXqFcXtS
        cXxYCgAAAGlzX2NvbXBsZXhxfYlYBQAAAHRlcm1zcX5LA3ViWAUAAABhc2tlZHF/Y2hpZmlnZW1tLnNjaGVtZXMub3pha2kxCk96YWtp
        MQpxgCmBcYF9cYIoWAcAAABwcm9kdWN0cYNYBAAAAGZwMTZxhFgKAAAAbnVtX3NsaWNlc3GFSwNYBAAAAG1vZGVxhk5YBwAAAHNjYWxp
        bmdxh051YlgGAAAAc2NoZW1lcYhogCmBcYl9cYooaINohGiFSwNohk5oh051YlgGAAAAdGFyZ2V0cYtjaGlmaWdlbW0uYWNjdXJhY3kK
        VGFyZ2V0CnGMKYFxjX1xjihYAQAAAHJxj0d/8AAAAAAAAFgHAAAAY29ycmVjdHGQiVgFAAAAbGV2ZWxxkU5YDAAAAHN0YXRlc19ib3Vu
        ZHGSiFgIAAAAcmVsYXRpdmVxk051YlgGAAAAZW5naW5lcZRYBQAAAG51bXB5cZVog2NoaWZpZ2VtbS5wcm9ibGVtClByb2R1Y3RTcGVj
        CnGWKYFxl31xmChoA2h5aISFcZlScZpYDwAAAGFjY3VtdWxhdG9yX21heHGbSgAAAAFYCwAAAG1heF9pbnRlZ2VycZxNAAhYBwAAAGtf
        YmxvY2txnU0ABHViWAwAAABudW1fcHJvZHVjdHNxnksGaJ1LBFgMAAAAdmVyaWZpY2F0aW9ucZ9jaGlmaWdlbW0ucGxhbgpWZXJpZmlj
        YXRpb24KcaBYEwAAAG5vdGhpbmcgaXMgcHJvbWlzZWRxoYVxolJxo1gFAAAAYm91bmRxpEd/8AAAAAAAAFgGAAAAcmVhc29ucaVYHQAA
        ADMgc2xpY2VzIG9mIDEyIGJpdHMsIGFzIGFza2VkcaZYDAAAAGFsdGVybmF0aXZlc3GnKVgIAAAAZXZpZGVuY2VxqE5YCAAAAGJsb2Nr
        aW5ncaljaGlmaWdlbW0ucGxhbgpCbG9ja2luZwpxqimBcat9cawoWAUAAABzaGFwZXGtSwFLAksCh3GuWAkAAAB3b3Jrc3BhY2Vxr010
        CVgHAAAAZW50cmllc3GwTQBAWAkAAABpbl9oYWx2ZXNxsYl1YlgIAAAAcm91bmRpbmdxsmNoaWZpZ2VtbS5udW1lcmljcy5pbnRlZ2Vy
        X3N1bXMKUm91bmRpbmcKcbMoWAUAAABhcnJheXG0iUsASwFLAXRxtYFxtlgGAAAAa19zcGFucbdLAFgEAAAAc3BlY3G4aJd1YlgHAAAA
        bGlicmFyeXG5Y2hpZmlnZW1tLmxpYnJhcmllcy5udW1weV9hcnJheXMKTnVtcHlMaWJyYXJ5CnG6KYFxu31xvFgGAAAAZGV2aWNlcb1Y
        AwAAAGNwdXG+c2J1Yi4=
    """,
    hg.Ozaki2(num_moduli=9, scaling="fast"): """
        gAJjaGlmaWdlbW0ub3BlcmFuZHMKUHJlcGFyZWQKcQApgXEBfXECKFgHAAAAb3BlcmFuZHEDY251bXB5Ll9jb3JlLm11bHRpYXJyYXkK
        X3JlY29uc3RydWN0CnEEY251bXB5Cm5kYXJyYXkKcQVLAIVxBmNfY29kZWNzCmVuY29kZQpxB1gBAAAAYnEIWAYAAABsYXRpbjFxCYZx
        ClJxC4dxDFJxDShLAUsDSwKGcQ5jbnVtcHkKZHR5cGUKcQ9YAgAAAGY4cRCJiIdxEVJxEihLA1gBAAAAPHETTk5OSv////9K/////0sA
        dHEUYoloB1g2AAAAAAAAAAAAw7A/AAAAAAAAw7A/AAAAAAAAw7A/AAAAAAAAw7A/AAAAAAAAw7A/AAAAAAAAw7A/cRVoCYZxFlJxF3Rx
        GGJYBQAAAHNwbGl0cRljaGlmaWdlbW0ucGxhbgpTcGxpdApxGimBcRt9cRwoWAQAAABzaWRlcR1YBQAAAHJpZ2h0cR5YBwAAAHZlY3Rv
        cnNxH0sCWAYAAABwbGFuZXNxIGgEaAVLAIVxIWgLh3EiUnEjKEsBKEsBSwlLAksDdHEkaA9YAgAAAGkxcSWJiIdxJlJxJyhLA1gBAAAA
        fHEoTk5OSv////9K/////0sAdHEpYoloB1hIAAAAAAAAAAAABAQEBAQER0dHR0dHw7bDtsO2w7bDtsO2Pj4+Pj4+PDw8PDw8w5rDmsOa
        w5rDmsOaICAgICAgw5XDlcOVw5XDlcOVcSpoCYZxK1JxLHRxLWJYBAAAAHVuaXRxLmgEaAVLAIVxL2gLh3EwUnExKEsBSwFLAUsCh3Ey
        aA9YAgAAAGk4cTOJiIdxNFJxNShLA2gTTk5OSv////9K/////0sAdHE2YoloB1ggAAAAw57Dv8O/w7/Dv8O/w7/Dv8Oew7/Dv8O/w7/D
        v8O/w79xN2gJhnE4UnE5dHE6YlgFAAAAY291bnRxO0sJWAUAAABmYWN0c3E8fXE9KFgIAAAAZXhwb25lbnRxPmgEaAVLAIVxP2gLh3FA
        UnFBKEsBSwFLAUsCh3FCaDWJaAdYEAAAAAEAAAAAAAAAAQAAAAAAAABxQ2gJhnFEUnFFdHFGYlgFAAAAZGVsdGFxR2gEaAVLAIVxSGgL
        h3FJUnFKKEsBSwFLAUsCh3FLaBKJaAdYEAAAAAAAAAAAAAAAAAAAAAAAAABxTGgJhnFNUnFOdHFPYlgEAAAAc3Vtc3FQaARoBUsAhXFR
        aAuHcVJScVMoSwFLAUsBSwKHcVRoNYloB1gQAAAAYAAAAAAAAABgAAAAAAAAAHFVaAmGcVZScVd0cVhiWAcAAABub256ZXJvcVloBGgF
        SwCFcVpoC4dxW1JxXChLAUsBSwNLAodxXWgniWgHWAYAAAABAQEBAQFxXmgJhnFfUnFgdHFhYlgJAAAAbWFnbml0dWRlcWJoBGgFSwCF
        cWNoC4dxZFJxZShLAUsBSwNLAodxZmgSiWgHWDYAAAAAAAAAAADDoD8AAAAAAADDoD8AAAAAAADDoD8AAAAAAADDoD8AAAAAAADDoD8A
        AAAAAADDoD9xZ2gJhnFoUnFpdHFqYnVYBwAAAGtfbWFqb3Jxa4h1YmgdaB5YBAAAAHBsYW5xbGNoaWZpZ2VtbS5wbGFuClBsYW4KcW0p
        gXFufXFvKFgHAAAAcHJvYmxlbXFwY2hpZmlnZW1tLnByb2JsZW0KUHJvYmxlbQpxcSmBcXJ9cXMoWAUAAABiYXRjaHF0SwFYAQAAAG1x
        dUsCWAEAAABucXZLAlgBAAAAa3F3SwNYBQAAAGR0eXBlcXhoElgGAAAAbmFycm93cXlOWAYAAABtaXJyb3JxelgAAAAAcXtYDwAAAG11
        bHRpcGxpY2F0aW9uc3F8SwxYAwAAAGZtdHF9Y2hpZmlnZW1tLmZvcm1hdHMKX25hbWVkCnF+WAQAAABmcDY0cX+FcYBScYFYCgAAAGlz
        X2NvbXBsZXhxgolYBQAAAHRlcm1zcYNLA3ViWAUAAABhc2tlZHGEY2hpZmlnZW1tLnNjaGVtZXMub3pha2kyCk96YWtpMgpxhSmBcYZ9
        cYcoWAcAAABwcm9kdWN0cYhYBAAAAGludDhxiVgKAAAAbnVtX21vZHVsaXGKSwlYBwAAAHNjYWxpbmdxi1gEAAAAZmFzdHGMdWJYBgAA
        AHNjaGVtZXGNaIUpgXGOfXGPKGiIaIloiksJaItojGg7Swl1YlgGAAAAdGFyZ2V0cZBjaGlmaWdlbW0uYWNjdXJhY3kKVGFyZ2V0CnGR
        KYFxkn1xkyhYAQAAAHJxlEd/8AAAAAAAAFgHAAAAY29ycmVjdHGViVgFAAAAbGV2ZWxxlk5YDAAAAHN0YXRlc19ib3VuZHGXiFgIAAAA
        cmVsYXRpdmVxmE51YlgGAAAAZW5naW5lcZlYBQAAAG51bXB5cZpoiGNoaWZpZ2VtbS5wcm9ibGVtClByb2R1Y3RTcGVjCnGbKYFxnH1x
        nShoA2h+aImFcZ5ScZ9YDwAAAGFjY3VtdWxhdG9yX21heHGgSv///39YCwAAAG1heF9pbnRlZ2VycaFLf1gHAAAAa19ibG9ja3GiSv//
        AQB1YlgMAAAAbnVtX3Byb2R1Y3RzcaNLCWiiSv//AQBYDAAAAHZlcmlmaWNhdGlvbnGkY2hpZmlnZW1tLnBsYW4KVmVyaWZpY2F0aW9u
        CnGlWBMAAABub3RoaW5nIGlzIHByb21pc2VkcaaFcadScahYBQAAAGJvdW5kcalHf/AAAAAAAABYBgAAAHJlYXNvbnGqWBIAAAA5IG1v
        ZHVsaSwgYXMgYXNrZWRxq1gMAAAAYWx0ZXJuYXRpdmVzcawpWAgAAABldmlkZW5jZXGtTlgIAAAAYmxvY2tpbmdxrmNoaWZpZ2VtbS5w
        bGFuCkJsb2NraW5nCnGvKYFxsH1xsShYBQAAAHNoYXBlcbJLAUsCSwKHcbNYCQAAAHdvcmtzcGFjZXG0TRgMWAcAAABlbnRyaWVzcbVN
        AEBYCQAAAGluX2hhbHZlc3G2iXViWAgAAAByb3VuZGluZ3G3Y2hpZmlnZW1tLm51bWVyaWNzLmludGVnZXJfc3VtcwpSb3VuZGluZwpx
        uChYBQAAAGFycmF5cbmJSwBLAUsBdHG6gXG7WAYAAABrX3NwYW5xvEsAWAkAAABjZXJ0aWZpZXNxvYh1YlgHAAAAbGlicmFyeXG+Y2hp
        ZmlnZW1tLmxpYnJhcmllcy5udW1weV9hcnJheXMKTnVtcHlMaWJyYXJ5CnG/KYFxwH1xwVgGAAAAZGV2aWNlccJYAwAAAGNwdXHDc2J1
        Yi4=
    """,
    hg.Multiword("fp16", 2, 3): """
        gAJjaGlmaWdlbW0ub3BlcmFuZHMKUHJlcGFyZWQKcQApgXEBfXECKFgHAAAAb3BlcmFuZHEDY251bXB5Ll9jb3JlLm11bHRpYXJyYXkK
        X3JlY29uc3RydWN0CnEEY251bXB5Cm5kYXJyYXkKcQVLAIVxBmNfY29kZWNzCmVuY29kZQpxB1gBAAAAYnEIWAYAAABsYXRpbjFxCYZx
        ClJxC4dxDFJxDShLAUsCSwOGcQ5jbnVtcHkKZHR5cGUKcQ9YAgAAAGY0cRCJiIdxEVJxEihLA1gBAAAAPHETTk5OSv////9K/////0sA
        dHEUYoloB1gdAAAAw4obDloAAMKAP8OKGw7DmgAAAD93w4wrMgAAQEBxFWgJhnEWUnEXdHEYYlgFAAAAc3BsaXRxGWNoaWZpZ2VtbS5w
        bGFuClNwbGl0CnEaKYFxG31xHChYBAAAAHNpZGVxHVgEAAAAbGVmdHEeWAcAAAB2ZWN0b3JzcR9LAlgGAAAAcGxhbmVzcSBoBGgFSwCF
        cSFoC4dxIlJxIyhLAUsBSwJLBodxJGgSiWgHWDgAAAAAIA5HAAAAAAAgDsOHAMOAwobDgAAAAAAAw4DChkAAAABGAMOAKzkAAEBHAAAA
        AAAAwoAzAAAAAHElaAmGcSZScSd0cShiWAQAAAB1bml0cSloBGgFSwCFcSpoC4dxK1JxLChLAUsBSwJLAYdxLWgPWAIAAABpOHEuiYiH
        cS9ScTAoSwNoE05OTkr/////Sv////9LAHRxMWKJaAdYGAAAACYAAAAAAAAAw7LDv8O/w7/Dv8O/w7/Dv3EyaAmGcTNScTR0cTViWAUA
        AABjb3VudHE2SwJYBQAAAGZhY3RzcTd9cTgoWAcAAABub256ZXJvcTloBGgFSwCFcTpoC4dxO1JxPChLAUsBSwJLA4dxPWgPWAIAAABp
        MXE+iYiHcT9ScUAoSwNYAQAAAHxxQU5OTkr/////Sv////9LAHRxQmKJaAdYBgAAAAEBAQEBAXFDaAmGcURScUV0cUZiWAYAAABleGNl
        c3NxR2gEaAVLAIVxSGgLh3FJUnFKKEsBSwFLAksDh3FLaA9YAgAAAGY4cUyJiIdxTVJxTihLA2gTTk5OSv////9K/////0sAdHFPYolo
        B1g1AAAAAAAAAAAAAAAAAAAAAAAAAAgAAMKAw7/Dv8KPPQAAAAAAAAAAAAAAAAAAAAAHACBxwoYyTD5xUGgJhnFRUnFSdHFTYlgJAAAA
        c3Vibm9ybWFscVRoBGgFSwCFcVVoC4dxVlJxVyhLAUsBSwJLAodxWGhOiWgHWCAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
        AAAQP3FZaAmGcVpScVt0cVxiWAUAAAB0b3RhbHFdaARoBUsAhXFeaAuHcV9ScWAoSwFLAUsCSwGHcWFoToloB1gVAAAAAgAAQHnDg8Ox
        QMOywphXAQAAw6xAcWJoCYZxY1JxZHRxZWJYBgAAAGxvd2VzdHFmaARoBUsAhXFnaAuHcWhScWkoSwFLAUsCSwGHcWpoMIloB1gYAAAA
        AgAAAAAAAADDssO/w7/Dv8O/w7/Dv8O/cWtoCYZxbFJxbXRxbmJYBwAAAGluZXhhY3Rxb2gEaAVLAIVxcGgLh3FxUnFyKEsBSwFLAksB
        h3FzaA9YAgAAAGIxcXSJiIdxdVJxdihLA2hBTk5OSv////9K/////0sAdHF3YoloB1gCAAAAAQFxeGgJhnF5UnF6dHF7YlgJAAAAbWFn
        bml0dWRlcXxoBGgFSwCFcX1oC4dxflJxfyhLAUsBSwJLA4dxgGhOiWgHWDkAAAAAAABAecODw6FAAAAAAAAAwpA9AAAAQHnDg8OhQAAA
        AAAAAMOAQAAAAMOgwo55JT8AAAAAAADDqEBxgWgJhnGCUnGDdHGEYnVYBwAAAGtfbWFqb3JxhYl1YmgdaB5YBAAAAHBsYW5xhmNoaWZp
        Z2VtbS5wbGFuClBsYW4KcYcpgXGIfXGJKFgHAAAAcHJvYmxlbXGKY2hpZmlnZW1tLnByb2JsZW0KUHJvYmxlbQpxiymBcYx9cY0oWAUA
        AABiYXRjaHGOSwFYAQAAAG1xj0sCWAEAAABucZBLAlgBAAAAa3GRSwNYBQAAAGR0eXBlcZJoElgGAAAAbmFycm93cZNOWAYAAABtaXJy
        b3JxlFgAAAAAcZVYDwAAAG11bHRpcGxpY2F0aW9uc3GWSwxYAwAAAGZtdHGXY2hpZmlnZW1tLmZvcm1hdHMKX25hbWVkCnGYWAQAAABm
        cDMycZmFcZpScZtYCgAAAGlzX2NvbXBsZXhxnIlYBQAAAHRlcm1zcZ1LA3ViWAUAAABhc2tlZHGeY2hpZmlnZW1tLnNjaGVtZXMubXVs
        dGl3b3JkCk11bHRpd29yZApxnymBcaB9caEoWAcAAABwcm9kdWN0caJYBAAAAGZwMTZxo1gJAAAAbnVtX3dvcmRzcaRLAlgMAAAAbnVt
        X3Byb2R1Y3RzcaVLA1gOAAAAc3BsaXRfcm91bmRpbmdxplgHAAAAbmVhcmVzdHGnWAoAAABhY2N1bXVsYXRlcahYBwAAAGNoYWluZWRx
        qVgFAAAAc2NhbGVxqohYBQAAAGJsb2NrcatOWAcAAABzY2FsaW5ncaxOWAUAAABzcGFuc3GtiXViWAYAAABzY2hlbWVxrmigWAYAAAB0
        YXJnZXRxr2NoaWZpZ2VtbS5hY2N1cmFjeQpUYXJnZXQKcbApgXGxfXGyKFgBAAAAcnGzR3/wAAAAAAAAWAcAAABjb3JyZWN0cbSJWAUA
        AABsZXZlbHG1TlgMAAAAc3RhdGVzX2JvdW5kcbaIWAgAAAByZWxhdGl2ZXG3TnViWAYAAABlbmdpbmVxuFgFAAAAbnVtcHlxuWiiY2hp
        ZmlnZW1tLnByb2JsZW0KUHJvZHVjdFNwZWMKcbopgXG7fXG8KGgDaJhoo4VxvVJxvlgPAAAAYWNjdW11bGF0b3JfbWF4cb9KAAAAAVgL
        AAAAbWF4X2ludGVnZXJxwE0ACFgHAAAAa19ibG9ja3HBTQAEdWJopUsDaMFLA1gMAAAAdmVyaWZpY2F0aW9uccJjaGlmaWdlbW0ucGxh
        bgpWZXJpZmljYXRpb24KccNYEwAAAG5vdGhpbmcgaXMgcHJvbWlzZWRxxIVxxVJxxlgFAAAAYm91bmRxx0d/8AAAAAAAAFgGAAAAcmVh
        c29ucchYWAAAAHdvcmRzIGFzIGFza2VkLCBCTEFTIGluIGZwMzIsIGFueSBvcmRlcjogYXQgd29yc3QgOC45NWUtMDcgfEF8fEJ8IHVu
        bGVzcyB3b3JkcyB1bmRlcmZsb3dxyVgMAAAAYWx0ZXJuYXRpdmVzccopWAgAAABldmlkZW5jZXHLTlgIAAAAYmxvY2tpbmdxzGNoaWZp
        Z2VtbS5wbGFuCkJsb2NraW5nCnHNKYFxzn1xzyhYBQAAAHNoYXBlcdBLAUsCSwKHcdFYCQAAAHdvcmtzcGFjZXHSTVgEWAcAAABlbnRy
        aWVzcdNNAEBYCQAAAGluX2hhbHZlc3HUiXViWAgAAAByb3VuZGluZ3HVY2hpZmlnZW1tLm51bWVyaWNzLmludGVnZXJfc3VtcwpSb3Vu
        ZGluZwpx1ihYBQAAAGFycmF5cdeJSwBLAUsBdHHYgXHZWAYAAABrX3NwYW5x2ksAWAkAAABjZXJ0aWZpZXNx24h1YlgHAAAAbGlicmFy
        eXHcY2hpZmlnZW1tLmxpYnJhcmllcy5udW1weV9hcnJheXMKTnVtcHlMaWJyYXJ5CnHdKYFx3n1x31gGAAAAZGV2aWNlceBYAwAAAGNw
        dXHhc2J1Yi4=
    """,
}
"""Operands that were prepared by these schemes and stored by version 0.1.0 (protocol 2,
base64); they are never made anew.
"""
A = np.array([[1e16, 1.0, -1e16], [0.5, 1e-8, 3.0]])
B = np.ones((3, 2))


@pytest.mark.parametrize("scheme", STORED, ids=str)
def test_stored_operands_load_and_give_the_bits_of_the_operands(
    assert_same_bits, scheme
):
    operand = pickle.loads(base64.b64decode("".join(STORED[scheme].split())))
    assert isinstance(operand, hg.Prepared)
    dtype = np.float32 if isinstance(scheme, hg.Multiword) else np.float64
    a, b = A.astype(dtype), B.astype(dtype)
    pair = (a, operand) if isinstance(scheme, hg.Ozaki2) else (operand, b)
    assert_same_bits(hg.matmul(*pair), hg.matmul(a, b, scheme=scheme))


REQUESTS = {
    "default": {},
    "number": {"accuracy": 1e-12},
    "correct": {"accuracy": "correct"},
    "slices": {"scheme": hg.Ozaki1(num_slices=3)},
    "moduli": {"scheme": hg.Ozaki2(num_moduli=9, scaling="fast")},
    "words": {"scheme": hg.Multiword("fp16", 2, 3)},
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_operand_prepared_for_a_request_has_the_bits_of_that_request(
    make_pair, assert_same_bits, kind
):
    options = REQUESTS[kind]
    dtype = "float32" if kind == "words" else "float64"
    for name in ("phi_1", "cancelling", "integers"):
        a, b = make_pair(name, 7, 12, 5, dtype)
        c = np.ones((7, 5), dtype)
        left = hg.prepare(a, "left", **options)
        right = hg.prepare(b, "right", **options)
        want, report = hg.matmul(a, b, **options, return_report=True)
        sums = hg.gemm(a, b, c, alpha=-1.0, beta=1.0, **options)
        for x, y in ((left, b), (a, right), (left, right)):
            for _ in range(2):
                assert_same_bits(hg.matmul(x, y), want)
                got, other = hg.matmul(x, y, return_report=True)
                assert_same_bits(got, want)
                assert (other.scheme, other.bound) == (report.scheme, report.bound)
                out = np.empty_like(want)
                assert hg.matmul(x, y, out=out) is out
                assert_same_bits(out, want)
                got = hg.gemm(x, y, c, alpha=-1.0, beta=1.0)
                assert_same_bits(got, sums)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("by_plan", [False, True])
def test_a_second_product_plans_nothing(
    make_pair, assert_same_bits, monkeypatch, kind, by_plan
):
    options = REQUESTS[kind]
    dtype = "float32" if kind == "words" else "float64"
    a, b = make_pair("phi_1", 7, 12, 5, dtype)
    if by_plan:
        options = {"plan": hg.make_plan(a, b, **options)}
    want = hg.matmul(a, b, **options)
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)
    pairs = (left, b), (a, right), (left, right)
    calls = [lambda x=x, y=y: hg.matmul(x, y) for x, y in pairs]
    calls += [lambda x=x, y=y: hg.gemm(x, y, alpha=2.0) / 2.0 for x, y in pairs]
    for call in calls:
        call()
    forbid_plans(monkeypatch)
    for call in calls:
        assert_same_bits(call(), want)


def test_operands_that_were_prepared_for_two_requests_are_not_mixed(make_pair):
    a, b = make_pair("phi_1", 7, 12, 5)
    left = hg.prepare(a, "left", accuracy="correct")
    right = hg.prepare(b, "right", accuracy=1e-12)
    with pytest.raises(hg.PlanError, match=r"different requests: .*'correct'.*1e-12"):
        hg.matmul(left, right)
    for options in ({"accuracy": "correct"}, {"scheme": "ozaki2"}):
        for call in (hg.matmul, hg.gemm):
            with pytest.raises(hg.PlanError, match="prepare it again"):
                call(left, b, **options)
    with pytest.raises(hg.PlanError, match="pass the array itself"):
        hg.matmul(left, b, result="pair")


def test_a_product_with_prepared_operands_of_other_data_keeps_its_promise(make_pair):
    """The plan for the product with the own transpose would not."""
    a = np.ones((3, 4))
    left = hg.prepare(a, "left", accuracy="correct")
    b = np.array([[1e300], [1.0], [-1e300], [1e-300]])
    for _ in range(2):
        c, report = hg.matmul(left, b, return_report=True)
        assert report.correct
        assert (c == 1.0).all()


def test_the_hash_of_a_plan_is_not_pickled(make_pair):
    plan = hg.make_plan(*make_pair("phi_1", 7, 12, 5))
    hash(plan)
    assert "_hash" in plan.__dict__
    assert "_hash" not in plan.__getstate__()
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(pickle.loads(pickle.dumps(plan))) == hash(plan)
