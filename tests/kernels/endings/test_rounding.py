"""Whole integers rounded once on the device: the bits of numerics.rounding, and of
Fractions.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import round_integer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BITS = 20


@triton.jit
def _round(
    h,
    word,
    limbs,
    exponent,
    out,
    COUNT: tl.constexpr,
    SINGLE: tl.constexpr,
    LOW: tl.constexpr,
    BITS: tl.constexpr,
):
    i = tl.arange(0, 256)
    low = ()
    for j in tl.static_range(COUNT):
        low = low + (tl.load(limbs + j * 256 + i),)  # noqa: RUF005
    value = round_integer(
        tl.load(h + i), tl.load(word + i), low, tl.load(exponent + i), SINGLE, LOW, BITS
    )
    tl.store(out + i, value)


def parts_of(v, low_bits, count):
    """H, the word and the limbs of V = H 2**T + V_T, as the kernel takes them."""
    half = 1 << (low_bits - 1)
    shifted = v + half
    h, rest = shifted >> low_bits, shifted % (1 << low_bits)
    limbs = [rest >> BITS * j & ((1 << BITS) - 1) for j in range(count)]
    return h, rest >> BITS * count, limbs


def rounded(v, exponent, dtype):
    """V 2**exponent rounded to nearest even in a dtype, by the definition."""
    exact = Fraction(v) * Fraction(2) ** exponent
    info = np.finfo(dtype)
    digits = info.nmant + 1
    size = abs(exact)
    if size == 0:
        return 0.0
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= size < Fraction(2) ** top
    quantum = max(top - digits + 1, info.minexp - info.nmant)
    unit = Fraction(2) ** quantum
    whole = round(size / unit) * unit
    value = np.inf if whole >= Fraction(2) ** info.maxexp else float(whole)
    return -value if exact < 0 else value


def hard_integers(bits):
    """Integers of many lengths, ties and what lies next to them."""
    rng = np.random.default_rng(bits)
    found = [0, 1, -1, 2**bits - 1, -(2**bits)]
    for length in itertools.cycle(range(1, bits)):
        if len(found) >= 256:
            return found[:256]
        kept = int(rng.integers(1, 2**53)) | 1 << 52
        v = kept >> max(53 - length, 0) << max(length - 53, 0)
        drop = max(length - 53, 1)
        v += (1 << drop >> 1) + int(rng.integers(-1, 2))
        found.append(min(v, 2**bits - 1) * int(rng.choice([-1, 1])))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("low_bits", "count"), [(52, 0), (64, 0), (64 + BITS, 1), (64 + 3 * BITS, 3)]
)
def test_integers_are_rounded_once(low_bits, count, dtype):
    values = hard_integers(low_bits + 30)
    rng = np.random.default_rng(1)
    exponents = rng.choice([-1150, -1090, -170, -130, 0, 40, 120, 1010], 256)
    h, word, limbs = zip(*(parts_of(v, low_bits, count) for v in values), strict=True)
    words = np.array([w - 2**64 if w >= 2**63 else w for w in word], np.int64)
    low = np.array(limbs, np.uint64).reshape(256, count).T.view(np.int64)
    given = [
        np.array(h, np.float64),
        words,
        np.ascontiguousarray(low) if count else np.zeros((1, 256), np.int64),
        exponents.astype(np.int32),
    ]
    tensors = [torch.from_numpy(x).to(DEVICE) for x in given]
    tensors[2] = tensors[2].view(torch.uint64)
    out = torch.empty(256, dtype=torch.float64, device=DEVICE)
    with np.errstate(all="ignore"):
        _round[(1,)](*tensors, out, count, dtype == np.float32, low_bits, BITS)
    with np.errstate(over="ignore"):
        found = out.cpu().numpy().astype(dtype)
    want = np.array(
        [rounded(v, int(e) - low_bits, dtype) for v, e in zip(values, exponents)], dtype
    )
    wrong = found != want
    assert not wrong.any(), (
        np.array(values, object)[wrong][:3],
        found[wrong][:3],
        want[wrong][:3],
    )
