"""accuracy="correct" on a GPU for large operands of all kinds: every entry is the
CPU's, a sample the oracle's.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from tests.conftest import on_gpu
from tests.test_correct import NAMES

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SIZE = 2048
SHORTER = {"far_nudged_ties": 512, "full_range": 1024, "overflowing": 1024}
"""Kinds that take hundreds of products or thousands."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_large_products_of_all_kinds_are_rounded_correctly(
    make_pair, assert_same_bits, name, dtype
):
    n = SHORTER.get(name, SIZE)
    a, b = make_pair(name, n, n, n, dtype, seed=3)
    result, report = hg.matmul(*on_gpu(a, b), accuracy="correct", return_report=True)
    found = result.cpu().numpy()
    assert report.correct
    with np.errstate(all="ignore"):
        assert_same_bits(found, hg.matmul(a, b, accuracy="correct"))
    rows, cols = (
        np.random.default_rng(n).choice(n, 16, replace=False) for _ in range(2)
    )
    assert_same_bits(found[np.ix_(rows, cols)], correctly_rounded(a[rows], b[:, cols]))
