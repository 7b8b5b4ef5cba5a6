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
    with pytest.raises(hg.PlanError, match="give num_moduli"):
        look(unwrap(x), unwrap(y))
    with pytest.raises(hg.PlanError, match="give num_moduli"):
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
