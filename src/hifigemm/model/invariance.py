"""Causes that the bits of a row of the result may depend on, other than the row itself,
the columns of B and the request.

An exact scheme scales each row and each column separately; everything after the scales
is an exact integer, rounded once. So anything else can enter a row only through the
scales, the counts and the choice of the scheme. "May" is meant: a cause is listed unless
it is proven to change no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import (
    NO_PROMISE,
    Accuracy,
    Invariant,
    Target,
    resolve,
)
from hifigemm.model.problem import Problem

OTHER_ROWS = "other rows"
"""Values of other rows of A, and of other matrices of a stack."""
OTHER_COLUMNS = "other columns"
"""Values of other columns of B, and of other matrices of a stack."""
SHAPE = "shape"
"""The number of matrices, rows and columns, and where among them a row lies."""
K = "k"
"""The number of terms; zeros behind them count."""
ORDER_OF_K = "order of k"
"""The order of the terms, and a division of them."""
ENGINE = "engine"
"""The library, its threads, the compiled core, the layout of arrays in memory."""
DEVICE = "device"
"""CPU or GPU, and the architecture."""
VERSION = "version"
"""Versions of the libraries, and the figures of times by which "auto" chooses."""

_IN_ORDER = (
    OTHER_ROWS,
    OTHER_COLUMNS,
    SHAPE,
    K,
    ORDER_OF_K,
    ENGINE,
    DEVICE,
    VERSION,
)
EVERYTHING = frozenset(_IN_ORDER)
_OTHERS = frozenset((OTHER_ROWS, OTHER_COLUMNS))
_SUMS = EVERYTHING - _OTHERS


class Dependence(NamedTuple):
    """Causes that the bits of a row may depend on, and why."""

    causes: frozenset[str]
    reason: str

    @property
    def is_invariant(self) -> bool:
        """True if nothing but k is among the causes."""
        return self.causes <= {K}

    def __str__(self) -> str:
        causes = [cause for cause in _IN_ORDER if cause in self.causes]
        return f"{', '.join(causes) or 'nothing else'}: {self.reason}"


UNKNOWN = Dependence(EVERYTHING, "nothing is known of it")
CHOSEN = Dependence(
    EVERYTHING, "the library chooses by the shape, the engine and the operands"
)
"""Causes for a request that leaves the scheme to the library and is not `Invariant`."""


def dependence(
    problem: Problem, target: Target, scheme: Any, asked: Any, *, sees_operands: bool
) -> Dependence:
    """The dependence of a product by a scheme with its counts.

    `asked` is the scheme that was named, None for the library's choice, and
    `sees_operands` says that counts or scales depend on the values of the operands. The
    scheme is None where any scheme that rounds correctly may be taken.
    """
    nothing: frozenset[str] = frozenset()
    if problem.dtype.kind in "biuO":
        return Dependence(nothing, "sums of integers do not depend on their order")
    if target.correct or scheme is None or scheme.rounds_once:
        return Dependence(nothing, "an entry is the exact value, rounded once")
    if scheme.name == "double-double" and asked is not None:
        return Dependence(nothing, "a named DoubleDouble rounds each exact value once")
    if target.normwise is not None:
        return _of_count(scheme)
    if asked is None:
        return CHOSEN
    if scheme.name == "native":
        return Dependence(EVERYTHING, "a library adds in an order of its choice")
    if scheme.name in ("multiword", "corrected"):
        reason = "sums are rounded in the order of tiles, spans and the unit"
        return Dependence(_SUMS, reason)

    # Exact schemes: a count that was named, or one that the operands ask for.
    count = asked.num_moduli if scheme.name == "ozaki2" else asked.num_slices
    if count is None:
        reason = "the count rests on the operands, which engines inspect in their ways"
        return Dependence(EVERYTHING, reason)
    causes, reason = _of_count(scheme)
    if sees_operands:
        causes |= _OTHERS
        reason = f"counts or scales rest on both operands; {reason}"
    return Dependence(causes, reason)


def check_invariant(accuracy: Accuracy, scheme: Any) -> None:
    """Raise PlanError where a scheme that is named breaks what `Invariant` asks for;
    None leaves the choice to the library.
    """
    if not isinstance(accuracy, Invariant) or scheme is None:
        return
    # Shapes and dtypes of floats change nothing here.
    problem = Problem(1, 1, 1, 1, np.dtype(np.float64))
    target = resolve(accuracy, problem.fmt, problem.k)
    if target.correct:
        return
    has_largest = scheme.name == "ozaki2" and scheme.scaling == "largest"
    if has_largest and not (scheme.explicit and accuracy == Invariant()):
        return
    found = dependence(problem, NO_PROMISE, scheme, scheme, sees_operands=False)
    if not found.causes:
        return
    if not found.is_invariant:
        raise PlanError(
            f"{scheme} is not invariant: the bits of a row depend on {found}"
        )
    if accuracy != Invariant():
        raise PlanError(
            f"{scheme} has no error bound relative to norms, which {accuracy} needs: leave the "
            'scheme to "auto", or name Ozaki2(scaling="largest")'
        )


def _of_count(scheme: Any) -> Dependence:
    """The dependence of an exact scheme whose count does not rest on the operands, by
    its scales.
    """
    if scheme.scaling == "inner":
        # numerics/inner_scaling.py
        causes = _OTHERS | {SHAPE, K, ORDER_OF_K}
        return Dependence(causes, "powers of two along k rest on both operands")
    if scheme.name == "ozaki1":
        # schemes/ozaki1.py: unit_exponent and slice_bits
        reason = (
            "slices begin at the largest entry of a vector; their bits follow from k"
        )
        return Dependence(frozenset({K}), reason)
    if scheme.scaling == "accurate":
        # numerics/scaling.py: maxima of sums of integers
        reason = "a scale rests on the largest entry of |A||B| in a row or column"
        return Dependence(_OTHERS, reason)
    if scheme.scaling == "largest":
        # numerics/scaling.py: largest_scale
        reason = "a scale follows from the largest entry of a vector, and from k"
        return Dependence(frozenset({K}), reason)
    # numerics/scaling.py: square_norms
    reason = "norms are rounded up in blocks of 256 terms, each on its grid"
    return Dependence(frozenset({ORDER_OF_K}), reason)
