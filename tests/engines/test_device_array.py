"""The plain maths on tensors, through NumPy's protocols: the same dtypes and bits as on
NumPy arrays.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.base.exceptions import AccuracyError, InexactProductError
from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, TF32
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.problem import Problem
from hifigemm.numerics import (
    bits,
    blocking,
    eft,
    embedding,
    epilogue,
    estimates,
    limbs,
    scaling,
    slicing,
    special,
)
from hifigemm.numerics.bounds import exact_k_limit
from hifigemm.numerics.residues import moduli_set, reduce_centred, residues
from hifigemm.numerics.rounding import round_in_chunks, round_limbs
from hifigemm.numerics.rounding_formats import is_representable, round_to_format
from hifigemm.numerics.word_bounds import word_error
from hifigemm.numerics.words import Splitting
from hifigemm.running.augmented import Term, sum_with_product
from hifigemm.running.executor import execute
from hifigemm.schemes import Native, Ozaki1, Ozaki2
from tests import hard_matrices as gen
from tests.engines.entries import FLOATS, INTEGERS, REAL, arrays
from tests.planning import make

torch = pytest.importorskip("torch")
device_array = pytest.importorskip("hifigemm.engines.device_array")
from tests.engines.device_arrays import (  # noqa: E402
    on_device,
    on_host,
    same_values,
    untold,
)

wrap, unwrap = device_array.wrap, device_array.unwrap


# 1. Functions of numerics


def hostile() -> dict[str, np.ndarray]:
    """Stacks (2, 5, 12) of float64: subnormal to largest, of one size, integers, zeros
    of both signs.
    """
    rng, shape = np.random.default_rng(5), (2, 5, 12)
    full = gen.full_range(rng, shape)
    mixed = gen.phi_matrix(rng, shape, 4.0)
    mixed[0, 1], mixed[1, :, 3], mixed[0, 2, ::3] = 0.0, -0.0, 2.0**-1074
    return {
        "uniform": gen.uniform(rng, shape),
        "full range": full,
        "subnormal": gen.subnormal(rng, shape),
        "mixed": mixed,
        "integers": rng.integers(-9, 10, shape).astype(np.float64),
        "largest": np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        * np.finfo(np.float64).max,
    }


def exponents(x):
    return (
        bits.largest_exponent(x, 2),
        bits.largest_exponent(x, 1),
        bits.lowest_bit(x, 2),
        bits.lowest_bit(x, 1),
    )


def powers(x):
    e = bits.largest_exponent(x, 2)
    near, far = np.clip(e, -500, 500), np.clip(e, -3, 3) * 700
    return (
        bits.power_of_two(near),
        bits.scale_by_power(x, -near),
        bits.scale_by_power(x, far),
        bits.ceil_magnitude(x, -e),
    )


def transformations(x):
    y = np.swapaxes(x, 1, 2).reshape(x.shape)
    return eft.two_sum(x, y), eft.two_product(np.float64(0.3), x), eft.two_product(x, y)


def slices(x):
    x, y = x.copy(), x.copy()
    unit = slicing.unit_exponent(bits.largest_exponent(x, 2), 7)
    cut = slicing.slice_vectors(x, unit, 7)
    needed = slicing.slices_needed(unit, bits.lowest_bit(x, 2), 7)
    unit = slicing.unit_exponent(bits.largest_exponent(y, 2, slicing.digit_limit(8)), 8)
    wrapped = slicing.slice_vectors(y, unit, 8, twos_complement=True)
    return (
        [next(cut) for _ in range(4)],
        needed,
        x,
        [next(wrapped) for _ in range(4)],
        y,
    )


def scaled(x):
    moduli = moduli_set(12, False)
    return [
        scaling.norm_scale(x, axis, moduli, 3, part)
        for axis in (1, 2)
        for part in (1, 64, 10**6)
    ]


def integers(x):
    e = 60 - bits.largest_exponent(x, 2)
    nearest = scaling.round_to_integers(x, e, np.ones_like(e > 0))
    mixed = scaling.round_to_integers(x, e, e > 0)
    found = residues(nearest, moduli_set(20, False).moduli)
    return nearest, mixed, found, reduce_centred(mixed - 2.0**43 * np.sign(mixed), 256)


def reconstructed(x):
    moduli = moduli_set(20, False)
    whole = np.rint(bits.scale_by_power(x, 60 - bits.largest_exponent(x, 2)))
    found = residues(whole, moduli.moduli)
    return moduli.reconstruct(found.reshape(len(moduli.moduli), -1))


def rounded(x):
    e = bits.largest_exponent(x, 2)
    sums = (
        np.rint(bits.scale_by_power(x, 50 - e))
        .astype(np.int64)
        .reshape(x.shape[0] * x.shape[1], -1)
    )
    exponent = (
        np.repeat(np.clip(e.ravel(), -1074, 900)[:2], sums.shape[1] // 2, axis=0) - 300
    )
    made = []
    for fmt in (FP64, FP32):
        for error in (None, 3, np.clip(exponent, 0, 40)):
            wide = limbs.limbs_from_sums(sums, [11 * s for s in range(len(sums))], 8)
            made.append(round_limbs(wide.copy(), exponent, fmt, error))
            limbs.carry(wide)
            made.append(wide)

    def limbs_of(part):
        return limbs.limbs_from_sums(sums[:, part], [0] * len(sums), 3)

    some = exponent[:12].reshape(3, 4)
    return made, [
        round_in_chunks(limbs_of, e, FP64, 5, errors)
        for e in (some, some[:0])
        for errors in (None, 3, e)
    ]


def facts(x):
    e = bits.largest_exponent(x, 2)
    found = blocking.map_vectors(lambda y: bits.largest_exponent(y, 1), x, 1, 7)
    return (
        estimates.magnitudes_up(x, e),
        estimates.magnitudes_down(x, e),
        estimates.nonzeros(x),
        found,
    )


def published(x):
    y = np.swapaxes(x, 1, 2)
    return [
        estimates.published_num_slices(a, b, 7, u, part)
        for a, b, u, part in (
            (x, y, 2.0**-53, 10**6),
            (x, y, 2.0**-24, 16),
            (pairs(x), np.swapaxes(pairs(x), 1, 2), 2.0**-24, 10**6),
        )
    ]


def words(x):
    made = []
    for fmt, rounding, shift in (
        (FP16, "nearest", 11),
        (TF32, "nearest-away", 0),
        (BF16, "zero", 0),
        (FP32, "zero", 0),
    ):
        splitting = Splitting(fmt, 2, rounding, shift)
        sides = []
        for axis, y in ((2, x[..., :2]), (1, np.swapaxes(x[..., :2], 1, 2))):
            y = bits.scale_by_power(y, 10 - bits.largest_exponent(y, axis))
            found, remainder = splitting.split(y)
            lost = (np.abs(y) < 2.0**-900).any(axis=axis, keepdims=True)
            sides.append(splitting.describe(y, found, remainder, axis, lost))
            made += [found, remainder]
        unit = NumpyEngine().accumulation(fmt)
        made += [
            sides,
            word_error(
                *sides, splitting, {(0, 1): 0.1, (1, 0): 0.1, (0, 0): 0.2}, unit, 2
            ),
        ]
        made.append(np.concatenate(found, axis=1))
    return made


def formats(x):
    made = [
        round_to_format(y, fmt, mode, saturate=saturate)
        for y in (x, x.astype(np.float32), with_specials(x))
        for fmt in (FP16, BF16, TF32, FP32, FP64)
        for mode in ("nearest", "zero", "nearest-away")
        for saturate in (None, True)
    ]
    return (
        made,
        is_representable(x, FP32),
        is_representable(np.rint(np.clip(x, -8, 8)), FP16),
    )


def with_specials(x):
    x = x.copy()
    x[0, 1, 2:4], x[1, 0, 5], x[1, 3, 0] = np.inf, -np.inf, np.nan
    return x


def pairs(x):
    """Neighbours as re and im."""
    return np.ascontiguousarray(x, like=x).view(
        np.complex128 if x.dtype == np.float64 else np.complex64
    )


def special_values(x):
    made = []
    for a, b in ((x, np.swapaxes(x, 1, 2)), (pairs(x), np.swapaxes(pairs(x), 1, 2))):
        rows, cols = special.nonfinite_vectors(a, 2), special.nonfinite_vectors(b, 1)
        values = np.zeros((2, a.shape[1], b.shape[2]), a.dtype, like=a)
        special.fill_nonfinite(values, a, b, rows, cols)
        made += [rows, cols, special.clean(a), values]
    return made


def embedded(x):
    z = pairs(x)
    both = (
        embedding.embed_left(z),
        embedding.embed_right(z),
        embedding.embed_left(x),
        embedding.embed_right(x),
    )
    return (
        both,
        embedding.unembed(both[0]),
        embedding.components(z),
        embedding.components(x.astype(np.float32)),
    )


def combined(x):
    y = np.swapaxes(x, 1, 2).reshape(x.shape)
    made = []
    for t, c in ((x, y), (x, y[0, 0]), (x.astype(np.float32), y), (pairs(x), pairs(y))):
        made += [
            epilogue.combine(t, -0.1, None, 0.0),
            epilogue.combine(t, 3.0, c, 0.7),
            epilogue.combine(t, 0.0, c, 1.0),
            epilogue.combine(t, 3e300, c, -7e-200),
            epilogue.combine(t, 1.5, c * 1e300, -1e8),
            epilogue.combine(t, 1.5, c, 1e305),
            epilogue.Epilogue(-0.1, 0.7, c).apply(t + 0) if c.shape == t.shape else t,
        ]
        if t.dtype.kind == "c":
            made += [
                epilogue.combine(t, 0.3 - 2j, c, 1j),
                epilogue.combine(t, 1j, None, 0.0),
            ]
    return made


def augmented(x):
    """Sums with products of small integers, which every order of summation gives, and a
    mock of complex ones.
    """
    _, report = hg.matmul(np.eye(2), np.eye(2), return_report=True)
    a = np.rint(np.where(np.abs(x) < 4.0, x, 1.0))
    b = np.swapaxes(a, 1, 2)
    c = np.where(np.matmul(a, b) > 2.0, np.inf, 3.0)

    def mock(left, right):
        w = right.shape[2]
        return left[..., -w:] + right[:, -w:].sum(axis=1, keepdims=True), report

    real = sum_with_product(
        a, b, [Term(c, -0.25)], lambda left, right: (np.matmul(left, right), report)
    )
    a, b, c = (y.astype(np.complex128) for y in (a, b, c))
    both = sum_with_product(a, b, [Term(c, 4.0)], mock)
    return [values for values, _ in (real, both)]


NUMERICS = [
    exponents,
    powers,
    transformations,
    slices,
    scaled,
    integers,
    reconstructed,
    rounded,
    facts,
    published,
    words,
    formats,
    lambda x: special_values(with_specials(x)),
    lambda x: special_values(with_specials(x).astype(np.float32)),
    embedded,
    combined,
    augmented,
]


def same_numerics(x: np.ndarray, device: str, assert_equal: Any) -> None:
    for function in NUMERICS:
        with untold():
            assert_equal(function(on_device(x, device)), function(x))


@pytest.mark.parametrize("function", NUMERICS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", list(hostile()))
def test_numerics_give_the_same_bits_on_tensors(function, name, assert_equal):
    x = hostile()[name]
    with untold():
        assert_equal(function(on_device(x)), function(x))


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(hostile()))
def test_numerics_give_the_same_bits_on_a_gpu(name, assert_equal):
    same_numerics(hostile()[name], "cuda", assert_equal)


# 2. Operators and methods

ARITHMETIC = operator.add, operator.sub, operator.mul, operator.truediv
NUMBERS = 4.0, -0.0, 0.1, 5e-324, 1.7e308, float("inf"), float("nan"), 3, True
"""0.1 and 3 have no reciprocal in float64."""


@pytest.mark.parametrize("function", ARITHMETIC, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", list(hostile()))
def test_operators_equal_numpy(function, name):
    x = hostile()[name]
    y = x[..., ::-1]
    with untold():
        for z in (y, y.astype(np.float32), np.sign(y).astype(np.int8)):
            same_values(function(on_device(x), on_device(z)), function(x, z))
            same_values(function(on_device(z), on_device(x)), function(z, x))
        for number in (*NUMBERS, np.float64(0.1), np.float32(0.1)):
            same_values(function(on_device(x), number), function(x, number))
            same_values(function(number, on_device(x)), function(number, x))


@given(data=st.data())
def test_in_place_operators_equal_numpy(data):
    x, y = data.draw(arrays([*INTEGERS, *FLOATS])), data.draw(arrays(REAL))
    here, there = x.copy(), on_device(x)
    memory = unwrap(there).data_ptr()
    with untold():
        try:
            here[0] += y[1]
            here *= y
        except TypeError:
            with pytest.raises(TypeError):
                there += on_device(y)
            return
        there[0] += on_device(y)[1]
        there *= on_device(y)
    assert unwrap(there).data_ptr() == memory
    same_values(there, here)


@given(
    x=arrays(REAL),
    dtype=st.sampled_from([bool, np.int8, np.int64, np.float32, np.float64]),
)
def test_conversions_equal_numpy(x, dtype):
    if x.dtype.kind == "f" and np.dtype(dtype).kind == "i":
        x = np.clip(
            np.where(np.isfinite(x), x, x.dtype.type(3.7)),
            x.dtype.type(-100),
            x.dtype.type(100),
        )
    with untold():
        same_values(on_device(x).astype(dtype), x.astype(dtype))


INDEX = np.array([1, 0, 2])
VIEWS = {
    "slices": lambda x: x[1:, ::2, -2:],
    "one": lambda x: x[1, ..., None],
    "NumPy integer": lambda x: x[np.int64(1)],
    "rows": lambda x: x[:, INDEX],
    "separated indices": lambda x: x[np.array([[1], [0]]), :, INDEX],
    "device indices": lambda x: x[:, np.flatnonzero(x[0, :3, 0] != np.inf)],
    "iteration": lambda x: list(x),
    "reshape": lambda x: (
        x.reshape(2, -1),
        x.reshape((4, 3, -1)),
        x.ravel(),
        np.swapaxes(x, 0, 1).ravel(),
    ),
    "bits": lambda x: (
        x.view(np.int64),
        x.view(np.complex128),
        x.copy().view(np.complex128).view(np.float64),
    ),
    "complex": lambda x: (
        x.view(np.complex128).conj(),
        x.view(np.complex128).real,
        x.view(np.complex128).imag,
    ),
    "matmul": lambda x: (
        np.rint(x) @ np.rint(x[0, 0]),
        np.rint(x[0]) @ np.rint(x[1].transpose((1, 0))),
    ),
    "single matmul": lambda x: (
        np.rint(x).astype(np.float32) @ np.rint(x[0, 0]).astype(np.float32)
    ),
    "flags": lambda x: (
        x.flags.writeable,
        np.broadcast_to(x[:1], x.shape).flags.writeable,
    ),
}
REDUCTIONS = {
    "sums": lambda x: (
        np.rint(x).sum(axis=1),
        np.sum(np.rint(x), axis=-1, keepdims=True),
        np.rint(x).sum(),
    ),
    "sums of integers": lambda x: (
        (x > 0).sum(axis=(0, 2)),
        np.rint(x).astype(np.int8).sum(axis=2, dtype=np.int64),
    ),
    "extremes": lambda x: (
        x.max(),
        x.min(axis=1),
        x.max(axis=2, keepdims=True, initial=3),
        x.min(initial=-0.5),
    ),
    "where": lambda x: (
        np.max(x, where=x < 0, initial=-np.inf, axis=1),
        np.min(x, axis=2, where=x > 1e9, initial=np.inf, keepdims=True),
    ),
    "NaN": lambda x: np.where(x > 1, np.nan, x).max(axis=1, initial=0),
    "empty": lambda x: (
        x[:0].max(axis=0, initial=7),
        x[:, :0].min(axis=(0, 1), initial=2),
        x[..., :0].sum(axis=2),
    ),
    "logic": lambda x: (
        (x > 0).any(axis=(1, 2)),
        (x > 0).all(axis=1, keepdims=True),
        np.all(x > 0),
        x[:0].any(),
    ),
}


def fill(x):
    x = x.copy()
    x[x > 1] = 7
    x[0, 1] = np.rint(x[1, 2])
    x[:, 2] = 3
    x[1, ..., 0] = np.float32(0.1)
    x[:, np.array([3, 0])] = x[:, :2]
    x[np.array([True, False])] = -1
    x[...] = x.astype(np.float32)
    np.copyto(x[0], 5, where=x[0] > 0)
    np.negative(x, out=x, where=x < 0)
    np.maximum(x, 1, out=x)
    y = np.empty(x.shape, np.int8, like=x)
    y[...] = np.rint(x)
    return x, y


@pytest.mark.parametrize(
    "function",
    [*VIEWS.values(), *REDUCTIONS.values(), fill],
    ids=[*VIEWS, *REDUCTIONS, "fill"],
)
def test_functions_and_methods_equal_numpy(function, assert_equal):
    x = np.random.default_rng(3).normal(size=(2, 6, 4))
    assert_equal(function(on_device(x)), function(x))


@pytest.mark.parametrize("name", ["extremes", "where", "NaN", "empty"])
def test_extremes_are_found_in_parts(name, monkeypatch, assert_equal):
    monkeypatch.setattr(device_array, "_PART", 8)
    x = np.random.default_rng(4).normal(size=(3, 7, 2))
    assert_equal(REDUCTIONS[name](on_device(x)), REDUCTIONS[name](x))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda x: np.asarray(x),
        lambda x: np.zeros(x.shape).__setitem__(0, x[0]),
        lambda x: np.zeros(x.shape) + x,
        lambda x: x.__setitem__(slice(None), np.zeros(x.shape)),
        lambda x: np.add(x, 1, out=np.zeros(x.shape)),
        lambda x: np.maximum.reduce([x, x]),
        lambda x: np.maximum.reduce(x),
        lambda x: np.exp(x),
        lambda x: np.cumsum(x),
        lambda x: np.add(x, 1, where=x > 0),
        lambda x: x.view(np.uint64).astype(np.float64),
        lambda x: x.view(np.uint64).sum(),
        lambda x: np.divide(x.view(np.uint64), np.uint64(3)),
        lambda x: wrap(unwrap(x).to(torch.bfloat16)),
        lambda x: unwrap(np.zeros(3)),
    ],
)
def test_what_would_copy_or_is_not_there_raises(misuse):
    with pytest.raises(TypeError):
        misuse(on_device(np.ones((2, 2500))))


def test_wrapping_shares_memory_and_resolves_conjugates():
    tensor = torch.arange(6.0).reshape(2, 3)
    wrap(tensor)[0, 1] = 9.0
    assert tensor[0, 1] == 9.0
    assert unwrap(wrap(tensor)).data_ptr() == tensor.data_ptr()
    assert np.array_equal(on_host(wrap(torch.tensor([1 + 2j]).conj()).imag), [-2.0])


# 3. Schemes


class ArrayEngine(NumpyEngine):
    """NumPy's engine without the double-double sums that only arrays of NumPy have."""

    device = "arrays"


