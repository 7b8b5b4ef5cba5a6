"""Executables of a CPU, on arrays of NumPy: what lies around the product of two stacks.

Only that product differs: it is the library's own, the compiled core's, or goes step by
step.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.bounds import are_ordinary, native_bound
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.numerics.symmetric import mirror


class HostExecutable:
    """alpha T + beta C around the T = 2**shift A B that a subclass makes of two stacks;
    see `Executable`.
    """

    takes_tensors: ClassVar[bool] = False
    """True if a call may pass tensors of the CPU in the place of arrays of NumPy."""

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
            values = Epilogue(alpha, beta, addend).apply(values)
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
        self._multiply = engine.native_product
        self._are_ordinary = engine.override(are_ordinary)
        self._terms = problem.terms
        self._smallest_normal = 2.0**problem.fmt.emin
        self._bound = native_bound(problem.terms, problem.fmt.u)
        is_matrix = len(signature.shape) == 2
        self._is_plain = is_matrix and not (self._is_combined or problem.mirror)
        self._is_simple = self._is_plain and not problem.is_complex

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
        if not (self._is_simple and a.ndim == 2 == b.ndim):
            return super().__call__(a, b, out, c, alpha, beta)
        # The quickest way for the smallest matrices.
        if not is_ieee():
            return OTHER_MODE
        values = self._multiply(a[None], b[None])
        if not self._are_ordinary(values, self._terms, self._smallest_normal):
            return NOT_ORDINARY
        return Outcome(values[0], self._bound, 1.0)

    def multiply(self, a: Array, b: Array, c: Array | None) -> Outcome | Refusal:
        """A B as the library has it."""
        if not is_ieee():
            return OTHER_MODE
        values = self._multiply(a, b)
        components = real_components(values)
        if not self._are_ordinary(components, self._terms, self._smallest_normal):
            return NOT_ORDINARY
        return Outcome(values, self._bound, 1.0)


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
        """None for a power of two, by which entries may over- and underflow."""
        if signature.shift:
            return None
        return self.executable(self.plan, self.engine, signature)
