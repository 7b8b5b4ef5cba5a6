"""Sums of products that are rounded once: the kernels against their twin, and both
against exact values.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.base.formats import FP32, FP64
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import MANY_SUMS, SUMS, tile_of_sums
from hifigemm.kernels.sums.rounded_sums import finish_entries, rounded_sums
from hifigemm.numerics import rounded_sums as plain
from hifigemm.numerics.integer_sums import Rounding
from tests.conftest import PAIRS, SINGLES

rounded_sums = partial(run_recorded, rounded_sums)
finish_entries = partial(run_recorded, finish_entries)

PLACE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"float64": FP64, "float32": FP32}
FORMS = {"float64": ("biased", "two words"), "float32": ("one word", "two words")}


def tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(x).to(PLACE)


def by_kernel(a, b, result="array", addend=None, shift=0, sign=1, **options):
    """Both arrays of the kernel, written over sevens."""
    x, y = tensor(a), tensor(b)
    shape = max(len(x), len(y)), x.shape[1], y.shape[2]
    out = torch.full(shape, 7.0, dtype=x.dtype, device=PLACE)
    second = None if result == "array" else torch.full_like(out, 7.0)
    targets = Targets(out, Rounding(result, sign=sign), second=second)
    if addend is not None:
        rounding = Rounding(result, True, addend.exponent, addend.sign, sign)
        targets = Targets(out, rounding, tensor(addend.c), second)
    with np.errstate(all="ignore"):
        rounded_sums(x, y, targets, shift=shift, **options)
    return out.cpu().numpy(), None if second is None else second.cpu().numpy()


def pair_of(make_pair, name, dtype, m, k, n, seed=0):
    a, b = make_pair(name, m, k, n, dtype, seed)
    return a[None], b[None]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", [*PAIRS, *SINGLES])
def test_kernel_equals_its_twin(make_pair, assert_same_bits, name, dtype):
    a, b = pair_of(make_pair, name, dtype, 3, 6, 5)
    fmt = FORMATS[dtype]
    for form in FORMS[dtype]:
        values, _ = by_kernel(a, b, form=form, tile=SUMS[3])
        expected, _ = plain.rounded_sums(a, b, fmt, form=form)
        assert_same_bits(values, expected)
    for result in ("pair", "enclosure"):
        both = by_kernel(a, b, result, tile=SUMS[2])
        for x, y in zip(both, plain.rounded_sums(a, b, fmt, result=result)):
            assert_same_bits(x, y)


def test_results_around_the_smallest_normal_number(assert_same_bits):
    rng = np.random.default_rng(0)
    a = np.ldexp(rng.standard_normal((1, 6, 4)), rng.integers(-530, -490, (1, 6, 4)))
    b = np.ldexp(rng.standard_normal((1, 4, 7)), -512)
    b = np.ldexp(b, rng.integers(-40, 30, (1, 1, 7)))
    # Sums next to the smallest normal number, and halfway between two results.
    a[0, :3] = 0.0
    a[0, :3, 0] = 2.0**-511 * (1 + np.arange(-1, 2) * 2.0**-52)
    a[0, :3, 1] = [2.0**-540, -(2.0**-540), 0.0]
    b[0, 0] = 2.0**-511 * (1 + rng.integers(-2, 3, 7) * 2.0**-52)
    b[0, 1] = rng.choice([-1.0, 0.0, 1.0], 7) * 2.0**-535
    values, _ = by_kernel(a, b, form="two words", tile=SUMS[3])
    assert_same_bits(values, plain.rounded_sums(a, b, FP64, form="two words")[0])
    for result in ("pair", "enclosure"):
        both = by_kernel(a, b, result, tile=SUMS[2])
        for x, y in zip(both, plain.rounded_sums(a, b, FP64, result=result)):
            assert_same_bits(x, y)


@pytest.mark.parametrize(
    "name",
    [
        "phi_1",
        "phi_20",
        pytest.param("cancelling", marks=pytest.mark.slow),
        "near_ties",
    ],
)
@pytest.mark.parametrize("form", ["biased", "two words"])
def test_kernel_leaves_the_entries_open_that_its_twin_leaves(make_pair, name, form):
    a, b = pair_of(make_pair, name, "float64", 8, 20, 32)
    counts = torch.zeros((1, 2), dtype=torch.int32, device=PLACE)
    by_kernel(a, b, form=form, tile=SUMS[2], counts=counts)
    num_open, num_left = counts[0].tolist()
    with np.errstate(all="ignore"):
        _, is_certain = plain.quick_sums(a, b, FP64, 0, None, form)
        _, _, is_settled = plain.sums_in_three_words(a, b, FP64, 0, None, "array")
    if PLACE == "cpu":  # fused operations round once
        assert num_open == np.count_nonzero(~is_certain)
    if num_open > 8:
        assert num_left == np.count_nonzero(~is_settled)


def test_sums_whose_terms_underflow(assert_same_bits):
    """Terms without a factor 0 may all be 0; others are known to be."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((1, 8, 6))
    b = rng.standard_normal((1, 6, 32))
    a[0, :4, 3:] = b[0, :3, 16:] = 0.0
    a[0, :, 1] = b[0, 4] = 1e-300
    a[0, 0, :3] = b[0, :3, 0] = [0.0, 1e-320, 0.0]
    counts = torch.zeros((1, 2), dtype=torch.int32, device=PLACE)
    values, _ = by_kernel(a, b, tile=SUMS[2], counts=counts)
    assert_same_bits(values, plain.rounded_sums(a, b, FP64)[0])
    with np.errstate(all="ignore"):
        _, _, is_settled = plain.sums_in_three_words(a, b, FP64, 0, None, "array")
    assert counts[0, 0] > 64
    assert counts[0, 1] == np.count_nonzero(~is_settled)
    assert 0 < counts[0, 1] < 8
    for result in ("pair", "enclosure"):
        both = by_kernel(a, b, result, tile=SUMS[2])
        for x, y in zip(both, plain.rounded_sums(a, b, FP64, result=result)):
            assert_same_bits(x, y)


