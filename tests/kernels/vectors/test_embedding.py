"""The kernel of embeddings, against numerics.embedding."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.embedding import embed_left, embed_right, interleaved
from hifigemm.numerics import embedding

embed_left = partial(run_recorded, embed_left)
embed_right = partial(run_recorded, embed_right)
interleaved = partial(run_recorded, interleaved)

PLACE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [np.complex64, np.complex128]


def views(x):
    """One matrix in several layouts, and others."""
    y = torch.from_numpy(x).to(PLACE)
    yield from (
        y,
        y.mT.contiguous().mT,
        y.mT,
        y[:, 1:, 2:],
        y[:, ::2, ::3],
        y[:, :, :1],
        y[:, :1],
        y[:1].expand(3, -1, -1),
    )
    yield y.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(2, 3, 5), (1, 1, 1), (2, 70, 131), (1, 0, 4), (0, 3, 3)]
)
def test_embeddings_are_those_of_numpy(shape, dtype):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    for y in views(x) if x.size else [torch.from_numpy(x).to(PLACE)]:
        host = y.cpu().numpy()
        for embed, plain in (
            (embed_left, embedding.embed_left),
            (embed_right, embedding.embed_right),
        ):
            found = embed(y)
            np.testing.assert_array_equal(found.cpu().numpy(), plain(host))
            assert (
                found.dtype == torch.float32 if dtype is np.complex64 else torch.float64
            )


def test_special_values_stay_in_their_components():
    x = torch.tensor(
        [
            [
                [complex(np.inf, 1), complex(2, np.nan)],
                [complex(-0.0, 3), complex(4, -np.inf)],
            ]
        ],
        device=PLACE,
    )
    for embed, plain in (
        (embed_left, embedding.embed_left),
        (embed_right, embedding.embed_right),
    ):
        for y in (x, x.mT):
            np.testing.assert_array_equal(
                embed(y).cpu().numpy(), plain(y.cpu().numpy())
            )


def test_contiguous_rows_are_views():
    x = torch.randn(2, 6, 8, dtype=torch.complex64, device=PLACE)
    for y in (x, x[:, ::2, 1:5], x[:, :, ::8]):
        view = interleaved(y)
        assert view.shape == (2, y.shape[1], 2 * y.shape[2])
        view.mul_(2)
        assert view.data_ptr() == y.data_ptr() == embed_left(y).data_ptr()
        np.testing.assert_array_equal(
            view.cpu().numpy(), embedding.embed_left(y.cpu().numpy())
        )
    for y in (x[:, :, ::2], x.mT):
        assert interleaved(y) is None
