"""Error-corrected products of two words: FP32 accuracy from FP16 or TF32 tensor cores.

Idea
    A = A_hi + 2**-s A_lo with A_lo = fl(2**s (A - A_hi)), B likewise, and

        C = fl(sum_steps A_hi B_hj) + 2**-s (A_lo B_hi + A_hi B_lo).

    The main product starts from 0 in every block of k and is added outside the unit, in
    FP32 to nearest, because the unit truncates its sums; the corrections are chained in
    an accumulator of their own, small enough for that to do no harm, block by block:
    A_lo B_hi, then A_hi B_lo, so that a kernel loads each block once. A_lo B_lo lies
    below FP32 and is dropped. With `spans` a long k of a small result is cut
    (numerics/spans.py): C is the sum of the spans', added in FP32 in their order.
Notation
    s = 11 for FP16, so that A_lo does not underflow, and 0 for TF32; u = 2**-11; b the
    length of a block, S the number of spans, 1 as published.
Exact when
    Never. |C - AB| <= (eps_b + (k / (S b) + S) 2**-24 + 3 u**2 + 4 u eps_(k / S)) |A||B|
    to first order, eps the error of a sum in the unit; in full in
    numerics/word_bounds.py.
Cost
    3 products.
References
    [OY22] Recovering single precision accuracy from Tensor Cores while surpassing the
    FP32 theoretical peak performance, doi:10.1177/10943420221090256.
    [MM25] Error Analysis of Matrix Multiplication with Narrow Range Floating-Point
    Arithmetic, doi:10.1137/24M1685109: scaling of rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FORMATS
from hifigemm.model.engine import Engine
from hifigemm.model.plan import Plan
from hifigemm.numerics.accumulation import Accumulation
from hifigemm.numerics.bits import Array
from hifigemm.numerics.spans import num_spans
from hifigemm.numerics.word_bounds import Pair, growth, steps_in_blocks
from hifigemm.numerics.words import Splitting
from hifigemm.schemes.word_scheme import WordScheme, word

LOW_SHIFT = {"fp16": 11, "tf32": 0}
"""s for each product."""

BLOCK = {"fp16": 64, "tf32": 32}
"""b for each product: four instructions of a tensor core since the A100."""

_NEAREST = {"fp16": "nearest", "tf32": "nearest-away"}
"""Conversions of [OY22]; that of TF32 is the instruction cvt.rna."""


@dataclass(frozen=True)
class Corrected(WordScheme):
    """Products of two words with their rounding errors corrected [OY22].

    Parameters
    ----------
    product : "fp16" or "tf32"
        Format of the words.
    accumulate : "outside" or "chained"
        Where the main product is summed: "outside" the unit, block by block, as
        published, or "chained" in its accumulator. "chained" shows what the sums
        outside are worth.
    scale : bool
        Scale rows of A and columns of B by powers of two. Without it, words over- and
        underflow earlier; an entry whose sum overflows is rounded from its exact sum.
    block : int or None
        Number of terms that the unit adds before its sum is added outside. None takes
        64 for FP16 and 32 for TF32. [OY22] takes one instruction: 16 terms for FP16, 8
        for TF32. For entries uniform on (0, 1) and k = 4096 on the model of the H100,
        the mean relative error is 1.7e-7, 1.4e-7, 1.9e-7, 4.6e-7 for FP16 with 16, 32,
        64, 128 terms, and 2.4e-7, 1.8e-7, 1.6e-7, 2.6e-7 for TF32 with 8, 16, 32, 64
        terms; it is 6.8e-7 for FP32 sums in order.
    shift_low : bool
        Scale the low words of FP16 by 2^11. Without it they underflow.
    split_rounding : "nearest" or "zero"
        "nearest" rounds TF32 words with ties away from zero, as the hardware does.
    scaling : None or "inner"
        "inner" also scales the columns of A and the rows of B by opposite powers of
        two, if the exponents of the operands gain by it, so that fewer FP16 words
        underflow. The matrices of a stack share the powers.
    spans : bool
        True: cut a k of 2^15 or more into spans if the result is small, and add their
        sums at the end. This is faster on a GPU, and more accurate. False: one sum over
        all of k, as published. `Plan.k_span` is the length of a span.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1.0, 2.0**-20]], np.float32)
    >>> c, report = hg.matmul(a, a.T, scheme=hg.Corrected("fp16"), return_report=True)
    >>> report.num_products, report.bound < 4e-6
    (3, True)
    """

    name: ClassVar[str] = "corrected"

    product: Literal["fp16", "tf32"] = "fp16"
    accumulate: Literal["outside", "chained"] = "outside"
    scale: bool = True
    block: int | None = None
    shift_low: bool = True
    split_rounding: Literal["nearest", "zero"] = "nearest"
    scaling: Literal["inner"] | None = None
    spans: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None and self.accumulate != "outside":
            raise PlanError(
                f'Corrected(block={self.block}) goes with accumulate="outside"'
            )

    @property
    def chains_corrections(self) -> bool:
        """True: the corrections have a separate accumulator."""
        return True

    @property
    def splitting(self) -> Splitting:
        """Two words, the second scaled by 2**s."""
        rounding = "zero"
        if self.split_rounding == "nearest":
            rounding = _NEAREST[self.product]
        low_shift = LOW_SHIFT[self.product] if self.shift_low else 0
        return Splitting(FORMATS[self.product], 2, rounding, low_shift)

    @property
    def interval(self) -> int:
        """b, the length of a block."""
        return self.block or BLOCK[self.product]

    @property
    def adds_outside(self) -> bool:
        """True unless the main product is "chained"."""
        return self.accumulate == "outside"

    def pair_errors(
        self, unit: Accumulation, k: int, span: int = 0
    ) -> dict[Pair, float]:
        """c_pq of numerics.word_bounds: the corrections, then the main product.

        The corrections are chained, and the main product is summed in blocks. All of
        them go through the final addition and the additions of the spans of k.
        """
        block = self.interval
        outside = unit.accumulator.u
        terms = span or k
        chain = steps_in_blocks(unit, terms, block)
        one_block = unit.steps(min(terms, block))
        end = (outside, num_spans(k, span))

        main = growth((unit.error, chain), end)
        if self.adds_outside:
            additions = -(-terms // block) - 1
            main = growth((unit.error, one_block), (outside, additions), end)
        return {
            (1, 0): growth((unit.error, 2 * chain), end),
            # A_hi B_lo comes second in each block, so it misses the first steps.
            (0, 1): growth((unit.error, 2 * chain - one_block), end),
            (0, 0): main,
        }

    def block_length(self, unit: Accumulation, k: int) -> int:
        """Inner length after which the main product starts again from 0."""
        return min(k, self.interval) if self.adds_outside else k

    def sum_span(
        self, plan: Plan, a: Array, b: Array, engine: Engine, start: int, stop: int
    ) -> Array:
        """The main product and its corrections, as the module docstring says."""
        fmt = self.splitting.fmt
        k = plan.problem.terms
        main: Any = None
        correction: Any = None
        with np.errstate(over="ignore", invalid="ignore"):
            for h in range(start, stop, self.interval):
                end = min(h + self.interval, stop)
                high_a = word(a, 0, k, left=True, start=h, stop=end)
                low_a = word(a, 1, k, left=True, start=h, stop=end)
                high_b = word(b, 0, k, left=False, start=h, stop=end)
                low_b = word(b, 1, k, left=False, start=h, stop=end)

                # Both corrections go on in one accumulator.
                correction = engine.rounded_product(fmt, low_a, high_b, correction)
                correction = engine.rounded_product(fmt, high_a, low_b, correction)

                # The main product of the block starts anew, unless it is chained too.
                if self.accumulate == "chained" or main is None:
                    main = engine.rounded_product(fmt, high_a, high_b, main)
                else:
                    main = main + engine.rounded_product(fmt, high_a, high_b)
            factor = np.float32(2.0**-self.splitting.low_shift)
            total: Array = main + correction * factor
        return total
