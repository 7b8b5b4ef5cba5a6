"""Tiles of operands that are split vector by vector, with k innermost in what is stored, in one launch or two.

Vectors that lie in one tile are "whole". Programs of longer ones wait for each other ("together") only where the device
runs all of a vector at a time; otherwise one launch finds the "magnitudes" and a second one has them "given". See
words_kernels.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from hifigemm.engines.kernels.tiles import gpu_of

__all__ = ["WARPS", "Side", "forms_of_launches", "num_sms", "stage_of", "tile_of"]

WARPS = 4
_PROGRAMS = 256
"""Programs that occupy the device."""


@dataclass(frozen=True)
class Side:
    """What a launch needs to know of an operand; `form` is what its kernel is compiled for, `stage` among it."""

    batch: int
    vectors: int
    k: int
    strides: tuple[int, int, int]
    chunks: int
    programs: int
    form: Any

    @property
    def scratch(self) -> int:
        """Numbers that programs exchange: the magnitudes of vectors, and arrivals; up to a multiple of 16 bytes."""
        if self.form.stage == "whole" or not self.programs:
            return 0
        return -(-(self.batch * self.vectors + self.programs // self.chunks) // 4) * 4


def num_sms(x: torch.Tensor) -> int:
    """Multiprocessors of the device of a tensor, 0 in the interpreter, where programs cannot wait for each other."""
    return gpu_of(x.device).num_sms if x.is_cuda else 0


def stage_of(chunks: int, num_sms: int) -> str:
    """What the first launch does with vectors of so many tiles."""
    return "whole" if chunks == 1 else "together" if chunks <= num_sms else "magnitudes"


def forms_of_launches(sides: Sequence[Side]) -> Iterator[tuple[list[int], list[Any]]]:
    """Programs and forms of each operand, for every launch that has any programs."""
    launches = [("whole", "together", "magnitudes"), ("given",)]
    for stages in launches[: 1 + any(side.form.stage == "magnitudes" for side in sides)]:
        forms = [side.form for side in sides]
        if "given" in stages:
            forms = [replace(form, stage="given") if form.stage == "magnitudes" else form for form in forms]
        programs = [side.programs if form.stage in stages else 0 for side, form in zip(sides, forms, strict=True)]
        if sum(programs):
            yield programs, forms


def tile_of(vectors: int, pitch: int, entries: int, *, along_k: bool) -> tuple[int, int]:
    """Vectors and entries of a vector in a tile; `pitch` is the length of a stored vector.

    Eight float32 vectors side by side fill a sector of memory where k is strided, 32 a cache line.
    """
    length = triton.next_power_of_2(pitch)
    if along_k:
        least, block_k = 1, min(entries, length)
    else:
        least, block_k = 8, length if length <= entries // 8 else entries // 32
    block_v = min(entries // block_k, max(least, triton.next_power_of_2(vectors)))
    chunks = -(-pitch // block_k)
    while block_v > least and -(-vectors // block_v) * chunks < _PROGRAMS:
        block_v //= 2
    return block_v, block_k