@pytest.mark.parametrize("shift", [0, 7, -40])
@pytest.mark.parametrize("dtype", FORMATS)
def test_addends_are_terms(make_pair, assert_same_bits, dtype, shift):
    a, b = pair_of(make_pair, "phi_1", dtype, 5, 8, 9)
    fmt = FORMATS[dtype]
    c = np.random.default_rng(1).standard_normal((1, 5, 9)).astype(dtype)
    nearest, _ = plain.rounded_sums(a, b, fmt)
    c[0, 1, 2:5] = np.inf, -np.inf, np.nan
    for addend in (plain.Addend(c, 3, -1), plain.Addend(nearest, 0, -1)):
        for form in FORMS[dtype]:
            options = {"addend": addend, "shift": shift, "form": form}
            values, _ = by_kernel(a, b, **options, tile=SUMS[2])
            expected, _ = plain.rounded_sums(a, b, fmt, **options)
            assert_same_bits(values, expected)


@pytest.mark.parametrize(
    ("batches", "m", "k", "n"),
    [((2, 1), 9, 5, 33), ((1, 3), 1, 1, 1), ((1, 1), 3, 0, 4), ((2, 2), 17, 6, 5)],
)
def test_stacks_and_strides(assert_same_bits, batches, m, k, n):
    rng = np.random.default_rng(7)
    a = rng.standard_normal((batches[0], m, k))
    b = rng.standard_normal((batches[1], k, n))
    expected, _ = plain.rounded_sums(a, b, FP64)
    x, y = tensor(a), tensor(b)
    wide = torch.stack([x, x], dim=-1)[..., 1]
    for left in (x, x.mT.contiguous().mT, wide):
        for right in (y, y.mT.contiguous().mT):
            assert_same_bits(by_kernel(left, right, tile=SUMS[2])[0], expected)
            both = by_kernel(left, right, "pair", tile=SUMS[2])
            assert_same_bits(both[0], expected)


@pytest.mark.parametrize("result", ["array", "pair", "enclosure"])
def test_infinities_and_nans(assert_same_bits, result):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((1, 9, 6)), rng.standard_normal((1, 6, 12))
    a[0, 2, 3] = np.inf
    a[0, 5, 1] = np.nan
    b[0, 4, 7] = -np.inf
    b[0, 3, 8] = 0.0
    expected = plain.rounded_sums(a, b, FP64, result=result)
    for x, y in zip(by_kernel(a, b, result, tile=SUMS[2]), expected):
        if y is not None:
            np.testing.assert_array_equal(x, y)


