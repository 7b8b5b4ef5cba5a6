"""Determinants and definiteness of up to 128 rows, which the compiled core tells, and each
step of their proof in fractions.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.linalg_determinants import FAMILIES, FUNCTIONS, judge
from hifigemm import linalg
from hifigemm.engines import core
from tests.linalg.exact_least_squares import exact_determinant, exact_solve
from tests.linalg.worst_arithmetic import exact_matmul, fractions, moduli

if core.loaded()[0] is None:
    pytest.skip("the compiled core is not here", allow_module_level=True)

MODULE = core.loaded()[0]
SIZES = (1, 2, 3, 4, 5, 8, 13, 32, 70, 128)


@pytest.fixture(params=MODULE.instructions)
def instructions(request):
    MODULE.use(request.param)
    yield request.param
    MODULE.use(MODULE.instructions[0])


def without_core(monkeypatch):
    """From now on the general way answers."""
    monkeypatch.setattr(core, "neighbours_of_determinants", lambda a: None)
    monkeypatch.setattr(core, "definiteness", lambda a: None)


def drawn(rng, kind, n):
    """A matrix of a hostile family."""
    a = rng.standard_normal((n, n))
    if kind == "integers":
        return np.rint(3.0 * a)
    if kind == "large integers":
        return np.rint(a * 2.0 ** rng.integers(1, 52))
    if kind == "graded":
        powers = rng.integers(-90, 90, (n, 1)) + rng.integers(-90, 90, n)
        return np.ldexp(a, powers)
    if kind == "scattered":
        return np.ldexp(a, rng.integers(-199, 199, (n, n)))
    if kind == "nearly singular" and n > 1:
        a[-1] = a[0] * (1.0 + 2.0 ** -rng.integers(20, 52))
    if kind == "rank one":
        return np.outer(np.rint(100 * a[0]), a[:, 0])
    if kind == "low rank":
        left = rng.integers(-9, 10, (n, max(n - 1, 1)))
        return (left @ rng.integers(-9, 10, (max(n - 1, 1), n))).astype(float)
    if kind == "sparse":
        a[rng.random((n, n)) < 0.5] = 0.0
    return a


KINDS = (
    "normal",
    "integers",
    "large integers",
    "graded",
    "scattered",
    "nearly singular",
    "rank one",
    "low rank",
    "sparse",
)


def symmetric(rng, kind, n):
    """A symmetric matrix, definite, semidefinite or not, with the spread of the kind."""
    a = drawn(rng, kind, n)
    if rng.random() < 0.6:
        a = a / np.abs(a).max() if np.abs(a).max() > 1e9 else a
        a = a @ a.T
    if rng.random() < 0.3:
        i = rng.integers(n)
        a[i, i] = np.nextafter(a[i, i], rng.choice([-np.inf, np.inf]))
    return np.triu(a) + np.triu(a, 1).T


def leading_minors(a):
    """All of them, as fractions."""
    return [exact_determinant(a[:k, :k].tolist()) for k in range(1, len(a) + 1)]


def exact_exponent(value):
    """e with 2^e <= |value| < 2^(e + 1)."""
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= size else exponent - 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_determinant_lies_between_its_neighbours(kind, n, instructions):
    rng = np.random.default_rng([5, n])
    stack = np.stack([drawn(rng, kind, n) for _ in range(400 // (n + 3))])
    known, lower, upper, exponents = core.neighbours_of_determinants(stack)
    for a, is_known, low, high, exponent in zip(stack, known, lower, upper, exponents):
        if not is_known:
            continue
        exact = exact_determinant(a.tolist())
        value = exact / Fraction(2) ** int(exponent)
        assert Fraction(low) <= value <= Fraction(high)
        assert (low == high) == (Fraction(float(low)) == value)
        assert low == high or np.nextafter(low, np.inf) == high
        if exact != 0:
            power = exact_exponent(exact)
            assert exponent == (power if abs(power) > 1000 else 0)
    if kind in ("normal", "graded") or (kind == "integers" and n <= 13):
        assert known.mean() > 0.95


@pytest.mark.parametrize("n", [5, 8, 16, 32])
@pytest.mark.parametrize("condition", [1e5, 1e10])
def test_determinants_and_definiteness_are_told_up_to_condition_1e10(n, condition):
    rng = np.random.default_rng(n)
    values = np.logspace(0.0, -math.log10(condition), n)
    factors = [np.linalg.qr(x)[0] for x in rng.standard_normal((200, n, n))]
    stack = np.stack([q * values @ p for q, p in zip(factors[::2], factors[1::2])])
    assert core.neighbours_of_determinants(stack).is_known.mean() >= 0.95
    for sign in (1.0, -1.0):
        values[n // 2 :: 3] *= sign
        stack = np.stack([q * values @ q.T for q in factors])
        stack += np.swapaxes(stack, 1, 2)
        is_definite, is_known = core.definiteness(stack)
        assert is_known.all()
        assert (is_definite == (sign > 0.0)).all()


@pytest.mark.parametrize("bits", range(38, 50))
def test_determinants_next_to_a_double_are_told_or_left(bits, instructions):
    """Those of (2^bits - c) (2^bits + c) 2^(bits (n - 2)), times a factor of 1."""
    rng = np.random.default_rng(bits)
    for n in (2, 5, 9):
        for c in (1.0, 3.0, 1001.0):
            middle = 2.0**bits * np.eye(n)
            middle[0, 0] -= c
            middle[1, 1] += c
            left = np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)
            a = (left @ middle)[rng.permutation(n)] * rng.choice([1.0, -1.0])
            exact = exact_determinant(a.tolist())
            known, low, high, exponent = core.neighbours_of_determinants(a)
            assert known or bits > 45
            if known:
                assert exponent == 0.0
                assert Fraction(float(low)) < exact < Fraction(float(high))


def test_determinants_of_zero_are_told_of_short_integers():
    rng = np.random.default_rng(3)
    for n, largest in ((2, 2**40), (3, 2**20), (5, 500), (8, 9)):
        left = rng.integers(-largest, largest, (20, n, n - 1))
        right = rng.integers(-2, 3, (20, n - 1, n))
        stack = (left @ right).astype(float)
        known, lower, upper, exponents = core.neighbours_of_determinants(stack)
        assert known.all()
        for x in (lower, upper, exponents):
            assert not x.any()
    zeros = np.zeros((2, 128, 128))
    zeros[1, 0] = 1.0
    assert core.neighbours_of_determinants(zeros).is_known.all()


@pytest.mark.parametrize("entry", [2.0**201, 2.0**-201, np.inf, np.nan])
def test_what_is_not_moderate_is_left(entry):
    a = np.diag([1.0, 1.0, entry, 1.0, 1.0])
    assert not core.neighbours_of_determinants(a).is_known
    assert not core.definiteness(a).is_known


@pytest.mark.parametrize("n", [1, 3, 6, 13])
def test_answers_have_the_bits_of_the_integers(n, monkeypatch):
    rng = np.random.default_rng(6)
    stack = np.stack([drawn(rng, kind, n) for kind in KINDS for _ in range(8)])
    stack[::7] *= 2.0 ** rng.choice([-190, 190])
    quick = linalg.det(stack)
    logarithms = linalg.slogdet(stack)
    one = linalg.det(stack[0])
    without_core(monkeypatch)
    slow = linalg.det(stack)
    for name in ("sign", "lower", "upper", "exponent"):
        assert (getattr(quick, name) == getattr(slow, name)).all()
        assert getattr(quick, name).dtype == getattr(slow, name).dtype
        assert getattr(one, name) == getattr(slow, name)[0]
        assert type(getattr(one, name)) is type(getattr(linalg.det(stack[0]), name))
    assert (logarithms.logabsdet == linalg.slogdet(stack).logabsdet).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 12])
def test_answers_about_definiteness_are_those_of_exact_minors(n, instructions):
    rng = np.random.default_rng(n)
    stack = np.stack([symmetric(rng, kind, n) for kind in KINDS * 12])
    is_definite, is_known = core.definiteness(stack)
    exact = np.array([min(leading_minors(a)) > 0 for a in stack])
    assert (is_definite == exact)[is_known].all()
    assert 0.1 * len(stack) < exact.sum() < 0.9 * len(stack)
    assert is_known.mean() > 0.6


def test_definiteness_of_stacks_has_the_answers_of_the_general_way(monkeypatch):
    rng = np.random.default_rng(7)
    stack = np.stack([symmetric(rng, kind, 5) for kind in KINDS * 20])
    stack[5] = 0.0
    stack[6] = np.diag([1.0, 0.0, 1.0, 1.0, 1.0])
    quick = linalg.is_positive_definite(stack)
    without_core(monkeypatch)
    slow = linalg.is_positive_definite(stack)
    assert (quick == slow).all()
    assert quick.dtype == bool


def test_semidefinite_matrices_are_not_definite():
    rng = np.random.default_rng(2)
    for n in (2, 3, 5, 6):
        v = rng.integers(-9, 10, (20, n, n - 1)).astype(float)
        is_definite, is_known = core.definiteness(v @ np.swapaxes(v, 1, 2))
        assert is_known.all()
        assert not is_definite.any()
    # A minor of zero, and larger ones that are positive
    a = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]])
    a = np.vstack([a, [0.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    assert exact_determinant(a.tolist()) > 0
    assert core.definiteness(a) == (False, True)


def test_matrices_that_are_not_symmetric_are_left():
    a = np.eye(3)
    a[0, 2] = 2.0**-60
    assert not core.definiteness(a).is_known
    assert not core.definiteness(-a).is_known


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_wrong_or_refused_in_hostile_families(family, function):
    for number in range(3):
        counts = judge(function, family, number, seed=62, most_rows=14)
        assert counts["matrices"] > 0
        assert counts["wrong"] == counts["missed"] == counts["refused"] == 0


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
    a = np.ones((2, 3, 3))
    for function, width in ((MODULE.determinants, 4), (MODULE.definite, 1)):
        good = np.ones((2, 1, width))
        function(a, good)
        with pytest.raises(TypeError, match="two arguments"):
            function(a)
        for matrices, facts in (
            (np.ones((2, 129, 129)), good),
            (np.ones((2, 3, 2)), good),
            (np.ones((2, 0, 0)), good),
            (a, np.ones((2, 1, width + 1))),
            (a, np.ones((3, 1, width))),
            (a, np.ones((2, 1, 2 * width))[..., ::2]),
            (a.astype(np.float32), good),
        ):
            if width == 1 and facts.strides[-1] > 8:
                continue
            with pytest.raises(ValueError, match="fit"):
                function(matrices, facts)


# The steps of a proof


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The function of small_factors.c, for a set of instructions by its number."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    sources = Path(__file__).parents[2] / "core"
    library = tmp_path_factory.mktemp("small_factors") / "small_factors.so"
    flags = ["-std=c11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC"]
    parts = ("kernels", "words", "accumulator", "product", "systems")
    files = [sources / f"{part}.c" for part in parts]
    command = ["cc", *flags, "-shared", f"-I{sources}", "-o", library]
    program = Path(__file__).with_name("small_factors.c")
    subprocess.run([*command, program, *files, "-lm"], check=True)
    return ctypes.CDLL(str(library)).steps_of


def call(steps, number, a, exchanges):
    """(m, scaled matrix, hi, lo, errors, y, w, minor) of one matrix; see small_factors.c."""
    n = len(a)
    shapes = (n, n), (n, n), (n, n), n, n, n, 5
    results = [np.zeros(shape) for shape in shapes]
    a = np.ascontiguousarray(a)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, *results)]
    m = steps(number, n, pointers[0], int(exchanges), *pointers[1:])
    return m, *results


def as_triangles(hi, lo):
    """L and U in fractions."""
    words = [
        [Fraction(x) + Fraction(y) for x, y in zip(*rows)]
        for rows in zip(hi.tolist(), lo.tolist())
    ]
    n = len(hi)
    lower = [
        [words[i][j] if j < i else Fraction(i == j) for j in range(n)] for i in range(n)
    ]
    upper = [
        [words[i][j] if j >= i else Fraction(0) for j in range(n)] for i in range(n)
    ]
    return lower, upper


def in_order_of(product, rows):
    """Rows, each next to one of a product."""
    left = list(range(len(rows)))
    order = []
    for row in product:
        gaps = {i: sum(abs(x - y) for x, y in zip(row, rows[i])) for i in left}
        order.append(min(gaps, key=gaps.get))
        left.remove(order[-1])
    return [rows[i] for i in order]


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_bound_holds_in_fractions(kind, exchanges, steps):
    rng = np.random.default_rng([8, KINDS.index(kind)])
    known = 0
    for number in range(len(MODULE.instructions)):
        for n in (1, 2, 3, 5, 7, 10):
            a = drawn(rng, kind, n) if exchanges else symmetric(rng, kind, n)
            m, scaled, hi, lo, errors, y, w, minor = call(steps, number, a, exchanges)
            if minor[0] == 0.0:
                continue
            known += 1
            scaled, hi, lo = scaled[:m, :m], hi[:m, :m], lo[:m, :m]
            lower, upper = as_triangles(hi, lo)

            # |L U - P S| e <= errors
            product = exact_matmul(lower, upper)
            rows = in_order_of(product, fractions(scaled))
            for row, exact, error in zip(product, rows, errors):
                assert sum(abs(x - z) for x, z in zip(row, exact)) <= Fraction(error)

            # |L^-1| errors <= y, |U^-1| y <= w
            for triangle, side, bound in ((lower, errors, y), (upper, y, w)):
                inverse = moduli(exact_solve(triangle, fractions(np.eye(m))))
                images = exact_matmul(inverse, fractions(side[:m, None]))
                for (image,), limit in zip(images, bound):
                    assert image <= Fraction(limit)

            # The minor within its error, which is less where the sign is known
            _, high, low, error, exponent = map(Fraction, minor)
            exact = exact_determinant(scaled.tolist()) / 2**exponent
            assert abs(exact - high - low) <= error
            if high != 0:
                assert error < abs(high)
    assert known > 0
