"""The vectorised tensor core against exact rational arithmetic, hand-computed cases and
recorded hardware results.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.base.formats import BF16, FORMATS, FP16, FP32, FP64, TF32, Format
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.tensor_core import (
    A100,
    B200,
    H100,
    MODELS,
    V100,
    TensorCoreModel,
    tensor_core_product,
)
from tests.tensor_core_reference import tensor_core_product_reference

HARDWARE_VECTORS = Path(__file__).parents[1] / "data" / "hardware_vectors_h200.npz"
GENERATOR = Path(__file__).parents[2] / "experiments" / "make_hardware_vectors.py"
SHORT = Format("short", 5, -9, 9)
UNITS = [
    (V100, FP16),
    *[(m, f) for m in (A100, H100, B200) for f in (FP16, BF16, TF32)],
]
UNITS += [
    (TensorCoreModel("one by one", 1, 48, rounding="nearest"), BF16),
    (TensorCoreModel("narrow", 5, 7), SHORT),
    (
        TensorCoreModel(
            "wide",
            16,
            46,
            rounding="nearest",
            accumulator=Format("fp48", 40, -126, 127),
        ),
        TF32,
    ),
    (TensorCoreModel("double", 4, 48, accumulator=FP64), FP32),
]
Array = np.ndarray[Any, Any]


def bits(x: Array) -> Array:
    return np.asarray(x).view(np.uint32 if x.dtype == np.float32 else np.uint64)


def assert_equals_reference(
    a: Array, b: Array, c: Array | None, fmt: Format, model: TensorCoreModel
) -> None:
    got = tensor_core_product(a, b, c, fmt=fmt, model=model)
    expected = tensor_core_product_reference(a, b, c, fmt=fmt, model=model)
    assert got.dtype == expected.dtype
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(expected)[~nan])


def draw(
    rng: np.random.Generator,
    shape: tuple[int, int],
    fmt: Format,
    top: int,
    spread: int,
    few: bool,
) -> Array:
    """Values of `fmt` with exponents from top - spread to top, both clipped to the
    format; few: one or two bits set.
    """
    exponents = np.clip(
        top - rng.integers(spread + 1, size=shape), fmt.min_exponent - 1, fmt.emax
    )
    significands = 1 + rng.integers(
        2 if few else 2 ** (fmt.t - 1), size=shape
    ) * 2.0 ** (1 - fmt.t)
    return round_to_format(
        np.ldexp(significands * rng.choice([-1.0, 1.0], size=shape), exponents),
        fmt,
        "zero",
    )


def draw_c(
    rng: np.random.Generator, a: Array, b: Array, model: TensorCoreModel, kind: str
) -> Array:
    """C of comparable size, the negated product with its last bits disturbed, or
    tiny.
    """
    product = a.astype(np.float64) @ b.astype(np.float64)
    if kind == "opposite":
        c = -product * (
            1 + rng.integers(-2, 3, size=product.shape) * model.accumulator.u
        )
    else:
        low, high = (-30, 30) if kind == "near" else (-200, -100)
        scale = np.maximum(np.abs(product), 2.0**-140) if kind == "near" else 1.0
        c = (
            rng.standard_normal(product.shape)
            * scale
            * 2.0 ** rng.integers(low, high, size=product.shape)
        )
    return round_to_format(c, model.accumulator, "zero")


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("model", "fmt"), UNITS, ids=lambda x: x.name)
@pytest.mark.parametrize("spread", [0, 3, 14, 600])
def test_vectorised_equals_rational_arithmetic(
    model: TensorCoreModel, fmt: Format, spread: int
) -> None:
    rng = np.random.default_rng([spread, *model.name.encode()])
    k = 2 * model.block_size(fmt) + 1
    for top in (0, 2 * fmt.emax, -64, -76, 2 * fmt.emin - 2):
        half = top // 2
        a = draw(rng, (4, k), fmt, half, spread, few=bool(top % 4))
        b = draw(rng, (k, 5), fmt, top - half, spread, few=bool(top % 4))
        # row 1 cancels in pairs
        a[1, 1::2], b[1::2] = a[1, : k - 1 : 2], -b[: k - 1 : 2]
        a[2, ::3] = 0.0
        for kind in ("near", "opposite", "tiny"):
            assert_equals_reference(a, b, draw_c(rng, a, b, model, kind), fmt, model)
        assert_equals_reference(a, b, None, fmt, model)


@pytest.mark.parametrize(("model", "fmt"), UNITS[:10], ids=lambda x: x.name)
def test_any_bit_patterns_equal_rational_arithmetic(
    model: TensorCoreModel, fmt: Format
) -> None:
    rng = np.random.default_rng(5)
    a, b, c = (
        rng.integers(0, 2**32, size=s, dtype=np.uint64).astype(np.uint32)
        for s in ((6, 17), (17, 6), (6, 6))
    )
    a[rng.random(a.shape) < 0.3] |= np.uint32(0x7F800000)
    b, c = b & np.uint32(0xBFFFFFFF), c & np.uint32(0xBFFFFFFF)
    a, b = (round_to_format(x.view(np.float32), fmt) for x in (a, b))
    assert_equals_reference(a, b, c.view(np.float32), fmt, model)


def small_floats(fmt: Format) -> st.SearchStrategy[float]:
    width = {FP16: 16, BF16: 32, TF32: 32}[fmt]
    free = st.floats(width=width, allow_nan=True)
    near_one = st.builds(
        lambda m, e: m * 2.0**e,
        st.integers(-(2**fmt.t) + 1, 2**fmt.t - 1),
        st.integers(-24, -6),
    )
    return st.one_of(free, near_one).map(
        lambda x: float(round_to_format(np.array(x), fmt))
    )


@st.composite
def dot_products(
    draw: st.DrawFn,
) -> tuple[TensorCoreModel, Format, list[float], list[float], float]:
    model, fmt = draw(st.sampled_from(UNITS[:10]))
    k = draw(st.integers(0, 10))
    lists = st.lists(small_floats(fmt), min_size=k, max_size=k)
    return model, fmt, draw(lists), draw(lists), draw(st.floats(width=32))


@settings(max_examples=300, deadline=None)
@given(dot_products())
def test_any_dot_product_equals_rational_arithmetic(case: tuple[Any, ...]) -> None:
    model, fmt, a, b, c = case
    a = np.array([a], np.float32)
    b = np.array([[x] for x in b], np.float32).reshape(len(b), 1)
    assert_equals_reference(a, b, np.array([[c]], np.float32), fmt, model)


def dot(
    pairs: list[tuple[float, float]],
    c: float = 0.0,
    *,
    fmt: Format = FP16,
    model: TensorCoreModel = H100,
) -> float:
    a = np.array([[x for x, _ in pairs]], np.float32)
    b = np.array([y for _, y in pairs], np.float32).reshape(-1, 1)
    return float(
        tensor_core_product(a, b, np.array([[c]], np.float32), fmt=fmt, model=model)[
            0, 0
        ]
    )


@pytest.mark.parametrize(
    ("model", "fraction_bits"), [(V100, 23), (A100, 24), (H100, 25), (B200, 25)]
)
def test_terms_are_cut_below_the_fraction_bits(
    model: TensorCoreModel, fraction_bits: int
) -> None:
    def rest(e: int) -> float:
        return dot(
            [(1.0, 1.0), (-1.0, 1.0), (2.0 ** (e // 2), 2.0 ** (e - e // 2))],
            model=model,
        )

    assert rest(-fraction_bits) == 2.0**-fraction_bits
    assert rest(-fraction_bits - 1) == 0.0


def test_alignment_uses_the_product_before_normalisation() -> None:
    tiny = (2.0**-12, 2.0**-13)
    assert dot([(1.5, 1.5), (-1.5, 1.5), tiny]) == 2.0**-25
    assert dot([(2.0, 1.0), (-2.0, 1.0), tiny]) == 0.0


def test_truncation_is_towards_zero_term_by_term() -> None:
    small = (2.0**-13, -(2.0**-13))
    assert dot([(1.0, 1.0), small, small]) == 1.0
    assert dot([(1.0, 1.0), (2.0**-12, -(2.0**-13))]) == 1 - 2.0**-24


def test_result_is_truncated_not_rounded() -> None:
    almost = [(1.0, 1.0), (2.0**-12, 1.5 * 2.0**-12)]
    assert dot(almost) == 1.0
    assert dot(almost, model=replace(H100, rounding="nearest")) == 1 + 2.0**-23


def test_zero_products_do_not_set_the_alignment() -> None:
    assert dot([(0.0, 65504.0), (2.0**-24, 2.0**-24)]) == 2.0**-48
    assert dot([(2.0**-24, 2.0**-24)], c=-0.0) == 2.0**-48


def test_block_order_is_the_order_of_the_inner_dimension() -> None:
    pairs = [(1.0, 1.0)] + [(2.0**-12, 2.0**-12)] * 16
    assert dot(pairs, model=H100) == 1 + 15 * 2.0**-24 - 2.0**-24
    assert dot(pairs, model=V100) == 1.0


def test_floor_of_the_alignment_loses_bits_of_tiny_products() -> None:
    x, d = 2.0**-76, 2.0**-7
    pairs = [(x * (1 + d), x), (x * (1 - d), x)] * 8
    exact = 2.0**-148
    assert dot(pairs, fmt=BF16, model=replace(H100, exponent_floor=-900)) == exact
    assert dot(pairs, fmt=BF16, model=replace(H100, exponent_floor=-134)) == exact
    assert dot(pairs, fmt=BF16, model=H100) == exact - 2.0**-149


def test_every_zero_is_positive() -> None:
    def is_positive_zero(x: float) -> bool:
        return x == 0.0 and np.copysign(1.0, x) == 1.0

    assert is_positive_zero(dot([(0.0, -1.0)] * 3, c=-0.0))
    assert is_positive_zero(dot([(1.0, 1.0)], c=-1.0))
    assert is_positive_zero(dot([(1.0, 1.0), (-1.0, 1.0), (2.0**-14, -(2.0**-14))]))
    assert is_positive_zero(dot([(-(2.0**-80), 2.0**-72)], fmt=BF16))
    assert is_positive_zero(
        dot(
            [(-(2.0**-80), 2.0**-72)], fmt=BF16, model=replace(H100, rounding="nearest")
        )
    )


def test_subnormal_results_and_overflow() -> None:
    assert dot([(1.5 * 2.0**-75, 2.0**-74)], fmt=BF16) == 2.0**-149
    top = float(np.finfo(np.float32).max)
    assert dot([(2.0**64, 2.0**63)], c=top, fmt=BF16) == np.inf
    assert dot([(2.0**51, 2.0**51)], c=top, fmt=BF16) == top
    assert (
        dot(
            [(2.0**100, 2.0**100), (-(2.0**100), 2.0**100), (2.0**90, 2.0**90)],
            fmt=BF16,
        )
        == np.inf
    )


def test_infinities_and_nans_propagate() -> None:
    inf, nan = np.inf, np.nan
    assert dot([(inf, 1.0), (1.0, 1.0)]) == inf
    assert dot([(1.0, 1.0)] * 20 + [(-inf, 2.0)]) == -inf
    assert all(
        np.isnan(x)
        for x in (
            dot([(inf, 0.0)]),
            dot([(inf, 1.0)], c=-inf),
            dot([(nan, 0.0)]),
            dot([], c=nan),
        )
    )
    out = tensor_core_product(
        np.full((1, 1), nan), np.ones((1, 1)), fmt=FP16, model=H100
    )
    assert out.view(np.uint32)[0, 0] == 0x7FFFFFFF
    out = tensor_core_product_reference(
        np.full((1, 1), nan), np.ones((1, 1)), fmt=FP16, model=H100
    )
    assert out.view(np.uint32)[0, 0] == 0x7FFFFFFF


def test_one_product_a_block_and_wide_sums_are_a_fused_multiply_add() -> None:
    model = TensorCoreModel("fma", 1, 48, rounding="nearest")
    rng = np.random.default_rng(6)
    a, b = (round_to_format(rng.standard_normal((1, 400)), FP16) for _ in range(2))
    c = np.float32(0.1)
    for x, y in zip(a[0].astype(np.float64), b[0].astype(np.float64)):
        # float64 is exact here
        assert Fraction(x) * Fraction(y) + Fraction(float(c)) == Fraction(
            x * y + float(c)
        )
        c = np.float32(x * y + float(c))
    got = tensor_core_product(
        a, b.T, np.full((1, 1), 0.1, np.float32), fmt=FP16, model=model
    )
    assert got[0, 0] == c


def test_stacks_broadcast_and_padding_changes_nothing() -> None:
    rng = np.random.default_rng(7)
    a = round_to_format(rng.standard_normal((2, 1, 3, 21)), BF16)
    b = round_to_format(rng.standard_normal((4, 21, 5)), BF16)
    c = rng.standard_normal((3, 1)).astype(np.float32)
    got = tensor_core_product(a, b, c, fmt=BF16, model=H100)
    assert got.shape == (2, 4, 3, 5)
    longer = np.concatenate([a, np.zeros((2, 1, 3, 30), np.float32)], axis=-1)
    below = np.concatenate([b, np.ones((4, 30, 5), np.float32)], axis=-2)
    assert np.array_equal(
        got, tensor_core_product(longer, below, c, fmt=BF16, model=H100)
    )
    one = tensor_core_product(
        a[1, 0], b[2], np.broadcast_to(c, (3, 5)), fmt=BF16, model=H100
    )
    assert np.array_equal(got[1, 2], one)


@pytest.mark.parametrize("shape", [(70, 140), (140, 70)])
def test_bits_do_not_depend_on_tiles(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(8)
    a, b = (
        round_to_format(rng.standard_normal(s), FP16)
        for s in ((shape[0], 50), (50, shape[1]))
    )
    whole = tensor_core_product(a, b, fmt=FP16, model=A100)
    each = [
        tensor_core_product(a, b[:, j : j + 1], fmt=FP16, model=A100)
        for j in range(shape[1])
    ]
    assert np.array_equal(whole, np.hstack(each))
    monkeypatch.setattr("hifigemm.numerics.tensor_core._TILE_TERMS", 999)
    assert np.array_equal(whole, tensor_core_product(a, b, fmt=FP16, model=A100))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_dimensions(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    got = tensor_core_product(
        np.ones((m, k)), np.ones((k, n)), np.full((m, n), 2.0), fmt=FP16, model=H100
    )
    assert got.shape == (m, n)
    assert got.dtype == np.float32
    assert (got == 2.0 + k).all()


def test_operands_are_left_alone_and_bad_ones_refused() -> None:
    a, b, c = (np.ones(s, np.float32) for s in ((2, 3), (3, 2), (2, 2)))
    for x in (a, b, c):
        x.flags.writeable = False
    assert (tensor_core_product(a, b, c, fmt=TF32, model=A100) == 4.0).all()
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 3\)"):
        tensor_core_product(a, a, fmt=FP16, model=H100)
    with pytest.raises(ValueError, match="b holds entries that are not bf16"):
        tensor_core_product(a, b * np.float32(1.001), fmt=BF16, model=H100)
    with pytest.raises(ValueError, match="v100 multiplies fp16, not tf32"):
        tensor_core_product(a, b, fmt=TF32, model=V100)
    with pytest.raises(ValueError, match="54 <= 53"):
        tensor_core_product(a, b, fmt=FP16, model=TensorCoreModel("too wide", 16, 47))


def decode(x: Array, fmt: str) -> Array:
    """Values of recorded bit patterns."""
    with np.errstate(invalid="ignore"):
        if fmt == "fp16":
            return x.view(np.float16).astype(np.float32)
        return (x.astype(np.uint32) << (16 if fmt == "bf16" else 0)).view(np.float32)


INSTRUCTIONS = pytest.mark.parametrize(
    ("instruction", "model"), [("mma", "h200"), ("wgmma", "h200-wgmma")]
)
SETS = pytest.mark.parametrize(
    "vectors", ["fp16", "bf16", "tf32", "fp16_chain", "bf16_chain", "tf32_chain"]
)


def assert_model_equals_hardware(
    path: Path, vectors: str, instruction: str, model: str
) -> None:
    fmt, single = vectors.removesuffix("_chain"), "_chain" not in vectors
    with np.load(path) as data:
        a, b, c, recorded, family, families = (
            data[key]
            for key in [
                *(f"{vectors}_{x}" for x in ("a", "b", "c", instruction, "family")),
                "families",
            ]
        )
    assert recorded.size >= (20_000 if single else 1)
    operands = decode(a, fmt), decode(b, fmt).transpose(0, 2, 1), c.view(np.float32)
    got = tensor_core_product(*operands, fmt=FORMATS[fmt], model=MODELS[model]).view(
        np.uint32
    )
    differ = {
        str(families[i]): int((got != recorded)[family == i].sum())
        for i in np.unique(family)
    }
    assert not any(differ.values()), (
        f"entries that differ, by family: { {f: n for f, n in differ.items() if n} }"
    )


@INSTRUCTIONS
@SETS
def test_model_equals_recorded_hardware(
    vectors: str, instruction: str, model: str
) -> None:
    assert_model_equals_hardware(HARDWARE_VECTORS, vectors, instruction, model)


@pytest.fixture(scope="module")
def fresh_vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the GPU of this machine, which must be a Hopper, for tiles drawn with
    another seed.
    """
    path = tmp_path_factory.mktemp("vectors") / "fresh.npz"
    subprocess.run(
        [sys.executable, str(GENERATOR), "--out", str(path), "--seed", "2"], check=True
    )
    return path


