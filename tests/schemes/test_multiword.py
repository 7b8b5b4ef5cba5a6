"""Multiword products: every preset keeps its bound on hostile data, and shows what its
paper shows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import hifigemm as hg
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.base.formats import FP16
from hifigemm.engines import engine_for
from hifigemm.numerics.word_bounds import growth
from hifigemm.schemes.multiword import COUNTS, Multiword
from hifigemm.testing.reference import (
    componentwise_error,
    forward_errors,
    meets_promise,
)
from tests.hard_matrices import mean_of_uniforms

HOSTILE = [
    "uniform",
    "phi_2",
    "phi_20",
    "full_range",
    "subnormal",
    "largest",
    "smallest",
    "sparse",
    "cancelling",
    "nearly_cancelling",
    "overflowing",
    "underflowing",
    "largest_times_smallest",
    "span_60",
    "opposed_spans",
    "badly_scaled",
    "subnormal_rows",
    "empty_rows_and_columns",
]
SCHEMES = {
    **PUBLISHED_METHODS,
    **{
        f"{name}-scaled": replace(scheme, scale=True)
        for name, scheme in PUBLISHED_METHODS.items()
    },
    "separate": Multiword("bf16", 2, 4, accumulate="separate"),
    "bf16x9": Multiword("bf16", 3, 9, split_rounding="nearest-away"),
    "blocks-of-5": Multiword("fp16", 1, 1, accumulate="blocked", block=5),
}


def units(scheme):
    """An engine of each kind that has the product; NumPy alone for FP32 words, which
    all engines leave to it.
    """
    if scheme.product == "fp32":
        return ["numpy"]
    return [
        "numpy",
        "simulated-h100",
        "simulated-v100" if scheme.product == "fp16" else "simulated-a100",
    ]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 5))]
)
@pytest.mark.parametrize("name", SCHEMES)
def test_bound_holds_on_hostile_data(name, first, make_pair):
    scheme = SCHEMES[name]
    dtypes = (np.float64,) if scheme.product == "fp32" else (np.float32, np.float64)
    # Each fifth case: those of one part have all families, as neither their number nor
    # that of the rest divides by 5.
    cases = list(itertools.product(units(scheme), dtypes, HOSTILE))[first::5]
    finite = 0
    for engine, dtype, family in cases:
        a, b = make_pair(family, 4, 33, 3, dtype)
        c, report = hg.matmul(a, b, scheme=scheme, engine=engine, return_report=True)
        assert not np.isnan(c).any(), (family, engine)
        assert report.num_products >= scheme.num_products
        if np.isfinite(report.bound):
            finite += 1
            assert meets_promise(c, a, b, report.bound).all(), (
                family,
                engine,
                report.bound,
            )
    assert finite > len(cases) / 3


@pytest.mark.parametrize(
    "name", ["markidis", "fasi-bf16", "valero-lara-tf32x3", "valero-lara-tf64x4-scaled"]
)
def test_bound_holds_for_complex_operands(name, make_pair):
    dtype = np.complex128 if "tf64" in name else np.complex64
    for family in ("uniform", "phi_2", "cancelling", "subnormal_rows"):
        a, b = make_pair(family, 4, 20, 3, dtype)
        c, report = hg.matmul(a, b, scheme=SCHEMES[name], return_report=True)
        assert c.dtype == dtype
        assert report.num_products == 4 * SCHEMES[name].num_products
        if np.isfinite(report.bound):
            assert meets_promise(c, a, b, report.bound).all(), family


@st.composite
def operands(draw):
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    m, k, n = draw(st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 3)))
    free = st.floats(
        width=np.dtype(dtype).itemsize * 8, allow_nan=False, allow_infinity=False
    )
    return tuple(
        draw(npst.arrays(dtype, shape, elements=free)) for shape in ((m, k), (k, n))
    )


@settings(max_examples=100, deadline=None)
@given(
    operands(),
    st.sampled_from([n for n, s in SCHEMES.items() if s.product != "fp32"]),
    st.booleans(),
)
def test_bound_holds_for_any_operands(pair, name, simulated):
    a, b = pair
    engine = "simulated-h100" if simulated else "numpy"
    c, report = hg.matmul(a, b, scheme=SCHEMES[name], engine=engine, return_report=True)
    assert not np.isnan(c).any()
    assert np.isinf(report.bound) or meets_promise(c, a, b, report.bound).all()


def test_bound_covers_the_alignment_of_subnormal_words():
    """2**-24 * 2**15 is aligned like 2**-14 * 2**15: the other products lose bits far
    above 2**-25 of the sum.
    """
    a = np.array([[2.0**-24] + [2.0**-14] * 15], np.float32)
    b = np.array([[2.0**15]] + [[0.5 + 2.0**-11]] * 15, np.float32)
    scheme = Multiword("fp16", 1, 1, scale=False)
    c, report = hg.matmul(
        a, b, scheme=scheme, engine="simulated-h100", return_report=True
    )
    assert not meets_promise(c, a, b, 2.0**-14).any()
    assert meets_promise(c, a, b, report.bound).all()
    assert report.bound < 2.0**-4


def test_bound_covers_entries_that_scaling_loses():
    a, b = np.array([[2.0**1023, 3 * 2.0**-1074]]), np.array([[0.0], [2.0**1000]])
    c, report = hg.matmul(a, b, scheme=Multiword(), return_report=True)
    assert np.isinf(report.bound) or meets_promise(c, a, b, report.bound).all()
    with pytest.raises(hg.AccuracyError, match="1 of 1 entries"):
        hg.matmul(a, b, scheme=Multiword(), accuracy=0.5)


def test_a_pair_goes_through_its_own_steps_and_those_of_the_pairs_after_it():
    unit = engine_for("simulated-h100").accumulation(FP16)
    steps, u = 10, unit.accumulator.u
    chained = Multiword("fp16").pair_errors(unit, 160)
    assert chained == {
        pair: growth((unit.error, steps * n))
        for pair, n in zip([(1, 0), (0, 1), (0, 0)], (3, 2, 1))
    }
    separate = Multiword("fp16", accumulate="separate").pair_errors(unit, 160)
    assert list(separate.values()) == [
        growth((unit.error, steps), (u, n)) for n in (2, 2, 1)
    ]
    blocked = Multiword("fp16", accumulate="blocked", block=32).pair_errors(unit, 160)
    assert list(blocked.values()) == [
        growth((unit.error, 2 * n), (u, 4)) for n in (3, 2, 1)
    ]
    assert list(Multiword("bf16", 3, 6).pair_errors(unit, 160)) == [
        (2, 0),
        (1, 1),
        (0, 2),
        (1, 0),
        (0, 1),
        (0, 0),
    ]


@pytest.mark.parametrize("product", COUNTS)
def test_more_words_and_products_are_more_accurate(product):
    rng = np.random.default_rng(1)
    dtype = np.float64 if product == "fp32" else np.float32
    a, b = (rng.uniform(-1, 1, s).astype(dtype) for s in ((20, 40), (40, 20)))
    errors, bounds = [], []
    for words, products in COUNTS[product]:
        if products != words**2 or words == 1:
            scheme = Multiword(product, words, products, accumulate="blocked", block=16)
            c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
            errors.append(componentwise_error(c, a, b, rounding=True))
            bounds.append(report.bound)
    # BF16: 2**-8, then 2**-16, then the FP32 sums.
    assert all(errors[i] > 10 * errors[i + 1] for i in range(len(errors) - 1))
    assert bounds == sorted(bounds, reverse=True)


def test_words_of_a_preset_are_those_of_the_paper_and_scaling_changes_no_bit_in_range():
    rng = np.random.default_rng(2)
    a, b = (
        rng.integers(2**10, 2**12, s).astype(np.float32) / 2**11
        for s in ((9, 30), (30, 7))
    )
    for name, scheme in PUBLISHED_METHODS.items():
        if scheme.product != "fp32":
            scaled = replace(scheme, scale=True)
            results = [
                hg.matmul(a, b, scheme=s, engine="simulated-a100")
                for s in (scheme, scaled)
            ]
            np.testing.assert_array_equal(*results, err_msg=name)


def test_truncating_units_lose_what_the_words_gained_on_positive_data():
    """Mean errors at k = 1024: Markidis and Feng alike, more than ten times those of
    sums to nearest.
    """
    rng = np.random.default_rng(3)
    a, b = (rng.random(s, np.float32) for s in ((12, 1024), (1024, 12)))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(name, engine):
        return float(
            np.mean(
                np.abs(hg.matmul(a, b, scheme=SCHEMES[name], engine=engine) / exact - 1)
            )
        )

    for engine in ("simulated-h100", "simulated-a100"):
        markidis, feng, blocked = (
            error(name, engine) for name in ("markidis", "feng", "fasi-fp16")
        )
        # a single word is worse still
        assert error("valero-lara-tf32x1", engine) > markidis
        assert 0.8 < markidis / feng < 1.3
        assert markidis > 20 * blocked
        assert error("feng", "simulated-ideal-nearest") * 10 < feng


def test_tf32x3_on_the_a100_has_the_published_error():
    """[VLVJ23]: 4.0e-8 in the 2-norm at n = 128, against 1.8e-8 of SGEMM."""
    a, b = (
        mean_of_uniforms(np.random.default_rng(seed), (128, 128), np.float32)
        for seed in (4, 5)
    )
    reference = a.astype(np.float64) @ b.astype(np.float64)
    c = hg.matmul(
        a, b, scheme=PUBLISHED_METHODS["valero-lara-tf32x3"], engine="simulated-a100"
    )
    np.testing.assert_allclose(
        forward_errors(c, a, b, reference=reference)["2"], 4.0e-8, rtol=0.05
    )


def test_tf64_has_the_published_errors():
    """[VLVJ23], n = 128: 3.07e-9 with one product, 2.6e-16 with three, 1.42e-16 with
    four.
    """
    a, b = (
        mean_of_uniforms(np.random.default_rng(seed), (128, 128)) for seed in (6, 7)
    )
    single, *others = (
        forward_errors(
            hg.matmul(a, b, scheme=PUBLISHED_METHODS[f"valero-lara-tf64x{n}"]), a, b
        )["2"]
        for n in (1, 3, 4)
    )
    np.testing.assert_allclose(single, 3.07e-9, rtol=0.1)
    assert all(error < 3e-16 for error in others)
    assert others[1] < others[0]


def test_overflowing_sums_without_scaling_are_rounded_from_exact_sums():
    a = np.full((1, 8), 1e30, np.float32)
    b = np.repeat(np.array([[1e30], [-1e30]], np.float32), 4, axis=0)
    c, report = hg.matmul(
        a,
        b,
        scheme=PUBLISHED_METHODS["valero-lara-tf32x3"],
        engine="simulated-a100",
        return_report=True,
    )
    assert c == 0.0
    assert "escalated by DoubleDouble" in report.reason
    assert np.isfinite(report.bound)


def test_a_finite_component_beside_one_that_overflows_stays():
    """The real component of one entry overflows, the imaginary one does not."""
    rng = np.random.default_rng(0)
    a, b = (
        (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(np.complex64)
        for s in ((3, 40), (40, 2))
    )
    a[1, [0, 30]] = 2.0**70
    b[[0, 30], 1] = 2.0**70, -(2.0**70)
    words = {"scheme": Multiword("tf32", 2, 3, scale=False), "engine": "simulated-h100"}
    found = hg.matmul(a, b, **words)
    correct = hg.matmul(a, b, accuracy="correct")
    with_scaling = words | {"scheme": Multiword("tf32", 2, 3)}
    scaled = hg.matmul(a, b, **with_scaling)
    assert found[1, 1].real == correct[1, 1].real != scaled[1, 1].real
    assert found[1, 1].imag == scaled[1, 1].imag != correct[1, 1].imag


def test_special_values_and_signs_of_zero(make_pair):
    a, b = make_pair("uniform", 5, 12, 4, np.float32)
    a[0, 3], a[1, 2], a[2, :] = np.inf, np.nan, 0.0
    b[5, 1] = -np.inf
    c = hg.matmul(a, b, scheme=Multiword("fp16"), engine="simulated-v100")
    with np.errstate(invalid="ignore"):
        want = a @ b
    np.testing.assert_array_equal(np.isnan(c), np.isnan(want))
    np.testing.assert_array_equal(
        np.where(np.isinf(c), c, 0), np.where(np.isinf(want), want, 0)
    )
    assert not np.signbit(
        hg.matmul(-np.zeros((2, 3)), np.ones((3, 2)), scheme=Multiword())
    ).any()


@pytest.mark.parametrize(
    "shapes", [((3, 0), (0, 2)), ((0, 3), (3, 2)), ((2, 3, 0), (2, 0, 5)), ((0,), (0,))]
)
def test_empty_dimensions(shapes):
    a, b = (np.zeros(shape, np.float32) for shape in shapes)
    for scheme in (Multiword(), Multiword("fp16", accumulate="blocked")):
        np.testing.assert_array_equal(
            hg.matmul(a, b, scheme=scheme), np.matmul(a, b), strict=True
        )


def test_accuracy_is_kept_or_refused(make_pair):
    a, b = make_pair("uniform", 6, 40, 5, np.float32)
    c, report = hg.matmul(a, b, scheme=Multiword(), accuracy=1e-5, return_report=True)
    assert meets_promise(c, a, b, 1e-5).all()
    assert report.bound <= 1e-5
    with pytest.raises(
        hg.AccuracyError, match=r"errs by up to .* requested: \|C - AB\| <= 1e-09"
    ):
        hg.matmul(a, b, scheme=Multiword(), accuracy=1e-9)
    with pytest.raises(hg.AccuracyError, match="correct rounding"):
        hg.matmul(a, b, scheme=Multiword(), accuracy="correct")
    a, b = make_pair("opposed_spans", 4, 30, 4, np.float32)
    with pytest.raises(hg.AccuracyError, match="does not meet"):
        hg.matmul(a, b, scheme=Multiword("fp16"), accuracy=1e-4)
    assert meets_promise(
        hg.matmul(a, b, scheme=Multiword("tf32"), accuracy=1e-4), a, b, 1e-4
    ).all()


def test_bits_do_not_depend_on_blocks_stacks_or_preparation(make_pair):
    pairs = [make_pair("phi_2", 9, 21, 8, np.float32, seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    scheme = Multiword("bf16", 3, 6, accumulate="blocked", block=8)
    whole, report = hg.matmul(
        a, b, scheme=scheme, engine="simulated-h100", return_report=True
    )
    small = hg.matmul(
        a, b, scheme=scheme, engine="simulated-h100", workspace=report.workspace // 20
    )
    np.testing.assert_array_equal(small, whole)
    plan = hg.make_plan(a[0], b[0], scheme=scheme, engine="simulated-h100")
    np.testing.assert_array_equal(
        hg.matmul(hg.prepare(a[0], "left", plan=plan), b[0]), whole[0]
    )
    np.testing.assert_array_equal(
        hg.matmul(a[0], hg.prepare(b[0], "right", plan=plan)), whole[0]
    )
    np.testing.assert_array_equal(
        hg.gemm(a[0], b[0], alpha=2.0**-9, scheme=scheme, engine="simulated-h100"),
        whole[0] * 2.0**-9,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"product": "int8"}, "product='int8'"),
        ({"num_words": 2, "num_products": 2}, "2 and 3"),
        (
            {"product": "fp16", "num_words": 3, "num_products": 6},
            "num_words=3, num_products=6",
        ),
        ({"product": "bf16", "num_words": 2, "num_products": 6}, "3 and 6, 3 and 9"),
        ({"split_rounding": "up"}, "split_rounding='up'"),
        ({"accumulate": "outside"}, "accumulate='outside'"),
        ({"block": 8}, "block=8"),
        ({"accumulate": "blocked", "block": 0}, "block=0"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_numbers(options, message):
    with pytest.raises(hg.PlanError, match=message):
        Multiword(**options)


def test_units_and_operands_that_do_not_fit_are_refused():
    a = np.ones((2, 2), np.float32)
    with pytest.raises(hg.PlanError, match="simulated-v100"):
        hg.matmul(a, a, scheme=Multiword("tf32"), engine="simulated-v100")
    with pytest.raises(hg.PlanError, match="float32 has 24"):
        hg.matmul(a, a, scheme=Multiword("fp32"))


def test_bits_do_not_depend_on_whether_a_report_is_asked_for(make_pair):
    a, b = make_pair("phi_20", 5, 30, 4, np.float32)
    for scheme in (Multiword(), PUBLISHED_METHODS["feng"]):
        reported, _ = hg.matmul(
            a, b, scheme=scheme, engine="simulated-h100", return_report=True
        )
        np.testing.assert_array_equal(
            hg.matmul(a, b, scheme=scheme, engine="simulated-h100"), reported
        )


def test_plan_and_report_state_unit_block_and_bound():
    a = np.ones((20, 300), np.float32)
    scheme = Multiword(accumulate="blocked")
    plan = hg.make_plan(a, a.T, scheme=scheme, engine="simulated-h100")
    _, report = hg.matmul(a, a.T, plan=plan, return_report=True)
    assert "h100 tensor core, blocks of 8, 25 fraction bits" in str(plan)
    assert (plan.num_products, report.num_products) == (3, 3)
    assert plan.k_block == report.k_block == 16
    assert not report.native
    assert not report.correct