def test_tiles_occupy_all_multiprocessors_where_they_can():
    assert tile_of_sums(1, 4096, 4096, 132) is MANY_SUMS
    assert tile_of_sums(512, 128, 128, 132) is MANY_SUMS
    assert tile_of_sums(1, 512, 512, 132) is SUMS[0]
    assert tile_of_sums(1, 64, 64, 132) is SUMS[-1]
    for tile in SUMS:
        # Vectors of fewer entries than threads pass through no shared memory.
        assert max(tile.block_m, tile.block_n) < 32 * tile.warps


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("tall", [False, True])
def test_entries_that_are_not_finite_are_made_again(assert_same_bits, dtype, tall):
    rng = np.random.default_rng(6)
    a = rng.standard_normal((2, 5, 9)).astype(dtype)
    b = rng.standard_normal((1, 9, 70)).astype(dtype)
    a[0, 3, 1] = np.inf
    expected, _ = plain.rounded_sums(a, b, FORMATS[dtype], shift=-40)
    is_kept = rng.random(expected.shape) < 0.8
    is_kept[0, 3] = False
    other = rng.choice([np.inf, -np.inf, np.nan], expected.shape)
    given = np.where(is_kept, 3.0, other).astype(dtype)
    out = tensor(given)
    x, y = tensor(a), tensor(b)
    if tall:
        x, y = (
            tensor(np.swapaxes(a, 1, 2).copy()).mT,
            tensor(np.swapaxes(b, 1, 2).copy()).mT,
        )
    with np.errstate(all="ignore"):
        finish_entries(x, y, Targets(out), shift=-40)
    want = np.where(is_kept, given, expected)
    assert_same_bits(out.cpu().numpy(), want)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("few", [8, 10**6], ids=["words", "all bits"])
def test_sums_with_the_negative_product(make_pair, assert_same_bits, dtype, few):
    fmt = FORMATS[dtype]
    for name in ("phi_1", "nearly_cancelling", "underflowing", "overflowing"):
        a, b = pair_of(make_pair, name, dtype, 3, 6, 5)
        a[0, 2, :] = 0.0
        c = plain.rounded_sums(a, b, fmt)[0].astype(dtype)
        c[0, 0, :3] = np.inf, -np.inf, np.nan
        addend = plain.Addend(c, 0, 1)
        options = {"addend": addend, "few": few, "tile": SUMS[3], "sign": -1}
        for form in FORMS[dtype]:
            found, _ = by_kernel(a, b, form=form, **options)
            want, _ = plain.rounded_sums(-a, b, fmt, addend=addend, form=form)
            assert_same_bits(found, want)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
@pytest.mark.parametrize("few", [8, 10**6], ids=["words", "all bits"])
def test_both_values_of_the_negative_product(make_pair, assert_same_bits, few, result):
    """Nothing is left of many of them, and -A B is +0 as A B is."""
    for name in ("integers", "half_the_smallest", "signed_zeros"):
        a, b = pair_of(make_pair, name, "float64", 3, 4, 5)
        both = by_kernel(a, b, result, sign=-1, few=few, tile=SUMS[3])
        for x, y in zip(both, plain.rounded_sums(-a, b, FP64, result=result)):
            assert_same_bits(x, y)


@pytest.mark.parametrize("result", ["pair", "enclosure"])
def test_sums_beyond_float32_by_all_bits_are_infinite(assert_same_bits, result):
    a = np.ldexp(np.ones((1, 2, 3), np.float32), 70)
    b = np.ldexp(np.ones((1, 3, 4), np.float32), [[60], [30], [-120]])
    b = b.astype(np.float32)
    b[:, :, 1:3] *= -1
    both = by_kernel(a, b, result, few=10**6, tile=SUMS[3])
    for x, y in zip(both, plain.rounded_sums(a, b, FP32, result=result)):
        assert_same_bits(x, y)


MEASURED_SPILLS = {
    "_finish_kernel": {
        # Three words of 16 rows fill all 255 registers. For sm_80 Triton puts more of
        # them into memory than for any other architecture.
        f"torch.float32 one word array {SUMS[0]}": {"3.6": {80: 72}},
        f"torch.float64 biased array {SUMS[0]}": {"3.6": {80: 72}},
        f"torch.float64 biased array {SUMS[2]}": {"3.6": {80: 70}},
        f"torch.float32 three words enclosure {SUMS[0]}": {"3.6": {80: 138}},
        f"torch.float32 three words pair {SUMS[0]}": {"3.6": {80: 89}},
        f"torch.float64 three words enclosure {SUMS[0]}": {
            "3.6": {80: 95},
            "3.9": {90: 57, 120: 57},
        },
        f"torch.float64 three words pair {SUMS[0]}": {
            "3.6": {80: 95},
            "3.9": {80: 76, 90: 50},
        },
    },
    "_quick_kernel": {
        # The PTX compiler keeps threads to 168 registers, so that three programs fit.
        f"torch.float32 two words array {SUMS[0]}": {"3.9": {100: 11}},
    },
}
"""Stores and loads by kernel, case, Triton and architecture, where they are more than
usual.
"""


def test_compiled_rounded_sums(compiled, most_spills):
    for line in compiled("sums"):
        # What is made again, rarely, holds three words and takes all registers there
        # are: a few words wait in memory.
        usual = 48 if line["kernel"] == "_finish_kernel" else 4
        measured = MEASURED_SPILLS.get(line["kernel"], {})
        assert line["spills"] <= most_spills(line, usual, measured), line
