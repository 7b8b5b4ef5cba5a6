"""What the schemes of words share: roundings counted as they are made, scales as high
as sums allow, refusals.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from experiments.published_methods import PUBLISHED_METHODS
from hifigemm import AccuracyError, PlanError, gemm, make_plan, matmul, prepare
from hifigemm.base.formats import FORMATS, FP16
from hifigemm.engines import engine_for
from hifigemm.model.accuracy import NO_PROMISE, Target
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.plan import Split
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import ceil_log2
from hifigemm.numerics.word_bounds import (
    WordError,
    growth,
    relative_error,
    steps_in_blocks,
)
from hifigemm.schemes.corrected import BLOCK, Corrected
from hifigemm.schemes.multiword import COUNTS, Multiword
from hifigemm.schemes.word_scheme import _certified_entries
from hifigemm.testing.reference import componentwise_error, meets_promise
from tests.hard_matrices import with_units

UP = 1 + 2.0**-30
"""What `growth` may be rounded up by."""


class Sum:
    """A sum by its terms: {(word of a, word of b, h): [roundings in the unit, roundings
    outside]}.
    """

    def __init__(self, terms):
        self.terms = terms

    def __add__(self, other):
        assert not self.terms.keys() & other.terms.keys()
        both = {**self.terms, **other.terms}
        return Sum(
            {term: (inside, outside + 1) for term, (inside, outside) in both.items()}
        )

    def __mul__(self, factor):
        assert np.frexp(factor)[0] == 0.5
        return self


class CountingEngine:
    """Words are 1000 p + h, the word's index and the place along k; products are sums
    of terms.
    """

    def __init__(self, unit):
        self.unit, self.steps = unit, 0

    def rounded_product(self, fmt, a, b, c=None):
        steps = self.unit.steps(a.shape[-1])
        self.steps += steps
        made = {}
        for x, y in zip(a[0, 0], b[0, :, 0], strict=True):
            (p, h), (q, other) = divmod(int(x), 1000), divmod(int(y), 1000)
            assert h == other
            made[p, q, h] = steps, 0
        if c is not None:
            assert not made.keys() & c.terms.keys()
            made |= {
                term: (inside + steps, outside)
                for term, (inside, outside) in c.terms.items()
            }
        return Sum(made)


SCHEMES = [
    *(
        Corrected(product, accumulate)
        for product in ("fp16", "tf32")
        for accumulate in ("outside", "chained")
    ),
    *(Corrected("fp16", block=block) for block in (1, 16, 24)),
    *(
        Multiword(product, *counts, accumulate=accumulate)
        for product in ("bf16", "tf32")
        for counts in COUNTS[product]
        for accumulate in ("chained", "separate", "blocked")
    ),
    Multiword("fp16", 2, 4, accumulate="blocked", block=24),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("engine", ["numpy", "simulated-a100", "simulated-h100"])
def test_bounds_count_the_roundings_that_terms_go_through(scheme, engine):
    for k in (1, 8, 16, 31, 64, 65, 200):
        problem = Problem(1, 1, 1, k, np.dtype("float32"))
        plan = scheme.plan(problem, NO_PROMISE, engine_for(engine), None, scheme)
        unit = scheme.unit_on(engine_for(engine), problem)
        errors = scheme.pair_errors(unit, k)
        assert plan.num_products == len(errors)
        assert (
            f"at worst {relative_error(scheme.splitting, errors):.3g} |A||B|"
            in plan.reason
        )
        assert_roundings_are_counted(plan, unit, errors)


def assert_roundings_are_counted(plan, unit, errors):
    """The terms of all pairs are multiplied once, and go through as many roundings as
    their errors allow for.
    """
    scheme = plan.scheme
    k = plan.problem.terms
    words = np.array(
        [1000 * p + h for p in range(scheme.splitting.num_words) for h in range(k)]
    )
    counting = CountingEngine(unit)
    made = scheme.sum_products(
        plan, words[None, None], words[None, :, None], counting
    ).terms
    assert Counter((p, q) for p, q, _ in made) == dict.fromkeys(errors, k)
    assert counting.steps == len(errors) * steps_in_blocks(unit, k, plan.k_block)
    for pair, stated in errors.items():
        largest = max(
            growth((unit.error, inside), (unit.accumulator.u, outside))
            for inside, outside in {made[term] for term in made if term[:2] == pair}
        )
        assert largest / UP <= stated <= largest * UP


CUT = [
    Corrected("fp16", spans=True),
    Corrected("tf32", block=16, spans=True),
    Corrected("fp16", block=24, spans=True),
    Multiword("fp16", 1, 1, accumulate="blocked", block=48, spans=True),
    Multiword("bf16", 3, 6, accumulate="blocked", block=16, spans=True),
    Multiword("tf32", 2, 4, accumulate="blocked", block=32, spans=True),
]
"""Schemes that cut a long k of few entries."""


@pytest.mark.parametrize("scheme", CUT, ids=str)
@pytest.mark.parametrize("engine", ["numpy", "simulated-h100"])
@pytest.mark.parametrize(("k", "blocks"), [(500, 1), (500, 2), (700, 3), (999, 5)])
def test_bounds_count_the_additions_of_spans(scheme, engine, k, blocks):
    engine = engine_for(engine)
    problem = Problem(1, 1, 1, k, np.dtype("float32"))
    unit = scheme.unit_on(engine, problem)
    span = blocks * scheme.block_length(unit, k)
    assert span < k
    plan = scheme.plan(problem, NO_PROMISE, engine, None, scheme)
    plan = replace(plan, k_span=span)
    assert_roundings_are_counted(plan, unit, scheme.pair_errors(unit, k, span))


def test_only_sums_outside_the_unit_are_cut_if_that_is_asked_for():
    engine = engine_for("simulated-h100")
    long = Problem(1, 5, 7, 2**16, np.dtype("float32"))
    wide = Problem(1, 5000, 7000, 2**16, np.dtype("float32"))
    for scheme in SCHEMES:
        named = scheme.plan(long, NO_PROMISE, engine, None, scheme)
        assert (named.k_span, "in spans of" in str(named)) == (0, False)
        if scheme.accumulate in ("chained", "separate"):
            with pytest.raises(PlanError, match="spans=True goes with sums of blocks"):
                replace(scheme, spans=True)
            continue
        cut = replace(scheme, spans=True)
        plan = cut.plan(long, NO_PROMISE, engine, None, cut)
        assert plan.k_span > 0
        assert plan.k_span % plan.k_block == 0
        assert f"in spans of {plan.k_span}" in str(plan)
        assert "spans=True" in str(plan)
        assert plan.to_dict()["k_span"] == plan.k_span
        assert not cut.plan(wide, NO_PROMISE, engine, None, cut).k_span
    with pytest.raises(PlanError, match="added outside a tensor core"):
        Multiword("fp32", 2, 3, accumulate="blocked", spans=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["numpy", "simulated-v100", "simulated-a100", "simulated-h100"]
)
@pytest.mark.parametrize("seed", range(3))
def test_named_schemes_are_one_sum_over_all_of_a_long_k(engine, seed):
    """Sums of blocks are added outside one after the other, as in [OY22] and [BHM20],
    from k = 2**15 on too, where "auto" may cut it.

    The operands are integers, all words but the first are zeros, and sums of blocks
    stay below 2**24, so that additions outside the unit alone are rounded.
    """
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, 4, 2)
    k = int(rng.integers(2**15, 2**15 + 999))
    a, b = rng.integers(0, 256, (m, k)), rng.integers(0, 256, (k, n))
    block = int(rng.choice([64, 96, 128]))
    sums = [a[:, i : i + block] @ b[i : i + block] for i in range(0, k, block)]
    want = reduce(np.add, np.float32(sums))

    product = "fp16" if engine == "simulated-v100" else ["fp16", "tf32"][seed % 2]
    a, b = a.astype(np.float32), b.astype(np.float32)
    for scheme in (
        Corrected(product, block=block),
        Multiword(product, 1, 1, accumulate="blocked", block=block, scale=False),
    ):
        options = {"scheme": scheme, "engine": engine}
        np.testing.assert_array_equal(matmul(a, b, **options), want)
        plan = make_plan(a, b, **options)
        assert plan.k_span == 0
        np.testing.assert_array_equal(matmul(prepare(a, "left", plan=plan), b), want)

    options["scheme"] = replace(scheme, spans=True)
    c, report = matmul(a, b, **options, return_report=True)
    assert "spans=True" in str(report)
    span = make_plan(a, b, **options).k_span
    parts = [
        reduce(np.add, np.float32(sums[i : i + span // block]))
        for i in range(0, len(sums), span // block)
    ]
    np.testing.assert_array_equal(c, reduce(np.add, parts))
    assert (c != want).any()


def test_spans_are_added_in_their_order():
    """The first span sums to 2**24, each other one to 1, which it absorbs."""
    k = 2**15
    for scheme in (
        Corrected(spans=True),
        Multiword("fp16", 1, 1, accumulate="blocked", spans=True),
    ):
        plan = make_plan(*ones(k), scheme=scheme)
        a, b = ones(k)
        a[0, :: plan.k_span] = b[:: plan.k_span, 0] = 1.0
        a[0, 0] = b[0, 0] = 2.0**12
        assert matmul(a, b, scheme=scheme) == 2.0**24
        assert matmul(a[:, ::-1], b[::-1], scheme=scheme) == 2.0**24 + 8


def ones(k):
    """A row and a column of zeros."""
    return np.zeros((1, k), np.float32), np.zeros((k, 1), np.float32)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("scheme", CUT[:2] + CUT[4:5], ids=str)
@pytest.mark.parametrize(
    "family", ["uniform", "phi_4", "sparse", "nearly_cancelling", "span_60"]
)
def test_the_bound_of_spans_holds(scheme, family, make_pair):
    a, b = make_pair(family, 2, 2**15 + 70, 2, np.float32)
    c, report = matmul(a, b, scheme=scheme, engine="simulated-h100", return_report=True)
    assert meets_promise(c, a, b, report.bound).all()


@pytest.mark.slow
def test_sums_of_positive_terms_keep_the_bound_of_spans():
    """A tensor core truncates: errors of positive terms add up."""
    rng = np.random.default_rng(0)
    k = 2**16
    a, b = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((2, k), (k, 2)))
    for scheme in CUT[:2]:
        c, report = matmul(
            a, b, scheme=scheme, engine="simulated-h100", return_report=True
        )
        assert meets_promise(c, a, b, report.bound).all()
        unit = engine_for("simulated-h100").accumulation(scheme.splitting.fmt)
        errors = scheme.pair_errors(unit, k, 4096)
        assert report.bound == relative_error(scheme.splitting, errors)
        assert report.bound < scheme.worst_case(unit, k) / 4


@pytest.mark.parametrize("scheme", [Corrected(), CUT[4]], ids=str)
def test_the_spans_of_a_plan_stay_for_other_shapes_and_blocks(scheme):
    """Its bound counts them."""
    rng = np.random.default_rng(1)
    k, engine = 500, "simulated-h100"
    a = rng.uniform(0, 1, (3, k)).astype(np.float32)
    b = rng.uniform(0, 1, (k, 5)).astype(np.float32)
    plan = make_plan(a, b, scheme=scheme, engine=engine)
    assert not plan.k_span
    cut = replace(plan, k_span=64)
    whole = matmul(a, b, plan=cut, engine=engine)
    assert (whole != matmul(a, b, plan=plan, engine=engine)).any()
    part = matmul(a[:1], b[:, 2:4], plan=cut, engine=engine)
    np.testing.assert_array_equal(part, whole[:1, 2:4])
    small = matmul(a, b, plan=cut, engine=engine, workspace=2**17)
    np.testing.assert_array_equal(small, whole)


@pytest.mark.parametrize(
    "scheme",
    [Corrected("fp16"), Corrected("tf32"), *map(Multiword, ("fp16", "bf16", "tf32"))],
)
def test_entries_are_scaled_as_high_as_their_format_and_their_sums_allow(scheme):
    fmt = scheme.splitting.fmt
    for dtype, k in itertools.product(
        ("float32", "complex64"), (1, 2, 3, 4, 1000, 2**40)
    ):
        problem = Problem(1, 1, 1, k, np.dtype(dtype))
        top, terms = scheme.top_exponent(problem), problem.terms
        assert top <= fmt.emax + 1
        # words that are rounded up and the errors of sums leave room below 2**128
        assert terms * 4**top <= 2**122
        assert top == fmt.emax + 1 or ceil_log2(terms) + 2 * (top + 1) > 122


def test_fp32_words_are_scaled_to_where_sums_in_fp64_are_far_from_any_end():
    assert (
        Multiword("fp32").top_exponent(Problem(1, 1, 1, 5, np.dtype("float64"))) == 100
    )


@pytest.mark.parametrize(
    "scheme", [Corrected("fp16"), Corrected("tf32"), Multiword("bf16", 3, 6)]
)
@pytest.mark.parametrize("k", [64, 4096])
def test_most_bits_are_lost_down_to_the_last_that_keeps_the_bound(scheme, k):
    unit = engine_for("simulated-h100").accumulation(scheme.splitting.fmt)
    worst = [scheme.worst_case(unit, k, lost) for lost in range(25)]
    assert worst == sorted(worst)
    for lost in range(24):
        if worst[lost] < worst[lost + 1]:
            assert scheme.most_lost(unit, k, worst[lost]) == lost
            assert scheme.most_lost(unit, k, np.nextafter(worst[lost + 1], 0)) == lost
    assert scheme.most_lost(unit, k, np.nextafter(worst[0], 0)) == -1
    assert scheme.most_lost(unit, k, 1e30) == (
        23 if worst[23] < np.inf else worst.index(np.inf) - 1
    )


@pytest.mark.parametrize("scheme", [Corrected(), Multiword("bf16", 2, 3)])
def test_a_target_is_refused_below_what_words_without_remainders_keep(scheme):
    engine, k = engine_for("simulated-h100"), 100
    problem = Problem(1, 2, 3, k, np.dtype("float32"))
    errors = scheme.pair_errors(scheme.unit_on(engine, problem), k)
    least = relative_error(scheme.splitting, errors, (False, False))
    assert scheme.plan(problem, Target(least), engine, None, scheme)
    less = Target(np.nextafter(least, 0))
    with pytest.raises(AccuracyError, match="errs by up to"):
        scheme.plan(problem, less, engine, None, scheme)
    assert scheme.plan(replace(problem, k=0), less, engine, None, scheme)


@pytest.mark.parametrize(
    "scheme", [Corrected(), Corrected(accumulate="chained"), Multiword("tf32")]
)
def test_an_exact_zero_is_positive(scheme):
    for a, b in (
        ([[-1.0]], [[0.0]]),
        ([[-1.0, 1.0]], [[1.0], [1.0]]),
        ([[-0.0, 3.0]], [[5.0], [-0.0]]),
    ):
        c = matmul(np.array(a, np.float32), np.array(b, np.float32), scheme=scheme)
        assert c == 0.0
        assert not np.signbit(c)


@pytest.mark.parametrize(
    "engine", ["simulated-a100", "simulated-h100", "simulated-b200"]
)
def test_blocks_of_corrected_products_are_four_instructions(engine):
    for product in ("fp16", "tf32"):
        fmt = FORMATS[product]
        assert (
            BLOCK[product]
            == Corrected(product).interval
            == 4 * engine_for(engine).accumulation(fmt).block
        )


def test_counts_are_triangles_and_squares():
    for product, counts in COUNTS.items():
        words = 3 if product == "bf16" else 2
        assert set(counts) == {(1, 1)} | {
            (p, n) for p in range(2, words + 1) for n in (p * (p + 1) // 2, p * p)
        }


@pytest.mark.parametrize("engine", ["numpy", "simulated-v100", "simulated-h100"])
@pytest.mark.parametrize("k", [1, 10, 64, 65, 1000, 4096, 4097, 10**6, 2**24])
def test_blocks_of_a_blocked_sum_are_the_power_of_two_with_the_least_bound(engine, k):
    unit = engine_for(engine).accumulation(FP16)
    scheme = Multiword("fp16", 1, 1, accumulate="blocked")
    powers = [2**x for x in range(25) if 2**x >= unit.block]
    bounds = [
        replace(scheme, block=block).pair_errors(unit, k)[0, 0] for block in powers
    ]
    assert scheme.block_length(unit, k) == min(k, powers[int(np.argmin(bounds))])


@pytest.mark.parametrize("alpha", [2.0**-7, 4.0, -2.0])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_powers_of_two_scale_the_result(alpha, dtype):
    rng = np.random.default_rng(6)
    a, b = (rng.random(shape).astype(dtype) for shape in ((3, 9), (9, 4)))
    found = gemm(a, b, alpha=alpha, scheme=Corrected())
    assert found.dtype == dtype
    np.testing.assert_array_equal(
        found, np.asarray(alpha, dtype) * matmul(a, b, scheme=Corrected())
    )


def test_operands_of_whole_words_have_no_remainders_in_their_bound():
    a = np.arange(12.0).reshape(3, 4)
    for dtype in ("float32", "float64"):
        x = a.astype(dtype)
        _, report = matmul(x, x.T, scheme=Corrected(), return_report=True)
        scheme, unit = Corrected(), engine_for("numpy").accumulation(FP16)
        assert report.bound == relative_error(
            scheme.splitting, scheme.pair_errors(unit, 4), (False, False)
        )


def test_entries_are_certified_down_to_their_own_bound():
    # 0.25 and an absolute part of 2**-10, against |A||B| of 0.5 2**-3, of no terms at
    # all, and one that overflowed.
    facts = {
        "nonzero": np.array([[[1], [0], [1]]], np.int8),
        "magnitude": np.array([[[0.25], [0.0], [0.25]]]),
    }
    left = Split("left", 3, None, None, 1, facts)
    ones = {
        "nonzero": np.ones((1, 1, 1), np.int8),
        "magnitude": np.full((1, 1, 1), 0.25),
    }
    right, engine = Split("right", 1, None, None, 1, ones), engine_for("numpy")
    plan = Multiword().plan(
        Problem(1, 3, 1, 1, np.dtype("float32")), NO_PROMISE, engine, None, None
    )
    error = WordError(0.25, np.full((1, 3, 1), 2.0**-10))
    finite = np.array([[[True], [True], [False]]])
    ratio = 2.0**-10 / (0.0625 * (1 - 3 * 2.0**-53) - 2.0**-1074)
    for r, expected in (
        (0.25 + ratio, [True, True, False]),
        (np.nextafter(0.25 + ratio, 0), [False, True, False]),
    ):
        certified, bound = _certified_entries(
            replace(plan, target=Target(r)), left, right, engine, error, finite
        )
        assert certified[0, :, 0].tolist() == expected
        assert bound == (0.25 + ratio if expected[0] else 0.25)
    for r, expected in (
        (0.25, [True, True, False]),
        (np.nextafter(0.25, 0), [False, False, False]),
    ):
        whole = WordError(0.25, None)
        certified, bound = _certified_entries(
            replace(plan, target=Target(r)), left, right, engine, whole, finite
        )
        assert certified[0, :, 0].tolist() == expected
        assert bound == 0.25


def test_published_methods_do_not_scale():
    counts = {
        "markidis": (2, 4),
        "feng": (2, 4),
        "fasi-fp16": (2, 3),
        "fasi-bf16": (3, 6),
    }
    counts |= {
        f"valero-lara-tf{bits}x{n}": (1 + (n > 1), n)
        for bits in (32, 64)
        for n in (1, 3, 4)
    }
    assert {
        name: (scheme.num_words, scheme.num_products)
        for name, scheme in PUBLISHED_METHODS.items()
    } == counts
    assert not any(scheme.scale for scheme in PUBLISHED_METHODS.values())


def test_low_words_are_shifted_by_eleven_bits_where_fp16_has_too_few_exponents():
    assert [Corrected(product).splitting.low_shift for product in ("fp16", "tf32")] == [
        11,
        0,
    ]
    assert [
        Corrected(product, shift_low=False).splitting.low_shift
        for product in ("fp16", "tf32")
    ] == [0, 0]
    assert all(
        Corrected(product).splitting.num_words == 2 for product in ("fp16", "tf32")
    )


@pytest.mark.parametrize(("dtype", "width"), [("float32", 1), ("complex64", 2)])
def test_splits_know_their_vectors(dtype, width):
    engine, x = engine_for("numpy"), np.ones((2, 3, 5), dtype)
    plan = Corrected().plan(
        Problem(2, 3, 3, 5, x.dtype), NO_PROMISE, engine, None, None
    )
    left = plan.scheme.split(plan, x, "left", None, engine)
    right = plan.scheme.split(plan, np.swapaxes(x, 1, 2), "right", None, engine)
    assert (left.vectors, right.vectors) == (3, 3)
    assert (left.planes.shape, right.planes.shape) == (
        (2, 3, 10 * width),
        (2, 10 * width, 3 * width),
    )


def test_entries_that_were_escalated_do_not_count_with_their_first_bound():
    # Without scales words of FP16 lose these entries; with them they are whole, and
    # leave no remainders.
    a = np.array([[1.0, 3.0], [2.0**-40, 2.0**-39]], np.float32)
    b = np.ones((2, 2), np.float32)
    scheme, unit = Corrected(scale=False), engine_for("numpy").accumulation(FP16)
    errors = scheme.pair_errors(unit, 2)
    r = relative_error(scheme.splitting, errors, (False, False))
    assert r < relative_error(scheme.splitting, errors, (True, False))
    c, report = matmul(a, b, scheme=scheme, accuracy=r, return_report=True)
    np.testing.assert_array_equal(c, a @ b)
    assert "escalated" in report.reason
    assert report.bound == r


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        (Multiword(product="bf16", num_words=1, num_products=1), np.float32),
        (Multiword(product="tf32", num_words=1, num_products=1), np.float32),
        (Multiword(product="fp32", num_words=1, num_products=1), np.float64),
    ],
    ids=str,
)
def test_an_accuracy_that_is_kept_gives_infinity_only_where_the_exact_value_does(
    scheme, dtype
):
    """The largest number rounds to a word beyond the range; twice that number lies
    there for sure.
    """
    most, one = np.finfo(dtype).max, np.ones((2, 1), dtype)
    given = {"scheme": scheme, "accuracy": 0.05}
    with pytest.raises(AccuracyError, match="in 1 of 1 entries"):
        matmul(np.array([[most, 0]], dtype), one, **given)
    rows = np.array(
        [[most, most], [-most, -most], [most / 4, most / 4], [most, -most]], dtype
    )
    found = matmul(rows, one, **given)
    np.testing.assert_array_equal(np.isinf(found), [[True], [True], [False], [False]])
    assert found[0, 0] > 0 > found[1, 0]
    halved = gemm(rows[:1], one, alpha=0.25, **given)
    np.testing.assert_allclose(halved, most / 2, rtol=0.05)


NARROW = (
    Corrected("fp16"),
    Corrected("fp16", shift_low=False, split_rounding="zero"),
    Multiword("fp16", 2, 3),
    Multiword("fp16", 2, 4, accumulate="blocked"),
    Multiword("fp16", 2, 3, scale=False),
)
"""Schemes whose words have the few exponents of FP16."""


@pytest.mark.parametrize("scheme", NARROW, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("engine", ["numpy", "simulated-h100"])
def test_inner_scaling_keeps_the_error_of_words_without_units(
    make_pair, scheme, dtype, engine
):
    a, b = make_pair("phi_0.1", 12, 96, 10, dtype)
    inner = replace(scheme, scaling="inner")

    def product(x, y, asked):
        return matmul(x, y, scheme=asked, engine=engine, return_report=True)

    plain, plain_report = product(a, b, scheme)
    wanted = componentwise_error(plain, a, b)
    for span in (20, 40, 60, 100):
        x, y = with_units(a, b, span)
        c, report = product(x, y, inner)
        error = componentwise_error(c, x, y)
        assert error <= 3 * wanted
        assert report.bound <= 3 * plain_report.bound
        assert SCALED_ALONG_K in report.reason
        assert meets_promise(c, x, y, report.bound).all()
        if span >= 60:
            without, _ = product(x, y, scheme)
            assert componentwise_error(without, x, y) > 2**6 * error


@pytest.mark.parametrize("scheme", NARROW, ids=str)
@pytest.mark.parametrize("family", ["phi_1", "phi_4", "sparse", "zeros"])
def test_words_of_data_without_a_pattern_keep_their_bits(
    make_pair, assert_same_bits, scheme, family
):
    a, b = make_pair(family, 20, 120, 18, "float32")
    inner = replace(scheme, scaling="inner")
    c, report = matmul(a, b, scheme=inner, return_report=True)
    assert_same_bits(c, matmul(a, b, scheme=scheme))
    assert SCALED_ALONG_K not in report.reason


def test_float64_words_keep_their_error_over_all_exponents_of_float32(make_pair):
    a, b = make_pair("phi_0.1", 20, 120, 18)
    scheme = Multiword("fp32", 2, 4)
    wanted = componentwise_error(matmul(a, b, scheme=scheme), a, b)
    x, y = with_units(a, b, 600)
    c = matmul(x, y, scheme=replace(scheme, scaling="inner"))
    assert componentwise_error(c, x, y) <= 3 * wanted
    assert componentwise_error(matmul(x, y, scheme=scheme), x, y) > 2**10 * wanted


def test_hostile_operands_keep_the_bound_with_inner_scaling(make_pair):
    """Subnormal entries and the largest ones, zeros, Inf and NaN, cancellation."""
    a, b = make_pair("phi_0.1", 12, 96, 10, "float32")
    a[4, 48:], b[48:, 4] = a[4, :48], -b[:48, 4]
    a, b = with_units(a, b, 200)
    a[0, 0], a[1, 3], b[5, 2] = 2.0**-149, np.finfo(np.float32).max, 2.0**-140
    a[2], b[:, 3], a[3, 7] = 0, 0, 0
    scheme = Corrected("fp16", scaling="inner")
    c, report = matmul(a, b, scheme=scheme, return_report=True)
    assert SCALED_ALONG_K in report.reason
    assert meets_promise(c, a, b, report.bound).all()

    # Vectors of Inf and NaN are put in as IEEE arithmetic does; others keep the bound.
    a[5, 1], b[2, 6] = np.inf, np.nan
    c = matmul(a, b, scheme=scheme)
    with np.errstate(all="ignore"):
        ieee = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.isnan(c) == np.isnan(ieee)).all()
    assert (np.isinf(c[5]) == np.isinf(ieee[5])).all()


def test_prepared_words_are_scaled_with_the_other_operand(make_pair, assert_same_bits):
    a, b = with_units(*make_pair("phi_0.1", 20, 120, 18, "float32"), 60)
    scheme = Corrected("fp16", scaling="inner")
    left, right = (
        prepare(x, side, scheme=scheme) for x, side in ((a, "left"), (b, "right"))
    )
    wanted = matmul(a, b, scheme=scheme)
    for x, y in ((left, b), (a, right), (left, right)):
        assert_same_bits(matmul(x, y), wanted)
