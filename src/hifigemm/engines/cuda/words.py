"""Products of words on a GPU: one launch makes the words of both operands, one
multiplies, scales and rounds.

The bits are those of the schemes on the model of the device's tensor cores. The record
holds the bits that both operands lose in the words of each scheme, for every block;
which bound holds, and which format of words was taken, follows from them. Schemes that
scale along k have words of A D and D**-1 B, with exponents of D that the device chooses;
where the operands gain nothing by them they are zeros, and the words those of A and B.
A word behind the losses of a record says if they were taken. Words that
were made step by step are multiplied in the same order by the same unit, so that a
product whose entries have to be certified has the bits of one that has not. Complex
operands are embedded first; as real ones they do not mirror each other, and no half of
their product is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from hifigemm.base.formats import FORMATS, FP32
from hifigemm.engines.cuda.along_k import (
    Exponents,
    Sides,
    bytes_outside,
    exponents_of,
    scaled,
)
from hifigemm.engines.cuda.lowering import (
    Arguments,
    CudaLowering,
    blocks_of,
    is_triangle,
)
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.library_product import library_matmul
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.products import native_gemm, word_gemm
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.sums.rounded_sums import finish_entries
from hifigemm.kernels.vectors import double_words, words
from hifigemm.kernels.vectors.embedding import as_real
from hifigemm.kernels.vectors.inner_scaling import KEPT
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.executable import RecordedDecision
from hifigemm.model.plan import Choice, Plan, Verification
from hifigemm.model.problem import Block, Problem
from hifigemm.numerics.accumulation import Accumulation, of_tensor_core
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.rounding_formats import ROUNDINGS
from hifigemm.numerics.tensor_core import V100, TensorCoreModel
from hifigemm.numerics.words import Splitting

_ROUNDINGS = {"fp16": ("nearest", "zero"), "bf16": ROUNDINGS, "tf32": ROUNDINGS}
"""Of words that the kernels make."""
_MOST = words.ALL_LOSSES[1]
_INNER = 2
"""Where the record of a scheme that scales along k says if it did; words before it hold
the losses.
"""


class WordScheme(Choice, Protocol):
    """What launches are told by a scheme of words; see `schemes.word_scheme`."""

    def __hash__(self) -> int:
        """Schemes are keys of what is kept of them."""

    @property
    def product(self) -> str:
        """Name of the format of the words."""

    @property
    def accumulate(self) -> str:
        """How products of words are added."""

    @property
    def chains_corrections(self) -> bool:
        """True if there is one main product, and all others, if any, are chained."""

    @property
    def splitting(self) -> Splitting:
        """How entries become words."""

    def pairs(self) -> Sequence[tuple[int, int]]:
        """The words that are multiplied, unless corrections are chained."""

    def block_length(self, unit: Accumulation, k: int) -> int:
        """Inner length of a sum inside the unit."""

    def top_exponent(self, problem: Problem) -> int:
        """Scaled entries lie below two to this power."""

    def worst_case(
        self, unit: Accumulation, k: int, lost: int = 0, span: int = 0
    ) -> float:
        """r for operands that lose so many bits together."""

    def most_lost(self, unit: Accumulation, k: int, r: float, span: int = 0) -> int:
        """Bits that operands may lose together while r holds; -1 for none."""

    def exact_words_bound(self, unit: Accumulation, k: int, span: int = 0) -> float:
        """r for operands whose entries are single words."""

    def count_products(self, unit: Accumulation, problem: Problem) -> int:
        """Number of products of words."""


@lru_cache
def unit_of(model: TensorCoreModel, product: str) -> Accumulation:
    """How the kernels add words of a format on a device: instruction by instruction, in
    order of k.
    """
    return of_tensor_core(model, FORMATS[product], block=8 if product == "tf32" else 16)


@lru_cache(maxsize=1024)
def sums_of(
    scheme: WordScheme, k: int, model: TensorCoreModel, span: int = 0
) -> KernelSums | None:
    """The kernels' order of sums for a scheme of words, None where they do not have
    it.

    Sums over `span` terms of k are added at the end, 0 where all of k is one sum.
    """
    product = scheme.product
    if model is V100 or product not in word_gemm.BLOCKS:
        return None
    unit = unit_of(model, product)
    blocks = word_gemm.BLOCKS[product]
    sums_in = partial(KernelSums, scheme, k, span, unit)

    # Corrected products, and single words, have a main product and no chain of pairs.
    pairs = () if scheme.chains_corrections else tuple(scheme.pairs())
    whole_block = word_gemm.WHOLE_BLOCK[product]
    if scheme.accumulate == "chained":
        return sums_in(whole_block, "chained", pairs)
    if scheme.accumulate == "separate":
        sums = "separate" if pairs else "chained"
        return sums_in(whole_block, sums, pairs)

    # A chain takes several blocks of the kernels for one of its own, or all of k.
    block = scheme.block_length(unit, k)
    if pairs or scheme.splitting.num_words == 1:
        if block >= k:
            return sums_in(whole_block, "chained", pairs)
        if block % blocks[0]:
            return None
        return sums_in(block, "blocked", pairs)

    # Corrections alternate with blocks; one that holds all of k may be longer.
    fitting = [b for b in blocks if b == block or min(b, block) >= k]
    if not fitting:
        return None
    return sums_in(fitting[0], "blocked", pairs)


@dataclass(frozen=True)
class KernelSums:
    """Sums of all products of a scheme's words; see
    `numerics.accumulation.WordSums`.
    """

    scheme: WordScheme
    k: int
    span: int  # terms of a span of k, 0 for all
    unit: Accumulation
    block: int  # of the kernels
    sums: str  # one of `word_gemm.SUMS`
    # of words that make a chain; none for a main product with corrections
    pairs: tuple[tuple[int, int], ...]

    def __call__(self, left: Array, right: Array) -> Array:
        """The sums for words that lie one after the other along k."""
        count = self.scheme.splitting.num_words
        x, y = unwrap(left), unwrap(right)
        a = self._words(x.reshape(len(x), -1, count, self.k).transpose(1, 2))
        b = self._words(y.reshape(len(y), count, self.k, -1).transpose(2, 3))
        out = torch.empty(
            (max(len(x), len(y)), a.vectors, b.vectors),
            dtype=torch.float32,
            device=x.device,
        )
        run_recorded(
            word_gemm.word_gemm,
            a,
            b,
            out,
            block=self.block,
            sums=self.sums,
            pairs=self.pairs,
            span=self.span,
        )
        return wrap(out)

    def _words(self, x: Tensor) -> words.Words:
        """Words (batch, words, vectors, k) in the layout of the kernels."""
        batch, count, vectors, k = x.shape
        splitting = self.scheme.splitting
        planes = x.new_zeros(
            (batch, count, vectors, words.k_pitch(k)),
            dtype=words.STORED[splitting.fmt.name],
        )
        planes[..., :k] = x
        return words.Words(
            planes, x.new_zeros((batch, vectors), dtype=torch.int32), None, k, splitting
        )


def lowering(
    plan: Plan, device: torch.device, model: TensorCoreModel
) -> CudaLowering | None:
    """The launches of a plan with scaled words, where the kernels have them."""
    p = plan.problem
    scheme = plan.scheme
    if not p.k:
        return None
    if scheme.product == "fp32":
        return _Doubles(plan, device) if _has_doubles(plan) else None
    if p.fmt is not FP32:
        return None
    if plan.verification is Verification.ON_DEVICE:
        return _choice(plan, device, model)
    sums = sums_of(scheme, p.terms, model, plan.k_span)
    rounding = scheme.splitting.rounding
    if sums is None or rounding not in _ROUNDINGS[scheme.product]:
        return None
    if not plan.certifies:
        return (_Words if scheme.scale else _UnscaledWords)(plan, device, sums)
    # What words lose says nothing of words as they are, and of two low ones.
    if not scheme.scale or sums.pairs:
        return None
    return _CertifiedWords(plan, device, sums)


class _Embedded(CudaLowering):
    """Launches for complex operands as for real ones."""

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether rows are written as rows of real entries."""
        return self.plan.problem.is_complex

    def bytes_outside(self, batch: int, rows: int, cols: int) -> int:
        """Those of scaling along k."""
        if not self.plan.scheme.scales_along_k:
            return 0
        return bytes_outside(self.plan, batch, rows, cols)


