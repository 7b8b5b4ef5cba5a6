"""Words of integers and the rows by which dp4a makes their residues, emulated to the
bit.
"""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.vectors import residue_words
from hifigemm.kernels.vectors.residue_words import (
    DP4A_WORDS,
    UNIT,
    factors_of,
    num_words_for,
    pair_row,
    ptx_of_residues,
    table_row,
    vector_constants,
)
from hifigemm.numerics import residues as crt
from hifigemm.numerics import scaling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_dp4a_constants_are_exact_for_every_sum():
    """The last step of inline PTX, emulated: F - p round(F / p) fits INT8 for every F
    that the bytes can make.
    """
    reach = 4 * DP4A_WORDS * 255 * 128
    sums = np.arange(-reach, reach + 1, dtype=np.int64)
    for p in sorted({*crt.real_moduli(), *crt.complex_moduli()}):
        *_, add, inverse, minus_p = table_row([1], p, True)
        f = add - 0x4B000000 + 2**23 + sums
        assert f.min() >= 2**23
        assert f.max() < 2**24
        ratio = struct.unpack("f", struct.pack("i", inverse))[0]
        fixed = int(ratio * 2.0**40)
        assert fixed == ratio * 2.0**40
        product = f * fixed
        quotient = (product + (1 << 39)) >> 40
        quotient -= ((product & ((1 << 40) - 1)) == 1 << 39) & (quotient & 1)
        remainder = f + quotient * minus_p
        assert remainder.min() >= -128
        assert remainder.max() <= (128 if p == 256 else 127)
        # The bias of a word of factor 1: F is congruent to the word less 2**31.
        assert (f[0] - sums[0] + 2**31) % p == 0


@pytest.mark.parametrize("num_words", [1, 2, 3, 4])
def test_dp4a_rows_give_the_residue(num_words):
    """Bytes times packed factors, plus the constant, for random words."""
    rng = np.random.default_rng(num_words)
    words = rng.integers(-(2**31), 2**31, (num_words, 50))
    unsigned = (words + 2**31).astype(np.uint32)
    for p in crt.real_moduli():
        factors = factors_of((1,), num_words)
        *packed, add, _, minus_p = table_row(factors, p, True)
        total = np.full(50, add - 0x4B000000 + 2**23, np.int64)
        for c, word in zip(packed, unsigned):
            total += (
                np.frombuffer(struct.pack("i", c), np.int8).astype(np.int64)
                * _bytes(word)
            ).sum(axis=1)
        expected = [
            sum(f * int(w) for f, w in zip(factors, column)) % p for column in words.T
        ]
        np.testing.assert_array_equal(total % p, expected)
        assert minus_p == -p


@pytest.mark.parametrize("num_words", [1, 2])
@pytest.mark.parametrize("pairs", [False, True])
def test_ptx_gives_the_residues_of_complex_operands(pairs, num_words):
    """The text of the inline PTX, emulated, for words of every size and their ends."""
    rng = np.random.default_rng(num_words)
    count = 2 * num_words
    ends = np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1])
    words = np.concatenate(
        [rng.choice(ends, (count, 8)), rng.integers(0, 2**32, (count, 32))], axis=1
    )
    x, y = (
        sum((words[i + n] - 2**31).astype(object) * UNIT**i for i in range(num_words))
        for n in (0, num_words)
    )
    moduli = crt.moduli_set(20, True)
    for p, j in zip(moduli.moduli, moduli.splits):
        rows = [pair_row(j, num_words, p)] if pairs else []
        rows += (
            []
            if pairs
            else [
                table_row(factors_of((1, sign * j), num_words), p, True)
                for sign in (1, -1)
            ]
        )
        outputs = 3 - len(rows)
        text = ptx_of_residues.fn(count, outputs)
        found = np.array([execute(text, words, row, outputs) for row in rows]).reshape(
            2, -1
        )
        assert ((found - np.array([x + j * y, x - j * y])) % p == 0).all()


def execute(ptx, words, row, outputs):
    """Residues by the PTX for four columns of words at a time, INT8: (outputs,
    columns).
    """
    done = []
    for at in range(0, words.shape[1], 4):
        inputs = [int(w) for word in words for w in word[at : at + 4]] + [
            c for c in row for _ in range(4)
        ]
        registers = {f"${outputs + i}": x & 0xFFFFFFFF for i, x in enumerate(inputs)}
        for line in ptx.strip("{ }").split(";"):
            if line.strip() and not line.strip().startswith(".reg"):
                _step(registers, *line.split(None, 1))
        packed = np.array([registers[f"${i}"] for i in range(outputs)], np.uint32)
        done.append(packed[:, None].view(np.uint8).view(np.int8).reshape(outputs, 4))
    return np.concatenate(done, axis=1)


