"""The method of a product on a mesh: a common count, or correct rounding.

In the exact schemes each row of A and each column of B has its own scale. So an entry
of C has the same bits whatever else a rank multiplies, if all ranks have the same
number of moduli or slices. Correct rounding needs no common number. The native product
has no such bits: a library adds in another order for other shapes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from torch import Tensor

from hifigemm.base.exceptions import PlanError
from hifigemm.engines import engine_for
from hifigemm.libraries import Library, library_of
from hifigemm.model.accuracy import (
    NO_PROMISE,
    Accuracy,
    Invariant,
    Target,
    resolve,
)
from hifigemm.model.engine import Engine
from hifigemm.model.problem import Problem
from hifigemm.running.planner import workspace_limit
from hifigemm.schemes import Ozaki1, Ozaki2, Scheme, as_scheme
from hifigemm.schemes.inspection import largest_error_ratio
from hifigemm.schemes.moduli_counts import invariant_count

SCHEMES = Ozaki1, Ozaki2
"""Schemes whose bits no mesh changes."""


@dataclass(frozen=True)
class Method:
    """The scheme and accuracy of the products of every rank."""

    # None for correct rounding by any scheme
    scheme: Ozaki1 | Ozaki2 | None
    # "correct", or what a forced scheme has to keep
    accuracy: Accuracy
    # the number of moduli depends on the operands, which the ranks have yet to read
    waits: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if the count is known and nothing is promised beyond it.

        Then products raise no error that depends on the operands.
        """
        if self.scheme is None or self.waits:
            return False
        return self.scheme.explicit and self.accuracy is None

    @property
    def adds(self) -> bool:
        """True if sums over a sharded k can be made of partial sums."""
        if self.scheme is None:
            return self.accuracy == "correct"
        return self.is_fixed and self.scheme.adds_over_k

    @property
    def accuracy_and_scheme(self) -> tuple[Accuracy, str | Scheme]:
        """Arguments of `matmul`."""
        return self.accuracy, "auto" if self.scheme is None else self.scheme

    def __str__(self) -> str:
        return "correct rounding" if self.scheme is None else str(self.scheme)


def method_for(
    problem: Problem, accuracy: Accuracy, scheme: str | Scheme
) -> tuple[Method, Target]:
    """The method and its target, chosen without reading the operands.

    Raises PlanError: schemes whose bits depend on how a product is cut.
    """
    forced = as_scheme(scheme)
    target = resolve(accuracy, problem.fmt, problem.k)
    if forced is not None and not isinstance(forced, SCHEMES):
        raise PlanError(
            f"scheme={scheme!r}: expected ozaki1 or ozaki2 on a mesh, because their bits do not depend on the mesh"
        )
    if target.normwise is not None:
        # A scheme with a count is obeyed; else every rank has the count of the target.
        if forced is not None and forced.explicit and accuracy == Invariant():
            return Method(forced, None), NO_PROMISE
        fixed = forced if isinstance(forced, Ozaki2) else Ozaki2(scaling="largest")
        fixed.check_keeps(problem, target)
        count = fixed.num_moduli or invariant_count(problem, target)
        return Method(replace(fixed, num_moduli=count), None), target
    if isinstance(forced, Ozaki2) and not target.correct:
        has_own_scales = forced.scaling == "fast"
        has_own_scales |= forced.scaling == "largest" and forced.explicit
        if not has_own_scales:
            raise PlanError(
                f"{forced}: its scales depend on both whole operands; on a mesh ask for scaling='fast'"
            )
    if isinstance(forced, Ozaki1) and forced.scaling is not None:
        raise PlanError(
            f"{forced}: its powers of two depend on both whole operands; on a mesh ask for scaling=None"
        )
    has_count = forced is not None and forced.explicit
    if target.by_entry and not has_count:
        return Method(None, "correct"), target
    if isinstance(forced, Ozaki1):
        return _method_of_slices(forced, accuracy), target
    if forced is not None and forced.explicit:
        return Method(forced, accuracy), target
    return Method(Ozaki2(scaling="fast"), None, waits=True), target


def _method_of_slices(forced: Ozaki1, accuracy: Accuracy) -> Method:
    """The method of Ozaki scheme I, with a count or for correct rounding.

    Raises PlanError: a count that depends on the operands.
    """
    if forced.explicit:
        if forced.num_slices is None:
            raise PlanError(
                f"{forced} estimates its count from whole operands; on a mesh give num_slices"
            )
        return Method(forced, accuracy)
    if forced.mode != "correct":
        raise PlanError(
            f"{forced} with accuracy={accuracy!r}: on a mesh give num_slices, or ask for 'correct'"
        )
    return Method(forced, None)


def expected_planes(method: Method, problem: Problem, target: Target) -> int:
    """Number of low-precision products in the model of times."""
    scheme = method.scheme or Ozaki2(scaling="fast")
    if scheme.explicit:
        return scheme.planes(problem)
    return scheme.expected_products(problem, target)


def method_for_ratio(problem: Problem, target: Target, ratio: float) -> Method:
    """The method whose count keeps the target for the largest error ratio.

    `ratio` is the largest of all ranks. The method is correct rounding if no count does.
    """
    count = Ozaki2(scaling="fast").count_for(problem, target, ratio)
    if count is None:
        return Method(None, "correct")
    return Method(Ozaki2(num_moduli=count, scaling="fast"), None)


def library_and_engine(x: Tensor) -> tuple[Library, Engine]:
    """The library and the engine of a local tensor."""
    library = library_of(("a", x))
    return library, engine_for(None, library.name, library.device)


def error_ratio_of(
    x: Tensor, y: Tensor, problem: Problem, workspace: int | None
) -> float:
    """The largest error ratio of the product of two local tensors; 0 for no entries."""
    if 0 in (*x.shape, *y.shape):
        return 0.0
    library, engine = library_and_engine(x)
    local_problem = replace(problem, m=x.shape[0], n=y.shape[1])
    limit = workspace_limit(local_problem, workspace, engine)
    with library.active():
        a = library.asarray(x, "a")[None]
        b = library.asarray(y, "b")[None]
        return largest_error_ratio(a, b, engine, limit)


def bits_of(ratio: float) -> int:
    """The bits of a float64 as an integer, in the same order for x >= 0."""
    (bits,) = struct.unpack("q", struct.pack("d", ratio))
    return int(bits)


def ratio_from(bits: int) -> float:
    """The float64 of `bits_of`."""
    (ratio,) = struct.unpack("d", struct.pack("q", bits))
    return float(ratio)