@dataclass(frozen=True)
class _Words(_Embedded):
    """Launches for scaled words of one scheme."""

    sums: KernelSums

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block; the bits that words lose are noted where there is room for
        them, the most of all blocks.
        """
        scheme = plan.scheme
        found = None
        mark = None
        if given.record is not None:
            found = given.record.view(torch.int32)[:2]
            mark = given.record[_INNER:]
        exponents = exponents_of(plan, given, mark)
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            left, right = words.split_words(
                _sides(plan, (x, y), exponents),
                scheme.splitting,
                scheme.top_exponent(plan.problem),
                found=found,
            )
            multiply = _product_of_words(self.sums, plan, given, block, (x, y), out)
            multiply(left, right)


class _CertifiedWords(_Words):
    """Launches that note what words lose, by which entries are certified."""

    @property
    def record_words(self) -> int:
        """For the losses, and whether the operands are scaled along k."""
        return _INNER + int(self.plan.scheme.scales_along_k)

    def decision(self, words: Sequence[int]) -> RecordedDecision:
        """The r that all entries keep, inf where words underflowed too far."""
        plan = self.plan
        terms = plan.problem.terms
        lost = _lost(words, 0)
        sums = self.sums
        bound = float(plan.scheme.worst_case(sums.unit, terms, lost, sums.span))
        notes: tuple[str, ...] = ()
        if plan.scheme.scales_along_k and words[_INNER] == KEPT:
            notes = (SCALED_ALONG_K,)
        return RecordedDecision(
            bound <= plan.target.r,
            plan.scheme,
            bound,
            plan.num_products,
            plan.k_block,
            notes=notes,
        )


@dataclass(frozen=True)
class _UnscaledWords(_Embedded):
    """Launches for words of the operands as they are."""

    sums: KernelSums

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block. Entries whose sums overflow are completed from A and B.

        Sums of FP16 words, which saturate, do not overflow in FP32.
        """
        scheme = plan.scheme
        exponents = exponents_of(plan, given)
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            sides = _sides(plan, (x, y), exponents)
            multiply = _product_of_words(self.sums, plan, given, block, (x, y), out)
            multiply(*words.split_words(sides, scheme.splitting, None))
            if scheme.product != "fp16":
                finish_entries(
                    x,
                    y,
                    Targets(out),
                    shift=given.shift,
                    triangle=_is_real_triangle(plan, block),
                )


