"""The compiled core: the bits of the NumPy twin and of exact fractions, in any mode of
the thread; and products with and without it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.base.formats import FP32, FP64
from hifigemm.engines import core, core_sums
from hifigemm.functions.symmetric import herk
from hifigemm.model.problem import Problem
from hifigemm.numerics import three_words
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.epilogue import combine_stacks
from hifigemm.testing.reference import correctly_rounded
from tests import hard_matrices as gen
from tests.exact_values import exact_entries, values_of_kind
from tests.thread_modes import MACHINE, MODES, ROUNDINGS, control, rounding

MODULE, _ = core.loaded()
KINDS = ("nearest", "pair", "enclosure")
FORMATS = {np.float32: FP32, np.float64: FP64}

needs_core = pytest.mark.skipif(MODULE is None, reason="the core is not built")


@pytest.fixture(params=() if MODULE is None else MODULE.instructions)
def instructions(request):
    """Each set of instructions that this machine has, in turn."""
    MODULE.use(request.param)
    yield request.param
    MODULE.use(MODULE.instructions[0])


def check(a, b, c=None, shift=0, kinds=KINDS):
    """The core gives what fractions give, for all kinds of results."""
    dtype = a.dtype.type
    m = a.shape[0]
    n = b.shape[1]
    exact = exact_entries(a, b) if a.size and b.size else [Fraction(0)] * (m * n)
    if c is not None:
        exact = [x + Fraction(float(y)) for x, y in zip(exact, c.ravel(), strict=True)]
    exact = [x * Fraction(2) ** shift for x in exact]
    addend = None if c is None else c[None]
    for kind in kinds:
        found = core.certified_sums(
            a[None], b[None], addend, shift, FORMATS[dtype], kind
        )
        first, second = values_of_kind(exact, kind, dtype, (1, m, n))
        assert found.certified.all()
        for x, y in ((found.first, first), (found.second, second)):
            if y is not None:
                np.testing.assert_array_equal(x, y)
                np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


def operands(family, rng, m, k, n, dtype):
    """Random operands of a family of hard ones."""
    if family == "full_range":
        return gen.full_range(rng, (m, k), dtype), gen.full_range(rng, (k, n), dtype)
    if family in ("overflowing", "underflowing", "cancelling", "ties"):
        return getattr(gen, family)(rng, m, k, n, dtype)
    a = rng.standard_normal((m, k)).astype(dtype)
    b = rng.standard_normal((k, n)).astype(dtype)
    if family == "integers":
        return np.rint(4 * a), np.rint(4 * b)
    if family == "zeros":
        return np.where(rng.random(a.shape) < 0.8, 0, a), np.where(b < 1, 0, b)
    if family == "wide":
        spread = np.finfo(dtype).maxexp // 8
        a = np.ldexp(a, rng.integers(-spread, spread, a.shape))
        b = np.ldexp(b, rng.integers(-spread, spread, b.shape))
    if family == "cancelling exactly":
        return np.hstack([a, a]), np.vstack([b, -b])
    return a, b


FAMILIES = (
    "normal",
    "integers",
    "zeros",
    "wide",
    "full_range",
    "overflowing",
    "underflowing",
    "cancelling",
    "cancelling exactly",
    "ties",
)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_is_that_of_exact_fractions(instructions, family, dtype):
    rng = np.random.default_rng([FAMILIES.index(family), np.finfo(dtype).bits])
    shapes = [(1, 1, 1), (4, 4, 4), (7, 40, 2), (1, 60, 1), (2, 50, 9), (9, 33, 19)]
    for m, k, n in [*shapes, (3, 300, 2), (4, 520, 4), (1, 1100, 1)]:
        a, b = operands(family, rng, m, k, n, dtype)
        check(a, b)


@needs_core
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_floats_of_any_exponents_are_rounded_once(data):
    m, k, n = (data.draw(st.integers(1, 5)) for _ in range(3))
    number = st.floats(allow_nan=False, allow_infinity=False, width=64)
    draw = st.lists(number, min_size=m * k + k * n, max_size=m * k + k * n)
    numbers = np.array(data.draw(draw))
    check(numbers[: m * k].reshape(m, k), numbers[m * k :].reshape(k, n))


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_addend_and_a_power_of_two_enter_before_the_rounding(
    instructions, family, dtype
):
    rng = np.random.default_rng(FAMILIES.index(family))
    for m, k, n in ((5, 20, 10), (6, 40, 1)):
        a, b = operands(family, rng, m, k, n, dtype)
        with np.errstate(all="ignore"):
            product = a @ b
        product = np.where(np.isfinite(product), product, 1.0)
        others = rng.standard_normal(product.shape).astype(dtype)
        for c in (others, -product, 0 * product):
            check(a, b, c, 0, ["nearest"])
            check(a, b, c, int(rng.integers(-60, 60)), ["nearest", "pair"])
    largest = 2.0 ** (np.finfo(dtype).maxexp - 24)
    for shift in (-1074, -400, -150, 100, 500):
        check(a, b, np.full_like(product, largest), shift, ["nearest"])


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_with_c_next_to_midpoints_are_told_apart(instructions, dtype):
    """C and half a unit of it, and what decides on which side the sum lies."""
    fmt = np.finfo(dtype)
    tails = 2.0 ** np.array([-30, -53, -54, -60, -80, -100])
    tails = np.concatenate([[0.0], tails, -tails])
    c = np.array([1, 1 + fmt.eps, 2 - fmt.eps, 1.5, -1, fmt.eps], dtype)
    for scale in (0, fmt.minexp, fmt.maxexp - 1):
        for shift in (0, 3, -40):
            a = np.ones((len(tails), 2), dtype)
            a[:, 1] = tails
            half = dtype(np.ldexp(fmt.eps / 2, scale))
            b = np.full((2, len(c)), half)
            addend = np.broadcast_to(np.ldexp(c, scale), (len(tails), len(c))).copy()
            check(a, b, addend, shift, ["nearest"])


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", ["vanishing", "half_the_smallest", "signed_zeros"])
def test_sums_that_round_to_zero_keep_their_sign(instructions, family, dtype):
    """Be it that of a sum, of one with C or of what a pair leaves; 0 is +0."""
    make = getattr(gen, family)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m, n = (int(x) for x in rng.integers(1, 5, 2))
        a, b = make(rng, m, int(rng.choice([2, 4, 6, 20, 40])), n, dtype)
        check(a, b)
        near = correctly_rounded(a, b)
        for c in (-near, np.nextafter(-near, dtype(0)), dtype(-0.0) * abs(near)):
            check(a, b, c, int(rng.integers(-40, 40)))


@needs_core
def test_numbers_next_to_midpoints_are_told_apart(instructions):
    # 1 + 2^-53 is a midpoint; what follows decides on which side of it the sum lies.
    for tail in (0.0, 2.0**-110, 2.0**-400, 2.0**-1074):
        for sign in (1.0, -1.0):
            for top in (1.0, 1.0 + 2.0**-52, 1.0 - 2.0**-53):
                terms = [top, 2.0**-53, sign * tail, 2.0**-54, -(2.0**-54)]
                for k in (5, 40):
                    a = np.zeros((2, k))
                    a[0, :5] = terms
                    a[1, -5:] = terms
                    check(a, np.ones((k, 1)))
                    check(a, np.ones((k, 4)))
                    check(a * 2.0**-1022, np.ones((k, 4)))


def graded(rng, m, k, n, span, dtype):
    """A D and D^-1 B, with powers of two over 2 span bits in D: each norm belongs to
    another term than the products do.
    """
    a = rng.standard_normal((m, k))
    b = rng.standard_normal((k, n))
    grades = rng.integers(-span, span + 1, k)
    a = np.ldexp(a, grades).astype(dtype)
    return a, np.ldexp(b, -grades[:, None]).astype(dtype)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("smallest", [0.0, 1e-30, 1e-145, 1e-200, 1e-310])
def test_sums_without_terms_are_zeros(instructions, smallest, dtype):
    """Of blocks on a diagonal. Others look like that: their terms are tiny, or cancel."""
    rng = np.random.default_rng(11)
    for m, k, n in ((7, 40, 35), (2, 40, 35), (4, 300, 20), (20, 9, 5)):
        a = rng.standard_normal((m, k)).astype(dtype)
        b = rng.standard_normal((k, n)).astype(dtype)
        a[: m // 2, k // 2 :] = a[m // 2 :, : k // 2] = 0
        b[: k // 2, n // 2 :] = b[k // 2 :, : n // 2] = 0
        check(a, b)
        c = np.where(rng.random((m, n)) < 0.5, 0, rng.standard_normal((m, n)))
        check(a, b, c.astype(dtype), -3)
        a[0, k - 1] = a[m - 1, 0] = b[0, n - 1] = b[k - 1, 0] = smallest
        a[m - 1, 1:3] = 1
        b[1:3, n // 2 :] = [[1], [-1]]
        check(a, b)
        check(a, b, c.astype(dtype), -3)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", ["whole", "cancelling", "integers", "sparse"])
def test_sums_far_below_the_norms_are_rounded_once(instructions, family, dtype):
    """Three words on the grid of an entry's own terms, to grids below the finest one."""
    rng = np.random.default_rng(6)
    spans = (5, 20, 50) if dtype is np.float32 else (5, 30, 100, 140, 200, 400)
    for span in spans:
        for m, k, n in ((4, 9, 9), (3, 64, 17), (5, 40, 1), (2, 300, 4)):
            a, b = graded(rng, m, k, n, span, dtype)
            if family == "cancelling":
                # What is left has the last few terms and a part of the others' bits.
                half = (k - 1) // 2
                a[:, half : 2 * half] = a[:, :half]
                b[half : 2 * half] = -b[:half] * dtype(1 + 2.0**-20)
            if family == "integers":
                a, b = np.rint(4 * a), np.rint(4 * np.abs(b))
            if family == "sparse":
                a[rng.random(a.shape) < 0.6] = 0
                b[rng.random(b.shape) < 0.6] = 0
            check(a, b)
            check(np.ldexp(a, 60 - span), b)
            near = correctly_rounded(a, b)
            check(a, b, -near, int(rng.integers(-40, 40)))


