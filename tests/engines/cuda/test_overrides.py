"""Kernels in the place of plain functions: the same bits, Inf and NaN marked instead of
left out.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import FP32, FP64
from hifigemm.engines import engine_for
from hifigemm.engines.cuda.overrides import OVERRIDES
from hifigemm.kernels.vectors.scaled_residues import NOT_FINITE
from hifigemm.numerics.accumulation import word_sums
from hifigemm.numerics.error_ratio import error_ratio
from hifigemm.numerics.estimates import published_num_slices
from hifigemm.numerics.inner_scaling import (
    inner_exponents,
    inner_required_bits,
    sampled_gap,
)
from hifigemm.numerics.residue_products import crt, residue_gemm, scaled_residues
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.rounded_sums import rounded_sums
from hifigemm.numerics.scalar_sums import rounded_sum_of_pair
from hifigemm.numerics.scaling import (
    NO_BIT,
    block_norms,
    lowest_bits,
    norm_scale,
    required_bits,
    required_bits_of_vectors,
)
from hifigemm.numerics.symmetric import mirror
from hifigemm.schemes.scheme import int8_product
from tests.engines.stand_in import arrays, on_host

ENTRIES = 2**14
NUMPY = engine_for("numpy")
FAMILIES = [
    "phi_1",
    "full_range",
    "subnormal_rows",
    "empty_rows_and_columns",
    "integers",
    "zeros",
    "badly_scaled",
]
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


@pytest.fixture(params=FAMILIES)
def operands(request, make_pair):
    """Stacks (2, 5, 40) and (1, 40, 6) of a dtype."""

    def make(dtype):
        first, second = (
            make_pair(request.param, 5, 40, 6, dtype, seed=seed) for seed in (0, 1)
        )
        return np.stack([first[0], second[0]]), first[1][None]

    return make


def is_complex(dtype):
    return np.dtype(dtype).kind == "c"


def modulo(planes, moduli):
    """Residues, of which any representative is one, in one form."""
    p = np.array(moduli.of_planes(planes.shape[1]))[:, None, None]
    return np.mod(planes.astype(np.int64), p)


DTYPES = ["float64", "float32", "complex128"]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_and_residues(operands, dtype, engine):
    a, b = operands(dtype)
    moduli = moduli_set(7, is_complex(dtype))
    for x, y, axis in zip((a, b), arrays(a, b), (2, 1), strict=True):
        for balance in (0, -5):
            want = norm_scale(x, axis, moduli, balance, ENTRIES)
            found = engine.override(norm_scale)(y, axis, moduli, balance, ENTRIES)
            assert (found.axis, found.bits) == (want.axis, want.bits)
            for own, plain in (
                (found.exponent, want.exponent),
                (found.nearest, want.nearest),
            ):
                assert own.dtype == plain.dtype
                np.testing.assert_array_equal(on_host(own), plain)
            planes = engine.override(scaled_residues)(y, found, moduli, ENTRIES)
            expected = scaled_residues(x, want, moduli, ENTRIES)
            assert (planes.shape, planes.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(
                modulo(on_host(planes), moduli), modulo(expected, moduli)
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 5, pytest.param(130, marks=pytest.mark.slow)])
def test_products_and_reconstruction(make_pair, assert_same_bits, dtype, m, engine):
    a, b = (x[None] for x in make_pair("phi_4", m, 40, 6, dtype))
    moduli = moduli_set(7, is_complex(dtype))
    fmt = FP32 if dtype == "float32" else FP64
    scales = norm_scale(a, 2, moduli, 0, ENTRIES), norm_scale(b, 1, moduli, 0, ENTRIES)
    left, right = (
        scaled_residues(x, s, moduli, ENTRIES)
        for x, s in zip((a, b), scales, strict=True)
    )
    # The kernels want rows that are padded, as they make them.
    own = [
        engine.override(scaled_residues)(
            y, engine.override(norm_scale)(y, axis, moduli, 0, ENTRIES), moduli, ENTRIES
        )
        for y, axis in zip(arrays(a, b), (2, 1), strict=True)
    ]
    want = residue_gemm(left, right, moduli, int8_product(NUMPY))
    found = engine.override(residue_gemm)(*own, moduli, int8_product(engine))
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(modulo(on_host(found), moduli), modulo(want, moduli))
    width = 2 if is_complex(dtype) else 1
    units = [-scales[0].exponent, -np.repeat(scales[1].exponent, width, axis=2)]
    for shift in (0, -1060, 900):
        values = crt(want, *units, shift, moduli, fmt, ENTRIES)
        # Padded products, as they come from the kernel, and others.
        for products in (found, *arrays(want)):
            made = engine.override(crt)(
                products, *arrays(*units), shift, moduli, fmt, ENTRIES
            )
            assert_same_bits(on_host(made), values)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_operands_tell(operands, dtype, engine):
    a, b = operands(dtype)
    x, y = arrays(a, b)
    for most in (3, 60, 200, 2000):
        assert engine.override(required_bits)(x, y, most, ENTRIES) == required_bits(
            a, b, most, ENTRIES
        )
    # never of stacks
    each = engine.override(required_bits_of_vectors)(x[:1], y, ENTRIES)
    for own, plain in zip(
        each, required_bits_of_vectors(a[:1], b, ENTRIES), strict=True
    ):
        np.testing.assert_array_equal(own, plain)
    ratio = error_ratio(a, b, int8_product(NUMPY), ENTRIES, 100)
    assert (
        engine.override(error_ratio)(x, y, int8_product(engine), ENTRIES, 100) == ratio
    )


@pytest.mark.thinned(4)
def test_exponents_along_k_are_those_of_numpy(engine, operands):
    for dtype in ("float64", "complex64"):
        a, b = operands(dtype)
        x, y = arrays(a, b)
        d = inner_exponents(a, b, ENTRIES)
        made = engine.override(inner_exponents)(x, y, ENTRIES)
        np.testing.assert_array_equal(on_host(made), d)
        gap_of = engine.override(sampled_gap)
        assert gap_of(x, y) == sampled_gap(a, b)
        assert gap_of(x, y, made) == sampled_gap(a, b, d)
        bits_of = engine.override(inner_required_bits)
        wanted = inner_required_bits(a, b, 10**6, ENTRIES)
        assert bits_of(x, y, 10**6, ENTRIES) == wanted


def test_operands_that_nobody_reads_lie_on_the_host(engine):
    a, b = np.zeros((1, 3, 4)), np.zeros((1, 4, 2))
    assert engine.override(sampled_gap)(a, b) == 0
    assert not engine.override(inner_exponents)(a, b, ENTRIES).any()
    assert engine.override(inner_required_bits)(a, b, 9, ENTRIES) is None
    assert (
        engine.override(required_bits)(a, b, 9, ENTRIES)
        == required_bits(a, b, 9, ENTRIES)
        == (-NO_BIT, -NO_BIT)
    )
    for found in engine.override(required_bits_of_vectors)(a, b, ENTRIES):
        assert isinstance(found, np.ndarray)


def test_vectors_with_inf_or_nan_are_marked(make_pair, engine):
    a, _ = (x[None] for x in make_pair("phi_1", 5, 40, 6))
    a[0, 1, 3], a[0, 4, 0] = np.inf, np.nan
    moduli = moduli_set(5, False)
    found = engine.override(norm_scale)(*arrays(a), 2, moduli, 0, ENTRIES)
    marked = on_host(found.exponent)[0, :, 0] == NOT_FINITE
    assert marked.tolist() == [False, True, False, False, True]
    clean = np.where(np.isfinite(a), a, 0.0)
    want = norm_scale(clean, 2, moduli, 0, ENTRIES)
    np.testing.assert_array_equal(
        on_host(found.exponent)[0, ~marked], want.exponent[0, ~marked]
    )


def test_every_override_is_one_of_a_plain_function_and_others_are_left(engine):
    tested = {
        norm_scale,
        block_norms,
        lowest_bits,
        scaled_residues,
        residue_gemm,
        crt,
        mirror,
        error_ratio,
        required_bits,
        required_bits_of_vectors,
        published_num_slices,
        rounded_sums,
        sampled_gap,
        inner_exponents,
        inner_required_bits,
        rounded_sum_of_pair,
    }
    assert set(OVERRIDES) == tested
    for function in tested:
        assert engine.override(function) is OVERRIDES[function]
        # The compiled core has a version of its own.
        if function is not rounded_sum_of_pair:
            assert NUMPY.override(function) is function
    assert engine.override(word_sums) is not word_sums
    assert engine.override(np.matmul) is np.matmul


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=["float32", "float64"])
@pytest.mark.parametrize("has_addend", [False, True])
@pytest.mark.parametrize(
    ("dtype", "alpha"), [("float64", 3.0), ("complex128", 0.1), ("complex128", 1 - 2j)]
)
def test_sums_of_pairs_are_those_of_numpy(engine, dtype, alpha, has_addend, fmt):
    rng = np.random.default_rng(2)
    parts = [rng.standard_normal((2, 3, 5)) for _ in range(6)]
    high, low, c = (
        (x + 1j * y if dtype == "complex128" else x)
        for x, y in zip(parts[::2], parts[1::2], strict=True)
    )
    low = low * 2.0**-60
    for beta in (0.7, 0.0):
        addend = c if has_addend else None
        want, certified = rounded_sum_of_pair(high, low, alpha, addend, beta, fmt, True)
        x, y, z = arrays(high, low, c)
        given = z if has_addend else None
        values, all_certified = engine.override(rounded_sum_of_pair)(
            x, y, alpha, given, beta, fmt, True
        )
        np.testing.assert_array_equal(on_host(values), want)
        assert bool(all_certified.all()) == certified.all()


@pytest.mark.parametrize("conjugate", [False, True])
def test_lower_triangles_are_mirrored_as_by_numpy(engine, conjugate):
    x = np.arange(18.0).reshape(2, 3, 3) * (1 + 2j)
    want, found = x.copy(), arrays(x)[0]
    engine.override(mirror)(found, conjugate)
    mirror(want, conjugate)
    np.testing.assert_array_equal(on_host(found), want)
