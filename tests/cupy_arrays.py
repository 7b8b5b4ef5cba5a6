"""What tests of CuPy share: arrays on the device or in memory that nobody reads, equality
of bits, and calls of each function.
"""

from __future__ import annotations

import cupy
import numpy as np

import hifigemm as hg
import hifigemm.cupy as hc

DTYPES = "float32", "float64", "complex64", "complex128"


EXACT = {
    "correct": {"accuracy": "correct"},
    "accurate": {"scheme": hg.Ozaki2(num_moduli=14)},
    "fast": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
}


CORRECT = EXACT["correct"]


def integers(shape, dtype="float64", seed=0):
    """Integers of one digit, with imaginary parts of their own."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-9, 10, shape)
    return (
        x + 1j * rng.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else x
    ).astype(dtype)


def on_device(*arrays):
    return [cupy.asarray(x) for x in arrays]


def check_same_bits(made, expected):
    """An array of CuPy with the dtype, shape and bits of one of NumPy."""
    assert type(made) is cupy.ndarray
    x, y = cupy.asnumpy(made), np.asarray(expected)
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


CALLS = {
    "matmul": lambda xp, a, b, v: xp.matmul(a, b),
    "dot": lambda xp, a, b, v: xp.dot(a, b),
    "dot of a vector": lambda xp, a, b, v: xp.dot(a, v),
    "dot of vectors": lambda xp, a, b, v: xp.dot(v, v),
    "dot of a stack": lambda xp, a, b, v: xp.dot(a, b.reshape(2, 6, 2)),
    "vdot": lambda xp, a, b, v: xp.vdot(a, b.T),
    "inner": lambda xp, a, b, v: xp.inner(a, b.T),
    "tensordot": lambda xp, a, b, v: xp.tensordot(
        a.reshape(4, 2, 3), b.reshape(3, 2, 4), ([1, 2], [1, 0])
    ),
    "tensordot of one axis": lambda xp, a, b, v: xp.tensordot(a, b, 1),
    "einsum": lambda xp, a, b, v: xp.einsum("ij,jk->ki", a, b),
    "einsum of a stack": lambda xp, a, b, v: xp.einsum(
        "bij,bkj->bik", a.reshape(2, 2, 6), b.reshape(2, 2, 6)
    ),
    "einsum to a number": lambda xp, a, b, v: xp.einsum("ij,ji->", a, b),
}


def operands(make_pair, dtype):
    a, b = make_pair("phi_2", 4, 6, 4, dtype)
    return a, b, np.ascontiguousarray(a[1])


class Correct:
    """The functions of `hifigemm.cupy`, correctly rounded."""

    def __getattr__(self, name):
        return lambda *args: getattr(hc, name)(*args, accuracy="correct")


def unread(shape, dtype="float64"):
    """An array of CuPy in memory that is never read, which takes no GPU."""
    nbytes = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
    memory = cupy.cuda.UnownedMemory(4096, nbytes, None, 0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
