"""What a user may ask for, turned into a componentwise target |C - AB| <= r |A||B| + u |AB|."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from hifigemm.exceptions import PlanError
from hifigemm.formats import FP32, FP64, Format

Accuracy = float | Literal["fp32", "fp64", "correct"] | None


@dataclass(frozen=True)
class Target:
    """A componentwise promise."""

    r: float  # factor of |A||B|; 0 for correct rounding; inf when nothing is promised
    correct: bool = False  # every real component is to be the correctly rounded exact value
    # r is the level of this format, at which a native product in its arithmetic is accepted
    level: Format | None = None
    # where nothing is promised, the largest possible error is worked out for the report; that takes two more products
    states_bound: bool = True

    def __str__(self) -> str:
        if self.correct:
            return "correct rounding"
        return "as the report states" if math.isinf(self.r) else f"|C - AB| <= {self.r:.3g} |A||B| + u |AB|"

    def accepts(self, worst_case: float) -> str:
        """Why a native product with this worst case is accepted though that exceeds r; empty where it does not."""
        if self.level is None or worst_case <= self.r:
            return ""
        return f", accepted at the level of {self.level.name} (r = {self.r:.3g})"


NO_PROMISE = Target(math.inf)
NOTHING_STATED = Target(math.inf, states_bound=False)


def level(fmt: Format, k: int) -> float:
    """r = max(4, sqrt(k) / 4) u: about the error of a good native product with k terms."""
    return max(4.0, math.sqrt(k) / 4.0) * fmt.u


def resolve(accuracy: Accuracy, fmt: Format, k: int) -> Target:
    """The target behind an accuracy for results of format `fmt` and inner dimension k.

    Raises PlanError: an unknown name, or a number that is negative or not finite.
    """
    if accuracy is None:
        return Target(level(fmt, k), level=fmt)
    if isinstance(accuracy, str):
        if accuracy == "correct":
            return Target(0.0, correct=True)
        named = {"fp32": FP32, "fp64": FP64}.get(accuracy)
        if named is None:
            raise PlanError(f'accuracy={accuracy!r}: expected None, a number, "fp32", "fp64" or "correct"')
        return Target(level(named, k), level=named)
    if isinstance(accuracy, bool) or not isinstance(accuracy, Real):
        raise PlanError(f'accuracy={accuracy!r}: expected None, a number, "fp32", "fp64" or "correct"')
    try:
        r = float(accuracy)
    except OverflowError:
        r = math.inf
    if not (math.isfinite(r) and r >= 0.0):
        raise PlanError(f"accuracy={r}: expected a finite number that is not negative")
    return Target(r, correct=r == 0.0)
