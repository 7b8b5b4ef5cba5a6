"""Steps of the functions besides products, for the arrays of all libraries.

PyTorch and JAX differentiate all of them, and they copy only where no view exists.
Arrays that JAX traces belong to no device. CuPy makes arrays on its current device.
torch.compile traces the functions, so builtins get lists, not generators, and nothing
of NumPy or the standard library is used that it does not follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np

from hifigemm.base.transforms import belongs_to_jax, check_dense, is_traced
from hifigemm.libraries import AnyArray, library_of
from hifigemm.libraries.array_like import holds_python_integers
from hifigemm.operands.exact_operands import are_integers_of_64_bits
from hifigemm.operands.operands import Prepared, converted

_PLAIN = frozenset(np.dtype(char) for char in "fdFD")
"""Dtypes of NumPy, in this machine's order of bytes, that are multiplied as they are."""
_WIDENED = {"float16": "float32", "bfloat16": "float32"}
"""Names of dtypes whose products are those of another one."""
ROUNDOFFS = {
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
}
"""Unit roundoffs by the name of a dtype; products of other dtypes are exact."""


def as_arrays(*operands: tuple[str, Any]) -> list[AnyArray]:
    """The named operands as arrays of the library that they have in common.

    Lists and scalars become arrays of NumPy. Raises TypeError or ValueError: operands
    of different libraries or devices, prepared operands, and operands for which
    `array_like.as_array` raises.
    """
    for name, x in operands:
        if isinstance(x, Prepared):
            raise TypeError(
                f"{name} is a prepared operand of shape {x.shape}; only matmul takes it, pass the array itself"
            )
    if belongs_to_jax(*(x for _, x in operands)):
        return [x for _, x in operands]

    # Lists and scalars become arrays; arrays of other libraries stay as they are.
    library = library_of(*operands)
    if library.name == "numpy":
        return [library.asarray(x, name) for name, x in operands]
    for name, x in operands:
        if not library.owns(x):
            raise TypeError(
                f"{name} is a {type(x).__name__}; expected an array of {library}"
            )
        if library.name == "torch":
            check_dense(x, name)
    return [x for _, x in operands]


def plain_arrays(operands: Collection[Any]) -> list[AnyArray] | None:
    """The operands of a call, if these are arrays of NumPy, or tensors of one device, that a
    product takes as they are; else None.
    """
    arrays: list[AnyArray] = []
    for x in operands:
        if type(x) is not np.ndarray or x.dtype not in _PLAIN:
            return _plain_tensors(operands)
        arrays.append(x)
    return arrays


