"""Functions that are one product of two operands, whatever their axes, and einsum,
which may be a chain of such.

Idea: each axis of an operand has a label. The labels that both operands and the result
have count matrices of a stack, those of one operand and the result are rows or columns,
those that the result lacks are summed: one stacked `matmul` of permuted and reshaped
operands. So what `matmul` promises holds for the result, with |A||B| the same sum over
magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.accuracy import Accuracy
from hifigemm.functions.products import Products
from hifigemm.functions.subscripts import Labels, parse
from hifigemm.functions.verbs import (
    as_arrays,
    conj,
    diagonal,
    expand,
    ones,
    permute,
    promoted,
    shape_of,
)
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.signatures import SchemeName

MOST_COPIES = 4
"""Copies of an operand along labels that only the other one has may take this many
times the memory of operands and result: about what the planes of an exact scheme take
of it anyway.
"""


def dot(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.dot`: the last axis of a by the last but one of b, which is the last where
    b is a vector.

    Parameters
    ----------
    a, b : array_like
        Any shapes, scalars included, with dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        Shape ``a.shape[:-1] + b.shape[:-2] + b.shape[-1:]``.

    Raises
    ------
    ValueError
        The axes that are summed differ in length.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> float(hnp.dot([1e16, 1.0, -1e16], [1.0, 1.0, 1.0], accuracy="correct"))
    1.0
    """
    a, b = as_arrays(("a", a), ("b", b))
    of_a, of_b = _distinct(a, b)
    out_labels = of_a + of_b
    if a.ndim and b.ndim:
        at = max(b.ndim - 2, 0)
        _check_lengths(a, -1, b, at)
        out_labels = of_a[:-1] + of_b[:at] + of_b[at + 1 :]
        of_b = (*of_b[:at], of_a[-1], *of_b[at + 1 :])
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.chain(contract(products, a, of_a, b, of_b, out_labels), out)


