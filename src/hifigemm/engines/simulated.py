"""Engines "simulated-*": the arithmetic of tensor cores on the CPU, bit for bit.

Rounded products of FP16, BF16 and TF32 words go through numerics.tensor_core: block size, alignment bits and
truncation of V100, A100, H100 (and H200, whose units are the same) and B200. Two idealised units add one product at a
time in FP32, to nearest or towards zero. What such a GPU computes without rounding, and what it computes in IEEE
arithmetic outside its tensor cores, is what NumPy computes: exact products, native products, and FP32 words added in
FP64.
"""

from __future__ import annotations

from functools import partial

from hifigemm.engine import F, RepeatedProduct, WholeProduct
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import PlanError
from hifigemm.formats import FORMATS, FP32, Format
from hifigemm.numerics.accumulation import Accumulation, add_outside, of_tensor_core
from hifigemm.numerics.bits import Array
from hifigemm.numerics.tensor_core import A100, B200, H100, V100, TensorCoreModel, tensor_core_product
from hifigemm.plan import Plan, ProductSpec

__all__ = ["IDEAL_NEAREST", "IDEAL_ZERO", "UNITS", "SimulatedEngine", "simulated_engine"]

IDEAL_NEAREST = TensorCoreModel("ideal-nearest", block=1, fraction_bits=48, rounding="nearest")
IDEAL_ZERO = TensorCoreModel("ideal-zero", block=1, fraction_bits=48, rounding="zero")
"""One product after the other, 48 bits below the larger of product and C, then one rounding to FP32."""

UNITS = {model.name: model for model in (V100, A100, H100, B200, IDEAL_NEAREST, IDEAL_ZERO)}

_INSTRUCTION = {"fp16": 16, "bf16": 16, "tf32": 8}
"""k of the mma instructions since the A100: m16n8k16, and m16n8k8 for TF32. The V100 has m8n8k4."""


class SimulatedEngine:
    """A tensor core by its model; also for models of one's own, such as ``TensorCoreModel("mine", 8, 30)``.

    Parameters
    ----------
    model : TensorCoreModel
        Its blocks say which formats the unit has; a single number stands for FP16, BF16, TF32 and every format of
        hifigemm.formats that the model is exact for.
    """

    device = "cpu"
    part = NumpyEngine.part
    looks_on_the_way = False
    fused = NumpyEngine.fused
    workspace_factor = NumpyEngine.workspace_factor
    costs = NumpyEngine.costs

    def __init__(self, model: TensorCoreModel) -> None:
        self.name = f"simulated-{model.name}"
        self.model = model
        self._numpy = NumpyEngine()
        self.products: dict[str, ProductSpec] = {
            name: spec
            for name, spec in self._numpy.products.items()
            if name not in ("fp16", "bf16", "tf32") or self._has(FORMATS[name])
        }

    def _has(self, fmt: Format) -> bool:
        return isinstance(self.model.block, int) or fmt.name in dict(self.model.block)

    def exact_product(self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int) -> Array:
        """a @ b for integer matrices, exactly; see `Engine`. What the accumulator holds is exact in any order."""
        return self._numpy.exact_product(spec, a, b, max_a, max_b)

    def native_product(self, a: Array, b: Array) -> Array:
        """np.matmul: FP32 and FP64 outside the tensor cores."""
        return self._numpy.native_product(a, b)

    def accumulation(self, fmt: Format) -> Accumulation:
        """How `rounded_product` adds words of `fmt`; see `Engine`."""
        if fmt is FP32:
            return self._numpy.accumulation(fmt)
        if not self._has(fmt):
            raise PlanError(f"engine {self.name!r} multiplies {', '.join(self.products)}, not {fmt.name} words")
        return of_tensor_core(self.model, fmt, block=4 if self.model is V100 else _INSTRUCTION.get(fmt.name, 16))

    def rounded_product(
        self, fmt: Format, a: Array, b: Array, c: Array | None = None, *, block: int | None = None
    ) -> Array:
        """A B + C in the arithmetic of the model, which chains k through C; see `Engine`."""
        if fmt is FP32:
            return self._numpy.rounded_product(fmt, a, b, c, block=block)
        self.accumulation(fmt)
        return add_outside(partial(tensor_core_product, fmt=fmt, model=self.model), a, b, c, block)

    def override(self, function: F) -> F:
        """The functions of numerics are NumPy's own."""
        return function

    def whole_product(self, plan: Plan) -> WholeProduct | None:
        """None: a plan is carried out step by step."""
        return None

    def repeated_product(
        self,
        plan: Plan,
        operands: tuple[Array, Array],
        stacks: tuple[Array, Array],
        result_shape: tuple[int, ...],
        out: Array | None,
    ) -> RepeatedProduct | None:
        """None: planning takes little."""
        return None


def simulated_engine(name: str) -> SimulatedEngine:
    """The engine "simulated-<name>" for a name of `UNITS`."""
    return SimulatedEngine(UNITS[name])
