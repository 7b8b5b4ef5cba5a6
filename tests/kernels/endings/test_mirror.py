"""Lower triangles that are copied to upper ones: the kernel does what NumPy does."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.endings.mirror import mirror
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.numerics import symmetric

mirror = partial(run_recorded, mirror)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize(
    ("batch", "n"), [(1, 1), (2, 5), (1, 64), (3, 65), (1, 200), (0, 3), (2, 0)]
)
def test_upper_triangles_are_those_below(batch, n, dtype, conjugate):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((batch, n, n)).astype(dtype)
    if x.dtype.kind == "c":
        x.imag = rng.standard_normal(x.shape)
    want = x.copy()
    symmetric.mirror(want, conjugate)
    for i in range(batch):
        low = np.tril(x[i], -1)
        on = np.diag(x[i].diagonal().real if conjugate else x[i].diagonal())
        np.testing.assert_array_equal(
            want[i], low + on + (low.conj() if conjugate else low).T
        )
    for tensor in (
        torch.from_numpy(x.copy()),
        torch.from_numpy(x.swapaxes(1, 2).copy()).mT,
    ):
        found = tensor.to(DEVICE)
        mirror(found, conjugate)
        assert found.cpu().numpy().tobytes() == want.tobytes()
