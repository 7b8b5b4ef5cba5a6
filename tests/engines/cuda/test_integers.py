"""Products of integers on a GPU, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.testing.exact import integer_product
from tests.engines.stand_in import DEVICE, on_host

INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def full(rng, shape, dtype):
    """Entries of the whole range of a dtype, its ends among them."""
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x.flat[:2] = limits.min, limits.max
    return x


def on_device(x):
    return torch.from_numpy(x).to(DEVICE)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_default_product_wraps_around_as_that_of_numpy(dtype, as_on_gpu):
    rng = np.random.default_rng(1)
    a, b = full(rng, (2, 5, 40), dtype), full(rng, (40, 3), dtype)
    found, report = hg.matmul(on_device(a), on_device(b), return_report=True)
    np.testing.assert_array_equal(on_host(found), np.matmul(a, b), strict=True)
    assert "wraps around" in report.reason
    assert report.scheme.product == ("int8" if dtype == "int8" else "fp64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_entry_is_exact_or_the_first_beyond_is_named(dtype, as_on_gpu):
    rng = np.random.default_rng(2)
    a, b = full(rng, (4, 9), dtype), full(rng, (9, 3), dtype)
    exact = integer_product(a.astype(object), b.astype(object))
    beyond = [i for i in np.ndindex(exact.shape) if not -(2**63) <= exact[i] < 2**63]
    if beyond:
        with pytest.raises(
            hg.AccuracyError, match=rf"^{len(beyond)} of 12 entries.*"
        ) as error:
            hg.matmul(on_device(a), on_device(b), result="int64")
        assert f"entry {beyond[0]} = {exact[beyond[0]]}: " in str(error.value)
    else:
        assert (
            on_host(hg.matmul(on_device(a), on_device(b), result="int64")).tolist()
            == exact.tolist()
        )
    with pytest.raises(TypeError, match="no tensor holds Python integers"):
        hg.matmul(on_device(a), on_device(b), result="object")


def test_products_of_bools_are_those_of_numpy_or_count(as_on_gpu):
    rng = np.random.default_rng(3)
    a, b = rng.random((7, 4)) < 0.4, rng.random((4, 5)) < 0.4
    found = hg.matmul(on_device(a), on_device(b))
    np.testing.assert_array_equal(on_host(found), a @ b, strict=True)
    counts = hg.matmul(on_device(a), on_device(b), result="int64")
    np.testing.assert_array_equal(
        on_host(counts), a.astype(int) @ b.astype(int), strict=True
    )


def test_an_out_of_another_dtype_takes_exact_entries(as_on_gpu):
    a = on_device(np.full((2, 3), 100, np.int8))
    out = torch.empty(2, 2, dtype=torch.int16, device=DEVICE)
    assert hg.matmul(a, a.mT, out=out, accuracy="correct") is out
    assert out.tolist() == [[30000, 30000]] * 2
    with pytest.raises(hg.AccuracyError, match=r"entry \(0, 0\) = 40000"):
        hg.matmul(
            a.new_full((2, 4), 100), a.new_full((4, 2), 100), out=out, result="int64"
        )
    assert out.tolist() == [[30000, 30000]] * 2


def test_what_the_library_lacks_is_refused(as_on_gpu):
    a = on_device(np.ones((2, 2), np.int64))
    with pytest.raises(TypeError, match="whose library multiplies no integers"):
        hg.matmul(a, a, scheme="native")
    with pytest.raises(TypeError, match="uint32"):
        hg.matmul(a.to(torch.uint32), a)
