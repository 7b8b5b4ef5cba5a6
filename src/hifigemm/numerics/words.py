"""Words: a number as an unevaluated sum A_1 + A_2 + ... of numbers of a short format.

    A_p = 2**(-s (p-1)) fl(2**(s (p-1)) (A - A_1 - ... - A_{p-1})),

with s = `low_shift` binades by which each further word is scaled up before it is
rounded, so that it does not underflow [OY22]. The subtractions are exact. With u the
unit roundoff of the format (2 u instead of u for rounding to zero) and no over- or
underflow,

    |A_1| <= (1 + u) |A|,    |A_p| <= u**(p-1) (1 + u) |A|,

    |remainder| <= u**num_words |A|.

For over- and underflow, `describe` measures by how much words exceed these bounds; then
the bounds of numerics.word_bounds hold for every finite operand. Words saturate at the
largest number of their format.

References
    [FHLMM23] Matrix Multiplication in Multiword Arithmetic, doi:10.1137/21M1465032.
    [OY22] Recovering single precision accuracy from Tensor Cores,
    doi:10.1177/10943420221090256.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.rounding_formats import round_to_format

_LIMIT = 2.0**1000
"""Remainders are cut off here before they are scaled up: words saturate far below."""


@dataclass(frozen=True)
class WordFacts:
    """Facts about the rows or columns of an operand on which error bounds rest.

    Every array has the operand's shape except for the axis of k, whose length stands in
    brackets; float64 unless another dtype is named.
    """

    # (num_words + 1) For each word and then for the remainder: the largest amount by
    # which its bound is exceeded.
    excess: Array
    # (num_words) The smallest normal number of the format in the word's scale where the
    # word has subnormal entries, else 0.
    subnormal: Array
    total: Array  # (1) Upper bound of sum_h |A_h|.
    # (1) Least exponent of the nonzero stored words, int64; subnormal numbers count as
    # emin.
    lowest: Array
    inexact: Array  # (1) True if there is a remainder, bool.


@dataclass(frozen=True)
class Splitting:
    """Parameters by which numbers are cut into words."""

    fmt: Format
    num_words: int
    rounding: str = "nearest"  # "nearest", "zero" or "nearest-away"
    low_shift: int = 0  # word p (from 0) is stored times 2**(low_shift p)

    @property
    def unit(self) -> float:
        """Largest relative error of one word: u, or 2 u for rounding to zero."""
        return self.fmt.u * (2.0 if self.rounding == "zero" else 1.0)

    def relative_bounds(self) -> list[float]:
        """Bounds of |word p| / |A| for each p and, last, of |remainder| / |A|.

        They hold without over- and underflow. They are larger than the exact ones by
        2**-45 of themselves, so that an excess is seen in float64.
        """
        growth = 1.0 if self.rounding == "zero" else 1.0 + self.unit
        bounds = [self.unit**p * growth for p in range(self.num_words)]
        bounds.append(self.unit**self.num_words)
        return [bound * (1.0 + 2.0**-45) for bound in bounds]

    def split(self, x: Array) -> tuple[list[Array], Array]:
        """Stored words of x, which is float64 and finite, and the remainder.

        The words are float32, or float64 for formats that float32 does not hold. The
        remainder, float64, is x - sum_p 2**(-low_shift p) words[p]: exact, but for one
        rounding where a word saturates.
        """
        remainder = x
        words = []
        for p in range(self.num_words):
            scale = 2.0 ** (self.low_shift * p)
            scaled = remainder
            if scale != 1.0:
                limited = np.minimum(np.maximum(remainder, -_LIMIT), _LIMIT)
                scaled = limited * scale
            word = round_to_format(scaled, self.fmt, self.rounding, saturate=True)
            rounded = word.astype(np.float64, copy=False)
            remainder = remainder - (rounded if scale == 1.0 else rounded * (1 / scale))
            words.append(word)
        return words, remainder

    def describe(
        self, x: Array, words: list[Array], remainder: Array, axis: int, lost: Array
    ) -> WordFacts:
        """Facts about the rows or columns of x, from their words by `split`.

        `lost`, of the shape of a fact, is True where x has entries so small that they,
        or numbers computed here, may have been rounded to multiples of 2**-1074.
        """
        magnitude = np.abs(x)
        *word_bounds, remainder_bound = self.relative_bounds()
        excess = []
        subnormal = []
        lowest = np.full(lost.shape, 2.0**self.fmt.emax, like=lost)
        for p, (word, bound) in enumerate(zip(words, word_bounds, strict=True)):
            # The smallest nonzero entry, in the scale in which the word is stored.
            part = np.abs(word).astype(np.float64)
            smallest = np.min(
                part, axis=axis, where=part > 0, initial=np.inf, keepdims=True
            )
            np.minimum(lowest, smallest, out=lowest)
            is_subnormal = smallest < 2.0**self.fmt.emin
            smallest_normal = 2.0 ** (self.fmt.emin - self.low_shift * p)
            subnormal.append(np.where(is_subnormal, smallest_normal, 0.0))

            # The word itself against its bound.
            part *= 2.0 ** (-self.low_shift * p)
            excess.append(_largest_excess(part, bound, magnitude, axis))

        # What the words leave, against its bound.
        part = np.abs(remainder)
        excess.append(_largest_excess(part, remainder_bound, magnitude, axis))
        has_remainder = (part > 0).any(axis=axis, keepdims=True)

        # The factor covers the rounding of the sum.
        rounding = 1.0 + (magnitude.shape[axis] + 2) * 2.0**-53
        with np.errstate(over="ignore"):
            total = np.sum(magnitude, axis=axis, keepdims=True) * rounding
        lowest_exponent = np.frexp(lowest)[1].astype(np.int64) - 1
        return WordFacts(
            excess=np.concatenate(excess, axis=axis) + lost * (4.0 * LEAST),
            subnormal=np.concatenate(subnormal, axis=axis),
            total=total,
            lowest=np.maximum(lowest_exponent, self.fmt.emin),
            inexact=lost | has_remainder,
        )


def _largest_excess(part: Array, bound: float, magnitude: Array, axis: int) -> Array:
    """Upper bound of max(0, part - bound magnitude) along `axis`, Inf if it overflows.

    It is 0 for part <= bound (1 - 2**-45) magnitude.
    """
    with np.errstate(over="ignore"):
        difference = part - bound * (1.0 - 2.0**-46) * magnitude
        largest = np.max(difference, axis=axis, keepdims=True, initial=0.0)
        return largest * (1.0 + 2.0**-50)
