"""Products of residues by the kernel for Hopper, on such a GPU: it is in Gluon, which
the interpreter does not run.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.numerics.residues import real_moduli
from tests.kernels.residue_products import (
    DEVICE,
    HAS_GPU,
    HOPPER,
    check,
    empty_products,
    random_residues,
)


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("tile", HOPPER if HAS_GPU else [], ids=str)
    def test_pipelines_and_waves_are_filled(self, tile):
        """Fewer steps of k than stages, one tile, tiles that leave a wave half full,
        batches and views of planes.
        """
        rng = np.random.default_rng(3)
        for batch, planes, m, n, k in (
            (1, 1, 1, 1, 16),
            (1, 2, 300, 700, 128),
            (2, 5, 512, 512, 640),
            (3, 2, 65, 1, 1),
        ):
            left = random_residues(rng, batch, planes, m, k)
            right = random_residues(rng, 1, planes, n, k)
            moduli = real_moduli()[:planes]
            check(
                left,
                right,
                moduli,
                empty_products(batch, planes, m, n),
                m,
                n,
                config=tile,
            )
        left = random_residues(rng, 3, 4, 300, 272)[1:, 1:3, 100:]
        right = random_residues(rng, 2, 4, 200, 272)[:, 2:]
        check(
            left,
            right,
            (255, 256),
            empty_products(2, 2, 200, 200),
            200,
            200,
            config=tile,
        )

    @pytest.mark.parametrize("tile", HOPPER if HAS_GPU else [], ids=str)
    @pytest.mark.parametrize(
        "n",
        [
            1,
            32,
            33,
            64,
            65,
            128,
            129,
            256 + 1,
            256 + 64,
            256 + 65,
            256 + 128,
            256 + 129,
            511,
        ],
    )
    def test_edges_of_planes(self, tile, n):
        """Tiles of every width, warpgroups that skip a tile, and blocks of k that are
        added.
        """
        rng = np.random.default_rng(n)
        for m in (1, 64, 65, 129, 192, 193):
            left = random_residues(rng, 2, 3, m, 700)
            right = random_residues(rng, 1, 3, n, 700)
            for k_block in (704, 256):
                out = empty_products(2, 3, m, n)
                check(
                    left,
                    right,
                    (256, 255, 199),
                    out,
                    m,
                    n,
                    k_block=k_block,
                    config=tile,
                )

    def test_planes_that_are_not_rows_of_one_matrix_take_the_plain_kernel(self):
        rng = np.random.default_rng(4)
        flat = torch.from_numpy(rng.integers(-128, 128, 1 << 20, dtype=np.int8)).to(
            DEVICE
        )
        left = flat.as_strided((1, 2, 512, 512), (0, 512 * 512 + 16, 512, 1))
        check(left, left, (256, 255), empty_products(1, 2, 512, 512), 512, 512)
