"""From arrays of a library to stacks of matrices in float64 or complex128, and back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from numbers import Number
from typing import Any, Generic, TypeVar

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.libraries import Library, library_of
from hifigemm.linalg.arrays import (
    beside,
    check_not_capturing,
    is_small,
    operands_on,
    to_device_of,
    to_host,
)
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands.exact_operands import one_word
from hifigemm.operands.fraction_operands import in_fractions
from hifigemm.operands.operands import (
    Prepared,
    as_operand,
    converted,
    has_broadcast_shape,
    result_dtype,
)

Answer = TypeVar("Answer")
"""What a function says of one matrix."""


@dataclass(frozen=True)
class WideOperands:
    """Operands of one call, exact in float64 or complex128, or as fractions."""

    library: Library
    arrays: list[Array]
    dtype: DType
    """Of the result: what NumPy promotes the operands to, float32 at least."""
    home: Array
    """An array where the library has its own: results go there."""

    @property
    def are_fractions(self) -> bool:
        """True if arrays hold fractions of Python, and floats for Inf and NaN."""
        return self.arrays[0].dtype.kind == "O"

    @property
    def real(self) -> DType:
        """The dtype of radii: float32 or float64."""
        return np.finfo(self.dtype).dtype


def wide_operands(
    stay: Callable[..., bool] | None = None, /, **named_operands: Any
) -> WideOperands:
    """The named operands as arrays of float64 or complex128; small ones of a device are
    moved to the host unless `stay` says that they stay.

    Raises TypeError: prepared operands, dtypes that `matmul` does not take. ValueError:
    integers that float64 does not hold.
    """
    library = library_of(*named_operands.items())
    with library.active():
        arrays = _any_arrays(library, named_operands)
        return _converted(library, named_operands, arrays, stay)


def exact_operands(
    stay: Callable[..., bool] | None = None, /, **named_operands: Any
) -> WideOperands:
    """The named operands as `wide_operands` has them; where float64 does not hold an entry
    of real ones on the host, all of them as fractions, for results in float64.

    Small operands of a device go to the host unless `stay` says that they stay.

    Raises TypeError and ValueError as `wide_operands`.
    """
    library = library_of(*named_operands.items())
    with library.active():
        arrays = _any_arrays(library, named_operands)
        named_arrays = dict(zip(named_operands, arrays))
        fractions = in_fractions(named_arrays) if library.on_host else None
        if fractions is not None:
            return WideOperands(library, fractions, np.dtype(float), np.zeros(1))
        return _converted(library, named_operands, arrays, stay)


def data_radius(
    library: Library, name: str, radius: Any, data_name: str, data: Array
) -> Array:
    """A radius for every entry of an operand, in float64; zeros for None.

    Raises ValueError: entries that are negative, Inf or NaN, that float64 does not hold,
    a shape that does not broadcast to that of the data. TypeError: complex numbers, and
    what `wide_operands` refuses. PlanError while a graph of CUDA is captured.
    """
    if not library.on_host:
        check_not_capturing()  # the host reads whether all are radii
    with library.active():
        if radius is None:
            zeros = to_device_of(data, np.zeros(1))
            return np.broadcast_to(zeros, data.shape)

        # A number serves arrays of every library
        if isinstance(radius, (Number, np.generic)):
            one_entry = np.asarray(radius).reshape(1)
            array = to_device_of(data, _real(one_word(one_entry, name), name))
        else:
            has_no_axis = getattr(radius, "ndim", None) == 0
            one_or_more = radius.reshape(1) if has_no_axis else radius
            array = beside(data, _real(_array(one_or_more, name, library), name))
        _check_radii(array, name)
        if not has_broadcast_shape(array.shape, data.shape):
            raise ValueError(
                f"{name} has shape {array.shape}, which does not broadcast to {data.shape}, the shape of {data_name}"
            )
        return np.broadcast_to(array, data.shape)


def _real(x: Array, name: str) -> Array:
    """Integers or real numbers in float64, exactly."""
    if x.dtype.kind not in "iub" and result_dtype(x.dtype).kind == "c":
        raise TypeError(f"{name} has dtype {x.dtype}; expected real numbers")
    return converted(x, np.dtype(float))


def _check_radii(radius: Array, name: str) -> None:
    """Raise ValueError for entries that are no radii."""
    is_good = (radius >= 0.0) & np.isfinite(radius)
    if is_good.all():
        return
    negative = int(np.count_nonzero(radius < 0.0))
    others = int(np.count_nonzero(~np.isfinite(radius) & ~(radius < 0.0)))
    raise ValueError(
        f"{name} has {negative} negative entries and {others} that are Inf or NaN, of {radius.size}; expected finite "
        "numbers of 0 or more"
    )


def _any_arrays(library: Library, named_operands: Mapping[str, object]) -> list[Array]:
    """Operands as arrays of numbers or of objects."""
    return [_any_array(x, name, library) for name, x in named_operands.items()]


def _converted(
    library: Library,
    names: Iterable[str],
    any_arrays: list[Array],
    stay: Callable[..., bool] | None = None,
) -> WideOperands:
    """Operands of one library in the dtype that they have in common."""
    arrays = [one_word(x, name) for x, name in zip(any_arrays, names)]

    # Integers and bools count as float64, as they do for numpy.linalg
    dtypes = [np.dtype(float) if x.dtype.kind in "iub" else x.dtype for x in arrays]
    dtype = result_dtype(*dtypes)
    wide = np.dtype(complex if dtype.kind == "c" else float)
    wide_arrays = [converted(x, wide) for x in arrays]
    home = wide_arrays[0]
    are_small = not library.on_host and all(map(is_small, wide_arrays))
    if are_small and not (stay and stay(*wide_arrays)):
        check_not_capturing()
        wide_arrays = [to_host(x) for x in wide_arrays]
    return WideOperands(library, wide_arrays, dtype, home)


def _array(x: object, name: str, library: Library) -> Array:
    """x as an array with NumPy's interface."""
    # Lists of integers beyond int64 come as objects.
    return one_word(_any_array(x, name, library), name)


