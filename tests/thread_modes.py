"""Modes of the floating-point unit, set by hand: threads that flush subnormal numbers or
round otherwise.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import contextmanager
from threading import Thread

import pytest

FTZ, DAZ = 1 << 15, 1 << 6
MODES = {"x86_64": (FTZ, DAZ, FTZ | DAZ), "aarch64": (1 << 24,)}
WORD = {"x86_64": 7, "aarch64": 0}
ROUNDINGS = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (2 << 22, 1 << 22, 3 << 22)}
"""Downward, upward, towards zero."""
MACHINE = platform.machine()

needs_known_register = pytest.mark.skipif(
    sys.platform != "linux" or MACHINE not in MODES,
    reason="the control register is not known here",
)


def control(flags=None):
    """The flags of this thread that flush; given ones are set first."""
    library, word = ctypes.CDLL("libm.so.6"), WORD[MACHINE]
    environment, mask = (ctypes.c_uint32 * 64)(), max(MODES[MACHINE])
    library.fegetenv(environment)
    if flags is not None:
        environment[word] = (environment[word] & ~mask) | flags
        library.fesetenv(environment)
        library.fegetenv(environment)
    return environment[word] & mask


@contextmanager
def flushing(flags):
    control(flags)
    try:
        yield
        assert control() == flags
    finally:
        control(0)


@contextmanager
def rounding(mode):
    library = ctypes.CDLL("libm.so.6")
    assert library.fesetround(mode) == 0
    try:
        yield
        assert library.fegetround() == mode
    finally:
        library.fesetround(0)


def in_thread(function):
    """What a function finds in a thread of its own."""
    found = []
    thread = Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]
