"""Frozen, printable data that flows from `matmul` to the result: Problem, Plan, Split, Product, Report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.exceptions import PlanError
from hifigemm.formats import FP32, FP64, Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import BLOCK_ENTRIES

if TYPE_CHECKING:
    from hifigemm.libraries import Library
    from hifigemm.schemes.scheme import Scheme

__all__ = [
    "Block",
    "DefaultWorkspace",
    "Outliers",
    "Plan",
    "Prepared",
    "Problem",
    "Product",
    "ProductSpec",
    "Report",
    "Split",
    "counted",
    "fit_blocks",
    "steady",
]


@dataclass(frozen=True)
class Problem:
    """A stack of `batch` products of m x k by k x n matrices with a common result dtype.

    `narrow` is FP16 or BF16 where both operands have that format; their dtype promotes to float32.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    narrow: Format | None = None

    @property
    def is_complex(self) -> bool:
        """Whether the result is complex; re and im are then rounded separately."""
        return self.dtype.kind == "c"

    @property
    def fmt(self) -> Format:
        """Format of the (real components of the) result."""
        return FP32 if self.dtype in (np.float32, np.complex64) else FP64

    @property
    def terms(self) -> int:
        """Real products in the sum behind a real component of the result."""
        return 2 * self.k if self.is_complex else self.k

    @property
    def multiplications(self) -> int:
        """Of entries, in all sums; 0 where a dimension is."""
        return self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        stack = f"{self.batch} x " if self.batch != 1 else ""
        operands = f" of {self.narrow.name} operands" if self.narrow is not None else ""
        return f"{stack}({self.m} x {self.k}) @ ({self.k} x {self.n}) {self.dtype}{operands}"


@dataclass(frozen=True)
class ProductSpec:
    """One kind of low-precision product that an engine offers.

    Attributes
    ----------
    operand : Format
        Format of the words that are multiplied.
    accumulator_max : int
        Integers up to this magnitude are added without rounding.
    max_integer : int
        Largest magnitude of an integer operand.
    k_block : int
        Inner length of one exact product on which slice sizes are based; sums over longer k are carried on in int64.
    """

    operand: Format
    accumulator_max: int
    max_integer: int
    k_block: int

    @property
    def name(self) -> str:
        """Name of the operand format, as schemes spell it."""
        return self.operand.name


