"""What a user may ask for, turned into a target: |C - AB| <= r |A||B| + u |AB|,
or <= (r + u) |AB| for `Relative`.
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

    An entry is zero only where the exact one is. Real and imaginary parts are entries
    of their own. Below the smallest normal number of the result's dtype, half its
    smallest subnormal number comes on top: an entry may round to zero there.

    Parameters
    ----------
    r : float
        At least the unit roundoff of the result's dtype, ``2**-53`` (1.12e-16 is a
        little more) for float64 and ``2**-24`` (6e-8 is) for float32, and below 1.

    Raises
    ------
    PlanError
        r is no such number.

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


Accuracy = float | Literal["fp32", "fp64", "correct"] | Relative | None
_EXPECTED = 'expected None, a number, "fp32", "fp64", "correct" or hifigemm.Relative(r)'
_SPARE_BITS = 16
"""Relative errors this far below the unit roundoff, before the last rounding, are those
of correct rounding.
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
    # where nothing is promised, the largest possible error is worked out for the
    # report; that takes two more products
    states_bound: bool = True
    relative: float | None = None  # the relative error that was asked for

    @property
    def by_entry(self) -> bool:
        """Whether errors are held against the exact entry, however much its terms
        cancel, and not against |A||B|.
        """
        return self.correct or self.relative is not None

    def __str__(self) -> str:
        if self.correct:
            return "correct rounding"
        if self.relative is not None:
            return f"|C - AB| <= {self.relative:.3g} |AB|"
        return (
            "as the report states"
            if math.isinf(self.r)
            else f"|C - AB| <= {self.r:.3g} |A||B| + u |AB|"
        )

    def accepts(self, worst_case: float) -> str:
        """Why a native product with this worst case is accepted though that exceeds r;
        empty where it does not.
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
