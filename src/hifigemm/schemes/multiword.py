"""Multiword products: sums of one to three short words, multiplied with rounding.

Idea
    A ~ A_1 + ... + A_p and B likewise, each word rounded to the format of a matrix
    unit; C = sum A_i B_j over i + j <= p + 1, or over all p**2 pairs, added by the
    unit's own accumulator. FP32 accuracy from FP16, BF16 or TF32 words; FP64 accuracy
    from FP32 words whose exact products are added in FP64 ("TF64").
Notation
    p = num_words, u its unit roundoff (2 u for rounding to zero), c the rounding errors
    of one sum in the unit.
Exact when
    Never. |C - AB| <= ((p + 1) u**p + c) |A||B| to first order, in full in
    numerics/word_bounds.py. c is about k u_acc for "chained" (all products and all of k
    through one accumulator) and "separate" (one accumulator a product, added outside),
    and about (b + k / b) u_acc for "blocked": blocks of b inside the unit, their sums
    added outside to nearest [BHM20], with `spans` those of a long k of a small result
    span by span (numerics/spans.py). Tensor cores truncate their sums, always towards
    zero, so errors add up for positive data: at k = 4096 they reach a sixth of the
    bound on the model of the H100.
Cost
    num_products: p (p + 1) / 2 or p**2.
References
    [FHLMM23] Matrix Multiplication in Multiword Arithmetic, doi:10.1137/21M1465032.
    [MCLVH18] NVIDIA Tensor Core Programmability, Performance & Precision,
    doi:10.1109/IPDPSW.2018.00091.
    [FWLD21] EGEMM-TC, doi:10.1145/3437801.3441599.
    [VLVJ23] Mixed-Precision S/DGEMM Using the TF32 and TF64 Frameworks,
    doi:10.1145/3624062.3624084.
    [BHM20] A Class of Fast and Accurate Summation Algorithms, doi:10.1137/19M1257780.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FORMATS
from hifigemm.model.engine import Engine
from hifigemm.model.plan import Plan
from hifigemm.numerics.accumulation import Accumulation
from hifigemm.numerics.bits import Array, ceil_log2
from hifigemm.numerics.spans import num_spans
from hifigemm.numerics.word_bounds import Pair, growth
from hifigemm.numerics.words import Splitting
from hifigemm.schemes.word_scheme import WordScheme, word

COUNTS = {
    "fp16": ((1, 1), (2, 3), (2, 4)),
    "bf16": ((1, 1), (2, 3), (2, 4), (3, 6), (3, 9)),
    "tf32": ((1, 1), (2, 3), (2, 4)),
    "fp32": ((1, 1), (2, 3), (2, 4)),
}
"""(num_words, num_products) for each product. More words would lie below what the
accumulator keeps.
"""


@dataclass(frozen=True)
class Multiword(WordScheme):
    """Products of short words, added with rounding [FHLMM23].

    Parameters
    ----------
    product : "fp16", "bf16", "tf32" or "fp32"
        Format of the words; "fp32" takes float64 (complex128) operands.
    num_words, num_products : int
        (1, 1), (2, 3) or (2, 4); for "bf16" also (3, 6) or (3, 9).
    split_rounding : "nearest", "zero" or "nearest-away"
        How entries are rounded to words.
    accumulate : "chained", "separate" or "blocked"
        Where the products are summed: "chained" in one accumulator of the unit,
        "separate" in one accumulator for each product, or "blocked" in blocks of k.
        Sums of accumulators and blocks are added outside the unit. Small products come
        first.
    scale : bool
        Scale rows of A and columns of B by powers of two. Without it, as in the papers,
        words over- and underflow earlier; an entry whose sum overflows is rounded from
        its exact sum.
    block : int or None
        Number of terms in a block for "blocked"; None chooses it from k.
    scaling : None or "inner"
        "inner" also scales the columns of A and the rows of B by opposite powers of
        two, if the exponents of the operands gain by it, so that fewer FP16 words
        underflow. The matrices of a stack share the powers.
    spans : bool
        For "blocked" sums on tensor cores. True: cut a k of 2^15 or more into spans if
        the result is small, and add their sums at the end. This is faster on a GPU, and
        more accurate. False: one sum over all of k, as published. `Plan.k_span` is the
        length of a span.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1.0, 2.0**-20]], np.float32)
    >>> scheme = hg.Multiword("bf16", num_words=3, num_products=6)
    >>> c, report = hg.matmul(a, a.T, scheme=scheme, return_report=True)
    >>> report.num_products, report.bound < 1e-6
    (6, True)
    """

    name: ClassVar[str] = "multiword"

    product: Literal["fp16", "bf16", "tf32", "fp32"] = "tf32"
    num_words: int = 2
    num_products: int = 3
    split_rounding: Literal["nearest", "zero", "nearest-away"] = "nearest"
    accumulate: Literal["chained", "separate", "blocked"] = "chained"
    scale: bool = True
    block: int | None = None
    scaling: Literal["inner"] | None = None
    spans: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_words, self.num_products) not in COUNTS[self.product]:
            counts = [
                f"{words} and {products}" for words, products in COUNTS[self.product]
            ]
            raise PlanError(
                f"Multiword(product={self.product!r}, num_words={self.num_words}, num_products={self.num_products}): "
                f"num_words and num_products may be {', '.join(counts)}"
            )
        if self.block is not None and self.accumulate != "blocked":
            raise PlanError(
                f'Multiword(block={self.block}) goes with accumulate="blocked"'
            )

    @property
    def chains_corrections(self) -> bool:
        """True for single words, which have no corrections."""
        return self.num_words == 1

    @property
    def splitting(self) -> Splitting:
        """Words at the scale of the operand."""
        return Splitting(FORMATS[self.product], self.num_words, self.split_rounding)

    def pairs(self) -> list[Pair]:
        """The pairs (i, j) of words that are multiplied, smallest products first.

        Words are counted from 0; the larger i + j, the smaller the product.
        """
        p = self.num_words
        last = 2 * (p - 1) if self.num_products == p * p else p - 1
        pairs = []
        for diagonal in range(last, -1, -1):
            for i in range(min(diagonal, p - 1), max(-1, diagonal - p), -1):
                pairs.append((i, diagonal - i))
        return pairs

    @property
    def adds_outside(self) -> bool:
        """True for "blocked" sums of words that tensor cores multiply.

        A library multiplies FP32 words in FP64, and may cut k in any way.
        """
        return self.accumulate == "blocked" and self.product != "fp32"

    def pair_errors(
        self, unit: Accumulation, k: int, span: int = 0
    ) -> dict[Pair, float]:
        """c_pq of numerics.word_bounds for each pair, smallest products first.

        The product of a pair goes through its own steps and, as a part of C, through
        the steps of all pairs after it, and through the additions of blocks and spans.
        """
        pairs = self.pairs()
        outside = unit.accumulator.u
        block = self.block_length(unit, k)
        steps = unit.steps(block)
        terms = span or k
        outer_additions = -(-terms // block) - 1 + num_spans(k, span) - 1
        errors = {}
        for j, pair in enumerate(pairs):
            remaining = len(pairs) - j
            if self.accumulate == "separate":
                # The first sum in C takes no addition.
                additions = min(remaining, len(pairs) - 1)
                errors[pair] = growth((unit.error, steps), (outside, additions))
            else:
                inside = (unit.error, steps * remaining)
                errors[pair] = growth(inside, (outside, outer_additions))
        return errors

    def block_length(self, unit: Accumulation, k: int) -> int:
        """Inner length of a sum inside the unit: k unless sums are "blocked".

        The number of terms in a block is a power of two near the minimum of the bound,
        and at least the number of one instruction of the unit.
        """
        if self.accumulate != "blocked":
            return k
        if self.block is not None:
            return min(k, self.block)
        # b unit.error / unit.step + (k / b) u has its minimum where b**2 is this.
        square = k * unit.accumulator.u * unit.step / unit.error
        length = 2 ** (ceil_log2(max(math.ceil(square), 1)) // 2)
        return min(k, max(unit.block, length))

    def sum_span(
        self, plan: Plan, a: Array, b: Array, engine: Engine, start: int, stop: int
    ) -> Array:
        """The sum of the products of pairs of words, as the module docstring says."""
        fmt = self.splitting.fmt
        k = plan.problem.terms
        total: Array | None = None
        for h in range(start, stop, plan.k_block):
            end = min(h + plan.k_block, stop)
            # The products of one block of terms go into one sum.
            block_sum: Array | None = None
            for p, q in self.pairs():
                x = word(a, p, k, left=True, start=h, stop=end)
                y = word(b, q, k, left=False, start=h, stop=end)
                if self.accumulate == "separate":
                    block_sum = _add(block_sum, engine.rounded_product(fmt, x, y))
                else:
                    block_sum = engine.rounded_product(fmt, x, y, block_sum)
            total = _add(total, block_sum)
        return _add(total, None)


def _add(x: Array | None, y: Array | None) -> Array:
    """x + y outside the unit, to nearest in the accumulator's format; None is 0.

    One of the two is an array.
    """
    terms = [term for term in (x, y) if term is not None]
    with np.errstate(over="ignore", invalid="ignore"):
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
