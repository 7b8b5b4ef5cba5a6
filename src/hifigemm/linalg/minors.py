"""Determinants and definiteness of small real matrices: by the compiled core, and of stacks
on a device by a kernel, of which the core takes what is not certain.

The theorem and its bounds are in core/small_factors.c, and kernels/systems/small_minors.py
is its twin.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.engines import core
from hifigemm.engines.core import Definiteness, Neighbours
from hifigemm.linalg.arrays import launched, to_host
from hifigemm.linalg.stacks import completed_by_core, is_stack
from hifigemm.numerics.bits import Array


def is_real_stack(a: Array) -> bool:
    """True if a device tells the determinants of a stack, and which matrices are positive
    definite.
    """
    return a.dtype.kind == "f" and is_stack(a)


def neighbours_of_determinants(a: Array) -> Neighbours:
    """The neighbours among doubles of the determinants that are known, equal where a
    determinant is a double, on the host.
    """
    if is_real_stack(a):
        facts = _facts_of_stack(a, exchanges=True)
        is_known = facts[..., 0] > 0.0
        known = Neighbours(is_known, *(facts[..., i] for i in (1, 2, 3)))
        tell = core.neighbours_of_determinants
        return completed_by_core(known, ~known.is_known, tell, a)
    by_core = core.neighbours_of_determinants(a)
    if by_core is not None:
        return by_core
    nothing = np.zeros(a.shape[:-2])
    return Neighbours(nothing.astype(bool), nothing, nothing, nothing)


def definiteness(a: Array) -> Definiteness:
    """Which matrices are symmetric and positive definite, and of which that is known, on
    the host.
    """
    if is_real_stack(a):
        answers = _facts_of_stack(a, exchanges=False)[..., 0]
        known = Definiteness(answers == 1.0, answers < 2.0)
        return completed_by_core(known, ~known.is_known, core.definiteness, a)
    by_core = core.definiteness(a)
    if by_core is not None:
        return by_core
    nothing = np.zeros(a.shape[:-2], bool)
    return Definiteness(nothing, nothing)


def _facts_of_stack(a: Array, exchanges: bool) -> Array:
    """Four facts of each matrix, by the kernel."""
    from hifigemm.kernels.systems.small_minors import facts_of_minors

    *stack, n, _ = a.shape
    matrices = a.reshape(math.prod(stack), n, n)
    (facts,) = launched(facts_of_minors, matrices, exchanges=exchanges)
    return to_host(facts).reshape(*stack, 4)
