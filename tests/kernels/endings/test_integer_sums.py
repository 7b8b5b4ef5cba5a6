"""Integers with a further term, pairs and enclosures on the device: the bits of
numerics.integer_sums.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.base.formats import FP32, FP64
from hifigemm.kernels.endings.integer_sums import rounded_integers
from hifigemm.kernels.endings.rounding import finite, with_addend
from hifigemm.numerics import integer_sums
from hifigemm.numerics.rounded_sums import Addend
from tests.kernels.endings.test_rounding import BITS, parts_of
from tests.numerics.test_integer_sums import (
    DTYPES,
    check,
    hard_addends,
    hard_integers,
    limbs_of,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 2048


@triton.jit(do_not_specialize=["c_exponent", "sign"])
def _round(
    h,
    word,
    limbs,
    exponent,
    c,
    c_exponent,
    sign,
    first,
    second,
    NUM_LIMBS: tl.constexpr,
    RESULT: tl.constexpr,
    HAS_C: tl.constexpr,
    SINGLE: tl.constexpr,
    LOW: tl.constexpr,
    BITS: tl.constexpr,
    COUNT: tl.constexpr,
):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    below = ()
    for j in tl.static_range(NUM_LIMBS):
        below = below + (tl.load(limbs + j * COUNT + i),)  # noqa: RUF005
    addend = tl.load(c + i)
    x, y = rounded_integers(
        tl.load(h + i),
        tl.load(word + i),
        below,
        tl.load(exponent + i),
        finite(addend),
        c_exponent,
        sign,
        RESULT,
        HAS_C,
        SINGLE,
        LOW,
        BITS,
    )
    tl.store(first + i, with_addend(x, addend))
    tl.store(second + i, y)


def on_device(values, exponents, c, c_exponent, form, fmt, result, has_c, sign=1):
    """Both arrays by the kernel, for integers of a form (T, number of limbs)."""
    low_bits, count = form
    h, word, limbs = zip(*(parts_of(v, low_bits, count) for v in values), strict=True)
    words = np.array([w - 2**64 if w >= 2**63 else w for w in word], np.int64)
    low = np.zeros((max(count, 1), COUNT), np.int64)
    if count:
        low = np.ascontiguousarray(np.array(limbs, np.int64).T)
    given = [
        np.array(h, np.float64),
        words,
        low,
        exponents.astype(np.int32),
        c.astype(np.float64),
    ]
    tensors = [torch.from_numpy(x).to(DEVICE) for x in given]
    tensors[2] = tensors[2].view(torch.uint64)
    out = torch.empty((2, COUNT), dtype=torch.float64, device=DEVICE)
    form = (count, result, has_c, fmt is FP32, low_bits, BITS, COUNT)
    with np.errstate(all="ignore"):
        _round[(COUNT // 256,)](*tensors, c_exponent, sign, *out, *form)
        return out.cpu().numpy().astype(DTYPES[fmt])


FORMS = [(52, 0), (64, 0), (64 + BITS, 1), (64 + 3 * BITS, 3), (64 + 9 * BITS, 9)]


def integers(form, rng, fmt):
    """Integers that a form holds."""
    top = 1 << form[0] + 47
    found = hard_integers(rng, fmt, COUNT)
    return [int(np.sign(v)) * (abs(v) % top) if abs(v) >= top else v for v in found]


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
def test_both_roundings_are_those_of_numerics(fmt, form, result):
    rng = np.random.default_rng(3)
    values = integers(form, rng, fmt)
    exponents = rng.choice([-1400, -1080, -340, -200, -20, 0, 60, 900, 1500], COUNT)
    c = np.zeros(COUNT)
    found = on_device(values, exponents + form[0], c, 0, form, fmt, result, False)
    want = integer_sums.rounded_integers(
        limbs_of(values), exponents.astype(np.int64), fmt, result=result
    )
    for x, y in zip(found, want, strict=True):
        check(x, y, values)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fmt", [FP64, FP32], ids=["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("power", "sign"), [(0, 1), (0, -1), (-300, 1), (700, -1)])
def test_an_addend_is_rounded_with_the_integer(fmt, form, power, sign):
    rng = np.random.default_rng(4)
    values = integers(form, rng, fmt)
    exponents = rng.choice([-1300, -1100, -400, -150, -60, 0, 60, 700], COUNT)
    exact = [
        sign * v * Fraction(2) ** int(e - power) for v, e in zip(values, exponents)
    ]
    c = hard_addends(rng, exact, fmt)
    given = values, exponents + form[0], c, power
    found = on_device(*given, form, fmt, "array", True, sign)
    want, _ = integer_sums.rounded_integers(
        limbs_of(values),
        exponents.astype(np.int64),
        fmt,
        addend=Addend(c, power, 1),
        sign=sign,
    )
    check(found[0], want, list(zip(values, exponents, c)))


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_the_last_bit_of_an_integer_decides_a_tie_with_an_addend_far_above(fmt, form):
    rng = np.random.default_rng(5)
    # Integers next to half a unit of a C whose last bit lies above all of theirs.
    place = form[0] + 46
    half = 1 << place
    signs = rng.choice([-1, 1], COUNT)
    values = [int(s) * (half + int(rng.integers(-1, 2))) for s in signs]
    significands = rng.integers(1 << fmt.t - 1, 1 << fmt.t, COUNT)
    exponent = -place
    c = np.ldexp(significands * rng.choice([-1.0, 1.0], COUNT), 1).astype(DTYPES[fmt])
    exponents = np.full(COUNT, exponent)
    found = on_device(values, exponents + form[0], c, 0, form, fmt, "array", True)
    want, _ = integer_sums.rounded_integers(
        limbs_of(values), exponents.astype(np.int64), fmt, addend=Addend(c, 0, 1)
    )
    check(found[0], want, list(zip(values, c)))
