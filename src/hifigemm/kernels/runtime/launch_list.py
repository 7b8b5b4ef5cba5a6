"""A launch list: launches over named memory, written down once for operands of one
layout and run on any such operands. All launches of a run go to one stream, in order:
each sees what all earlier ones have written.

Launch functions take the `Buffer`s of a list, and add steps to it. `finish` finds how
long each scratch memory is needed, and puts all of them into one workspace; `compile`
compiles the kernels. A run allocates that workspace and new results, fills the
addresses in, and launches: eagerly, while a CUDA graph is captured, or inside an
operator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from hifigemm.kernels.runtime.buffers import Buffer, contiguous_strides
from hifigemm.kernels.runtime.launch import (
    Address,
    Launch,
    Scalar,
    TensorMap,
    buffers_of,
    clear,
    enters_directly,
    flat,
    float64_bits,
    is_hooked,
    map_at,
    num_kernels,
    with_parts,
)

ALIGNMENT = 256
"""Of the memory of each buffer."""
_BOUND = 16
"""Sets of addresses for which the arguments of the launches are kept."""
_COMPILERS = 6
"""Kernels that are compiled side by side. A quarter of the time of each, Triton's front
end, is spent under Python's lock: more of them wait for each other.
"""
_WORTH_A_LINE = 0.1
"""Seconds from which the log speaks of compilation."""
_logger = logging.getLogger("hifigemm")


@dataclass(eq=False)
class _Memory:
    """A memory, the first and the last step that uses it, and where it lies: in the
    workspace, from the byte `start` on, or in a tensor of its own.

    Zeros have a `turn`, see `LaunchList.reuse_zeros`; all else has none.
    """

    whole: Buffer
    # number of the tensor among those of a run: operands, then results
    tensor: int | None = None
    turn: int | None = None
    first: int = -1
    last: int = -1
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.whole.numel() * self.whole.dtype.itemsize


@dataclass(frozen=True)
class _Step:
    """A launch, or with `kernel` None a function of torch that is called with
    tensors.
    """

    kernel: Launch | None
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    function: Callable[..., Any] | None = None


class _Template(NamedTuple):
    """A step whose kernel is loaded, with the arguments that depend on no address."""

    step: _Step
    entry: Any  # None where the step is a function of torch
    values: list[Any]  # of all arguments, those of tuples one by one
    # index of the argument, base and bytes from there
    addresses: list[tuple[int, int, int]]
    # the same of a tensor map, and its shape
    maps: list[tuple[int, int, int, tuple[Any, ...]]]
    # index of the argument, and which scalar of the list it is
    scalars: list[tuple[int, int]]


class LaunchList:
    """Steps over the memory of operands and of a workspace of `nbytes`, which is known
    once a list is finished.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nbytes = 0
        self._steps: list[_Step] = []
        self._memories: list[_Memory] = []
        self._operands = 0
        self._results: list[Buffer] = []
        self._returned: Any = None
        self._cleared: list[Buffer] = []
        self._turns: list[int] = []
        self._templates: list[_Template] | None = None
        self._bound: dict[tuple[float, ...], list[Any]] = {}

    def operand(self, like: Any, *, is_zero: bool = False) -> Buffer:
        """The buffer of an operand or result that is laid out as a tensor; operands
        come before scratch memory.

        The list clears operands that are zero, of int32 or int64.
        """
        if self._operands < len(self._memories):
            raise ValueError("operands come before scratch memory")
        layout = tuple(like.shape), tuple(like.stride())
        made = Buffer(
            self, self._operands, like.dtype, *layout, 0, like.data_ptr() & 15
        )
        self._memories.append(_Memory(made, self._operands))
        self._operands += 1
        if is_zero:
            self._cleared.append(made)
        return made

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Buffer:
        """Scratch memory."""
        strides = contiguous_strides(shape)
        made = Buffer(self, len(self._memories), dtype, tuple(shape), strides)
        self._memories.append(_Memory(made))
        return made

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Buffer:
        """Scratch memory that starts as zeros."""
        made = self.empty(shape, dtype)
        self._memories[made.memory].turn = len(self._turns)
        return made

    def returns(self, value: Any) -> None:
        """What runs return: scratch memory of the buffers in `value` is allocated anew
        in each of them.
        """
        self._returned = value
        for buffer in buffers_of((value,)):
            memory = self._memories[buffer.memory]
            if memory.tensor is None:
                memory.tensor = self._operands + len(self._results)
                self._results.append(memory.whole)
                if memory.turn is not None:
                    self._cleared.append(memory.whole)

    def reuse_zeros(self) -> None:
        """From here on nothing reads what has started as zeros so far: one launch
        clears its memory for what comes.
        """
        self._turns.append(len(self._steps))

    def add(
        self,
        kernel: Launch,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> None:
        """Append a launch, unless its grid is empty."""
        if 0 in grid:
            return
        self._append(_Step(kernel, (*grid, 1, 1)[:3], arguments, constants))

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Append a call of a function, which gets tensors instead of buffers and works
        on the current stream.
        """
        self._append(_Step(None, (), arguments, {}, function))

    def _append(self, step: _Step) -> None:
        for buffer in buffers_of(step.arguments):
            memory = self._memories[buffer.memory]
            memory.first = len(self._steps) if memory.first < 0 else memory.first
            memory.last = len(self._steps)
        self._steps.append(step)

    def finish(self) -> LaunchList:
        """Lay the scratch memory out in a workspace; nothing can be added afterwards.

        Zeros come first, so that one launch in front of all others clears them, or all
        of a turn, and an operand or a result. Other memories share bytes where no step
        needs both: steps run one after the other.
        """
        used = [
            memory
            for memory in self._memories
            if memory.tensor is None and memory.first >= 0 and memory.nbytes
        ]
        others = [memory for memory in used if memory.turn is None]
        sizes, ends = [0] * (len(self._turns) + 1), [*self._turns, len(self._steps)]
        for memory in used:
            if memory.turn is not None:
                if memory.last >= ends[memory.turn]:
                    raise ValueError(
                        "zeros are used after their memory was cleared for others"
                    )
                memory.start = sizes[memory.turn]
                sizes[memory.turn] += -(-memory.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = max(sizes)
        scratch = self.empty((self.nbytes // 4,), torch.int32)
        region = self._memories[scratch.memory]
        region.last = len(self._steps)
        placed = [region] if self.nbytes else []

        # The largest memory first, each at the lowest place that no memory of the same
        # steps takes; the region of zeros is taken throughout.
        for memory in sorted(others, key=lambda x: -x.nbytes):
            beside = [
                x for x in placed if x.first <= memory.last and memory.first <= x.last
            ]
            for other in sorted(beside, key=lambda x: x.start):
                if memory.start + memory.nbytes <= other.start:
                    break
                end = other.start + other.nbytes
                memory.start = max(memory.start, -(-end // ALIGNMENT) * ALIGNMENT)
            placed.append(memory)
            self.nbytes = max(self.nbytes, memory.start + memory.nbytes)

        # The launches that clear go in front of the steps of their turn. The last turn
        # comes first, so that the numbers of earlier steps still hold.
        for turn, at in reversed([*enumerate([0, *self._turns])]):
            steps, self._steps = self._steps, []
            zeros = [scratch[: sizes[turn] // 4]]
            if turn == 0:
                zeros += [buffer.view(torch.int32) for buffer in self._cleared]
            for x, y in zip_longest(zeros[::2], zeros[1::2], fillvalue=scratch[:0]):
                clear(x, y)
            self._steps = [*steps[:at], *self._steps, *steps[at:]]
        return self

    def compile(self) -> LaunchList:
        """Compile the kernels of all launches, several at a time."""
        launches = [
            (step, step.kernel) for step in self._steps if step.kernel is not None
        ]
        if not enters_directly() or self.device.type != "cuda":
            return self

        def entry(launch: tuple[_Step, Launch]) -> Any:
            step, kernel = launch
            with torch.cuda.device(self.device):
                return kernel.entry(step.arguments, step.constants)

        with torch.cuda.device(self.device):
            variants = {
                variant: x
                for x in launches
                if (variant := x[1].new_variant(x[0].arguments, x[0].constants))
            }
        new, started = [*variants.values()], time.perf_counter()
        if new and num_kernels() == 0:
            # Triton hashes its own files, half a gigabyte, before the first kernel of a
            # process. That one goes ahead, so that no other thread hashes them too.
            entry(new[0])
        # Kernels in Gluon take longest: they are not left alone at the end.
        gluon_first = sorted(new, key=lambda launch: not launch[1].is_gluon)
        with ThreadPoolExecutor(_COMPILERS) as pool:
            list(pool.map(entry, gluon_first))
        entries = [entry(launch) for launch in launches]
        seconds = time.perf_counter() - started
        if seconds > _WORTH_A_LINE:
            _logger.info("%d kernels compiled or loaded in %.2g s", len(new), seconds)
        if all(x is not None for x in entries):
            by_step = iter(entries)
            self._templates = [
                self._template(step, next(by_step) if step.kernel else None)
                for step in self._steps
            ]
        return self

    def __call__(self, *tensors: torch.Tensor, scalars: tuple[float, ...] = ()) -> Any:
        """Run on torch's current stream, on tensors that are laid out as the operands,
        with these values of the `Scalar`s.

        What `returns` was given is returned, with tensors instead of buffers.
        """
        memory = [*tensors]
        for x in self._results:
            memory.append(torch.empty(x.shape, dtype=x.dtype, device=self.device))
        if self.nbytes:
            workspace = torch.empty(self.nbytes, dtype=torch.int8, device=self.device)
            memory.append(workspace)
        if self._templates is None or is_hooked():
            self._run_plainly(memory, scalars)
        else:
            self._enter(self._templates, memory, scalars)
        if self._returned is None:
            return None
        return self._as_tensors(self._returned, memory, scalars)

    def _enter(
        self,
        templates: list[_Template],
        memory: Sequence[torch.Tensor],
        scalars: tuple[float, ...],
    ) -> None:
        """Every launch past the JIT, with arguments that are kept for these
        addresses.
        """
        bases = [x.data_ptr() for x in memory]
        stream = raw_stream(self.device)
        key = (stream, *bases, *scalars)
        calls = self._bound.get(key)
        if calls is None:
            if len(self._bound) >= _BOUND:
                self._bound.clear()
            calls = [
                self._filled_in(template, stream, bases, scalars)
                for template in templates
            ]
            if all(step.kernel is not None for step in self._steps):
                self._bound[key] = calls
        for call in calls:
            if isinstance(call, _Step):
                given = self._as_tensors(call.arguments, memory, scalars)
                call.function(*given)  # type: ignore[misc]
            else:
                call()

    def _run_plainly(
        self, tensors: Sequence[torch.Tensor], scalars: tuple[float, ...]
    ) -> None:
        """Every step as a call of the JIT, or of the interpreter, with tensors."""
        for step in self._steps:
            arguments = self._as_tensors(step.arguments, tensors, scalars)
            if step.kernel is None:
                step.function(*arguments)  # type: ignore[misc]
            else:
                step.kernel.call_jit(step.grid, arguments, step.constants)

    def _place(self, buffer: Buffer) -> tuple[int, int]:
        """The number of a buffer's tensor, and the bytes from its start. The workspace
        comes after all operands and results.
        """
        memory = self._memories[buffer.memory]
        if memory.tensor is not None:
            return memory.tensor, buffer.offset
        return self._operands + len(self._results), memory.start + buffer.offset

    def _as_tensors(
        self, x: Any, tensors: Sequence[torch.Tensor], scalars: tuple[float, ...]
    ) -> Any:
        """Arguments, or what is returned, with tensors instead of buffers and values
        instead of scalars; `tensors` are the operands, the results and the workspace.
        """
        if isinstance(x, Buffer):
            return self._as_tensor(x, tensors)
        if isinstance(x, (tuple, list)):
            parts = [self._as_tensors(part, tensors, scalars) for part in x]
            return with_parts(x, parts)
        if type(x) is Scalar:
            return float64_bits(scalars[x.index])
        if type(x) is TensorMap and isinstance(x.place, Buffer):
            base, offset = self._place(x.place)
            return map_at(tensors[base].data_ptr() + offset, x.shape)
        return x

    def _as_tensor(self, x: Buffer, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The entries of a buffer."""
        memory = self._memories[x.memory]
        if x is memory.whole and memory.tensor is not None:
            return tensors[memory.tensor]
        if not x.numel():
            return torch.empty(x.shape, dtype=x.dtype, device=self.device)
        base, offset = self._place(x)
        y = tensors[base]
        if memory.tensor is not None:
            if y.dtype is not x.dtype:
                y = torch.view_as_real(y) if y.is_complex() else y.view(x.dtype)
            start = y.storage_offset() + offset // x.dtype.itemsize
            return y.as_strided(x.shape, x.strides, start)
        length = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True))
        entries = y[offset : offset + length * x.dtype.itemsize].view(x.dtype)
        return entries.as_strided(x.shape, x.strides)

    def _template(self, step: _Step, entry: Any) -> _Template:
        """A launch with the places of its arguments that depend on an address; a
        function of torch as it is.
        """
        values: list[Any] = []
        addresses, maps, scalars = [], [], []
        for argument in flat(step.arguments if entry is not None else ()):
            if type(argument) is TensorMap:
                if isinstance(argument.place, Buffer):
                    maps.append(
                        (len(values), *self._place(argument.place), argument.shape)
                    )
                values.append(argument.packed())
            elif type(argument) is Buffer and not argument.numel():
                values.append(0)  # its memory may not be there
            elif type(argument) is Buffer:
                addresses.append((len(values), *self._place(argument)))
                values.append(None)
            elif type(argument) is Scalar:
                scalars.append((len(values), argument.index))
                values.append(None)
            elif type(argument) in (torch.Tensor, Address):
                values.append(argument.data_ptr())
            else:
                values.append(argument)
        return _Template(step, entry, values, addresses, maps, scalars)

    def _filled_in(
        self,
        template: _Template,
        stream: int,
        bases: list[int],
        scalars: tuple[float, ...],
    ) -> Any:
        """The launch of a template on a stream, for these addresses and scalars; the
        step where it is a function of torch.
        """
        if template.entry is None:
            return template.step
        values = template.values.copy()
        for index, base, offset in template.addresses:
            values[index] = bases[base] + offset
        for index, base, offset, shape in template.maps:
            values[index] = map_at(bases[base] + offset, shape).packed()
        for index, which in template.scalars:
            values[index] = float64_bits(scalars[which])
        return template.entry.prepared(template.step.grid, stream, values)


def raw_stream(device: torch.device) -> int:
    """The current stream of a GPU, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device.index)
    return stream


def facts_of(x: Any) -> tuple[Any, ...]:
    """What a launch list rests on of a tensor: it serves all that have the same facts."""
    return tuple(x.shape), x.stride(), x.dtype, x.data_ptr() & 15
