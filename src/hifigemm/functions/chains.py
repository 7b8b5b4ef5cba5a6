"""Chains of products: the product of many matrices, and powers of one.

The intermediate results are rounded, so the errors of the products add up. If product i
keeps |X - AB| <= r_i |A||B| + u |AB|, the result D of a chain keeps

    |D - ABC...| <= ((1 + r_1 + u)(1 + r_2 + u)... - 1) |A||B||C|....

A number that is asked for is one of the result, so that each product gets a share of
it: see `products.Chain`. Products of integers round nothing. A product of three factors
that is to keep more than this is rounded once: see `three_factors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hifigemm.functions.arrangement import Shape, by_shapes
from hifigemm.functions.products import Chain, Products
from hifigemm.functions.three_factors import ThreeFactors, chain_of_three
from hifigemm.functions.verbs import (
    ROUNDOFFS,
    dtype_of_product,
    identities,
    join,
    shape_of,
)
from hifigemm.libraries import AnyArray
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName


def multi_dot(
    arrays: Sequence[object],
    *,
    out: object = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.linalg.multi_dot`: the product of two or more matrices, in the order with
    the fewest multiplications.

    Parameters
    ----------
    arrays : sequence of array_like
        Matrices; the first may be a vector (a row), and the last one too (a column).
        dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy : optional
        As for `hifigemm.matmul`. A number r holds for the result,
        |C - exact| <= r |A||B||C|... + u |exact|; None and levels hold for each
        product. Three arrays also take "correct", `hifigemm.Relative` and any number,
        see the notes.
    scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report) for two arrays, or (array, ThreeFactorsReport) for three
    that are rounded once, or (array, ChainReport)

    Raises
    ------
    PlanError
        For four or more arrays, or three with a scheme or an engine: the accuracy is
        "correct", `hifigemm.Relative`, `hifigemm.Invariant`, or a number that the
        roundings between the products exceed. The message has the least number that is kept. Integers keep
        every accuracy.
    TypeError
        Three arrays are to be rounded once, and PyTorch differentiates or JAX traces
        them.
    AccuracyError
        Products of integers are to be exact, as they always are for Python integers,
        and an entry lies beyond the dtype. The message has the first such entry.
    numpy.linalg.LinAlgError
        An array in the middle is not a matrix, or an array at an end is neither a
        matrix nor a vector.
    ValueError
        There are fewer than two arrays, or the shapes of neighbours do not fit.

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
    >>> a, b, c = [[1e16, 1.0]], [[1.0, 1.0], [1.0, 0.0]], [[1.0, 2.0], [-1.0, -2.0]]
    >>> hnp.multi_dot([a, b, c]), hnp.multi_dot([a, b, c], accuracy="correct")
    (array([[0., 0.]]), array([[1., 2.]]))

    Notes
    -----
    A B C of three arrays is rounded once for "correct", `hifigemm.Relative` and numbers
    that two rounded products do not keep. Its bits do not depend on the order of the
    products, and no intermediate result overflows. Inf and NaN appear where IEEE
    arithmetic puts them in (A B) C, with the exact A B in entries where it is finite.
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    arrays = products.numbered("array", tuple(arrays))
    cuts = by_shapes(_cuts, *[shape_of(x) for x in arrays])
    last = len(arrays) - 1
    products.num_products = last
    if products.binds_result:
        roundoffs: list[float] = []
        _dtype_of_range(products.dtype_names(arrays), cuts, roundoffs, 0, last)
        why = f"multi_dot of {last + 1} arrays"
        chain = Chain(why, tuple(roundoffs), (1,) * last)
        if products.needs_three_factors(chain):
            return products.chain(_product_of_three(arrays, products), out)
        products.begin(chain)
    value = _product_of_range(arrays, cuts, products, 0, last)
    return products.chain(value, out)


def _cuts(*shapes: Shape) -> dict[tuple[int, int], int]:
    """The cuts of a chain of arrays of these shapes, see `best_cuts`.

    Raises ValueError, LinAlgError: as of `_check_chain`.
    """
    _check_chain(shapes)
    last = len(shapes) - 1

    # A vector at the start is a row, one at the end a column.
    sizes = [shapes[0][0] if len(shapes[0]) == 2 else 1]
    sizes += [shape[0] for shape in shapes[1:]]
    sizes.append(shapes[last][1] if len(shapes[last]) == 2 else 1)
    return best_cuts(sizes)


def _check_chain(shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError or LinAlgError unless these are the shapes of at least two
    arrays, matrices but for the ends, whose neighbours fit.
    """
    if len(shapes) < 2:
        raise ValueError(f"multi_dot takes at least two arrays, {len(shapes)} given")
    last = len(shapes) - 1
    for i, shape in enumerate(shapes):
        expected = (1, 2) if i in (0, last) else (2,)
        if len(shape) not in expected:
            raise np.linalg.LinAlgError(
                f"array {i} of {last + 1} has {len(shape)} axes, its shape is {shape}; "
                f"expected {' or '.join(map(str, expected))}"
            )
    for i in range(last):
        columns = shapes[i][-1]
        rows = shapes[i + 1][0]
        if columns != rows:
            raise ValueError(
                f"array {i} has shape {shapes[i]}, array {i + 1} has shape {shapes[i + 1]}: {columns} != {rows}"
            )


