"""The kind of a call: everything that a choice may depend on.

A kind is options, shapes, strides, dtypes, alignment and device, never earlier calls.
The first call of a kind plans, and keeps an executable; later ones find it by the key,
at the cost of its launches.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.base.settings import is_strict
from hifigemm.base.transforms import is_followed, is_wrapped
from hifigemm.engines.arrays import memory_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.operands.operands import Prepared

if TYPE_CHECKING:
    import torch

    from hifigemm.schemes import Scheme

_RESULTS = frozenset(np.dtype(char) for char in "fdFD")
"""Dtypes of NumPy that products have."""
_OPERANDS = _RESULTS | {np.dtype(np.float16)}
"""Dtypes of NumPy whose products are kept; executables convert what is mixed."""
_INTEGERS = frozenset(np.dtype(char) for char in "?bBhHiIlLqQ")
"""Dtypes of integers and bools; products of two different ones are not kept."""

Layout = tuple[Hashable, ...]
"""What executables depend on of operands."""


def key_of(
    a: Any,
    b: Any,
    out: Any,
    accuracy: Accuracy,
    scheme: str | Scheme,
    engine: str | None,
    workspace: int | None,
    return_report: bool = False,
    result: str = "array",
    mirror: str = "",
    plan: Plan | None = None,
    out_dtype: object = None,
) -> Hashable:
    """The kind of a product; None for those of which nothing is kept."""
    layout: Layout | None
    if plan is not None and type(plan) is not Plan:
        return None
    prepared = None
    if type(a) is Prepared or type(b) is Prepared:
        if "torch" in sys.modules and is_followed():
            return None
        prepared = _kind_of_prepared(a), _kind_of_prepared(b)
        a = in_memory(a)
        b = in_memory(b)
    if type(a) is not np.ndarray:
        layout = layout_of_tensors(a, b, out)
        if layout is None:
            return None
    elif type(b) is np.ndarray and _are_kept(a.dtype, b.dtype):
        layout = a.shape, b.shape, a.dtype.char, b.dtype.char
        if out is not None:
            if type(out) is not np.ndarray or not out.flags.writeable:
                return None
            layout = *layout, out.dtype, out.shape, out.strides
    else:
        return None
    # The types tell 1 from 1.0 and True, which are equal.
    return (
        layout,
        type(accuracy),
        accuracy,
        scheme,
        engine,
        type(workspace),
        workspace,
        return_report,
        result,
        mirror,
        plan,
        prepared,
        out_dtype,
        is_strict(),
    )


def _are_kept(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """True if products of arrays of these dtypes are kept."""
    return (a in _OPERANDS and b in _OPERANDS) or (a == b and a in _INTEGERS)


def is_prepared_tensor(x: Any) -> bool:
    """True for a prepared tensor of a CPU, which is an array while it is multiplied."""
    return type(x) is Prepared and x.library.name == "torch" and x.library.on_host


def in_memory(x: Any) -> Any:
    """An operand as kept calls take it; the array or tensor of a prepared one."""
    if type(x) is not Prepared:
        return x
    memory = memory_of(x.operand)
    if is_prepared_tensor(x) and "torch" in sys.modules:
        return x.library.from_memory(memory)
    return memory


def _kind_of_prepared(x: Any) -> Hashable:
    """What a product depends on of a prepared operand beside its layout; None for
    others.
    """
    if type(x) is not Prepared:
        return None
    follows_plan = x.asked is None or x.split is not None
    accuracy, scheme = x.asked or (None, None)
    plan = x.plan if follows_plan else None
    return x.side, x.library.name, type(accuracy), accuracy, scheme, plan


def layout_of_tensors(a: Any, b: Any, out: Any) -> Layout | None:
    """The part of a key that plain tensors give, which on a GPU lie on the current
    device; None for other operands, and where PyTorch records gradients of one.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(a, torch.Tensor):
        return None
    tensors = (a, b) if out is None else (a, b, out)
    if _records_gradients(torch, *tensors):
        return None
    on_gpu = a.is_cuda
    if not (on_gpu or a.is_cpu):
        return None
    device = a.device
    if torch.is_autocast_enabled("cuda" if on_gpu else "cpu") or is_followed():
        return None
    for x in tensors:
        if not _is_plain(torch, x, device):
            return None
    if on_gpu and device.index != torch.cuda.current_device():
        return None
    if not on_gpu or b.dtype is not a.dtype:
        dtypes = (
            torch.float64,
            torch.float32,
            torch.complex128,
            torch.complex64,
            torch.float16,
            torch.bfloat16,
        )
        if a.dtype not in dtypes or b.dtype not in dtypes:
            return None

    # Kernels depend on strides, and on the alignment of addresses to 16 bytes.
    of_out = None
    if out is not None:
        storage = out.untyped_storage().data_ptr()
        is_operand = storage in (
            a.untyped_storage().data_ptr(),
            b.untyped_storage().data_ptr(),
        )
        if is_operand:
            return None
        of_out = out.dtype, out.shape, out.stride(), out.data_ptr() & 15
    if not on_gpu:
        return "torch", a.shape, b.shape, a.dtype, b.dtype, of_out
    of_a = a.shape, a.stride(), a.dtype, a.data_ptr() & 15
    of_b = b.shape, b.stride(), b.dtype, b.data_ptr() & 15
    return *of_a, *of_b, device, of_out


