"""Functions of entries: a fault in one stride, size or sign is named with its place."""

from __future__ import annotations

import math
import operator
import sys

import numpy as np
import pytest

from hifigemm.testing.primitives.functions import functions
from hifigemm.testing.primitives.platforms import Platform, on_device
from tests.testing.primitives.faults import at_fault

NUMPY = Platform("NumPy")
# the package has a function of the name of this module
module = sys.modules["hifigemm.testing.primitives.functions"]


@pytest.mark.torch
def test_arrays_of_a_device_run_through_the_same_checks():
    assert not at_fault(functions(on_device("cpu")))


def spoiled(function, where):
    """The function with one entry changed in calls for which `where` holds of its first
    argument.
    """

    def changed(x, *others, **options):
        found = np.array(function(x, *others, **options))
        if where(x):
            found.flat[-1] += 1
        return found

    return changed


def test_a_function_that_fails_in_one_stride_is_named_with_the_stride(monkeypatch):
    monkeypatch.setattr(
        np, "rint", spoiled(np.rint, lambda x: x.strides == (64,) and x.size > 16)
    )
    found = at_fault(functions(NUMPY))
    assert list(found) == ["rint (float64)"]
    assert found["rint (float64)"].startswith("stride 8, size 17: entry 16 is ")


def test_a_lost_sign_of_zero_is_a_fault(monkeypatch):
    trunc = np.trunc
    monkeypatch.setattr(np, "trunc", lambda x, **options: trunc(x, **options) + 0.0)
    assert "is 0.0, not -0.0" in at_fault(functions(NUMPY))["trunc (float64)"]


def test_pools_hold_the_limits_of_their_kinds():
    pools = module._pools()
    assert {len(x) for x in pools.values()} == {module.COUNT}
    floats = pools["float64"].tolist()
    for x in (0.0, 2.0**-1074, 2.0**-1022, np.finfo(float).max, 2.0**53):
        assert x in floats
        assert -x in floats
    assert (pools["float64 > 0"] > 0).sum() > module.COUNT // 3
    assert np.isfinite(pools["float64"]).all()
    assert not np.isfinite(pools["float64, Inf, NaN"]).all()
    assert pools["int64"].min() == 1 - 2**63
    assert pools["int64"].max() == 2**63 - 1


@pytest.mark.parametrize("fault", [0, 1])
def test_a_wrong_sum_is_named_with_its_axis(monkeypatch, fault):
    def summed(x, axis):
        value = x.sum(axis=axis)
        return value + fault if axis == 0 else value

    monkeypatch.setattr(module, "_table", lambda: iter(()))
    monkeypatch.setattr(module, "_REDUCTIONS", (("sum", summed, sum, "int8"),))
    platform = Platform("NumPy", strides=(1,), sizes=(1, 3))
    (found,) = list(module.functions(platform))[:1]
    assert ("axis 0: entry 0" in found.fault) == bool(fault)


@pytest.mark.parametrize(
    ("name", "of_numbers"),
    [
        ("negative", operator.neg),
        ("sqrt", lambda x: math.sqrt(abs(x))),
        ("absolute", abs),
    ],
)
def test_a_function_is_compared_with_that_of_numbers(name, of_numbers):
    function = module.Function(
        name, lambda x: getattr(np, name)(abs(x)), of_numbers, ("float64",)
    )
    found = module._compared(NUMPY, function, module._pools())
    # all but the first take the sign away
    assert bool(found.fault) == (name == "negative")
    assert found.cases > 0
