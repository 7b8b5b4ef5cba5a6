"""Statistics of vectors, as device functions: magnitudes, exponents and lowest bits of
entries, and the tiles that they are read in.

All kernels share these conventions. Entries are compared by the bits of their
magnitudes, integers in the order of |x|: zeros are 0, Inf and NaN lie above all others.
The exponent of x is the smallest e with |x| < 2**e, of subnormal numbers too; zeros
have one below those of all other numbers, Inf and NaN one above. Where a thread has
many entries of a vector, kernels take maxima of bits first, and exponents of what few
numbers are left.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

INFINITE = tl.constexpr(1025)
"""Exponent of Inf and NaN, one more than that of the largest float64."""
ABSOLUTE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
"""The bits of a float64 without its sign."""
_FRACTION = tl.constexpr((1 << 52) - 1)
"""The bits of a float64 behind its exponent."""
NO_POWER = tl.constexpr(0x7FF << 52)
"""Bits of infinity, above those of every power of two."""
NO_LOWEST = tl.constexpr(1024)
"""Lowest bit of a vector of zeros, above that of every float64."""
_TWO_TO_100 = tl.constexpr(2.0**100)
"""Times that, a subnormal float64 or float32 is normal."""


@triton.jit
def magnitude_bits(x):
    """Bits of |x|: INT32 of float32, INT64 of float64."""
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        return x.to(tl.int64, bitcast=True) & ABSOLUTE


@triton.jit
def biased_exponent(x):
    """The biased exponent of float64 entries, without a sign; 0 of subnormal numbers."""
    return (x.to(tl.int64, bitcast=True) >> 52).to(tl.int32) & 0x7FF


@triton.jit
def exponent_of(bits):
    """Smallest e with |x| < 2**e from the bits of |x|, float32 or float64.

    Inf and NaN give one more than the largest number (INFINITE for float64), zero an
    exponent below all others.
    """
    # Where the exponent lies, and its bias, 127 or 1023, less 1: 1 <= x / 2**(e - 1) < 2.
    FLOAT: tl.constexpr = tl.float32 if bits.dtype == tl.int32 else tl.float64
    STORED: tl.constexpr = 23 if bits.dtype == tl.int32 else 52
    LESS: tl.constexpr = 126 if bits.dtype == tl.int32 else 1022
    # A number whose biased exponent is 0 is subnormal. Its exponent comes from that of
    # 2**100 times it.
    raised = bits.to(FLOAT, bitcast=True) * _TWO_TO_100
    length = (raised.to(bits.dtype, bitcast=True) >> STORED).to(tl.int32)
    biased = (bits >> STORED).to(tl.int32)
    return tl.where(biased > 0, biased - LESS, length - LESS - 100)


@triton.jit
def exponent_or(bits, e_of_zero):
    """Exponents from the bits of magnitudes, and `e_of_zero` for zeros."""
    return tl.where(bits == 0, e_of_zero, exponent_of(bits))


@triton.jit
def lowest_power(x):
    """Bits of the float64 2**l, l the exponent of the lowest set bit of x.

    For minima of bits: `exponent_of` of the smallest, less 1, is l, or NO_LOWEST from
    the NO_POWER of zeros. x less its lowest bit is the float64 whose fraction lacks that
    bit, and the difference is exact; a power of two, whose fraction is 0, is its own
    lowest bit.
    """
    bits = magnitude_bits(x)
    higher_bits = (bits & (bits - 1)).to(tl.float64, bitcast=True)
    power = tl.where((bits & _FRACTION) == 0, 0.0, higher_bits)
    lowest = (tl.abs(x) - power).to(tl.int64, bitcast=True)
    return tl.where(bits == 0, NO_POWER, lowest)


@triton.jit
def significand_of(x):
    """m < 2**53 of |x| = m 2**(max(e, 1) - 1075) as INT64, e the biased exponent."""
    fraction = x.to(tl.int64, bitcast=True) & _FRACTION
    return fraction | ((biased_exponent(x) > 0).to(tl.int64) << 52)


@triton.jit
def lowest_bit(x, l_of_zero):
    """Twin: numerics.bits.lowest_bit, entry by entry; `l_of_zero` for zeros."""
    significand = significand_of(x)
    # The lowest bit of the significand is a power of two, whose exponent as a float64
    # says where it lies.
    trailing = biased_exponent((significand & -significand).to(tl.float64)) - 1023
    lowest = tl.maximum(biased_exponent(x), 1) + trailing - 1075
    return tl.where(significand == 0, l_of_zero, lowest)


@triton.jit
def place_of_tile(index, panels, chunks):
    """Matrix of the stack, panel of its vectors and chunk of k of a tile, from its
    running number.

    The chunks of a panel are counted first, then the panels of a matrix: the tiles of
    one panel have consecutive numbers.
    """
    chunk = index % chunks
    panel = index // chunks
    return panel // panels, panel % panels, chunk


@triton.jit
def entries_of(operand, z, v, h):
    """Addresses of the entries of vectors v and indices h along k in matrix z.

    `operand` has the strides of a `Strided`: rows are vectors, columns lie along k.
    """
    matrix = operand.entries + z.to(tl.int64) * operand.batch
    vectors = matrix + v.to(tl.int64) * operand.row
    return vectors[:, None] + h[None, :].to(tl.int64) * operand.column


@triton.jit
def tile_of_vectors(
    operand, index, vectors, k, chunks, VECTORS: tl.constexpr, TERMS: tl.constexpr
):
    """Addresses of the entries of a tile, which of them exist, and their matrix,
    vectors and indices along k.

    A tile is VECTORS vectors, a panel, times TERMS entries along k, a chunk; `chunks`
    hold a vector.
    """
    z, panel, chunk = place_of_tile(index, tl.cdiv(vectors, VECTORS), chunks)
    z = z.to(tl.int64)
    v = panel * VECTORS + tl.arange(0, VECTORS)
    h = chunk * TERMS + tl.arange(0, TERMS)
    inside = (v < vectors)[:, None] & (h < k)[None, :]
    return entries_of(operand, z, v, h), inside, z, v, h
