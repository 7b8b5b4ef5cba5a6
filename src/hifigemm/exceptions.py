"""Errors of hifigemm. Every message carries the numbers involved."""


class HifigemmError(Exception):
    """Base class of the errors that hifigemm raises on its own account."""


class PlanError(HifigemmError, ValueError):
    """No plan exists for what was asked: an unknown option, a count out of range, a
    workspace that is too small.
    """


class InexactProductError(HifigemmError, ArithmeticError):
    """An engine was asked for an exact product that its accumulator cannot hold."""


class AccuracyError(HifigemmError, ArithmeticError):
    """A forced scheme cannot keep the accuracy for these operands, or strict mode
    refuses a native product.
    """
