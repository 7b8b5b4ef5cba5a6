"""Products that JAX differentiates, batches, compiles and shards: two primitives, whose
kernel is a callback.

    D = alpha A B,  dA = alpha dD B^T,  dB = alpha A^T dD,  D' = alpha A' B + alpha A B',

without conjugates, as JAX has them. Every product of a derivative is the same primitive
with the same options.

The operands of `hifigemm_matmul` have one stack in common, (..., m, k) and (..., k, n).
What one of them has in its stack beyond that becomes rows or columns. A gradient is
therefore one product, summed over them and rounded once, and a batch of operands beside
one that is not batched is one product too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from hifigemm.base import settings
from hifigemm.base.formats import FP32, FP64
from hifigemm.differentiable.jax_callbacks import (
    check_not_spread,
    run_by_callback,
    varying,
)
from hifigemm.libraries import AnyArray
from hifigemm.libraries.array_like import kind_of
from hifigemm.model.accuracy import Accuracy, resolve
from hifigemm.numerics.bits import DType
from hifigemm.operands.operands import (
    broadcast_stacks,
    check_addend,
    check_scalars,
    check_transpose,
    result_dtype,
    shapes_of,
)
from hifigemm.running.gemm import gemm_of_numbers
from hifigemm.running.products import product_of_numbers
from hifigemm.running.request import Request
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from jax.core import ShapedArray

_matmul = Primitive("hifigemm_matmul")
_gemm = Primitive("hifigemm_gemm")
_SINGLE = np.dtype(np.float32)

Dimensions = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]
"""As `jax.lax.dot_general` takes them: dimensions of A and B to sum over, and those of
the stack.
"""


def matmul(
    a: object,
    b: object,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    workspace: int | None = None,
) -> jax.Array:
    """`hifigemm.matmul` of arrays of JAX, traced or not."""
    options = _options(accuracy, scheme, workspace)
    return _product(*_operands(a=a, b=b), **options)


def gemm(
    a: AnyArray,
    b: AnyArray,
    c: object,
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
    *,
    alpha: complex,
    beta: complex,
    trans_a: str,
    trans_b: str,
) -> jax.Array:
    """`hifigemm.gemm` of arrays of JAX, traced or not; alpha and beta are numbers, and
    C may be one.
    """
    options = _options(accuracy, scheme, workspace, alpha)
    if beta != 0 and is_number(c):
        dtypes = numpy_dtype(a.dtype), numpy_dtype(b.dtype)
        c = np.asarray(c, result_dtype(*dtypes, type(c)()))
    named = {"a": a, "b": b} if beta == 0 else {"a": a, "b": b, "c": c}
    a, b, *addends = _operands(**named)
    dtype = _result_dtype(a.dtype, b.dtype, *(x.dtype for x in addends))
    check_scalars(dtype, alpha=alpha, beta=beta)
    a = _transposed(a, trans_a, "a")
    b = _transposed(b, trans_b, "b")
    if not addends:
        return _product(a, b, **options)

    # C in the shape of the result, as a stack of matrices.
    shape = shapes_of(a.shape, b.shape).result
    a, b = _matrices(a, b)
    stack = broadcast_stacks(a.shape[:-2], b.shape[:-2])
    c = _repeated(addends[0], shape)
    c = lax.reshape(c, (*stack, a.shape[-2], b.shape[-1]))
    result = _gemm.bind(*varying(a, b, c), beta=beta, **options)
    return lax.reshape(result, shape)


def dot_general(
    a: jax.Array, b: jax.Array, dimensions: Dimensions, **options: Any
) -> jax.Array:
    """`jax.lax.dot_general`: the result has the dimensions of the stack, those that A
    has left, those that B has.
    """
    (sum_a, sum_b), (stack_a, stack_b) = dimensions
    rows = [i for i in range(a.ndim) if i not in (*sum_a, *stack_a)]
    columns = [i for i in range(b.ndim) if i not in (*sum_b, *stack_b)]
    stack_shape = [a.shape[i] for i in stack_a]
    row_shape = [a.shape[i] for i in rows]
    column_shape = [b.shape[i] for i in columns]
    m = math.prod(row_shape)
    n = math.prod(column_shape)
    k = math.prod(a.shape[i] for i in sum_a)

    # One stack of matrices m x k by k x n.
    left = lax.transpose(a, (*stack_a, *rows, *sum_a))
    left = lax.reshape(left, (*stack_shape, m, k))
    right = lax.transpose(b, (*stack_b, *sum_b, *columns))
    right = lax.reshape(right, (*stack_shape, k, n))
    product = _bind_matmul(left, right, **options)
    return lax.reshape(product, (*stack_shape, *row_shape, *column_shape))


def _product(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """alpha A B for operands of any shapes that `hifigemm.matmul` takes."""
    shape = shapes_of(a.shape, b.shape).result

    # Stacks of matrices with as many axes.
    a, b = _matrices(a, b)
    rank = max(a.ndim, b.ndim) - 2
    a = lax.reshape(a, (1,) * (rank + 2 - a.ndim) + a.shape)
    b = lax.reshape(b, (1,) * (rank + 2 - b.ndim) + b.shape)

    # Axes of the stack that one operand has alone become rows or columns.
    shared: list[int] = []
    only_a: list[int] = []
    only_b: list[int] = []
    for i in range(rank):
        if a.shape[i] == b.shape[i]:
            shared.append(i)
        elif b.shape[i] == 1:
            only_a.append(i)
        else:
            only_b.append(i)
    a = lax.squeeze(a, only_b)
    b = lax.squeeze(b, only_a)
    stack_a = tuple(_axis_without(only_b, i) for i in shared)
    stack_b = tuple(_axis_without(only_a, i) for i in shared)
    summed = (a.ndim - 1,), (b.ndim - 2,)
    product = dot_general(a, b, (summed, (stack_a, stack_b)), **options)

    # The axes go back to the order of the result.
    order = np.argsort([*shared, *only_a, rank, *only_b, rank + 1])
    return lax.reshape(lax.transpose(product, order), shape)


def _axis_without(squeezed: Sequence[int], axis: int) -> int:
    """The number of an axis once others are squeezed out."""
    return axis - sum(other < axis for other in squeezed)


def _options(
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
    alpha: complex = 1.0,
) -> dict[str, Any]:
    """The parameters of the primitives; errors as of `Request`."""
    Request(accuracy, scheme, workspace=workspace)
    strict = settings.is_strict()
    return {
        "accuracy": accuracy,
        "scheme": scheme,
        "workspace": workspace,
        "alpha": alpha,
        "strict": strict,
    }


def is_number(x: object) -> TypeGuard[complex]:
    """True if x is a number of Python, which promotes by its kind alone."""
    return type(x) in (bool, int, float, complex)


def as_jax(x: object, name: str) -> jax.Array:
    """The array of JAX with the entries of an array of JAX or NumPy.

    Raises TypeError: anything else, and a dtype that would be rounded.
    """
    if isinstance(x, jax.Array):
        return x
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"{name} is a {kind_of(x)}; expected an array of JAX or NumPy")
    if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        raise TypeError(
            f"{name} has dtype {x.dtype}, which JAX has with jax_enable_x64 only: convert it"
        )
    return jax.numpy.asarray(x)


def _operands(**named: object) -> list[jax.Array]:
    """The operands as arrays of JAX, in their own dtypes: XLA would flush subnormal
    numbers to zero where it converts any.
    """
    operands = [as_jax(x, name) for name, x in named.items()]
    for name, x in zip("ab", operands, strict=False):
        if x.ndim == 0:
            raise ValueError(
                f"{name} is a scalar; matmul takes arrays of one or more dimensions"
            )
    _result_dtype(*(x.dtype for x in operands))
    return operands


def promoted(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays in the dtype of their product, as products with 1."""
    dtype = _result_dtype(*(x.dtype for x in arrays))
    one = jax.numpy.ones((1, 1), dtype)

    def converted(x: jax.Array) -> jax.Array:
        if x.dtype == dtype:
            return x
        column = lax.reshape(x, (x.size, 1))
        return lax.reshape(matmul(column, one), x.shape)

    return [converted(x) for x in arrays]


