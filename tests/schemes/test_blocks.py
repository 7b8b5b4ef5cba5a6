"""What a block is planned with: its bytes, products and inner length, number by number.

tests/test_workspace.py holds such bytes against the memory that is really taken, with
the room that a limit leaves. Here each term of them is seen: a slip in one changes the
blocks of every plan, and no bit of a result would tell.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE
from hifigemm.model.problem import Problem
from hifigemm.running.planner import fitted

REAL = Problem(2, 5, 3, 7, np.dtype("float64"))
SINGLE = Problem(2, 5, 3, 7, np.dtype("complex64"))
LONG = Problem(1, 300, 40, 1500, np.dtype("float64"))
COMPLEX = Problem(3, 40, 60, 500, np.dtype("complex128"))
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


def name(x):
    return "" if isinstance(x, list) else str(x)


@pytest.mark.parametrize(("scheme", "expected"), STEPWISE, ids=name)
def test_plans_state_what_their_blocks_take(scheme, expected):
    """(block shape, bytes, products, inner length) of a plan that states its bound."""
    limits = (
        (REAL, PLENTY),
        (SINGLE, PLENTY),
        (LONG, PLENTY),
        (LONG, 2**19),
        (COMPLEX, 2**19),
    )
    for (problem, workspace), numbers in zip(limits, expected, strict=True):
        engine = NumpyEngine()
        plan = fitted(
            scheme.plan(problem, NO_PROMISE, engine, None, scheme), workspace, engine
        )
        assert (
            plan.block_shape,
            plan.workspace,
            plan.num_products,
            plan.k_block,
        ) == numbers
