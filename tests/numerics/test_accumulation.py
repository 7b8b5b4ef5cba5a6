"""What error analyses know of units: literal values of their rules, and the order of
sums outside them.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import BF16, FP16, FP32, FP64, TF32, Format
from hifigemm.numerics.accumulation import add_outside, in_any_order, of_tensor_core
from hifigemm.numerics.tensor_core import A100, H100, V100, TensorCoreModel

WIDE = TensorCoreModel("wide", 4, fraction_bits=46, exponent_floor=-90)
NARROW = TensorCoreModel("narrow", 4, fraction_bits=45, rounding="nearest")


@pytest.mark.parametrize(
    ("model", "fmt", "step", "error", "tiny", "safe"),
    [
        (H100, FP16, 16, 16 * 2.0**-25 + 2.0**-23, 17 * 2.0**-151 + 2.0**-149, -124),
        (H100, TF32, 8, 8 * 2.0**-25 + 2.0**-23, 9 * 2.0**-151 + 2.0**-149, -124),
        (A100, BF16, 8, 8 * 2.0**-24 + 2.0**-23, 9 * 2.0**-150 + 2.0**-149, -125),
        (A100, TF32, 4, 4 * 2.0**-24 + 2.0**-23, 5 * 2.0**-150 + 2.0**-149, -125),
        (V100, FP16, 4, 4 * 2.0**-23 + 2.0**-23, 5 * 2.0**-149 + 2.0**-149, -126),
        # Even the largest term has bits below 2**(E - F) where F < 2 (t - 1), or F < 23
        # for the accumulator.
        (WIDE, FP32, 4, 4 * 2.0**-46 + 2.0**-23, 5 * 2.0**-136 + 2.0**-149, -90),
        (NARROW, FP32, 4, 5 * 2.0**-45 + 2.0**-24, 5 * 2.0**-171 + 2.0**-149, -104),
        (
            TensorCoreModel("a", 4, 23),
            BF16,
            4,
            4 * 2.0**-23 + 2.0**-23,
            5 * 2.0**-149 + 2.0**-149,
            -126,
        ),
        (
            TensorCoreModel("b", 4, 22),
            BF16,
            4,
            5 * 2.0**-22 + 2.0**-23,
            5 * 2.0**-148 + 2.0**-149,
            -126,
        ),
    ],
)
def test_tensor_cores_have_the_errors_of_their_rule(
    model, fmt, step, error, tiny, safe
):
    unit = of_tensor_core(model, fmt, 32)
    assert (unit.step, unit.block, unit.accumulator) == (step, 32, FP32)
    assert (unit.error, unit.tiny, unit.safe_exponent) == (error, tiny, safe)


def test_sums_to_nearest_take_a_step_a_product():
    unit = in_any_order("sum", FP16, FP32, 64)
    assert (unit.step, unit.block, unit.accumulator) == (1, 64, FP32)
    assert (unit.error, unit.tiny, unit.safe_exponent) == (
        2.0**-24,
        2.0**-149,
        -149 + 20,
    )
    assert in_any_order("sum", FP32, FP64, 64).safe_exponent == -1074 + 46


def test_products_of_words_must_be_exact_in_the_accumulator():
    half = Format("half", 12, -14, 15)
    assert in_any_order("sum", half, FP32, 64).error == 2.0**-24
    with pytest.raises(ValueError, match="wider words are not exact in fp32"):
        in_any_order("sum", Format("wider", 13, -14, 15), FP32, 64)


@pytest.mark.parametrize("fmt", [FP16, TF32])
def test_steps_are_as_many_as_blocks_begin(fmt):
    unit = of_tensor_core(H100, fmt, 32)
    assert [
        unit.steps(k)
        for k in (0, 1, unit.step - 1, unit.step, unit.step + 1, 3 * unit.step)
    ] == [0, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("block", [1, 3, None])
@pytest.mark.parametrize("with_c", [False, True])
def test_blocks_are_added_outside_in_order_and_start_from_zero(k, block, with_c):
    calls, c = [], np.full((2, 2), 100.0) if with_c else None

    def product(x, y, z):
        calls.append((x.shape[-1], z))
        return x @ y + (0.0 if z is None else z)

    a, b = np.arange(2.0 * k).reshape(1, 2, k), np.arange(2.0 * k).reshape(1, k, 2)
    np.testing.assert_array_equal(
        add_outside(product, a, b, c, block)[0], a[0] @ b[0] + (0.0 if c is None else c)
    )
    if block is None:
        assert calls == [(k, c)]
    else:
        assert calls == [(min(block, k - i), None) for i in range(0, max(k, 1), block)]


def test_the_sum_outside_is_rounded_from_the_left_to_the_right_and_may_overflow():
    def taken(values, c):
        return float(
            add_outside(
                lambda x, y, _: x @ y,
                np.array([[values]]),
                np.ones((1, len(values), 1)),
                c,
                1,
            ).item()
        )

    assert taken([2.0**53, 1.0, 1.0], None) == 2.0**53
    assert taken([1.0, 1.0, 2.0**53], None) == 2.0**53 + 2
    assert taken([1.0, -(2.0**53)], np.full((1, 1, 1), 2.0**53)) == 0.0
    assert taken([2.0**1023, 2.0**1023], None) == np.inf
