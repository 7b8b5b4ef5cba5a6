"""Error measures of the papers, for curves over n, k or phi, and all that the command line says of a result.

References: [VLVJ23] doi:10.1145/3624062.3624084, [OY22] doi:10.1177/10943420221090256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .reference import ExactProduct, exact_difference

__all__ = ["Judgement", "forward_errors", "judge", "relative_residual"]


@dataclass(frozen=True)
class Judgement:
    """A result against the exact product."""

    error: float  # max |C - AB| / (|A||B|)
    relative_error: float  # max |C - AB| / |AB|
    normwise_error: float  # ||C - AB|| / (||A|| ||B||), Frobenius norms
    share_correct: float  # of entries that are the exact value rounded once
    kept: bool  # |C - AB| <= r |A||B| + u |AB| in every entry, for the bound r that was reported


def judge(c: NDArray[Any], exact: ExactProduct, bound: float) -> Judgement:
    """Hold a real result against the exact product, and against the bound r of its report."""
    return Judgement(
        exact.error(c),
        exact.error(c, relative=True),
        forward_errors(c, exact.a, exact.b)["2"] if np.isfinite(c).all() else np.inf,
        float(np.mean(c == exact.rounded)) if c.size else 1.0,
        bool(exact.meets(c, bound).all()),
    )


def forward_errors(c: ArrayLike, a: ArrayLike, b: ArrayLike, *, reference: ArrayLike | None = None) -> dict[str, float]:
    """Return norm(C - A B) / (norm(A) norm(B)) in the three entrywise norms of [VLVJ23].

    The norms take a matrix as one long vector: "1" is the sum of all magnitudes, "2" the Frobenius norm, "inf" the
    largest magnitude. They are not the operator norms of those names. C is compared with the reference in place of A B
    where there is one; the exact product has no errors that could enter.
    """
    difference = exact_difference(c, a, b) if reference is None else _wide(c) - _wide(reference)
    errors, lefts, rights = (_entrywise_norms(x) for x in (difference, a, b))
    return {name: float(errors[name] / (lefts[name] * rights[name])) if errors[name] else 0.0 for name in errors}


def relative_residual(c: ArrayLike, reference: ArrayLike) -> float:
    """Return ||C - reference||_F / ||reference||_F, the measure of [OY22], whose reference is the product in FP64."""
    error = _entrywise_norms(_wide(c) - _wide(reference))["2"]
    return float(error / _entrywise_norms(reference)["2"]) if error else 0.0


def _wide(x: ArrayLike) -> NDArray[Any]:
    """At least extended precision where the platform has it: C and a good reference differ in their last bits only."""
    x = np.asarray(x)
    return x.astype(np.result_type(x, np.longdouble))


def _entrywise_norms(x: ArrayLike) -> dict[str, Any]:
    magnitude = abs(_wide(x))
    largest = magnitude.max(initial=0)
    scaled = magnitude / largest if 0 < largest < np.inf else magnitude
    return {"1": magnitude.sum(), "2": largest * np.sqrt((scaled**2).sum()), "inf": largest}
