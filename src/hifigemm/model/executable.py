"""What a plan becomes for operands of one layout, and what comes of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hifigemm.model.plan import Choice, Evidence, Plan, Verification
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue

Splits = tuple[Any, Any]
"""What was made of prepared operands, the left and the right one: a `Split`, or what the
lowering of an engine has made; None for others.
"""
NO_SPLITS: Splits = (None, None)


class RecordedDecision(NamedTuple):
    """The content of a decision record, once it is read."""

    holds: bool  # every entry keeps the bound of the plan
    scheme: Choice  # the one that was taken
    bound: float  # the r that every entry keeps
    num_products: int
    k_block: int  # inner length of a sum inside the unit
    evidence: Evidence | None = None  # facts about the operands, for a finer plan
    notes: tuple[str, ...] = ()  # for the reason of a report


class Outcome(NamedTuple):
    """Values, their bound, and the products that were made for them."""

    values: Any
    bound: float
    num_products: float
    notes: tuple[str, ...] = ()  # for the reason of a report
    # waits for the device and reads its decision; None if the device decides nothing
    decision: Callable[[], RecordedDecision] | None = None
    second: Any = None  # the other array of a pair or an enclosure
    certified: Array | None = None  # True for the entries that are; None: all
    # the plan that was carried out, where that is not the one that a call was planned by
    plan: Plan | None = None
    # True where a look at such operands finds a plan with fewer products
    is_wasteful: bool = False


class Refusal(NamedTuple):
    """Why an executable has written nothing that the caller sees."""

    reason: str
    # what it has found out of the operands, for a finer plan
    evidence: Evidence | None = None
    # False where it says nothing of the operands: the whole road may run it
    of_operands: bool = True


def certify(outcome: Outcome, plan: Plan) -> Outcome | Refusal:
    """The outcome with the bound that its decision states, or a refusal, where the plan
    is certified entry by entry; that waits for the device.
    """
    is_certified = plan.verification is Verification.ENTRYWISE
    if outcome.decision is None or not is_certified:
        return outcome
    decision = outcome.decision()
    if not decision.holds:
        return Refusal("entries are not certified", decision.evidence)
    return outcome._replace(bound=decision.bound, decision=lambda: decision)


OTHER_MODE = Refusal(
    "the thread rounds otherwise, or flushes subnormal numbers", of_operands=False
)
NO_MEMORY = Refusal("less memory is free than at the first call", of_operands=False)
UNSEEN = Refusal("no call before had operands like these", of_operands=False)
CHECK_FAILED = Refusal("the plan does not serve these operands", of_operands=False)
OVERFLOW = Refusal("T may overflow though the result does not", of_operands=False)
NOT_FINITE = Refusal("Inf or NaN in an operand")
NOT_ORDINARY = Refusal("an entry may have over- or underflowed")


class Signature(NamedTuple):
    """What a plan is lowered for: arrays of one call, which stand for all that are laid
    out as they are, and what is made of T = 2**shift A B.
    """

    # stacks (batch or 1, m, k) and (batch or 1, k, n)
    left: Array
    right: Array
    shape: tuple[int, ...]  # of the result
    # a stack (batch, m, n) to which the result may be written directly; it shares no
    # memory with the operands and C
    out: Array | None = None
    shift: int = 0
    # alpha T + beta C; other calls have other scalars of the same kind
    epilogue: Epilogue = PLAIN
    splits: Splits = NO_SPLITS


class Executable(Protocol):
    """A plan for operands of one layout, made runnable. The first call of a kind runs
    it, and so do all later ones.

    It owns constants and compiled launches. Memory is allocated in each call, on the
    current stream of a device, so that threads and streams may share an executable.
    What calls leave for later ones, words for the host and the latest decision, is taken
    and put back by single operations, and changes no bit.
    """

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
        """alpha T + beta C in the shape of the result; C itself, plus A B in the
        rounding of the plan, where that has an addend.

        Splits are of operands that were prepared as those of the signature. Not every
        executable reads them: the arrays are there too.

        a, b and c lie in memory as the stacks of the signature, in any shape: arrays of
        NumPy on a host, tensors on a device. The values are `out` where they were
        written there; else they may have to be copied there still.
        """
