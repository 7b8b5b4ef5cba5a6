"""Dtypes that callers ask of results, and the last rounding to them."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import BF16, FP16, FP32
from hifigemm.libraries import BFLOAT16
from hifigemm.operands.out_dtype import (
    as_out_dtype,
    dtype_of_product,
    format_of,
    rounded_to,
)

NAMES = "float16", "float32", "float64", "complex64", "complex128"


def test_names_and_dtypes_of_libraries_are_read(torch):
    for name in NAMES:
        dtype = np.dtype(name)
        foreign = dtype.newbyteorder()
        for x in (name, dtype, dtype.type, foreign, getattr(torch, name)):
            assert as_out_dtype(x) == dtype
    for x in ("bfloat16", torch.bfloat16):
        assert as_out_dtype(x) == BFLOAT16
    assert as_out_dtype(None) is None


@pytest.mark.parametrize("x", ["int8", "half precision", 3, np.longdouble, BFLOAT16])
def test_others_are_refused(x):
    with pytest.raises(TypeError, match=r"out_dtype=.*: expected float16, bfloat16, "):
        as_out_dtype(x)


@pytest.mark.parametrize(
    ("product", "out_dtype", "dtype"),
    [
        ("float32", "float16", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float32", "float64", "float64"),
        ("float64", "float32", "float64"),
        ("float64", "complex64", "complex128"),
        ("float32", "complex64", "complex64"),
        ("complex128", "complex64", "complex128"),
        ("float64", None, "float64"),
    ],
)
def test_wider_dtypes_are_those_of_products(product, out_dtype, dtype):
    assert dtype_of_product(np.dtype(product), as_out_dtype(out_dtype)) == dtype


@pytest.mark.parametrize(
    ("product", "out_dtype", "text"),
    [
        ("complex64", "float64", "out_dtype=float64 is real, and the product is comp"),
        ("complex64", "bfloat16", "out_dtype=bfloat16 is real, and the product is co"),
        ("int64", "float64", "out_dtype=float64, and the product of integers is int64"),
    ],
)
def test_products_that_have_no_such_result(product, out_dtype, text):
    with pytest.raises(TypeError, match=text):
        dtype_of_product(np.dtype(product), as_out_dtype(out_dtype))


def test_formats_of_narrow_dtypes():
    names = ("float16", "bfloat16", "float32", "complex64")
    formats = [format_of(as_out_dtype(name)) for name in names]
    assert formats == [FP16, BF16, FP32, FP32]


def test_numbers_of_16_bits_are_stored_as_they_are():
    bits = np.arange(2**16, dtype=np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    number = ~np.isnan(values)
    found = rounded_to(values, BFLOAT16)
    assert found.dtype == BFLOAT16
    np.testing.assert_array_equal(found.view(np.uint16)[number], bits[number])
    assert np.isnan(
        (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32)[~number]
    ).all()
    halves = bits.view(np.float16)
    number = ~np.isnan(halves)
    found = rounded_to(halves.astype(np.float64), np.dtype(np.float16))
    np.testing.assert_array_equal(found.view(np.uint16)[number], bits[number])
    assert np.isnan(found[~number]).all()


def test_device_arrays_have_the_bits_of_the_host(torch, monkeypatch):
    from hifigemm.engines.device_array import DeviceArray
    from hifigemm.numerics.rounding_formats import odd_between
    from tests.engines.device_arrays import on_device, on_host

    # No value is read back: a call can be captured in a CUDA graph.
    monkeypatch.delattr(DeviceArray, "__bool__")
    monkeypatch.delattr(DeviceArray, "item")
    rng = np.random.default_rng(1)
    x = rng.standard_normal(500) * 2.0 ** rng.integers(-30, 20, 500)
    # Ties of 16 bits and their neighbours, in float32 and in float64, and both ends
    ties = np.arange(2**11 + 1, 2**12, 2.0) * 2.0 ** rng.integers(-40, 6, 2**10)
    ties = np.concatenate(
        [ties, ties.astype(np.float32)[:100] / 2**9, [65519.99, 65520]]
    )
    smallest = np.array(
        [2.0**-25, 2.0**-134, 2.0**-149, 2.0**-150, 2.0**-1074, 0.0, 1e39]
    )
    ties = np.concatenate([ties, smallest, 1.5 * smallest])
    with np.errstate(all="ignore"):
        for like in (np.float32, np.float64):
            of_dtype = ties.astype(like)
            below = np.nextafter(of_dtype, like(0.0))
            above = np.nextafter(of_dtype, like(np.inf))
            x = np.concatenate([x, of_dtype, -of_dtype, below, above])
        singles = x.astype(np.float32)
    on_card = on_device(x)
    with np.errstate(over="ignore"):
        uppers = [np.where(y > 0, np.nextafter(y, np.inf), y) for y in (x, singles)]
    for y, upper in zip((x, singles), uppers, strict=True):
        odd = odd_between(on_device(y), on_device(upper))
        assert on_host(odd).tobytes() == odd_between(y, upper).tobytes()
    for name in ("float16", "float32"):
        dtype = np.dtype(name)
        with np.errstate(all="ignore"):
            want = rounded_to(x, dtype)
            assert on_host(rounded_to(on_card, dtype)).tobytes() == want.tobytes()
    for y in (x, singles):
        want = rounded_to(y, BFLOAT16)
        found = rounded_to(on_device(y), BFLOAT16)
        assert found.dtype == BFLOAT16
        bits = found.tensor.view(torch.int16).numpy()
        assert bits.tobytes() == want.tobytes()
        with np.errstate(all="ignore"):
            want = rounded_to(y, np.dtype(np.float16))
        found = rounded_to(on_device(y), np.dtype(np.float16))
        assert on_host(found).tobytes() == want.tobytes()
