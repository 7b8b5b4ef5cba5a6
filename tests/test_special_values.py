"""Inf, NaN and the signs of zeros, against what IEEE arithmetic gives in any order of
summation.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from tests.special_operands import assert_special_values, operands

SCHEMES = (
    "auto",
    "native",
    hg.Ozaki1(),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(product="bf16", num_slices=2),
    hg.Ozaki1(mode="dp"),
    hg.Ozaki1(product="fp64", mode="sp"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
    hg.Ozaki2(num_moduli=3),
)
DTYPES = ("float32", "float64", "complex64", "complex128")


def term_kind(x, y):
    """A product as "nan", an infinity, or 0.0 for every finite one."""
    if (
        math.isnan(x)
        or math.isnan(y)
        or (math.isinf(x) and y == 0)
        or (x == 0 and math.isinf(y))
    ):
        return math.nan
    if math.isinf(x) or math.isinf(y):
        return math.copysign(math.inf, x) * math.copysign(1.0, y)
    return 0.0


def sum_kind(terms):
    """Inf or NaN that a sum of such terms gives in any order; None where it is finite.
    Finite terms do not overflow.
    """
    kinds = {t if t == t else "nan" for t in terms}
    if "nan" in kinds or {math.inf, -math.inf} <= kinds:
        return math.nan
    return next((t for t in kinds if math.isinf(t)), None)


def pattern(a, b):
    """Inf, NaN or (as 0) something finite for each entry of a real product."""
    out = np.zeros((a.shape[0], b.shape[1]))
    for i, j in itertools.product(range(out.shape[0]), range(out.shape[1])):
        kind = sum_kind(
            [term_kind(float(x), float(y)) for x, y in zip(a[i], b[:, j], strict=True)]
        )
        out[i, j] = 0.0 if kind is None else kind
    return out


WIDE = {
    "auto": {},
    "correct": {"accuracy": "correct"},
    "native": {"scheme": "native"},
    "ozaki1": {"scheme": hg.Ozaki1(num_slices=2)},
    "ozaki1-bf16": {"scheme": hg.Ozaki1(product="bf16", num_slices=2)},
    "ozaki1-fp64": {"scheme": hg.Ozaki1(product="fp64")},
    "ozaki1-dp": {"scheme": hg.Ozaki1(mode="dp")},
    "ozaki2": {"scheme": hg.Ozaki2(num_moduli=3)},
    "ozaki2-fast": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
    "multiword": {"scheme": hg.Multiword(), "engine": "simulated-h100"},
    "corrected": {"scheme": hg.Corrected(), "engine": "simulated-h100"},
    "corrected-tf32": {"scheme": hg.Corrected("tf32"), "engine": "simulated-a100"},
    "corrected-unscaled": {
        "scheme": hg.Corrected(scale=False),
        "engine": "simulated-b200",
    },
}
"""Options of products that take operands of any exponents."""
NARROW = {
    "ozaki1": {"scheme": "ozaki1"},
    "ozaki1-ideal": {"scheme": "ozaki1", "engine": "simulated-ideal-nearest"},
    "ozaki2": {"scheme": "ozaki2"},
    "ozaki2-fast": {"scheme": hg.Ozaki2(scaling="fast")},
    "ozaki2-fine": {"scheme": hg.Ozaki2(scaling="fast"), "accuracy": 1e-20},
}
"""Options of products that are slow, or refused, where exponents are far apart."""
CASES = [
    *(pytest.param(options, True, id=f"{name}-wide") for name, options in WIDE.items()),
    *(
        pytest.param(options, False, id=f"{name}-narrow")
        for name, options in NARROW.items()
    ),
]


@pytest.mark.parametrize(
    ("dtype", "products"),
    [
        *((dtype, 120) for dtype in DTYPES),
        *(pytest.param(dtype, 20_000, marks=pytest.mark.slow) for dtype in DTYPES[:2]),
        *(pytest.param(dtype, 4_000, marks=pytest.mark.slow) for dtype in DTYPES[2:]),
    ],
)
@pytest.mark.parametrize(("options", "wide"), CASES)
def test_inf_and_nan_are_where_any_order_of_ieee_arithmetic_puts_them(
    options, wide, dtype, products
):
    for a, b in operands(3, products, 5 if products < 1000 else 40, dtype, wide):
        c, report = hg.matmul(a, b, return_report=True, **options)
        assert_special_values(c, a, b, report.bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["auto", "correct", "native", "ozaki1-fp64", "ozaki2-fast"]
)
def test_tensors_have_their_inf_and_nan_in_the_same_places(torch, name, dtype):
    for a, b in operands(4, 500, 5, dtype, True):
        c, report = hg.matmul(
            *(torch.from_numpy(x) for x in (a, b)), return_report=True, **WIDE[name]
        )
        assert_special_values(c.numpy(), a, b, report.bound)


@pytest.mark.parametrize("wide", [False, True])
def test_the_oracle_of_stacks_is_that_of_single_terms(wide):
    for a, b in operands(5, 300, 10, "float64", wide):
        expected = np.stack([pattern(left, right) for left, right in zip(a, b)])
        assert_special_values(expected, a, b)
        for spoiled in (
            np.where(expected == 0, np.nan, expected),
            np.nan_to_num(expected, posinf=0.0, neginf=0.0),
        ):
            with pytest.raises(AssertionError):
                assert_special_values(spoiled, a, b)


def test_the_oracle_sees_finite_results_that_overflowed():
    largest = np.finfo(np.float64).max
    a, b = np.array([[[largest, largest / 2, -largest]]]), np.ones((1, 3, 1))
    assert_special_values(np.array([[[largest / 2]]]), a, b, 0.0)
    for wrong in (np.inf, -np.inf, np.nan):
        with pytest.raises(AssertionError):
            assert_special_values(np.array([[[wrong]]]), a, b, 0.0)
    assert_special_values(np.array([[[np.inf]]]), a[:, :, :2], b[:, :2], 0.0)
    for wrong in (largest, -np.inf, np.nan):
        with pytest.raises(AssertionError):
            assert_special_values(np.array([[[wrong]]]), a[:, :, :2], b[:, :2], 0.0)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_finite_entries_beside_non_finite_ones_keep_their_bits(
    make_pair, assert_same_bits, scheme
):
    if scheme in ("auto", "native") or (
        isinstance(scheme, hg.Ozaki2) and scheme.scaling == "accurate"
    ):
        scheme = hg.Ozaki1(product="fp64", num_slices=2)
    a, b = make_pair("phi_2", 5, 11, 4)
    plan = hg.make_plan(a, b, scheme=scheme)
    clean = hg.matmul(a, b, plan=plan)
    a[2, 3], b[1, 1] = np.nan, -np.inf
    spoiled = hg.matmul(a, b, plan=plan)
    keep = np.ix_([0, 1, 3, 4], [0, 2, 3])
    assert_same_bits(spoiled[keep], clean[keep])
    assert not np.isfinite(spoiled[2]).any()
    assert not np.isfinite(spoiled[:, 1]).any()


@pytest.mark.parametrize(
    "scheme", [s for s in SCHEMES if s not in ("native", "auto")], ids=str
)
def test_plans_from_non_finite_operands_work_for_finite_ones(make_pair, scheme):
    a, b = make_pair("phi_2", 5, 11, 4)
    spoiled = a.copy()
    spoiled[0], spoiled[1, 2] = np.inf, np.nan
    plan = hg.make_plan(spoiled, b, scheme=scheme)
    assert np.isfinite(hg.matmul(a, b, plan=plan)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_finite_operands_never_give_nan(make_pair, scheme, dtype):
    for name in (
        "largest",
        "overflowing",
        "full_range",
        "largest_times_smallest",
        "cancelling",
    ):
        a, b = make_pair(name, 6, 8, 5, dtype)
        try:
            c = hg.matmul(a, b, scheme=scheme)
        except hg.AccuracyError:
            assert isinstance(scheme, hg.Ozaki2), name
            continue
        assert not np.isnan(c).any(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_sums_that_overflow_on_the_way_are_finite_where_the_result_is(scheme, dtype):
    largest = np.finfo(dtype).max
    a = np.array([[largest, largest, -largest, -largest], [largest, 0, 0, 1]], dtype)
    b = np.array([[2, 1], [1, 0], [2, 1], [1, 0.5]], dtype)
    c = hg.matmul(a, b, scheme=scheme)
    assert c[0, 0] == 0.0
    assert c[1, 0] == np.inf
    assert abs(float(c[0, 1]) / float(largest) + 0.5) < 0.51


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_number_times_one_is_itself(dtype):
    largest = np.finfo(dtype).max
    below = np.nextafter(largest, np.zeros((), dtype))
    for scheme in (
        "auto",
        "ozaki1",
        "ozaki2",
        hg.Ozaki1(product="fp16"),
        hg.Ozaki1(product="fp64"),
    ):
        a = np.array([[largest], [below], [-largest]], dtype)
        c = hg.matmul(a, np.ones((1, 1), dtype), accuracy="correct", scheme=scheme)
        np.testing.assert_array_equal(c, a)
        c = hg.matmul(np.ones((1, 1), dtype), a.T, accuracy="correct", scheme=scheme)
        np.testing.assert_array_equal(c, a.T)


@pytest.mark.parametrize(
    "scheme", [s for s in SCHEMES if s not in ("auto", "native")], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_sum_of_zeros_is_a_positive_zero(make_pair, assert_same_bits, scheme, dtype):
    for sign in (1, -1):
        a, b = make_pair("zeros", 4, 6, 5, dtype)
        assert_same_bits(hg.matmul(sign * a, b, scheme=scheme), np.zeros((4, 5), dtype))


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_full_cancellation_is_a_positive_zero(
    make_pair, assert_same_bits, scheme, dtype
):
    x, y = make_pair("span_60", 4, 6, 5, dtype)
    for accuracy in ("correct", 1e-16):
        c = hg.matmul(
            np.hstack([x, x]), np.vstack([y, -y]), scheme=scheme, accuracy=accuracy
        )
        # A sum cut short need not vanish: the digits of -y are not always those of y
        # with their signs changed.
        if scheme == "ozaki2" or accuracy == "correct":
            assert_same_bits(c, np.zeros((4, 5), dtype))


@pytest.mark.parametrize(
    "scheme", ["auto", "ozaki1", "ozaki2", hg.Ozaki2(scaling="fast")], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_results_that_underflow_are_negative_zeros(
    assert_same_bits, scheme, dtype
):
    tiny = np.array([[np.finfo(dtype).smallest_subnormal]], dtype)
    for a, b in (
        (tiny, tiny.dtype.type(-0.25) * np.ones_like(tiny)),
        (-tiny, tiny),
        (tiny, tiny),
    ):
        c = hg.matmul(a, b, accuracy="correct", scheme=scheme)
        assert c == 0
        assert np.signbit(c.real) == np.signbit(a.real * b.real)
        assert_same_bits(c, correctly_rounded(a, b))


@pytest.mark.parametrize("alpha", [1.0, -1.0, 0.25, -8.0])
@pytest.mark.parametrize(
    "scheme", ["auto", "ozaki1", "ozaki2", hg.Ozaki2(scaling="fast")], ids=str
)
def test_scaled_exact_zeros_are_positive(make_pair, assert_same_bits, scheme, alpha):
    a, b = make_pair("cancelling", 4, 6, 5)
    assert_same_bits(
        hg.gemm(a, b, alpha=alpha, accuracy="correct", scheme=scheme), np.zeros((4, 5))
    )


@pytest.mark.parametrize("setting", ["raise", "warn", "ignore"])
@pytest.mark.parametrize("accuracy", [None, 1e-17, "correct"])
def test_floating_point_error_settings_of_the_caller_do_not_matter(
    make_pair, assert_same_bits, setting, accuracy
):
    for name in ("full_range", "largest", "subnormal", "overflowing"):
        a, b = make_pair(name, 5, 6, 4)
        expected = hg.matmul(a, b, accuracy=accuracy)
        with np.errstate(all=setting):
            assert_same_bits(hg.matmul(a, b, accuracy=accuracy), expected)


@pytest.mark.parametrize("alpha", [2.0, -0.5, 3.0])
def test_gemm_carries_non_finite_entries_through(alpha):
    a = np.array([[np.inf, 1.0], [2.0, np.nan], [1.0, 1.0]])
    b = np.array([[1.0, 0.0], [1.0, 2.0]])
    with np.errstate(invalid="ignore"):
        expected = alpha * (a @ b) + 3.0 * np.ones((3, 2))
    for scheme in ("auto", "ozaki1", "ozaki2"):
        found = hg.gemm(
            a, b, np.ones((3, 2)), alpha=alpha, beta=3.0, scheme=scheme, accuracy="fp64"
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", WIDE.values(), ids=WIDE)
def test_neither_c_nor_out_is_read_where_beta_is_zero(
    make_pair, assert_same_bits, options, dtype
):
    a, b = make_pair("phi_1", 6, 8, 5, dtype)
    want = hg.matmul(a, b, **options)
    for value in (np.nan, np.inf):
        spoiled = np.full((6, 5), value, dtype)
        assert_same_bits(hg.gemm(a, b, spoiled, beta=0.0, **options), want)
        for c in (None, spoiled):
            out = np.full((6, 5), value, dtype)
            assert hg.gemm(a, b, c, beta=0.0, out=out, **options) is out
            assert_same_bits(out, want)
        out = spoiled.copy()
        assert_same_bits(hg.gemm(a, b, out, beta=0.0, out=out, **options), want)
        assert_same_bits(hg.matmul(a, b, out=spoiled, **options), want)
        assert not hg.gemm(a, b, spoiled, alpha=0.0, beta=0.0, **options).any()


@pytest.mark.parametrize("scheme", [hg.Ozaki2(scaling="fast"), hg.Ozaki2()])
@pytest.mark.parametrize("accuracy", [1e-13, "correct"])
def test_nothing_is_promised_of_what_is_filled_in(scheme, accuracy):
    a = np.array([[2.0**500 / 3, 2.0**-500 / 3, np.nan], [1.0, 2.0, 3.0]])
    b = np.array([[2.0**-500 / 7, 1.0], [2.0**500 / 7, 2.0], [1.0, -1.0]])
    plain = hg.matmul(a, b, accuracy=accuracy, scheme=scheme)
    planned = hg.matmul(a, b, plan=hg.make_plan(a, b, accuracy=accuracy, scheme=scheme))
    for found in (plain, planned):
        np.testing.assert_array_equal(np.isnan(found), [[True, True], [False, False]])
        assert found[1, 1] == 2.0
