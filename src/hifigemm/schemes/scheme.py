"""The base of all schemes: parameters are fields, the steps of a product are methods.

The planner calls
    `needs_evidence`, which says if the choice depends on the operands;
    `plan`, which chooses counts, such as the number of slices;
    `nbytes`, by which the size of blocks is chosen.
The executor calls
    `evidence`, which reads the operands where a plan needs it;
    `inner_exponents`, which reads whole operands;
    `scales`, which reads whole operands;
    `split`, which turns rows of A or columns of B into planes, or `split_together`, which
        does so for both;
    `multiply`, which makes the products of one block of C on an engine;
    `escalate`, which gives a finer plan for the entries that were not certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from numbers import Integral
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import Engine
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split
from hifigemm.model.problem import Problem, ProductSpec
from hifigemm.numerics.bits import Array
from hifigemm.numerics.embedding import unembed

if TYPE_CHECKING:
    from hifigemm.numerics.residue_products import ExactProduct
    from hifigemm.numerics.scaling import Scale
    from hifigemm.numerics.three_words import RoundedSums


@dataclass(frozen=True)
class Scheme:
    """Base of the schemes, which are frozen dataclasses.

    The constructor checks every field against its type: a word of a `Literal`, True or
    False, or a count within `limits`.
    """

    name: ClassVar[str] = ""
    """The scheme's name, as the argument `scheme` takes it. Engines find the lowering of
    its plans by it.
    """
    is_native: ClassVar[bool] = False
    """True if the engine's library makes the product by itself."""
    bits_follow_blocks: ClassVar[bool] = False
    """True if another division of the result into blocks may change bits of it."""
    negates_products: ClassVar[bool] = True
    """True if (-A) B has the bits of A B with the other sign."""
    adds_over_k: ClassVar[bool] = False
    """True if products over parts of k can be added without a rounding."""
    rests_on_evidence: ClassVar[bool] = True
    """False if a plan holds for any operands, whatever led to its choice."""
    limits: ClassVar[tuple[int, int | None]] = (1, None)
    """Least and largest count; None where there is no largest one."""

    options: ClassVar[dict[str, list[Any]]] = {}
    """`options_of_fields` of the class. They are found when the class is loaded, as the
    compilers of PyTorch do not trace the search.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.options = options_of_fields(cls)

    def __post_init__(self) -> None:
        for name, options in self.options.items():
            value = getattr(self, name)
            if (value is None or isinstance(value, str)) and value in options:
                continue
            owner = f"{type(self).__name__}({name}"
            if int in options:
                count = _checked_count(owner, value, *self.limits, None in options)
                object.__setattr__(self, name, count)
            elif bool in options:
                if not isinstance(value, (bool, np.bool_)):
                    raise PlanError(f"{owner}={value!r}): expected True or False")
                object.__setattr__(self, name, bool(value))
            else:
                words = ["None" if word is None else f'"{word}"' for word in options]
                raise PlanError(f"{owner}={value!r}): expected {', '.join(words)}")

    @property
    def explicit(self) -> bool:
        """True if a count was forced: then only a stated accuracy is promised."""
        return False

    @property
    def rounds_once(self) -> bool:
        """True if results are rounded correctly whatever accuracy is asked for."""
        return False

    def describe_products(self, num_products: int, name: str = "") -> str:
        """What is multiplied, as a line of a plan or report says it; `name` is that of
        the product.
        """
        return f"{num_products} x {name}" if name else str(num_products)

    def describe_verification(self, plan: Plan) -> str:
        """How it is known that a plan keeps its bound, as its line says it."""
        return plan.verification.value

    def check_keeps(self, problem: Problem, target: Target) -> None:
        """Raise AccuracyError if the scheme keeps the target for no operands."""

    def negates_splits(self, plan: Plan) -> bool:
        """True if the planes of -x are those of x with the other sign."""
        return True

    def needs_evidence(self, problem: Problem, target: Target, engine: Engine) -> bool:
        """True if `plan` depends on what the operands hold, for this target."""
        return False

    def evidence(
        self,
        problem: Problem,
        target: Target,
        a: Array,
        b: Array,
        engine: Engine,
        workspace: int,
    ) -> Evidence | None:
        """Facts about the operands that `plan` depends on; None if it needs none.

        Reading them waits for a device. a (batch or 1, m, k) and b (batch or 1, k, n)
        may hold Inf and NaN.
        """
        return None

    def rounded_sums(
        self,
        plan: Plan,
        engine: Engine,
        a: Array,
        b: Array,
        c: Array | None,
        shift: int,
        kind: str,
    ) -> RoundedSums | None:
        """2**shift (A B + C), rounded as `numerics.three_words.certified_sums` says, real
        and imaginary parts side by side; None for schemes that have no such sums, and
        for operands with Inf or NaN.

        a (batch or 1, m, k) and b (batch or 1, k, n) are of one dtype, c (batch, m, n)
        is finite and of real components as the result.
        """
        return None

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan for this problem, with counts and without a division into blocks.

        `asked` is the scheme that was forced, None for the library's choice.
        """
        raise NotImplementedError

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes that the steps take for a block of `batch` matrices, rows x cols."""
        raise NotImplementedError

    @property
    def scales_along_k(self) -> bool:
        """True if A D and D**-1 B are multiplied where the operands gain by it: for the
        option "inner" of schemes that have `scaling`.
        """
        scaling: str | None = getattr(self, "scaling", None)
        return scaling == "inner"

    def inner_exponents(
        self, plan: Plan, a: Array, b: Array, engine: Engine
    ) -> Array | None:
        """d, int64 (k,), by which A D and D**-1 B with D = diag(2**d) are multiplied in
        the place of A and B; None for schemes and operands that gain nothing by it.
        """
        if not self.scales_along_k:
            return None
        return gaining_exponents(a, b, engine, plan.blocking.entries)

    def scales(
        self, plan: Plan, a: Array | None, b: Array | None, engine: Engine
    ) -> tuple[Scale | None, Scale | None] | None:
        """The scales of the rows of a and of the columns of b.

        A scale is None if the operand is None or its split takes no scale. None instead
        of the pair means that the scales of one operand depend on the other, which is
        missing: such an operand cannot be prepared alone. Exponents along k compare
        both operands.
        """
        if self.scales_along_k and (a is None or b is None):
            return None
        return None, None

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Planes of the rows of a (side "left") or of the columns of b ("right")."""
        raise NotImplementedError

    def split_together(
        self, plan: Plan, a: Array, b: Array, engine: Engine
    ) -> tuple[Split, Split] | None:
        """The splits of both operands, with the bits of `split`, made of one array that
        has the rows of A and the columns of B; None where that is not quicker.
        """
        return None

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """One block of 2**shift A B, rounded once, from splits of its rows and columns."""
        raise NotImplementedError

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """A finer plan for `problem`, a part of the plan's; None if there is none.

        It has no division into blocks.
        """
        return None


