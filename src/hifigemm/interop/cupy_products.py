"""The products of CuPy in a scope, made to an accuracy.

All of them end in four attributes of CuPy, which are replaced while a scope is open
somewhere in the process:

    ndarray.__matmul__       ``@``
    _core.matmul             cupy.matmul, and what calls it: einsum, matrix_power, numpy.matmul
    ndarray.dot              cupy.dot
    _core.tensordot_core     tensordot, inner, vdot

A scope holds in its thread. What no scope of the thread asks for, and what it leaves
alone, goes to CuPy's function.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy import _core

from hifigemm.accuracy import Accuracy
from hifigemm.interop import drop_in, kernels
from hifigemm.interop.summary import Sightings, Summary
from hifigemm.operands import shapes_of
from hifigemm.schemes import Scheme

_LEVELS = {"f": "fp32", "d": "fp64", "F": "fp32", "D": "fp64"}
"""The level of a dtype, which native products are accepted for."""
_LEAST_SIZE = 128
"""Of products at the level of their dtype: those of smaller matrices take longer to
launch than to make.
"""
_open: ContextVar[tuple[_Scope, ...]] = ContextVar(
    "scopes of hifigemm.cupy", default=()
)
_LOCK = threading.Lock()
_num_open = 0
_own: dict[str, Any] = {}
"""The functions of CuPy by their names in `_REPLACEMENTS`."""
_kept: dict[str, Any] = {}
"""What stood in the places themselves: None where a class has a method of its base."""


class emulate(drop_in.emulate):
    """Make the products of CuPy inside to an accuracy: a context, and a decorator of
    functions.

    It reaches ``@``, `matmul`, `dot`, `ndarray.dot`, `tensordot`, `inner`, `vdot`,
    `einsum` and `linalg.matrix_power`, for arrays of float32, float64, complex64 and
    complex128. Scopes nest; the inner one holds. A scope holds in its thread.
    ``emulate(scheme="native")`` leaves products alone within another scope.

    Parameters
    ----------
    accuracy, scheme, workspace
        As in `hifigemm.matmul`, for each product.
    min_size : int, optional
        Products with m n k below min_size**3 are CuPy's own, for each matrix of a
        stack. By default 0, but 128 where scheme is "auto" and the accuracy that of the
        dtype, which native products are accepted for.

    strict : bool
        True for an error at the end of a scope in which CuPy multiplied nothing.

    Raises
    ------
    PlanError
        An accuracy, scheme or size that is none.
    ImportError
        PyTorch is not installed, by which products of CuPy arrays are made.
    AccuracyError
        With `strict`, as said there; never in the place of another exception.

    Warns
    -----
    UserWarning
        A scope without `strict` ends, by no exception, and CuPy multiplied nothing in
        it.

    Notes
    -----
    CuPy goes on making products of other dtypes and of subclasses of its array, empty
    ones, calls of `matmul` that say more than `out`, and errors in a call.

    Examples
    --------
    >>> import cupy, hifigemm.cupy as hc  # doctest: +SKIP
    >>> with hc.emulate("correct"):  # doctest: +SKIP
    ...     c = a @ b
    """

    def __init__(
        self,
        accuracy: Accuracy = None,
        scheme: str | Scheme = "auto",
        *,
        min_size: int | None = None,
        workspace: int | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__(
            accuracy, scheme, min_size=min_size, workspace=workspace, strict=strict
        )
        self._options: dict[str, Any] = {
            "accuracy": accuracy,
            "scheme": scheme,
            "workspace": workspace,
        }
        self._min_size = min_size

    def _open_scope(self, summary: Summary | None) -> _Scope:
        scope = _Scope(self)
        _open.set((*_open_scopes(), scope))
        _count(1)
        return scope

    def _close_scope(self, scope: _Scope) -> None:
        scope.is_open = False
        _open.set(_open_scopes())
        _count(-1)
        if scope.sightings.has_product:
            # which has seen what it left to the inner one
            for outer in _open_scopes()[-1:]:
                outer.sightings.has_product = True

    def _is_of_thread(self, scope: _Scope) -> bool:
        return scope in _open_scopes()

    def _least_size(self, level: str) -> int:
        """The size below which products of this level are CuPy's own."""
        if self._min_size is not None:
            return self._min_size
        return (
            _LEAST_SIZE
            if self._options["accuracy"] in (None, level)
            and self._options["scheme"] == "auto"
            else 0
        )


