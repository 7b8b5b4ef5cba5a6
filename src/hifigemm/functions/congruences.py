"""C^H S C, exactly Hermitian where S is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.functions.products import Chain, Products
from hifigemm.functions.three_factors import ThreeFactors
from hifigemm.functions.verbs import conj, mirrored, namespace, shape_of
from hifigemm.libraries import AnyArray
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName


def congruence(
    c: object,
    s: object,
    *,
    out: object = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """C^H S C, a congruence transformation of S.

    If S is exactly Hermitian, or symmetric and real, the result is exactly Hermitian,
    and its diagonal is exactly real.

    Parameters
    ----------
    c : array_like
        Shape (..., n, k), dtype as for `hifigemm.matmul`.
    s : array_like
        Shape (..., n, n); stacks broadcast.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `multi_dot` of the three arrays C^H, S and C, in this order.

    Returns
    -------
    array, or (array, ThreeFactorsReport) if it is rounded once, or (array, ChainReport)
        Shape (..., k, k).

    Raises
    ------
    numpy.linalg.LinAlgError
        `s` is not square.
    ValueError
        `c` has fewer than two axes, or its number of rows differs from `s`.
    PlanError, TypeError, AccuracyError
        As for `multi_dot` of three arrays.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> c = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-52]])
    >>> s = np.array([[1e16, 1.0], [1.0, -1e16]])
    >>> hnp.congruence(c, s, accuracy="correct")
    array([[ 2.        , -0.22044605],
           [-0.22044605, -2.4408921 ]])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    c, s = products.arrays(c=c, s=s)
    _check_shapes(shape_of(c), shape_of(s))
    left = conj(c.mT)
    products.num_products = 2
    if products.binds_result:
        roundoff = products.roundoff(products.promoted([c, s])[0])
        chain = Chain("a congruence", (roundoff, roundoff), (1, 1))
        if products.needs_three_factors(chain):
            # The exact value is Hermitian, and so is its rounding.
            return products.chain(products.of_three(ThreeFactors(left, s, c)), out)
        products.begin(chain)
    value = products(products(left, s), c)
    return products.chain(_hermitian_if(s, value), out)


def _check_shapes(shape_c: tuple[int, ...], shape_s: tuple[int, ...]) -> None:
    """Raise LinAlgError or ValueError unless C^H S C has these shapes of factors."""
    if len(shape_s) < 2 or shape_s[-1] != shape_s[-2]:
        raise np.linalg.LinAlgError(
            f"s has shape {shape_s}; expected square matrices in the last two axes"
        )
    if len(shape_c) < 2:
        raise ValueError(
            f"c has {len(shape_c)} axes, its shape is {shape_c}; at least 2 expected"
        )
    if shape_c[-2] != shape_s[-1]:
        raise ValueError(
            f"c has shape {shape_c}, s has shape {shape_s}: {shape_c[-2]} != {shape_s[-1]}"
        )


def _hermitian_if(s: Any, value: Any) -> AnyArray:
    """The result with its lower triangle mirrored, for matrices S that are Hermitian.

    No host waits for S, and programs that are traced have this step too.
    """
    xp = namespace(value)
    is_same = s == conj(s.mT)
    is_hermitian = is_same.all(-1, keepdims=True).all(-2, keepdims=True)
    is_complex = "complex" in str(value.dtype)
    return xp.where(is_hermitian, mirrored(value, is_complex), value)
