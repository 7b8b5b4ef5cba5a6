"""Products of three and more operands: their order, the bound of the whole, what is
refused.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.functions.chains import best_cuts

FULL = hg.Ozaki2(num_moduli=5, scaling="fast")
"""A scheme whose results differ from the exact ones far above the last place."""


def fractions(x):
    return np.array([Fraction(float(y)) for y in x.ravel()], object).reshape(x.shape)


def keeps(made, matrices, bound):
    """Whether |C - exact| <= bound |A||B||C|... in every entry, evaluated exactly."""
    exact, size = fractions(matrices[0]), abs(fractions(matrices[0]))
    for x in matrices[1:]:
        exact, size = exact @ fractions(x), size @ abs(fractions(x))
    return bool((abs(fractions(made) - exact) <= Fraction(bound) * size).all())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accuracy": 1e-9},
        {"accuracy": "fp32", "scheme": "ozaki1"},
        {"scheme": FULL},
    ],
)
def test_the_bound_of_a_chain_holds(options):
    rng = np.random.default_rng(0)
    matrices = [
        rng.standard_normal(s) * np.exp(rng.standard_normal(s))
        for s in ((4, 9), (9, 3), (3, 8), (8, 5))
    ]
    for made, report in (
        hnp.multi_dot(matrices, **options, return_report=True),
        hnp.einsum("ab,bc,cd,de->ae", *matrices, **options, return_report=True),
    ):
        assert len(report.reports) == 3
        terms = [r.bound + u for r, u in zip(report.reports, report.roundoffs)]
        exact = np.prod([1 + Fraction(x) for x in terms]) - 1
        assert exact <= Fraction(report.bound) <= exact * Fraction(1 + 1e-12)
        assert keeps(made, matrices, report.bound)
        assert "3 products" in str(report)
    square = matrices[0][:, :4]
    for n in range(2, 9):
        made, report = hnp.matrix_power(square, n, **options, return_report=True)
        assert keeps(made, [square] * n, report.bound + (2.0**-53 if n == 2 else 0.0))


@given(n=st.integers(1, 40))
def test_powers_count_what_enters_more_than_once(n):
    a = np.array([[1.0, 1.0], [1.0, 0.0]])
    made, report = hnp.matrix_power(a, n, accuracy=1e-3, return_report=True)
    np.testing.assert_array_equal(made, np.linalg.matrix_power(a, n))
    if n > 2:
        assert len(report.reports) == n.bit_length() + n.bit_count() - 2
        # as many roundings as there are in n - 1 products, in any order
        assert sum(report.uses) == n - 1


def test_powers_of_stacks_and_the_first_two():
    a = np.arange(8.0).reshape(2, 2, 2)
    for n in range(4):
        np.testing.assert_array_equal(
            hnp.matrix_power(a, n), np.linalg.matrix_power(a, n)
        )
    assert not np.shares_memory(hnp.matrix_power(a, 1), a)
    assert hnp.matrix_power(a, 2, accuracy="correct", return_report=True)[1].correct
    assert hnp.matrix_power(a.astype(np.int16), 3).dtype == np.int16


@given(sizes=st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_the_order_of_multi_dot_is_the_cheapest(sizes):
    def cheapest(i, j):
        costs = (
            cheapest(i, k) + cheapest(k + 1, j) + sizes[i] * sizes[k + 1] * sizes[j + 1]
            for k in range(i, j)
        )
        return min(costs, default=0)

    def taken(i, j):
        if i == j:
            return 0
        k = cuts[i, j]
        return taken(i, k) + taken(k + 1, j) + sizes[i] * sizes[k + 1] * sizes[j + 1]

    cuts, last = best_cuts(sizes), len(sizes) - 2
    assert taken(0, last) == cheapest(0, last)
    matrices = [np.arange(1.0, 1 + m * n).reshape(m, n) % 3 for m, n in pairwise(sizes)]
    np.testing.assert_array_equal(
        hnp.multi_dot(matrices), np.linalg.multi_dot(matrices)
    )


def test_vectors_at_the_ends_and_out():
    v, a, b, w = np.ones(2), np.ones((2, 3)), np.ones((3, 4)), np.ones(4)
    for matrices in ([v, a, b, w], [v, a, b], [a, b, w], [v, v], [a, b]):
        expected, made = np.linalg.multi_dot(matrices), hnp.multi_dot(matrices)
        assert np.shape(made) == np.shape(expected)
        np.testing.assert_array_equal(made, expected)
    out = np.empty((2, 4))
    assert hnp.multi_dot([a, b], out=out, accuracy="correct") is out


def test_orders_of_einsum():
    operands = [np.arange(6.0).reshape(s) for s in ((2, 3), (3, 2), (2, 3))]
    expected = np.einsum("ij,jk,kl", *operands)
    for optimize in (
        False,
        True,
        "greedy",
        "optimal",
        ["einsum_path", (1, 2), (0, 1)],
        ["einsum_path", (0, 1, 2)],
    ):
        np.testing.assert_array_equal(
            hnp.einsum("ij,jk,kl", *operands, optimize=optimize), expected
        )


def test_a_chain_may_lose_all_digits_of_an_entry_which_its_bound_by_magnitudes_allows():
    x = np.array([[1.0, 2.0**-60]])
    y = np.array([[1.0, 1.0], [1.0, 0.0]])
    z = np.array([[1.0], [-1.0]])
    path = ["einsum_path", (0, 1), (0, 1)]
    value, report = hnp.einsum(
        "ij,jk,kl->il", x, y, z, accuracy=2e-16, optimize=path, return_report=True
    )
    exact, magnitudes = 2.0**-60, 2 + 2.0**-60
    assert value[0, 0] == 0.0
    assert exact <= report.bound * magnitudes
    value = hnp.einsum(
        "ij,jk,kl->il", x, y, z, accuracy=hg.Relative(1e-12), optimize=path
    )
    assert value[0, 0] == exact


def test_errors_have_numbers():
    a = np.ones((2, 3))
    with pytest.raises(ValueError, match="at least two arrays, 1 given"):
        hnp.multi_dot([a])
    with pytest.raises(
        np.linalg.LinAlgError,
        match=r"array 1 of 3 has 1 axes, its shape is \(3,\); expected 2",
    ):
        hnp.multi_dot([a, np.ones(3), a])
    with pytest.raises(
        ValueError,
        match=r"array 0 has shape \(2, 3\), array 1 has shape \(2, 3\): 3 != 2",
    ):
        hnp.multi_dot([a, a])
    with pytest.raises(np.linalg.LinAlgError, match=r"shape \(2, 3\); expected square"):
        hnp.matrix_power(a, 2)
    with pytest.raises(ValueError, match="n = -2: a negative power is not a product"):
        hnp.matrix_power(np.eye(2), -2)
    with pytest.raises(TypeError):
        hnp.matrix_power(np.eye(2), 1.5)


NEAR = np.array([2**21, 2**31, 2**53, 2**62, 2**63, 2**64], object)
"""Integers at whose neighbours a dtype, or the exactness of float64, ends."""


LIMITS = (-(2**63), 2**63 - 1), (0, 2**64 - 1)


def fmpz_of(x):
    return pytest.importorskip("flint").fmpz_mat(x)


def mpz_of(x):
    mpz = pytest.importorskip("gmpy2").mpz
    return [[mpz(y) for y in row] for row in x]


MAKERS = {
    "lists": lambda x: x,
    "tuples": lambda x: tuple(map(tuple, x)),
    "objects": lambda x: np.array(x, object),
    "fmpz_mat": fmpz_of,
    "mpz": mpz_of,
}


def matrices_of_integers(rng, sizes):
    """Matrices of Python's integers of these sizes, each of int64 or of uint64."""
    matrices = []
    for shape in pairwise(sizes):
        least, most = LIMITS[rng.integers(2)]
        is_near = rng.random(shape) < rng.choice([0.0, 0.2, 1.0])
        x = np.where(is_near, rng.choice(NEAR, shape), 0)
        x = x * rng.choice([-1, 1], shape) + rng.integers(-3, 4, shape).astype(object)
        matrices.append(np.clip(x, least, most).tolist())
    return matrices


