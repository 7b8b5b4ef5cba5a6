"""A product of bfloat16 matrices in one fixed order of additions: tiles of one size, and k
from its first block to its last. Batch-invariant packages multiply by such kernels.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_M, _N, _K, _GROUP = 128, 256, 64, 8


@triton.jit
def _kernel(
    x, w, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """out = x w.T, with tiles in groups of GROUP rows of tiles; k is a multiple of K."""
    tiles_m = tl.cdiv(m, M)
    in_group = GROUP * tl.cdiv(n, N)
    first = tl.program_id(0) // in_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    row = first + tl.program_id(0) % in_group % height
    column = tl.program_id(0) % in_group // height
    i = row * M + tl.arange(0, M)
    j = column * N + tl.arange(0, N)
    h = tl.arange(0, K)
    left = x + (i % m)[:, None].to(tl.int64) * k + h[None, :]
    right = w + (j % n)[None, :].to(tl.int64) * k + h[:, None]
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        sums = tl.dot(tl.load(left + start), tl.load(right + start), sums)
    address = out + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(address, sums, mask=(i[:, None] < m) & (j[None, :] < n))


def linear_in_fixed_order(x: Tensor, w: Tensor) -> Tensor:
    """x w.T in float32, for contiguous operands with k a multiple of 64."""
    (m, k), n = x.shape, len(w)
    out = torch.empty((m, n), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(m, _M) * triton.cdiv(n, _N),)
    _kernel[grid](
        x, w, out, m, n, k, M=_M, N=_N, K=_K, GROUP=_GROUP, num_warps=8, num_stages=3
    )
    return out
