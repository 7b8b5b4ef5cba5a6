"""Matrices of mpmath, gmpy2 and python-flint: exact in words, or refused by entry.
Fractions judge.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.operands.exact_operands import MOST_WORDS

BITS = (20, 53, 90, 140, 200)


def mpmath_of(x):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(400):
        return mpmath.matrix(
            [[mpmath.mpf(y.numerator) / y.denominator for y in row] for row in x]
        )


def mpfr_of(x):
    gmpy2 = pytest.importorskip("gmpy2")
    with gmpy2.context(precision=400):
        return [
            [gmpy2.mpfr(gmpy2.mpq(y.numerator, y.denominator)) for y in row]
            for row in x
        ]


def mpq_of(x):
    gmpy2 = pytest.importorskip("gmpy2")
    return np.array([[gmpy2.mpq(y.numerator, y.denominator) for y in row] for row in x])


def fmpq_of(x):
    flint = pytest.importorskip("flint")
    return flint.fmpq_mat(
        [[flint.fmpq(y.numerator, y.denominator) for y in row] for row in x]
    )


def arb_of(x):
    flint = pytest.importorskip("flint")
    with flint.ctx.workprec(400):
        return flint.arb_mat(
            [[flint.arb(y.numerator) / y.denominator for y in row] for row in x]
        )


MAKERS = {
    "mpmath": mpmath_of, "mpfr": mpfr_of, "mpq": mpq_of, "fmpq": fmpq_of, "arb": arb_of, "Fraction": lambda x: x
}  # fmt: skip


def fractions(seed, shape, bits):
    """Numbers of that many bits, of both signs and 40 binary orders of magnitude, 0
    among them.
    """
    rng = np.random.default_rng(seed)

    def number():
        mantissa = int.from_bytes(rng.bytes(25), "little") % 2**bits
        return (
            (-1) ** int(rng.integers(2))
            * Fraction(mantissa, 2**bits)
            * Fraction(2) ** int(rng.integers(-20, 20))
        )

    made = [[number() for _ in range(shape[1])] for _ in range(shape[0])]
    made[0][0] = Fraction(0)
    return made


def exact_product(x, y):
    return [
        [
            sum(a * b for a, b in zip(row, col, strict=True))
            for col in zip(*y, strict=True)
        ]
        for row in x
    ]


def nearest(x):
    return np.array([[float(y) for y in row] for row in x])


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("bits", BITS)
def test_products_are_those_of_all_bits(kind, bits):
    x = fractions(1, (3, 5), bits)
    y = fractions(2, (5, 2), BITS[::-1][BITS.index(bits)])
    a, b, want = MAKERS[kind](x), MAKERS[kind](y), exact_product(x, y)
    found, report = hg.matmul(a, b, accuracy="correct", return_report=True)
    assert report.correct
    np.testing.assert_array_equal(found, nearest(want), strict=True)
    high, low = hg.matmul(a, b, result="pair")
    np.testing.assert_array_equal(high, nearest(want))
    rest = [
        [z - Fraction(h) for z, h in zip(row, above, strict=True)]
        for row, above in zip(want, high, strict=True)
    ]
    np.testing.assert_array_equal(low, nearest(rest))
    lower, upper = hg.matmul(a, b, result="enclosure")
    for z, first, last in zip(chain(*want), lower.flat, upper.flat, strict=True):
        assert (
            Fraction(first)
            <= z
            <= Fraction(last)
            <= Fraction(np.nextafter(first, np.inf))
        )
    assert hg.make_plan(a, b, accuracy="correct").problem.k % 5 == 0


@pytest.mark.parametrize("kind", MAKERS)
def test_beside_arrays_of_numpy_and_in_gemm(kind):
    x = fractions(3, (4, 3), 100)
    y = fractions(4, (4, 2), 40)
    z = fractions(5, (3, 2), 53)
    a, b, c = MAKERS[kind](x), nearest(y), MAKERS[kind](z)
    transposed = [list(row) for row in zip(*x, strict=True)]
    want = exact_product(transposed, y)
    np.testing.assert_array_equal(
        hg.gemm(a, b, trans_a="T", accuracy="correct"), nearest(want)
    )
    sums = [
        [p - q for p, q in zip(*rows, strict=True)]
        for rows in zip(z, want, strict=True)
    ]
    found = hg.gemm(a, b, c, alpha=-1.0, beta=1.0, trans_a="T", accuracy="correct")
    np.testing.assert_array_equal(found, nearest(sums))
    right = hg.gemm(b, a, trans_a="C", trans_b="N", accuracy="correct")
    np.testing.assert_array_equal(right, nearest(want).T)
    np.testing.assert_array_equal(
        hg.gemm(b.T, MAKERS[kind](transposed), trans_b="T", accuracy="correct"), right
    )


def test_the_level_is_that_of_float64():
    x, y = fractions(6, (6, 40), 200), fractions(7, (40, 5), 200)
    want = exact_product(x, y)
    magnitudes = exact_product(
        [[abs(p) for p in row] for row in x], [[abs(q) for q in row] for row in y]
    )
    found, report = hg.matmul(x, y, return_report=True)
    u = Fraction(1, 2**53)
    for value, exact, magnitude in zip(
        found.flat, chain(*want), chain(*magnitudes), strict=True
    ):
        bound = Fraction(report.bound) * magnitude * (1 + Fraction(1, 2**49)) + u * abs(
            exact
        )
        assert abs(Fraction(value) - exact) <= bound


def test_functions_vectors_and_stacks():
    x = np.array(fractions(8, (4, 3), 120))
    want = exact_product(x.tolist(), x.T.tolist())
    np.testing.assert_array_equal(hnp.dot(x, x.T, accuracy="correct"), nearest(want))
    np.testing.assert_array_equal(
        hnp.einsum("ij,kj->ik", x, x, accuracy="correct"), nearest(want)
    )
    np.testing.assert_array_equal(hnp.syrk(x, accuracy="correct"), nearest(want))
    assert hg.matmul(x[1], x[2], accuracy="correct") == float(want[1][2])
    stack = np.stack([x, -x])
    np.testing.assert_array_equal(
        hg.matmul(stack, x.T, accuracy="correct"), [nearest(want), -nearest(want)]
    )


def test_complex_matrices():
    mpmath, gmpy2, flint = (
        pytest.importorskip(name) for name in ("mpmath", "gmpy2", "flint")
    )
    entries = [[1 + 2j, 0.5j], [3.0, -0.25]]
    for made in (
        mpmath.matrix(entries),
        [[gmpy2.mpc(x) for x in row] for row in entries],
        flint.acb_mat(
            [[flint.acb(x.real, x.imag) if x else x for x in row] for row in entries]
        ),
        np.array(entries, object),
    ):
        found = hg.matmul(made, np.eye(2), accuracy="correct")
        np.testing.assert_array_equal(found, np.array(entries), strict=True)
    with mpmath.workprec(150):
        third = mpmath.mpc(mpmath.mpf(1) / 3, -mpmath.mpf(1) / 7)
        high, low = hg.matmul([[third]], [[1.0]], result="pair")
        assert high[0, 0] == complex(third)
        assert low[0, 0] == complex(third - complex(third))


def test_integers_are_exact_or_an_error():
    flint, gmpy2 = pytest.importorskip("flint"), pytest.importorskip("gmpy2")
    entries = [[2**62, 3], [-4, 5]]
    want = np.array(entries, object) @ np.array(entries, object)
    for made in (
        flint.fmpz_mat(entries),
        [[gmpy2.mpz(x) for x in row] for row in entries],
        np.array(entries, object),
        [[flint.fmpz(x) for x in row] for row in entries],
    ):
        np.testing.assert_array_equal(hg.matmul(made, made, result="object"), want)
        with pytest.raises(
            hg.AccuracyError,
            match=r"4 entries of the product lie beyond int64.*entry \(0, 0\)",
        ):
            hg.matmul(made, made)
        small = hg.matmul(made, np.eye(2, dtype=int))
        np.testing.assert_array_equal(small, np.array(entries), strict=True)
    for made in (flint.fmpz_mat, lambda x: np.array(x, object)):
        found = hg.matmul(made([[2**63, 3]]), made([[1], [1]]))
        assert (found.dtype, int(found[0, 0])) == (np.uint64, 2**63 + 3)
        for options in ({}, {"result": "int64"}):
            found = hg.matmul(made([[2**63]]), made([[-1]]), **options)
            assert (found.dtype, int(found[0, 0])) == (np.int64, -(2**63))
        assert hg.gemm(made([[2, 3]]), made([[5], [7]]))[0, 0] == 31.0
    large = flint.fmpz_mat([[2**63 + 1, 0]])
    assert hg.matmul(large, np.ones((2, 1), np.uint8)).dtype == np.uint64
    high, low = hg.matmul(flint.fmpz_mat([[2**100 + 1, 0]]), [[1], [1]], result="pair")
    assert int(high[0, 0]) + int(low[0, 0]) == 2**100 + 1
    assert [
        float(x[0, 0])
        for x in hg.matmul([[gmpy2.mpz(2**60 + 1), 0.5]], np.eye(2), result="pair")
    ] == [2.0**60, 1]
    assert hg.matmul(flint.fmpz_mat(0, 2), np.eye(2)).shape == (0, 2)


def test_lists_of_integers_of_python_do_not_wrap_around():
    for a, b, want, fits in (
        ([[2**31, -7]], [[2**31], [3]], 2**62 - 21, True),
        ([[2**32 + 1]], [[2**32 - 1]], 2**64 - 1, False),
        ([[2**63 + 1, 2**63]], [[1], [0]], 2**63 + 1, True),
        ([[2**63 + 1, 1]], [[1], [5]], 2**63 + 6, True),
        ([[2**63]], [[-1]], -(2**63), True),
        ([[2**63]], [[-2]], -(2**64), False),
        ([2**40], [2**40], 2**80, False),
        (range(2, 5), [2**61] * 3, 9 * 2**61, False),
    ):
        for call in (hg.matmul, hnp.matmul, hnp.dot):
            if fits:
                found = call(a, b)
                assert found.dtype.kind in "iu"
                assert int(np.squeeze(found)) == want
            else:
                with pytest.raises(hg.AccuracyError, match=rf" = {want}: "):
                    call(a, b)
    # Beside an array of NumPy's integers too; two of these wrap around, as in NumPy.
    array = np.array([[2**40]])
    for a, b in (([[2**40]], array), (array, [[2**40]])):
        with pytest.raises(hg.AccuracyError, match=rf" = {2**80}: result=\"object\""):
            hg.matmul(a, b)
    assert hg.matmul(array, array) == 0


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (Fraction(1, 3), r"Fraction\(1, 3\), a fractions\.Fraction"),
        (Decimal("0.1"), r"Decimal\('0\.1'\), a decimal\.Decimal"),
        (Decimal("1e400000"), "Decimal"),
        (Decimal("1e-400000"), "Decimal"),
        (10**400, "1000"),
        (Fraction(1, 2**1075), "Fraction"),
        (sum(Fraction(2) ** (60 * i) for i in range(MOST_WORDS + 1)), "Fraction"),
    ],
    ids=str,
)
def test_the_first_entry_that_words_do_not_hold_is_named(entry, shown):
    x = [[Fraction(1, 2), 1], [entry, entry]]
    for call in (hg.matmul, hg.gemm, hg.make_plan, hnp.dot):
        with pytest.raises(
            ValueError,
            match=rf"entry \(1, 0\) of a is .*{shown}.* no sum of 4 numbers of float64",
        ):
            call(x, np.eye(2))
    with pytest.raises(
        ValueError, match=r"entry \(1, 0\) of c is .*no number of float64"
    ):
        hg.gemm(np.eye(2), np.eye(2), x, beta=1.0)


def test_what_is_no_exact_number_is_refused():
    mpmath, flint = pytest.importorskip("mpmath"), pytest.importorskip("flint")
    with pytest.raises(ValueError, match=r"entry \(0, 1\) of b is \[0\.333.*arb"):
        hg.matmul([[1.0]], flint.arb_mat([[1, flint.arb(1) / 3]]))
    for x in (
        mpmath.matrix([[mpmath.pi]]),
        mpmath.iv.matrix([[1]]),
        flint.nmod_mat(1, 1, [3], 5),
        [[None]],
    ):
        with pytest.raises(
            TypeError,
            match=r"a has dtype object and holds .* as entry \(0, 0\); expected",
        ):
            hg.matmul(x, [[1.0]])
    with pytest.raises(TypeError, match=r"holds None, a NoneType, as entry \(1, 0\)"):
        hg.matmul([[mpmath.mpf(1)], [None]], [[1.0]])
    huge = mpmath.mpf(2) ** (10**12)
    for x in (huge, 1 / huge):
        with pytest.raises(ValueError, match=r"entry \(0, 0\) of a is mpf"):
            hg.matmul([[x]], [[1.0]])


def test_inf_and_nan_are_single_words():
    mpmath, gmpy2, flint = (
        pytest.importorskip(name) for name in ("mpmath", "gmpy2", "flint")
    )
    for inf, nan in (
        (mpmath.inf, mpmath.nan),
        (gmpy2.inf(), gmpy2.nan()),
        (flint.arf("inf"), flint.arf("nan")),
    ):
        found = hg.matmul([[inf * 1, 1], [nan * 1, 1]], np.ones((2, 1)))
        np.testing.assert_array_equal(found, [[np.inf], [np.nan]])
    with (
        mpmath.workprec(100),
        pytest.raises(
            ValueError, match=r"entry \(0, 1\) of a is inf, and .* 2 and 1 words"
        ),
    ):
        hg.matmul(mpmath.matrix([[mpmath.mpf(1) / 3, mpmath.inf]]), np.ones((2, 1)))


def test_prepared_operands_and_shapes():
    x = fractions(9, (2, 3), 100)
    plan = hg.make_plan(np.ones((2, 3)), np.ones((3, 2)))
    prepared = hg.prepare(np.ones((3, 2)), "right", plan=plan)
    with pytest.raises(
        TypeError, match="b is prepared, and the other operand takes 2 words"
    ):
        hg.matmul(x, prepared)
    with pytest.raises(ValueError, match=r"of a is .*no number of float64"):
        hg.prepare(x, "left", plan=plan)
    exact = [[Fraction(1, 2)] * 3] * 2
    np.testing.assert_array_equal(
        hg.matmul(hg.prepare(exact, "left", plan=plan), prepared), np.full((2, 2), 1.5)
    )
    with pytest.raises(ValueError, match=r"with k = 3, b has shape .* with k = 2"):
        hg.matmul(x, x)
    both = hg.make_plan(x, np.ones((3, 1)), accuracy="correct")
    np.testing.assert_array_equal(
        hg.matmul(x, np.ones((3, 1)), plan=both), nearest([[sum(row)] for row in x])
    )


def test_tensors_stay_among_tensors(torch):
    with pytest.raises(TypeError, match="b is a list; expected an array of torch"):
        hg.matmul(torch.ones((2, 2)), [[Fraction(1, 2)] * 2] * 2)
