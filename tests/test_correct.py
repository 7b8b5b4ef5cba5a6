"""accuracy="correct" against the exact oracle, to the last bit and the sign of zero."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded

DTYPES = ("float32", "float64", "complex64", "complex128")
NAMES = (
    "uniform",
    "phi_1",
    "phi_4",
    "phi_20",
    "full_range",
    "subnormal",
    "largest",
    "smallest",
    "sparse",
    "single_nonzero",
    "zeros",
    "cancelling",
    "nearly_cancelling",
    "ties",
    "near_ties",
    "far_nudged_ties",
    "overflowing",
    "underflowing",
    "subnormal_times_large",
    "largest_times_smallest",
    "empty_rows_and_columns",
    "subnormal_rows",
)
PARTS = {f"{i + 1} of 5": NAMES[i::5] for i in range(5)}
SHAPES = ((1, 1, 1), (1, 2, 1), (5, 1, 4), (7, 13, 6), (1, 64, 1), (31, 67, 29))
FORCED = (
    hg.DoubleDouble(),
    hg.Ozaki1(),
    hg.Ozaki1(product="fp16"),
    hg.Ozaki1(product="bf16"),
    hg.Ozaki1(product="tf32"),
    hg.Ozaki1(product="fp32"),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(product="fp64", mode="correct"),
    hg.Ozaki1(mode="correct"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
)


def wide(name):
    """Whether even 49 moduli may not hold the exact product, so that Ozaki2 must
    refuse.
    """
    return name in (
        "full_range",
        "phi_20",
        "phi_4",
        "overflowing",
        "far_nudged_ties",
        "near_ties",
        "subnormal_times_large",
        "subnormal_rows",
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_equals_the_oracle(make_pair, assert_same_bits, name, dtype):
    for m, k, n in SHAPES:
        a, b = make_pair(name, m, k, n, dtype)
        c, report = hg.matmul(a, b, accuracy="correct", return_report=True)
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.correct
        assert report.bound == 0.0


@pytest.mark.parametrize(
    "name", ["uniform", "phi_1", "phi_20", "cancelling", "full_range"]
)
@pytest.mark.parametrize(
    "shape", [(101, 97, 103), (3, 200, 199), (200, 1, 200), (1, 199, 200)]
)
def test_larger_odd_shapes_equal_the_oracle(make_pair, assert_same_bits, name, shape):
    a, b = make_pair(name, *shape)
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_largest_shapes_equal_the_oracle(make_pair, assert_same_bits, name, dtype):
    a, b = make_pair(name, 173, 200, 187, dtype)
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, 201, 13))
def test_sizes_one_to_two_hundred_equal_the_oracle(make_pair, assert_same_bits, size):
    for name in ("phi_1", "near_ties", "full_range"):
        a, b = make_pair(name, size, 201 - size, size + 2)
        assert_same_bits(hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b))


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in ("zeros", "single_nonzero", "smallest", "sparse")],
)
def test_the_native_product_fails_the_same_check(make_pair, name):
    if name in ("subnormal", "largest"):
        pytest.skip(
            "every result of these operands underflows or overflows, in any arithmetic"
        )
    a, b = make_pair(name, 31, 67, 29)
    with np.errstate(all="ignore"):
        native = a @ b
    assert (native != correctly_rounded(a, b)).any()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", FORCED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", PARTS)
def test_forced_schemes_round_correctly_or_refuse(
    make_pair, assert_same_bits, scheme, dtype, part
):
    for name in PARTS[part]:
        for shape in ((5, 1, 4), (7, 43, 6)):
            a, b = make_pair(name, *shape, dtype)
            try:
                c, report = hg.matmul(
                    a, b, accuracy="correct", scheme=scheme, return_report=True
                )
            except hg.AccuracyError:
                assert isinstance(scheme, hg.Ozaki2), name
                assert wide(name), name
                continue
            assert_same_bits(c, correctly_rounded(a, b))
            assert report.correct
            assert isinstance(report.scheme, type(scheme))


def test_mode_correct_needs_no_accuracy(make_pair, assert_same_bits):
    a, b = make_pair("phi_4", 13, 40, 11)
    c, report = hg.matmul(
        a, b, scheme=hg.Ozaki1(product="fp64", mode="correct"), return_report=True
    )
    assert_same_bits(c, correctly_rounded(a, b))
    assert report.correct


EXPLICIT = [
    *(hg.Ozaki2(num_moduli=count) for count in (2, 5, 9, 20)),
    *(hg.Ozaki1(num_slices=count) for count in (1, 2, 6, 40)),
]


@pytest.mark.parametrize("scheme", EXPLICIT, ids=str)
def test_explicit_counts_round_correctly_or_refuse(make_pair, assert_same_bits, scheme):
    for name in ("uniform", "phi_2", "integers", "cancelling", "ties"):
        for dtype in ("float32", "float64", "complex128"):
            a, b = make_pair(name, 9, 17, 7, dtype)
            try:
                c = hg.matmul(a, b, accuracy="correct", scheme=scheme)
            except hg.AccuracyError:
                continue
            assert_same_bits(c, correctly_rounded(a, b))


def test_moduli_chosen_by_norms_hold_for_accurate_scaling_too(assert_same_bits):
    # Magnitudes rounded up to 6 bits see |A||B| larger than the norms do: each small
    # entry of a counts as 1/64.
    rng = np.random.default_rng(1)
    a = np.ldexp(rng.integers(1, 100, (3, 4000)).astype(np.float64), -40)
    a[:, 0] = 1.0
    b = rng.integers(-(2**20), 2**20, (4000, 3)).astype(np.float64)
    assert_same_bits(
        hg.matmul(a, b, accuracy="correct", scheme="ozaki2"), correctly_rounded(a, b)
    )


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
def test_a_plan_for_easy_operands_rounds_hard_ones_correctly_or_refuses(
    make_pair, assert_same_bits, scheme
):
    easy = np.ones((9, 17)), np.ones((17, 7))
    plan = hg.make_plan(*easy, accuracy="correct", scheme=scheme)
    for name in (
        "uniform",
        "phi_2",
        "full_range",
        "cancelling",
        "near_ties",
        "underflowing",
    ):
        a, b = make_pair(name, 9, 17, 7)
        try:
            c = hg.matmul(a, b, plan=plan)
        except hg.AccuracyError:
            assert scheme == "ozaki2"
            continue
        assert_same_bits(c, correctly_rounded(a, b))


def test_non_finite_entries_do_not_disturb_the_finite_results(
    make_pair, assert_same_bits
):
    a, b = make_pair("phi_4", 9, 17, 7)
    exact = correctly_rounded(a, b)
    a = np.vstack([a, a[:1]])
    a[-1, 3], a[-1, 5] = np.inf, np.nan
    for scheme in ("auto", "ozaki1", "ozaki2", hg.Ozaki2(scaling="fast")):
        assert_same_bits(hg.matmul(a, b, accuracy="correct", scheme=scheme)[:-1], exact)


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
def test_long_inner_dimension(make_pair, assert_same_bits, scheme):
    for name in ("uniform", "integers"):
        a, b = make_pair(name, 2, 100003, 3)
        assert_same_bits(
            hg.matmul(a, b, accuracy="correct", scheme=scheme), correctly_rounded(a, b)
        )


@pytest.mark.parametrize("product", ["int8", "fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("k", [2, 255, 257, 1025, 2049, 4097])
def test_inner_dimensions_around_the_block_of_each_product(
    make_pair, assert_same_bits, product, k
):
    for name in ("phi_1", "largest_times_smallest"):
        a, b = make_pair(name, 3, k, 2)
        c = hg.matmul(a, b, accuracy="correct", scheme=hg.Ozaki1(product=product))
        assert_same_bits(c, correctly_rounded(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_are_correct_throughout(make_pair, assert_same_bits, dtype):
    pairs = [
        make_pair(name, 5, 9, 4, dtype)
        for name in ("uniform", "phi_20", "cancelling", "ties", "underflowing")
    ]
    a, b = (np.stack([pair[side] for pair in pairs]) for side in (0, 1))
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b))
    assert_same_bits(
        hg.matmul(a[:, None], b[None, :2], accuracy="correct"),
        correctly_rounded(a[:, None], b[None, :2]),
    )


def test_float32_is_rounded_once_and_never_through_float64(make_pair, assert_same_bits):
    a, b = make_pair("near_ties", 40, 20, 40, "float32")
    exact = correctly_rounded(a, b)
    twice = correctly_rounded(a.astype(np.float64), b.astype(np.float64)).astype(
        np.float32
    )
    assert (twice != exact).any()
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), exact)


def test_zero_accuracy_means_correct(make_pair, assert_same_bits):
    a, b = make_pair("phi_2", 7, 13, 6)
    assert_same_bits(hg.matmul(a, b, accuracy=0.0), correctly_rounded(a, b))
    assert_same_bits(hg.matmul(a, b, accuracy=0), correctly_rounded(a, b))


def test_random_tiny_products_of_few_bits_equal_the_oracle(assert_same_bits):
    # Few bits near the ends of the range: ties between subnormals, exact zeros and
    # overflow thresholds are common.
    rng = np.random.default_rng(2)
    for dtype in ("float32", "float64"):
        info = np.finfo(dtype)
        ends = (
            info.minexp - info.nmant,
            info.minexp + 2,
            -2,
            2,
            info.maxexp - 3,
            info.maxexp,
        )
        for _ in range(60):
            k = int(rng.integers(1, 5))
            exponents = [rng.choice(ends, size=(4, k)), rng.choice(ends, size=(k, 4))]
            a, b = (
                np.ldexp(rng.integers(-3, 4, e.shape) / 4.0, e).astype(dtype)
                for e in exponents
            )
            assert_same_bits(
                hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b)
            )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_of_columns_of_complex_operands_keep_every_bit(
    assert_same_bits, dtype, n, order
):
    """Columns of a block lie 64 bytes apart in some of these; NumPy 2.4 negates such a
    view wrongly in place.
    """
    rng = np.random.default_rng(1)
    a, b = (
        ((rng.random(s) - 0.5) + 1j * (rng.random(s) - 0.5)).astype(dtype)
        for s in ((16, 200), (200, n))
    )
    a, b = np.asarray(a, order=order), np.asarray(b, order=order)
    expected = correctly_rounded(a, b)
    for workspace in (2**17, 2**18, 2**19, None):
        for scheme in ("auto", "ozaki1", "ozaki2"):
            c, report = hg.matmul(
                a,
                b,
                accuracy="correct",
                scheme=scheme,
                workspace=workspace,
                return_report=True,
            )
            assert report.correct
            assert_same_bits(c, expected)
