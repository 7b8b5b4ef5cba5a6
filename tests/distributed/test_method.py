"""By what a product on a mesh is made: the same on every rank, whatever its shards."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.model.problem import Problem

torch = pytest.importorskip("torch")
from hifigemm.distributed import method  # noqa: E402
from hifigemm.distributed.method import Method, method_for  # noqa: E402

PROBLEM = Problem(1, 20, 30, 40, np.dtype(float))
FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")


@given(st.floats(0.0, exclude_min=False), st.floats(0.0))
def test_ratios_travel_as_integers_of_the_same_order(x, y):
    assert method.ratio_from(method.bits_of(x)) == x
    if x < y:
        assert method.bits_of(x) < method.bits_of(y)


@pytest.mark.parametrize(
    ("accuracy", "scheme", "want"),
    [
        (None, "auto", Method(hg.Ozaki2(scaling="fast"), None, waits=True)),
        (1e-9, "auto", Method(hg.Ozaki2(scaling="fast"), None, waits=True)),
        ("correct", "auto", Method(None, "correct")),
        (hg.Relative(1e-12), "auto", Method(None, "correct")),
        (None, FIXED, Method(FIXED, None)),
        (1e-10, FIXED, Method(FIXED, 1e-10)),
        (
            hg.Invariant(1e-9),
            "auto",
            Method(hg.Ozaki2(num_moduli=10, scaling="largest"), None),
        ),
        (hg.Invariant("correct"), "auto", Method(None, "correct")),
        (hg.Invariant(), hg.Ozaki1("int8", 6), Method(hg.Ozaki1("int8", 6), None)),
        (
            hg.Invariant(),
            hg.Ozaki2(num_moduli=5, scaling="largest"),
            Method(hg.Ozaki2(num_moduli=5, scaling="largest"), None),
        ),
        (None, hg.Ozaki1("int8", 6), Method(hg.Ozaki1("int8", 6), None)),
        (
            None,
            hg.Ozaki1("int8", 6, mode="correct"),
            Method(hg.Ozaki1("int8", 6, mode="correct"), None),
        ),
    ],
)
def test_methods_follow_from_what_is_asked_for(accuracy, scheme, want):
    assert method_for(PROBLEM, accuracy, scheme)[0] == want


@pytest.mark.parametrize(
    ("accuracy", "scheme", "words"),
    [
        (None, "native", "their bits do not depend on the mesh"),
        (None, hg.DoubleDouble(), "their bits do not depend on the mesh"),
        (None, "ozaki2", "scaling='fast'"),
        (None, "ozaki1", "give num_slices"),
        (None, hg.Ozaki1(num_slices=4, scaling="inner"), "scaling=None"),
    ],
)
def test_schemes_whose_bits_depend_on_the_mesh_are_named(accuracy, scheme, words):
    with pytest.raises(hg.PlanError, match=words):
        method_for(PROBLEM, accuracy, scheme)


def test_a_known_count_without_a_promise_is_fixed_and_adds():
    assert Method(FIXED, None).is_fixed
    assert Method(FIXED, None).adds
    assert not Method(FIXED, 1e-10).is_fixed
    assert not Method(FIXED, None, waits=True).is_fixed
    assert not Method(hg.Ozaki1("int8", 6), None).adds
    assert Method(None, "correct").adds
    assert Method(None, "correct").accuracy_and_scheme == ("correct", "auto")
    assert str(Method(None, "correct")) == "correct rounding"


@pytest.mark.parametrize("accuracy", [1e-6, 1e-12, 1e-15])
def test_the_count_keeps_the_target_for_the_ratio_of_all_ranks(accuracy):
    target = method_for(PROBLEM, accuracy, "auto")[1]
    counts = []
    for ratio in (1.0, 2.0**10, 2.0**60):
        found = method.method_for_ratio(PROBLEM, target, ratio)
        assert found.is_fixed
        counts.append(found.scheme.num_moduli)
        assert found.scheme.count_for(PROBLEM, target, ratio) == counts[-1]
    assert counts == sorted(counts)
    fallback = method.method_for_ratio(PROBLEM, target, float("inf"))
    assert fallback == Method(None, "correct")


def test_expected_products_count_moduli_and_pairs_of_slices():
    target = method_for(PROBLEM, None, "auto")[1]
    assert method.expected_planes(Method(FIXED, None), PROBLEM, target) == 14
    assert method.expected_planes(Method(None, "correct"), PROBLEM, target) > 0


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_expected_products_of_slices_are_those_of_one_device(dtype):
    six = hg.Ozaki1("int8", 6)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((5, 5)).astype(dtype) for _ in range(2))
    if np.dtype(dtype).kind == "c":
        a, b = a * (1 + 2j), b * (3 - 1j)
    report = hg.matmul(a, b, scheme=six, return_report=True)[1]
    problem = Problem(1, 5, 5, 5, np.dtype(dtype))
    target = method_for(problem, None, "auto")[1]
    planes = method.expected_planes(Method(six, None), problem, target)
    assert planes == report.num_products == 21 * (4 if problem.is_complex else 1)


def test_the_ratio_of_a_product_is_the_largest_of_its_parts():
    rng = np.random.default_rng(1)
    x, y = (torch.from_numpy(rng.standard_normal(s)) for s in ((6, 40), (40, 5)))
    problem = Problem(1, 6, 5, 40, np.dtype(float))
    whole = method.error_ratio_of(x, y, problem, None)
    parts = [
        method.error_ratio_of(x[rows], y[:, cols].contiguous(), problem, None)
        for rows in (slice(0, 2), slice(2, 6))
        for cols in (slice(0, 3), slice(3, 5))
    ]
    assert whole == max(parts) > 0
    assert method.error_ratio_of(x[:0], y, problem, None) == 0.0
    assert Fraction(whole) < 2**60
