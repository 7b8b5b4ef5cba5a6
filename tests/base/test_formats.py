"""Formats of words: their numbers are those of the dtypes that NumPy and ml_dtypes have
for them.
"""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base import formats
from hifigemm.base.formats import FORMATS, Format

NAMES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""The dtype of each floating-point format that a library has."""


@pytest.fixture(params=NAMES)
def pair(request):
    """A format and the limits of its dtype."""
    name = NAMES[request.param]
    if request.param in ("fp64", "fp32", "fp16"):
        return FORMATS[request.param], np.finfo(name)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return FORMATS[request.param], ml_dtypes.finfo(name)


def test_limits_are_those_of_the_dtype(pair):
    fmt, limits = pair
    assert fmt.t == limits.nmant + 1
    assert 2.0**fmt.emin == float(limits.smallest_normal)
    assert 2.0**fmt.emax <= float(limits.max)
    # 2.0**1024 is no float64
    assert Fraction(float(limits.max)) < Fraction(2) ** (fmt.emax + 1)
    assert Fraction(2) ** fmt.min_exponent == float(limits.smallest_subnormal)
    assert 2 * fmt.u == float(limits.eps)


def test_every_number_of_a_narrow_format_is_one_of_the_definition():
    """All 63488 finite float16 are +-m 2**(e - t + 1) with m < 2**t, emin <= e <= emax,
    and there are no others.
    """
    fmt = formats.FP16
    words = np.arange(2**16, dtype=np.uint16).view(np.float16)
    units = words[np.isfinite(words)].astype(np.float64) * 2.0**-fmt.min_exponent
    finite = set(map(int, units))
    defined = {
        sign * m * 2 ** (e - fmt.emin)
        for e in range(fmt.emin, fmt.emax + 1)
        for m in range(2**fmt.t)
        for sign in (1, -1)
    }
    assert finite == defined


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_integers_up_to_the_largest_are_exact_and_the_next_is_not(fmt):
    def is_exact(n):
        """True if n = m 2**(e - t + 1) for an e of the format and an m below 2**t."""
        exponent = n.bit_length() - 1
        step = max(exponent - fmt.t + 1, 0)
        return n % 2**step == 0 and exponent <= fmt.emax

    top = fmt.max_integer
    for n in {1, 2, 3, top // 2 + 1, top - 2, top - 1}:
        assert is_exact(n)
    assert is_exact(top) == (fmt is not formats.INT8)  # -2**7, but not 2**7
    assert not is_exact(top + 1)


def test_tf32_has_the_range_of_float32_and_the_digits_of_float16():
    tf32, single, half = formats.TF32, formats.FP32, formats.FP16
    assert (tf32.emin, tf32.emax) == (single.emin, single.emax)
    assert (tf32.t, tf32.u) == (half.t, half.u)


def test_int8_has_seven_bits_and_no_fractions():
    limits = np.iinfo(np.int8)
    assert formats.INT8.max_integer - 1 == limits.max
    assert -formats.INT8.max_integer == limits.min
    assert formats.INT8.emin == 0


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_copies_of_a_format_are_the_format(fmt):
    assert FORMATS[fmt.name] is fmt
    assert copy.copy(fmt) is fmt
    assert copy.deepcopy(fmt) is fmt
    assert pickle.loads(pickle.dumps(fmt)) is fmt


def test_another_format_of_a_known_name_is_copied_as_it_is():
    other = Format("fp16", 8, -14, 15)
    found = pickle.loads(pickle.dumps(other))
    assert found == other
    assert found is not FORMATS["fp16"]
