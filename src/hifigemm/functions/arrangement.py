"""A sum over products of two operands as one stacked product of matrices, by shapes
alone.

Idea: each axis of an operand has a label. Labels of both operands and of the result
count matrices of a stack, labels of one operand and of the result are rows or columns,
labels that the result lacks are summed: one stacked `matmul` of permuted and reshaped
operands. So the promise of `matmul` holds for the result, with |A||B| the same sum over
magnitudes.

What follows from shapes is found in the first call of a kind, and kept: `by_shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from hifigemm.base.store import keep, kept
from hifigemm.base.transforms import is_compiled
from hifigemm.functions.products import Products
from hifigemm.functions.subscripts import Labels
from hifigemm.functions.verbs import expand, ones, permute
from hifigemm.libraries import AnyArray

T = TypeVar("T")

Lengths = dict[Hashable, int]
"""The lengths of labels, in the order of the axes."""
Shape = tuple[int, ...]
MOST_COPIES = 4
"""Copies of an operand along labels that only the other one has may take this many
times the memory of operands and result: about as much as the planes of an exact scheme
take.
"""


def by_shapes(function: Callable[..., T], *arguments: Hashable) -> T:
    """``function(*arguments)``, which follows from shapes and options alone, and is kept
    for later calls.
    """
    # torch.compile keeps its graph instead.
    if is_compiled():
        return function(*arguments)
    key = function, arguments
    value: T | None = kept(key)
    if value is None:
        value = function(*arguments)
        # Lengths that PyTorch leaves open have no hash.
        with suppress(TypeError):
            keep(key, value, "shapes")
    return value


class Arrangement(NamedTuple):
    """How the axes of an operand become those of a stack of matrices: a view, but for
    axes that are joined across others.
    """

    squeezed: Shape | None
    """The shape without axes of length 1 that broadcast; None: there are none."""
    order: tuple[int, ...] | None
    """The axes in their order; None: they stand in it."""
    repeated: tuple[Shape, Shape] | None
    """The shape with axes of length 1 for labels that the operand lacks, and the one
    with their lengths; None: it has all labels.
    """
    shape: Shape | None
    """Of the stack, or of the matrix; None: it has this shape already."""

    @classmethod
    def of(
        cls,
        axes: Lengths,
        remaining: Labels,
        labels: Labels,
        lengths: Lengths,
        shape: Shape,
    ) -> Arrangement:
        """The arrangement of an operand with these axes, of which some remain, by
        labels in their order.
        """
        squeezed = None
        if len(remaining) < len(axes):
            squeezed = tuple([axes[x] for x in remaining])
        present = [x for x in labels if x in remaining]
        order = order_of(remaining, present)
        shape_before = tuple([lengths[x] for x in labels])
        repeated = None
        if len(present) < len(labels):
            with_ones = tuple([lengths[x] if x in remaining else 1 for x in labels])
            repeated = with_ones, shape_before
        return cls(squeezed, order, repeated, None if shape == shape_before else shape)

    def apply(self, x: AnyArray) -> AnyArray:
        """The stack with the entries of x."""
        if self.squeezed is not None:
            x = x.reshape(self.squeezed)
        if self.order is not None:
            x = permute(x, self.order)
        if self.repeated is not None:
            with_ones, shape = self.repeated
            x = expand(x.reshape(with_ones), shape)
        return x if self.shape is None else x.reshape(self.shape)


class Contraction(NamedTuple):
    """The sum of a times b over all labels that the result lacks, by lengths alone.

    No operand has a label twice, and lengths fit; lengths of 1 broadcast. A label that
    only one operand has and that is summed belongs to the inner dimension, along which
    the other operand is repeated. If these copies exceed `MOST_COPIES`, a product with
    ones sums it first.
    """

    sums: tuple[Contraction | None, Contraction | None]
    """The products with 1 that sum labels of a alone, and of b alone, beforehand."""
    left: Arrangement
    right: Arrangement
    shape: Shape | None
    """The product of matrices with the axes of the result; None: it has them already."""
    order: tuple[int, ...] | None
    """These axes in the order of the result; None: they stand in it."""
    lengths_out: Lengths
    why_several: str
    """Why it takes several products, for a message."""

    @classmethod
    def of(
        cls, lengths_a: Lengths, lengths_b: Lengths, labels_out: Labels
    ) -> Contraction:
        """The contraction of operands whose axes have these labels and lengths."""
        labels_a = _without_broadcast(lengths_a, lengths_b)
        labels_b = _without_broadcast(lengths_b, lengths_a)
        lengths = {x: lengths_a[x] for x in labels_a}
        lengths.update({x: lengths_b[x] for x in labels_b})

        # Labels of both operands are summed or number the matrices of a stack; labels
        # of one alone are its rows or columns, or are summed as well.
        common = [x for x in labels_a if x in labels_b]
        batch = tuple([x for x in common if x in labels_out])
        summed_of_both = tuple([x for x in common if x not in labels_out])
        lone_a = [x for x in labels_a if x not in labels_b]
        lone_b = [x for x in labels_b if x not in labels_a]
        rows = tuple([x for x in lone_a if x in labels_out])
        cols = tuple([x for x in lone_b if x in labels_out])
        summed_of_a = tuple([x for x in lone_a if x not in labels_out])
        summed_of_b = tuple([x for x in lone_b if x not in labels_out])

        # Copies of each operand along summed labels of the other one alone.
        num_copied = 0
        if summed_of_a:
            num_copied += size(labels_b + summed_of_a, lengths)
        if summed_of_b:
            num_copied += size(labels_a + summed_of_b, lengths)
        num_entries = sum([size(x, lengths) for x in (labels_a, labels_b, labels_out)])
        has_entries = 0 not in lengths.values()
        if has_entries and num_copied > MOST_COPIES * num_entries:
            why = (
                f"a sum over {size(summed_of_a, lengths)} x {size(summed_of_b, lengths)} entries along labels of one "
                f"operand alone, which one product could only make of copies of {num_copied} entries beside operands "
                f"and result of {num_entries},"
            )
            sum_a = _sum_over(lengths_a, summed_of_a)
            sum_b = _sum_over(lengths_b, summed_of_b)
            a = lengths_a if sum_a is None else sum_a.lengths_out
            b = lengths_b if sum_b is None else sum_b.lengths_out
            product = cls.of(a, b, labels_out)
            return product._replace(sums=(sum_a, sum_b), why_several=why)

        # One stacked product of matrices, whose axes are those of the result.
        summed = (*summed_of_both, *summed_of_a, *summed_of_b)
        stack = (size(batch, lengths),) if batch else ()
        inner = size(summed, lengths)
        num_rows = size(rows, lengths)
        num_cols = size(cols, lengths)
        left = Arrangement.of(
            lengths_a,
            labels_a,
            (*batch, *rows, *summed),
            lengths,
            (*stack, num_rows, inner),
        )
        right = Arrangement.of(
            lengths_b,
            labels_b,
            (*batch, *summed, *cols),
            lengths,
            (*stack, inner, num_cols),
        )
        labels = (*batch, *rows, *cols)
        shape: Shape | None = tuple([lengths[x] for x in labels])
        if shape == (*stack, num_rows, num_cols):
            shape = None
        order = order_of(labels, labels_out)
        lengths_out = {x: lengths[x] for x in labels_out}
        return cls((None, None), left, right, shape, order, lengths_out, "")

    @property
    def num_products(self) -> int:
        """Products that it takes."""
        return 1 + len([x for x in self.sums if x is not None])

    def apply(self, products: Products, a: AnyArray, b: AnyArray) -> AnyArray:
        """The sum for these operands."""
        sum_a, sum_b = self.sums
        if sum_a is not None:
            a = sum_a.apply(products, a, ones((), a))
        if sum_b is not None:
            b = sum_b.apply(products, b, ones((), b))
        return products(self.left.apply(a), self.right.apply(b), self.arranged)

    def arranged(self, product: AnyArray) -> AnyArray:
        """The result from the product of matrices."""
        value = product if self.shape is None else product.reshape(self.shape)
        return value if self.order is None else permute(value, self.order)


def size(labels: Labels, lengths: Lengths) -> int:
    """The number of entries of an array with these labels."""
    return math.prod([lengths[x] for x in labels])


def order_of(labels: Labels, order: Sequence[Hashable]) -> tuple[int, ...] | None:
    """The axes of labels in another order, by numbers; None: they stand in it."""
    axes = tuple([labels.index(x) for x in order])
    return None if axes == tuple(range(len(axes))) else axes


def _sum_over(lengths: Lengths, summed: Labels) -> Contraction | None:
    """The sum of an operand over some of its labels, by a product with 1; None for
    none.
    """
    if not summed:
        return None
    remaining = tuple([x for x in lengths if x not in summed])
    return Contraction.of(lengths, {}, remaining)


def _without_broadcast(lengths: Lengths, others: Lengths) -> Labels:
    """The labels of an operand, but for those of length 1 that broadcast against the
    other one, to which they then belong alone.
    """
    remaining = []
    for label, length in lengths.items():
        if length != 1 or others.get(label, 1) == 1:
            remaining.append(label)
    return tuple(remaining)
