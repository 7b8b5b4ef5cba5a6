"""Double-double sums of a plan by the compiled core, and what they are expected to take.

Large float32 products are one float64 product of the BLAS instead, whose roundings are
proven: the core adds the entries that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.formats import FP32, FP64
from hifigemm.engines import core, threads
from hifigemm.engines.host import HostExecutable
from hifigemm.model.engine import Lowering
from hifigemm.model.executable import (
    NO_SPLITS,
    NOT_FINITE,
    Executable,
    Outcome,
    Refusal,
    Signature,
    Splits,
)
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.embedding import embed_left, embed_right, unembed
from hifigemm.numerics.epilogue import combine_stacks
from hifigemm.numerics.float64_products import (
    MAX_SHIFT,
    nbytes_of_product,
    write_rows,
)
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.rounded_sums import MAX_TERMS
from hifigemm.numerics.subnormals import is_ieee, others_may_differ

PRODUCTS_RATE = 0.3
"""Five or six products of the BLAS and their passes, of large matrices."""
PRODUCTS_STEPS = 200_000.0
"""Nanoseconds that they take for the smallest ones."""
DOUBLE_PAIRS = 3.3
"""Times as long take pairs of float64, by sums in three words: 364 ms for 110 at n = 1000."""
NATIVE_RATE = 0.03
"""Nanoseconds a term of one product of the BLAS, at n = 1000."""
PASSES_RATE = 2.0
"""Nanoseconds for each entry of operands and product, in addition to a float64 product."""
FLOAT64_STEPS = 40_000.0
"""Nanoseconds of the steps around a float64 product, whatever its size."""
MOST_OPEN = 0.125
"""Share of open entries above which the sums of all are as quick."""
THIN = 3
"""Columns or rows up to which products of the BLAS read memory for every term."""
THIN_RATE = 25.0
"""Nanoseconds a term of products so thin."""


def pays(problem: Problem, instructions: str) -> bool:
    """True if the core is expected to be quicker than products of the BLAS."""
    terms = problem.multiplications
    rate = PRODUCTS_RATE
    if min(problem.m, problem.n) <= THIN:
        rate = THIN_RATE
    return core.RATES[instructions] * terms <= PRODUCTS_STEPS + rate * terms


def real_shape(problem: Problem) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of the product of real numbers that complex operands become."""
    cols = 2 * problem.n if problem.is_complex else problem.n
    return problem.batch, problem.m, cols, problem.terms


def takes_float64_product(plan: Plan) -> bool:
    """True if the nearest float32 numbers of A B are expected to come more quickly from
    a float64 product than from the core's sums.
    """
    is_nearest = plan.rounding.kind == "nearest" and not plan.rounding.has_addend
    _, m, n, k = real_shape(plan.problem)
    if not (is_nearest and plan.problem.fmt is FP32 and k <= MAX_TERMS):
        return False
    rate = core.RATES[core.loaded()[0].instructions[0]]
    passes = PASSES_RATE * (m * k + k * n + m * n)
    return FLOAT64_STEPS + passes + NATIVE_RATE * m * n * k <= rate * m * n * k


def multiply_in_float64(
    a: Array,
    b: Array,
    c: Array | None,
    values: Array,
    second_values: Array | None,
    shift: int,
    kind: int,
) -> bool:
    """`core.multiply` for the nearest float32 numbers of A B: by a float64 product, and
    by the core where too many entries of that are open.
    """
    sums = core.multiply
    if not is_ieee() or others_may_differ(a, b):
        # The core sets the mode of its threads, which a library does not.
        return sums(a, b, c, values, second_values, shift, kind)
    left_stack = a if a.ndim == 3 else a[None]
    right_stack = b if b.ndim == 3 else b[None]
    for z, target in enumerate(values):
        left = left_stack[z % len(left_stack)]
        right = right_stack[z % len(right_stack)]
        num_rows = write_rows(left, right, target, shift, MOST_OPEN, core.override)
        if num_rows is None:
            return False
        rest = left[num_rows:]
        target = target[None, num_rows:]
        if len(rest) and not sums(rest, right, None, target, None, shift, kind):
            return False
    return True


