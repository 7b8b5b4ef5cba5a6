"""Named memory of a launch list: what a launch knows of a tensor before there is one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Buffer:
    """A view of one of the memories of a launch list, with the part of a tensor's
    interface that launch functions use.
    """

    launches: Any
    # which memory of the list the view lies in: operands come first, then scratch
    # memory
    memory: int
    dtype: torch.dtype
    # `shape`, `strides`: strides in entries
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0  # bytes from the start of the memory to the first entry
    alignment: int = 0  # the address of the memory modulo 16

    @property
    def device(self) -> torch.device:
        """Device of the list."""
        return self.launches.device

    @property
    def is_cuda(self) -> bool:
        """Whether the list runs on a GPU."""
        return self.device.type == "cuda"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def stride(self, axis: int | None = None) -> Any:
        """All strides, or that of an axis."""
        return self.strides if axis is None else self.strides[axis]

    def data_ptr(self) -> int:
        """A stand-in for the address that has its alignment."""
        return self.alignment + self.offset

    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def is_complex(self) -> bool:
        """Whether the entries are complex."""
        return self.dtype.is_complex

    def is_contiguous(self) -> bool:
        """Whether the entries lie one after the other, the last axis innermost."""
        if not self.numel():
            return True
        wanted = 1
        for size, stride in zip(
            reversed(self.shape), reversed(self.strides), strict=True
        ):
            if size > 1 and stride != wanted:
                return False
            wanted *= size
        return True

    def behind(self, start: int) -> Buffer:
        """The memory from `start` entries after the first one on."""
        return replace(self, offset=self.offset + start * self.dtype.itemsize)

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Buffer:
        """Another shape from the first entry on."""
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def view(self, *shape: Any) -> Buffer:
        """A contiguous buffer in another shape, one length of which may be -1, or any
        buffer in a dtype as long.
        """
        if isinstance(shape[0], torch.dtype):
            (dtype,) = shape
            old, new = self.dtype.itemsize, dtype.itemsize
            if old == new:
                return replace(self, dtype=dtype)
            if not self.is_contiguous() or self.shape[-1] * old % new:
                raise ValueError(f"no view of {self.shape} {self.dtype} as {dtype}")
            made = (*self.shape[:-1], self.shape[-1] * old // new)
            return replace(self, dtype=dtype).as_strided(made, contiguous_strides(made))
        sizes = list(shape[0] if isinstance(shape[0], tuple) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.numel() // -math.prod(sizes)
        if not self.is_contiguous() or math.prod(sizes) != self.numel():
            raise ValueError(
                f"no view of {self.shape} with strides {self.strides} as {tuple(sizes)}"
            )
        return self.as_strided(tuple(sizes), contiguous_strides(tuple(sizes)))

    def real_view(self) -> Buffer:
        """Complex entries as pairs of real numbers."""
        real = torch.float32 if self.dtype is torch.complex64 else torch.float64
        pairs = replace(self, dtype=real)
        return pairs.as_strided((*self.shape, 2), (*(2 * s for s in self.strides), 1))

    def expand(self, *shape: int) -> Buffer:
        """Axes of length 1, and new ones in front, repeated."""
        added = len(shape) - self.ndim
        sizes, strides = (1,) * added + self.shape, (0,) * added + self.strides
        wanted = tuple(n if m == -1 else m for n, m in zip(sizes, shape, strict=True))
        if any(n not in (1, m) for n, m in zip(sizes, wanted, strict=True)):
            raise ValueError(f"{self.shape} does not expand to {shape}")
        repeated = tuple(
            s if n == m else 0 for n, m, s in zip(sizes, wanted, strides, strict=True)
        )
        return self.as_strided(wanted, repeated)

    def unbind(self) -> tuple[Buffer, ...]:
        """The buffers along the first axis."""
        return tuple(self[i] for i in range(len(self)))

    def split(self, sizes: list[int]) -> list[Buffer]:
        """Buffers of these lengths along the first axis."""
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [self[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def __getitem__(self, index: Any) -> Buffer:
        """Integers and slices with positive steps."""
        index = index if isinstance(index, tuple) else (index,)
        shape, strides, start = [], [], 0
        for i, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            at = index[i] if i < len(index) else slice(None)
            if isinstance(at, slice):
                first, last, step = at.indices(size)
                shape.append(len(range(first, last, step)))
                strides.append(stride * step)
            else:
                first = range(size)[at]
            start += first * stride
        return self.behind(start).as_strided(tuple(shape), tuple(strides))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(
        math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape))
    )
