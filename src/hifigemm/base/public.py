"""What `dir`, `help` and errors show of a public module: its public names, signatures
that are read at a glance, and where a name that is missed has its like.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_EINSUM = "hifigemm.numpy.einsum({}, x, accuracy='correct')"
_SUMS = {"sum": _EINSUM.format("'i->'"), "trace": _EINSUM.format("'ii->'")}
"""Functions of NumPy that are one product here, and how it is written."""


def missing(module: str, name: str, hint: str = "") -> AttributeError:
    """The error of a public module that has no such name, with what is meant."""
    if name in _SUMS:
        hint = _SUMS[name]
    question = f"; did you mean {hint}?" if hint else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{question}")


def shown(names: dict[str, Any]) -> Callable[[], list[str]]:
    """The `__dir__` of the module with these globals: the names of its `__all__` alone.

    Public functions get the signature of `without_annotations`.
    """
    for name in names["__all__"]:
        if name in names:
            with_signature(names[name])

    def __dir__() -> list[str]:
        return sorted(names["__all__"])

    return __dir__


def with_signature(public: Any) -> Any:
    """The public object itself; a function with the signature of `without_annotations`."""
    if inspect.isfunction(public):
        public.__signature__ = without_annotations(public)  # type: ignore[attr-defined]
    return public


def without_annotations(function: Callable[..., Any]) -> inspect.Signature:
    """The signature without its annotations.

    They are texts, as of all modules here, which `help` shows as such, 'str | None';
    docstrings say more.
    """
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [x.replace(annotation=empty) for x in signature.parameters.values()]
    return signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
