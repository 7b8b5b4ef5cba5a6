"""IEEE arithmetic in threads that flush subnormal numbers to zero, or that do not round
to nearest.

Idea
    A thread flushes them where JAX runs a callback, where a library built with
    -ffast-math was loaded, or where it was told to; it rounds downward, upward or
    towards zero where it was told to, by a library of interval arithmetic say. Both lie
    in a control register that is part of the floating-point environment of the C
    library: fegetenv stores it, fesetenv loads it, fesetround sets the rounding. Two
    products and two sums tell whether a thread computes otherwise than by IEEE's
    default; nothing is called in threads that do not.
Why rounding
    TwoSum, TwoProduct, (x + sigma) - sigma and the last rounding of a result rest on
    rounding to nearest. Bounds of rounded products do, too: elsewhere each rounding
    errs by up to 2 u.
Threads of libraries
    A thread of a BLAS keeps the mode of the thread that made it, and cannot be asked
    for it. Those of a caller whose mode was lifted may have had that mode too. Integers
    do not mind, and the parts of exact products are integers: what is representable is
    rounded by no mode. Words and native products are multiplied in the calling thread
    alone where others may flush what they meet, and wherever others may round
    otherwise. Threads of a caller that computes by IEEE's default are taken to do so as
    well.
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
_QUARTER_UNIT, _THREE_QUARTERS = 2.0**-54, 3 * 2.0**-54
"""Of the unit in the last place of 1."""
_TO_NEAREST = 0
"""FE_TONEAREST of the C libraries of these systems; whether it was that is seen
afterwards.
"""
_MXCSR_FLUSHES, _FPCR_FLUSHES = 1 << 15 | 1 << 6, 1 << 24
_CONTROL = {
    ("linux", "x86_64"): (7, _MXCSR_FLUSHES),
    ("linux", "aarch64"): (0, _FPCR_FLUSHES),
    ("darwin", "x86_64"): (1, _MXCSR_FLUSHES),
    ("darwin", "arm64"): (2, _FPCR_FLUSHES),
}
"""Which word of fenv_t the control register is (glibc and musl have one layout), and
its flags: FTZ and DAZ, or FZ.
"""
_WORDS = 64
"""Longer than any fenv_t."""
_flushed: ContextVar[bool] = ContextVar("flushed", default=False)
_rounded_otherwise: ContextVar[bool] = ContextVar("rounded_otherwise", default=False)
"""What this thread did before its mode was lifted for a call, and other threads may do
still.
"""


def flushes_subnormals() -> bool:
    """True if this thread flushes subnormal results or operands to zero."""
    return _LEAST_NORMAL * _HALF == 0.0 or LEAST * _ONE == 0.0


def rounds_to_nearest() -> bool:
    """True if this thread rounds to nearest: the first sum is more than 1 upward, the
    second 1 in the other modes.
    """
    return _ONE + _QUARTER_UNIT == _ONE != _ONE + _THREE_QUARTERS


def is_ieee() -> bool:
    """True if this thread computes by IEEE's default: it neither flushes subnormal
    numbers nor rounds otherwise.
    """
    # The two functions above in one: small products are repeated in microseconds.
    if _LEAST_NORMAL * _HALF == 0.0 or LEAST * _ONE == 0.0:
        return False
    return _ONE + _QUARTER_UNIT == _ONE != _ONE + _THREE_QUARTERS


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """A context, or a decorator, in which this thread computes by IEEE's default; then
    its mode is as it was.

    Raises AccuracyError: the mode cannot be changed from here.
    """
    if is_ieee():
        yield
        return
    flushed = _flushed.get() or flushes_subnormals()
    rounded_otherwise = _rounded_otherwise.get() or not rounds_to_nearest()
    restore = _lift()
    tokens = _flushed.set(flushed), _rounded_otherwise.set(rounded_otherwise)
    try:
        yield
    finally:
        _flushed.reset(tokens[0])
        _rounded_otherwise.reset(tokens[1])
        restore()


def matmul(a: Array, b: Array, *, may_flush: bool = False) -> Array:
    """np.matmul of stacks, in this thread alone where others may make another product
    of them.

    `may_flush`: the caller's bound has room for subnormal numbers that other threads
    flush.
    """
    in_this_thread = _rounded_otherwise.get() if may_flush else others_may_differ(a, b)
    return np.einsum("...ij,...jk->...ik", a, b) if in_this_thread else np.matmul(a, b)


def others_may_differ(a: Array, b: Array) -> bool:
    """True if threads of a library may round a @ b otherwise, or flush a subnormal
    number of its sums.

    With e and f the exponents of the least nonzero entries, products and their sums,
    rounded or not, are multiples of 2**(e + f - 2 (t - 1)): none is subnormal where
    that is a normal number.
    """
    if _rounded_otherwise.get():
        return True
    if not _flushed.get():
        return False
    fmt, e, f = np.finfo(a.dtype), least_exponent(a), least_exponent(b)
    return min(e, f, e + f - 2 * fmt.nmant) < fmt.minexp


def _lift() -> Callable[[], object]:
    """Let this thread compute by IEEE's default; what is returned restores its mode."""
    for way in (_by_environment, _by_torch):
        restore = way()
        if restore is not None:
            if is_ieee():
                return restore
            restore()
    if rounds_to_nearest():
        what = "flushes subnormal numbers to zero, as a library built with -ffast-math may have asked"
    else:
        what = "does not round to nearest, as a library of interval arithmetic may have asked"
    raise AccuracyError(
        f"this thread {what}, and on {sys.platform} {platform.machine()} its mode cannot be changed from here: no "
        "accuracy can be kept"
    )


def _by_environment() -> Callable[[], object] | None:
    """By the floating-point environment of the C library."""
    library = _c_library()
    if library is None:
        return None
    import ctypes

    before = (ctypes.c_uint32 * _WORDS)()
    library.fegetenv(before)

    # Subnormal numbers, where it is known which flags flush them.
    place = _CONTROL.get((sys.platform, platform.machine()))
    if place is not None:
        word, flags = place
        lifted = type(before).from_buffer_copy(before)
        lifted[word] &= ~flags
        library.fesetenv(lifted)

    library.fesetround(_TO_NEAREST)
    return partial(library.fesetenv, before)


@lru_cache
def _c_library() -> Any:
    """The library with fegetenv and its like: the interpreter is linked with it, or it
    lies beside the C library.
    """
    import ctypes

    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
        except (OSError, TypeError):
            continue
        if all(
            hasattr(library, name) for name in ("fegetenv", "fesetenv", "fesetround")
        ):
            return library
    return None


def _by_torch() -> Callable[[], object] | None:
    """By PyTorch, on systems of another kind; it sets all flags or none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.set_flush_denormal(False):
        return None
    return partial(torch.set_flush_denormal, True)
