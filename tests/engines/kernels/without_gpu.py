"""Kernels compiled for a GPU that is not there: what programs launch, with a driver that stands in for CUDA's.

For processes in which TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from hifigemm.engines.kernels.program import Program
from hifigemm.engines.kernels.tiles import gpu_of

DEVICE = torch.device("cuda", 0)
SHARED = {80: 166912, 89: 101376, 90: 232448, 100: 232448}


class Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, arch):
        self.arch = arch

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


def pretend(arch):
    """Let the current device be of an architecture with 132 multiprocessors; its `Gpu`."""
    major, minor = divmod(arch, 10)
    found = {"name": "", "major": major, "minor": minor, "multi_processor_count": 132}
    found |= dict.fromkeys(("shared_memory_per_block_optin", "shared_memory_per_multiprocessor"), SHARED[arch])
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(**found)
    torch.cuda.device = lambda device=None: nullcontext()
    triton.runtime.driver.set_active(Driver(arch))
    return gpu_of(DEVICE)


def compiled(write):
    """The compiled kernels of the launches that `write` adds to a program, but for those that clear memory."""
    program = Program(DEVICE)
    write(program)
    return [step.kernel.compile(step.arguments, step.constants) for step in program._steps]


def operand(program, shape, dtype, transposed=False):
    """A buffer for a contiguous operand, or one whose matrices are."""
    made = program.empty((shape[0], shape[2], shape[1]) if transposed else shape, dtype)
    batch, rows, columns = made.strides
    return made.as_strided(shape, (batch, columns, rows)) if transposed else made


def spills(lines):
    """Number of lines of machine code that move registers to memory or back."""
    return sum(1 for line in lines if re.search(r"\b(?:STL|LDL)\b", line))