def sizes_of_chain(rng, count):
    """Sizes of so many matrices that fit."""
    return rng.integers(1, 4, count + 1).tolist()


class BeyondError(Exception):
    """An entry of an exact product lies beyond its dtype."""


def exact_step(x, y):
    """The product of two matrices of Python's integers, as objects.

    Its dtype is int64, or uint64 if one operand needs it and none is negative.

    Raises BeyondError: the first entry beyond it, as messages name it.
    """
    entries = [*x.ravel(), *y.ravel()]
    is_unsigned = max(entries) >= 2**63 and min(entries) >= 0
    limits = np.iinfo(np.uint64 if is_unsigned else np.int64)
    product = x @ y
    for i in np.ndindex(product.shape):
        if not limits.min <= product[i] <= limits.max:
            place = re.escape(f"entry {i} = {product[i]}:")
            raise BeyondError(f"beyond {limits.dtype}, .* the first is {place}")
    return product


def check_exact(call, want):
    """The result of a call is the exact one, or it names the first entry beyond."""
    try:
        exact = want()
    except BeyondError as beyond:
        with pytest.raises(hg.AccuracyError, match=str(beyond)):
            call()
    else:
        found = call()
        assert found.dtype in (np.int64, np.uint64)
        assert found.tolist() == exact.tolist()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_exact_integers_stay_exact_in_multi_dot(maker, seed):
    rng = np.random.default_rng(seed)
    sizes = sizes_of_chain(rng, rng.integers(2, 6))
    matrices = matrices_of_integers(rng, sizes)
    is_native = rng.integers(-1, len(matrices))
    operands = [maker(x) for x in matrices]
    if is_native >= 0:
        largest = max(map(max, matrices[is_native]))
        dtype = np.uint64 if largest >= 2**63 else np.int64
        operands[is_native] = np.array(matrices[is_native], dtype)
    objects = [np.array(x, object) for x in matrices]
    cuts = best_cuts(sizes)

    def product(i, j):
        if i == j:
            return objects[i]
        cut = cuts[i, j]
        return exact_step(product(i, cut), product(cut + 1, j))

    accuracy = (None, "correct", 1e-30)[seed % 3]
    check_exact(
        lambda: hnp.multi_dot(operands, accuracy=accuracy),
        lambda: product(0, len(objects) - 1),
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_exact_integers_stay_exact_in_powers(maker, seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 4))
    (matrix,) = matrices_of_integers(rng, [m, m])
    n = 2 + seed

    def power():
        square, exponent = np.array(matrix, object), n
        while exponent % 2 == 0:
            square = exact_step(square, square)
            exponent //= 2
        result = square
        exponent //= 2
        while exponent:
            square = exact_step(square, square)
            if exponent % 2:
                result = exact_step(result, square)
            exponent //= 2
        return result

    check_exact(lambda: hnp.matrix_power(maker(matrix), n), power)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_exact_integers_stay_exact_in_einsum(maker, seed):
    rng = np.random.default_rng(seed)
    matrices = matrices_of_integers(rng, sizes_of_chain(rng, 4))
    a, b, c, d = (np.array(x, object) for x in matrices)
    path, steps = (
        ([(0, 1), (0, 1), (0, 1)], ["ab", "cd", "abcd"]),
        ([(0, 1), (0, 2), (0, 1)], ["ab", "abc", "abcd"]),
        ([(2, 3), (1, 2), (0, 1)], ["cd", "bcd", "abcd"]),
    )[seed % 3]
    known = {"a": a, "b": b, "c": c, "d": d}
    beyond = None
    try:
        for step in steps:
            x, y = next(
                (step[:i], step[i:])
                for i in range(1, len(step))
                if step[:i] in known and step[i:] in known
            )
            known[step] = exact_step(known[x], known[y])
    except BeyondError:
        beyond = known[x] @ known[y]

    def call():
        operands = [maker(x) for x in matrices]
        return hnp.einsum("ij,jk,kl,lm->im", *operands, optimize=["einsum_path", *path])

    if beyond is None:
        assert call().tolist() == known["abcd"].tolist()
    else:
        with pytest.raises(hg.AccuracyError) as error:
            call()
        value = int(re.search(r"entry \(\d+, \d+\) = (-?\d+):", str(error.value))[1])
        assert value in beyond
        assert not -(2**63) <= value < 2**63


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_exact_integers_stay_exact_in_products_of_results(maker, seed):
    """The result of one call beside an exact operand of the next one."""
    rng = np.random.default_rng(seed)
    a, b, c = matrices_of_integers(rng, sizes_of_chain(rng, 3))
    for function in (lambda x, y: hnp.tensordot(x, y, 1), hnp.dot, hnp.matmul):
        check_exact(
            lambda: function(function(maker(a), maker(b)), maker(c)),  # noqa: B023
            lambda: exact_step(
                exact_step(np.array(a, object), np.array(b, object)),
                np.array(c, object),
            ),
        )


def test_powers_of_two_beyond_int64():
    """Two intermediate results are multiplied: both were arrays of int64."""
    a = [[2, 0], [0, 2]]
    for made in (a, np.array(a, object)):
        assert hnp.matrix_power(made, 62).tolist() == [[2**62, 0], [0, 2**62]]
        with pytest.raises(
            hg.AccuracyError,
            match=rf"^product 6 of 6: 2 of 4 .* entry \(0, 0\) = {2**64}: ",
        ):
            hnp.matrix_power(made, 64)
    # An ordinary array wraps around, as that of NumPy.
    assert hnp.matrix_power(np.array(a), 64).tolist() == [[0, 0], [0, 0]]
