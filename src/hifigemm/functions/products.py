"""The products behind one call of a function: all with the same accuracy, with a report
of them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.accuracy import Accuracy, Relative
from hifigemm.api import check_options, matmul, product_of_numbers
from hifigemm.exceptions import PlanError
from hifigemm.functions.verbs import mirrored, shape_of, unit_roundoff
from hifigemm.libraries import library_of
from hifigemm.operands import Shapes, as_out, check_out
from hifigemm.plan import Report
from hifigemm.schemes import Scheme
from hifigemm.transforms import belongs_to_torch, check_untraced, is_traced, opaque

if TYPE_CHECKING:
    from hifigemm.signatures import SchemeName


@dataclass(frozen=True)
class ChainReport:
    """What was done in a chain of products, whose intermediate results are rounded, and
    what that guarantees.

    Attributes
    ----------
    reports : tuple of Report
        Those of the products, in the order in which they were made. Indices that only
        one operand of `einsum` has may be summed by a product with ones.
    roundoffs : tuple of float
        The unit roundoff of each product's dtype.
    uses : tuple of int
        How often each product enters the result as a factor; more than once in powers
        only.
    """

    reports: tuple[Report, ...]
    roundoffs: tuple[float, ...]
    uses: tuple[int, ...]

    @property
    def bound(self) -> float:
        """The r of |C - exact| <= r |A||B||C|..., the product of
        (1 + r_i + u_i)**uses_i less 1.

        It holds where no intermediate result lies in the range of the subnormal numbers
        or overflows.
        """
        try:
            growth = math.fsum(
                n * math.log1p(report.bound + u)
                for report, u, n in zip(self.reports, self.roundoffs, self.uses)
            )
            # the logarithms, their sum and expm1 are rounded
            return math.expm1(growth) * (1 + 2.0**-48)
        except OverflowError:
            return math.inf

    def __str__(self) -> str:
        count = len(self.reports)
        head = f"ChainReport: {count} products, |C - exact| <= {self.bound:.3g} times the product of the magnitudes"
        return _listed(head, self.reports)


@dataclass(frozen=True)
class BlocksReport:
    """What was done for a result whose blocks are products by themselves.

    Attributes
    ----------
    reports : tuple of Report
        Those of the blocks, in the order in which they were made.
    """

    reports: tuple[Report, ...]

    @property
    def bound(self) -> float:
        """The r of |C - AB| <= r |A||B| + u |AB| that is guaranteed in every block."""
        return max(report.bound for report in self.reports)

    @property
    def correct(self) -> bool:
        """Whether every real component is the correctly rounded exact value."""
        return all(report.correct for report in self.reports)

    def __str__(self) -> str:
        rounding = ", correctly rounded" if self.correct else ""
        head = f"BlocksReport: {len(self.reports)} blocks, bound {self.bound:.3g} |A||B|{rounding}"
        return _listed(head, self.reports)


def _listed(head: str, reports: Sequence[Report]) -> str:
    lines = [
        f"  {i}  {x.scheme}, bound {x.bound:.3g} |A||B|: {x.reason}"
        for i, x in enumerate(reports)
    ]
    return "\n".join([head, *lines])


class Products:
    """Makes the products of one call, and keeps their reports if these are asked
    for.
    """

    def __init__(
        self,
        accuracy: Accuracy,
        scheme: SchemeName | Scheme,
        engine: str | None,
        workspace: int | None,
        return_report: bool,
    ) -> None:
        self.accuracy, self.return_report = accuracy, return_report
        self.options: dict[str, Any] = {
            "accuracy": accuracy,
            "scheme": scheme,
            "engine": engine,
            "workspace": workspace,
        }
        self.count = 0
        self.reports: list[Report] = []
        self.roundoffs: list[float] = []

    def __call__(self, a: Any, b: Any) -> Any:
        """A B, by `matmul`."""
        return self._noted(
            matmul(a, b, **self.options, return_report=self.return_report)
        )

    def with_transpose(self, a: Any, b: Any, conjugate: bool) -> Any:
        """A B for B = A^T or A^H, with the lower triangle mirrored; a GPU makes no more
        than that.
        """
        if belongs_to_torch(a, b) or is_traced(a):
            return mirrored(self(a, b), conjugate)
        options = {
            **self.options,
            "return_report": self.return_report,
            "mirror": "C" if conjugate else "T",
        }
        return self._noted(product_of_numbers(a, b, **options))

    def _noted(self, made: Any) -> Any:
        """The result of a product, whose report is kept."""
        self.count += 1
        if not self.return_report:
            return made
        value, report = made
        self.reports.append(report)
        self.roundoffs.append(unit_roundoff(value))
        return value

    def check_chain(self, count: int, why: str) -> None:
        """Raise PlanError where "correct" or a relative error is asked of that many
        products in a row.
        """
        if count < 2 or self.accuracy is None or isinstance(self.accuracy, np.ndarray):
            return  # an array is no accuracy, as the first product says
        if (
            isinstance(self.accuracy, Relative)
            or self.accuracy == "correct"
            or self.accuracy == 0
        ):
            raise PlanError(
                f"accuracy={self.accuracy!r} is promised for one product, and {why} takes {count}, one on the result "
                f"of another: the {count - 1} intermediate results are rounded. Ask for a number or a level, which "
                "each product keeps; the report then bounds the error of the whole"
            )

    def chain(self, value: Any, out: Any, uses: Sequence[int] | None = None) -> Any:
        """The result of a call that ends with this value, with its report if that is
        asked for.
        """
        uses = [1] * len(self.reports) if uses is None else uses
        report = (
            self.reports[0]
            if len(self.reports) == 1
            else ChainReport(tuple(self.reports), tuple(self.roundoffs), tuple(uses))
        )
        return self._deliver(value, out, report)

    def blocks(self, value: Any, out: Any) -> Any:
        """The result of a call whose products are blocks of this value, with its report
        if that is asked for.
        """
        report = (
            self.reports[0]
            if len(self.reports) == 1
            else BlocksReport(tuple(self.reports))
        )
        return self._deliver(value, out, report)

    def _deliver(self, value: Any, out: Any, report: Any) -> Any:
        lacking = {
            "engine": self.options["engine"],
            "out": out,
            "return_report": self.return_report,
        }
        check_untraced({"the result": value}, **lacking)
        if self.count == 0:
            check_options(**self.options, like=value)
        out = as_out(out)
        if out is not None:
            value = _written(value, out)
        elif isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]  # a scalar, as NumPy has it
        return (value, report) if self.return_report else value


@opaque
def _written(value: Any, out: Any) -> Any:
    """`out`, filled with a result, of which it may share the memory.

    Raises TypeError, ValueError: another shape, library or device, a dtype that would
    round.
    """
    library, shape = library_of(("the result", value), ("out", out)), shape_of(value)
    if hasattr(out, "shape") and shape_of(out) != shape:
        raise ValueError(f"out has shape {shape_of(out)}; the result has shape {shape}")
    dtype = library.asarray(value, "the result").dtype
    check_out(out, Shapes(shape, (1, 1, 1), (1, 1, 1), ()), dtype, library)
    is_shared = (
        library.name == "torch"
        and out.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    )
    # NumPy copies what overlaps by itself
    out[...] = value.clone() if is_shared else value
    return out
