"""What executables take and give: arrays of NumPy on a host, tensors on a device.

The plain maths works on arrays of NumPy, or on those of `device_array` around tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def memory_of(x: Any) -> Any:
    """An array or a scalar of NumPy itself, the tensor of an array of a device."""
    return x if isinstance(x, np.ndarray) else getattr(x, "tensor", x)


def as_array(x: Any) -> Any:
    """An array of NumPy itself; a tensor as an array of its device."""
    if isinstance(x, np.ndarray):
        return x
    from hifigemm.engines.device_array import wrap

    return wrap(x)