def _plain_tensors(operands: Collection[Any]) -> list[AnyArray] | None:
    """The operands of a call, if these are dense tensors of one device; else None."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    tensors: list[Any] = []
    for x in operands:
        if type(x) is not torch.Tensor or not (x.is_cpu or x.is_cuda):
            return None
        if tensors and x.device != tensors[0].device:
            return None
        if x.is_nested or x.is_quantized or x.layout is not torch.strided:
            return None
        tensors.append(x)
    return tensors


def never_wrap(operands: Sequence[tuple[str, Any]], arrays: Sequence[Any]) -> bool:
    """True if some of the named operands, which are these arrays now, hold integers
    that never wrap around, as those of Python.
    """
    for (_, source), x in zip(operands, arrays):
        if not isinstance(x, np.ndarray):
            return False
        if x.dtype.kind == "O":
            return True
        if x.dtype.kind in "iu" and holds_python_integers(source):
            return True
    return False


def as_objects(x: Any) -> Any:
    """An array of NumPy, integers as those of Python."""
    return x.astype(object) if x.dtype.kind in "iu" else x


def dtype_name(x: Any) -> str:
    """The name of the dtype in which a product has the numbers of an array: int64 or
    float64 for objects.
    """
    name = str(x.dtype).removeprefix("torch.")
    if name != "object":
        return name
    return "int64" if are_integers_of_64_bits(x) else "float64"


def dtype_of_product(a: str, b: str) -> str:
    """The name of the dtype of a product, from those of its operands' dtypes.

    It is that of `a` if NumPy promotes them to none, in which case the product raises.
    torch.compile takes it as a constant.
    """
    try:
        dtypes = [np.dtype(_WIDENED.get(name, name)) for name in (a, b)]
        return str(np.result_type(*dtypes))
    except TypeError:
        return a


dtype_of_product._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def promoted(arrays: Sequence[Any]) -> list[AnyArray]:
    """Arrays of one library in the dtype to which NumPy promotes all their dtypes.

    Raises ValueError: integers that the dtype cannot hold exactly.
    """
    for x in arrays:
        if x.dtype != arrays[0].dtype:
            break
    else:
        return list(arrays)
    if belongs_to_jax(*arrays):
        from hifigemm.differentiable import jax_primitive

        return jax_primitive.promoted(arrays)
    library = library_of(*((f"operand {i}", x) for i, x in enumerate(arrays)))
    if library.name == "numpy":
        dtype = np.result_type(*(x.dtype for x in arrays))
        return [converted(x, dtype) for x in arrays]

    # Tensors without integers, in terms that torch.compile follows.
    xp = namespace(arrays[0])
    if library.name == "torch" and all([_is_inexact(x) for x in arrays]):  # noqa: C419 torch.compile
        dtypes = [xp.float32 if x.dtype == xp.bfloat16 else x.dtype for x in arrays]
        common = reduce(xp.promote_types, dtypes)
        return [x.to(common) for x in arrays]

    # Other arrays, whose integers are checked where they are converted. NumPy has no
    # bfloat16, all of whose numbers float32 holds.
    names = []
    for x in arrays:
        name = str(x.dtype).removeprefix("torch.")
        names.append("float32" if name == "bfloat16" else name)
    dtype = np.result_type(*names)

    def in_dtype(x: Any, name: str) -> Any:
        if library.name == "cupy" and x.dtype.kind not in "iu":
            return x.astype(dtype, copy=False)
        if library.name == "torch" and _is_inexact(x):
            return x.to(getattr(xp, dtype.name))
        with library.active():
            return library.to_native(converted(library.asarray(x, name), dtype))

    return [in_dtype(x, f"operand {i}") for i, x in enumerate(arrays)]


def _is_inexact(x: Any) -> bool:
    """True if a tensor has floating-point entries, real or complex."""
    return bool(x.is_floating_point() or x.is_complex())


def namespace(x: AnyArray) -> Any:
    """The module of functions for an array; it is loaded if there is an array."""
    if isinstance(x, np.ndarray):
        return np
    if belongs_to_jax(x):
        return sys.modules["jax.numpy"]
    return sys.modules[library_of(("x", x)).name]


def shape_of(x: AnyArray) -> tuple[int, ...]:
    """The shape as a tuple, as NumPy has it."""
    return tuple(x.shape)


def permute(x: Any, order: Sequence[int]) -> AnyArray:
    """A view of x with its axes in this order."""
    # PyTorch has another name for what the others call so.
    move: Callable[..., AnyArray] = x.permute if hasattr(x, "permute") else x.transpose
    return move(tuple(order))


def expand(x: AnyArray, shape: Sequence[int]) -> AnyArray:
    """A view of x broadcast to this shape."""
    return namespace(x).broadcast_to(x, tuple(shape))


def diagonal(x: AnyArray, axis1: int, axis2: int) -> AnyArray:
    """A view of the entries with equal indices on two axes.

    Their common axis is the last one.
    """
    return x.diagonal(0, axis1, axis2)


def conj(x: AnyArray) -> AnyArray:
    """x with its imaginary parts negated; x itself if it is real."""
    return x.conj()


def ones(shape: Sequence[int], like: AnyArray) -> AnyArray:
    """Ones with the dtype and on the device of another array."""
    return namespace(like).ones(tuple(shape), dtype=like.dtype, **_on_device_of(like))


def identities(like: AnyArray) -> AnyArray:
    """An identity matrix for each square matrix of a stack."""
    xp = namespace(like)
    identity = xp.eye(like.shape[-1], dtype=like.dtype, **_on_device_of(like))
    return xp.zeros_like(like) + identity


def _on_device_of(like: Any) -> dict[str, Any]:
    """The arguments that make an array on the device of another one."""
    if isinstance(like, np.ndarray) or is_traced(like) or _is_of_cupy(like):
        return {}
    return {"device": like.device}


def _is_of_cupy(x: AnyArray) -> bool:
    """True for an array of CuPy."""
    return not belongs_to_jax(x) and library_of(("x", x)).name == "cupy"


def join(arrays: Sequence[AnyArray], axis: int) -> AnyArray:
    """A new array: these ones, one after the other along an axis."""
    return namespace(arrays[0]).concatenate(tuple(arrays), axis)


def mirrored(x: AnyArray, conjugate: bool) -> AnyArray:
    """Square matrices whose lower triangle is mirrored into the upper one.

    With `conjugate` they become Hermitian, with a real diagonal.
    """
    xp = namespace(x)
    lower = xp.tril(xp.ones_like(x, dtype=xp.bool))
    if not conjugate:
        return xp.where(lower, x, x.mT)
    hermitian = xp.where(lower, x, conj(x.mT))
    is_diagonal = lower & lower.mT
    real = _as_complex(xp.real(hermitian), hermitian)
    return xp.where(is_diagonal, real, hermitian)


def _as_complex(re: Any, like: AnyArray) -> AnyArray:
    """Real numbers in the dtype of another array.

    There is no arithmetic, in which XLA would flush subnormal numbers to zero.
    """
    if re.dtype == like.dtype:
        return re
    if isinstance(like, np.ndarray) or _is_of_cupy(like):
        return re.astype(like.dtype)
    if belongs_to_jax(like):
        from jax import lax

        return lax.complex(re, lax.full_like(re, 0))
    xp = namespace(like)
    return xp.complex(re, xp.zeros_like(re))


def unit_roundoff(x: AnyArray) -> float:
    """The unit roundoff of the dtype of an array, 0 for integers and bools."""
    if not belongs_to_jax(x):
        x = library_of(("x", x)).asarray(x, "x")
    if x.dtype.kind not in "fc":
        return 0.0
    return float(np.finfo(x.dtype).eps) / 2