def expected_seconds(plan: Plan) -> float:
    """Seconds that the plan may take on a CPU, within a factor of three of what ordinary
    operands take on a machine that is not busy.
    """
    problem = plan.problem
    terms = problem.multiplications * (4 if problem.is_complex else 1)
    rate_of = _RATES_BY_SCHEME.get(plan.scheme.name, _rate_of_products)
    rate, num_threads = rate_of(plan, threads.limit())
    if plan.rounding.kind == "pair" and problem.fmt is FP64:
        rate *= DOUBLE_PAIRS
    return 1e-9 * rate * terms / num_threads


def _rate_of_native(plan: Plan, num_threads: int) -> tuple[float, int]:
    return NATIVE_RATE, num_threads


def _rate_of_products(plan: Plan, num_threads: int) -> tuple[float, int]:
    return PRODUCTS_RATE / 5 * plan.num_products, num_threads


def _rate_of_sums(plan: Plan, num_threads: int) -> tuple[float, int]:
    problem = plan.problem
    module, _ = core.loaded()
    if module is None or not pays(problem, module.instructions[0]):
        return _rate_of_products(plan, num_threads)
    if takes_float64_product(plan):
        return NATIVE_RATE, num_threads
    batch, m, n, k = real_shape(problem)
    shares = core.most_threads(batch, m, n, k)
    return core.RATES[module.instructions[0]], min(num_threads, shares)


_RATES_BY_SCHEME: dict[str, Callable[[Plan, int], tuple[float, int]]] = {
    "native": _rate_of_native,
    "double-double": _rate_of_sums,
}
"""Nanoseconds a term, and threads of so many that are shared, by the name of a scheme;
other schemes make products.
"""


def lowering(plan: Plan) -> CoreLowering | None:
    """How double-double sums are carried out; None where the core is not there, or does
    not pay.
    """
    module, _ = core.loaded()
    if module is None or not pays(plan.problem, module.instructions[0]):
        return None
    return CoreLowering(plan)


@dataclass(frozen=True)
class CoreLowering(Lowering):
    """Double-double sums of a plan by the core; see `Lowering`."""

    plan: Plan

    @property
    def reason(self) -> str:
        """By which sums entries are rounded once."""
        if takes_float64_product(self.plan):
            return (
                "a float64 product, of which each rounding is proven, and compiled sums "
                "where one is open"
            )
        return "compiled sums in two words or more, each rounded once"

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """Bytes that all threads pack, and of complex operands as real ones; or of a
        matrix of the stack in float64, and some rows of its product.
        """
        problem = self.plan.problem
        k = problem.terms
        real_cols = cols
        embedded = 0
        if problem.is_complex:
            real_cols = 2 * cols
            embedded = 8 * batch * (rows * k + k * real_cols + rows * real_cols)
        num_threads = core.most_threads(batch, rows, real_cols, k)
        nbytes = num_threads * core.packed_bytes(rows, k)
        if takes_float64_product(self.plan):
            nbytes = max(nbytes, nbytes_of_product(rows, k, real_cols))
        return nbytes + embedded

    def lower(self, signature: Signature) -> Executable | None:
        """None for pairs, enclosures and sums with C of complex operands."""
        plan = self.plan
        if plan.rounding != NEAREST and plan.problem.is_complex:
            return None
        return CoreSums(plan, signature)


