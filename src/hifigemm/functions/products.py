"""The products that one call of a function makes, and one report of all of them."""

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
from hifigemm.libraries import AnyArray, library_of
from hifigemm.operands import Shapes, as_out, check_out
from hifigemm.plan import Report
from hifigemm.schemes import Scheme
from hifigemm.transforms import belongs_to_torch, check_untraced, is_traced, opaque

if TYPE_CHECKING:
    from hifigemm.signatures import SchemeName


@dataclass(frozen=True)
class ChainReport:
    """The reports of a chain of products, and the error bound of the whole.

    The intermediate results of a chain are rounded.

    Attributes
    ----------
    reports : tuple of Report
        The reports of the products, in the order in which they were made. Indices that
        only one operand of `einsum` has may be summed by a product with ones.
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
        """The r of |C - exact| <= r |A||B||C|....

        It is the product of (1 + r_i + u_i)^uses_i, less 1, and holds if no
        intermediate result overflows or lies in the range of the subnormal numbers.
        """
        logarithms = []
        for report, u, uses in zip(self.reports, self.roundoffs, self.uses):
            logarithms.append(uses * math.log1p(report.bound + u))
        try:
            total = math.fsum(logarithms)
            growth = math.expm1(total)
        except OverflowError:
            return math.inf
        # The logarithms, their sum and expm1 are rounded; an error of the sum is one of
        # its exponential, relative to it.
        return growth * (1 + 2.0**-48 * max(total, 1.0))

    def __str__(self) -> str:
        count = len(self.reports)
        head = f"ChainReport: {count} products, |C - exact| <= {self.bound:.3g} times the product of the magnitudes"
        return _listed(head, self.reports)


@dataclass(frozen=True)
class BlocksReport:
    """The reports of a result whose blocks are products by themselves.

    Attributes
    ----------
    reports : tuple of Report
        The reports of the blocks, in the order in which they were made.
    """

    reports: tuple[Report, ...]

    @property
    def bound(self) -> float:
        """The r of |C - AB| <= r |A||B| + u |AB| that is guaranteed in every block."""
        return max(report.bound for report in self.reports)

    @property
    def correct(self) -> bool:
        """True if every real component is the correctly rounded exact value."""
        return all(report.correct for report in self.reports)

    def __str__(self) -> str:
        rounding = ", correctly rounded" if self.correct else ""
        head = f"BlocksReport: {len(self.reports)} blocks, bound {self.bound:.3g} |A||B|{rounding}"
        return _listed(head, self.reports)


def _listed(head: str, reports: Sequence[Report]) -> str:
    """A head line, and a line for each report."""
    lines = [head]
    for i, report in enumerate(reports):
        bound = f"{report.bound:.3g} |A||B|"
        lines.append(f"  {i}  {report.scheme}, bound {bound}: {report.reason}")
    return "\n".join(lines)


class Products:
    """The products of one call, and their reports if `return_report`."""

    def __init__(
        self,
        accuracy: Accuracy,
        scheme: SchemeName | Scheme,
        engine: str | None,
        workspace: int | None,
        return_report: bool,
    ) -> None:
        self.accuracy = accuracy
        self.return_report = return_report
        self.options: dict[str, Any] = {
            "accuracy": accuracy,
            "scheme": scheme,
            "engine": engine,
            "workspace": workspace,
        }
        self.count = 0
        self.reports: list[Report] = []
        self.roundoffs: list[float] = []

    def __call__(self, a: Any, b: Any) -> AnyArray:
        """A B, by `matmul`."""
        result = matmul(a, b, **self.options, return_report=self.return_report)
        return self._value_of(result)

    def with_transpose(self, a: AnyArray, b: AnyArray, conjugate: bool) -> AnyArray:
        """A B for B = A^T or A^H, with the lower triangle mirrored.

        A GPU computes the lower triangle only.
        """
        if belongs_to_torch(a, b) or is_traced(a):
            return mirrored(self(a, b), conjugate)
        options = {
            **self.options,
            "return_report": self.return_report,
            "mirror": "C" if conjugate else "T",
        }
        return self._value_of(product_of_numbers(a, b, **options))

    def _value_of(self, result: Any) -> AnyArray:
        """The value of a result of `matmul`, whose report is added to `reports`."""
        self.count += 1
        if not self.return_report:
            return result
        value, report = result
        self.reports.append(report)
        self.roundoffs.append(unit_roundoff(value))
        return value

    def check_chain(self, count: int, why: str) -> None:
        """Raise PlanError for "correct" or a relative error of two products or more.

        Each of the `count` products but the first has the result of another one as an
        operand.
        """
        accuracy = self.accuracy
        # An array is no accuracy, which the first product says.
        if count < 2 or accuracy is None or isinstance(accuracy, np.ndarray):
            return
        if isinstance(accuracy, Relative) or accuracy == "correct" or accuracy == 0:
            raise PlanError(
                f"accuracy={accuracy!r} is promised for one product, and {why} takes {count}, one on the result "
                f"of another: the {count - 1} intermediate results are rounded. Ask for a number or a level, which "
                "each product keeps; the report then bounds the error of the whole; "
                '"Three factors" in docs/functions.md is a way without that loss'
            )

    def chain(
        self, value: AnyArray, out: object, uses: Sequence[int] | None = None
    ) -> Any:
        """The result of a call that ends with this value.

        It comes with a report if `return_report`.
        """
        report: Report | ChainReport
        if len(self.reports) == 1:
            report = self.reports[0]
        else:
            if uses is None:
                uses = [1] * len(self.reports)
            report = ChainReport(
                tuple(self.reports), tuple(self.roundoffs), tuple(uses)
            )
        return self._deliver(value, out, report)

    def blocks(self, value: AnyArray, out: object) -> Any:
        """The result of a call whose products are blocks of this value.

        It comes with a report if `return_report`.
        """
        report: Report | BlocksReport
        if len(self.reports) == 1:
            report = self.reports[0]
        else:
            report = BlocksReport(tuple(self.reports))
        return self._deliver(value, out, report)

    def _deliver(
        self, value: AnyArray, out: object, report: Report | ChainReport | BlocksReport
    ) -> Any:
        """The result of a call, in `out` unless that is None."""
        check_untraced(
            {"the result": value},
            engine=self.options["engine"],
            out=out,
            return_report=self.return_report,
        )
        if self.count == 0:
            # No product has checked them.
            check_options(**self.options, like=value)
        out = as_out(out)
        if out is not None:
            value = _written(value, out)
        elif isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]  # a scalar, as NumPy has it
        return (value, report) if self.return_report else value


@opaque
def _written(value: Any, out: Any) -> Any:
    """`out`, filled with a result; both may share memory.

    Raises TypeError, ValueError: another shape, library or device, a dtype that would
    round.
    """
    library = library_of(("the result", value), ("out", out))
    shape = shape_of(value)
    if hasattr(out, "shape") and shape_of(out) != shape:
        raise ValueError(f"out has shape {shape_of(out)}; the result has shape {shape}")
    dtype = library.asarray(value, "the result").dtype
    check_out(out, Shapes(shape, (1, 1, 1), (1, 1, 1), ()), dtype, library)

    # NumPy copies what overlaps by itself.
    if library.name == "torch":
        address = value.untyped_storage().data_ptr()
        if out.untyped_storage().data_ptr() == address:
            value = value.clone()
    out[...] = value
    return out
