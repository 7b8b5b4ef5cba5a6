"""Engines "simulated-*": the arithmetic of tensor cores on the CPU, bit for bit.

Rounded products of FP16, BF16 and TF32 words go through numerics.tensor_core: block
size, alignment bits and truncation of V100, A100, H100 (and H200, whose units are the
same) and B200. Two idealised units add one product at a time in FP32, to nearest or
towards zero. What such a GPU computes without rounding, and what it computes in IEEE
arithmetic outside its tensor cores, is what NumPy computes: exact products, native
products, and FP32 words added in FP64.
"""

from __future__ import annotations

from functools import partial

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FORMATS, FP32, Format
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.numerics.accumulation import Accumulation, add_outside, of_tensor_core
from hifigemm.numerics.bits import Array
from hifigemm.numerics.tensor_core import (
    A100,
    B200,
    H100,
    V100,
    TensorCoreModel,
    tensor_core_product,
)

IDEAL_NEAREST = TensorCoreModel(
    "ideal-nearest", block=1, fraction_bits=48, rounding="nearest"
)
IDEAL_ZERO = TensorCoreModel("ideal-zero", block=1, fraction_bits=48, rounding="zero")
"""One product after the other, 48 bits below the larger of product and C, then one
rounding to FP32.
"""

UNITS = {
    model.name: model for model in (V100, A100, H100, B200, IDEAL_NEAREST, IDEAL_ZERO)
}

_INSTRUCTION = {"fp16": 16, "bf16": 16, "tf32": 8}
"""k of the mma instructions since the A100: m16n8k16, and m16n8k8 for TF32. The V100
has m8n8k4.
"""


class SimulatedEngine(NumpyEngine):
    """A tensor core by its model; also for models of one's own, such as
    ``TensorCoreModel("mine", 8, 30)``.

    The blocks of the model say which formats the unit has; a single number stands for
    FP16, BF16, TF32 and every format of hifigemm.base.formats that the model is exact for.
    """

    def __init__(self, model: TensorCoreModel) -> None:
        self.name = f"simulated-{model.name}"
        self.model = model
        self.products = {
            name: spec
            for name, spec in NumpyEngine.products.items()
            if name not in ("fp16", "bf16", "tf32") or self._has(FORMATS[name])
        }

    def _has(self, fmt: Format) -> bool:
        """True if the unit multiplies words of a format."""
        return isinstance(self.model.block, int) or fmt.name in dict(self.model.block)

    def accumulation(self, fmt: Format) -> Accumulation:
        """How `rounded_product` adds words of `fmt`; see `Engine`."""
        if fmt is FP32:
            return super().accumulation(fmt)
        if not self._has(fmt):
            raise PlanError(
                f"engine {self.name!r} multiplies {', '.join(self.products)}, not {fmt.name} words"
            )
        block = 4 if self.model is V100 else _INSTRUCTION.get(fmt.name, 16)
        return of_tensor_core(self.model, fmt, block=block)

    def rounded_product(
        self,
        fmt: Format,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        block: int | None = None,
    ) -> Array:
        """A B + C in the arithmetic of the model, which chains k through C; see
        `Engine`.
        """
        if fmt is FP32:
            return super().rounded_product(fmt, a, b, c, block=block)
        # Raises PlanError for formats that the unit does not have.
        self.accumulation(fmt)
        product = partial(tensor_core_product, fmt=fmt, model=self.model)
        return add_outside(product, a, b, c, block)
