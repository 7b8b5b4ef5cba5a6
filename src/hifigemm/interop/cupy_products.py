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

from hifigemm.interop import drop_in
from hifigemm.interop.summary import Sightings, Summary
from hifigemm.model.accuracy import Accuracy
from hifigemm.operands.operands import shapes_of
from hifigemm.running.products import product_of_numbers
from hifigemm.schemes import Scheme

_LEVELS = {"f": "fp32", "d": "fp64", "F": "fp32", "D": "fp64"}
"""The level of each dtype, at which native products are accepted."""
_LEAST_SIZE = 128
"""Size below which products at the level of their dtype are CuPy's own: they take longer
to launch than to multiply.
"""
_open: ContextVar[tuple[_Scope, ...]] = ContextVar(
    "scopes of hifigemm.cupy", default=()
)
_LOCK = threading.Lock()
_num_open = 0
_functions_of_cupy: dict[str, Any] = {}
"""The functions of CuPy by their names in `_REPLACEMENTS`."""
_attributes: dict[str, Any] = {}
"""The attributes that are put back in the end: None where a class has the method of its
base.
"""


class emulate(drop_in.emulate):
    """Compute CuPy's own products to an accuracy: a context manager and a decorator.

    It reaches ``@``, `matmul`, `dot`, `ndarray.dot`, `tensordot`, `inner`, `vdot`,
    `einsum` and `linalg.matrix_power`, for arrays of float32, float64, complex64 and
    complex128. A scope applies to its thread. Scopes nest, and the inner one applies.
    Within a scope, ``emulate(scheme="native")`` leaves products to CuPy.

    Parameters
    ----------
    accuracy, scheme, workspace
        As for `hifigemm.matmul`, for each product.
    min_size : int, optional
        Leave products with m n k < ``min_size**3``, for each matrix of a stack, to
        CuPy. The default is 0, or 128 if scheme is "auto" and the accuracy is None or
        the level of the dtype, for which native products are accepted.
    strict : bool
        True: raise an error at the end of a scope in which CuPy multiplied nothing.

    Raises
    ------
    PlanError
        An invalid accuracy, scheme or size.
    ImportError
        PyTorch is not installed; products of CuPy arrays need it.
    AccuracyError
        With `strict`, see there. It never replaces another exception.

    Warns
    -----
    UserWarning
        A scope without `strict` ends without an exception, and CuPy multiplied nothing
        in it.

    Notes
    -----
    CuPy itself still computes products of other dtypes, of subclasses of its array and
    of empty arrays, and calls of `matmul` with options other than `out`. It also raises
    the errors of invalid calls.

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
            # The outer scope has left these products to the inner one, so it saw them.
            for outer in _open_scopes()[-1:]:
                outer.sightings.has_product = True

    def _is_of_thread(self, scope: _Scope) -> bool:
        return scope in _open_scopes()

    def _least_size(self, level: str) -> int:
        """The size below which products of this level are CuPy's own."""
        if self._min_size is not None:
            return self._min_size
        is_native_enough = self._options["accuracy"] in (None, level)
        if is_native_enough and self._options["scheme"] == "auto":
            return _LEAST_SIZE
        return 0


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
        is_first = _num_open == 0
        _num_open += change
        if is_first:
            for owner, name, function in _REPLACEMENTS:
                _functions_of_cupy[name] = getattr(owner, name)
                _attributes[name] = vars(owner).get(name)
                setattr(owner, name, function)
        elif _num_open == 0:
            for owner, name, _ in _REPLACEMENTS:
                if _attributes[name] is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, _attributes[name])


class _CupyProduct(NamedTuple):
    """A product that CuPy is asked for, m x k by k x n for each matrix of a stack."""

    m: int
    n: int
    k: int
    shape: tuple[int, ...]  # of the result
    out: Any
    # a function of nothing that returns A and B, whose product has the entries of the
    # result
    factors: Callable[[], tuple[Any, Any]]


