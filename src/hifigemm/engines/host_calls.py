"""Calls on a CPU that are repeated: what lies around a product of stacks of NumPy.

Every plan on a CPU is repeated by the function that `replayed_on_host` makes, for arrays
of NumPy and tensors alike. Only the steps between stacks and `Outcome` differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hifigemm.model.engine import Call, Outcome, Repeated
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.subnormals import is_ieee

StackProduct = Callable[[Array, Array, Array | None], Outcome | None]
"""The product of two stacks, with C where the rounding of the plan adds it; None where
the call needs the whole road.
"""


def replayed_on_host(multiply: StackProduct, call: Call, plan: Plan) -> Repeated:
    """A function that repeats a call by a product of stacks.

    It returns None where that does. Where the product is rounded once more, it also does
    so in threads without IEEE arithmetic, and where T = A B may have overflowed though
    the correct alpha T + beta C does not.
    """
    left_shape, right_shape = (x.shape for x in call.stacks)
    problem = plan.problem
    stack_shape = problem.batch, problem.m, problem.n
    adds_exactly = plan.rounding.has_addend
    is_rounded_again = not (adds_exactly or call.epilogue.idle)

    def replay(
        a: Any,
        b: Any,
        out: Any,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
    ) -> Any:
        if is_rounded_again and not is_ieee():
            return None

        # The operands of a call are of one library.
        is_array = type(a) is np.ndarray
        left = (a if is_array else a.numpy()).reshape(left_shape)
        right = (b if is_array else b.numpy()).reshape(right_shape)
        addend = None
        if c is not None:
            addend = (c if is_array else c.numpy()).reshape(stack_shape)

        outcome = multiply(left, right, addend if adds_exactly else None)
        if outcome is None:
            return None
        values = outcome.values
        if is_rounded_again:
            values = Epilogue(alpha, beta, addend).apply(values)
            # A finite result may be the difference of two that overflow.
            if plan.target.level is None and not np.isfinite(values).all():
                return None
        outcome.values = _delivered(values.reshape(call.shape), a, out)
        if outcome.second is not None:
            second = outcome.second.reshape(call.shape)
            return outcome.values, _delivered(second, a, None)
        return outcome.values if call.deliver is None else call.deliver(outcome)

    return replay


def is_as_passed(call: Call, plan: Plan) -> bool:
    """True if the stacks of a call are its operands, neither converted nor repeated for
    a longer stack, so that those of later calls can be made by a new shape alone.
    """
    dtype = plan.problem.dtype
    return all(
        x.dtype == dtype and x.size == stack.size
        for x, stack in zip(call.operands, call.stacks, strict=True)
    )


def _delivered(values: Array, like: Any, out: Any) -> Any:
    """The values in `out`, or in the library of an operand; a product of vectors is a
    scalar in NumPy.
    """
    if type(like) is np.ndarray:
        if out is None:
            return values if values.ndim else values[()]
        out[...] = values
        return out
    tensor = sys.modules["torch"].from_numpy(np.asarray(values))
    return tensor if out is None else out.copy_(tensor)
