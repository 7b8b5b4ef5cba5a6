"""Products of integers at the limits of their accumulators, and sums on tensor cores
against their model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from hifigemm.engine import Engine
from hifigemm.formats import BF16, FP16, TF32
from hifigemm.numerics.accumulation import word_sums
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import exact_k_limit
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.tensor_core import tensor_core_product
from hifigemm.problem import ProductSpec
from hifigemm.schemes import Multiword
from hifigemm.schemes.ozaki1 import storage_dtype
from hifigemm.testing.primitives.places import Finding, Place, first_fault

_LONGEST = 2**18
"""Inner length up to which products are driven to their limit."""


def exact_products(engine: Engine, place: Place) -> Iterator[Finding]:
    """The exact products of an engine, in the dtypes in which schemes keep their
    words.
    """
    for spec in engine.products.values():

        def multiply(a: Any, b: Any, x: int, y: int, spec: ProductSpec = spec) -> Any:
            return engine.exact_product(spec, a, b, x, y)

        limits = spec.max_integer, spec.accumulator_max
        yield _multiplied(
            f"exact {spec.name} products", place, multiply, storage_dtype(spec), *limits
        )


def native_products(engine: Engine, place: Place) -> Iterator[Finding]:
    """The library's own product: of integers it is exact too, unless it multiplies
    shorter words; subnormals.
    """
    for dtype, top in ((np.dtype(np.float32), 2**24), (np.dtype(np.float64), 2**53)):

        def multiply(a: Any, b: Any, x: int, y: int) -> Any:
            return engine.native_product(a, b)

        yield _multiplied(
            f"native products of {dtype} integers", place, multiply, dtype, top, top
        )
        least = np.full((1, 2, 3), np.finfo(dtype).smallest_subnormal)
        found = place.fetch(
            engine.native_product(
                place.put(least), place.put(np.ones((1, 3, 2), dtype))
            )
        )
        fault = first_fault(found.ravel(), [3 * float(least[0, 0, 0])] * 4)
        yield Finding(
            f"native products of {dtype} subnormals", place.library, found.size, fault
        )


def _multiplied(
    name: str,
    place: Place,
    multiply: Callable[..., Any],
    dtype: np.dtype[Any],
    top: int,
    largest: int,
) -> Finding:
    """Products of integers +-x and +-y with sums up to `largest`, in several shapes and
    memory orders.
    """
    cases = 0
    for x, y, k in _limits(top, largest):
        shapes = [(1, 1), (1, 9), (9, 1), (17, 33)] if k < 10_000 else [(2, 3)]
        for m, n in [*shapes, (129, 127)] if k == 64 else shapes:
            left, right = _signs(m, k), _signs(n, k)
            truth = [
                x * y * (k - 2 * (p ^ q).bit_count())
                for p in _masks(left)
                for q in _masks(right)
            ]
            for a, b in _layouts(
                place, left * dtype.type(x), right * dtype.type(y), many=m < 100
            ):
                found = place.fetch(multiply(a[None], b[None], x, y)).ravel()
                cases += found.size
                if fault := first_fault(found, truth):
                    at = f"({m} x {k}) @ ({k} x {n}), strides {a.strides} and {b.strides}"
                    return Finding(
                        name,
                        place.library,
                        cases,
                        f"{at}, integers up to {x} and {y}: {fault}",
                    )
    return Finding(name, place.library, cases)


def _limits(top: int, largest: int) -> list[tuple[int, int, int]]:
    """Integers x and y up to `top` with lengths k, short ones and those where k x y
    comes near to `largest`.
    """
    found = set()
    for wanted in (1, 7, 64, 1000):
        x = min(top, math.isqrt(largest // wanted))
        y = min(top, largest // (wanted * x))
        k = exact_k_limit(largest, x, y)
        found |= {(x, y, min(k, _LONGEST)), (x, y, min(k, 64))}
    return sorted(found)


def _layouts(place: Place, a: Array, b: Array, many: bool) -> Iterator[tuple[Any, Any]]:
    """a and the transpose of b in memory, rows or columns first, where `many` with
    entries apart.
    """
    for step, other in [(1, 1), (2, 1), (1, 3)] if many else [(1, 1)]:
        for left in (place.spread(a, step), np.swapaxes(place.spread(a.T, step), 0, 1)):
            yield left, place.spread(b.T, other)
            yield left, np.swapaxes(place.spread(b, other), 0, 1)


def _signs(vectors: int, k: int) -> Array:
    """Vectors of +1 and -1, the first of which is all +1, so that its product with
    another such is the largest.
    """
    signs = np.random.default_rng([vectors, k]).choice(
        np.array([-1, 1], np.int8), (vectors, k)
    )
    signs[0] = 1
    return signs


def _masks(signs: Array) -> list[int]:
    """The signs of each vector as the bits of a Python integer."""
    return [
        int.from_bytes(np.packbits(vector > 0).tobytes(), "big") for vector in signs
    ]


def tensor_cores(engine: Any, place: Place) -> Iterator[Finding]:
    """Sums of one instruction of tensor cores against their model, bit for bit, for
    words of many exponents.
    """
    rng = np.random.default_rng(2)
    for fmt in (FP16, BF16, TF32):
        k, name = 8 if fmt is TF32 else 16, cast(Any, fmt.name)
        sums = engine.override(word_sums)(Multiword(name, 1, 1), k)
        if sums is None:
            continue
        low = max(fmt.min_exponent, -30)
        shapes = (1, 64, k), (1, k, 64)
        a, b = (
            rng.uniform(-2, 2, shape) * 2.0 ** rng.integers(low, 12, shape)
            for shape in shapes
        )
        a, b = (round_to_format(x, fmt) for x in (a, b))
        found = place.fetch(sums(place.put(a), place.put(b))).ravel()
        truth = tensor_core_product(a, b, fmt=fmt, model=engine.model).ravel()
        fault = first_fault(found, truth.tolist())
        yield Finding(
            f"{fmt.name} sums as {engine.model.name} adds",
            place.library,
            found.size,
            fault,
        )
