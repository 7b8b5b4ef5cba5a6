"""Functions that sum products of two operands over axes, and einsum, a chain of them.

Idea: each axis of an operand has a label. Labels of both operands and of the result
count matrices of a stack, labels of one operand and of the result are rows or columns,
labels that the result lacks are summed: one stacked `matmul` of permuted and reshaped
operands. So the promise of `matmul` holds for the result, with |A||B| the same sum over
magnitudes.

A variable `labels_a` holds the labels of the axes of `a`, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hifigemm.functions.products import Chain, Products
from hifigemm.functions.subscripts import Labels, parse
from hifigemm.functions.verbs import (
    conj,
    diagonal,
    expand,
    ones,
    permute,
    shape_of,
)
from hifigemm.libraries import AnyArray
from hifigemm.model.accuracy import Accuracy
from hifigemm.operands.operands import broadcast_stacks
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName

Lengths = dict[Hashable, int]
"""The lengths of labels, in the order of the axes."""
MOST_COPIES = 4
"""Copies of an operand along labels that only the other one has may take this many
times the memory of operands and result: about as much as the planes of an exact scheme
take.
"""


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
    """`numpy.dot`: the sum over the last axis of a and the last but one of b.

    It is the only axis of b if b is a vector.

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
    a, b = products.arrays(("a", a), ("b", b))
    labels_a, labels_b = _distinct_labels(a, b)
    labels_out = labels_a + labels_b
    if a.ndim and b.ndim:
        axis_b = max(b.ndim - 2, 0)
        _check_lengths(a, -1, b, axis_b)
        before = labels_b[:axis_b]
        after = labels_b[axis_b + 1 :]
        labels_out = labels_a[:-1] + before + after
        labels_b = (*before, labels_a[-1], *after)
    value = contract(products, a, labels_a, b, labels_b, labels_out)
    return products.chain(value, out)


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
        Any shapes, with dtypes as for `hifigemm.matmul`; the last axes have one length.
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
    a, b = products.arrays(("a", a), ("b", b))
    labels_a, labels_b = _distinct_labels(a, b)
    labels_out = labels_a + labels_b
    if a.ndim and b.ndim:
        _check_lengths(a, -1, b, -1)
        labels_out = labels_a[:-1] + labels_b[:-1]
        labels_b = (*labels_b[:-1], labels_a[-1])
    value = contract(products, a, labels_a, b, labels_b, labels_out)
    return products.chain(value, None)


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
    return products.chain(contract(products, a, (0,), b, (1,), (0, 1)), out)


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
        As many entries each, with dtypes as for `hifigemm.matmul`.
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
    _check_lengths(a, 0, b, 0)
    return products.chain(contract(products, conj(a), (0,), b, (0,), ()), None)


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
        The axis of both that is summed.
    accuracy, scheme, engine, workspace, return_report
        As for `hifigemm.matmul`.

    Returns
    -------
    array, or (array, Report)
        The axes that broadcast.

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
    x1, x2 = _arrays_with_axes(products, ("x1", x1, 1), ("x2", x2, 1))
    x1 = _with_axis_last(x1, index(axis))
    x2 = _with_axis_last(x2, index(axis))
    _check_lengths(x1, -1, x2, -1)
    return _stacked(conj(x1), ("k",), x2, ("k",), out, products)


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
    x1, x2 = _arrays_with_axes(products, ("x1", x1, 2), ("x2", x2, 1))
    _check_lengths(x1, -1, x2, -1)
    return _stacked(x1, ("m", "k"), x2, ("k",), out, products)


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
    x1, x2 = _arrays_with_axes(products, ("x1", x1, 1), ("x2", x2, 2))
    _check_lengths(x1, -1, x2, -2)
    return _stacked(conj(x1), ("k",), x2, ("k", "n"), out, products)


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
    # Pairs of axes of a and b, as numbers from 0 on.
    products = Products(accuracy, scheme, engine, workspace, return_report)
    a, b = products.arrays(("a", a), ("b", b))
    if _is_sequence(axes):
        axes_a, axes_b = axes
    else:
        count = index(axes)
        if count > min(a.ndim, b.ndim):
            raise ValueError(f"axes = {count}: a has {a.ndim} axes, b has {b.ndim}")
        axes_a = range(-count, 0)
        axes_b = range(count)
    axes_a = _axes(axes_a, a.ndim, "axes of a")
    axes_b = _axes(axes_b, b.ndim, "axes of b")
    if len(axes_a) != len(axes_b):
        raise ValueError(
            f"axes {axes_a} of a are {len(axes_a)}, axes {axes_b} of b are {len(axes_b)}"
        )

    # The axes of a pair get the same label.
    labels_a, labels_b = _distinct_labels(a, b)
    partners = {}
    for i, j in zip(axes_a, axes_b):
        _check_lengths(a, i, b, j)
        partners[labels_b[j]] = labels_a[i]
    labels_b = tuple(partners.get(x, x) for x in labels_b)
    summed = partners.values()
    labels_out = tuple(x for x in labels_a + labels_b if x not in summed)
    value = contract(products, a, labels_a, b, labels_b, labels_out)
    return products.chain(value, None)


