"""Scales and residues of the kernels equal those of numerics: scales to the bit,
residues as classes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.scaled_residues import (
    NONE_MISSING,
    NOT_FINITE,
    Config,
    VectorScale,
    norm_scales,
    scaled_residues,
    sized_residues,
    warps_for,
)
from hifigemm.numerics import error_ratio, scaling
from hifigemm.numerics import residues as crt
from hifigemm.numerics.bits import NO_BIT
from hifigemm.numerics.embedding import components
from hifigemm.numerics.estimates import magnitudes_down
from hifigemm.numerics.residue_products import product_operands
from hifigemm.numerics.special import clean
from tests import hard_matrices as gen

norm_scales = partial(run_recorded, norm_scales)
scaled_residues = partial(run_recorded, scaled_residues)
sized_residues = partial(run_recorded, sized_residues)

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
DTYPES = (np.float64, np.float32, np.complex128, np.complex64)
BLOCK_ENTRIES = 1 << 20
PATHS = {
    "chosen": None,
    "default": Config(),
    "whole": Config(vectors=8, blocks=16),
    "whole pairs": Config(vectors=2, blocks=16),
    "pieces": Config(blocks=1, ahead=1 << 15),
}


def single(rng, shape):
    x = np.zeros(shape)
    x[..., shape[-1] // 2] = rng.uniform(-1, 1, shape[:-1])
    return x


FAMILIES = {
    "phi": lambda rng, shape: gen.phi_matrix(rng, shape, 2.0, np.float64),
    "full_range": lambda rng, shape: gen.full_range(rng, shape, np.float64),
    "subnormal": lambda rng, shape: gen.subnormal(rng, shape, np.float64),
    "zeros": lambda rng, shape: np.full(shape, -0.0),
    "largest": lambda rng, shape: rng.choice([-1, 1], shape) * np.finfo(np.float64).max,
    "smallest": lambda rng, shape: (
        rng.choice([-1, 1], shape) * np.finfo(np.float64).smallest_subnormal
    ),
    "powers_of_two": lambda rng, shape: (
        rng.choice([-1, 1], shape) * 2.0 ** rng.integers(-8, 8, shape)
    ),
    "wide": lambda rng, shape: (
        rng.uniform(-1, 1, shape) * 10.0 ** rng.integers(-300, 300, shape)
    ),
    "integers": lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float64),
    "halves": lambda rng, shape: (
        rng.integers(-9, 10, shape) * 2.0**-60 + rng.choice([0, 1], shape)
    ),
    "single": single,
    "near_powers": lambda rng, shape: np.nextafter(
        2.0 ** rng.integers(-4, 5, shape), rng.choice([-9, 99], shape)
    ),
}


def make(name, rng, shape, dtype=np.float64):
    dtype = np.dtype(dtype)
    real = np.finfo(dtype).dtype
    with np.errstate(over="ignore", under="ignore"):
        planes = [
            np.nan_to_num(FAMILIES[name](rng, shape).astype(real))
            for _ in range(1 + (dtype.kind == "c"))
        ]
    return planes[0] if len(planes) == 1 else (planes[0] + 1j * planes[1]).astype(dtype)


def run(function, *args, **options):
    """The kernels of the interpreter compute with Inf and NaN as a GPU does, without a
    word.
    """
    with np.errstate(all="ignore"):
        return function(*args, **options)


def on_device(x):
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(x).to(DEVICE)


def finite(x, axis):
    """The operand with zeros for vectors that hold an Inf or NaN, and which vectors are
    finite.
    """
    keep = np.isfinite(x).all(axis=axis, keepdims=True)
    return np.where(keep, x, 0), keep.squeeze(axis)


def check_scale(x, axis, moduli, scale, balance=0):
    x, keep = finite(x, axis)
    expected = scaling.norm_scale(x, axis, moduli, balance, BLOCK_ENTRIES)
    exponent, nearest = (t.cpu().numpy() for t in scale)
    assert exponent.dtype == nearest.dtype == np.int32
    np.testing.assert_array_equal(
        exponent, np.where(keep, expected.exponent.squeeze(axis), NOT_FINITE)
    )
    np.testing.assert_array_equal(nearest[keep], expected.nearest.squeeze(axis)[keep])


def check_parts(x, axis, moduli, scale, planes):
    """Residues of round_to_integers with the given scale, K-major, zero beyond k."""
    x, keep = finite(x, axis)
    rows = np.repeat(
        moduli.moduli,
        [1 if x.dtype.kind != "c" else 2 if j else 3 for j in moduli.splits],
    )
    exponent, nearest = (
        np.expand_dims(t.cpu().numpy(), axis).astype(np.int64) for t in scale
    )
    exponent = np.where(np.expand_dims(keep, axis), exponent, 0)
    integers = [
        scaling.round_to_integers(c, exponent, nearest.astype(bool))
        for c in components(x)
    ]
    found = [crt.residues(z, moduli.moduli) for z in integers]
    expected = product_operands(found, moduli) if len(found) == 2 else found[0]
    expected = np.moveaxis(expected, 0, 1).astype(np.int64)
    expected = expected if axis == 2 else expected.swapaxes(2, 3)
    found = planes.cpu().numpy()
    k = x.shape[axis]
    assert found.dtype == np.int8
    assert found.shape == (
        *expected.shape[:3],
        -(-k // 128) * 128 if k >= 1024 else -(-k // 16) * 16,
    )
    assert not found[..., k:].any()
    differ = (found[..., :k] - expected) % rows[:, None, None] != 0
    assert not (differ & keep[:, None, :, None]).any()


def check(operands, moduli, balances=(0, 0), config=None):
    """Everything for one or two (array or tensor, axis); returns the planes."""
    given = tuple((on_device(x), axis) for x, axis in operands)
    arrays = [(x.resolve_conj().cpu().numpy(), axis) for x, axis in given]
    planes, scales = run(
        scaled_residues, given, moduli, balances=balances, config=config
    )
    alone = run(norm_scales, given, moduli, balances, config)
    again, _ = run(scaled_residues, given, moduli, scales, balances, config=config)
    for (x, axis), part, scale, balance, other, repeated in zip(
        arrays, planes, scales, balances, alone, again
    ):
        check_scale(x, axis, moduli, scale, balance)
        check_parts(x, axis, moduli, scale, part)
        keep = (scale.exponent != NOT_FINITE)[:, None, :, None]
        assert all(torch.equal(s, t) for s, t in zip(scale, other))
        assert torch.equal(part * keep, repeated * keep)
    return planes


def pair(name, rng, m, k, n, dtype=np.float64, batch=(1, 1)):
    return (make(name, rng, (batch[0], m, k), dtype), 2), (
        make(name, rng, (batch[1], n, k), dtype).swapaxes(1, 2),
        1,
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_scales_and_residues_equal_numerics(name, dtype):
    rng = np.random.default_rng([1, *name.encode()])
    is_complex = np.dtype(dtype).kind == "c"
    check(
        pair(name, rng, 5, 270, 3, dtype),
        crt.moduli_set(14 if dtype is np.float64 else 5, is_complex),
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("k", [1, 15, 16, 255, 256, 257, 1025, 2100])
def test_every_path_and_inner_dimension_gives_the_same(path, k):
    rng = np.random.default_rng(k)
    check(
        pair("wide" if k % 2 else "phi", rng, 3, k, 5),
        crt.moduli_set(6, False),
        config=PATHS[path],
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", [2, 3, 7, 8, 15, 16, 17, 20, 33, 49])
def test_every_number_of_moduli(count, is_complex):
    rng = np.random.default_rng(count)
    dtype = np.complex128 if is_complex else np.float64
    for name in ("phi", "halves", "largest"):
        check(pair(name, rng, 4, 33, 3, dtype), crt.moduli_set(count, is_complex))


@pytest.mark.parametrize("balances", [(7, -7), (-40, 40)])
def test_balances_shift_exponents(balances):
    rng = np.random.default_rng(3)
    check(pair("phi", rng, 4, 70, 5), crt.moduli_set(14, False), balances)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [-np.inf, np.nan])
def test_vectors_with_inf_or_nan_are_marked_and_leave_the_others_alone(bad, dtype):
    rng = np.random.default_rng(4)
    (a, _), (b, _) = pair("phi", rng, 5, 600, 9, dtype)
    a[0, 2, 599] = bad
    b[0, 0, 3], b[0, 256, 8] = bad, bad
    if np.dtype(dtype).kind == "c":
        a[0, 4, 7] = complex(1, bad)
    for config in PATHS.values():
        check(
            ((a, 2), (b, 1)),
            crt.moduli_set(4, np.dtype(dtype).kind == "c"),
            config=config,
        )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name", ["phi", "full_range", "subnormal", "zeros", "largest", "near_powers"]
)
def test_sizes_and_magnitudes_equal_numerics(name, path, dtype):
    rng = np.random.default_rng([11, *name.encode()])
    operands = pair(name, rng, 3, 600, 4, dtype, (2, 1))
    operands[0][0][1, 2, 599] = np.nan
    given = tuple((on_device(x), axis) for x, axis in operands)
    moduli = crt.moduli_set(5, np.dtype(dtype).kind == "c")
    planes, scales, sizes = run(sized_residues, given, moduli, config=PATHS[path])
    alone, same = run(scaled_residues, given, moduli, config=PATHS[path])
    assert sizes.width == 1 + (np.dtype(dtype).kind == "c")
    total = 0
    for (x, axis), low, part, other, found, again in zip(
        operands, sizes.magnitudes, planes, alone, scales, same
    ):
        e, norm, sums = (
            np.moveaxis(y, axis, 2)[..., 0]
            for y in error_ratio._sizes(x, axis, BLOCK_ENTRIES)
        )
        keep = np.isfinite(x).all(axis=axis) & x.any(axis=axis)
        own = slice(total, total + keep.size)
        total += keep.size
        np.testing.assert_array_equal(
            sizes.exponents.cpu().numpy()[own][keep.ravel()], e.ravel()[keep.ravel()]
        )
        for y, want in zip(
            sizes.norms.cpu().numpy()[:, own] * 2.0**-scaling.NORM_BITS, (norm, sums)
        ):
            np.testing.assert_array_equal(y, want.ravel())
        x = np.moveaxis(x, axis, 2)
        want = np.zeros((*x.shape[:2], sizes.width, 640))
        for i, c in enumerate(components(x)):
            want[..., i, :600] = magnitudes_down(clean(c), e[..., None])
        low = low.cpu().numpy().reshape(want.shape)
        np.testing.assert_array_equal(low[keep], want[keep])
        assert torch.equal(found.exponent, again.exponent)
        finite_ones = (found.exponent != NOT_FINITE)[:, None, :, None]
        assert torch.equal(part * finite_ones, other * finite_ones)


@pytest.mark.parametrize("path", ["whole", "pieces"])
def test_nothing_is_made_where_the_predicate_does_not_hold(path, monkeypatch):
    """Outputs begin as ones, and counters of arrivals as zeros: programs that stayed
    would wait for those that left.
    """
    monkeypatch.setattr(torch, "empty", torch.ones)
    given = tuple(
        (on_device(x), axis)
        for x, axis in pair("phi", np.random.default_rng(12), 20, 600, 3, batch=(2, 1))
    )
    moduli = crt.moduli_set(5, False)
    record = torch.tensor([2**40], dtype=torch.int64, device=DEVICE)
    want = tensors(run(sized_residues, given, moduli, config=PATHS[path]))
    for least, most, holds in (
        (2**40, 2**40, True),
        (0, LARGEST, True),
        (2**40 + 1, LARGEST, False),
        (0, -1, False),
    ):
        predicate = Predicate(record, least, most)
        found = tensors(
            run(sized_residues, given, moduli, config=PATHS[path], predicate=predicate)
        )
        for x, y in zip(found, want, strict=True):
            assert torch.equal(x, y if holds else torch.ones_like(y))


def tensors(sized):
    """All tensors in what `sized_residues` returns."""
    planes, scales, sizes = sized
    return [
        *planes,
        *(x for scale in scales for x in scale),
        sizes.exponents,
        sizes.norms,
        *sizes.magnitudes,
    ]


def views(rng, dtype):
    """Operands by stride: name, tensor (batch, m, k)."""
    x = on_device(make("phi", rng, (2, 5, 66), dtype))
    yield "plain", x
    yield "columns", on_device(make("phi", rng, (2, 66, 5), dtype)).mT
    yield "odd pitch", on_device(make("phi", rng, (2, 5, 67), dtype))[:, :, 1:]
    yield "every other", on_device(make("phi", rng, (2, 10, 132), dtype))[:, ::2, ::2]
    yield "one vector for all", x[:, :1].expand(2, 5, 66)
    yield "one entry for all", x[:, :, :1].expand(2, 5, 40)
    yield "one matrix for all", x[:1].expand(2, 5, 66)
    yield (
        "stack along k",
        on_device(make("phi", rng, (66, 5, 2), dtype)).permute(2, 1, 0),
    )
    if x.is_complex():
        yield "conjugate", x.conj()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("axis", [2, 1])
def test_strides_do_not_matter(dtype, axis):
    moduli = crt.moduli_set(2, np.dtype(dtype).kind == "c")
    other = make("phi", np.random.default_rng(6), (1, 2, 66), dtype)
    for _, x in views(np.random.default_rng(5), dtype):
        x = x if axis == 2 else x.mT
        k = x.shape[axis]
        second = (
            (other[..., :k], 2) if axis == 1 else (other[..., :k].swapaxes(1, 2), 1)
        )
        check(((x, axis), second), moduli)
        check((second, (x, axis)), moduli)


@pytest.mark.parametrize("batch", [(1, 3), (3, 1), (2, 2)])
def test_stacks_and_one_matrix_share_a_launch(batch):
    check(
        pair("phi", np.random.default_rng(7), 5, 40, 6, batch=batch),
        crt.moduli_set(9, False),
    )


def test_scales_of_some_vectors_give_their_residues():
    rng = np.random.default_rng(8)
    moduli = crt.moduli_set(2, False)
    a = on_device(make("wide", rng, (2, 13, 300)))
    planes, scales = run(scaled_residues, ((a, 2),), moduli)
    some = VectorScale(*(x[1:2, 3:9].contiguous() for x in scales[0]))
    found, _ = run(scaled_residues, ((a[1:2, 3:9], 2),), moduli, (some,))
    assert torch.equal(found[0], planes[0][1:2, :, 3:9])


@pytest.mark.parametrize("count", [4, 14, 33])
def test_given_exponents_may_exceed_those_of_the_norms(count):
    rng = np.random.default_rng(9)
    moduli = crt.moduli_set(count, False)
    a = make("phi", rng, (1, 6, 50))
    for shift, nearest in ((0, 1), (30, 1), (-20, 0), (40, 0)):
        s = (
            scaling.norm_scale(a, 2, moduli, 0, BLOCK_ENTRIES).exponent.squeeze(2)
            + shift
        )
        bits = max(int((s[..., None] + np.frexp(np.abs(a))[1]).max()), 0) + 1
        exponent = on_device(s.astype(np.int32))
        scale = VectorScale(exponent, torch.full_like(exponent, nearest))
        planes, _ = run(
            scaled_residues, ((on_device(a), 2),), moduli, (scale,), bits=bits
        )
        check_parts(a, 2, moduli, scale, planes[0])


def test_rounding_is_to_nearest_even_or_toward_zero_at_every_tie():
    moduli = crt.moduli_set(14, False)
    ties = np.arange(-64, 64) / 4
    near = np.concatenate([np.nextafter(ties, -99), ties, np.nextafter(ties, 99)])
    big = (
        np.arange(-9, 10)[:, None] * 2.0**31 + np.arange(-9, 10)[None, :] / 4
    ).ravel()
    word = (
        np.arange(-9, 10)[:, None] * 1.5 * 2.0**30 + np.arange(-9, 10)[None, :] / 4
    ).ravel()
    x = np.concatenate(
        [near, big, word, 2.0**53 - np.arange(30), -(2.0**52) + np.arange(30) / 2]
    )[None, None]
    for nearest in (0, 1):
        values = x if nearest else x[..., np.abs(x[0, 0]) < 2**14]
        exponent = torch.zeros((1, 1), dtype=torch.int32, device=DEVICE)
        scale = VectorScale(exponent, torch.full_like(exponent, nearest))
        planes, _ = run(scaled_residues, ((on_device(values), 2),), moduli, (scale,))
        check_parts(values, 2, moduli, scale, planes[0])


@pytest.mark.parametrize(
    ("num_words", "dp4a", "warps"),
    [
        (1, True, 4),
        (2, True, 4),
        (3, True, 8),
        (4, True, 8),
        (1, False, 4),
        (2, False, 8),
    ],
)
def test_threads_hold_fewer_integers_of_many_words(num_words, dp4a, warps):
    assert warps_for(4, num_words, dp4a=dp4a) == warps
    assert warps_for(32, num_words, dp4a=dp4a) == 32


@pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, marks=pytest.mark.gpu) for dtype in DTYPES]
)
def test_large_operands_on_a_gpu(dtype):
    is_complex = np.dtype(dtype).kind == "c"
    for m, k, n in ((130, 4096, 70), (9, 20000, 20), (300, 1000, 303)):
        rng = np.random.default_rng([m, k, n])
        a, b = make("phi", rng, (1, m, k), dtype), make("wide", rng, (1, k, n), dtype)
        for count in (7, 14, 20):
            check(((a, 2), (b, 1)), crt.moduli_set(count, is_complex))
            check(
                ((b.swapaxes(1, 2), 2), (a.swapaxes(1, 2), 1)),
                crt.moduli_set(count, is_complex),
            )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(c, marks=pytest.mark.gpu)
        for c in (Config(8, 2), Config(16, 4), Config(16, 1))
    ],
)
def test_tiles_change_no_bits_on_a_gpu(config):
    rng = np.random.default_rng(10)
    a, b = make("phi", rng, (2, 130, 3000)), make("full_range", rng, (1, 3000, 70))
    check(((a, 2), (b, 1)), crt.moduli_set(14, False), config=config)


def test_compiled_residues_of_operands(arch, compiled):
    for line in compiled("scaling"):
        # Of the 64 words behind the pairs of residues of a thread, a few are fetched
        # anew for each pair: up to sm_89 with Triton 3.9 more than elsewhere. The lowest
        # bits of entries take as many more.
        limit = 112 if arch < 90 else 72 if "missing bits" in line["case"] else 48
        assert line["spills"] <= (limit if "complex" in line["case"] else 0), line
        # more words than DP4A takes
        many = "complex" in line["case"] and "moduli 20" in line["case"]
        assert (line["dot products"] > 0) != (
            many or line["kernel"] == "_clear_kernel"
        ), line
        assert line["conversions"] == 0, line


@pytest.mark.thinned(5)
@pytest.mark.parametrize("path", ["default", "whole", "pieces"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [3, 9, 17])
def test_a_least_square_norm_makes_scales_of_the_largest_entries(count, dtype, path):
    rng = np.random.default_rng(count)
    is_complex = np.dtype(dtype).kind == "c"
    moduli = crt.moduli_set(count, is_complex)
    for name in FAMILIES:
        x, y = make(name, rng, (1, 3, 300), dtype), make(name, rng, (1, 300, 2), dtype)
        x[0, 1] = 0
        terms = 300 * (1 + is_complex)
        planes, scales = run(
            scaled_residues,
            ((on_device(x), 2), (on_device(y), 1)),
            moduli,
            least_square=scaling.largest_square(terms, moduli),
            config=PATHS[path],
        )
        for z, axis, scale, residues in zip(
            (x, y), (2, 1), scales, planes, strict=True
        ):
            exponents = scaling.exponents(z, axis, BLOCK_ENTRIES)
            want = scaling.largest_scale(exponents, axis, terms, moduli)
            exponent, nearest = (t.cpu().numpy() for t in scale)
            # Zeros are zeros on any grid.
            has_entries = (z != 0).any(axis=axis)
            pairs = (exponent, want.exponent), (nearest, want.nearest)
            for made, expected in pairs:
                expected = expected.squeeze(axis)
                np.testing.assert_array_equal(made[has_entries], expected[has_entries])
            assert not residues.cpu().numpy()[:, :, ~has_entries[0]].any()


@pytest.mark.thinned(11)
@pytest.mark.parametrize("path", ["default", "whole pairs", "pieces"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_that_the_integers_miss_are_counted(name, dtype, path):
    rng = np.random.default_rng(5)
    a, b = make(name, rng, (1, 19, 300), dtype), make(name, rng, (1, 300, 5), dtype)
    a[0, 3, 7] = np.inf
    b[0, 2, 1] = np.nan
    moduli = crt.moduli_set(15, a.dtype.kind == "c")
    missing = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    run(
        scaled_residues,
        ((on_device(a), 2), (on_device(b), 1)),
        moduli,
        balances=(3, -3),
        config=PATHS[path],
        missing=missing,
    )
    want = []
    for x, axis, balance in ((a, 2, 3), (b, 1, -3)):
        x, _ = finite(x, axis)
        lowest = scaling.lowest_bits(x, axis, BLOCK_ENTRIES)
        scale = scaling.norm_scale(x, axis, moduli, balance, BLOCK_ENTRIES)
        bits = NONE_MISSING - lowest - scale.exponent
        want.append(bits[lowest != NO_BIT].max(initial=0))
    assert missing.tolist() == [max(want), *want]
