"""Errors of hifigemm. Every message contains the numbers involved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any


class HifigemmError(Exception):
    """Base class of the errors of hifigemm. Catch it to catch all of them."""


class PlanError(HifigemmError, ValueError):
    """No method does what you ask: an unknown option, options that contradict each
    other, a count out of range, a workspace that is too small.
    """


class InexactProductError(HifigemmError, ArithmeticError):
    """The accumulator of an engine cannot hold an exact product.

    Only a direct call of an engine raises it, never a product such as `matmul`.
    """


class AccuracyError(HifigemmError, ArithmeticError):
    """The accuracy cannot be kept for these operands.

    Possible causes:

    - The scheme that you named does not reach the accuracy.
    - An entry of an exact product of integers lies beyond the dtype of the result.
    - In strict mode, the product would be native, or `emulate` reaches no product or
      not every product of its scope.
    - `gemm` on a GPU, with alpha or beta so extreme that exact terms leave the range of
      the dtype.
    - The thread flushes subnormal numbers to zero or does not round to nearest, on a
      platform where the library cannot change that.

    The message contains the numbers involved. docs/errors.md says what to do.
    """


class VerificationError(HifigemmError, np.linalg.LinAlgError):
    """`hifigemm.linalg` could not prove a result.

    This does not mean that the matrix is singular. For PyTorch tensors the error is also
    a torch.linalg.LinAlgError.

    Attributes
    ----------
    solution : VerifiedSolution or None
        For a stack of systems, the proven solutions. The others have x = NaN and an
        infinite radius.
    proven_factor : float or None
        If the radii of A are too large for a proof: all matrices within this multiple
        of the radii are proven nonsingular. For a stack, the least factor of its
        systems, or None if one of them is unknown.
    """

    solution: Any = None
    proven_factor: float | None = None
