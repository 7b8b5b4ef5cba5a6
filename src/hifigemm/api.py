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
    """A B to an accuracy that is asked for and kept.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1e16, 1.0, -1e16]])
    >>> a @ np.ones((3, 1)), hg.matmul(a, np.ones((3, 1)), accuracy="correct")
    (array([[0.]]), array([[1.]]))
    >>> high, low = hg.matmul([[1e16, 1.0]], [[1.0], [0.5]], result="pair")
    >>> high, low
    (array([[1.e+16]]), array([[0.5]]))
    >>> i = np.array([[100, 27]], np.int8)
    >>> hg.matmul(i, i.T), hg.matmul(i, i.T, result="int64")
    (array([[-23]], dtype=int8), array([[10729]]))
    >>> hg.matmul(i.astype(np.uint64) << 57, i.T, result="object")
    array([[1546211852865857650688]], dtype=object)
    >>> x, y = np.array([[1, 2**-11, 2**-24]], np.float16), np.ones((3, 1), np.float16)
    >>> hg.matmul(x, y, accuracy="correct").astype(np.float16)
    array([[1.]], dtype=float16)
    >>> hg.matmul(x, y, accuracy="correct", out_dtype="float16")
    array([[1.001]], dtype=float16)

    Parameters
    ----------
    a, b : array_like or Prepared
        float32, float64, complex64 or complex128, with shapes and strides as for
        `numpy.matmul`: vectors, matrices, stacks that broadcast. Both are of one
        library (NumPy, PyTorch, CuPy or JAX) and of one device, and so is the result.
        Other dtypes are in the notes.
    accuracy : None, float, "fp32", "fp64", "correct", Relative or Invariant
        What holds in every entry of the result, for all data:

        - ``"correct"``: the exact value rounded once, to nearest, ties to even.
        - ``Relative(1e-12)``: a relative error of at most 1e-12, however much the terms
          cancel.
        - ``1e-12``: an error of at most 1e-12 times the sum of the magnitudes of the
          terms, and one rounding. ``0`` leaves that rounding alone: it is
          ``"correct"``.
        - ``"fp64"``, ``"fp32"``: what is usual for that format, for which a native
          product is good enough.
        - None: what is usual for the dtype of the result.
        - ``Invariant(1e-7)``: the same bits of a row in any batch and on any device,
          and an error relative to the norms of a row of A and a column of B.

        The notes have the formulas.
    scheme : "auto", "native", "multiword", "corrected", "ozaki1", "ozaki2", "double-double", or ``Ozaki1("fp64")``
        How it is computed. A scheme that is named is obeyed. Without an accuracy, one
        with an explicit count or mode, and "multiword" and "corrected", promise only
        what the report states.
    out : array, optional
        Receives the result; may be one of the operands. An array of NumPy may have a
        wider dtype, or be a stack that the result fills by broadcasting, as in
        `numpy.matmul`. Where integers are to be exact it may have any dtype of
        integers, which every entry then has to fit; of bools it takes the exact sums.
    engine : str, optional
        See `engines`; None takes the one of the operands.
    plan : Plan, optional
        From `make_plan`, for any operands of its k and dtype, whatever their m and n;
        replaces accuracy, scheme and engine.
    workspace : int, optional
        Limit in bytes for what a scheme holds besides operands and result. It changes
        no bit of an exact scheme. None takes a multiple of operands and result, but for
        large products at most half of the free memory. A native product, and one of
        integers, takes no notice of it.
    result : "array", "pair", "enclosure", "int64" or "object"
        What is returned:

        - ``"array"``: the product.
        - ``"pair"``: (high, low), high the correctly rounded product and low what is
          left of the exact one, rounded once.
        - ``"enclosure"``: (lower, upper), the two neighbouring floats between which the
          exact value lies, equal where it is a float.
        - ``"int64"``, ``"object"``: the exact product of integers or bools, in int64 or
          as Python integers of any size; the latter for arrays of NumPy alone.

        Pairs and enclosures are by component of complex entries. They cost three to
        four times as much as "correct" on a CPU and little more on a GPU, and take no
        prepared operands.
    out_dtype : dtype, optional
        The dtype of the result: float16, bfloat16, float32, float64, complex64 or
        complex128, by its name or as a dtype of the library; by default the dtype of the
        product. For a wider one the operands are converted first. To a narrower one the
        exact value is rounded once for "correct", for `Relative` and for numbers below 8 u
        of the product's dtype; other results are rounded a second time, see the notes.
        `out` then has this dtype.
    return_report : bool
        Return (result, Report).

    Returns
    -------
    array, or (array, Report); a pair of arrays instead of the array for "pair" and
    "enclosure"

    Raises
    ------
    PlanError
        Unknown options, a plan for another k or dtype, a workspace too small.
    AccuracyError
        The scheme that was named cannot keep the accuracy for these operands. An entry
        of exact integers lies beyond the dtype of the result; the message has its index
        and value. Strict mode refuses a native product (see `strict`). The thread
        flushes subnormal numbers to zero or does not round to nearest, and its mode
        cannot be changed for the call, as it is under Linux and macOS on x86-64 and
        aarch64.
    ValueError, TypeError
        Shapes or dtypes that do not fit; tensors that PyTorch differentiates, batches
        or traces beside an option that it cannot follow.

    Notes
    -----
    *Accuracies.* u is the unit roundoff of the result's dtype, |A||B| the product of
    the magnitudes.

    - A number r: |C - AB| <= r |A||B| + u |AB| in every entry. Results below 2.2e-308
      in float64 (1.2e-38 in float32) may be off by another half of the smallest
      subnormal number.
    - `Relative(r)`: |C - AB| <= r |AB|.
    - `Invariant(r)`: |C - AB| <= r |a_i| |b_j| + u |AB|, with Euclidean norms.
    - "fp64", "fp32": r = max(4, sqrt(k)/4) u of that format. A native product is
      accepted too; the report states its worst case, k u / (1 - k u), with 2 k for
      complex operands. `strict` refuses it if that exceeds r.
    - `out_dtype`: u is that of the result's dtype, and a number r holds as it stands.
      None and levels promise r |A||B| + v |AB| of the product in its own dtype, v the
      unit roundoff of that, and |C - AB| <= (1 + u) (r + v) |A||B| + u |AB| of the
      result, as the report states. Below the smallest normal number of either dtype,
      half of its smallest subnormal number comes on top. "correct" takes the time of an
      enclosure.
    - Complex entries: the promise holds for re and im, with |A||B| of the real
      embedding.

    *Dtypes.* Mixed dtypes promote as in NumPy; bfloat16 beside float32 gives float32,
    and on a CPU a copy of it is converted. Two operands of float16, or of bfloat16
    of PyTorch and ml_dtypes, give float32, or what `out_dtype` asks for.
    Integers and bools give their promoted dtype and wrap around, as in `numpy.matmul`;
    with an accuracy or a kind of `result` every
    entry is exact, or an error. (NumPy makes float64 of int64 beside uint64: only a
    kind of `result` makes their product exact.) What would be rounded, or lose a mask, a unit or
    labels, raises TypeError.

    *Exact numbers.* Matrices of mpmath and python-flint, and lists or arrays of their
    numbers, of gmpy2's, of fractions, decimals and large integers are taken if each
    entry is the sum of up to four float64 numbers. Integers among them that int64 or
    uint64 holds, those of Python in lists too, do not wrap around: their product is
    exact, or an error.

    *On a GPU* the default call, and one with an explicit count, never waits for the
    device and can be captured in a CUDA graph; its report waits when it is read.
    Tighter accuracies, "correct" and integers wait once.
    """
    key = None
    refused = None
    try:
        # A call like an earlier one runs what that one has run. Tensors have a key only
        # if PyTorch follows none of them. The key of a prepared tensor is made further
        # down, where torch.compile does not look.
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
    """The plan that `matmul` would follow for these operands; ``print(plan)`` explains
    itself.

    The plan may be passed to `matmul`, `gemm` and `prepare` for any operands of the
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
    """What was done ahead of the first product of operands like these, and how long it
    took: "7 kernels compiled or loaded, 2.7 s".

    On a GPU the first product of a kind compiles its kernels side by side: seconds, or
    tenths of one where Triton's cache on disk has them. Kernels serve all layouts of
    the operands, and most of them several shapes, so that later calls of another kind
    compile few. Products of other operands with the same dtypes, shapes and strides
    compile nothing. Values matter only where counts are left open at an accuracy
    tighter than the level.

    Parameters
    ----------
    a, b : array_like or Prepared
        As for `matmul`, with any values. The product is made, and dropped.
    **options
        accuracy, scheme, engine, plan and workspace, as for `matmul`.

    Returns
    -------
    str
        The kernels that were new in this process, and the seconds of the whole call.

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
    """Kernels that were compiled or loaded in this process, none before the first
    one.
    """
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
    """An operand with the work done that products begin with; use it in place of a or b.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> b = hg.prepare(np.ones((3, 1)), "right", accuracy="correct")
    >>> hg.matmul(np.array([[1e16, 1.0, -1e16]]), b)
    array([[1.]])

    Parameters
    ----------
    a : array_like
        The operand. It is copied, so later changes of it do not reach the prepared one.
    side : "left" or "right"
        Where it will stand.
    accuracy, scheme
        As for `matmul`: what is asked of products with this operand. They are planned
        for their own operands, as without preparation.
    plan : Plan, optional
        From `make_plan`, for operands of this k and dtype, in place of a request. Two
        prepared operands of one product share one request or one plan.

    Returns
    -------
    Prepared
        Gives the same bits as the operand itself under the same request or plan. Kept
        beside the copy are slices and residues of a forced number, and on a GPU the
        residues of "correct" products. Where scales rest on both operands (Ozaki2 with
        accurate scaling), and for the native product, the copy is all: products then
        take as long as without preparation.

    Raises
    ------
    PlanError
        A plan beside an accuracy or a scheme, or for another k or dtype; an operand
        that is prepared already.
    """
    return prepared(a, side, plan, accuracy, scheme)
