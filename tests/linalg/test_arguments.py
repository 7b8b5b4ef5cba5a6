"""From arrays of a library to float64 and back, and the class of errors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.linalg.arguments import in_dtype, wide_operands
from tests.linalg.worst_arithmetic import UNIT


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        ("dd", "d"),
        ("ff", "f"),
        ("fd", "d"),
        ("fF", "F"),
        ("dF", "D"),
        ("ii", "d"),
        ("ef", "f"),
        ("?f", "d"),
    ],
)
def test_dtypes_promote_as_in_numpy(dtypes, result):
    a, b = (np.ones((2, 2), dtype) for dtype in dtypes)
    operands = wide_operands(a=a, b=b)
    assert operands.dtype == np.dtype(result)
    assert operands.real == np.finfo(result).dtype
    wide = np.complex128 if operands.dtype.kind == "c" else np.float64
    assert all(x.dtype == wide for x in operands.arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_the_distance_to_the_rounded_solution_is_in_the_radius(dtype):
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal(300), rng.integers(-150, 120, 300))
    radius = np.abs(x) * 2.0 ** -rng.integers(10.0, 60.0, 300)
    wide = x + 1j * x[::-1] if dtype == np.complex64 else x
    result, bound = in_dtype(wide, radius, np.dtype(dtype))
    assert bound.dtype == np.float32
    for value, rounded, before, after in zip(wide, result, radius, bound):
        re = Fraction(value.real) - Fraction(float(rounded.real))
        im = Fraction(value.imag) - Fraction(float(rounded.imag))
        room = Fraction(float(after)) - Fraction(before)
        assert room >= 0
        assert room**2 >= re**2 + im**2


def test_float64_keeps_x_and_radius():
    x, radius = np.array([1.0, 2.0]), np.array([0.0, float(UNIT)])
    result, bound = in_dtype(x, radius, np.dtype(float))
    assert (result == x).all()
    assert (bound == radius).all()


def test_errors_are_those_of_numpy():
    with pytest.raises(np.linalg.LinAlgError):
        linalg.solve(np.ones((2, 2)), np.ones(2))


def test_objects_and_strings_raise():
    with pytest.raises(TypeError, match="dtype"):
        linalg.solve(np.array([["1"]]), np.ones(1))
    with pytest.raises(TypeError):
        linalg.eigvalsh(np.ones((1, 1), np.longdouble))
