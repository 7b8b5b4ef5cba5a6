"""Primes, elimination modulo them, and the integers behind residues."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.numerics.prime_fields import (
    SIDE_BY_SIDE,
    RemainderSystem,
    eliminate,
    primes_from,
    root_of_minus_one,
)

needs_core = pytest.mark.skipif(
    core.loaded()[0] is None, reason="the core is not built"
)


@pytest.fixture(
    params=() if core.loaded()[0] is None else core.loaded()[0].instructions
)
def instructions(request):
    """Each set of instructions that this machine has, in turn."""
    module = core.loaded()[0]
    module.use(request.param)
    yield request.param
    module.use(module.instructions[0])


def fields(start, stop):
    """Primes and roots of -1 as the elimination takes them."""
    primes = primes_from(start, stop)
    roots = [root_of_minus_one(p) for p in primes.tolist()]
    return primes.astype(float), np.array(roots, float)


def test_the_primes_are_the_largest_ones_below_2_24_that_are_1_modulo_4():
    primes = primes_from(0, 300).tolist()
    divisors = [
        d for d in range(2, 2**12) if all(d % e for e in range(2, math.isqrt(d) + 1))
    ]
    numbers = range(primes[-1], 2**24)
    expected = [p for p in numbers if p % 4 == 1 and all(p % d for d in divisors)]
    assert primes == expected[::-1]


def test_blocks_of_primes_follow_each_other():
    primes = primes_from(0, 6000)
    assert (np.diff(primes) < 0).all()
    assert (primes_from(2500, 4500) == primes[2500:4500]).all()
    assert primes[-1] > 2**23
    assert all(pow(2, p - 1, p) == 1 for p in primes.tolist())


def test_roots_of_minus_one():
    for p in primes_from(0, 50).tolist():
        assert root_of_minus_one(p) ** 2 % p == p - 1
    with pytest.raises(ValueError, match="7 has no root"):
        root_of_minus_one(7)


@pytest.mark.parametrize("count", [2, 6, 8, 40, 1000])
def test_integers_come_back_from_their_residues(count):
    primes = primes_from(0, count).tolist()
    system = RemainderSystem.of(primes)
    product = math.prod(primes)
    rng = np.random.default_rng(count)
    values = [0, 1, -1, product // 2, -(product // 2)]
    values += [
        int.from_bytes(rng.bytes(3 * count)) % product - product // 2 for _ in range(20)
    ]
    residues = np.array([[v % p for p in primes] for v in values])
    assert system.integers(residues) == values


@pytest.mark.parametrize("bits", [0, 1, 190, 191, 192, 193, 1000, 50_000])
def test_the_product_of_a_system_is_beyond_what_is_asked_for(bits):
    system = RemainderSystem.beyond(bits)
    assert system.product > 2**bits
    assert len(system.primes) % SIDE_BY_SIDE == 0
    fewer = system.primes.tolist()[:-SIDE_BY_SIDE]
    assert math.prod(fewer) <= 2**bits


def modulo(x, p):
    """A fraction modulo p."""
    return x.numerator * pow(x.denominator, -1, p) % p


@pytest.mark.parametrize("seed", range(10))
def test_elimination_is_that_of_fractions(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    a = rng.integers(-2, 3, (n, n + 2)).astype(float)
    primes, roots = fields(0, 3)
    result = eliminate(a, np.zeros(n), np.zeros(n + 2), primes, roots)
    rows = [[Fraction(x) for x in row] for row in a.tolist()]

    def determinant(matrix):
        if not matrix:
            return Fraction(1)
        terms = [
            (-1) ** j * x * determinant([row[:j] + row[j + 1 :] for row in matrix[1:]])
            for j, x in enumerate(matrix[0])
        ]
        return sum(terms, Fraction(0))

    square = [row[:n] for row in rows]
    minors = [determinant([row[:k] for row in rows[:k]]) for k in range(1, n + 1)]
    vanishes = minors.index(0) if 0 in minors else n
    for lane, p in enumerate(primes.astype(int).tolist()):
        assert result.determinants[lane] == modulo(determinant(square), p)
        expected = [modulo(m, p) if k < vanishes else 0 for k, m in enumerate(minors)]
        assert result.minors[:, lane].tolist() == expected
        if determinant(square) == 0:
            assert not result.numerators[:, lane].any()
            continue
        for i in range(n):
            for side in range(2):
                cramer = [[*row[:i], row[n + side], *row[i + 1 : n]] for row in rows]
                expected_numerator = modulo(determinant(cramer), p)
                assert result.numerators[2 * i + side, lane] == expected_numerator


def assert_same(a, rows, columns, primes, roots):
    """The core and the plain function return the same numbers."""
    plain = eliminate(a, rows, columns, primes, roots)
    compiled = core.override(eliminate)(a, rows, columns, primes, roots)
    for x, y in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(x, y)
    return plain


@pytest.mark.parametrize("seed", range(40))
def test_the_core_returns_the_numbers_of_the_plain_function(instructions, seed):
    rng = np.random.default_rng([9, seed])
    n = int(rng.integers(0, 12))
    k = int(rng.integers(0, 4))
    primes, roots = fields(seed, seed + int(rng.integers(1, 20)))
    kinds = [
        rng.integers(-1, 2, (n, n + k)).astype(float),
        rng.standard_normal((n, n + k)),
        rng.integers(-3, 4, (n, n + k)) * rng.choice(primes, (n, n + k)),
        np.ldexp(rng.standard_normal((n, n + k)), rng.integers(-300, 300, (n, n + k))),
    ]
    a = kinds[seed % 4]
    if n and seed % 3 == 0:
        a[-1] = a[0]
    if seed % 2:
        a = a + 1j * rng.permutation(a.ravel()).reshape(a.shape)
    rows = rng.integers(400, 500, n).astype(float)
    columns = rng.integers(0, 9, n + k).astype(float)
    a = a[::-1].T.copy().T
    assert_same(a, rows, columns, primes, roots)


@pytest.mark.parametrize("n", [64, 65, 66, 129, 200])
def test_sums_of_many_products_are_exact(instructions, n):
    # Z = L U, whose entries are the largest odd residue: all products have one sign, and
    # sums of more than 128 of them have more than 53 bits
    primes, roots = fields(0, 1)
    p = int(primes[0])
    largest = (p - 3) // 2
    units = np.eye(n, dtype=np.int64)
    lower = largest * np.tri(n, k=-1, dtype=np.int64) + units
    upper = largest * np.tri(n, n, -1, dtype=np.int64).T + units
    products = sum(np.outer(x, y) % p for x, y in zip(lower.T, upper)) % p
    z = np.concatenate([products, products[:, ::-1]], axis=1).astype(float)
    plain = assert_same(z, np.zeros(n), np.zeros(2 * n), primes, roots)
    assert (plain.minors == 1.0).all()
    assert (plain.numerators.reshape(n, n) == units[::-1]).all()


@needs_core
def test_arguments_that_do_not_fit_are_refused():
    module = core.loaded()[0]
    a = np.ones((2, 2))
    exponents = np.zeros((1, 2))
    primes = primes_from(0, 3).astype(float)[None]
    results = np.empty((1, 3)), np.empty((2, 3)), np.empty((0, 3))
    module.eliminate(a, None, exponents, exponents, primes, primes, *results)
    with pytest.raises(TypeError, match="nine"):
        module.eliminate(a)
    with pytest.raises(ValueError, match="no integer"):
        module.eliminate(a / 2, None, exponents, exponents, primes, primes, *results)
    with pytest.raises(ValueError, match="no integer"):
        module.eliminate(
            a * np.inf, None, exponents, exponents, primes, primes, *results
        )
    for others in (primes[:, :2], primes + 0.5, primes * 2, primes / 2):
        with pytest.raises(ValueError, match="do not fit"):
            module.eliminate(a, None, exponents, exponents, others, others, *results)
    with pytest.raises(ValueError, match="do not fit"):
        module.eliminate(a, None, exponents + 1e6, exponents, primes, primes, *results)
    with pytest.raises(ValueError, match="do not fit"):
        module.eliminate(a, a[:1], exponents, exponents, primes, primes, *results)
    with pytest.raises(ValueError, match="do not fit"):
        module.eliminate(a[:, :1], None, exponents, exponents, primes, primes, *results)
