"""Products of integers and bools: in the promoted dtype, which wraps around, or
exactly.

A default call gives what `numpy.matmul` gives. Where an accuracy or a kind of result is
asked for, every entry is exact: it comes in the dtype that was asked for, or an error
names the first entry that lies beyond it. Small products of a default call are those of
the library, all others are sums of exact products of words (numerics.integer_words).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hifigemm.engine import Engine, report_of
from hifigemm.engines import engine_for
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import INT8
from hifigemm.libraries import Library
from hifigemm.numerics.bits import Array
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
from hifigemm.operands import Operands
from hifigemm.plan import Decision, Report, blocks_of_shape
from hifigemm.problem import Block, ProductSpec, counted
from hifigemm.request import Request
from hifigemm.schemes import Native, Ozaki1, Scheme
from hifigemm.schemes.auto import as_scheme
from hifigemm.settings import decision_log

_INT8 = np.iinfo(np.int8)
_RESULTS = {"int64": np.dtype(np.int64), "object": np.dtype(object)}
_SMALL = 2**18
"""Multiplications up to which the product of NumPy is quicker than one of words."""
_MIN_ROWS = 1024
"""Rows of a block of the result, unless the result has fewer."""
_HOST_ENTRIES = 2**20
"""Entries of a block of the result on the host: 48 MiB of sums."""
_DEVICE_ENTRIES = 2**24
"""Entries of a block of the result on a GPU."""


def are_integers(a: np.dtype[Any], b: np.dtype[Any], result: str) -> bool:
    """True if the product of operands of these dtypes is one of integers or bools.

    NumPy promotes int64 beside uint64 to float64: their product is one of integers
    where a kind of them is asked for.
    """
    if a.kind not in "biu" or b.kind not in "biu":
        return False
    return result != "array" or np.result_type(a, b).kind in "biu"


def integer_dtype(
    a: np.dtype[Any],
    b: np.dtype[Any],
    request: Request,
    out: Any,
    library: Library,
) -> np.dtype[Any]:
    """The dtype of a product of integers: that of an `out` of integers where every
    entry is to be exact.

    The product of bools is one of bools, and in an `out` of integers it is the exact
    sums that count.

    Raises PlanError: no kind of result for integers. TypeError: Python integers in
    tensors, an `out` of floats for bools whose sums are to be exact.
    """
    result = request.result
    if result not in ("array", *_RESULTS):
        raise PlanError(
            f'result={result!r}, the operands are {a} and {b}: expected "array", '
            '"int64" or "object"'
        )
    if result == "object" and library.name != "numpy":
        raise TypeError(
            f'result="object" of tensors of {a} and {b}: no tensor holds Python '
            "integers"
        )
    dtype = _RESULTS[result] if result in _RESULTS else np.result_type(a, b)
    if _is_exact(request) and out is not None and library.owns(out):
        out_dtype = library.asarray(out, "out").dtype.newbyteorder("=")
        if out_dtype.kind in "iu":
            return out_dtype
        if dtype.kind == "b" != out_dtype.kind:
            raise TypeError(
                f"out has dtype {out_dtype}; the product of bools is one of bools, and their exact sums are integers: "
                "expected bool or a dtype of integers"
            )
    return dtype


def _is_exact(request: Request) -> bool:
    """True if every entry is asked for exactly, so that none may wrap around."""
    return request.accuracy is not None or request.result != "array"


def integer_product(operands: Operands, request: Request) -> tuple[Array, Report]:
    """A B in the dtype of the operands' product, with its report.

    Raises AccuracyError: an entry that was to be exact lies beyond the dtype.
    PlanError: a plan or a scheme for floating-point operands. TypeError: the native
    product on a GPU.
    """
    a, b = operands.arrays
    library = operands.library
    dtype = operands.dtype
    shapes = operands.shapes
    forced_native = _is_native(request, f"{a.dtype} and {b.dtype}", library)
    engine = engine_for(request.engine, library.name, library.device)
    promoted = np.result_type(a.dtype, b.dtype)
    k = shapes.left[2]
    exact = _is_exact(request) and dtype.kind != "b"

    # No entry of the product exceeds `limit` in magnitude.
    extremes = _extremes(a), _extremes(b)
    largest_of_a, largest_of_b = (max(-low, high) for low, high in extremes)
    largest = largest_of_a, largest_of_b
    limit = k * largest_of_a * largest_of_b
    fits = dtype.kind in "bO" or _holds(dtype, limit, {a.dtype.kind, b.dtype.kind})
    if forced_native and exact and not (fits and dtype == promoted):
        raise AccuracyError(
            f"the native product of {a.dtype} and {b.dtype} is in {promoted}; entries may reach {limit} and are to be "
            f'exact in {dtype}: leave the scheme to "auto"'
        )

    # The product of the library, or products of words.
    is_small = shapes.count * shapes.left[1] * shapes.right[2] * k <= _SMALL
    if forced_native or (library.on_host and is_small and not exact):
        product = np.matmul(a, b)
        how = _How(Native(), 1, k, f"product of {promoted} by the library")
    else:
        left, right = operands.stacks(None)
        fit_int8 = all(_INT8.min <= low and high <= _INT8.max for low, high in extremes)
        words = _Words(left, right, shapes.count, engine, largest, fit_int8)
        product, how = words.product(dtype, limit, exact and not fits, shapes.result)

    # The report.
    num_products = how.num_products
    reason = how.reason
    bound = 0.0
    if product.size == 0 or k == 0:
        num_products = 0
        reason = "a dimension is 0: nothing to multiply"
    elif not fits and not exact:
        bound = math.inf
        reason += f", which wraps around: entries may reach {limit}, the dtype ends at {np.iinfo(dtype).max}"
    elif not fits:
        reason += f", exact: no entry lies beyond {_span(dtype)}, as was checked"
    elif dtype.kind != "b":
        reason += f", exact: no entry exceeds {limit}"
    decision_log().info("%s @ %s: %s", a.shape, b.shape, reason)
    decision = Decision(
        scheme=how.scheme,
        num_products=num_products,
        bound=bound,
        correct=bound == 0.0,
        k_block=how.k_block,
        native=how.scheme.is_native and num_products > 0,
        reason=reason,
    )
    return product.reshape(shapes.result), report_of(engine, decision)


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


def _holds(dtype: np.dtype[Any], limit: int, kinds: set[str]) -> bool:
    """True if a dtype holds the products of operands of these kinds, whose magnitude
    does not exceed `limit`.
    """
    if limit > np.iinfo(dtype).max:
        return False
    may_be_negative = limit > 0 and "i" in kinds
    return dtype.kind == "i" or not may_be_negative


def _span(dtype: np.dtype[Any]) -> str:
    """The range of a dtype, for a message."""
    return f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"


class _How(NamedTuple):
    """How a product was made, for its report."""

    scheme: Scheme
    num_products: int
    k_block: int
    reason: str


@dataclass(frozen=True)
class _Words:
    """Stacks of integers of magnitude up to `largest`, multiplied as words."""

    left: Array  # (batch or 1, m, k)
    right: Array  # (batch or 1, k, n)
    batch: int
    engine: Engine
    largest: tuple[int, int]
    fit_int8: bool

    @cached_property
    def spec(self) -> ProductSpec:
        """INT8 products where they hold the operands as they are, FP64 products of
        words elsewhere.
        """
        return self.engine.products["int8" if self.fit_int8 else "fp64"]

    def product(
        self, dtype: np.dtype[Any], limit: int, checked: bool, shape: tuple[int, ...]
    ) -> tuple[Array, _How]:
        """The product modulo the dtype as a stack; exact where that is object.

        No entry exceeds `limit` in magnitude. Raises AccuracyError: an entry beyond the
        dtype, where entries are checked.
        """
        m, k = self.left.shape[1:]
        n = self.right.shape[2]
        counts = num_words(self.largest[0]), num_words(self.largest[1])

        # All sums of words, or those below 2**64 where the product may wrap around.
        is_object = dtype.kind == "O"
        is_long = checked or (is_object and limit >= 2**63)
        if is_long:
            num_sums = max(sum(counts), MODULAR_SUMS)
        else:
            num_sums = min(sum(counts) - 1, MODULAR_SUMS)

        product = np.empty((self.batch, m, n), dtype, like=self.left)
        is_beyond = np.zeros(product.shape, bool, like=self.left) if checked else None
        for block in _blocks(self.batch, m, n, self.left):
            sums = self.sums(block, counts, num_sums)
            if is_beyond is not None:
                is_beyond[block] = beyond(sums, np.iinfo(dtype))
            if is_long and is_object:
                product[block] = python_integers(sums)
            else:
                product[block] = wrapped(sums)
        if is_beyond is not None and is_beyond.any():
            raise self.error(is_beyond, counts, dtype, shape)

        # Word i of A and word j of B are multiplied where i + j < num_sums.
        pairs = sum(min(counts[1], max(num_sums - i, 0)) for i in range(counts[0]))
        products = counted(pairs, f"{self.spec.name.upper()} product")
        reason = f"{products} of {counts[0]} and {counts[1]} words"
        scheme = Ozaki1(
            product="int8" if self.spec.operand is INT8 else "fp64",
            num_slices=max(counts),
        )
        return product, _How(scheme, pairs, min(k, self.spec.k_block), reason)

    def sums(self, block: Block, counts: tuple[int, int], num_sums: int) -> Array:
        """The sums of words for a block of the result."""
        left, right = block.operands(self.left, self.right)
        dtype = np.int8 if self.spec.operand is INT8 else np.float64
        bound_of_a, bound_of_b = (
            largest if count == 1 else MAX_WORD
            for largest, count in zip(self.largest, counts, strict=True)
        )

        def product(x: Array, y: Array) -> Array:
            return self.engine.exact_product(self.spec, x, y, bound_of_a, bound_of_b)

        return word_sums(
            left, right, counts, num_sums, dtype, self.spec.k_block, product
        )

    def error(
        self,
        is_beyond: Array,
        counts: tuple[int, int],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> AccuracyError:
        """The error that names the first entry beyond the dtype, and its value."""
        first = int(np.flatnonzero(is_beyond)[0])
        index = tuple(int(i) for i in np.unravel_index(first, shape))
        # The value of the entry, from all sums of words of a block with it alone.
        index_in_stack = (int(i) for i in np.unravel_index(first, is_beyond.shape))
        block = Block(*(slice(i, i + 1) for i in index_in_stack))
        sums = self.sums(block, counts, sum(counts))
        value = sum(int(sums[s, 0, 0, 0]) << (WORD_BITS * s) for s in range(len(sums)))
        wider = (
            'result="int64" may hold'
            if -(2**63) <= value < 2**63
            else 'result="object" of NumPy arrays holds'
        )
        return AccuracyError(
            f"{int(np.count_nonzero(is_beyond))} of {is_beyond.size} entries of the product lie beyond {dtype}, which "
            f"holds {_span(dtype)}; the first is entry {index} = {value}: {wider} them"
        )


def _blocks(batch: int, m: int, n: int, like: Array) -> Iterator[Block]:
    """Blocks of the result, of about as many rows as columns where it is large."""
    entries = _HOST_ENTRIES if isinstance(like, np.ndarray) else _DEVICE_ENTRIES
    rows = min(max(m, 1), max(_MIN_ROWS, entries // max(n, 1)))
    cols = min(max(n, 1), max(entries // rows, 1))
    matrices = max(entries // (rows * cols), 1)
    return blocks_of_shape((batch, m, n), (matrices, rows, cols))
