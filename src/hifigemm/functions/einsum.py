"""einsum: one contraction after the other.

Its steps follow from subscripts and shapes alone, and are kept for later calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hifigemm.functions.arrangement import (
    Contraction,
    Lengths,
    Shape,
    by_shapes,
    order_of,
)
from hifigemm.functions.products import Chain, Products
from hifigemm.functions.subscripts import Labels, as_text, parse
from hifigemm.functions.three_factors import ThreeFactors
from hifigemm.functions.verbs import diagonal, ones, permute, shape_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import SchemeName


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
    """`numpy.einsum`: sums of products, by labels of axes.

    Parameters
    ----------
    *operands
        ``"ij,jk->ik", a, b`` or ``a, [0, 1], b, [1, 2], [0, 2]``, with ellipses as in
        NumPy; dtypes as for `hifigemm.matmul`.
    out : array, optional
        Receives the result.
    optimize : optional
        The order of the products of three or more operands, as for `numpy.einsum_path`.
        False takes the greedy order.
    accuracy : optional
        As for `hifigemm.matmul`. With several products a number r holds for the result,
        |C - exact| <= r |A||B||C|... + u |exact|; None and levels hold for each
        product. Two products of three operands also take "correct", `hifigemm.Relative`
        and any number, and round once as `multi_dot` does. The order of the products
        then decides where Inf and NaN appear.
    scheme, engine, workspace, return_report
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, or (array, Report), or (array, ThreeFactorsReport), or (array, ChainReport)
        One operand without a sum gives a view of it if `out` is None; views of
        diagonals are read-only. The report is a `Report` for one product, a
        `ThreeFactorsReport` if three operands are rounded once, and a `ChainReport`
        otherwise.

    Raises
    ------
    PlanError
        The accuracy is "correct", `hifigemm.Relative`, or a number that the roundings
        between the products exceed, and there is more than one product. This holds for
        four or more operands, for three with a scheme or an engine, and for labels that
        only one operand has, if summing them with all others takes a large copy of the
        other operand. Integers keep every accuracy.
    TypeError
        Three operands are to be rounded once, and PyTorch differentiates or JAX traces
        them.
    AccuracyError
        Products of integers are to be exact, as they always are for Python integers,
        and an entry lies beyond the dtype. The message has the first such entry.
    ValueError
        The subscripts do not fit the operands.

    Examples
    --------
    >>> import numpy as np, hifigemm.numpy as hnp
    >>> hnp.einsum(
    ...     "bij,bij->b", np.ones((2, 3, 4)), np.ones((2, 3, 4)), accuracy="correct"
    ... )
    array([12., 12.])
    """
    products = Products(accuracy, scheme, engine, workspace, return_report)
    subscripts, array_likes = _split(operands)
    arrays = products.numbered("operand", array_likes)
    text = as_text(subscripts, len(arrays))
    shapes = tuple([shape_of(x) for x in arrays])
    steps = by_shapes(_steps, text, shapes, _hashable(optimize))

    # Arrays of one dtype, in which no label comes twice.
    values: list[Any] = products.promoted(arrays)
    for i, axes in steps.diagonals:
        values[i] = diagonal(values[i], *axes)

    # The share that each product has of the accuracy.
    num_products = steps.num_products
    products.num_products = num_products
    if num_products > 1 and products.binds_result:
        roundoff = products.roundoff(values[0])
        chain = Chain(
            steps.why_several, (roundoff,) * num_products, (1,) * num_products
        )
        if products.needs_three_factors(chain):
            factors = _three_factors(steps, values)
            if factors is not None:
                value = products.of_three(factors)
                last = steps.contractions[-1][2]
                value = last.arranged(value)
                if steps.order is not None:
                    value = permute(value, steps.order)
                return products.chain(value, out)
        products.begin(chain)

    # Each product is the next value; what it took is not held any longer.
    for i, j, contraction in steps.contractions:
        a = values[i]
        values[i] = None
        if j is None:
            b = ones((), a)
        else:
            b = values[j]
            values[j] = None
        values.append(contraction.apply(products, a, b))
    value = values[-1]
    if steps.order is not None:
        value = permute(value, steps.order)
    return products.chain(value, out)


def _three_factors(steps: _Steps, values: list[Any]) -> ThreeFactors | None:
    """The factors of two contractions, of which the second takes the first one's result
    beside an operand; None for other steps.
    """
    if len(steps.contractions) != 2 or len(values) != 3:
        return None
    (i, j, first), (p, q, second) = steps.contractions
    if j is None or q is None:
        return None
    a = first.left.apply(values[i])
    b = first.right.apply(values[j])
    if p == 3:
        # Terms are numbered from 0 on: 3 is the first product.
        c = second.right.apply(values[q])
        return ThreeFactors(a, b, c, lambda x: second.left.apply(first.arranged(x)))
    c = second.left.apply(values[p])
    return ThreeFactors(
        a, b, c.mT, lambda x: second.right.apply(first.arranged(x)).mT, True
    )


class _Steps(NamedTuple):
    """What einsum does with operands of these shapes."""

    diagonals: tuple[tuple[int, tuple[int, int]], ...]
    """Operands, by numbers, and two of their axes, which become one, the last."""
    contractions: tuple[tuple[int, int | None, Contraction], ...]
    """Products, with the numbers of the terms that they take. Terms are numbered from 0
    on, and each product is the next term. None stands for a product with 1, by which
    the last term is summed over labels that the result lacks.
    """
    order: tuple[int, ...] | None
    """The axes of the last term in the order of the result; None: they stand in it."""
    num_products: int
    why_several: str
    """What takes several products, for a message."""


def _steps(text: str, shapes: tuple[Shape, ...], optimize: Any) -> _Steps:
    """The steps for operands of these shapes.

    Raises ValueError, TypeError: as of `parse`, and an order that is none.
    """
    labels, labels_out = parse(text, shapes)
    diagonals: list[tuple[int, tuple[int, int]]] = []
    terms: list[Lengths] = []
    for i, (labels_x, shape) in enumerate(zip(labels, shapes)):
        lengths = dict(zip(labels_x, shape))
        while len(set(labels_x)) < len(labels_x):
            axes, labels_x = _without_repeat(labels_x)
            diagonals.append((i, axes))
        terms.append({label: lengths[label] for label in labels_x})
    contractions = _contractions(terms, labels_out, _path(terms, labels_out, optimize))

    order = None
    if not contractions:
        order = order_of(tuple(terms[0]), labels_out)
    num_products = sum([x.num_products for _, _, x in contractions])
    why = f"einsum of {len(shapes)} operands"
    if len(contractions) == 1:
        why = contractions[0][2].why_several
    return _Steps(tuple(diagonals), tuple(contractions), order, num_products, why)


def _contractions(
    terms: Sequence[Lengths], labels_out: Labels, path: list[tuple[int, ...]]
) -> list[tuple[int, int | None, Contraction]]:
    """The contractions of `_Steps`."""
    terms = list(terms)
    contractions: list[tuple[int, int | None, Contraction]] = []

    # Each step of the path takes some of the numbers and appends that of their product.
    numbers = list(range(len(terms)))
    for positions in path:
        last_to_first = [numbers.pop(i) for i in sorted(positions, reverse=True)]
        number = last_to_first.pop()
        while last_to_first:
            other = last_to_first.pop()
            later_terms = numbers + last_to_first
            remaining = labels_out
            if later_terms:
                # Labels of the result or of a term that comes later are not summed yet.
                later = set(labels_out)
                for k in later_terms:
                    later.update(terms[k])
                labels = dict.fromkeys([*terms[number], *terms[other]])
                remaining = tuple([label for label in labels if label in later])
            contraction = Contraction.of(terms[number], terms[other], remaining)
            contractions.append((number, other, contraction))
            terms.append(contraction.lengths_out)
            number = len(terms) - 1
        numbers.append(number)

    # One operand is summed over labels that the result lacks.
    (last,) = numbers
    if len(terms[last]) > len(labels_out):
        contractions.append((last, None, Contraction.of(terms[last], {}, labels_out)))
    return contractions


def _without_repeat(labels: Labels) -> tuple[tuple[int, int], Labels]:
    """Two axes with one label, and the labels where they are one axis, the last."""
    label = next(label for label in labels if labels.count(label) > 1)
    axis = labels.index(label)
    repeated_axis = labels.index(label, axis + 1)
    labels_before = labels[:axis] + labels[axis + 1 : repeated_axis]
    labels = (*labels_before, *labels[repeated_axis + 1 :], label)
    return (axis, repeated_axis), labels


def _split(
    operands: Sequence[object],
) -> tuple[str | list[object], Sequence[object]]:
    """The subscripts, a string or lists of labels, and the operands of `einsum`."""
    if not operands:
        raise ValueError(
            "einsum takes subscripts and at least one operand, 0 arguments are given"
        )
    if isinstance(operands[0], str):
        return operands[0], operands[1:]
    # Operands and lists of labels in turn; a list at the end is that of the result.
    even = len(operands) // 2 * 2
    sublists = [*operands[1::2], *operands[even:]]
    return sublists, operands[:even:2]


def _hashable(optimize: Any) -> Any:
    """The order of the products as a key may hold it."""
    if optimize is True or optimize is False:
        # For True NumPy takes this order too. A key would not tell them from 1 and 0.
        return "greedy"
    if isinstance(optimize, list) and optimize[:1] == ["einsum_path"]:
        return tuple(optimize)
    return optimize


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
    if isinstance(optimize, tuple) and optimize[:1] == ("einsum_path",):
        optimize = list(optimize)
    path, _ = np.einsum_path(*operands, list(out), optimize=optimize)
    return path[1:]


_path_of_numpy._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result
