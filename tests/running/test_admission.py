"""Operands at the door: what kind of product they make, in which dtype."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import NUMPY
from hifigemm.running.admission import admit
from hifigemm.running.request import Request


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
    array = np.array([[2**40]])
    operands, request = admitted(array, [[np.int64(2**20)]])
    assert operands.dtype == np.int64
    assert request.accuracy is None
    for source in ([[2**40]], np.array([[2**40]], object), (range(3),)):
        operands, request = admitted(source, source)
        assert operands.dtype == np.int64
        assert request.accuracy == "correct"
    operands, request = admitted(array.astype(np.uint64), [[3]])
    assert operands.dtype == np.uint64
    operands, request = admitted([[2**63]], [[-1]])
    assert operands.dtype == np.int64


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
    for entries, reason in (
        (
            [[3, 2**100]],
            r"entry \(0, 1\) of a is 126.*376: integers beyond int64/uint64",
        ),
        (
            [[3, 2**64]],
            "184.*616: integers beyond int64/uint64 are not supported as op",
        ),
        (
            [[-1, 2**63]],
            r"entry \(0, 1\) of a is 92.*808, beyond int64, beside negative",
        ),
        ([[3, Fraction(1, 2)]], r"entry \(0, 1\) of a is Fraction.*, no integer"),
    ):
        with pytest.raises(hg.PlanError, match=reason):
            admitted(np.array(entries, object), [[1], [1]], result="object")
