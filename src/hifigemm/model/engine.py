"""The interface between schemes and engines, which never import each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from hifigemm.base.formats import Format
from hifigemm.model.plan import Choice, Decision, Evidence, Plan, Report, Split
from hifigemm.model.problem import Problem, ProductSpec
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import BLOCK_ENTRIES
from hifigemm.numerics.epilogue import PLAIN, Epilogue

if TYPE_CHECKING:
    from hifigemm.numerics.accumulation import Accumulation

Splits = tuple[Split | None, Split | None]

SCALED_ALONG_K = "columns of A and rows of B scaled by powers of two"
"""The note of a product of A D and D**-1 B, see numerics.inner_scaling."""


class Costs(Protocol):
    """Expected times."""

    def native_seconds(self, problem: Problem) -> float:
        """Seconds of the native product."""

    def residue_seconds(
        self, problem: Problem, num_products: int, estimate: bool
    ) -> float:
        """Seconds of Ozaki scheme II; `estimate` adds the error ratio by which the
        device chooses a count.
        """

    def sum_seconds(self, problem: Problem, in_three_words: bool = False) -> float:
        """Seconds of sums of products in words that are rounded once."""

    def word_seconds(self, problem: Problem) -> float:
        """Seconds of a product of words whose format is chosen on the device, where the
        first choice is taken.
        """


@dataclass(frozen=True)
class MemoryLimits:
    """How much an engine works on at a time, and in which memory."""

    # entries that the plain functions of numerics work on at a time
    block_entries: int = BLOCK_ENTRIES
    # default workspace, in multiples of the bytes of operands and result
    workspace_factor: int = 8
    least_workspace: int = 2**28  # bytes of default workspace for small operands
    # bytes that are free where the engine works; None if that is not known, or must not
    # be asked for now
    free: Callable[[], int | None] = field(default=lambda: None)


@dataclass(frozen=True)
class RecordedDecision:
    """The content of a decision record, once it is read."""

    holds: bool  # every entry keeps the bound of the plan
    scheme: Choice  # the one that was taken
    bound: float  # the r that every entry keeps
    num_products: int
    k_block: int  # inner length of a sum inside the unit
    evidence: Evidence | None = None  # facts about the operands, for a finer plan
    notes: list[str] = field(default_factory=list)  # for the reason of a report


@dataclass
class Outcome:
    """Values (batch, m, n), their bound, and the products that were made for them.

    `certificate` waits for the device and reads its decision; None if the device
    decides nothing. `second` is the other array of a pair or an enclosure. `certified`
    is True for the entries that are; None: all.
    """

    values: Array
    bound: float
    num_products: float
    notes: list[str] = field(default_factory=list)
    certificate: Callable[[], RecordedDecision] | None = None
    second: Array | None = None
    certified: Array | None = None


def report_of(
    engine: Engine,
    decision: Decision | Callable[[], Decision],
    workspace: int = 0,
    seconds: float = 0.0,
) -> Report:
    """The report of a product that an engine made.

    `decision` is what was done, or a function that waits for the device to say it. The
    plan takes `workspace` bytes, and choosing it took so many seconds.
    """
    return Report(engine.name, engine.device, workspace, seconds, decision)


Repeated = Callable[..., Any]
"""The product as a function of a, b and out, of which out may be None; for calls with
alpha or C also of C or None, alpha and beta.
"""


class Call(NamedTuple):
    """A product that was made, for a function that repeats it with other operands."""

    operands: tuple[Array, Array]  # as the library has them
    stacks: tuple[Array, Array]  # as the plan takes them
    shape: tuple[int, ...]  # of the result
    out: Array | None = None
    shift: int = 0  # the product is multiplied by 2**shift before its rounding
    epilogue: Epilogue = PLAIN  # later calls have other scalars of the same kind
    # what the function returns for values of the library and what was done for them;
    # None: the values alone
    deliver: Callable[[Outcome], Any] | None = None


class Program(Protocol):
    """A plan made runnable: launches over named memory on a GPU, the plain functions on
    a CPU.
    """

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """Bytes that a block of so many matrices, rows and columns takes beside
        operands and result.
        """

    def in_halves(self, batch: int, rows: int, cols: int) -> bool:
        """True if such a block takes seven products of halves for eight, see
        numerics/strassen.py; no bit changes.
        """

    def __call__(
        self,
        a: Array,
        b: Array,
        shift: int,
        epilogue: Epilogue,
        splits: Splits,
        out: Array | None,
    ) -> Outcome:
        """alpha (2**shift A B) + beta C for whole stacks, Inf and NaN included; nothing
        waits for the device.

        The values are in `out`, which shares no memory with operands and C, where it is
        given. `splits` are those of prepared operands. Where the plan has a `Rounding`
        of its own, this takes the place of alpha and beta.
        """

    def replayed(self, call: Call) -> Repeated | None:
        """A function that repeats the call for arrays of the library that are laid out
        as those of the call.

        The function returns None for operands that need the whole road. None in its
        place means that nothing is quicker than the road. A plan that rests on evidence
        gives a function that inspects the operands first, and knows the plans for all
        evidence seen so far.
        """


F = TypeVar("F", bound=Callable[..., Any])


class Engine(Protocol):
    """A unit that multiplies matrices."""

    def __hash__(self) -> int:
        """Engines are keys of what is kept of their plans."""

    @property
    def name(self) -> str:
        """Name, as `hifigemm.engines.engine_for` takes it."""

    @property
    def device(self) -> str:
        """Device on which the products are made."""

    @property
    def products(self) -> Mapping[str, ProductSpec]:
        """The exact products on offer, by name."""

    @property
    def memory(self) -> MemoryLimits:
        """How much is worked on at a time."""

    @property
    def costs(self) -> Costs | None:
        """What products cost on a GPU with the kernels of this package, where "auto"
        and programs choose by them; None for all other engines.
        """

    def exact_product(
        self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int
    ) -> Array:
        """a @ b for integer matrices (batch, m, k), (batch, k, n) of magnitude at most
        max_a, max_b, without rounding.

        Raises InexactProductError: where k max_a max_b exceeds the accumulator: never
        rounds instead.
        """

    def native_product(self, a: Array, b: Array) -> Array:
        """a @ b as the library behind the engine computes it, in the dtype of the
        operands.
        """

    def accumulation(self, fmt: Format) -> Accumulation:
        """How `rounded_product` adds products of words of `fmt`; PlanError where the
        engine does not multiply them.
        """

    def rounded_product(
        self,
        fmt: Format,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        block: int | None = None,
    ) -> Array:
        """A B + C for words of `fmt`, rounded as `accumulation(fmt)` states, in the
        dtype of its accumulator.

        a (batch, m, k) and b (batch, k, n) hold values of `fmt` in float32. With
        `block`, the unit starts from 0 every `block` of k and what it returns is added
        to C outside, in the accumulator's format, to nearest, in order of k.
        """

    def override(self, function: F) -> F:
        """This engine's version of a plain function, with the same bits; else the
        function itself.
        """

    def compile(self, plan: Plan) -> Program | None:
        """The program of a plan, with the bits of its steps; None where it is carried
        out step by step.
        """


def has_kernels(engine: Engine) -> bool:
    """True for a GPU with Triton: the kernels of this package make whole products there,
    and may choose by the operands while they run.

    Programs of a CPU, such as those of the compiled core, choose nothing.
    """
    return engine.costs is not None
