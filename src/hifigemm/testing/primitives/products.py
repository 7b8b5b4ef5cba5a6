"""Products of integers at the limits of their accumulators, and sums on tensor cores
against their model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from hifigemm.base.formats import BF16, FP16, TF32, Format
from hifigemm.model.engine import Engine
from hifigemm.model.problem import ProductSpec
from hifigemm.numerics.accumulation import word_sums
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.bounds import exact_k_limit
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.numerics.tensor_core import tensor_core_product
from hifigemm.schemes import Multiword
from hifigemm.schemes.ozaki1 import storage_dtype
from hifigemm.testing.primitives.platforms import Finding, Platform, first_fault

_LONGEST = 2**18
"""Inner length up to which products are driven to their limit."""


def exact_products(engine: Engine, platform: Platform) -> Iterator[Finding]:
    """The exact products of an engine, in the dtypes in which schemes keep their
    words.
    """
    for spec in engine.products.values():

        def multiply(a: Any, b: Any, x: int, y: int, spec: ProductSpec = spec) -> Any:
            return engine.exact_product(spec, a, b, x, y)

        yield _multiplied(
            f"exact {spec.name} products",
            platform,
            multiply,
            storage_dtype(spec),
            spec.max_integer,
            spec.accumulator_max,
        )


def native_products(engine: Engine, platform: Platform) -> Iterator[Finding]:
    """The library's own product: of integers it is exact too, unless it multiplies
    shorter words; subnormals.
    """
    for dtype, top in ((np.dtype(np.float32), 2**24), (np.dtype(np.float64), 2**53)):

        def multiply(a: Any, b: Any, x: int, y: int) -> Any:
            return engine.native_product(a, b)

        yield _multiplied(
            f"native products of {dtype} integers", platform, multiply, dtype, top, top
        )
        smallest = np.finfo(dtype).smallest_subnormal
        left = platform.put(np.full((1, 2, 3), smallest))
        right = platform.put(np.ones((1, 3, 2), dtype))
        results = platform.fetch(engine.native_product(left, right)).ravel()
        fault = first_fault(results, [3 * float(smallest)] * 4)
        name = f"native products of {dtype} subnormals"
        yield Finding(name, platform.library, results.size, fault)


def _multiplied(
    name: str,
    platform: Platform,
    multiply: Callable[..., Any],
    dtype: DType,
    top: int,
    largest: int,
) -> Finding:
    """Products of integers +-x and +-y with sums up to `largest`, in several shapes and
    memory orders.
    """
    cases = 0
    for x, y, k in _limits(top, largest):
        for m, n in _shapes(k):
            left = _signs(m, k)
            right = _signs(n, k)

            # Terms are x y where signs agree, else -x y.
            truth = []
            for p in _masks(left):
                for q in _masks(right):
                    num_negative = (p ^ q).bit_count()
                    truth.append(x * y * (k - 2 * num_negative))
            a = left * dtype.type(x)
            b = right * dtype.type(y)
            for rows, columns in _layouts(platform, a, b, many=m < 100):
                products = multiply(rows[None], columns[None], x, y)
                results = platform.fetch(products).ravel()
                cases += results.size
                fault = first_fault(results, truth)
                if fault:
                    strides = f"strides {rows.strides} and {columns.strides}"
                    case = f"({m} x {k}) @ ({k} x {n}), {strides}"
                    fault = f"{case}, integers up to {x} and {y}: {fault}"
                    return Finding(name, platform.library, cases, fault)
    return Finding(name, platform.library, cases)


def _shapes(k: int) -> list[tuple[int, int]]:
    """Rows and columns of results, fewer of them for long sums."""
    if k >= 10_000:
        return [(2, 3)]
    shapes = [(1, 1), (1, 9), (9, 1), (17, 33)]
    if k == 64:
        shapes.append((129, 127))
    return shapes


def _limits(top: int, largest: int) -> list[tuple[int, int, int]]:
    """Integers x and y up to `top` with lengths k, short ones and those where k x y
    comes near to `largest`.
    """
    limits = set()
    for terms in (1, 7, 64, 1000):
        x = min(top, math.isqrt(largest // terms))
        y = min(top, largest // (terms * x))
        k = exact_k_limit(largest, x, y)
        limits.add((x, y, min(k, _LONGEST)))
        limits.add((x, y, min(k, 64)))
    return sorted(limits)


def _layouts(
    platform: Platform, a: Array, b: Array, many: bool
) -> Iterator[tuple[Any, Any]]:
    """a and the transpose of b in memory, rows or columns first, where `many` with
    entries apart.
    """
    for step_of_a, step_of_b in [(1, 1), (2, 1), (1, 3)] if many else [(1, 1)]:
        by_rows = platform.spread(a, step_of_a)
        by_columns = np.swapaxes(platform.spread(a.T, step_of_a), 0, 1)
        for left in (by_rows, by_columns):
            yield left, platform.spread(b.T, step_of_b)
            yield left, np.swapaxes(platform.spread(b, step_of_b), 0, 1)


def _signs(vectors: int, k: int) -> Array:
    """Vectors of +1 and -1, the first of which is all +1, so that its product with
    another such is the largest.
    """
    rng = np.random.default_rng([vectors, k])
    signs = rng.choice(np.array([-1, 1], np.int8), (vectors, k))
    signs[0] = 1
    return signs


def _masks(signs: Array) -> list[int]:
    """The signs of each vector as the bits of a Python integer."""
    return [
        int.from_bytes(np.packbits(vector > 0).tobytes(), "big") for vector in signs
    ]


def tensor_cores(engine: Any, platform: Platform) -> Iterator[Finding]:
    """Sums of one instruction of tensor cores against their model, bit for bit, for
    words of many exponents.
    """
    rng = np.random.default_rng(2)
    for fmt in (FP16, BF16, TF32):
        k = 8 if fmt is TF32 else 16
        scheme = Multiword(cast(Any, fmt.name), 1, 1)
        sums = engine.override(word_sums)(scheme, k)
        if sums is None:
            continue

        def words(shape: tuple[int, ...], fmt: Format = fmt) -> Array:
            """Random words of the format."""
            low = max(fmt.min_exponent, -30)
            significands = rng.uniform(-2, 2, shape)
            numbers = significands * 2.0 ** rng.integers(low, 12, shape)
            return round_to_format(numbers, fmt)

        a = words((1, 64, k))
        b = words((1, k, 64))
        results = platform.fetch(sums(platform.put(a), platform.put(b))).ravel()
        truth = tensor_core_product(a, b, fmt=fmt, model=engine.model).ravel()
        fault = first_fault(results, truth.tolist())
        name = f"{fmt.name} sums as {engine.model.name} adds"
        yield Finding(name, platform.library, results.size, fault)
