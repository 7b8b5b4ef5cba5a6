"""Operands in, results out: what `matmul` accepts, made a stack of two-dimensional
products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import BF16, FP16, Format
from hifigemm.engines.arrays import memory_of
from hifigemm.libraries import BFLOAT16, Library
from hifigemm.libraries.array_like import kind_of, shown
from hifigemm.libraries.torch_tensors import device_array
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem, counted
from hifigemm.numerics.bits import Array, DType

_DTYPES = tuple(np.dtype(t) for t in ("float32", "float64", "complex64", "complex128"))
_NARROW = {np.dtype(np.float16): FP16, BFLOAT16: BF16}
_SINGLE = np.dtype(np.float32)
_FEW = 2**22
"""Entries of an array whose addresses are compared one by one."""
_FLOATS = "float16, bfloat16, float32, float64, complex64 or complex128"
_EXPECTED = f"expected {_FLOATS}"
EXPECTED_NUMBERS = f"expected integers, bools, {_FLOATS}"
"""What operands may hold, for messages."""


_Source_co = TypeVar("_Source_co", covariant=True)
"""The type of the array or tensor that was prepared."""


@dataclass(frozen=True, eq=False)
class Prepared(Generic[_Source_co]):
    """A copy of an operand with the first steps of its products done: see `prepare`.

    Pass it to `matmul` or `gemm` instead of the operand.

    Attributes
    ----------
    shape, dtype
        Shape and dtype of the operand.
    side : "left" or "right"
        Its side of the product.
    plan : Plan
        The plan that you passed to `prepare`. Otherwise the plan for the product with
        its own transpose; its products do not follow that plan.
    asked : (accuracy, scheme) or None
        The accuracy and scheme of its products; None if it was prepared for a plan.
    """

    operand: Array
    split: Any  # see `hifigemm.model.executable.Splits`
    side: str
    plan: Plan
    library: Library
    asked: tuple[Accuracy, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        return self.operand.shape

    @property
    def dtype(self) -> DType:
        """Dtype of the operand."""
        return self.operand.dtype

    def __repr__(self) -> str:
        planes = "no planes"
        if self.split is not None:
            planes = counted(self.split.count, "plane")
        return f"Prepared({self.side}, shape={self.shape}, {self.dtype}, {planes}, {self.plan.scheme})"


def as_operand(x: object, name: str, library: Library) -> Array | Prepared:
    """x as an array of at least one dimension, or as the Prepared that it is.

    Raises TypeError: what is not numeric, and what `Library.asarray` refuses.
    ValueError: zero-dimensional operands.
    """
    if isinstance(x, Prepared):
        return x
    x = _numbers(x, name, library)
    if x.ndim == 0:
        raise ValueError(
            f"{name} is a scalar; matmul takes arrays of one or more dimensions"
        )
    return x


def as_addend(x: object, library: Library) -> Array:
    """C, which may be a scalar; errors as of `as_operand`."""
    if isinstance(x, Prepared):
        raise TypeError("c is a prepared operand; pass the array itself")
    return widened(_numbers(x, "c", library))


def _numbers(x: object, name: str, library: Library) -> Array:
    """x as an array of numbers, or of objects, which `exact_operands` reads."""
    x = library.asarray(x, name)
    if x.dtype.kind == "O" and x.ndim:
        return x
    kinds = (np.number, np.bool_)
    if x.dtype.kind in "fcbiu" and issubclass(x.dtype.type, kinds):
        return x
    if x.dtype == BFLOAT16 and not library.on_host:
        return x
    value = ""
    if x.dtype.kind == "O":
        value = f" and is {shown(x[()])}, a {kind_of(x[()])}"
    raise TypeError(f"{name} has dtype {x.dtype}{value}; {EXPECTED_NUMBERS}")


def result_dtype(*dtypes: DType | complex) -> DType:
    """The dtype NumPy promotes to, float32 for float16 and bfloat16, if it is one of
    the four of results.

    A scalar of Python among them counts as NumPy counts it.
    """
    # NumPy does not have bfloat16, which float32 holds.
    known = [
        _SINGLE if isinstance(x, np.dtype) and x == BFLOAT16 else x for x in dtypes
    ]
    dtype = np.result_type(*known)
    if dtype in _NARROW:
        return _SINGLE
    if dtype in _DTYPES:
        return dtype
    names = [str(x) if isinstance(x, np.dtype) else type(x).__name__ for x in dtypes]
    raise TypeError(
        f"operands of {', '.join(names)} promote to {dtype}; {_EXPECTED}: convert one of them"
    )


def name_of_dtype(dtype: DType) -> str:
    """The name of a dtype, of the one that stands for bfloat16 too, for messages."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


