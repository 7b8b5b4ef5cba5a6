"""What executables take and give: arrays of NumPy on a host, tensors on a device.

The plain maths works on arrays of NumPy, or on those of `device_array` around tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hifigemm.numerics.bits import Array


def memory_of(x: Any) -> Any:
    """An array or a scalar of NumPy itself, the tensor of an array of a device."""
    return x if isinstance(x, np.ndarray) else getattr(x, "tensor", x)


def as_array(x: Any) -> Any:
    """An array of NumPy itself; a tensor as an array of its device."""
    if isinstance(x, np.ndarray):
        return x
    from hifigemm.engines.device_array import wrap

    return wrap(x)


def is_on_host(x: object) -> bool:
    """True for arrays and numbers of NumPy, False for device arrays."""
    return not hasattr(x, "tensor")


def to_host(x: Array) -> Array:
    """An array of NumPy with these entries."""
    return x if is_on_host(x) else np.asarray(memory_of(x).cpu())


def to_device_of(like: Array, x: Array) -> Array:
    """An array of NumPy as one where another array is."""
    if is_on_host(like):
        return x
    import torch

    # NumPy gives axes of length one any stride, and PyTorch rejects an odd one
    tensor = torch.from_numpy(np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)
    array: Array = as_array(tensor.to(memory_of(like).device))
    return array
