"""slogdet: the logarithm of a determinant, which PyTorch and JAX differentiate."""

from __future__ import annotations

import sys
from typing import Any

from hifigemm.base.transforms import is_traced
from hifigemm.linalg.log_determinant import LogDeterminant, log_determinant_of_numbers


def slogdet(a: object) -> LogDeterminant:
    """The sign of a determinant and the logarithm of its magnitude, with their radii.

    Use it if the determinant overflows, or if you need a gradient.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`.

    Returns
    -------
    LogDeterminant
        ``.sign``, ``.logabsdet``, ``.radius`` and ``.sign_radius``. For a stack they
        are NumPy arrays. For a tensor all of them are tensors on its device, in float64
        or complex128, and PyTorch differentiates the sign and the logarithm. In JAX
        programs they are JAX arrays in the same dtypes, and JAX differentiates them.

    Raises
    ------
    VerificationError
        As for `det`. In a backward pass also if A is singular, or if its inverse could
        not be proven.
    LinAlgError, TypeError, ValueError
        Shapes or dtypes do not fit.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> d = hifigemm.linalg.slogdet([[1.0, 2.0], [3.0, 4.0]])
    >>> d.sign, round(d.logabsdet, 12), d.radius < 1e-14
    (-1, 0.69314718056, True)
    """
    if is_traced(a):
        from hifigemm.linalg import jax_primitives

        return jax_primitives.slogdet(a)
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(a, torch.Tensor):
        return log_determinant_of_numbers(a)
    from hifigemm.linalg import torch_operators

    return torch_operators.slogdet(a)
