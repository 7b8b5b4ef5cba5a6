"""Arithmetic of tensor cores, bit for bit: V100, A100, H100/H200, B200 and ideal units.

Idea
    One block adds a few products and the accumulator C as a fixed-point sum. Product l
    has the exponent e_l = exponent(a_l) + exponent(b_l) and is not normalised,
    |a_l b_l| < 4 2**e_l; C is one more term x_0:

        E = max(floor, largest e_l among the nonzero terms),    g = 2**(E - F),

        D = fl(g sum_l trunc(x_l / g)),

    where fl is a single rounding to FP32 that produces subnormals. A longer inner
    dimension is a chain of blocks through C.

Conventions
    The exponent of a subnormal number is emin of its format. Every zero is +0, exact or
    by underflow. A sum that rounds to 2**(emax + 1) or more is Inf in every rounding
    mode. Inf and NaN propagate as in IEEE arithmetic in any order: a NaN, Inf * 0 or
    Inf - Inf gives NaN, else Inf stays. NaN is 0x7FFFFFFF.

Measured
    136,704 results each of mma.sync and of wgmma on an H200 (driver 580.159,
    2026-11-21), hostile and random: both instructions agree in every bit, the model
    equals them all, and no zero among them is negative.

Exact when
    2 t <= 53 and F + 2 + ceil(log2(block + 1)) <= 53: products and sums of aligned
    terms are then exact in float64.

Cost
    About four passes over m n k float64 products that stay in cache.

References
    [KM25] F. A. Khattak, M. Mikaitis, Accurate Models of NVIDIA Tensor Cores,
    arXiv:2512.07004.
    P. Xie, Y. Wang, F. Yang, M. Yang, MMA-Sim: Bit-Accurate Reference Model of Tensor
    Cores and Matrix Cores, arXiv:2511.10909, found the same rule and the same F.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import Array, ceil_log2, power_of_two
from hifigemm.numerics.rounding_formats import (
    is_representable,
    result_dtype,
    round_to_format,
)

_NO_FLOOR = -900
"""Floor below every exponent: formats have exponents within +-400."""

_ZERO_EXPONENT = -8192
"""Exponent of a zero: the sum of two stays in int16 and below every floor."""

_TILE_TERMS = 65536
"""Products formed at a time, 512 KiB of float64: fits the second-level cache."""

_NAN_BITS = 0x7FFFFFFF
"""The NaN of all these units in FP32."""


@dataclass(frozen=True)
class TensorCoreModel:
    """Parameters of a unit that adds `block` products and C in fixed point."""

    name: str
    # Products per block. Pairs name the formats that the unit has; an int says that it
    # takes every format.
    block: int | tuple[tuple[str, int], ...]
    fraction_bits: int  # F: terms are truncated towards zero to multiples of 2**(E - F)
    # Least alignment exponent E. The default lies below every product of FP32 numbers.
    exponent_floor: int = _NO_FLOOR
    rounding: str = "zero"  # "zero" or "nearest": the rounding at the end of a block
    accumulator: Format = FP32  # format of C and of the result

    def block_size(self, fmt: Format) -> int:
        """Products per block for inputs of `fmt`.

        Raises ValueError where the unit has no products of `fmt`, or where they are not
        exact in float64.
        """
        if isinstance(self.block, int):
            sizes = {fmt.name: self.block}
        else:
            sizes = dict(self.block)
        if fmt.name not in sizes:
            raise ValueError(
                f"{self.name} multiplies {', '.join(sizes)}, not {fmt.name}"
            )
        block = sizes[fmt.name]
        bits = self.fraction_bits + 2 + ceil_log2(block + 1)
        if (
            bits > 53
            or 2 * fmt.t > 53
            or self.exponent_floor < _NO_FLOOR
            or min(fmt.emin, -fmt.emax) < -400
        ):
            raise ValueError(
                f"{self.name} with {fmt.name}: needs F + 2 + log2(block + 1) = {bits} <= 53, 2 t = {2 * fmt.t} <= 53, "
                f"exponent floor {self.exponent_floor} >= {_NO_FLOOR} and exponents within +-400"
            )
        return block


V100 = TensorCoreModel("v100", (("fp16", 4),), fraction_bits=23)
A100 = TensorCoreModel(
    "a100",
    (("fp16", 8), ("bf16", 8), ("tf32", 4)),
    fraction_bits=24,
    exponent_floor=-132,
)
H100 = TensorCoreModel(
    "h100",
    (("fp16", 16), ("bf16", 16), ("tf32", 8)),
    fraction_bits=25,
    exponent_floor=-133,
)
H100_WGMMA = replace(H100, name="h100-wgmma")
B200 = replace(H100, name="b200")
"""Blocks, F and floors are those of [KM25]; for H100 (mma) and H100_WGMMA we measured
them on an H200, too. The sign of zero is that of the H200 for all.
"""

MODELS = {m.name: m for m in (V100, A100, H100, H100_WGMMA, B200)} | {
    "h200": H100,
    "h200-wgmma": H100_WGMMA,
}
"""Models by name."""


def tensor_core_product(
    a: Array, b: Array, c: Array | None = None, *, fmt: Format, model: TensorCoreModel
) -> Array:
    """A B + C in the arithmetic of `model`, bit for bit, by the rule of [KM25] above.

    a (..., m, k) and b (..., k, n) hold values of `fmt`, c (..., m, n) holds those of
    `model.accumulator`, None stands for zeros; all are float32 or float64, and stacks
    broadcast. The result is float32 where that holds the accumulator's format, as
    always for the named GPUs, else float64. k is filled with zeros to whole blocks,
    which changes no bit.

    Raises ValueError for shapes that do not fit, for entries that are not values of
    their format and for a format that the unit does not have.
    """
    block = model.block_size(fmt)
    a = np.asarray(a)
    b = np.asarray(b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"cannot multiply shapes {a.shape} and {b.shape}")
    dtype = result_dtype(model.accumulator)
    c = np.zeros((), dtype) if c is None else np.asarray(c)
    _check_entries("a", a, fmt)
    _check_entries("b", b, fmt)
    _check_entries("c", c, model.accumulator)

    # One shape for all stacks.
    stack = np.broadcast_shapes(*(x.shape[:-2] for x in (a, b, c)))
    out = np.empty((*stack, a.shape[-2], b.shape[-1]), dtype)
    a = np.broadcast_to(a, stack + a.shape[-2:])
    b = np.broadcast_to(b, stack + b.shape[-2:])

    # A B is added to C in the result, one pair of matrices after the other.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[...] = c
        for index in np.ndindex(stack):
            _accumulate(a[index], b[index], out[index], fmt, block, model)
    if dtype is np.float32:
        out.view(np.uint32)[np.isnan(out)] = _NAN_BITS
    return out


def _check_entries(name: str, x: Array, fmt: Format) -> None:
    """Raise ValueError unless all entries are values of the format."""
    if not is_representable(x, fmt):
        raise ValueError(f"{name} holds entries that are not {fmt.name} values")


@dataclass(frozen=True)
class _Operand:
    """Rows of a or columns of b, cut into blocks of k: arrays (blocks, block, rows)."""

    raw: Array  # the entries
    values: Array  # the entries with 0 for Inf and NaN
    exponents: Array  # int16, those of `values`
    special: Array  # (blocks,) bool: True if a block has an Inf or NaN

    def terms(self, step: int, vectors: slice) -> _Terms:
        """One block of some of the vectors."""
        return _Terms(self.values[step, :, vectors], self.exponents[step, :, vectors])


class _Terms(NamedTuple):
    """One block of rows of a or columns of b: finite float64 (block, rows)."""

    values: Array
    exponents: Array


def _prepare(x: Array, fmt: Format, block: int) -> _Operand:
    """Blocks of x, shape (k, rows), filled with zeros to a multiple of `block`."""
    k, rows = x.shape
    steps = -(-k // block)
    raw = np.zeros((steps * block, rows))
    raw[:k] = x
    raw = raw.reshape(steps, block, rows)
    finite = np.isfinite(raw)
    special = np.logical_not(finite.all(axis=(1, 2)))
    values = np.where(finite, raw, 0.0) if special.any() else raw
    return _Operand(raw, values, _exponents(values, fmt.emin).astype(np.int16), special)


def _exponents(x: Array, emin: int) -> Array:
    """max(floor(log2 |x|), emin) as int64, `_ZERO_EXPONENT` for zeros.

    x is float64 and finite.
    """
    exponents = np.maximum(((x.view(np.int64) >> 52) & 0x7FF) - 1023, emin)
    exponents[x == 0] = _ZERO_EXPONENT
    return exponents


def _accumulate(
    a: Array, b: Array, out: Array, fmt: Format, block: int, model: TensorCoreModel
) -> None:
    """out <- a b + out for one pair of matrices, in tiles that stay in the cache."""
    left = _prepare(a.T, fmt, block)
    right = _prepare(b, fmt, block)
    for rows, columns in _tiles(out.shape[0], out.shape[1], block):
        # The chain of blocks of this tile. An Inf or NaN of a block makes C infinite or
        # NaN before the finite terms are added, which leave it as it is.
        total = out[rows, columns].astype(np.float64)
        for step in range(len(left.values)):
            if left.special[step] or right.special[step]:
                total += _special_terms(
                    left.raw[step, :, rows], right.raw[step, :, columns]
                )
            row_terms = left.terms(step, rows)
            column_terms = right.terms(step, columns)
            total = _add_block(total, row_terms, column_terms, model)
        out[rows, columns] = total


def _tiles(m: int, n: int, block: int) -> Iterator[tuple[slice, slice]]:
    """Yield tiles of about `_TILE_TERMS` / block outputs, wide rather than tall."""
    width = max(1, min(n, 128))
    height = max(1, _TILE_TERMS // (block * width))
    for i in range(0, m, height):
        for j in range(0, n, width):
            yield slice(i, i + height), slice(j, j + width)


def _special_terms(a: Array, b: Array) -> Array:
    """Sum of the products of one block that are Inf or NaN, 0 where there is none."""
    products = a[:, :, None] * b[:, None, :]
    products[np.isfinite(products)] = 0.0
    return products.sum(axis=0)


def _add_block(c: Array, a: _Terms, b: _Terms, model: TensorCoreModel) -> Array:
    """D = A B + C of one block, for float64 c (rows, columns)."""
    # Inf and NaN of C go through a block as they are.
    finite = np.isfinite(c)
    nonfinite_c = None if finite.all() else c
    if nonfinite_c is not None:
        c = np.where(finite, c, 0.0)

    # E - F of each sum.
    exponents = a.exponents[:, :, None] + b.exponents[:, None, :]
    align = exponents.max(axis=0).astype(np.int64)
    np.maximum(align, _exponents(c, model.accumulator.emin), out=align)
    np.maximum(align, model.exponent_floor, out=align)
    align -= model.fraction_bits

    # The sum of the truncated terms in units of 2**(E - F).
    scale = power_of_two(-align)
    terms = a.values[:, :, None] * b.values[:, None, :]
    terms *= scale
    np.trunc(terms, out=terms)
    total = terms.sum(axis=0)
    total += np.trunc(c * scale)

    # One rounding to the format of the accumulator.
    total *= power_of_two(align)
    total = round_to_format(
        total, model.accumulator, model.rounding, saturate=False
    ).astype(np.float64)
    total += 0.0  # -0 + 0 = +0: every zero is positive
    if nonfinite_c is not None:
        np.copyto(total, nonfinite_c, where=~finite)
    return total