def _is_real_triangle(plan: Plan, block: Block) -> bool:
    """Whether only what lies on and below the diagonal of a real block is made."""
    return is_triangle(plan, block) and not plan.problem.is_complex


def _sides(plan: Plan, operands: tuple[Buffer, Buffer], exponents: Exponents) -> Sides:
    """Both operands of a block, scaled along k where they are to be."""
    left, right = operands
    # Both components of a complex entry, which are embedded as neighbours, share an
    # exponent.
    neighbours = 2 if plan.problem.is_complex else 1
    return scaled(((left, 2), (right, 1)), exponents, neighbours=neighbours)


def _product_of_words(
    sums: KernelSums,
    plan: Plan,
    given: Arguments,
    block: Block,
    operands: tuple[Buffer, Buffer],
    out: Buffer,
) -> Callable[..., None]:
    """The launch of a block's product as a function of the words of both operands."""
    return partial(
        word_gemm.word_gemm,
        out=out,
        block=sums.block,
        sums=sums.sums,
        pairs=sums.pairs,
        span=sums.span,
        shift=given.shift,
        operands=operands,
        triangle=_is_real_triangle(plan, block),
    )


def _has_doubles(plan: Plan) -> bool:
    """True for plans of FP32 words, which the library multiplies in FP64.

    Sums in blocks of k would be many short products.
    """
    scheme = plan.scheme
    is_blocked = plan.k_block < plan.problem.terms
    has_rounding = scheme.splitting.rounding in double_words.ROUNDINGS
    return has_rounding and not (plan.certifies or is_blocked)


