"""Problems count what is multiplied, and blocks find their rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import BF16, FP32, FP64
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.problem import Block, Problem, counted


@pytest.mark.parametrize(
    ("dtype", "fmt", "factor"),
    [
        ("float32", FP32, 1),
        ("float64", FP64, 1),
        ("complex64", FP32, 2),
        ("complex128", FP64, 2),
    ],
)
def test_real_components_have_the_terms_and_the_format_of_their_dtype(
    dtype, fmt, factor
):
    p = Problem(2, 3, 4, 5, np.dtype(dtype))
    assert (p.fmt, p.terms, p.is_complex) == (fmt, 5 * factor, factor == 2)
    assert p.multiplications == 2 * 3 * 4 * 5
    assert Problem(2, 3, 4, 0, np.dtype(dtype)).multiplications == 0


def test_problems_say_their_shapes():
    assert str(Problem(1, 3, 4, 5, np.dtype("float64"))) == "(3 x 5) @ (5 x 4) float64"
    assert (
        str(Problem(2, 3, 4, 5, np.dtype("float32"), BF16))
        == "2 x (3 x 5) @ (5 x 4) float32 of bf16 operands"
    )


def test_products_of_int8_words_have_one_more_digit():
    for name, spec in NumpyEngine.products.items():
        assert spec.name == name
        assert spec.max_digit == spec.max_integer + (name == "int8")


@pytest.mark.parametrize("stacks", [(3, 3), (1, 3), (3, 1)])
def test_blocks_take_the_operands_of_their_entries(stacks):
    rng = np.random.default_rng(2)
    a, b = (
        rng.integers(-9, 9, (z, *shape))
        for z, shape in zip(stacks, ((4, 5), (5, 6)), strict=True)
    )
    block = Block(slice(1, 3), slice(0, 2), slice(3, 6))
    left, right = block.operands(a, b)
    np.testing.assert_array_equal(left @ right, (a @ b)[block.entries])


def test_counts_have_their_nouns():
    assert [counted(n, "slice") for n in (0, 1, 2)] == [
        "0 slices",
        "1 slice",
        "2 slices",
    ]
    assert counted(3, "entry", "entries") == "3 entries"
