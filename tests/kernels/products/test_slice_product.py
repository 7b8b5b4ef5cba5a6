"""Products of slices, scaled and rounded in one kernel: the bits of the scheme's steps,
and what it compiles to.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.kernels.products import slice_product as kernels
from hifigemm.kernels.products.slice_product import slice_product
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import Tile
from hifigemm.kernels.vectors.slices import slice_operands
from hifigemm.numerics.bounds import slice_bits_for
from hifigemm.numerics.slicing import words_of_diagonals

slice_product = partial(run_recorded, slice_product)
slice_operands = partial(run_recorded, slice_operands)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Tile("triton", 32, 32, 64, 2, 4)
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"
)


def multiplied(count, a, b, shift=0):
    """2**shift A B of NumPy stacks from slices as wide as the scheme takes them."""
    spec, k = engine_for("numpy").products["int8"], a.shape[2]
    bits = slice_bits_for(k, spec.k_block, spec.accumulator_max, spec.max_digit)
    x, y = (torch.from_numpy(np.ascontiguousarray(v)).to(DEVICE) for v in (a, b))
    out = torch.empty(
        (max(len(a), len(b)), a.shape[1], b.shape[2]), dtype=x.dtype, device=DEVICE
    )
    slice_product(
        *slice_operands(((x, 2), (y, 1)), count, bits),
        out,
        k,
        shift=shift,
        operands=(x, y),
    )
    return out.cpu().numpy()


@pytest.mark.thinned(7)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 9])
@pytest.mark.parametrize(
    "family",
    [
        *(
            "phi_1",
            "full_range",
            "subnormal",
            "largest",
            "cancelling",
            "ties",
            "overflowing",
            "underflowing",
        ),
        *(
            "subnormal_times_large",
            "largest_times_smallest",
            "empty_rows_and_columns",
            "opposed_spans",
            "integers",
        ),
    ],
)
def test_bits_are_those_of_the_scheme(
    family, count, dtype, make_pair, assert_same_bits
):
    for m, k, n in ((9, 140, 35), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        want = hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count), engine="numpy")
        assert_same_bits(multiplied(count, a[None], b[None])[0], want)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [3, 7])
def test_long_sums_are_cut_where_the_accumulator_is_full(
    count, dtype, assert_same_bits, monkeypatch
):
    """All slices at -128: every pair of a diagonal counts as much as it can."""
    rng = np.random.default_rng(1)
    digits = -sum(128 * 256.0**-p for p in range(count if dtype is np.float64 else 2))
    a = np.full((2, 1000), digits, dtype)
    a[:, ::7] = rng.uniform(-100, 100, a[:, ::7].shape)
    for k_block in (128, 384):
        monkeypatch.setattr(kernels, "K_BLOCK", k_block)
        want = hg.matmul(a, a.T, scheme=hg.Ozaki1(num_slices=count), engine="numpy")
        assert_same_bits(multiplied(count, a[None], a.T[None].copy())[0], want)


@pytest.mark.slow
def test_int32_holds_the_longest_sum(assert_same_bits):
    """k = 131071 with all slices at -128, whose sums the kernel cuts once."""
    a = np.full((1, 2**17 - 1), -128.0 - 0.5)
    want = hg.matmul(a, a.T, scheme=hg.Ozaki1(num_slices=2), engine="numpy")
    assert_same_bits(multiplied(2, a[None], a.T[None].copy())[0], want)


@pytest.mark.parametrize(
    "dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64]
)
def test_special_values_and_stacks(dtype, make_pair, assert_same_bits):
    a, b = (
        np.stack([x * dtype(2.0**e) for e in range(2)])
        for x in make_pair("phi_1", 9, 30, 34, dtype)
    )
    a[0, 3, 5], a[1, 8, 0], b[1, 2, 33], b[0, 29, 1] = np.inf, np.nan, -np.inf, np.inf
    scheme = hg.Ozaki1(num_slices=4)
    for left, right in ((a, b), (a[:1], b)):
        want = hg.matmul(left, right, scheme=scheme, engine="numpy")
        got = multiplied(4, left, right)
        np.testing.assert_array_equal(got, want)
        assert_same_bits(np.nan_to_num(got), np.nan_to_num(want))
        want = hg.gemm(left, right, alpha=2.0**-1060, scheme=scheme, engine="numpy")
        np.testing.assert_array_equal(multiplied(4, left, right, -1060), want)


@pytest.mark.slow
def test_bits_do_not_depend_on_tiles(make_pair, assert_same_bits):
    a, b = (x[None] for x in make_pair("phi_4", 40, 130, 45, np.float64))
    for count, high in ((3, None), (7, 5)):
        want = hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count), engine="numpy")
        x, y = (torch.from_numpy(v).to(DEVICE) for v in (a, b))
        made = slice_operands(((x, 2), (y, 1)), count, 8)
        assert high is None or words_of_diagonals(130, count, 8)[0] >= high
        for tile in (
            SMALL,
            Tile("triton", 64, 32, 128, 2, 4, 1),
            Tile("triton", 16, 64, 32, 2, 4, 3),
        ):
            out = torch.empty(
                (1, 45, 40), dtype=torch.float64, device=DEVICE
            ).transpose(1, 2)
            slice_product(*made, out, 130, (x, y), config=tile)
            assert_same_bits(out.cpu().numpy(), want)


def test_unsupported_operands_are_refused():
    x = torch.zeros((1, 4, 5), device=DEVICE)
    left, right = slice_operands([(x, 2), (x.transpose(1, 2), 1)], 3, 8)
    pair = x, x.transpose(1, 2)
    with pytest.raises(ValueError, match=r"shape \(1, 4, 5\)"):
        slice_product(left, right, torch.empty((1, 4, 5), device=DEVICE), 5, pair)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 4\)"):
        slice_product(
            left,
            right._replace(planes=right.planes.expand(3, -1, -1, -1)),
            torch.empty((2, 4, 4)),
            5,
            pair,
        )
    with pytest.raises(ValueError, match="two words"):
        slice_product(left, right, torch.empty((1, 4, 4), device=DEVICE), 2**40, pair)


MEASURED_SPILLS = {
    # Of `slice_kernel`, which makes the slices of both operands: the 64 float32 entries
    # of a thread and what is left of them fill all 255 registers.
    "correct torch.float64 torch.float32": {"3.6": {120: 56}, "3.9": {120: 52}},
    "correct torch.int8 torch.float32": {"3.9": {100: 78}},
}
"""Stores and loads by case, Triton and architecture, where they are more than usual."""


def test_compiled_products_of_slices(arch, compiled, is_whole, most_spills):
    found = compiled("slices")
    if is_whole:
        assert len(found) >= 8
        hopper = "int8_product_hopper_store_sums"
        assert any(line["kernel"] == hopper for line in found) == (arch == 90)
    for line in found:
        # Triton 3.9 keeps places of a tile in memory from before its products to the
        # end of them.
        limit = {100: 48, 120: 4}.get(arch, 0)
        # Addresses of INT64 sums, once in a window of FP64 products, and a few words of
        # twelve slices of float32.
        if line["case"].startswith("correct"):
            is_double = (
                line["kernel"] == "slice_gemm_kernel" and "float64" in line["case"]
            )
            limit = max(limit, 320 if is_double else 24)
        measured = MEASURED_SPILLS if line["kernel"] == "slice_kernel" else {}
        assert line["spills"] <= most_spills(line, limit, measured), line
        # As for residues, whose kernel these are.
        assert line["WARPGROUP.DEPBAR"] <= 18, line
