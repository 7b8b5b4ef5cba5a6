"""From residues to rounded values: the bits of ModuliSet.reconstruct, round_limbs,
fill_nonfinite and combine.

Integers behind complex results are given as real numbers (batch, m, 2 n), re and im of
an entry side by side.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.base.formats import FP32, FP64
from hifigemm.kernels.endings import crt as kernels
from hifigemm.kernels.endings.crt import crt
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.vector_norms import NOT_FINITE
from hifigemm.numerics.epilogue import combine
from hifigemm.numerics.integer_sums import Rounding
from hifigemm.numerics.residue_products import crt_rounded_once
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.rounding import round_limbs
from hifigemm.numerics.special import fill_nonfinite

crt = partial(run_recorded, crt)

DTYPES = [np.float64, np.float32, np.complex128, np.complex64]
MOST = DTYPES[:3]
COUNTS = [2, 3, 5, 6, 7, 8, 12, 13, 14, 15, 17, 18, 20, 25, 33, MAX_MODULI]
DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="Triton compiles for the device"
        ),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=DEVICES, scope="module")
def device(request):
    return request.param


def is_complex(dtype):
    return np.dtype(dtype).kind == "c"


def width_of(dtype):
    return 2 if is_complex(dtype) else 1


def product_planes(integers, moduli, rng, dtype):
    """What the products of a modulus leave of integers: pairs of p and classes modulo
    p, object arrays.
    """
    if not is_complex(dtype):
        return [(p, integers) for p in moduli.moduli]
    re, im = integers[..., 0::2], integers[..., 1::2]
    parts = []
    for p, j in zip(moduli.moduli, moduli.splits):
        if j is None:
            first = rng.integers(0, p, re.shape).astype(object)
            parts += [(p, first), (p, first - re), (p, im + 2 * first - re)]
        else:
            parts += [(p, re + j * im), (p, re - j * im)]
    return parts


def padded_residues(integers, moduli, rng, dtype=np.float64):
    """int8 (batch, parts, m_pad, n_pad): any representatives of the parts, noise in the
    padding.
    """
    parts = product_planes(integers, moduli, rng, dtype)
    batch, m, n = parts[0][1].shape
    shape = (batch, len(parts), -(-m // 128) * 128, -(-n // 256) * 256)
    out = rng.integers(-128, 128, shape).astype(np.int8)
    for l, (p, part) in enumerate(parts):
        r = (part % p).astype(np.int64)
        lower, upper = r - p, r
        other = (lower >= -128) & ((upper > 127) | (rng.random(r.shape) < 0.5))
        out[:, l, :m, :n] = np.where(other, lower, upper)
    return out


def reference(integers, moduli, exponents, dtype):
    """Values by numerics; an exponent an entry."""
    shape = integers.shape
    residues = np.array(
        [[(v + p // 2) % p - p // 2 for v in integers.ravel()] for p in moduli.moduli],
        np.int8,
    )
    exponents = np.broadcast_to(
        exponents, (*shape[:2], shape[2] // width_of(dtype))
    ).astype(np.int64)
    exponents = np.repeat(exponents, width_of(dtype), axis=2)
    rounded = round_limbs(
        moduli.reconstruct(residues), exponents.ravel(), fmt_of(dtype)
    )
    return rounded.values.reshape(shape).view(dtype)


def assert_same_bits(result, expected):
    result = result.cpu().numpy()
    assert result.dtype == expected.dtype
    result, expected = (x.view(x.real.dtype) for x in (result, expected))
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    word = np.int64 if expected.dtype == np.float64 else np.int32
    wrong = (result.view(word) != expected.view(word)) & ~np.isnan(expected)
    assert not wrong.any(), (
        np.argwhere(wrong)[:5],
        result[wrong][:5],
        expected[wrong][:5],
    )


def hard_integers(rng, moduli, fmt, count):
    """Integers up to half_range: random of every length, powers of two and what
    surrounds them, ties and near ties.
    """
    top = moduli.half_range
    bits = top.bit_length()

    def uniform(limit):
        return (
            int.from_bytes(rng.bytes(limit.bit_length() // 8 + 9), "little")
            % (2 * limit + 1)
            - limit
        )

    found = [0, 1, -1, top, -top, top - 1, 1 - top]
    kinds = rng.integers(0, 6, count)
    for kind in kinds:
        length = int(rng.integers(1, bits))
        sign = int(rng.integers(0, 2)) * 2 - 1
        if kind == 0:
            v = uniform(top)
        elif kind == 1:
            v = uniform(1 << length)
        elif kind == 2:
            v = sign * ((1 << length) + int(rng.integers(-2, 3)))
        elif kind == 3:
            v = uniform(1 << length) >> (length // 2) << (length // 2)
        else:
            drop = max(length - fmt.t, 0)
            kept = uniform(1 << min(length, fmt.t)) | 1 << (min(length, fmt.t) - 1)
            near = (
                int(rng.integers(-1, 2)) << int(rng.integers(0, drop))
                if kind == 5 and drop > 1
                else 0
            )
            v = sign * ((abs(kept) << drop) + (1 << drop >> 1) + near)
        found.append(max(-top, min(top, v)))
    return found


def block_of(values, m, n):
    """Object array (1, m, n) that repeats a list of integers."""
    out = np.empty(m * n, object)
    out[:] = [values[i % len(values)] for i in range(m * n)]
    return out.reshape(1, m, n)


def run(device, products, s, t, moduli, dtype, shape, **options):
    out = torch.full(
        shape, 7.0, dtype=getattr(torch, np.dtype(dtype).name), device=device
    )
    to = {"device": device}
    scales = (
        torch.tensor(s, dtype=torch.int32, **to),
        torch.tensor(t, dtype=torch.int32, **to),
    )
    options = {
        k: torch.tensor(v, **to) if isinstance(v, np.ndarray) else v
        for k, v in options.items()
    }
    of_ends = [name for name in Targets._fields if name in options]
    targets = Targets(out, **{name: options.pop(name) for name in of_ends})
    with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy
        crt(torch.tensor(products, **to), scales, moduli, targets, **options)
    return out


def fmt_of(dtype):
    return FP64 if np.finfo(dtype).dtype == np.float64 else FP32


def check_hard_integers(device, count, dtype):
    rng = np.random.default_rng(count)
    moduli, width = moduli_set(count, is_complex(dtype)), width_of(dtype)
    m, n = (5, 200 // width) if device == "cpu" else (130, 1030)
    integers = block_of(
        hard_integers(rng, moduli, fmt_of(dtype), min(m * n * width, 20000)),
        m,
        n * width,
    )
    s = rng.integers(0, 40, (1, m))
    t = rng.integers(0, 40, (1, n))
    expected = reference(integers, moduli, 3 - s[:, :, None] - t[:, None, :], dtype)
    products = padded_residues(integers, moduli, rng, dtype)
    assert_same_bits(
        run(device, products, s, t, moduli, dtype, (1, m, n), shift=3), expected
    )


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        *((c, d) for c in COUNTS for d in MOST),
        (3, np.complex64),
        (8, np.complex64),
        (14, np.complex64),
    ],
)
def test_hard_integers_are_rounded_as_by_numerics(device, count, dtype):
    check_hard_integers(device, count, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count",
    [4, 9, 10, 11, 16, 19, *range(21, 25), *range(26, 33), *range(34, MAX_MODULI)],
)
def test_every_number_of_moduli_of_complex_products(device, count):
    check_hard_integers(device, count, np.complex128)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [6, 8, 14, 20])
def test_results_at_the_ends_of_the_format(device, count, dtype):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, is_complex(dtype))
    fmt = fmt_of(dtype)
    width = width_of(dtype)
    m, n = 12, 257 // width
    integers = block_of(hard_integers(rng, moduli, fmt, m * n * width), m, n * width)
    bits = moduli.half_range.bit_length()
    lowest, highest = fmt.min_exponent, fmt.emax
    results = np.array(
        [
            2100,
            highest + 2,
            highest + 1,
            highest,
            highest - 30,
            0,
            lowest + 60,
            lowest + 53,
            lowest + 24,
        ]
    )
    results = np.concatenate([results, [lowest + 1, lowest - 1, -2100]])
    s = 1000 - results[None, :] + bits
    t = rng.integers(-1040, -960, (1, n))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    parts = expected.view(expected.real.dtype)
    assert np.isinf(parts).any()
    assert (np.signbit(parts) & (parts == 0)).any()
    assert ((parts != 0) & (np.abs(parts) < np.finfo(dtype).tiny)).any()
    products = padded_residues(integers, moduli, rng, dtype)
    assert_same_bits(run(device, products, s, t, moduli, dtype, (1, m, n)), expected)


def seven_products(planes, of_planes, half_m, half_n, rng):
    """Residues of P1 .. P7, any that belong to the residues of a product: int8 (1, 7
    planes, m_pad, n_pad).
    """
    p = np.array(of_planes)[:, None, None]
    whole = rng.integers(-128, 128, (len(p), 2 * half_m, 2 * half_n))
    m, n = (min(x, y) for x, y in zip(planes.shape[2:], whole.shape[1:], strict=True))
    whole[:, :m, :n] = planes[0, :, :m, :n]
    c11, c12, c21, c22 = (
        whole[:, i : i + half_m, j : j + half_n]
        for i in (0, half_m)
        for j in (0, half_n)
    )
    p1, p6, p7 = rng.integers(-128, 128, (3, *c11.shape))
    p5 = c22 - p1 - p6 - p7
    found = np.stack([p1, c11 - p1, c12 - p1 - p6 - p5, c21 - p1 - p6 - p7, p5, p6, p7])
    out = rng.integers(
        -128, 128, (7, len(p), -(-half_m // 128) * 128, -(-half_n // 256) * 256)
    ).astype(np.int8)
    out[:, :, :half_m, :half_n] = (found + p // 2) % p - p // 2
    return out.reshape(1, -1, *out.shape[2:])


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("count", "dtype"),
    [(14, np.float64), (8, np.float32), (5, np.complex128), (21, np.float64)],
)
def test_products_of_halves_are_joined(device, count, dtype):
    rng = np.random.default_rng(count)
    moduli, width = moduli_set(count, is_complex(dtype)), width_of(dtype)
    m, n, half_m, half_n = (5, 150, 3, 80) if device == "cpu" else (129, 1030, 65, 576)
    integers = block_of(
        hard_integers(rng, moduli, fmt_of(dtype), m * n * width), m, n * width
    )
    s, t = rng.integers(0, 40, (1, m)), rng.integers(0, 40, (1, n))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    planes = padded_residues(integers, moduli, rng, dtype)
    products = seven_products(
        planes, moduli.of_planes(planes.shape[1]), half_m, half_n, rng
    )
    c = rng.standard_normal((1, m, n)).astype(dtype)
    for options, want in (({}, expected), ({"beta": 0.5, "c": c}, None)):
        found = run(
            device,
            products,
            s,
            t,
            moduli,
            dtype,
            (1, m, n),
            halves=(half_m, half_n),
            **options,
        )
        plain = (
            want
            if want is not None
            else run(device, planes, s, t, moduli, dtype, (1, m, n), **options)
            .cpu()
            .numpy()
        )
        assert_same_bits(found, plain)


@settings(max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_integer_and_exponent(device, data, dtype):
    count = data.draw(st.integers(2, 24))
    moduli, width = moduli_set(count, is_complex(dtype)), width_of(dtype)
    top = moduli.half_range
    numbers = st.integers(-top, top) | st.integers(-(1 << 60), 1 << 60).map(
        lambda v: max(-top, min(top, v))
    )
    integers = block_of(
        data.draw(st.lists(numbers, min_size=1, max_size=12)), 3, 5 * width
    )
    scales = st.lists(
        st.integers(-1100, 1100) | st.integers(-60, 200), min_size=3, max_size=3
    )
    s, t = np.array([data.draw(scales)]), np.array([data.draw(scales) * 2])[:, :5]
    shift = data.draw(st.integers(-2000, 2000))
    expected = reference(integers, moduli, shift - s[:, :, None] - t[:, None, :], dtype)
    products = padded_residues(integers, moduli, np.random.default_rng(0), dtype)
    assert_same_bits(
        run(device, products, s, t, moduli, dtype, (1, 3, 5), shift=shift), expected
    )


def products_for(rng, moduli, batch, m, n, dtype=np.float64):
    wide = n * width_of(dtype)
    integers = np.concatenate(
        [
            block_of(hard_integers(rng, moduli, FP64, m * wide), m, wide)
            for _ in range(batch)
        ]
    )
    return integers, padded_residues(integers, moduli, rng, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 257), (9, 1)])
def test_single_rows_and_columns(device, m, n, dtype):
    rng = np.random.default_rng(6)
    moduli = moduli_set(14, is_complex(dtype))
    integers, products = products_for(rng, moduli, 2, m, n, dtype)
    s, t = rng.integers(0, 99, (2, m)), rng.integers(0, 99, (2, n))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    assert_same_bits(run(device, products, s, t, moduli, dtype, (2, m, n)), expected)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("count", [8, 14])
@pytest.mark.parametrize(
    "same", [(False, False), (True, False), (False, True), (True, True)]
)
def test_scales_are_repeated_over_the_batch(device, same, count, dtype):
    rng = np.random.default_rng(1)
    moduli, batch, m, n = moduli_set(count, is_complex(dtype)), 3, 5, 7
    integers, products = products_for(rng, moduli, batch, m, n, dtype)
    s, t = (
        rng.integers(0, 99, (1 if one else batch, size))
        for one, size in zip(same, (m, n))
    )
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    assert_same_bits(
        run(device, products, s, t, moduli, dtype, (batch, m, n)), expected
    )


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("m", [1, 21, pytest.param(300, marks=pytest.mark.slow)])
def test_triangles_are_written_on_and_below_the_diagonal(device, monkeypatch, m, dtype):
    if m < 300:  # a square of tiles is as high as a tile has columns
        monkeypatch.setattr(kernels, "_columns", lambda constants, whole: 8)
    rng = np.random.default_rng(m)
    moduli, batch = moduli_set(3, is_complex(dtype)), 2
    integers, products = products_for(rng, moduli, batch, m, m, dtype)
    s, t = rng.integers(0, 9, (batch, m)), rng.integers(0, 9, (batch, m))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    found = run(device, products, s, t, moduli, dtype, (batch, m, m), triangle=True)
    assert_same_bits(torch.tril(found), np.tril(expected))


@pytest.mark.parametrize("m", [5, 21])
def test_triangles_add_c_once_in_place(device, monkeypatch, m):
    """C is the result's own memory, and no tile repeats a row of it."""
    monkeypatch.setattr(kernels, "_columns", lambda constants, whole: 8)
    rng = np.random.default_rng(m)
    moduli, dtype = moduli_set(3, False), np.float64
    integers, products = products_for(rng, moduli, 1, m, m, dtype)
    s, t = rng.integers(0, 9, (1, m)), rng.integers(0, 9, (1, m))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    out = torch.full((1, m, m), 7.0, dtype=torch.float64, device=device)
    to = {"dtype": torch.int32, "device": device}
    scales = torch.tensor(s, **to), torch.tensor(t, **to)
    planes = torch.tensor(products, device=device)
    with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy
        targets = Targets(out, c=out)
        crt(planes, scales, moduli, targets, alpha=1.0, beta=2.0, triangle=True)
    assert_same_bits(
        torch.tril(out), np.tril(combine(expected, 1.0, np.full(1, 7.0), 2.0))
    )


