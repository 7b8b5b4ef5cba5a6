"""The comparison of a device with the host notices faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz.devices import WAYS, differences, draw

torch = pytest.importorskip("torch")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("index", range(2 * len(WAYS)))
def test_products_of_a_device_have_the_bits_of_the_host(index):
    case = draw(1, 12, index)
    entries, others, _ = differences(case, DEVICE)
    a, b = case.operands[:2]
    assert (entries, others) == (len(a) * b.shape[1], 0)


def test_a_bit_that_differs_is_noticed():
    cases = (draw(1, 12, i) for i in range(0, 100, len(WAYS)))
    case = next(case for case in cases if isinstance(case.result, tuple))
    (values,) = case.result
    changed = np.array(values)
    changed.reshape(-1)[:1].view(np.uint8)[0] ^= 1
    assert differences(replace(case, result=(changed,)), DEVICE)[1] == 1
    refused = replace(case, result="AccuracyError")
    entries, others, is_refused = differences(refused, DEVICE)
    assert others == entries
    assert is_refused
