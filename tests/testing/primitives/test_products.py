"""Products of integers at the limits of their accumulators: a product that rounds is
named.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.testing.primitives import products as module
from hifigemm.testing.primitives.platforms import Platform
from hifigemm.testing.primitives.products import exact_products, native_products
from tests.testing.primitives.faults import at_fault

NUMPY = Platform("NumPy")


def test_a_product_that_rounds_at_its_limit_is_named(monkeypatch):
    product = NumpyEngine.exact_product

    def rounded(self, spec, a, b, x, y):
        found = product(self, spec, a, b, x, y)
        return (
            found.astype(np.float16).astype(found.dtype)
            if spec.name == "tf32" and a.shape[2] == 7
            else found
        )

    with np.errstate(over="ignore"):
        monkeypatch.setattr(NumpyEngine, "exact_product", rounded)
        found = at_fault(exact_products(engine_for("numpy"), NUMPY))
    assert list(found) == ["exact tf32 products"]
    assert "(1 x 7) @ (7 x 1)" in found["exact tf32 products"]


def test_lengths_come_near_to_the_limit_and_never_beyond_it():
    for top, largest in ((127, 2**31 - 1), (2**11, 2**24), (2**24, 2**53)):
        found = module._limits(top, largest)
        for x, y, k in found:
            assert max(x, y) <= top
            assert x * y * k <= largest
        assert any(
            largest < x * y * (k + 1) or k == module._LONGEST for x, y, k in found
        )
        assert any(x == y == top for x, y, _ in found)


def test_products_of_signs_are_those_of_their_masks():
    left, right = module._signs(5, 70), module._signs(4, 70)
    for i, p in enumerate(module._masks(left)):
        for j, q in enumerate(module._masks(right)):
            assert int(left[i].astype(int) @ right[j]) == 70 - 2 * (p ^ q).bit_count()
    assert (left[0] == 1).all()


def test_layouts_hold_the_same_matrices():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3)
    layouts = list(module._layouts(NUMPY, a, b, many=True))
    assert len({(x.strides, y.strides) for x, y in layouts}) > 4
    for x, y in layouts:
        np.testing.assert_array_equal(x, a)
        np.testing.assert_array_equal(y, b.T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_native_product_that_flushes_subnormals_is_named(monkeypatch, dtype):
    product = NumpyEngine.native_product

    def flushed(self, a, b):
        c = product(self, a, b)
        tiny = abs(c) < np.finfo(c.dtype).tiny
        return np.where(tiny & (c.dtype == dtype), 0, c).astype(c.dtype)

    monkeypatch.setattr(NumpyEngine, "native_product", flushed)
    found = at_fault(native_products(engine_for("numpy"), NUMPY))
    assert list(found) == [f"native products of {dtype} subnormals"]
