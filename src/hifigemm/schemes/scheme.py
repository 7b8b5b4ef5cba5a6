"""What a scheme is: parameters as the fields of a frozen dataclass, and the steps of a product as its methods.

The driver calls them in this order. `plan` chooses counts and block sizes; `scales` (or `joint_scales`) reads whole
operands where the scheme needs that; `split` turns rows of A or columns of B into planes; `multiply` makes the products
of one block of C on an engine; `escalate` gives a finer plan for the entries that were not certified. Where an engine
carries out a whole plan at once, `stated_bound` says what is known of its error. `most_required_bits`, `largest_ratio`
and `replan` belong to plans that rest on their operands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.numerics.bits import Array
from hifigemm.numerics.embedding import unembed
from hifigemm.numerics.scaling import Scale
from hifigemm.plan import Plan, Problem, Product, ProductSpec, Split

__all__ = ["Scheme", "check_count", "check_flag", "check_word", "exact_int8", "finished", "product_spec"]


@dataclass(frozen=True)
class Scheme:
    """Base of the schemes."""

    name: ClassVar[str] = ""

    @property
    def explicit(self) -> bool:
        """A count was forced, so that nothing is promised unless an accuracy is asked for."""
        return False

    @property
    def scales_operands(self) -> bool:
        """Splits take scale exponents that come from whole operands."""
        return False

    @property
    def independent_splits(self) -> bool:
        """The split of one operand does not depend on the other, so that a prepared operand can keep it."""
        return True

    @property
    def reads_operands(self) -> bool:
        """Whether `plan` looks at the values of the operands."""
        return False

    def gated_plan(self, problem: Problem, target: Target, engine: Engine, workspace: int) -> Plan | None:
        """The plan in which the engine decides without the host, see `Plan.gated`; None where the scheme has none."""
        return None

    def plan(self, problem: Problem, a: Array, b: Array, target: Target, engine: Engine, workspace: int) -> Plan:
        """Counts and blocks for this problem; a (batch or 1, m, k) and b (batch or 1, k, n) may hold Inf and NaN."""
        raise NotImplementedError

    def scales(self, plan: Plan, x: Array, side: str, engine: Engine) -> Scale | None:
        """The scale of the rows (left) or columns (right) of an operand, where splits are independent and need one."""
        return None

    def joint_scales(self, plan: Plan, a: Array, b: Array, engine: Engine) -> tuple[Scale, Scale]:
        """The scales of the rows of a and the columns of b, where they depend on both operands."""
        raise NotImplementedError

    def split(self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine) -> Split:
        """Parts of rows of a (side "left") or of columns of b (side "right")."""
        raise NotImplementedError

    def multiply(self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int) -> Product:
        """The block 2**shift A B from the splits of its rows and columns, rounded once."""
        raise NotImplementedError

    def stated_bound(self, plan: Plan) -> float:
        """Error / |A||B| that is known not to be exceeded before anything is multiplied."""
        if plan.exact:
            return 0.0
        return plan.bound if plan.gated else plan.target.r if plan.promised else math.inf

    def most_required_bits(self, plan: Plan) -> int | None:
        """The limit of `scaling.required_bits` up to which the plan depends on them; None where it does not."""
        return None

    def replan(self, plan: Plan, ratio: float, a: Array, b: Array, engine: Engine, workspace: int) -> Plan:
        """The plan for operands whose ratio was too large for a hopeful one."""
        raise NotImplementedError

    def largest_ratio(self, plan: Plan) -> float:
        """Largest `certify.error_ratio` of operands for which a hopeful plan keeps its target."""
        raise NotImplementedError

    def suffices(self, plan: Plan, ratio: float) -> bool:
        """Whether a hopeful plan keeps its target for operands with this `certify.error_ratio`."""
        return ratio <= self.largest_ratio(plan)

    def fit(self, plan: Plan, problem: Problem, workspace: int) -> Plan:
        """The plan for another problem of the same k and dtype, in blocks that take at most `workspace` bytes."""
        raise NotImplementedError

    def escalate(self, plan: Plan, problem: Problem, workspace: int, engine: Engine) -> Plan | None:
        """A finer plan for `problem`, a part of the plan's; None where the scheme has no more to give."""
        return None


def finished(problem: Problem, values: Array, certified: Array | None, bound: float, num_products: int) -> Product:
    """The product of a block, re and im side by side put together; an entry is certified when both are."""
    if not problem.is_complex:
        return Product(values, certified, bound, num_products)
    both = None if certified is None else certified[..., 0::2] & certified[..., 1::2]
    return Product(unembed(values), both, bound, num_products)


def exact_int8(engine: Engine, a: Array, b: Array, max_a: int, max_b: int) -> Array:
    """a @ b for INT8 matrices (batch, m, k), (batch, k, n) in int64, over blocks of k that INT32 holds."""
    spec = engine.products["int8"]
    total = np.zeros((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), np.int64, like=a)
    for h in range(0, a.shape[2], spec.k_block):
        part = slice(h, h + spec.k_block)
        total += engine.exact_product(spec, a[:, :, part], b[:, part, :], max_a, max_b)
    return total


def check_count(scheme: Scheme, name: str, least: int, most: int | None = None, *, optional: bool = True) -> None:
    """Raise PlanError unless a field is a whole number in range, which becomes an int, or None where it is optional."""
    count = getattr(scheme, name)
    if count is None and optional:
        return
    is_whole = isinstance(count, Integral) and not isinstance(count, bool)
    if not is_whole or count < least or (most is not None and count > most):
        numbers = (
            f"a whole number from {least} to {most}" if most is not None else f"a whole number of at least {least}"
        )
        expected = f"None or {numbers}" if optional else numbers
        raise PlanError(f"{type(scheme).__name__}({name}={count!r}): expected {expected}")
    object.__setattr__(scheme, name, int(count))


def check_word(scheme: Scheme, name: str) -> None:
    """Raise PlanError unless a field is one of the words of its type."""
    kind: Any = type(scheme)
    value, known = getattr(scheme, name), _words(kind, name)
    if not (value is None or isinstance(value, str)) or value not in known:
        words = [repr(word) if word is None else f'"{word}"' for word in known]
        raise PlanError(f"{type(scheme).__name__}({name}={value!r}): expected {', '.join(words)}")


@cache
def _words(kind: Any, name: str) -> list[str | None]:
    """The words of a field of type Literal, after None where it is optional."""
    hint = get_type_hints(kind)[name]
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    return [None, *(word for part in get_args(hint) for word in get_args(part))]


def check_flag(scheme: Scheme, name: str) -> None:
    """Raise PlanError unless a field is True or False, of Python or NumPy."""
    value = getattr(scheme, name)
    if not isinstance(value, (bool, np.bool_)):
        raise PlanError(f"{type(scheme).__name__}({name}={value!r}): expected True or False")
    object.__setattr__(scheme, name, bool(value))


def product_spec(engine: Engine, name: str, scheme: str) -> ProductSpec:
    """The engine's product of that name, or a PlanError that lists what there is."""
    if not isinstance(name, str) or name not in engine.products:
        raise PlanError(
            f"{scheme} with product={name!r}: engine {engine.name!r} multiplies {', '.join(sorted(engine.products))}"
        )
    return engine.products[name]
