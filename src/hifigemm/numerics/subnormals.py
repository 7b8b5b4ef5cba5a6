"""Gradual underflow in threads that flush subnormal numbers to zero.

Idea
    A thread flushes them where JAX runs a callback, where a library built with -ffast-math was loaded, or where it was
    told to. The flags lie in a control register that is part of the floating-point environment of the C library:
    fegetenv stores it, fesetenv loads it. Two products tell whether a thread flushes; nothing is called in others.
Threads of libraries
    A thread of a BLAS keeps the mode of the thread that made it, and cannot be asked for it. Those of a caller that
    flushes may flush too, after its own mode was lifted. Integers do not mind, and the parts of exact products are
    integers; words and native products are multiplied in the calling thread alone where they may meet a subnormal
    number. Threads of a caller that does not flush are taken not to flush.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import numpy as np

from hifigemm.exceptions import AccuracyError
from hifigemm.numerics.bits import LEAST, Array, least_exponent

_LEAST_NORMAL, _HALF, _ONE = 2.0**-1022, 0.5, 1.0
_MXCSR_FLUSHES, _FPCR_FLUSHES = 1 << 15 | 1 << 6, 1 << 24
_CONTROL = {
    ("linux", "x86_64"): (7, _MXCSR_FLUSHES),
    ("linux", "aarch64"): (0, _FPCR_FLUSHES),
    ("darwin", "x86_64"): (1, _MXCSR_FLUSHES),
    ("darwin", "arm64"): (2, _FPCR_FLUSHES),
}
"""Which word of fenv_t the control register is (glibc and musl have one layout), and its flags: FTZ and DAZ, or FZ."""
_WORDS = 64
"""Longer than any fenv_t."""
_is_lifted: ContextVar[bool] = ContextVar("is_lifted", default=False)


def flushes_subnormals() -> bool:
    """Whether this thread flushes subnormal results or operands to zero."""
    return _LEAST_NORMAL * _HALF == 0.0 or LEAST * _ONE == 0.0


@contextmanager
def gradual_underflow() -> Iterator[None]:
    """A context, or a decorator, in which this thread computes with subnormal numbers; then its mode is as it was.

    Raises AccuracyError: the mode cannot be changed from here.
    """
    if not flushes_subnormals():
        yield
        return
    restore, token = _lift(), _is_lifted.set(True)
    try:
        yield
    finally:
        _is_lifted.reset(token)
        restore()


def matmul(a: Array, b: Array) -> Array:
    """np.matmul of stacks, in this thread alone where others may flush what they meet."""
    return np.einsum("...ij,...jk->...ik", a, b) if others_may_flush(a, b) else np.matmul(a, b)


def others_may_flush(a: Array, b: Array) -> bool:
    """Whether threads of a library may come upon a subnormal number in the sums of a @ b and flush it.

    With e and f the exponents of the least nonzero entries, products and their sums, rounded or not, are multiples of
    2**(e + f - 2 (t - 1)): none is subnormal where that is a normal number.
    """
    if not _is_lifted.get():
        return False
    fmt, e, f = np.finfo(a.dtype), least_exponent(a), least_exponent(b)
    return min(e, f, e + f - 2 * fmt.nmant) < fmt.minexp


def _lift() -> Callable[[], object]:
    """Let this thread compute with subnormal numbers; what is returned restores its mode."""
    for way in (_by_environment, _by_torch):
        restore = way()
        if restore is not None:
            if not flushes_subnormals():
                return restore
            restore()
    raise AccuracyError(
        "this thread flushes subnormal numbers to zero, as a library built with -ffast-math may have asked, and on "
        f"{sys.platform} {platform.machine()} its mode cannot be changed from here: no accuracy can be kept"
    )


def _by_environment() -> Callable[[], object] | None:
    """By the floating-point environment of the C library."""
    place, library = _CONTROL.get((sys.platform, platform.machine())), _c_library()
    if place is None or library is None:
        return None
    import ctypes

    word, flags = place
    before = (ctypes.c_uint32 * _WORDS)()
    library.fegetenv(before)
    lifted = type(before).from_buffer_copy(before)
    lifted[word] &= ~flags
    library.fesetenv(lifted)
    return partial(library.fesetenv, before)


@lru_cache
def _c_library() -> Any:
    """The library with fegetenv and fesetenv: the interpreter is linked with it, or it lies beside the C library."""
    import ctypes

    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
        except (OSError, TypeError):
            continue
        if hasattr(library, "fegetenv") and hasattr(library, "fesetenv"):
            return library
    return None


def _by_torch() -> Callable[[], object] | None:
    """By PyTorch, on systems of another kind; it sets all flags or none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.set_flush_denormal(False):
        return None
    return partial(torch.set_flush_denormal, True)
