"""Engine "numpy": exact products of short words through the BLAS behind NumPy.

Integers of magnitude 2**24 (float32) or 2**53 (float64) are exact in BLAS whatever the
order of the sums, the number of threads and the use of fused multiply-add, because no
partial sum exceeds the accumulator. FP16, BF16, TF32 and INT8 words are multiplied as
float32; INT8 products run over inner blocks that fit 2**24 and are added in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hifigemm.base.exceptions import InexactProductError
from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, TF32, Format
from hifigemm.engines import core, core_sums
from hifigemm.engines.host import NativeLowering, NativeOnHost
from hifigemm.engines.memory import free_memory
from hifigemm.model.engine import Lowering, MemoryLimits
from hifigemm.model.plan import Plan
from hifigemm.model.problem import ProductSpec
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import exact_k_limit
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.subnormals import matmul

if TYPE_CHECKING:
    from hifigemm.numerics.accumulation import Accumulation

_FP32_SUM = 2**24
_INT8_BLOCK = exact_k_limit(_FP32_SUM, 128, 128)
"""Inner length of float32 products of INT8 words."""
_INT8_ENTRIES = 2**16
"""Entries of INT8 words that are converted to float32 at a time, for the cache."""
_OUTSIDE_BLOCK = 64
"""Inner length of BLAS calls whose results are added outside of them. Errors are about
k / 64 + 64 units, and calls are long enough to be quick.
"""
_SPECS = (
    ProductSpec(INT8, 2**31 - 1, 127, 2**17 - 1),
    ProductSpec(FP16, _FP32_SUM, FP16.max_integer, 1024),
    ProductSpec(BF16, _FP32_SUM, BF16.max_integer, 256),
    ProductSpec(TF32, _FP32_SUM, TF32.max_integer, 1024),
    ProductSpec(FP32, _FP32_SUM, FP32.max_integer, 256),
    ProductSpec(FP64, 2**53, FP64.max_integer, 2048),
)


def check_exact(spec: ProductSpec, k: int, max_a: int, max_b: int) -> None:
    """Raise InexactProductError where sums of k products may exceed the accumulator."""
    if k * max_a * max_b > spec.accumulator_max:
        limit = exact_k_limit(spec.accumulator_max, max_a, max_b)
        raise InexactProductError(
            f"{spec.name} product with k = {k} and entries up to {max_a} and {max_b}: sums may reach "
            f"{k * max_a * max_b}, the accumulator is exact to {spec.accumulator_max}; k may be at most {limit}"
        )


class NumpyEngine:
    """Exact and native products on the CPU."""

    name = "numpy"
    device = "cpu"
    memory = MemoryLimits(free=free_memory)
    costs = None
    products: Mapping[str, ProductSpec] = MappingProxyType(
        {spec.name: spec for spec in _SPECS}
    )
    native_executable = NativeOnHost

    def exact_product(
        self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int
    ) -> Array:
        """a @ b for integer matrices, exactly, in int32 for INT8 and in the float of the
        accumulator for other formats; see `Engine`.
        """
        check_exact(spec, a.shape[-1], max_a, max_b)
        if spec.operand is not INT8:
            dtype = np.float64 if spec.operand is FP64 else np.float32
            return np.matmul(a.astype(dtype, copy=False), b.astype(dtype, copy=False))
        return _int8_product(a, b)

    @np.errstate(all="ignore")
    def native_product(self, a: Array, b: Array) -> Array:
        """np.matmul; numerics.subnormals says what happens in threads that flush
        subnormal numbers or do not round to nearest.
        """
        return matmul(a, b)

    def accumulation(self, fmt: Format) -> Accumulation:
        """FP32 sums by BLAS for FP16, BF16 and TF32 words, FP64 sums for FP32 words
        ("TF64"); see `Engine`.
        """
        return _accumulation(fmt)

    def rounded_product(
        self,
        fmt: Format,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        block: int | None = None,
    ) -> Array:
        """A B + C by BLAS, C added last; see `accumulation` and `Engine`."""
        from hifigemm.numerics.accumulation import add_outside

        dtype = np.float64 if self.accumulation(fmt).accumulator is FP64 else np.float32

        def product(x: Array, y: Array, z: Array | None) -> Array:
            with np.errstate(all="ignore"):
                xy = matmul(x.astype(dtype, copy=False), y.astype(dtype, copy=False))
                return xy if z is None else xy + z

        return add_outside(product, a, b, c, block)

    # The functions of numerics are NumPy's own, but for those of the core.
    override = staticmethod(core.override)

    def lowering(self, plan: Plan) -> Lowering | None:
        """The library's own product, and double-double sums by the compiled core; other
        plans go step by step.
        """
        lower = _LOWERINGS.get(plan.scheme.name)
        return None if lower is None else lower(plan, self)


@lru_cache
def _accumulation(fmt: Format) -> Accumulation:
    """See `NumpyEngine.accumulation`."""
    from hifigemm.numerics.accumulation import in_any_order

    accumulator = FP64 if fmt is FP32 else FP32
    return in_any_order(
        f"BLAS in {accumulator.name}, any order", fmt, accumulator, _OUTSIDE_BLOCK
    )


def _native(plan: Plan, engine: NumpyEngine) -> Lowering | None:
    is_plain = plan.scheme.product is None and plan.rounding == NEAREST
    has_arrays_of_numpy = engine.device == "cpu"
    if not (is_plain and has_arrays_of_numpy):
        return None
    return NativeLowering(plan, engine, engine.native_executable)


def _sums(plan: Plan, engine: NumpyEngine) -> Lowering | None:
    return core_sums.lowering(plan)


_LOWERINGS: dict[str, Callable[[Plan, NumpyEngine], Lowering | None]] = {
    "native": _native,
    "double-double": _sums,
}
"""How schemes are carried out, by their names. None for plans that go step by step."""


def _int8_product(a: Array, b: Array) -> Array:
    """a @ b in int32, from float32 products of blocks along k that are exact."""
    m, k = a.shape[1:]
    n = b.shape[2]
    batch = len(b) if len(a) == 1 else len(a)

    # So many matrices at a time that operands and product stay in the cache.
    entries = max(m * n, (m + n) * min(k, _INT8_BLOCK), 1)
    num_matrices = max(_INT8_ENTRIES // entries, 1)
    if k <= _INT8_BLOCK and batch <= num_matrices:
        return _float32_product(a, b).astype(np.int32)
    total = np.zeros((batch, m, n), np.int32)
    for start in range(0, batch, num_matrices):
        matrices = slice(start, start + num_matrices)
        left = a[matrices] if len(a) > 1 else a
        right = b[matrices] if len(b) > 1 else b
        for first_term in range(0, k, _INT8_BLOCK):
            terms = slice(first_term, first_term + _INT8_BLOCK)
            product = _float32_product(left[:, :, terms], right[:, terms])
            total[matrices] += product.astype(np.int32)
    return total


def _float32_product(a: Array, b: Array) -> Array:
    """a @ b in float32."""
    x = a.astype(np.float32, copy=False)
    y = b.astype(np.float32, copy=False)
    return np.matmul(x, y)
