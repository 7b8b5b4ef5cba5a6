"""Products of words on a GPU: one launch makes the words of both operands, one multiplies, scales and rounds.

The bits are those of the schemes on the model of the device's tensor cores. The record holds the bits that both
operands lose in the words of each scheme, for every block; which bound holds, and which format of words was taken,
follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from hifigemm.engine import Certificate
from hifigemm.engines.cuda.program import Arguments, Steps, blocks_of
from hifigemm.engines.cuda.word_sums import KernelSums, sums_of
from hifigemm.engines.kernels import native_gemm, word_gemm, words
from hifigemm.formats import FP32
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.rounding_formats import ROUNDINGS
from hifigemm.numerics.tensor_core import TensorCoreModel
from hifigemm.plan import Plan, Verification

__all__ = ["steps"]

_ROUNDINGS = {"fp16": ("nearest", "zero"), "bf16": ROUNDINGS, "tf32": ROUNDINGS}
"""Of words that the kernels make."""
_MOST = words.ALL_LOSSES[1]


def steps(plan: Plan, model: TensorCoreModel) -> Steps | None:
    """The launches of a plan with scaled words, where the kernels have them."""
    p = plan.problem
    if p.dtype != np.float32 or not p.k:
        return None
    if plan.verification is Verification.ON_DEVICE:
        return _choice(plan, model)
    sums = sums_of(plan.scheme, p.k, model)
    if not plan.scheme.scale or sums is None or plan.scheme.splitting.rounding not in _ROUNDINGS[plan.scheme.product]:
        return None
    if not plan.certifies:
        return Steps(partial(_write, sums))
    return Steps(partial(_write, sums), record=2, certify=partial(_bound, plan, sums))


def _write(sums: KernelSums, plan: Plan, given: Arguments) -> None:
    """Block by block; the bits that words lose are noted where there is room for them, the most of all blocks."""
    scheme, found = plan.scheme, None
    if given.record is not None:
        found = given.record.view(torch.int32)[:2]
    for block in blocks_of(plan, given.out):
        x, y = block.operands(given.a, given.b)
        made = words.split_words(((x, 2), (y, 1)), scheme.splitting, scheme.top_exponent(plan.problem), found=found)
        word_gemm.word_gemm(
            *(made[0], made[1], given.out[block.entries]),
            block=sums.block,
            chained=sums.chained,
            shift=given.shift,
            operands=(x, y),
        )


def _lost(record: Sequence[int], index: int) -> int:
    """Bits that two operands lose together in the words of a scheme; -2 where these were not made."""
    own = np.array(record, np.int64).view(np.int32)[4 * index : 4 * index + 2]
    return int(own.sum()) - 2


def _bound(plan: Plan, sums: KernelSums, record: Sequence[int]) -> Certificate:
    """The r that all entries keep, inf where words underflowed too far."""
    bound = float(plan.scheme.worst_case(sums.unit, plan.problem.k, _lost(record, 0)))
    return Certificate(bound <= plan.target.r, plan.scheme, bound, plan.num_products, plan.k_block)


def _choice(plan: Plan, model: TensorCoreModel) -> Steps | None:
    """The launches of one of several schemes, decided on the device by the exponents of the operands.

    Choices are schemes with scaled words, then perhaps the native product, which stands for FP32 sums outside the
    tensor cores. A choice is taken where the bound of its product is at most the worst case of an FP32 product for
    these operands, and the last one where no other is. None where the kernels do not have it or the first choice
    exceeds that bound with any operands.
    """
    choices = plan.scheme, *plan.alternatives
    schemes = [scheme for scheme in choices if scheme.core is plan.scheme.core]
    sums = [sums_of(scheme, plan.problem.k, model) for scheme in schemes]
    known = tuple(s for s in sums if s is not None)
    if len(known) < len(schemes):
        return None
    most = tuple(_most_lost(plan, s) for s in known)
    if most[0] < 0:
        return None
    write = partial(_write_choice, known, most, len(choices))
    return Steps(write, record=2 * len(known), certify=partial(_chosen, plan, known, most))


def _most_lost(plan: Plan, sums: KernelSums) -> int:
    """Bits that both operands may lose together in words whose product errs no more than FP32 sums; -1 for none.

    Words of narrow operands are the operands themselves as long as they lose nothing.
    """
    r = native_bound(plan.problem.k, FP32.u)
    if plan.problem.narrow is None:
        return int(sums.scheme.most_lost(sums.unit, plan.problem.k, r))
    return 0 if sums.scheme.exact_words_bound(sums.unit, plan.problem.k) <= r else -1


def _write_choice(
    known: tuple[KernelSums, ...], most_lost: tuple[int, ...], num_choices: int, plan: Plan, given: Arguments
) -> None:
    """Every choice behind the losses of the one before it."""
    p, operands = plan.problem, (given.a, given.b)
    sides = (given.a, 2), (given.b, 1)
    losses = given.record.view(torch.int32).view(-1, 4)[:, :2]
    splits = [(s.scheme.splitting, s.scheme.top_exponent(p)) for s in known]
    predicate, least = None, 0
    for i, (sums, split, most) in enumerate(zip(known, splits, most_lost, strict=True)):
        own = losses[i]
        made = words.split_words(sides, *split, found=own, predicate=predicate, losses=(least, _MOST))
        predicate, least = own, most + 1
        if i + 1 == num_choices:
            least = _MOST
        word_gemm.word_gemm(
            *(made[0], made[1], given.out), block=sums.block, shift=given.shift, losses=(0, least), operands=operands
        )
    if len(known) < num_choices:
        native_gemm.fp32_product(*operands, given.out, losses[len(known) - 1], (least, _MOST), given.shift)


def _chosen(
    plan: Plan, known: tuple[KernelSums, ...], most_lost: tuple[int, ...], record: Sequence[int]
) -> Certificate:
    """Which choice was taken, and its bound; for FP32 sums, where nothing over- or underflows."""
    p = plan.problem
    for i, (sums, most) in enumerate(zip(known, most_lost, strict=True)):
        lost, scheme = _lost(record, i), sums.scheme
        if 0 <= lost <= most:
            bound = scheme.worst_case(sums.unit, p.k, lost)
            if p.narrow is not None:
                bound = scheme.exact_words_bound(sums.unit, p.k)
            block = scheme.block_length(sums.unit, p.k)
            return Certificate(True, scheme, float(bound), len(scheme.pair_errors(sums.unit, p.k)), block)
    return Certificate(True, plan.alternatives[-1], native_bound(p.k, FP32.u), 1, p.k)
