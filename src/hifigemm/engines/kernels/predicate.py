"""Predicates of launches: numbers on the device that decide there whether a kernel does anything."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["LARGEST", "NO_PREDICATE", "Predicate", "holds"]

Predicate = tuple[torch.Tensor, int, int]
"""An int64 tensor of one entry, least and most: a kernel writes nothing unless least <= entry <= most."""
NO_PREDICATE = None, 0, 0
LARGEST = 2**63 - 1
"""No number that a predicate reads is larger."""


@triton.jit
def holds(predicate, least, most):
    """Whether the number at the address `predicate` is one of least .. most."""
    found = tl.load(predicate)
    return (found >= least) & (found <= most)