@dataclass(frozen=True)
class Block:
    """A part of the result: entries batch, rows, cols of the stack."""

    batch: slice
    rows: slice
    cols: slice

    @property
    def entries(self) -> tuple[slice, slice, slice]:
        """Where the block lies in the result."""
        return self.batch, self.rows, self.cols

    def places(self, left: Any, right: Any) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where the rows of the left and the columns of the right operand lie; a stack of one is for all blocks."""
        first, second = (self.batch if len(x) > 1 else slice(None) for x in (left, right))
        return (first, self.rows), (second, slice(None), self.cols)

    def operands(self, left: Any, right: Any) -> tuple[Any, Any]:
        """The rows of the left and the columns of the right operand that make the block."""
        at_left, at_right = self.places(left, right)
        return left[at_left], right[at_right]


@dataclass(frozen=True)
class Outliers:
    """Rows and columns that need more moduli than the others, so that the entries that they meet are computed apart.

    Attributes
    ----------
    num_moduli : int
        For the entries of all other rows and columns.
    shared : int
        For entries of a wide row with the other columns and the other way round; all vectors have so many residues.
    lowered : int
        Bits by which scales lie below those of `shared` moduli, so that `num_moduli` hold the products; those of wide
        rows and columns lie as many above.
    balance : int
        Bits that rows get at the expense of columns.
    rows, cols : tuple of int
    """

    num_moduli: int
    shared: int
    lowered: int
    balance: int
    rows: tuple[int, ...]
    cols: tuple[int, ...]

    def __str__(self) -> str:
        vectors = f"{counted(len(self.rows), 'row')} and {counted(len(self.cols), 'column')}"
        return f"{self.num_moduli} moduli without {vectors}"

    def num_products(self, problem: Problem, count: int) -> float:
        """Products of size m n k that are made where `count` moduli hold the entries of wide rows in wide columns."""
        rows, cols = len(self.rows) / problem.m, len(self.cols) / problem.n
        return self.num_moduli + self.shared * (rows + cols) + count * rows * cols


@dataclass(frozen=True)
class Plan:
    """What will run for a problem. Immutable, reusable for operands of the same k and dtype, and printable.

    Attributes
    ----------
    scheme : Scheme
        The dataclass with its counts filled in.
    target : Target
        What was asked for; `bound` is what is promised.
    product : ProductSpec or None
        None for the native product.
    num_products : int
        Low-precision products of size m n k, before any escalation.
    k_block : int
        Inner length within which products are exact.
    reason : str
    fixed : bool
        The counts were forced, so that they are not escalated.
    slice_bits : int
        beta of Ozaki scheme I.
    balance : int
        Bits that Ozaki scheme II gives to the left operand at the expense of the right one.
    block_entries, most_block_entries : int
        Entries of an operand or of the result that are worked on at a time, and the engine's limit for that.
    free : bool
        The scheme is the library's choice, so that another one may take over where it has no more to give.
    fallback : bool
        The native product as the library's choice where it does not keep the target, which strict mode refuses.
    worst_case : float
        Error / |A||B| of a native product, where the plan may come down to one; 0 elsewhere.
    exact : bool
        The integers of the operands the plan was made for hold all their bits, so that the exact product is rounded.
    promised : bool
        Every entry keeps the target, as was seen from the operands the plan was made for: nothing is judged.
    hopeful : bool
        `promised` is a guess that the engine checks while it multiplies.
    gated : bool
        The engine decides by the operands between the scheme and a product in the result's format, and the host never
        learns which was taken. Either keeps `bound`, so nothing is judged.
    choices : tuple of Scheme
        Where it is not empty, the engine takes the first of these schemes whose words hold the exponents of the
        operands, decided on the device; `scheme` is the first. Each keeps `bound`, so nothing is judged.
    wide : Outliers or None
        Of an exact plan: rows and columns that are set apart. Where they meet, all moduli of the scheme are needed.
    fused : bool
        The engine's kernels hold nothing but residues or slices while nothing is judged.
    block_shape : tuple of int
        Matrices of the stack, rows and columns of the result that are computed at a time.
    workspace : int
        Bytes that the largest block takes.
    """

    problem: Problem
    scheme: Scheme
    target: Target
    engine: str
    product: ProductSpec | None
    num_products: int
    k_block: int
    reason: str
    fixed: bool = False
    slice_bits: int = 0
    balance: int = 0
    block_entries: int = BLOCK_ENTRIES
    most_block_entries: int = BLOCK_ENTRIES
    free: bool = False
    fallback: bool = False
    worst_case: float = 0.0
    exact: bool = False
    promised: bool = False
    hopeful: bool = False
    gated: bool = False
    choices: tuple[Scheme, ...] = ()
    outliers: Outliers | None = None
    fused: bool = False
    block_shape: tuple[int, int, int] = (1, 1, 1)
    workspace: int = 0

    @property
    def words(self) -> ProductSpec:
        """The product of a scheme that works with words of its own."""
        if self.product is None:
            raise PlanError(f"{self.scheme} has no product but the native one")
        return self.product

    @property
    def bound(self) -> float:
        """The r that is promised: that of the target, or the worst case of a native product accepted at its level."""
        return max(self.target.r, self.worst_case)

    @property
    def certifies(self) -> bool:
        """Whether anything is to be said of the error: as a promise or for the report."""
        accepted = self.promised or self.exact or self.gated or bool(self.choices)
        return not accepted and (self.target.states_bound or math.isfinite(self.target.r))

    @property
    def layout(self) -> tuple[object, ...]:
        """What two plans must share for a split made by one to serve the other."""
        return self.scheme, self.target, self.slice_bits, self.balance

    @property
    def is_whole(self) -> bool:
        """Whether the result is one block."""
        p = self.problem
        return self.block_shape == (p.batch, p.m, p.n)

    def blocks(self) -> Iterator[Block]:
        """Blocks of the result, columns outermost. Their size bounds the workspace and has no influence on any bit."""
        batch, rows, cols = self.block_shape
        p = self.problem
        for z in range(0, p.batch, max(batch, 1)):
            for j in range(0, p.n, max(cols, 1)):
                for i in range(0, p.m, max(rows, 1)):
                    yield Block(
                        slice(z, min(z + batch, p.batch)), slice(i, min(i + rows, p.m)), slice(j, min(j + cols, p.n))
                    )

    def __str__(self) -> str:
        product = "native" if self.product is None else self.product.name
        accuracy = str(replace(self.target, r=self.bound))
        if self.bound > self.target.r:
            accuracy += f": the worst case of a native product{self.target.accepts(self.bound)}"
        lines = [
            ("problem", str(self.problem)),
            ("accuracy", accuracy),
            ("scheme", ", else ".join(map(str, self.choices or (self.scheme,)))),
            ("products", f"{self.num_products} x {product}"),
            ("engine", self.engine),
            ("k_block", str(self.k_block)),
            ("blocks", " x ".join(map(str, self.block_shape))),
            ("workspace", f"{self.workspace / 2**20:.1f} MiB"),
            ("reason", self.reason),
        ]
        return _table("Plan", lines)


@dataclass(frozen=True)
class Split:
    """An operand, or some of its rows (left) or columns (right), as integer planes on grids.

    Every array has the stack first, and the rows second to last on the left, the columns last on the right; planes that
    are `k_major` have rows or columns second to last. Arrays of an embedded complex operand have several rows or
    columns for each of the operand's.

    Attributes
    ----------
    side : "left" or "right"
    vectors : int
        Number of rows (left) or columns (right).
    planes : array
        Slices or residues in the dtype of the product, laid out as the scheme's products want them.
    unit : int64 array
        Exponent of the grid of the integers, a row_exponent or col_exponent.
    count : int
        Number of planes.
    facts : dict of str to array
        What the scheme needs to judge the result: see the scheme.
    k_major : bool
        The inner dimension of `planes` is the last one on both sides.
    """

    side: str
    vectors: int
    planes: Array
    unit: Array
    count: int
    facts: dict[str, Array] = field(default_factory=dict)
    k_major: bool = False

    def take(self, batch: slice, vectors: slice) -> Split:
        """The split of some rows (left) or columns (right) of some matrices of the stack."""

        def cut(x: Array, rows: bool) -> Array:
            width = x.shape[-2 if rows else -1] // self.vectors
            where = slice(vectors.start * width, vectors.stop * width)
            x = x[batch] if x.shape[0] != 1 else x
            return x[..., where, :] if rows else x[..., where]

        left = self.side == "left"
        facts = {name: cut(x, left) for name, x in self.facts.items()}
        count = vectors.stop - vectors.start
        planes = cut(self.planes, left or self.k_major)
        return Split(self.side, count, planes, cut(self.unit, left), self.count, facts, self.k_major)


@dataclass(frozen=True)
class Product:
    """Values of a block of the result.

    Attributes
    ----------
    values : array, shape (batch, m, n)
    certified : bool array of the same shape, or None
        The promise of the plan is kept for this entry; None for all entries.
    bound : float
        Largest error / |A||B| that is possible in the block beyond the last rounding; 0 where the exact value was
        rounded.
    num_products : int
        Low-precision products that were made.
    """

    values: Array
    certified: Array | None
    bound: float
    num_products: int


_Source_co = TypeVar("_Source_co", covariant=True)
"""The type of the array or tensor that was prepared."""


@dataclass(frozen=True, eq=False)
class Prepared(Generic[_Source_co]):
    """A copy of an operand with its split for one plan, to be used in place of the operand."""

    operand: Array
    split: Split | None
    side: str
    plan: Plan
    library: Library

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        return self.operand.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the operand."""
        return self.operand.dtype

    def __repr__(self) -> str:
        kept = counted(self.split.count, "plane") if self.split is not None else "no planes"
        return f"Prepared({self.side}, shape={self.shape}, {self.dtype}, {kept}, {self.plan.scheme})"