def _any_array(x: object, name: str, library: Library) -> Array:
    """x as an array of numbers or of objects."""
    array = as_operand(x, name, library)
    if isinstance(array, Prepared):
        raise TypeError(f"{name} is a prepared operand; pass the array itself")
    return array


def check_square(a: Array) -> None:
    """Raise LinAlgError unless a is a matrix with as many rows as columns, or a stack
    of such.
    """
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError(
            f"a has shape {a.shape}; expected square matrices (..., n, n)"
        )


def check_hermitian(a: Array) -> None:
    """Raise ValueError unless a matrix is its own conjugate transpose."""
    differs = a != a.conj().T
    if differs.any():
        i, j = np.argwhere(to_host(differs))[0].tolist()
        raise ValueError(
            f"{int(np.count_nonzero(differs))} entries differ from the conjugate transpose, the first at ({i}, {j}): "
            f"{a[i, j].item()} and {a[j, i].item()}"
        )


class Answers(Generic[Answer]):
    """What a function says of the matrices of a stack, or of those with some indices, or
    of one matrix, and the errors of those of which nothing could be proven.
    """

    def __init__(
        self,
        stack: tuple[int, ...],
        answer_of: Callable[[tuple[int, ...]], Answer],
        indices: Iterable[tuple[int, ...]] | None = None,
    ) -> None:
        self.stack = stack
        self.values: dict[tuple[int, ...], Answer] = {}
        self.errors: dict[tuple[int, ...], VerificationError] = {}
        for index in np.ndindex(stack) if indices is None else indices:
            try:
                self.values[index] = answer_of(index)
            except VerificationError as error:
                self.errors[index] = error

    def array(self, name: str, default: Any, dtype: Any) -> Array:
        """An attribute of all answers."""
        result: Array = np.full(self.stack, default, dtype)
        for index, value in self.values.items():
            result[index] = getattr(value, name)
        return result

    def check(self, solution: Callable[[], object]) -> None:
        """Raise the error of one matrix, or that of a stack with what was proven as its
        attribute `solution`.
        """
        if not self.errors:
            return
        index, first = next(iter(self.errors.items()))
        if not self.stack:
            raise first
        count = math.prod(self.stack)
        failure = VerificationError(
            f"{len(self.errors)} of {count} systems failed; {index}: {first}"
        )
        failure.solution = solution()
        factors = [error.proven_factor for error in self.errors.values()]
        known_factors = [factor for factor in factors if factor is not None]
        if len(known_factors) == len(factors):
            failure.proven_factor = min(known_factors)
        raise failure from first


@contextmanager
def verifying(library: Library) -> Iterator[None]:
    """A context in which bounds hold and NumPy does not warn; for tensors a
    VerificationError leaves it as an error of PyTorch too.

    Raises PlanError while a graph of CUDA is captured.
    """
    if not library.on_host:
        check_not_capturing()
    try:
        with (
            np.errstate(all="ignore"),
            ieee_arithmetic(),
            library.active(),
            operands_on(library.device),
        ):
            yield
    except VerificationError as error:
        if library.name != "torch":
            raise
        error_of_torch = _error_of_torch()(*error.args)
        error_of_torch.solution = error.solution
        error_of_torch.proven_factor = error.proven_factor
        raise error_of_torch from error.__cause__


@lru_cache(maxsize=1)
def _error_of_torch() -> type[VerificationError]:
    """A VerificationError that handlers of torch.linalg.LinAlgError catch."""
    torch = sys.modules["torch"]
    bases = (VerificationError, torch.linalg.LinAlgError)
    return type(
        "VerificationError", bases, {"__module__": VerificationError.__module__}
    )


def in_dtype(
    x: Array, radius: Array, dtype: DType, nearest: Array | None = None
) -> tuple[Array, Array]:
    """x, or the array in its place that is `nearest` to the solution, in a dtype, and
    its radius with the distance of the two, rounded upwards.
    """
    if nearest is None and x.dtype == dtype:
        return x, radius
    result = (x if nearest is None else nearest).astype(dtype)
    distance = moduli(result.astype(x.dtype) - x)
    is_same = distance == 0.0
    radius = np.where(is_same, radius, above(radius + distance, 2))
    rounded = radius.astype(np.finfo(dtype).dtype)
    is_below = rounded.astype(np.float64) < radius
    upward = np.nextafter(rounded, rounded.dtype.type(np.inf))
    return result, np.where(is_below, upward, rounded)


def beyond_range(x: Array, radius: Array, what: str) -> str:
    """How many numbers are beyond the range of their dtype, as messages begin with it; ""
    for none.
    """
    is_finite = np.isfinite(x) & np.isfinite(radius)
    if is_finite.all():
        return ""
    count = x.size - int(np.count_nonzero(is_finite))
    return f"{count} of {x.size} {what} lie beyond the range of {x.dtype}, or their bounds do"


def as_native(operands: WideOperands, x: Array) -> Any:
    """A result as an array of the operands' library."""
    x = beside(operands.home, x)
    return operands.library.to_native(np.ascontiguousarray(x, like=x))
