"""Sums in words on a GPU: the bits of the CPU for correct results, pairs, enclosures
and sums, in all regimes.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from tests.conftest import on_gpu
from tests.test_correct import NAMES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_results_have_the_bits_of_the_cpu(make_pair, assert_same_bits, name, dtype):
    a, b = make_pair(name, 70, 90, 65, dtype, seed=11)
    x, y = on_gpu(a, b)
    with np.errstate(all="ignore"):
        correct = hg.matmul(a, b, accuracy="correct")
        for scheme in ("auto", "double-double"):
            result = hg.matmul(x, y, accuracy="correct", scheme=scheme)
            assert_same_bits(result.cpu().numpy(), correct)
        for result in ("pair", "enclosure"):
            parts = hg.matmul(x, y, result=result)
            expected = hg.matmul(a, b, result=result)
            for part, values in zip(parts, expected, strict=True):
                assert_same_bits(part.cpu().numpy(), values)


def test_correct_products_go_into_graphs(make_pair, assert_same_bits):
    a, b = make_pair("phi_20", 64, 64, 64)
    x, y = on_gpu(a, b)
    hg.matmul(x, y, accuracy="correct")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = hg.matmul(x, y, accuracy="correct")
    graph.replay()
    assert_same_bits(result.cpu().numpy(), hg.matmul(a, b, accuracy="correct"))
