"""Tiles of the INT8 product kernels: which kernel and which block.

Tiles never change a bit of a result, only its time. `tile_for` is arithmetic: the number of waves over the SMs times
the area of a tile over the rate of its kernel. The warp-specialised 128x256x128 is the unit, 1450 TOP/s sustained on an
H200 at n = 4096 with 14 moduli; the rates of the other tiles are estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

__all__ = ["KERNELS", "Gpu", "ProductShape", "Tile", "gpu_of", "grid_size", "hopper_module", "tile_for", "valid_tiles"]

KERNELS = ("hopper", "triton")
"""For Hopper in Gluon; in plain Triton for every GPU and all strides."""


@dataclass(frozen=True)
class ProductShape:
    """What is asked: `planes` independent products of (m, k) and (k, n)."""

    m: int
    n: int
    k: int
    planes: int

    @property
    def kind(self) -> str:
        """Class of shapes that share a tile: m, n, k up to the next power of two, and the number of planes."""
        m, n, k = (1 << (x - 1).bit_length() if x > 1 else 1 for x in (self.m, self.n, self.k))
        return f"{m} {n} {k} x {self.planes}"


@dataclass(frozen=True)
class Gpu:
    """What the choice depends on; shared memory in bytes. The capability (0, 0) stands for anything but NVIDIA."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    shared_per_block: int
    shared_per_sm: int


@dataclass(frozen=True)
class Tile:
    """What runs: one of the `KERNELS`, its block, pipeline stages, warps, and rows of tiles in a group."""

    kernel: str
    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group: int = 8

    def __str__(self) -> str:
        block = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.kernel} {block}, {self.stages} stages, {self.warps} warps, groups of {self.group}"

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the stages and the tile of C, for which the kernel "triton" uses the same bytes."""
        stages = self.stages * (self.block_m + self.block_n) * self.block_k
        area = self.block_m * self.block_n
        return max(stages, area) if self.kernel == "triton" else stages + area + 512

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: its accumulators and about 64 more."""
        warps = 8 if self.kernel == "hopper" else self.warps
        return self.block_m * self.block_n // (32 * warps) + 64


_RATES = {
    Tile("hopper", 128, 256, 128, 4, 4): 1.0,
    Tile("hopper", 128, 128, 128, 6, 4): 0.87,
    Tile("triton", 128, 128, 128, 3, 8): 0.84,
    Tile("triton", 128, 256, 128, 3, 8): 0.81,
    Tile("triton", 128, 256, 128, 4, 8): 0.79,
    Tile("triton", 128, 256, 64, 3, 8): 0.65,
    Tile("triton", 128, 128, 64, 3, 4): 0.65,
    Tile("triton", 64, 256, 128, 3, 8): 0.65,
    Tile("triton", 64, 128, 128, 3, 4): 0.55,
    Tile("triton", 128, 64, 128, 3, 4): 0.55,
    Tile("triton", 64, 64, 128, 3, 4): 0.4,
    Tile("triton", 64, 64, 64, 3, 4): 0.35,
    Tile("triton", 32, 128, 128, 3, 4): 0.3,
    Tile("triton", 128, 32, 128, 3, 4): 0.3,
    Tile("triton", 32, 64, 128, 3, 4): 0.22,
    Tile("triton", 64, 32, 128, 3, 4): 0.22,
    Tile("triton", 32, 32, 128, 4, 4): 0.15,
    Tile("triton", 32, 32, 64, 3, 4): 0.12,
}


def valid_tiles(gpu: Gpu, kernels: tuple[str, ...] = KERNELS) -> list[Tile]:
    """The tiles of some kernels that fit the shared memory and registers of a GPU."""
    # Before Hopper the operands of a product pass through registers too.
    k_registers = 0 if gpu.capability >= (9, 0) else 0.5

    def fits(tile: Tile) -> bool:
        small = tile.shared <= gpu.shared_per_block and tile.registers + k_registers * tile.block_k <= 255
        return tile.kernel in kernels and (tile.kernel == "triton" or gpu.capability == (9, 0)) and small

    return [tile for tile in _RATES if fits(tile)]


def _resident(tile: Tile, gpu: Gpu) -> int:
    """Blocks of a tile that an SM holds at a time."""
    if tile.kernel == "hopper":
        return 1
    by_registers = 65536 // (32 * tile.warps * tile.registers)
    return max(1, min(gpu.shared_per_sm // (tile.shared + 1024), by_registers, 8))


def _count(tile: Tile, shape: ProductShape) -> int:
    """Tiles of all planes."""
    return -(-shape.m // tile.block_m) * -(-shape.n // tile.block_n) * shape.planes


def grid_size(tile: Tile, shape: ProductShape, gpu: Gpu) -> int:
    """Programs of a persistent launch: what the GPU holds at a time, or one for each tile where those are fewer."""
    return min(_count(tile, shape), gpu.num_sms * _resident(tile, gpu))


def _cost(tile: Tile, shape: ProductShape, gpu: Gpu) -> float:
    """Time in units of one column of one row on one SM at the full rate; resident blocks share an SM."""
    count, resident = _count(tile, shape), _resident(tile, gpu)
    full, rest = divmod(count, gpu.num_sms * resident)
    turns = full * resident + -(-rest // gpu.num_sms)
    return turns * tile.block_m * tile.block_n / _RATES[tile]


@lru_cache(maxsize=4096)
def tile_for(shape: ProductShape, gpu: Gpu, kernels: tuple[str, ...] = KERNELS) -> Tile:
    """The tile of some kernels with the smallest predicted time, the larger area first among equals."""
    tiles = valid_tiles(gpu, kernels)
    if not tiles:
        raise ValueError(f"no tile fits {gpu}")
    return min(tiles, key=lambda t: (_cost(t, shape, gpu), -t.block_m * t.block_n))


@lru_cache
def gpu_of(device: Any) -> Gpu:
    """The `Gpu` of a torch device; the CPU stands for the interpreter."""
    import torch

    if device.type != "cuda":
        return Gpu("interpreter", (0, 0), 2, 1 << 18, 1 << 18)
    found = torch.cuda.get_device_properties(device)
    shared = int(getattr(found, "shared_memory_per_block_optin", 1 << 16))
    capability = (0, 0) if torch.version.hip else (int(found.major), int(found.minor))
    per_sm = int(getattr(found, "shared_memory_per_multiprocessor", shared))
    return Gpu(str(found.name), capability, int(found.multi_processor_count), shared, per_sm)


@lru_cache
def hopper_module(name: str, device: Any) -> Any:
    """A module of kernels in Gluon where the GPU is a Hopper and this Triton's Gluon is known, else None."""
    from hifigemm.engines.kernels.launch import knows_gluon

    if gpu_of(device).capability != (9, 0) or not knows_gluon():
        return None
    return import_module(f"hifigemm.engines.kernels.{name}")
