"""Systems in scale: the bits of the core are those of the plain function, and those of
powers of two times the entries.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.numerics.equilibration import MODERATE, equilibrated, stack_in_scale

BY_CORE = core.override(equilibrated)
VERSIONS = [equilibrated] if BY_CORE is equilibrated else [equilibrated, BY_CORE]
versions = pytest.mark.parametrize("version", VERSIONS)
LIMIT = int(np.log2(MODERATE))


def systems():
    """Moderate ones, with zeros, powers of two, and entries at both ends."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 20))
        k = int(rng.integers(0, 4))
        spread = int(rng.choice([0, 3, LIMIT - 40]))
        a = rng.standard_normal((n, n)) * rng.integers(0, 2, (n, n))
        a = np.ldexp(a, rng.integers(-spread, spread + 1, (n, n)))
        b = np.ldexp(rng.standard_normal((n, k)), rng.integers(-spread, spread + 1))
        if seed % 3 == 0:
            a = np.exp2(rng.integers(-LIMIT, LIMIT + 1, (n, n)))
        yield a, b
    yield np.zeros((0, 0)), np.zeros((0, 2))
    yield np.zeros((3, 3)), np.zeros((3, 2))


@versions
def test_largest_entries_lie_between_a_half_and_one_and_no_bit_is_lost(version):
    for a, b in systems():
        system = version(a, b)
        assert system is not None
        for largest in (
            np.abs(system.a).max(axis=1, initial=0.0),
            np.abs(system.a).max(axis=0, initial=0.0),
            np.abs(system.b).max(axis=0, initial=0.0),
        ):
            assert (((largest >= 0.5) & (largest < 1.0)) | (largest == 0.0)).all()
        significands, _ = np.frexp(a)
        np.testing.assert_array_equal(np.frexp(system.a)[0], significands)
        np.testing.assert_array_equal(np.frexp(system.b)[0], np.frexp(b)[0])


@pytest.mark.skipif(BY_CORE is equilibrated, reason="the core is not built")
def test_the_core_has_the_bits_of_the_plain_function():
    for a, b in systems():
        for left in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
            want = equilibrated(a, b)
            got = BY_CORE(left, np.asfortranarray(b))
            np.testing.assert_array_equal(got.a, want.a)
            np.testing.assert_array_equal(got.b, want.b)
            np.testing.assert_array_equal(got.exponents, want.exponents)
            assert got.exponents.dtype == want.exponents.dtype
            assert got.determinant_exponent == want.determinant_exponent


@versions
@pytest.mark.parametrize(
    "value", [np.inf, -np.inf, np.nan, 2.0**201, 2.0**-201, 5e-324, -(2.0**900)]
)
@pytest.mark.parametrize("is_in_b", [False, True])
def test_other_systems_are_left_to_others(version, value, is_in_b):
    for place in (0, 7, 8, 11):
        a = np.ones((12, 12))
        b = np.ones((12, 2))
        (b[:, 1] if is_in_b else a[place])[place] = value
        assert version(a, b) is None


def test_a_stack_has_its_systems_in_scale_and_knows_which_are_wild():
    rng = np.random.default_rng(7)
    a = np.ldexp(rng.standard_normal((12, 5, 5)), rng.integers(-90, 90, (12, 5, 5)))
    b = np.ldexp(rng.standard_normal((12, 5, 2)), rng.integers(-90, 90, (12, 5, 2)))
    a[1] = b[2] = 0.0
    a[3, 2, 1], b[4, 0, 0], b[5, 3, 1] = np.nan, np.inf, -np.inf
    a[6, 0, 0], a[7, 1, 1], b[8, 2, 0] = 2.0 * MODERATE, 0.5 / MODERATE, 5e-324
    with np.errstate(all="ignore"):
        *scaled, is_moderate = stack_in_scale(a, b)
    for i in range(12):
        want = equilibrated(a[i], b[i])
        assert is_moderate[i] == (want is not None) == (i not in range(3, 9))
        if want is not None:
            for x, y in zip(scaled, want):
                np.testing.assert_array_equal(x[i], y)
    *_, is_moderate = stack_in_scale(a[:2], b[:2, :, :0])
    assert is_moderate.all()
