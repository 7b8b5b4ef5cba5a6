"""The comparison of products with and without the compiled core notices faults."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hifigemm.engines import core
from tests.fuzz import core as fuzz

pytestmark = pytest.mark.skipif(
    core.loaded()[0] is None, reason="the core is not built"
)


def share(every):
    """Some cases, for a while."""
    return fuzz.Share(1, 0, 1, 1, every, float("inf"))


def test_products_are_the_same_and_those_of_fractions(monkeypatch):
    monkeypatch.setattr(fuzz, "BATCH", 8)
    counts, wrong = fuzz.run(share(every=16))
    assert not wrong
    products = sum(n for (_, name), n in counts.items() if name == "products")
    judged = sum(n for (_, name), n in counts.items() if name == "judged")
    assert 8 <= judged <= products <= 16 * judged


def test_a_bit_that_differs_is_noticed():
    case = next(
        case
        for case in (fuzz.draw(1, i) for i in range(100))
        if case.request == "correct"
    )
    (values,) = case.result()
    changed = np.array(values)
    flat = changed.reshape(-1).view(np.uint8)
    flat[0] ^= 1
    counts = Counter()
    faults = list(fuzz.compare(case, (changed,), (values,), 10**6, counts))
    assert counts["correct", "other bits"] == counts["correct", "wrong"] == 1
    assert len(faults) == 2
    assert not list(fuzz.compare(case, (values,), (values,), 1, counts))
    assert list(fuzz.compare(case, "PlanError", (values,), 1, counts))
