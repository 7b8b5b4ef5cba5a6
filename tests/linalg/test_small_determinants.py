"""Determinants and definiteness of up to four rows, which the compiled core tells."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from hifigemm import linalg
from hifigemm.engines import core
from tests.linalg.exact_least_squares import exact_determinant

if core.loaded()[0] is None:
    pytest.skip("the compiled core is not here", allow_module_level=True)

MODULE = core.loaded()[0]


def drawn(rng, kind, n):
    """A matrix of a hostile family."""
    a = rng.standard_normal((n, n))
    if kind == "integers":
        return np.rint(3.0 * a)
    if kind == "large integers":
        return np.rint(a * 2.0 ** rng.integers(1, 52))
    if kind == "graded":
        return np.ldexp(a, rng.integers(-199, 199, (n, n)))
    if kind == "nearly singular" and n > 1:
        a[-1] = a[0] * (1.0 + 2.0 ** -rng.integers(20, 52))
    if kind == "rank one":
        return np.outer(np.rint(100 * a[0]), a[:, 0])
    if kind == "sparse":
        a[rng.random((n, n)) < 0.5] = 0.0
    return a


KINDS = (
    "normal",
    "integers",
    "large integers",
    "graded",
    "nearly singular",
    "rank one",
    "sparse",
)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_determinant_lies_between_its_neighbours(kind, n):
    rng = np.random.default_rng([5, n])
    stack = np.stack([drawn(rng, kind, n) for _ in range(150)])
    known, lower, upper = core.neighbours_of_determinants(stack)
    for a, is_known, low, high in zip(stack, known, lower, upper):
        if not is_known:
            continue
        value = exact_determinant(a.tolist())
        assert Fraction(low) <= value <= Fraction(high)
        assert (low == high) == (Fraction(float(low)) == value)
        assert low == high or np.nextafter(low, np.inf) == high
    if kind in ("normal", "integers"):
        assert known.mean() > 0.95


def test_what_is_close_to_a_double_or_not_moderate_is_left():
    third = np.array([[1.0, 1.0, 0.0], [2.0**-53, 1.0, 1.0], [0.0, 2.0**-53, 1.0]])
    for a in (
        third * np.array([[1.0], [1.0 + 2.0**-52], [1.0 - 2.0**-53]]),
        np.array([[2.0**201, 0.0], [0.0, 1.0]]),
        np.array([[2.0**-201, 0.0], [0.0, 1.0]]),
        np.array([[np.inf, 0.0], [0.0, 1.0]]),
        np.array([[np.nan, 0.0], [0.0, 1.0]]),
    ):
        found = core.neighbours_of_determinants(a)
        if found.is_known:
            assert (
                Fraction(float(found.lower))
                <= exact_determinant(a.tolist())
                <= Fraction(float(found.upper))
            )
            assert np.isfinite(a).all()
            assert np.abs(a).max() <= 2.0**200


def test_answers_have_the_bits_of_the_integers(monkeypatch):
    rng = np.random.default_rng(6)
    stack = np.stack([drawn(rng, kind, 3) for kind in KINDS for _ in range(20)])
    quick = linalg.det(stack)
    monkeypatch.setattr(core, "neighbours_of_determinants", lambda a: None)
    slow = linalg.det(stack)
    for name in ("sign", "lower", "upper", "exponent"):
        assert (getattr(quick, name) == getattr(slow, name)).all()
        assert getattr(quick, name).dtype == getattr(slow, name).dtype
    one = linalg.det(stack[0])
    assert (one.sign, one.lower, one.upper) == (
        slow.sign[0],
        slow.lower[0],
        slow.upper[0],
    )
    assert type(one.sign) is int
    assert type(one.lower) is float


def test_definiteness_of_stacks_has_the_answers_of_the_general_way(monkeypatch):
    rng = np.random.default_rng(7)
    stack = []
    for i in range(200):
        n = 3
        a = drawn(rng, KINDS[i % len(KINDS)], n)
        a = np.rint(8 * a) if i % 2 else a / np.abs(a).max()
        stack.append(a @ a.T if i % 3 else a + a.T)
    stack = np.array([np.triu(a) + np.triu(a, 1).T for a in stack])
    stack[5] = 0.0
    stack[6] = np.diag([1.0, 0.0, 1.0])
    quick = linalg.is_positive_definite(stack)
    monkeypatch.setattr(core, "neighbours_of_determinants", lambda a: None)
    slow = linalg.is_positive_definite(stack)
    assert (quick == slow).all()
    assert quick.dtype == bool
    assert 0 < quick.sum() < len(stack)
    minors = [
        all(exact_determinant(a[:k, :k].tolist()) > 0 for k in (1, 2, 3)) for a in stack
    ]
    assert quick.tolist() == minors


def test_what_is_wrong_with_one_matrix_is_told():
    stack = np.stack([np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]])])
    with pytest.raises(ValueError, match="transpose"):
        linalg.is_positive_definite(stack)
    with pytest.raises(ValueError, match="transpose"):
        linalg.is_positive_definite(stack[1])
    for bad in (np.inf, -np.inf):
        with pytest.raises(linalg.VerificationError, match="Inf or NaN"):
            linalg.is_positive_definite([[-1.0, bad], [bad, 1.0]])
    assert str(linalg.det([[-0.0]]).lower) == "0.0"
    stack[1] = np.nan
    with pytest.raises(linalg.VerificationError, match="1 of 2"):
        linalg.is_positive_definite(stack)
    with pytest.raises(linalg.VerificationError, match="1 of 2") as error:
        linalg.det(stack)
    assert error.value.solution.sign.tolist() == [1, 0]


def test_arguments_that_do_not_fit_are_refused():
    good = np.ones((2, 3, 3)), np.ones((2, 1, 3))
    MODULE.determinants(*good)
    with pytest.raises(TypeError, match="two arguments"):
        MODULE.determinants(good[0])
    for a, bounds in (
        (np.ones((2, 5, 5)), good[1]),
        (np.ones((2, 3, 2)), good[1]),
        (good[0], np.ones((2, 1, 2))),
        (good[0].astype(np.float32), good[1]),
    ):
        with pytest.raises(ValueError, match="fit"):
            MODULE.determinants(a, bounds)
