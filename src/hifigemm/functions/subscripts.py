"""A label for each axis, from the subscripts of einsum: text or lists of numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from string import ascii_letters, ascii_lowercase, ascii_uppercase

Labels = tuple[Hashable, ...]
"""Labels of the axes of an array, in their order."""

_SYMBOLS = ascii_uppercase + ascii_lowercase
"""Labels of the numbers 0 to 51. Without an output, the axes of the result have this
order.
"""


def as_text(subscripts: str | Sequence[object], count: int) -> str:
    """Subscripts as text, from lists of numbers for operands and perhaps the result.

    Raises ValueError, TypeError: what is no label.
    """
    if isinstance(subscripts, str):
        return subscripts
    texts = []
    for sublist in subscripts:
        if isinstance(sublist, str) or not isinstance(sublist, Iterable):
            raise TypeError(
                f"{sublist!r} is not a list of labels; expected subscripts first, or a list after each operand"
            )
        texts.append("".join(map(_symbol, sublist)))
    inputs = ",".join(texts[:count])
    return f"{inputs}->{texts[count]}" if len(texts) > count else inputs


def parse(text: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels]:
    """Labels of the operands of these shapes, and labels of the result.

    Labels are letters. The axes of an ellipsis are numbers below 0, so that the
    ellipses of all operands end together.

    Raises ValueError: subscripts that are malformed or do not fit the shapes.
    """
    inputs, arrow, output = text.replace(" ", "").partition("->")

    # The operands: letters, and numbers for the axes of an ellipsis.
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"{text!r} has {len(terms)} terms, for {len(shapes)} operands")
    labels = [_labels(term, len(shape), text) for term, shape in zip(terms, shapes)]
    all_labels = [label for labels_x in labels for label in labels_x]
    numbers = [label for label in all_labels if isinstance(label, int)]
    letters = [label for label in all_labels if isinstance(label, str)]
    ellipsis = tuple(range(min([0, *numbers]), 0))

    # The result: the output, or the ellipsis and all letters that come once.
    if arrow:
        labels_out = _output_labels(output, ellipsis, text)
    else:
        unique = [x for x in set(letters) if letters.count(x) == 1]
        labels_out = (*ellipsis, *sorted(unique))

    for label in labels_out:
        count = labels_out.count(label)
        if count > 1:
            raise ValueError(f"{text!r}: the output has {label!r} {count} times")
        if label not in all_labels:
            raise ValueError(
                f"{text!r}: no operand has the label {label!r} of the output"
            )
    _check_lengths(labels, shapes, text)
    return labels, labels_out


def _output_labels(output: str, ellipsis: Labels, text: str) -> Labels:
    """The labels of the output, for operands with this ellipsis."""
    if ellipsis and "..." not in output:
        raise ValueError(
            f"{text!r}: the output lacks the ellipsis, of {len(ellipsis)} axes, of the operands"
        )
    ndim = len(ellipsis) + len(output.replace("...", ""))
    return _labels(output, ndim, text)


def _labels(term: str, ndim: int, text: str) -> Labels:
    """The labels of one term, for an operand of `ndim` axes."""
    before, dots, after = term.partition("...")
    for letter in before + after:
        if letter not in ascii_letters:
            raise ValueError(
                f"{text!r}: {letter!r} is not a label; letters, one ellipsis a term, commas and one -> are"
            )
    named = len(before) + len(after)
    if named > ndim or (named < ndim and not dots):
        raise ValueError(
            f"{text!r}: the term {term!r} has {named} labels, its operand {ndim} axes"
        )
    return (*before, *range(named - ndim, 0), *after)


def _symbol(label: object) -> str:
    """The letter of a number, or the dots of an ellipsis."""
    if label is Ellipsis:
        return "..."
    if isinstance(label, bool) or not hasattr(label, "__index__"):
        raise TypeError(
            f"{label!r} is not a label; expected integers from 0 to 51, or an ellipsis"
        )
    number = label.__index__()
    if not 0 <= number < len(_SYMBOLS):
        raise ValueError(f"label {number} is not within 0 to {len(_SYMBOLS) - 1}")
    return _SYMBOLS[number]


def _check_lengths(
    labels: Sequence[Labels], shapes: Sequence[tuple[int, ...]], text: str
) -> None:
    """Raise ValueError if a label stands for axes of different lengths.

    Axes of length 1 broadcast, unless both are axes of one operand.
    """
    lengths: dict[Hashable, int] = {}
    for i, (labels_x, shape) in enumerate(zip(labels, shapes)):
        for axis, (label, length) in enumerate(zip(labels_x, shape)):
            # The same label within one operand.
            axis_before = labels_x.index(label)
            if shape[axis_before] != length:
                raise ValueError(
                    f"{text!r}: axes {axis_before} and {axis} of operand {i} have the label {label!r}, "
                    f"and lengths {shape[axis_before]} and {length}"
                )

            # The same label in an operand before this one.
            length_before = lengths.get(label, 1)
            if length != 1 and length_before not in (1, length):
                name = f"label {label!r}"
                if isinstance(label, int):
                    name = "an axis of the ellipsis"
                raise ValueError(
                    f"{text!r}: {name} has length {length} in operand {i}, {length_before} before"
                )
            lengths[label] = length_before if length == 1 else length
