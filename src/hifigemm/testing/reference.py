"""The judge: exact and correctly rounded products of any finite floating-point
matrices, and exact errors.

The judge shares no code with the library: it sees operands and results only. Operands
are float16, float32, float64, complex64 or complex128. Shapes follow ``numpy.matmul``
(vectors, matrices, stacks with broadcasting) unless a function says otherwise.

A complex product is judged in its real embedding: re = Re A Re B - Im A Im B is one
exact sum, and its |A||B| is |Re A||Re B| + |Im A||Im B|; im likewise.

The norms of errors follow [VLVJ23] doi:10.1145/3624062.3624084 and [OY22]
doi:10.1177/10943420221090256.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .exact import (
    Backend,
    ExactMatrix,
    Excess,
    components,
    excesses,
    integer_product,
    integer_rows,
    ratio,
)

_TYPES = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
"""Types of entries that are judged."""


def exact_product(
    a: ArrayLike, b: ArrayLike, *, backend: Backend | None = None
) -> ExactMatrix:
    """Return A B of finite matrices without rounding, from Python integers or, if it is
    installed, by python-flint.

    Parameters
    ----------
    a, b : array_like
        Finite matrices (m, k) and (k, n) of float16, float32, float64, complex64 or
        complex128.
    backend : None, "flint" or "python"
        Multiplies the integers; None takes python-flint if it is installed.

    Returns
    -------
    ExactMatrix

    Raises
    ------
    TypeError, ValueError
        Other dtypes, non-finite entries, or shapes other than (m, k) and (k, n).

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import exact_product
    >>> exact_product(a, b).fraction(0, 0)[0]
    Fraction(1, 1)
    """
    return ExactProduct(a, b, backend=backend).value


def correctly_rounded(
    a: ArrayLike, b: ArrayLike, dtype: DTypeLike | None = None
) -> NDArray[Any]:
    """Return A B with every real component rounded once: to nearest, ties to even;
    subnormals kept; overflow to Inf.

    An exact zero is +0; a negative value that underflows is -0. float32 is rounded
    once, never through float64.

    Parameters
    ----------
    a, b : array_like
        As for `numpy.matmul`: vectors, matrices, stacks; finite, of float16, float32,
        float64, complex64 or complex128.
    dtype : dtype, optional
        The dtype of the result; by default the one that the operands promote to.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import correctly_rounded
    >>> correctly_rounded(a, b)
    array([[1.]])
    """
    a = _operand(a)
    b = _operand(b)
    dtype = np.result_type(a, b) if dtype is None else np.dtype(dtype)
    lefts, rights, shape = _stacks(a, b)
    products = []
    for left, right in zip(lefts, rights, strict=True):
        exact = ExactProduct(left, right, dtype)
        products.append(exact.value.round(dtype))
    return np.array(products, dtype).reshape(shape)


def exact_difference(c: ArrayLike, a: ArrayLike, b: ArrayLike) -> NDArray[Any]:
    """Return C - A B of finite matrices, evaluated exactly and then rounded once to
    float64 (complex128).

    Parameters
    ----------
    c : array_like
        A finite matrix (m, n).
    a, b : array_like
        Finite matrices (m, k) and (k, n) of float16, float32, float64, complex64 or
        complex128.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import exact_difference
    >>> exact_difference(a @ b, a, b)
    array([[-1.]])
    """
    a = _operand(a)
    b = _operand(b)
    c = _operand(c)
    return ExactProduct(a, b, c.dtype).value.subtracted_from(c)


def componentwise_error(
    c: ArrayLike, a: ArrayLike, b: ArrayLike, *, rounding: bool = False
) -> float:
    """Return max |C - A B| / (|A||B|) over all real components, evaluated exactly and
    rounded once at the end.

    0/0 counts as 0 and x/0 as Inf. A NaN in C counts as Inf. An infinity in C counts as
    the finite value that rounds to it and is nearest to the exact one, so a correct
    overflow has error 0.

    Parameters
    ----------
    c : array_like
        The result that is judged.
    a, b : array_like
        As for `numpy.matmul`: vectors, matrices, stacks; finite, of float16, float32,
        float64, complex64 or complex128.
    rounding : bool
        True: first subtract max(u |A B|, half the smallest subnormal number) of the
        dtype of C, the largest error of the last rounding. For an exact test of a
        promise use `meets_promise`.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import componentwise_error
    >>> componentwise_error(a @ b, a, b) < 2.0**-53
    True
    """
    errors = [product.error(x, rounding=rounding) for x, product in _judged(c, a, b)]
    return max(errors, default=0.0)


def meets_promise(
    c: ArrayLike, a: ArrayLike, b: ArrayLike, r: float
) -> NDArray[np.bool_]:
    """Tell for each entry whether |C - A B| <= r |A||B| + max(u |A B|, half the
    smallest subnormal) holds exactly.

    The dtype of C decides u and the smallest subnormal. An infinity in C meets the
    promise if a value within r |A||B| of the exact one rounds to it; a NaN never does.
    A complex entry meets the promise if both its components do.

    Parameters
    ----------
    c : array_like
        The result that is judged.
    a, b : array_like
        As for `numpy.matmul`: vectors, matrices, stacks; finite, of float16, float32,
        float64, complex64 or complex128.
    r : float
        The promise, 0 or more.

    Returns
    -------
    array of bool, with the shape of c

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import meets_promise
    >>> meets_promise(a @ b, a, b, 1e-12), meets_promise(a @ b, a, b, 1e-20)
    (array([[ True]]), array([[False]]))
    """
    is_met = [product.meets(x, r) for x, product in _judged(c, a, b)]
    return np.array(is_met, bool).reshape(np.shape(c))


def forward_errors(
    c: ArrayLike, a: ArrayLike, b: ArrayLike, *, reference: ArrayLike | None = None
) -> dict[str, float]:
    """Return norm(C - A B) / (norm(A) norm(B)) in the three entrywise norms of
    [VLVJ23].

    The norms treat a matrix as one long vector: "1" is the sum of all magnitudes, "2"
    the Frobenius norm, "inf" the largest magnitude. They are not the operator norms
    with these names.

    Parameters
    ----------
    c : array_like
        A finite matrix (m, n).
    a, b : array_like
        Finite matrices (m, k) and (k, n) of float16, float32, float64, complex64 or
        complex128.
    reference : array_like, optional
        Compare C with it instead of the exact A B.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import forward_errors
    >>> sorted(forward_errors(a @ b, a, b))
    ['1', '2', 'inf']
    """
    if reference is None:
        difference = exact_difference(c, a, b)
    else:
        difference = _wide(c) - _wide(reference)
    norms_of_a = _entrywise_norms(a)
    norms_of_b = _entrywise_norms(b)
    errors = {}
    for name, norm in _entrywise_norms(difference).items():
        relative = norm / (norms_of_a[name] * norms_of_b[name]) if norm else 0.0
        errors[name] = float(relative)
    return errors


def relative_residual(c: ArrayLike, reference: ArrayLike) -> float:
    """Return ||C - reference||_F / ||reference||_F, as in [OY22], where the reference
    is the product in FP64.

    Parameters
    ----------
    c, reference : array_like
        Two matrices of one shape.

    Examples
    --------
    >>> from hifigemm.testing import relative_residual
    >>> relative_residual([[3.0, 4.5]], [[3.0, 4.0]])
    0.1
    """
    error = _entrywise_norms(_wide(c) - _wide(reference))["2"]
    return float(error / _entrywise_norms(reference)["2"]) if error else 0.0


class ExactProduct:
    """The exact A B and |A||B| of two finite matrices, to judge any number of results.

    `value` is A B as an `ExactMatrix`.

    Parameters
    ----------
    a, b : array_like
        Finite matrices (m, k) and (k, n) of float16, float32, float64, complex64 or
        complex128.
    dtype : dtype, optional
        The dtype of the results; needed if it is complex and the operands are real.
    backend : None, "flint" or "python"
        Multiplies the integers; None takes python-flint if it is installed.

    Raises
    ------
    TypeError, ValueError
        Other dtypes, non-finite entries, or shapes other than (m, k) and (k, n).

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import ExactProduct, judge
    >>> a = np.array([[1.0, 2.0**-60]])
    >>> exact = ExactProduct(a, a.T)
    >>> judge(a @ a.T, exact, bound=0.0).share_correct
    1.0
    """

    def __init__(
        self,
        a: ArrayLike,
        b: ArrayLike,
        dtype: DTypeLike | None = None,
        backend: Backend | None = None,
    ) -> None:
        a = _operand(a)
        b = _operand(b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(
                f"expected shapes (m, k) and (k, n), got {a.shape} and {b.shape}"
            )
        self.a = a
        self.b = b
        dtypes = [a.dtype, b.dtype, *([] if dtype is None else [np.dtype(dtype)])]
        is_complex = np.result_type(*dtypes).kind == "c"

        # The parts of complex operands stand side by side and share their exponents.
        left = np.hstack([a.real, a.imag]) if is_complex else a
        right = np.vstack([b.real, b.imag]) if is_complex else b
        self._left, row_exponent = integer_rows(left)
        columns, col_exponent = integer_rows(right.T)
        self._rights = [columns.T]
        if is_complex:
            real, imag = np.vsplit(columns.T, 2)
            self._rights = [np.vstack([real, -imag]), np.vstack([imag, real])]

        parts = [integer_product(self._left, right, backend) for right in self._rights]
        imag_part = parts[1] if is_complex else None
        self.value = ExactMatrix(parts[0], imag_part, row_exponent, col_exponent)

    @cached_property
    def rounded(self) -> NDArray[Any]:
        """The value rounded once to the promoted dtype of the operands."""
        return self.value.round(np.result_type(self.a, self.b))

    @cached_property
    def sizes(self) -> list[NDArray[Any]]:
        """|A||B| of each real component, in the integers of the value."""
        return [integer_product(abs(self._left), abs(right)) for right in self._rights]

    def error(
        self, c: NDArray[Any], *, rounding: bool = False, relative: bool = False
    ) -> float:
        """Return max |C - AB| / (|A||B|), or / |AB| if `relative`. `rounding` first
        subtracts the largest error of the last rounding.
        """
        sizes = [abs(part) for part in self.value.parts] if relative else self.sizes
        largest = 0.0
        for component in self._excesses(c, sizes, rounding):
            largest = max(largest, max(map(ratio, component), default=0.0))
        return largest

    def meets(self, c: NDArray[Any], r: float) -> NDArray[np.bool_]:
        """Tell for each entry whether it keeps the promise r, as `meets_promise` does;
        r may be infinite.
        """
        if math.isinf(r):
            return np.ones(c.shape, bool)
        numerator, denominator = float(r).as_integer_ratio()
        is_met = []
        for component in self._excesses(c, self.sizes, rounding=True):
            is_met.append([x * denominator <= y * numerator for x, y in component])
        return np.all(np.array(is_met, bool), axis=0).reshape(c.shape)

    def _excesses(
        self, c: NDArray[Any], sizes: list[NDArray[Any]], rounding: bool
    ) -> Iterator[Iterator[Excess]]:
        """The excesses of each real component."""
        for part, integers, size in zip(
            components(c), self.value.parts, sizes, strict=True
        ):
            yield excesses(part, integers, size, self.value.exponent, rounding)


@dataclass(frozen=True)
class Judgement:
    """The comparison of a result with the exact product.

    Attributes
    ----------
    error, relative_error : float
        max |C - AB| / (|A||B|), and max |C - AB| / |AB|.
    normwise_error : float
        ||C - AB|| / (||A|| ||B||), Frobenius norms.
    share_correct : float
        The share of entries that are the exact value rounded once; a zero needs the
        right sign.
    kept : bool
        True if |C - AB| <= r |A||B| + u |AB| in every entry, for the reported bound r.
    """

    error: float
    relative_error: float
    normwise_error: float
    share_correct: float
    kept: bool


def judge(c: NDArray[Any], exact: ExactProduct, bound: float) -> Judgement:
    """Return the errors of a real result, and whether it keeps the bound r of its
    report.

    Parameters
    ----------
    c : array
        A real matrix (m, n).
    exact : ExactProduct
        The exact product to compare with.
    bound : float
        r, 0 or more.

    Returns
    -------
    Judgement

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> from hifigemm.testing import ExactProduct, judge
    >>> judge(a @ b, ExactProduct(a, b), bound=1e-12).kept
    True
    """
    normwise_error = np.inf
    if np.isfinite(c).all():
        normwise_error = forward_errors(c, exact.a, exact.b)["2"]
    share_correct = 1.0
    if c.size:
        has_sign = np.signbit(c) == np.signbit(exact.rounded)
        share_correct = float(np.mean((c == exact.rounded) & has_sign))
    return Judgement(
        error=exact.error(c),
        relative_error=exact.error(c, relative=True),
        normwise_error=normwise_error,
        share_correct=share_correct,
        kept=bool(exact.meets(c, bound).all()),
    )


def _judged(
    c: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Iterator[tuple[NDArray[Any], ExactProduct]]:
    """Each matrix of a result with the product that it should be."""
    a = _operand(a)
    b = _operand(b)
    c = _operand(c, finite=False)
    lefts, rights, shape = _stacks(a, b)
    if c.dtype.kind != "c" and np.result_type(a, b).kind == "c":
        raise TypeError(f"a result of dtype {c.dtype} cannot hold a complex product")
    if c.shape != shape:
        raise ValueError(f"the result has shape {c.shape}, the product {shape}")
    results = c.reshape(len(lefts), lefts.shape[1], rights.shape[2])
    for result, left, right in zip(results, lefts, rights, strict=True):
        yield result, ExactProduct(left, right, c.dtype)


def _operand(x: ArrayLike, *, finite: bool = True) -> NDArray[Any]:
    x = np.asarray(x)
    if x.dtype.type not in _TYPES:
        raise TypeError(
            f"a reference takes float16, float32, float64, complex64 or complex128, not {x.dtype}"
        )
    if finite and not np.isfinite(x).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(x))} of {x.size} entries are not finite"
        )
    return x


def _stacks(
    a: NDArray[Any], b: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...]]:
    """Return both operands as stacks of as many matrices, and the shape of their
    product.
    """
    if 0 in (a.ndim, b.ndim):
        raise ValueError(
            "a matrix product needs at least one dimension in each operand"
        )
    # Rows and columns of the product: a vector has none, and becomes a matrix.
    rows = a.shape[-2:-1]
    cols = b.shape[-1:] if b.ndim > 1 else ()
    a = np.atleast_2d(a)
    b = b[:, None] if b.ndim == 1 else b
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"inner dimensions differ: {a.shape} and {b.shape}")

    # Both in one stack, with a single axis for it.
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, stack + a.shape[-2:])
    b = np.broadcast_to(b, stack + b.shape[-2:])
    lefts = a.reshape(math.prod(stack), *a.shape[-2:])
    rights = b.reshape(math.prod(stack), *b.shape[-2:])
    return lefts, rights, (*stack, *rows, *cols)


def _wide(x: ArrayLike) -> NDArray[Any]:
    """At least extended precision where the platform has it: C and a good reference
    differ in their last bits only.
    """
    x = np.asarray(x)
    return x.astype(np.result_type(x, np.longdouble))


def _entrywise_norms(x: ArrayLike) -> dict[str, Any]:
    magnitude = abs(_wide(x))
    largest = magnitude.max(initial=0)
    scaled = magnitude / largest if 0 < largest < np.inf else magnitude
    return {
        "1": magnitude.sum(),
        "2": largest * np.sqrt((scaled**2).sum()),
        "inf": largest,
    }
