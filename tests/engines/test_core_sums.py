"""Double-double plans by the compiled core: which way is taken, and bits of float64
products beside those of the core's own sums.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines import core, core_sums
from hifigemm.testing.reference import correctly_rounded
from tests.conftest import PAIRS, SINGLES, real_pair
from tests.exact_values import same_bits
from tests.hard_matrices import as_complex
from tests.thread_modes import MACHINE, MODES, ROUNDINGS, control, rounding

pytestmark = pytest.mark.skipif(
    core.loaded()[0] is None, reason="the core is not built"
)
FAMILIES = (*SINGLES, *PAIRS)


def own_sums(a, b, shift=0):
    """2**shift A B by the core alone."""
    values = np.empty((1, a.shape[0], b.shape[1]), np.float32)
    assert core.multiply(a, b, None, values, None, shift, 0)
    return values[0]


@pytest.fixture
def always_in_float64(monkeypatch):
    """float32 products of any size take a float64 product."""
    monkeypatch.setattr(core_sums, "FLOAT64_STEPS", -np.inf)
    store.forget()
    yield
    store.forget()


@pytest.fixture
def three_threads(monkeypatch):
    """The compiled core shares everything among three threads."""
    monkeypatch.setattr(core, "SHARE", 1.0)
    monkeypatch.setattr(core.threads, "limit", lambda: 3)


def test_large_float32_products_take_one_in_float64():
    def reason(n, dtype, **options):
        x = np.ones((n, n), dtype)
        return hg.make_plan(x, x, accuracy="correct", **options).reason

    assert "a float64 product" in reason(512, "float32")
    assert "a float64 product" in reason(512, "complex64")
    for plan in ((16, "float32"), (16, "complex64"), (512, "float64")):
        assert reason(*plan).startswith("compiled sums in two words")


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_the_core(family, always_in_float64):
    rng = np.random.default_rng(FAMILIES.index(family))
    for m, k, n in ((1, 1, 1), (40, 9, 3), (5, 70, 33)):
        a, b = real_pair(rng, family, m, k, n, np.float32)
        assert same_bits(hg.matmul(a, b, accuracy="correct"), own_sums(a, b))
        value = hg.gemm(a, b, alpha=-0.125, accuracy="correct")
        assert same_bits(value, own_sums(-a, b, -3))
        x, y = as_complex(real_pair, rng, family, m, k, n, np.float32)
        got = hg.matmul(x, y, accuracy="correct")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core_sums, "FLOAT64_STEPS", np.inf)
            store.forget()
            want = hg.matmul(x, y, accuracy="correct")
        store.forget()
        assert same_bits(got, want)


@pytest.mark.parametrize("n", [130, 257])
@pytest.mark.parametrize("kind", ["normal", "columns that cancel"])
def test_products_of_ordinary_size_are_rounded_once(n, kind):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    b = rng.standard_normal((n, n))
    if kind != "normal":
        b = np.linalg.qr(b)[0]
        a = b.T
    a = a.astype(np.float32)
    b = b.astype(np.float32)
    got = hg.matmul(a, b, accuracy="correct")
    assert same_bits(got, own_sums(a, b))
    assert same_bits(got[:9], correctly_rounded(a[:9], b))


def test_stacks_layouts_and_mirrors_change_no_bit(always_in_float64):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((3, 40, 20)).astype(np.float32)
    b = rng.standard_normal((20, 30)).astype(np.float32)
    got = hg.matmul(a, b, accuracy="correct")
    for z in range(3):
        assert same_bits(got[z], own_sums(a[z], b))
    left = a[0]
    assert same_bits(
        hg.matmul(left, left.T, accuracy="correct"), own_sums(left, left.T)
    )
    wide = np.repeat(np.repeat(left, 2, 0), 2, 1)
    strided = hg.matmul(wide[::2, ::2], np.asfortranarray(b), accuracy="correct")
    assert same_bits(strided, got[0])


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinities_and_nans_are_those_of_numpy(value, always_in_float64):
    rng = np.random.default_rng(2)
    a, b = real_pair(rng, "uniform", 70, 20, 30, np.float32)
    a[60, 3] = value
    got = hg.matmul(a, b, accuracy="correct")
    with np.errstate(all="ignore"):
        want = a @ b
    np.testing.assert_array_equal(got[60], want[60])
    assert same_bits(got[:60], own_sums(a[:60], b))


def test_threads_change_no_bit(three_threads, always_in_float64):
    rng = np.random.default_rng(3)
    for family in ("uniform", "cancelling", "ties", "phi_8"):
        a, b = real_pair(rng, family, 100, 90, 80, np.float32)
        assert same_bits(hg.matmul(a, b, accuracy="correct"), own_sums(a, b))


@pytest.mark.skipif(MACHINE not in MODES, reason="the register is not known here")
@pytest.mark.parametrize("family", ["uniform", "underflowing", "subnormal", "ties"])
def test_modes_of_the_thread_change_no_bit(family, always_in_float64):
    rng = np.random.default_rng(4)
    a, b = real_pair(rng, family, 40, 40, 30, np.float32)
    want = own_sums(a, b)
    values = np.empty((1, 40, 30), np.float32)
    for flags in MODES[MACHINE]:
        control(flags)
        try:
            is_finite = core_sums.multiply_in_float64(a, b, None, values, None, 0, 0)
        finally:
            control(0)
        assert is_finite
        assert same_bits(values[0], want)
    for mode in ROUNDINGS[MACHINE]:
        with rounding(mode):
            assert core_sums.multiply_in_float64(a, b, None, values, None, 0, 0)
            got = hg.matmul(a, b, accuracy="correct")
        assert same_bits(values[0], want)
        assert same_bits(got, want)


def test_blocks_within_a_workspace_change_no_bit(always_in_float64):
    rng = np.random.default_rng(5)
    a, b = real_pair(rng, "uniform", 90, 50, 70, np.float32)
    got = hg.matmul(a, b, accuracy="correct", workspace=40_000)
    assert same_bits(got, own_sums(a, b))


X = np.zeros((2, 3), np.float32)
D = np.zeros((2, 3))
BOUNDS = np.zeros((2, 2)), np.zeros((2, 3))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("to_doubles", (X, 0, D)),
        ("to_doubles", (D, 0, D, np.zeros((2, 2)))),
        ("to_doubles", (X, 301, D, np.zeros((2, 2)))),
        ("to_doubles", (X, 0, D, np.zeros((2, 3)))),
        ("to_doubles", (X, 0, np.zeros((2, 6))[:, ::2], np.zeros((2, 2)))),
        ("round_product", (D, *BOUNDS, 3)),
        ("round_product", (D, *BOUNDS, 3, D)),
        ("round_product", (D, *BOUNDS[::-1], 3, X)),
        ("round_product", (D, *BOUNDS, 3, np.zeros((2, 6), np.float32)[:, ::2])),
        ("finish", (X, D.T, np.zeros((2, 1)), X)),
        ("finish", (X, D, np.zeros((2, 1)), X, 0)),
        ("finish", (D[:, :2], D, np.full((2, 1), 2.0), X, 0)),
        ("finish", (D[:, :2], D, np.full((2, 1), -1.0), X, 0)),
        ("finish", (D[:, :2], D, np.full((2, 1), np.nan), X, 0)),
        ("finish", (D[:, :2], D, np.zeros((3, 1)), X, 0)),
    ],
)
def test_arguments_that_do_not_fit_raise(name, arguments):
    with pytest.raises((TypeError, ValueError)):
        getattr(core.loaded()[0], name)(*arguments)


def test_an_open_entry_of_infinities_is_refused():
    a = np.full((2, 2), np.inf)
    with pytest.raises(ValueError, match="Inf or NaN"):
        core.loaded()[0].finish(a, D, np.zeros((2, 1)), X.copy(), 0)
