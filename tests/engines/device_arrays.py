"""What tests of device arrays share: arrays there and back, and equality to the last
bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hifigemm.engines.device_array import DeviceArray, unwrap, wrap


def untold() -> np.errstate:
    """Overflow and NaN are meant here."""
    return np.errstate(all="ignore")


def on_device(x: np.ndarray, device: str = "cpu") -> Any:
    return wrap(torch.tensor(np.ascontiguousarray(x), device=device).reshape(x.shape))


def on_host(x: Any) -> np.ndarray:
    if not isinstance(x, DeviceArray):
        return np.asarray(x)
    host = unwrap(x).cpu().numpy()
    return host.view(np.uint64) if x.dtype == np.uint64 else host


def leaves(x: Any) -> Iterator[Any]:
    """Arrays and numbers of nested results, in order."""
    if dataclasses.is_dataclass(x):
        x = vars(x)
    if isinstance(x, Mapping):
        x = [x[name] for name in sorted(x)]
    if isinstance(x, list | tuple):
        for part in x:
            yield from leaves(part)
    else:
        yield x


def canonical(x: np.ndarray) -> np.ndarray:
    """One NaN for all NaNs, whose sign and payload IEEE 754 leaves open."""
    x = np.array(x)
    if x.dtype.kind in "fc":
        real = x.reshape(-1).view(x.real.dtype)
        real[np.isnan(real)] = np.nan
    return x


def same_values(found: Any, expected: Any, *, signed_zeros: bool = True) -> None:
    """Equal dtypes, shapes and values, NaNs being equal."""
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype
    host = on_host(found)
    assert host.dtype == expected.dtype
    assert host.shape == expected.shape
    np.testing.assert_array_equal(host, expected)
    if signed_zeros and expected.dtype.kind == "f":
        there = ~np.isnan(expected)
        np.testing.assert_array_equal(
            np.signbit(host)[there], np.signbit(expected)[there]
        )
