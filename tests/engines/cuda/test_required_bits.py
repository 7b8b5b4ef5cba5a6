"""Bits that exact integers require, by a program of the device: those of numerics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda import required_bits
from hifigemm.engines.device_array import unwrap
from hifigemm.numerics import scaling
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import arrays, planned

FAST = hg.Ozaki2(scaling="fast")
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def test_nothing_is_looked_at_while_a_graph_is_captured(engine, monkeypatch):
    x, y = arrays(*operands())
    look = required_bits.required_bits_of(unwrap(x), unwrap(y), 100)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError, match="set num_moduli"):
        look(unwrap(x), unwrap(y))
    with pytest.raises(hg.PlanError, match="set num_moduli"):
        planned(FAST, x, y, engine, "correct")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("width", [1, 9, 30])
def test_bits_are_those_of_numerics(engine, dtype, width):
    rng = np.random.default_rng(width)

    def integers(shape):
        x = rng.integers(-(2**width), 2**width, shape).astype(dtype)
        return x * x.dtype.type(2.0**-7)

    a, b = integers((2, 5, 300)), integers((1, 300, 4))
    x, y = (unwrap(z) for z in arrays(a, b))
    bits = scaling.required_bits(a, b, 10**6, 2**20)
    for most in (sum(bits) - 1, sum(bits), 10**6):
        look = required_bits.required_bits_of(x, y, most)
        assert look(x, y) == (bits if sum(bits) <= most else None)
    for operand, side, bits_of_side in zip(
        (x, y), ("left", "right"), bits, strict=True
    ):
        assert (
            required_bits.required_bits_of_one(operand, side)(operand) == bits_of_side
        )


@pytest.mark.parametrize("side", ["left", "right"])
def test_bits_of_one_operand_are_seen_in_any_layout(engine, side):
    """Whatever its vectors hold, of which one stands for the other operand."""
    rng = np.random.default_rng(3)
    wide = rng.integers(-(2**40), 2**40, (2, 7, 11)).astype(np.float64)
    narrow = rng.integers(1, 4, (2, 7, 11)).astype(np.float64)
    first = narrow.copy()
    first[:, 0] = wide[:, 0]
    first[:, :, 0] = wide[:, :, 0]
    for x in (wide, narrow, first, 2.0**-900 * wide):
        a, b = (x, np.ones((1, 11, 1))) if side == "left" else (np.ones((1, 1, 7)), x)
        bits = scaling.required_bits(a, b, 10**6, 2**20)[side == "right"]
        (stack,) = (unwrap(z) for z in arrays(x))
        for tensor in (stack, stack.mT.contiguous().mT):
            look = required_bits.required_bits_of_one(tensor, side)
            assert look(tensor) == bits


def test_one_look_serves_operands_of_the_same_layout(engine, recordings):
    x, y = (unwrap(z) for z in arrays(*operands()))
    look = required_bits.required_bits_of(x, y, 100)
    required_bits.required_bits_of(x.clone(), y.clone(), 100)
    assert len(recordings) == 1
    required_bits.required_bits_of(x, y, 99)
    assert len(recordings) == 2
    for a, b in ((np.ones((1, 4, 9)), np.ones((1, 9, 5))), operands(seed=3)):
        given = [unwrap(z) for z in arrays(a, b)]
        assert look(*given) == scaling.required_bits(a, b, 100, 2**20)
