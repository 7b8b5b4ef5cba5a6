"""The engine of a GPU: products on its tensor cores, executables of fused kernels.

Plans without one are carried out step by step: the plain maths through
`device_array`, exact products of INT8 words by a kernel of this package, those of FP16,
BF16, TF32, FP32 and FP64 words by PyTorch's matrix product. Work goes to the current
stream of the operands' device; memory comes from PyTorch's allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, cast

import torch

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, TF32, Format
from hifigemm.engines.cuda.native import NativeLowering, native_matmul
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.float32_precision import float32_precision
from hifigemm.engines.gpu_rates import gpu_properties, rates_of
from hifigemm.engines.library_product import library_matmul
from hifigemm.engines.numpy_engine import NumpyEngine, check_exact
from hifigemm.engines.rates import Rates
from hifigemm.model.engine import F, Lowering, MemoryLimits
from hifigemm.model.plan import Plan
from hifigemm.model.problem import ProductSpec
from hifigemm.numerics.accumulation import (
    Accumulation,
    WordSums,
    add_outside,
    in_any_order,
    of_tensor_core,
    word_sums,
)
from hifigemm.numerics.bits import Array
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.tensor_core import A100, B200, H100, V100, TensorCoreModel

if TYPE_CHECKING:
    from hifigemm.engines.cuda.lowering import CudaLowering
    from hifigemm.engines.cuda.words import WordScheme

_MODELS = {7: V100, 8: A100, 9: H100}
"""Tensor cores by the major compute capability; later ones add as B200 does."""
_ADDS_AS_MODELLED = torch.version.hip is None
"""How the matrix cores of other makers add is not known here, so nothing is promised of
kernels that use them.
"""
_WORDS = {FP16: torch.float16, BF16: torch.bfloat16, TF32: torch.float32}


class CudaEngine:
    """A GPU: products on its tensor cores, fused kernels for Ozaki scheme II."""

    name = "torch"
    products: ClassVar[Mapping[str, ProductSpec]] = NumpyEngine.products

    def __init__(self, place: torch.device) -> None:
        self.place = place

    @cached_property
    def device(self) -> str:
        """Device with its name."""
        return f"{self.place} ({torch.cuda.get_device_name(self.place)})"

    @cached_property
    def costs(self) -> Rates | None:
        """Rates of this device; None without Triton."""
        return (
            rates_of(gpu_properties(self.place))
            if find_spec("triton") is not None
            else None
        )

    @cached_property
    def model(self) -> TensorCoreModel:
        """How the tensor cores of this device add."""
        major = torch.cuda.get_device_capability(self.place)[0]
        return _MODELS.get(major, B200)

    @cached_property
    def memory(self) -> MemoryLimits:
        """By default a sixteenth of the memory of the device, and at least 256 MiB."""
        least = max(
            2**28, torch.cuda.get_device_properties(self.place).total_memory // 16
        )
        return MemoryLimits(
            block_entries=2**22,
            workspace_factor=5,
            least_workspace=least,
            free=self._free_memory,
        )

    def _free_memory(self) -> int | None:
        """What the driver has left and what PyTorch's allocator holds in reserve; a
        capture is not to be disturbed.
        """
        if torch.cuda.is_current_stream_capturing():
            return None
        held = torch.cuda.memory_stats(self.place)
        reserved, used = (
            held.get(f"{kind}_bytes.all.current", 0)
            for kind in ("reserved", "allocated")
        )
        return int(torch.cuda.mem_get_info(self.place)[0] + reserved - used)

    def exact_product(
        self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int
    ) -> Array:
        """a @ b for integer matrices, exactly: int32 for INT8, else the float of the
        accumulator; see `Engine`.

        No partial sum exceeds the accumulator, so neither the order of a library's sums
        nor the alignment in a tensor core rounds anything.
        """
        from hifigemm.kernels.products.int8_product import exact_int8_gemm
        from hifigemm.kernels.runtime.recording import run_recorded

        check_exact(spec, a.shape[-1], max_a, max_b)
        x, y = unwrap(a), unwrap(b)
        if spec.operand is INT8:
            return wrap(run_recorded(exact_int8_gemm, x, y))
        if spec.operand in _WORDS:
            return wrap(_words_product(x, y, spec.operand))
        dtype = torch.float64 if spec.operand is FP64 else torch.float32
        return wrap(native_matmul(x.to(dtype), y.to(dtype), None))

    def native_product(self, a: Array, b: Array) -> Array:
        """torch.matmul, FP32 operands without TF32."""
        return wrap(native_matmul(unwrap(a), unwrap(b), None))

    def accumulation(self, fmt: Format) -> Accumulation:
        """Tensor cores in FP32 for FP16, BF16 and TF32 words, FP64 sums for FP32 words
        ("TF64"); see `Engine`.

        The library may add blocks in any order and split k, so every product counts as
        a step; `word_sums` do not.
        """
        if fmt is FP32:
            return in_any_order("cuBLAS in FP64, any order", fmt, FP64, 64)
        if fmt not in _WORDS:
            raise PlanError(
                f"engine 'torch' on a GPU multiplies {', '.join(self.products)}, not {fmt.name} words"
            )
        unit = of_tensor_core(self.model, fmt, block=64)
        return replace(unit, unit=f"{unit.unit}, any order", step=1)

    def rounded_product(
        self,
        fmt: Format,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        block: int | None = None,
    ) -> Array:
        """A B + C by PyTorch's product, C added last; see `accumulation` and
        `Engine`.
        """
        self.accumulation(fmt)

        def product(x: Array, y: Array, z: Array | None) -> Array:
            left, right = unwrap(x), unwrap(y)
            if fmt is FP32:
                xy = wrap(library_matmul(left.double(), right.double()))
            else:
                xy = wrap(_words_product(left, right, fmt))
            return xy if z is None else xy + z

        return add_outside(product, a, b, c, block)

    def override(self, function: F) -> F:
        """The kernels of this device."""
        from hifigemm.engines.cuda.overrides import OVERRIDES

        if function is word_sums:
            return cast(F, self._word_sums)
        return cast(F, OVERRIDES.get(function, function))

    def _word_sums(self, scheme: WordScheme, k: int, span: int = 0) -> WordSums | None:
        """The kernels of corrected products, which add as the tensor cores do, in order
        of k.
        """
        from hifigemm.engines.cuda.words import sums_of

        return sums_of(scheme, k, self.model, span) if _ADDS_AS_MODELLED else None

    def lowering(self, plan: Plan) -> Lowering | None:
        """How the scheme of the plan is carried out by launches."""
        lower = LOWERINGS.get(plan.scheme.name)
        return None if lower is None else lower(plan, self)


def _native(plan: Plan, engine: CudaEngine) -> Lowering | None:
    is_plain = plan.scheme.product is None and plan.rounding == NEAREST
    # Kernels certify entries.
    is_lowered = not plan.certifies or find_spec("triton") is not None
    return NativeLowering(plan) if is_plain and is_lowered else None


def _residues(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import ozaki2

    return _that_rounds(ozaki2.lowering(plan, engine.place, engine.costs))


def _slices(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import ozaki1

    return _that_rounds(ozaki1.lowering(plan, engine.place))


def _sums(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda.double_double import RoundedSums

    return RoundedSums(plan, engine.place)


def _words(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import words

    if not _ADDS_AS_MODELLED:
        return None
    return _that_rounds(words.lowering(plan, engine.place, engine.model))


def _that_rounds(lowering: CudaLowering | None) -> Lowering | None:
    """The lowering, unless its plan has a rounding of its own that it cannot do."""
    if lowering is None or (lowering.has_rounding and not lowering.rounds):
        return None
    return lowering


LOWERINGS: dict[str, Callable[[Plan, CudaEngine], Lowering | None]] = {
    "native": _native,
    "ozaki2": _residues,
    "ozaki1": _slices,
    "double-double": _sums,
    "multiword": _words,
    "corrected": _words,
}
"""How schemes are carried out, by their names. None for plans that go step by step."""


def _words_product(x: torch.Tensor, y: torch.Tensor, fmt: Format) -> torch.Tensor:
    """x @ y in FP32 on the tensor cores, for stacks (batch or 1, m, k) and (batch or 1,
    k, n) of words of `fmt`.
    """
    x, y = x.to(_WORDS[fmt]), y.to(_WORDS[fmt])
    if fmt is TF32:
        with float32_precision("cuda", "tf32"):
            return library_matmul(x, y)
    batch = max(len(x), len(y))
    return torch.bmm(
        x.expand(batch, -1, -1), y.expand(batch, -1, -1), out_dtype=torch.float32
    )
