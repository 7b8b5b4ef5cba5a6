"""From residues to rounded values: the bits of ModuliSet.reconstruct, round_limbs, fill_nonfinite and combine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.engines.kernels.crt_constants import crt_constants
from hifigemm.engines.kernels.reconstruction import reconstruct
from hifigemm.engines.kernels.vectors_kernels import NOT_FINITE
from hifigemm.formats import FP32, FP64
from hifigemm.numerics.epilogue import combine
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.rounding import round_limbs
from hifigemm.numerics.special import fill_nonfinite

DTYPES = [np.float64, np.float32]
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles for the device")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=DEVICES, scope="module")
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def padded_residues(integers, moduli, rng):
    """int8 (batch, L, m_pad, n_pad): residues of integers (batch, m, n), any representative, noise in the padding."""
    batch, m, n = integers.shape
    shape = (batch, len(moduli.moduli), -(-m // 128) * 128, -(-n // 256) * 256)
    out = rng.integers(-128, 128, shape).astype(np.int8)
    for l, p in enumerate(moduli.moduli):
        r = (integers % p).astype(np.int64)
        lower, upper = r - p, r
        other = (lower >= -128) & ((upper > 127) | (rng.random(r.shape) < 0.5))
        out[:, l, :m, :n] = np.where(other, lower, upper)
    return out


def reference(integers, moduli, exponents, fmt):
    """Values, and floor(log2 |V|), by numerics."""
    shape = integers.shape
    residues = np.array([[(v + p // 2) % p - p // 2 for v in integers.ravel()] for p in moduli.moduli], np.int8)
    rounded = round_limbs(moduli.reconstruct(residues), np.broadcast_to(exponents, shape).astype(np.int64).ravel(), fmt)
    return rounded.values.reshape(shape), rounded.magnitude.reshape(shape)


def assert_same_bits(result, expected):
    result = result.cpu().numpy()
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    word = np.int64 if expected.dtype == np.float64 else np.int32
    wrong = (result.view(word) != expected.view(word)) & ~np.isnan(expected)
    assert not wrong.any(), (np.argwhere(wrong)[:5], result[wrong][:5], expected[wrong][:5])


def hard_integers(rng, moduli, fmt, count):
    """Integers up to half_range: random of every length, powers of two and what surrounds them, ties and near ties."""
    top = moduli.half_range
    bits = top.bit_length()

    def uniform(limit):
        return int.from_bytes(rng.bytes(limit.bit_length() // 8 + 9), "little") % (2 * limit + 1) - limit

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
            near = int(rng.integers(-1, 2)) << int(rng.integers(0, drop)) if kind == 5 and drop > 1 else 0
            v = sign * ((abs(kept) << drop) + (1 << drop >> 1) + near)
        found.append(max(-top, min(top, v)))
    return found


def block_of(values, m, n):
    """Object array (1, m, n) that repeats a list of integers."""
    out = np.empty(m * n, object)
    out[:] = [values[i % len(values)] for i in range(m * n)]
    return out.reshape(1, m, n)


def run(device, products, s, t, moduli, dtype, shape, **options):
    out = torch.full(shape, 7.0, dtype=getattr(torch, np.dtype(dtype).name), device=device)
    to = {"device": device}
    scales = (torch.tensor(s, dtype=torch.int32, **to), torch.tensor(t, dtype=torch.int32, **to))
    options = {k: torch.tensor(v, **to) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy
        reconstruct(torch.tensor(products, **to), scales, moduli, out, **options)
    return out


def fmt_of(dtype):
    return FP64 if dtype == np.float64 else FP32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 8, 12, 13, 14, 15, 17, 18, 20, 25, 33, MAX_MODULI])
def test_hard_integers_are_rounded_as_by_numerics(device, count, dtype):
    rng = np.random.default_rng(count)
    moduli, fmt = moduli_set(count, False), fmt_of(dtype)
    m, n = (5, 200) if device == "cpu" else (130, 1030)
    integers = block_of(hard_integers(rng, moduli, fmt, min(m * n, 20000)), m, n)
    s = rng.integers(0, 40, (1, m))
    t = rng.integers(0, 40, (1, n))
    exponents = 3 - s[:, :, None] - t[:, None, :]
    expected, _ = reference(integers, moduli, exponents, fmt)
    result = run(device, padded_residues(integers, moduli, rng), s, t, moduli, dtype, (1, m, n), shift=3)
    assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [6, 8, 14, 20])
def test_results_at_the_ends_of_the_format(device, count, dtype):
    rng = np.random.default_rng(count)
    moduli, fmt = moduli_set(count, False), fmt_of(dtype)
    m, n = 12, 257
    integers = block_of(hard_integers(rng, moduli, fmt, m * n), m, n)
    bits = moduli.half_range.bit_length()
    lowest, highest = fmt.min_exponent, fmt.emax
    results = np.array(
        [2100, highest + 2, highest + 1, highest, highest - 30, 0, lowest + 60, lowest + 53, lowest + 24]
    )
    results = np.concatenate([results, [lowest + 1, lowest - 1, -2100]])
    s = 1000 - results[None, :] + bits
    t = rng.integers(-1040, -960, (1, n))
    expected, _ = reference(integers, moduli, -s[:, :, None] - t[:, None, :], fmt)
    assert np.isinf(expected).any()
    assert (np.signbit(expected) & (expected == 0)).any()
    assert ((expected != 0) & (np.abs(expected) < np.finfo(dtype).tiny)).any()
    products = padded_residues(integers, moduli, rng)
    assert_same_bits(run(device, products, s, t, moduli, dtype, (1, m, n)), expected)


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_integer_and_exponent(device, data, dtype):
    count = data.draw(st.integers(2, 24))
    moduli, fmt = moduli_set(count, False), fmt_of(dtype)
    top = moduli.half_range
    numbers = st.integers(-top, top) | st.integers(-(1 << 60), 1 << 60).map(lambda v: max(-top, min(top, v)))
    integers = block_of(data.draw(st.lists(numbers, min_size=1, max_size=12)), 3, 5)
    scales = st.lists(st.integers(-1100, 1100) | st.integers(-60, 200), min_size=3, max_size=3)
    s, t = np.array([data.draw(scales)]), np.array([data.draw(scales) * 2])[:, :5]
    shift = data.draw(st.integers(-2000, 2000))
    expected, sizes = reference(integers, moduli, shift - s[:, :, None] - t[:, None, :], fmt)
    magnitude = torch.zeros((1, 3, 5), dtype=torch.int32, device=device)
    products = padded_residues(integers, moduli, np.random.default_rng(0))
    result = run(device, products, s, t, moduli, dtype, (1, 3, 5), shift=shift, magnitude=magnitude)
    assert_same_bits(result, expected)
    np.testing.assert_array_equal(magnitude.cpu().numpy(), sizes)


@pytest.mark.parametrize("count", [7, 13, 14, 20])
def test_magnitudes_of_hard_integers(device, count):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, False)
    integers = block_of(hard_integers(rng, moduli, FP64, 2000), 4, 500)
    s, t = np.zeros((1, 4), int), np.zeros((1, 500), int)
    _, sizes = reference(integers, moduli, 0, FP64)
    magnitude = torch.zeros((1, 4, 500), dtype=torch.int16, device=device)
    products = padded_residues(integers, moduli, rng)
    run(device, products, s, t, moduli, np.float64, (1, 4, 500), magnitude=magnitude)
    np.testing.assert_array_equal(magnitude.cpu().numpy(), sizes)


def products_for(rng, moduli, batch, m, n):
    integers = np.concatenate([block_of(hard_integers(rng, moduli, FP64, m * n), m, n) for _ in range(batch)])
    return integers, padded_residues(integers, moduli, rng)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 257), (9, 1)])
def test_single_rows_and_columns(device, m, n):
    rng = np.random.default_rng(6)
    moduli = moduli_set(14, False)
    integers, products = products_for(rng, moduli, 2, m, n)
    s, t = rng.integers(0, 99, (2, m)), rng.integers(0, 99, (2, n))
    expected, _ = reference(integers, moduli, -s[:, :, None] - t[:, None, :], FP64)
    assert_same_bits(run(device, products, s, t, moduli, np.float64, (2, m, n)), expected)


@pytest.mark.parametrize("count", [8, 14])
@pytest.mark.parametrize("same", [(False, False), (True, False), (False, True), (True, True)])
def test_scales_are_repeated_over_the_batch(device, same, count):
    rng = np.random.default_rng(1)
    moduli, batch, m, n = moduli_set(count, False), 3, 5, 7
    integers, products = products_for(rng, moduli, batch, m, n)
    s, t = (rng.integers(0, 99, (1 if one else batch, size)) for one, size in zip(same, (m, n)))
    expected, _ = reference(integers, moduli, -s[:, :, None] - t[:, None, :], FP64)
    assert_same_bits(run(device, products, s, t, moduli, np.float64, (batch, m, n)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_products_and_outputs(device, dtype):
    rng = np.random.default_rng(2)
    moduli, batch, m, n = moduli_set(9, False), 2, 3, 70
    integers, products = products_for(rng, moduli, batch, m, n)
    s, t = rng.integers(0, 99, (batch, m)), rng.integers(0, 99, (batch, n))
    expected, _ = reference(integers, moduli, -s[:, :, None] - t[:, None, :], fmt_of(dtype))
    wide = np.full((batch, 20, 256, 512), 99, np.int8)
    wide[:, 2:11, 128:, :256] = products
    view = torch.tensor(wide, device=device)[:, 2:11, 128:, :256]
    to = {"dtype": getattr(torch, np.dtype(dtype).name), "device": device}
    scales = tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in (s, t))
    outputs = [
        torch.zeros((batch, n, m), **to).mT,
        torch.zeros((batch, 2 * m, 3 * n), **to)[:, ::2, 1::3],
        torch.zeros((m, batch, n), **to).transpose(0, 1),
    ]
    for out in outputs:
        with np.errstate(all="ignore"):
            reconstruct(view, scales, moduli, out)
        assert_same_bits(out.contiguous(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (-0.3, 0.0), (3e300, -7e-200), (-1.0, 0.75), (1e-300, 1e-310)])
def test_alpha_and_beta_are_applied_as_by_numerics(device, alpha, beta, dtype):
    rng = np.random.default_rng(3)
    moduli, batch, m, n = moduli_set(13, False), 2, 4, 90
    integers, products = products_for(rng, moduli, batch, m, n)
    s, t = rng.integers(-300, 500, (batch, m)), rng.integers(-300, 500, (batch, n))
    t[:, ::3] = 2
    s[:, ::2] = 50
    value, _ = reference(integers, moduli, -s[:, :, None] - t[:, None, :], fmt_of(dtype))
    whole = (rng.standard_normal((batch, m, n)) * 2.0 ** rng.integers(-20, 120, (batch, m, n))).astype(dtype)
    whole[0, 0, :4] = [0.0, -0.0, np.inf, np.nan]
    for c in (whole, whole[:1, :1], whole[:, :, :1]):
        expected = combine(value, alpha, c if beta else None, beta)
        options = {"alpha": alpha, "beta": beta, "c": c}
        assert_same_bits(run(device, products, s, t, moduli, dtype, (batch, m, n), **options), expected)
    out = torch.tensor(whole, device=device)
    scales = tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in (s, t))
    with np.errstate(all="ignore"):
        reconstruct(torch.tensor(products, device=device), scales, moduli, out, alpha=alpha, beta=beta, c=out)
    assert_same_bits(out, combine(value, alpha, whole if beta else None, beta))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_vectors_with_infinities_and_nans_are_filled(device, alpha, dtype):
    rng = np.random.default_rng(4)
    moduli, batch, m, n, k = moduli_set(14, False), 2, 5, 300, 6
    integers, products = products_for(rng, moduli, batch, m, n)
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((batch, m, k), (1, k, n)))
    a[0, 1, 2] = np.inf
    a[1, 4, 3:5] = [-np.inf, np.inf]
    a[1, 0, 0] = np.nan
    b[0, 3, 5], b[0, 4, 299], b[0, 5, 256:258] = -np.inf, np.nan, np.inf
    rows, cols = (~np.isfinite(x).all(axis=axis) for x, axis in ((a, 2), (b, 1)))
    s = np.where(rows, NOT_FINITE.value, rng.integers(0, 99, (batch, m)))
    t = np.where(cols, NOT_FINITE.value, rng.integers(0, 99, (1, n)))
    with np.errstate(over="ignore"):
        finite = np.where(rows, 0, s)[:, :, None] + np.where(cols, 0, t)[:, None, :]
        expected, _ = reference(integers, moduli, -finite, fmt_of(dtype))
    fill_nonfinite(expected, a, b, rows, cols)
    if alpha != 1.0:
        expected = combine(expected, alpha, None, 0.0)
    operands = (torch.tensor(a, device=device), torch.tensor(b, device=device).mT.contiguous().mT)
    options = {"alpha": alpha, "operands": operands}
    assert_same_bits(run(device, products, s, t, moduli, dtype, (batch, m, n), **options), expected)


def test_c_is_not_read_where_beta_is_zero(device):
    moduli = moduli_set(8, False)
    integers, products = products_for(np.random.default_rng(5), moduli, 1, 2, 3)
    s, t = np.zeros((1, 2), int), np.zeros((1, 3), int)
    expected, _ = reference(integers, moduli, 0, FP64)
    c = np.full((1, 2, 3), np.nan)
    assert_same_bits(run(device, products, s, t, moduli, np.float64, (1, 2, 3), c=c, beta=0.0), expected)


def _dot(constant, word, place, addend):
    halves = [(constant >> sh & 0xFFFF ^ 0x8000) - 0x8000 for sh in (0, 16)]
    bytes_ = [(word >> (8 * (place + i)) & 0xFF ^ 0x80) - 0x80 for i in (0, 1)]
    return halves[0] * bytes_[0] + halves[1] * bytes_[1] + addend


def _execute(ptx, words):
    """Y of four entries from one packed word a modulus, by the PTX of a group."""
    registers = {f"${4 + i}": w for i, w in enumerate(words)}

    def value(x):
        return registers[x] if x in registers else int(x, 0)

    for line in ptx.strip("{ }").split(";")[1:-1]:
        op, rest = line.split(None, 1)
        target, *args = [x.strip() for x in rest.split(",")]
        x = [value(arg) for arg in args]
        if op == "prmt.b32":
            both = (x[0] & 0xFFFFFFFF) | (x[1] & 0xFFFFFFFF) << 32
            y = sum((both >> 8 * (x[2] >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))
        elif op.startswith("dp2a"):
            y = _dot(x[0], x[1], 0 if ".lo." in op else 2, x[2])
        elif op == "shr.s32":
            y = ((x[0] & 0xFFFFFFFF ^ 0x80000000) - 0x80000000) >> x[1]
        else:
            assert op == "mad.lo.s32"
            y = x[0] * x[1] + x[2]
        registers[target] = y & 0xFFFFFFFF
    return [registers[f"${i}"] for i in range(4)]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", range(2, MAX_MODULI + 1, 3))
def test_groups_leave_small_integers_with_the_right_residues(count, is_complex):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, is_complex)
    constants = crt_constants(moduli)
    for g, size in enumerate(constants.sizes):
        group = moduli.moduli[4 * g : 4 * g + size]
        whole = int(np.prod(group, dtype=object))
        for extreme in (True, False):
            r = rng.choice([-128, 127], (4, size)) if extreme else rng.integers(-128, 128, (4, size))
            words = [sum((int(x) & 0xFF) << 8 * i for i, x in enumerate(r[:, l])) for l in range(size)]
            for entry, y in enumerate(_execute(constants.ptx[g], words)):
                x = y - 2**31
                assert 2 * abs(x) * 256 <= (256 + 2) * whole
                for l, p in enumerate(group):
                    assert (x * (moduli.modulus_product // whole) - int(r[entry, l])) % p == 0
