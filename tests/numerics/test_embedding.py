"""Complex products as real ones, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.numerics.embedding import components, embed_left, embed_right, unembed


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_embedded_product_is_the_memory_of_the_complex_one(dtype):
    rng = np.random.default_rng(11)
    a, b = (
        rng.integers(-9, 10, (2, *s)) + 1j * rng.integers(-9, 10, (2, *s))
        for s in ((3, 4), (4, 5))
    )
    a, b = np.asfortranarray(a.astype(dtype)), b.astype(dtype)[:, :, ::-1]
    left, right = embed_left(a), embed_right(b)
    assert left.shape == (2, 3, 8)
    assert right.shape == (2, 8, 10)
    assert left.dtype == right.dtype == np.float64
    product = left @ right
    np.testing.assert_array_equal(unembed(product), a @ b)
    assert np.shares_memory(unembed(product), product)
    assert unembed(product.astype(np.float32)).dtype == np.complex64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_operands_are_copied_as_float64(dtype):
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    for embed in (embed_left, embed_right):
        y = embed(x)
        assert y.dtype == np.float64
        assert not np.shares_memory(x, y)
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_embeddings_do_not_depend_on_strides(dtype):
    """`np.negative` of NumPy 2.4 fails where entries lie 64 bytes apart, see
    docs/decisions/thread-modes.md#unary-functions.
    """
    rng = np.random.default_rng(12)
    for columns in range(1, 10):
        x = (rng.integers(-99, 100, (2, 300, columns)) + 1j).astype(dtype)
        for view in (
            x[:, :, j : j + width]
            for width in range(1, columns + 1)
            for j in range(columns - width + 1)
        ):
            for y in (view, view[:, ::-1], view[:, ::3], view.swapaxes(1, 2)):
                for embed in (embed_left, embed_right):
                    np.testing.assert_array_equal(embed(y), embed(y.copy()))
                np.testing.assert_array_equal(embed_right(y)[:, 1::2, 0::2], -y.imag)


def test_components_are_those_that_there_are():
    x = np.array([[1 + 2j]], np.complex64)
    assert [(y.dtype, y.tolist()) for y in components(x)] == [
        (np.float64, [[1.0]]),
        (np.float64, [[2.0]]),
    ]
    assert [(y.dtype, y.tolist()) for y in components(x.imag)] == [
        (np.float64, [[2.0]])
    ]
    y = np.ones(3)
    assert components(y)[0] is y
