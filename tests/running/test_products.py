"""Products of untracked arrays, which operators of other libraries end in."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.running.products import product_of_numbers


@pytest.mark.parametrize("accuracy", [None, 1e-12, "correct"])
def test_products_are_those_of_matmul(make_pair, assert_same_bits, accuracy):
    a, b = make_pair("cancelling", 4, 9, 5)
    want = hg.matmul(a, b, accuracy=accuracy)
    assert_same_bits(product_of_numbers(a, b, accuracy), want)
    out = np.empty((4, 5))
    assert product_of_numbers(a, b, accuracy, out=out) is out
    assert_same_bits(out, want)


def test_square_results_may_be_mirrored(make_pair, assert_same_bits):
    a, _ = make_pair("phi_1", 6, 9, 5)
    want = hg.matmul(a, a.T, accuracy="correct")
    assert_same_bits(product_of_numbers(a, a.T, "correct", mirror="lower"), want)
