"""Which operands become fractions, and which fractions."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.operands.fraction_operands import in_fractions

WIDE = [Fraction(1, 3), Decimal("0.1"), 2**53 + 1, 10**400, Fraction(1, 2**1075)]


def objects(*entries):
    array = np.empty(len(entries), object)
    array[:] = entries
    return array


@pytest.mark.parametrize("entry", WIDE)
def test_one_wide_entry_makes_fractions_of_all(entry):
    others = np.array([0.1, np.inf], np.float32)
    a, b = in_fractions({"a": objects(entry, 1, np.int8(2)), "b": others})
    assert a.tolist() == [Fraction(entry), 1, 2]
    assert b.tolist() == [Fraction(float(others[0])), math.inf]
    assert all(isinstance(x, Fraction) for x in a.tolist())


@pytest.mark.parametrize(
    "x",
    [
        np.ones(2),
        np.ones(2, complex),
        np.array([2**62, -1]),
        np.array([True]),
        objects(Fraction(1, 2), Decimal("0.25"), 2**80, True),
        objects(math.nan, Decimal("Infinity")),
        objects(1j),
        objects(None),
    ],
)
def test_what_float64_holds_or_is_no_number_is_left(x):
    assert in_fractions({"a": x, "b": np.ones(1)}) is None


def test_integers_of_dtypes_that_float64_rounds():
    for dtype in (np.int64, np.uint64):
        (a,) = in_fractions({"a": np.array([[2**53 + 1, 3]], dtype)})
        assert a.tolist() == [[2**53 + 1, 3]]


def test_longdouble_is_always_made_of_fractions():
    x = np.array([np.longdouble(1) / 3, np.longdouble("nan"), 0])
    third, nan, zero = in_fractions({"a": x})[0].tolist()
    assert third == Fraction(*x[0].as_integer_ratio())
    assert math.isnan(nan)
    assert zero == 0


def test_what_has_no_fraction_beside_wide_entries_raises():
    for entry in (Decimal("1e999999999"), Decimal("-1e-999999999")):
        with pytest.raises(ValueError, match=r"entry \(1,\) of b is Decimal"):
            in_fractions({"a": objects(Fraction(1, 3)), "b": objects(1, entry)})
    with pytest.raises(TypeError, match="b has dtype object and holds None"):
        in_fractions({"a": objects(Fraction(1, 3)), "b": objects(None)})
    with pytest.raises(TypeError, match="b holds 2j, a complex, and an operand has"):
        in_fractions({"a": objects(Fraction(1, 3)), "b": np.array([1, 2j])[1:]})
