"""What results are held against: one exact product for each pair of matrices, asked as often as needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hifigemm.study.exact import integer_product, integer_rows, round_integers
from hifigemm.study.excess import component_excesses, ratio
from hifigemm.study.metrics import forward_errors

__all__ = ["ExactProduct", "Judgement"]


@dataclass(frozen=True)
class Judgement:
    """A result against the exact product.

    Attributes
    ----------
    error : float
        max |C - AB| / (|A||B|).
    relative_error : float
        max |C - AB| / |AB|.
    normwise_error : float
        ||C - AB|| / (||A|| ||B||), Frobenius norms.
    share_correct : float
        Share of entries that are the exact value rounded once.
    kept : bool
        |C - AB| <= r |A||B| + u |AB| in every entry, for the bound r that was reported.
    """

    error: float
    relative_error: float
    normwise_error: float
    share_correct: float
    kept: bool


class ExactProduct:
    """A B and |A||B| of finite real matrices as integers, and A B rounded once to the promoted dtype."""

    def __init__(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        self._operands = a, b
        left, row_exponent = integer_rows(a)
        right, col_exponent = integer_rows(b.T)
        self._exponent = row_exponent[:, None] + col_exponent
        self._values = integer_product(left, right.T)
        self._sizes = integer_product(abs(left), abs(right.T))
        self.rounded = round_integers(self._values, self._exponent, np.result_type(a, b))

    def judge(self, c: NDArray[Any], bound: float) -> Judgement:
        """Error, share of correctly rounded entries, and whether the promise with this bound is kept; all exactly."""
        return Judgement(
            error=self.error(c),
            relative_error=max((ratio(x) for x in self._excesses(c, abs(self._values), False)), default=0.0),
            normwise_error=forward_errors(c, *self._operands)["2"] if np.isfinite(c).all() else math.inf,
            share_correct=float(np.mean(c == self.rounded)) if c.size else 1.0,
            kept=self.keeps(c, bound),
        )

    def error(self, c: NDArray[Any]) -> float:
        """max |C - AB| / (|A||B|)."""
        return max((ratio(x) for x in self._excesses(c, self._sizes, False)), default=0.0)

    def keeps(self, c: NDArray[Any], bound: float) -> bool:
        """Whether |C - AB| <= bound |A||B| + u |AB| in every entry, exactly evaluated."""
        if math.isinf(bound):
            return True
        numerator, denominator = bound.as_integer_ratio()
        return all(x * denominator <= y * numerator for x, y in self._excesses(c, self._sizes, True))

    def _excesses(self, c: NDArray[Any], sizes: NDArray[Any], rounding: bool) -> Any:
        return component_excesses(c, self._values, sizes, self._exponent, rounding)
