"""The rule of tensor cores, entry by entry in rational numbers: what
`numerics.tensor_core` is held against.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.tensor_core import TensorCoreModel

__all__ = ["tensor_core_product_reference"]

_NAN_BITS = 0x7FFFFFFF


def tensor_core_product_reference(
    a: Array, b: Array, c: Array | None = None, *, fmt: Format, model: TensorCoreModel
) -> Array:
    """`tensor_core_product` for two matrices."""
    (m, k), n = a.shape, b.shape[1]
    block = model.block_size(fmt)
    out = np.zeros((m, n), result_dtype(model.accumulator))
    if c is not None:
        out[...] = c
    for i in range(m):
        for j in range(n):
            d = float(out[i, j])
            for start in range(0, k, block):
                part = slice(start, start + block)
                pairs = [
                    (float(x), float(y))
                    for x, y in zip(a[i, part], b[part, j], strict=True)
                ]
                d = _block_reference(pairs, d, fmt, model)
            out[i, j] = d
    if out.dtype == np.float32:
        out.view(np.uint32)[np.isnan(out)] = _NAN_BITS
    return out


def _block_reference(
    pairs: list[tuple[float, float]], c: float, fmt: Format, model: TensorCoreModel
) -> float:
    """One block for one entry."""
    native = [x * y for x, y in pairs] + [c]
    if not all(map(math.isfinite, native)):
        return sum(x for x in native if not math.isfinite(x))
    terms = [
        (Fraction(x) * Fraction(y), _exponent(x, fmt) + _exponent(y, fmt))
        for x, y in pairs
    ]
    terms.append((Fraction(c), _exponent(c, model.accumulator)))
    align = max([e for value, e in terms if value != 0] + [model.exponent_floor])
    grid = Fraction(2) ** (align - model.fraction_bits)
    return _round_reference(grid * sum(int(value / grid) for value, _ in terms), model)


def _exponent(x: float, fmt: Format) -> int:
    return max(math.frexp(x)[1] - 1, fmt.emin)


def _round_reference(value: Fraction, model: TensorCoreModel) -> float:
    """Round once to the accumulator's format, with Inf from 2**(emax + 1) on."""
    out = model.accumulator
    magnitude = abs(value)
    # of 2**i in the denominator
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    unit = Fraction(2) ** (max(exponent, out.emin) - out.t + 1)
    rounded = unit * (
        int(magnitude / unit) if model.rounding == "zero" else round(magnitude / unit)
    )
    result = math.inf if rounded >= Fraction(2) ** (out.emax + 1) else float(rounded)
    return -result if value < 0 and result else result
