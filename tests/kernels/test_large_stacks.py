"""Stacks of more matrices than the second axis of a CUDA grid can count: 65535."""

from __future__ import annotations

import pytest
import torch

from hifigemm.base.formats import FP16
from hifigemm.kernels.products import epilogue, error_ratio, native_gemm
from hifigemm.kernels.products import word_gemm as word_gemm_module
from hifigemm.kernels.products.word_gemm import word_gemm
from hifigemm.kernels.runtime.launch import flat
from hifigemm.kernels.vectors.scaled_residues import Sizes
from hifigemm.kernels.vectors.words import Words
from hifigemm.numerics.words import Splitting

BATCH = 2**17 + 1


@pytest.fixture
def launches(monkeypatch):
    """Grids and arguments of launches, which are not made."""
    found = []

    def launch(grid, *arguments, **constants):
        assert all(size < 2**16 for size in grid[1:])
        found.append((grid, arguments))

    for module in (epilogue, word_gemm_module):
        monkeypatch.setattr(module, "_launch", launch)
    monkeypatch.setattr(native_gemm, "_product", launch)
    monkeypatch.setattr(error_ratio, "_ratio", launch)
    return found


def stack(*shape, dtype=torch.float64):
    return torch.zeros((1, *shape), dtype=dtype).expand(BATCH, *shape)


def test_one_program_for_every_tile_of_every_matrix(launches):
    a, b, out = stack(70, 3), stack(3, 5), stack(70, 5)
    native_gemm.fp64_product(a, b, out, (torch.zeros(1, dtype=torch.int64), 0, 1))
    epilogue.combine_in_place(out, 0.5, 0.0, None)
    magnitudes = stack(70, 256, dtype=torch.int8), stack(5, 256, dtype=torch.int8)
    error_ratio.error_ratio_bits(Sizes(None, stack(1), magnitudes, 2))
    assert [grid for grid, _ in launches] == [(2 * BATCH,), (BATCH,), (4 * BATCH,)]


@pytest.mark.parametrize("single", [False, True])
def test_products_of_words_go_on_with_the_rest_of_the_stack(launches, single):
    def words(vectors, batch):
        return Words(
            torch.zeros((batch, 1, vectors, 16), dtype=torch.float16),
            torch.zeros((batch, vectors), dtype=torch.int32),
            None,
            3,
            Splitting(FP16, 1),
        )

    left = words(2, BATCH)
    right = words(1, 1 if single else BATCH)
    out = torch.zeros(BATCH, 2, 1)
    operands = stack(2, 3), stack(3, 1)[: 1 if single else BATCH]
    word_gemm(left, right, out, operands=operands)
    assert [grid for grid, _ in launches] == [(1, 65535, 1), (1, 65535, 1), (1, 3, 1)]
    for z, (_, arguments) in zip((0, 65535, 2 * 65535), launches, strict=True):
        addresses = [
            x.data_ptr() for x in flat(arguments) if isinstance(x, torch.Tensor)
        ]
        assert {x[z].data_ptr() for x in (left.planes, left.exponents, out)} <= set(
            addresses
        )
        assert right.planes[0 if single else z].data_ptr() in addresses
