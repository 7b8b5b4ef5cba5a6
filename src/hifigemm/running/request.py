"""What is asked of a product: one record, checked where it is made.

`matmul`, `gemm` and `make_plan` make a `Request` of their keyword arguments, and every
function behind them passes it on as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FP64
from hifigemm.model.accuracy import Accuracy, resolve
from hifigemm.model.invariance import check_invariant
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import DType
from hifigemm.schemes import Scheme, as_scheme

Result = Literal["array", "pair", "enclosure", "int64", "object"]
"""Kinds of results: see `matmul`."""

TWO_PARTS = "pair", "enclosure"
"""Kinds that are two arrays, made from the exact product."""

OF_INTEGERS = "int64", "object"
"""Kinds of exact products of integers."""


@dataclass(frozen=True)
class Request:
    """The keyword arguments that the functions of the library share: see `matmul`.

    Raises PlanError: a value that no product would take.
    """

    accuracy: Accuracy = None
    scheme: str | Scheme = "auto"
    engine: str | None = None
    plan: Plan | None = None
    workspace: int | None = None
    return_report: bool = False
    result: Result = "array"
    out_dtype: DType | None = None  # None: that of the product

    def __post_init__(self) -> None:
        if self.engine is not None and not isinstance(self.engine, str):
            raise PlanError(
                f"engine={self.engine!r}: expected a name from hifigemm.engines(), "
                "or None"
            )
        if self.plan is not None:
            check_plan(self.plan)
        resolve(self.accuracy, FP64, 1)
        check_invariant(self.accuracy, as_scheme(self.scheme))
        if self.workspace is not None and not _is_count(self.workspace):
            raise PlanError(
                f"workspace={self.workspace!r}: expected a positive whole number of "
                "bytes"
            )

    @property
    def forbids_wrapping(self) -> bool:
        """True if every entry of a product of integers is asked for exactly."""
        return self.accuracy is not None or self.result != "array"

    @property
    def accuracy_and_scheme(self) -> str:
        """The names of those two options that were passed, for messages; else ""."""
        names = [] if self.accuracy is None else ["accuracy="]
        if self.scheme != "auto":
            names.append("scheme=")
        return " and ".join(names)

    def check_engine(self, plan: Plan) -> None:
        """Raise PlanError if another engine than the plan's was asked for."""
        if self.engine not in (None, plan.engine):
            raise PlanError(
                f"engine={self.engine!r} differs from the plan's engine {plan.engine!r}"
            )


def check_result(result: object) -> None:
    """Raise PlanError unless this is a kind of result."""
    kinds = "array", *TWO_PARTS, *OF_INTEGERS
    if not isinstance(result, str) or result not in kinds:
        names = ", ".join(f'"{kind}"' for kind in kinds[:-1])
        raise PlanError(f'result={result!r}: expected {names} or "{kinds[-1]}"')


def check_plan(plan: object) -> None:
    """Raise PlanError unless this is a plan."""
    if not isinstance(plan, Plan):
        raise PlanError(f"plan is a {type(plan).__name__}; expected one from make_plan")


def request_of_plan(request: Request, plan: Plan) -> Request:
    """The request for longer operands in place of one by a plan."""
    has_scheme = plan.asked is not None and not plan.asked.explicit
    scheme = plan.asked if has_scheme else "auto"
    return replace(request, plan=None, scheme=scheme, engine=plan.engine)


def _is_count(x: object) -> bool:
    """True for a positive whole number; a bool is none."""
    return isinstance(x, Integral) and not isinstance(x, bool) and int(x) > 0
