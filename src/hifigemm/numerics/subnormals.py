"""IEEE arithmetic in threads that flush subnormal numbers or do not round to nearest.

Idea
    A thread flushes subnormal numbers to zero where JAX runs a callback, where a
    library built with -ffast-math was loaded, or where the program set that mode. It
    rounds downward, upward or towards zero where, say, a library of interval arithmetic
    set that mode. Both modes lie in a control register that is part of the
    floating-point environment of the C library: fegetenv stores it, fesetenv loads it,
    fesetround sets the rounding. Two products and two sums tell whether a thread is in
    another mode than IEEE's default; if not, no function of the C library is called.
Why rounding
    TwoSum, TwoProduct, (x + sigma) - sigma and the last rounding of a result rest on
    rounding to nearest. Bounds of rounded products do, too: in other modes each
    rounding errs by up to 2 u.
Threads of libraries
    A thread of a BLAS keeps the mode of the thread that started it, and there is no way to ask
    for it. If the mode of the calling thread was changed for a call, threads that it
    started earlier may still be in that mode. Exact products of integers are right in
    any mode, as a representable result is never rounded. Words and native products are
    multiplied in the calling thread alone where other threads may flush subnormal
    numbers that occur, and wherever they may round otherwise. Threads of a caller in
    IEEE's default mode are taken to be in that mode as well.
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

from hifigemm.base.exceptions import AccuracyError
from hifigemm.numerics.bits import LEAST, Array, least_exponent

# Operands of the tests of a mode. As variables they are multiplied when a test runs,
# and not when it is compiled.
_SMALLEST_NORMAL = 2.0**-1022
_HALF = 0.5
_ONE = 1.0
_QUARTER_UNIT = 2.0**-54  # of the unit in the last place of 1, 2**-52
_THREE_QUARTERS = 3 * 2.0**-54

_TO_NEAREST = 0
"""FE_TONEAREST of the C libraries of these systems; afterwards sums show if it was."""

_MXCSR_FLUSHES = 1 << 15 | 1 << 6
"""FTZ and DAZ of x86: results, and operands, are flushed."""

_FPCR_FLUSHES = 1 << 24
"""FZ of Arm: both are flushed."""

_CONTROL = {
    ("linux", "x86_64"): (7, _MXCSR_FLUSHES),
    ("linux", "aarch64"): (0, _FPCR_FLUSHES),
    ("darwin", "x86_64"): (1, _MXCSR_FLUSHES),
    ("darwin", "arm64"): (2, _FPCR_FLUSHES),
}
"""Index of the control register among the 32-bit words of fenv_t, and its flags.

glibc and musl have the same fenv_t.
"""

_ENVIRONMENT_WORDS = 64
"""32-bit words of memory for a fenv_t: more than any of them has."""

# Modes of this thread before they were changed for a call, in which threads that it
# started may still be.
_flushed: ContextVar[bool] = ContextVar("flushed", default=False)
_rounded_otherwise: ContextVar[bool] = ContextVar("rounded_otherwise", default=False)


def flushes_subnormals() -> bool:
    """True if this thread flushes subnormal results or operands to zero."""
    return _SMALLEST_NORMAL * _HALF == 0.0 or LEAST * _ONE == 0.0


def rounds_to_nearest() -> bool:
    """True if this thread rounds to nearest.

    The first sum is more than 1 upward, the second is 1 in the other modes.
    """
    return _ONE + _QUARTER_UNIT == _ONE != _ONE + _THREE_QUARTERS


def is_ieee() -> bool:
    """True if this thread is in IEEE's default mode: to nearest, with subnormals."""
    # The two functions above in one: small products are repeated in microseconds.
    if _SMALLEST_NORMAL * _HALF == 0.0 or LEAST * _ONE == 0.0:
        return False
    return _ONE + _QUARTER_UNIT == _ONE != _ONE + _THREE_QUARTERS


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """A context, or a decorator, in which this thread is in IEEE's default mode.

    Its own mode returns at the end. Raises AccuracyError where the mode cannot be
    changed from here.
    """
    if is_ieee():
        yield
        return
    flushed = _flushed.get() or flushes_subnormals()
    rounded_otherwise = _rounded_otherwise.get() or not rounds_to_nearest()
    restore = _set_ieee_mode()
    flushed_token = _flushed.set(flushed)
    rounded_token = _rounded_otherwise.set(rounded_otherwise)
    try:
        yield
    finally:
        _flushed.reset(flushed_token)
        _rounded_otherwise.reset(rounded_token)
        restore()


def matmul(a: Array, b: Array, *, may_flush: bool = False) -> Array:
    """np.matmul of stacks, in this thread alone where others may round otherwise.

    `may_flush` is for callers whose bound has room for subnormal numbers that other
    threads flush.
    """
    in_this_thread = _rounded_otherwise.get() if may_flush else others_may_differ(a, b)
    if in_this_thread:
        return np.einsum("...ij,...jk->...ik", a, b, order="C")
    return np.matmul(a, b)


def others_may_differ(a: Array, b: Array) -> bool:
    """True if threads of a library may round or flush otherwise where they add a @ b.

    With e and f the exponents of the smallest nonzero entries, products and their sums,
    rounded or not, are multiples of 2**(e + f - 2 (t - 1)): none is subnormal where
    that is a normal number.
    """
    if _rounded_otherwise.get():
        return True
    if not _flushed.get():
        return False
    e = least_exponent(a)
    f = least_exponent(b)
    fmt = np.finfo(a.dtype)
    return min(e, f, e + f - 2 * fmt.nmant) < fmt.minexp


def _set_ieee_mode() -> Callable[[], object]:
    """Put this thread in IEEE's default mode; returns a function that restores its own.

    Raises AccuracyError where that is not possible.
    """
    for set_mode in (_set_environment, _set_torch_mode):
        restore = set_mode()
        if restore is not None:
            if is_ieee():
                return restore
            restore()
    if rounds_to_nearest():
        fault = "flushes subnormal numbers to zero, as a library built with -ffast-math may have asked"
    else:
        fault = "does not round to nearest, as a library of interval arithmetic may have asked"
    raise AccuracyError(
        f"this thread {fault}, and on {sys.platform} {platform.machine()} the library cannot change its mode: no "
        "accuracy can be guaranteed"
    )


def _set_environment() -> Callable[[], object] | None:
    """Set the mode by the C library; returns how to restore it, or None."""
    library = _c_library()
    if library is None:
        return None
    import ctypes

    before = (ctypes.c_uint32 * _ENVIRONMENT_WORDS)()
    library.fegetenv(before)

    # Clear the flags that flush, on systems where they are known.
    control = _CONTROL.get((sys.platform, platform.machine()))
    if control is not None:
        word, flags = control
        cleared = type(before).from_buffer_copy(before)
        cleared[word] &= ~flags
        library.fesetenv(cleared)

    library.fesetround(_TO_NEAREST)
    return partial(library.fesetenv, before)


@lru_cache
def _c_library() -> Any:
    """The library that has fegetenv, fesetenv and fesetround, or None.

    The interpreter is linked with it, or it lies beside the C library.
    """
    import ctypes

    functions = ("fegetenv", "fesetenv", "fesetround")
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
        except (OSError, TypeError):
            continue
        if all(hasattr(library, function) for function in functions):
            return library
    return None


def _set_torch_mode() -> Callable[[], object] | None:
    """Set the mode by PyTorch, on other systems; returns how to restore it, or None.

    PyTorch sets all flags that flush or none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.set_flush_denormal(False):
        return None
    return partial(torch.set_flush_denormal, True)
