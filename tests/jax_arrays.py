"""What tests of JAX share: arrays of small integers, and the devices that they lie
on.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import hifigemm.jax as hj

ON_A_GPU = pytest.mark.parametrize(
    "place", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True
)


ON_BOTH = pytest.mark.parametrize("place", ["cpu", *ON_A_GPU.args[1]], indirect=True)


PRODUCT = partial(hj.matmul, accuracy="correct")


def integers(shape, dtype="float64", seed=0):
    """Integers of one digit, with imaginary parts of their own."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-9, 10, shape) + (
        1j * rng.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else 0
    )
    return jnp.asarray(x, dtype)


DTYPES = "float32", "float64", "complex64", "complex128"


SHAPES = {
    "matrices": ((3, 4), (4, 2)),
    "vectors": ((4,), (4,)),
    "row": ((4,), (4, 2)),
    "column": ((3, 4), (4,)),
    "stacks": ((2, 3, 4), (2, 4, 2)),
    "stack of the left": ((2, 3, 4), (4, 2)),
    "stack of the right": ((3, 4), (2, 4, 2)),
    "stack and vector": ((2, 3, 4), (4,)),
    "both repeated": ((5, 1, 3, 4), (2, 4, 2)),
    "some repeated": ((5, 1, 6, 3, 4), (2, 1, 4, 2)),
    "ones": ((1, 3, 4), (1, 4, 2)),
    "no row": ((0, 4), (4, 2)),
    "no term": ((3, 0), (0, 2)),
    "no matrix": ((0, 3, 4), (4, 2)),
}
