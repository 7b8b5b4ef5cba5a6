"""What is kept of a kind of call: the executable that its first call has run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.settings import LONG, announce, decision_log, logs_decisions
from hifigemm.base.store import keep, kept
from hifigemm.base.transforms import opaque
from hifigemm.engines.arrays import as_array, memory_of
from hifigemm.libraries import Library
from hifigemm.model.engine import Engine
from hifigemm.model.executable import (
    NO_MEMORY,
    NO_SPLITS,
    OTHER_MODE,
    OVERFLOW,
    Executable,
    Outcome,
    Refusal,
    Splits,
)
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import DType
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.operands.operands import Prepared
from hifigemm.running.keys import in_memory
from hifigemm.running.planner import may_lack_memory, workspace_limit
from hifigemm.running.reports import report_on

Stack = Callable[[Any], Any]
"""Makes the stack of an operand that is none as it lies in memory."""


class KeptCall:
    """A plan, and the executable that carries it out for operands of one layout."""

    __slots__ = (
        "converts",
        "engine",
        "executable",
        "has_tensors",
        "is_final",
        "is_on_host",
        "leaves_memory",
        "library",
        "may_overflow",
        "out_dtype",
        "plan",
        "seconds",
        "stacks",
        "takes",
    )

    def __init__(
        self,
        plan: Plan,
        executable: Executable,
        engine: Engine,
        library: Library,
        stacks: tuple[Stack | None, Stack | None] | None,
        is_final: bool,
        seconds: float,
        limit: int,
        splits: Splits = NO_SPLITS,
        out_dtype: DType | None = None,
    ) -> None:
        self.plan = plan
        self.executable = executable
        self.engine = engine
        self.library = library
        # Operands that are converted, or repeated for a longer stack; None where the
        # executable takes both as they are.
        self.stacks = stacks
        # T = A B is the result, or it is rounded once more. It may then overflow though
        # alpha T + beta C does not, which a level leaves as a library has it.
        self.is_final = is_final
        self.is_on_host = on_host = library.on_host
        self.has_tensors = library.name == "torch"
        self.may_overflow = on_host and not is_final and plan.target.level is None
        # Half of the memory that is free is left to others; on a device the allocator
        # refuses what is too much.
        self.leaves_memory = on_host and may_lack_memory(plan.problem, limit)
        takes_tensors = getattr(executable, "takes_tensors", False)
        self.converts = stacks is not None or not takes_tensors
        self.seconds = seconds  # that are expected, on a CPU
        self.out_dtype = out_dtype  # None: that of the product
        # which operands the executable takes as they were prepared
        self.takes = splits[0] is not None, splits[1] is not None

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
    ) -> Outcome | Refusal:
        """What comes of arrays of the library, or prepared ones; on a device the values
        may be in `out`.
        """
        if self.leaves_memory:
            limit = workspace_limit(self.plan.problem, None, self.engine)
            if self.plan.workspace > limit:
                return NO_MEMORY
        if self.seconds > LONG:
            announce(self.plan.problem, self.plan.scheme, self.seconds)
        splits = NO_SPLITS
        if type(a) is Prepared or type(b) is Prepared:
            left, right = self.takes
            splits = a.split if left else None, b.split if right else None
            a = in_memory(a)
            b = in_memory(b)
        if self.has_tensors:
            # Whoever calls has dealt with derivatives.
            a = without_gradient(a)
            b = without_gradient(b)
            c = without_gradient(c)
        converts = self.stacks is not None or self.out_dtype is not None
        if self.out_dtype is not None:
            out = None  # it is of another dtype than the executable writes
        if self.is_on_host:
            out = None
            if self.has_tensors:
                x, y = a, b
                a = without_bfloat16(a)
                b = without_bfloat16(b)
                converts |= a is not x or b is not y
            if self.converts and type(a) is not np.ndarray:
                # Tensors of the CPU.
                a = a.numpy()
                b = b.numpy()
                c = None if c is None else c.numpy()
        if converts and self.is_on_host and not is_ieee():
            # A thread that flushes subnormal numbers loses those that it converts.
            return OTHER_MODE
        if self.stacks is not None:
            of_a, of_b = self.stacks
            a = a if of_a is None else of_a(a)
            b = b if of_b is None else of_b(b)
        try:
            outcome = self.executable(a, b, out, c, alpha, beta, splits)
        except RuntimeError as error:
            out_of_memory = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
            if not isinstance(error, out_of_memory):
                raise
            # Smaller blocks may do with what there is.
            return NO_MEMORY
        if isinstance(outcome, Refusal):
            return outcome
        if self.may_overflow and not np.isfinite(outcome.values).all():
            return OVERFLOW
        if logs_decisions():
            decision_log().info("%s, as before", self)
        return outcome

    def delivered(self, outcome: Outcome, out: Any, return_report: bool) -> Any:
        """The values in `out`, or as an array of the library; both of a pair or an
        enclosure; with a report if asked.
        """
        values = outcome.values
        second = outcome.second
        if self.out_dtype is not None:
            from hifigemm.running.narrow import rounded_values

            if self.is_on_host and type(values) is not np.ndarray:
                values = values.numpy()
            first = as_array(values)
            second = None if second is None else as_array(second)
            values = memory_of(rounded_values(first, second, self.out_dtype))
            second = None
        if out is None:
            values = self.library.from_memory(values)
            if second is not None:
                values = values, self.library.from_memory(second)
        else:
            if values is not out:
                self.library.fill(out, values)
            values = out
        if not return_report:
            return values
        # Nothing was decided.
        plan = outcome.plan or self.plan
        report = report_on(plan, outcome, self.engine, 0.0, self.is_final)
        if self.out_dtype is not None:
            from hifigemm.running.narrow import report_of_rounding

            is_once = outcome.second is not None
            u = self.plan.problem.fmt.u
            report = report_of_rounding(report, self.out_dtype, u, is_once)
        return values, report

    def __str__(self) -> str:
        return f"{self.plan.problem}: {self.plan.scheme}, {self.plan.reason}"


class Refused(NamedTuple):
    """What is kept of a kind of call, and why it refused the operands of one."""

    call: KeptCall
    refusal: Refusal


@opaque
def replay(
    key: Hashable, arguments: tuple[Any, ...], out: Any, return_report: bool
) -> Any:
    """The delivered result of a call of a kind that is kept; `Refused` if the operands
    are, and None if nothing is kept, as for the key None.

    `arguments` are those of a `KeptCall`. A compiled program may call this between two of
    its graphs: then no frame of the call is compiled.
    """
    call: KeptCall | None = None if key is None else kept(key)
    if call is None:
        return None
    outcome = call(*arguments)
    if isinstance(outcome, Refusal):
        return Refused(call, outcome)
    return call.delivered(outcome, out, return_report)


def keep_by_engine(key: Hashable, value: object, engine: Engine) -> None:
    """Keep a value for later calls, among those of an engine."""
    keep(key, value, (engine.name, engine.device))


def without_bfloat16(x: Any) -> Any:
    """A bfloat16 tensor in float32, as NumPy has no bfloat16; other arrays unchanged."""
    return x.float() if x.dtype is sys.modules["torch"].bfloat16 else x


def without_gradient(x: Any) -> Any:
    """A tensor, or None, without what PyTorch records of it."""
    return x.detach() if x is not None and x.requires_grad else x