@needs_core
@pytest.mark.parametrize("exponent", [-250, -140, 0, 100])
def test_low_parts_on_grids_of_their_own_may_be_ties_or_zero(instructions, exponent):
    # The first entry of A, and the second of B, raise the norms, without a product.
    unit = 2.0**-10
    for terms in (
        [1.0, 2.0**-60],
        [1.0, 2.0**-60, 2.0**-112, 2.0**-113],
        [1.0, 2.0**-60, 2.0**-113],
        [1.0, -(2.0**-60), 2.0**-113, -(2.0**-140)],
        [1.0, 2.0**-53, 2.0**-140],
        [1.0, 2.0**-53, 2.0**-106, 2.0**-159],
        [1.0, 3 * unit, -3 * unit],
        [1.0, -1.0, 2.0**-60, -(2.0**-60)],
        [-1.0, 1.0, -(2.0**-120)],
    ):
        for k in (8, 40):
            a = np.zeros((2, k))
            b = np.ones((k, 5))
            a[:, 2 : 2 + len(terms)] = np.ldexp([terms, terms[::-1]], exponent)
            a[:, 0], b[0] = 2.0**101, 0.0
            a[:, 1], b[1] = 0.0, 2.0**101
            check(a, b)
            check(a, b[:, :1])
            check(a, b, shift=-900)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", ["normal", "integers", "zeros"])
