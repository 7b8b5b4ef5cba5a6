"""Eight bytes on their way from a device to the host, while the host goes on and the device does not stop.

A copy into page-locked memory takes its place in the current stream; the host waits for the event behind it, not for
what follows in the stream. Between two kernels a copy costs the device some 10 us. So a copy may have a stream beside
the current one, with the kernels that make what is copied, where the current one goes on without them. Buffers, events
and streams of copies that were waited for are used again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from hifigemm.engines.kernels.launch import mark
from hifigemm.exceptions import PlanError

__all__ = ["HostCopy", "begin", "check_not_capturing", "send"]

_NBYTES = 8


class HostCopy:
    """A copy, before it starts or under way.

    One that is dropped before it was waited for, because of an error, is not used again: PyTorch keeps its memory until
    the device is done with it.
    """

    __slots__ = ("_begun", "_beside", "_bytes", "_event", "_free", "_host")

    def __init__(self, free: list[HostCopy]) -> None:
        with torch.inference_mode(False):  # else calls outside of that mode could not copy into it
            self._host = torch.empty(_NBYTES, dtype=torch.int8, pin_memory=True)
        self._bytes = self._host.numpy()
        self._begun, self._event = torch.cuda.Event(), torch.cuda.Event()
        self._beside: Any = None
        self._free = free

    def beside(self, device: int) -> Any:
        """A context in which this copy's own stream is current, behind what the current one was given so far.

        No other copy under way waits for what this one waits for. What is allocated in the context belongs there:
        memory that goes back to PyTorch serves that stream alone again. Whatever else it reads must live until `wait`.
        """
        if self._beside is None:
            self._beside = torch.cuda.Stream(device, priority=-1)  # short, and wanted soon
        self._begun.record()
        self._beside.wait_event(self._begun)
        return torch.cuda.stream(self._beside)

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


_free: defaultdict[int, list[HostCopy]] = defaultdict(list)
"""By device, because events belong to one. As many as were under way at once."""


def send(source: torch.Tensor) -> HostCopy:
    """Start the copy of a contiguous tensor of eight bytes, which a recording marks."""
    mark(source)
    begun = begin(source.get_device())
    begun.start(source.view(torch.int8))
    return begun


def begin(device: int) -> HostCopy:
    """A copy that is still to start, on the current device."""
    free = _free[device]
    try:
        return free.pop()
    except IndexError:
        return HostCopy(free)


def check_not_capturing() -> None:
    """Raise PlanError while the current stream is captured: nothing can be read back then."""
    if torch.cuda.is_current_stream_capturing():
        raise PlanError("while a graph is captured, a count cannot come from the operands: give num_moduli")
