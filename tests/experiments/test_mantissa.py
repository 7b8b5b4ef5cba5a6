from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.mantissa import (
    ROUNDINGS,
    expected_length,
    kept_length,
    tail_errors,
    tail_rms,
)
from hifigemm.base.formats import BF16, FP16, TF32
from hifigemm.numerics.words import Splitting

SAMPLE = 1 << 18


def sampled_errors(fmt, rounding, shift):
    """v - hi - lo in units of the last bit of v, as the library splits random v in [1,
    2).
    """
    bits = np.random.default_rng([1, fmt.t]).integers(1 << 23, 1 << 24, SAMPLE)
    _, rest = Splitting(fmt, 2, rounding, shift).split(
        np.ldexp(bits.astype(float), -23)
    )
    return np.rint(np.ldexp(rest, 23)).astype(np.int64)


@pytest.mark.parametrize(
    ("high", "low", "length", "rms"),
    [
        ("nearest", "nearest", 22.75, 0.500),
        ("zero", "nearest", 22.375, 0.935),
        ("zero", "zero", 22.25, 1.369),
        ("nearest-away", "nearest-away", 22.75, 0.500),
    ],
)
def test_two_words_of_eleven_bits_keep(high, low, length, rms):
    assert expected_length(11, high, low) == length
    assert round(tail_rms(11, high, low), 3) == rms


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("fmt", "shift"), [(FP16, 11), (TF32, 0), (BF16, 0)])
def test_sample_agrees_with_the_enumeration(fmt, shift, rounding):
    enumerated = tail_errors(fmt.t, rounding, rounding)
    sample = kept_length(sampled_errors(fmt, rounding, shift))
    mean, deviation = kept_length(enumerated).mean(), kept_length(enumerated).std()
    # Five standard deviations of the mean: a right sample fails once in 1.7 million
    # seeds.
    assert abs(sample.mean() - mean) <= 5 * deviation / math.sqrt(SAMPLE)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_tail_errs_as_the_library_does(rounding):
    v = np.ldexp(float(1 << 23) + np.arange(1 << 13), -23)
    _, rest = Splitting(TF32, 2, rounding).split(v)
    np.testing.assert_array_equal(
        np.ldexp(rest, 23), tail_errors(11, rounding, rounding)
    )


def test_unknown_rounding_is_refused():
    with pytest.raises(ValueError, match="none of nearest"):
        tail_errors(11, "nearest", "up")
