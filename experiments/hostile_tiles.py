"""Tiles of hostile and random operands for tensor cores: A (64, k), B (k, 8), C (64,
8), as bit patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Layout(NamedTuple):
    """Bit fields of an operand format and the block length k of its instructions."""

    exponent_bits: int
    fraction_bits: int
    k: int


class Family(NamedTuple):
    """How tiles are drawn: largest product exponent from [low, high], exponents of A
    and of B up to `spread` lower.
    """

    low: int
    high: int
    spread: int
    # random, few (at most two bits set), ones (all bits set but for the last two)
    fractions: str = "random"
    c: str = "near opposite tie zero"  # choices for each entry, see draw_c
    zeros: float = 0.0
    positive: bool = False
    tiles: int = 4
    change: Callable[[np.random.Generator, Layout, Array, Array], None] | None = None


LAYOUTS = {
    "fp16": Layout(5, 10, 16),
    "bf16": Layout(8, 7, 16),
    "tf32": Layout(8, 10, 8),
}
FP32 = Layout(8, 23, 0)
CHAIN_BLOCKS = 8


def cancel_pairs(rng: np.random.Generator, layout: Layout, a: Array, b: Array) -> None:
    """Products 0 and 1, 2 and 3, ... up to a random place, cancel exactly."""
    sign = np.uint32(1 << (layout.exponent_bits + layout.fraction_bits))
    pairs = 2 * int(rng.integers(1, a.shape[1] // 2 + 1))
    a[:, 1:pairs:2] = a[:, 0:pairs:2]
    b[:, 1:pairs:2] = b[:, 0:pairs:2] ^ sign


def subnormal_left(
    rng: np.random.Generator, layout: Layout, a: Array, b: Array
) -> None:
    """All of A is subnormal in even rows, half of it in odd rows."""
    keep = ~(((1 << layout.exponent_bits) - 1) << layout.fraction_bits)
    chosen = rng.integers(2, size=a.shape) == 0
    chosen[::2] = True
    a[chosen] &= np.uint32(keep & 0xFFFFFFFF)


def complement_pairs(
    rng: np.random.Generator, layout: Layout, a: Array, b: Array
) -> None:
    """Entries 0 and 1, 2 and 3, ... of A are x (1 + d) and x (1 - d), x a power of two,
    those of B are equal.

    The products add to a short number, so bits lost in alignment carry through to the
    last place of the result.
    """
    f = layout.fraction_bits
    j = rng.integers(1, 1 << (f - 1), size=a[:, ::2].shape).astype(np.uint32)
    field = a[:, ::2] >> f
    normal = (field & ((1 << layout.exponent_bits) - 1)) > 1
    a[:, ::2] = np.where(normal, field << f | j, a[:, ::2])
    a[:, 1::2] = np.where(normal, (field - 1) << f | ((1 << f) - 2 * j), a[:, 1::2])
    b[:, 1::2] = b[:, ::2]


def minus_zeros(rng: np.random.Generator, layout: Layout, a: Array, b: Array) -> None:
    """A is -0 in even rows and zeros of both signs in odd rows; with positive B and
    C = -0, IEEE addition gives -0.
    """
    sign = np.uint32(1 << (layout.exponent_bits + layout.fraction_bits))
    a[:] = sign * rng.integers(2, size=a.shape).astype(np.uint32)
    a[::2] = sign


def zeros_meet_large(
    rng: np.random.Generator, layout: Layout, a: Array, b: Array
) -> None:
    """Odd columns of A are zeros that meet the largest exponent in B: a zero product
    must not move the alignment.
    """
    sign = np.uint32(1 << (layout.exponent_bits + layout.fraction_bits))
    a[:, 1::2] &= sign
    b[:, 1::2] |= np.uint32(((1 << layout.exponent_bits) - 2) << layout.fraction_bits)
    b[:, 1::2] &= ~np.uint32(1 << layout.fraction_bits)


def insert_specials(
    rng: np.random.Generator, layout: Layout, a: Array, b: Array
) -> None:
    """One Inf or NaN in each of the first 24 rows and 3 columns."""
    infinity = ((1 << layout.exponent_bits) - 1) << layout.fraction_bits
    for x, count in ((a, 24), (b, 3)):
        place = rng.integers(x.shape[1], size=count)
        payload = rng.integers(1 << layout.fraction_bits, size=count) * (
            rng.integers(4, size=count) == 0
        )
        sign = rng.integers(2, size=count) << (
            layout.exponent_bits + layout.fraction_bits
        )
        x[np.arange(count), place] = infinity | payload | sign


FAMILIES = {
    "random": Family(-4, 4, 3),
    "wide": Family(-300, 300, 600, c="near wide"),
    "aligned": Family(-8, 8, 14, c="near tie zero"),
    "few bits": Family(-4, 4, 13, "few", c="near opposite tie zero"),
    "carry": Family(-4, 4, 0, "ones", c="near tie zero", positive=True),
    "cancelled": Family(
        -4, 4, 13, c="near opposite zero subnormal", change=cancel_pairs
    ),
    "subnormal inputs": Family(
        -20, 200, 6, c="near opposite tie zero subnormal", change=subnormal_left
    ),
    "tiny": Family(-154, -122, 5, c="near opposite tie zero subnormal"),
    "floor": Family(-150, -126, 9, c="zero"),
    "floor carry": Family(-142, -130, 1, "ones", c="zero", tiles=2),
    "floor exact": Family(
        -156, -138, 0, "few", c="zero", positive=True, change=complement_pairs, tiles=12
    ),
    "zeros": Family(-20, 20, 8, c="zero near", zeros=0.8),
    "minus zeros": Family(
        -4, 4, 3, c="zero", positive=True, change=minus_zeros, tiles=1
    ),
    "zeros meet large": Family(-34, -22, 3, c="zero near", change=zeros_meet_large),
    "overflow": Family(118, 130, 3, c="near opposite tie wide"),
    "beyond fp32": Family(240, 254, 140, c="near zero wide", change=cancel_pairs),
    "specials": Family(-4, 4, 3, c="near special", change=insert_specials),
    "c huge": Family(-10, 10, 8, c="huge"),
    "c wide": Family(-10, 10, 8, c="wide subnormal"),
    "positive": Family(-2, -1, 2, c="zero near", positive=True),
}
CHAIN_FAMILIES = ("random", "aligned", "cancelled", "tiny", "overflow", "positive")


def pack(
    rng: np.random.Generator,
    exponent: Array,
    layout: Layout,
    fractions: str,
    positive: bool,
) -> Array:
    """Bit patterns of the given exponents; those below the format become subnormal
    numbers or zeros.
    """
    f = layout.fraction_bits
    bias = (1 << (layout.exponent_bits - 1)) - 1
    field = np.clip(exponent + bias, 0, 2 * bias)
    shape = exponent.shape
    if fractions == "few":
        fraction = (1 << rng.integers(f, size=shape)) | (
            1 << rng.integers(f, size=shape)
        )
        fraction *= rng.integers(2, size=shape)
    elif fractions == "ones":
        fraction = (1 << f) - 1 - rng.integers(4, size=shape)
    else:
        fraction = rng.integers(1 << f, size=shape)
    sign = 0 if positive else rng.integers(2, size=shape) << (layout.exponent_bits + f)
    return (sign | field << f | fraction).astype(np.uint32)


def decode(bits: Array, name: str) -> Array:
    """Values of bit patterns as float32."""
    with np.errstate(invalid="ignore"):
        if name == "fp16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float32)
        return (bits.astype(np.uint32) << (16 if name == "bf16" else 0)).view(
            np.float32
        )


def draw_operands(
    rng: np.random.Generator, layout: Layout, family: Family, k: int
) -> tuple[Array, Array]:
    """Bit patterns of A (64, k) and B^T (8, k), right-aligned fields."""
    emax = (1 << (layout.exponent_bits - 1)) - 1
    top = int(np.clip(rng.integers(family.low, family.high + 1), -2 * emax, 2 * emax))
    first = int(
        np.clip(
            top // 2 + rng.integers(-6, 7),
            max(-emax, top - emax),
            min(emax, top + emax),
        )
    )
    operands = []
    for rows, exponent in ((64, first), (8, top - first)):
        lower = rng.integers(family.spread + 1, size=(rows, k)) * rng.integers(
            2, size=(rows, k)
        )
        x = pack(rng, exponent - lower, layout, family.fractions, family.positive)
        sign = np.uint32(1 << (layout.exponent_bits + layout.fraction_bits))
        operands.append(np.where(rng.random((rows, k)) < family.zeros, x & sign, x))
    a, b = operands
    if family.change is not None:
        family.change(rng, layout, a, b)
    return a, b


def draw_c(rng: np.random.Generator, modes: str, products: Array) -> Array:
    """Bit patterns of C (64, 8), chosen after the exact products (64, k, 8), entry by
    entry from `modes`.
    """
    finite = np.where(np.isfinite(products), products, 0.0)
    total, largest = finite.sum(axis=1), np.abs(finite).max(axis=1)
    shape = total.shape
    top = np.where(largest > 0, np.frexp(largest)[1] - 1, -140)
    sign = rng.integers(2, size=shape).astype(np.uint32) << np.uint32(31)

    def single(x: Array) -> Array:
        return np.clip(x, -3.4e38, 3.4e38).astype(np.float32).view(np.uint32)

    halves = 2 * rng.integers(1 << 23, 1 << 24, size=shape) + rng.choice(
        [0, 0.5, 1, 1, 1.5, 1 - 2.0**-3], size=shape
    )
    tie = np.ldexp(halves, top + rng.integers(-1, 27, size=shape) - 24)
    special = np.array([0x7F800000, 0x7FC00000, 0x7F800001, 0x3F800000], np.uint32)
    choices = {
        "near": pack(
            rng, top + rng.integers(-30, 31, size=shape), FP32, "random", False
        ),
        "huge": pack(rng, top + rng.integers(22, 60, size=shape), FP32, "few", False),
        "wide": pack(rng, rng.integers(-127, 128, size=shape), FP32, "random", False),
        "opposite": single(-total)
        + rng.integers(-1, 2, size=shape).astype(np.uint32) * (total != 0),
        "tie": single(np.where(sign > 0, -tie, tie) - total),
        "zero": sign,
        "subnormal": sign | rng.integers(1, 1 << 23, size=shape).astype(np.uint32),
        "special": sign | rng.choice(special, size=shape),
    }
    named = [choices[mode] for mode in modes.split()]
    return np.choose(rng.integers(len(named), size=shape), named).astype(np.uint32)


def draw_set(rng: np.random.Generator, name: str, blocks: int = 1) -> dict[str, Array]:
    """Tiles of one format, a, b, c and family as the file holds them; chains get one
    tile of each CHAIN_FAMILIES.
    """
    layout = LAYOUTS[name]
    parts: dict[str, list[Any]] = {"a": [], "b": [], "c": [], "family": []}
    for index, (label, family) in enumerate(FAMILIES.items()):
        for _ in range(family.tiles if blocks == 1 else label in CHAIN_FAMILIES):
            a, b = draw_operands(rng, layout, family, layout.k * blocks)
            a, b = (
                x << np.uint32(13) if name == "tf32" else x.astype(np.uint16)
                for x in (a, b)
            )
            with np.errstate(invalid="ignore"):
                products = (
                    decode(a, name).astype(float)[:, :, None]
                    * decode(b, name).astype(float).T[None]
                )
            for key, x in zip(
                parts, (a, b, draw_c(rng, family.c, products), index), strict=True
            ):
                parts[key].append(x)
    return {
        key: np.array(x, np.uint8 if key == "family" else None)
        for key, x in parts.items()
    }
