"""Products that were made before, repeated for other operands of the same layout: the
one cache of programs.

What is taken for a product depends on the call, never on earlier calls: options,
shapes, strides, dtypes, alignment and device. The first call of a kind plans, compiles,
and leaves a function of the operands behind; later calls go straight to it, at the cost
of its launches. Engines keep the programs of calls with other arguments here too.

Each engine has room for `_LIMIT` programs. Where that is full, the ones that were used
least recently go. A program is looked up without a lock: a use is written down as a
number, and the numbers are compared where some have to go.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable
from itertools import count
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from hifigemm.accuracy import Accuracy
from hifigemm.settings import decision_log, is_strict
from hifigemm.transforms import is_followed, is_wrapped

_LIMIT = 4096
_ON_HOST = np.dtype(np.float64), np.dtype(np.float32)
"""Of arrays of NumPy whose products are repeated."""


class _Entry:
    """A program, and the number of its last use, which is larger than those of earlier
    uses.
    """

    __slots__ = ("last_use", "program")

    def __init__(self, program: Any) -> None:
        self.program = program
        self.last_use = next(_uses)


_programs: dict[Hashable, _Entry] = {}
_by_engine: dict[Hashable, dict[Hashable, _Entry]] = {}
"""The same entries, which those of other engines do not drive out."""
_uses = count()
_changes = RLock()
"""Held where programs come and go. A destructor or a signal that multiplies meanwhile
may take it again.
"""

T = TypeVar("T")


def keep(key: Hashable, program: Any, engine: Hashable) -> None:
    """Leave a program for later calls, among those of an engine; the compiled ones of a
    GPU are those of its device.
    """
    with _changes:
        entries = _by_engine.setdefault(engine, {})
        if len(entries) >= _LIMIT:
            _drop_least_recently_used(entries)
        entries[key] = _programs[key] = _Entry(program)


def _drop_least_recently_used(entries: dict[Hashable, _Entry]) -> None:
    """Make room for some programs at once, as finding the last uses takes as long for
    many as for one.
    """
    by_last_use = sorted(entries.items(), key=lambda item: item[1].last_use)
    for key, _ in by_last_use[: max(_LIMIT // 8, 1)]:
        entries.pop(key, None)
        _programs.pop(key, None)


def kept(key: Hashable) -> Any:
    """The program that was left for a key, and is used now; None where there is
    none.
    """
    entry = _programs.get(key)
    if entry is None:
        return None
    entry.last_use = next(_uses)
    return entry.program


def once(key: Hashable, make: Callable[[], T], engine: Hashable) -> T:
    """The program of a key, made where it is missing."""
    program: T | None = kept(key)
    if program is None:
        program = make()
        keep(key, program, engine)
    return program


def forget() -> None:
    """Drop all programs, and the memory of their constants."""
    with _changes:
        _programs.clear()
        _by_engine.clear()


def repeat(key: Hashable, *arguments: Any) -> Any:
    """The product as an earlier call of this kind has left it; None where it left
    nothing for these operands.

    The arguments are those of `hifigemm.engine.Repeated`.
    """
    try:
        program: tuple[Callable[..., Any], str] | None = kept(key)
    except TypeError:  # an option that cannot be hashed, which is refused later
        return None
    if program is None:
        return None
    try:
        result = program[0](*arguments)
    except RuntimeError as failed:
        if not isinstance(
            failed, getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
        ):
            raise
        # less memory is free than for the first call: a new plan may make do with it
        return None
    if result is not None and (log := decision_log()).isEnabledFor(logging.INFO):
        log.info("%s, as before", program[1])
    return result


def key_of(
    a: Any,
    b: Any,
    out: Any,
    accuracy: Accuracy,
    scheme: Any,
    engine: Any,
    workspace: Any,
    return_report: bool = False,
) -> Hashable:
    """What two calls must share; None where calls of this kind are not repeated."""
    layout = _arrays(a, b, out) if type(a) is np.ndarray else _tensors(a, b, out)
    if layout is None:
        return None
    return (
        *layout,
        type(accuracy),
        accuracy,
        scheme,
        engine,
        type(workspace),
        workspace,
        return_report,
        is_strict(),
    )


def _arrays(a: Any, b: Any, out: Any) -> tuple[Any, ...] | None:
    """What matters of matrices of NumPy; None for others."""
    if (
        out is not None
        or type(b) is not np.ndarray
        or a.dtype not in _ON_HOST
        or a.dtype != b.dtype
    ):
        return None
    return "numpy", a.shape, b.shape, a.dtype.char


def _tensors(a: Any, b: Any, out: Any) -> tuple[Any, ...] | None:
    """What matters of plain tensors, on a GPU of those on the current device; None for
    others.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(a) is not torch.Tensor or not (a.is_cuda or a.is_cpu):
        return None
    device = a.device
    if torch.is_autocast_enabled(device.type) or is_followed():
        return None
    for x in (a, b) if out is None else (a, b, out):
        if not _is_plain(torch, x, device):
            return None
    if b.dtype is not a.dtype:
        return None
    if not a.is_cuda:
        is_kept = out is None and a.dtype in (torch.float64, torch.float32)
        return ("torch", a.shape, b.shape, a.dtype) if is_kept else None
    if device.index != torch.cuda.current_device():
        return None
    at, bt, target = a.data_ptr(), b.data_ptr(), None
    if out is not None:
        if out.untyped_storage().data_ptr() in (
            a.untyped_storage().data_ptr(),
            b.untyped_storage().data_ptr(),
        ):
            return None
        target = out.dtype, out.shape, out.stride(), out.data_ptr() & 15
    one = (a.shape, a.stride(), a.dtype, at & 15)
    other = (b.shape, b.stride(), b.dtype, bt & 15)
    return *one, *other, device, target


def view_of(x: Any, how: str) -> Any:
    """op(x) of an array of NumPy or a tensor, where that is a view; else None."""
    if not isinstance(how, str):
        return None
    if how == "N":
        return x
    torch = sys.modules.get("torch")
    is_array = type(x) is np.ndarray
    if not (is_array or (torch is not None and type(x) is torch.Tensor)) or x.ndim < 2:
        return None
    is_complex = x.dtype.kind == "c" if is_array else x.is_complex()
    if how != "T" and (how != "C" or is_complex):
        return None
    return np.swapaxes(x, -1, -2) if is_array else x.mT


def layout_of_result(a: Any, b: Any, x: Any) -> tuple[Any, ...] | None:
    """What matters of an array of the shape and dtype of the product of matrices; None
    for others.
    """
    if not a.ndim == b.ndim == getattr(x, "ndim", 0) or a.ndim < 2:
        return None
    shape = *a.shape[:-1], b.shape[-1]
    if a.shape[:-2] != b.shape[:-2] or x.dtype != a.dtype or tuple(x.shape) != shape:
        return None
    if type(a) is np.ndarray:
        return () if type(x) is np.ndarray and x.flags.writeable else None
    if not _is_plain(sys.modules["torch"], x, a.device):
        return None
    return x.stride(), x.data_ptr() & 15


def _is_plain(torch: Any, x: Any, device: Any) -> bool:
    """Whether x is a dense tensor on the device whose memory is what it says."""
    if type(x) is not torch.Tensor or x.device != device:
        return False
    return x.layout is torch.strided and not (
        x.requires_grad or x.is_conj() or x.is_neg() or is_wrapped(x)
    )
