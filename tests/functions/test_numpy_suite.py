"""NumPy's own tests of these functions, run with ours in the place of NumPy's.

The modules of tests come with NumPy and see NumPy through a stand-in that has our
functions. A call with what we do not take by design, dtype= or objects say, goes to
NumPy, and the classes below drop the tests that are about nothing else.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import hifigemm.numpy as hnp

pytest.importorskip(
    "numpy._core.tests.test_einsum", reason="NumPy is installed without its tests"
)

TAKEN = frozenset("?bBhHiIlLqQfdFD")
"""Character codes of the dtypes whose results have NumPy's dtype; float16 gives
float32.
"""


class StandIn:
    """NumPy, with some of its functions replaced."""

    def __init__(self, **replaced):
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(np, name)


def instead_of(theirs, ours):
    """Our function for what it takes, NumPy's for other dtypes, subclasses and keywords
    that we do not have.
    """

    def call(*args, **kwargs):
        flat = [
            y for x in args for y in (x if isinstance(x, list | tuple) else [x])
        ] + list(kwargs.values())
        arrays = [
            x
            for x in flat
            if isinstance(x, np.ndarray | np.generic)
            or hasattr(x, "__array_function__")
        ]
        known = set(kwargs) <= {"out", "optimize", "axes", "axis"}
        if not known or any(
            not (type(x) is np.ndarray or isinstance(x, np.generic))
            or x.dtype.char not in TAKEN
            for x in arrays
        ):
            return theirs(*args, **kwargs)
        call.served += 1
        return ours(*args, **kwargs)

    call.served = 0
    return call


NAMES = (
    "dot",
    "vdot",
    "inner",
    "outer",
    "tensordot",
    "einsum",
    "matmul",
    "vecdot",
    "matvec",
    "vecmat",
)


@pytest.fixture(autouse=True)
def ours(request, monkeypatch):
    """The stand-in, within the module from which the class of a test comes."""
    if request.cls is None:
        return
    module = importlib.import_module(request.cls.__mro__[1].__module__)
    calls = {name: instead_of(getattr(np, name), getattr(hnp, name)) for name in NAMES}
    monkeypatch.setattr(module, "np", StandIn(**calls))
    for name in ("dot", "multi_dot", "matrix_power"):
        if hasattr(module, name):
            calls[name] = instead_of(getattr(module, name), getattr(hnp, name))
            monkeypatch.setattr(module, name, calls[name])


einsum, linalg = (
    importlib.import_module(x)
    for x in ("numpy._core.tests.test_einsum", "numpy.linalg.tests.test_linalg")
)
multiarray, numeric = (
    importlib.import_module(f"numpy._core.tests.test_{x}")
    for x in ("multiarray", "numeric")
)


class TestEinsum(einsum.TestEinsum):
    test_einsum_0d_out = None  # a float64 result for an out= of int64


class TestMatrixPower(linalg.TestMatrixPower):
    test_power_is_minus_one = test_exceptions_not_invertible = None  # inverses


class TestMultiDot(linalg.TestMultiDot):
    pass


class TestVdot(multiarray.TestVdot):
    pass


class TestDot(multiarray.TestDot):
    test_dot_3args_errors = None  # NumPy takes no out= that is not contiguous
    test_huge_vectordot = None  # 4 GiB, of which we make copies


class TestInner(multiarray.TestInner):
    pass


class TestTensordot(numeric.TestTensordot):
    pass


def test_calls_for_our_dtypes_reach_us():
    call = instead_of(np.einsum, hnp.einsum)
    call("i,i", np.ones(3), np.ones(3))
    call("i,i", np.ones(3), np.ones(3), optimize=True)
    assert call.served == 2
    call("i,i", np.ones(3), np.ones(3), casting="safe")
    call("i,i", np.ones(3, object), np.ones(3))
    assert call.served == 2
