"""Constants of the way back from residues: the text of the PTX, executed in Python, and
the bounds that its comments state.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.kernels.endings.crt_constants import crt_constants
from hifigemm.numerics.residue_products import product_residues
from hifigemm.numerics.residues import MAX_MODULI, ModuliSet, moduli_set


def _dot(constant, word, place, addend):
    halves = [(constant >> sh & 0xFFFF ^ 0x8000) - 0x8000 for sh in (0, 16)]
    bytes_ = [(word >> (8 * (place + i)) & 0xFF ^ 0x80) - 0x80 for i in (0, 1)]
    return halves[0] * bytes_[0] + halves[1] * bytes_[1] + addend


def _execute(ptx, words, width):
    """Y of four entries for each component from one packed word a part, by the PTX of a
    group.
    """
    registers = {f"${4 * width + i}": w for i, w in enumerate(words)}

    def value(x):
        return registers[x] if x in registers else int(x, 0)

    for line in ptx.strip("{ }").split(";")[1:-1]:
        op, rest = line.split(None, 1)
        target, *args = [x.strip() for x in rest.split(",")]
        x = [value(arg) for arg in args]
        if op == "prmt.b32":
            both = (x[0] & 0xFFFFFFFF) | (x[1] & 0xFFFFFFFF) << 32
            y = sum((both >> 8 * (x[2] >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))
        elif op.startswith("dp2a"):
            y = _dot(x[0], x[1], 0 if ".lo." in op else 2, x[2])
        elif op == "shr.s32":
            y = ((x[0] & 0xFFFFFFFF ^ 0x80000000) - 0x80000000) >> x[1]
        else:
            assert op == "mad.lo.s32"
            y = x[0] * x[1] + x[2]
        registers[target] = y & 0xFFFFFFFF
    return [[registers[f"${4 * c + i}"] for i in range(4)] for c in range(width)]


def _groups(constants):
    """Numbers of the parts of each group."""
    return [
        range(first, first + size)
        for first, size in zip(constants.starts, constants.sizes)
    ]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", range(2, MAX_MODULI + 1, 3))
def test_groups_leave_small_integers_with_the_right_residues(count, is_complex):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, is_complex)
    constants, width = crt_constants(moduli, is_complex), 2 if is_complex else 1
    for g, numbers in enumerate(_groups(constants)):
        group = moduli.moduli[4 * g : 4 * g + 4]
        whole = int(np.prod(group, dtype=object))
        for extreme in (True, False):
            size = (4, len(numbers))
            parts = (
                rng.choice([-128, 127], size)
                if extreme
                else rng.integers(-128, 128, size)
            )
            words = [
                sum((int(x) & 0xFF) << 8 * i for i, x in enumerate(parts[:, l]))
                for l in range(len(numbers))
            ]
            found = _execute(constants.ptx[g], words, width)
            for entry, own in enumerate(parts):
                residues = _residues_of(own, moduli, 4 * g, is_complex)
                for component in range(width):
                    x = found[component][entry] - 2**31
                    assert 2 * abs(x) * 256 <= (256 + (6 if is_complex else 2)) * whole
                    for l, p in enumerate(group):
                        assert (
                            x * (moduli.modulus_product // whole)
                            - residues[component][l]
                        ) % p == 0


def _residues_of(parts, moduli, first, is_complex):
    """Residues of the components modulo the moduli of a group, by
    numerics.residue_products.product_residues.
    """
    own = ModuliSet(moduli.moduli[first : first + 4], moduli.splits[first : first + 4])
    if not is_complex:
        return [[int(x) for x in parts]]
    found = product_residues(parts.astype(np.int8)[None, :, None, None], own)
    return [[int(x) for x in found[0, :, 0, i]] for i in range(2)]


@pytest.mark.parametrize("is_complex", [False, True])
def test_residues_of_groups_fit_32_bits_for_the_worst_parts(is_complex):
    """The largest sum of errors of fractions, each part at the end of INT8 that makes
    it worst.
    """
    for count in range(2, MAX_MODULI + 1):
        moduli = moduli_set(count, is_complex)
        constants = crt_constants(moduli, is_complex)
        for g, numbers in enumerate(_groups(constants)):
            group = moduli.moduli[4 * g : 4 * g + 4]
            whole = int(np.prod(group, dtype=object))
            moduli_of = [
                p
                for p, j in zip(group, moduli.splits[4 * g :])
                for _ in range(_many(j, is_complex))
            ]
            for weights, fractions in zip(constants.weights, constants.fractions):
                error = Fraction(0)
                for l, p in zip(numbers, moduli_of, strict=True):
                    at = group.index(p)
                    other = group[at ^ 1] if at ^ 1 < len(group) else 1
                    assert weights[l] % other == 0
                    error += 128 * abs(
                        Fraction(weights[l] // other, p)
                        - Fraction(fractions[l], 1 << 16)
                    )
                assert (
                    error <= Fraction(3, 256)
                    if is_complex
                    else error <= Fraction(1, 256)
                )
                assert (Fraction(1, 2) + error) * whole < 2**31


def _many(j, is_complex):
    return 1 if not is_complex else 2 if j else 3


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", range(2, MAX_MODULI + 1, 5))
def test_integers_are_sums_of_their_groups(count, is_complex):
    """V = sum_g Y_g M_g + (Q + 2**23) N + C modulo 2**T, with an offset of 2**(T - 1),
    for the words and limbs that the kernel holds.
    """
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, is_complex)
    constants = crt_constants(moduli, is_complex)
    big, bits = moduli.modulus_product, constants.low_bits
    sums = [
        (high % 2**32 << 32 | low) << constants.limb_bits * len(constants.limbs)
        for low, high in constants.head
    ]
    for j, row in enumerate(constants.limbs):
        sums = [x | limb << constants.limb_bits * j for x, limb in zip(sums, row)]
    *factors, n, c = sums
    groups = [
        math.prod(moduli.moduli[i : i + 4]) for i in range(0, len(moduli.moduli), 4)
    ]
    top = moduli.half_range
    for v in (0, 1, -1, top, -top, int(rng.integers(-(2**62), 2**62)) % top):
        residues = []
        for whole in groups:
            x = v * pow(big // whole, -1, whole) % whole
            residues.append(x - whole if x > whole // 2 else x)
        exact = sum(Fraction(x, w) for x, w in zip(residues, groups)) - Fraction(v, big)
        assert exact.denominator == 1
        total = sum((x + 2**31) * m for x, m in zip(residues, factors))
        total += (int(exact) + 2**23) * n + c
        assert total % 2**bits == (v + 2 ** (bits - 1)) % 2**bits


@pytest.mark.parametrize("is_complex", [False, True])
def test_the_high_part_is_right_in_float64(is_complex):
    """2**-54 (G + 2)**2 P 2**-T < 1/4, or the sharper bound of complex integers."""
    for count in range(2, MAX_MODULI + 1):
        moduli = moduli_set(count, is_complex)
        constants = crt_constants(moduli, is_complex)
        g = len(constants.starts)
        error = Fraction((g + 2) ** 2)
        if is_complex:
            error = Fraction(131, 256) * (g * g + 5 * g) + 3
        unit = Fraction(moduli.modulus_product, 2**constants.low_bits)
        assert error * unit < 2**52
        assert moduli.half_range < 2 ** (constants.low_bits + constants.high_bits)
        assert constants.scale == (float(unit) if constants.high_bits >= 0 else 0.0)


def test_constants_are_made_once():
    moduli = moduli_set(5, False)
    assert crt_constants(moduli) is crt_constants(moduli)
    assert crt_constants(moduli) != crt_constants(moduli_set(5, True), True)
