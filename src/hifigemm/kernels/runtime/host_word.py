"""A number that launches leave for the host while later launches still run."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Launch

_NOT_THERE = -1
"""What a word holds until the device writes to it."""
_LOOKS = 50
"""That the host takes at a time, in 5 us, before other threads may run."""
_SOON = 5e-3
"""Seconds in which the host does not sleep. Even `time.sleep(0)` takes 50 to 80 us, as long
as a product of n = 768 (python/cpython#125997).
"""
_PAUSE = 2e-5
"""Seconds between later looks."""
_let_others_run: Callable[[float], object] = (
    time.sleep if sys.platform == "win32" else partial(select.select, [], [], [])
)
"""For so many seconds, 0 too."""


_abandoned: list[HostWord] = []
"""Those that a launch may still write to although nobody waits any more."""


@triton.jit
def _send_kernel(numbers, host_word, SHIFT: tl.constexpr):
    """One program writes one number, or two in one, to the memory of the host."""
    word = tl.load(numbers)
    if SHIFT:
        word |= tl.load(numbers + 1) << SHIFT
    tl.store(host_word, word)


_launch = Launch(_send_kernel)


def send(numbers: Buffer, host_word: Buffer, shift: int = 0) -> None:
    """Write an INT64 of the device, 0 or larger, to the buffer of a `HostWord`; with a
    shift the next one too, so many bits to the left.
    """
    _launch((1,), numbers, host_word, SHIFT=shift, num_warps=1)


class HostWord:
    """An INT64 in the memory of the host.

    The host waits for it alone, not for the launches that come behind `send` on the
    stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self.tensor = torch.empty(1, dtype=torch.int64, pin_memory=self._is_pinned)
        self._number = self.tensor.numpy()

    def clear(self) -> None:
        """Forget the number, before a launch sends another one."""
        self._number[0] = _NOT_THERE

    def read(self) -> int:
        """Wait for the number."""
        end = time.perf_counter() + _SOON
        is_done = False
        while True:
            for _ in range(_LOOKS):
                number = self._number.item()
                if number != _NOT_THERE:
                    return int(number)
            if is_done:
                raise RuntimeError("no launch has sent the number that is waited for")
            if time.perf_counter() < end:
                _let_others_run(0.0)
                continue
            # Errors of the device are raised here.
            is_done = not self._is_pinned or self._stream().query()
            time.sleep(_PAUSE)

    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)


class HostWords:
    """The words of an executable, of which each call in progress has one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: list[HostWord] = []

    def number_from(self, launch: Callable[[torch.Tensor], object]) -> int:
        """The number that launches send to the memory that they are given.

        Where the wait ends early, by Ctrl-C, the device may still write to the
        memory: no other call gets it.
        """
        try:
            word = self._idle.pop()
        except IndexError:
            word = HostWord(self._device)
        word.clear()
        try:
            launch(word.tensor)
            number = word.read()
        except BaseException:
            _abandoned.append(word)
            raise
        self._idle.append(word)
        return number
