"""Epilogues of INT8 products on a Hopper GPU: the kernel is in Gluon, which the
interpreter does not run.
"""

from __future__ import annotations

import pytest

from hifigemm.kernels.products import residue_gemm

gluon = pytest.importorskip("triton.experimental.gluon")
hopper = pytest.importorskip("hifigemm.kernels.products.int8_product_hopper")


@pytest.mark.gpu
def test_caches_tell_epilogues_apart():
    """By the source of their functions, as Triton's cache on disk does."""
    from hifigemm.kernels.products.error_ratio_hopper import ERROR_RATIO
    from hifigemm.kernels.products.residue_gemm_hopper import RESIDUES

    epilogues = hopper.SUMS, RESIDUES, ERROR_RATIO
    assert len({epilogue.cache_key for epilogue in epilogues}) == len(epilogues)
    assert len({hash(epilogue) for epilogue in epilogues}) == len(epilogues)
    wide = hopper.Epilogue(hopper.store_sums, hopper.no_memory, has_narrow_tiles=False)
    assert wide.cache_key != hopper.SUMS.cache_key


@pytest.mark.gpu
def test_large_products_take_the_kernel_for_hopper():
    import torch

    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("no Hopper")
    found = residue_gemm.hopper_module("int8_product_hopper", device)
    assert found is hopper
