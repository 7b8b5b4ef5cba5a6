"""Subscripts of einsum, as text or as lists of numbers, turned into a label for each
axis.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any

Labels = tuple[Hashable, ...]

_SYMBOLS = ascii_uppercase + ascii_lowercase
"""Labels of the numbers 0 to 51, in whose order axes come that no output is given
for.
"""


def parse(
    subscripts: str | Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> tuple[list[Labels], Labels]:
    """Labels of the operands of these shapes, and those of the result.

    Labels are letters; the axes of an ellipsis are numbers below 0, so that those of
    all operands end together.

    Raises ValueError, TypeError: subscripts that are malformed or do not fit the
    shapes.
    """
    text = (
        subscripts if isinstance(subscripts, str) else _as_text(subscripts, len(shapes))
    )
    inputs, arrow, output = text.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"{text!r} has {len(terms)} terms, for {len(shapes)} operands")
    labels = [_labels(term, len(shape), text) for term, shape in zip(terms, shapes)]
    most = max(
        [0, *[-label for own in labels for label in own if isinstance(label, int)]]
    )
    dots = tuple(range(-most, 0))
    if arrow:
        if dots and "..." not in output:
            raise ValueError(
                f"{text!r}: the output lacks the ellipsis, of {most} axes, of the operands"
            )
        result = _labels(output, len(dots) + len(output.replace("...", "")), text)
    else:
        letters = [x for own in labels for x in own if isinstance(x, str)]
        result = (*dots, *sorted(x for x in set(letters) if letters.count(x) == 1))
    for label in result:
        if result.count(label) > 1:
            raise ValueError(
                f"{text!r}: the output has {label!r} {result.count(label)} times"
            )
        if not any(label in own for own in labels):
            raise ValueError(
                f"{text!r}: no operand has the label {label!r} of the output"
            )
    _check_lengths(labels, shapes, text)
    return labels, result


def _labels(term: str, ndim: int, text: str) -> Labels:
    """The labels of one term for an operand of so many axes."""
    before, dots, after = term.partition("...")
    for letter in before + after:
        if letter not in ascii_letters:
            raise ValueError(
                f"{text!r}: {letter!r} is no label; letters, one ellipsis a term, commas and one -> are"
            )
    named = len(before) + len(after)
    if named > ndim or (named < ndim and not dots):
        raise ValueError(
            f"{text!r}: the term {term!r} has {named} labels, its operand {ndim} axes"
        )
    return (*before, *range(named - ndim, 0), *after)


def _as_text(sublists: Sequence[Any], count: int) -> str:
    """Subscripts from lists of numbers, one for each operand and perhaps one for the
    result.
    """
    texts = []
    for sublist in sublists:
        if isinstance(sublist, str) or not isinstance(sublist, Iterable):
            raise TypeError(
                f"{sublist!r} is no list of labels; expected subscripts first, or lists behind operands"
            )
        texts.append("".join(map(_symbol, sublist)))
    return ",".join(texts[:count]) + ("->" + texts[count] if len(texts) > count else "")


def _symbol(label: Any) -> str:
    if label is Ellipsis:
        return "..."
    if isinstance(label, bool) or not hasattr(label, "__index__"):
        raise TypeError(
            f"{label!r} is no label; expected integers from 0 to 51, or an ellipsis"
        )
    number = label.__index__()
    if not 0 <= number < len(_SYMBOLS):
        raise ValueError(f"label {number} is not within 0 to {len(_SYMBOLS) - 1}")
    return _SYMBOLS[number]


def _check_lengths(
    labels: Sequence[Labels], shapes: Sequence[tuple[int, ...]], text: str
) -> None:
    """Raise ValueError where a label stands for axes of different lengths, of which
    only 1 broadcasts.
    """
    lengths: dict[Hashable, int] = {}
    for i, (own, shape) in enumerate(zip(labels, shapes)):
        for at, (label, length) in enumerate(zip(own, shape)):
            first = own.index(label)
            if shape[first] != length:
                raise ValueError(
                    f"{text!r}: axes {first} and {at} of operand {i} have the label {label!r}, "
                    f"and lengths {shape[first]} and {length}"
                )
            known = lengths.get(label, 1)
            if length != 1 and known not in (1, length):
                name = (
                    "an axis of the ellipsis"
                    if isinstance(label, int)
                    else f"label {label!r}"
                )
                raise ValueError(
                    f"{text!r}: {name} has length {length} in operand {i}, {known} before"
                )
            lengths[label] = max(known, length) if 0 not in (known, length) else 0
