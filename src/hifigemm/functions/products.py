"""The products that one call of a function computes, and one report for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.api import matmul
from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.base.transforms import belongs_to_torch, check_untraced, is_traced, opaque
from hifigemm.functions.three_factors import (
    ThreeFactors,
    ThreeFactorsReport,
    product_of_three,
)
from hifigemm.functions.verbs import (
    ROUNDOFFS,
    as_arrays,
    as_objects,
    dtype_name,
    dtype_of_product,
    mirrored,
    never_wrap,
    plain_arrays,
    promoted,
    shape_of,
    unit_roundoff,
)
from hifigemm.libraries import AnyArray, library_of
from hifigemm.model.accuracy import Accuracy, Invariant, Relative
from hifigemm.model.plan import Report
from hifigemm.operands.operands import Shapes, as_out, check_out
from hifigemm.running.admission import check_options
from hifigemm.running.integers import EntriesBeyond
from hifigemm.running.products import product_of_numbers
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName


@dataclass(frozen=True)
class ChainReport:
    """The reports of a chain of products, and the error bound of the whole.

    The intermediate results of a chain are rounded.

    Attributes
    ----------
    reports : tuple of Report
        The reports of the products, in the order of computation. A product with ones
        may sum an index that only one operand of `einsum` has.
    roundoffs : tuple of float
        The unit roundoff of each product's dtype.
    uses : tuple of int
        How often each product enters the result as a factor: once, except in powers.
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
    """The reports of a result whose blocks are separate products.

    Attributes
    ----------
    reports : tuple of Report
        The reports of the blocks, in the order of computation.
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


@dataclass(frozen=True)
class Chain:
    """The products of a chain, before they are made.

    Attributes
    ----------
    why : str
        What takes them, for messages.
    roundoffs : tuple of float
        The unit roundoff of each product's dtype, in the order in which they are made;
        0 for exact products of integers.
    uses : tuple of int
        How often each product enters the result as a factor, the last one once.
    """

    why: str
    roundoffs: tuple[float, ...]
    uses: tuple[int, ...]

    @property
    def rounds_between(self) -> bool:
        """True if a product takes the rounded result of another one."""
        return any(self.roundoffs[:-1])

    @property
    def least(self) -> float:
        """The least r for which |D - exact| <= r |A||B||C|... + u |exact| may hold.

        It is what the roundings of the intermediate results add up to.
        """
        return _least(self.roundoffs, self.uses)

    def share(self, r: float) -> float:
        """The accuracy of each product with which the chain keeps r; 0 if none does."""
        return _share(r, self.roundoffs, self.uses)


def _least(roundoffs: tuple[float, ...], uses: tuple[int, ...]) -> float:
    """The product of all (1 + u_i)**uses_i, less 1 and the last u_i."""
    try:
        return math.expm1(_roundings(roundoffs, uses)) - roundoffs[-1]
    except OverflowError:
        return math.inf


def _share(r: float, roundoffs: tuple[float, ...], uses: tuple[int, ...]) -> float:
    """An s for which the product of all (1 + s + u_i)**uses_i is at most 1 + r + u.

    u is the last u_i. log(1 + s + u_i) is at most log(1 + u_i) + s, so that n shares s
    may take what the roundings leave of log(1 + r + u). Exact products take none.
    """
    if r <= _least(roundoffs, uses):
        return 0.0
    total = math.log1p(r + roundoffs[-1])
    num_shares = sum([n for n, u in zip(uses, roundoffs) if u])
    # Logarithms, sums and the quotient are rounded.
    spare = total * (1 - 2.0**-45) - _roundings(roundoffs, uses)
    return max(spare / num_shares, 0.0)


def _roundings(roundoffs: tuple[float, ...], uses: tuple[int, ...]) -> float:
    """The logarithm of the product of all (1 + u_i)**uses_i."""
    return math.fsum([n * math.log1p(u) for n, u in zip(uses, roundoffs)])


# torch.compiler.assume_constant_result
_least._dynamo_marked_constant = True  # type: ignore[attr-defined]
_share._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
        self.accuracy_of_each = accuracy
        self.scheme = scheme
        self.engine = engine
        self.workspace = workspace
        self.return_report = return_report
        self.is_exact = False
        self.count = 0
        self.num_products = 1
        self.reports: list[Report] = []
        self.roundoffs: list[float] = []
        self.report_of_three: ThreeFactorsReport | None = None

    def arrays(self, **operands: Any) -> list[AnyArray]:
        """The operands of the call by their names, see `as_arrays`."""
        arrays = plain_arrays(operands.values())
        return self._checked(*operands.items()) if arrays is None else arrays

    def numbered(self, name: str, operands: Sequence[Any]) -> list[AnyArray]:
        """The operands of the call, called by one name and their numbers."""
        arrays = plain_arrays(operands)
        if arrays is not None:
            return arrays
        return self._checked(*[(f"{name} {i}", x) for i, x in enumerate(operands)])

    def _checked(self, *operands: tuple[str, Any]) -> list[AnyArray]:
        """The named operands of the call.

        Where one of them holds integers that never wrap around, as those of Python, all
        integers of the call are exact, those of intermediate results too.
        """
        arrays = as_arrays(*operands)
        self.is_exact = never_wrap(operands, arrays)
        return arrays

    def __call__(
        self, a: Any, b: Any, arranged: Callable[[Any], Any] | None = None
    ) -> AnyArray:
        """A B, by `matmul`; `arranged` makes of it what it returns.

        Raises AccuracyError: an entry of integers beyond their dtype, which were to be
        exact. It is named by its place in what is returned.
        """
        if isinstance(a, np.ndarray) and a.dtype.kind in "biuO":
            result = self._of_integers(a, b, arranged)
        else:
            result = self._matmul(a, b)
        value = self._value_of(result)
        return value if arranged is None else arranged(value)

    def _matmul(self, a: Any, b: Any) -> Any:
        """What `matmul` makes of two operands."""
        return matmul(
            a,
            b,
            accuracy=self.accuracy_of_each,
            scheme=self.scheme,
            engine=self.engine,
            workspace=self.workspace,
            return_report=self.return_report,
        )

    def _of_integers(
        self, a: Any, b: Any, arranged: Callable[[Any], Any] | None
    ) -> Any:
        """What `matmul` makes of arrays of NumPy, the first of integers or objects.

        As objects integers do not wrap around, whatever the dtypes of intermediate
        results.
        """
        if self.is_exact:
            a = as_objects(a)
            b = as_objects(b)
        try:
            return self._matmul(a, b)
        except EntriesBeyond as error:
            words = str(error)
            if arranged is not None:
                numbers = np.arange(math.prod(error.shape)).reshape(error.shape)
                words = error.named(arranged(numbers))
            if self.num_products > 1:
                words = f"product {self.count + 1} of {self.num_products}: {words}"
            raise AccuracyError(words) from None

    def with_transpose(self, a: AnyArray, b: AnyArray, conjugate: bool) -> AnyArray:
        """A B for B = A^T or A^H, with the lower triangle mirrored.

        A GPU computes the lower triangle only.
        """
        if belongs_to_torch(a, b) or is_traced(a):
            return mirrored(self(a, b), conjugate)
        if self.is_exact:
            a = as_objects(a)
            b = as_objects(b)
        result = product_of_numbers(
            a,
            b,
            self.accuracy_of_each,
            self.scheme,
            engine=self.engine,
            workspace=self.workspace,
            return_report=self.return_report,
            mirror="C" if conjugate else "T",
        )
        return self._value_of(result)

    def _value_of(self, result: Any) -> AnyArray:
        """The value of a result of `matmul`, whose report is added to `reports`."""
        self.count += 1
        if not self.return_report:
            return result
        value, report = result
        self.reports.append(report)
        self.roundoffs.append(unit_roundoff(value))
        return value

    def promoted(self, arrays: list[AnyArray]) -> list[AnyArray]:
        """Several operands of the call in the dtype that they promote to.

        Exact integers become objects where NumPy would promote them to float64.
        """
        if len(arrays) == 1:
            return arrays
        if self.is_exact and {x.dtype.kind for x in arrays} <= set("biuO"):
            arrays = [as_objects(x) for x in arrays]
        return promoted(arrays)

    def dtype_names(self, arrays: Sequence[AnyArray]) -> list[str]:
        """The names of the dtypes in which products have the numbers of these arrays.

        Integers that are exact stay integers, whatever their dtypes.
        """
        names = [dtype_name(x) for x in arrays]
        if not self.is_exact:
            return names
        return ["int64" if "int" in name else name for name in names]

    def roundoff(self, x: AnyArray) -> float:
        """The unit roundoff of products of arrays with the dtype of x."""
        (name,) = self.dtype_names([x])
        return ROUNDOFFS.get(dtype_of_product(name, name), 0.0)

    def begin(self, chain: Chain) -> None:
        """Give each product its share of the accuracy that is asked of the chain.

        Levels, and None, are those of each product.

        Raises PlanError: "correct", a relative error or a number that the chain does
        not keep.
        """
        if not chain.rounds_between or not self.binds_result:
            return
        accuracy: Any = self.accuracy
        count = len(chain.roundoffs)
        if self._is_of_each_entry:
            raise PlanError(
                f"accuracy={accuracy!r} is promised for one product and for A B C with the default scheme, and "
                f"{chain.why} takes {count}, one on the result of another: the {count - 1} intermediate results are "
                "rounded. Ask for a number, which the result keeps, or a level, which each product keeps; the report "
                'then bounds the error of the whole. "Longer chains" in docs/three-factors.md shows '
                "how to lose almost nothing: keep each intermediate result as a pair"
            )
        share = chain.share(float(accuracy))
        if share == 0.0:
            raise PlanError(
                f"accuracy={accuracy!r}: {chain.why} takes {count} products, one on the result of another, and the "
                f"roundings of the {count - 1} intermediate results alone may add up to {chain.least:.3g} times the "
                f"product of the magnitudes. Ask for {1.01 * chain.least:.3g} or more, or for a level, which each "
                "product keeps"
            )
        self.accuracy_of_each = share

    def needs_three_factors(self, chain: Chain) -> bool:
        """True if this chain of two products is to be rounded once: its accuracy is one
        that rounding in between does not keep, and the scheme is the default.
        """
        is_default = self.scheme == "auto" and self.engine is None
        is_of_three = len(chain.roundoffs) == 2 and chain.uses == (1, 1)
        if not (is_default and is_of_three and chain.rounds_between):
            return False
        if not self.binds_result:
            return False
        return self._is_of_each_entry or chain.share(float(self.accuracy)) == 0.0  # type: ignore[arg-type]

    def of_three(self, factors: ThreeFactors) -> AnyArray:
        """The product of three factors, rounded once, with its report."""
        value, self.report_of_three = product_of_three(factors, self.workspace)
        return value

    @property
    def _is_of_each_entry(self) -> bool:
        """True if the accuracy is held against each entry, however much terms cancel."""
        accuracy: Any = self.accuracy
        by_entry = isinstance(accuracy, Relative | Invariant)
        return by_entry or accuracy == "correct" or accuracy == 0

    @property
    def binds_result(self) -> bool:
        """True if the accuracy is one that the result of a chain has to keep."""
        accuracy: Any = self.accuracy
        if accuracy is None:
            return False
        if isinstance(accuracy, str):
            return accuracy == "correct"
        # Other numbers, and what is no accuracy, raise in the first product.
        is_number = isinstance(accuracy, Real) and not isinstance(accuracy, bool)
        by_entry = isinstance(accuracy, Relative | Invariant)
        return by_entry or bool(is_number and 0 <= accuracy < 1)

    def chain(
        self, value: AnyArray, out: object, uses: Sequence[int] | None = None
    ) -> Any:
        """The result of a call that ends with this value.

        It comes with a report if `return_report`.
        """
        report: Report | ChainReport | ThreeFactorsReport | None = self.report_of_three
        if report is not None:
            return self._deliver(value, out, report)
        if len(self.reports) == 1:
            report = self.reports[0]
        elif self.return_report:
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
        report: Report | BlocksReport | None = None
        if len(self.reports) == 1:
            report = self.reports[0]
        elif self.return_report:
            report = BlocksReport(tuple(self.reports))
        return self._deliver(value, out, report)

    def _deliver(self, value: AnyArray, out: object, report: object) -> Any:
        """The result of a call, in `out` unless that is None."""
        if out is not None or self.engine is not None or self.return_report:
            check_untraced(
                {"the result": value},
                engine=self.engine,
                out=out,
                return_report=self.return_report,
            )
        if self.count == 0:
            # No product has checked them.
            check_options(
                self.accuracy, self.scheme, self.engine, self.workspace, value
            )
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
