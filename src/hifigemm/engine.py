"""The interface of an engine: what schemes ask for and engines offer. The two meet in api.py, never in an import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hifigemm.formats import Format
from hifigemm.numerics.accumulation import Accumulation
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.plan import Plan, Problem, ProductSpec, Split

__all__ = [
    "Certificate",
    "CertifiedProduct",
    "Costs",
    "Engine",
    "F",
    "RepeatedLook",
    "RepeatedProduct",
    "RequiredBits",
    "WholeProduct",
    "WordSums",
]


RepeatedProduct = Callable[[Any, Any, Any], Any]
RequiredBits = tuple[int, int] | None
"""What `numerics.scaling.required_bits` says of two operands."""
RepeatedLook = Callable[[Any, Any], Callable[[], RequiredBits]]


class Costs(Protocol):
    """Expected times."""

    def native_seconds(self, problem: Problem) -> float:
        """Seconds of the native product."""

    def residue_seconds(self, problem: Problem, num_products: int, looks: bool) -> float:
        """Seconds of Ozaki scheme II; `looks` adds what it takes to choose a count from the operands."""

    def word_seconds(self, problem: Problem) -> float:
        """Seconds of a product of words whose format is chosen on the device, where the first choice is taken."""


class WholeProduct(Protocol):
    """alpha (2**shift A B) + beta C for whole stacks, Inf and NaN included; splits of prepared operands are used."""

    def __call__(
        self,
        a: Array,
        b: Array,
        shift: int,
        epilogue: Epilogue,
        splits: tuple[Split | None, Split | None],
        out: Array | None,
    ) -> Array:
        """The values, shape (batch, m, n): in `out`, which shares no memory with operands and C, where it is given."""


@dataclass(frozen=True)
class Certificate:
    """What is known of a whole product once its operands were seen.

    Attributes
    ----------
    scheme : Scheme
        The one that was taken.
    bound : float
        The r that every entry keeps.
    num_products : int
    k_block : int
        Inner length of a sum inside the unit.
    """

    scheme: Any
    bound: float
    num_products: int
    k_block: int


class CertifiedProduct(Protocol):
    """A `WholeProduct` of which more is known afterwards."""

    def __call__(
        self, a: Array, b: Array, shift: int, epilogue: Epilogue, out: Array | None
    ) -> tuple[Array, Callable[[], Certificate] | None]:
        """The values, and a function that waits for the device and says what it found.

        None in its place while a graph is captured, when nothing can be read.
        """


class WordSums(Protocol):
    """The sum of all products of a scheme's words by one kernel, in the order of the scheme."""

    @property
    def unit(self) -> Accumulation:
        """How it adds."""

    def __call__(self, left: Array, right: Array) -> Array:
        """The sums (batch, m, n) of words (batch or 1, m, words k) and (batch or 1, words k, n), in float32."""


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
    def block_entries(self) -> int:
        """Entries that the plain functions of numerics work on at a time."""

    @property
    def fused(self) -> bool:
        """Whether residues are made, multiplied and put together by kernels that hold nothing else."""

    @property
    def looks_on_the_way(self) -> bool:
        """Whether `whole_product` checks hopeful plans; it raises `HopeError` where more moduli are needed."""

    @property
    def workspace_factor(self) -> int:
        """Default workspace, in multiples of the bytes of operands and result."""

    @property
    def least_workspace(self) -> int:
        """Bytes of default workspace for small operands."""

    def free_memory(self) -> int | None:
        """Bytes that are free where this engine works; None where that is not known, or is not to be asked now."""

    @property
    def costs(self) -> Costs | None:
        """What products cost here, where that is known; None leaves the choice of a scheme to general rules."""

    def exact_product(self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int) -> Array:
        """a @ b for integer matrices (batch, m, k), (batch, k, n) of magnitude at most max_a, max_b, without rounding.

        Raises
        ------
        InexactProductError
            Where k max_a max_b exceeds the accumulator: never rounds instead.
        """

    def native_product(self, a: Array, b: Array) -> Array:
        """a @ b as the library behind the engine computes it, in the dtype of the operands."""

    def accumulation(self, fmt: Format) -> Accumulation:
        """How `rounded_product` adds products of words of `fmt`; PlanError where the engine does not multiply them."""

    def rounded_product(
        self, fmt: Format, a: Array, b: Array, c: Array | None = None, *, block: int | None = None
    ) -> Array:
        """A B + C for words of `fmt`, rounded as `accumulation(fmt)` states, in the dtype of its accumulator.

        a (batch, m, k) and b (batch, k, n) hold values of `fmt` in float32. With `block`, the unit starts from 0 every
        `block` of k and what it returns is added to C outside, in the accumulator's format, to nearest, in order of k.
        """

    def word_sums(self, scheme: Any, k: int) -> WordSums | None:
        """The kernel that adds all products of the scheme's words for this k, in place of `rounded_product`; or None.

        `scheme` is a `WordScheme`.
        """

    def repeated_product(
        self,
        plan: Plan,
        operands: tuple[Array, Array],
        stacks: tuple[Array, Array],
        result_shape: tuple[int, ...],
        out: Array | None,
    ) -> RepeatedProduct | None:
        """The plan's whole product as a function of two arrays that are laid out as `operands`, and of out or None.

        It returns None for operands that need a closer look.

        None where the engine has nothing quicker than to carry the plan out again. `stacks` are the operands as the
        plan takes them, `out` an array like the one that later calls give, or None where they give none.
        """

    def repeated_look(
        self, operands: tuple[Array, Array], stacks: tuple[Array, Array], most: int
    ) -> RepeatedLook | None:
        """`numerics.scaling.required_bits` with this limit as a function of two arrays that are laid out as `operands`.

        It begins to look, and what it returns waits for what is found; products can begin between the two. None as in
        `repeated_product`.
        """

    def override(self, function: F) -> F:
        """This engine's version of a function of the plain maths: same name, same bits; else the function itself."""

    def whole_product(self, plan: Plan) -> WholeProduct | None:
        """All of a plan that judges nothing, with the bits of its steps, where the engine has it in a few launches."""

    def certified_product(self, plan: Plan) -> CertifiedProduct | None:
        """All of a plan that has choices or is judged, where one bound for all entries comes with a few launches."""
