"""What a block is planned with: its bytes, products and inner length, number by number.

tests/test_workspace.py holds such bytes against the memory that is really taken, with the room that a limit leaves.
Here each term of them is seen: a slip in one changes the blocks of every plan, and no bit of a result would tell.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.accuracy import NO_PROMISE, NOTHING_STATED
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.plan import Problem


class FusedEngine(NumpyEngine):
    """An engine whose kernels hold nothing but parts of operands, and of a part of the result, at a time."""

    fused = True


REAL, SINGLE = Problem(2, 5, 3, 7, np.dtype("float64")), Problem(2, 5, 3, 7, np.dtype("complex64"))
LONG, COMPLEX = Problem(1, 300, 40, 1500, np.dtype("float64")), Problem(3, 40, 60, 500, np.dtype("complex128"))
LARGE = Problem(1, 4000, 3000, 129, np.dtype("float64"))
PLENTY = 2**40
STEPWISE = [
    (
        hg.Ozaki1(num_slices=5),
        [
            ((2, 5, 3), 22784, 15, 131071),
            ((2, 5, 3), 60296, 60, 131071),
            ((1, 300, 40), 18915360, 15, 131071),
            ((1, 5, 5), 501360, 15, 131071),
            ((1, 5, 4), 519728, 60, 131071),
        ],
    ),
    (
        hg.Ozaki1(product="fp64", num_slices=3),
        [
            ((2, 5, 3), 23632, 6, 8),
            ((2, 5, 3), 61908, 24, 32),
            ((1, 300, 40), 27596720, 6, 2048),
            ((1, 3, 3), 493032, 6, 2048),
            ((1, 3, 2), 456216, 24, 2048),
        ],
    ),
    (
        hg.Ozaki1(product="fp16", num_slices=40),
        [
            ((2, 5, 3), 47728, 820, 16),
            ((2, 5, 3), 114164, 3280, 16),
            ((1, 300, 40), 63117360, 820, 1024),
            ((1, 1, 1), 420104, 820, 1024),
            ((1, 1, 1), 468952, 3280, 1024),
        ],
    ),
    (
        hg.Ozaki2(num_moduli=7),
        [
            ((2, 5, 3), 24550, 7, 131071),
            ((2, 5, 3), 50668, 14, 131071),
            ((1, 300, 40), 17198880, 7, 131071),
            ((1, 5, 5), 458135, 7, 131071),
            ((1, 5, 8), 502600, 14, 131071),
        ],
    ),
    (
        hg.Ozaki2(num_moduli=24, scaling="fast"),
        [
            ((2, 5, 3), 37264, 24, 131071),
            ((2, 5, 3), 76544, 52, 131071),
            ((1, 300, 40), 29797936, 24, 131071),
            ((1, 2, 3), 488588, 24, 131071),
            ((1, 3, 4), 487888, 52, 131071),
        ],
    ),
    (
        hg.Corrected(),
        [
            ((2, 5, 3), 9968, 3, 7),
            ((2, 5, 3), 26152, 12, 14),
            ((1, 300, 40), 38412000, 3, 64),
            ((1, 2, 2), 444224, 3, 64),
            ((1, 3, 2), 518672, 12, 64),
        ],
    ),
    (
        hg.Multiword(product="bf16", num_words=3, num_products=6, accumulate="blocked"),
        [
            ((2, 5, 3), 10864, 6, 7),
            ((2, 5, 3), 28616, 24, 14),
            ((1, 300, 40), 42492000, 6, 64),
            ((1, 2, 2), 492224, 6, 64),
            ((1, 2, 2), 492448, 24, 64),
        ],
    ),
]
FUSED = [
    (
        hg.Ozaki1(num_slices=5),
        [
            (True, (2, 5, 3), 10720),
            (False, (2, 5, 3), 60296),
            (True, (1, 4000, 3000), 76068864),
            (True, (1, 125, 188), 776640),
        ],
    ),
    (
        hg.Ozaki1(product="fp64", num_slices=3),
        [
            (False, (2, 5, 3), 23632),
            (False, (2, 5, 3), 61908),
            (False, (1, 4000, 3000), 1387838744),
            (False, (1, 32, 47), 1012263),
        ],
    ),
    (
        hg.Ozaki2(num_moduli=7, scaling="fast"),
        [
            (True, (2, 5, 3), 473088),
            (True, (2, 5, 3), 946176),
            (True, (1, 4000, 3000), 100624384),
            (True, (1, 125, 188), 790272),
        ],
    ),
    (
        hg.Ozaki2(num_moduli=20, scaling="fast"),
        [
            (True, (2, 5, 3), 1351680),
            (True, (2, 5, 3), 2703360),
            (True, (1, 4000, 3000), 287498240),
            (True, (1, 32, 24), 942080),
        ],
    ),
    (
        hg.Corrected(),
        [
            (True, (2, 5, 3), 2816),
            (True, (2, 5, 3), 2816),
            (True, (1, 4000, 3000), 8064000),
            (True, (1, 500, 375), 1008000),
        ],
    ),
    (
        hg.Corrected(product="tf32"),
        [
            (True, (2, 5, 3), 2816),
            (True, (2, 5, 3), 2816),
            (True, (1, 4000, 3000), 8064000),
            (True, (1, 500, 375), 1008000),
        ],
    ),
    (
        hg.Multiword(product="fp16", num_words=1, num_products=1),
        [
            (True, (2, 5, 3), 1408),
            (True, (2, 5, 3), 1408),
            (True, (1, 4000, 3000), 4032000),
            (True, (1, 1000, 750), 1008000),
        ],
    ),
]


def name(x):
    return "" if isinstance(x, list) else str(x)


@pytest.mark.parametrize(("scheme", "expected"), STEPWISE, ids=name)
def test_plans_state_what_their_blocks_take(scheme, expected):
    """(block shape, bytes, products, inner length) of a plan that states its bound."""
    limits = ((REAL, PLENTY), (SINGLE, PLENTY), (LONG, PLENTY), (LONG, 2**19), (COMPLEX, 2**19))
    for (problem, workspace), numbers in zip(limits, expected, strict=True):
        plan = scheme.plan(problem, None, None, NO_PROMISE, NumpyEngine(), workspace)
        assert (plan.block_shape, plan.workspace, plan.num_products, plan.k_block) == numbers


@pytest.mark.parametrize(("scheme", "expected"), FUSED, ids=name)
def test_plans_of_fused_kernels_state_what_their_blocks_take(scheme, expected):
    """(fused, block shape, bytes) of a plan that states nothing."""
    limits = ((REAL, PLENTY), (SINGLE, PLENTY), (LARGE, PLENTY), (LARGE, 2**20))
    for (problem, workspace), numbers in zip(limits, expected, strict=True):
        plan = scheme.plan(problem, None, None, NOTHING_STATED, FusedEngine(), workspace)
        assert (plan.fused, plan.block_shape, plan.workspace) == numbers


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("on_the_way", [{"gated": True}, {"hopeful": True, "promised": True}])
def test_looks_on_the_way_have_their_magnitudes_counted(dtype, on_the_way):
    # Two moduli: the magnitudes of long operands, one for each component, take more than the products.
    problem, width = Problem(2, 5, 3, 10**6, np.dtype(dtype)), 2 if dtype == "complex128" else 1
    plan = hg.Ozaki2(num_moduli=2, scaling="fast").plan(problem, None, None, NOTHING_STATED, FusedEngine(), PLENTY)
    parts, operands = plan.num_products, 8 * -(-(10**6) // 128) * 128
    assert plan.balance == 0
    assert plan.workspace == 2 * parts * (operands + 128 * 256)
    looking = plan.scheme.fit(replace(plan, **on_the_way), problem, PLENTY)
    assert looking.workspace == 2 * (parts * operands + width * operands)
