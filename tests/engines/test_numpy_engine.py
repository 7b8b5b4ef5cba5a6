"""The NumPy engine: exact within its limits, refusing beyond, whatever the layout and
the number of threads.
"""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import hifigemm as hg
from hifigemm.base.store import forget, kept
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.executable import NOT_ORDINARY
from hifigemm.numerics.bounds import exact_k_limit, slice_bits_for
from hifigemm.running.keys import key_of
from hifigemm.testing.exact import integer_product

ENGINE = NumpyEngine()
SPECS = list(ENGINE.products.values())
IDS = [spec.name for spec in SPECS]


def largest(spec):
    """Magnitude whose products still allow sums of at least 64 terms."""
    value = spec.max_integer
    while exact_k_limit(spec.accumulator_max, value, value) < 64:
        value //= 2
    return value


def storage(spec):
    return {"int8": np.int8, "fp16": np.float16, "fp64": np.float64}.get(
        spec.name, np.float32
    )


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_products_are_exact_at_the_limit_of_the_accumulator(spec):
    top = largest(spec)
    k = min(exact_k_limit(spec.accumulator_max, top, top), 140000)
    rng = np.random.default_rng(12)
    for signs_a, signs_b in (
        (1, 1),
        (1, -1),
        (rng.choice([-1, 1], (2, k)), rng.choice([-1, 1], (k, 3))),
    ):
        a, b = (
            np.broadcast_to(s * top, shape).astype(storage(spec))
            for s, shape in ((signs_a, (2, k)), (signs_b, (k, 3)))
        )
        c = ENGINE.exact_product(spec, a[None], b[None], top, top)[0]
        exact = integer_product(a.astype(np.int64), b.astype(np.int64))
        assert [[int(x) for x in row] for row in c] == exact.tolist()


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_random_words_multiply_exactly(spec):
    rng = np.random.default_rng(13)
    top = largest(spec)
    for k in (1, 2, 63):
        a = rng.integers(-top, top + 1, (2, 5, k))
        b = rng.integers(-top, top + 1, (2, k, 4))
        c = ENGINE.exact_product(
            spec, a.astype(storage(spec)), b.astype(storage(spec)), top, top
        )
        assert c.shape == (2, 5, 4)
        for z in range(2):
            assert [[int(x) for x in row] for row in c[z]] == integer_product(
                a[z], b[z]
            ).tolist()


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_exact_product_refuses_one_term_too_many_with_the_numbers(spec):
    top = largest(spec)
    limit = exact_k_limit(spec.accumulator_max, top, top)
    if limit > 10**6:
        pytest.skip("the limit does not fit a test")
    a = np.zeros((1, 1, limit + 1), storage(spec))
    b = np.zeros((1, limit + 1, 1), storage(spec))
    assert ENGINE.exact_product(spec, a[:, :, 1:], b[:, 1:], top, top)[0, 0, 0] == 0
    with pytest.raises(hg.InexactProductError) as error:
        ENGINE.exact_product(spec, a, b, top, top)
    for number in (
        limit + 1,
        top,
        (limit + 1) * top * top,
        spec.accumulator_max,
        limit,
    ):
        assert str(number) in str(error.value)
    assert spec.name in str(error.value)
    assert isinstance(error.value, hg.HifigemmError)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_the_stated_block_is_exact_for_the_words_it_is_based_on(spec):
    beta = slice_bits_for(
        spec.k_block, spec.k_block, spec.accumulator_max, spec.max_integer
    )
    h = 2 ** (beta - 1)
    assert exact_k_limit(spec.accumulator_max, h, h) >= spec.k_block


def test_int8_sums_are_exact_in_int32_for_every_pair_of_bytes():
    spec = ENGINE.products["int8"]
    values = np.arange(-128, 128).astype(np.int8)
    c = ENGINE.exact_product(spec, values[None, :, None], values[None, None], 128, 128)[
        0
    ]
    np.testing.assert_array_equal(
        c, np.outer(values.astype(np.int64), values.astype(np.int64))
    )
    assert c.dtype == np.int32


def test_int8_products_longer_than_the_float32_block_are_exact():
    spec = ENGINE.products["int8"]
    rng = np.random.default_rng(14)
    for k in (1023, 1024, 1025, 4096, 131071):
        a, b = (
            rng.choice([-128, 127], shape).astype(np.int8)
            for shape in ((1, 2, k), (1, k, 2))
        )
        found = ENGINE.exact_product(spec, a, b, 128, 128)[0]
        np.testing.assert_array_equal(
            found, a[0].astype(np.int64) @ b[0].astype(np.int64)
        )


