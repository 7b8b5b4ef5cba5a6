"""The oracle against fractions.Fraction, entry by entry, on small hostile cases of
every generator.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.testing.reference import (
    ExactProduct,
    componentwise_error,
    correctly_rounded,
    exact_difference,
    exact_product,
    forward_errors,
    judge,
    meets_promise,
    relative_residual,
)
from tests import hard_matrices as gen

M, K, N = 5, 9, 6
SINGLE = {
    "phi_1": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 1.0, dtype),
    "phi_20": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 20.0, dtype),
    "uniform": lambda rng, shape, dtype: gen.uniform(rng, shape, -1, 1, dtype),
    "exp_rand": lambda rng, shape, dtype: gen.exp_rand(rng, shape, -35, 14, dtype),
    "mean_of_uniforms": gen.mean_of_uniforms,
    "hilbert": lambda rng, shape, dtype: gen.hilbert(max(shape), dtype)[
        : shape[0], : shape[1]
    ],
    "full_range": gen.full_range,
    "subnormal": gen.subnormal,
    "row_span": lambda rng, shape, dtype: gen.row_span(rng, shape, 250, dtype),
    "badly_scaled": lambda rng, shape, dtype: gen.badly_scaled(
        rng, shape, -60, 60, dtype
    ),
    "graded": lambda rng, shape, dtype: gen.graded(rng, shape, -9, 9, dtype),
    "vandermonde": gen.vandermonde,
    "integers": lambda rng, shape, dtype: rng.integers(-3, 4, shape).astype(dtype),
    "zeros": lambda rng, shape, dtype: np.full(shape, -0.0, dtype),
}
PAIRS = {
    "exponent_family": lambda rng, m, k, n, dtype: gen.exponent_family(
        rng, "type4", m, k, n, dtype
    ),
    "cancelling": gen.cancelling,
    "nearly_cancelling": lambda *args: gen.cancelling(*args, perturb=True),
    "ties": gen.ties,
    "near_ties": lambda *args: gen.ties(*args, nudge_bits=120),
    "overflowing": gen.overflowing,
    "underflowing": gen.underflowing,
    "subnormal_times_normal": lambda rng, m, k, n, dtype: (
        gen.subnormal(rng, (m, k), dtype),
        gen.exp_rand(rng, (k, n), -9, 60, dtype),
    ),
}


def make_pair(name, dtype, seed=0):
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    if np.dtype(dtype).kind == "c":
        return gen.as_complex(make_real_pair, rng, name, np.finfo(dtype).dtype)
    return make_real_pair(rng, name, dtype)


def make_real_pair(rng, name, dtype):
    if name in PAIRS:
        return PAIRS[name](rng, M, K, N, dtype)
    return SINGLE[name](rng, (M, K), dtype), SINGLE[name](rng, (K, N), dtype)


every_case = pytest.mark.parametrize("name", [*SINGLE, *PAIRS])
every_dtype = pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.complex64, np.complex128]
)


def fractions_of(x):
    return [
        [(Fraction(float(v.real)), Fraction(float(v.imag))) for v in row] for row in x
    ]


def brute_force(a, b):
    """Exact (re, im) of A B and of its |A||B|, as Fractions."""
    left, right = fractions_of(a), list(zip(*fractions_of(b), strict=True))
    product = np.empty((len(left), len(right)), object)
    size = np.empty_like(product)
    for i, row in enumerate(left):
        for j, col in enumerate(right):
            terms = [
                ((p * r, -q * s), (p * s, q * r))
                for (p, q), (r, s) in zip(row, col, strict=True)
            ]
            product[i, j] = tuple(
                sum(sum(term[part]) for term in terms) for part in (0, 1)
            )
            size[i, j] = tuple(
                sum(abs(x) for term in terms for x in term[part]) for part in (0, 1)
            )
    return product, size


def nearest(x, dtype):
    """x rounded by comparing with the two candidates around it, as Python floats."""
    info = np.finfo(dtype)
    largest = Fraction(float(info.max))
    half_ulp = Fraction(2) ** (info.maxexp - info.nmant - 2)
    if abs(x) >= largest + half_ulp:
        return math.inf if x > 0 else -math.inf
    x_clipped = max(min(x, largest), -largest)
    middle = np.array(x_clipped.numerator / x_clipped.denominator).astype(dtype)[()]
    with np.errstate(over="ignore", under="ignore"):
        around = [
            np.nextafter(middle, -dtype(np.inf)),
            middle,
            np.nextafter(middle, dtype(np.inf)),
        ]
    bits = np.uint32 if dtype is np.float32 else np.uint64
    finite = [v for v in around if np.isfinite(v)]
    best = min(
        finite, key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(bits)) % 2)
    )
    return -abs(float(best)) if x < 0 else abs(float(best))


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)
    for part in (np.real, np.imag):
        np.testing.assert_array_equal(
            np.signbit(part(actual)), np.signbit(part(expected))
        )


@pytest.mark.thinned(3)
@every_case
@every_dtype
def test_correctly_rounded_equals_fractions(name, dtype):
    a, b = make_pair(name, dtype)
    exact, _ = brute_force(a, b)
    expected = np.zeros((M, N), dtype)
    real = np.finfo(dtype).dtype.type
    for i, j in np.ndindex(M, N):
        expected.real[i, j] = nearest(exact[i, j][0], real)
        if expected.dtype.kind == "c":
            expected.imag[i, j] = nearest(exact[i, j][1], real)
    assert_same_bits(correctly_rounded(a, b), expected)


@pytest.mark.thinned(3)
@every_case
@every_dtype
def test_exact_product_equals_fractions_with_and_without_flint(name, dtype):
    a, b = make_pair(name, dtype, seed=1)
    exact, _ = brute_force(a, b)
    plain = exact_product(a, b, backend="python")
    assert [plain.fraction(i, j) for i, j in np.ndindex(M, N)] == exact.ravel().tolist()
    pytest.importorskip("flint")
    fast = exact_product(a, b, backend="flint")
    np.testing.assert_array_equal(fast.real, plain.real)
    np.testing.assert_array_equal(fast.exponent, plain.exponent)
    if plain.imag is not None:
        np.testing.assert_array_equal(fast.imag, plain.imag)


@pytest.mark.thinned(3)
@every_case
@every_dtype
def test_errors_equal_fractions(name, dtype):
    a, b = make_pair(name, dtype, seed=2)
    exact, size = brute_force(a, b)
    real = np.finfo(dtype).dtype
    rng = np.random.default_rng(3)
    c = correctly_rounded(a, b)
    clip = np.finfo(real).max
    parts = (c.real, c.imag) if c.dtype.kind == "c" else (c,)
    for part in parts:
        part[:] = np.clip(part, -clip, clip)
        part[::2] *= (1 - rng.random(part[::2].shape) * 1e-5).astype(real)
    u = Fraction(2) ** -(np.finfo(real).nmant + 1)
    eta = Fraction(float(np.finfo(real).smallest_subnormal))
    plain, excess, met = [], [], np.ones((M, N), bool)
    r = 1e-6
    for i, j in np.ndindex(M, N):
        for part, v, s in zip(parts, exact[i, j], size[i, j], strict=False):
            error = abs(Fraction(float(part[i, j])) - v)
            beyond = max(error - max(u * abs(v), eta / 2), Fraction(0))
            for x, into in ((error, plain), (beyond, excess)):
                into.append(float(x / s) if s else (math.inf if x else 0.0))
            met[i, j] &= beyond <= Fraction(r) * s
    assert componentwise_error(c, a, b) == max(plain)
    assert componentwise_error(c, a, b, rounding=True) == max(excess)
    np.testing.assert_array_equal(meets_promise(c, a, b, r), met)


@every_case
@every_dtype
def test_correctly_rounded_product_meets_the_promise_zero(name, dtype):
    a, b = make_pair(name, dtype, seed=4)
    c = correctly_rounded(a, b)
    assert meets_promise(c, a, b, 0.0).all()
    assert componentwise_error(c, a, b, rounding=True) == 0.0


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in [*SINGLE, *PAIRS]
        if name not in ("integers", "subnormal", "zeros")
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_product_is_not_correctly_rounded(name, dtype):
    a, b = make_pair(name, dtype, seed=5)
    with np.errstate(all="ignore"):
        native = a @ b
    assert not meets_promise(native, a, b, 0.0).all()


def test_float32_is_rounded_once():
    # 1 + 2**-24 + 2**-60: float64 drops the last term and leaves a tie, which goes to
    # 1.
    a, b = np.array([[1, 2.0**-24, 2.0**-30]]), np.array([[1], [1], [2.0**-30]])
    assert correctly_rounded(a, b, np.float32)[0, 0] == np.float32(1 + 2.0**-23)
    assert np.float32(correctly_rounded(a, b)[0, 0]) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((5, 1, 3, 4), (2, 4, 2)), ((0, 4), (4, 2)), ((3, 0), (0, 2)),
     ((2, 3, 4), (4,)), ((0, 3, 4), (4, 5))],
)  # fmt: skip
@every_dtype
def test_shapes_follow_matmul(left, right, dtype):
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in (left, right))
    c = np.asarray(a @ b)
    assert_same_bits(correctly_rounded(a, b) + 0, c + 0)
    assert meets_promise(c, a, b, 0.0).shape == c.shape
    assert meets_promise(c, a, b, 0.0).all()
    assert componentwise_error(c, a, b) == 0.0
    if c.size:
        assert not meets_promise(c + 1, a, b, 1e-9).any()
    if a.ndim == b.ndim == 2:
        assert not exact_difference(c, a, b).any()
        np.testing.assert_array_equal(exact_difference(c + 1, a, b), np.ones(c.shape))


def test_operands_that_cannot_be_judged_are_refused():
    good = np.ones((2, 2))
    with pytest.raises(ValueError, match="1 of 4 entries"):
        correctly_rounded(np.array([[1, np.nan], [1, 1]]), good)
    with pytest.raises(TypeError, match="int64"):
        correctly_rounded(np.ones((2, 2), np.int64), good)
    with pytest.raises(ValueError, match="inner dimensions"):
        correctly_rounded(np.ones((2, 3)), good)
    with pytest.raises(ValueError, match="shape"):
        componentwise_error(np.ones((2, 3)), good, good)
    with pytest.raises(TypeError, match="complex"):
        componentwise_error(good, good + 0j, good)


def test_forward_errors_are_entrywise_norms():
    a, b = np.array([[1.0, -2.0], [2.0, 4.0]]), np.array([[3.0, 4.0], [-1.0, 0.0]])
    c = a @ b + [[1.0, 0.0], [-2.0, 2.0]]
    expected = {"1": 5 / (9 * 8), "2": 3 / (5 * np.sqrt(26)), "inf": 2 / (4 * 4)}
    assert forward_errors(c, a, b) == pytest.approx(expected, rel=1e-15)
    assert forward_errors(c, a, b, reference=a @ b) == pytest.approx(
        expected, rel=1e-15
    )
    assert forward_errors(a @ b, a, b) == dict.fromkeys("12", 0.0) | {"inf": 0.0}


def test_forward_errors_see_below_the_last_bit_of_the_result():
    # The rounding error of a correctly rounded product, which a float64 reference could
    # not show.
    rng = np.random.default_rng(0)
    a, b = gen.mean_of_uniforms(rng, (40, 50)), gen.mean_of_uniforms(rng, (50, 40))
    best = correctly_rounded(a, b)
    assert forward_errors(best, a, b, reference=best)["2"] == 0
    errors, native = forward_errors(best, a, b), forward_errors(a @ b, a, b)
    assert 0 < errors["2"] < native["2"] < 2.0**-53


def test_norms_do_not_overflow():
    a = np.full((2, 2), 2.0**600)
    assert forward_errors(a, a, np.eye(2)) == {"1": 0.0, "2": 0.0, "inf": 0.0}
    assert forward_errors(a * 2, a, np.eye(2))["2"] == pytest.approx(1 / np.sqrt(2))


def test_error_that_no_float64_holds_is_infinite():
    largest = np.finfo(float).max
    errors = forward_errors([[-largest]], [[largest]], [[1.0]])
    assert errors == {"1": np.inf, "2": np.inf, "inf": np.inf}


def test_relative_residual_of_a_known_perturbation():
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert relative_residual(
        reference + np.array([[0, 1e-3], [0, 0]]), reference
    ) == pytest.approx(2e-4, rel=1e-12)
    assert relative_residual(np.float32([[0.1]]), [[0.1]]) == pytest.approx(
        abs(float(np.float32(0.1)) - 0.1) / 0.1
    )
    assert relative_residual(0 * reference, 0 * reference) == 0


def test_judgement_agrees_with_the_reference():
    a, b = make_pair("phi_20", np.float64)
    c = a @ b
    excess, exact = componentwise_error(c, a, b, rounding=True), ExactProduct(a, b)
    judged = judge(c, exact, 2 * excess)
    assert judged.error == componentwise_error(c, a, b)
    assert judged.normwise_error == forward_errors(c, a, b)["2"]
    assert judged.kept
    assert judged.share_correct == np.mean(c == correctly_rounded(a, b))
    assert not judge(c, exact, excess / 2).kept
    assert judge(c, exact, np.inf).kept
    assert judge(correctly_rounded(a, b), exact, 0.0).relative_error <= 2.0**-53


def test_a_zero_with_the_other_sign_is_not_the_value_rounded_once():
    # 0, and plus and minus a quarter of the smallest number.
    a = np.array([[1.0, 1.0, 0.0], [2.0**-1000, 0.0, 0.0], [-(2.0**-1000), 0.0, 0.0]])
    b = np.array([[2.0**-76], [-(2.0**-76)], [1.0]])
    exact = ExactProduct(a, b)
    np.testing.assert_array_equal(np.signbit(exact.rounded).ravel(), [0, 0, 1])
    assert judge(exact.rounded, exact, 0.0).share_correct == 1.0
    for i in range(3):
        c = exact.rounded.copy()
        c[i] = -c[i]
        judged = judge(c, exact, 0.0)
        assert judged.share_correct == pytest.approx(2 / 3)
        assert judged.kept


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ([[np.nan]], [[1.0]], ValueError),
        ([[1.0, 2.0]], [[1.0]], ValueError),
        ([1.0], [[1.0]], ValueError),
        ([[1]], [[1.0]], TypeError),
    ],
)
def test_exact_products_take_finite_matrices_that_fit_alone(a, b, error):
    with pytest.raises(error):
        ExactProduct(np.array(a), np.array(b))
