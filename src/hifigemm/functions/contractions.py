"""Functions that sum products of two operands over axes: one stacked `matmul` each, see
`arrangement`.

A variable `labels_a` holds the labels of the axes of `a`, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.functions.arrangement import Contraction, Shape, by_shapes
from hifigemm.functions.products import Products
from hifigemm.functions.subscripts import Labels
from hifigemm.functions.verbs import conj, permute, shape_of
from hifigemm.libraries import AnyArray
from hifigemm.model.accuracy import Accuracy
from hifigemm.operands.operands import broadcast_stacks
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName


def dot(
    a: object,
    b: object,
    out: object = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.dot`: the sum over the last axis of a and the second to last axis of b.

    If b is a vector, its only axis is summed.

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
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = products.arrays(a=a, b=b)
    contraction = by_shapes(_contraction_of_dot, shape_of(a), shape_of(b))
    return products.chain(contraction.apply(products, a, b), out)


def inner(
    a: object,
    b: object,
    /,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.inner`: the sum over the last axes of a and b; a scalar multiplies all
    entries.

    Parameters
    ----------
    a, b : array_like
        Any shapes with last axes of equal length; dtypes as for `hifigemm.matmul`.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        Shape ``a.shape[:-1] + b.shape[:-1]``.

    Raises
    ------
    ValueError
        The last axes differ in length.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.inner([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = products.arrays(a=a, b=b)
    contraction = by_shapes(_contraction_of_inner, shape_of(a), shape_of(b))
    return products.chain(contraction.apply(products, a, b), None)


def outer(
    a: object,
    b: object,
    out: object = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.outer`: every entry of a times every entry of b, both taken as vectors.

    Parameters
    ----------
    a, b : array_like
        Any shapes, with dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        Shape (a.size, b.size).

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.outer([1.0, 2.0], [3.0, 4.0])
    array([[3., 4.],
           [6., 8.]])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = _vectors(products, a, b)
    contraction = by_shapes(_contraction, shape_of(a), (0,), shape_of(b), (1,), (0, 1))
    return products.chain(contraction.apply(products, a, b), out)


def vdot(
    a: object,
    b: object,
    /,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vdot`: the sum over conj(a) b, both taken as vectors.

    Parameters
    ----------
    a, b : array_like
        Two arrays with the same number of entries; dtypes as for `hifigemm.matmul`.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    scalar, or (scalar, Report)

    Raises
    ------
    ValueError
        a and b differ in size.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> complex(hnp.vdot([1 + 2j], [3 + 4j]))
    (11-2j)
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = _vectors(products, a, b)
    contraction = by_shapes(_contraction_of_inner, shape_of(a), shape_of(b))
    return products.chain(contraction.apply(products, conj(a), b), None)


def vecdot(
    x1: object,
    x2: object,
    /,
    out: object = None,
    *,
    axis: int = -1,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vecdot`: the sum over conj(x1) x2 along one axis; the others broadcast.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., k), with dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    axis : int
        The axis of x1 and x2 that is summed.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        The broadcast shape of the other axes.

    Raises
    ------
    ValueError
        The axes that are summed differ in length, or the others do not broadcast.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.vecdot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    x1, x2 = products.arrays(x1=x1, x2=x2)
    axis = index(axis)
    if axis != -1:
        _check_axes(shape_of(x1), 1, shape_of(x2), 1)
        x1 = _with_axis_last(x1, axis)
        x2 = _with_axis_last(x2, axis)
    contraction = by_shapes(
        _contraction_of_stacks, shape_of(x1), ("k",), shape_of(x2), ("k",)
    )
    return products.chain(contraction.apply(products, conj(x1), x2), out)


def matvec(
    x1: object,
    x2: object,
    /,
    out: object = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.matvec`: a stack of matrices times a stack of vectors; they broadcast.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., m, k) and (..., k), with dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        Shape (..., m).

    Raises
    ------
    ValueError
        The axes that are summed differ in length, or the stacks do not broadcast.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    x1, x2 = products.arrays(x1=x1, x2=x2)
    contraction = by_shapes(
        _contraction_of_stacks, shape_of(x1), ("m", "k"), shape_of(x2), ("k",)
    )
    return products.chain(contraction.apply(products, x1, x2), out)


def vecmat(
    x1: object,
    x2: object,
    /,
    out: object = None,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """`numpy.vecmat`: a stack of conjugated vectors times a stack of matrices; they
    broadcast.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., k) and (..., k, n), with dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        Shape (..., n).

    Raises
    ------
    ValueError
        The axes that are summed differ in length, or the stacks do not broadcast.

    Examples
    --------
    >>> import hifigemm.numpy as hnp
    >>> hnp.vecmat([1.0, 1.0], [[1.0, 2.0], [3.0, 4.0]])
    array([4., 6.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    x1, x2 = products.arrays(x1=x1, x2=x2)
    contraction = by_shapes(
        _contraction_of_stacks, shape_of(x1), ("k",), shape_of(x2), ("k", "n")
    )
    return products.chain(contraction.apply(products, conj(x1), x2), out)


def tensordot(
    a: object,
    b: object,
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
        An int n: the last n axes of a with the first n axes of b. A pair: the axes of
        a, and the axes of b.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        The remaining axes of a, then the remaining axes of b.

    Raises
    ------
    ValueError, IndexError
        The axes differ in number or length, repeat or do not exist.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.tensordot(np.ones((2, 3, 4)), np.ones((4, 3)), axes=([1, 2], [1, 0]))
    array([12., 12.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = products.arrays(a=a, b=b)
    if _is_sequence(axes):
        axes_a, axes_b = axes
        axes = _integers(axes_a), _integers(axes_b)
    else:
        axes = index(axes)
    contraction = by_shapes(_contraction_of_tensordot, shape_of(a), shape_of(b), axes)
    return products.chain(contraction.apply(products, a, b), None)


def _contraction(
    shape_a: Shape,
    labels_a: Labels,
    shape_b: Shape,
    labels_b: Labels,
    labels_out: Labels,
) -> Contraction:
    """The sum of a times b over all labels that `labels_out` lacks."""
    lengths_a = dict(zip(labels_a, shape_a))
    lengths_b = dict(zip(labels_b, shape_b))
    return Contraction.of(lengths_a, lengths_b, labels_out)


def _contraction_of_dot(shape_a: Shape, shape_b: Shape) -> Contraction:
    """The sum over the last axis of a and the last but one of b, or its only one."""
    labels_a, labels_b = _distinct_labels(shape_a, shape_b)
    labels_out = labels_a + labels_b
    if shape_a and shape_b:
        axis_b = max(len(shape_b) - 2, 0)
        _check_lengths(shape_a, -1, shape_b, axis_b)
        before = labels_b[:axis_b]
        after = labels_b[axis_b + 1 :]
        labels_out = labels_a[:-1] + before + after
        labels_b = (*before, labels_a[-1], *after)
    return _contraction(shape_a, labels_a, shape_b, labels_b, labels_out)


def _contraction_of_inner(shape_a: Shape, shape_b: Shape) -> Contraction:
    """The sum over the last axes."""
    labels_a, labels_b = _distinct_labels(shape_a, shape_b)
    labels_out = labels_a + labels_b
    if shape_a and shape_b:
        _check_lengths(shape_a, -1, shape_b, -1)
        labels_out = labels_a[:-1] + labels_b[:-1]
        labels_b = (*labels_b[:-1], labels_a[-1])
    return _contraction(shape_a, labels_a, shape_b, labels_b, labels_out)


def _contraction_of_stacks(
    shape1: Shape, core1: Labels, shape2: Shape, core2: Labels
) -> Contraction:
    """The sum over "k" of operands whose leading axes broadcast.

    `core1` and `core2` are the labels of the other axes.
    """
    _check_axes(shape1, len(core1), shape2, len(core2))
    axis1 = core1.index("k") - len(core1)
    axis2 = core2.index("k") - len(core2)
    _check_lengths(shape1, axis1, shape2, axis2)
    stack1 = shape1[: len(shape1) - len(core1)]
    stack2 = shape2[: len(shape2) - len(core2)]
    broadcast_stacks(stack1, stack2, ("x1", "x2"))

    # Axes of the stacks have numbers below 0, so that stacks of any length end alike.
    labels1 = (*range(-len(stack1), 0), *core1)
    labels2 = (*range(-len(stack2), 0), *core2)
    labels_stack = range(-max(len(stack1), len(stack2)), 0)
    labels_core = [label for label in core1 + core2 if label != "k"]
    labels_out = (*labels_stack, *labels_core)
    return _contraction(shape1, labels1, shape2, labels2, labels_out)


def _contraction_of_tensordot(
    shape_a: Shape, shape_b: Shape, axes: int | tuple[tuple[int, ...], tuple[int, ...]]
) -> Contraction:
    """The sum over pairs of axes, or over the last axes of a and the first of b."""
    # Pairs of axes of a and b, as numbers from 0 on.
    if isinstance(axes, int):
        ndim_a = len(shape_a)
        ndim_b = len(shape_b)
        if axes > min(ndim_a, ndim_b):
            raise ValueError(f"axes = {axes}: a has {ndim_a} axes, b has {ndim_b}")
        axes = tuple(range(-axes, 0)), tuple(range(axes))
    axes_a = _axes(axes[0], len(shape_a), "axes of a")
    axes_b = _axes(axes[1], len(shape_b), "axes of b")
    if len(axes_a) != len(axes_b):
        raise ValueError(
            f"axes {axes_a} of a are {len(axes_a)}, axes {axes_b} of b are {len(axes_b)}"
        )

    # The axes of a pair get the same label.
    labels_a, labels_b = _distinct_labels(shape_a, shape_b)
    partners = {}
    for i, j in zip(axes_a, axes_b):
        _check_lengths(shape_a, i, shape_b, j)
        partners[labels_b[j]] = labels_a[i]
    labels_b = tuple([partners.get(x, x) for x in labels_b])
    summed = partners.values()
    labels_out = tuple([x for x in labels_a + labels_b if x not in summed])
    return _contraction(shape_a, labels_a, shape_b, labels_b, labels_out)


def _distinct_labels(shape_a: Shape, shape_b: Shape) -> tuple[Labels, Labels]:
    """Labels of the axes of a and of b, all different."""
    count = len(shape_a)
    return tuple(range(count)), tuple(range(count, count + len(shape_b)))


def _is_sequence(axes: object) -> bool:
    """True for several axes; an array of no dimension is one axis."""
    return isinstance(axes, Iterable) and getattr(axes, "ndim", 1) > 0


def _integers(axes: Any) -> tuple[int, ...]:
    """One axis or several as integers of Python."""
    return tuple([index(x) for x in (axes if _is_sequence(axes) else [axes])])


def _axes(axes: tuple[int, ...], ndim: int, name: str) -> tuple[int, ...]:
    """Axes as numbers from 0 on.

    Raises numpy.exceptions.AxisError: an axis that does not exist. ValueError: one that
    comes twice.
    """
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(axis, ndim, name)
    numbers = tuple([x % ndim for x in axes])
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"repeated axis in {name}: {axes}")
    return numbers


def _vectors(products: Products, a: object, b: object) -> tuple[AnyArray, AnyArray]:
    """Both operands of the call as arrays of one axis."""
    a, b = products.arrays(a=a, b=b)
    return _vector(a), _vector(b)


def _vector(x: AnyArray) -> AnyArray:
    """The entries of x along one axis."""
    return x if x.ndim == 1 else x.reshape((math.prod(shape_of(x)),))


def _with_axis_last(x: AnyArray, axis: int) -> AnyArray:
    """A view of x with this axis behind all others."""
    (axis,) = _axes((axis,), x.ndim, "axis")
    return permute(x, [i for i in range(x.ndim) if i != axis] + [axis])


def _check_axes(shape1: Shape, min_axes1: int, shape2: Shape, min_axes2: int) -> None:
    """Raise ValueError if x1 or x2 has fewer axes than it must have."""
    operands = ("x1", shape1, min_axes1), ("x2", shape2, min_axes2)
    for name, shape, min_axes in operands:
        if len(shape) < min_axes:
            raise ValueError(
                f"{name} has {len(shape)} axes, its shape is {shape}; at least {min_axes} expected"
            )


def _check_lengths(shape_a: Shape, i: int, shape_b: Shape, j: int) -> None:
    """Raise ValueError if axis i of a and axis j of b, which are summed, differ."""
    if shape_a[i] != shape_b[j]:
        raise ValueError(
            f"shapes {shape_a} and {shape_b} do not fit: axis {i % len(shape_a)} of a has length {shape_a[i]}, "
            f"axis {j % len(shape_b)} of b has length {shape_b[j]}"
        )
