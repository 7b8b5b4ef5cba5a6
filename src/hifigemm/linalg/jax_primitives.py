"""Functions of `hifigemm.linalg` in programs of JAX: primitives whose kernels are
callbacks, and which JAX differentiates, batches and compiles.

Systems
    X' = A^-1 (B' - A' X).
Least squares, and least norm
    With P B = B - A A^+ B, R = P B for m > n and A^H Y = X for m < n, the change of the
    pseudoinverse (eq. 4.12 of [GP73]) gives

        X' = A^+ (B' - A' X + (A^H)^+ A'^H R)              and
        X' = A^+ (B' - A' X) + (I - A^+ A) A'^H Y,

    where I - A^+ A is the P of A^H.
Residuals
    (P B)' = P (B' - A' X) - (A^H)^+ A'^H P B.
Determinants
    With t = tr(A^-1 A') the logarithm has the tangent Re t and the sign s that of i s Im t.

A^-1, A^+ and P are linear. JAX transposes what is linear, without conjugates: A^-1 becomes
(A^T)^-1, A^+ becomes (A^T)^+, and P, as A A^+ is Hermitian, the P of the conjugate of A. All
gradients follow.

(A^H A)^-1 = A^+ (A^H)^+ takes two problems, neither of which squares the condition. P is a
primitive because its rounding matters: with a rounded X the residual B - A X is off by A
times a vector, which another solution finds and removes. The same holds in gradients,
where P is transposed.

Each system of a derivative is solved by the same primitives, so it is verified too. Radii
have the derivative zero, and bounds have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from hifigemm.differentiable import jax_primitive as products
from hifigemm.differentiable.jax_callbacks import (
    check_not_spread,
    register_as_tree,
    run_by_callback,
    varying,
    write_results,
)
from hifigemm.linalg.arguments import check_square
from hifigemm.linalg.jax_bounds import check_exists, common_dtype, typed_like
from hifigemm.linalg.least_squares import least_squares_of_numbers
from hifigemm.linalg.log_determinant import LogDeterminant, log_determinant_of_numbers
from hifigemm.linalg.singular_values import check_matrices
from hifigemm.linalg.solution import VerifiedSolution, solution_of_numbers
from hifigemm.operands.operands import broadcast_stacks
from hifigemm.running.gemm import gemm_of_numbers

if TYPE_CHECKING:
    from jax.core import ShapedArray

_solve = Primitive("hifigemm_solve")
_lstsq = Primitive("hifigemm_lstsq")
_residual = Primitive("hifigemm_residual")
_slogdet = Primitive("hifigemm_slogdet")


def solve(a: object, b: object, accuracy: str | None) -> VerifiedSolution:
    """`hifigemm.linalg.solve` of arrays of which one is traced."""
    return _solution(_solve, a, b, accuracy=accuracy)


def inv(a: jax.Array) -> VerifiedSolution:
    """`hifigemm.linalg.inv` of traced matrices."""
    check_square(a)
    dtype = common_dtype(a.dtype)
    check_exists(dtype, f"a of {a.dtype}")
    eye = jax.numpy.eye(a.shape[-1], dtype=dtype)
    return _solution(_solve, a, eye, accuracy=None)


def lstsq(a: object, b: object) -> VerifiedSolution:
    """`hifigemm.linalg.lstsq` of arrays of which one is traced."""
    return _solution(_lstsq, a, b)


def slogdet(a: jax.Array) -> LogDeterminant:
    """`hifigemm.linalg.slogdet` of traced matrices, in float64 or complex128."""
    check_square(a)
    check_exists(np.dtype(float), "slogdet")
    common_dtype(a.dtype)
    register_as_tree(LogDeterminant)
    return LogDeterminant(*_slogdet.bind(a))


def _solution(
    primitive: Primitive, matrices: object, sides: object, **options: Any
) -> VerifiedSolution:
    """x and radius of matrices and a vector or matrices."""
    a = _as_jax(matrices, "a")
    b = _as_jax(sides, "b")
    check_matrices(a)
    if b.ndim == 0:
        raise ValueError("b is a scalar; expected a vector or matrices")
    dtype = common_dtype(a.dtype, b.dtype)
    check_exists(dtype, f"a of {a.dtype} and b of {b.dtype}")
    register_as_tree(VerifiedSolution)
    if b.ndim > 1:
        return VerifiedSolution(*_bind(primitive, a, b, **options))
    x, radius = _bind(primitive, a, b[:, None], **options)
    return VerifiedSolution(x[..., 0], radius[..., 0])


def _as_jax(x: object, name: str) -> jax.Array:
    """The array of JAX with the entries of x, which may be a constant."""
    is_array = isinstance(x, (jax.Array, np.ndarray, np.generic))
    return products.as_jax(x if is_array else np.asarray(x), name)


def _bind(primitive: Primitive, a: jax.Array, b: jax.Array, **options: Any) -> Any:
    """The results of a primitive of two operands, in the stack that both broadcast to."""
    stack = broadcast_stacks(a.shape[:-2], b.shape[:-2])
    a = jax.numpy.broadcast_to(a, (*stack, *a.shape[-2:]))
    b = jax.numpy.broadcast_to(b, (*stack, *b.shape[-2:]))
    return primitive.bind(*varying(a, b), **options)


def _solution_types(
    a: ShapedArray, b: ShapedArray, **options: Any
) -> list[ShapedArray]:
    """The types of x and its radius."""
    check_not_spread(a, b)
    if "accuracy" in options:
        check_square(a)
    _check_rows(a, b)
    dtype = common_dtype(a.dtype, b.dtype)
    shape = (*a.shape[:-2], a.shape[-1], b.shape[-1])
    return [typed_like(a, shape, x) for x in (dtype, np.finfo(dtype).dtype)]


def _residual_type(a: ShapedArray, b: ShapedArray) -> ShapedArray:
    """The type of the residual: that of B in the common dtype."""
    _check_rows(a, b)
    return typed_like(a, b.shape, common_dtype(a.dtype, b.dtype))


def _check_rows(a: ShapedArray, b: ShapedArray) -> None:
    """Raise ValueError unless A and B have as many rows."""
    rows = a.shape[-2]
    if b.shape[-2] != rows:
        raise ValueError(
            f"a has shape {a.shape} and b has {b.shape[-2]} rows; expected {rows}"
        )


def _log_determinant_types(a: ShapedArray) -> list[ShapedArray]:
    """The types of the sign, the logarithm and both radii."""
    check_not_spread(a)
    is_complex = common_dtype(a.dtype).kind == "c"
    real = np.dtype(float)
    sign = np.dtype(complex) if is_complex else real
    return [typed_like(a, a.shape[:-2], x) for x in (sign, real, real, real)]


def _solution_kernel(
    a: Any, b: Any, *, accuracy: Any, out: list[Any] | None = None
) -> list[Any]:
    """x and radius of systems whose entries are known numbers."""
    solution = solution_of_numbers({"a": a, "b": b}, accuracy, False)
    return write_results([solution.x, solution.radius], out)


def _least_squares_kernel(a: Any, b: Any, *, out: list[Any] | None = None) -> list[Any]:
    """x and radius of problems of numbers."""
    solution = least_squares_of_numbers(a, b, False)
    return write_results([solution.x, solution.radius], out)


def _residual_kernel(a: Any, b: Any, *, out: list[Any] | None = None) -> Any:
    """B - A A^+ B of numbers.

    X is rounded, which changes the residual by the condition times the unit. That change
    is A times a vector, so it is found as another solution of least squares.
    """
    residual = b
    for _ in range(2):
        x = least_squares_of_numbers(a, residual, False).x
        residual = gemm_of_numbers(a, x, residual, "correct", alpha=-1.0, beta=1.0)
    return write_results([residual], out)[0]


def _log_determinant_kernel(a: Any, *, out: list[Any] | None = None) -> list[Any]:
    """The sign of a determinant, its logarithm, and their radii, of numbers."""
    d = log_determinant_of_numbers(a)
    fields = [d.sign, d.logabsdet, d.radius, d.sign_radius]
    if out is None:
        fields[0] = d.sign * np.float64(1.0)  # integers too
        fields = list(map(np.asarray, fields))
    return write_results(fields, out)


def _batched(
    primitive: Primitive,
    operands: Sequence[jax.Array],
    axes: Sequence[int | None],
    **options: Any,
) -> tuple[Any, Any]:
    """A primitive under vmap: one more dimension of the stack, or more right sides of one
    matrix.
    """
    several = primitive.multiple_results
    if len(operands) == 2 and axes[0] is None:
        a, b = operands
        sides = jax.numpy.moveaxis(b, axes[1], -1)
        columns = lax.reshape(sides, (*sides.shape[:-2], math.prod(sides.shape[-2:])))
        results = primitive.bind(*varying(a, columns), **options)

        def with_batch(x: jax.Array) -> jax.Array:
            return lax.reshape(x, (*x.shape[:-1], *sides.shape[-2:]))

        results = jax.tree.map(with_batch, results)
        axis = sides.ndim - 1
    else:
        stacks = products.stacked(operands, axes)
        if len(stacks) == 2:
            results = _bind(primitive, *stacks, **options)
        else:
            results = primitive.bind(*stacks, **options)
        axis = 0
    return results, [axis] * len(results) if several else axis


def _tangents_of_solution(
    primals: Sequence[jax.Array], tangents: Sequence[Any], **options: Any
) -> tuple[Any, Any]:
    """The results, and A^-1 (B' - A' X)."""
    a, _ = primals
    x, radius = _solve.bind(*primals, **options)
    side = _tangent_of_side(x, tangents)
    tangent, _ = _bind(_solve, a, side, **options)
    return (x, radius), (tangent, _zero(radius))


def _tangent_of_side(x: jax.Array, tangents: Sequence[Any]) -> jax.Array:
    """B' - A' X; one of the tangents is no zero."""
    da, db = tangents
    terms = []
    if not isinstance(db, ad.Zero):
        terms.append(lax.convert_element_type(db, x.dtype))
    if not isinstance(da, ad.Zero):
        terms.append(-products.matmul(da, x))
    return sum(terms[1:], terms[0])


def _zero(x: jax.Array) -> ad.Zero:
    """The tangent of a value that has none."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _tangents_of_least_squares(
    primals: Sequence[jax.Array], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The results, and the tangent of x at the head of this file."""
    a, b = primals
    m, n = a.shape[-2:]
    da, _ = tangents
    x, radius = _lstsq.bind(a, b)
    side = _tangent_of_side(x, tangents)
    outside = None  # what lies outside of the row space of A
    if m != n and not isinstance(da, ad.Zero):
        adjoint = _adjoint(a)
        if m > n:
            change = products.matmul(_adjoint(da), _residual.bind(*varying(a, b)))
            side = side + _bind(_lstsq, adjoint, change)[0]
        else:
            y, _ = _bind(_lstsq, adjoint, x)
            change = products.matmul(_adjoint(da), y)
            outside = _bind(_residual, adjoint, change)
    tangent, _ = _bind(_lstsq, a, side)
    if outside is not None:
        tangent = tangent + outside
    return (x, radius), (tangent, _zero(radius))


def _adjoint(a: jax.Array) -> jax.Array:
    """A^H."""
    return lax.conj(a.mT) if a.dtype.kind == "c" else a.mT


def _tangents_of_residual(
    primals: Sequence[jax.Array], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The residual, and P (B' - A' X) - (A^H)^+ A'^H P B."""
    a, b = primals
    da, _ = tangents
    residual = _residual.bind(a, b)
    if isinstance(da, ad.Zero):
        x = residual
    else:
        x, _ = _lstsq.bind(a, b)
    tangent = _bind(_residual, a, _tangent_of_side(x, tangents))
    if not isinstance(da, ad.Zero):
        change = products.matmul(_adjoint(da), residual)
        tangent = tangent - _bind(_lstsq, _adjoint(a), change)[0]
    return residual, tangent


