"""Functions of one matrix that have no derivatives, in programs of JAX: `det`, `cond`,
`is_positive_definite`, `eigvalsh` and `svdvals`, as one primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from hifigemm.differentiable import jax_primitive as products
from hifigemm.differentiable.jax_callbacks import (
    check_not_spread,
    register_as_tree,
    run_by_callback,
    write_results,
)
from hifigemm.linalg.values import VerifiedValues
from hifigemm.numerics.bits import DType
from hifigemm.operands.operands import result_dtype

if TYPE_CHECKING:
    from jax.core import ShapedArray

_bounds = Primitive("hifigemm_bounds")
_bounds.multiple_results = True


def bounds(
    function: Callable[[Any], Any],
    a: jax.Array,
    result_class: Callable[..., Any],
    *dtypes: type,
) -> Any:
    """The result of a function for traced matrices: a dataclass whose fields have these
    dtypes and the shape of the stack, or arrays.
    """
    return _result(function, a, result_class, (), *map(np.dtype, dtypes))


def values(
    function: Callable[[Any], VerifiedValues], a: jax.Array, count: int
) -> VerifiedValues:
    """Eigenvalues or singular values of traced matrices, `count` of each."""
    real = np.finfo(common_dtype(a.dtype)).dtype
    result: VerifiedValues = _result(function, a, VerifiedValues, (count,), real, real)
    return result


def _result(
    function: Callable[[Any], Any],
    a: jax.Array,
    result_class: Callable[..., Any],
    shape: tuple[int, ...],
    *dtypes: DType,
) -> Any:
    """The result of the primitive; fields have a shape after the shape of the stack."""
    for dtype in (common_dtype(a.dtype), *dtypes):
        check_exists(dtype, f"a of {a.dtype}")
    if is_dataclass(result_class):
        register_as_tree(result_class)
    fields = _bounds.bind(a, function=function, shape=shape, dtypes=dtypes)
    return result_class(*fields)


def common_dtype(*dtypes: Any) -> DType:
    """The dtype of solutions for operands of these; integers count as float64."""
    numbers = [
        np.dtype(float) if x.kind in "iub" else products.numpy_dtype(x) for x in dtypes
    ]
    return result_dtype(*numbers)


def check_exists(dtype: DType, what: str) -> None:
    """Raise TypeError for a dtype that arrays of JAX do not have without 64 bits."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f"{what} leads to results of {dtype}, which JAX has with jax_enable_x64 only"
        )


def _types(
    a: ShapedArray,
    *,
    function: Callable[[Any], Any],
    shape: tuple[int, ...],
    dtypes: tuple[DType, ...],
) -> list[ShapedArray]:
    """The types of all fields."""
    check_not_spread(a)
    return [typed_like(a, (*a.shape[:-2], *shape), dtype) for dtype in dtypes]


def typed_like(a: ShapedArray, shape: tuple[int, ...], dtype: DType) -> ShapedArray:
    """The type of an operand with another shape and dtype."""
    sharding = a.sharding.update(spec=(None,) * len(shape))
    return a.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _kernel(
    a: Any,
    *,
    function: Callable[[Any], Any],
    shape: tuple[int, ...],
    dtypes: tuple[DType, ...],
    out: list[Any] | None = None,
) -> list[Any]:
    """All fields of the answer for an array of NumPy or a tensor."""
    answer = function(a)
    fields = list(vars(answer).values()) if is_dataclass(answer) else [answer]
    if out is None:
        fields = [np.asarray(x, dtype) for x, dtype in zip(fields, dtypes)]
    return write_results(fields, out)


def _batched(
    operands: tuple[jax.Array], axes: tuple[int], **options: Any
) -> tuple[list[jax.Array], list[int]]:
    """The primitive under vmap: one more dimension of the stack."""
    stacks = products.stacked(operands, axes)
    fields = _bounds.bind(*stacks, **options)
    return fields, [0] * len(fields)


def _refused(primals: object, tangents: object, **options: Any) -> NoReturn:
    """The primitive where JAX differentiates it."""
    name = options["function"].__name__
    hint = "use slogdet, whose logarithm has one, or" if name == "det" else "so"
    raise TypeError(
        f"JAX differentiates a, and {name} has no derivative: {hint} pass jax.lax.stop_gradient(a)"
    )


run_by_callback(_bounds, _kernel)
_bounds.def_abstract_eval(_types)
ad.primitive_jvps[_bounds] = _refused
batching.primitive_batchers[_bounds] = _batched