def _product_of_three(arrays: Sequence[AnyArray], products: Products) -> AnyArray:
    """The product of three arrays, rounded once; vectors are rows and columns."""
    a, b, c = arrays
    if a.ndim == 1:
        a = a.reshape((1, a.shape[0]))
    if c.ndim == 1:
        c = c.reshape((c.shape[0], 1))
    value = products.of_three(chain_of_three(a, b, c))
    return value.reshape(arrays[0].shape[:-1] + arrays[2].shape[1:])


def _product_of_range(
    arrays: Sequence[AnyArray],
    cuts: dict[tuple[int, int], int],
    products: Products,
    first: int,
    last: int,
) -> AnyArray:
    """The product of the matrices first to last."""
    if first == last:
        return arrays[first]
    cut = cuts[first, last]
    left = _product_of_range(arrays, cuts, products, first, cut)
    right = _product_of_range(arrays, cuts, products, cut + 1, last)
    return products(left, right)


def _dtype_of_range(
    names: Sequence[str],
    cuts: dict[tuple[int, int], int],
    roundoffs: list[float],
    first: int,
    last: int,
) -> str:
    """The name of the dtype of the product of the matrices first to last.

    Its unit roundoff is appended to those of the products before it, in the order of
    `_product_of_range`.
    """
    if first == last:
        return names[first]
    cut = cuts[first, last]
    left = _dtype_of_range(names, cuts, roundoffs, first, cut)
    right = _dtype_of_range(names, cuts, roundoffs, cut + 1, last)
    dtype = dtype_of_product(left, right)
    roundoffs.append(ROUNDOFFS.get(dtype, 0.0))
    return dtype


def best_cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For all i < j the cut with which matrices i to j take fewest multiplications.

    Their product is then (i to cut) times (cut + 1 to j). Matrix i has the shape
    (sizes[i], sizes[i + 1]). The dynamic programme of Cormen et al., Introduction to
    Algorithms, section "Matrix-chain multiplication", of cost n**3 for n matrices.
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    cuts = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            for k in range(i, j):
                last_product = sizes[i] * sizes[k + 1] * sizes[j + 1]
                total = cost[i, k] + cost[k + 1, j] + last_product
                if k == i or total < cost[i, j]:
                    cost[i, j] = total
                    cuts[i, j] = k
    return cuts


class _Power(NamedTuple):
    """A power of a matrix, and how often each product of the chain is a factor of it."""

    value: AnyArray
    uses: list[int]


def matrix_power(
    a: object,
    n: int,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.linalg.matrix_power` for n >= 0, by repeated squaring.

    Parameters
    ----------
    a : array_like
        Shape (..., m, m), dtype as for `hifigemm.matmul`.
    n : int
        At least 0; the power 0 is the identity.
    accuracy : optional
        As for `hifigemm.matmul`. A number r holds for the result,
        |C - exact| <= r |A||B||C|... + u |exact|; None and levels hold for each
        product. The power 3 also takes "correct", `hifigemm.Relative` and any number,
        as `multi_dot` of three arrays does.
    scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report) for n = 2, or (array, ThreeFactorsReport) for n = 3
    rounded once, or (array, ChainReport)

    Raises
    ------
    PlanError
        For n > 3, or n = 3 with a scheme or an engine: the accuracy is "correct",
        `hifigemm.Relative`, `hifigemm.Invariant`, or a number that the roundings between
        the products exceed. The message has the least number that is kept. Integers keep
        every accuracy.
    AccuracyError
        Products of integers are to be exact, as they always are for Python integers,
        and an entry lies beyond the dtype. The message has the first such entry.
    numpy.linalg.LinAlgError
        `a` is not square.
    ValueError, TypeError
        n is negative (an inverse is not a product), or not an integer.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.matrix_power(np.array([[1.0, 1.0], [1.0, 0.0]]), 10)
    array([[89., 55.],
           [55., 34.]])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    (a,) = products.arrays(a=a)
    n = index(n)
    shape = shape_of(a)
    if a.ndim < 2 or shape[-1] != shape[-2]:
        raise np.linalg.LinAlgError(
            f"a has shape {shape}; expected square matrices in the last two axes"
        )
    if n < 0:
        raise ValueError(
            f"n = {n}: a negative power is not a product; invert the matrix first, then take its power {-n}"
        )
    if n == 0:
        return products.chain(identities(a), None)
    if n == 1:
        # The power 1 is a copy.
        return products.chain(join([a], 0), None)
    num_products = n.bit_length() + n.bit_count() - 2
    products.num_products = num_products
    if products.binds_result:
        roundoff = products.roundoff(a)
        # All products together enter n - 1 times, the last one once.
        uses = (n - num_products, *[1] * (num_products - 1))
        chain = Chain(f"the power {n}", (roundoff,) * num_products, uses)
        if products.needs_three_factors(chain):
            return products.chain(products.of_three(ThreeFactors(a, a, a)), None)
        products.begin(chain)

    def product(x: _Power, y: _Power) -> _Power:
        """x y, with the products of the chain that are factors of it."""
        uses = [i + j for i, j in zip(x.uses, y.uses)]
        uses[products.count] += 1
        return _Power(products(x.value, y.value), uses)

    # Square up to the lowest bit of n that is 1, then multiply by the squares that
    # belong to the other ones.
    square = _Power(a, [0] * num_products)
    while n % 2 == 0:
        n //= 2
        square = product(square, square)
    power = square
    n //= 2
    while n > 0:
        square = product(square, square)
        if n % 2:
            power = product(power, square)
        n //= 2
    return products.chain(power.value, None, power.uses)
