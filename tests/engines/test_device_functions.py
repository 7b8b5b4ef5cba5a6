"""NumPy's functions of device arrays give what they give for arrays of NumPy, with the
same dtypes and bits.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tests.engines.device_arrays import on_device  # noqa: E402

FUNCTIONS = {
    "ix": lambda x: x[
        np.ix_(
            *(
                np.flatnonzero(np.ones_like(x).any(axis=a))
                for a in ((1, 2), (0, 2), (0, 1))
            )
        )
    ],
    "axes": lambda x: (
        x.transpose((2, 0, 1)),
        np.swapaxes(x, 0, 2),
        np.moveaxis(x, 0, 1),
        np.expand_dims(x, 1),
        x.T,
    ),
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape).copy(),
    "repeat": lambda x: (np.repeat(x, 2, axis=1), np.take(x, [2, 0], axis=-2)),
    "join": lambda x: (
        np.stack([x, x[::1]]),
        np.concatenate([x, x.astype(np.float32)], axis=2),
    ),
    "where": lambda x: (
        np.where(x > 0, x, 0.0),
        np.where(x > 0, -1, 1),
        np.where(x > 0, 0.5, x.astype(np.float32)),
    ),
    "clip": lambda x: (np.clip(x, -1, 0.5), np.clip(x.astype(np.float32), -1, 0.5)),
    "like": lambda x: (
        np.zeros_like(x),
        np.zeros(3, like=x),
        np.ones((2, 1), bool, like=x),
        np.arange(4, like=x),
    ),
    "full": lambda x: (
        np.full(3, 4, like=x),
        np.full((2, 2), 0.5, like=x),
        np.full(2, 3, np.int8, like=x),
    ),
    "counts": lambda x: (
        np.count_nonzero(x > 0),
        len(x),
        x.ndim,
        x.size,
        bool((x > 0).any()),
        float(x[0, 0, 0]),
    ),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_and_methods_equal_numpy(function, assert_equal):
    x = np.random.default_rng(3).normal(size=(2, 6, 4))
    assert_equal(function(on_device(x)), function(x))
