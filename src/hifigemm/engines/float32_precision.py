"""FP32 products of PyTorch in the precision that is asked for, whatever the process has
set.

``torch.set_float32_matmul_precision`` and the ``fp32_precision`` of ``torch.backends``
allow libraries to round FP32 operands first: to TF32 in cuBLAS, and to BF16 or TF32 in
oneDNN on CPUs that multiply those. These are settings of the process. One for a
backend's products may be its own, or "none", and then that of the backend, or else the
generic one, holds; torch tells only what holds.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

_LOCK = threading.RLock()
_C: Any = torch._C


def rounds_float32(backend: str) -> bool:
    """Whether FP32 operands of a backend ("cuda", "mkldnn") are rounded first; waits
    for `float32_precision`.
    """
    with _LOCK:
        return _holding(backend, "matmul") not in ("none", "ieee")


class float32_precision:
    """FP32 products of a backend in IEEE arithmetic ("ieee") or as TF32 ("tf32"), for
    one thread at a time.
    """

    def __init__(self, backend: str, precision: str) -> None:
        self._backend = backend
        self._precision = precision
        self._own: str | None = None  # what was set, where it was changed

    def __enter__(self) -> None:
        _LOCK.acquire()
        try:
            if self._precision != "ieee" or rounds_float32(self._backend):
                own = _own_setting(self._backend)
                _set(self._backend, "matmul", self._precision)
                self._own = own
        except BaseException:
            _LOCK.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._own is not None:
                _set(self._backend, "matmul", self._own)
        finally:
            _LOCK.release()


def _own_setting(backend: str) -> str:
    """What is set for the products of a backend, or "none", as seen while nothing else
    is set.
    """
    if _holding(backend, "matmul") == "none":
        return "none"
    others = []
    try:
        for level in (("generic", "all"), (backend, "all")):
            others.append((*level, _holding(*level)))
            _set(*level, "none")
        return _holding(backend, "matmul")
    finally:
        for other in others:
            _set(*other)


def _holding(backend: str, operation: str) -> str:
    return str(_C._get_fp32_precision_getter(backend, operation))


def _set(backend: str, operation: str, precision: str) -> None:
    _C._set_fp32_precision_setter(backend, operation, precision)
