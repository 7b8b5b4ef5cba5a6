"""Errors of hifigemm. Every message carries the numbers involved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any


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


class VerificationError(HifigemmError, np.linalg.LinAlgError):
    """Nothing could be proven of a solution, an inverse, a determinant or a matrix.

    For tensors of PyTorch it is a torch.linalg.LinAlgError as well.

    Attributes
    ----------
    solution : VerifiedSolution or None
        Of a stack of systems, what was proven: where that is nothing, x is NaN and the
        radius infinite.
    proven_factor : float or None
        Where radii of A are too large for a proof: all matrices within so many times
        these radii are nonsingular. Of a stack it is that of the system for which it
        is least; None if that is not known of one of those that failed.
    """

    solution: Any = None
    proven_factor: float | None = None
