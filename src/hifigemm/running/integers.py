"""Products of integers and bools: in the promoted dtype, which wraps around, or
exactly.

A default call gives what `numpy.matmul` gives. Where an accuracy or a kind of result is
asked for, every entry is exact: it comes in the dtype that was asked for, or an error
names the first entry that lies beyond it. Small products of a default call are those of
the library, all others are sums of exact products of words (numerics.integer_words).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.base.formats import INT8
from hifigemm.engines import engine_for
from hifigemm.libraries import Library
from hifigemm.model.accuracy import CORRECT, NO_PROMISE
from hifigemm.model.engine import Engine
from hifigemm.model.executable import NO_SPLITS, Outcome, Splits
from hifigemm.model.plan import Blocking, Plan, Report, Verification
from hifigemm.model.problem import Block, Problem, ProductSpec, counted
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.integer_words import (
    MAX_WORD,
    MODULAR_SUMS,
    WORD_BITS,
    beyond,
    num_words,
    python_integers,
    word_sums,
    wrapped,
)
from hifigemm.operands.operands import Operands
from hifigemm.running.calls import KeptCall, keep_by_engine
from hifigemm.running.reports import log_decision, report_on
from hifigemm.running.request import Request
from hifigemm.schemes import Native, Ozaki1, as_scheme

_INT8 = np.iinfo(np.int8)
_SMALL = 2**18
"""Multiplications up to which the product of NumPy is quicker than one of words."""
_MIN_ROWS = 1024
"""Rows of a block of the result, unless the result has fewer."""
_HOST_ENTRIES = 2**20
"""Entries of a block of the result on the host: 48 MiB of sums."""
_DEVICE_ENTRIES = 2**24
"""Entries of a block of the result on a GPU."""


def integer_product(
    operands: Operands, request: Request, key: Hashable = None
) -> tuple[Array, Report]:
    """A B in the dtype of the operands' product, with its report; the product of the
    library is kept under the key, if there is one, for calls without a report.

    Raises AccuracyError: an entry that was to be exact lies beyond the dtype.
    PlanError: a plan or a scheme for floating-point operands. TypeError: the native
    product on a GPU.
    """
    library = operands.library
    engine = engine_for(request.engine, library.name, library.device)
    started = time.perf_counter()
    entries = _entries_of(operands, request)
    words = _IntegerWords(operands, entries, engine)
    plan = _plan(words, request)
    decision_seconds = time.perf_counter() - started

    # The product of the library, or products of words.
    if plan.scheme.is_native:
        values = np.matmul(*operands.arrays)
        if key is not None and not (entries.are_exact or request.return_report):
            _keep(key, plan, operands, engine)
    else:
        values = words.product(plan)
    outcome = Outcome(values, plan.bound, plan.num_products)
    report = report_on(plan, outcome, engine, decision_seconds)
    log_decision(plan.problem, report)
    return values.reshape(operands.shapes.result), report


class LibraryProduct:
    """The product of integers that a library of the host makes; see `Executable`."""

    def __init__(self, plan: Plan, shape: tuple[int, ...]) -> None:
        self.plan = plan
        self._shape = shape

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome:
        """See `Executable`; the values are always in new memory."""
        values = np.matmul(a, b)
        return Outcome(values.reshape(self._shape), self.plan.bound, 1)


def _keep(key: Hashable, plan: Plan, operands: Operands, engine: Engine) -> None:
    """Keep the product of the library for calls of the same kind, which do not look at
    the entries.
    """
    reason = f"product of {operands.dtype} by the library"
    plan = replace(plan, bound=math.inf, reason=reason)
    executable = LibraryProduct(plan, operands.shapes.result)
    call = KeptCall(plan, executable, engine, operands.library, None, True, 0.0, 0)
    keep_by_engine(key, call, engine)


def _plan(words: _IntegerWords, request: Request) -> Plan:
    """The plan of a product of integers, by the largest magnitudes of its operands."""
    operands = words.operands
    entries = words.entries
    a, b = operands.arrays
    library = operands.library
    dtype = operands.dtype
    problem = operands.problem()
    promoted = np.result_type(a.dtype, b.dtype)
    is_forced = _is_native(request, f"{a.dtype} and {b.dtype}", library)
    if is_forced and entries.are_exact and not (entries.fit and dtype == promoted):
        raise AccuracyError(
            f"the native product of {a.dtype} and {b.dtype} is in {promoted}; entries "
            f"may reach {entries.limit} and have to be exact in {dtype}: leave the "
            'scheme to "auto"'
        )

    # The product of the library, or products of words.
    is_small = library.on_host and problem.multiplications <= _SMALL
    scheme: Native | Ozaki1 = Native()
    product = None
    num_products = 1
    k_block = problem.k
    reason = f"product of {promoted} by the library"
    if not (is_forced or (is_small and not entries.are_exact)):
        product = words.spec
        num_products = words.num_products
        k_block = min(k_block, product.k_block)
        scheme = Ozaki1(
            product="int8" if product.operand is INT8 else "fp64",
            num_slices=max(words.counts),
        )
        products = counted(num_products, f"{product.name.upper()} product")
        reason = f"{products} of {words.counts[0]} and {words.counts[1]} words"

    # Whether an entry may wrap around.
    bound = 0.0
    if not problem.multiplications:
        num_products = 0
        reason = "a dimension is 0: nothing to multiply"
    elif not entries.fit and not entries.are_exact:
        bound = math.inf
        reason += f", which wraps around: entries may reach {entries.limit}, the dtype ends at {np.iinfo(dtype).max}"
    elif not entries.fit:
        reason += f", exact: no entry lies beyond {_span(dtype)}, as was checked"
    elif dtype.kind != "b":
        reason += f", exact: no entry exceeds {entries.limit}"
    return Plan(
        problem=problem,
        asked=as_scheme(request.scheme),
        scheme=scheme,
        target=CORRECT if entries.are_exact else NO_PROMISE,
        engine=words.engine.name,
        product=product,
        num_products=num_products,
        k_block=k_block,
        verification=Verification.A_PRIORI,
        bound=bound,
        reason=reason,
        blocking=_blocking(problem, library),
    )


def _blocking(problem: Problem, library: Library) -> Blocking:
    """Blocks of about as many rows as columns, where the result is large."""
    entries = _HOST_ENTRIES if library.on_host else _DEVICE_ENTRIES
    rows = min(max(problem.m, 1), max(_MIN_ROWS, entries // max(problem.n, 1)))
    cols = min(max(problem.n, 1), max(entries // rows, 1))
    matrices = max(entries // (rows * cols), 1)
    return Blocking((matrices, rows, cols))


@dataclass(frozen=True)
class _Entries:
    """What is known of the entries of a product before it is made."""

    ranges: tuple[tuple[int, int], tuple[int, int]]  # of the entries of A and of B
    limit: int  # no entry exceeds it in magnitude
    are_exact: bool  # every one is asked for exactly
    fit: bool  # the dtype holds all

    @property
    def largest(self) -> tuple[int, int]:
        """The largest magnitudes of A and of B."""
        of_a, of_b = (max(-low, high) for low, high in self.ranges)
        return of_a, of_b


def _entries_of(operands: Operands, request: Request) -> _Entries:
    """What the extremes of both operands say of their product."""
    a, b = operands.arrays
    dtype = operands.dtype
    ranges = _extremes(a), _extremes(b)
    limit = operands.shapes.left[2]
    for low, high in ranges:
        limit *= max(-low, high)
    fit = dtype.kind in "bO" or _holds(dtype, limit, {a.dtype.kind, b.dtype.kind})
    are_exact = request.forbids_wrapping and dtype.kind != "b"
    return _Entries(ranges, limit, are_exact, fit)


def _is_native(request: Request, operands: str, library: Library) -> bool:
    """True if the native product is forced.

    Raises PlanError: a plan or a scheme for floating-point operands. TypeError: the
    library of a GPU, which multiplies no integers.
    """
    if request.plan is not None:
        raise PlanError(
            f"the plan is for {request.plan.problem}; the operands are {operands}"
        )
    scheme = as_scheme(request.scheme)
    if scheme not in (None, Native()):
        raise PlanError(
            f"{request.scheme!r} multiplies floating-point numbers, the operands are {operands}: convert one"
        )
    if scheme is not None and not library.on_host:
        raise TypeError(
            f"the operands are {operands} on {library.device}, whose library multiplies no integers"
        )
    return scheme is not None


def _extremes(x: Array) -> tuple[int, int]:
    """The smallest entry or 0, and the largest entry or 0."""
    return int(x.min(initial=0)), int(x.max(initial=0))


def _holds(dtype: DType, limit: int, kinds: set[str]) -> bool:
    """True if a dtype holds the products of operands of these kinds, whose magnitude
    does not exceed `limit`.
    """
    if limit > np.iinfo(dtype).max:
        return False
    may_be_negative = limit > 0 and "i" in kinds
    return dtype.kind == "i" or not may_be_negative


def _span(dtype: DType) -> str:
    """The range of a dtype, for a message."""
    return f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"


@dataclass(frozen=True)
class _IntegerWords:
    """Operands of integers that are multiplied as words."""

    operands: Operands
    entries: _Entries
    engine: Engine

    @cached_property
    def spec(self) -> ProductSpec:
        """INT8 products where they hold the operands as they are, FP64 products of
        words elsewhere.
        """
        fit = all(
            _INT8.min <= low and high <= _INT8.max for low, high in self.entries.ranges
        )
        return self.engine.products["int8" if fit else "fp64"]

    @cached_property
    def stacks(self) -> tuple[Array, Array]:
        """The operands, (batch or 1, m, k) and (batch or 1, k, n)."""
        return self.operands.stacks(None)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Words of an entry of A and of B."""
        of_a, of_b = self.entries.largest
        return num_words(of_a), num_words(of_b)

    @property
    def are_checked(self) -> bool:
        """True if entries may lie beyond the dtype and none is to wrap around."""
        return self.entries.are_exact and not self.entries.fit

    @property
    def is_long(self) -> bool:
        """True if entries are made of all sums of words; else of those below 2**64, as
        the product may wrap around.
        """
        is_object = self.operands.dtype.kind == "O"
        return self.are_checked or (is_object and self.entries.limit >= 2**63)

    @property
    def num_sums(self) -> int:
        """Word i of A and word j of B are multiplied where i + j < num_sums."""
        if self.is_long:
            return max(sum(self.counts), MODULAR_SUMS)
        return min(sum(self.counts) - 1, MODULAR_SUMS)

    @property
    def num_products(self) -> int:
        """Pairs of words that are multiplied."""
        of_a, of_b = self.counts
        return sum(min(of_b, max(self.num_sums - i, 0)) for i in range(of_a))

    def product(self, plan: Plan) -> Array:
        """The product modulo the dtype as a stack; exact where that is object.

        Raises AccuracyError: an entry beyond the dtype, where entries are checked.
        """
        dtype = self.operands.dtype
        stack = self.operands.shapes.stack
        like = self.stacks[0]
        product = np.empty(stack, dtype, like=like)
        is_beyond = np.zeros(stack, bool, like=like) if self.are_checked else None
        for block in plan.blocks():
            sums = self.sums(block, self.num_sums)
            if is_beyond is not None:
                is_beyond[block] = beyond(sums, np.iinfo(dtype))
            if self.is_long and dtype.kind == "O":
                product[block] = python_integers(sums)
            else:
                product[block] = wrapped(sums)
        if is_beyond is not None and is_beyond.any():
            raise self.error(is_beyond)
        return product

    def sums(self, block: Block, num_sums: int) -> Array:
        """The sums of words for a block of the result."""
        left, right = block.operands(*self.stacks)
        dtype = np.int8 if self.spec.operand is INT8 else np.float64
        bound_of_a, bound_of_b = (
            largest if count == 1 else MAX_WORD
            for largest, count in zip(self.entries.largest, self.counts, strict=True)
        )

        def product(x: Array, y: Array) -> Array:
            return self.engine.exact_product(self.spec, x, y, bound_of_a, bound_of_b)

        return word_sums(
            left, right, self.counts, num_sums, dtype, self.spec.k_block, product
        )

    def error(self, is_beyond: Array) -> EntriesBeyond:
        """The error that names the first entry beyond the dtype, and its value."""
        count = int(np.count_nonzero(is_beyond))
        first = int(np.flatnonzero(is_beyond)[0])
        shape = self.operands.shapes.result

        def named(numbers: Array) -> str:
            """Its message for entries on the host, arranged by these numbers."""
            places = np.argwhere(is_beyond.ravel()[numbers])
            place = tuple(places[0])
            return self.message(count, int(numbers[place]), place)

        place = np.unravel_index(first, shape)
        return EntriesBeyond(self.message(count, first, place), shape, named)

    def message(self, count: int, number: int, place: tuple[np.integer, ...]) -> str:
        """The message of so many entries beyond the dtype, the first of which has this
        number in the result and is named by this place.
        """
        value = self.value(number)
        # The functions of hifigemm.numpy have no `result=`.
        helps = 'result="object" of hifigemm.matmul holds them, for arrays of NumPy'
        if -(2**63) <= value < 2**63:
            helps = (
                'result="int64" of hifigemm.matmul may hold them, and so may operands '
                "of int64"
            )
        dtype = self.operands.dtype
        size = math.prod(self.operands.shapes.stack)
        return (
            f"{count} of {size} entries of the product lie beyond {dtype}, which holds {_span(dtype)}; "
            f"the first is entry {tuple(map(int, place))} = {value}: {helps}"
        )

    def value(self, number: int) -> int:
        """The exact entry with this number, from all sums of words of a block with it
        alone.
        """
        place = np.unravel_index(number, self.operands.shapes.stack)
        block = Block(*(slice(int(i), int(i) + 1) for i in place))
        sums = self.sums(block, sum(self.counts))
        terms = [int(term) for term in sums[:, 0, 0, 0]]
        return sum(term << (WORD_BITS * s) for s, term in enumerate(terms))


class EntriesBeyond(AccuracyError):
    """Entries of an exact product of integers lie beyond its dtype.

    `named` writes the message for the numbers of the entries, arranged as the caller
    sees them. Tracebacks show the public class, and a copy or a pickle is one.
    """

    __module__ = AccuracyError.__module__
    __qualname__ = AccuracyError.__qualname__

    def __init__(
        self, message: str, shape: tuple[int, ...], named: Callable[[Array], str]
    ) -> None:
        super().__init__(message)
        self.shape = shape
        self.named = named

    def __reduce__(self) -> tuple[type[AccuracyError], tuple[Any, ...]]:
        return AccuracyError, self.args


# The body of a class cannot name it.
EntriesBeyond.__name__ = AccuracyError.__name__
