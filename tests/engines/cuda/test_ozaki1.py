"""Ozaki scheme I with a forced number of slices as recorded launches: the bits of the scheme's
steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.device_array import unwrap
from hifigemm.model.executable import NO_SPLITS
from hifigemm.model.plan import Blocking
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.estimates import published_num_slices
from hifigemm.numerics.slicing import words_of_diagonals
from hifigemm.operands import operands
from hifigemm.running.executor import execute
from tests.engines.stand_in import DEVICE, arrays, lowered, on_host, planned

pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"
)


def run(plan, a, b, engine, shift=0, epilogue=PLAIN, out=None):
    assert engine.lowering(plan) is not None
    same, outcome = execute(
        plan, *arrays(a, b), engine, 2**28, shift, epilogue, out=out
    )
    assert same is plan
    assert (outcome.bound, outcome.num_products) == (np.inf, plan.num_products)
    return on_host(outcome.values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", ["phi_1", "full_range", "cancelling"])
def test_bits_are_those_of_the_scheme(
    family, dtype, make_pair, assert_same_bits, engine
):
    for count in (2, 7):
        scheme = hg.Ozaki1(num_slices=count)
        a, b = (x[None] for x in make_pair(family, 9, 140, 35, dtype))
        assert_same_bits(
            run(planned(scheme, a, b, engine), a, b, engine),
            hg.matmul(a, b, scheme=scheme),
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_stacks_strides_and_epilogues(
    dtype, make_pair, assert_same_bits, engine
):
    a, b = (
        np.stack([x * dtype(2.0**e) for e in range(2)])
        for x in make_pair("phi_1", 5, 6, 7, dtype)
    )
    a[0, 3, 5], a[1, 4, 0], b[1, 2, 6], b[0, 3, 1] = np.inf, np.nan, -np.inf, np.inf
    c = np.stack(make_pair("phi_2", 5, 5, 7, dtype)[1:] * 2)
    scheme, epilogue = hg.Ozaki1(num_slices=4), Epilogue(0.6, -1.5, arrays(c)[0])
    want = hg.matmul(a, b, scheme=scheme)
    got = run(planned(scheme, a, b, engine), a, b, engine)
    np.testing.assert_array_equal(got, want)
    assert_same_bits(np.nan_to_num(got), np.nan_to_num(want))
    want = hg.gemm(a[:1], b, alpha=2.0**-1060, scheme=scheme)
    np.testing.assert_array_equal(
        run(planned(scheme, a[:1], b, engine), a[:1], b, engine, -1060), want
    )
    want = hg.gemm(a, b, c, alpha=0.6, beta=-1.5, scheme=scheme)
    plan = planned(scheme, a, b, engine)
    x, y, target = (
        np.swapaxes(v, 1, 2)
        for v in arrays(*(v.swapaxes(1, 2) for v in (a, b, np.zeros_like(c))))
    )
    _, outcome = execute(plan, x, y, engine, 2**28, 0, epilogue, out=target)
    assert outcome.values is target
    np.testing.assert_array_equal(on_host(target), want)


@pytest.mark.parametrize("count", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_blocks(make_pair, assert_same_bits, engine, count):
    """Where one word holds the sums of diagonals, and where it takes two."""
    a, b = (x[None] for x in make_pair("phi_4", 40, 130, 45, np.float64))
    assert len(words_of_diagonals(130, count, 8)) == (2 if count == 7 else 1)
    want = hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count))
    plan = planned(hg.Ozaki1(num_slices=count), a, b, engine)
    for shape in ((1, 40, 45), (1, 20, 45), (1, 11, 23)):
        assert_same_bits(
            run(replace(plan, blocking=Blocking(shape)), a, b, engine), want
        )
    small = planned(
        hg.Ozaki1(num_slices=count), a, b, engine, workspace=plan.workspace // 2
    )
    assert small.workspace <= plan.workspace // 2
    assert not small.is_whole
    assert_same_bits(run(small, a, b, engine), want)


def test_plans_that_the_kernels_do_not_have_go_step_by_step(make_pair, engine):
    a, b = (x[None] for x in make_pair("phi_1", 9, 50, 8))
    assert (
        engine.lowering(
            planned(hg.Ozaki1(num_slices=7), a, b, engine, states_bound=True)
        )
        is None
    )
    assert engine.lowering(planned(hg.Ozaki1(num_slices=40), a, b, engine)) is None
    for scheme, accuracy in (
        (hg.Ozaki1(product="tf32", num_slices=3), None),
        (hg.Ozaki1(product="fp32", mode="correct"), None),
        (hg.Ozaki1(), 1e-6),
    ):
        plan = planned(scheme, *arrays(a, b), engine, accuracy)
        assert engine.lowering(plan) is None


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", ["phi_1", "full_range", "ties", "subnormal"])
def test_slices_in_floating_point_have_the_bits_of_the_scheme(
    family, dtype, make_pair, assert_same_bits, engine
):
    for product, count in (("fp16", 2), ("fp16", 7), ("fp64", 2)):
        scheme = hg.Ozaki1(product=product, num_slices=count)
        for m, k, n in ((9, 140, 35), (5, 1100, 1), (1, 1, 1)):
            a, b = (x[None] for x in make_pair(family, m, k, n, dtype))
            plan = planned(scheme, a, b, engine)
            if engine.lowering(plan) is not None:
                want = hg.matmul(a, b, scheme=scheme)
                assert_same_bits(run(plan, a, b, engine), want)
            else:  # more bits than two words hold, or slices wider than the kernel's
                assert product == "fp64"


def complex_pair(make_pair, family, m, k, n, dtype):
    """Real operands with their own columns in another order as imaginary parts."""
    a, b = make_pair(family, m, k, n, dtype)
    return (a + 1j * a[:, ::-1])[None], (b - 1j * b[:, ::-1])[None]


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        (hg.Ozaki1(num_slices=3), np.float32),
        (hg.Ozaki1(num_slices=7), np.float64),
        (hg.Ozaki1("fp16", num_slices=6), np.float64),
        (hg.Ozaki1("fp64", num_slices=2), np.float64),
        (hg.Ozaki1("fp16", mode="correct"), np.float32),
        (hg.Ozaki1("fp64", mode="correct"), np.float64),
        (hg.Ozaki1(mode="correct"), np.float64),
    ],
    ids=str,
)
def test_complex_operands_have_the_bits_of_the_scheme(
    scheme, dtype, make_pair, assert_same_bits, engine
):
    a, b = complex_pair(make_pair, "phi_1", 9, 70, 12, dtype)
    want = hg.matmul(a, b, scheme=scheme)
    plan = planned(scheme, a, b, engine)
    assert engine.lowering(plan) is not None
    for blocking in (plan.blocking, Blocking((1, 5, 7))):
        _, outcome = execute(
            replace(plan, blocking=blocking), *arrays(a, b), engine, 2**28, 0, PLAIN
        )
        got = on_host(outcome.values)
        assert_same_bits(got.view(dtype), want.view(dtype))
    assert outcome.num_products == plan.num_products
    assert plan.num_products % 4 == 0


def test_estimates_for_complex_operands_take_a_longer_look(
    make_pair, assert_same_bits, engine
):
    a, b = complex_pair(make_pair, "phi_1", 9, 70, 12, np.float64)
    scheme = hg.Ozaki1("fp16", mode="dp")
    plan = planned(scheme, *arrays(a, b), engine)
    got = run(plan, a, b, engine)
    assert_same_bits(got.view(float), hg.matmul(a, b, scheme=scheme).view(float))
    inspect = engine.lowering(plan).inspection(*arrays(a, b), NO_SPLITS)
    assert inspect(*arrays(a, b), NO_SPLITS) is None


@pytest.mark.parametrize("mode", [None, "correct"])
def test_complex_special_values_stacks_strides_and_epilogues(
    mode, make_pair, assert_same_bits, engine
):
    count = 4 if mode is None else None
    scheme = hg.Ozaki1(num_slices=count, mode=mode)
    pairs = [complex_pair(make_pair, "phi_1", 5, 6, 7, np.float64) for _ in range(2)]
    a, b = (np.concatenate([x, 4.0 * y]) for x, y in zip(*pairs))
    a[0, 3, 5], a[1, 4, 0], b[1, 2, 6], b[0, 3, 1] = (
        np.inf,
        np.nan,
        -np.inf,
        1j * np.inf,
    )
    c = np.conj(np.concatenate(2 * [pairs[0][1][:, :5]]))
    plan = planned(scheme, a, b, engine)
    assert engine.lowering(plan) is not None
    want = hg.matmul(a, b, scheme=scheme)
    _, outcome = execute(plan, *arrays(a, b), engine, 2**28, 0, PLAIN)
    np.testing.assert_array_equal(on_host(outcome.values), want)

    # A result whose columns are contiguous cannot be written as pairs.
    epilogue = Epilogue(0.6 - 1j, -1.5, arrays(c)[0])
    [target] = arrays(np.zeros_like(c).swapaxes(1, 2))
    target = np.swapaxes(target, 1, 2)
    _, outcome = execute(plan, *arrays(a, b), engine, 2**28, 0, epilogue, out=target)
    assert outcome.values is target
    want = Epilogue(0.6 - 1j, -1.5, c).apply(want.copy())
    np.testing.assert_array_equal(on_host(target), want)


@pytest.mark.parametrize(("mode", "dtype"), [("dp", np.float64), ("sp", np.float32)])
@pytest.mark.parametrize("product", ["int8", "fp16"])
def test_modes_that_estimate_a_count_have_the_bits_of_the_steps(
    product, mode, dtype, make_pair, assert_same_bits, engine
):
    scheme = hg.Ozaki1(product=product, mode=mode)
    a, b = (x[None] for x in make_pair("phi_1", 9, 140, 35, dtype))
    plan = planned(scheme, *arrays(a, b), engine)
    assert plan.scheme.mode == mode
    want, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert plan.scheme == report.scheme
    assert_same_bits(run(plan, a, b, engine), want)


def corrected(scheme, a, b, engine, shift=0, epilogue=PLAIN, workspace=2**28):
    """The product, and what its record says."""
    plan = planned(scheme, *arrays(a, b), engine, workspace=workspace)
    lowering = engine.lowering(plan)
    x, y = arrays(a, b)
    executable = lowered(lowering, x, y, plan.problem.shape, None, shift, epilogue)
    outcome = executable(unwrap(x), unwrap(y))
    return on_host(outcome.values), outcome.decision()


CORRECT = [
    *("phi_1", "full_range", "subnormal", "largest", "cancelling", "ties", "integers"),
    *("overflowing", "underflowing", "empty_rows_and_columns", "opposed_spans"),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("product", "family"),
    [
        *(("int8", family) for family in CORRECT),
        *((p, family) for p in ("fp16", "fp64") for family in ("phi_1", "ties")),
    ],
)
def test_correct_rounding_is_that_of_the_scheme(
    product, family, dtype, make_pair, assert_same_bits, engine
):
    """Whatever bits the vectors span."""
    scheme = hg.Ozaki1(product=product, mode="correct")
    length = 40 if product == "int8" else 1100
    for m, k, n in ((2, length, 5), (1, 1, 1)):
        a, b = (x[None] for x in make_pair(family, m, k, n, dtype))
        plan = planned(scheme, *arrays(a, b), engine)
        if engine.lowering(plan) is None:
            # digits of more bits than float32 rounds by a sum
            assert (product, dtype) == ("fp64", np.float32)
            continue
        got, found = corrected(scheme, a, b, engine)
        assert (found.bound, found.holds) == (0.0, True)
        assert_same_bits(got, hg.matmul(a, b, scheme=scheme))


@pytest.mark.parametrize("product", ["fp16", "fp64"])
def test_products_beyond_the_ends_are_left_out(product, engine):
    """Integers of 20 bits end after three slices of 8 bits, or one of 22."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-(2**19), 2**19, (2, 1, 40, 1500)).astype(np.float64)
    scheme, b = hg.Ozaki1(product=product, mode="correct"), b.swapaxes(1, 2)
    _, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    got, found = corrected(scheme, a, b, engine)
    assert found.num_products == report.num_products == {"fp16": 9, "fp64": 1}[product]
    assert np.array_equal(got, a @ b)


