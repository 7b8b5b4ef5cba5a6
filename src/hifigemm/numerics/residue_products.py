"""Products modulo p_l for Ozaki scheme II: what is multiplied for a modulus, and what
follows from the products.

A real product takes one INT8 product for each modulus. For complex operands X = x + i y
with j**2 = -1 mod p, the map X -> (x + j y, x - j y) turns a product into two real
ones, U and V, and re = (U + V) / 2, im = (U - V) / (2 j) mod p; other moduli take the
three products x x', y y', (x + y) (x' + y') [UMIOG26]. All of it is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from hifigemm.formats import Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import parts_of, vector_blocks
from hifigemm.numerics.embedding import components
from hifigemm.numerics.residues import ModuliSet, centred, reduce_centred, residues
from hifigemm.numerics.rounding import Rounded, round_in_chunks
from hifigemm.numerics.scaling import Scale, round_to_integers

ExactProduct = Callable[[Array, Array, int, int], Array]
"""a @ b of INT8 matrices with |a| and |b| no larger than two numbers, in int32 or
int64, without rounding.
"""

_ENTRIES, _REDUCED = 2**16, 2**13
"""Of products that are made, and reduced, at a time, where a product has fewer: copies
stay in the cache.
"""


@lru_cache
def num_planes(moduli: ModuliSet, is_complex: bool) -> int:
    """Real products: one for each modulus, or two or three for complex operands."""
    return sum(1 if not is_complex else 2 if j else 3 for j in moduli.splits)


def product_operands(residues: list[Array], moduli: ModuliSet) -> Array:
    """Residues (L, ...) of re and im as the operands of the real products, int8
    (products, ...).
    """
    planes = []
    for x, y, p, j in zip(*residues, moduli.moduli, moduli.splits, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        planes += [x + j * y, x - j * y] if j else [x, y, x + y]
        many = 2 if j else 3
        planes[-many:] = [
            reduce_centred(part, p).astype(np.int8) for part in planes[-many:]
        ]
    return np.stack(planes)


def scaled_residues(
    x: Array, scale: Scale, moduli: ModuliSet, block_entries: int
) -> Array:
    """Planes of an operand (batch, m, k) or (batch, k, n): int8 (batch, products, m or
    n, k).

    Residues of round(2**scale x), or for complex operands what the real products take.
    The inner dimension is the last one on both sides, as matrix engines want it.
    """
    axis, is_complex = scale.axis, x.dtype.kind == "c"
    planes = np.empty(
        (len(x), num_planes(moduli, is_complex), x.shape[3 - axis], x.shape[axis]),
        np.int8,
        like=x,
    )
    for where in vector_blocks(x, axis, block_entries):
        exponent, nearest = scale.exponent[where], scale.nearest[where]
        parts = components(x[where])
        found = [
            residues(
                round_to_integers(c, exponent, nearest), moduli.moduli, block_entries
            )
            for c in parts
        ]
        operands = product_operands(found, moduli) if is_complex else found[0]
        planes[where[0], :, where[-1]] = np.moveaxis(
            operands if axis == 2 else np.swapaxes(operands, 2, 3), 0, 1
        )
    return planes


def residue_gemm(
    left: Array, right: Array, moduli: ModuliSet, exact: ExactProduct
) -> Array:
    """Products of the planes of both operands, each modulo its p: int8 (batch,
    products, m, n).

    Planes are those of `scaled_residues`; residues are any representatives in [-128,
    127].
    """
    (_, count, m, _), n = left.shape, right.shape[2]
    batch, ps = (
        max(len(left), len(right)),
        np.array(moduli.of_planes(count), np.float64)[:, None, None],
    )
    out = np.empty((batch, count, m, n), np.int8, like=left)
    together = max(_ENTRIES // max(m * n, 1), 1)
    for z in range(batch):
        x, y = (
            left[z if len(left) > 1 else 0],
            np.swapaxes(right[z if len(right) > 1 else 0], 1, 2),
        )
        for q in range(0, count, together):
            some = slice(q, q + together)
            products, into, p = (
                exact(x[some], y[some], 128, 128),
                out[z, some],
                ps[some],
            )
            for part in parts_of(products, _REDUCED):
                into[part] = reduce_centred(
                    products[part].astype(np.float64), p[part[0]]
                )
    return out


def product_residues(products: Array, moduli: ModuliSet) -> Array:
    """Residues of the product from those of `residue_gemm`: int8 (batch, L, m, n).

    Real products are the residues; of complex ones re and im follow, side by side along
    the last axis.
    """
    if products.shape[1] == len(moduli.moduli):
        return products
    batch, _, m, n = products.shape
    out = np.empty((batch, len(moduli.moduli), m, 2 * n), np.int8, like=products)
    at = 0
    for l, (p, j) in enumerate(zip(moduli.moduli, moduli.splits, strict=True)):
        many = 2 if j else 3
        x = [products[:, q].astype(np.float64) for q in range(at, at + many)]
        at += many
        if j:
            out[:, l, :, 0::2] = reduce_centred(
                (x[0] + x[1]) * centred(pow(2, -1, p), p), p
            )
            out[:, l, :, 1::2] = reduce_centred(
                (x[0] - x[1]) * centred(pow(2 * j, -1, p), p), p
            )
        else:
            out[:, l, :, 0::2] = reduce_centred(x[0] - x[1], p)
            out[:, l, :, 1::2] = reduce_centred(x[2] - x[0] - x[1], p)
    return out


def round_integers(
    residues: Array,
    unit_left: Array,
    unit_right: Array,
    shift: int,
    moduli: ModuliSet,
    fmt: Format,
    block_entries: int,
    err_exponent: Array | None = None,
) -> Rounded:
    """V 2**(unit_left + unit_right + shift) rounded once, V the integers with these
    residues (batch, L, m, n).

    `err_exponent`, broadcast to the result, is that of `numerics.rounding.round_limbs`.
    """
    batch, count, m, n = residues.shape
    flat = np.swapaxes(residues, 0, 1).reshape(count, -1)
    exponent = np.broadcast_to(unit_left + unit_right + shift, (batch, m, n))
    return round_in_chunks(
        partial(moduli.reconstruct, flat), exponent, fmt, block_entries, err_exponent
    )


def crt(
    products: Array,
    unit_left: Array,
    unit_right: Array,
    shift: int,
    moduli: ModuliSet,
    fmt: Format,
    block_entries: int,
) -> Array:
    """The values of `round_integers` from what `residue_gemm` made, where nothing has
    to be known but them.
    """
    residues = product_residues(products, moduli)
    return round_integers(
        residues, unit_left, unit_right, shift, moduli, fmt, block_entries
    ).values