@dataclass(frozen=True)
class Report:
    """What was done and what is guaranteed.

    Attributes
    ----------
    scheme : Scheme
        The dataclass with its counts filled in.
    num_products : int
        Low-precision products of size m n k of slices, words or residues; escalated entries count by
        their share, rounded up. Products that only look at magnitudes are named in the reason.
    engine, device : str
    bound : float
        The r of |C - AB| <= r |A||B| + u |AB| that is guaranteed; no larger than `Plan.bound`.
    correct : bool
        Every real component is the correctly rounded exact value.
    native : bool
        The library's native product was taken.
    reason : str
    k_block : int
    workspace : int
        Bytes.
    decision_seconds : float
        Time that it took to choose the plan that was carried out, a look at the operands and an attempt that was given
        up included; on a GPU such a look waits for the work before it. What is looked at while the product is on its
        way is not counted. Two reports are equal whatever their times.
    """

    scheme: Scheme
    num_products: int
    engine: str
    device: str
    bound: float
    correct: bool
    native: bool
    reason: str
    k_block: int
    workspace: int
    decision_seconds: float = field(compare=False)

    def __str__(self) -> str:
        lines = [
            ("scheme", str(self.scheme)),
            ("products", str(self.num_products)),
            ("engine", f"{self.engine} on {self.device}"),
            ("bound", f"{self.bound:.3g} |A||B|" + (", correctly rounded" if self.correct else "")),
            ("native", "yes" if self.native else "no"),
            ("k_block", str(self.k_block)),
            ("workspace", f"{self.workspace / 2**20:.1f} MiB"),
            ("decision", f"{1e3 * self.decision_seconds:.3g} ms"),
            ("reason", self.reason),
        ]
        return _table("Report", lines)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 slice", "2 slices", or the plural that is given."""
    return f"{count} {one if count == 1 else many or one + 's'}"