def test_open_entries_are_completed(make_pair, assert_same_bits, engine):
    """Two slices settle few entries; the others are completed, in blocks as well."""
    scheme = hg.Ozaki1(mode="correct", num_slices=2)
    a, b = (x[None] for x in make_pair("phi_2", 6, 300, 5))
    want = hg.matmul(a, b, scheme=scheme)
    got, _ = corrected(scheme, a, b, engine)
    assert_same_bits(got, want)
    plan = planned(scheme, *arrays(a, b), engine)
    small = replace(plan, blocking=Blocking((1, 4, 3)))
    same, outcome = execute(small, *arrays(a, b), engine, 2**28)
    assert same is small
    assert_same_bits(on_host(outcome.values), want)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_correct_rounding_of_special_values_stacks_and_epilogues(
    dtype, make_pair, assert_same_bits, engine
):
    """Where the diagonals settle the entries, and where they settle none."""
    a, b = (
        np.stack([x * dtype(2.0**e) for e in range(2)])
        for x in make_pair("phi_1", 3, 20, 4, dtype)
    )
    a[0, 1, 5], a[1, 2, 0], b[1, 2, 3], b[0, 3, 1] = np.inf, np.nan, -np.inf, np.inf
    scheme = hg.Ozaki1(mode="correct")
    for chosen, left, right in (
        (scheme, a, b),
        (scheme, a[:1], b),
        (scheme, a, b[1:]),
        (replace(scheme, num_slices=1), a[:1], b),
        (replace(scheme, product="fp16"), a, b),
    ):
        want = hg.matmul(left, right, scheme=chosen)
        got, _ = corrected(chosen, left, right, engine)
        np.testing.assert_array_equal(got, want)
        assert_same_bits(np.nan_to_num(got), np.nan_to_num(want))
    want = hg.gemm(a, b, alpha=2.0**-1060, scheme=scheme)
    np.testing.assert_array_equal(corrected(scheme, a, b, engine, -1060)[0], want)


