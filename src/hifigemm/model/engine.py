"""The interface between schemes and engines, which never import each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hifigemm.base.formats import Format
from hifigemm.model.executable import Executable, Signature, Splits
from hifigemm.model.plan import Decision, Plan, Report
from hifigemm.model.problem import Problem, ProductSpec
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import BLOCK_ENTRIES

if TYPE_CHECKING:
    from hifigemm.numerics.accumulation import Accumulation

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

    def sum_seconds(self, problem: Problem) -> float:
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


class Lowering(Protocol):
    """How an engine carries out a plan, whole stacks at a time."""

    @property
    def reason(self) -> str:
        """The steps that are carried out, where the plan leaves them to the engine."""
        return ""

    @property
    def takes_narrow(self) -> bool:
        """True if executables take float16 and bfloat16 operands of float32 products as
        they are.
        """
        return False

    def preparing(self, x: Array, side: str) -> Callable[[Array], Any] | None:
        """A function of operands laid out as x, a stack for the "left" or the "right":
        it makes what executables of this plan take of them. None where they take the
        operand alone.
        """
        return None

    @property
    def evidence_key(self) -> Hashable:
        """What `inspection` sees of the operands that the plan rests on; None for a
        plan that rests on none, or on more than it sees.
        """
        return None

    def inspection(
        self, left: Any, right: Any, splits: Splits
    ) -> Callable[[Any, Any, Splits], Hashable]:
        """The `evidence_key` of other operands laid out as these, by one wait for the
        device.
        """
        return lambda a, b, splits: None

    def takes(self, split: Any, side: str) -> bool:
        """True if executables take what such a lowering has prepared."""
        return False

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """Bytes that a block of so many matrices, rows and columns takes beside
        operands and result.
        """

    def in_halves(self, batch: int, rows: int, cols: int) -> bool:
        """True if such a block takes seven products of halves for eight, see
        numerics/strassen.py; no bit changes.
        """
        return False

    def lower(self, signature: Signature) -> Executable | None:
        """The plan for operands of this layout, Inf and NaN included unless it refuses
        them, with the bits of the steps of its scheme; None where these go step by
        step after all.

        Where the plan has a `Rounding` of its own, this takes the place of alpha and
        beta.
        """

    def inspecting(
        self, signature: Signature, executable: Executable
    ) -> Executable | None:
        """For a plan that rests on its operands: an executable that inspects those of a
        call first, and knows the executables for all evidence seen so far, of which
        this is one. None where nothing is gained by it.
        """
        return None


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
        and executables choose by them; None for all other engines.
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

    def lowering(self, plan: Plan) -> Lowering | None:
        """How the engine carries a plan out as a whole, found by the name of its scheme;
        None where it goes step by step.
        """


def has_kernels(engine: Engine) -> bool:
    """True for a GPU with Triton: the kernels of this package make whole products there,
    and may choose by the operands while they run.

    Executables of a CPU, such as those of the compiled core, choose nothing.
    """
    return engine.costs is not None
