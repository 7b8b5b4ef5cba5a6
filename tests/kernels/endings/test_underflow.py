"""Entries in which underflow may count: those of the plain maths, and no other."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.endings.underflow import look_for_underflow, send_is_open
from hifigemm.kernels.runtime.host_word import HostWords
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.sums.rounded_sums import finish_entries
from hifigemm.numerics.bits import real_components
from hifigemm.numerics.bounds import free_of_underflow
from tests.kernels.layouts import DEVICE, LAYOUTS, on_device

DTYPES = ["float32", "float64", "complex64", "complex128"]
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def finished(product, left, right, terms, emin, shift=0):
    """Launch function."""
    underflow = look_for_underflow(product, left, right, terms, emin, shift)
    finish_entries(left, right, Targets(product), shift=shift, underflow=underflow)


def made_again(product, left, right, shift=0):
    """Which components of a product that is given the kernels make again.

    They are numbers of which A B has none, as all that is not made again stays.
    """
    emin = int(np.log2(float(np.finfo(product.dtype).tiny)))
    terms = left.shape[2] * (2 if np.iscomplexobj(product) else 1)
    x = torch.from_numpy(product.copy()).to(DEVICE)
    run_recorded(finished, x, left, right, terms, emin, shift)
    found = real_components(x.cpu().numpy())
    given = real_components(product)
    return ~((found == given) | (np.isnan(found) & np.isnan(given)))


def product_of(dtype, shape, value=3.5):
    x = np.empty(shape, dtype)
    real_components(x)[...] = value
    return x


def deep_and_flat(dtype, m=5, k=6, n=7):
    """Operands with products of entries that underflow, and without."""
    one = np.array(1 + 0.25j if np.dtype(dtype).kind == "c" else 1).astype(dtype)
    root = np.finfo(dtype).tiny ** 0.5 / 4
    flat = [np.full(s, one) for s in ((1, m, k), (1, k, n))]
    return [x * root for x in flat], flat


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_entries_are_made_again_where_products_underflow(dtype):
    info = np.finfo(dtype)
    deep, flat = deep_and_flat(dtype)
    terms = 6 * (2 if np.dtype(dtype).kind == "c" else 1)
    least = terms * float(info.tiny)
    cases = {
        least: "kept",
        -least: "kept",
        float(info.max): "kept",
        float(np.nextafter(least, 0, dtype=info.dtype)): "made where deep",
        -float(info.smallest_subnormal): "made where deep",
        0.0: "made where deep",
        np.inf: "made",
        np.nan: "made",
    }
    for at in (0, 3, -1):
        for value, want in cases.items():
            for operands in (deep, flat):
                product = product_of(dtype, (1, 5, 7))
                real_components(product).reshape(-1)[at] = value
                again = made_again(product, *(on_device(x, "rows") for x in operands))
                is_made = want == "made" or (want != "kept" and operands is deep)
                assert again.sum() == is_made, (at, value)
                assert again.reshape(-1)[at] == is_made


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_are_those_of_the_plain_function(make_pair, dtype, layout):
    """Products with entries of all sizes, beside operands of any layout; the largest one
    takes programs of more than one block.
    """
    emin = int(np.log2(float(np.finfo(dtype).tiny)))
    for family in ("uniform", "full_range", "sparse"):
        for m, k, n in ((1, 1, 1), (5, 140, 7), (60, 3, 70)):
            a, b = (x[None] for x in make_pair(family, m, k, n, dtype))
            rng = np.random.default_rng(m)
            product = product_of(dtype, (1, m, n))
            components = real_components(product)
            terms = k * (2 if np.iscomplexobj(product) else 1)
            at = rng.integers(0, components.size, 6)
            powers = rng.integers(emin - 2, emin + 12, 6)
            components.reshape(-1)[at] = np.ldexp(1.37, powers)
            want = ~free_of_underflow(components, a, b, terms, emin)
            again = made_again(product, on_device(a, layout), on_device(b, layout))
            np.testing.assert_array_equal(again, want, err_msg=f"{family} {m}")


@pytest.mark.parametrize("shift", [-40, -3, 5, 60, 1023])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaled_products_are_large_before_and_after(dtype, shift):
    """Beside operands whose products are just normal numbers, and a bit smaller ones."""
    info = np.finfo(dtype)
    emin = int(info.minexp)
    if shift > 100 and dtype == "float32":
        shift = 120
    least = np.ldexp(6.0, emin + max(shift, 0)).astype(dtype)
    for power, is_deep in (
        (emin - min(shift, 0), False),
        (emin - min(shift, 0) - 1, True),
    ):
        a = np.ldexp(np.ones((1, 5, 6), dtype), power // 2)
        b = np.ldexp(np.ones((1, 6, 7), dtype), power - power // 2)
        for value, is_small in ((least, False), (np.nextafter(least, 0), True)):
            product = product_of(dtype, (1, 5, 7), info.max)
            product[0, 2, 3] = value
            again = made_again(
                product, on_device(a, "rows"), on_device(b, "rows"), shift
            )
            assert again.sum() == (is_deep and is_small)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operands_without_small_numbers_do_not_underflow(dtype):
    """Zeros, Inf and NaN of an operand have no exponent."""
    deep, _ = deep_and_flat(dtype)
    product = product_of(dtype, (1, 5, 7), 0.0)
    for value, is_made in ((0.0, False), (-0.0, False), (np.inf, False), (1.0, False)):
        left = np.full((1, 5, 6), value, dtype)
        again = made_again(product, on_device(left, "rows"), on_device(deep[1], "rows"))
        assert again.any() == is_made
    left = deep[0].copy()
    left[0, 0] = np.nan, 0.0, np.inf, 0.0, 0.0, 0.0
    product[0, 0] = np.nan
    again = made_again(product, on_device(left, "rows"), on_device(deep[1], "rows"))
    assert again[0, 1:].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_host_hears_whether_any_entry_is_open(dtype):
    def ask(product, left, right, terms, emin, word):
        underflow = look_for_underflow(product, left, right, terms, emin)
        send_is_open(underflow, word)

    emin = int(np.log2(float(np.finfo(dtype).tiny)))
    for operands, is_deep in zip(deep_and_flat(dtype), (True, False), strict=True):
        left, right = (on_device(x, "rows") for x in operands)
        for value, is_open in ((3.5, False), (0.0, is_deep), (np.inf, True)):
            product = product_of(dtype, (1, 5, 7))
            real_components(product).reshape(-1)[9] = value
            x = torch.from_numpy(product).to(DEVICE)
            asking = partial(run_recorded, ask, x, left, right, 12, emin)
            assert HostWords(x.device).number_from(asking) == is_open, value