def einsum(
    *operands: object,
    out: object = None,
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
    accuracy : optional
        As for `hifigemm.matmul`. Of several products a number r is kept by the result,
        |C - exact| <= r |A||B||C|... + u |exact|; None and levels are kept by each.
    scheme, engine, workspace, return_report
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
        "correct" or `hifigemm.Relative` was asked for, or a number that the roundings
        between the products exceed, and there is more than one product: with three or
        more operands, and with labels that only one operand has, where summing them
        together with all others takes a large copy of the other operand. Integers keep
        every accuracy.
    AccuracyError
        Integers that are to be exact, as those of Python always are: the first entry of
        a product beyond its dtype.
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
    # Arrays of one dtype, in which no label comes twice.
    products = Products(accuracy, scheme, engine, workspace, return_report)
    subscripts, array_likes = _split(operands)
    arrays = products.arrays(*((f"operand {i}", x) for i, x in enumerate(array_likes)))
    labels, labels_out = parse(subscripts, [shape_of(x) for x in arrays])
    values = {}
    for i, x in enumerate(products.promoted(arrays)):
        values[i] = _without_repeats(x, labels[i])

    # The products by shapes alone, and the share that each of them has of the accuracy.
    terms = [dict(zip(labels_x, shape_of(x))) for x, labels_x in values.values()]
    path = _path(terms, labels_out, optimize)
    contractions = _contractions(terms, labels_out, path)
    num_products = sum(x.num_products for _, _, x in contractions)
    products.num_products = num_products
    if products.binds_result and num_products > 1:
        why = f"einsum of {len(arrays)} operands"
        if len(contractions) == 1:
            why = contractions[0][2].why_summed_beforehand
        roundoff = products.roundoff(values[0][0])
        products.begin(Chain(why, (roundoff,) * num_products, (1,) * num_products))

    # Each product takes the place of its operands.
    for number, (i, j, contraction) in enumerate(contractions, len(arrays)):
        a, labels_a = values.pop(i)
        b, labels_b = (ones((), a), ()) if j is None else values.pop(j)
        value = contraction.apply(products, a, labels_a, b, labels_b)
        values[number] = value, contraction.labels_out
    ((value, labels_value),) = values.values()
    value = permute(value, [labels_value.index(label) for label in labels_out])
    return products.chain(value, out)


def _contractions(
    terms: list[Lengths], labels_out: Labels, path: list[tuple[int, ...]]
) -> list[tuple[int, int | None, Contraction]]:
    """The contractions of einsum, each with the numbers of the terms that it takes.

    Terms are numbered from 0 on, and each product is the next term. None stands for a
    product with 1, by which the last term is summed over labels that the result lacks.
    """
    terms = list(terms)
    contractions: list[tuple[int, int | None, Contraction]] = []

    # Each step of the path takes some of the numbers and appends that of their product.
    numbers = list(range(len(terms)))
    for positions in path:
        last_to_first = [numbers.pop(i) for i in sorted(positions, reverse=True)]
        number = last_to_first.pop()
        while last_to_first:
            other = last_to_first.pop()
            # Labels of the result or of a term that comes later are not summed yet.
            later = set(labels_out)
            for k in numbers + last_to_first:
                later.update(terms[k])
            labels = dict.fromkeys([*terms[number], *terms[other]])
            remaining = tuple([label for label in labels if label in later])
            contraction = Contraction.of(terms[number], terms[other], remaining)
            contractions.append((number, other, contraction))
            terms.append(contraction.lengths_out)
            number = len(terms) - 1
        numbers.append(number)

    # The last one has the axes in their order.
    (last,) = numbers
    if contractions and set(terms[last]) == set(labels_out):
        i, j, contraction = contractions.pop()
        contractions.append((i, j, contraction._replace(labels_out=labels_out)))
    elif set(terms[last]) != set(labels_out):
        contractions.append((last, None, Contraction.of(terms[last], {}, labels_out)))
    return contractions


def contract(
    products: Products,
    a: AnyArray,
    labels_a: Labels,
    b: AnyArray,
    labels_b: Labels,
    labels_out: Labels,
) -> AnyArray:
    """The sum of a times b over all labels that `labels_out` lacks: see
    `Contraction`.
    """
    lengths_a = dict(zip(labels_a, shape_of(a)))
    lengths_b = dict(zip(labels_b, shape_of(b)))
    contraction = Contraction.of(lengths_a, lengths_b, labels_out)
    return contraction.apply(products, a, labels_a, b, labels_b)


class Contraction(NamedTuple):
    """The sum of a times b over all labels that `labels_out` lacks, by lengths alone.

    No operand has a label twice, and lengths fit; lengths of 1 broadcast. A label that
    only one operand has and that is summed belongs to the inner dimension, along which
    the other operand is repeated. If these copies exceed `MOST_COPIES`, a product with
    ones sums it first.
    """

    lengths: Lengths
    labels_a: Labels
    """Labels of a, but for those of length 1 that broadcast."""
    labels_b: Labels
    labels_out: Labels

    @classmethod
    def of(
        cls, lengths_a: Lengths, lengths_b: Lengths, labels_out: Labels
    ) -> Contraction:
        """The contraction of operands whose labels have these lengths."""
        labels_a = _without_broadcast(lengths_a, lengths_b)
        labels_b = _without_broadcast(lengths_b, lengths_a)
        lengths = {x: lengths_a[x] for x in labels_a}
        lengths.update({x: lengths_b[x] for x in labels_b})
        return cls(lengths, labels_a, labels_b, labels_out)

    @property
    def lengths_out(self) -> Lengths:
        """The lengths of the labels of the result."""
        return {x: self.lengths[x] for x in self.labels_out}

    @property
    def lone_labels(self) -> tuple[Labels, Labels]:
        """Labels of a alone that are summed, and those of b alone."""
        labels_a = self.labels_a
        labels_b = self.labels_b
        summed = [x for x in self.lengths if x not in self.labels_out]
        lone_a = tuple([x for x in summed if x not in labels_b])
        lone_b = tuple([x for x in summed if x not in labels_a])
        return lone_a, lone_b

    @property
    def num_copied(self) -> int:
        """Entries of the copies of the operands along lone labels of the other one."""
        lone_a, lone_b = self.lone_labels
        copies = 0
        if lone_a:
            copies += self.size(self.labels_b + lone_a)
        if lone_b:
            copies += self.size(self.labels_a + lone_b)
        return copies

    @property
    def num_entries(self) -> int:
        """Entries of operands and result."""
        sizes = [self.size(x) for x in (self.labels_a, self.labels_b, self.labels_out)]
        return sum(sizes)

    @property
    def sums_beforehand(self) -> bool:
        """True if lone labels are summed by products with ones."""
        has_entries = 0 not in self.lengths.values()
        return has_entries and self.num_copied > MOST_COPIES * self.num_entries

    @property
    def num_products(self) -> int:
        """Products that it takes."""
        if not self.sums_beforehand:
            return 1
        lone_a, lone_b = self.lone_labels
        return 1 + bool(lone_a) + bool(lone_b)

    @property
    def why_summed_beforehand(self) -> str:
        """Why it takes several products, for a message."""
        lone_a, lone_b = self.lone_labels
        return (
            f"a sum over {self.size(lone_a)} x {self.size(lone_b)} entries along labels of one operand alone, which "
            f"one product could only make of copies of {self.num_copied} entries beside operands and result of "
            f"{self.num_entries},"
        )

    def size(self, labels: Labels) -> int:
        """The number of entries of an array with these labels."""
        return math.prod([self.lengths[x] for x in labels])

    def apply(
        self,
        products: Products,
        a: AnyArray,
        labels_a: Labels,
        b: AnyArray,
        labels_b: Labels,
    ) -> AnyArray:
        """The sum for these operands, whose axes have these labels."""
        a = _reduced(a, labels_a, self.labels_a)
        b = _reduced(b, labels_b, self.labels_b)
        labels_a = self.labels_a
        labels_b = self.labels_b
        labels_out = self.labels_out

        # Sum labels of one operand alone beforehand, if copies of the other are too
        # large.
        lone_a, lone_b = self.lone_labels
        if self.sums_beforehand:
            a, labels_a = _summed(products, a, labels_a, lone_a)
            b, labels_b = _summed(products, b, labels_b, lone_b)
            lone_a = lone_b = ()

        # Labels of both operands are summed or number the matrices of a stack; labels
        # of one alone are its rows or columns, or are summed as well.
        common = tuple([x for x in labels_a if x in labels_b])
        batch = tuple([x for x in common if x in labels_out])
        summed_of_both = tuple([x for x in common if x not in labels_out])
        rows = tuple([x for x in labels_a if x in labels_out and x not in labels_b])
        cols = tuple([x for x in labels_b if x in labels_out and x not in labels_a])

        # One stacked product of matrices, whose axes are those of the result.
        summed = (*summed_of_both, *lone_a, *lone_b)
        stack = (self.size(batch),) if batch else ()
        left = _arranged(a, labels_a, (*batch, *rows, *summed), self.lengths)
        left = left.reshape((*stack, self.size(rows), self.size(summed)))
        right = _arranged(b, labels_b, (*batch, *summed, *cols), self.lengths)
        right = right.reshape((*stack, self.size(summed), self.size(cols)))
        labels_value = (*batch, *rows, *cols)
        shape = tuple([self.lengths[x] for x in labels_value])
        order = [labels_value.index(x) for x in labels_out]
        return products(left, right, lambda x: permute(x.reshape(shape), order))


def _summed(
    products: Products, x: AnyArray, labels_x: Labels, lone: Labels
) -> tuple[AnyArray, Labels]:
    """x summed over some of its labels by a product with 1, and the labels left."""
    if not lone:
        return x, labels_x
    remaining = tuple(label for label in labels_x if label not in lone)
    value = contract(products, x, labels_x, ones((), x), (), remaining)
    return value, remaining


def _arranged(
    x: AnyArray, labels_x: Labels, order: Labels, lengths: Lengths
) -> AnyArray:
    """x with its axes in this order, repeated along axes whose label it lacks."""
    present = [label for label in order if label in labels_x]
    x = permute(x, [labels_x.index(label) for label in present])
    if len(present) == len(order):
        return x
    x = x.reshape(tuple(lengths[label] if label in labels_x else 1 for label in order))
    return expand(x, [lengths[label] for label in order])


def _without_broadcast(lengths: Lengths, others: Lengths) -> Labels:
    """The labels of an operand, but for those of length 1 that broadcast against the
    other one, to which they then belong alone.
    """
    remaining = []
    for label, length in lengths.items():
        if length != 1 or others.get(label, 1) == 1:
            remaining.append(label)
    return tuple(remaining)


def _reduced(x: AnyArray, labels_x: Labels, remaining: Labels) -> AnyArray:
    """x without the axes of other labels than these, which have length 1."""
    if len(remaining) == len(labels_x):
        return x
    lengths = dict(zip(labels_x, shape_of(x)))
    return x.reshape(tuple([lengths[label] for label in remaining]))


def _without_repeats(x: AnyArray, labels_x: Labels) -> tuple[AnyArray, Labels]:
    """A view of x in which no label comes twice.

    It is the diagonal of axes with the same label.
    """
    while len(set(labels_x)) < len(labels_x):
        label = next(label for label in labels_x if labels_x.count(label) > 1)
        axis = labels_x.index(label)
        repeated_axis = labels_x.index(label, axis + 1)
        x = diagonal(x, axis, repeated_axis)

        # Both axes become one, the last.
        labels_before = labels_x[:axis] + labels_x[axis + 1 : repeated_axis]
        labels_x = (*labels_before, *labels_x[repeated_axis + 1 :], label)
    return x, labels_x


def _split(operands: Sequence[object]) -> tuple[str | list[object], list[object]]:
    """The subscripts, a string or lists of labels, and the operands of `einsum`."""
    if not operands:
        raise ValueError(
            "einsum takes subscripts and at least one operand, 0 arguments are given"
        )
    if isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    # Operands and lists of labels in turn; a list at the end is that of the result.
    even = len(operands) // 2 * 2
    arrays = list(operands[:even:2])
    sublists = [*operands[1::2], *operands[even:]]
    return sublists, arrays


def _path(
    terms: Sequence[Lengths], out: Labels, optimize: Any
) -> list[tuple[int, ...]]:
    """The order of the products, by shapes alone.

    Each step is given by positions in the list of terms, from which it takes some and
    to whose end it adds their product.
    """
    if len(terms) < 2:
        return []
    if len(terms) == 2:
        return [(0, 1)]

    # A number for each label, as `numpy.einsum_path` takes them.
    numbers: dict[Hashable, int] = {}
    for lengths in terms:
        for label in lengths:
            numbers.setdefault(label, len(numbers))
    shapes = [tuple(lengths.values()) for lengths in terms]
    labels = [tuple([numbers[label] for label in lengths]) for lengths in terms]
    labels_out = tuple([numbers[label] for label in out])
    return _path_of_numpy(tuple(shapes), tuple(labels), labels_out, optimize)


def _path_of_numpy(
    shapes: tuple[tuple[int, ...], ...],
    labels: tuple[tuple[int, ...], ...],
    out: tuple[int, ...],
    optimize: Any,
) -> list[tuple[int, ...]]:
    """The order of `numpy.einsum_path`.

    torch.compile takes it as a constant of the shapes.
    """
    operands: list[Any] = []
    for shape, labels_x in zip(shapes, labels):
        operands.append(np.broadcast_to(np.float64(), shape))
        operands.append(list(labels_x))
    if optimize is False:
        optimize = "greedy"
    path, _ = np.einsum_path(*operands, list(out), optimize=optimize)
    return path[1:]


_path_of_numpy._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _distinct_labels(a: AnyArray, b: AnyArray) -> tuple[Labels, Labels]:
    """Labels of the axes of a and of b, all different."""
    return tuple(range(a.ndim)), tuple(range(a.ndim, a.ndim + b.ndim))


def _is_sequence(axes: object) -> bool:
    """True for several axes; an array of no dimension is one axis."""
    return isinstance(axes, Iterable) and getattr(axes, "ndim", 1) > 0


def _axes(axes: Any, ndim: int, name: str) -> tuple[int, ...]:
    """One axis or several as numbers from 0 on.

    Raises numpy.exceptions.AxisError: an axis that does not exist. ValueError: one that
    comes twice.
    """
    integers = [index(x) for x in (axes if _is_sequence(axes) else [axes])]
    for axis in integers:
        if not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(axis, ndim, name)
    numbers = tuple([x % ndim for x in integers])
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"repeated axis in {name}: {tuple(integers)}")
    return numbers


