"""What all schemes share: fields at the ends of their ranges, INT8 products of any
length, bounds that are stated.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED, Target
from hifigemm.model.plan import Verification
from hifigemm.model.problem import Problem
from hifigemm.schemes.scheme import exact_int8, finished


@pytest.mark.parametrize(
    ("scheme", "field", "least", "most"),
    [
        (hg.Ozaki1, "num_slices", 1, 4400),
        (hg.Ozaki2, "num_moduli", 2, 49),
        (
            lambda block: hg.Multiword(accumulate="blocked", block=block),
            "block",
            1,
            None,
        ),
        (hg.Corrected, "block", 1, None),
    ],
)
def test_counts_are_taken_from_the_least_to_the_most(scheme, field, least, most):
    scheme = (
        scheme
        if scheme not in (hg.Ozaki1, hg.Ozaki2, hg.Corrected)
        else lambda x, kind=scheme: kind(**{field: x})
    )
    numbers = f"from {least} to {most}" if most else f"of at least {least}"
    for count in (least, np.int32(least + 1), most or 10**6, None):
        made = getattr(scheme(count), field)
        assert made == count
        assert made is None or type(made) is int
    for count in (
        least - 1,
        -1,
        (most or 0) + 1 if most else 0,
        2.0,
        True,
        "3",
        math.nan,
    ):
        with pytest.raises(
            hg.PlanError,
            match=rf"\({field}=.*expected None or a whole number {numbers}$",
        ):
            scheme(count)


class ShortEngine(NumpyEngine):
    """INT8 products of three terms at a time."""

    def __init__(self):
        self.products = {"int8": replace(NumpyEngine.products["int8"], k_block=3)}
        self.lengths = []

    def exact_product(self, spec, a, b, max_a, max_b):
        assert a.shape[2] == b.shape[1]
        self.lengths.append(a.shape[2])
        return super().exact_product(spec, a, b, max_a, max_b)


@pytest.mark.parametrize("k", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("stacks", [(2, 1), (1, 2), (2, 2)])
def test_int8_products_are_added_over_blocks_of_k(k, stacks):
    rng, engine = np.random.default_rng(k), ShortEngine()
    a, b = (
        rng.integers(-128, 128, shape).astype(np.int8)
        for shape in ((stacks[0], 3, k), (stacks[1], k, 4))
    )
    found = exact_int8(engine, a, b, 128, 128)
    assert found.dtype == (np.int32 if k <= 3 else np.int64)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))
    assert engine.lengths == [3] * (k // 3) + [k % 3] * (k % 3 > 0 or k == 0)


def test_int8_products_go_beyond_int32():
    k = 2**18
    a = np.full((1, 1, k), -128, np.int8)
    assert exact_int8(NumpyEngine(), a, a.reshape(1, k, 1), 128, 128).item() == 2**32


def test_complex_entries_are_certified_where_both_components_are():
    plan = hg.make_plan(
        np.ones((1, 1), complex), np.ones((1, 1), complex), scheme="ozaki1"
    )
    values = np.arange(8.0).reshape(1, 1, 8)
    certified = np.array([[[True, True, True, False, False, True, False, False]]])
    done = finished(plan.problem, values, certified, 0.25, 7)
    assert done.values.tolist() == [[[0 + 1j, 2 + 3j, 4 + 5j, 6 + 7j]]]
    assert done.certified.tolist() == [[[True, False, False, False]]]
    assert (done.bound, done.num_products) == (0.25, 7)


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Ozaki1(num_slices=3),
        hg.Ozaki2(num_moduli=9),
        hg.Ozaki2(num_moduli=9, scaling="fast"),
        hg.Corrected(),
    ],
    ids=str,
)
def test_plans_promise_what_was_asked_and_say_that_entries_are_certified(scheme):
    problem, engine = Problem(1, 1, 1, 2, np.dtype("float32")), NumpyEngine()
    for target, verification in (
        (NO_PROMISE, Verification.NONE),
        (NOTHING_STATED, Verification.NONE),
        (Target(1e-5), Verification.ENTRYWISE),
    ):
        plan = scheme.plan(problem, target, engine, None, scheme)
        assert (plan.bound, plan.verification, plan.asked) == (
            target.r,
            verification,
            scheme,
        )
        assert plan.certifies is (target != NOTHING_STATED)
        assert plan.is_fixed
    for free in (hg.Ozaki1(), hg.Ozaki2(), hg.Ozaki2(scaling="fast")):
        plan = free.plan(problem, Target(1e-5), engine, None, free)
        assert (plan.bound, plan.verification, plan.is_fixed) == (
            1e-5,
            Verification.ENTRYWISE,
            False,
        )


@pytest.mark.parametrize(
    "scheme",
    [hg.Native(), hg.Multiword(), hg.Corrected(), hg.Ozaki1(), hg.Ozaki2(num_moduli=9)],
    ids=str,
)
def test_schemes_read_operands_only_where_a_plan_rests_on_them(scheme):
    problem = Problem(1, 3, 4, 2, np.dtype("float64"))
    for target in (NO_PROMISE, Target(1e-9), Target(0.0, correct=True)):
        assert not scheme.needs_evidence(problem, target, NumpyEngine())


SPLIT = (
    hg.Native(),
    hg.Multiword(),
    hg.Corrected(),
    hg.Ozaki1("fp64", 4),
    hg.Ozaki1("int8", 4),
    hg.Ozaki2(num_moduli=9, scaling="fast"),
)


@pytest.mark.parametrize("scheme", SPLIT, ids=str)
def test_a_scheme_says_if_the_planes_of_a_negated_operand_are_the_negated_ones(scheme):
    engine = NumpyEngine()
    x = np.random.default_rng(31).standard_normal((1, 5, 40)).astype(np.float32)
    problem = Problem(1, 5, 40, 40, np.dtype(np.float32))
    plan = scheme.plan(problem, NO_PROMISE, engine, None, scheme)

    def planes(operand):
        scale = scheme.scales(plan, operand, None, engine)[0]
        return scheme.split(plan, operand, "left", scale, engine).planes

    negates = np.array_equal(planes(-x), -planes(x))
    assert scheme.negates_splits(plan) == negates


@pytest.mark.parametrize("scheme", [*SPLIT, hg.DoubleDouble()], ids=str)
def test_a_scheme_that_says_so_gives_the_negated_product_of_a_negated_operand(scheme):
    rng = np.random.default_rng(32)
    a = rng.standard_normal((5, 40))
    b = rng.standard_normal((40, 6))
    negated = np.array_equal(
        hg.matmul(-a, b, scheme=scheme), -hg.matmul(a, b, scheme=scheme)
    )
    leaves_remainders = scheme == hg.Ozaki1("int8", 4)
    assert negated == (not leaves_remainders)
    assert negated or not scheme.negates_products


def test_only_native_products_say_that_they_miss_a_target():
    problem = Problem(1, 5, 6, 40, np.dtype(np.float64))
    for scheme in SPLIT:
        scheme.check_keeps(problem, Target(2.0**-40))
        if scheme.is_native:
            with pytest.raises(
                hg.AccuracyError, match=r"errs by up to .*; requested: "
            ):
                scheme.check_keeps(problem, Target(0.0, correct=True))
            with pytest.raises(hg.AccuracyError, match="promises no relative error"):
                scheme.check_keeps(problem, Target(1e-9, relative=1e-9))
        else:
            scheme.check_keeps(problem, Target(0.0, correct=True))


@pytest.mark.parametrize("accuracy", [None, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 5, 3, 4), (7, 2, 6, 3)])
@pytest.mark.parametrize(
    "scheme",
    [
        hg.Ozaki1(num_slices=8),
        hg.Ozaki1(product="fp64"),
        hg.Ozaki2(num_moduli=14),
        hg.Ozaki2(num_moduli=14, scaling="fast"),
        hg.Corrected(),
        hg.Multiword("bf16", 3, 6, scale=False),
    ],
    ids=str,
)
def test_splits_made_together_are_those_made_alone(scheme, shape, dtype, accuracy):
    batch, m, k, n = shape
    rng = np.random.default_rng(8)
    a = rng.standard_normal((batch, m, k)).astype(dtype)
    b = np.rint(rng.standard_normal((batch, k, n)) * 9).astype(dtype)
    plan = hg.make_plan(a, b, scheme=scheme, accuracy=accuracy)
    engine = NumpyEngine()
    row_scale, col_scale = plan.scheme.scales(plan, a, b, engine)
    alone = (
        plan.scheme.split(plan, a, "left", row_scale, engine),
        plan.scheme.split(plan, b, "right", col_scale, engine),
    )
    together = plan.scheme.split_together(plan, a, b, engine)
    for found, want in zip(together, alone, strict=True):
        assert (found.side, found.vectors) == (want.side, want.vectors)
        assert (found.count, found.k_major) == (want.count, want.k_major)
        np.testing.assert_array_equal(found.planes, want.planes)
        np.testing.assert_array_equal(found.unit, want.unit)
        assert found.facts.keys() == want.facts.keys()
        for name, fact in want.facts.items():
            np.testing.assert_array_equal(found.facts[name], fact, err_msg=name)


def test_large_complex_and_repeated_operands_are_split_one_by_one():
    engine = NumpyEngine()
    for a, b in (
        (np.ones((1, 100, 100)), np.ones((1, 100, 100))),
        (np.ones((1, 2, 3), complex), np.ones((1, 3, 2), complex)),
        (np.ones((1, 2, 3)), np.ones((4, 3, 2))),
    ):
        plan = hg.make_plan(a, b, scheme=hg.Ozaki1(num_slices=3))
        assert plan.scheme.split_together(plan, a, b, engine) is None