def test_estimates_by_a_program_are_those_of_numerics(make_pair, engine):
    """Those of other operands of the layout, too; complex ones and those that need
    many slices are looked at by the plain function.
    """
    look = engine.override(published_num_slices)
    for family in ("phi_1", "integers", "phi_8"):
        a, b = (x[None] for x in make_pair(family, 9, 50, 35))
        for x, y in ((a, b), (a + 1j * a, b + 0j)):
            want = published_num_slices(x, y, 8, 2.0**-53, 2**20)
            assert look(*arrays(x, y), 8, 2.0**-53, 2**20) == want
    assert look(*arrays(a, b), 2, 2.0**-53, 2**20) == published_num_slices(
        a, b, 2, 2.0**-53, 2**20
    )


def test_steps_write_to_the_result_that_is_given(make_pair, assert_same_bits, engine):
    """A second result beside it would not be within the workspace."""
    a, b = (x[None] for x in make_pair("phi_1", 40, 50, 45, np.float64))
    a[0, 3, 5] = np.inf
    scheme = hg.Ozaki1(num_slices=7)
    plan = replace(
        planned(scheme, a, b, engine, states_bound=True),
        blocking=Blocking((1, 16, 20), 0, 2**22),
    )
    assert engine.lowering(plan) is None
    (target,) = arrays(np.full((1, 40, 45), np.nan))
    _, outcome = execute(plan, *arrays(a, b), engine, 2**28, out=target)
    assert outcome.values is target
    assert_same_bits(on_host(target), hg.matmul(a, b, scheme=scheme, engine="numpy"))
    _, outcome = execute(
        plan, *arrays(a, b), engine, 2**28, 0, Epilogue(2.0, 0.0, None), out=target
    )
    assert outcome.values is target


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_operands_are_read_as_they_are(
    as_on_gpu, assert_same_bits, monkeypatch, dtype
):
    scheme = hg.Ozaki1(num_slices=3)
    rng = np.random.default_rng(4)
    x, y = (
        torch.from_numpy(rng.standard_normal(shape)).to(DEVICE, dtype)
        for shape in ((5, 40), (40, 9))
    )
    x[2, 7] = torch.inf
    wide = y.float()
    cases = [(x, y), (x, wide), (wide.mT, x.mT)]
    expected = [
        hg.matmul(left.float(), right.float(), scheme=scheme) for left, right in cases
    ]
    # No operand is converted.
    monkeypatch.setattr(operands, "widened", None)
    for (left, right), values in zip(cases, expected, strict=True):
        for _ in range(2):
            product = hg.matmul(left, right, scheme=scheme)
            assert product.dtype is torch.float32
            assert_same_bits(on_host(product), on_host(values))
        prepared = hg.prepare(right, "right", scheme=scheme)
        assert prepared.split.planes.shape == (1, right.shape[1], 3, 128)
        assert "3 planes" in repr(prepared)
        for _ in range(2):
            assert_same_bits(on_host(hg.matmul(left, prepared)), on_host(values))
