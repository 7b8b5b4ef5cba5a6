"""Plans and prepared operands of untracked arrays."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget
from hifigemm.running.plans import plan_of_numbers, prepared


@pytest.mark.parametrize("accuracy", [None, 1e-12, "correct"])
def test_plans_are_those_of_make_plan(make_pair, accuracy):
    a, b = make_pair("cancelling", 4, 9, 5)
    plan = plan_of_numbers(a, b, accuracy=accuracy)
    assert plan == hg.make_plan(a, b, accuracy=accuracy)


@pytest.mark.parametrize("side", ["left", "right"])
def test_without_a_plan_one_is_made_for_the_transpose(
    make_pair, assert_same_bits, side
):
    a, b = make_pair("phi_1", 4, 9, 5)
    operand = prepared(a if side == "left" else b, side, None, "correct", "auto")
    pair = (operand, b) if side == "left" else (a, operand)
    assert_same_bits(hg.matmul(*pair), hg.matmul(a, b, accuracy="correct"))


REQUESTS = {
    "default": {},
    "correct": {"accuracy": "correct"},
    "1e-12": {"accuracy": 1e-12},
    "slices": {"scheme": hg.Ozaki1(num_slices=4)},
    "residues": {"scheme": hg.Ozaki2(num_moduli=9, scaling="fast")},
    "accurate": {"scheme": hg.Ozaki2(num_moduli=9, scaling="accurate")},
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_operands_like_an_earlier_one_are_prepared_without_planning(
    make_pair, assert_same_bits, monkeypatch, kind, side
):
    options = REQUESTS[kind]
    first, _ = make_pair("phi_1", 7, 7, 7)
    a, b = make_pair("phi_4", 7, 7, 7)
    want = hg.matmul(a, b, **options)
    forget()
    hg.prepare(first, side, **options)
    monkeypatch.setattr("hifigemm.running.plans.plan_for", None)
    operand = hg.prepare(a if side == "left" else b, side, **options)
    pair = (operand, b) if side == "left" else (a, operand)
    assert_same_bits(hg.matmul(*pair), want)

    # What is of another kind is planned.
    others = [
        (a[:, :5], options),
        (a.astype(np.float32), options),
        (a, options | {"accuracy": 1e-3, "scheme": "auto"}),
    ]
    for x, request in others:
        with pytest.raises(TypeError):
            hg.prepare(x, side, **request)
    opposite = "right" if side == "left" else "left"
    with pytest.raises(TypeError):
        hg.prepare(a, opposite, **options)


def test_a_prepared_operand_is_a_copy_each_time(make_pair):
    a, _ = make_pair("phi_1", 4, 9, 5)
    operands = [hg.prepare(a, "left") for _ in range(3)]
    a[...] = 0.0
    for x in operands:
        assert np.all(x.operand != 0.0)


def test_operands_that_no_plan_takes_leave_nothing(make_pair):
    plan = hg.make_plan(*make_pair("phi_1", 4, 9, 5))
    for _ in range(2):
        with pytest.raises(hg.PlanError, match="does not fit"):
            hg.prepare(np.ones((4, 8)), "left", plan=plan)


def test_strict_mode_refuses_a_native_product_however_it_was_prepared(make_pair):
    a, _ = make_pair("phi_1", 4, 9, 5)
    hg.prepare(a, "left")
    with hg.strict():
        for _ in range(2):
            with pytest.raises(hg.AccuracyError):
                hg.prepare(a, "left")
    hg.prepare(a, "left")
