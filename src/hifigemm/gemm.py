"""gemm: alpha op(A) op(B) + beta C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from hifigemm.base.settings import mark_incomplete
from hifigemm.base.transforms import belongs_to_jax, belongs_to_torch, is_compiled
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan, Report
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.running.gemm import as_scalar, gemm_of_numbers, key_of_gemm
from hifigemm.running.keys import is_prepared_tensor
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from hifigemm.model.signatures import (
        Addend,
        AnyAddend,
        Arrays,
        No,
        Operand,
        OtherOperand,
        Out,
        Scalar,
        Scaled,
        TAddend,
        Tensors,
        Yes,
    )


@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> NDArray[Any]: ...
@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[NDArray[Any], Report]: ...
@overload
def gemm(
    a: Tensors,
    b: Tensors,
    c: TAddend = None,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> Tensor: ...
@overload
def gemm(
    a: Tensors,
    b: Tensors,
    c: TAddend = None,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[Tensor, Report]: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    c: AnyAddend = None,
    *,
    out: Out,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> Out: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    c: AnyAddend = None,
    *,
    out: Out,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[Out, Report]: ...
@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: Out | None = None,
    return_report: bool,
    **options: Unpack[Scaled],
) -> Any: ...
@overload
def gemm(
    a: OtherOperand,
    b: OtherOperand,
    c: AnyAddend = None,
    *,
    out: Out | None = None,
    return_report: bool = False,
    **options: Unpack[Scaled],
) -> Any: ...
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    trans_a: Literal["N", "T", "C"] = "N",
    trans_b: Literal["N", "T", "C"] = "N",
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: object = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    out_dtype: Any = None,
    return_report: bool = False,
) -> Any:
    """alpha op(A) op(B) + beta C, as in the BLAS.

    The accuracy holds for the result, for any alpha and beta: "correct" is the exact
    value of alpha op(A) op(B) + beta C, rounded once. C does not change, unless you
    pass it as `out`.

    Parameters
    ----------
    a, b : array_like
        As for `matmul`; an operand that is transposed has at least two dimensions.
        Integers and bools only if another operand makes the result floating-point.
    c : array_like, optional
        Broadcasts to the result's shape. If beta is 0, C is not read, and its gradient
        is zero.
    alpha, beta : scalar
        Numbers of Python or NumPy that float64 holds, or tensors and arrays without
        axes, which are read as numbers. A tensor that requires a gradient raises
        TypeError. Complex only if the result is complex. If alpha is 0, A and B are not
        read.
    trans_a, trans_b : "N", "T" or "C"
        Nothing, transpose, conjugate transpose of the last two axes.
    accuracy, scheme, out, engine, plan, workspace, out_dtype, return_report
        As for `matmul`, for the result. C may have any dtype that promotes to the dtype
        of the result or of the product. A number r bounds the error by
        r (|alpha||A||B| + |beta||C|) + u |result|, and `hifigemm.Relative` by r times
        the exact result. A plan or a prepared operand for "correct" serves the product
        alone: with C, or if alpha is not plus or minus a power of two, the library
        computes the sum from the operands themselves.

    Returns
    -------
    array, or (array, Report)

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, x, b = np.array([[1e16, 1.0]]), np.array([1.0, 1.0]), np.array([1e16])
    >>> b - a @ x, hg.gemm(a, x, b, alpha=-1.0, beta=1.0, accuracy="correct")
    (array([0.]), array([-1.]))

    Notes
    -----
    *Costs.* If alpha and beta are plus or minus powers of two, a sum that is rounded
    once costs little more than A B. Other scalars take the time of a pair of A B, see
    `matmul`. On a CPU large products of float64 take twice the time of A B, or four
    times with complex scalars. At n = 500 on a CPU, a sum that is rounded once to a
    narrower `out_dtype` takes two to five times as long as one in the dtype of the
    product; each call plans it again.

    *Rounding.* Without an accuracy, with a level such as "fp64", and with numbers from
    8 u on, the library rounds T = 2^e op(A) op(B) first. Here alpha = r 2^e, and the
    larger component of r lies between 1 and 2. It then evaluates r T + beta C with
    error-free transformations and rounds, for finite scalars of any size. If T
    underflows, this adds at most four of the smallest subnormal numbers to the error.

    *Overflow.* T may overflow although the result does not: for the default and levels,
    and on a GPU for numbers too. In a native product on a GPU, A B may overflow before
    it is scaled by 2^e, unless |alpha| < 2^-30.
    """
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = as_scalar(alpha, "alpha"), as_scalar(beta, "beta")
    if c is None and beta != 0:
        raise ValueError(f"beta = {beta} needs c")
    may_repeat = plan is None and not is_compiled()
    if c is not None and may_repeat and beta == 0 and is_ieee():
        # C is not read. It stays in PyTorch's graphs, with a zero gradient. In a thread
        # that flushes subnormal numbers, a subnormal beta compares equal to 0.
        if belongs_to_torch(c):
            may_repeat = False
        else:
            c = None
    key_and_arguments = None
    if is_prepared_tensor(a) or is_prepared_tensor(b):
        # Its key is computed further down, out of sight of torch.compile.
        may_repeat = False
    if may_repeat and type(a) is not np.ndarray:
        # It has a key only if PyTorch records no operand.
        policy = (
            accuracy,
            scheme,
            engine,
            workspace,
            return_report,
            "array",
            "",
            None,
            out_dtype,
        )
        key_and_arguments = key_of_gemm(
            (a, b, c, out), (alpha, beta), (trans_a, trans_b), policy
        )

    # Tracked operands: an operator of PyTorch or a primitive of JAX.
    has_key = key_and_arguments is not None and key_and_arguments[0] is not None
    is_plain = plan is None and out is None and engine is None and not return_report
    if is_plain and not has_key and type(a) is not np.ndarray:
        if belongs_to_torch(a, b) if c is None else belongs_to_torch(a, b, c):
            from hifigemm.differentiable import torch_operators

            return torch_operators.gemm(
                a,
                b,
                c,
                accuracy,
                scheme,
                workspace,
                out_dtype=out_dtype,
                alpha=alpha,
                beta=beta,
                trans_a=trans_a,
                trans_b=trans_b,
            )
        is_number = c is None or type(c) in (bool, int, float, complex)
        are_of_jax = belongs_to_jax(a, b) and (is_number or belongs_to_jax(c))
        if out_dtype is None and are_of_jax:
            from hifigemm.differentiable import jax_primitive

            return jax_primitive.gemm(
                a,
                b,
                c,
                accuracy,
                scheme,
                workspace,
                alpha=alpha,
                beta=beta,
                trans_a=trans_a,
                trans_b=trans_b,
            )
    try:
        return gemm_of_numbers(
            a,
            b,
            c,
            accuracy,
            scheme,
            workspace,
            alpha=alpha,
            beta=beta,
            trans_a=trans_a,
            trans_b=trans_b,
            out=out,
            engine=engine,
            plan=plan,
            return_report=return_report,
            out_dtype=out_dtype,
            key_and_arguments=key_and_arguments,
        )
    except BaseException as error:
        mark_incomplete(error, out)
        raise