def _vectors(products: Products, a: object, b: object) -> tuple[AnyArray, AnyArray]:
    """Both operands of the call as arrays of one axis."""
    a, b = products.arrays(("a", a), ("b", b))
    size_a = math.prod(shape_of(a))
    size_b = math.prod(shape_of(b))
    return a.reshape((size_a,)), b.reshape((size_b,))


def _with_axis_last(x: AnyArray, axis: int) -> AnyArray:
    """A view of x with this axis behind all others."""
    (axis,) = _axes([axis], x.ndim, "axis")
    return permute(x, [i for i in range(x.ndim) if i != axis] + [axis])


def _arrays_with_axes(
    products: Products, *operands: tuple[str, object, int]
) -> list[AnyArray]:
    """Operands of the call as arrays; each is given with its name and its least number of axes.

    Raises ValueError: an operand with fewer axes.
    """
    arrays = products.arrays(*((name, x) for name, x, _ in operands))
    for (name, _, min_axes), x in zip(operands, arrays):
        if x.ndim < min_axes:
            raise ValueError(
                f"{name} has {x.ndim} axes, its shape is {shape_of(x)}; at least {min_axes} expected"
            )
    return arrays


def _stacked(
    x1: AnyArray,
    core1: Labels,
    x2: AnyArray,
    core2: Labels,
    out: object,
    products: Products,
) -> Any:
    """The sum over "k" of operands whose leading axes broadcast.

    `core1` and `core2` are the labels of the other axes.
    """
    stack1 = shape_of(x1)[: x1.ndim - len(core1)]
    stack2 = shape_of(x2)[: x2.ndim - len(core2)]
    broadcast_stacks(stack1, stack2, ("x1", "x2"))

    # Axes of the stacks have numbers below 0, so that stacks of any length end alike.
    labels_x1 = (*range(-len(stack1), 0), *core1)
    labels_x2 = (*range(-len(stack2), 0), *core2)
    labels_stack = range(-max(len(stack1), len(stack2)), 0)
    labels_core = [label for label in core1 + core2 if label != "k"]
    labels_out = (*labels_stack, *labels_core)
    value = contract(products, x1, labels_x1, x2, labels_x2, labels_out)
    return products.chain(value, out)


def _check_lengths(a: AnyArray, i: int, b: AnyArray, j: int) -> None:
    """Raise ValueError if axis i of a and axis j of b, which are summed, differ."""
    shape_a = shape_of(a)
    shape_b = shape_of(b)
    if shape_a[i] != shape_b[j]:
        raise ValueError(
            f"shapes {shape_a} and {shape_b} do not fit: axis {i % a.ndim} of a has length {shape_a[i]}, "
            f"axis {j % b.ndim} of b has length {shape_b[j]}"
        )
