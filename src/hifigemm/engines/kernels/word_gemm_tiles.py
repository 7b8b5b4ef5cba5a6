"""Tiles of the kernels of corrected products: which fit a GPU, and which is taken.

Tiles never change a bit of a result, only its time. `tile_for` takes what is known of the GPU, else the tile with the
least time by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from hifigemm.engines.kernels.tiles import Gpu, ProductShape, Tile

__all__ = ["RATES", "WordShape", "candidates", "is_valid", "tile_for", "valid_tiles", "waves"]

RATES = {(128, 128): 1.0, (128, 64): 0.85, (128, 32): 0.5}
"""Tiles of the Hopper kernel: rates with two FP16 words an operand relative to 128 x 128, which makes 220 TFLOP/s on an
H200 at 700 W (n = 4096 and 8192, words at hand). The others are estimates, as are those of the plain kernel."""
_PLAIN_RATES = {
    (128, 128, 8): 0.7,
    (128, 64, 8): 0.6,
    (64, 128, 8): 0.6,
    (64, 64, 4): 0.5,
    (64, 32, 4): 0.3,
    (32, 32, 2): 0.2,
}
"""(block_m, block_n, warps) of the plain kernel."""
_MOST_STAGES = {"hopper": 8, "triton": 3}
_WIDTH = {"fp16": 2, "bf16": 2, "tf32": 4}
_GROUPS = (4, 8, 16)
_FAR = 1.5
"""Times the least predicted time from which a search does not try a tile: each takes seconds to compile."""


@dataclass(frozen=True)
class WordShape(ProductShape):
    """What is asked: `planes` matrices of a stack, with words of a format, in blocks of k."""

    fmt: str
    block: int

    @property
    def kind(self) -> str:
        """Class of shapes that share a tile."""
        return f"{super().kind} {self.fmt} words by {self.block}"


_KNOWN = {
    "NVIDIA H200": {
        "1024 1024 1024 x 1 fp16 words by 64": Tile("hopper", 128, 64, 64, 4, 4),
        "2048 2048 2048 x 1 fp16 words by 64": Tile("hopper", 128, 128, 64, 3, 4),
        "4096 4096 4096 x 1 fp16 words by 64": Tile("hopper", 128, 128, 64, 3, 4),
        "8192 8192 8192 x 1 fp16 words by 64": Tile("hopper", 128, 128, 64, 3, 4),
    }
}
"""Tiles by GPU and `WordShape.kind`, as `hifigemm bench --search --dtype float32` prints them. Captured in graphs they
make 98, 158, 185 and 202 TFLOP/s at n = 1024 to 8192, the making of the words included (700 W)."""


def _stages(tile: Tile, fmt: str, gpu: Gpu) -> int:
    """Stages of the ring that fit, for two words an operand."""
    stage = 2 * (tile.block_m + tile.block_n) * tile.block_k * _WIDTH[fmt]
    return min(_MOST_STAGES[tile.kernel], (gpu.shared_per_block - 1024) // stage)


def is_valid(tile: Tile, gpu: Gpu, fmt: str, block: int) -> bool:
    """Whether a GPU runs a tile: kernel, block of k, shared memory for 2 stages at least, registers of S, P and D."""
    area = tile.block_m * tile.block_n
    if tile.kernel == "hopper":
        runs = gpu.capability == (9, 0) and tile.warps == 4 and (tile.block_m, tile.block_n) in RATES
    else:
        registers = {9: 192, 10: 128}.get(gpu.capability[0], 96)
        known = (tile.block_m, tile.block_n, tile.warps) in _PLAIN_RATES
        runs = tile.kernel == "triton" and known and 3 * area <= 32 * tile.warps * registers
    return runs and tile.block_k == block and 2 <= tile.stages <= _stages(tile, fmt, gpu) and tile.group > 0


def valid_tiles(gpu: Gpu, fmt: str, block: int, *, plain: bool = False) -> dict[Tile, float]:
    """The tiles that a GPU has room for, with their estimated rates; `plain` leaves the Hopper kernel out."""
    tiles = {} if plain else {Tile("hopper", *shape, block, 0, 4): rate for shape, rate in RATES.items()}
    tiles |= {Tile("triton", bm, bn, block, 0, warps): rate for (bm, bn, warps), rate in _PLAIN_RATES.items()}
    sized = {replace(tile, stages=_stages(tile, fmt, gpu)): rate for tile, rate in tiles.items()}
    return {tile: rate for tile, rate in sized.items() if is_valid(tile, gpu, fmt, block)}


def candidates(shape: WordShape, gpu: Gpu, *, plain: bool = False) -> list[Tile]:
    """What a search tries: tiles that are not predicted to be far behind, with all stages and with one less, in groups.

    Of the groups that hold all rows of tiles, the least is enough.
    """
    tiles = valid_tiles(gpu, shape.fmt, shape.block, plain=plain)
    costs = {tile: _cost(tile, shape, gpu, rate) for tile, rate in tiles.items()}
    near = [tile for tile, cost in costs.items() if cost <= _FAR * min(costs.values())]
    tried = {
        replace(t, stages=t.stages - less, group=group)
        for t in near
        for less in (0, 1)
        for before, group in zip((0, *_GROUPS), _GROUPS, strict=False)
        if before < -(-shape.m // t.block_m)
    }
    return sorted((t for t in tried if is_valid(t, gpu, shape.fmt, shape.block)), key=str)


def waves(m: int, n: int, planes: int, block: tuple[int, int], num_sms: int) -> int:
    """Tiles that the busiest SM makes."""
    return -(-planes * -(-m // block[0]) * -(-n // block[1]) // num_sms)


def _cost(tile: Tile, shape: WordShape, gpu: Gpu, rate: float) -> float:
    """Time in entries of the result that an SM makes at the full rate."""
    block = tile.block_m, tile.block_n
    return waves(shape.m, shape.n, shape.planes, block, gpu.num_sms) * tile.block_m * tile.block_n / rate


@lru_cache(maxsize=4096)
def tile_for(shape: WordShape, gpu: Gpu, plain: bool = False) -> Tile:
    """The tile that is known, else that of the least predicted time, the larger among equals."""
    known = _KNOWN.get(gpu.name, {}).get(shape.kind)
    if known is not None and is_valid(known, gpu, shape.fmt, shape.block) and not (plain and known.kernel == "hopper"):
        return known
    rates = valid_tiles(gpu, shape.fmt, shape.block, plain=plain)
    return min(rates, key=lambda tile: (_cost(tile, shape, gpu, rates[tile]), -tile.block_m * tile.block_n))
