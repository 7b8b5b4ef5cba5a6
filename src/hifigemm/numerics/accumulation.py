"""How a unit adds products: what an error analysis needs to know of it, for tensor
cores and for BLAS.

One step adds `step` exact products x_l to C and returns D with

    |D - (C + sum_l x_l)| <= error (|C| + sum_l |x_l|) + tiny.

For a tensor core with F fraction bits, block b and an accumulator of t bits
(numerics.tensor_core), the terms that are not the largest one are truncated by less
than g = 2**(E - F) each, 2**E <= the largest |term|, and the sum is rounded once:
error = b 2**-F + 2**(1 - t) with truncation (2**-t to nearest); b + 1 terms where even
the largest may have bits below g.

Two things disturb this. A product of a subnormal word is aligned by emin of its format:
2**E <= (|a| + 2**emin) |b| then, which the caller covers by widening |a|. And E has a
floor, results have subnormals: that is `tiny`, (b + 1) g at the largest floor plus the
smallest subnormal. It is zero where every nonzero product has exponents
e_a + e_b >= safe_exponent, because all results are then multiples of the smallest
subnormal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hifigemm.formats import Format
from hifigemm.numerics.bits import Array

if TYPE_CHECKING:
    from hifigemm.numerics.tensor_core import TensorCoreModel


@dataclass(frozen=True)
class Accumulation:
    """Accumulation of a unit for one format of words."""

    unit: str  # what adds, and how it rounds
    accumulator: Format  # format of C and of the result
    step: int  # products that a step adds
    # inner length after which a scheme that adds outside the unit starts anew: one
    # instruction of a tensor core
    block: int
    error: float  # see the module docstring
    tiny: float  # see the module docstring
    # `tiny` is 0 where every nonzero product has exponents of at least this sum
    safe_exponent: int

    def steps(self, k: int) -> int:
        """Steps that a sum of k products takes."""
        return -(-k // self.step)


def of_tensor_core(model: TensorCoreModel, fmt: Format, block: int) -> Accumulation:
    """The accumulation of `tensor_core_product`; ValueError where the unit lacks
    `fmt`.
    """
    size, out, bits = model.block_size(fmt), model.accumulator, model.fraction_bits
    truncated = size if bits >= max(2 * (fmt.t - 1), out.t - 1) else size + 1
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
    """Sums in an IEEE format to nearest, one product after the other or in any other
    order.

    Products are exact (2 t <= t of the accumulator), so k of them and C take k
    roundings at most, each of which can be seen as a step. A product that underflows
    errs by half the smallest subnormal.
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
    """A B + C by product(a, b, c), which starts from 0 every `block` of k; None leaves
    the whole sum to the unit.

    What the unit returns is added to C outside, to nearest, in order of k.
    """
    if block is None:
        return product(a, b, c)
    starts = range(0, max(a.shape[-1], 1), block)
    parts = (
        product(a[..., i : i + block], b[..., i : i + block, :], None) for i in starts
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(operator.add, parts if c is None else chain((c,), parts))


class WordSums(Protocol):
    """The sum of all products of a scheme's words by one kernel, in the order of the
    scheme.
    """

    @property
    def unit(self) -> Accumulation:
        """How it adds."""

    def __call__(self, left: Array, right: Array) -> Array:
        """The sums (batch, m, n) of words (batch or 1, m, words k) and (batch or 1,
        words k, n), in float32.
        """


def word_sums(scheme: Any, k: int) -> WordSums | None:
    """The kernel that adds all products of a scheme's words for this k; None: products
    are made one by one.
    """
    return None
