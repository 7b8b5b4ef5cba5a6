"""Products of words on a GPU: one launch makes the words of both operands, one multiplies, scales and rounds.

The bits are those of the schemes on the model of the device's tensor cores; no step waits for the device. What is
found about the words stays on the device: which bits were lost, and so which bound holds and which format of words was
taken, is read only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from hifigemm.engine import WholeProduct
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.kernels import combination, corrected, plain_product, words
from hifigemm.formats import BF16, FP16, FP32, TF32
from hifigemm.numerics.accumulation import Accumulation, of_tensor_core
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.rounding_formats import ROUNDINGS
from hifigemm.numerics.tensor_core import V100, TensorCoreModel
from hifigemm.plan import Plan, Problem, Split

__all__ = ["RangedProduct", "WordProduct", "ranged_product", "unit_of", "whole_product", "word_product"]

Tensor = Any
Splits = tuple[Split | None, Split | None]
_ROUNDINGS = {"fp16": ("nearest", "zero"), "bf16": ROUNDINGS, "tf32": ROUNDINGS}
"""Of words that the kernels make."""
_MOST = words.ALL_LOSSES[1]


@lru_cache
def unit_of(model: TensorCoreModel, product: str) -> Accumulation:
    """How the kernels add words of a format on a device: instruction by instruction, in order of k."""
    fmt = {"fp16": FP16, "bf16": BF16, "tf32": TF32}[product]
    return of_tensor_core(model, fmt, block=8 if fmt is TF32 else 16)


def whole_product(plan: Plan, model: TensorCoreModel) -> WholeProduct | None:
    """All of a plan that judges nothing, where the kernels have it."""
    return None if plan.judged else word_product(plan, model)


def word_product(plan: Plan, model: TensorCoreModel) -> WordProduct | None:
    """The product of a plan with scaled words, where the kernels have it, whether it is judged or not."""
    scheme: Any = plan.scheme
    if plan.problem.dtype != np.float32 or model is V100 or scheme.name not in _ORDERS or not scheme.scale:
        return None
    if scheme.product not in corrected.BLOCKS or scheme.splitting.rounding not in _ROUNDINGS[scheme.product]:
        return None
    block, chained = _order(scheme, plan)
    return None if block is None else WordProduct(plan, model, block, chained)


def _order(scheme: Any, plan: Plan) -> tuple[int | None, bool]:
    """The block of the kernels with the scheme's order of sums, None where there is none, and if sums are chained."""
    order = _ORDERS[scheme.name](scheme, plan)
    if order is None:
        return None, False
    wanted, chained = order
    k, blocks = plan.problem.k, corrected.BLOCKS[scheme.product]
    if wanted in blocks:
        return wanted, chained
    return next((b for b in blocks if min(b, wanted) >= k), None), chained


def _order_of_corrected(scheme: Any, plan: Plan) -> tuple[int, bool] | None:
    return (scheme.interval, False) if scheme.accumulate == "outside" else None


def _order_of_multiword(scheme: Any, plan: Plan) -> tuple[int, bool] | None:
    if scheme.num_words > 1:
        return None
    chained = scheme.accumulate != "blocked"
    return corrected.WHOLE_BLOCK[scheme.product] if chained else plan.k_block, chained


_ORDERS: dict[str, Callable[[Any, Plan], tuple[int, bool] | None]] = {
    "corrected": _order_of_corrected,
    "multiword": _order_of_multiword,
}
"""Block and chaining of the schemes that the kernels have, by name; None for parameters that they do not have."""


@dataclass(frozen=True)
class WordProduct:
    """A whole product of words by one scheme.

    Attributes
    ----------
    plan : Plan
    model : TensorCoreModel
        Of the device.
    block : int
        Of the kernels.
    chained : bool
    """

    plan: Plan
    model: TensorCoreModel
    block: int
    chained: bool

    def __call__(self, a: Array, b: Array, shift: int, epilogue: Epilogue, splits: Splits, out: Array | None) -> Array:
        """The values; see `hifigemm.engine.WholeProduct`. Splits at hand are not used: words are made anew."""
        return self._blocks(a, b, shift, epilogue, out, None)

    def run(self, a: Array, b: Array, shift: int, epilogue: Epilogue) -> tuple[Array, Tensor]:
        """The values and, on the device, `Words.losses` for each block of the plan."""
        count = sum(1 for _ in self.plan.blocks())
        losses = torch.zeros((count, 2), dtype=torch.int32, device=unwrap(a).device)
        return self._blocks(a, b, shift, epilogue, None, losses), losses

    def _blocks(
        self, a: Array, b: Array, shift: int, epilogue: Epilogue, target: Array | None, losses: Tensor | None
    ) -> Array:
        """The values, in the target if there is one; the bits that are lost are noted where there is room for them."""
        scheme: Any = self.plan.scheme
        p = self.plan.problem
        left, right = unwrap(a), unwrap(b)
        out = _room(p, left.device, epilogue, target)
        for i, where in enumerate(self.plan.blocks()):
            x, y = (v[where.batch] if len(v) > 1 else v for v in (left, right))
            x, y = x[:, where.rows], y[:, :, where.cols]
            found = None if losses is None else losses[i]
            made = words.split_words(((x, 2), (y, 1)), scheme.splitting, scheme.top_exponent(p), found=found)
            corrected.corrected_product(
                made[0],
                made[1],
                out[where.batch, where.rows, where.cols],
                block=self.block,
                chained=self.chained,
                shift=shift,
                operands=(x, y),
            )
        return _combined(out, epilogue, target)

    def bound(self, losses: Tensor) -> float:
        """The r that all entries of a `run` keep, inf where words underflowed too far; waits for the device."""
        scheme: Any = self.plan.scheme
        unit = unit_of(self.model, scheme.product)
        return float(scheme.worst_case(unit, self.plan.problem.k, _lost(losses)))


