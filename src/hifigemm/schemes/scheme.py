"""What a scheme is: parameters as the fields of a frozen dataclass, and the steps of a
product as its methods.

The planner calls `evidence`, which reads the operands where a scheme rests on them,
`plan`, which chooses counts, and `nbytes`, by which blocks are chosen. The executor
calls `scales`, which reads whole operands, `split`, which turns rows of A or columns of
B into planes, `multiply`, which makes the products of one block of C on an engine, and
`escalate`, which gives a finer plan for the entries that were not certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, reduce
from numbers import Integral
from types import NoneType
from typing import Any, ClassVar, get_args, get_type_hints

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import PlanError
from hifigemm.numerics.bits import Array
from hifigemm.numerics.embedding import unembed
from hifigemm.numerics.residue_products import ExactProduct
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.three_words import Words
from hifigemm.plan import Evidence, Plan, Product, Split
from hifigemm.problem import Problem, ProductSpec


@dataclass(frozen=True)
class Scheme:
    """Base of the schemes.

    `core` is the plain function at the heart of a scheme. An engine that has it in a
    few launches for whole products finds its programs by that function. Fields hold
    what their types say, counts lie within `_limits`.
    """

    name: ClassVar[str] = ""
    core: ClassVar[Callable[..., Any] | None] = None
    _limits: ClassVar[tuple[int, int | None]] = (1, None)

    def __post_init__(self) -> None:
        kind = type(self)
        if kind not in _OPTIONS:
            _OPTIONS[kind] = _options(kind)
        for name, options in _OPTIONS[kind].items():
            value = getattr(self, name)
            if (value is None or isinstance(value, str)) and value in options:
                continue
            owner = f"{kind.__name__}({name}"
            if int in options:
                object.__setattr__(
                    self,
                    name,
                    _checked_count(owner, value, *self._limits, None in options),
                )
            elif bool in options:
                if not isinstance(value, (bool, np.bool_)):
                    raise PlanError(f"{owner}={value!r}): expected True or False")
                object.__setattr__(self, name, bool(value))
            else:
                words = ", ".join(
                    "None" if word is None else f'"{word}"' for word in options
                )
                raise PlanError(f"{owner}={value!r}): expected {words}")

    @property
    def explicit(self) -> bool:
        """A count was forced, so that nothing is promised unless an accuracy is asked
        for.
        """
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
        """What `plan` wants to know of the operands; waits for a device. None where no
        operand is looked at.

        a (batch or 1, m, k) and b (batch or 1, k, n) may hold Inf and NaN.
        """
        return None

    def exact_sums(
        self, plan: Plan, a: Array, b: Array, c: Array | None, shift: int
    ) -> Words | None:
        """2**shift (A B + C) in three words, real and imaginary parts side by side;
        None for schemes that have no such sums.

        a (batch or 1, m, k), b (batch or 1, k, n) and c (batch, m, n) are finite, c of
        real components as the result.
        """
        return None

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """Counts for this problem, without blocks; `asked` is the scheme that was
        forced.
        """
        raise NotImplementedError

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes that the steps take for a block of so many matrices, rows and
        columns.
        """
        raise NotImplementedError

    def scales(
        self, plan: Plan, a: Array | None, b: Array | None, engine: Engine
    ) -> tuple[Scale | None, Scale | None] | None:
        """The scales of the rows of a and of the columns of b, where splits take any;
        None for an operand of None.

        No pair where the scales of one operand depend on the other, and one is missing:
        then an operand cannot be prepared.
        """
        return None, None

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Planes of rows of a (side "left") or of columns of b (side "right")."""
        raise NotImplementedError

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """The block 2**shift A B from the splits of its rows and columns, rounded
        once.
        """
        raise NotImplementedError

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """A finer plan for `problem`, a part of the plan's, without blocks; None where
        there is none.
        """
        return None


def finished(
    problem: Problem,
    values: Array,
    certified: Array | None,
    bound: float,
    num_products: float,
) -> Product:
    """The product of a block, re and im side by side put together; an entry is
    certified when both are.
    """
    if not problem.is_complex:
        return Product(values, certified, bound, num_products)
    both = None if certified is None else certified[..., 0::2] & certified[..., 1::2]
    return Product(unembed(values), both, bound, num_products)


def exact_int8(engine: Engine, a: Array, b: Array, max_a: int, max_b: int) -> Array:
    """a @ b for INT8 matrices (batch, m, k), (batch, k, n): in int32, or in int64 where
    k is longer than that holds.
    """
    spec = engine.products["int8"]
    block, k = spec.k_block, a.shape[2]
    if k <= block:
        return engine.exact_product(spec, a, b, max_a, max_b)
    parts = ((a[:, :, h : h + block], b[:, h : h + block]) for h in range(0, k, block))
    return reduce(
        np.add,
        (
            engine.exact_product(spec, x, y, max_a, max_b).astype(np.int64)
            for x, y in parts
        ),
    )


def int8_product(engine: Engine) -> ExactProduct:
    """`exact_int8` of an engine, as plain functions take it."""
    return partial(exact_int8, engine)


def _checked_count(
    owner: str, count: Any, least: int, most: int | None, optional: bool
) -> int:
    """A count as an int; PlanError, which says whether None is taken too, unless it is
    a whole number in range.
    """
    is_whole = isinstance(count, Integral) and not isinstance(count, bool)
    if not is_whole or count < least or (most is not None and count > most):
        numbers = (
            f"a whole number of at least {least}"
            if most is None
            else f"a whole number from {least} to {most}"
        )
        raise PlanError(
            f"{owner}={count!r}): expected {'None or ' if optional else ''}{numbers}"
        )
    return int(count)


_OPTIONS: dict[type, dict[str, list[Any]]] = {}
"""`_options` of each scheme; compilers of PyTorch complain of a cache of functools."""


def _options(kind: Any) -> dict[str, list[Any]]:
    """What the fields of a scheme may be: None first, then classes or words."""
    found, hints = {}, get_type_hints(kind)
    for field in fields(kind):
        parts = get_args(hints[field.name]) or (hints[field.name],)
        options = [option for part in parts for option in get_args(part) or (part,)]
        found[field.name] = [None] * (NoneType in options) + [
            x for x in options if x is not NoneType
        ]
    return found


def product_spec(engine: Engine, name: str, scheme: str) -> ProductSpec:
    """The engine's product of that name, or a PlanError that lists what there is."""
    if name not in engine.products:
        raise PlanError(
            f"{scheme} with product={name!r}: engine {engine.name!r} multiplies {', '.join(sorted(engine.products))}"
        )
    return engine.products[name]