class CoreSums(HostExecutable):
    """Sums by the core, each rounded once. It refuses Inf and NaN, and a C that loses bits
    times its power of two.
    """

    def __init__(self, plan: Plan, signature: Signature) -> None:
        super().__init__(plan, signature)
        self._combine_stacks = core.override(combine_stacks)
        problem = plan.problem
        self._sum: Callable[..., bool] = core.loaded()[0].multiply
        if core.most_threads(*real_shape(problem)) > 1:
            self._sum = core.multiply
        if takes_float64_product(plan) and abs(self.shift) <= MAX_SHIFT:
            self._sum = multiply_in_float64
        self._kind = core.KINDS[plan.rounding.kind]
        self._num_products = float(plan.num_products)
        self._dtype = problem.dtype
        self._is_complex = problem.is_complex
        self._is_nearest = plan.rounding == NEAREST and len(signature.shape) == 2
        # One call of the core reads, adds and rounds.
        self._is_one_call = (
            plan.is_whole
            and not self._is_combined
            and not (self._is_complex or problem.mirror)
        )

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome | Refusal:
        """See `Executable`."""
        if not self._is_one_call:
            return super().__call__(a, b, out, c, alpha, beta)
        are_matrices = a.ndim == 2 == b.ndim
        if not (are_matrices and a.flags.aligned and b.flags.aligned):
            a = core.readable(a.reshape(self._left_shape))
            b = core.readable(b.reshape(self._right_shape))
        elif self._is_nearest:
            # The quickest way for the smallest matrices.
            values = np.empty(self._stack_shape, self._dtype)
            if not self._sum(a, b, None, values, None, self.shift, 0):
                return NOT_FINITE
            return Outcome(values[0], 0.0, self._num_products)
        sums = self._sums(a, b, c)
        if sums is None:
            return NOT_FINITE
        values, second = sums
        shape = self._shape
        second = None if second is None else second.reshape(shape)
        values = values.reshape(shape)
        return Outcome(values, 0.0, self._num_products, (), None, second)

    def _sums(self, a: Array, b: Array, c: Array | None) -> core.Sums | None:
        """The plan's rounding of 2**shift (+-A B + s C) of matrices or stacks, in one call
        or block by block; None if one of them is not finite, or s C has bits below the
        smallest float64.
        """
        values = np.empty(self._stack_shape, self._dtype)
        second = np.empty_like(values) if self._kind else None
        if c is not None:
            c = core.readable(c.reshape(self._stack_shape))
            if not core.override(are_ordinary)(c, 1, 0.0):
                return None
            c = c if self.plan.rounding.c_sign > 0 else -c
            exponent = self.plan.rounding.c_exponent
            if exponent:
                scaled = np.ldexp(c.astype(np.float64), exponent)
                if not (np.ldexp(scaled, -exponent) == c).all():
                    return None
                c = scaled
        if self.plan.rounding.sign < 0:
            a = -a
        if self._is_one_call:
            is_finite = self._sum(a, b, c, values, second, self.shift, self._kind)
            return (values, second) if is_finite else None
        for block in self.plan.blocks():
            left, right = block.operands(a, b)
            addend = None if c is None else c[block]
            other = None if second is None else second[block]
            if not self._write(left, right, addend, values[block], other):
                return None
        return values, second

    def multiply(self, a: Array, b: Array, c: Array | None) -> Outcome | Refusal:
        """The plan's rounding of 2**shift (+-A B + s C)."""
        sums = self._sums(a, b, c)
        if sums is None:
            return NOT_FINITE
        values, second = sums
        return Outcome(values, 0.0, self._num_products, second=second)

    def _write(
        self,
        a: Array,
        b: Array,
        c: Array | None,
        values: Array,
        second: Array | None,
    ) -> bool:
        """Write a block of the result; False where A or B holds Inf or NaN there."""
        a = core.readable(a)
        b = core.readable(b)
        if not self._is_complex:
            return self._sum(a, b, c, values, second, self.shift, self._kind)
        batch, rows, cols = values.shape
        dtype = values.real.dtype
        target = np.empty((batch, rows, 2 * cols), dtype)
        real = embed_left(a, dtype), embed_right(b, dtype)
        if not self._sum(*real, None, target, None, self.shift, self._kind):
            return False
        values[...] = unembed(target)
        return True