@dataclass(eq=False)
class _Scope:
    """A scope, open until it is closed, by whichever thread."""

    owner: emulate
    sightings: Sightings = field(default_factory=lambda: Sightings("CuPy"))
    is_open: bool = True


def _open_scopes() -> tuple[_Scope, ...]:
    """The scopes of this thread, the innermost one last."""
    return tuple(scope for scope in _open.get() if scope.is_open)


def _count(change: int) -> None:
    """Put the functions of this module in their places when the first scope opens, take
    them away after the last.
    """
    global _num_open
    with _LOCK:
        before, _num_open = _num_open, _num_open + change
        if before == 0:
            for place, name, function in _REPLACEMENTS:
                _own[name], _kept[name] = getattr(place, name), vars(place).get(name)
                setattr(place, name, function)
        elif _num_open == 0:
            for place, name, _ in _REPLACEMENTS:
                if _kept[name] is None:
                    delattr(place, name)
                else:
                    setattr(place, name, _kept[name])


class _Call(NamedTuple):
    """A product that CuPy is asked for: of k terms each, m by n of them, for each
    matrix of a stack.
    """

    m: int
    n: int
    k: int
    shape: tuple[int, ...]  # of the result
    out: Any
    # whose product has the entries of the result
    factors: Callable[[], tuple[Any, Any]]


def _read_matmul(a: Any, b: Any, out: Any = None) -> _Call | None:
    try:
        shape = shapes_of(a.shape, b.shape).result
    except ValueError:
        return None
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    return _Call(m, n, a.shape[-1], shape, out, lambda: (a, b))


def _read_dot(a: Any, b: Any, out: Any = None) -> _Call | None:
    k, of_b = a.shape[-1], b.shape[:-2] + b.shape[-1:] if b.ndim > 1 else ()
    if k != b.shape[-2 if b.ndim > 1 else 0] or (
        type(out) is cupy.ndarray and not out.flags.c_contiguous
    ):
        return None

    def factors() -> tuple[Any, Any]:
        return a.reshape(-1, k), (cupy.moveaxis(b, -2, 0) if b.ndim > 1 else b).reshape(
            k, -1
        )

    return _Call(
        math.prod(a.shape[:-1]), math.prod(of_b), k, a.shape[:-1] + of_b, out, factors
    )


def _read_tensordot(
    a: Any, b: Any, out: Any, n: int, m: int, k: int, shape: Sequence[int]
) -> _Call:
    """The transpose of a by b, whose first axes are summed; n rows and m columns."""
    return _Call(
        n, m, k, tuple(shape), out, lambda: (a.reshape(k, n).T, b.reshape(k, m))
    )


def _is_looked_at(x: Any) -> bool:
    return (
        type(x) is cupy.ndarray
        and x.dtype.char in _LEVELS
        and x.dtype.isnative
        and x.size > 0
        and x.ndim > 0
    )


def _made(scope: emulate, call: _Call, a: Any, b: Any) -> Any:
    """The product that a scope makes, in `out` where that is given; None where it
    leaves the product to CuPy.
    """
    dtype, out = np.result_type(a.dtype, b.dtype), call.out
    if (
        call.m * call.n * call.k < scope._least_size(_LEVELS[dtype.char]) ** 3
        or a.device.id != b.device.id
    ):
        return None
    if out is None:
        return kernels.matmul(*call.factors(), **scope._options).reshape(call.shape)
    if type(out) is not cupy.ndarray or (out.dtype, out.shape, out.device.id) != (
        dtype,
        call.shape,
        a.device.id,
    ):
        return None
    out[...] = kernels.matmul(*call.factors(), **scope._options).reshape(call.shape)
    return out


def _replacement(name: str, read: Callable[..., _Call | None]) -> Callable[..., Any]:
    """What stands in the place of a function of CuPy while a scope is open
    somewhere.
    """

    def function(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
        scopes = _open_scopes()
        if scopes:
            scopes[-1].sightings.has_product = True
        if (
            scopes
            and not scopes[-1].owner._hands_on
            and _is_looked_at(a)
            and _is_looked_at(b)
        ):
            call = read(a, b, *rest, **options)
            made = None if call is None else _made(scopes[-1].owner, call, a, b)
            if made is not None:
                return made
        return _own[name](a, b, *rest, **options)

    return function


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = tuple(
    (place, name, _replacement(name, read))
    for place, name, read in (
        (cupy.ndarray, "__matmul__", _read_matmul),
        (_core, "matmul", _read_matmul),
        (cupy.ndarray, "dot", _read_dot),
        (_core, "tensordot_core", _read_tensordot),
    )
)
