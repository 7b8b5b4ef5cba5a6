"""Signs of zeros by the kernels: a value that rounds to zero keeps its sign, an exact
zero is +0.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from tests.engines.stand_in import DEVICE, on_host
from tests.exact_values import exact_results, same_bits

FAMILIES = ("vanishing", "half_the_smallest", "signed_zeros")
REQUESTS = {
    "correct": {"accuracy": "correct"},
    "ozaki1": {"scheme": hg.Ozaki1(mode="correct")},
    "ozaki2": {"scheme": "ozaki2", "accuracy": "correct"},
    "double-double": {"scheme": "double-double"},
    "pair": {"result": "pair"},
    "enclosure": {"result": "enclosure"},
}
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def tensors(*given):
    return [torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE) for x in given]


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("request_", REQUESTS)
def test_results_have_the_bits_of_fractions(make_pair, request_, family, dtype):
    kind = request_ if request_ in ("pair", "enclosure") else "nearest"
    for seed in range(3):
        a, b = make_pair(family, 4, 6, 5, dtype, seed)
        try:
            found = hg.matmul(*tensors(a, b), **REQUESTS[request_])
        except hg.AccuracyError:
            # Exponents that no number of moduli holds.
            assert request_ == "ozaki2"
            continue
        parts = (found,) if kind == "nearest" else found
        for x, y in zip(parts, exact_results(a, b, kind), strict=True):
            assert same_bits(on_host(x), y)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_with_c_have_the_bits_of_fractions(make_pair, family, dtype):
    least = np.finfo(dtype).smallest_subnormal
    for seed, (alpha, beta) in enumerate([(-1.0, 1.0), (0.25, -0.5), (2.0**-9, 1.0)]):
        a, b = make_pair(family, 4, 6, 5, dtype, seed)
        (near,) = exact_results(a, b)
        c = near * near.dtype.type(-alpha / beta)
        c[1] = -0.0
        c[2] = -least
        scalars = {"alpha": alpha, "beta": beta}
        x, y, z = tensors(a, b, c)
        found = hg.gemm(x, y, z, accuracy="correct", **scalars)
        (want,) = exact_results(a, b, c=c, **scalars)
        assert same_bits(on_host(found), want)