def test_dot_products_with_far_terms_are_rounded_once(instructions, family, dtype):
    """Pieces are added in parts; integers, and what they leave, in exact words."""
    rng = np.random.default_rng(7)
    exponents = (21, 45, 60) if dtype is np.float32 else (21, 60, 110, 300, 440, 700)
    for k in (32, 33, 200, 1025, 2100):
        for exponent in exponents:
            for positions in (
                [0],
                [k - 1],
                [k // 3],
                [3, k // 2],
                [k // 2, k // 2 + 1],
            ):
                a, b = operands(family, rng, 1, k, 1, dtype)
                b[positions] += dtype(0.5)
                a[:, positions] = 2.0**exponent
                check(a, b)
                # The far terms cancel, at different ends of the vectors.
                a[0, -1 - k // 4], b[-1 - k // 4] = a[0, positions[0]], -b[positions[0]]
                check(a, b, kinds=["nearest", "pair"])


@needs_core
def test_dot_products_of_integers_may_be_ties(instructions):
    rng = np.random.default_rng(8)
    for k in (40, 1300):
        a = np.zeros((4, k))
        b = np.ones((k, 1))
        a[:, 5:] = rng.integers(-99, 99, (4, k - 5))
        a[:, -1] -= a.sum(1)
        # 2^53 + 1, and 3 and a bit below it; low parts that are ties of their own.
        a[:, 0] = 2.0**53, 2.0**53, -(2.0**53), 2.0**53
        a[:, k // 2] += 1.0, 3.0, -1.0, 1.0
        check(a, b)
        a[:, 1] = 2.0**-52, 2.0**-53, -(2.0**-53), 2.0**-60
        check(a, b)
        check(a.astype(np.float32), b.astype(np.float32))


@needs_core
@pytest.mark.parametrize("scale", [0, -200])
def test_words_are_taken_for_exact_only_where_they_are(instructions, scale):
    # x y and z 1 cancel but for the last of 106 bits, which three words round away.
    bits = 52 if scale == 0 else 40
    x = np.ldexp(1 + 2.0**-bits, scale - 60)
    y = np.ldexp(1 + 2.0**-bits, scale)
    z = -np.ldexp(1 + 2.0 ** (1 - bits), scale - 60)
    for k in (32, 34, 1025, 1026):
        for first, second in ((0, 1), (20, 21), (k - 2, k - 1), (k - 1, 3)):
            a = np.zeros((1, k))
            b = np.ones((k, 1)) * 2.0**scale
            if scale == 0:
                a[0] = 2.0**20 + np.arange(k)
            a[0, first], a[0, second] = x, z
            b[first] = y
            check(a, b)
            a[0, second] = 0.0
            check(a, b)


@needs_core
def test_columns_of_other_grids_have_errors_of_their_own(instructions):
    # Ones cancel, all but terms that lie far below them; other columns have no ones.
    rng = np.random.default_rng(9)
    k, n = 40, 16
    a = rng.standard_normal((3, k))
    a[:, :3] = 1.0, 1.0, 0.0
    b = np.ldexp(rng.standard_normal((k, n)), -100)
    b[:3] = np.array([1.0, -1.0, 0.0])[:, None]
    for other in (0, 1, 7, 15):
        c = b.copy()
        c[:, other] = np.ldexp(c[:, other], -200)
        c[:3, other] = 0.0, 0.0, 1.0
        check(a, c)


@needs_core
@pytest.mark.parametrize("exponent", [-490, -515, -530])
def test_values_of_fine_grids_may_be_subnormal(instructions, exponent):
    rng = np.random.default_rng(10)
    a = np.ldexp(rng.standard_normal((3, 30)), exponent)
    b = np.ldexp(rng.standard_normal((30, 9)), exponent)
    a[:, 0], b[0] = 2.0**-390, 0.0
    a[:, 1], b[1] = 0.0, 2.0**-390
    check(a, b)
    check(a, b[:, :1])


@needs_core
def test_terms_that_are_far_below_decide_what_is_left(instructions):
    """Exact sums leave out what lies 260 bits below the largest term, if they may."""
    ties = [
        [1.0],
        [1.0, 2.0**-53],
        [1.0, 2.0**-60],
        [1.0, 2.0**-60, 2.0**-112, 2.0**-113],
        [1.0, 2.0**-60, 2.0**-113],
        [1.0, 2.0**-53, 2.0**-106],
        [1.0, -(2.0**-250)],
        [1.0, -1.0],
        [2.0**40, 2.0**-40, -(2.0**40)],
    ]
    for terms in ties:
        for tail in (0.0, 2.0**-255, 2.0**-270, 2.0**-400, 2.0**-1074, 3 * 2.0**-500):
            for sign in (1.0, -1.0):
                a = np.zeros((1, 40))
                a[0, 3 : 3 + len(terms)] = terms
                a[0, -1] = sign * tail
                # Next to terms that cancel, no words settle an entry.
                a[0, 20:22] = 2.0**300, -(2.0**300)
                for b in (np.ones((40, 1)), np.ones((40, 4))):
                    check(a, b)
                    b[20:22] = 0.0
                    check(a, b)
                    check(a, b, np.full(b.shape[1:], -terms[0])[None], -7)


@needs_core
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=str)
def test_the_twin_certifies_no_other_bits(kind, fmt):
    rng = np.random.default_rng(1)
    dtype = np.float32 if fmt is FP32 else np.float64
    for phi in (0.5, 4.0):
        a = rng.standard_normal((2, 70, 130)) * np.exp(phi * rng.standard_normal(130))
        b = rng.standard_normal((2, 130, 60))
        a, b = a.astype(dtype), b.astype(dtype)
        twin = three_words.certified_sums(a, b, None, 3, fmt, kind)
        compiled = core.certified_sums(a, b, None, 3, fmt, kind)
        assert twin.certified.any()
        for x, y in ((twin.first, compiled.first), (twin.second, compiled.second)):
            if x is not None:
                np.testing.assert_array_equal(x[twin.certified], y[twin.certified])


def layouts(x):
    """The same matrix with other strides."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    yield from (
        x,
        np.asfortranarray(x),
        wide[::2, ::3],
        x[::-1, ::-1].copy()[::-1, ::-1],
    )
    yield from (shifted, x.astype(x.dtype.newbyteorder()))


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_strides_do_not_matter(dtype):
    rng = np.random.default_rng(2)
    for m, k, n in ((5, 40, 9), (5, 40, 1), (1, 40, 5)):
        a, b = operands("normal", rng, m, k, n, dtype)
        want = core.certified_sums(a[None], b[None], None, 0, FORMATS[dtype], "pair")
        for x in layouts(a):
            for y in layouts(b):
                got = core.certified_sums(
                    x[None], y[None], None, 0, FORMATS[dtype], "pair"
                )
                np.testing.assert_array_equal(got.first, want.first)
                np.testing.assert_array_equal(got.second, want.second)


@needs_core
def test_strides_of_zero_and_stacks_of_one(assert_same_bits):
    rng = np.random.default_rng(3)
    row = np.broadcast_to(rng.standard_normal(7), (4, 7))
    check(row, np.broadcast_to(rng.standard_normal((7, 1)), (7, 5)))
    a = rng.standard_normal((1, 4, 6))
    b = rng.standard_normal((3, 6, 2))
    whole = core.certified_sums(a, b, None, 0, FP64, "nearest").first
    for z in range(3):
        one = core.certified_sums(a, b[z : z + 1], None, 0, FP64, "nearest").first
        assert_same_bits(whole[z], one[0])


@needs_core
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)])
def test_empty_dimensions(shape):
    m, k, n = shape
    check(np.zeros((m, k)), np.zeros((k, n)))
    check(np.zeros((m, k)), np.zeros((k, n)), np.ones((m, n)), kinds=["nearest"])


@needs_core
def test_infinities_and_nans_are_left_to_the_caller(instructions):
    for bad in (np.inf, -np.inf, np.nan):
        for m, k, n in ((4, 5, 4), (4, 1500, 1), (1, 1500, 1)):
            for position in (0, k - 1):
                a = np.full((m, k), 1e300)
                a[m - 1, position] = bad
                out = np.empty((m, n))
                arguments = (None, out, None, 0, 0)
                assert not MODULE.multiply(a, np.ones((k, n)), *arguments)
                transposed = np.empty((n, m))
                arguments = (None, transposed, None, 0, 0)
                assert not MODULE.multiply(np.ones((n, k)), a.T, *arguments)


@needs_core
@pytest.mark.parametrize(
    "arguments",
    [
        (np.ones((2, 3)), np.ones((2, 3)), None, np.ones((2, 3)), None, 0, 0),
        (np.ones((2, 3)), np.ones((3, 2)), None, np.ones((2, 3)), None, 0, 0),
        (np.ones((2, 3)), np.ones((3, 2)), None, np.ones((2, 2)), None, 0, 1),
        (np.ones((2, 3)), np.ones((3, 2)), None, np.ones((2, 2)), None, 0, 4),
        (np.ones((2, 3)), np.ones((3, 2)), None, np.ones((2, 2)), None, 0, 6),
        (*[np.ones((2, 2), np.float32)] * 2, None, np.ones((2, 2), "f"), None, 0, 3),
        (np.ones((2, 3)), np.ones((3, 2)), None, np.ones((2, 2)), None, 2500, 0),
        (np.ones((2, 3)), np.ones((3, 2)), np.ones(1), np.ones((2, 2)), None, 0, 0),
        (np.ones((2, 3), int), np.ones((3, 2)), None, np.ones((2, 2)), None, 0, 0),
        (np.ones((2, 3), ">f8"), np.ones((3, 2)), None, np.ones((2, 2)), None, 0, 0),
        (np.ones((2, 3)), "text", None, np.ones((2, 2)), None, 0, 0),
        (np.ones((2, 3)),),
    ],
)
def test_arguments_that_do_not_fit_raise(arguments):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        MODULE.multiply(*arguments)


@needs_core
def test_results_that_are_read_only_raise():
    out = np.ones((2, 2))
    out.flags.writeable = False
    with pytest.raises(TypeError, match="first"):
        MODULE.multiply(np.ones((2, 3)), np.ones((3, 2)), None, out, None, 0, 0)


@needs_core
@pytest.mark.skipif(MACHINE not in MODES, reason="the register is not known here")
@pytest.mark.parametrize("family", ["normal", "underflowing", "ties"])
def test_modes_of_the_thread_change_no_bit_and_stay(family):
    rng = np.random.default_rng(4)
    a, b = operands(family, rng, 6, 40, 9, np.float64)
    want = np.empty((6, 9))
    got = np.empty((6, 9))
    MODULE.multiply(a, b, None, want, None, 0, 0)
    for flags in MODES[MACHINE]:
        control(flags)
        try:
            MODULE.multiply(a, b, None, got, None, 0, 0)
            assert control() == flags
        finally:
            control(0)
        assert (got.view(np.int64) == want.view(np.int64)).all()
    for mode in ROUNDINGS[MACHINE]:
        with rounding(mode):
            MODULE.multiply(a, b, None, got, None, 0, 0)
        assert (got.view(np.int64) == want.view(np.int64)).all()


@needs_core
def test_bounds_of_the_kernels_hold(instructions):
    # Sums of every length around the chunks and pieces, beside exact ones: entries that
    # the bounds let pass would be wrong.
    rng = np.random.default_rng(5)
    for k in (3, 4, 5, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2049):
        a, b = operands("cancelling", rng, 3, k, 2, np.float64)
        check(a, b)
        check(a, np.hstack([b, b]), kinds=["pair"])


def requests():
    """Requests whose bits are the same everywhere."""
    yield from ({"accuracy": "correct"}, {"result": "pair"}, {"result": "enclosure"})
    yield {"scheme": hg.DoubleDouble()}


@needs_core
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", ["uniform", "phi_4", "nearly_cancelling", "ties"])
def test_products_have_the_same_bits_with_and_without_it(
    request, make_pair, assert_same_bits, name, dtype
):
    def products():
        for m, k, n in ((4, 4, 4), (20, 30, 17), (9, 200, 1)):
            a, b = make_pair(name, m, k, n, dtype)
            special = a.copy()
            special[0, 0] = np.inf
            special[-1, 1] = np.nan
            for options in requests():
                yield hg.matmul(a, b, **options)
                yield hg.matmul(a[:, None], b, **options)
            yield hg.matmul(special, b, accuracy="correct")
            yield hg.gemm(a, b, a @ b, alpha=-1.0, beta=1.0, accuracy="correct")
            yield hg.gemm(a, b, a @ b, alpha=0.3, beta=2.0, accuracy="correct")

    with np.errstate(all="ignore"):
        compiled = list(products())
        request.getfixturevalue("without_core")
        plain = list(products())
    for x, y in zip(compiled, plain, strict=True):
        if isinstance(x, tuple):
            for p, q in zip(x, y, strict=True):
                assert_same_bits(p, q)
        else:
            assert_same_bits(x, y)


@needs_core
def test_repeated_calls_have_the_bits_of_the_first(make_pair, assert_same_bits):
    a, b = make_pair("uniform", 5, 40, 4)
    stacks = np.stack([a] * 3), np.stack([b] * 3)
    calls = [(a, b), (a[0], b[:, 0]), (a, b[:, 0]), (a[0], b), stacks, (stacks[0], b)]
    for x, y in calls:
        first = hg.matmul(x, y, accuracy="correct")
        again = hg.matmul(x, y, accuracy="correct")
        assert_same_bits(again, first)
        for kind in ("pair", "enclosure"):
            parts = hg.matmul(x, y, result=kind)
            for one, other in zip(parts, hg.matmul(x, y, result=kind), strict=True):
                assert_same_bits(one, other)
        spoiled = x.copy()
        spoiled.flat[0] = np.nan
        assert np.isnan(hg.matmul(spoiled, y, accuracy="correct")).any()
        assert np.isnan(hg.matmul(spoiled, y, result="pair")[0]).any()


@needs_core
@pytest.mark.parametrize("accuracy", ["correct", hg.Relative(1e-6)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (0.25, -0.25)]
)
def test_repeated_sums_with_c_are_rounded_once(
    make_pair, assert_same_bits, monkeypatch, dtype, accuracy, alpha, beta
):
    a, b = make_pair("nearly_cancelling", 5, 40, 4, dtype)
    c = make_pair("phi_4", 5, 4, 1, dtype)[0]
    c[0] = 0.0  # exact zeros keep their sign
    a[1] = 0.0
    infinite = c.copy()
    infinite[2, 1] = -np.inf
    stacks = np.stack([a] * 3), np.stack([b] * 3), np.stack([c, -c, c])
    scalars = {"alpha": alpha, "beta": beta, "accuracy": accuracy}

    def values():
        written = c.copy()
        hg.gemm(a, b, written, out=written, **scalars)
        reported, report = hg.gemm(a, b, c, return_report=True, **scalars)
        assert report.correct
        assert "C among the terms" in report.reason
        return (
            hg.gemm(a, b, c, **scalars),
            hg.gemm(b.T, a.T, c.T, **scalars),
            hg.gemm(*stacks, **scalars),
            hg.gemm(a, b, infinite, **scalars),
            written,
            reported,
        )

    values()
    repeats = values()
    module = sys.modules["hifigemm.running.gemm"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "replay", lambda *args: None)
        for again, anew in zip(repeats, values(), strict=True):
            assert_same_bits(again, anew)

    # A repeated call goes to the core alone.
    monkeypatch.setattr(module, "library_of", None)
    assert_same_bits(hg.gemm(a, b, c, **scalars), repeats[0])


@needs_core
def test_a_mirrored_product_and_out_are_those_of_the_whole(make_pair, assert_same_bits):
    a, _ = make_pair("phi_1", 20, 30, 1, "complex128")
    plain = hg.matmul(a, a.conj().T, accuracy="correct")
    np.testing.assert_array_equal(herk(a, accuracy="correct"), plain)
    out = np.zeros((20, 40), complex)[:, ::2]
    hg.matmul(a, a.conj().T, accuracy="correct", out=out)
    assert_same_bits(np.ascontiguousarray(out), plain)


@needs_core
def test_blocks_within_a_workspace_change_no_bit(make_pair, assert_same_bits):
    for dtype in ("float64", "complex64"):
        a, b = make_pair("phi_1", 60, 90, 50, dtype)
        want, report = hg.matmul(a, b, accuracy="correct", return_report=True)
        limit = report.workspace // 2
        options = {"accuracy": "correct", "workspace": limit, "return_report": True}
        got, held = hg.matmul(a, b, **options)
        assert_same_bits(got, want)
        assert held.workspace <= limit


@pytest.fixture
def three_threads(monkeypatch):
    """Any product is shared among three threads."""
    monkeypatch.setattr(core, "SHARE", 1.0)
    monkeypatch.setattr(core, "_UNSHARED", 0)
    monkeypatch.setattr(core.threads, "limit", lambda: 3)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_no_bit(three_threads, monkeypatch, assert_same_bits, dtype):
    rng = np.random.default_rng(6)
    shapes = [(1, 100, 40, 7), (1, 7, 40, 100), (50, 4, 30, 5), (1, 90, 50, 1)]
    for batch, m, k, n in [*shapes, (2, 35, 20, 35)]:
        a = rng.standard_normal((batch, m, k)).astype(dtype)
        b = rng.standard_normal((batch, k, n)).astype(dtype)
        c = rng.standard_normal((batch, m, n)).astype(dtype)
        for x, y, z in ((a, b, None), (a, b[:1], c), (a[:1], b, c)):
            for kind in KINDS:
                arguments = (x, y, z, 2, FORMATS[dtype], kind)
                shared = core.certified_sums(*arguments)
                with monkeypatch.context() as patch:
                    patch.setattr(core.threads, "limit", lambda: 1)
                    alone = core.certified_sums(*arguments)
                assert_same_bits(shared.first, alone.first)
                if kind != "nearest":
                    assert_same_bits(shared.second, alone.second)


@needs_core
def test_shares_cover_each_entry_once_and_hold_whole_tiles():
    for shape in ((1, 100, 7), (1, 7, 100), (50, 4, 5), (1, 3, 1), (2, 35, 35)):
        for parts in (1, 2, 3, 16, 200):
            seen = np.zeros(shape, int)
            shares = core._shares(shape, parts)
            assert len(shares) <= parts
            for share in shares:
                seen[share] += 1
            assert (seen == 1).all()
            heights = [seen[share].shape[1] for share in shares]
            assert all(rows % 3 == 0 for rows in heights[:-1]) or shape[1] < 100


@needs_core
def test_calls_with_threads_are_those_without(
    three_threads, monkeypatch, make_pair, assert_same_bits
):
    for dtype in ("float64", "complex64"):
        a, b = make_pair("phi_1", 60, 90, 50, dtype)
        for options in requests():
            shared = [hg.matmul(a, b, **options) for _ in range(2)]
            with monkeypatch.context() as patch:
                patch.setattr(core.threads, "limit", lambda: 1)
                alone = hg.matmul(a, b, **options)
            for result in shared:
                np.testing.assert_array_equal(result, alone)
        a[-1, -1] = np.nan  # in the last share alone
        with np.errstate(all="ignore"):
            values = hg.matmul(a, b, accuracy="correct")
        assert np.isnan(values[-1]).all()
        assert np.isfinite(values[:-1]).all()


@needs_core
@pytest.mark.skipif(MACHINE not in MODES, reason="the register is not known here")
def test_threads_round_to_nearest_whatever_the_caller_does(
    three_threads, assert_same_bits
):
    rng = np.random.default_rng(7)
    a, b = operands("underflowing", rng, 60, 40, 9, np.float64)
    want = core.certified_sums(a[None], b[None], None, 0, FP64, "nearest").first
    got = np.empty_like(want)
    for mode in ROUNDINGS[MACHINE]:
        with rounding(mode):
            core.multiply(a, b, None, got, None, 0, 0)
        assert_same_bits(got, want)
    for flags in MODES[MACHINE]:
        control(flags)
        try:
            core.multiply(a, b, None, got, None, 0, 0)
        finally:
            control(0)
        assert_same_bits(got, want)


@needs_core
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_process_that_forks_multiplies_on():
    code = (
        "import os, numpy as np, hifigemm as hg\n"
        "from hifigemm.engines import core\n"
        "core.SHARE, core._UNSHARED, core.threads.limit = 1.0, 0, lambda: 3\n"
        "a = np.random.default_rng(1).standard_normal((90, 90))\n"
        "want = hg.matmul(a, a, accuracy='correct')\n"
        "child = os.fork()\n"
        "same = (hg.matmul(a, a, accuracy='correct') == want).all()\n"
        "if child == 0: os._exit(0 if same else 1)\n"
        "print(same, os.waitpid(child, 0)[1])"
    )
    assert answer(code).stdout.split() == ["True", "0"]


@needs_core
def test_work_and_memory_limit_the_threads(monkeypatch):
    assert core.most_threads(1, 4, 4, 4) == 1
    assert core.most_threads(1, 1000, 1000, 1000) > 16
    assert core.most_threads(1, 1, 1, 10**9) == 1  # one sum is not cut
    k = 10**7
    num_threads = core.most_threads(1, 100, 100, k)
    assert 1 <= num_threads * core.packed_bytes(100, k) <= 2 * core.packed_bytes(100, k)
    assert core.most_threads(1, 0, 5, 5) == 1


def test_rates_leave_large_products_to_the_blas_where_the_core_is_slow():
    def problem(m, k, n):
        return Problem(1, m, n, k, np.dtype(np.float64))

    assert core_sums.pays(problem(4, 4, 4), "portable")
    assert core_sums.pays(problem(1000, 1000, 1), "portable")
    assert not core_sums.pays(problem(200, 200, 200), "portable")
    for name in ("avx2", "avx512", "neon"):
        assert core_sums.pays(problem(1000, 1000, 1000), name)


def answer(code, **environment):
    """What a new process prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_leaves_the_core_alone():
    code = "import hifigemm as hg; print(hg.info().versions['core'])"
    is_built = importlib.util.find_spec("hifigemm._core") is not None
    usual = "compiled, " if is_built else "not built"
    assert answer(code, HIFIGEMM_CORE="0").stdout.startswith("left alone")
    assert answer(code, HIFIGEMM_CORE="1").stdout.startswith(usual)
    assert answer(code, HIFIGEMM_CORE="").stdout.startswith(usual)
    assert "HIFIGEMM_CORE='no'" in answer(code, HIFIGEMM_CORE="no").stderr


def test_a_core_that_is_not_built_is_said_to_be():
    with tempfile.TemporaryDirectory() as folder:
        package = Path(hg.__file__).parent
        (Path(folder) / "hifigemm").mkdir()
        for path in package.iterdir():
            if path.suffix not in (".so", ".pyd"):
                (Path(folder) / "hifigemm" / path.name).symlink_to(path)
        code = (
            "import hifigemm as hg, numpy as np; print(hg.info().versions['core']); "
            "print(hg.matmul(np.ones((2, 2)), np.ones((2, 2)), accuracy='correct')[0, 0])"
        )
        lines = answer(code, PYTHONPATH=folder, HIFIGEMM_CORE="").stdout.splitlines()
    assert lines[0].startswith("not built")
    assert lines[1] == "2.0"


@pytest.mark.parametrize(
    ("compiler", "emulator"),
    [
        ("cc", []),
        pytest.param("aarch64-linux-gnu-gcc", ["qemu-aarch64"], marks=pytest.mark.slow),
    ],
)
def test_every_set_has_the_same_bits_in_c(compiler, emulator, tmp_path):
    if not all(shutil.which(program) for program in (compiler, *emulator)):
        pytest.skip(f"{compiler} is not installed")
    root = Path(__file__).parents[2]
    parts = ("kernels", "words", "accumulator", "product")
    program = tmp_path / "core_sets"
    flags = ["-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra"]
    if emulator:
        flags.append("-static")
    sources = [root / "core" / f"{part}.c" for part in parts]
    command = [
        compiler,
        *flags,
        f"-I{root / 'core'}",
        Path(__file__).with_name("core_sets.c"),
    ]
    subprocess.run([*command, *sources, "-lm", "-o", program], check=True)
    done = subprocess.run(
        [*emulator, program], capture_output=True, text=True, check=True
    )
    assert "290527 entries, 0 results differ, hash d241568565f94044" in done.stdout


@needs_core
@pytest.mark.parametrize("kind", ["nearest", "pair"])
def test_sums_with_an_addend_are_those_of_exact_arithmetic(instructions, kind):
    rng = np.random.default_rng(3)
    for n, k in ((1, 1), (5, 2), (40, 3), (33, 20)):
        a = gen.phi_matrix(rng, (n, n), 2.0, np.float64)
        x = gen.phi_matrix(rng, (n, k), 2.0, np.float64)
        b = a @ x
        exact = exact_entries(np.hstack([a, b]), np.vstack([-x, np.eye(k)]))
        first, second = values_of_kind(exact, kind, np.float64, (n, k))
        got = core.sums(a, -x, b, kind)
        np.testing.assert_array_equal(got[0], first)
        assert (got[1] is None) == (second is None)
        if second is not None:
            np.testing.assert_array_equal(got[1], second)


CLOSE = {2: "close", 3: "close in three"}
"""Kinds of sums, by their words."""


@needs_core
@pytest.mark.parametrize("words", [2, 3])
@pytest.mark.parametrize("family", ["normal", "cancelling exactly", "wide", "zeros"])
def test_close_sums_are_within_their_bound(instructions, family, words):
    rng = np.random.default_rng(FAMILIES.index(family))
    shapes = [(1, 1, 1), (4, 4, 4), (9, 33, 19), (2, 40, 2), (4, 255, 5), (3, 1100, 4)]
    for m, k, n in shapes:
        a, b = operands(family, rng, m, k, n, np.float64)
        c = -(a @ b) * (1.0 + 2.0**-50 * rng.standard_normal((m, n)))
        got, second = core.sums(a, b, c, CLOSE[words])
        assert second is None
        rows = [sum(Fraction(x) ** 2 for x in row) for row in a.tolist()]
        columns = [sum(Fraction(x) ** 2 for x in column) for column in b.T.tolist()]
        share = Fraction(core.error_of_close_sums(a.shape[1], words))
        exact = exact_entries(a, b)
        for index, (i, j) in enumerate(np.ndindex(m, n)):
            value = Fraction(got[i, j])
            error = abs(value - exact[index] - Fraction(c[i, j]))
            # The root is that of the norms; eta for numbers below the range
            allowed = error - abs(value) / 2**52 - Fraction(2) ** -1074
            assert allowed <= 0 or allowed**2 <= share**2 * rows[i] * columns[j]


@needs_core
@pytest.mark.parametrize(("words", "least_share"), [(2, 0.2), (3, 0.03)])
@pytest.mark.parametrize("k", [100, 253, 700])
def test_close_sums_come_near_their_bound(instructions, k, words, least_share):
    # Equal terms leave equal rests, whose sum is rounded in one direction for long; a sum of
    # three words needs terms whose bits reach further down, and most of it cancels
    rng = np.random.default_rng(k)
    factor, other_factors = rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.0, 48)
    if words == 3:
        other_factors *= 2.0**-35
    sums = [k * Fraction(factor) * Fraction(x) for x in other_factors.tolist()]
    high = np.array([float(x) for x in sums])
    low = np.array([float(x - Fraction(h)) for x, h in zip(sums, high.tolist())])
    a = np.hstack([np.full((4, k), factor), np.ones((4, 3))])
    b = np.vstack([np.tile(other_factors, (k, 1)), -high, -low, np.ones(48)])
    if words == 2:
        b[k:] = 0.0
    c = -np.ones((4, 48)) if words == 3 else np.tile(-high, (4, 1))
    got, _ = core.sums(a, b, c, CLOSE[words])
    share = core.error_of_close_sums(k + 3, words)
    norms = share * np.linalg.norm(a[0]) * np.linalg.norm(b, axis=0)
    largest = 0.0
    for j, exact in enumerate(exact_entries(a[:1], b)):
        exact += Fraction(c[0, j])
        error = abs(Fraction(got[0, j]) - exact) - abs(exact) / 2**53
        largest = max(largest, error / Fraction(norms[j]))
    assert least_share < largest < 1.0


@needs_core
@pytest.mark.parametrize("words", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_close_pairs_are_within_their_bound(instructions, family, words):
    rng = np.random.default_rng(FAMILIES.index(family))
    shapes = [(1, 1, 1), (4, 4, 4), (9, 33, 19), (2, 40, 2), (4, 255, 5), (3, 1100, 4)]
    for m, k, n in shapes:
        a, b = operands(family, rng, m, k, n, np.float64)
        c = np.zeros((m, n))
        if words == 2:
            high, low = (x[0] for x in core.close_pair(a[None], b[None]))
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                product = a @ b
            if np.isfinite(product).all():
                c = -product * (1.0 + 2.0**-40 * rng.standard_normal((m, n)))
            high, low = core.sums(a, b, c, "close pair in three")
        rows = [sum(Fraction(x) ** 2 for x in row) for row in a.tolist()]
        columns = [sum(Fraction(x) ** 2 for x in column) for column in b.T.tolist()]
        share = Fraction(core.error_of_close_sums(a.shape[1], words))
        for exact, (i, j) in zip(exact_entries(a, b), np.ndindex(m, n)):
            if not np.isfinite(high[i, j]):
                continue
            value = Fraction(high[i, j]) + Fraction(low[i, j])
            error = abs(value - exact - Fraction(c[i, j])) - Fraction(2) ** -1074
            if words == 3:
                error -= abs(Fraction(low[i, j])) / 2**52
                assert abs(low[i, j]) <= np.spacing(abs(high[i, j]))
            assert error <= 0 or error**2 <= share**2 * rows[i] * columns[j]


@needs_core
def test_the_second_number_of_a_close_pair_in_three_is_what_the_first_leaves():
    # C cancels a product to 2^-50 of itself, and two numbers hold all that is left
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((5, 300)), rng.standard_normal((300, 7))
    c = -(a @ b)
    high, low = core.sums(a, b, c, "close pair in three")
    exact = exact_entries(np.hstack([a, c]), np.vstack([b, np.eye(7)]))
    for value, (i, j) in zip(exact, np.ndindex(5, 7)):
        first = Fraction(high[i, j])
        assert value != first
        assert value == first + Fraction(low[i, j])


@needs_core
def test_close_sums_are_no_better_than_they_have_to_be(instructions):
    # All entries by two words: a value that was rounded once would differ somewhere
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((12, 200)), rng.standard_normal((200, 64))
    close, _ = core.sums(a, b, -(a @ b), "close")
    nearest, _ = core.sums(a, b, -(a @ b))
    assert (close != nearest).any()
    np.testing.assert_allclose(close, nearest, rtol=0, atol=2.0**-80)


@needs_core
def test_sums_of_what_is_not_finite_are_left_to_others():
    a = np.array([[1.0, np.nan], [0.0, 1.0]])
    assert core.sums(a, np.ones((2, 1)), None) is None


@needs_core
def test_functions_of_matrices_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.magnitude_product(np.ones((2, 2)), np.ones((3, 1)), np.ones((2, 1)))
    with pytest.raises(TypeError, match="float64"):
        MODULE.magnitude_product(*[np.ones((2, 2), np.float32)] * 3)
    with pytest.raises(TypeError, match="three"):
        MODULE.magnitude_product(np.ones((2, 2)))
    with pytest.raises(TypeError, match="five"):
        MODULE.equilibrate(np.ones((2, 2)))
    a, b = np.ones((2, 2)), np.ones((2, 1))
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.equilibrate(a, b, np.asfortranarray(np.ones((2, 2))), b.copy(), b.copy())
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.equilibrate(a, b, a.copy(), b.copy(), np.ones((3, 1)))
    with pytest.raises(TypeError, match="six"):
        MODULE.factorise_band(a)
    with pytest.raises(TypeError, match="twelve"):
        MODULE.banded_products(a)


@needs_core
def test_functions_of_bands_refuse_what_does_not_fit():
    a = 3.0 * np.eye(3) + np.eye(3, k=1) + np.eye(3, k=-1) * 0.5
    columns, factors, pivots = np.empty((3, 4)), np.empty((3, 5)), np.empty((1, 3))
    for lower, upper in [(3, 1), (-1, 1), (1, 2), (2, 1)]:
        with pytest.raises(ValueError, match="do not fit"):
            MODULE.factorise_band(a, lower, upper, columns, factors, pivots)
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.factorise_band(a, 1, 1, np.empty((4, 3)).T, factors, pivots)
    assert MODULE.factorise_band(a, 1, 1, columns, factors, pivots)
    band = columns, factors, pivots, 1, 1
    vectors = [np.ones((3, 1)) for _ in range(6)]
    for first in (-1, 1):
        with pytest.raises(ValueError, match="do not fit"):
            MODULE.banded_products(*band, first, *vectors)
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.banded_products(*band, 0, *vectors[:5], np.ones((3, 2)))
    MODULE.banded_products(*band, 0, *vectors)

    # Rows of pivots lie within the band
    for row in (-1, 2, 3):
        pivots.view(np.int64)[0, 0] = row
        with pytest.raises(ValueError, match="do not fit"):
            MODULE.banded_products(*band, 0, *vectors)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ModuleNotFoundError(),
            "not built (no C compiler found); NumPy is used, slower",
        ),
        (ImportError("bad ELF"), "not loaded (bad ELF); NumPy is used, slower"),
    ],
)
def test_a_core_that_is_not_there_is_said_to_be_missing(monkeypatch, error, text):
    def fail(name):
        raise error

    monkeypatch.delenv("HIFIGEMM_CORE", raising=False)
    monkeypatch.setattr(core, "import_module", fail)
    assert core.loaded.__wrapped__() == (None, text)


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_are_as_ordinary_as_the_plain_function_finds_them(dtype):
    """In any layout, with one entry at either end of the range."""
    tiny = float(np.finfo(dtype).tiny)
    look = core.override(are_ordinary)
    assert look is not are_ordinary
    rng = np.random.default_rng(8)
    for terms in (1, 3, 2**25 + 1):
        least = dtype(terms * tiny)
        ends = [least, np.nextafter(least, dtype(0)), np.nextafter(least, dtype(1))]
        ends += [np.finfo(dtype).max, np.inf, np.nan, 0.0, tiny / 2]
        for end in ends:
            x = rng.standard_normal((2, 3, 40)).astype(dtype)
            x[1, 2, 37] = end
            for y in (x, -x, x[:, ::-1], x[..., ::-3], np.swapaxes(x, 1, 2)):
                assert look(y, terms, tiny) == are_ordinary(y, terms, tiny), end


@needs_core
def test_a_negative_least_magnitude_is_refused():
    for least in (-1.0, np.nan):
        with pytest.raises(ValueError, match="least"):
            core.loaded()[0].are_ordinary(np.ones((2, 2)), least)


@needs_core
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 3, 7), (3, 1, 1), (2, 0, 3)])
def test_scalars_and_c_are_applied_with_the_bits_of_numpy(
    dtype, shape, assert_same_bits
):
    """Entries of all magnitudes, subnormal and infinite ones, halves and products that
    overflow, sums that cancel.
    """
    rng = np.random.default_rng(len(dtype) + sum(shape))
    combined = core.override(combine_stacks)
    assert combined is not combine_stacks

    def entries(lowest, highest):
        components = (*shape, 2) if np.dtype(dtype).kind == "c" else shape
        exponents = rng.integers(lowest, highest, components)
        with np.errstate(all="ignore"):
            x = np.ldexp(rng.standard_normal(components), exponents)
            return (
                x.view(complex)[..., 0].astype(dtype) if x.ndim > 3 else x.astype(dtype)
            )

    scalars = (1.0, 1.0), (-1.0, 1.0), (0.3, -0.7), (1.0, 1e-300), (1e300, 1e300)
    for alpha, beta in (*scalars, (np.inf, 1.0), (np.nan, 1.0), (0.0, 2.0), (2.0, 0.0)):
        for lowest, highest in ((-3, 3), (-1070, 1020), (-1070, -1000), (980, 1023)):
            t = entries(lowest, highest)
            for c in (entries(lowest, highest), t.copy(), -t):
                for special in (0.0, -0.0, np.inf, np.nan):
                    if c.size:
                        c.flat[0] = special
                    turned = np.ascontiguousarray(np.swapaxes(c, 1, 2))
                    with np.errstate(all="ignore"):
                        want = combine_stacks(t.copy(), alpha, c, beta)
                        for addend in (c, np.swapaxes(turned, 1, 2)):
                            got = combined(t.copy(), alpha, addend, beta)
                            assert_same_bits(got, want)


