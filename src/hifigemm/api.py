"""matmul, make_plan, warmup and prepare."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from hifigemm.base.settings import mark_incomplete
from hifigemm.base.transforms import (
    belongs_to_jax,
    belongs_to_torch,
    is_compiled,
    opaque,
)
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan, Report
from hifigemm.model.problem import counted
from hifigemm.operands.operands import Prepared
from hifigemm.running.calls import Refused, replay
from hifigemm.running.keys import is_prepared_tensor, key_of
from hifigemm.running.plans import plan_of_numbers, prepared
from hifigemm.running.products import product_of_numbers
from hifigemm.running.request import Result
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from hifigemm.model.signatures import (
        AnyTensor,
        Arrays,
        Asked,
        No,
        Operand,
        OtherOperand,
        Out,
        Policy,
        SchemeName,
        Tensors,
        TwoParts,
        Yes,
    )


@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Asked],
) -> NDArray[Any]: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Asked],
) -> tuple[NDArray[Any], Report]: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Asked],
) -> Tensor: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Asked],
) -> tuple[Tensor, Report]: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    result: TwoParts,
    return_report: No = False,
    **options: Unpack[Policy],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    result: TwoParts,
    return_report: No = False,
    **options: Unpack[Policy],
) -> tuple[Tensor, Tensor]: ...
@overload
def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Out,
    return_report: No = False,
    **options: Unpack[Asked],
) -> Out: ...
@overload
def matmul(
    a: Operand, b: Operand, *, out: Out, return_report: Yes, **options: Unpack[Asked]
) -> tuple[Out, Report]: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: Out | None = None,
    result: Result = "array",
    return_report: bool,
    **options: Unpack[Policy],
) -> Any: ...
@overload
def matmul(
    a: OtherOperand,
    b: OtherOperand,
    *,
    out: Out | None = None,
    result: Result = "array",
    return_report: bool = False,
    **options: Unpack[Policy],
) -> Any: ...
def matmul(
    a: Any,
    b: Any,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: object = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    result: Result = "array",
    out_dtype: Any = None,
    return_report: bool = False,
) -> Any:
    """Matrix product to the accuracy that you choose.

    Without an accuracy the product is as accurate as usual for its dtype: on a CPU it is
    NumPy's product.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> a @ b, hg.matmul(a, b, accuracy="correct")
    (array([[0.]]), array([[1.]]))
    >>> hg.matmul([[1e16, 1.0]], [[1.0], [0.5]], result="pair")
    (array([[1.e+16]]), array([[0.5]]))
    >>> i = np.array([[100, 27]], np.int8)
    >>> hg.matmul(i, i.T), hg.matmul(i, i.T, result="int64")
    (array([[-23]], dtype=int8), array([[10729]]))

    Parameters
    ----------
    a, b : array_like or Prepared
        float32, float64, complex64 or complex128, with shapes and strides as for
        `numpy.matmul`: vectors, matrices, stacks that broadcast. Both belong to one
        library (NumPy, PyTorch, CuPy or JAX) and one device, and so does the result.
        The notes describe other dtypes.
    accuracy : None, float, "fp32", "fp64", "correct", Relative or Invariant
        What holds in every entry of the result, for all data:

        - ``"correct"``: the exact value rounded once, to nearest, ties to even.
        - ``Relative(1e-12)``: a relative error of at most 1e-12, however much the terms
          cancel.
        - ``1e-12``: an error of at most 1e-12 times the sum of the magnitudes of the
          terms, plus one rounding. ``0`` means ``"correct"``.
        - ``"fp64"``, ``"fp32"``: the usual accuracy of that format, for which a native
          product is good enough.
        - None: the usual accuracy of the result's dtype.
        - ``Invariant(1e-7)``: a row has the same bits in any batch and on any device,
          and an error relative to the norms of a row of A and a column of B.

        The notes have the formulas.
    scheme : "auto", "native", "multiword", "corrected", "ozaki1", "ozaki2", "double-double", or ``Ozaki1("fp64")``
        The method. "auto" chooses one; the library does not replace a scheme that you
        name. Without an accuracy, a scheme with an explicit count or mode, and
        "multiword" and "corrected", promise only what the report states.
    out : array, optional
        Receives the result; may be one of the operands. A NumPy array may have a wider
        dtype, or be a stack that the result fills by broadcasting, as in
        `numpy.matmul`. For exact products of integers it may have any integer dtype that
        holds all entries; for bools it receives the exact sums.
    engine : str, optional
        One of `engines`; by default the engine of the operands.
    plan : Plan, optional
        From `make_plan`, for operands with its k and dtype and any m and n. Replaces
        accuracy, scheme and engine.
    workspace : int, optional
        Limit in bytes for memory in addition to operands and result. It does not change
        the bits of an exact scheme. By default a multiple of operands and result, but
        for large products at most half of the free memory. Native products and products
        of integers ignore it.
    result : "array", "pair", "enclosure", "int64" or "object"
        What is returned:

        - ``"array"``: the product.
        - ``"pair"``: (high, low). high is the correctly rounded product, low the
          remainder, rounded once.
        - ``"enclosure"``: (lower, upper), the two neighbouring floats that enclose the
          exact value; equal if it is a float.
        - ``"int64"``, ``"object"``: the exact product of integers or bools, in int64 or
          as Python integers of any size (NumPy arrays only).

        Pairs and enclosures hold for each component of complex entries, and take no
        prepared operands. For ordinary data they take 1.6 to 2.9 times as long as
        "correct" on a CPU with the compiled core, and little more than "correct" on a
        GPU.
    out_dtype : dtype, optional
        The dtype of the result: float16, bfloat16, float32, float64, complex64 or
        complex128, by name or as a dtype of the library. By default the dtype of the
        product. For a wider dtype the operands are converted first. For a narrower one
        "correct", `Relative` and numbers below 8 u of the product's dtype round the
        exact value once; other accuracies round a second time. "correct" then takes as
        long as an enclosure. `out` has this dtype.
    return_report : bool
        Return (result, Report).

    Returns
    -------
    array, or (array, Report). For "pair" and "enclosure" a pair of arrays instead of
    the array.

    Raises
    ------
    PlanError
        Unknown options, a plan for another k or dtype, a workspace that is too small.
    AccuracyError
        The scheme that you named cannot keep the accuracy for these operands. An entry
        of an exact integer product lies beyond the dtype; the message has its index and
        value. Strict mode rejects a native product (see `strict`). The thread flushes
        subnormal numbers to zero or does not round to nearest, and the library cannot
        change that; it can under Linux and macOS on x86-64 and aarch64.
    ValueError, TypeError
        Shapes or dtypes do not fit. PyTorch differentiates, batches or traces a tensor,
        and an option does not support that.

    Notes
    -----
    *Accuracies.* u is the unit roundoff of the result's dtype, |A||B| the product of
    the magnitudes. In every entry:

    - A number r: |C - AB| <= r |A||B| + u |AB|. Results below 2.2e-308 in float64
      (1.2e-38 in float32) may be off by another half of the smallest subnormal number.
    - `Relative(r)`: |C - AB| <= r |AB|.
    - `Invariant(r)`: |C - AB| <= r |a_i| |b_j| + u |AB|, with Euclidean norms.
    - "fp64", "fp32": r = max(4, sqrt(k)/4) u of that format. A native product is
      accepted too; the report states its worst case, k u / (1 - k u), with 2 k for
      complex operands. `strict` rejects it if that exceeds r.
    - Complex entries: the promise holds for the real and the imaginary part, with
      |A||B| of the real embedding.
    - A narrower `out_dtype`, with None or a level: |C - AB| <= (1 + u) (r + v) |A||B| +
      u |AB|, with v the unit roundoff of the product's own dtype. Below the smallest
      normal number of either dtype, add half of its smallest subnormal number.

    *Dtypes.* Mixed dtypes promote as in NumPy; bfloat16 and float32 give float32. Two
    operands of float16, or of bfloat16 (PyTorch and ml_dtypes), give float32 or
    `out_dtype`. Integers and bools wrap around in their promoted dtype, as in
    `numpy.matmul`. With an accuracy or a kind of `result`, every entry is exact, or
    AccuracyError is raised. int64 and uint64 promote to float64, as in NumPy; only a
    kind of `result` makes their product exact. An operand that would be rounded, or
    would lose a mask, a unit or labels, raises TypeError.

    *Exact numbers.* Matrices of mpmath and python-flint, and lists or arrays of their
    numbers, of gmpy2 numbers, fractions, decimals and large integers are accepted if
    each entry is the sum of up to four float64 numbers. Products of such integers, and
    of Python integers in lists, are exact if int64 or uint64 holds them, or
    AccuracyError is raised.

    *On a GPU* the default call, and a scheme with an explicit count, never wait for the
    device and can be captured in a CUDA graph; a report waits when you read it. Tighter
    accuracies, "correct" and integers wait once.
    """
    key = None
    refused = None
    try:
        # A call like an earlier one runs its program again. Tensors have a key only if
        # PyTorch records none of them. For a prepared tensor the key is computed
        # further down, out of sight of torch.compile.
        if not (is_compiled() or is_prepared_tensor(a) or is_prepared_tensor(b)):
            key = key_of(
                a,
                b,
                out,
                accuracy,
                scheme,
                engine,
                workspace,
                return_report,
                result,
                plan=plan,
                out_dtype=out_dtype,
            )
            replayed = replay(key, (a, b, out), out, return_report)
            if isinstance(replayed, Refused):
                refused = replayed
            elif replayed is not None:
                return replayed
        if type(a) is not np.ndarray:
            is_array = isinstance(result, str) and result == "array"
            has_options = plan is not None or out is not None or engine is not None
            if key is None and is_array and not (has_options or return_report):
                if belongs_to_torch(a, b):
                    from hifigemm.differentiable import torch_operators

                    return torch_operators.matmul(
                        a, b, accuracy, scheme, workspace, out_dtype
                    )
                if out_dtype is None and belongs_to_jax(a, b):
                    from hifigemm.differentiable import jax_primitive

                    return jax_primitive.matmul(a, b, accuracy, scheme, workspace)
        return product_of_numbers(
            a,
            b,
            accuracy,
            scheme,
            out,
            engine,
            plan,
            workspace,
            return_report,
            result,
            out_dtype=out_dtype,
            key=key,
            refused=refused,
        )
    except BaseException as error:
        mark_incomplete(error, out)
        raise


@opaque
def make_plan(
    a: Operand,
    b: Operand,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
) -> Plan:
    """The plan of `matmul` for these operands; ``print(plan)`` explains it.

    You may pass the plan to `matmul`, `gemm` and `prepare`, for any operands with the
    same k and promoted dtype.

    Parameters
    ----------
    a, b, accuracy, scheme, engine, workspace
        As for `matmul`.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, b = np.ones((3, 4)), np.ones((4, 2))
    >>> plan = hg.make_plan(a, b, accuracy="correct")
    >>> plan.scheme, plan.bound
    (DoubleDouble(), 0.0)
    >>> hg.matmul(a[:1], b, plan=plan)
    array([[4., 4.]])
    """
    return plan_of_numbers(
        a, b, accuracy=accuracy, scheme=scheme, engine=engine, workspace=workspace
    )


@opaque
def warmup(a: Operand, b: Operand, **options: Unpack[Asked]) -> str:
    """Compile what products of such operands need; return a summary such as "7 kernels
    compiled or loaded, 2.7 s".

    On a GPU the first product of a kind compiles its kernels in parallel. This takes
    seconds, or tenths of a second if Triton's cache on disk has them. Later products
    with the same dtypes, shapes and strides compile nothing, other products little. The
    values of the operands matter only for accuracies tighter than the level, with no
    explicit count.

    Parameters
    ----------
    a, b : array_like or Prepared
        As for `matmul`, with any values. The product is computed and discarded.
    **options
        accuracy, scheme, engine, plan and workspace, as for `matmul`.

    Returns
    -------
    str
        The number of kernels that were new in this process, and the time of the call.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> hg.warmup(np.ones((3, 4)), np.ones((4, 2)), accuracy="correct")
    ... # doctest: +ELLIPSIS
    '0 kernels compiled or loaded, ... s'
    """
    kernels_before = _num_kernels()
    started = time.perf_counter()
    cast(Any, matmul)(a, b, **options)
    seconds = time.perf_counter() - started
    kernels = counted(_num_kernels() - kernels_before, "kernel", "kernels")
    return f"{kernels} compiled or loaded, {seconds:.2g} s"


def _num_kernels() -> int:
    """Number of kernels that were compiled or loaded in this process."""
    launch = sys.modules.get("hifigemm.kernels.runtime.launch")
    return 0 if launch is None else launch.num_kernels()


@overload
def prepare(
    a: Arrays,
    side: Literal["left", "right"],
    *,
    plan: Plan | None = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
) -> Prepared[NDArray[Any]]: ...
@overload
def prepare(
    a: AnyTensor,
    side: Literal["left", "right"],
    *,
    plan: Plan | None = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
) -> Prepared[AnyTensor]: ...
@opaque
def prepare(
    a: object,
    side: Literal["left", "right"],
    *,
    plan: Plan | None = None,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
) -> Prepared:
    """An operand with the first steps of its products done; pass it instead of a or b.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> b = hg.prepare(np.ones((3, 1)), "right", accuracy="correct")
    >>> hg.matmul(np.array([[1e16, 1.0, -1e16]]), b)
    array([[1.]])

    Parameters
    ----------
    a : array_like
        The operand. It is copied, so you may change it afterwards.
    side : "left" or "right"
        Its side of the product.
    accuracy, scheme
        As for `matmul`, for all products with this operand.
    plan : Plan, optional
        From `make_plan`, for operands with this k and dtype, instead of accuracy and
        scheme. Two prepared operands of one product need the same accuracy and scheme,
        or the same plan.

    Returns
    -------
    Prepared
        Products with it have the same bits as with the operand itself. It saves time
        for schemes with an explicit number of slices or moduli, and on a GPU for
        "correct". For Ozaki2 with accurate scaling, whose scales depend on both
        operands, and for native products it saves nothing.

    Raises
    ------
    PlanError
        A plan together with an accuracy or a scheme, or for another k or dtype; an
        operand that is already prepared.
    """
    return prepared(a, side, plan, accuracy, scheme)
