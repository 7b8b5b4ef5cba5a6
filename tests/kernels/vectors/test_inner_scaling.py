"""Powers of two along k: exponents and gaps of the kernels are those of the plain
maths.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import inner_scaling as kernels
from hifigemm.numerics import inner_scaling as plain
from tests.kernels.layouts import DEVICE, on_device


@pytest.fixture
def rng():
    return np.random.default_rng(0)


SHAPES = [(1, 1, 1), (3, 5, 2), (17, 70, 9)]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def graded(rng, shape, span, dtype="float64"):
    """A with columns and B with rows graded against each other over `span` bits."""
    m, k, n = shape
    exponents = rng.permutation(np.round(np.linspace(-span / 2, span / 2, k)))
    exponents = exponents.astype(int)
    a = np.ldexp(rng.uniform(-1, 1, (1, m, k)), exponents)
    b = np.ldexp(rng.uniform(-1, 1, (1, k, n)), -exponents[:, None])
    if dtype.startswith("complex"):
        a = a + 1j * np.ldexp(rng.uniform(-1, 1, (1, m, k)), exponents - 3)
        b = b - 1j * np.ldexp(rng.uniform(-1, 1, (1, k, n)), -exponents[:, None] + 2)
    return a.astype(dtype), b.astype(dtype)


def wild(rng, shape, dtype="float64"):
    """Any exponents, zeros, empty vectors and terms, subnormals, Inf and NaN."""
    m, k, n = shape

    def matrix(*sizes):
        lowest, highest = (
            (-160, 127)
            if dtype in ("float32", "complex64")
            else (
                -1080,
                1023,
            )
        )
        span = rng.integers(0, 3)
        least = rng.integers(lowest, highest - 40)
        most = highest if span == 2 else least + 40
        x = np.ldexp(rng.uniform(-1, 1, sizes), rng.integers(least, most, sizes))
        x[rng.random(sizes) < rng.choice([0.0, 0.3])] = 0.0
        x[rng.random(sizes) < rng.choice([0.0, 0.02])] = np.inf
        x[rng.random(sizes) < rng.choice([0.0, 0.02])] = np.nan
        return x

    a = matrix(1, m, k)
    b = matrix(1, k, n)
    if dtype.startswith("complex"):
        with np.errstate(invalid="ignore"):
            a = a + 1j * matrix(1, m, k)
            b = b + 1j * matrix(1, k, n)
    if rng.random() < 0.3:
        a[:, rng.integers(m)] = 0
        b[:, rng.integers(k)] = 0
        a[:, :, rng.integers(k)] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        return a.astype(dtype), b.astype(dtype)


def gap_of(left, right, d=None):
    gap = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    run_recorded(kernels.sampled_gap, left, right, gap, d)
    return int(gap)


def check(a, b, layouts=("rows", "rows")):
    """Exponents and gaps of the kernels against the plain maths."""
    left, right = (on_device(x, how) for x, how in zip((a, b), layouts, strict=True))
    wide = torch.full((1,), plain.WIDE_GAP, dtype=torch.int64, device=DEVICE)
    with np.errstate(all="ignore"):
        found = run_recorded(kernels.inner_exponents, left, right, wide)
        want = plain.inner_exponents(a, b, 16384)
        np.testing.assert_array_equal(found.cpu().numpy(), want)
        before = plain.sampled_gap(a, b)
        after = plain.sampled_gap(a, b, want)
        assert gap_of(left, right) == before
        assert gap_of(left, right, found) == after

        # The exponents that are kept, and the mark beside them.
        mark = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        kept = run_recorded(kernels.gaining_exponents, left, right, mark)
    is_kept = before >= plain.WIDE_GAP and plain.closes(before, after)
    assert int(mark) == (kernels.KEPT if is_kept else LARGEST)
    wanted = want if is_kept else 0 * want
    np.testing.assert_array_equal(kept.cpu().numpy(), wanted)
    return is_kept


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_exponents_equal_plain_maths(rng, shape, dtype):
    for span in (0, 60) if dtype in ("float32", "complex64") else (20, 600):
        is_kept = check(*graded(rng, shape, span, dtype))
        assert is_kept == (span > 0 and shape[1] > 1)


@pytest.mark.parametrize(
    "wild_side", [None, "left", pytest.param("right", marks=pytest.mark.slow)]
)
def test_spans_of_thousands_of_bits_equal_plain_maths(rng, wild_side):
    """Both operands parallel, or one of them flat; with terms that meet zeros."""
    for span in (1000, 2000):
        a, b = graded(rng, (9, 40, 8), span)
        if wild_side:
            wild = a if wild_side == "left" else b
            wild *= np.ldexp(1.0, rng.integers(-30, 1, wild.shape))
        a[:, :, 7] = 0
        b[:, 30] = 0
        assert check(a, b)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_exponents_equal_plain_maths(rng, dtype):
    for shape in SHAPES[1:]:
        for _ in range(2):
            check(*wild(rng, shape, dtype))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("left", ["rows", "columns", "gaps"])
@pytest.mark.parametrize("right", ["rows", "columns", "gaps"])
def test_layouts_change_no_exponent(rng, left, right):
    check(*graded(rng, (17, 70, 9), 60), (left, right))
    check(*wild(rng, (17, 70, 9)), (left, right))


def test_a_stack_has_one_d(rng):
    a, _ = graded(rng, (9, 40, 8), 30)
    b = np.concatenate([graded(rng, (9, 40, 8), 30)[1] for _ in range(3)])
    check(a, b)
    check(np.concatenate([a, 2.0**40 * a, a]), b)


@pytest.mark.slow
def test_many_vectors_share_maxima(rng):
    a, b = graded(rng, (1100, 20, 3), 40)
    a[0, 700] = np.ldexp(a[0, 700], rng.integers(-300, 300, 20))
    check(a, b)
    check(b.swapaxes(1, 2), a.swapaxes(1, 2), ("columns", "columns"))


def test_nothing_is_read_where_the_predicate_does_not_hold(rng):
    a, b = (on_device(x, "rows") for x in graded(rng, (9, 40, 8), 30))
    mark = torch.full((1,), 7, dtype=torch.int64, device=DEVICE)
    number = torch.full((1,), 3, dtype=torch.int64, device=DEVICE)
    run_recorded(kernels.gaining_exponents, a, b, mark, Predicate(number, 4, LARGEST))
    assert int(mark) == 7
    run_recorded(kernels.gaining_exponents, a, b, mark, Predicate(number, 3, LARGEST))
    assert int(mark) == kernels.KEPT


def test_compiled_scaling_along_k(compiled):
    for line in compiled("along_k"):
        # Nothing exchanges tiles of entries, which take 32 KB.
        assert line["shared"] <= 16384, line
        assert line["spills"] <= 32, line
