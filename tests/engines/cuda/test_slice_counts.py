"""Counts of slices by a program of the device: those of numerics, by one look."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda.slice_counts import num_slices_of
from hifigemm.engines.device_array import unwrap
from hifigemm.kernels.vectors.slice_counts import num_digits
from hifigemm.numerics.estimates import published_num_slices
from tests.engines.cuda.operands import operands
from tests.engines.stand_in import arrays

DOUBLE, SINGLE = 2.0**-53, 2.0**-24
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def tensors(a, b):
    """Both operands on the device that stands in for a GPU."""
    return [unwrap(x) for x in arrays(a, b)]


@pytest.mark.parametrize("family", ["phi_1", "full_range", "zeros", "integers"])
@pytest.mark.parametrize(("beta", "u"), [(8, DOUBLE), (8, SINGLE), (22, DOUBLE)])
def test_counts_are_those_of_the_plain_estimate(engine, make_pair, family, beta, u):
    a, b = (x[None] for x in make_pair(family, 6, 70, 9))
    x, y = tensors(a, b)
    count = num_slices_of(x, y, beta, u)(x, y)
    expected = published_num_slices(a, b, beta, u)
    needs_longer_look = expected[0] > num_digits(beta, u)
    assert count == expected or (count is None and needs_longer_look)


def test_one_look_serves_operands_of_the_same_layout(engine, recordings):
    first = operands()
    x, y = tensors(*first)
    look = num_slices_of(x, y, 8, DOUBLE)
    num_slices_of(x.clone(), y.clone(), 8, DOUBLE)
    assert len(recordings) == 1
    num_slices_of(x, y, 9, DOUBLE)
    num_slices_of(x, y, 8, SINGLE)
    assert len(recordings) == 3
    for a, b in (first, operands(seed=3), tuple(np.ones_like(z) for z in first)):
        assert look(*tensors(a, b)) == published_num_slices(a, b, 8, DOUBLE)


def test_nothing_is_looked_at_while_a_graph_is_captured(engine, monkeypatch):
    x, y = tensors(*operands())
    look = num_slices_of(x, y, 8, DOUBLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError):
        look(x, y)
    with pytest.raises(hg.PlanError):
        num_slices_of(x, y, 8, DOUBLE)
