"""Stacks of more matrices than the second axis of a CUDA grid can count: 65535."""

from __future__ import annotations

import pytest
import torch

from hifigemm.base.formats import FP16
from hifigemm.kernels.products import (
    epilogue,
    error_ratio,
    int8_product,
    native_gemm,
)
from hifigemm.kernels.products import word_gemm as word_gemm_module
from hifigemm.kernels.products.word_gemm import word_gemm
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.launch import buffers_of
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.vectors.scaled_residues import Sizes
from hifigemm.kernels.vectors.words import Words
from hifigemm.numerics.words import Splitting

BATCH = 2**17 + 1


@pytest.fixture
def launches(monkeypatch):
    """Grids and arguments of launches, which are not recorded."""
    found = []

    def launch(grid, *arguments, **constants):
        assert all(size < 2**16 for size in grid[1:])
        found.append((grid, arguments))

    for module in (epilogue, word_gemm_module):
        monkeypatch.setattr(module, "_launch", launch)
    monkeypatch.setattr(native_gemm, "_product", launch)
    monkeypatch.setattr(int8_product, "_product", launch)
    return found


def stack(operand, *shape, dtype=torch.float64):
    return operand(torch.zeros((1, *shape), dtype=dtype).expand(BATCH, *shape))


@pytest.fixture
def operand():
    """operand(tensor): a buffer of a launch list."""
    return LaunchList(torch.device("cpu")).operand


def test_one_program_for_every_tile_of_every_matrix(launches, operand):
    a, b, out = (stack(operand, *shape) for shape in ((70, 3), (3, 5), (70, 5)))
    word = operand(torch.zeros(1, dtype=torch.int64))
    native_gemm.fp64_product(a, b, out, Predicate(word, 0, 1))
    epilogue.combine_in_place(out, 0.5, 0.0, None)
    shapes = (70, 256), (5, 256)
    magnitudes = tuple(stack(operand, *shape, dtype=torch.int8) for shape in shapes)
    error_ratio.error_ratio_bits(Sizes(None, stack(operand, 1), magnitudes, 2))
    # The programs of INT8 products walk over the tiles of all matrices.
    grids = [grid for grid, _ in launches]
    assert grids[:2] == [(2 * BATCH,), (BATCH,)]
    assert grids[2][0] < BATCH


@pytest.mark.parametrize("single", [False, True])
def test_products_of_words_go_on_with_the_rest_of_the_stack(launches, operand, single):
    def words(vectors, batch):
        return Words(
            operand(torch.zeros((batch, 1, vectors, 16), dtype=torch.float16)),
            operand(torch.zeros((batch, vectors), dtype=torch.int32)),
            None,
            3,
            Splitting(FP16, 1),
        )

    left = words(2, BATCH)
    right = words(1, 1 if single else BATCH)
    out = operand(torch.zeros(BATCH, 2, 1))
    columns = stack(operand, 3, 1)[: 1 if single else BATCH]
    operands = stack(operand, 2, 3), columns
    word_gemm(left, right, out, operands=operands)
    assert [grid for grid, _ in launches] == [(1, 65535, 1), (1, 65535, 1), (1, 3, 1)]
    for z, (_, arguments) in zip((0, 65535, 2 * 65535), launches, strict=True):
        places = {place_of(x) for x in buffers_of(arguments)}
        assert {place_of(x[z]) for x in (left.planes, left.exponents, out)} <= places
        assert place_of(right.planes[0 if single else z]) in places


def place_of(x):
    """The memory of a buffer, and where it begins there."""
    return x.memory, x.offset