def inner(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.inner`: the last axes of a and b; scalars are multiplied with all.

    Options, errors and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.inner([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    a, b = as_arrays(("a", a), ("b", b))
    of_a, of_b = _distinct(a, b)
    out_labels = of_a + of_b
    if a.ndim and b.ndim:
        _check_lengths(a, -1, b, -1)
        out_labels = of_a[:-1] + of_b[:-1]
        of_b = (*of_b[:-1], of_a[-1])
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.chain(contract(products, a, of_a, b, of_b, out_labels), None)


def outer(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.outer`: every entry of a times every entry of b, both taken as vectors.

    Options and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.outer([1.0, 2.0], [3.0, 4.0])
    array([[3., 4.],
           [6., 8.]])
    """
    a, b = _vectors(a, b)
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.chain(contract(products, a, (0,), b, (1,), (0, 1)), out)


def vdot(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vdot`: the sum over conj(a) b, both taken as vectors.

    Options, errors and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> complex(hnp.vdot([1 + 2j], [3 + 4j]))
    (11-2j)
    """
    a, b = _vectors(a, b)
    _check_lengths(a, 0, b, 0)
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.chain(contract(products, conj(a), (0,), b, (0,), ()), None)


def vecdot(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    axis: int = -1,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vecdot`: the sum over conj(x1) x2 along one axis; the others broadcast.

    Options, errors and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.vecdot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    x1, x2 = _with_axes(("x1", x1, 1), ("x2", x2, 1))
    moved = []
    for x in (x1, x2):
        (at,) = _axes([index(axis)], x.ndim, "axis")
        moved.append(permute(x, [i for i in range(x.ndim) if i != at] + [at]))
    x1, x2 = moved
    _check_lengths(x1, -1, x2, -1)
    return _stacked(
        conj(x1),
        ("k",),
        x2,
        ("k",),
        out,
        Products(accuracy, scheme, engine, workspace, return_report),
    )


def matvec(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.matvec`: matrices of a stack times vectors of a stack; the stacks
    broadcast.

    Options, errors and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    x1, x2 = _with_axes(("x1", x1, 2), ("x2", x2, 1))
    _check_lengths(x1, -1, x2, -1)
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return _stacked(x1, ("m", "k"), x2, ("k",), out, products)


def vecmat(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vecmat`: conjugated vectors of a stack times matrices of a stack; the
    stacks broadcast.

    Options, errors and the promise are those of `dot`.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.vecmat([1.0, 1.0], [[1.0, 2.0], [3.0, 4.0]])
    array([4., 6.])
    """
    x1, x2 = _with_axes(("x1", x1, 1), ("x2", x2, 2))
    _check_lengths(x1, -1, x2, -2)
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return _stacked(conj(x1), ("k",), x2, ("k", "n"), out, products)


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.tensordot`: the sum over pairs of axes of a and b.

    Parameters
    ----------
    a, b : array_like
        Any shapes, with dtypes as for `hifigemm.matmul`.
    axes : int, or pair of ints or of sequences of ints
        The last so many axes of a with the first of b, or the axes of a with those of
        b.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        The axes of a that are left, then those of b.

    Raises
    ------
    ValueError, IndexError
        Axes that differ in number or length, come twice or do not exist.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.tensordot(np.ones((2, 3, 4)), np.ones((4, 3)), axes=([1, 2], [1, 0]))
    array([12., 12.])
    """
    a, b = as_arrays(("a", a), ("b", b))
    if _is_sequence(axes):
        left, right = axes
    else:
        axes = index(axes)
        left, right = range(-axes, 0), range(axes)
        if axes > min(a.ndim, b.ndim):
            raise ValueError(f"axes = {axes}: a has {a.ndim} axes, b has {b.ndim}")
    left, right = _axes(left, a.ndim, "axes of a"), _axes(right, b.ndim, "axes of b")
    if len(left) != len(right):
        raise ValueError(
            f"axes {left} of a are {len(left)}, axes {right} of b are {len(right)}"
        )
    of_a, of_b = _distinct(a, b)
    summed = {}
    for i, j in zip(left, right):
        _check_lengths(a, i, b, j)
        summed[of_b[j]] = of_a[i]
    of_b = tuple(summed.get(label, label) for label in of_b)
    out_labels = tuple(x for x in of_a + of_b if x not in summed.values())
    products = Products(accuracy, scheme, engine, workspace, return_report)
    return products.chain(contract(products, a, of_a, b, of_b, out_labels), None)


def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.einsum`: sums over products by labels of axes.

    Parameters
    ----------
    *operands
        ``"ij,jk->ik", a, b`` or ``a, [0, 1], b, [1, 2], [0, 2]``, with ellipses as in
        NumPy; dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    optimize : optional
        The order of the products of three or more operands, as `numpy.einsum_path`
        takes it; its greedy order where it is False.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report), or (array, ChainReport)
        One operand of which nothing is summed gives a view of it, where `out` is None;
        diagonals are read-only. A `ChainReport` comes with any number of products but
        one.

    Raises
    ------
    PlanError
        "correct" or `hifigemm.Relative` was asked for and takes more than one product:
        with three or more operands, and with labels that only one operand has, where
        summing them together with all others takes a large copy of the other operand.
    ValueError
        Subscripts that do not fit the operands.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.einsum(
    ...     "bij,bij->b", np.ones((2, 3, 4)), np.ones((2, 3, 4)), accuracy="correct"
    ... )
    array([12., 12.])
    """
    subscripts, arrays = _split(operands)
    arrays = as_arrays(*((f"operand {i}", x) for i, x in enumerate(arrays)))
    labels, out_labels = parse(subscripts, [shape_of(x) for x in arrays])
    products = Products(accuracy, scheme, engine, workspace, return_report)
    products.check_chain(len(arrays) - 1, f"einsum of {len(arrays)} operands")
    terms = [_without_repeats(x, of_x) for x, of_x in zip(promoted(arrays), labels)]
    for positions in _path(terms, out_labels, optimize):
        last_to_first = [terms.pop(i) for i in sorted(positions, reverse=True)]
        value, of_value = last_to_first.pop()
        while last_to_first:
            x, of_x = last_to_first.pop()
            kept = {
                label for _, other in terms + last_to_first for label in other
            } | set(out_labels)
            left = tuple(
                label for label in dict.fromkeys(of_value + of_x) if label in kept
            )
            value, of_value = contract(products, value, of_value, x, of_x, left), left
        terms.append((value, of_value))
    ((value, of_value),) = terms
    if set(of_value) != set(out_labels):
        value, of_value = (
            contract(products, value, of_value, ones((), value), (), out_labels),
            out_labels,
        )
    return products.chain(
        permute(value, [of_value.index(label) for label in out_labels]), out
    )


def contract(
    products: Products, a: Any, of_a: Labels, b: Any, of_b: Labels, out: Labels
) -> Any:
    """The sum over all labels that `out` lacks, of a times b; no operand has a label
    twice, and lengths fit.

    Lengths of 1 broadcast. A label that only one operand has and that is summed is one
    of the inner dimension, along which the other operand is repeated; where these
    copies exceed `MOST_COPIES`, a product with ones sums it first.
    """
    a, of_a, b, of_b = _without_broadcast(a, of_a, b, of_b)
    lengths = dict(zip(of_a + of_b, shape_of(a) + shape_of(b)))
    batch = tuple(x for x in of_a if x in of_b and x in out)
    rows = tuple(x for x in of_a if x not in of_b and x in out)
    cols = tuple(x for x in of_b if x not in of_a and x in out)
    lone_a = tuple(x for x in of_a if x not in of_b and x not in out)
    lone_b = tuple(x for x in of_b if x not in of_a and x not in out)

    def size(labels: Labels) -> int:
        return math.prod([lengths[x] for x in labels])

    copies = (size(of_b + lone_a) if lone_a else 0) + (
        size(of_a + lone_b) if lone_b else 0
    )
    operands = size(of_a) + size(of_b) + size(batch + rows + cols)
    if copies > MOST_COPIES * operands and 0 not in lengths.values():
        products.check_chain(
            1 + bool(lone_a) + bool(lone_b),
            f"a sum over {size(lone_a)} x {size(lone_b)} entries along labels of one operand alone, which one product "
            f"could only make of copies of {copies} entries beside operands and result of {operands},",
        )
        if lone_a:
            kept = tuple(x for x in of_a if x not in lone_a)
            a, of_a = contract(products, a, of_a, ones((), a), (), kept), kept
        if lone_b:
            kept = tuple(x for x in of_b if x not in lone_b)
            b, of_b = contract(products, b, of_b, ones((), b), (), kept), kept
        lone_a = lone_b = ()
    summed = (*(x for x in of_a if x in of_b and x not in out), *lone_a, *lone_b)
    stack = (size(batch),) if batch else ()
    left = _arranged(a, of_a, (*batch, *rows, *summed), lengths).reshape(
        (*stack, size(rows), size(summed))
    )
    right = _arranged(b, of_b, (*batch, *summed, *cols), lengths).reshape(
        (*stack, size(summed), size(cols))
    )
    made = (*batch, *rows, *cols)
    value = products(left, right).reshape(tuple(lengths[x] for x in made))
    return permute(value, [made.index(x) for x in out])


def _arranged(x: Any, of_x: Labels, order: Labels, lengths: dict[Hashable, int]) -> Any:
    """x with its axes in an order, in which labels that it lacks are axes along which
    it is repeated.
    """
    there = [label for label in order if label in of_x]
    x = permute(x, [of_x.index(label) for label in there])
    if len(there) == len(order):
        return x
    x = x.reshape(tuple(lengths[label] if label in of_x else 1 for label in order))
    return expand(x, [lengths[label] for label in order])


def _without_broadcast(
    a: Any, of_a: Labels, b: Any, of_b: Labels
) -> tuple[Any, Labels, Any, Labels]:
    """Both operands without the axes of length 1 that the other one broadcasts: their
    labels are the other's alone.
    """
    lengths_a, lengths_b = dict(zip(of_a, shape_of(a))), dict(zip(of_b, shape_of(b)))

    def reduced(
        x: Any, own: dict[Hashable, int], other: dict[Hashable, int]
    ) -> tuple[Any, Labels]:
        kept = tuple(
            label for label in own if not (own[label] == 1 and other.get(label, 1) != 1)
        )
        return (
            x
            if len(kept) == len(own)
            else x.reshape(tuple(own[label] for label in kept))
        ), kept

    return *reduced(a, lengths_a, lengths_b), *reduced(b, lengths_b, lengths_a)


def _without_repeats(x: Any, of_x: Labels) -> tuple[Any, Labels]:
    """A view of x in which no label comes twice: the diagonal of axes with the same
    one.
    """
    while len(set(of_x)) < len(of_x):
        label = next(label for label in of_x if of_x.count(label) > 1)
        i = of_x.index(label)
        j = of_x.index(label, i + 1)
        x = diagonal(x, i, j)
        of_x = (*(other for at, other in enumerate(of_x) if at not in (i, j)), label)
    return x, of_x


def _split(operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The subscripts, a string or lists of labels, and the operands of `einsum`."""
    if not operands:
        raise ValueError(
            "einsum takes subscripts and at least one operand, 0 arguments are given"
        )
    if isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    even = len(operands) // 2 * 2
    return [*operands[1::2], *operands[even:]], list(operands[:even:2])


def _path(
    terms: Sequence[tuple[Any, Labels]], out: Labels, optimize: Any
) -> list[tuple[int, ...]]:
    """The order of the products, as positions among the operands that are left, by
    shapes alone.
    """
    if len(terms) < 3:
        return [tuple(range(len(terms)))] if len(terms) == 2 else []
    numbers = {
        label: i
        for i, label in enumerate(dict.fromkeys([x for _, of_x in terms for x in of_x]))
    }
    labels = tuple([tuple([numbers[label] for label in of_x]) for _, of_x in terms])
    return _path_of_numpy(
        tuple([shape_of(x) for x, _ in terms]),
        labels,
        tuple([numbers[label] for label in out]),
        optimize,
    )


def _path_of_numpy(
    shapes: tuple[tuple[int, ...], ...],
    labels: tuple[tuple[int, ...], ...],
    out: tuple[int, ...],
    optimize: Any,
) -> list[tuple[int, ...]]:
    """The order of `numpy.einsum_path`, which torch.compile takes as a constant of the
    shapes.
    """
    asked: list[Any] = []
    for shape, own in zip(shapes, labels):
        asked += [np.broadcast_to(np.float64(), shape), list(own)]
    path, _ = np.einsum_path(
        *asked, list(out), optimize="greedy" if optimize is False else optimize
    )
    return path[1:]


_path_of_numpy._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _distinct(a: Any, b: Any) -> tuple[Labels, Labels]:
    """A label of its own for each axis of two operands."""
    return tuple(range(a.ndim)), tuple(range(a.ndim, a.ndim + b.ndim))


def _is_sequence(axes: Any) -> bool:
    """Whether these are several axes; an array of no dimension is one."""
    return isinstance(axes, Iterable) and getattr(axes, "ndim", 1) > 0


def _axes(given: Any, ndim: int, name: str) -> tuple[int, ...]:
    """One axis or several as numbers from 0 on.

    Raises numpy.exceptions.AxisError: an axis that does not exist. ValueError: one that
    comes twice.
    """
    axes = [index(x) for x in (given if _is_sequence(given) else [given])]
    for x in axes:
        if not -ndim <= x < ndim:
            raise np.exceptions.AxisError(x, ndim, name)
    found = tuple([x % ndim for x in axes])
    if len(set(found)) < len(found):
        raise ValueError(f"repeated axis in {name}: {tuple(axes)}")
    return found


def _vectors(a: Any, b: Any) -> tuple[Any, Any]:
    a, b = as_arrays(("a", a), ("b", b))
    return a.reshape((math.prod(shape_of(a)),)), b.reshape((math.prod(shape_of(b)),))


def _with_axes(*operands: tuple[str, Any, int]) -> list[Any]:
    """Operands as arrays, of which each has at least so many axes."""
    arrays = as_arrays(*((name, x) for name, x, _ in operands))
    for (name, _, least), x in zip(operands, arrays):
        if x.ndim < least:
            raise ValueError(
                f"{name} has {x.ndim} axes, its shape is {shape_of(x)}; at least {least} expected"
            )
    return arrays


def _stacked(
    x1: Any, core1: Labels, x2: Any, core2: Labels, out: Any, products: Products
) -> Any:
    """The sum over "k" of operands whose leading axes broadcast."""
    stacks = [
        shape_of(x)[: x.ndim - len(core)] for x, core in ((x1, core1), (x2, core2))
    ]
    try:
        np.broadcast_shapes(*stacks)
    except ValueError:
        raise ValueError(
            f"stacks {stacks[0]} of x1 and {stacks[1]} of x2 do not broadcast"
        ) from None
    of_x1, of_x2 = (
        (*range(-len(stack), 0), *core) for stack, core in zip(stacks, (core1, core2))
    )
    of_stack = range(-max(map(len, stacks)), 0)
    out_labels = (*of_stack, *(label for label in core1 + core2 if label != "k"))
    return products.chain(contract(products, x1, of_x1, x2, of_x2, out_labels), out)


def _check_lengths(a: Any, i: int, b: Any, j: int) -> None:
    """Raise ValueError where axis i of a and axis j of b, which are summed, differ."""
    shapes = shape_of(a), shape_of(b)
    if shapes[0][i] != shapes[1][j]:
        raise ValueError(
            f"shapes {shapes[0]} and {shapes[1]} do not fit: axis {i % a.ndim} of a has length {shapes[0][i]}, "
            f"axis {j % b.ndim} of b has length {shapes[1][j]}"
        )