def _read_matmul(a: Any, b: Any, out: Any = None) -> _CupyProduct | None:
    """A call of matmul; None for shapes that do not fit."""
    try:
        shape = shapes_of(a.shape, b.shape).result
    except ValueError:
        return None
    m = a.shape[-2] if a.ndim > 1 else 1
    n = b.shape[-1] if b.ndim > 1 else 1
    return _CupyProduct(m, n, a.shape[-1], shape, out, lambda: (a, b))


def _read_dot(a: Any, b: Any, out: Any = None) -> _CupyProduct | None:
    """A call of dot; None for shapes that do not fit, and an `out` that CuPy refuses."""
    k = a.shape[-1]
    is_vector = b.ndim == 1
    rows_of_b = b.shape[0] if is_vector else b.shape[-2]
    if k != rows_of_b:
        return None
    if type(out) is cupy.ndarray and not out.flags.c_contiguous:
        return None

    # All axes of A but the last one are rows, all of B but the one before are columns.
    row_shape = a.shape[:-1]
    column_shape = () if is_vector else b.shape[:-2] + b.shape[-1:]

    def factors() -> tuple[Any, Any]:
        terms_first = b if is_vector else cupy.moveaxis(b, -2, 0)
        return a.reshape(-1, k), terms_first.reshape(k, -1)

    m = math.prod(row_shape)
    n = math.prod(column_shape)
    return _CupyProduct(m, n, k, row_shape + column_shape, out, factors)


def _read_tensordot(
    a: Any, b: Any, out: Any, n: int, m: int, k: int, shape: Sequence[int]
) -> _CupyProduct:
    """The transpose of a by b, whose first axes are summed; n rows and m columns."""
    # CuPy's n are our rows, its m our columns.
    return _CupyProduct(
        m=n,
        n=m,
        k=k,
        shape=tuple(shape),
        out=out,
        factors=lambda: (a.reshape(k, n).T, b.reshape(k, m)),
    )


def _is_served(x: Any) -> bool:
    """True for operands whose products a scope makes."""
    return (
        type(x) is cupy.ndarray
        and x.dtype.char in _LEVELS
        and x.dtype.isnative
        and x.size > 0
        and x.ndim > 0
    )


def _product(scope: emulate, call: _CupyProduct, a: Any, b: Any) -> Any:
    """The product that a scope makes, in the `out` of the call if there is one; None
    where the scope leaves the product to CuPy.
    """
    dtype = np.result_type(a.dtype, b.dtype)
    device = a.device.id
    size = scope._least_size(_LEVELS[dtype.char])
    if call.m * call.n * call.k < size**3 or b.device.id != device:
        return None

    # CuPy has its own words for an `out` that does not fit.
    out = call.out
    if out is not None:
        if type(out) is not cupy.ndarray or out.device.id != device:
            return None
        if out.dtype != dtype or out.shape != call.shape:
            return None

    x, y = call.factors()
    values = product_of_numbers(x, y, **scope._options).reshape(call.shape)
    if out is None:
        return values
    out[...] = values
    return out


def _replacement(
    name: str, read: Callable[..., _CupyProduct | None]
) -> Callable[..., Any]:
    """The function that replaces one of CuPy's while a scope is open somewhere."""

    def function(a: Any, b: Any, *arguments: Any, **options: Any) -> Any:
        function_of_cupy = _functions_of_cupy[name]
        scopes = _open_scopes()
        if not scopes:
            return function_of_cupy(a, b, *arguments, **options)
        scope = scopes[-1]
        scope.sightings.has_product = True
        if not scope.owner._hands_on and _is_served(a) and _is_served(b):
            call = read(a, b, *arguments, **options)
            product = None if call is None else _product(scope.owner, call, a, b)
            if product is not None:
                return product
        return function_of_cupy(a, b, *arguments, **options)

    return function


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (cupy.ndarray, "__matmul__", _replacement("__matmul__", _read_matmul)),
    (_core, "matmul", _replacement("matmul", _read_matmul)),
    (cupy.ndarray, "dot", _replacement("dot", _read_dot)),
    (_core, "tensordot_core", _replacement("tensordot_core", _read_tensordot)),
)
