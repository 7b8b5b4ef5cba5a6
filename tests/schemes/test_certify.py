"""Entries certified at the limits of what they promise, by exact sums."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED, Target
from hifigemm.model.plan import Split
from hifigemm.numerics.rounding import Rounded
from hifigemm.schemes import certify
from hifigemm.testing.reference import meets_promise

TARGETS = [2.0**-x for x in range(-3, 60)] + [1.5 * 2.0**-x for x in range(-3, 60)]
PLAN = hg.make_plan(np.ones((1, 2)), np.ones((2, 1)), scheme=hg.Ozaki1(num_slices=2))


class WatchedEngine(NumpyEngine):
    """Keeps the shapes of its products and the bounds of their entries."""

    def __init__(self):
        self.seen = []

    def exact_product(self, spec, a, b, max_a, max_b):
        assert max_a >= abs(a).max()
        assert max_b >= abs(b).max()
        self.seen.append((max(len(a), len(b)), a.shape[1], b.shape[2], (max_a, max_b)))
        return super().exact_product(spec, a, b, max_a, max_b)


def certified(
    target,
    err,
    lowest,
    *,
    magnitude=-1,
    low=((0, 0), (0, 0)),
    nonzero=(1, 1),
    certain=False,
    products=None,
):
    """Whether an entry of two terms is found to keep the target, by so many products if
    that is given.
    """
    splits = (
        Split(
            side,
            1,
            None,
            None,
            1,
            {
                "low": np.array(x, np.int8).reshape(shape),
                "nonzero": flags.reshape(shape),
            },
        )
        for side, x, flags, shape in (
            ("left", low[0], np.array(nonzero, np.int8), (1, 1, 2)),
            ("right", low[1], np.ones(2, np.int8), (1, 2, 1)),
        )
    )
    rounded = Rounded(
        np.zeros((1, 1, 1)), np.full((1, 1, 1), magnitude), np.full((1, 1, 1), certain)
    )
    plan = replace(PLAN, target=target)
    exact = np.zeros((1, 1, 1), bool)
    engine = WatchedEngine()
    found, bound = certify.certified_entries(
        plan, *splits, engine, rounded, exact, err, lowest
    )
    assert bound == target.r
    assert len(engine.seen) == products or products is None
    assert {tops for *_, tops in engine.seen} <= {(127, 127), (1, 1)}
    return bool(found)


@pytest.mark.parametrize("lowest", [0, 7, 300])
def test_a_sum_certifies_its_entry_from_the_least_magnitude_that_is_sure_to(lowest):
    # What is left out is at most E = 2**err, so |A||B| >= |V| - E, and E <= r (|V| - E)
    # is wanted.
    for r in TARGETS:
        err = 5 - lowest
        # what is left of r where 1/r is rounded up
        power = Fraction(2) ** (math.frexp(r)[1] - 1)
        least = next(x for x in range(100) if 2**x >= 2**5 * (1 + 1 / power))
        assert certified(Target(r), err, lowest, magnitude=least, products=0)
        assert not certified(Target(r), err, lowest, magnitude=least - 1, products=1)


def test_a_sum_of_zero_tells_nothing_of_its_terms():
    assert certified(Target(0.5), -50, 10, magnitude=0, products=0)
    assert not certified(Target(0.5), -50, 10, products=2)
    assert not certified(Target(2.0), -50, 10)
    assert certified(Target(0.5), -50, 10, nonzero=(0, 0), products=2)
    assert not certified(Target(0.5), -50, 10, nonzero=(0, 1))


@pytest.mark.parametrize(("x", "y"), [(1, 1), (2, 2), (64, 64), (127, 127)])
def test_magnitudes_certify_an_entry_from_the_least_product_that_is_enough(x, y):
    # Magnitudes are in units of 2**-7: E <= r |A||B| where 2**err <= r x y 2**-14.
    for r in TARGETS:
        power = Fraction(2) ** (math.frexp(r)[1] - 1)
        most = next(
            err
            for err in range(10, -90, -1)
            if Fraction(2) ** err <= power * x * y / 2**14
        )
        for err, kept in ((most - 30, True), (most, True), (most + 1, False)):
            assert certified(Target(r), err, 100, low=((x, 0), (y, 0))) is kept
            assert certified(Target(r), err, 100, low=((0, x), (0, y))) is kept
        assert not certified(Target(r), most - 30, 100, low=((x, 0), (0, y)))


def test_one_unit_less_of_magnitudes_is_not_enough():
    for low, kept in ((((2, 0), (2, 0)), True), (((3, 0), (1, 0)), False)):
        assert certified(Target(2.0**-20), 2 - 14 - 20, 100, low=low) is kept


def test_correct_rounding_is_kept_where_the_rounding_is_certain():
    assert certified(
        Target(0.0, correct=True), -10, 100, magnitude=110, certain=True, products=0
    )
    assert certified(Target(0.0, correct=True), -10, 100, certain=True, products=0)
    assert not certified(Target(0.0, correct=True), -10, 100, magnitude=200, products=0)
    assert not certified(Target(0.0, correct=True), -10, 100, products=1)
    assert certified(Target(0.0, correct=True), -10, 100, nonzero=(0, 0), products=1)


def test_bits_of_an_inverse_are_the_fewest():
    for x in (*range(-1023, 1074), 1074):
        r = Fraction(1, 2) ** x
        assert certify.bits_of_inverse(float(r)) == x
        if x < 1022:
            assert certify.bits_of_inverse(float(r * (1 - Fraction(1, 2**52)))) == x + 1
            assert certify.bits_of_inverse(float(r * (1 + Fraction(1, 2**52)))) == x
    assert certify.bits_of_inverse(math.inf) == 0


def split_of(x, side, target=NO_PROMISE):
    """What `certified_entries` knows of an operand; its exponent is that of its largest
    entry.
    """
    exponent = np.frexp(abs(x).max())[1].reshape(1, 1, 1)
    return Split(
        side,
        1,
        None,
        exponent,
        1,
        certify.facts(replace(PLAN, target=target), x[None], exponent),
    )


@pytest.mark.parametrize("k", [1, 2, 5, 40, 1000])
def test_float_sums_of_magnitudes_are_lower_bounds(k):
    rng = np.random.default_rng(k)
    worst = 0.0
    for draw in (
        lambda: rng.random((1, k)),
        # products like 1 + 2**-52 + 2**-104 are rounded up and down
        lambda: 1 + rng.integers(1, 4, (1, k)) * 2.0**-52,
        lambda: np.where(np.arange(k) % 2, 1.0, 2.0**-53 * (1 + rng.random((1, k)))),
        lambda: np.ldexp(rng.random((1, k)), rng.integers(-30, 1, (1, k))),
    ):
        a, b = draw(), draw().T
        left, right = split_of(a, "left"), split_of(b, "right")
        below = Fraction(
            certify.magnitude_sums(left, right, engine_for("numpy")).item()
        )
        exact = sum(
            Fraction(x) * Fraction(y) for x, y in zip(a[0].tolist(), b[:, 0].tolist())
        )
        exact *= Fraction(1, 2) ** (left.unit + right.unit).item()
        assert below <= exact
        worst = max(worst, float(1 - below / exact))
    assert worst <= (2 * k + 4) * 2.0**-53


def test_magnitudes_that_underflow_are_taken_off():
    # Of 2**-1075 (1 + eps) rounding makes 2**-1074, and of that times 0.5 (1 + eps)
    # again: four times what there is.
    k = 9
    a = np.full((1, k), 2.0**-74 * (1 + 2.0**-52))
    b = np.full((k, 1), 0.5 * (1 + 2.0**-52))
    a[0, 0], b[0, 0] = 2.0**1000, 0.0
    left, right = split_of(a, "left"), split_of(b, "right")
    assert (left.facts["magnitude"][0, 0, 1:] == 2.0**-1074).all()
    assert certify.magnitude_sums(left, right, engine_for("numpy")).item() == -(
        2.0**-1074
    )


def test_facts_are_kept_for_what_is_certified_only():
    x = np.array([[0.0, -3.0]])
    assert certify.facts(replace(PLAN, target=NOTHING_STATED), x, np.array([[2]])) == {}
    assert set(
        certify.facts(
            replace(PLAN, target=Target(0.0, correct=True)), x, np.array([[2]])
        )
    ) == {"nonzero"}
    found = certify.facts(replace(PLAN, target=Target(1e-9)), x, np.array([[2]]))
    assert found["nonzero"].tolist() == [[0, 1]]
    assert found["low"].tolist() == [[0, 96]]
    assert certify.facts(PLAN, x, np.array([[2]]))["magnitude"].tolist() == [
        [0.0, 0.75]
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("r", [1e-6, 1e-10, 1e-14, 1e-18])
def test_a_count_by_the_error_ratio_keeps_the_target_in_every_entry(
    make_pair, dtype, r
):
    for family in ("uniform", "phi_0.1", "phi_1"):
        a, b = make_pair(family, 9, 200, 8, dtype)
        c, report = hg.matmul(
            a, b, scheme=hg.Ozaki2(scaling="fast"), accuracy=r, return_report=True
        )
        assert "in every entry" in report.reason or "exact" in report.reason
        assert report.bound <= r
        assert meets_promise(c, a, b, r).all()


def test_entries_of_other_operands_are_certified_again(make_pair):
    easy, hard = make_pair("phi_1", 8, 100, 8), make_pair("phi_8", 8, 100, 8)
    plan = hg.make_plan(*easy, scheme=hg.Ozaki2(scaling="fast"), accuracy="fp64")
    c, report = hg.matmul(*hard, plan=plan, return_report=True)
    assert meets_promise(c, *hard, plan.target.r).all()
    assert "escalated" in report.reason


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Ozaki1(num_slices=3),
        hg.Ozaki2(num_moduli=6),
        hg.Ozaki2(num_moduli=6, scaling="fast"),
    ],
)
def test_sums_without_terms_do_not_count_in_a_stated_bound(scheme):
    a = np.array([[np.pi, 0.0], [np.pi, np.e]])
    b = np.array([[0.0, 1 / 3], [1 / 7, 1 / 9]])
    c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert 0 < report.bound < 1e-3
    assert meets_promise(c, a, b, report.bound).all()


@pytest.mark.parametrize(
    "target", [Target(1e-3), Target(0.0, correct=True), NO_PROMISE, NOTHING_STATED]
)
def test_where_nothing_was_left_out_nothing_is_asked(target):
    rounded = Rounded(
        np.zeros((1, 2, 3)), np.zeros((1, 2, 3), int), np.zeros((1, 2, 3), bool)
    )
    plan, engine = replace(PLAN, target=target), WatchedEngine()
    certified, bound = certify.certified_entries(
        plan, None, None, engine, rounded, np.ones((1, 2, 1), bool), 0, 0
    )
    assert certified.shape == (1, 2, 3)
    assert certified.all()
    assert bound == 0.0
    assert not engine.seen


@pytest.mark.parametrize("err", [-1021, -1022, -1023, -1100, -5000])
def test_what_is_left_out_below_the_normal_range_is_not_nothing(err):
    left = split_of(np.array([[1.0, 0.5]]), "left")
    right = split_of(np.array([[0.5], [1.0]]), "right")
    rounded = Rounded(
        np.zeros((1, 1, 1)), np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), bool)
    )
    exact = np.zeros((1, 1, 1), bool)
    certified, bound = certify.certified_entries(
        replace(PLAN, target=NO_PROMISE),
        left,
        right,
        engine_for("numpy"),
        rounded,
        exact,
        err,
        0,
    )
    assert certified.all()
    sums = certify.magnitude_sums(left, right, engine_for("numpy")).item()
    assert bound == max(2.0**err, 2.0**-1022) / sums


@pytest.mark.parametrize(
    "scheme", [hg.Ozaki1(), hg.Ozaki2(), hg.Ozaki2(scaling="fast")]
)
@pytest.mark.parametrize("accuracy", [1e-6, "correct"])
def test_sums_without_terms_are_certified_beside_others(
    assert_same_bits, scheme, accuracy
):
    a, b = np.array([[np.pi, 0.0]]), np.array([[0.0, 1 / 3], [1.0, 1 / 7]])
    c, report = hg.matmul(a, b, scheme=scheme, accuracy=accuracy, return_report=True)
    assert c[0, 0] == 0.0
    assert "escalated" not in report.reason