@pytest.mark.parametrize(("x", "y"), [(127, 127), (127, -128), (1, 127), (128, 128)])
def test_float32_sums_of_int8_products_end_where_one_more_term_might_be_rounded(x, y):
    spec, limit = ENGINE.products["int8"], 2**24 // abs(x * y)
    for k in (limit, limit + 1, limit + 2, 2 * limit, 2 * limit + 1):
        if k <= spec.accumulator_max // abs(x * y):
            a, b = np.full((1, 1, k), x, np.float32), np.full((1, k, 1), y, np.float32)
            assert ENGINE.exact_product(spec, a, b, abs(x), abs(y)).item() == k * x * y


def repeated(a, b, scheme):
    """What a product leaves for later calls of its kind."""
    forget()
    hg.matmul(a, b, scheme=scheme)
    return kept(key_of(a, b, None, None, scheme, None, None))


@pytest.mark.parametrize(
    ("dtype", "least"), [(np.float32, 2.0**-126), (np.float64, 2.0**-1022)]
)
@pytest.mark.parametrize("k", [1, 3])
def test_products_are_repeated_where_results_are_finite_and_underflow_cannot_matter(
    dtype, least, k
):
    a = np.zeros((2, k), dtype)
    a[:, 0] = 1
    b = np.ones((k, 2), dtype)
    b[0] = k * least, 1
    again = repeated(a, b, "native")
    np.testing.assert_array_equal(again(a, b).values, a @ b)
    # Smaller entries are right where the terms are normal numbers, or zeros.
    for right in (least, 0.0):
        b[0, 0] = right
        np.testing.assert_array_equal(again(a, b).values, a @ b)
    for wrong in (np.nextafter(dtype(least), dtype(0)), np.inf, -np.inf, np.nan):
        b[0, 0] = wrong
        assert again(a, b) is NOT_ORDINARY
        assert again(-a, b) is NOT_ORDINARY


def test_products_of_all_shapes_are_repeated(assert_same_bits):
    rng = np.random.default_rng(3)
    a, stack = rng.standard_normal((5, 5)), rng.standard_normal((3, 5, 5))
    for x, y, scheme in (
        (a, a, "auto"),
        (a, a, "ozaki1"),
        (a.astype(np.float32), a.astype(np.float32), hg.Native(product="fp64")),
        (stack, stack, "native"),
        (stack, a, "ozaki1"),
        (a, stack, "auto"),
        (a, a[0], "auto"),
        (a[0], stack, "ozaki1"),
    ):
        again = repeated(x, y, scheme)
        want = hg.matmul(x, -y, scheme=scheme, return_report=True)[0]
        assert_same_bits(again(x, -y).values, want)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_layouts_broadcasting_and_threads_do_not_matter(spec):
    rng = np.random.default_rng(15)
    top = min(largest(spec), 127)
    a = rng.integers(-top, top + 1, (3, 6, 60))
    b = rng.integers(-top, top + 1, (1, 60, 7))
    expected = a @ b
    a, b = a.astype(storage(spec)), b.astype(storage(spec))
    flipped = (
        np.ascontiguousarray(a[:, :, ::-1])[:, :, ::-1],
        np.ascontiguousarray(b[:, ::-1])[:, ::-1],
    )
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), flipped):
        for threads in (1, 2):
            with threadpool_limits(threads, user_api="blas"):
                found = ENGINE.exact_product(spec, x, y, top, top)
            np.testing.assert_array_equal(found, expected)


def test_the_native_product_is_that_of_numpy_without_warnings(
    make_pair, assert_same_bits
):
    for name in ("phi_1", "overflowing", "underflowing"):
        a, b = make_pair(name, 4, 9, 3)
        with np.errstate(all="ignore"):
            expected = a @ b
        with np.errstate(all="raise"):
            assert_same_bits(ENGINE.native_product(a, b), expected)


def test_no_override_means_the_function_itself():
    assert ENGINE.override(len) is len


def test_engines_that_are_not_here_are_named_with_those_that_are():
    with pytest.raises(hg.PlanError, match=r"'abacus'.*numpy"):
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), engine="abacus")


@pytest.mark.parametrize("stacks", [(1, 1), (7, 1), (1, 7), (7, 7), (0, 1)])
@pytest.mark.parametrize("k", [0, 3, 700, 2100])
def test_stacks_of_int8_products_are_those_of_their_matrices(stacks, k):
    rng = np.random.default_rng(k)
    a, b = (
        rng.integers(-128, 128, (many, *shape)).astype(np.int8)
        for many, shape in zip(stacks, ((5, k), (k, 4)))
    )
    found = ENGINE.exact_product(ENGINE.products["int8"], a, b, 128, 128)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))
