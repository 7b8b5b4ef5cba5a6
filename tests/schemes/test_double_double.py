"""Double-double sums: correctly rounded whatever the operands, and what plan and report
say of them.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded, meets_promise

SCHEME = hg.DoubleDouble()

# The steps by NumPy; tests/engines/test_core.py has the compiled ones.
pytestmark = pytest.mark.usefixtures("without_core")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("k", [2047, 2048, 2049, 9000])
def test_long_sums_are_correctly_rounded(make_pair, assert_same_bits, k, dtype):
    for name in ("uniform", "phi_4", "nearly_cancelling"):
        for m, n in ((1, 1), (3, 1), (1, 4)):
            a, b = make_pair(name, m, k, n, dtype)
            assert_same_bits(hg.matmul(a, b, scheme=SCHEME), correctly_rounded(a, b))


def test_a_long_dot_needs_no_slices(make_pair, assert_same_bits):
    a, b = make_pair("uniform", 1, 100_000, 1)
    c, report = hg.matmul(a[0], b[:, 0], accuracy="correct", return_report=True)
    assert_same_bits(c, correctly_rounded(a, b)[0, 0])
    assert (report.scheme, report.num_products, report.correct) == (SCHEME, 6, True)
    assert "escalated" not in report.reason


@pytest.mark.parametrize(
    ("dtype", "count"),
    [("float32", 3), ("float64", 6), ("complex64", 12), ("complex128", 24)],
)
def test_auto_takes_it_for_correct_rounding(make_pair, dtype, count):
    a, b = make_pair("uniform", 20, 30, 10, dtype)
    plan = hg.make_plan(a, b, accuracy="correct")
    assert (plan.scheme, plan.num_products, plan.product.name, plan.bound) == (
        SCHEME,
        count,
        "fp64",
        0.0,
    )
    assert f"{count} x fp64" in str(plan)
    assert hg.matmul(a, b, plan=plan, return_report=True)[1].num_products == count
    assert hg.make_plan(a, b, accuracy="correct", scheme="ozaki1").scheme != SCHEME


@pytest.mark.parametrize("name", ["uniform", "phi_1", "nearly_cancelling", "ties"])
def test_large_products_take_one_product_less(make_pair, assert_same_bits, name):
    a, b = make_pair(name, 130, 140, 128)
    c, report = hg.matmul(a, b, scheme=SCHEME, return_report=True)
    assert_same_bits(c, correctly_rounded(a, b))
    assert report.correct
    for pair, count in (
        ((a, b), 5),
        ((a[:127], b), 6),
        ((a, b[:, :127]), 6),
        ((a[:, :127], b[:127]), 6),
    ):
        assert hg.make_plan(*pair, scheme=SCHEME).num_products == count
    assert hg.make_plan(a + 0j, b + 0j, scheme=SCHEME).num_products == 20
    assert (
        hg.make_plan(
            a.astype(np.float32), b.astype(np.float32), scheme=SCHEME
        ).num_products
        == 3
    )


def test_ties_are_settled_by_sums_in_three_words(make_pair, assert_same_bits):
    a, b = make_pair("ties", 7, 20, 6)
    c, report = hg.matmul(a, b, scheme="double-double", return_report=True)
    assert_same_bits(c, correctly_rounded(a, b))
    assert report.correct
    assert report.num_products == 6 + 15
    assert escalated(report) == []


def test_entries_that_are_left_go_on_to_slices(make_pair, assert_same_bits):
    a, b = make_pair("full_range", 7, 20, 6)
    c, report = hg.matmul(a, b, scheme="double-double", return_report=True)
    assert_same_bits(c, correctly_rounded(a, b))
    assert "42 entries escalated by Ozaki1(product='fp64'" in report.reason
    assert report.correct
    assert report.num_products > 6


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_sums_that_cancel_are_settled(assert_same_bits, dtype):
    rng = np.random.default_rng(3)
    # Rows of Q are orthogonal up to its last bits, so nearly all entries cancel.
    q = np.linalg.qr(rng.standard_normal((40, 40)))[0].astype(dtype)
    c, report = hg.matmul(q, q.T.conj(), accuracy="correct", return_report=True)
    assert_same_bits(c, correctly_rounded(q, q.T.conj()))
    assert escalated(report) == []


@pytest.mark.parametrize("scale", [2.0**1000, 2.0**-1000, 2.0**-1070])
def test_zeros_of_sparse_operands_are_exact_at_any_scale(assert_same_bits, scale):
    rng = np.random.default_rng(2)
    a, b = np.diag(rng.random(8)) * scale, np.diag(rng.random(8))
    a[0, 1] = b[1, 2] = 1e-3
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), correctly_rounded(a, b))
    a, b = np.diag(rng.random(8)), np.diag(rng.random(8))
    assert (
        "escalated"
        not in hg.matmul(a, b, accuracy="correct", return_report=True)[1].reason
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_stacks_broadcast_and_blocks_change_no_bit(
    make_pair, assert_same_bits, workspaces, dtype
):
    a, b = make_pair("phi_1", 24, 90, 18, dtype)
    stack = np.stack([a[:8], a[8:16], a[16:]])
    assert_same_bits(
        hg.matmul(stack, b, accuracy="correct"), correctly_rounded(stack, b)
    )
    for workspace in workspaces(a, b, accuracy="correct"):
        assert_same_bits(
            hg.matmul(a, b, accuracy="correct", workspace=workspace),
            correctly_rounded(a, b),
        )


@pytest.mark.parametrize("exponent", [-1060, -950, -3, 500, 1010])
def test_powers_of_two_as_alpha(make_pair, assert_same_bits, exponent):
    a, b = make_pair("uniform", 9, 30, 7)
    c = hg.gemm(a, b, alpha=2.0**exponent, accuracy="correct", scheme=SCHEME)
    assert_same_bits(
        c,
        hg.gemm(
            a,
            b,
            alpha=2.0**exponent,
            accuracy="correct",
            scheme=hg.Ozaki1(product="fp64"),
        ),
    )


def test_other_accuracies_get_correct_rounding_too(make_pair, assert_same_bits):
    a, b = make_pair("nearly_cancelling", 9, 30, 7)
    for accuracy in (None, 1e-3, hg.Relative(1e-3)):
        c, report = hg.matmul(
            a, b, accuracy=accuracy, scheme=SCHEME, return_report=True
        )
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.correct


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("accuracy", [1e-16, 1e-20, hg.Relative(1e-6)])
def test_auto_takes_it_for_weaker_targets_too(make_pair, dtype, accuracy):
    for family in (
        "uniform",
        "phi_4",
        "phi_8",
        "nearly_cancelling",
        "cancelling",
        "ties",
        "underflowing",
        "sparse",
    ):
        a, b = make_pair(family, 9, 40, 8, dtype)
        c, report = hg.matmul(a, b, accuracy=accuracy, return_report=True)
        assert report.scheme == SCHEME
        assert report.correct == (report.bound == 0.0)
        if report.correct:
            assert_equal_bits(c, correctly_rounded(a, b))
        elif not isinstance(accuracy, hg.Relative):
            assert report.bound == accuracy
            assert meets_promise(c, a, b, accuracy).all()
        else:
            assert report.relative == accuracy.r


def assert_equal_bits(c, want):
    assert c.tobytes() == want.tobytes()


def escalated(report):
    """Entries that were left, step by step."""
    return [
        int(text)
        for text in re.findall(r"(\d+) entr(?:y|ies) escalated", report.reason)
    ]


@pytest.mark.parametrize(
    "family",
    [
        "phi_4",
        "phi_8",
        "phi_20",
        "ties",
        "near_ties",
        "cancelling",
        "nearly_cancelling",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_no_weaker_target_leaves_more_entries_or_goes_further(make_pair, family, dtype):
    a, b = make_pair(family, 12, 60, 9, dtype)
    left = [
        escalated(hg.matmul(a, b, accuracy=x, return_report=True)[1])
        for x in (
            1e-18,
            1e-25,
            "correct",
            hg.Relative(1e-5),
            hg.Relative(2e-7),
            "correct",
        )
    ]
    for weak, strong in ((0, 1), (1, 2), (3, 4), (4, 5)):
        assert len(left[weak]) <= len(left[strong])
        assert all(x <= y for x, y in zip(left[weak], left[strong], strict=False))


def test_a_number_certifies_by_magnitudes_what_cannot_be_rounded(make_pair):
    a, b = make_pair("ties", 7, 20, 6)
    c, report = hg.matmul(a, b, accuracy=1e-17, return_report=True)
    assert escalated(report) == []
    assert (report.bound, report.correct) == (1e-17, False)
    assert meets_promise(c, a, b, 1e-17).all()
    # Sums that cancel to nothing are small beside their error, and not beside their
    # terms.
    x = np.array([[1.0, 2.0**-40 / 3, -1.0]])
    y = np.array([[1.0], [0.0], [1.0]])
    assert escalated(hg.matmul(x, y / 3, accuracy=1e-20, return_report=True)[1]) == []


@pytest.mark.parametrize("shift", [-1060, -300, 7, 900])
def test_powers_of_two_as_alpha_keep_weaker_targets(make_pair, shift):
    for family in ("phi_4", "ties", "cancelling"):
        a, b = make_pair(family, 7, 20, 6)
        c = hg.gemm(a, b, alpha=2.0**shift, accuracy=1e-17)
        scaled = np.ldexp(a, shift // 2), np.ldexp(b, shift - shift // 2)
        assert meets_promise(c, *scaled, 1e-17).all()


def test_a_forced_scheme_rounds_correctly_whatever_is_asked(
    make_pair, assert_same_bits
):
    a, b = make_pair("ties", 7, 20, 6)
    for accuracy in (None, 1e-3, 1e-17, hg.Relative(1e-6)):
        c, report = hg.matmul(
            a, b, scheme=SCHEME, accuracy=accuracy, return_report=True
        )
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.correct


def test_long_sums_certify_magnitudes_in_parts(make_pair):
    a, b = make_pair("cancelling", 3, 9000, 4)
    c, report = hg.matmul(a, b, accuracy=1e-20, return_report=True)
    assert meets_promise(c, a, b, report.bound).all()
