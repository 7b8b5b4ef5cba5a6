"""Simulated tensor cores: the bits of the model, the rounding that the model is there
to show.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import BF16, FORMATS, FP16, FP32, TF32
from hifigemm.engines import available, engine_for
from hifigemm.engines.simulated import UNITS, SimulatedEngine
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.tensor_core import (
    A100,
    H100,
    TensorCoreModel,
    tensor_core_product,
)

NAMES = [name for name in available() if name.startswith("simulated-")]


def words(rng, fmt, m=3, k=70, n=4):
    return tuple(
        round_to_format(rng.standard_normal(s), fmt) for s in ((1, m, k), (1, k, n))
    )


def test_every_unit_has_an_engine():
    assert [f"simulated-{name}" for name in UNITS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_rounded_product_has_the_bits_of_the_model(name):
    engine = engine_for(name)
    for fmt in (FP16, BF16, TF32):
        if fmt.name in engine.products:
            a, b = words(np.random.default_rng(1), fmt)
            c = np.full((1, 3, 4), 0.1, np.float32)
            want = tensor_core_product(
                a, b, c, fmt=fmt, model=UNITS[name.removeprefix("simulated-")]
            )
            np.testing.assert_array_equal(engine.rounded_product(fmt, a, b, c), want)


@pytest.mark.parametrize("name", NAMES)
def test_integers_that_the_accumulator_holds_are_exact_inside_the_unit(name):
    """exact_product of these engines comes from NumPy; the arithmetic of the unit gives
    the same to the limit 2**24.
    """
    engine = engine_for(name)
    rng = np.random.default_rng(2)
    for fmt in (FP16, BF16, TF32):
        if fmt.name not in engine.products:
            continue
        for top, k in ((2**6, 2**12), (2**8, 2**8), (1, 777)):
            a, b = (
                rng.integers(-top, top + 1, s).astype(np.float32)
                for s in ((1, 3, k), (1, k, 2))
            )
            a[0, 0], b[..., 0] = top, top
            want = engine.exact_product(engine.products[fmt.name], a, b, top, top)
            np.testing.assert_array_equal(engine.rounded_product(fmt, a, b), want)


def test_instructions_and_blocks_of_each_gpu():
    steps = {
        (n, f): engine_for(f"simulated-{n}").accumulation(FORMATS[f])
        for n, f in _units()
    }
    assert {key: (unit.step, unit.block) for key, unit in steps.items()} == {
        ("v100", "fp16"): (4, 4),
        ("a100", "fp16"): (8, 16),
        ("a100", "bf16"): (8, 16),
        ("a100", "tf32"): (4, 8),
        ("h100", "fp16"): (16, 16),
        ("h100", "bf16"): (16, 16),
        ("h100", "tf32"): (8, 8),
        ("b200", "fp16"): (16, 16),
        ("b200", "bf16"): (16, 16),
        ("b200", "tf32"): (8, 8),
    }


def _units():
    return [
        ("v100", "fp16"),
        *((n, f) for n in ("a100", "h100", "b200") for f in ("fp16", "bf16", "tf32")),
    ]


def test_fp32_words_are_added_in_float64():
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 9), (1, 9, 2)))
    got = engine_for("simulated-h100").rounded_product(FP32, a, b)
    assert got.dtype == np.float64
    np.testing.assert_allclose(
        got, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-14
    )


def test_models_of_ones_own_are_engines_too():
    engine = SimulatedEngine(TensorCoreModel("mine", 8, 30, rounding="nearest"))
    a, b = words(np.random.default_rng(4), TF32)
    want = tensor_core_product(a, b, fmt=TF32, model=engine.model)
    np.testing.assert_array_equal(engine.rounded_product(TF32, a, b), want)
    assert engine.name == "simulated-mine"
    assert "nearest" in engine.accumulation(TF32).unit


def test_truncation_biases_positive_sums_and_rounding_to_nearest_does_not():
    rng = np.random.default_rng(5)
    a, b = (round_to_format(rng.random(s), FP16) for s in ((1, 8, 2048), (1, 2048, 8)))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def mean_error(name):
        return float(np.mean(engine_for(name).rounded_product(FP16, a, b) / exact - 1))

    errors = {name: mean_error(name) for name in NAMES}
    for name in NAMES:
        assert name == "simulated-ideal-nearest" or errors[name] < -8e-6, name
    assert abs(errors["simulated-ideal-nearest"]) < 5e-7
    assert (
        errors["simulated-v100"]
        < errors["simulated-a100"]
        < errors["simulated-h100"]
        == errors["simulated-b200"]
    )


def test_more_fraction_bits_move_the_unit_towards_one_rounding_a_block():
    rng = np.random.default_rng(6)
    a, b = words(rng, FP16, k=16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    wide = SimulatedEngine(TensorCoreModel("wide", 16, 46, rounding="nearest"))
    np.testing.assert_array_equal(
        wide.rounded_product(FP16, a, b), exact.astype(np.float32)
    )
    assert (
        SimulatedEngine(A100).rounded_product(FP16, a, b)
        != SimulatedEngine(H100).rounded_product(FP16, a, b)
    ).any()