class TensorEngine(NumpyEngine):
    """Exact products by torch, native ones by NumPy in the memory of the tensors, as on
    a GPU without Triton.
    """

    device = "tensors"

    def exact_product(self, spec, a, b, max_a, max_b):
        if a.shape[-1] > exact_k_limit(spec.accumulator_max, max_a, max_b):
            raise InexactProductError(f"k = {a.shape[-1]}")
        exact = torch.matmul(unwrap(a).to(torch.float64), unwrap(b).to(torch.float64))
        dtype = (
            torch.int32
            if spec.operand is INT8
            else torch.float64
            if spec.operand is FP64
            else torch.float32
        )
        return wrap(exact.to(dtype))

    def native_product(self, a, b):
        with untold():
            return wrap(
                torch.from_numpy(np.matmul(unwrap(a).numpy(), unwrap(b).numpy()))
            )


SCHEMES = {
    "ozaki1": (Ozaki1(), None),
    "ozaki1 fp16": (Ozaki1(product="fp16"), 1e-10),
    "ozaki1 fp64": (Ozaki1(product="fp64"), "correct"),
    "ozaki1 dp": (Ozaki1(mode="dp"), None),
    "ozaki1 three slices": (Ozaki1(num_slices=3, mode="correct"), "correct"),
    "ozaki2": (Ozaki2(), None),
    "ozaki2 fast": (Ozaki2(scaling="fast"), 1e-12),
    "ozaki2 correct": (Ozaki2(), "correct"),
    "native": (Native(), None),
}


