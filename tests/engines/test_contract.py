"""What admits an engine: exact products that are exact or refused, rounded products
that keep what they state.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base.exceptions import InexactProductError, PlanError
from hifigemm.base.formats import BF16, FORMATS, FP16, FP32, TF32
from hifigemm.engines import available, engine_for
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.word_bounds import growth

ENGINES = available()
WORDS = (FP16, BF16, TF32, FP32)


@pytest.fixture(
    params=[
        *(name for name in ENGINES if name != "torch"),
        pytest.param("torch", marks=pytest.mark.torch),
    ]
)
def engine(request):
    return engine_for(request.param)


def largest_entries(spec):
    """Pairs of entry bounds whose products fill the accumulator within a short k."""
    top = spec.max_integer
    pairs = [(top, top), (top, 1), (3, top // 2)]
    return [(x, y) for x, y in pairs if spec.accumulator_max // (x * y) <= 2**18]


def test_exact_product_is_exact_at_the_limit_of_the_accumulator(engine):
    rng = np.random.default_rng(1)
    for spec in engine.products.values():
        for x, y in largest_entries(spec):
            k = spec.accumulator_max // (x * y)
            for signs in (np.ones((1, 3, k)), rng.choice([-1.0, 1.0], (1, 3, k))):
                a, b = signs * x, np.full((1, k, 2), float(y))
                got = engine.exact_product(spec, a, b, x, y)
                assert (
                    got.astype(np.int64)
                    == (signs.sum(axis=2).astype(np.int64) * x * y)[..., None]
                ).all(), spec.name


def test_exact_product_refuses_k_plus_one(engine):
    for spec in engine.products.values():
        for x, y in largest_entries(spec):
            k = spec.accumulator_max // (x * y) + 1
            with pytest.raises(InexactProductError, match=f"k may be at most {k - 1}"):
                engine.exact_product(
                    spec, np.zeros((1, 1, k)), np.zeros((1, k, 1)), x, y
                )


def test_exact_product_of_random_integers_and_stacks(engine):
    rng = np.random.default_rng(2)
    for spec in engine.products.values():
        top = min(spec.max_integer, 2**12, int((spec.accumulator_max // 37) ** 0.5))
        a, b = (
            rng.integers(-top, top + 1, s).astype(np.float64)
            for s in ((1, 5, 37), (3, 37, 4))
        )
        got = engine.exact_product(spec, a, b, top, top)
        np.testing.assert_array_equal(
            got.astype(np.int64), a.astype(np.int64) @ b.astype(np.int64)
        )


def test_native_product_keeps_subnormal_numbers(engine):
    for dtype in (np.float32, np.float64):
        smallest = np.finfo(dtype).smallest_subnormal
        got = engine.native_product(
            np.full((1, 2, 3), smallest, dtype), np.ones((1, 3, 2), dtype)
        )
        assert got.dtype == dtype
        assert (got == 3 * smallest).all()


def words_of(engine):
    """Formats that the engine multiplies with rounding."""
    return [fmt for fmt in WORDS if fmt.name in engine.products]


def test_rounded_product_keeps_subnormal_words(engine):
    for fmt in words_of(engine):
        word = np.full((1, 1, 1), 2.0**fmt.min_exponent, np.float32)
        assert (
            engine.rounded_product(fmt, word, np.ones((1, 1, 1), np.float32))
            == 2.0**fmt.min_exponent
        )


def test_negative_zeros_count_as_zeros(engine):
    a = np.array([[[-0.0, 2.0], [-0.0, -0.0]]], np.float32)
    b = np.array([[[3.0, -0.0], [-0.0, 5.0]]], np.float32)
    for fmt in words_of(engine):
        assert (engine.rounded_product(fmt, a, b) == [[[0.0, 10.0], [0.0, 0.0]]]).all()
        if engine.name.startswith("simulated") and fmt is not FP32:
            assert not np.signbit(engine.rounded_product(fmt, a, b)).any()
    for spec in engine.products.values():
        assert (engine.exact_product(spec, a, b, 2, 5) == [[[0, 10], [0, 0]]]).all()


def hostile_words(rng, shape, fmt):
    """Words with exponents from all of the format, from near one, or from the subnormal
    end.
    """
    low, high = {0: (-12, 3), 1: (fmt.min_exponent, fmt.emin + 3), 2: (-50, 50)}[
        int(rng.integers(3))
    ]
    low, high = max(low, fmt.min_exponent), min(high, fmt.emax - 1)
    exponent = rng.integers(low, high + 1, shape)
    return round_to_format(
        rng.choice([-1, 1], shape) * rng.uniform(1, 2, shape) * 2.0**exponent,
        fmt,
        "zero",
    )


def test_rounded_product_keeps_the_error_that_it_states(engine):
    rng = np.random.default_rng(3)
    for fmt in words_of(engine):
        unit = engine.accumulation(fmt)
        for k in (1, 7, 16, 40):
            a = hostile_words(rng, (1, 2, k), fmt)
            b = hostile_words(rng, (1, k, 2), fmt)
            c = rng.choice([0.0, 1.0, 2.0**-140, -(2.0**20)], (1, 2, 2)).astype(
                np.float32
            )
            for given in (None, c):
                got = engine.rounded_product(fmt, a, b, given)
                steps = unit.steps(k) + 1
                grow = Fraction(growth((unit.error, steps)))
                for i, j in np.ndindex(2, 2):
                    start = Fraction(0 if given is None else float(c[0, i, j]))
                    pairs = [
                        (float(x), float(y))
                        for x, y in zip(a[0, i], b[0, :, j], strict=True)
                    ]
                    exact = start + sum(Fraction(x) * Fraction(y) for x, y in pairs)
                    wide = [
                        [max(abs(x), 2.0**fmt.emin) for x in pair] for pair in pairs
                    ]
                    size = abs(start) + sum(Fraction(x) * Fraction(y) for x, y in wide)
                    allowed = grow * size + steps * Fraction(unit.tiny) * (1 + grow)
                    assert abs(Fraction(float(got[0, i, j])) - exact) <= allowed, (
                        fmt.name,
                        k,
                    )


def test_tiny_sums_lose_nothing_above_the_safe_exponent(engine):
    for fmt in words_of(engine):
        unit = engine.accumulation(fmt)
        left = max(unit.safe_exponent // 2, fmt.emin)
        right = unit.safe_exponent - left
        if right < fmt.emin or right > fmt.emax:
            continue
        last = 2.0 ** (1 - fmt.t)
        a = np.array([[[1 + last, -1.0]]]) * 2.0**left
        b = np.array([[[1 + last], [1.0]]]) * 2.0**right
        assert (
            float(engine.rounded_product(fmt, a, b)[0, 0, 0])
            == (2 * last + last**2) * 2.0**left * 2.0**right
        )


def test_blocks_are_added_outside_to_nearest_and_in_order(engine):
    rng = np.random.default_rng(4)
    for fmt in words_of(engine):
        a, b = (
            round_to_format(rng.uniform(0, 1, s), fmt) for s in ((2, 3, 50), (1, 50, 4))
        )
        c = rng.uniform(0, 1, (2, 3, 4)).astype(np.float32)
        for block in (16, engine.accumulation(fmt).block):
            total = c
            for h in range(0, 50, block):
                total = total + engine.rounded_product(
                    fmt, a[..., h : h + block], b[:, h : h + block]
                )
            np.testing.assert_array_equal(
                engine.rounded_product(fmt, a, b, c, block=block), total
            )


def test_words_that_the_unit_lacks_are_refused(engine):
    for fmt in set(WORDS) - set(words_of(engine)):
        with pytest.raises(PlanError, match=rf"\b{fmt.name}\b"):
            engine.accumulation(fmt)
        with pytest.raises(PlanError, match=rf"\b{fmt.name}\b"):
            engine.rounded_product(fmt, np.ones((1, 1, 1)), np.ones((1, 1, 1)))


def test_override_gives_a_function_of_the_same_name(engine):
    assert engine.override(round_to_format).__name__ == "round_to_format"


def test_products_are_named_after_their_formats(engine):
    assert all(FORMATS[name] is spec.operand for name, spec in engine.products.items())
    assert engine.name in ENGINES