def _result_dtype(*dtypes: Any) -> DType:
    """The dtype of a product, by the rules of NumPy.

    Raises TypeError: no product has it, or arrays of JAX do not, as long as it does
    without 64 bits.
    """
    dtypes_of_numpy = [numpy_dtype(x) for x in dtypes]
    dtype = np.result_type(*dtypes_of_numpy)
    if dtype.kind not in "biu":
        dtype = result_dtype(*dtypes_of_numpy)
    if dtype not in dtypes and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        names = ", ".join(map(str, dtypes))
        raise TypeError(
            f"operands of {names} promote to {dtype}, which JAX has with jax_enable_x64 only: convert one"
        )
    return dtype


def numpy_dtype(dtype: Any) -> DType:
    """A dtype of NumPy that has the numbers of this one."""
    return _SINGLE if dtype == jax.numpy.bfloat16 else dtype


def _matrices(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The operands, a vector a as a row and a vector b as a column."""
    if a.ndim == 1:
        a = lax.expand_dims(a, (0,))
    if b.ndim == 1:
        b = lax.expand_dims(b, (1,))
    return a, b


def _transposed(x: jax.Array, how: str, name: str) -> jax.Array:
    """op(x) for a letter of the BLAS."""
    check_transpose(how, name)
    if how == "N":
        return x
    if x.ndim < 2:
        raise ValueError(
            f"trans_{name}={how!r} needs two dimensions, {name} has shape {x.shape}"
        )
    x = x.mT
    return lax.conj(x) if how == "C" and x.dtype.kind == "c" else x


def _repeated(c: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """C, broadcast to the shape of the result."""
    check_addend(c.shape, shape)
    return jax.numpy.broadcast_to(c, shape)


def _kernel(
    a: Any,
    b: Any,
    *addend: Any,
    alpha: complex,
    beta: complex = 0.0,
    strict: bool,
    out: list[Any] | None = None,
    **options: Any,
) -> Any:
    """The result of a primitive for arrays of NumPy or tensors."""
    if out is not None:
        (options["out"],) = out
    with settings.strict(strict):
        if alpha == 1.0 and not addend:
            return product_of_numbers(a, b, **options)
        return gemm_of_numbers(a, b, *addend, alpha=alpha, beta=beta, **options)


def _result_type(
    a: ShapedArray,
    b: ShapedArray,
    *addend: ShapedArray,
    accuracy: Accuracy,
    **_: object,
) -> ShapedArray:
    """The type of a product for JAX: that of A with another shape and dtype.

    Raises TypeError: operands whose types name axes of a mesh, as those of
    `jax.sharding.AxisType.Explicit` do. PlanError: an accuracy that the dtype does not
    have.
    """
    check_not_spread(a, b, *addend)
    stack = broadcast_stacks(a.shape[:-2], b.shape[:-2])
    dtype = _result_dtype(*(x.dtype for x in (a, b, *addend)))
    if dtype.kind in "fc":
        resolve(accuracy, FP32 if dtype in (np.float32, np.complex64) else FP64, 1)
    return a.update(
        shape=(*stack, a.shape[-2], b.shape[-1]), dtype=dtype, weak_type=False
    )


def _gradient_of_a(
    g: jax.Array, a: ad.UndefinedPrimal, b: jax.Array, **options: Any
) -> jax.Array:
    """alpha G B^T for the gradient G of a product."""
    return as_like(_bind_matmul(g, b.mT, **options), a.aval.dtype)


def _gradient_of_b(
    g: jax.Array, a: jax.Array, b: ad.UndefinedPrimal, **options: Any
) -> jax.Array:
    """alpha A^T G for the gradient G of a product."""
    return as_like(_bind_matmul(a.mT, g, **options), b.aval.dtype)


def as_like(x: jax.Array, dtype: Any) -> jax.Array:
    """A gradient in the dtype of what it belongs to."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = lax.real(x)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def _bind_matmul(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """alpha A B for operands in one stack, by `hifigemm_matmul`."""
    product: jax.Array = _matmul.bind(*varying(a, b), **options)
    return product


def _batched(
    operands: Sequence[jax.Array], batch_axes: tuple[int | None, ...], **options: Any
) -> tuple[jax.Array, int]:
    """The primitive under vmap, and the axis of the batch in its result.

    The batch is one more axis of the stack, or of the rows or columns where only one
    operand has it.
    """
    a, b = operands
    axis_of_a, axis_of_b = batch_axes
    if axis_of_a is not None:
        a = jax.numpy.moveaxis(a, axis_of_a, 0)
    if axis_of_b is not None:
        b = jax.numpy.moveaxis(b, axis_of_b, 0)

    # Axes of the stack: behind that of the batch, where an operand has one.
    rank = (a.ndim if axis_of_a is None else a.ndim - 1) - 2
    start_a = 0 if axis_of_a is None else 1
    start_b = 0 if axis_of_b is None else 1
    stack_a = tuple(range(start_a, start_a + rank))
    stack_b = tuple(range(start_b, start_b + rank))
    summed = (a.ndim - 1,), (b.ndim - 2,)
    if axis_of_a is not None and axis_of_b is not None:
        stacks = (0, *stack_a), (0, *stack_b)
        return dot_general(a, b, (summed, stacks), **options), 0
    product = dot_general(a, b, (summed, (stack_a, stack_b)), **options)
    return product, rank if axis_of_b is None else rank + 1


def _batched_sum(
    operands: Sequence[jax.Array], batch_axes: tuple[int | None, ...], **options: Any
) -> tuple[jax.Array, int]:
    """A product with an addend under vmap, and the axis of the batch in its result.

    The batch is one more axis of the stack, which the kernel broadcasts.
    """
    a, b, c = stacked(operands, batch_axes)
    if batch_axes[0] is None and batch_axes[1] is None:
        ones = (1,) * (c.ndim - 1 - a.ndim)
        a = jax.numpy.broadcast_to(a, (c.shape[0], *ones, *a.shape))
    stack = np.broadcast_shapes(*(x.shape[:-2] for x in (a, b, c)))
    c = _repeated(c, (*stack, *c.shape[-2:]))
    return _gemm.bind(a, b, c, **options), 0


def stacked(
    operands: Sequence[jax.Array], batch_axes: Sequence[int | None]
) -> list[jax.Array]:
    """Operands whose stacks broadcast, the batch being the first axis where they have it."""
    pairs = list(zip(operands, batch_axes, strict=True))
    rank = max(x.ndim - (axis is not None) for x, axis in pairs)

    def with_batch_first(x: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            return x
        x = jax.numpy.moveaxis(x, axis, 0)
        ones = (1,) * (rank + 1 - x.ndim)
        return lax.reshape(x, (x.shape[0], *ones, *x.shape[1:]))

    return [with_batch_first(*pair) for pair in pairs]


def _tangent_of_sum(
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | ad.Zero],
    *,
    beta: complex,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """The sum, and its tangent alpha A' B + alpha A B' + beta C'.

    At least one of the three tangents is not zero.
    """
    a, b, _ = primals
    da, db, dc = tangents
    result = _gemm.bind(*primals, beta=beta, **options)
    terms = []
    if not isinstance(da, ad.Zero):
        terms.append(_product(da, b, **options))
    if not isinstance(db, ad.Zero):
        terms.append(_product(a, db, **options))
    if not isinstance(dc, ad.Zero):
        dc = lax.convert_element_type(dc, result.dtype)
        terms.append(lax.mul(dc, lax.full_like(dc, beta)))
    terms = [lax.convert_element_type(x, result.dtype) for x in terms]
    return result, sum(terms[1:], terms[0])


for _primitive in (_matmul, _gemm):
    run_by_callback(_primitive, _kernel)
    _primitive.def_abstract_eval(_result_type)
ad.defbilinear(_matmul, _gradient_of_a, _gradient_of_b)
ad.primitive_jvps[_gemm] = _tangent_of_sum
batching.primitive_batchers[_matmul] = _batched
batching.primitive_batchers[_gemm] = _batched_sum
