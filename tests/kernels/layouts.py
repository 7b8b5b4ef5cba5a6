"""Matrices on the device of the tests, in every layout that kernels read."""

from __future__ import annotations

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = ["rows", "columns", "gaps", "one matrix"]


def on_device(x, layout):
    """The same matrices by rows, by columns or with gaps; or the first one, repeated."""
    t = torch.from_numpy(x).to(DEVICE)
    if layout == "columns":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "gaps":
        wide = t.new_zeros((len(t), 2 * t.shape[1], 3 * t.shape[2]))
        wide[:, ::2, ::3] = t
        return wide[:, ::2, ::3]
    if layout == "one matrix":
        return t[:1].expand(t.shape)
    return t
