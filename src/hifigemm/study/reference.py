"""The judge: exact and correctly rounded products of any finite floating-point matrices, and exact errors.

Shares no code with the library: it sees operands and results only. Operands are float16, float32, float64, complex64 or
complex128; shapes follow ``numpy.matmul`` (vectors, matrices, stacks with broadcasting) except in `exact_product`.

A complex product is judged in its real embedding: re = Re A Re B - Im A Im B is one exact sum, and its |A||B| is
|Re A||Re B| + |Im A||Im B|; im likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .exact import Backend, ExactMatrix, integer_product, integer_rows, integers_and_exponents, round_integers
from .excess import Excess, component_excesses, ratio

__all__ = [
    "ExactMatrix",
    "componentwise_error",
    "correctly_rounded",
    "exact_difference",
    "exact_product",
    "excess_error",
    "meets_promise",
]


def exact_product(a: ArrayLike, b: ArrayLike, *, backend: Backend | None = None) -> ExactMatrix:
    """Return A B without rounding.

    Parameters
    ----------
    a, b : array_like of shapes (m, k) and (k, n)
        Finite, real or complex.
    backend : "flint", "python" or None
        Integer product to use; None takes python-flint where it is installed. The result is the same.

    Raises
    ------
    TypeError, ValueError
        For other dtypes, non-finite entries, shapes that do not fit.
    """
    return _product(_operand(a), _operand(b), backend)


def correctly_rounded(a: ArrayLike, b: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Return A B with every real component rounded once: to nearest, ties to even; subnormals kept; overflow to Inf.

    An exact zero is +0; a negative value that underflows is -0.

    Parameters
    ----------
    a, b : array_like
        Finite; shapes as `numpy.matmul` takes them.
    dtype : dtype, optional
        Of the result; the promoted dtype of the operands by default. float32 is rounded once, never through float64.
    """
    a, b = _operand(a), _operand(b)
    dtype = np.result_type(a, b) if dtype is None else np.dtype(dtype)
    lefts, rights, shape = _stacks(a, b)
    products = [_product(left, right).round(dtype) for left, right in zip(lefts, rights, strict=True)]
    return np.array(products, dtype).reshape(shape)


def exact_difference(c: ArrayLike, a: ArrayLike, b: ArrayLike) -> NDArray[Any]:
    """Return C - A B, evaluated exactly and then rounded once to float64 (complex128). C must be finite."""
    c, a, b = _operand(c), _operand(a), _operand(b)
    lefts, rights, shape = _stacks(a, b)
    is_complex = any(x.dtype.kind == "c" for x in (c, a, b))
    difference = np.zeros((len(lefts), *_core(lefts, rights)), np.complex128 if is_complex else np.float64)
    for target, cs, left, right in zip(difference, _results(c, shape, lefts, rights), lefts, rights, strict=True):
        exact = _product(left, right)
        target.real = _subtract(cs.real, exact.real, exact.exponent)
        if is_complex:
            target.imag = _subtract(
                cs.imag, np.zeros_like(exact.real) if exact.imag is None else exact.imag, exact.exponent
            )
    return difference.reshape(shape)


def componentwise_error(c: ArrayLike, a: ArrayLike, b: ArrayLike) -> float:
    """Return max |C - A B| / (|A||B|) over all real components, exactly evaluated (rounded once, at the end).

    0/0 counts as 0 and x/0 as Inf. A NaN in C counts as Inf. An infinity in C counts as the finite value nearest to the
    exact one that rounds to it (the overflow threshold or beyond), so a correct overflow has error 0.
    """
    return max((ratio(excess) for excess in _excesses(c, a, b, rounding=False)), default=0.0)


def excess_error(c: ArrayLike, a: ArrayLike, b: ArrayLike) -> float:
    """Return the smallest r >= 0 with |C - A B| <= r |A||B| + rounding, all real components taken together.

    rounding = max(u |A B|, half the smallest subnormal), with u and the subnormal of C's dtype: what the last rounding
    to that dtype may cost. Special cases as in `componentwise_error`. The value is rounded to float64; `meets_promise`
    is exact.
    """
    return max((ratio(excess) for excess in _excesses(c, a, b, rounding=True)), default=0.0)


def meets_promise(c: ArrayLike, a: ArrayLike, b: ArrayLike, r: float) -> NDArray[np.bool_]:
    """Tell for each entry whether |C - A B| <= r |A||B| + max(u |A B|, half the smallest subnormal) holds exactly.

    An infinity in C is accepted when a value within r |A||B| of the exact one rounds to it; NaN never is. A complex
    entry meets the promise when both its components do.

    Parameters
    ----------
    c : array_like
        The result to be judged; its dtype decides u and the smallest subnormal.
    a, b : array_like
        The operands.
    r : float
        Finite, nonnegative.

    Returns
    -------
    ndarray of bool, shape of the product
    """
    c, a, b = np.asarray(c), _operand(a), _operand(b)
    numerator, denominator = float(r).as_integer_ratio()
    met = [x * denominator <= y * numerator for x, y in _excesses(c, a, b, rounding=True)]
    components = 2 if c.dtype.kind == "c" else 1
    lefts, rights, shape = _stacks(a, b)
    size = math.prod(_core(lefts, rights))
    return np.array(met, bool).reshape(len(lefts), components, size).all(axis=1).reshape(shape)


