"""Products modulo p_l for Ozaki scheme II: their operands, and their results.

A real product takes one INT8 product for each modulus. For complex operands X = x + i y
and a modulus with j**2 = -1 mod p, the map X -> (x + j y, x - j y) turns a product into
two real ones, U and V, and

    re = (U + V) / 2,    im = (U - V) / (2 j)    mod p.

Other moduli take the three products x x', y y', (x + y) (x' + y') of Karatsuba's method
[UMIOG26]. All of it is exact. A plane is what one of these real products takes of an
operand.

References
    [UMIOG26] Uchino, Ma, Imamura, Ozaki, Gutsche: Emulation of Complex Matrix
    Multiplication based on the Chinese Remainder Theorem,
    doi:10.23919/ISC.2026.11520500.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import parts_of, vector_blocks
from hifigemm.numerics.embedding import components
from hifigemm.numerics.integer_sums import Rounding, rounded_integers
from hifigemm.numerics.residues import ModuliSet, centred, reduce_centred, residues
from hifigemm.numerics.rounded_sums import Addend
from hifigemm.numerics.rounding import Rounded, round_in_chunks, values_in_chunks
from hifigemm.numerics.scaling import Scale, round_to_integers

ExactProduct = Callable[[Array, Array, int, int], Array]
"""A function (a, b, max_a, max_b) that returns a @ b of INT8 matrices without rounding.

