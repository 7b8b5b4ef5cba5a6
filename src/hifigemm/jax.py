"""Products of JAX arrays, in compiled programs too: `matmul`, `gemm`, and the functions
of `hifigemm.numpy`.

`hifigemm.matmul` and `gemm` call the `matmul` and `gemm` of this module for two JAX
arrays. A compiled program has all their options but `out`, `engine`, `plan`, `result`
and `return_report`. The other functions are the same as in `hifigemm.numpy`; they take
JAX arrays, traced or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from hifigemm.base.public import shown
from hifigemm.differentiable import jax_primitive
from hifigemm.functions.chains import matrix_power, multi_dot
from hifigemm.functions.congruences import congruence
from hifigemm.functions.contractions import (
    dot,
    inner,
    matvec,
    outer,
    tensordot,
    vdot,
    vecdot,
    vecmat,
)
from hifigemm.functions.einsum import einsum
from hifigemm.functions.symmetric import herk, syrk
from hifigemm.gemm import gemm as gemm_of_any_library
from hifigemm.model.accuracy import Accuracy
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from jax import Array

__all__ = [
    "congruence",
    "dot",
    "einsum",
    "gemm",
    "herk",
    "inner",
    "matmul",
    "matrix_power",
    "matvec",
    "multi_dot",
    "outer",
    "syrk",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]


def matmul(
    a: Array,
    b: Array,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    workspace: int | None = None,
) -> Array:
    """A B to the accuracy that you choose, for JAX to differentiate, batch, compile and
    shard.

    Parameters
    ----------
    a, b : array of JAX or NumPy
        As for `hifigemm.matmul`: vectors, matrices and stacks that broadcast, of
        float32, float64, complex64 or complex128; float16 and bfloat16 give float32.
        Mixed dtypes promote as in NumPy. Arrays on a GPU need PyTorch and Triton.
    accuracy, scheme, workspace
        As for `hifigemm.matmul`. They are constants of a compiled program, and apply to
        the products of its derivatives. JAX reads `hifigemm.strict` when it traces the
        program.

    Returns
    -------
    jax.Array

    Raises
    ------
    PlanError, ValueError, TypeError
        When JAX traces the program: unknown options, shapes or dtypes that do not fit,
        operands of other libraries than JAX and NumPy. When JAX compiles it: a platform
        that is neither a CPU nor a GPU, or a GPU without PyTorch for CUDA and Triton.
    jax.errors.JaxRuntimeError
        In a compiled program, and in any product on a GPU, if `hifigemm.matmul` would
        raise an error because of the entries. It has the message of that error.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, hifigemm.jax as hj
    >>> a = jnp.array([[1e8, 1.0, -1e8]])
    >>> jax.jit(lambda a: hj.matmul(a, jnp.ones((3, 1)), accuracy="correct"))(a)
    Array([[1.]], dtype=float32)
    """
    return jax_primitive.matmul(a, b, accuracy, scheme, workspace)


def gemm(
    a: Array,
    b: Array,
    c: Array | complex | None = None,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    trans_a: Literal["N", "T", "C"] = "N",
    trans_b: Literal["N", "T", "C"] = "N",
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    workspace: int | None = None,
) -> Array:
    """alpha op(A) op(B) + beta C, as `hifigemm.gemm`, for operands as in `matmul`.

    Parameters
    ----------
    a, b : array of JAX or NumPy
        As for `matmul`.
    c : array of JAX or NumPy, number, optional
        Broadcasts to the result's shape. If beta is 0, C is not read.
    alpha, beta : scalar
        Python numbers; they are constants of a compiled program.
    trans_a, trans_b : "N", "T" or "C"
        Nothing, transpose, conjugate transpose of the last two axes.
    accuracy, scheme, workspace
        As for `hifigemm.gemm`.

    Returns
    -------
    jax.Array

    Raises
    ------
    PlanError, ValueError, TypeError, jax.errors.JaxRuntimeError
        As for `matmul`.

    Examples
    --------
    >>> import jax.numpy as jnp, hifigemm.jax as hj
    >>> a = jnp.array([[1e8, 1.0]])
    >>> c = jnp.array([[1e8]])
    >>> hj.gemm(a, jnp.ones((2, 1)), c, beta=-1.0, accuracy="correct")
    Array([[1.]], dtype=float32)
    """
    is_array = c is not None and not jax_primitive.is_number(c)
    result: Array = cast(Any, gemm_of_any_library)(
        jax_primitive.as_jax(a, "a"),
        jax_primitive.as_jax(b, "b"),
        jax_primitive.as_jax(c, "c") if is_array else c,
        alpha=alpha,
        beta=beta,
        trans_a=trans_a,
        trans_b=trans_b,
        accuracy=accuracy,
        scheme=scheme,
        workspace=workspace,
    )
    return result


__dir__ = shown(globals())
