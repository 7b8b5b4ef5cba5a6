"""Accuracies and their targets: |C - AB| <= r |A||B| + u |AB|, or <= (r + u) |AB| for
`Relative`, or <= r |a_i| |b_j| + u |AB| for `Invariant`, with the Euclidean norms of a
row and a column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FP32, FP64, Format


@dataclass(frozen=True)
class Relative:
    """An accuracy relative to the exact product: |c - ab| <= r |ab| in every entry,
    however much its terms cancel.

    An entry is zero only if the exact one is. For complex results the promise holds for
    the real and the imaginary part. Below the smallest normal number of the result's
    dtype, add half of its smallest subnormal number: there an entry may round to zero.

    Parameters
    ----------
    r : float
        Less than 1, and at least the unit roundoff of the result's dtype: ``2**-53``
        for float64 (1.12e-16 is enough), ``2**-24`` for float32 (6e-8 is enough).

    Raises
    ------
    PlanError
        r is not a number in this range.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1e16, 1.0, -1e16]])
    >>> hg.matmul(a, np.ones((3, 1)), accuracy=hg.Relative(1e-12))
    array([[1.]])
    """

    r: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.r, Real) and not isinstance(self.r, bool)
        if not is_number or not 0.0 < float(self.r) < 1.0:
            raise PlanError(
                f"Relative({self.r!r}): expected a number between 0 and 1, such as 1e-12"
            )
        object.__setattr__(self, "r", float(self.r))


@dataclass(frozen=True)
class Invariant:
    """An accuracy with the same bits for everyone: a row of the result does not depend
    on other rows, on the order of the terms, or on the device.

    The scheme and its counts follow from the dtype, k and this record alone. They do
    not depend on the number of rows and columns, the data, the memory or the device. A
    number r means |c - ab| <= r |a_i| |b_j| + u |ab| for row i and column j, with their
    Euclidean norms. This promise is weaker than r |A||B|, which no fixed count can keep
    for all data. A level such as "fp64" stands for its r. "correct", `Relative` and
    numbers below ``2**-16`` u round the exact value once.

    Parameters
    ----------
    accuracy : None, float, "fp32", "fp64", "correct" or Relative
        As for `matmul`.

    Raises
    ------
    PlanError
        `matmul` does not know the accuracy.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, b = np.random.default_rng(0).standard_normal((2, 5, 5))
    >>> c = hg.matmul(a, b, accuracy=hg.Invariant(1e-7))
    >>> row = hg.matmul(a[3, ::-1], b[::-1], accuracy=hg.Invariant(1e-7))
    >>> np.array_equal(row, c[3])
    True
    """

    accuracy: float | Literal["fp32", "fp64", "correct"] | Relative | None = None

    def __post_init__(self) -> None:
        if isinstance(self.accuracy, Invariant):
            raise PlanError(
                f"Invariant({self.accuracy!r}): an Invariant cannot contain another one"
            )
        resolve(self.accuracy, FP64, 1)
        if isinstance(self.accuracy, Real):
            # 1e-7 of any type is one record, with one key.
            object.__setattr__(self, "accuracy", float(self.accuracy))


Accuracy = float | Literal["fp32", "fp64", "correct"] | Relative | Invariant | None
_EXPECTED = 'expected None, a number, "fp32", "fp64", "correct", hifigemm.Relative(r) or hifigemm.Invariant()'
_SPARE_BITS = 16
"""A relative error this far below the unit roundoff, before the last rounding, requires
correct rounding.
"""


@dataclass(frozen=True)
class Target:
    """A promise for every entry."""

    # factor of |A||B|, or of |AB| for relative errors, before the last rounding; 0 for
    # correct rounding; inf when nothing is promised
    r: float
    # every real component is to be the correctly rounded exact value
    correct: bool = False
    # r is the level of this format, at which a native product in its arithmetic is
    # accepted
    level: Format | None = None
    # if nothing is promised, compute the largest possible error for the report; this
    # takes two more products
    states_bound: bool = True
    relative: float | None = None  # the relative error that was asked for
    # factor of |a_i| |b_j| before the last rounding, for `Invariant`; r is inf then
    normwise: float | None = None

    @property
    def by_entry(self) -> bool:
        """True if errors are relative to the exact entry, however much its terms
        cancel, instead of |A||B|.
        """
        return self.correct or self.relative is not None

    def __str__(self) -> str:
        if self.correct:
            return "correct rounding"
        if self.relative is not None:
            return f"|C - AB| <= {self.relative:.3g} |AB|"
        if self.normwise is not None:
            return f"|C - AB| <= {self.normwise:.3g} |a_i| |b_j| + u |AB|"
        return (
            "as the report states"
            if math.isinf(self.r)
            else f"|C - AB| <= {self.r:.3g} |A||B| + u |AB|"
        )

    def accepts(self, worst_case: float) -> str:
        """Why a native product is accepted although its worst case exceeds r; empty if
        it does not exceed r.
        """
        if self.level is None or worst_case <= self.r:
            return ""
        return f", accepted at the level of {self.level.name} (r = {self.r:.3g})"


CORRECT = Target(0.0, correct=True)
NO_PROMISE = Target(math.inf)
NOTHING_STATED = Target(math.inf, states_bound=False)


def level(fmt: Format, k: int) -> float:
    """r = max(4, sqrt(k) / 4) u: about the error of a good native product with k
    terms.
    """
    return max(4.0, math.sqrt(k) / 4.0) * fmt.u


def resolve(accuracy: Accuracy, fmt: Format, k: int) -> Target:
    """The target behind an accuracy for results of format `fmt` and inner dimension k.

    Raises PlanError: an unknown name, a number that is negative, not finite, or 1 or
    more, a relative error below the rounding of results.
    """
    if isinstance(accuracy, Relative):
        return _relative(accuracy.r, fmt)
    if isinstance(accuracy, Invariant):
        return _invariant(resolve(accuracy.accuracy, fmt, k), fmt)
    if accuracy is None:
        return Target(level(fmt, k), level=fmt)
    if isinstance(accuracy, str):
        if accuracy == "correct":
            return CORRECT
        named = {"fp32": FP32, "fp64": FP64}.get(accuracy)
        if named is None:
            raise PlanError(f"accuracy={accuracy!r}: {_EXPECTED}")
        return Target(level(named, k), level=named)
    if isinstance(accuracy, bool) or not isinstance(accuracy, Real):
        raise PlanError(f"accuracy={accuracy!r}: {_EXPECTED}")
    try:
        r = float(accuracy)
    except OverflowError:
        r = math.inf
    if not (math.isfinite(r) and r >= 0.0):
        raise PlanError(f"accuracy={r}: expected a finite number that is not negative")
    if r >= 1.0:
        raise PlanError(
            f"accuracy={r:g}: expected an error bound such as 1e-12, not a count of digits"
        )
    return Target(r, correct=r == 0.0)


def _relative(r: float, fmt: Format) -> Target:
    """u |AB| are for the last rounding, of a sum within s |AB|: u + (1 + u) s <= r."""
    if r < fmt.u:
        raise PlanError(
            f"Relative({r}): rounding to {fmt.name} alone errs by up to 2**-{fmt.t} = {fmt.u} of an entry; "
            f'ask for Relative(2**-{fmt.t}) or more, or for "correct"'
        )
    s = (r - fmt.u) / (1.0 + fmt.u) * (1.0 - 2.0**-50)
    return CORRECT if s < 2.0**-_SPARE_BITS * fmt.u else Target(s, relative=r)


def _invariant(target: Target, fmt: Format) -> Target:
    """The target of `Invariant` for the accuracy inside it."""
    if target.by_entry or target.r < 2.0**-_SPARE_BITS * fmt.u:
        return CORRECT
    return Target(math.inf, states_bound=False, normwise=target.r)
