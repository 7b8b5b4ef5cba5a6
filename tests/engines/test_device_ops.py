"""Universal functions of device arrays equal NumPy's, entry by entry, for all dtypes
and numbers of the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.entries import FLOATS, INTEGERS, REAL, arrays

torch = pytest.importorskip("torch")
from hifigemm.engines import device_ops  # noqa: E402
from tests.engines.device_arrays import (  # noqa: E402
    on_device,
    on_host,
    same_values,
    untold,
)

ANY_FLOAT = [*FLOATS, np.complex64, np.complex128]


BINARY = {
    np.add: (REAL, REAL),
    np.bitwise_and: ([bool, *INTEGERS], [bool, *INTEGERS]),
    np.bitwise_or: ([bool, *INTEGERS], [bool, *INTEGERS]),
    np.copysign: (FLOATS, FLOATS),
    np.divide: (REAL, REAL),
    np.equal: (REAL, REAL),
    np.greater: (REAL, REAL),
    np.greater_equal: (REAL, REAL),
    np.left_shift: (INTEGERS, INTEGERS),
    np.less: (REAL, REAL),
    np.less_equal: (REAL, REAL),
    np.maximum: (REAL, REAL),
    np.minimum: (REAL, REAL),
    np.multiply: (REAL, REAL),
    np.not_equal: (REAL, REAL),
    np.right_shift: (INTEGERS, INTEGERS),
    np.subtract: ([*INTEGERS, *FLOATS], REAL),
}


UNARY = {
    np.absolute: [*INTEGERS, *FLOATS],
    np.ceil: FLOATS,
    np.floor: FLOATS,
    np.frexp: FLOATS,
    np.invert: [bool, *INTEGERS],
    np.isfinite: ANY_FLOAT,
    np.isinf: ANY_FLOAT,
    np.isnan: ANY_FLOAT,
    np.logical_not: REAL,
    np.negative: [*INTEGERS, *ANY_FLOAT],
    np.rint: FLOATS,
    np.sign: [*INTEGERS, *FLOATS],
    np.sqrt: [np.float32, np.float64],
    np.square: [*INTEGERS, *FLOATS],
    np.trunc: FLOATS,
}


def scalars(dtypes: list[Any], **limits: int) -> st.SearchStrategy[Any]:
    """NumPy scalars, and Python numbers that every dtype holds."""
    weak: list[Any] = [st.integers(0, 9), st.booleans()]
    if np.float64 in dtypes:
        weak.append(st.sampled_from([0.1, -2.0, 2.0**32]))
    return st.one_of(
        *weak,
        arrays(dtypes, **limits).map(lambda x: x[0, 0]),
        arrays(dtypes, **limits).map(lambda x: x[0]),
    )


@pytest.mark.parametrize("ufunc", UNARY, ids=lambda f: f.__name__)
@given(data=st.data())
def test_functions_of_one_array_equal_numpy(ufunc, data):
    x = data.draw(arrays(UNARY[ufunc]))
    with untold():
        expected, found = ufunc(x), ufunc(on_device(x))
    if ufunc.nout == 1:
        same_values(found, expected)
    else:
        for y, z in zip(found, expected, strict=True):
            same_values(y, z)


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
@given(data=st.data())
def test_functions_of_two_arrays_or_numbers_equal_numpy(ufunc, data):
    left, right = BINARY[ufunc]
    limits = (
        {"least": 0, "most": 127} if ufunc in (np.left_shift, np.right_shift) else {}
    )
    x = data.draw(arrays(left))
    y = data.draw(st.one_of(arrays(right, **limits), scalars(right, **limits)))
    turned = not limits and ufunc is not np.subtract and data.draw(st.booleans())
    exact_zero = ufunc not in (np.maximum, np.minimum)
    moved = on_device(y) if isinstance(y, np.ndarray) and y.ndim == 2 else y
    with untold():
        expected = ufunc(y, x) if turned else ufunc(x, y)
        found = ufunc(moved, on_device(x)) if turned else ufunc(on_device(x), moved)
    same_values(found, expected, signed_zeros=exact_zero)


@given(x=arrays([np.float64]), exponents=arrays([np.int32, np.int64]))
def test_powers_of_two_are_multiplied_with_one_rounding(x, exponents):
    with untold():
        expected = np.ldexp(x, exponents)
        found = np.ldexp(on_device(x), on_device(exponents))
    same_values(found, expected)


@given(x=st.floats(2.0**-1074, 1.0), power=st.integers(-1200, 100))
def test_subnormal_multiples_are_rounded_once(x, power):
    host = np.array([[x]])
    exponents = np.array([[power]])
    same_values(
        np.ldexp(on_device(host), on_device(exponents)), np.ldexp(host, exponents)
    )


@given(x=arrays([np.float64]), y=arrays([np.float64]))
def test_lengths_differ_by_units_in_the_last_place(x, y):
    with untold():
        expected = np.hypot(x, y)
        found = on_host(np.hypot(on_device(x), on_device(y)))
        near = np.abs(found - expected) <= 2.0 * np.spacing(expected)
    assert (near | (found == expected) | np.isnan(expected)).all()


@given(
    x=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4),
    y=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4),
    count=st.lists(
        st.one_of(st.integers(0, 70), st.integers(0, 2**64 - 1)), min_size=4, max_size=4
    ),
)
def test_unsigned_integers_equal_numpy(x, y, count):
    here = [np.array(v, np.uint64) for v in (x, y, count)]
    there = [on_device(v.view(np.int64)).view(np.uint64) for v in here]
    (a, b, n), (p, q, m) = here, there
    for found, expected in (
        (p >> m, a >> n),
        (p << m, a << n),
        (p >> np.uint64(3), a >> np.uint64(3)),
        ((p & q) | np.uint64(2**63), (a & b) | np.uint64(2**63)),
        ((np.uint64(1) << m) - p, (np.uint64(1) << n) - a),
        ((p >> m) != q, (a >> n) != b),
        ((p - q).view(np.int64), (a - b).view(np.int64)),
        (p.view(np.int64).astype(np.uint64), a.view(np.int64).astype(np.uint64)),
    ):
        same_values(found, expected)
    assert p[0].item() == x[0]


@given(
    x=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
    p=st.integers(1, 300),
)
def test_integers_are_divided_towards_minus_infinity(x, p):
    x = np.array(x)
    same_values(on_device(x) // p, x // p)


@given(data=st.data())
def test_divisors_on_the_host_divide(data):
    x = data.draw(arrays([np.float32, np.float64]))
    divisor = data.draw(st.sampled_from([3.0, 0.1, 7, -49.0]))
    with untold():
        same_values(on_device(x) / divisor, x / divisor)


def test_loops_are_those_that_numpy_resolves():
    for ufunc, left, right in (
        (np.add, np.int8, np.float32),
        (np.divide, np.int32, np.int32),
        (np.multiply, np.float32, np.complex128),
        (np.greater, np.int64, np.float32),
    ):
        dtypes = np.dtype(left), np.dtype(right)
        x, y = (np.ones(1, dtype) for dtype in dtypes)
        _, dtypes_in_loop = device_ops.function_and_dtypes(ufunc, (*dtypes, None))
        *inputs, output = dtypes_in_loop
        assert output == ufunc(x, y).dtype
        assert ufunc(x.astype(inputs[0]), y.astype(inputs[1])).dtype == output


def test_numbers_of_python_give_way_and_those_of_numpy_do_not():
    assert device_ops.kind_of(2) is int
    assert device_ops.kind_of(0.5) is float
    assert device_ops.kind_of(True) == np.dtype(bool)
    assert device_ops.kind_of(np.float32(0.5)) == np.float32
    assert device_ops.kind_of(on_device(np.ones(2, np.int8))) == np.int8


@pytest.mark.parametrize("n", [0, 1, 2**63, 2**64 - 1])
def test_numbers_of_uint64_keep_their_bits(n):
    kept = device_ops.as_number(n, np.dtype(np.uint64))
    assert kept % 2**64 == n
    assert -(2**63) <= kept < 2**63
    with pytest.raises(OverflowError):
        device_ops.as_number(2**64, np.dtype(np.uint64))


def test_host_arrays_are_moved_up_to_a_limit():
    limit = device_ops.HOST_LIMIT
    x = np.arange(limit, dtype=np.float32)
    moved = device_ops.as_tensor(x[::-1], np.dtype(np.float64), "cpu")
    assert moved.dtype is torch.float64
    assert moved.tolist() == x[::-1].tolist()
    with pytest.raises(TypeError, match=rf"\({limit + 1},\).* {limit} entries"):
        device_ops.as_tensor(np.zeros(limit + 1), np.dtype(np.float64), "cpu")


def test_products_of_float32_are_those_in_float64_rounded_once():
    """Integers whose sums float64 holds and float32 does not."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4095, 4096, (30, 30)) for _ in range(2))
    product = on_device(a.astype(np.float32)) @ on_device(b.astype(np.float32))
    assert product.dtype == np.float32
    np.testing.assert_array_equal(on_host(product), (a @ b).astype(np.float32))


def test_dtypes_there_and_back():
    for tensors, arrays_ in device_ops.NUMPY_DTYPES.items():
        assert device_ops.TORCH_DTYPES[arrays_] is tensors
    assert np.dtype(np.uint64) not in device_ops.NUMPY_DTYPES.values()