def view_of(x: Any, how: str) -> Any:
    """op(x) of an array of NumPy or a tensor, where that is a view; else None."""
    if not isinstance(how, str):
        return None
    if how == "N":
        return x
    torch = sys.modules.get("torch")
    is_array = type(x) is np.ndarray
    is_tensor = torch is not None and _is_tensor(torch, x) and not x.is_nested
    if not (is_array or is_tensor) or x.ndim < 2:
        return None
    is_complex = x.dtype.kind == "c" if is_array else x.is_complex()
    if how != "T" and (how != "C" or is_complex):
        return None
    return np.swapaxes(x, -1, -2) if is_array else x.mT


def layout_of_result(a: Any, b: Any, x: Any) -> Layout | None:
    """What matters of an array of the shape and dtype of the product of matrices; None
    for others.
    """
    is_array = type(a) is np.ndarray
    if is_array:
        if type(x) is not np.ndarray or x.dtype not in _RESULTS:
            return None
    else:
        torch = sys.modules["torch"]
        if _records_gradients(torch, x) or not _is_plain(torch, x, a.device):
            return None
        if a.is_cpu and x.dtype.itemsize == 2:
            return None  # no executable of the CPU reads or writes it
    if x.dtype != a.dtype or x.dtype != b.dtype:
        return None
    if x.shape != _shape_of_product(a.shape, b.shape):
        return None
    if is_array:
        return ("numpy",) if x.flags.writeable else None
    return x.stride(), x.data_ptr() & 15


def _shape_of_product(
    left: tuple[int, ...], right: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape of the product of two matrices, or of stacks of as many; None for
    others.
    """
    if len(left) == len(right) == 2:
        return left[0], right[1]
    is_one_stack = 2 < len(left) == len(right) and left[:-2] == right[:-2]
    return (*left[:-1], right[-1]) if is_one_stack else None


def share_storage(x: Any, y: Any) -> bool:
    """Whether two tensors may have entries in common; those of arrays do not matter, as
    results are copied to them.
    """
    if type(x) is np.ndarray:
        return False
    storages = x.untyped_storage(), y.untyped_storage()
    return bool(storages[0].data_ptr() == storages[1].data_ptr())


def _records_gradients(torch: ModuleType, *operands: Any) -> bool:
    """True if PyTorch records what is done with one of these, for a backward pass."""
    for x in operands:
        if getattr(x, "requires_grad", False):
            return bool(torch.is_grad_enabled())
    return False


def _is_tensor(torch: ModuleType, x: Any) -> bool:
    """True if x is a tensor or a parameter of a module, and of no other class."""
    return type(x) is torch.Tensor or type(x) is torch.nn.Parameter


def _is_plain(torch: ModuleType, x: Any, device: torch.device) -> bool:
    """True if x is a dense tensor on the device, and its memory holds its entries."""
    if not _is_tensor(torch, x) or x.device != device:
        return False
    return x.layout is torch.strided and not (
        x.is_conj() or x.is_neg() or x.is_nested or x._is_zerotensor() or is_wrapped(x)
    )
