"""Executables of a CPU, on arrays of NumPy: what lies around the product of two stacks.

Only that product differs: it is the library's own, the compiled core's, or goes step by
step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hifigemm.model.engine import Engine, Lowering
from hifigemm.model.executable import (
    NO_SPLITS,
    NOT_ORDINARY,
    OTHER_MODE,
    Executable,
    Outcome,
    Refusal,
    Signature,
    Splits,
)
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import Array, least_exponent, real_components
from hifigemm.numerics.bounds import are_ordinary, native_bound
from hifigemm.numerics.epilogue import combine_stacks
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.numerics.symmetric import mirror

_NEAR = 30
"""Powers of two that nearly all entries take."""


class HostExecutable:
    """alpha T + beta C around the T = 2**shift A B that a subclass makes of two stacks;
    see `Executable`.
    """

    takes_tensors: ClassVar[bool] = False
    """True if a call may pass tensors of the CPU instead of arrays of NumPy."""

    def __init__(self, plan: Plan, signature: Signature) -> None:
        problem = plan.problem
        self.plan = plan
        self.shift = signature.shift
        self._left_shape = signature.left.shape
        self._right_shape = signature.right.shape
        self._stack_shape = problem.shape
        self._shape = signature.shape
        self._adds_exactly = plan.rounding.has_addend
        self._is_combined = not (self._adds_exactly or signature.epilogue.idle)
        self._mirror = problem.mirror
        self._combine_stacks = combine_stacks

    def multiply(self, a: Array, b: Array, c: Array | None) -> Outcome | Refusal:
        """T for stacks; with C where the rounding of the plan adds it."""
        raise NotImplementedError

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
        """See `Executable`; the values are always in new memory."""
        if self._is_combined and not is_ieee():
            return OTHER_MODE
        addend = None if c is None else c.reshape(self._stack_shape)
        left = a.reshape(self._left_shape)
        right = b.reshape(self._right_shape)
        outcome = self.multiply(left, right, addend if self._adds_exactly else None)
        if isinstance(outcome, Refusal):
            return outcome
        values = outcome.values
        if self._mirror:
            mirror(values, self._mirror == "C")
        if self._is_combined:
            values = self._combine_stacks(values, alpha, addend, beta)
        shape = self._shape
        second = outcome.second
        certified = outcome.certified
        return Outcome(
            values.reshape(shape),
            outcome.bound,
            outcome.num_products,
            outcome.notes,
            None,
            None if second is None else second.reshape(shape),
            None if certified is None else certified.reshape(shape),
        )


class NativeOnHost(HostExecutable):
    """The library's own product, where every entry is far from both ends of the
    exponents; it refuses others, and Inf and NaN with them.
    """

    def __init__(self, plan: Plan, engine: Engine, signature: Signature) -> None:
        super().__init__(plan, signature)
        problem = plan.problem
        self._combine_stacks = engine.override(combine_stacks)
        self._multiply = engine.native_product
        self._are_ordinary = engine.override(are_ordinary)
        self._terms = problem.terms
        self._least_exponent = problem.fmt.emin
        # Entries stay normal where a power of two makes them smaller.
        self._smallest_normal = 2.0 ** (problem.fmt.emin - min(self.shift, 0))
        self._bound = native_bound(problem.terms, problem.fmt.u)
        self._is_real = not problem.is_complex
        are_matrices = len(signature.left) == len(signature.right) == 1
        self._is_quick = are_matrices and len(signature.shape) < 3 and not self._mirror
        self._is_plain = self._is_quick and not (self._is_combined or self.shift)

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
        if not (self._is_quick and a.ndim < 3 > b.ndim):
            return super().__call__(a, b, out, c, alpha, beta)
        # The quickest way for small matrices and vectors.
        left = a if a.ndim == 2 else a[None]
        right = b if b.ndim == 2 else b[:, None]
        values = self._product(left, right)
        if isinstance(values, Refusal):
            return values
        if self._is_combined:
            addend = None if c is None else c.reshape(self._stack_shape)
            values = self._combine_stacks(values[None], alpha, addend, beta)
        if values.shape != self._shape:
            values = values.reshape(self._shape)
        return Outcome(values, self._bound, 1.0)

    def multiply(self, a: Array, b: Array, c: Array | None) -> Outcome | Refusal:
        """A B as the library has it."""
        values = self._product(a, b)
        if isinstance(values, Refusal):
            return values
        return Outcome(values, self._bound, 1.0)

    def _product(self, a: Array, b: Array) -> Array | Refusal:
        """2**shift A B of matrices or stacks."""
        if not is_ieee():
            return OTHER_MODE
        values = self._multiply(a, b)
        components = values if self._is_real else real_components(values)
        if not self._keeps_bound(components, a, b):
            return NOT_ORDINARY
        if self.shift:
            with np.errstate(over="ignore"):
                components *= 2.0**self.shift
            if self.shift > 0 and not np.isfinite(components).all():
                return NOT_ORDINARY
        return values

    def _keeps_bound(self, components: Array, a: Array, b: Array) -> bool:
        """True if all components of A B are finite, and so large, or a and b such, that
        no underflow counts.
        """
        stack = components if components.ndim == 3 else components[None]
        if self._are_ordinary(stack, self._terms, self._smallest_normal):
            return True
        # No product of two entries underflows: A B may have zeros.
        if self.shift < 0 or not np.isfinite(components).all():
            return False
        return least_exponent(a) + least_exponent(b) >= self._least_exponent


class NativeLowering(Lowering):
    """How a CPU carries out the native product; see `Lowering`."""

    def __init__(
        self, plan: Plan, engine: Engine, executable: type[NativeOnHost]
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.executable = executable

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """0: the library manages its own workspace."""
        return 0

    def lower(self, signature: Signature) -> Executable | None:
        """None for a power of two by which many entries over- and underflow."""
        if abs(signature.shift) > _NEAR:
            return None
        return self.executable(self.plan, self.engine, signature)
