"""By what a product on a mesh is made: a count that all ranks share, or correct
rounding, which needs no agreement.

Rows of A and columns of B have scales of their own in the exact schemes, so that
entries of C come out with the same bits whatever else a rank multiplies, once the
number of moduli or slices is the same. The native product has no such bits: a library
adds in another order for other shapes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hifigemm.accuracy import Accuracy, Target, resolve
from hifigemm.engine import Engine
from hifigemm.engines import engine_for
from hifigemm.exceptions import PlanError
from hifigemm.libraries import Library, library_of
from hifigemm.planner import workspace_limit
from hifigemm.problem import Problem
from hifigemm.schemes import Ozaki1, Ozaki2, Scheme
from hifigemm.schemes.auto import as_scheme
from hifigemm.schemes.ozaki2 import largest_error_ratio

SCHEMES = Ozaki1, Ozaki2
"""Those whose bits no mesh changes."""
_SLICE_PRODUCTS = 30
"""Of correct rounding by slices in the model of times; at phi = 0.5 and k = 256 to
2048, FP64 slices took 9 to 11, FP16 and INT8 slices 44 to 58.
"""


@dataclass(frozen=True)
class Method:
    """What every rank passes on to its own products."""

    # with an explicit count; None where the entries are rounded correctly by any scheme
    scheme: Scheme | None
    accuracy: Accuracy  # of a forced scheme that has to keep one; "correct"
    waits: bool = False  # the count is yet to follow from the operands

    @property
    def is_fixed(self) -> bool:
        """Whether the count is known and nothing is promised beyond it, so that no rank
        can refuse its operands.
        """
        return (
            self.scheme is not None
            and self.scheme.explicit
            and self.accuracy is None
            and not self.waits
        )

    @property
    def adds(self) -> bool:
        """Whether sums over a sharded k can be made of partial ones."""
        return (self.is_fixed and isinstance(self.scheme, Ozaki2)) or (
            self.accuracy == "correct" and not self.scheme
        )

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `matmul`."""
        return {
            "accuracy": self.accuracy,
            "scheme": "auto" if self.scheme is None else self.scheme,
        }

    def __str__(self) -> str:
        return "correct rounding" if self.scheme is None else str(self.scheme)


def method_for(
    problem: Problem, accuracy: Accuracy, scheme: str | Scheme
) -> tuple[Method, Target]:
    """The method and its target before the operands are seen.

    Raises PlanError: schemes whose bits depend on how a product is cut.
    """
    asked, target = as_scheme(scheme), resolve(accuracy, problem.fmt, problem.k)
    if not (asked is None or isinstance(asked, SCHEMES)):
        raise PlanError(
            f"scheme={scheme!r}: products on a mesh are made by ozaki1 and ozaki2, whose bits no mesh changes"
        )
    if isinstance(asked, Ozaki2) and asked.scaling != "fast" and not target.correct:
        raise PlanError(
            f"{asked}: its scales rest on both whole operands; on a mesh ask for scaling='fast'"
        )
    if target.by_entry and (asked is None or not asked.explicit):
        return Method(None, "correct"), target
    if asked is not None and asked.explicit:
        if isinstance(asked, Ozaki1) and asked.num_slices is None:
            raise PlanError(
                f"{asked} estimates its count from whole operands; on a mesh give num_slices"
            )
        return Method(asked, accuracy), target
    if isinstance(asked, Ozaki1):
        if asked.mode == "correct":
            return Method(asked, None), target
        raise PlanError(
            f"{asked} with accuracy={accuracy!r}: on a mesh give num_slices, or ask for 'correct'"
        )
    return Method(Ozaki2(scaling="fast"), None, waits=True), target


def expected_planes(method: Method, problem: Problem, target: Target) -> int:
    """Low-precision products that the model of times counts with."""
    if isinstance(method.scheme, Ozaki1):
        return (
            method.scheme.count * (method.scheme.count + 1) // 2
            if method.scheme.num_slices
            else _SLICE_PRODUCTS
        )
    scheme = (
        method.scheme if isinstance(method.scheme, Ozaki2) else Ozaki2(scaling="fast")
    )
    return (
        scheme.planes(problem)
        if scheme.explicit
        else scheme.expected_products(problem, target)
    )


def decided(problem: Problem, target: Target, ratio: float) -> Method:
    """The count that keeps the target for the largest error ratio of all ranks; correct
    rounding where none does.
    """
    count = Ozaki2(scaling="fast").count_for(problem, target, ratio)
    return (
        Method(None, "correct")
        if count is None
        else Method(Ozaki2(num_moduli=count, scaling="fast"), None)
    )


def library_and_engine(x: Tensor) -> tuple[Library, Engine]:
    """The library and the engine of a local tensor."""
    library = library_of(("a", x))
    return library, engine_for(None, library.name, library.device)


def error_ratio_of(
    x: Tensor, y: Tensor, problem: Problem, workspace: int | None
) -> float:
    """The largest error ratio of the product of two local tensors; 0 where there is
    none.
    """
    if 0 in (*x.shape, *y.shape):
        return 0.0
    library, engine = library_and_engine(x)
    limit = workspace_limit(
        replace(problem, m=x.shape[0], n=y.shape[1]), workspace, engine
    )
    with library.active():
        return largest_error_ratio(
            library.asarray(x, "a")[None], library.asarray(y, "b")[None], engine, limit
        )


def bits_of(ratio: float) -> int:
    """A float64 that is not negative as an integer of the same order."""
    (bits,) = struct.unpack("q", struct.pack("d", ratio))
    return int(bits)


def ratio_from(bits: int) -> float:
    """The float64 of `bits_of`."""
    (ratio,) = struct.unpack("d", struct.pack("q", bits))
    return float(ratio)