def planned(scheme, a, b, accuracy, engine):
    problem = Problem(
        max(len(a), len(b)), a.shape[1], b.shape[2], a.shape[2], np.dtype(a.dtype)
    )

    def look(chosen, target):
        return chosen.evidence(problem, target, a, b, engine, 2**28)

    return make(problem, accuracy, scheme, engine, 2**28, look)


def product_of(scheme, a, b, accuracy, engine):
    """The plan's reason, values, bound, count and notes; or the error that says why
    there are none.
    """
    with untold():
        try:
            plan, outcome = execute(
                planned(scheme, a, b, accuracy, engine), a, b, engine, 2**28
            )
            return plan.reason, outcome._asdict()
        except AccuracyError as error:
            return str(error)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize(
    "data", ["phi_1", "full_range", "cancelling", "largest_times_smallest", "special"]
)
@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_give_the_same_bits_on_tensors(
    name, data, dtype, make_pair, assert_equal
):
    scheme, accuracy = SCHEMES[name]
    a, b = (
        x[None]
        for x in make_pair("phi_1" if data == "special" else data, 5, 9, 4, dtype)
    )
    if data == "special":
        a[0, 1, 2], b[0, 3, 1], b[0, 2, 3] = np.inf, np.nan, -np.inf
    expected = product_of(scheme, a, b, accuracy, ArrayEngine())
    found = product_of(scheme, on_device(a), on_device(b), accuracy, TensorEngine())
    assert_equal(found, expected)
    assert isinstance(found, str) or isinstance(
        found[1]["values"], device_array.DeviceArray
    )