class _Doubles(_Embedded):
    """Launches for FP32 words, which the library multiplies in FP64."""

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block: words, a product of the library for each pair, the sums."""
        scheme = plan.scheme
        top = scheme.top_exponent(plan.problem) if scheme.scale else None
        pairs = scheme.pairs()
        exponents = exponents_of(plan, given)
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            left, right = double_words.split_doubles(
                _sides(plan, (x, y), exponents), scheme.splitting, top
            )
            shape = (len(pairs), *out.shape)
            products = out.launches.empty(shape, torch.float64)
            for i, (p, q) in enumerate(pairs):
                given.out.launches.call(
                    library_matmul, left.planes[p], right.planes[q], products[i]
                )
            double_words.double_sums(products, left, right, out, (x, y), given.shift)


def _lost(record: Sequence[int], index: int) -> int:
    """Bits that two operands lose together in the words of a scheme; -2 where these
    were not made.
    """
    own = np.array(record, np.int64).view(np.int32)[4 * index : 4 * index + 2]
    return int(own.sum()) - 2


def _choice(
    plan: Plan, device: torch.device, model: TensorCoreModel
) -> CudaLowering | None:
    """The launches of several schemes; None where the kernels do not have them, or the
    first choice exceeds the bound with any operands.
    """
    choices = plan.scheme, *plan.alternatives
    schemes = [scheme for scheme in choices if not scheme.is_native]
    terms = plan.problem.terms
    sums = [sums_of(scheme, terms, model, plan.k_span) for scheme in schemes]
    known = tuple(s for s in sums if s is not None)
    if len(known) < len(schemes):
        return None
    most_lost = tuple(_most_lost(plan, s) for s in known)
    if most_lost[0] < 0:
        return None
    return _Choice(plan, device, known, most_lost)


@dataclass(frozen=True)
class _Choice(_Embedded):
    """Launches of several schemes, of which the device takes one by the exponents of
    the operands.

    Choices are schemes with scaled words, then perhaps the native product, which stands
    for FP32 sums outside the tensor cores. A choice is taken where the bound of its
    product is at most the worst case of an FP32 product for these operands, and the
    last one where no other is.
    """

    sums: tuple[KernelSums, ...]  # of the schemes with words
    most_lost: tuple[int, ...]  # bits that their words may lose

    @property
    def record_words(self) -> int:
        """For the losses of each scheme."""
        return 2 * len(self.sums)

    def record(self, plan: Plan, given: Arguments) -> None:
        """Every choice behind the losses of the one before it."""
        p = plan.problem
        a, b, out = as_real(given.a, given.b, given.out)
        sides = (a, 2), (b, 1)
        record = cast(Buffer, given.record)
        losses = record.view(torch.int32).view(-1, 4)[:, :2]
        num_choices = 1 + len(plan.alternatives)
        predicate = None
        least = 0
        for i, sums in enumerate(self.sums):
            scheme = sums.scheme
            left, right = words.split_words(
                sides,
                scheme.splitting,
                scheme.top_exponent(p),
                found=losses[i],
                predicate=predicate,
                losses=(least, _MOST),
            )
            predicate = losses[i]
            least = self.most_lost[i] + 1
            if i + 1 == num_choices:
                least = _MOST
            word_gemm.word_gemm(
                left,
                right,
                out,
                block=sums.block,
                span=sums.span,
                shift=given.shift,
                losses=(0, least),
                operands=(a, b),
                triangle=bool(p.mirror) and not p.is_complex,
            )
        if len(self.sums) < num_choices:
            native_gemm.fp32_product(
                a, b, out, losses[len(self.sums) - 1], (least, _MOST), given.shift
            )

    def decision(self, words: Sequence[int]) -> RecordedDecision:
        """Which choice was taken, and its bound; for FP32 sums, where nothing over- or
        underflows.
        """
        p = self.plan.problem
        for i, (sums, most) in enumerate(zip(self.sums, self.most_lost, strict=True)):
            lost = _lost(words, i)
            if not 0 <= lost <= most:
                continue
            scheme = sums.scheme
            bound = scheme.worst_case(sums.unit, p.terms, lost, sums.span)
            if p.narrow is not None:
                bound = scheme.exact_words_bound(sums.unit, p.terms, sums.span)
            block = scheme.block_length(sums.unit, p.terms)
            num_products = scheme.count_products(sums.unit, p)
            return RecordedDecision(True, scheme, float(bound), num_products, block)
        bound = native_bound(p.terms, FP32.u)
        return RecordedDecision(True, self.plan.alternatives[-1], bound, 1, p.terms)


def _most_lost(plan: Plan, sums: KernelSums) -> int:
    """Bits that both operands may lose together in words whose product errs no more
    than FP32 sums; -1 for none.

    Words of narrow operands are the operands themselves as long as they lose nothing.
    """
    terms = plan.problem.terms
    r = native_bound(terms, FP32.u)
    if plan.problem.narrow is None:
        return int(sums.scheme.most_lost(sums.unit, terms, r, sums.span))
    bound = sums.scheme.exact_words_bound(sums.unit, terms, sums.span)
    return 0 if bound <= r else -1