def _lost(losses: Tensor) -> int:
    """Bits that two operands lose together, the most of all blocks."""
    return int(losses.sum(-1).max()) - 2


def _room(p: Problem, device: Any, epilogue: Epilogue, target: Array | None) -> Tensor:
    """Where the product is put: the target itself unless something is added to it afterwards."""
    if target is not None and epilogue.idle:
        return unwrap(target)
    return torch.empty((p.batch, p.m, p.n), dtype=torch.float32, device=device)


def _combined(out: Tensor, epilogue: Epilogue, target: Array | None) -> Array:
    """alpha out + beta C, in place, then in the target if there is one."""
    if not epilogue.idle:
        c = None if epilogue.c is None else unwrap(epilogue.c.astype(np.dtype(np.float32), copy=False))
        combination.combine_in_place(out, epilogue.alpha.real, epilogue.beta.real, c)
        if target is not None:
            unwrap(target).copy_(out)
    return wrap(out) if target is None else target


def ranged_product(
    problem: Problem, model: TensorCoreModel, schemes: tuple[Any, Any], r: float | None = None
) -> RangedProduct | None:
    """The product of "auto" that takes the words which the exponents of the operands allow, decided on the device.

    Words of the first scheme where the bound of their product is at most r for these operands, else of the second where
    theirs is, else FP32 outside the tensor cores.

    Parameters
    ----------
    schemes : pair of Corrected
        With their default order of sums: FP16 words and TF32 words.
    r : float, optional
        Otherwise the worst case of an FP32 product, and not smaller, so that all three keep it.

    Returns
    -------
    RangedProduct, or None where the kernels do not have the problem or the first words exceed r with any operands.
    """
    if problem.dtype != np.float32 or model is V100 or problem.k == 0:
        return None
    native = native_bound(problem.k, FP32.u)
    r = native if r is None else r
    most = [int(s.most_lost(unit_of(model, s.product), problem.k, r)) for s in schemes]
    return None if most[0] < 0 or r < native else RangedProduct(problem, model, schemes, (most[0], most[1]))


@dataclass(frozen=True)
class RangedProduct:
    """A whole product by words of one of two formats; see `ranged_product`.

    Attributes
    ----------
    problem : Problem
    model : TensorCoreModel
    schemes : pair of Corrected
    most_lost : pair of int
        Bits that both operands may lose together in the words of each scheme; -1 for words that are never taken.
    """

    problem: Problem
    model: TensorCoreModel
    schemes: tuple[Any, Any]
    most_lost: tuple[int, int]

    def __call__(self, a: Array, b: Array, shift: int, epilogue: Epilogue, splits: Splits, out: Array | None) -> Array:
        """The values; see `hifigemm.engine.WholeProduct`. Splits are not used."""
        return self._chosen(a, b, shift, epilogue, out)[0]

    def run(self, a: Array, b: Array, shift: int, epilogue: Epilogue) -> tuple[Array, Tensor]:
        """The values and, on the device, the bits that both operands lose in the words of each scheme, (2, 2)."""
        return self._chosen(a, b, shift, epilogue, None)

    def _chosen(self, a: Array, b: Array, shift: int, epilogue: Epilogue, target: Array | None) -> tuple[Array, Tensor]:
        p, operands = self.problem, (unwrap(a), unwrap(b))
        out = _room(p, operands[0].device, epilogue, target)
        losses = torch.zeros((2, 2), dtype=torch.int32, device=out.device)
        gate, least = None, 0
        for scheme, most, own in zip(self.schemes, self.most_lost, losses):
            made = words.split_words(
                ((operands[0], 2), (operands[1], 1)),
                scheme.splitting,
                scheme.top_exponent(p),
                found=own,
                gate=gate,
                losses=(least, _MOST),
            )
            gate, least = own, most + 1
            corrected.corrected_product(made[0], made[1], out, shift=shift, losses=(0, least), operands=operands)
        plain_product.fp32_product(*operands, out, losses[1], (least, _MOST), shift)
        return _combined(out, epilogue, target), losses

    def bound(self, losses: Tensor) -> tuple[str, float]:
        """What a `run` took, "fp16", "tf32" or "fp32", and the r that all entries keep; waits for the device.

        For "fp32" that is the bound of sums in FP32 where nothing over- or underflows.
        """
        for scheme, most, own in zip(self.schemes, self.most_lost, losses.cpu()):
            lost = _lost(own)
            if 0 <= lost <= most:
                unit = unit_of(self.model, scheme.product)
                return scheme.product, float(scheme.worst_case(unit, self.problem.k, lost))
        return "fp32", native_bound(self.problem.k, FP32.u)