def _operand(x: ArrayLike, *, finite: bool = True) -> NDArray[Any]:
    x = np.asarray(x)
    if x.dtype.type not in (np.float16, np.float32, np.float64, np.complex64, np.complex128):
        raise TypeError(f"a reference takes float16, float32, float64, complex64 or complex128, not {x.dtype}")
    if finite and not np.isfinite(x).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(x))} of {x.size} entries are not finite")
    return x


def _stacks(a: NDArray[Any], b: NDArray[Any]) -> tuple[list[NDArray[Any]], list[NDArray[Any]], tuple[int, ...]]:
    """Return the matrices of both broadcast stacks, one by one, and the shape of the stack of products."""
    if 0 in (a.ndim, b.ndim):
        raise ValueError("a matrix product needs at least one dimension in each operand")
    rows = a.shape[-2:-1]
    cols = b.shape[-1:] if b.ndim > 1 else ()
    a, b = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"inner dimensions differ: {a.shape} and {b.shape}")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    lefts, rights = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
    indices = list(np.ndindex(batch))
    return [lefts[i] for i in indices], [rights[i] for i in indices], (*batch, *rows, *cols)


def _core(lefts: list[NDArray[Any]], rights: list[NDArray[Any]]) -> tuple[int, int]:
    return (lefts[0].shape[0], rights[0].shape[1]) if lefts else (0, 0)


def _results(c: NDArray[Any], shape: tuple[int, ...], lefts: list[Any], rights: list[Any]) -> NDArray[Any]:
    if c.shape != shape:
        raise ValueError(f"the result has shape {c.shape}, the product {shape}")
    return c.reshape(len(lefts), *_core(lefts, rights))


def _factors(
    a: NDArray[Any], b: NDArray[Any]
) -> tuple[NDArray[Any], list[NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
    """Return integers (left, rights, row_exponent, col_exponent): each real component of A B is left times a right.

    The parts of complex operands stand side by side and share their exponents: left = [Re A, Im A],
    rights = [Re B; -Im B] and [Im B; Re B].
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"expected shapes (m, k) and (k, n), got {a.shape} and {b.shape}")
    if not (np.iscomplexobj(a) or np.iscomplexobj(b)):
        left, row_exponent = integer_rows(a)
        right, col_exponent = integer_rows(b.T)
        return left, [right.T], row_exponent, col_exponent
    left, row_exponent = integer_rows(np.hstack([a.real, a.imag]))
    right, col_exponent = integer_rows(np.hstack([b.real.T, b.imag.T]))
    real, imag = np.hsplit(right, 2)
    return left, [np.hstack([real, -imag]).T, np.hstack([imag, real]).T], row_exponent, col_exponent


def _product(a: NDArray[Any], b: NDArray[Any], backend: Backend | None = None) -> ExactMatrix:
    left, rights, row_exponent, col_exponent = _factors(a, b)
    real, *imag = (integer_product(left, right, backend) for right in rights)
    return ExactMatrix(real, imag[0] if imag else None, row_exponent, col_exponent)


def _subtract(c: NDArray[Any], integers: NDArray[Any], exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return c - integers * 2**exponent, rounded once to float64."""
    c_integers, c_exponent = integers_and_exponents(c)
    common = np.minimum(c_exponent, exponent)
    aligned = c_integers.astype(object) << (c_exponent - common).astype(object)
    return round_integers(aligned - (integers << (exponent - common).astype(object)), common, np.float64)


def _excesses(c: ArrayLike, a: ArrayLike, b: ArrayLike, *, rounding: bool) -> Iterator[Excess]:
    """Yield the excess of each real component: matrix by matrix, all real parts before all imaginary ones."""
    c, a, b = _operand(c, finite=False), _operand(a), _operand(b)
    lefts, rights, shape = _stacks(a, b)
    is_complex = c.dtype.kind == "c"
    if not is_complex and np.result_type(a, b).kind == "c":
        raise TypeError(f"a result of dtype {c.dtype} cannot hold a complex product")
    for result, a, b in zip(_results(c, shape, lefts, rights), lefts, rights, strict=True):
        left, factors, row_exponent, col_exponent = _factors(a, b)
        exponent = row_exponent[:, None] + col_exponent
        for factor, values in zip(factors, (result.real, result.imag), strict=False):
            exact, size = integer_product(left, factor), integer_product(abs(left), abs(factor))
            yield from component_excesses(values, exact, size, exponent, rounding)
        if is_complex and len(factors) == 1:
            zeros = np.full(exponent.shape, 0, object)
            yield from component_excesses(result.imag, zeros, zeros, exponent, rounding)