class DefaultWorkspace(int):
    """Bytes to stay within that nobody asked for, so that one entry may take more; no equal of a limit that was.

    Parameters
    ----------
    nbytes : int
        What problem and engine say.
    free : int or None
        What the free memory allows, where it was looked at.

    Attributes
    ----------
    steady : int
        `nbytes`.
    """

    steady: int

    def __new__(cls, nbytes: int, free: int | None = None) -> DefaultWorkspace:
        """The smaller of the two."""
        self = super().__new__(cls, nbytes if free is None else min(nbytes, free))
        self.steady = nbytes
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultWorkspace) and (int(self), self.steady) == (int(other), other.steady)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((DefaultWorkspace, int(self), self.steady))


def steady(workspace: int) -> int:
    """The limit whatever memory is free, for what must not depend on that: bits that follow blocks, a choice."""
    return DefaultWorkspace(workspace.steady) if isinstance(workspace, DefaultWorkspace) else workspace


def fit_blocks(plan: Plan, need: Callable[[int, int, int], int], workspace: int) -> Plan:
    """The plan with the largest blocks for which need(batch, rows, cols) <= workspace bytes; the stack is cut first.

    One entry is always made where nobody asked for a limit.

    Raises
    ------
    PlanError
        Not even one entry fits.
    """
    p = plan.problem
    batch, rows, cols = max(p.batch, 1), max(p.m, 1), max(p.n, 1)
    while need(batch, rows, cols) > workspace:
        if batch > 1:
            batch = -(-batch // 2)
        elif rows == cols == 1:
            if isinstance(workspace, DefaultWorkspace):
                break
            raise PlanError(
                f"workspace of {workspace} bytes is too small: one entry of {p} by {plan.scheme} takes {need(1, 1, 1)}"
            )
        elif rows >= cols:
            rows = -(-rows // 2)
        else:
            cols = -(-cols // 2)
    return replace(plan, block_shape=(batch, rows, cols), workspace=need(batch, rows, cols))


def _table(title: str, lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join([title] + [f"  {name:<{width}}  {text}" for name, text in lines])
