"""Frozen, printable data of a product: Plan, Verification, Evidence, Split, Report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import Target
from hifigemm.model.invariance import UNKNOWN, Dependence, dependence
from hifigemm.model.problem import Block, Problem, ProductSpec, counted
from hifigemm.model.shown import Shown
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import BLOCK_ENTRIES
from hifigemm.numerics.integer_sums import NEAREST, Rounding


class Verification(Enum):
    """How it is known that the result keeps the bound of its plan."""

    NONE = "nothing is promised"
    """Counts were forced and no accuracy was asked for."""
    A_PRIORI = "the bound holds without a look at the result"
    """For any operands, or for those whose `Evidence` the plan was made with."""
    ON_DEVICE = "the device chooses by the operands between steps that keep the bound"
    ENTRYWISE = "entries are certified, the others are escalated to a finer plan"


@dataclass(frozen=True)
class Outliers:
    """Rows and columns that need more moduli than the others; their entries are
    computed separately.
    """

    num_moduli: int  # for the entries of all other rows and columns
    # for entries of an outlier row with the other columns and the other way round; all
    # vectors have so many residues
    shared: int
    # Ordinary vectors are scaled by 2**-lowered, outliers by 2**+lowered, relative to
    # the scale for `shared` moduli: so `num_moduli` hold the products of ordinary ones.
    lowered: int
    balance: int  # bits that rows get at the expense of columns
    rows: tuple[int, ...]
    cols: tuple[int, ...]

    def __str__(self) -> str:
        vectors = (
            f"{counted(len(self.rows), 'row')} and {counted(len(self.cols), 'column')}"
        )
        return f"{self.num_moduli} moduli without {vectors}"

    def of_fullest_block(self, rows: int, cols: int) -> Outliers:
        """The outliers of the fullest block of this size, moved to its start."""
        fullest = _fullest(self.rows, rows), _fullest(self.cols, cols)
        return replace(self, rows=fullest[0], cols=fullest[1])

    def num_products(self, problem: Problem, count: int) -> float:
        """Products of size m n k, if `count` moduli hold the entries of outlier rows
        and columns.
        """
        rows = len(self.rows) / problem.m
        cols = len(self.cols) / problem.n
        return self.num_moduli + self.shared * (rows + cols) + count * rows * cols


@dataclass(frozen=True)
class SeparateVectors:
    """Rows and columns whose exponents no moduli hold; their entries are sums of terms
    in words.
    """

    rows: tuple[int, ...]
    cols: tuple[int, ...]

    def __str__(self) -> str:
        sides = (self.rows, "row"), (self.cols, "column")
        vectors = [counted(len(x), name) for x, name in sides if x]
        return f"{' and '.join(vectors)} by sums in words"

    def of_fullest_block(self, rows: int, cols: int) -> SeparateVectors:
        """The separate vectors of the fullest block of this size, renumbered from its
        start.
        """
        return SeparateVectors(_fullest(self.rows, rows), _fullest(self.cols, cols))


def _fullest(vectors: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The numbers from 0 on, one for each vector in the fullest block."""
    counts = Counter(i // length for i in vectors)
    return tuple(range(max(counts.values(), default=0)))


@dataclass(frozen=True)
class Evidence:
    """Facts about the operands of one product, each None if not inspected."""

    # see numerics.scaling.required_bits; None too where operands need more bits than
    # the limit that was given
    required_bits: tuple[int, int] | None = None
    # see numerics.error_ratio
    error_ratio: float | None = None
    # see numerics.estimates.published_num_slices
    num_slices: tuple[int, bool] | None = None
    outliers: Outliers | None = None
    separate: SeparateVectors | None = (
        None  # the required bits are those of the other vectors
    )
    # the facts are those of A D and D**-1 B, see numerics.inner_scaling
    inner: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "apart" in state:  # its name when version 0.1.0 stored it
            state["separate"] = state.pop("apart")
        self.__dict__.update(state)


@dataclass(frozen=True)
class Blocking:
    """The sizes of blocks; they change no bit of an exact scheme."""

    # matrices of the stack, rows and columns of the result at a time
    shape: tuple[int, int, int] = (1, 1, 1)
    workspace: int = 0  # bytes that the largest block takes
    # entries of an operand or of the result that the plain functions work on at a time
    entries: int = BLOCK_ENTRIES
    # blocks take seven products of halves for eight, see numerics/strassen.py
    in_halves: bool = False


def blocks_of_shape(
    shape: tuple[int, int, int], block: tuple[int, int, int]
) -> Iterator[Block]:
    """Blocks of a stack of results (batch, m, n), columns outermost."""
    count, m, n = shape
    batch, rows, cols = block
    for z in range(0, count, max(batch, 1)):
        for j in range(0, n, max(cols, 1)):
            for i in range(0, m, max(rows, 1)):
                yield Block(
                    slice(z, min(z + batch, count)),
                    slice(i, min(i + rows, m)),
                    slice(j, min(j + cols, n)),
                )


class Choice(Protocol):
    """The part of a scheme that a report uses, in addition to its text; see
    `schemes.Scheme`.
    """

    @property
    def is_native(self) -> bool:
        """True if the engine's library computes the product."""

    def describe_products(self, num_products: int, name: str = "") -> str:
        """The products, as a line of a plan or report."""


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """The scheme, its counts and its bound for a product; ``print(plan)`` explains
    them.

    A plan is immutable. It serves all operands with the same k and dtype. `make_plan`
    returns one.

    Attributes
    ----------
    problem : Problem
        Shapes and dtype of the product.
    asked : Scheme or None
        The scheme that you named; None if the library chose.
    scheme : Scheme
        The dataclass with its counts filled in.
    alternatives : tuple of Scheme
        Other schemes that a device may choose for the operands; each keeps the bound.
    num_products : int
        Low-precision products of size m n k, before a finer scheme computes any entry
        again.
    bound : float
        The promised r of |C - AB| <= r |A||B| + u |AB|: 0 if the exact product is
        rounded, infinite if the plan promises nothing, or only an error relative to
        norms (`Invariant`).
    invariant : bool
        True if a row of the result has the same bits in every batch and order of rows,
        columns and terms, on every engine and device.
    bits_depend_on : frozenset of str
        What the bits of a row may depend on, in addition to the row, the columns of B
        and the request: "other rows", "other columns", "shape", "k", "order of k",
        "engine", "device", "version". Empty for correct rounding. For an invariant plan
        at most "k", the number of terms including zeros.
    verification : Verification
        How the library knows that the bound holds.
    k_block : int
        Number of terms in a block of k.
    k_span : int
        Length of a span of k. Each span has its own rounded sum; the sums of all spans
        are added last. 0 if k is not cut into spans.
    workspace : int
        Bytes of memory in addition to operands and result.
    engine, reason : str
        What multiplies, and why this scheme.
    """

    problem: Problem
    # Schemes are Any here: users of a plan know the class and read its fields.
    asked: Any  # the scheme that was forced; None for the library's choice
    scheme: Any  # the dataclass with its counts filled in
    target: Target  # what was asked for
    engine: str
    product: ProductSpec | None  # None for the native product
    num_products: int  # low-precision products of size m n k, before any escalation
    k_block: int  # inner length within which products are exact
    verification: Verification
    # the r that is promised: 0 where the exact product is rounded, inf where nothing is
    # promised
    bound: float
    reason: str
    # schemes to which the device goes on, in this order; each keeps `bound`
    alternatives: tuple[Any, ...] = ()
    # Facts about the operands of the plan. A plan for any operands has only the facts
    # that balance its scales.
    evidence: Evidence | None = None
    blocking: Blocking = Blocking()
    # what is made of exact sums, by executables that round so
    rounding: Rounding = NEAREST
    # Terms of a span of k, see numerics.spans; 0 for all terms. A plan for another
    # shape keeps it, because its bound counts the sums of spans.
    k_span: int = 0

    def __hash__(self) -> int:
        """Kept, because plans are parts of keys."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, x.name) for x in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which differs in another process."""
        return {name: x for name, x in self.__dict__.items() if name != "_hash"}

    @cached_property
    def spec(self) -> ProductSpec:
        """The engine's product of a scheme that has one.

        Raises PlanError: the native product.
        """
        if self.product is None:
            raise PlanError(f"{self.scheme} has no product but the native one")
        return self.product

    @cached_property
    def is_fixed(self) -> bool:
        """True if counts were forced; they are not raised then."""
        return self.asked is not None and self.asked.explicit

    @cached_property
    def certifies(self) -> bool:
        """True if the error of every entry is bounded, for a promise or for the report."""
        if self.verification is Verification.NONE:
            return self.target.states_bound
        return self.verification is Verification.ENTRYWISE

    @property
    def invariant(self) -> bool:
        """True if nothing but the number of terms is among `bits_depend_on`."""
        return dependence_of_plan(self).is_invariant

    @property
    def bits_depend_on(self) -> frozenset[str]:
        """What the bits of a row of the result may depend on."""
        return dependence_of_plan(self).causes

    @property
    def split_key(self) -> tuple[object, ...]:
        """The fields that two plans must share if one is to use the split of the
        other.
        """
        return self.scheme, self.target, self.evidence, self.alternatives

    @cached_property
    def block_shape(self) -> tuple[int, int, int]:
        """Matrices of the stack, rows and columns of the result that are computed at a
        time.
        """
        return self.blocking.shape

    @cached_property
    def workspace(self) -> int:
        """Bytes that the largest block takes."""
        return self.blocking.workspace

    @cached_property
    def is_whole(self) -> bool:
        """True if the result is one block."""
        return self.blocking.shape == self.problem.shape

    def blocks(self) -> Iterator[Block]:
        """Blocks of the result, columns outermost. Their size bounds the workspace and
        has no influence on any bit.
        """
        p = self.problem
        return blocks_of_shape((p.batch, p.m, p.n), self.block_shape)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as numbers, texts, lists and dicts; schemes are texts."""
        p = self.problem
        sizes = {"batch": p.batch, "m": p.m, "n": p.n, "k": p.k, "dtype": str(p.dtype)}
        return {
            "problem": sizes,
            "accuracy": str(self.target),
            "asked": None if self.asked is None else str(self.asked),
            "scheme": str(self.scheme),
            "alternatives": [str(scheme) for scheme in self.alternatives],
            "num_products": self.num_products,
            "bound": float(self.bound),
            "verification": self.verification.value,
            "invariant": self.invariant,
            "bits_depend_on": sorted(self.bits_depend_on),
            "k_block": self.k_block,
            "k_span": self.k_span,
            "workspace": self.workspace,
            "engine": self.engine,
            "reason": self.reason,
        }

    def _line(self) -> str:
        schemes = ", else ".join(map(str, (self.scheme, *self.alternatives)))
        return f"{self.problem}, {self.target}, {schemes} on {self.engine}"

    def _lines(self) -> list[tuple[str, str]]:
        product = "" if self.product is None else self.product.name
        products = self.scheme.describe_products(self.num_products, product)
        bound = self.target.r if self.bound == 0 else self.bound
        accuracy = str(replace(self.target, r=bound))
        if bound > self.target.r:
            accepted = self.target.accepts(bound)
            accuracy += f": the worst case of a native product{accepted}"
        k_block = str(self.k_block)
        if self.k_span:
            k_block += f", in spans of {self.k_span}"
        strassen = ""
        if self.blocking.in_halves:
            strassen = ", each of seven halves for eight (Strassen)"
        return [
            ("problem", f"{self.problem}, and others of this k and dtype"),
            ("accuracy", accuracy),
            ("verified", self.scheme.describe_verification(self)),
            ("row bits", f"depend on {dependence_of_plan(self)}"),
            ("scheme", ", else ".join(map(str, (self.scheme, *self.alternatives)))),
            ("products", products + strassen),
            ("engine", self.engine),
            ("k_block", k_block),
            ("blocks", " x ".join(map(str, self.block_shape))),
            ("workspace", f"{self.workspace / 2**20:.1f} MiB"),
            ("reason", self.reason),
        ]


def dependence_of_plan(plan: Plan) -> Dependence:
    """What the bits of a row may depend on by a plan, and why."""
    sees_operands = plan.evidence is not None
    return dependence(
        plan.problem, plan.target, plan.scheme, plan.asked, sees_operands=sees_operands
    )


@dataclass(frozen=True)
class Split:
    """An operand, or some of its rows (left) or columns (right), as integer planes on
    grids.

    Every array has the stack first, and the rows second to last on the left, the
    columns last on the right; planes that are `k_major` have rows or columns second to
    last. Arrays of an embedded complex operand have several rows or columns for each of
    the operand's.
    """

    side: str  # "left" or "right"
    vectors: int  # number of rows (left) or columns (right)
    # slices or residues in the dtype of the product, laid out as the scheme's products
    # want them
    planes: Array
    # int64, exponent of the grid of the integers, a row_exponent or col_exponent
    unit: Array
    count: int  # number of planes
    # what the scheme needs to certify the result: see there
    facts: dict[str, Array] = field(default_factory=dict)
    # the inner dimension of `planes` is the last one on both sides
    k_major: bool = False

    def take(self, batch: slice, vectors: slice) -> Split:
        """The split of some rows (left) or columns (right) of some matrices of the
        stack.
        """

        def cut(x: Array, has_rows: bool) -> Array:
            # An embedded complex operand has several rows or columns for each vector.
            width = x.shape[-2 if has_rows else -1] // self.vectors
            part = slice(vectors.start * width, vectors.stop * width)
            x = x[batch] if x.shape[0] != 1 else x
            return x[..., part, :] if has_rows else x[..., part]

        is_left = self.side == "left"
        return replace(
            self,
            vectors=vectors.stop - vectors.start,
            planes=cut(self.planes, is_left or self.k_major),
            unit=cut(self.unit, is_left),
            facts={name: cut(x, is_left) for name, x in self.facts.items()},
        )


@dataclass(frozen=True)
class Decision:
    """The attributes of a `Report` that may depend on the operands."""

    scheme: Choice | None  # None: that of each rank, on a mesh
    num_products: int
    bound: float
    correct: bool
    k_block: int
    native: bool
    reason: str
    relative: float | None = None
    normwise: float | None = None
    dependence: Dependence = UNKNOWN


@dataclass(eq=False, repr=False)
class Report(Shown):
    """What the library did for a product, and what it guarantees.

    If a GPU makes the decision, the first attribute that you read waits for the GPU.

    Attributes
    ----------
    scheme : Scheme
        The dataclass with its counts filled in.
    num_products : int
        Low-precision products of size m n k of slices, words or residues. Entries that
        took a second computation count by their share, rounded up. The reason names
        products that only estimate magnitudes.
    engine, device : str
        What multiplied, and where.
    bound : float
        The guaranteed r of |C - AB| <= r |A||B| + u |AB|; at most `Plan.bound`.
    relative : float or None
        For a `Relative` accuracy, the guaranteed r of |C - AB| <= r |AB|.
    normwise : float or None
        For an `Invariant` accuracy, the guaranteed r of
        |C - AB| <= r |a_i| |b_j| + u |AB|, with the Euclidean norms of rows of A and
        columns of B. `bound` is then infinite.
    invariant : bool
        True if a row of the result has the same bits in every batch and order of rows,
        columns and terms, on every engine and device.
    bits_depend_on : frozenset of str
        What the bits of a row may depend on; see `Plan`.
    correct : bool
        True if every real component is the correctly rounded exact value.
    native : bool
        True if the result is the native product of the library.
    reason : str
        Why this scheme, and what happened on the way.
    k_block : int
        Number of terms in a block of k; an exact scheme adds them without rounding.
    workspace : int
        Bytes of memory that the plan takes in addition to operands and result.
    decision_seconds : float
        Time to choose the plan that ran. It includes inspections of the operands, which
        on a GPU wait for earlier work, and abandoned attempts. 0 if an earlier call of
        this kind had decided. Equality of reports ignores it.
    """

    engine: str
    device: str
    workspace: int
    decision_seconds: float
    # the decision, or the function that computes it when it is read
    _decision: Decision | Callable[[], Decision]

    @property
    def decision(self) -> Decision:
        """The decision; the first access calls the function that returns it."""
        if not isinstance(self._decision, Decision):
            # Drop the function, and with it the device memory that it holds.
            self._decision = self._decision()
        return self._decision

    @property
    def scheme(self) -> Any:
        """The dataclass with its counts filled in."""
        return self.decision.scheme

    @property
    def num_products(self) -> int:
        """Low-precision products of size m n k."""
        return self.decision.num_products

    @property
    def bound(self) -> float:
        """The r of |C - AB| <= r |A||B| + u |AB|."""
        return self.decision.bound

    @property
    def relative(self) -> float | None:
        """The r of |C - AB| <= r |AB|, for a `Relative` accuracy."""
        return self.decision.relative

    @property
    def normwise(self) -> float | None:
        """The r of |C - AB| <= r |a_i| |b_j| + u |AB|, for `Invariant`."""
        return self.decision.normwise

    @property
    def invariant(self) -> bool:
        """True if nothing but the number of terms is among `bits_depend_on`."""
        return self.decision.dependence.is_invariant

    @property
    def bits_depend_on(self) -> frozenset[str]:
        """What the bits of a row of the result may depend on."""
        return self.decision.dependence.causes

    @property
    def correct(self) -> bool:
        """True if every real component is the correctly rounded exact value."""
        return self.decision.correct

    @property
    def native(self) -> bool:
        """True if the result is the native product of the library."""
        return self.decision.native

    @property
    def reason(self) -> str:
        """Why this scheme, and what happened on the way."""
        return self.decision.reason

    @property
    def k_block(self) -> int:
        """Number of terms in a block of k."""
        return self.decision.k_block

    def changed(
        self, change: Callable[[Decision], Decision], seconds: float | None = None
    ) -> Report:
        """The report with another decision, which is computed on first access, and
        optionally another time.
        """
        seconds = self.decision_seconds if seconds is None else seconds
        return replace(
            self, decision_seconds=seconds, _decision=lambda: change(self.decision)
        )

    def with_product(self, other: Report, share: float, reason: str) -> Report:
        """The report with another product, computed for a share of the entries."""
        num_products = other.num_products * share

        def with_both(d: Decision) -> Decision:
            count = math.ceil(d.num_products + num_products)
            return replace(d, num_products=count, reason=f"{d.reason}; {reason}")

        return self.changed(with_both, self.decision_seconds + other.decision_seconds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.engine, self.device, self.workspace, self.decision

    def __reduce__(self) -> Any:
        return Report, (
            self.engine,
            self.device,
            self.workspace,
            self.decision_seconds,
            self.decision,
        )

    def to_dict(self) -> dict[str, Any]:
        """The attributes as numbers and texts; the scheme is a text."""
        return {
            "scheme": str(self.scheme),
            "num_products": int(self.num_products),
            "engine": self.engine,
            "device": self.device,
            "bound": float(self.bound),
            "relative": None if self.relative is None else float(self.relative),
            "normwise": None if self.normwise is None else float(self.normwise),
            "invariant": self.invariant,
            "bits_depend_on": sorted(self.bits_depend_on),
            "correct": bool(self.correct),
            "native": bool(self.native),
            "k_block": self.k_block,
            "workspace": self.workspace,
            "decision_seconds": float(self.decision_seconds),
            "reason": self.reason,
        }

    def _line(self) -> str:
        place = f"{self.engine} on {self.device}"
        return f"{self.scheme}, {place}, bound {self._bound_text()}"

    def _bound_text(self) -> str:
        bound = f"{self.bound:.3g} |A||B|"
        if self.correct and self.relative is not None:
            bound = f"correctly rounded (asked: {self.relative:.3g} |AB|)"
        elif self.correct:
            bound += ", correctly rounded"
        elif self.relative is not None:
            bound = f"{self.relative:.3g} |AB|, and {bound}"
        elif self.normwise is not None:
            bound = f"{self.normwise:.3g} |a_i| |b_j|"
        return bound

    def _lines(self) -> list[tuple[str, str]]:
        products = str(self.num_products)
        if self.scheme is not None:
            products = self.scheme.describe_products(self.num_products)
        return [
            ("scheme", str(self.scheme)),
            ("products", products),
            ("engine", f"{self.engine} on {self.device}"),
            ("bound", self._bound_text()),
            ("row bits", f"depend on {self.decision.dependence}"),
            ("native", "yes" if self.native else "no"),
            ("k_block", str(self.k_block)),
            ("workspace", f"{self.workspace / 2**20:.1f} MiB"),
            ("decision", f"{1e3 * self.decision_seconds:.3g} ms"),
            ("reason", self.reason),
        ]
