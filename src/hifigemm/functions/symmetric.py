"""Products of a matrix with its own transpose: half of the work, and exactly symmetric
results.

Idea: with the rows of A in two halves, C = A A^T has the blocks C11 = A1 A1^T and
C22 = A2 A2^T, which are cut again, and C21 = A2 A1^T, one product, of which C12 is the
mirror image. Cut down to blocks of b rows, that is (1 + b / m) / 2 of the work of the
whole product. On a GPU the kernels of Ozaki scheme II leave out the tiles above the
diagonal instead, and split a real A once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hifigemm.accuracy import Accuracy
from hifigemm.exceptions import PlanError
from hifigemm.functions.products import Products
from hifigemm.functions.verbs import as_arrays, conj, join, shape_of
from hifigemm.libraries import library_of
from hifigemm.schemes import Scheme
from hifigemm.transforms import belongs_to_torch, is_traced

if TYPE_CHECKING:
    from hifigemm.signatures import SchemeName

SMALLEST = 512
"""Blocks of so many rows are not cut any more. A cut saves a quarter of the work on its
block, and makes three products of half the size, each with its own call and splits of
the operands. On one core of a CPU, cuts down to 128 rows cost more than they save at
every size that was tried (512 to 2048), and 256 and 512 differ by the noise.
"""


def syrk(
    a: Any,
    trans: Literal["N", "T"] = "N",
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    out: Any = None,
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """A A^T, or A^T A for ``trans="T"``, as `syrk` of the BLAS: exactly symmetric, for
    about half of the work.

    Parameters
    ----------
    a : array_like
        Shape (..., m, k), dtype as for `hifigemm.matmul`. A complex A is not
        conjugated, see `herk`.
    trans : "N" or "T"
    accuracy, scheme, out, engine, workspace, return_report
        As for `hifigemm.matmul`. Every entry keeps what that promises. A correctly
        rounded result has the bits of ``matmul(a, a.mT)``, and so has one of an
        explicit count of moduli with fast scaling, or of slices of a real A: each row
        is scaled by itself. Others need not: counts and accurate scales follow from all
        rows of a block.

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
    (a,) = as_arrays(("a", a))
    rows = _rows(a, trans, ("N", "T"))
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.blocks(_with_itself(products, rows, rows.mT, False), out)


def herk(
    a: Any,
    trans: Literal["N", "C"] = "N",
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    out: Any = None,
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """A A^H, or A^H A for ``trans="C"``, as `herk` of the BLAS: exactly Hermitian, with
    an exactly real diagonal.

    Shapes, options, errors and the promise are those of `syrk`, whose result it has for
    a real A.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.herk([[1 + 1j, 2j]])
    array([[6.+0.j]])
    """
    (a,) = as_arrays(("a", a))
    rows = _rows(a, trans, ("N", "C"))
    left, right = (rows, conj(rows.mT)) if trans == "N" else (conj(rows), rows.mT)
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.blocks(_with_itself(products, left, right, True), out)


def _rows(a: Any, trans: str, known: tuple[str, str]) -> Any:
    """The matrix whose rows are multiplied with each other."""
    if trans not in known:
        raise PlanError(f'trans={trans!r}: expected "{known[0]}" or "{known[1]}"')
    if a.ndim < 2:
        raise ValueError(
            f"a has {a.ndim} axes, its shape is {shape_of(a)}; at least 2 expected"
        )
    return a if trans == "N" else a.mT


def _with_itself(products: Products, left: Any, right: Any, conjugate: bool) -> Any:
    """`left` times `right`, its transpose, conjugated or not."""
    size = left.shape[-2]
    is_cut = (
        is_traced(left)
        or belongs_to_torch(left, right)
        or library_of(("a", left)).on_host
    )
    if size <= SMALLEST or not is_cut:
        return products.with_transpose(left, right, conjugate)
    half = size // 2
    first = _with_itself(products, left[..., :half, :], right[..., :half], conjugate)
    second = _with_itself(products, left[..., half:, :], right[..., half:], conjugate)
    low = products(left[..., half:, :], right[..., :half])
    high = conj(low.mT) if conjugate else low.mT
    return join([join([first, high], -1), join([low, second], -1)], -2)
