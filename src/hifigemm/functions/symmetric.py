"""Products of a matrix with its own transpose: exactly symmetric, for half of the work.

Idea: with the rows of A in two halves, C = A A^T has the blocks C11 = A1 A1^T and
C22 = A2 A2^T, which are cut again, and C21 = A2 A1^T, one product, whose mirror image
is C12. Cut down to blocks of b rows, this takes (1 + b / m) / 2 of the work of the
whole product. On a GPU the kernels of Ozaki scheme II leave out the tiles above the
diagonal instead, and split a real A once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hifigemm.base.exceptions import PlanError
from hifigemm.base.transforms import belongs_to_torch, is_traced
from hifigemm.functions.products import Products
from hifigemm.functions.verbs import conj, join, shape_of
from hifigemm.libraries import AnyArray, library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName

SMALLEST = 512
"""Blocks of so many rows are not cut any more. A cut saves a quarter of the work on its
block, and makes three products of half the size, each with its own call and splits of
the operands. On one core of a CPU, cuts down to 128 rows cost more than they save at
every size that was tried (512 to 2048), and 256 and 512 differ by less than the noise.
"""


def syrk(
    a: object,
    trans: Literal["N", "T"] = "N",
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    out: object = None,
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """A A^T, or A^T A for ``trans="T"``, as `syrk` of the BLAS.

    The result is exactly symmetric, for about half of the work of `matmul`.

    Parameters
    ----------
    a : array_like
        Shape (..., m, k), dtype as for `hifigemm.matmul`. A complex A is not
        conjugated; for A A^H see `herk`.
    trans : "N" or "T"
    accuracy, scheme, out, engine, workspace, return_report
        As for `hifigemm.matmul`, with the same promise for every entry. A correctly
        rounded result has the bits of ``matmul(a, a.mT)``. So has a result with an
        explicit number of moduli and fast scaling, or with an explicit number of slices
        of a real A, because these scale each row independently. Other results may
        differ: counts and accurate scales depend on all rows of a block.

    Returns
    -------
    array, or (array, Report), or (array, BlocksReport)
        Shape (..., m, m), or (..., k, k) for ``trans="T"``; equal to its own transpose.

    Raises
    ------
    PlanError
        `trans` is neither "N" nor "T".
    ValueError
        `a` has fewer than two axes.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.syrk([[1.0, 2.0], [3.0, 4.0]])
    array([[ 5., 11.],
           [11., 25.]])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    (a,) = products.arrays(a=a)
    rows = _rows(a, trans, ("N", "T"))
    return products.blocks(_with_itself(products, rows, rows.mT, False), out)


def herk(
    a: object,
    trans: Literal["N", "C"] = "N",
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    out: object = None,
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """A A^H, or A^H A for ``trans="C"``, as `herk` of the BLAS.

    The result is exactly Hermitian, and its diagonal is exactly real. For a real A it
    is the same as `syrk`.

    Parameters
    ----------
    a : array_like
        Shape (..., m, k), dtype as for `hifigemm.matmul`.
    trans : "N" or "C"
    accuracy, scheme, out, engine, workspace, return_report
        As for `syrk`.

    Returns
    -------
    array, or (array, Report), or (array, BlocksReport)
        Shape (..., m, m), or (..., k, k) for ``trans="C"``; equal to its own conjugate
        transpose.

    Raises
    ------
    PlanError
        `trans` is neither "N" nor "C".
    ValueError
        `a` has fewer than two axes.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.herk([[1 + 1j, 2j]])
    array([[6.+0.j]])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    (a,) = products.arrays(a=a)
    rows = _rows(a, trans, ("N", "C"))
    if trans == "N":
        left = rows
        right = conj(rows.mT)
    else:
        left = conj(rows)
        right = rows.mT
    return products.blocks(_with_itself(products, left, right, True), out)


def _rows(a: AnyArray, trans: str, choices: tuple[str, str]) -> AnyArray:
    """The matrix whose rows are multiplied with each other: a or its transpose."""
    if trans not in choices:
        raise PlanError(f'trans={trans!r}: expected "{choices[0]}" or "{choices[1]}"')
    if a.ndim < 2:
        raise ValueError(
            f"a has {a.ndim} axes, its shape is {shape_of(a)}; at least 2 expected"
        )
    return a if trans == "N" else a.mT


def _with_itself(
    products: Products, left: AnyArray, right: AnyArray, conjugate: bool
) -> AnyArray:
    """`left` times `right`, which is the transpose of `left`, conjugated or not."""
    size = left.shape[-2]
    if size <= SMALLEST or not _is_cut(left):
        return products.with_transpose(left, right, conjugate)

    # Halves of the rows of A, and the columns of its transpose: the block above the
    # diagonal is the transpose of the one below.
    half = size // 2
    top = left[..., :half, :]
    bottom = left[..., half:, :]
    c11 = _with_itself(products, top, right[..., :half], conjugate)
    c22 = _with_itself(products, bottom, right[..., half:], conjugate)
    c21 = products(bottom, right[..., :half])
    c12 = conj(c21.mT) if conjugate else c21.mT
    upper = join([c11, c12], -1)
    lower = join([c21, c22], -1)
    return join([upper, lower], -2)


def _is_cut(x: AnyArray) -> bool:
    """True for an array on a CPU, or that PyTorch or JAX follows: kernels of a GPU leave
    out the upper triangle by themselves.
    """
    return is_traced(x) or belongs_to_torch(x) or library_of(("a", x)).on_host
