"""What proofs compute with, for arrays of the host and for those on a device: products,
approximate inverses and factors, numbers read from an array.

Idea
    `numerics` runs on device arrays as it stands, and so do the bounds of this package.
    Here is what has another name there. Inverses and factors are trusted in nothing, so
    it does not matter who makes them. Sums that bounds rest on are float64 sums of
    products of entries on a device, which no setting of a library replaces by others.
What is small
    An operation on a few thousand numbers takes the host some microseconds, and a launch
    of a kernel takes it twenty. So small systems are solved by the host, wherever they
    lie; their device makes the approximate inverse of more than a hundred rows. A larger
    matrix stays on its device, while a few right sides and their bounds are on the host;
    a product of both moves the vectors there and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from hifigemm.base.exceptions import PlanError, VerificationError
from hifigemm.engines import core, threads
from hifigemm.engines.arrays import is_on_host as is_on_host
from hifigemm.engines.arrays import to_device_of as to_device_of
from hifigemm.engines.arrays import to_host as to_host
from hifigemm.linalg.block_inverse import SMALLEST, inverse_by_blocks
from hifigemm.linalg.halved_inverse import SMALLEST_OF_HALVES, inverse_by_halves
from hifigemm.linalg.upward import UNIT, above, moduli
from hifigemm.model.accuracy import Accuracy
from hifigemm.numerics import magnitudes, subnormals
from hifigemm.numerics.bits import LEAST, Array, lowest_bit
from hifigemm.numerics.equilibration import (
    Equilibrated,
    MatrixInScale,
    equilibrated,
    matrix_in_scale,
)
from hifigemm.numerics.magnitudes import FEW
from hifigemm.running import products
from hifigemm.running.gemm import gemm_of_numbers

P = ParamSpec("P")
R = TypeVar("R")

MOST_ON_HOST = 2**15
"""Entries of a matrix, or of right sides, that are moved from a device to the host."""
MOST_INVERTED_BY_HOST = 100
"""Rows of a matrix that came from a device; a larger one goes back there for its inverse."""
_device_of_operands: ContextVar[str] = ContextVar("device_of_operands", default="cpu")
LEAST_LENGTH = 2.0**-500
"""More than the root of the sum that squares of a vector lose by underflow."""
FEW_SIDES = 3
"""Right sides up to which residuals that are rounded once cost no more than close sums."""
_LONG = 1e9
"""Terms from which on Ctrl-C does not wait for a product or an inverse of the host, which
take 30 ms or more.
"""


def beside(like: Array, x: Array) -> Array:
    """x in the memory in which another array lies."""
    if is_on_host(like):
        return to_host(x)
    return to_device_of(like, x) if is_on_host(x) else x


def is_small(x: Array) -> bool:
    """True if the host is quicker than a device with this matrix, or with each of a
    stack.
    """
    return math.prod(x.shape[-2:]) <= MOST_ON_HOST


def where_quick(x: Array) -> Array:
    """A matrix on the host, if it is small."""
    return to_host(x) if is_small(x) else x


def all_where_quick(*arrays: Array) -> tuple[Array, ...]:
    """Matrices of one device, or stacks, on the host, if all of them are small."""
    return tuple(map(to_host, arrays)) if all(map(is_small, arrays)) else arrays


@contextmanager
def operands_on(device: str) -> Iterator[None]:
    """A context in which operands came from a device, also those that were moved to the
    host.
    """
    token = _device_of_operands.set(device)
    try:
        yield
    finally:
        _device_of_operands.reset(token)


def moving_vectors(function: Callable[P, R]) -> Callable[P, R]:
    """A function of a matrix and of vectors, which takes vectors of the host beside a
    matrix on a device; its results are then on the host.
    """

    def moved(x: Any, move: Callable[[Array], Array]) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)([moved(part, move) for part in x])
        is_array = isinstance(x, np.ndarray) or not is_on_host(x)
        return move(x) if is_array else x

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        a, *others = cast(Any, args)
        is_mixed = not is_on_host(a) and isinstance(others[0], np.ndarray)
        if not is_mixed:
            return function(*args, **kwargs)
        on_device = [moved(x, lambda part: to_device_of(a, part)) for x in others]
        result = cast(Any, function)(a, *on_device, **kwargs)
        return cast(R, moved(result, to_host))

    return call


def system_in_scale(a: Array, b: Array) -> Equilibrated | None:
    """`numerics.equilibration.equilibrated` of real systems: by the compiled core, or by
    kernels of a GPU.
    """
    if is_on_host(a):
        return core.override(equilibrated)(a, b)

    def in_scale(a: Array, are_others_moderate: Any) -> MatrixInScale | None:
        # Right sides may be on the host
        if not bool(are_others_moderate):
            return None
        found = _matrix_in_scale(a)
        if found is None:
            return None
        return MatrixInScale(found.a, beside(b, found.rows), beside(b, found.columns))

    return equilibrated(a, b, in_scale)


def _matrix_in_scale(a: Array) -> MatrixInScale | None:
    """`numerics.equilibration.matrix_in_scale` of a device array; the exponents may be on
    the host.
    """
    if len(a) == 0 or not has_triton(a):
        return matrix_in_scale(a, True)
    from hifigemm.kernels.vectors import equilibration

    found = equilibration.matrix_in_scale(_tensor(a))
    if found is None:
        return None
    in_scale, rows, columns = found
    return MatrixInScale(_array(in_scale), rows, columns)


@moving_vectors
def matmul(a: Array, b: Array) -> Array:
    """A B for matrices of n terms, in float64 or complex128.

    As after n roundings of each term, or 2 n of each real one of complex numbers: the
    error is at most gamma(n) |A||B|, and n of the least numbers where products
    underflow.
    """
    if is_on_host(a):
        if a.shape[0] * a.shape[1] * b.shape[1] < _LONG:
            return subnormals.matmul(a, b)
        return threads.interruptibly(subnormals.matmul, a, b)
    terms = a.shape[1]
    if b.shape[1] <= FEW:
        product = _by_kernel(a, b, of_magnitudes=False)
        if product is not None:
            return product
        columns = [(a * column).sum(axis=1) for column in b.T]
        return np.stack(columns, axis=1) if columns else a[:, :0] * 0.0
    if a.shape[0] <= FEW:
        rows = [(row.reshape(-1, 1) * b).sum(axis=0) for row in a]
        return np.stack(rows, axis=0) if rows else b[:0] * 0.0

    # (n + 1) u |A||B| with the rounding of the product itself
    is_complex = "c" in (a.dtype.kind, b.dtype.kind)
    roundings = 2 * terms if is_complex else terms
    return product_of_numbers(a, b, roundings * UNIT)


def exact_square(c: Array) -> Array:
    """C^H C, exact where all sums of products of its entries are float64 numbers."""
    if is_on_host(c):
        return matmul(c.conj().T, c)
    return cast(Array, product_of_numbers(c.conj().T, c, "correct"))


@moving_vectors
def magnitude_product(a: Array, v: Array) -> Array:
    """|A| V for V >= 0 of few columns, in float64, with the roundings of `matmul` and
    those of `moduli`.
    """
    if v.shape[1] <= FEW and a.dtype.kind != "c":
        if is_on_host(a):
            return core.override(magnitudes.magnitude_product)(a, v)
        product = _by_kernel(a, v, of_magnitudes=True)
        if product is not None:
            return product
    return matmul(moduli(a), v)


def roundings(a: Array, v: Array) -> int:
    """How many a term of `matmul` of these passes at most: as many as there are terms, and
    fewer by a kernel that adds several sums of a row side by side.
    """
    if _has_kernel(a, v):
        from hifigemm.kernels.products.thin_products import roundings as of_kernel

        return of_kernel(a.shape[1])
    return a.shape[1]


def _has_kernel(a: Array, v: Array) -> bool:
    """True if a kernel of a GPU multiplies these in one reading of A."""
    is_real = a.dtype.kind == v.dtype.kind == "f"
    return is_real and v.shape[1] <= FEW and has_triton(a)


def has_triton(a: Array) -> bool:
    """True for an array on a GPU that has kernels."""
    if is_on_host(a):
        return False
    return _tensor(a).is_cuda and find_spec("triton") is not None


def _by_kernel(a: Array, v: Array, of_magnitudes: bool) -> Array | None:
    """A V, or |A| V, of device arrays by a kernel; None where there is none."""
    if not _has_kernel(a, v):
        return None
    from hifigemm.kernels.products.thin_products import thin_product

    return _array(thin_product(_tensor(a), _tensor(v), of_magnitudes=of_magnitudes))


@moving_vectors
def quick_residual(
    a: Array, b: Array, words: list[Array], sum_words: int = 2
) -> list[Array] | None:
    """q and e with |b - A (x1 + ...) - q| <= u |q| + e: of several right sides by close sums
    of the host, in two or three words, or by a kernel in two; None where there is neither.

    A sum of t partial ones of the kernel errs by at most (3 t + 10) u^2 times the sum of
    magnitudes, and each product by the least number where it underflows.
    """
    if is_on_host(a):
        return _residual_by_close_sums(a, b, words, sum_words)
    if sum_words > 2 or not _has_kernel(a, b):
        return None
    from hifigemm.kernels.products.thin_products import residual

    torch = _torch()
    columns = []
    for k in range(b.shape[1]):
        words_of_side = torch.stack([_tensor(word)[:, k] for word in words])
        q, sizes, partial_sums = residual(_tensor(a), words_of_side, _tensor(b)[:, k])
        share = (3 * partial_sums + 10) * UNIT * UNIT
        underflows = (a.shape[1] * len(words) + 2) * LEAST
        errors = above(share * _array(sizes), partial_sums + 4, underflows)
        columns.append((_array(q), errors))
    return [np.stack(side, axis=1) for side in zip(*columns)]


def _residual_by_close_sums(
    a: Array, b: Array, words: list[Array], sum_words: int
) -> list[Array] | None:
    """`quick_residual` of arrays of the host; None where close sums do not serve them.

    They leave 2 u |q| + r |a_i| |x_j| + eta: e has one u |q| of these, and the rest with 8
    roundings more than the norms have. It is 0 where the residual is known to be zero.
    """
    if b.shape[1] <= FEW_SIDES:
        return None
    copies = a
    x = words[0]
    if len(words) > 1:
        copies = np.concatenate([a] * len(words), axis=1)
        x = np.concatenate(words)
    sums = close_sums(copies, x, b, sum_words)
    if sums is None:
        return None
    q, share = sums
    return [q, _errors_of_close_sums(copies, x, b, [q], share)]


def close_gap(inverse: Array, a: Array) -> tuple[list[Array], Array] | None:
    """I - R A in two words by close sums in three, up to u times the second word and errors;
    None where these do not serve.
    """
    unit = identity(len(a), like=a)
    words = _residual_by_core(inverse, a, unit, "close pair in three")
    if words is None:
        return None
    share = core.error_of_close_sums(len(a), 3)
    return list(words), _errors_of_close_sums(inverse, a, unit, words, share)


def _errors_of_close_sums(
    a: Array, x: Array, b: Array, words: Sequence[Array], share: float
) -> Array:
    """What close sums of B - A X in words err by, but for u times the last word; zero in
    columns that are known to be zero.
    """
    errors = (share * lengths(a, 1)) * lengths(x, 0)
    errors = above(errors + UNIT * moduli(words[-1]), 8, 2.0 * LEAST)

    # All terms are multiples of a unit: a sum that is closer to zero than that is zero
    zeros = np.flatnonzero((words[0] == 0.0).all(axis=0))
    if len(zeros):
        units = lowest_bit(a, 1) + lowest_bit(x[:, zeros], 0)
        units = np.minimum(units, lowest_bit(b[:, zeros], 0))
        is_zero = errors[:, zeros] < np.ldexp(1.0, units)
        errors[:, zeros] = np.where(is_zero, 0.0, errors[:, zeros])
    return errors


def lengths(x: Array, axis: int) -> Array:
    """At least the Euclidean norms of rows or columns."""
    sizes = moduli(x)
    squares = (sizes * sizes).sum(axis=axis, keepdims=True)
    return above(np.sqrt(squares), x.shape[axis] + 8, LEAST_LENGTH)


@moving_vectors
def product_of_numbers(
    a: Array, b: Array, accuracy: Accuracy = None, result: Any = "array"
) -> Any:
    """`hifigemm.matmul` of two matrices, to an accuracy or as a pair."""
    if is_on_host(a):
        return products.product_of_numbers(a, b, accuracy, result=result)
    product = products.product_of_numbers(
        _tensor(a), _tensor(b), accuracy, result=result
    )
    if result == "pair":
        return tuple(_array(word) for word in product)
    return _array(product)


@moving_vectors
def correct_residual(a: Array, x: Array, b: Array) -> Array:
    """B - A X, every real component rounded once."""
    if is_on_host(a):
        sums = _residual_by_core(a, x, b, "nearest")
        if sums is not None:
            return sums[0]
        difference = gemm_of_numbers(a, x, b, alpha=-1.0, beta=1.0, accuracy="correct")
        return cast(Array, difference)
    difference = gemm_of_numbers(
        _tensor(a), _tensor(x), _tensor(b), alpha=-1.0, beta=1.0, accuracy="correct"
    )
    return _array(difference)


def close_sums(
    a: Array, x: Array, b: Array, words: int = 2
) -> tuple[Array, float] | None:
    """(q, r) with |q - (B - A X)| <= 2 u |q| + r |a_i| |x_j| + eta in every entry, with the
    norms of a row of A and of a column of X.

    For real arrays of the host, by sums of two words in a quarter of the time of
    `correct_residual`, or of three words; None where the core is not there, or A or X is
    not finite.
    """
    if not is_on_host(a):
        return None
    sums = _residual_by_core(a, x, b, "close" if words == 2 else "close in three")
    if sums is None:
        return None
    return sums[0], core.error_of_close_sums(len(x), words)


@moving_vectors
def pair_residual(a: Array, x: Array, b: Array) -> list[Array]:
    """B - A X as a pair: the nearest numbers, and those nearest to what they leave."""
    if is_on_host(a):
        sums = _residual_by_core(a, x, b, "pair")
        if sums is not None:
            return list(sums)
    left = np.concatenate([a, b], axis=1)
    right = np.concatenate([-x, identity(b.shape[1], like=b)])
    return list(product_of_numbers(left, right, result="pair"))


def _residual_by_core(a: Array, x: Array, b: Array, kind: str) -> Any:
    """B - A X of real arrays by the compiled core, if it is there; B is finite."""
    if not a.dtype.kind == x.dtype.kind == b.dtype.kind == "f":
        return None
    return core.sums(a, -x, b, kind)


def identity(n: int, like: Array) -> Array:
    """The n x n identity in float64."""
    eye = np.zeros(n * n, like=like)
    eye[:: n + 1] = 1.0
    return eye.reshape(n, n)


def diagonal(a: Array) -> Array:
    """The diagonal of a square matrix, a view of one that is contiguous."""
    return a.reshape(-1)[:: len(a) + 1]


def inverse(a: Array) -> Array:
    """The inverse as the library computes it.

    Raises numpy.linalg.LinAlgError: a pivot of zero, on the host; on a device entries
    become Inf or NaN. Of a matrix that came from a device, a device makes it.
    """
    if is_on_host(a):
        device = _device_of_operands.get()
        if device != "cpu" and len(a) > MOST_INVERTED_BY_HOST:
            tensor = _torch().from_numpy(np.ascontiguousarray(a)).to(device)
            inverse: Array = _torch().linalg.inv_ex(tensor).inverse.cpu().numpy()
            return inverse
        if len(a) ** 3 < _LONG:
            return np.linalg.inv(a)
        return threads.interruptibly(np.linalg.inv, a)
    tensor = _tensor(a)
    if _is_large(tensor, SMALLEST_OF_HALVES):
        by_halves = inverse_by_halves(tensor)
        if by_halves is not None:
            return _array(by_halves)
    if _is_large(tensor, SMALLEST):
        return _array(inverse_by_blocks(tensor))
    return _array(_torch().linalg.inv_ex(tensor).inverse)


def _is_large(tensor: Any, rows: int) -> bool:
    """True for matrices on a GPU of so many rows, or more."""
    return bool(tensor.is_cuda) and len(tensor) >= rows


def thin_qr(a: Array) -> tuple[Array, Array]:
    """Q with orthonormal columns and an upper triangular U, A being close to Q U."""
    if is_on_host(a):
        q, u = np.linalg.qr(a)
        return q, u
    q, u = _torch().linalg.qr(_tensor(a))
    return _array(q), _array(u)


def cholesky(a: Array) -> Array:
    """A lower triangular L, A being close to L L^H.

    Raises numpy.linalg.LinAlgError: there is none.
    """
    if is_on_host(a):
        return np.linalg.cholesky(a)
    factor, failure = _torch().linalg.cholesky_ex(_tensor(a))
    if int(failure):
        raise np.linalg.LinAlgError("a leading minor is not positive")
    return _array(factor)


def eigenvectors(a: Array) -> tuple[Array, Array]:
    """The eigenvalues of a Hermitian matrix in ascending order, and a matrix of its
    eigenvectors, not proven.

    Raises VerificationError: the library finds none.
    """
    if is_on_host(a):
        try:
            values, vectors = np.linalg.eigh(a)
        except np.linalg.LinAlgError as error:
            raise VerificationError(f"numpy.linalg.eigh failed: {error}") from error
        return values, vectors
    torch = _torch()
    try:
        values, vectors = torch.linalg.eigh(_tensor(a))
    except torch.linalg.LinAlgError as error:
        raise VerificationError(f"torch.linalg.eigh failed: {error}") from error
    return _array(values), _array(vectors)


def singular_vectors(a: Array) -> tuple[Array, Array, Array]:
    """(U, s, V) with A close to U diag(s) V^H for m x n A, m >= n: the singular values in
    descending order, U m x n and V n x n, not proven.

    Raises VerificationError: the library finds none.
    """
    if is_on_host(a):
        try:
            left, values, right = np.linalg.svd(a, full_matrices=False)
        except np.linalg.LinAlgError as error:
            raise VerificationError(f"numpy.linalg.svd failed: {error}") from error
        return left, values, right.conj().T
    torch = _torch()
    try:
        left, values, right = torch.linalg.svd(_tensor(a), full_matrices=False)
    except torch.linalg.LinAlgError as error:
        raise VerificationError(f"torch.linalg.svd failed: {error}") from error
    return _array(left), _array(values), _array(right.mH)


def least_eigenvector(a: Array) -> tuple[float, Array]:
    """The least eigenvalue of a Hermitian matrix, and its vector, n x 1, not proven."""
    values, vectors = eigenvectors(a)
    return float(values[0]), vectors[:, :1]


def lu_of_device(a: Array) -> tuple[Array, Array, Array]:
    """`factors.pivoted_factors` of a device array."""
    n = len(a)
    torch = _torch()
    packed, pivots, _ = torch.linalg.lu_factor_ex(_tensor(a))
    lower = torch.tril(packed, -1)
    lower.diagonal().fill_(1.0)

    # Row i was exchanged with row pivots[i], counted from 1, for one i after the other
    order = np.arange(n)
    for i, pivot in enumerate(pivots.tolist()):
        order[[i, pivot - 1]] = order[[pivot - 1, i]]
    return _array(lower), _array(torch.triu(packed)), order


def numbers(*arrays: Any) -> list[float]:
    """The only entry of each of some arrays of one device, with one wait for it."""
    if is_on_host(arrays[0]):
        return [float(x) for x in arrays]
    tensors = [_tensor(x).double().reshape(()) for x in arrays]
    return list(_torch().stack(tensors).tolist())


def check_finite(**operands: Array) -> None:
    """Raise VerificationError for Inf and NaN."""
    for name, x in operands.items():
        bad = x.size - int(np.count_nonzero(np.isfinite(x)))
        if bad:
            raise VerificationError(
                f"{bad} of {x.size} entries of {name} are Inf or NaN: nothing can be proven"
            )


def check_not_capturing() -> None:
    """Raise PlanError while the current stream of the device is captured."""
    cuda = _torch().cuda
    if cuda.is_available() and cuda.is_current_stream_capturing():
        raise PlanError(
            "the host reads each proof before it goes on, which a CUDA graph cannot capture; solve before or after the "
            "capture"
        )


def _torch() -> Any:
    import torch

    return torch


def launched(
    function: Callable[..., Any], *arrays: Array, **options: Any
) -> tuple[Array, ...]:
    """The arrays that a launch function returns for contiguous device arrays."""
    from hifigemm.kernels.runtime.recording import run_recorded

    tensors = [_tensor(x).contiguous() for x in arrays]
    results = run_recorded(function, *tensors, **options)
    return tuple(map(_array, results))


def _tensor(x: Array) -> Any:
    """The tensor of a device array."""
    from hifigemm.engines.device_array import unwrap

    return unwrap(x)


def _array(tensor: Any) -> Array:
    """The device array of a tensor."""
    from hifigemm.engines.device_array import wrap

    return cast(Array, wrap(tensor))
