"""Products of words on a GPU: one launch makes the words of both operands, one multiplies, scales and rounds.

The bits are those of the schemes on the model of the device's tensor cores; no step waits for the device. What is
found about the words stays on the device: which bits were lost, and so which bound holds and which format of words was
taken, is read only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hifigemm.accuracy import NOTHING_STATED
from hifigemm.engine import Certificate
from hifigemm.engines.device_array import unwrap
from hifigemm.engines.kernels import native_gemm, word_gemm, words
from hifigemm.engines.outputs import combined, output_for
from hifigemm.engines.word_sums import KernelSums, word_sums
from hifigemm.formats import FP32
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.rounding_formats import ROUNDINGS
from hifigemm.numerics.tensor_core import TensorCoreModel
from hifigemm.plan import Plan, Problem, Split

__all__ = ["ChosenProduct", "WordProduct", "chosen_product", "word_product"]

Tensor = Any
Splits = tuple[Split | None, Split | None]
_ROUNDINGS = {"fp16": ("nearest", "zero"), "bf16": ROUNDINGS, "tf32": ROUNDINGS}
"""Of words that the kernels make."""
_MOST = words.ALL_LOSSES[1]


def word_product(plan: Plan, model: TensorCoreModel) -> WordProduct | None:
    """The product of a plan with scaled words, where the kernels have it, whether it is judged or not."""
    scheme: Any = plan.scheme
    if plan.problem.dtype != np.float32 or scheme.name not in ("corrected", "multiword") or not scheme.scale:
        return None
    sums = word_sums(scheme, plan.problem.k, model) if plan.problem.k else None
    if sums is None or scheme.splitting.rounding not in _ROUNDINGS[scheme.product]:
        return None
    if plan.certifies:  # blocks by what the kernels hold, not by what it takes to judge entry by entry
        plan = scheme.fit(replace(plan, target=NOTHING_STATED), plan.problem, plan.workspace)
    return WordProduct(plan, sums)


@dataclass(frozen=True)
class WordProduct:
    """A whole product of words by one scheme.

    Attributes
    ----------
    plan : Plan
    sums : KernelSums
        How the kernels add.
    """

    plan: Plan
    sums: KernelSums

    def __call__(self, a: Array, b: Array, shift: int, epilogue: Epilogue, splits: Splits, out: Array | None) -> Array:
        """The values; see `hifigemm.engine.WholeProduct`. Splits at hand are not used: words are made anew."""
        return self._blocks(a, b, shift, epilogue, out, None)

    def certify(
        self, a: Array, b: Array, shift: int, epilogue: Epilogue, out: Array | None
    ) -> tuple[Array, Callable[[], Certificate] | None]:
        """The values and the bound that all entries keep; see `hifigemm.engine.CertifiedProduct`."""
        count = sum(1 for _ in self.plan.blocks())
        losses = torch.zeros((count, 2), dtype=torch.int32, device=unwrap(a).device)
        values = self._blocks(a, b, shift, epilogue, out, losses)
        return values, _unless_capturing(
            lambda: Certificate(self.plan.scheme, self.bound(losses), self.plan.num_products, self.plan.k_block)
        )

    def _blocks(
        self, a: Array, b: Array, shift: int, epilogue: Epilogue, target: Array | None, losses: Tensor | None
    ) -> Array:
        """The values, in the target if there is one; the bits that are lost are noted where there is room for them."""
        scheme: Any = self.plan.scheme
        p = self.plan.problem
        left, right = unwrap(a), unwrap(b)
        out = output_for(p, left.device, epilogue, target)
        for i, where in enumerate(self.plan.blocks()):
            x, y = where.operands(left, right)
            found = None if losses is None else losses[i]
            made = words.split_words(((x, 2), (y, 1)), scheme.splitting, scheme.top_exponent(p), found=found)
            word_gemm.corrected_product(
                made[0],
                made[1],
                out[where.entries],
                block=self.sums.block,
                chained=self.sums.chained,
                shift=shift,
                operands=(x, y),
            )
            del made  # room for those of the next block
        return combined(out, p, epilogue, target)

    def bound(self, losses: Tensor) -> float:
        """The r that all entries keep, inf where words underflowed too far; waits for the device."""
        scheme: Any = self.plan.scheme
        return float(scheme.worst_case(self.sums.unit, self.plan.problem.k, _lost(losses)))


def _lost(losses: Tensor) -> int:
    """Bits that two operands lose together, the most of all blocks."""
    return int(losses.sum(-1).max()) - 2


def _unless_capturing(certificate: Callable[[], Certificate]) -> Callable[[], Certificate] | None:
    return None if torch.cuda.is_current_stream_capturing() else certificate


def chosen_product(plan: Plan, model: TensorCoreModel) -> ChosenProduct | None:
    """The product by one of the choices of a plan, decided on the device by the exponents of the operands.

    Choices are schemes with scaled words, then perhaps the native product, which stands for FP32 sums outside the
    tensor cores. A choice is taken where the bound of its product is at most the worst case of an FP32 product for
    these operands, and the last one where no other is.

    Returns
    -------
    ChosenProduct, or None where the kernels do not have it or the first choice exceeds that bound with any operands.
    """
    p = plan.problem
    schemes = tuple(s for s in plan.choices if s.name != "native")
    sums = [word_sums(s, p.k, model) for s in schemes] if p.dtype == np.float32 and p.k else [None]
    known = tuple(s for s in sums if s is not None)
    if len(known) < len(schemes):
        return None
    most = tuple(_most_lost(s, p) for s in known)
    return None if most[0] < 0 else ChosenProduct(plan, known, most)


def _most_lost(sums: KernelSums, problem: Problem) -> int:
    """Bits that both operands may lose together in words whose product errs no more than FP32 sums; -1 for none.

    Words of narrow operands are the operands themselves as long as they lose nothing.
    """
    r = native_bound(problem.k, FP32.u)
    if problem.narrow is None:
        return int(sums.scheme.most_lost(sums.unit, problem.k, r))
    return 0 if sums.scheme.exact_words_bound(sums.unit, problem.k) <= r else -1


@dataclass(frozen=True)
class ChosenProduct:
    """A whole product by one of several schemes; see `chosen_product`.

    Attributes
    ----------
    plan : Plan
    sums : tuple of KernelSums
        How the kernels add the words of each choice but the native one.
    most_lost : tuple of int
        Bits that both operands may lose together in these words; -1 for words that are never taken.
    """

    plan: Plan
    sums: tuple[KernelSums, ...]
    most_lost: tuple[int, ...]

    def __call__(self, a: Array, b: Array, shift: int, epilogue: Epilogue, splits: Splits, out: Array | None) -> Array:
        """The values; see `hifigemm.engine.WholeProduct`. Splits are not used."""
        return self._run(a, b, shift, epilogue, out)[0]

    def certify(
        self, a: Array, b: Array, shift: int, epilogue: Epilogue, out: Array | None
    ) -> tuple[Array, Callable[[], Certificate] | None]:
        """The values, and which choice was taken with the r that all entries keep."""
        values, losses = self._run(a, b, shift, epilogue, out)
        return values, _unless_capturing(lambda: self.certificate(losses.tolist()))

    @property
    def _ends_natively(self) -> bool:
        return len(self.sums) < len(self.plan.choices)

    def _run(self, a: Array, b: Array, shift: int, epilogue: Epilogue, target: Array | None) -> tuple[Array, Tensor]:
        """The values and, on the device, the bits that both operands lose in the words of each choice, (choices, 2)."""
        p, operands = self.plan.problem, (unwrap(a), unwrap(b))
        sides = (operands[0], 2), (operands[1], 1)
        out = output_for(p, operands[0].device, epilogue, target)
        splits = [(s.scheme.splitting, s.scheme.top_exponent(p)) for s in self.sums]
        workspace = words.Workspace(sides, splits)
        predicate, least = None, 0
        for i, (sums, split, most) in enumerate(zip(self.sums, splits, self.most_lost, strict=True)):
            own = workspace.losses[i]
            made = words.split_words(
                sides, *split, found=own, predicate=predicate, losses=(least, _MOST), workspace=workspace
            )
            predicate, least = own, most + 1
            if i + 1 == len(self.plan.choices):
                least = _MOST
            word_gemm.corrected_product(
                made[0], made[1], out, block=sums.block, shift=shift, losses=(0, least), operands=operands
            )
        if self._ends_natively:
            native_gemm.fp32_product(*operands, out, workspace.losses[-1], (least, _MOST), shift)
        return combined(out, p, epilogue, target), workspace.losses

    def certificate(self, losses: list[list[int]]) -> Certificate:
        """Which choice was taken for these losses, and its bound; for FP32 sums, where nothing over- or underflows."""
        p = self.plan.problem
        for sums, most, own in zip(self.sums, self.most_lost, losses, strict=True):
            lost, scheme = sum(own) - 2, sums.scheme
            if 0 <= lost <= most:
                bound = scheme.worst_case(sums.unit, p.k, lost)
                if p.narrow is not None:
                    bound = scheme.exact_words_bound(sums.unit, p.k)
                block = scheme.block_length(sums.unit, p.k)
                return Certificate(scheme, float(bound), len(scheme.pair_errors(sums.unit, p.k)), block)
        return Certificate(self.plan.choices[-1], native_bound(p.k, FP32.u), 1, p.k)
