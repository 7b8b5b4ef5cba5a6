"""The cost model: times that grow with the work, and the given rates at the given
sizes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hifigemm.base.formats import BF16, FP16
from hifigemm.engines import rates
from hifigemm.model.problem import Problem
from hifigemm.numerics.residue_products import num_planes
from hifigemm.numerics.residues import moduli_set

SIZES = (256, 512, 1024, 2048, 4096)
OWN = rates.Rates(
    gpu="NVIDIA Nothing 9000/X",
    native_fp64=(1e12, 2e12, 4e12, 6e12, 7e12),
    native_fp32=(2e12, 4e12, 8e12, 12e12, 14e12),
    odd_fp64=0.5,
    fp64_instructions=1e12,
    int8=500e12,
    bandwidth=1e12,
    launch=4e-6,
    words=60e12,
    num_sms=100,
    source="made up",
)
MODELS = pytest.mark.parametrize(
    "model", [rates.H200, OWN], ids=lambda model: model.gpu
)


def cube(n, dtype="float64"):
    return Problem(1, n, n, n, np.dtype(dtype))


@MODELS
@pytest.mark.parametrize(
    ("dtype", "name"), [("float64", "native_fp64"), ("float32", "native_fp32")]
)
def test_measured_sizes_have_the_measured_rate(model, dtype, name):
    for n, rate in zip(SIZES, getattr(model, name), strict=True):
        assert model.native_seconds(cube(n, dtype)) - model.launch == pytest.approx(
            2 * n**3 / rate, rel=1e-9
        )


@MODELS
def test_rates_between_and_beyond_measured_sizes_lie_between_them(model):
    def rate(n):
        return 2 * n**3 / (model.native_seconds(cube(n)) - model.launch)

    for low, high in pairwise(SIZES):
        between = rate(math.isqrt(low * high) // 2 * 2)
        assert min(rate(low), rate(high)) < between < max(rate(low), rate(high))
    assert rate(16384) == pytest.approx(model.native_fp64[-1])
    assert rate(128) == pytest.approx(model.native_fp64[0])


@MODELS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_native_products_of_twice_the_work_take_longer(model, dtype):
    for n in (2, 100, 256, 300, 700, 2000, 5000):
        whole = cube(n, dtype)
        for name in ("batch", "m", "n", "k"):
            more = replace(whole, **{name: 2 * getattr(whole, name)})
            assert model.native_seconds(more) > model.native_seconds(whole)


@pytest.mark.parametrize(("name", "slower"), [("m", False), ("n", True), ("k", True)])
def test_real_fp64_products_are_slower_where_n_or_k_is_odd(name, slower):
    for n in (1024, 3000):
        for dtype in ("float64", "float32", "complex128"):
            more = replace(cube(n, dtype), **{name: n + 1})
            longer = (OWN.native_seconds(more) - OWN.launch) / (
                OWN.native_seconds(cube(n, dtype)) - OWN.launch
            )
            assert longer == pytest.approx(
                2.0 if slower and dtype == "float64" else 1.0, rel=2 / n
            )


def test_residues_pay_earlier_on_an_h200_where_n_and_k_are_odd():
    model = rates.H200
    for n in (1535, 2000, 2500, 2501, 3332, 3333, 4097):
        pays = n in (2501, 3333, 4097)
        assert (
            model.residue_seconds(cube(n), 15, True)
            < 0.9 * model.native_seconds(cube(n))
        ) == pays


def test_native_products_of_more_work_take_longer():
    times = [rates.H200.native_seconds(cube(n)) for n in range(64, 9000, 8)]
    assert all(x <= y for x, y in pairwise(times))


@MODELS
def test_residue_products_of_more_work_take_longer(model):
    for n in (1, 100, 256, 1000, 5000):
        whole = cube(n)
        for looks in (False, True):
            base = model.residue_seconds(whole, 14, looks)
            assert model.residue_seconds(whole, 15, looks) > base
            for name in ("batch", "m", "n", "k"):
                for more in (getattr(whole, name) + 1, 2 * getattr(whole, name)):
                    assert (
                        model.residue_seconds(replace(whole, **{name: more}), 14, looks)
                        > base
                    )
        assert model.residue_seconds(whole, 14, True) > model.residue_seconds(
            whole, 14, False
        )


@MODELS
def test_magnitudes_of_complex_entries_take_four_products(model):
    real, both = (
        model.residue_seconds(cube(1024, dtype), 30, True)
        - model.residue_seconds(cube(1024, dtype), 30, False)
        for dtype in ("float64", "complex128")
    )
    empty = replace(cube(1024), k=0, m=0)
    fixed = model.residue_seconds(empty, 0, True) - model.residue_seconds(
        empty, 0, False
    )
    assert both - fixed == pytest.approx(4 * (real - fixed))


def test_complex_products_are_four_real_ones_and_thin_ones_wait_for_memory():
    n = 4096
    flops = OWN.native_seconds(cube(n)) - OWN.launch
    assert OWN.native_seconds(cube(n, "complex128")) - OWN.launch == pytest.approx(
        4 * flops
    )
    thin = Problem(1, 1, 8192, 8192, np.dtype("float64"))
    assert OWN.native_seconds(thin) - OWN.launch == pytest.approx(
        (2 * 8192 + 8192**2) * 8 / OWN.bandwidth
    )


def test_empty_products_cost_a_launch():
    for name in ("batch", "m", "n", "k"):
        empty = replace(cube(64), **{name: 0})
        assert rates.H200.launch <= rates.H200.native_seconds(empty) < 1e-4
        assert rates.H200.residue_seconds(empty, 14, True) < 1e-4


def test_residues_pay_on_an_h200_for_large_products_only():
    model = rates.H200
    for n, pays in ((256, False), (1024, False), (8192, True)):
        for dtype, count in (("float64", 15), ("complex128", 32)):
            own = model.residue_seconds(cube(n, dtype), count, True)
            native = model.native_seconds(cube(n, dtype))
            assert (own < 0.9 * native) == pays


@MODELS
def test_products_of_words_of_more_work_take_no_less_time(model):
    """A wave takes as long whether it is full or not; bytes always count."""
    for n in (1, 100, 256, 1000, 5000):
        for narrow in (None, FP16, BF16):
            whole = replace(cube(n, "float32"), narrow=narrow)
            for name in ("batch", "m", "n", "k"):
                more = replace(whole, **{name: 2 * getattr(whole, name)})
                assert model.word_seconds(more) > model.word_seconds(whole)


@pytest.mark.parametrize(
    ("dtype", "count", "rates_at"),
    [
        ("float64", 14, {2048: 60.1, 4096: 78.4, 8192: 88.3}),
        ("float64", 15, {2048: 56.4, 4096: 73.1, 8192: 83.1}),
        ("complex128", 28, {2048: 108, 4096: 144, 8192: 169}),
    ],
)
def test_residues_take_what_was_measured_on_an_h200(dtype, count, rates_at):
    """results/dgemm_h200.csv and zgemm_h200.csv, by numbers of products."""
    for n, rate in rates_at.items():
        seconds = rates.H200.residue_seconds(cube(n, dtype), count, False)
        assert (8 if dtype == "complex128" else 2) * n**3 / seconds == pytest.approx(
            1e12 * rate, rel=0.06
        )


@pytest.mark.parametrize(
    ("dtype", "n", "micro"), [("float64", 2048, 321), ("complex128", 1024, 179)]
)
def test_a_look_takes_what_was_measured_on_an_h200(dtype, n, micro):
    """Halfway between a graph (309 and 165 us) and calls from Python (334 and 193)."""
    count = num_planes(moduli_set(15, dtype == "complex128"), dtype == "complex128")
    assert 1e6 * rates.H200.residue_seconds(
        cube(n, dtype), count, True
    ) == pytest.approx(micro, rel=0.06)


@pytest.mark.parametrize(
    ("n", "rate"), [(2048, 158e12), (4096, 185e12), (8192, 202e12)]
)
def test_words_take_what_was_measured_on_an_h200(n, rate):
    """Captured FP16 words without the launches that stay idle,
    results/sgemm_h200.csv.
    """
    seconds = rates.H200.word_seconds(cube(n, "float32")) - 4 * rates.H200.launch
    assert 2 * n**3 / seconds == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "pays"),
    [
        *(
            (n, n, n, 1, n >= 1024)
            for n in (64, 128, 256, 512, 768, 1024, 2048, 4096, 16384)
        ),
        (8192, 1, 8192, 1, False),
        (8192, 64, 8192, 1, False),
        (64, 64, 65536, 1, False),
        (16384, 16384, 64, 1, False),
        (256, 256, 256, 256, False),
        (64, 64, 64, 1000, False),
        (1024, 1024, 65536, 1, True),
        (1024, 1024, 1024, 64, True),
    ],
)
def test_words_pay_on_an_h200_for_large_products_only(m, n, k, batch, pays):
    problem = Problem(batch, m, n, k, np.dtype("float32"))
    assert (
        1.5 * rates.H200.word_seconds(problem) < rates.H200.native_seconds(problem)
    ) == pays


def test_narrow_operands_are_converted_for_a_native_product():
    whole = cube(4096, "float32")
    for fmt in (FP16, BF16):
        narrow = replace(whole, narrow=fmt)
        more = rates.H200.native_seconds(narrow) - rates.H200.native_seconds(whole)
        assert more == pytest.approx(
            2 * 4096**2 * 6 / rates.H200.bandwidth + 2 * rates.H200.launch
        )
        assert rates.H200.word_seconds(narrow) < rates.H200.word_seconds(whole)


def test_rates_are_printed_with_their_sizes():
    text = str(OWN)
    assert text.startswith("NVIDIA Nothing 9000/X: made up\n")
    assert "1024: 4 " in text
    assert "500 TOP/s" in text
    assert "4.0 us" in text


@pytest.mark.parametrize(
    ("dtype", "n", "milliseconds"),
    [
        ("float64", 4096, 1.07),
        ("float64", 8192, 7.23),
        ("float64", 16384, 52.8),
        ("complex128", 8192, 17.5),
    ],
)
def test_mirrored_results_take_what_was_measured_on_an_h200(dtype, n, milliseconds):
    """results/syrk_h200.csv, 15 moduli and a look at magnitudes."""
    problem = replace(cube(n, dtype), mirror="T")
    count = num_planes(moduli_set(15, problem.is_complex), problem.is_complex)
    assert 1e3 * rates.H200.residue_seconds(problem, count, True) == pytest.approx(
        milliseconds, rel=0.1
    )


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("n", [2048, 8192])
def test_half_of_a_product_saves_moduli_and_words_more_than_the_library(n, dtype):
    whole = cube(n, dtype)
    half = replace(whole, mirror="T")
    assert rates.H200.native_seconds(half) > rates.H200.native_seconds(whole)
    assert (
        0.5
        < rates.H200.residue_seconds(half, 15, True)
        / rates.H200.residue_seconds(whole, 15, True)
        < 0.7
    )
    if dtype == "float32":
        assert rates.H200.word_seconds(half) < rates.H200.word_seconds(whole)


@pytest.mark.parametrize(
    ("batch", "n", "dtype", "num_products", "sums_are_quicker"),
    [
        # Measured on an H100, sums and residues: 0.13 and 0.64 ms, 0.44 and 0.69,
        # 0.67 and 0.96, then 0.66 and 0.37, 4.6 and 1.24.
        (1024, 64, "float32", 14, True),
        (512, 128, "float32", 14, True),
        (512, 128, "float64", 22, True),
        (64, 256, "float64", 22, False),
        (64, 512, "float64", 22, False),
    ],
)
def test_sums_of_terms_are_quicker_for_stacks_of_small_matrices(
    batch, n, dtype, num_products, sums_are_quicker
):
    problem = Problem(batch, n, n, n, np.dtype(dtype))
    by_sums = rates.H200.sum_seconds(problem)
    by_residues = rates.H200.residue_seconds(problem, num_products, True)
    assert (by_sums < by_residues) is sums_are_quicker