def _step(registers, op, rest):
    """One instruction on 32-bit patterns."""
    target, *args = [x.strip() for x in rest.split(",")]
    x = [
        registers[a]
        if a in registers
        else int(a.replace("0f", "0x") if a.startswith("0f") else a, 0)
        for a in args
    ]
    if op == "dp4a.u32.s32":
        y = (
            _bytes(np.array([x[0]], np.uint32))
            * np.array([x[1]], np.uint32).view(np.int8)
        ).sum() + x[2]
    elif op == "fma.rn.f32":
        u, v, w = (
            Fraction(float(np.array([z], np.uint32).view(np.float32)[0])) for z in x
        )
        exact = u * v + w
        assert 2**23 <= exact < 2**24
        y = int(np.array([round(exact)], np.float32).view(np.uint32)[0])
    elif op == "prmt.b32":
        both = x[0] | x[1] << 32
        y = sum((both >> 8 * (x[2] >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))
    elif op == "mov.b32":
        y = x[0]
    else:
        y = {
            "sub.s32": lambda a, b: a - b,
            "add.s32": lambda a, b: a + b,
            "mad.lo.u32": lambda a, b, c: a * b + c,
        }[op](*x)
    registers[target] = int(y) & 0xFFFFFFFF


def _bytes(words):
    return np.frombuffer(words.tobytes(), np.uint8).reshape(-1, 4).astype(np.int64)


def test_words_hold_what_their_number_promises():
    reach = 2**31 - 2
    for count in range(1, 12):
        assert num_words_for(reach) == count
        assert num_words_for(reach + 1) == count + 1
        reach *= UNIT


@triton.jit
def _store_words(x, s, nearest, out, WORDS: tl.constexpr, TRUNCATES: tl.constexpr):
    """Words of 2**s x, less what is added to them."""
    i = tl.arange(0, 64)
    parts = (tl.load(x + i),)
    words = residue_words.integer_words(
        parts, tl.load(s + i), tl.load(nearest + i), WORDS, TRUNCATES
    )
    for j in tl.static_range(WORDS):
        tl.store(out + j * 64 + i, words[j] - residue_words._MAGIC)


@pytest.mark.parametrize("nearest", [1, 0])
@pytest.mark.parametrize("num_words", [1, 2, 3])
def test_words_are_those_of_the_rounded_integer(num_words, nearest):
    rng = np.random.default_rng(num_words)
    reach = 2**31 - 2
    for _ in range(num_words - 1):
        reach *= UNIT
    top = min(reach, 2**53)
    s = rng.integers(-40, 40, 64).astype(np.int32)
    x = np.ldexp(rng.uniform(-0.5, 0.5, 64), int(top).bit_length() - s - 1)
    x[:4] = np.ldexp([0.5, 1.5, 2.5, -0.5], -s[:4])
    tensors = [
        torch.from_numpy(y).to(DEVICE) for y in (x, s, np.full(64, nearest, np.int32))
    ]
    out = torch.empty((num_words, 64), dtype=torch.float64, device=DEVICE)
    with np.errstate(all="ignore"):
        _store_words[(1,)](*tensors, out, num_words, nearest == 0)
    words = out.cpu().numpy()
    assert (abs(words) < 2**31).all()
    for column, y, power in zip(words.T, x, s):
        z = sum(int(h) * UNIT**j for j, h in enumerate(column))
        exact = Fraction(float(y)) * Fraction(2) ** int(power)
        toward_zero = abs(exact) // 1 * (1 if exact >= 0 else -1)
        assert z == (round(exact) if nearest else toward_zero)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("count", [2, 14, 20])
def test_constants_hold_the_range_of_the_moduli(count, width):
    moduli = crt.moduli_set(count, width == 2)
    constants = vector_constants(moduli, width, 2, torch.device(DEVICE), False)
    mantissa, power, least_square = constants.range.tolist()
    assert least_square == 0
    assert 0.5 <= mantissa < 1.0
    held = Fraction(mantissa) * Fraction(2) ** int(power)
    assert held <= moduli.half_range < held * (1 + Fraction(1, 2**50))
    assert constants.num_planes == len(constants.table)
    for terms in (1, 2**10, 2**20):
        for balance in (-3, 0, 3):
            largest = terms * 2 ** (2 * scaling.NORM_BITS + 1)
            truncates = moduli.half_range < largest * 4 ** max(-balance, 0)
            assert constants.truncates(terms, (balance, 5)) == truncates


def test_the_least_float32_above_a_number_is_taken_for_its_reciprocal():
    for p in crt.real_moduli():
        bits = residue_words._bits_above(1.0 / p)
        above, below = (
            struct.unpack("f", struct.pack("i", b))[0] for b in (bits, bits - 1)
        )
        assert below < Fraction(1.0 / p) <= above