The result is int32 or int64; max_a and max_b bound |a| and |b|.
"""

_PRODUCT_ENTRIES = 2**16
"""Planes are multiplied together up to this number of entries, for the cache."""

_REDUCED_ENTRIES = 2**14
"""Entries of these products that are reduced at a time on the host."""

_GROUPED_ENTRIES = 2**14
"""Entries of residues of several moduli that are combined at a time, in float64."""

_SHORT_TERMS = 2**7 - 1
"""Terms of sums below 2**21 in magnitude."""


@lru_cache
def num_planes(moduli: ModuliSet, is_complex: bool) -> int:
    """Number of real products: one a modulus, two or three for complex operands."""
    if not is_complex:
        return len(moduli.splits)
    return sum(2 if j else 3 for j in moduli.splits)


def _groups(moduli: ModuliSet, size: int) -> Iterator[tuple[slice, slice, bool]]:
    """Moduli in a row that all split, or all do not: their indices, those of their
    planes, and if they split.

    A group has so many of them that arrays of `size` entries each are not large.
    """
    at_once = max(_GROUPED_ENTRIES // max(size, 1), 1)
    first_plane = 0
    first = 0
    for splits, run in groupby(moduli.splits, bool):
        end = first + len(list(run))
        for start in range(first, end, at_once):
            stop = min(start + at_once, end)
            last_plane = first_plane + (stop - start) * (2 if splits else 3)
            yield slice(start, stop), slice(first_plane, last_plane), splits
            first_plane = last_plane
        first = end


def product_operands(residues: list[Array], moduli: ModuliSet) -> Array:
    """Planes of a complex operand, int8 (products, ...), from residues of re and im.

    `residues` has one array (L, ...) for re and one for im.
    """
    re, im = residues
    shape = re.shape[1:]
    planes = np.empty((num_planes(moduli, True), *shape), np.int8, like=re)
    for group, of_group, splits in _groups(moduli, math.prod(shape)):
        x = re[group].astype(np.float64)
        y = im[group].astype(np.float64)
        p = _column(moduli.moduli[group], x.ndim)
        if splits:
            j = _column(moduli.splits[group], x.ndim)
            factors = [x + j * y, x - j * y]
        else:
            factors = [x, y, x + y]
        for q, factor in enumerate(factors):
            planes[of_group][q :: len(factors)] = reduce_centred(factor, p)
    return planes


def _column(numbers: Sequence[Any], ndim: int) -> Array:
    """Numbers in float64 along the first of so many axes."""
    return np.array(numbers, np.float64).reshape(-1, *[1] * (ndim - 1))


def scaled_residues(
    x: Array, scale: Scale, moduli: ModuliSet, block_entries: int
) -> Array:
    """Planes of round(2**scale x) for every modulus, int8 (batch, products, m or n, k).

    x is (batch, m, k) or (batch, k, n), real or complex. The inner dimension comes last
    on both sides, as matrix engines want it.
    """
    axis = scale.axis
    is_complex = x.dtype.kind == "c"
    num_vectors = x.shape[3 - axis]
    shape = (len(x), num_planes(moduli, is_complex), num_vectors, x.shape[axis])
    planes = np.empty(shape, np.int8, like=x)
    for block in vector_blocks(x, axis, block_entries):
        exponent = scale.exponent[block]
        nearest = scale.nearest[block]

        # Integers of each component, and their residues modulo all p.
        residues_of_components = []
        for part in components(x[block]):
            integers = round_to_integers(part, exponent, nearest)
            residues_of_components.append(
                residues(integers, moduli.moduli, block_entries)
            )
        if is_complex:
            operands = product_operands(residues_of_components, moduli)
        else:
            operands = residues_of_components[0]

        # The inner dimension comes last, the products after the batch.
        if axis == 1:
            operands = np.swapaxes(operands, 2, 3)
        planes[block[0], :, block[-1]] = np.moveaxis(operands, 0, 1)
    return planes


def residue_gemm(
    left: Array, right: Array, moduli: ModuliSet, exact: ExactProduct
) -> Array:
    """Products of the planes of both operands, int8 (batch, products, m, n).

    Each is reduced modulo its p. Planes are those of `scaled_residues`; their residues
    may be any representatives in [-128, 127].
    """
    count = left.shape[1]
    m = left.shape[2]
    n = right.shape[2]
    batch = max(len(left), len(right))
    # float32 holds short sums, and reduces them in half of the memory.
    is_short = left.shape[3] <= _SHORT_TERMS
    dtype = np.float32 if is_short else np.float64
    moduli_of_planes = np.array(moduli.of_planes(count), dtype)[:, None, None]
    out = np.empty((batch, count, m, n), np.int8, like=left)

    # Some planes of a matrix at a time, or those of several matrices that are small.
    planes_at_once = max(_PRODUCT_ENTRIES // max(m * n, 1), 1)
    matrices_at_once = 1
    if len(left) == len(right):
        matrices_at_once = max(_REDUCED_ENTRIES // max(count * m * n, 1), 1)
    for z in range(0, batch, matrices_at_once):
        matrices = slice(z, z + matrices_at_once)
        a = left[matrices] if len(left) > 1 else left
        b = right[matrices] if len(right) > 1 else right
        for q in range(0, count, planes_at_once):
            planes = slice(q, q + planes_at_once)
            reduced = out[matrices, planes]
            x = a[:, planes].reshape(-1, m, a.shape[3])
            y = b[:, planes].reshape(-1, n, b.shape[3])
            products = exact(x, np.swapaxes(y, 1, 2), 128, 128).reshape(reduced.shape)
            p = moduli_of_planes[planes]
            if len(reduced) > 1:
                reduced[...] = reduce_centred(products.astype(dtype), p)
                continue
            for part in parts_of(products[0], _REDUCED_ENTRIES):
                entries = products[0][part].astype(dtype)
                reduced[0][part] = reduce_centred(entries, p[part[0]])
    return out


def product_residues(products: Array, moduli: ModuliSet) -> Array:
    """Residues of A B from the products of `residue_gemm`: int8 (batch, L, m, n).

    Those of complex operands are (batch, L, m, 2 n), re and im of an entry side by
    side.
    """
    if products.shape[1] == len(moduli.moduli):
        return products
    batch, _, m, n = products.shape
    out = np.empty((batch, len(moduli.moduli), m, 2 * n), np.int8, like=products)
    for group, of_group, splits in _groups(moduli, batch * m * n):
        # The first, the second and perhaps the third product of these moduli.
        count = 2 if splits else 3
        planes = products[:, of_group]
        x = [planes[:, q::count].astype(np.float64) for q in range(count)]
        moduli_of_group = moduli.moduli[group]
        p = _column(moduli_of_group, 3)
        if splits:
            pairs = list(zip(moduli_of_group, moduli.splits[group], strict=True))
            halves = [centred(pow(2, -1, q), q) for q, _ in pairs]
            over_j = [centred(pow(2 * (j or 1), -1, q), q) for q, j in pairs]
            re = (x[0] + x[1]) * _column(halves, 3)
            im = (x[0] - x[1]) * _column(over_j, 3)
        else:
            re = x[0] - x[1]
            im = x[2] - x[0] - x[1]
        out[:, group, :, 0::2] = reduce_centred(re, p)
        out[:, group, :, 1::2] = reduce_centred(im, p)
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
    """V 2**(unit_left + unit_right + shift) rounded once, V integers given by residues.

    `residues` is (batch, L, m, n); `err_exponent`, broadcast to the result, is that of
    `numerics.rounding.round_limbs`.
    """
    batch, count, m, n = residues.shape
    flat = np.swapaxes(residues, 0, 1).reshape(count, -1)
    exponent = np.broadcast_to(unit_left + unit_right + shift, (batch, m, n))
    limbs_of = partial(moduli.reconstruct, flat)
    return round_in_chunks(limbs_of, exponent, fmt, block_entries, err_exponent)


def crt(
    products: Array,
    unit_left: Array,
    unit_right: Array,
    shift: int,
    moduli: ModuliSet,
    fmt: Format,
    block_entries: int,
) -> Array:
    """The values alone of `round_integers` for products of `residue_gemm`."""
    residues = product_residues(products, moduli)
    batch, count, m, n = residues.shape
    flat = np.swapaxes(residues, 0, 1).reshape(count, -1)
    exponent = np.broadcast_to(unit_left + unit_right + shift, (batch, m, n))
    return values_in_chunks(
        partial(moduli.terms, flat),
        partial(moduli.reconstruct, flat),
        exponent,
        fmt,
        block_entries,
        moduli.half_range.bit_length(),
    )


def crt_rounded_once(
    products: Array,
    unit_left: Array,
    unit_right: Array,
    shift: int,
    moduli: ModuliSet,
    fmt: Format,
    rounding: Rounding,
    c: Array | None = None,
) -> tuple[Array, Array | None]:
    """The arrays of `rounded_integers` for products of `residue_gemm`, V and C times
    2**shift; c, like the result, has the components of complex entries side by side.
    """
    residues = product_residues(products, moduli)
    batch, count, m, n = residues.shape
    limbs = moduli.reconstruct(np.swapaxes(residues, 0, 1).reshape(count, -1))
    exponent = np.broadcast_to(unit_left + unit_right + shift, (batch, m, n)).ravel()
    # C takes the power of two that the product takes.
    addend = None
    if c is not None:
        c_exponent = rounding.c_exponent + shift
        addend = Addend(c.ravel(), c_exponent, rounding.c_sign)
    values, second_values = rounded_integers(
        limbs,
        exponent,
        fmt,
        result=rounding.result,
        addend=addend,
        sign=rounding.sign,
    )
    values = values.reshape(batch, m, n)
    if second_values is None:
        return values, None
    return values, second_values.reshape(batch, m, n)