@pytest.mark.parametrize(
    "scheme", [Ozaki1(), Ozaki2(scaling="fast"), Native()], ids=lambda s: s.name
)
def test_splits_are_the_same_on_tensors(scheme, make_pair, assert_equal):
    a, b = (x[None] for x in make_pair("phi_4", 4, 70, 3))
    for side, x in (("left", a), ("right", b)):
        splits = []
        for engine, p, q, y in (
            (NumpyEngine(), a, b, x),
            (TensorEngine(), on_device(a), on_device(b), on_device(x)),
        ):
            plan = planned(scheme, p, q, "fp64", engine)
            scale = plan.scheme.scales(plan, p, q, engine)[side == "right"]
            splits.append(plan.scheme.split(plan, y, side, scale, engine))
        assert_equal(
            [splits[1].planes, splits[1].facts], [splits[0].planes, splits[0].facts]
        )


def test_views_do_not_mind_the_strides_of_axes_of_length_one():
    x = torch.arange(6.0, dtype=torch.float64).as_strided((1, 3, 2), (1, 2, 1))
    found = wrap(x).view(np.complex128)
    found[0, 1, 0] = 9.0
    assert found.shape == (1, 3, 1)
    assert x.flatten().tolist() == [0.0, 1.0, 9.0, 0.0, 4.0, 5.0]
