"""Plans and prepared operands of untracked arrays."""

from __future__ import annotations

import pytest

import hifigemm as hg
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