def gaining_exponents(a: Array, b: Array, engine: Engine, entries: int) -> Array | None:
    """numerics.inner_scaling.gaining_exponents on an engine; None for empty operands.

    `entries` of an operand are worked on at a time. A device is waited for.
    """
    if not a.size or not b.size:
        return None
    from hifigemm.numerics import inner_scaling

    return inner_scaling.gaining_exponents(
        a,
        b,
        entries,
        engine.override(inner_scaling.sampled_gap),
        engine.override(inner_scaling.inner_exponents),
    )


def rows_together(plan: Plan, a: Array, b: Array) -> Array | None:
    """The rows of A and below them the columns of B, in float64; None for operands that
    are no small real ones: these gain nothing by it.
    """
    is_small = a.size + b.size <= plan.blocking.entries
    if plan.problem.is_complex or len(a) != len(b) or not is_small:
        return None
    rows = np.concatenate([a, np.swapaxes(b, 1, 2)], axis=1)
    return rows.astype(np.float64, copy=False)


def apart(both: Split, m: int) -> tuple[Split, Split]:
    """The splits of A and B from that of `rows_together`, with m rows of A. The planes of
    B are laid out as those of rows.
    """
    planes = both.planes
    facts_a = {name: fact[:, :m] for name, fact in both.facts.items()}
    facts_b = {name: fact[:, m:] for name, fact in both.facts.items()}
    left = Split(
        "left",
        m,
        planes[..., :m, :],
        both.unit[:, :m],
        both.count,
        facts_a,
        both.k_major,
    )
    right = Split(
        "right",
        both.vectors - m,
        planes[..., m:, :],
        np.swapaxes(both.unit[:, m:], 1, 2),
        both.count,
        {name: np.swapaxes(fact, 1, 2) for name, fact in facts_b.items()},
        both.k_major,
    )
    return left, right


