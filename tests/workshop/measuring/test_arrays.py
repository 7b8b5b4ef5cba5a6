from __future__ import annotations

import numpy as np
import pytest

from hifigemm.workshop.measuring.arrays import (
    DTYPES,
    FAMILIES,
    Workload,
)
from tests.workshop.measuring.stand_ins import ARRAYS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", [*FAMILIES, "phi2"])
def test_operands_are_the_same_for_the_same_seed_only(family, dtype):
    load = Workload(3, 5, 4, batch=2, dtype=dtype, family=family)
    (a, b), again, other = (
        ARRAYS.operands(load, 0),
        ARRAYS.operands(load, 0),
        ARRAYS.operands(load, 1),
    )
    assert a.dtype == b.dtype == dtype
    assert (a.shape, b.shape) == ((2, 3, 4), (2, 4, 5))
    assert (a == again[0]).all()
    assert (b == again[1]).all()
    assert (a != other[0]).all()
    assert np.isfinite(a).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"m": 0},
        {"batch": 0},
        {"dtype": "float16"},
        {"family": "phi"},
        {"family": "zeros"},
    ],
)
def test_senseless_workloads_are_refused(wrong):
    with pytest.raises(ValueError, match=r"sizes start at 1|no dtype|no family"):
        Workload(**({"m": 2, "n": 2, "k": 2} | wrong))
