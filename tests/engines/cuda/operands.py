"""Operands of programs: stacks of small matrices."""

from __future__ import annotations

import numpy as np


def operands(m=4, k=9, n=5, batch=1, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    made = [
        rng.uniform(-1, 1, shape).astype(dtype)
        for shape in ((batch, m, k), (batch, k, n))
    ]
    return made
