"""What exact integers of operands need: the numbers of the plain maths, and a stop once
a limit is passed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import required_bits as kernel
from hifigemm.kernels.vectors.required_bits import (
    launch,
    launch_each,
    required_bits_from,
    required_bits_of_vectors_from,
)
from hifigemm.numerics.bits import NO_BIT
from hifigemm.numerics.scaling import required_bits, required_bits_of_vectors

launch = partial(run_recorded, launch)
launch_each = partial(run_recorded, launch_each)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILIES = [
    "uniform",
    "phi_1",
    "phi_20",
    "full_range",
    "subnormal",
    "smallest",
    "largest",
    "sparse",
    "single_nonzero",
]
FAMILIES += [
    "zeros",
    "integers",
    "empty_rows_and_columns",
    "subnormal_rows",
    "badly_scaled",
    "ties",
]
NO_LIMIT = 1 << 24


def found(a, b, most=NO_LIMIT):
    with np.errstate(all="ignore"):
        return required_bits_from(tuple(launch(a, b, most).tolist()), most)


def compare(a, b):
    want = required_bits(a, b, NO_LIMIT, 16384)
    x, y = (torch.from_numpy(np.ascontiguousarray(z)).to(DEVICE) for z in (a, b))
    assert found(x, y) == want
    right_to_left = y.mT.contiguous().mT
    assert found(x.mT.contiguous().mT, right_to_left) == want
    return want


@pytest.mark.thinned(7)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_numbers_are_those_of_the_plain_maths(make_pair, family, dtype):
    for m, k, n in ((5, 300, 7), (17, 256, 3), (1, 1, 1)):
        a, b = make_pair(family, m, k, n, dtype)
        compare(a[None], b[None])


@pytest.mark.parametrize(
    ("dtype", "family"),
    [("float64", "badly_scaled"), ("float32", "sparse"), ("float64", "zeros")],
)
def test_each_vector_lacks_what_the_plain_maths_says(make_pair, dtype, family):
    for m, k, n in ((5, 300, 7), (33, 256, 16), (1, 1, 1)):
        a, b = (x[None] for x in make_pair(family, m, k, n, dtype))
        with np.errstate(all="ignore"):
            found = (
                launch_each(*(torch.from_numpy(x).to(DEVICE) for x in (a, b)))
                .cpu()
                .numpy()
            )
        for x, want in zip(
            required_bits_of_vectors_from(found, m, n),
            required_bits_of_vectors(a, b, 16384),
            strict=True,
        ):
            np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize(
    "exponent", [-1074, -1073, -1023, -1022, -1021, -53, 0, 52, 971, 1022, 1023]
)
def test_powers_of_two_from_one_end_of_the_range_to_the_other(exponent):
    one = np.ldexp(1.0, exponent)
    a, b = np.full((1, 1, 3), one), np.full((1, 3, 2), -one)
    required = compare(a, b)
    assert required[0] == required[1]
    a[0, 0, 1], b[0, 2, 0] = np.ldexp(1.0, -1074), -0.0
    compare(a, b)
    a[0, 0, 0] = 1.7976931348623157e308
    compare(a, b)


def test_odd_and_even_significands_are_told_apart():
    rng = np.random.default_rng(3)
    for bits in (1, 2, 20, 31, 32, 33, 51, 52, 53):
        a = rng.integers(-(2**bits) + 1, 2**bits, (2, 20, 40)).astype(
            np.float64
        ) * np.ldexp(1.0, 5 * bits)
        b = np.ldexp(
            rng.integers(1, 2**bits, (1, 40, 18)).astype(np.float64), -bits - 1030
        )
        compare(a, b)


def test_stacks_strides_and_special_values(make_pair):
    for dtype in ("float32", "float64", "complex128"):
        a, b = make_pair("phi_1", 20, 600, 18, dtype)
        a, b = np.stack([a, 3 * a]), b[None].copy()
        compare(a, b)
        # Entries that are not finite count as zeros, and so do both components of a
        # complex one.
        a[0, 1, 2], a[1, 3, 4], b[0, 3, 4], b[0, 5] = np.nan, np.inf, -np.inf, np.nan
        if dtype == "complex128":
            a[1, 7, 9], b[0, 8, 2] = (
                complex(2.0**-700, np.inf),
                complex(np.nan, 2.0**-800),
            )
        compare(a, b)
        x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
        cut = slice(None), slice(None, None, 2), slice(1, None, 3)
        assert found(x[:, ::3, 1::5], y[:, 1::5, ::2]) == required_bits(
            a[:, ::3, 1::5], b[:, 1::5, ::2], NO_LIMIT, 64
        )
        assert found(x[cut], y[:, : x[cut].shape[2]]) == required_bits(
            a[cut], b[:, : a[cut].shape[2]], NO_LIMIT, 64
        )
        assert found(x[:, :1].expand(2, 9, 600), y) == required_bits(
            a[:, :1], b, NO_LIMIT, 64
        )


def test_one_operand_of_zeros_leaves_the_other_its_say(make_pair):
    a, b = make_pair("uniform", 18, 300, 5)
    want = compare(a[None], 0.0 * b[None])
    assert want[1] == -NO_BIT
    assert want[0] > 0


@pytest.mark.thinned(5)
@pytest.mark.parametrize("most", [-NO_BIT, 0, 10, 47, 94, 200])
def test_limits_separate_short_from_long_data(make_pair, most):
    for family in ("uniform", "integers", "phi_4", "zeros", "subnormal_rows"):
        a, b = (x[None] for x in make_pair(family, 40, 520, 36))
        x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
        exact = required_bits(a, b, NO_LIMIT, 16384)
        assert (
            found(x, y, most)
            == required_bits(a, b, most, 16384)
            == (exact if sum(exact) <= most else None)
        )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("programs", [1, 3, 1000])
@pytest.mark.parametrize("last", [False, True])
def test_programs_that_take_many_blocks_see_all_of_them(monkeypatch, programs, last):
    monkeypatch.setattr(kernel, "_PROGRAMS", programs)
    rng = np.random.default_rng(4)
    a, b = (
        rng.integers(1, 4, shape).astype(np.float64)
        for shape in ((1, 70, 700), (1, 700, 50))
    )
    a[0, -1 if last else 0, -1 if last else 0] += 2.0**-30
    b[0, -1 if last else 0, -1 if last else 0] += 2.0**-20
    exact = compare(a, b)
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    assert found(x, y, sum(exact)) == exact
    assert found(x, y, sum(exact) - 1) is None


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_larger_operands(make_pair, family):
    for m, k, n in ((300, 1000, 257), (33, 5000, 130), (1024, 2048, 1024)):
        a, b = (x[None] for x in make_pair(family, m, k, n))
        exact = compare(a, b)
        x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
        for most in (sum(exact) - 1, sum(exact)):
            assert found(x, y, most) == (exact if most == sum(exact) else None)


def test_compiled_required_bits(compiled):
    for line in compiled("bits"):
        # Triton 3.9 keeps a few words of a look that stops early in memory, once, where
        # 128 registers are the most.
        assert line["spills"] <= 8, line
        real = "complex" not in line["case"] and line["kernel"] != "_clear_kernel"
        assert line["LDG.E.128"] > 0 or not real, line
