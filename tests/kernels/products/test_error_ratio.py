"""What operands tell beforehand: scales and error ratios are those of the plain
maths.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.engines import engine_for
from hifigemm.kernels.products import error_ratio
from hifigemm.kernels.products.error_ratio import error_ratio_bits, error_ratio_of
from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.scaled_residues import (
    Config,
    Sizes,
    scaled_residues,
    sized_residues,
)
from hifigemm.numerics import error_ratio as plain
from hifigemm.numerics.embedding import components
from hifigemm.numerics.estimates import magnitudes_down
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import norm_scale
from hifigemm.numerics.special import clean
from hifigemm.schemes.scheme import int8_product

error_ratio_bits = partial(run_recorded, error_ratio_bits)
scaled_residues = partial(run_recorded, scaled_residues)
sized_residues = partial(run_recorded, sized_residues)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLEAR = 1 << 33
"""Bits between float64 numbers that FP32 tells apart: 2**-19 of them."""
FAMILIES = [
    "uniform",
    "phi_1",
    "phi_4",
    "full_range",
    "subnormal",
    "largest",
    "sparse",
    "single_nonzero",
    "zeros",
]
FAMILIES += ["empty_rows_and_columns", "subnormal_rows", "badly_scaled"]


def compare(a, b, config=None):
    moduli = moduli_set(15, False)
    left, right = (torch.from_numpy(x).to(DEVICE) for x in (a, b))
    operands = (left, 2), (right, 1)
    with np.errstate(all="ignore"):
        parts, found, sizes = sized_residues(operands, moduli, config=config)
        plain, _ = scaled_residues(operands, moduli, config=config)
    for scale, part, other, x, axis in zip(
        found, parts, plain, (a, b), (2, 1), strict=True
    ):
        want = norm_scale(x, axis, moduli, 0, 16384)
        finite = np.isfinite(x).all(axis=axis)
        np.testing.assert_array_equal(
            scale.exponent.cpu().numpy()[finite], want.exponent.squeeze(axis)[finite]
        )
        np.testing.assert_array_equal(
            scale.nearest.cpu().numpy()[finite], want.nearest.squeeze(axis)[finite]
        )
        assert torch.equal(part, other)
    assert error_ratio_of(sizes) == plain_ratio(a, b)


def plain_ratio(a, b):
    return plain.error_ratio(a, b, int8_product(engine_for("numpy")), 16384, 10**6)


def sizes_of(a, b):
    """Sizes by the plain maths."""
    found = [plain._sizes(x, axis, 16384) for x, axis in ((a, 2), (b, 1))]
    rows = []
    for x, (e, _, _) in zip((a, b), found, strict=True):
        parts = [magnitudes_down(clean(c), e) for c in components(x)]
        parts = [c if x is a else c.swapaxes(1, 2) for c in parts]
        pad = (0, 0), (0, 0), (0, -a.shape[2] % 128)
        rows.append(
            np.ascontiguousarray(
                np.concatenate([np.pad(c, pad) for c in parts], axis=2)
            )
        )
    exponents = torch.from_numpy(
        np.concatenate([e.ravel() for e, _, _ in found]).astype(np.int32)
    ).to(DEVICE)
    norms = (
        np.stack([np.concatenate([x[i].ravel() for x in found]) for i in (1, 2)])
        * 2.0**15
    )
    magnitudes = tuple(torch.from_numpy(x).to(DEVICE) for x in rows)
    return Sizes(
        exponents,
        torch.from_numpy(norms).to(DEVICE),
        magnitudes,
        2 if a.dtype.kind == "c" else 1,
    )


def random_pair(rng, batches, m, k, n, is_complex):
    """Positive and negative numbers of a few magnitudes, some rows and columns zero,
    one with an Inf.
    """
    pair = []
    for batch, shape in zip(batches, ((m, k), (k, n)), strict=True):
        x = rng.standard_normal((batch, *shape)) * 2.0 ** rng.integers(
            -3, 4, (batch, *shape)
        )
        if is_complex:
            x = x + 1j * rng.standard_normal((batch, *shape))
        pair.append(x)
    a, b = pair
    if m > 2 and n > 2 and k > 2:
        a[:, 1], b[:, :, 2], a[0, 0, 1] = 0, 0, np.inf
    return a, b


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 130, 70), (70, 128, 1), (130, 300, 67)]
)
@pytest.mark.parametrize("batches", [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_ratios_of_all_pairings(is_complex, m, k, n, batches):
    a, b = random_pair(np.random.default_rng([m, k, n]), batches, m, k, n, is_complex)
    assert error_ratio_of(sizes_of(a, b)) == plain_ratio(a, b)


# residues of a row with an Inf
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("m", [1, 70, 200])
@pytest.mark.parametrize("batch", [1, 2])
def test_one_operand_stands_for_both_sides(batch, m):
    a, _ = random_pair(np.random.default_rng(m), (batch, 1), m, 130, m, False)
    x = torch.from_numpy(a).to(DEVICE)
    *_, sizes = sized_residues(((x, 2),), moduli_set(3, is_complex=False))
    assert error_ratio_of(sizes) == plain_ratio(a, a.swapaxes(1, 2))


@pytest.mark.parametrize("is_complex", [False, True])
def test_each_component_counts_its_first_terms(monkeypatch, is_complex):
    monkeypatch.setattr(error_ratio, "MAGNITUDE_TERMS", 256)
    monkeypatch.setattr(plain, "MAGNITUDE_TERMS", 256)
    a, b = random_pair(np.random.default_rng(4), (1, 1), 5, 300, 6, is_complex)
    assert error_ratio_of(sizes_of(a, b)) == plain_ratio(a, b)


@pytest.mark.parametrize("is_complex", [False, True])
def test_all_terms_are_looked_at_where_few_do_not_tell_enough(is_complex):
    sizes = sizes_of(
        *random_pair(np.random.default_rng(5), (2, 1), 5, 300, 6, is_complex)
    )
    cut = sizes._replace(
        magnitudes=tuple(first_terms(x, sizes.width, 128) for x in sizes.magnitudes)
    )
    few = int(error_ratio_bits(cut))
    every = int(error_ratio_bits(sizes))
    assert every + CLEAR < few
    for enough, want in (
        (few, 0),
        (2**63 - 2, 0),
        (every + CLEAR, 0),
        (every - 1, every),
        (-1, every),
    ):
        assert int(error_ratio_bits(sizes, 128, enough)) == want


def bits_of(ratio):
    """The bits of a ratio in units of RATIO_UNIT."""
    return int(np.float64(ratio / error_ratio.RATIO_UNIT).view(np.int64))


def raised(sizes, record, most, *few):
    """A record raised by a predicate on itself."""
    kernel = error_ratio.error_ratio_bits
    return kernel(sizes, *few, into=record, predicate=Predicate(record, 0, most))


def record(bits):
    """A tensor for what is known of the ratio."""
    return torch.tensor([bits], dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("is_complex", [False, True])
def test_records_are_raised_to_the_ratio(is_complex):
    a, b = random_pair(np.random.default_rng(7), (2, 1), 70, 130, 67, is_complex)
    sizes, want = sizes_of(a, b), bits_of(plain_ratio(a, b))
    for before in (0, 1, want - 1, want, want + 1, bits_of(np.inf)):
        word = record(before)
        assert error_ratio_bits(sizes, into=word) is word
        assert int(word) == max(before, want)


def test_records_stay_where_few_terms_suffice():
    sizes = sizes_of(*random_pair(np.random.default_rng(8), (1, 1), 5, 300, 6, False))
    cut = sizes._replace(
        magnitudes=tuple(first_terms(x, 1, 128) for x in sizes.magnitudes)
    )
    few, every = int(error_ratio_bits(cut)), int(error_ratio_bits(sizes))
    assert every + CLEAR < few
    for before in (0, every - 1, every):
        for enough, want in (
            (few, before),
            (every + CLEAR, before),
            (every - 1, every),
            (-1, every),
        ):
            word = record(before)
            assert (
                int(error_ratio_bits(sizes, 128, enough, into=word))
                == int(word)
                == want
            )


@pytest.mark.parametrize(
    "is_complex", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_ratios_that_need_not_be_known_are_not_made_known(is_complex):
    """The ratios of rows of tiles rise: those above what is enough reach the record,
    which is exact then.
    """
    a, b = np.ones((1, 300, 130)), np.ones((1, 130, 70))
    a[0, [3, 140, 270], 4] = 2.0, 8.0, 32.0
    if is_complex:
        a, b = a + 1j * a, b + 1j * b
    *rising, want = (
        int(error_ratio_bits(sizes_of(a[:, :end], b))) for end in (2, 128, 256, 300)
    )
    assert rising[0] < rising[1] < rising[2] < want
    sizes = sizes_of(a, b)
    for terms in (None, 128):
        for enough in (*rising, want - 1):
            assert int(error_ratio_bits(sizes, terms, enough)) == want
        for enough in (
            want + CLEAR,
            bits_of(2.0**90),
            bits_of(2.0**1000),
            int(np.float64(np.inf).view(np.int64)) - 1,
        ):
            assert int(error_ratio_bits(sizes, terms, enough)) == 0
            assert (
                int(error_ratio_bits(sizes, terms, enough, into=record(rising[0])))
                == rising[0]
            )


def test_no_bits_are_enough_for_entries_that_share_no_term():
    a, b = np.ones((1, 70, 200)), np.ones((1, 200, 70))
    a[0, 3], b[0, :, 5] = 0.0, 0.0
    a[0, 3, 0], b[0, 1, 5] = 1.0, 1.0
    most = int(np.finfo(np.float64).max.view(np.int64))
    for enough in (0, bits_of(4.0), bits_of(2.0**200), most):
        assert int(error_ratio_bits(sizes_of(a, b), None, enough)) == most + 1


@pytest.mark.parametrize("few", [(), (128, 0), (128, -1), (128, 2**63 - 2)])
def test_nothing_happens_where_the_predicate_does_not_hold(few):
    sizes = sizes_of(*random_pair(np.random.default_rng(9), (1, 1), 5, 300, 6, False))
    every = int(error_ratio_bits(sizes))
    suffices = few and few[1] > every
    for least, most, holds in (
        (3, 3, True),
        (0, LARGEST, True),
        (4, LARGEST, False),
        (0, -1, False),
    ):
        for before in (0, 3):
            word = record(before)
            error_ratio_bits(
                sizes, *few, into=word, predicate=Predicate(record(3), least, most)
            )
            assert int(word) == (every if holds and not suffices else before)
        assert int(
            error_ratio_bits(sizes, *few, predicate=Predicate(record(3), least, most))
        ) == (every if holds and not suffices else 0)


def test_predicates_on_the_record_hold_beforehand():
    """The first of several programs raises the record beyond the predicate; the largest
    ratio is in the last tile.
    """
    a, b = np.ones((1, 200, 130)), np.ones((1, 130, 200))
    a[0, 3, 4] = 4.0
    a[0, 199, 4] = 16.0
    sizes, want = sizes_of(a, b), bits_of(plain_ratio(a, b))
    least = bits_of(plain_ratio(a[:, :1], b))
    first = bits_of(plain_ratio(a[:, :64], b))
    assert least < first < want
    for few in ((), (128, 0)):
        for most, expected in ((least, want), (first, want), (least - 1, least)):
            word = record(least)
            run_recorded(raised, sizes, word, most, *few)
            assert int(word) == expected


def first_terms(x, width, count):
    """Magnitudes of the first terms of each component."""
    return x.unflatten(2, (width, -1))[..., :count].flatten(2).contiguous()


def test_one_huge_entry_and_entries_that_share_no_term():
    a, b = np.ones((1, 70, 200)), np.ones((1, 200, 70))
    a[0, 3, 4] = 2.0**600
    assert error_ratio_of(sizes_of(a, b)) == plain_ratio(a, b)
    a[0, 3], b[0, :, 5] = 0.0, 0.0
    a[0, 3, 0], b[0, 1, 5] = 1.0, 1.0
    assert error_ratio_of(sizes_of(a, b)) == plain_ratio(a, b) == np.inf


@pytest.mark.parametrize("step", [1, -1])
def test_ratios_that_differ_in_the_last_bit(step):
    """Tiles come one after the other; whatever is known when a tile is looked at, the
    largest ratio is found.
    """
    m, n, k = 300, 140, 128
    rng = np.random.default_rng(5)
    norms = np.ones((2, m + n)) * np.pi * 1000.0
    norms[0, :m] = (
        np.nextafter(norms[0, :m], np.inf)
        + np.spacing(3000.0) * np.arange(m)[::step] * 3
    )
    norms[1] = 10007.0
    magnitudes = (
        torch.full((1, m, k), 77, dtype=torch.int8),
        torch.full((1, n, k), 127, dtype=torch.int8),
    )
    sizes = Sizes(
        None,
        torch.from_numpy(norms).to(DEVICE),
        tuple(x.to(DEVICE) for x in magnitudes),
    )
    above = (
        norms[0, :m, None] * norms[1, None, m:]
        + norms[0, None, m:] * norms[1, :m, None]
    )
    assert (
        error_ratio_of(sizes) == (above / (77 * 127 * k)).max() * error_ratio.RATIO_UNIT
    )
    low = rng.integers(1, 128, (1, m, k), dtype=np.int8)
    sizes = Sizes(
        None, sizes.norms, (torch.from_numpy(low).to(DEVICE), sizes.magnitudes[1])
    )
    assert (
        error_ratio_of(sizes)
        == (above / (low.sum(axis=2, dtype=int)[0] * 127)[:, None]).max()
        * error_ratio.RATIO_UNIT
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_looks_are_those_of_the_plain_maths(make_pair, family, dtype):
    for m, k, n in ((5, 300, 7), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        compare(a[None], b[None])
        compare(a[None], b[None], Config(blocks=1))


def test_stacks_strides_and_special_values(make_pair):
    a, b = make_pair("phi_1", 6, 40, 5)
    a, b = np.stack([a, 3 * a]), b[None].copy()
    a[0, 1, 2], b[0, 3, 4] = np.nan, -np.inf
    compare(a, b)
    compare(
        np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2),
        np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2),
    )
    compare(a[:, ::2, ::3], b[:, ::3, 1::2])


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_looks_at_larger_operands(make_pair, family):
    for m, k, n in ((300, 1000, 257), (33, 5000, 130)):
        a, b = make_pair(family, m, k, n)
        compare(a[None], b[None])


def test_compiled_error_ratios(arch, compiled, is_whole):
    found = [line for line in compiled("ratios") if "ratio" in line["kernel"]]
    # A ratio of some terms and one of all, with a predicate and without, are launches of
    # one kernel: it differs with the type, the tile and the sides that are given.
    if is_whole:
        assert len(found) == len({line["case"] for line in found}) == 5
    hopper = "int8_product_hopper_raise_ratio"
    assert any(line["kernel"] == hopper for line in found) == (arch == 90)
    for line in found:
        # Triton 3.9 converts all sums of a tile before it compares any, and so keeps
        # half of them in memory, once; on sm_100 a few of a complex one.
        assert line["spills"] <= {90: 320, 100: 40}.get(arch, 0), line
        if line["kernel"] == hopper:
            # Three waits in each of two consumers; more would mean that wgmma is
            # serialised.
            assert line["WARPGROUP.DEPBAR"] == 6, line
            assert line["arrivals"] > line["unguarded arrivals"] == 0, line
