"""slogdet: signs and logarithms against exact determinants."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.linalg import log_determinant

mpmath = pytest.importorskip("mpmath")


def exact_determinant(a):
    """By cofactors, of real and imaginary parts as fractions."""
    entries = [
        [(Fraction(z.real), Fraction(z.imag)) for z in row] for row in a.tolist()
    ]

    def times(x, y):
        return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]

    def minor(rows, columns):
        if not rows:
            return Fraction(1), Fraction(0)
        real = imag = Fraction(0)
        for k, column in enumerate(columns):
            rest = columns[:k] + columns[k + 1 :]
            x, y = times(entries[rows[0]][column], minor(rows[1:], rest))
            real += (-1) ** k * x
            imag += (-1) ** k * y
        return real, imag

    n = len(a)
    return minor(tuple(range(n)), tuple(range(n)))


def check(a, d):
    """The sign and the logarithm lie within their radii."""
    real, imag = exact_determinant(a)
    if real == imag == 0:
        assert (d.sign, d.logabsdet, d.radius) == (0, -math.inf, 0.0)
        return
    with mpmath.workdps(60):
        x, y = (mpmath.mpf(z.numerator) / z.denominator for z in (real, imag))
        size = mpmath.hypot(x, y)
        assert abs(mpmath.mpf(d.logabsdet) - mpmath.log(size)) <= d.radius
        sign = mpmath.mpc(x / size, y / size)
        assert abs(mpmath.mpmathify(d.sign) - sign) <= d.sign_radius
    assert d.radius <= 1e-13 * (1.0 + abs(d.logabsdet))


@pytest.mark.parametrize("is_complex", [False, True])
def test_random_graded_and_singular_matrices(is_complex):
    rng = np.random.default_rng(7)
    for seed in range(120):
        n = int(rng.integers(1, 5))
        a = rng.standard_normal((n, n))
        if is_complex:
            a = a + 1j * rng.standard_normal((n, n))
        if seed % 4 == 1:
            a = a * 2.0 ** rng.integers(-300, 300)
        elif seed % 4 == 2:
            a = np.rint(a)
        elif seed % 4 == 3 and n > 1:
            a[-1] = a[0]
        check(a, linalg.slogdet(a))


def test_determinants_beyond_float64():
    d = linalg.slogdet(1e200 * np.eye(100))
    assert d.sign == 1
    assert abs(d.logabsdet - 100 * 200 * math.log(10)) <= d.radius + 1e-9
    assert d.radius < 1e-10


def test_a_stack_gives_arrays_and_keeps_what_was_proven():
    a = np.stack([np.eye(2), -np.diag([1.0, 2.0]) * 3.0, np.ones((2, 2))])
    d = linalg.slogdet(a)
    assert d.sign.tolist() == [1, 1, 0]
    assert d.logabsdet[2] == -np.inf
    for matrix, *one in zip(a, d.sign, d.logabsdet, d.radius):
        check(matrix, log_determinant.LogDeterminant(*one))
    a[0, 0, 0] = np.nan
    with pytest.raises(linalg.VerificationError) as error:
        linalg.slogdet(a)
    assert np.isnan(error.value.solution.logabsdet).tolist() == [True, False, False]
    disks = linalg.slogdet(a[1:] + 0j)
    assert disks.sign.dtype == complex
    check(
        a[1] + 0j,
        log_determinant.LogDeterminant(
            *(
                x[0]
                for x in (disks.sign, disks.logabsdet, disks.radius, disks.sign_radius)
            )
        ),
    )


def test_no_rows():
    assert linalg.slogdet(np.zeros((0, 0))) == log_determinant.LogDeterminant(
        1, 0.0, linalg.slogdet(np.eye(2)).radius
    )