@pytest.mark.gpu
@INSTRUCTIONS
@SETS
def test_model_equals_hardware_on_fresh_tiles(
    fresh_vectors: Path, vectors: str, instruction: str, model: str
) -> None:
    assert_model_equals_hardware(fresh_vectors, vectors, instruction, model)


def limited(
    block: int = 4, fraction_bits: int = 20, floor: int = -900, **fmt: int
) -> tuple[TensorCoreModel, Format]:
    return TensorCoreModel("x", block, fraction_bits, floor), replace(
        Format("some", 11, -14, 15), **fmt
    )


@pytest.mark.parametrize(
    ("last", "beyond"),
    [
        (limited(15, 47), limited(15, 48)),  # 47 + 2 + log2(16) = 53
        (limited(15, 47), limited(16, 47)),
        (limited(t=26), limited(t=27)),
        (limited(floor=-900), limited(floor=-901)),
        (limited(emin=-400), limited(emin=-401)),
        (limited(emax=400), limited(emax=401)),
    ],
)
def test_units_are_refused_where_float64_would_round(
    last: tuple[TensorCoreModel, Format], beyond: tuple[TensorCoreModel, Format]
) -> None:
    model, fmt = last
    assert model.block_size(fmt) == model.block
    rng = np.random.default_rng(9)
    a, b = (draw(rng, shape, fmt, 0, 30, few=False) for shape in ((3, 33), (33, 3)))
    assert_equals_reference(a, b, None, fmt, model)
    model, fmt = beyond
    with pytest.raises(ValueError, match="x with some: needs"):
        model.block_size(fmt)


