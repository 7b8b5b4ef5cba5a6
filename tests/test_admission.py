"""Operands at the door: what kind of product they make, in which dtype."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.admission import admit
from hifigemm.libraries import NUMPY
from hifigemm.request import Request


def admitted(a, b, **options):
    return admit(a, b, None, NUMPY, Request(**options))


def test_numbers_keep_their_memory_and_promote_as_in_numpy():
    a = np.ones((2, 3), np.float32)
    b = np.ones((3, 4))
    operands, request = admitted(a, b)
    assert operands.arrays == (a, b) or all(
        x is y for x, y in zip(operands.arrays, (a, b), strict=True)
    )
    assert operands.dtype == np.float64
    assert operands.shapes.result == (2, 4)
    assert request == Request()


def test_integers_of_python_are_to_be_exact():
    operands, request = admitted([[2**40]], [[2**20]])
    assert operands.dtype == np.int64
    assert request.accuracy is None
    objects = np.array([[2**40]], object)
    operands, request = admitted(objects, objects)
    assert operands.dtype == np.int64
    assert request.accuracy == "correct"


def test_fractions_come_as_words():
    x = np.array([[Fraction(1, 2**70) + 1]], object)
    operands, _ = admitted(x, x)
    assert operands.dtype == np.float64
    # Two words each: all four products stand along k.
    assert operands.shapes.left == (1, 1, 4)


def test_a_kind_of_result_that_the_operands_have_not_raises():
    a = np.ones((2, 2))
    with pytest.raises(hg.PlanError, match="the operands are float64 and float64"):
        admitted(a, a, result="int64")
    i = np.ones((2, 2), np.int8)
    with pytest.raises(hg.PlanError, match="the operands are int8 and int8"):
        admitted(i, i, result="pair")
    mixed = np.array([[2**63]], object), np.array([[-1]], object)
    with pytest.raises(hg.PlanError, match="beyond int64 and negative ones"):
        admitted(*mixed)
