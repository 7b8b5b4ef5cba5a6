"""Determinants and definiteness by the kernel, compared with the compiled core and with
exact determinants.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from hifigemm.engines import core
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.systems.small_minors import facts_of_minors

# The interpreter warns of matrices of which nothing is known: they divide by zero
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not compiled"),
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def facts_of(a, *, exchanges):
    """The facts of the kernel for an array of NumPy, and as such."""
    tensor = torch.from_numpy(np.ascontiguousarray(a)).to(DEVICE)
    (facts,) = run_recorded(facts_of_minors, tensor, exchanges=exchanges)
    return facts.cpu().numpy()


def normal(rng, shape):
    return rng.standard_normal(shape)


def integers(rng, shape):
    return rng.integers(-3, 4, shape).astype(float)


def gram(rng, shape):
    a = rng.standard_normal(shape)
    return a @ np.swapaxes(a, 1, 2)


def semidefinite(rng, shape):
    """Of integers, and of one rank less than there are rows."""
    count, n, _ = shape
    a = rng.integers(-2, 3, (count, n, max(n - 1, 1))).astype(float)
    return a @ np.swapaxes(a, 1, 2)


def nearly_definite(rng, shape):
    """Gram matrices of integers less a small part of their diagonal."""
    a = rng.integers(-9, 10, shape).astype(float)
    a = a @ np.swapaxes(a, 1, 2)
    diagonal = np.arange(shape[1])
    a[:, diagonal, diagonal] -= rng.integers(0, 3, shape[:2])
    return a


def graded(rng, shape):
    exponents = rng.integers(-150, 150, (*shape[:2], 1))
    return np.ldexp(rng.standard_normal(shape), exponents)


def sparse(rng, shape):
    return rng.standard_normal(shape) * (rng.random(shape) < 0.4)


def wild(rng, shape):
    """Numbers that are not moderate, or not finite, beside others."""
    a = np.triu(rng.standard_normal(shape))
    a[::3] *= 2.0**300
    a[1::3, 0, 0] = np.nan
    return a


def close_columns(rng, shape):
    """Condition numbers about 1e12."""
    a = rng.standard_normal(shape)
    a[:, :, -1] = a[:, :, 0] * (1.0 + 2.0**-40 * rng.standard_normal(shape[:2]))
    return a


FAMILIES = [
    normal,
    integers,
    gram,
    semidefinite,
    nearly_definite,
    graded,
    sparse,
    wild,
    close_columns,
]


@pytest.mark.parametrize(
    ("draw", "n"),
    [*product(FAMILIES, [1, 3, 5]), (gram, 8), (normal, 13), (nearly_definite, 32)],
)
def test_answers_are_those_of_the_core(draw, n):
    count = 13 if n <= 8 else 3
    a = draw(np.random.default_rng([n, 5]), (count, n, n))
    known, lower, upper, exponent = facts_of(a, exchanges=True).T
    core_facts = core.neighbours_of_determinants(a)
    is_known = known == 1.0
    assert (is_known == core_facts.is_known).all()
    assert (lower == core_facts.lower)[is_known].all()
    assert (upper == core_facts.upper)[is_known].all()
    assert (exponent == core_facts.exponent)[is_known].all()

    answers = facts_of(a, exchanges=False)[:, 0]
    definiteness = core.definiteness(a)
    assert ((answers < 2.0) == definiteness.is_known).all()
    assert ((answers == 1.0) == definiteness.is_definite).all()


def determinant(a):
    """The exact determinant."""
    rows = [[Fraction(float(x)) for x in row] for row in a]
    result = Fraction(1)
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            rows[k], rows[pivot] = rows[pivot], rows[k]
            result = -result
        result *= rows[k][k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k])]
    return result


@pytest.mark.parametrize("draw", FAMILIES)
def test_determinants_lie_between_their_neighbours(draw):
    counts = {"known": 0, "zero": 0}
    for n in (1, 2, 3, 5):
        a = draw(np.random.default_rng([n, 6]), (20, n, n))
        for matrix, facts in zip(a, facts_of(a, exchanges=True)):
            known, lower, upper, exponent = facts.tolist()
            if known:
                scale = Fraction(2) ** int(exponent)
                exact = determinant(matrix) / scale
                assert Fraction(lower) <= exact <= Fraction(upper)
                assert upper == lower or upper == np.nextafter(lower, np.inf)
                counts["known"] += 1
                counts["zero"] += lower == upper == 0.0
    assert counts["known"] >= 20
    if draw in (integers, semidefinite):
        assert counts["zero"] >= 5


def test_determinants_beyond_the_range_have_exponents():
    a = np.stack([np.eye(8) * 2.0**x for x in (150.0, -150.0, 1.0)])
    known, lower, upper, exponent = facts_of(a, exchanges=True).T
    assert (known == 1.0).all()
    assert (lower == upper).all()
    assert (np.ldexp(lower[:2], 0) == 1.0).all()
    assert exponent.tolist() == [1200.0, -1200.0, 0.0]
    assert lower[2] == 256.0


def test_no_answer_depends_on_other_matrices():
    a = normal(np.random.default_rng(7), (30, 3, 3))
    want = facts_of(a, exchanges=True)
    for part in (slice(4, 5), slice(2, 29), slice(None, None, -1)):
        assert (facts_of(a[part], exchanges=True) == want[part]).all()


def test_compiled_minors(compiled):
    for line in compiled("minors"):
        assert line["spills"] == 0, line