@needs_core
def test_wrong_arguments_of_a_combination_are_refused():
    combine = core.loaded()[0].combine
    t, c, out = (np.ones((2, 2)) for _ in range(3))
    assert combine(t, 2.0, c, 3.0, out)
    assert (out == 5.0).all()
    for arguments in (
        (t, 0.0, c, 1.0, out),
        (t, 1.0, c, np.inf, out),
        (t, 1.0, c[:, :1], 1.0, out),
        (t, 1.0, c, 1.0, out[:1]),
        (t, 1.0, c.astype(np.float32), 1.0, out),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            combine(*arguments)
    with pytest.raises(TypeError):
        combine(t, 1.0, c, 1.0)


@needs_core
def test_wrong_arguments_of_a_combination_with_a_pair_are_refused():
    combine = core.loaded()[0].combine_pair
    high, low, c, out = (np.ones((2, 2)) for _ in range(4))
    assert combine(high, 0.0 * low, 2.0, c, 3.0, 0.0, out)
    assert (out == 5.0).all()
    assert combine(high, 0.0 * low, 2.0, None, 0.0, 0.0, out)
    assert (out == 2.0).all()
    assert not combine(high, low * 2.0**-54, 2.0, None, 0.0, np.inf, out)
    single = out.astype(np.float32)
    assert combine(high, 0.0 * low, 2.0, c, 3.0, 0.0, single)
    assert (single == 5.0).all()
    for arguments in (
        (high, low, 0.0, c, 1.0, 0.0, out),
        (high, low, np.nan, c, 1.0, 0.0, out),
        (high, low, 1.0, c, np.inf, 0.0, out),
        (high, low, 1.0, c, 1.0, -1.0, out),
        (high, low, 1.0, c, 1.0, np.nan, out),
        (high, low[:1], 1.0, c, 1.0, 0.0, out),
        (high, low, 1.0, c[:, :1], 1.0, 0.0, out),
        (high, low, 1.0, c, 1.0, 0.0, out[:1]),
        (high.astype(np.float32), low, 1.0, c, 1.0, 0.0, out),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            combine(*arguments)
    with pytest.raises(TypeError):
        combine(high, low, 1.0, c, 1.0, out)


@needs_core
def test_factors_and_further_addends_are_checked():
    module = core.loaded()[0]
    a, b = np.ones((2, 3)), np.ones((3, 2))
    c, rest = np.full((2, 1, 2, 2), 2.0**-60)
    values = np.empty((1, 2, 2))
    assert module.multiply(a, b, c, values, None, 0, 0, None, 0.1, rest)
    exact = 3 * Fraction(0.1) + 2 * Fraction(2) ** -60
    assert (values == float(exact)).all()
    wide = np.zeros((1, 2, 4))[:, :, ::2]
    for arguments in (
        (c, values, None, 1, 0, None, 0.1, rest),  # a shift beside a factor
        (c, values, values, 0, 1, None, 0.1, rest),  # a pair
        (None, values, None, 0, 0, None, 0.1, rest),  # no C
        (c, values, None, 0, 0, None, 0.1, wide),  # laid out in another way
        (c, values, None, 0, 0, None, float("nan"), rest),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            module.multiply(a, b, *arguments)