def common_narrow(a: DType, b: DType) -> Format | None:
    """FP16 or BF16 where both operands have that dtype."""
    return _NARROW.get(a) if a == b else None


def widened(x: Array) -> Array:
    """float16 and bfloat16 in float32, all else as it is."""
    return x.astype(_SINGLE) if x.dtype in _NARROW else x


def check_addend(shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    """Raise ValueError unless a C of this shape stands for one of the result's."""
    if not has_broadcast_shape(shape, result):
        raise ValueError(f"c has shape {shape}; the result has shape {result}")


def has_broadcast_shape(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """True if an array of the one shape broadcasts to the other."""
    axes = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(n in (1, m) for n, m in axes)


def check_scalars(dtype: DType, **scalars: complex) -> None:
    """Raise TypeError for scalars that are complex where the result is real."""
    for name, value in scalars.items():
        if isinstance(value, complex) and dtype.kind != "c":
            raise TypeError(
                f"{name} = {value} is complex, and the result has dtype {dtype}"
            )


@dataclass(frozen=True)
class Shapes:
    """How a product of operands of any dimension is a stack of two-dimensional ones."""

    result: tuple[int, ...]  # shape of the result
    left: tuple[int, int, int]  # shape of the operand as a stack, (batch or 1, m, k)
    right: tuple[int, int, int]  # (batch or 1, k, n)
    batch: tuple[int, ...]  # shape of the stack that both are broadcast to

    @property
    def stack(self) -> tuple[int, int, int]:
        """Shape of the result as a stack, (batch, m, n); it has as many matrices as the
        longer operand, none where one is empty.
        """
        lengths = self.left[0], self.right[0]
        batch = 0 if 0 in lengths else max(lengths)
        return batch, self.left[1], self.right[2]


def shapes_of(a: tuple[int, ...], b: tuple[int, ...]) -> Shapes:
    """Shapes for `matmul` of the Array API: vectors, stacks with broadcasting, empty
    dimensions.

    Raises ValueError: inner dimensions that differ, stacks that do not broadcast.
    """
    # A vector a is a row and has no m in the result, a vector b a column without n.
    m = a[-2] if len(a) > 1 else 1
    k = a[-1]
    rows = b[-2] if len(b) > 1 else b[0]
    n = b[-1] if len(b) > 1 else 1
    if k != rows:
        raise ValueError(
            f"inner dimensions differ: a has shape {a} with k = {k}, b has shape {b} with k = {rows}"
        )
    batch = broadcast_stacks(a[:-2], b[:-2])
    result = batch
    if len(a) > 1:
        result += (m,)
    if len(b) > 1:
        result += (n,)

    count = math.prod(batch)
    count_a = math.prod(a[:-2])
    count_b = math.prod(b[:-2])
    if count_b == 1 and count_a == count:
        # The matrices of a stand below each other: one product makes all of them.
        return Shapes(result, (1, count * m, k), (1, k, n), batch)
    left = 1 if count_a == 1 else count
    right = 1 if count_b == 1 else count
    return Shapes(result, (left, m, k), (right, k, n), batch)


def broadcast_stacks(
    a: tuple[int, ...], b: tuple[int, ...], names: tuple[str, str] = ("a", "b")
) -> tuple[int, ...]:
    """The stack to which two broadcast; `np.broadcast_shapes` takes 32 axes and no more.

    Raises ValueError: they do not broadcast.
    """
    axes = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(m != n and 1 not in (m, n) for m, n in axes):
        raise ValueError(
            f"stacks {a} of {names[0]} and {b} of {names[1]} do not broadcast"
        )
    lengths = [n if m == 1 else m for m, n in axes]
    return tuple(reversed(lengths))


def converted(x: Array, dtype: DType) -> Array:
    """x in this dtype, itself where it has it.

    Raises ValueError: integers that the dtype cannot hold exactly.
    """
    if x.dtype == dtype:
        return x
    y = widened(x).astype(dtype, copy=False)
    is_integer = x.dtype.kind in "iu"
    if not is_integer or np.abs(y.real).max(initial=0) < 2.0**53:
        return y

    # Rounded integers differ after the way back, which those must not go that were
    # rounded to a number beyond their dtype.
    num_bits = 64 if x.dtype.kind == "u" else 63
    is_beyond = y.real >= 2.0**num_bits
    if is_beyond.any() or not (y.real.astype(x.dtype) == x).all():
        raise ValueError(
            f"integers of {x.dtype} beyond 2**53 are not exact in {dtype}; convert them first"
        )
    return y


def stacked(
    x: Array,
    shape: tuple[int, int, int],
    batch: tuple[int, ...],
    dtype: DType | None,
) -> Array:
    """x as a stack of this shape and dtype, a view where possible; None stands for the
    dtype of x. Errors are those of `converted`.
    """
    if dtype is not None:
        x = converted(x, dtype)
    matrix = x.shape[-2:] if x.ndim > 1 else shape[1:]
    stack = x.shape[:-2]
    if shape[0] not in (1, math.prod(stack)):
        x = np.broadcast_to(x.reshape(stack + matrix), batch + matrix)
    return x.reshape(shape)


def as_out(out: object) -> Any:
    """`out`, which may be the only entry of a tuple as NumPy takes it."""
    if isinstance(out, tuple):
        if len(out) != 1:
            raise TypeError(
                f"out is a tuple of {len(out)}; expected an array, or a tuple of one"
            )
        return out[0]
    return out


def check_out(out: Any, shapes: Shapes, dtype: DType, library: Library) -> None:
    """Raise unless `out` is an array of the operands' library that can take the result.

    As in NumPy, an array of NumPy may stand for a stack of results and have a wider
    dtype, but none that would round.

    Raises TypeError, ValueError: no array, another shape or dtype, a read-only array.
    """
    if not library.owns(out) or isinstance(out, np.generic):
        raise TypeError(
            f"out is a {type(out).__name__}; expected an array of {library}"
        )
    if library.name == "jax":
        raise TypeError(
            "out is a jax.Array, which nothing can be written to: take the result"
        )
    if library.name == "torch" and (out.is_conj() or out.is_neg()):
        raise ValueError(
            "out is a conjugated or negated view; pass out.resolve_conj().resolve_neg()"
        )
    array = library.asarray(out, "out")
    shape = array.shape
    is_numpy = library.name == "numpy"
    if shape != shapes.result and not (is_numpy and _is_stack_of(shape, shapes)):
        raise ValueError(f"out has shape {shape}; the result has shape {shapes.result}")
    if array.dtype != dtype and not (is_numpy and _holds(array.dtype, dtype)):
        raise TypeError(
            f"out has dtype {name_of_dtype(array.dtype)}; the result has dtype "
            f"{name_of_dtype(dtype)}"
        )
    if not array.flags.writeable:
        raise ValueError("out is read-only")
    if _overlap(shape, array.strides, array.dtype.itemsize):
        raise ValueError(
            f"entries of out share memory: its shape is {shape}, its strides are {array.strides}"
        )


def _is_stack_of(shape: tuple[int, ...], shapes: Shapes) -> bool:
    """True if an array of this shape is a stack that the results of these shapes fill
    by broadcasting.
    """
    matrix = shapes.result[len(shapes.batch) :]
    num_axes = len(shape) - len(matrix)
    if num_axes < 0 or shape[num_axes:] != matrix:
        return False
    stack = shape[:num_axes]
    axes = zip_longest(reversed(shapes.batch), reversed(stack), fillvalue=1)
    return all(n in (1, m) for n, m in axes)


def _holds(wide: DType, dtype: DType) -> bool:
    """True if every value of a dtype of results is one of `wide`.

    `np.can_cast` alone would let int64 into float64.
    """
    kinds = {"f": "fc", "c": "c", "b": "biufc"}.get(dtype.kind, "iu")
    return wide.kind in kinds and np.can_cast(dtype, wide, "safe")


def _overlap(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """True if entries of an array overlap, and for large arrays whose strides do not
    rule it out.
    """
    if 0 in shape:
        return False

    # From the smallest stride on, each axis steps over all that lies within the axes
    # before it: then nothing overlaps.
    axes = sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1)
    extent = itemsize
    for stride, n in axes:
        if stride < extent:
            break
        extent += stride * (n - 1)
    else:
        return False
    if math.prod(shape) > _FEW:
        return True

    # The address of each entry.
    starts = np.zeros(1, np.int64)
    for stride, n in axes:
        starts = (starts[:, None] + stride * np.arange(n)).ravel()
    return bool((np.diff(np.sort(starts)) < itemsize).any())


@dataclass(frozen=True)
class Operands:
    """Two operands of one library, and the dtype of their product."""

    a: Array | Prepared
    b: Array | Prepared
    library: Library
    dtype: DType

    @cached_property
    def shapes(self) -> Shapes:
        """The product as a stack of products of matrices."""
        return shapes_of(self.a.shape, self.b.shape)

    @cached_property
    def arrays(self) -> tuple[Array, Array]:
        """The operands themselves, prepared or not."""
        return array_of(self.a), array_of(self.b)

    @property
    def are_prepared(self) -> bool:
        """True if one of them is prepared."""
        return isinstance(self.a, Prepared) or isinstance(self.b, Prepared)

    @property
    def are_floats(self) -> bool:
        """True if each has the dtype of their product, or is float16 or bfloat16."""
        return all(x.dtype == self.dtype or x.dtype in _NARROW for x in self.arrays)

    @property
    def are_empty(self) -> bool:
        """True if one of them has no entries."""
        return 0 in (*self.a.shape, *self.b.shape)

    def problem(self, mirror: str = "") -> Problem:
        """The problem of their product."""
        batch, m, n = self.shapes.stack
        k = self.shapes.left[2]
        narrow = None
        if self.dtype == _SINGLE:
            narrow = common_narrow(self.a.dtype, self.b.dtype)
        return Problem(batch, m, n, k, self.dtype, narrow, mirror)

    def stacks(self, dtype: DType | None) -> tuple[Array, Array]:
        """Both as stacks of matrices of a dtype; None for their own."""
        a, b = self.arrays
        shapes = self.shapes
        left = stacked(a, shapes.left, shapes.batch, dtype)
        right = stacked(b, shapes.right, shapes.batch, dtype)
        return left, right

    def stack_functions(
        self, left: Array, right: Array, dtype: DType | None
    ) -> tuple[Any, Any] | None:
        """Functions that make stacks like these of other operands, from arrays of NumPy
        or tensors; None for an operand that lies in memory as its stack, and None in
        the place of both.
        """
        a, b = self.arrays
        if _is_in_place(a, left) and _is_in_place(b, right):
            return None
        shapes = self.shapes
        stack_of = partial(_stack_of, batch=shapes.batch, dtype=dtype)
        return (
            None if _is_in_place(a, left) else partial(stack_of, shape=shapes.left),
            None if _is_in_place(b, right) else partial(stack_of, shape=shapes.right),
        )

    def plans(self, plan: Plan | None) -> list[Plan]:
        """A plan that was passed, and those that the operands were prepared for; none
        where the operands were prepared for a request.
        """
        prepared = [x for x in (self.a, self.b) if isinstance(x, Prepared)]
        if plan is None and all(x.asked is not None for x in prepared):
            return []
        plans = [] if plan is None else [plan]
        return plans + [x.plan for x in prepared]


def _is_in_place(x: Array, stack: Array) -> bool:
    """True if a stack is made of an operand by a new shape alone, and so are those of
    others that are laid out as it is.
    """
    if x.dtype != stack.dtype or x.size != stack.size:
        return False
    if isinstance(x, np.ndarray):
        return True
    address: int = memory_of(x).data_ptr()
    is_same: bool = memory_of(stack).data_ptr() == address
    return is_same


@np.errstate(all="ignore")
def _stack_of(
    x: Any,
    shape: tuple[int, int, int],
    batch: tuple[int, ...],
    dtype: DType | None,
) -> Any:
    """`stacked`, from and to what executables take."""
    array = x if isinstance(x, np.ndarray) else device_array(x)
    return memory_of(stacked(array, shape, batch, dtype))


def array_of(x: Array | Prepared) -> Array:
    """The operand itself, prepared or not."""
    return x.operand if isinstance(x, Prepared) else x


def unprepared(operands: Operands) -> Operands:
    """The operands themselves."""
    a, b = operands.arrays
    return replace(operands, a=a, b=b)


def check_transpose(how: object, name: str) -> None:
    """Raise PlanError unless this is a letter of the BLAS for what becomes of a or b."""
    if not isinstance(how, str) or how not in ("N", "T", "C"):
        raise PlanError(f'trans_{name}={how!r}: expected "N", "T" or "C"')


def own_stack(x: Array, side: str, problem: Problem) -> Array:
    """An operand as the stack that a product under this problem makes of it."""
    if side == "right":
        return x.reshape((-1, *x.shape[-2:])) if x.ndim > 1 else x.reshape(1, -1, 1)
    if problem.batch == 1 or x.ndim < 3:
        return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
    return x.reshape((-1, *x.shape[-2:]))