@pytest.mark.parametrize("dtype", MOST)
def test_strided_products_and_outputs(device, dtype):
    rng = np.random.default_rng(2)
    moduli, batch, m, n = moduli_set(9, is_complex(dtype)), 2, 3, 70
    integers, products = products_for(rng, moduli, batch, m, n, dtype)
    s, t = rng.integers(0, 99, (batch, m)), rng.integers(0, 99, (batch, n))
    expected = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    last = 2 + products.shape[1]
    wide = np.full((batch, 20, 256, 512), 99, np.int8)
    wide[:, 2:last, 128:, :256] = products
    view = torch.tensor(wide, device=device)[:, 2:last, 128:, :256]
    to = {"dtype": getattr(torch, np.dtype(dtype).name), "device": device}
    scales = tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in (s, t))
    outputs = [
        torch.zeros((batch, n, m), **to).mT,
        torch.zeros((batch, 2 * m, 3 * n), **to)[:, ::2, 1::3],
        torch.zeros((m, batch, n), **to).transpose(0, 1),
    ]
    for out in outputs:
        with np.errstate(all="ignore"):
            crt(view, scales, moduli, Targets(out))
        assert_same_bits(out.contiguous(), expected)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(1.0, 1.0), (-0.3, 0.0), (3e8, -7e-9), (-1.0, 0.75), (1.3, -1.7)],
)
def test_alpha_and_beta_are_applied_as_by_numerics(device, alpha, beta, dtype):
    rng = np.random.default_rng(3)
    moduli, batch, m, n = moduli_set(13, is_complex(dtype)), 2, 4, 90 // width_of(dtype)
    integers, products = products_for(rng, moduli, batch, m, n, dtype)
    s, t = rng.integers(-300, 500, (batch, m)), rng.integers(-300, 500, (batch, n))
    t[:, ::3] = 2
    s[:, ::2] = 50
    value = reference(integers, moduli, -s[:, :, None] - t[:, None, :], dtype)
    shape = batch, m, n * width_of(dtype)
    whole = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 120, shape)).astype(
        np.finfo(dtype).dtype
    )
    largest = np.finfo(whole.dtype).max
    whole[0, 0, :8] = [
        0.0,
        -0.0,
        np.inf,
        np.nan,
        largest,
        -largest,
        largest / 1e3,
        -largest / 4,
    ]
    whole = whole.view(dtype)
    for c in (whole, whole[:1, :1], whole[:, :, :1]):
        expected = combine(value, alpha, c if beta else None, beta)
        options = {"alpha": alpha, "beta": beta, "c": c}
        assert_same_bits(
            run(device, products, s, t, moduli, dtype, (batch, m, n), **options),
            expected,
        )
    out = torch.tensor(whole, device=device)
    scales = tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in (s, t))
    with np.errstate(all="ignore"):
        crt(
            torch.tensor(products, device=device),
            scales,
            moduli,
            Targets(out, c=out),
            alpha=alpha,
            beta=beta,
        )
    assert_same_bits(out, combine(value, alpha, whole if beta else None, beta))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_vectors_with_infinities_and_nans_are_filled(device, alpha, dtype):
    rng = np.random.default_rng(4)
    moduli, batch, m, n, k = moduli_set(14, is_complex(dtype)), 2, 5, 300, 6
    integers, products = products_for(rng, moduli, batch, m, n, dtype)
    a, b = (
        rng.integers(-2, 3, shape).astype(dtype) for shape in ((batch, m, k), (1, k, n))
    )
    if is_complex(dtype):
        a, b = ((x + 1j * rng.integers(-2, 3, x.shape)).astype(dtype) for x in (a, b))
        a.imag[0, 2, 3], a.imag[1, 0, 1], b.imag[0, 2, 7], b.imag[0, 0, 8] = (
            np.inf,
            -np.inf,
            -np.inf,
            np.nan,
        )
    a.real[0, 1, 2] = np.inf
    a.real[1, 4, 3:5] = [-np.inf, np.inf]
    a.real[1, 0, 0] = np.nan
    b.real[0, 3, 5], b.real[0, 4, 299], b.real[0, 5, 256:258] = -np.inf, np.nan, np.inf
    rows, cols = (~np.isfinite(x).all(axis=axis) for x, axis in ((a, 2), (b, 1)))
    s = np.where(rows, NOT_FINITE.value, rng.integers(0, 99, (batch, m)))
    t = np.where(cols, NOT_FINITE.value, rng.integers(0, 99, (1, n)))
    with np.errstate(over="ignore"):
        finite = np.where(rows, 0, s)[:, :, None] + np.where(cols, 0, t)[:, None, :]
        expected = reference(integers, moduli, -finite, dtype)
    fill_nonfinite(expected, a, b, rows, cols)
    if alpha != 1.0:
        expected = combine(expected, alpha, None, 0.0)
    operands = (
        torch.tensor(a, device=device),
        torch.tensor(b, device=device).mT.contiguous().mT,
    )
    options = {"alpha": alpha, "operands": operands}
    assert_same_bits(
        run(device, products, s, t, moduli, dtype, (batch, m, n), **options), expected
    )


