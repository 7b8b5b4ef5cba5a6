"""Constants of the kernels of `scaled_residues_kernels.py`: for each residue, the factors of the words of an integer.

z = sum_j h_j UNIT**j, so that z mod p is the same small sum of h_j UNIT**j mod p, reduced once: in float64, or of the
bytes of w_j = h_j + 2**31 with the dp4a instruction. The parts x + j y and x - j y of a complex operand have the same
sums of x and of j y, which dp4a then makes once for both.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from hifigemm.engines.kernels.scaled_residues_kernels import UNIT as _UNIT
from hifigemm.numerics.residues import ModuliSet, centred
from hifigemm.numerics.scaling import NORM_BITS

__all__ = [
    "DP4A_WORDS",
    "UNIT",
    "VectorConstants",
    "factors_of",
    "num_words_for",
    "pair_row",
    "table_row",
    "vector_constants",
]

UNIT = int(_UNIT.value)
BIAS = 2**31
DP4A_WORDS = 4
"""Words, of all components, up to which dp4a makes the residues; the sums of so many are tested one by one."""


def num_words_for(top: int) -> int:
    """Words that hold integers of magnitude up to `top`."""
    count, reach = 1, 2**31 - 2
    while reach < top:
        count, reach = count + 1, reach * UNIT
    return count


@dataclass(frozen=True, eq=False)
class VectorConstants:
    """What the kernels know of a set of moduli, on a device.

    Attributes
    ----------
    half_range : int
        Of the moduli.
    num_planes : int
        Products of all moduli.
    num_words : int
        Words of an integer.
    dp4a : bool
        Whether rows of the table are made for dp4a.
    pairs : bool
        Whether the two parts of a modulus share a row.
    table : tensor
        Rows made by `pair_row` or by `table_row`.
    range : float64 tensor
        Mantissa and power of half_range as numerics.scaling.scale_exponent takes them.
    """

    half_range: int
    num_planes: int
    num_words: int
    dp4a: bool
    pairs: bool
    table: Any
    range: Any

    def truncates(self, terms: int, balances: tuple[int, ...]) -> bool:
        """Whether any vector of so many components could be rounded toward zero: half_range / N < 4**-balance."""
        largest = terms << (2 * NORM_BITS + 1)
        return self.half_range < largest << 2 * max(-min(balances), 0)


@cache
def vector_constants(moduli: ModuliSet, width: int, num_words: int, device: Any, ptx: bool) -> VectorConstants:
    """Constants of real (width 1) or complex (width 2) operands, kept for good."""
    dp4a = ptx and width * num_words <= DP4A_WORDS
    of_moduli = list(zip(moduli.moduli, moduli.splits, strict=True))
    roots = [(p, j) for p, j in of_moduli if j is not None]
    pairs = dp4a and width == 2 and len(roots) == len(of_moduli)
    weights = [(p, own) for p, j in of_moduli for own in _weights(j, width)]
    if pairs:
        values = [pair_row(j, num_words, p) for p, j in roots]
    else:
        values = [table_row(factors_of(own, num_words), p, dp4a) for p, own in weights]
    table = torch.tensor(values, dtype=torch.int32 if dp4a else torch.float64)
    shift = max(moduli.half_range.bit_length() - 53, 0)
    mantissa, power = math.frexp(moduli.half_range >> shift)
    bounds = torch.tensor([mantissa, power + shift], dtype=torch.float64)
    tables = table.to(device, non_blocking=True), bounds.to(device, non_blocking=True)
    return VectorConstants(moduli.half_range, len(weights), num_words, dp4a, pairs, *tables)


def _weights(j: int | None, width: int) -> list[tuple[int, ...]]:
    """Coefficients of re and im in the operands of the products of a modulus."""
    if width == 1:
        return [(1,)]
    return [(1, 0), (0, 1), (1, 1)] if j is None else [(1, j), (1, -j)]


def factors_of(weights: tuple[int, ...], num_words: int) -> list[int]:
    """Factors of all words, the lowest of re first."""
    return [weight * UNIT**i for weight in weights for i in range(num_words)]


def table_row(factors: list[int], p: int, dp4a: bool) -> list[Any]:
    """Constants of one residue sum_j factors[j] h_j mod p.

    Portable: the centred factors, 1 / p, p. With dp4a (`scaled_residues_kernels`) the four bytes of w_j = h_j + 2**31
    have a factor each, packed into c_j. f = sum_j dp4a(w_j, c_j) + add has the bits of a float32 F >= 2**23, congruent
    to the result. With 1 / p rounded up, round(F / p) is the nearest integer or the one above a near tie, so that
    F - p round(F / p) lies in [-128, 127], or is 128 = -128 mod 256.
    """
    if not dp4a:
        return [*(float(centred(c, p)) for c in factors), 1.0 / p, float(p)]
    return [*(_packed(c, p) for c in factors), _start(factors, p), _bits_above(1.0 / p), -p]


def pair_row(j: int, num_words: int, p: int) -> list[int]:
    """Constants of the two residues x + j y and x - j y with dp4a, as in `table_row`.

    Their sums over the words of x and of y are the same but for a sign. Behind what is added for the first one comes
    what the second one takes besides.
    """
    x, y = factors_of((1,), num_words), factors_of((j,), num_words)
    plus, minus = _start([*x, *y], p), _start([*x, *(-c for c in y)], p)
    return [*(_packed(c, p) for c in (*x, *y)), plus, minus - plus, _bits_above(1.0 / p), -p]


def _packed(c: int, p: int) -> int:
    """c 256**i mod p for the four bytes of a word."""
    return int.from_bytes(struct.pack("4b", *(centred(c << (8 * i), p) for i in range(4))), "little", signed=True)


def _start(factors: list[int], p: int) -> int:
    """The bits of the float32 1.5 2**23 + d, d < p making up for the bias of all words."""
    start = 2**23 + 2**22
    start += (-BIAS * sum(factors) - start) % p
    return 0x4B000000 - 2**23 + start


def _bits_above(x: float) -> int:
    """Bits of the least float32 that is not below x."""
    bits: int = struct.unpack("i", struct.pack("f", x))[0]
    return bits + (struct.unpack("f", struct.pack("i", bits))[0] < x)
