"""Functions that multiply several matrices in a row: the product of many, and powers of
one.

The intermediate results are rounded, so what is promised for each product adds up:
where the i-th keeps
|C - AB| <= r_i |A||B| + u |AB|, the whole keeps |C - ABC...| <= ((1 + r_1 + u)(1 + r_2 + u)... - 1) |A||B||C|....
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.accuracy import Accuracy
from hifigemm.functions.products import Products
from hifigemm.functions.verbs import as_arrays, identities, join, shape_of
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.signatures import SchemeName


def multi_dot(
    arrays: Sequence[Any],
    *,
    out: Any = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.linalg.multi_dot`: the product of two or more matrices, in the order of
    fewest multiplications.

    Parameters
    ----------
    arrays : sequence of array_like
        Matrices; the first and the last may be vectors, a row and a column. dtypes as
        for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report) for two arrays, or (array, ChainReport)

    Raises
    ------
    PlanError
        "correct" or `hifigemm.Relative` was asked of more than one product.
    numpy.linalg.LinAlgError
        An array in the middle is no matrix, or one at an end neither matrix nor vector.
    ValueError
        Fewer than two arrays, neighbours that do not fit.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> c, report = hnp.multi_dot(
    ...     [np.ones((2, 3)), np.ones((3, 4)), np.ones(4)], return_report=True
    ... )
    >>> c
    array([12., 12.])
    >>> report.bound < 1e-14
    True
    """
    arrays = as_arrays(*((f"array {i}", x) for i, x in enumerate(arrays)))
    if len(arrays) < 2:
        raise ValueError(f"multi_dot takes at least two arrays, {len(arrays)} given")
    last = len(arrays) - 1
    for i, x in enumerate(arrays):
        expected = (1, 2) if i in (0, last) else (2,)
        if x.ndim not in expected:
            raise np.linalg.LinAlgError(
                f"array {i} of {last + 1} has {x.ndim} axes, its shape is {shape_of(x)}; "
                f"expected {' or '.join(map(str, expected))}"
            )
    shapes = [shape_of(x) for x in arrays]
    for i in range(last):
        rows = shapes[i + 1][0]
        if shapes[i][-1] != rows:
            raise ValueError(
                f"array {i} has shape {shapes[i]}, array {i + 1} has shape {shapes[i + 1]}: {shapes[i][-1]} != {rows}"
            )
    products = Products(accuracy, scheme, engine, workspace, return_report)
    products.check_chain(last, f"multi_dot of {last + 1} arrays")
    sizes = [shapes[0][0] if len(shapes[0]) == 2 else 1, *(s[0] for s in shapes[1:])]
    sizes.append(shapes[last][1] if len(shapes[last]) == 2 else 1)
    return products.chain(
        _product_of_some(arrays, best_cuts(sizes), products, 0, last), out
    )


def _product_of_some(
    arrays: Sequence[Any],
    cuts: dict[tuple[int, int], int],
    products: Products,
    first: int,
    last: int,
) -> Any:
    """The product of consecutive matrices."""
    if first == last:
        return arrays[first]
    cut = cuts[first, last]
    left = _product_of_some(arrays, cuts, products, first, cut)
    return products(left, _product_of_some(arrays, cuts, products, cut + 1, last))


def best_cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to cut the product of matrices i to j: (i to cut) times (cut + 1 to j),
    with the fewest multiplications.

    Matrix i has the shape (sizes[i], sizes[i + 1]). The dynamic programme of Cormen et
    al., Introduction to Algorithms, section "Matrix-chain multiplication", of cost n**3
    for n matrices.
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    cuts = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            for k in range(i, j):
                total = (
                    cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                )
                if k == i or total < cost[i, j]:
                    cost[i, j], cuts[i, j] = total, k
    return cuts


def matrix_power(
    a: Any,
    n: int,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.linalg.matrix_power` for n >= 0: the n-th power of square matrices, by
    repeated squaring.

    Parameters
    ----------
    a : array_like
        Shape (..., m, m), dtype as for `hifigemm.matmul`.
    n : int
        At least 0; the power 0 is the identity.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report) for n = 2, or (array, ChainReport)

    Raises
    ------
    PlanError
        "correct" or `hifigemm.Relative` was asked of more than one product, that is
        n > 2.
    numpy.linalg.LinAlgError
        `a` is not square.
    ValueError, TypeError
        n is negative, for an inverse is no product; n is no integer.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.matrix_power(np.array([[1.0, 1.0], [1.0, 0.0]]), 10)
    array([[89., 55.],
           [55., 34.]])
    """
    (a,) = as_arrays(("a", a))
    n, shape = index(n), shape_of(a)
    if a.ndim < 2 or shape[-1] != shape[-2]:
        raise np.linalg.LinAlgError(
            f"a has shape {shape}; expected square matrices in the last two axes"
        )
    if n < 0:
        raise ValueError(
            f"n = {n}: an inverse is no product; invert the matrix first, and ask for its power {-n}"
        )
    products = Products(accuracy, scheme, engine, workspace, return_report)
    if n == 0:
        return products.chain(identities(a), None)
    count = n.bit_length() + n.bit_count() - 2
    products.check_chain(count, f"the power {n}")
    made = 0

    def product(
        x: Any, in_x: list[int], y: Any, in_y: list[int]
    ) -> tuple[Any, list[int]]:
        """A product, and how often each product is in its value."""
        nonlocal made
        uses = [i + j for i, j in zip(in_x, in_y)]
        uses[made] += 1
        made += 1
        return products(x, y), uses

    square = a, [0] * count
    while n % 2 == 0:
        n, square = n // 2, product(*square, *square)
    value = square
    while n := n // 2:
        square = product(*square, *square)
        value = product(*value, *square) if n % 2 else value
    result, uses = value
    # a copy of a for the power 1
    return products.chain(join([a], 0) if count == 0 else result, None, uses)
