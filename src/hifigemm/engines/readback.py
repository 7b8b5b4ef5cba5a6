"""Eight bytes on their way from a device to the host, while the host goes on and the device does not stop.

A copy into page-locked memory takes its place in the current stream; the host waits for the event behind it, not for
what follows in the stream. Between two kernels a copy costs the device some 10 us: `Readback.beside` is a stream for
those, and for what makes them, that what follows need not wait for. Buffers and events of copies that were waited for
are used again.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import torch

from hifigemm.engines.kernels.launch import mark
from hifigemm.exceptions import PlanError

__all__ = ["Readback", "begin", "check_not_capturing", "send"]

_NBYTES = 8


class Readback:
    """A copy, before it starts or under way.

    One that is dropped before it was waited for, because of an error, is not used again: PyTorch keeps its memory until
    the device is done with it.
    """

    __slots__ = ("_begun", "_bytes", "_event", "_free", "_host")

    def __init__(self, free: list[Readback]) -> None:
        with torch.inference_mode(False):  # else calls outside of that mode could not copy into it
            self._host = torch.empty(_NBYTES, dtype=torch.int8, pin_memory=True)
        self._bytes = self._host.numpy()
        self._begun, self._event = torch.cuda.Event(), torch.cuda.Event()
        self._free = free

    def beside(self, device: int) -> Any:
        """A context in which a stream beside the current one is current, behind what that one was given so far.

        What is allocated there belongs there: memory that goes back to PyTorch serves that stream alone again. Whatever
        else it reads must live until `wait`.
        """
        self._begun.record()
        stream = _beside(device)
        stream.wait_event(self._begun)
        return torch.cuda.stream(stream)

    def start(self, source: torch.Tensor) -> None:
        """Copy int8 of the current device, on its current stream."""
        self._host.copy_(source, non_blocking=True)
        self._event.record()

    def wait(self, dtype: Any) -> list[Any]:
        """What was copied, once it has arrived, as numbers of this NumPy dtype. Only once."""
        self._event.synchronize()
        found: list[Any] = self._bytes.view(dtype).tolist()
        self._free.append(self)
        return found


_free: defaultdict[int, list[Readback]] = defaultdict(list)
"""By device, because events belong to one. As many as were under way at once."""


def send(source: torch.Tensor) -> Readback:
    """Start the copy of a contiguous tensor of eight bytes, which a recording marks."""
    mark(source)
    begun = begin(source.get_device())
    begun.start(source.view(torch.int8))
    return begun


def begin(device: int) -> Readback:
    """A copy that is still to start, on the current device."""
    free = _free[device]
    try:
        return free.pop()
    except IndexError:
        return Readback(free)


@cache
def _beside(device: int) -> torch.cuda.Stream:
    """What runs there is short and wanted soon."""
    return torch.cuda.Stream(device, priority=-1)


def check_not_capturing() -> None:
    """Raise PlanError while the current stream is captured: nothing can be read back then."""
    if torch.cuda.is_current_stream_capturing():
        raise PlanError("while a graph is captured, a count cannot come from the operands: give num_moduli")