def _tangents_of_log_determinant(
    primals: Sequence[jax.Array], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The results, and i s Im t and Re t."""
    (a,) = primals
    (da,) = tangents
    results = _slogdet.bind(a)
    sign, _, *radii = results
    # In float64, by a product, as XLA would flush subnormal numbers
    zero = jax.numpy.zeros((), np.promote_types(common_dtype(a.dtype), np.float64))
    wide_a, _ = products.promoted([a, zero])
    wide_da, _ = products.promoted([da, zero])
    x, _ = _bind(_solve, wide_a, wide_da, accuracy=None)
    trace = jax.numpy.trace(x, axis1=-2, axis2=-1)
    of_sign: Any = _zero(sign)
    if sign.dtype.kind == "c":
        of_sign = 1j * sign * trace.imag
        trace = trace.real
    return results, (of_sign, trace, *map(_zero, radii))


def _transposed_solution(
    primitive: Primitive, g: Sequence[Any], a: jax.Array, b: Any, **options: Any
) -> tuple[None, Any]:
    """(A^T)^-1 G, or (A^T)^+ G, for the gradient G of x; radii have none."""
    of_x, _ = g
    gradient, _ = _bind(primitive, a.mT, of_x, **options)
    return None, products.as_like(gradient, b.aval.dtype)


def _transposed_residual(g: jax.Array, a: jax.Array, b: Any) -> tuple[None, jax.Array]:
    """The residual of G for the conjugate of A."""
    conjugate = lax.conj(a) if a.dtype.kind == "c" else a
    return None, products.as_like(_bind(_residual, conjugate, g), b.aval.dtype)


for _primitive, _kernel, _types, _tangents in (
    (_solve, _solution_kernel, _solution_types, _tangents_of_solution),
    (_lstsq, _least_squares_kernel, _solution_types, _tangents_of_least_squares),
    (_residual, _residual_kernel, _residual_type, _tangents_of_residual),
    (
        _slogdet,
        _log_determinant_kernel,
        _log_determinant_types,
        _tangents_of_log_determinant,
    ),
):
    _primitive.multiple_results = _primitive is not _residual
    run_by_callback(_primitive, _kernel)
    _primitive.def_abstract_eval(_types)
    ad.primitive_jvps[_primitive] = _tangents
    batching.primitive_batchers[_primitive] = partial(_batched, _primitive)
for _primitive in (_solve, _lstsq):
    ad.primitive_transposes[_primitive] = partial(_transposed_solution, _primitive)
ad.primitive_transposes[_residual] = _transposed_residual