def test_models_have_the_published_parameters() -> None:
    tf32, half = ("tf32", 8), (("fp16", 16), ("bf16", 16))
    assert {
        name: (m.block, m.fraction_bits, m.exponent_floor)
        for name, m in MODELS.items()
        if m is not V100
    } == {
        "a100": ((("fp16", 8), ("bf16", 8), ("tf32", 4)), 24, -132),
        **dict.fromkeys(
            ("h100", "h100-wgmma", "b200", "h200", "h200-wgmma"),
            ((*half, tf32), 25, -133),
        ),
    }
    assert (V100.block, V100.fraction_bits) == ((("fp16", 4),), 23)
    assert all(m.rounding == "zero" and m.accumulator is FP32 for m in MODELS.values())


def test_vectors_are_refused_and_stacks_of_c_count() -> None:
    a, b = np.ones((3, 4)), np.ones((4, 2))
    for x, y in ((a[0], b), (a, b[:, 0]), (a[0], b[:, 0])):
        with pytest.raises(ValueError, match="cannot multiply shapes"):
            tensor_core_product(x, y, fmt=FP16, model=H100)
    c = np.arange(5.0).reshape(5, 1, 1)
    for left, right in ((a, b), (a[None], b), (a, b[None])):
        got = tensor_core_product(left, right, c, fmt=FP16, model=H100)
        np.testing.assert_array_equal(got, np.broadcast_to(c + 4, (5, 3, 2)))
