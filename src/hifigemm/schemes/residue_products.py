"""Products modulo p_l for Ozaki scheme II: what is multiplied for a modulus, and what follows from the products.

A real product takes one INT8 product for each modulus. For complex operands X = x + i y with j**2 = -1 mod p, the map
X -> (x + j y, x - j y) turns a product into two real ones, U and V, and re = (U + V) / 2, im = (U - V) / (2 j) mod p;
other moduli take the three products x x', y y', (x + y) (x' + y') [UMIOG26]. All of it is exact.
"""

from __future__ import annotations

import numpy as np

from hifigemm.engine import Engine
from hifigemm.numerics.bits import Array
from hifigemm.numerics.residues import ModuliSet, centred, reduce_centred
from hifigemm.plan import Split
from hifigemm.schemes.scheme import exact_int8

__all__ = ["components", "multiply_residues", "num_parts", "product_operands"]


def num_parts(moduli: ModuliSet, is_complex: bool) -> int:
    """Real products: one for each modulus, or two or three for complex operands."""
    return sum(1 if not is_complex else 2 if j else 3 for j in moduli.splits)


def components(x: Array) -> list[Array]:
    """The operand as float64, or its real and its imaginary part."""
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    return [part.astype(np.float64, copy=False) for part in parts]


def product_operands(residues: list[Array], moduli: ModuliSet) -> Array:
    """Residues (L, ...) of the components as the operands of the real products, int8 (products, ...)."""
    if len(residues) == 1:
        return residues[0]
    parts = []
    for x, y, p, j in zip(*residues, moduli.moduli, moduli.splits, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        parts += [x + j * y, x - j * y] if j else [x, y, x + y]
        many = 2 if j else 3
        parts[-many:] = [reduce_centred(part, p).astype(np.int8) for part in parts[-many:]]
    return np.stack(parts)


def multiply_residues(left: Split, right: Split, moduli: ModuliSet, engine: Engine) -> Array:
    """Residues of the product: int8 (L, batch, m, n), re and im interleaved along the last axis if complex."""
    is_complex = left.count != len(moduli.moduli)
    batch = max(left.parts.shape[0], right.parts.shape[0])
    width = 2 if is_complex else 1
    out = np.empty((len(moduli.moduli), batch, left.parts.shape[2], right.parts.shape[3] * width), np.int8)
    at = 0
    for row, p, j in zip(out, moduli.moduli, moduli.splits, strict=True):
        many = 1 if not is_complex else 2 if j else 3
        x = [_product_mod(left.parts[:, q], right.parts[:, q], p, engine) for q in range(at, at + many)]
        at += many
        if not is_complex:
            row[...] = x[0]
        elif j:
            row[..., 0::2] = reduce_centred((x[0] + x[1]) * centred(pow(2, -1, p), p), p)
            row[..., 1::2] = reduce_centred((x[0] - x[1]) * centred(pow(2 * j, -1, p), p), p)
        else:
            row[..., 0::2] = reduce_centred(x[0] - x[1], p)
            row[..., 1::2] = reduce_centred(x[2] - x[0] - x[1], p)
    return out


def _product_mod(a: Array, b: Array, p: int, engine: Engine) -> Array:
    """a @ b mod p, centred, as float64, for INT8 residues."""
    return reduce_centred(exact_int8(engine, a, b, 128, 128).astype(np.float64), p)
