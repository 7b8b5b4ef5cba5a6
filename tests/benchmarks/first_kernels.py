"""The kernels that the calls of benchmarks/first_calls.py launch on a Hopper that is not
there; prints a JSON line for each variant.

Usage: python -m tests.benchmarks.first_kernels [--compile] [--names PART], in a process
where TRITON_INTERPRET is not set.

The library runs as on a GPU, but for its launches, which are written down and not made.
With --compile each variant is compiled, one by one, with the seconds that took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

from benchmarks.first_calls import CALLS
from hifigemm.engines.cuda import engine as cuda_engine
from hifigemm.engines.cuda import lowering as cuda_lowering
from hifigemm.engines.cuda import required_bits
from hifigemm.kernels.runtime import tiles
from hifigemm.kernels.runtime.launch import _specialise, _traits_of
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.model.executable import RecordedDecision
from tests.engines import stand_in
from tests.kernels import compiled

DEVICE = torch.device("cuda", 0)


class Recorder:
    """Variants of kernels in the order of their first launches, with the calls that
    launch them.
    """

    def __init__(self):
        self.call = ""
        self.variants: dict[Any, dict[str, Any]] = {}
        self.launches: dict[Any, Any] = {}

    def note(self, launch, arguments, constants):
        """A launch: what its compiled kernel is specialised for, argument by
        argument.
        """
        parameters = [p for p in launch.kernel.params if not p.is_constexpr]
        key = {name: repr(value) for name, value in constants.items()}
        for parameter, argument, traits in zip(
            parameters, arguments, _traits_of(parameters), strict=True
        ):
            facts: list[Any] = []
            _specialise([argument], [traits], facts)
            key[parameter.name] = repr(facts)
        variant = launch.kernel.__name__, *key.items()
        line = {"kernel": launch.kernel.__name__, "calls": [], "key": key}
        self.variants.setdefault(variant, line)
        self.launches.setdefault(variant, (launch, arguments, constants))
        calls = self.variants[variant]["calls"]
        if self.call not in calls:
            calls.append(self.call)


def take_part(recorder):
    """Let every launch be written down by the recorder, and let the host decide as if
    kernels had answered.
    """
    compiled.pretend(90)
    make_list = LaunchList.__init__

    def run_list(self, *tensors, scalars=()):
        for step in self._steps:
            if step.kernel is not None:
                recorder.note(step.kernel, step.arguments, step.constants)
        results = [torch.empty(x.shape, dtype=x.dtype) for x in self._results]
        return self._as_tensors(self._returned, [*tensors, *results], scalars)

    LaunchList.__init__ = lambda self, device: make_list(self, DEVICE)
    LaunchList.compile = lambda self: self
    LaunchList.__call__ = run_list

    # Tensors of the CPU stand for those of the device.
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.cuda.current_stream = lambda device=None: None
    torch.cuda.current_device = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    own_empty = torch.empty
    torch.empty = lambda *shape, device=None, **options: own_empty(*shape, **options)
    gpu = tiles.gpu_of(DEVICE)
    for module in [*sys.modules.values()]:
        if getattr(module, "gpu_of", None) is not None:
            module.gpu_of = lambda device: gpu

    # What the device found: certain entries, 116 bits.
    cuda_lowering.CudaLowering.read = lambda self, record, stream=None: (
        RecordedDecision(True, self.plan.scheme, 0.0, 1, self.plan.k_block)
    )
    required_bits.kernel.required_bits_from = lambda found, most: (58, 58)


class Engine(stand_in.StandIn):
    """A CudaEngine of a device that is not there."""

    def __init__(self):
        cuda_engine.CudaEngine.__init__(self, DEVICE)


class MonkeyPatch:
    """What `take_as_device` asks of pytest's."""

    @staticmethod
    def setattr(target, name, value):
        setattr(target, name, value)


def record(calls):
    """The kernels that the calls launch, written down and not launched."""
    recorder = Recorder()
    take_part(recorder)
    stand_in.DEVICE = "cpu"
    stand_in.take_as_device(Engine(), MonkeyPatch)
    for call in calls:
        recorder.call = str(call)
        dtype = getattr(torch, call.dtype)
        a, b, c = (torch.zeros(call.n, call.n, dtype=dtype) for _ in range(3))
        x, y = (
            v if how == "N" else v.mT
            for v, how in zip((a, b), call.layout, strict=True)
        )
        call.run(x, y, c)
    return recorder


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--names", default="")
    options = parser.parse_args(argv)
    recorder = record([call for call in CALLS if options.names in str(call)])
    for variant, line in recorder.variants.items():
        if options.compile:
            launch, arguments, constants = recorder.launches[variant]
            begun = time.perf_counter()
            launch.compile(arguments, constants)
            line["seconds"] = time.perf_counter() - begun
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
