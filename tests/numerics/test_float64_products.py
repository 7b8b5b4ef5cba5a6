"""float32 products by a float64 product: bounds, certificates and entries against
fractions, by NumPy and by each set of instructions of the compiled core.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.engines import core
from hifigemm.numerics import float64_products
from hifigemm.numerics.float64_products import (
    MAX_SHIFT,
    SAMPLE,
    finish_entries,
    in_doubles,
    round_product,
    write_rows,
)
from tests.conftest import PAIRS, SINGLES, real_pair
from tests.exact_values import exact_entries, rounded_once, same_bits

MODULE, _ = core.loaded()
WAYS = ("numpy", *(() if MODULE is None else MODULE.instructions))
FAMILIES = (*SINGLES, *PAIRS)
U = Fraction(1, 2**53)


def of_numpy(function):
    return function


@pytest.fixture(params=WAYS)
def override(request):
    """The functions of NumPy, and those of the core with each set of instructions."""
    if request.param == "numpy":
        yield of_numpy
        return
    MODULE.use(request.param)
    yield core.override
    MODULE.use(MODULE.instructions[0])


def exact_bits(exact, shape):
    """float32 numbers that exact entries round to."""
    values = [rounded_once(x, np.float32) for x in exact]
    return np.array(values, np.float32).reshape(shape)


def scaled_entries(a, b, shift):
    return [x * Fraction(2) ** shift for x in exact_entries(a, b)]


def square_of_norm(vector, shift):
    return sum(Fraction(float(x)) ** 2 for x in vector) * Fraction(4) ** shift


def unit_of(vector):
    """The power of two of which all entries are multiples; None for zeros."""
    units = []
    for x in vector.tolist():
        numerator, denominator = x.as_integer_ratio()
        if numerator:
            units.append(Fraction(numerator & -numerator, denominator))
    return min(units, default=None)


@pytest.mark.parametrize("shift", [0, 7, -MAX_SHIFT, MAX_SHIFT])
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_enclose_norms_and_units(override, family, shift):
    rng = np.random.default_rng(FAMILIES.index(family))
    for m, k in ((3, 5), (1, 200), (70, 3)):
        x, y = real_pair(rng, family, m, k, 4, np.float32)
        for vectors in (x, y.T, x[::-1, ::-1], np.asfortranarray(x)):
            numbers, bounds = override(in_doubles)(vectors, shift)
            assert (numbers == np.ldexp(vectors.astype(np.float64), shift)).all()
            for vector, norm, spread in zip(vectors, *bounds.tolist(), strict=True):
                square = square_of_norm(vector, shift)
                assert square <= Fraction(norm) ** 2
                assert Fraction(norm) ** 2 <= square * (1 + 2**-40)
                unit = unit_of(vector)
                if unit is None:
                    assert norm == spread == 0.0
                else:
                    unit *= Fraction(2) ** shift
                    assert Fraction(spread) == Fraction(norm) / unit


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [(0, 0), (1, 99), (1, 3)])
def test_infinities_and_nans_have_no_bounds(override, value, where):
    x = np.ones((2, 100), np.float32)
    x[where] = value
    assert override(in_doubles)(x, 0) is None
    assert override(in_doubles)(np.asfortranarray(x), 0) is None


def worst_products(a, b, shift):
    """Products that err as much as the bound allows, upward and downward, and not where
    every sum is exact by the rule.
    """
    m, k = a.shape
    n = b.shape[1]
    scale = Fraction(2) ** shift
    exact = scaled_entries(a, b, shift)
    products = np.empty((2, m, n))
    for index, entry in enumerate(exact):
        row = a[index // n]
        column = b[:, index % n]
        square = square_of_norm(row, shift) * square_of_norm(column, 0)
        units = unit_of(row), unit_of(column)
        is_exact = None in units or square < (2**53 * units[0] * units[1] * scale) ** 2
        # A rational number just below the product of the norms.
        root = Fraction(
            isqrt(square.numerator * square.denominator), square.denominator
        )
        error = 0 if is_exact else k * U * (1 + k * U) * root
        lower = float(entry - error)
        upper = float(entry + error)
        # The nearest float64 numbers within the error.
        if Fraction(lower) < entry - error:
            lower = np.nextafter(lower, np.inf)
        if Fraction(upper) > entry + error:
            upper = np.nextafter(upper, -np.inf)
        # A library may add zeros from -0 on.
        products[:, index // n, index % n] = lower if lower else -0.0, upper
    return exact, products


@pytest.mark.parametrize("shift", [0, -20])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_product_within_the_bound_gets_a_wrong_value(override, family, shift):
    rng = np.random.default_rng([1, FAMILIES.index(family)])
    num_certain = 0
    for m, k, n in ((4, 3, 9), (2, 60, 40)):
        a, b = real_pair(rng, family, m, k, n, np.float32)
        k = a.shape[1]
        exact, products = worst_products(a, b, shift)
        want = exact_bits(exact, (m, n))
        rows = override(in_doubles)(a, shift).bounds
        columns = override(in_doubles)(b.T, 0).bounds
        for product in products:
            values = np.empty((m, n), np.float32)
            num_open = override(round_product)(product, rows, columns, k, values)
            is_certain = ~np.isnan(values)
            assert num_open == (~is_certain).sum()
            assert is_certain.all() or family != "zeros"
            assert same_bits(values[is_certain], want[is_certain])
            num_certain += is_certain.sum()
    if family in ("uniform", "phi_1", "integers", "zeros", "largest"):
        assert num_certain > 0


def test_the_core_certifies_the_same_entries(override):
    rng = np.random.default_rng(2)
    for family in FAMILIES:
        a, b = real_pair(rng, family, 9, 50, 37, np.float32)
        rows = in_doubles(a, 0)
        columns = in_doubles(b.T, 0)
        product = rows.numbers @ columns.numbers.T
        bounds = rows.bounds, columns.bounds, a.shape[1]
        want = np.empty(product.shape, np.float32)
        got = np.empty(product.shape, np.float32)
        num_open = round_product(product, *bounds, want)
        assert override(round_product)(product, *bounds, got) == num_open
        assert (np.isnan(got) == np.isnan(want)).all()
        assert same_bits(got[~np.isnan(got)], want[~np.isnan(want)])


@pytest.mark.parametrize("shift", [0, 3, -140, 120])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_exact_fractions(override, family, shift):
    rng = np.random.default_rng([3, FAMILIES.index(family)])
    for m, k, n in ((1, 1, 1), (5, 7, 3), (SAMPLE + 3, 9, 2), (2, 130, 33)):
        a, b = real_pair(rng, family, m, k, n, np.float32)
        want = exact_bits(scaled_entries(a, b, shift), (m, n))
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            values = np.empty((m, n), np.float32)
            assert write_rows(x, y, values, shift, 1.0, override) == m
            assert same_bits(values, want)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_floats_are_rounded_once(data):
    m, k, n = (data.draw(st.integers(1, 5)) for _ in range(3))
    number = st.floats(allow_nan=False, allow_infinity=False, width=32)
    draw = st.lists(number, min_size=m * k + k * n, max_size=m * k + k * n)
    numbers = np.array(data.draw(draw), np.float32)
    a = numbers[: m * k].reshape(m, k)
    b = numbers[m * k :].reshape(k, n)
    want = exact_bits(exact_entries(a, b), (m, n))
    for override in (of_numpy, core.override):
        values = np.empty((m, n), np.float32)
        write_rows(a, b, values, 0, 1.0, override)
        assert same_bits(values, want)


def bfloat16(x):
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(
        np.float32
    )


@pytest.mark.parametrize("kind", ["bfloat16", "integers"])
def test_exact_sums_settle_what_may_be_ties(override, kind):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 100, 100))
    operands = [bfloat16(y) if kind == "bfloat16" else np.rint(900 * y) for y in x]
    a, b = (y.astype(np.float32) for y in operands)
    rows = override(in_doubles)(a, 0)
    columns = override(in_doubles)(b.T, 0)
    product = rows.numbers @ columns.numbers.T
    values = np.empty((100, 100), np.float32)
    num_open = override(round_product)(
        product, rows.bounds, columns.bounds, 100, values
    )
    # A bound alone leaves every tie open, and every seventh of these integers is one.
    assert num_open <= (10 if kind == "bfloat16" else 0)


def test_a_sample_of_rows_leaves_products_that_cancel(override):
    rng = np.random.default_rng(5)
    q = np.linalg.qr(rng.standard_normal((3 * SAMPLE, 40)))[0].astype(np.float32)
    values = np.full((40, 40), 7, np.float32)
    assert write_rows(q.T, q, values, 0, 0.125, override) == 0
    assert (values[SAMPLE:] == 7).all()

    # Rows before those that cancel are written, open entries too.
    a = rng.standard_normal((2 * SAMPLE, 3 * SAMPLE)).astype(np.float32)
    a[SAMPLE:] = q.T[:SAMPLE]
    values = np.empty((2 * SAMPLE, 40), np.float32)
    assert write_rows(a, q, values, 0, 0.125, override) == SAMPLE
    want = exact_bits(exact_entries(a[:SAMPLE], q), (SAMPLE, 40))
    assert same_bits(values[:SAMPLE], want)


@pytest.mark.parametrize("where", ["a", "late rows of a", "b"])
def test_rows_are_refused_where_an_operand_is_not_finite(override, where):
    a = np.ones((3 * SAMPLE, 4), np.float32)
    b = np.ones((4, 5), np.float32)
    target = b if where == "b" else a
    target[-1 if where == "late rows of a" else 0, -1] = np.nan
    values = np.empty((len(a), 5), np.float32)
    assert write_rows(a, b, values, 0, 0.125, override) is None


def test_open_entries_are_written_and_no_others(override):
    rng = np.random.default_rng(6)
    a, b = real_pair(rng, "cancelling", 12, 30, 50, np.float32)
    values = np.full((12, 50), 7, np.float32)
    is_open = rng.random(values.shape) < 0.2
    values[is_open] = np.nan
    override(finish_entries)(a, b.astype(np.float64), values, 0)
    want = exact_bits(exact_entries(a, b), (12, 50))
    assert same_bits(values[is_open], want[is_open])
    assert (values[~is_open] == 7).all()


def test_many_rows_go_in_blocks(override, monkeypatch):
    monkeypatch.setattr(float64_products, "_ENTRIES", 1)
    rng = np.random.default_rng(7)
    a, b = real_pair(rng, "uniform", 5 * SAMPLE + 1, 20, 6, np.float32)
    values = np.empty((len(a), 6), np.float32)
    assert write_rows(a, b, values, 0, 0.5, override) == len(a)
    assert same_bits(values, exact_bits(exact_entries(a, b), values.shape))
