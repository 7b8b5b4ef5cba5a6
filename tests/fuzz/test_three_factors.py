"""Products of three factors are rounded once, and the judge notices where not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.functions import three_factors
from hifigemm.numerics import three_factors as numerics
from tests.fuzz import three_factors as fuzz


def judged(indices):
    """Counts, and what is wrong with these cases."""
    counts = Counter()
    faults = []
    for index in indices:
        faults += fuzz.faults(fuzz.draw(1, index), counts)
    return counts, faults


@pytest.mark.parametrize("few_terms", [64, 0])
@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_every_entry_is_rounded_once(monkeypatch, count, few_terms):
    monkeypatch.setattr(three_factors, "_FEW_TERMS", few_terms)
    counts, faults = judged(range(count))
    assert not faults, "\n".join(faults)
    assert 0 < counts["by integers"] < counts["in more words"] < counts["entries"]


def without_bounds(self, bound, roundings):
    return 0.0 * (bound.reshape((*bound.shape, 1)) + roundings)


def without_what_is_left_out(self, bound, roundings):
    return 0.0 * bound.reshape((*bound.shape, 1)) + roundings


def nothing_left_out(self, word, c):
    return np.zeros((len(word), word.shape[1], c.shape[2]))


FAULTS = {
    "no bounds": (three_factors._Words, "_total", without_bounds),
    "words are all": (three_factors._Words, "_total", without_what_is_left_out),
    "a pair is all": (three_factors._Words, "_left_out", nothing_left_out),
    "no underflow": (three_factors, "_may_underflow", lambda lowest: False),
    "zeros for Inf": (three_factors, "_fill_in_order", lambda *args: None),
    "ends as they come": (numerics, "_outwards", lambda x, y, end: x + y),
    "zeros for integers": (three_factors, "nearest", lambda *args: 0.0),
}


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_pairs_that_err_by_more_than_close_ones_are_noticed(monkeypatch):
    monkeypatch.setattr(three_factors, "_FEW_TERMS", 0)
    monkeypatch.setattr(core, "close_pair", lambda a, b: (a @ b, 0.0 * (a @ b)))
    assert judged(range(40))[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, monkeypatch):
    place, name, function = FAULTS[fault]
    monkeypatch.setattr(place, name, function)
    for start in range(0, 2000, 100):
        if judged(range(start, start + 100))[1]:
            return
    pytest.fail(f"{fault} is not noticed")