def finished(
    problem: Problem,
    values: Array,
    certified: Array | None,
    bound: float,
    num_products: float,
) -> Outcome:
    """The product of a block, with adjacent re and im joined to complex entries.

    A complex entry is certified if both of its components are.
    """
    if not problem.is_complex:
        return Outcome(values, bound, num_products, certified=certified)
    if certified is not None:
        certified = certified[..., 0::2] & certified[..., 1::2]
    values = unembed(values)
    return Outcome(values, bound, num_products, certified=certified)


def exact_int8(engine: Engine, a: Array, b: Array, max_a: int, max_b: int) -> Array:
    """a @ b for INT8 matrices (batch, m, k), (batch, k, n), without rounding.

    The entries are int32, or int64 where k is too long for sums in int32.
    """
    spec = engine.products["int8"]
    k = a.shape[2]
    if k <= spec.k_block:
        return engine.exact_product(spec, a, b, max_a, max_b)

    def product_of_terms(start: int) -> Array:
        terms = slice(start, start + spec.k_block)
        product = engine.exact_product(spec, a[:, :, terms], b[:, terms], max_a, max_b)
        return product.astype(np.int64)

    return reduce(np.add, map(product_of_terms, range(0, k, spec.k_block)))


def int8_product(engine: Engine) -> ExactProduct:
    """`exact_int8` of an engine, in the form that plain functions take."""
    return partial(exact_int8, engine)


def _checked_count(
    owner: str, count: Any, smallest: int, largest: int | None, is_optional: bool
) -> int:
    """A count as an int.

    Raises PlanError: the count is no whole number from `smallest` to `largest`. The
    message starts with `owner` and says if None would do as well.
    """
    is_whole = isinstance(count, Integral) and not isinstance(count, bool)
    if is_whole and count >= smallest and (largest is None or count <= largest):
        return int(count)
    numbers = f"a whole number of at least {smallest}"
    if largest is not None:
        numbers = f"a whole number from {smallest} to {largest}"
    if is_optional:
        numbers = f"None or {numbers}"
    raise PlanError(f"{owner}={count!r}): expected {numbers}")


def options_of_fields(scheme_class: Any) -> dict[str, list[Any]]:
    """For each field of a scheme the values that its type allows.

    None comes first, then the words of a Literal, or int or bool for any such number.
    """
    options_by_field = {}
    for name, hint in get_type_hints(scheme_class).items():
        if get_origin(hint) is ClassVar:
            continue
        # The members of a union, or the type itself; then the words of a Literal.
        members = get_args(hint) or (hint,)
        options = [x for member in members for x in get_args(member) or (member,)]
        if NoneType in options:
            options.remove(NoneType)
            options.insert(0, None)
        options_by_field[name] = options
    return options_by_field


def product_spec(engine: Engine, name: str, scheme: str) -> ProductSpec:
    """The engine's product of that name.

    Raises PlanError: the engine has none. The message starts with the name `scheme` and
    lists the products of the engine.
    """
    if name not in engine.products:
        names = ", ".join(sorted(engine.products))
        raise PlanError(
            f"{scheme} with product={name!r}: engine {engine.name!r} multiplies {names}"
        )
    return engine.products[name]
