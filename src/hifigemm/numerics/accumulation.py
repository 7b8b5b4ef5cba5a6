"""Accumulation of products in tensor cores and in BLAS, as error bounds need it.

One step adds `step` exact products x_l to C and returns D with

    |D - (C + sum_l x_l)| <= error (|C| + sum_l |x_l|) + tiny.

A tensor core (numerics.tensor_core) with F fraction bits adds blocks of b products and
C. It truncates each of these b + 1 terms by less than g = 2**(E - F), where 2**E <= the
largest |term|, and rounds the sum once to t bits. The largest term loses nothing where
all of its bits lie above g. So error = b 2**-F + 2**(1 - t) where the rounding is a
truncation, b 2**-F + 2**-t where it is to nearest, with b + 1 instead of b where
even the largest term may have bits below g.

Two things disturb this. First, a product of a subnormal word is aligned by emin of its
format: then 2**E <= (|a| + 2**emin) |b|, which the caller covers by widening |a|.
Second, E has a floor and results may be subnormal. That costs `tiny`: (b + 1) g at the
floor plus the smallest subnormal. It costs nothing where every nonzero product has
exponents e_a + e_b >= safe_exponent, because all results are then multiples of the
smallest subnormal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.numerics.bits import Array

if TYPE_CHECKING:
    from hifigemm.numerics.tensor_core import TensorCoreModel


@dataclass(frozen=True)
class Accumulation:
    """Accumulation in a unit, for products of words of one format."""

    unit: str  # what adds, and how it rounds
    accumulator: Format  # format of C and of the result
    step: int  # products that a step adds
    # Inner length after which a scheme that adds outside the unit starts anew: one
    # instruction of a tensor core.
    block: int
    error: float  # relative error of a step, see the module docstring
    tiny: float  # absolute error of a step near the subnormals
    # A nonzero product with e_a + e_b of at least this causes no error `tiny`.
    safe_exponent: int

    def steps(self, k: int) -> int:
        """Number of steps that a sum of k products takes."""
        return -(-k // self.step)


def of_tensor_core(model: TensorCoreModel, fmt: Format, block: int) -> Accumulation:
    """Accumulation of `tensor_core_product`.

    Raises ValueError where the unit has no products of `fmt`.
    """
    size = model.block_size(fmt)
    bits = model.fraction_bits
    out = model.accumulator

    # The largest term is truncated, too, where a product or C has more than F fraction
    # bits.
    needed_bits = max(2 * (fmt.t - 1), out.t - 1)
    truncated = size if bits >= needed_bits else size + 1
    rounding = 2.0 ** (1 - out.t) if model.rounding == "zero" else out.u

    floor = max(model.exponent_floor, out.emin)
    text = f"{model.name} tensor core, blocks of {size}, {bits} fraction bits, {out.name} rounded to {model.rounding}"
    return Accumulation(
        unit=text,
        accumulator=out,
        step=size,
        block=block,
        error=truncated * 2.0**-bits + rounding,
        tiny=(size + 1) * 2.0 ** (floor - bits) + 2.0**out.min_exponent,
        safe_exponent=max(floor, out.min_exponent + bits),
    )


def in_any_order(
    unit: str, fmt: Format, accumulator: Format, block: int
) -> Accumulation:
    """Accumulation in an IEEE format, rounded to nearest, in any order of the products.

    Products are exact (2 t <= t of the accumulator), so k of them and C take k
    roundings at most, each of which can be seen as a step. A product that underflows
    errs by half the smallest subnormal. Raises ValueError where products are not exact.
    """
    if 2 * fmt.t > accumulator.t:
        raise ValueError(
            f"products of {fmt.name} words are not exact in {accumulator.name}"
        )
    smallest = accumulator.min_exponent
    return Accumulation(
        unit=unit,
        accumulator=accumulator,
        step=1,
        block=block,
        error=accumulator.u,
        tiny=2.0**smallest,
        safe_exponent=smallest + 2 * (fmt.t - 1),
    )


def add_outside(
    product: Callable[[Array, Array, Array | None], Array],
    a: Array,
    b: Array,
    c: Array | None,
    block: int | None,
) -> Array:
    """A B + C, where the unit adds `block` terms at a time from 0.

    The sums of these blocks are added to C outside of the unit, to nearest, in order of
    k. `product(a, b, c)` is A B + C by the unit, to which `block` None leaves the whole
    sum.
    """
    if block is None:
        return product(a, b, c)
    starts = range(0, max(a.shape[-1], 1), block)
    block_sums = (
        product(a[..., i : i + block], b[..., i : i + block, :], None) for i in starts
    )
    summands = block_sums if c is None else chain((c,), block_sums)
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(operator.add, summands)


class WordSums(Protocol):
    """One kernel that adds all products of a scheme's words in the scheme's order."""

    @property
    def unit(self) -> Accumulation:
        """The accumulation of the kernel."""

    def __call__(self, left: Array, right: Array) -> Array:
        """Sums (batch, m, n) in float32 of all products of words.

        `left` is (batch or 1, m, words k), `right` is (batch or 1, words k, n).
        """


def word_sums(scheme: Any, k: int, span: int = 0) -> WordSums | None:
    """Kernel that adds all products of a scheme's words for this k, or None.

    k is cut into spans of so many terms, 0 for none. With None, as here, the products
    are made one by one; an engine may have a kernel.
    """
    return None