def test_c_is_not_read_where_beta_is_zero(device):
    moduli = moduli_set(8, False)
    integers, products = products_for(np.random.default_rng(5), moduli, 1, 2, 3)
    s, t = np.zeros((1, 2), int), np.zeros((1, 3), int)
    expected = reference(integers, moduli, 0, np.float64)
    c = np.full((1, 2, 3), np.nan)
    assert_same_bits(
        run(device, products, s, t, moduli, np.float64, (1, 2, 3), c=c, beta=0.0),
        expected,
    )


ROUNDINGS = [
    Rounding("pair"),
    Rounding("enclosure"),
    Rounding(has_addend=True),
    Rounding(has_addend=True, c_exponent=-40, c_sign=-1),
    Rounding(has_addend=True, sign=-1),
]


def residues_of(integers, moduli):
    """Centred residues of object integers: int8 (batch, L, ...)."""
    parts = [((integers + p // 2) % p - p // 2).astype(np.int64) for p in moduli.moduli]
    return np.stack(parts, axis=1).astype(np.int8)


def addends_for(rng, value, dtype):
    """Numbers that cancel a result in all of its bits or not at all, in the dtype."""
    real = value.view(value.real.dtype)
    size = real.shape
    c = -np.nextafter(real, rng.choice([-1, 0, 1], size).astype(real.dtype) * np.inf)
    powers = rng.integers(-130, 110, size)
    other = np.ldexp(rng.standard_normal(size), powers).astype(real.dtype)
    c = np.where(rng.random(size) < 0.5, other, c).astype(real.dtype)
    c.ravel()[:5] = [0.0, -0.0, np.inf, -np.inf, np.nan]
    return c.view(dtype)


def check_rounded_once(device, rng, count, dtype, rounding, *, special=False):
    """Both arrays, from products and from products of halves, against the twin."""
    moduli, width = moduli_set(count, is_complex(dtype)), width_of(dtype)
    m, n = (4, 130 // width) if device == "cpu" else (9, 300)
    half_m, half_n = (2, 40) if device == "cpu" else (5, 256)
    half_n = max(half_n, -(-n // 2))
    integers, products = products_for(rng, moduli, 1, m, n, dtype)
    bits = moduli.half_range.bit_length()
    targets = [bits // 2, bits - 1020, bits + 1100, 0]
    s = np.resize(targets, (1, m)) if special else rng.integers(0, 40, (1, m))
    t = rng.integers(0, 40, (1, n))
    shift = 3
    value = reference(integers, moduli, shift - s[:, :, None] - t[:, None, :], dtype)
    c = None
    if rounding.has_addend:
        factor = rounding.sign * rounding.c_sign
        factor *= 2.0 ** (rounding.c_exponent + shift)
        with np.errstate(all="ignore"):
            c = addends_for(rng, (value / factor).astype(dtype), dtype)
    parts = crt_rounded_once(
        residues_of(integers, moduli),
        -s[:, :, None],
        np.repeat(-t[:, None, :], width, axis=2),
        shift,
        moduli,
        fmt_of(dtype),
        rounding,
        None if c is None else c.view(c.real.dtype),
    )
    second = None
    if rounding.has_two_parts:
        like = torch.zeros((1, m, 3 * n), dtype=getattr(torch, np.dtype(dtype).name))
        second = like.to(device)[:, :, 1::3]
    options = {"shift": shift, "rounding": rounding, "second": second, "c": c}
    planes = [(products, {})]
    of_planes = moduli.of_planes(products.shape[1])
    joined = seven_products(products, of_planes, half_m, half_n, rng)
    planes.append((joined, {"halves": (half_m, half_n)}))
    for x, form in planes:
        found = run(device, x, s, t, moduli, dtype, (1, m, n), **options, **form)
        assert_same_bits(found, parts[0].view(dtype))
        if second is not None:
            assert_same_bits(second.contiguous(), parts[1].view(dtype))


@pytest.mark.thinned(7)
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("count", [2, 7, 14, 20, 33, MAX_MODULI])
def test_pairs_enclosures_and_sums_are_rounded_once(device, count, dtype, rounding):
    rng = np.random.default_rng(count)
    check_rounded_once(device, rng, count, dtype, rounding)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [6, 20])
def test_results_of_both_roundings_at_the_ends_of_the_format(
    device, count, dtype, rounding
):
    rng = np.random.default_rng(count)
    check_rounded_once(device, rng, count, dtype, rounding, special=True)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("rounding", ROUNDINGS[:3], ids=str)
def test_both_roundings_of_vectors_with_infinities_and_nans(device, dtype, rounding):
    rng = np.random.default_rng(4)
    moduli, m, n, k = moduli_set(9, is_complex(dtype)), 3, 40, 5
    _, products = products_for(rng, moduli, 1, m, n, dtype)
    a, b = (rng.integers(-2, 3, x).astype(dtype) for x in ((1, m, k), (1, k, n)))
    a.real[0, 1, 2], b.real[0, 3, 5], b.real[0, 4, 39] = np.inf, -np.inf, np.nan
    rows, cols = (~np.isfinite(x).all(axis=axis) for x, axis in ((a, 2), (b, 1)))
    s = np.where(rows, NOT_FINITE.value, 7)
    t = np.where(cols, NOT_FINITE.value, 9)
    plain = [torch.zeros((1, m, n), dtype=getattr(torch, np.dtype(dtype).name))]
    c = np.ones((1, m, n), dtype)
    c.real[0, 0, 5], c.real[0, 1, 0] = np.inf, -np.inf
    second = plain[0].to(device)
    options = {"rounding": rounding, "second": second, "operands": (a, b)}
    if rounding.has_addend:
        options |= {"c": c, "second": None}
    options["operands"] = tuple(torch.tensor(x, device=device) for x in (a, b))
    found = run(device, products, s, t, moduli, dtype, (1, m, n), **options)

    # The same without the marks, filled in and added to afterwards.
    options["operands"] = None
    bare = second.clone()
    if rounding.has_addend:
        options["c"] = np.where(np.isfinite(c), c, 0)
    else:
        options["second"] = bare
    s, t = np.full((1, m), 7), np.full((1, n), 9)
    expected = run(device, products, s, t, moduli, dtype, (1, m, n), **options)
    expected = expected.cpu().numpy()
    fill_nonfinite(expected, a, b, rows, cols)
    if rounding.has_addend:
        with np.errstate(invalid="ignore"):
            expected = np.where(np.isfinite(c), expected, expected + c)
    assert_same_bits(found, expected)
    if rounding.has_two_parts:
        rest = bare.cpu().numpy()
        fill_nonfinite(rest, a, b, rows, cols)
        if rounding.result == "pair":
            rest[rows[:, :, None] | cols[:, None, :]] = 0
        assert_same_bits(second, rest)


WIDE_STORES = {
    "float64": "st.global.v2.b64",
    "float32": "st.global.v4.b32",
    "complex128": "st.global.v2.b64",
    "complex64": "st.global.v2.b32",
}
"""What a thread stores at a time in PTX: whole entries, or 16 bytes of real ones."""


MEASURED_SPILLS = {
    # The PTX compiler of Triton 3.6 keeps threads to 168 registers up to sm_89. That of
    # 3.9 gives them 208, and nothing is spilled.
    "28 torch.float64 combined False triangle False": {"3.6": {80: 80, 86: 68, 89: 68}},
    # It takes the same 168 here, and stores and loads one word.
    "8 torch.complex128 array once": {"3.6": {86: 2}},
    "20 torch.complex128 enclosure once": {"3.9": {120: 14}},
    # Whole integers of both components of 28 moduli fill all 255 registers.
    "28 torch.complex128 array once": {"3.9": {120: 153}},
    # The 96 registers of `_REGISTERS`, which are quicker than more without spills.
    "14 torch.float64 of halves": {"3.9": {90: 68, 120: 65}},
}
"""Stores and loads by case, Triton and architecture, where they are more than usual."""


def test_compiled_reconstruction(compiled, most_spills):
    for line in compiled("reconstruction"):
        if line["kernel"] != "crt_kernel":  # products of halves are made as well
            assert line["spills"] == 0, line
            continue
        # A few of the 168 planes of 28 moduli wait in memory, and words of products of
        # halves: more programs fit then.
        many = line["case"].startswith("28 ") or line["case"].endswith(
            "float64 of halves"
        )
        usual = 64 if many else 0
        assert line["spills"] <= most_spills(line, usual, MEASURED_SPILLS), line
        assert line["dot products"] > 0, line
        (store,) = (
            wide for dtype, wide in WIDE_STORES.items() if dtype in line["case"]
        )
        assert line[store] > 0, line
