"""Where arrays lie that primitives are tried on, and the first entry that is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hifigemm.testing.primitives.platforms import COUNT, Finding, Platform, first_fault
from hifigemm.testing.primitives.platforms import on_device as platform_of_device


@pytest.mark.parametrize("stride", Platform("NumPy").strides)
def test_entries_lie_a_stride_apart(stride):
    x = np.arange(12.0).reshape(2, 6)
    spread = Platform("NumPy").spread(x, stride)
    np.testing.assert_array_equal(spread, x)
    assert spread.strides[1] == 8 * stride


def test_sizes_end_with_all_entries():
    platform = Platform("NumPy")
    assert platform.sizes == tuple(sorted(platform.sizes))
    assert platform.sizes[-1] == COUNT
    assert 0 not in platform.strides


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64, np.bool_])
def test_arrays_come_back_from_a_device_as_they_were(torch, dtype):
    platform = platform_of_device("cpu")
    x = np.array([0, 1, 2**63 - 1]).astype(dtype)
    np.testing.assert_array_equal(platform.fetch(platform.spread(x, 3)), x, strict=True)
    assert torch.__version__ in platform.library
    assert min(platform.strides) > 0


@pytest.mark.parametrize(
    ("found", "truth", "fault"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 3.0, 4.0], [1.0, 2.0, 5.0], "entry 1 is 3.0, not 2.0"),
        ([0.0], [-0.0], "entry 0 is 0.0, not -0.0"),
        ([math.inf], [-math.inf], "entry 0 is inf, not -inf"),
    ],
)
def test_the_first_wrong_entry_is_named(found, truth, fault):
    assert first_fault(np.array(found), truth) == fault


def test_integers_have_no_sign_of_zero():
    assert first_fault(np.array([0, 5]), [0, 5]) == ""
    assert first_fault(np.array([0, 6]), [0, 5]) == "entry 1 is 6, not 5"


@pytest.mark.parametrize(
    ("fault", "used", "starts", "ends"),
    [
        ("", True, "rint ", "7 entries  ok"),
        ("entry 3", True, "rint ", "AT FAULT: entry 3"),
        ("entry 3", False, "not used: rint ", "AT FAULT: entry 3"),
    ],
)
def test_a_finding_is_one_line(fault, used, starts, ends):
    line = str(Finding("rint", "NumPy 9", 7, fault, used))
    assert line.startswith(starts)
    assert line.endswith(ends)
    assert "NumPy 9" in line
