"""Error-corrected products: the bits of the recipe, its bound, and what each of its
repairs is worth.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hifigemm as hg
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.base.formats import FP16, TF32
from hifigemm.engines import engine_for
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.tensor_core import H100, tensor_core_product
from hifigemm.schemes.corrected import Corrected
from hifigemm.testing.matrices import EXPONENT_FAMILIES, exponent_family
from hifigemm.testing.reference import meets_promise, relative_residual

HOSTILE = [
    "uniform",
    "phi_4",
    "phi_20",
    "full_range",
    "subnormal",
    "largest",
    "smallest",
    "sparse",
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
SWITCHES = [
    Corrected(product, accumulate, scaling, None, shift_low, rounding)
    for product, accumulate, scaling, shift_low, rounding in itertools.product(
        ("fp16", "tf32"),
        ("outside", "chained"),
        (True, False),
        (True, False),
        ("nearest", "zero"),
    )
]


@pytest.mark.parametrize("product", ["fp16", "tf32"])
def test_bits_are_those_of_the_recipe(product):
    """[OY22] written out: words, blocks of one instruction for the main product,
    corrections chained with them.
    """
    fmt, step, shift, mode = (
        (FP16, 16, 2.0**11, "nearest")
        if product == "fp16"
        else (TF32, 8, 1.0, "nearest-away")
    )
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((6, 100), (100, 5)))
    high_a, high_b = (round_to_format(x, fmt, mode) for x in (a, b))
    low_a, low_b = (
        round_to_format((x - high) * shift, fmt, mode)
        for x, high in ((a, high_a), (b, high_b))
    )

    def mma(x, y, c=None):
        return tensor_core_product(x, y, c, fmt=fmt, model=H100)

    main, correction = np.zeros((2, 6, 5), np.float32)
    for h in range(0, 100, step):
        cols, rows = (slice(None), slice(h, h + step)), slice(h, h + step)
        main += mma(high_a[cols], high_b[rows])
        correction = mma(
            high_a[cols], low_b[rows], mma(low_a[cols], high_b[rows], correction)
        )
    want = main + correction * np.float32(1 / shift)
    options = {"engine": "simulated-h100", "return_report": True}
    got, report = hg.matmul(
        a, b, scheme=Corrected(product, scale=False, block=step), **options
    )
    np.testing.assert_array_equal(got, want)
    scaled, other = hg.matmul(a, b, scheme=Corrected(product, block=step), **options)
    # Words that are scaled lose less to underflow; both products keep their bounds.
    assert (
        np.abs(scaled - want.astype(np.float64))
        <= (report.bound + other.bound) * (np.abs(a) @ np.abs(b))
    ).all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SWITCHES, ids=str)
def test_bound_holds_on_hostile_data(scheme, make_pair):
    finite = 0
    other = "simulated-v100" if scheme.product == "fp16" else "simulated-a100"
    for family, engine in itertools.product(
        HOSTILE, ("numpy", "simulated-h100", other)
    ):
        dtype = np.float64 if engine == "numpy" else np.float32
        a, b = make_pair(family, 3, 33, 3, dtype)
        c, report = hg.matmul(a, b, scheme=scheme, engine=engine, return_report=True)
        assert not np.isnan(c).any(), (family, engine)
        if np.isfinite(report.bound):
            finite += 1
            assert meets_promise(c, a, b, report.bound).all(), (
                family,
                engine,
                report.bound,
            )
    assert finite >= 10


def test_bound_holds_for_complex_operands(make_pair):
    for family in ("uniform", "phi_4", "nearly_cancelling"):
        a, b = make_pair(family, 4, 30, 3, np.complex64)
        c, report = hg.matmul(
            a, b, scheme=Corrected(), engine="simulated-a100", return_report=True
        )
        assert report.num_products == 12
        assert meets_promise(c, a, b, report.bound).all()


def sequential_sum(a, b):
    """FP32 products added one after the other in FP32."""
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for h in range(a.shape[1]):
        c += a[:, h, None] * b[h]
    return c


def test_accumulation_outside_the_unit_decides_for_positive_data():
    """k = 4096 on the model of the H100: mean relative errors against FP32 sums in
    order.

    Over seeds, FP32 errs by 6.7e-7 to 6.9e-7, blocks of 16 by 1.7e-7, blocks of 64 by
    1.9e-7, TF32 blocks of 32 by 1.6e-7. The ratio would be sqrt(k / b) if truncation
    inside the blocks left no bias. Each of the k / 16 steps of a chained sum of
    positive terms truncates half a unit in the last place on average, 2**-25 of the sum
    or more, and the sum is half as large then, on average, as at the end.
    """
    rng = np.random.default_rng(2)
    a, b = (rng.random(s, np.float32) for s in ((32, 4096), (4096, 32)))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(c):
        return float(np.mean(np.abs(c / exact - 1)))

    def corrected(**options):
        return error(
            hg.matmul(a, b, scheme=Corrected(**options), engine="simulated-h100")
        )

    markidis = error(
        hg.matmul(a, b, scheme=PUBLISHED_METHODS["markidis"], engine="simulated-h100")
    )
    assert max(corrected(), corrected(block=16), corrected(product="tf32")) < error(
        sequential_sum(a, b)
    )
    assert min(corrected(accumulate="chained"), markidis) > 4096 / 16 * 2.0**-25 / 2


def test_bound_of_outside_accumulation_grows_slower_with_k():
    """To first order, as in the docstring of the scheme; (1 + u)**2 is what two words
    of nearly |A| and |B| add.
    """
    u, step = 2.0**-11, engine_for("simulated-h100").accumulation(FP16).error
    for k, accumulate in itertools.product((256, 4096), ("outside", "chained")):
        # without remainders, so that only A_lo B_lo is dropped
        a = np.ones((1, k), np.float32)
        scheme, chain = Corrected(accumulate=accumulate), k / 16 * step
        bound = hg.matmul(
            a, a.T, scheme=scheme, engine="simulated-h100", return_report=True
        )[1].bound
        main = (
            4 * step + k / 64 * 2.0**-24
            if accumulate == "outside"
            else chain + 2.0**-24
        )
        first = main + u**2 + 4 * u * chain
        assert first <= bound <= first * (1 + u) ** 2 * (1 + first)


@pytest.mark.parametrize("family", EXPONENT_FAMILIES)
def test_scaled_words_reach_fp32_on_all_exponent_families(family):
    """Residuals below that of FP32; without scaling that of FP16 words is above it but
    in the first family.
    """
    a, b = exponent_family(np.random.default_rng(3), family, 16, 1024, 16)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    fp32 = relative_residual(sequential_sum(a, b), reference)

    def residual(scheme, engine="simulated-a100"):
        return relative_residual(
            hg.matmul(a, b, scheme=scheme, engine=engine), reference
        )

    for product, engine in itertools.product(
        ("fp16", "tf32"), ("simulated-a100", "simulated-h100")
    ):
        assert residual(Corrected(product), engine) < fp32
    assert (residual(Corrected(scale=False)) > fp32) == (family != "type1")


def test_shift_saves_low_words_from_underflow():
    rng = np.random.default_rng(4)
    a, b = (
        rng.uniform(-1, 1, s).astype(np.float32) * np.float32(2.0**-8)
        for s in ((16, 64), (64, 16))
    )
    reference = a.astype(np.float64) @ b.astype(np.float64)

    def residual(**options):
        c = hg.matmul(
            a, b, scheme=Corrected(scale=False, **options), engine="simulated-h100"
        )
        return relative_residual(c, reference)

    assert (
        residual()
        < relative_residual(sequential_sum(a, b), reference)
        < residual(shift_low=False)
    )


def test_accuracy_is_kept_or_refused(make_pair):
    a, b = make_pair("phi_1", 6, 400, 5, np.float32)
    for engine in ("numpy", "simulated-h100"):
        c, report = hg.matmul(
            a, b, scheme=Corrected(), accuracy=9e-6, engine=engine, return_report=True
        )
        assert report.bound <= 9e-6
        assert meets_promise(c, a, b, 9e-6).all()
        with pytest.raises(hg.AccuracyError, match="errs by up to"):
            hg.matmul(a, b, scheme=Corrected(), accuracy=1e-7, engine=engine)
    a, b = make_pair("opposed_spans", 4, 30, 4, np.float32)
    with pytest.raises(hg.AccuracyError, match="does not meet"):
        hg.matmul(a, b, scheme=Corrected(), accuracy=1e-5)


def test_bits_do_not_depend_on_blocks_of_the_result_or_preparation(make_pair):
    a, b = make_pair("phi_2", 19, 50, 18, np.float32)
    whole, report = hg.matmul(
        a, b, scheme=Corrected(), engine="simulated-a100", return_report=True
    )
    small = hg.matmul(
        a,
        b,
        scheme=Corrected(),
        engine="simulated-a100",
        workspace=report.workspace // 9,
    )
    np.testing.assert_array_equal(small, whole)
    plan = hg.make_plan(a, b, scheme=Corrected(), engine="simulated-a100")
    prepared = hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)
    np.testing.assert_array_equal(hg.matmul(*prepared), whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"product": "bf16"}, "product='bf16'"),
        ({"accumulate": "separate"}, "accumulate='separate'"),
        ({"split_rounding": "nearest-away"}, "split_rounding"),
        ({"block": 0}, "block=0"),
        ({"accumulate": "chained", "block": 16}, "block=16"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(hg.PlanError, match=message):
        Corrected(**options)
