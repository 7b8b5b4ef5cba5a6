"""Tiles of the product kernels: the one table of which kernel takes which block, and
the choice from it.

Tiles never change a bit of a result, only its time. `tile_for` is arithmetic: the
number of waves over the SMs times the area of a tile over the rate of its kernel.
`hifigemm info` prints what large products take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SLOW_INT8 = (10, 3), (12, 0)
"""Capabilities from B300 and GB300 on, whose INT8 products run at a sixteenth of the rate
of FP16 products, to the next ones that are known to be quicker.
"""
KERNELS = ("hopper", "triton")
"""For Hopper in Gluon; in plain Triton for every GPU and all strides."""


@dataclass(frozen=True)
class Tile:
    """What runs: one of the `KERNELS`, its block, pipeline stages, warps, and rows of
    tiles in a group.

    A tile is block_m x block_n entries of a result, and a stage holds block_k terms of
    its rows and columns. On "hopper" the warps are those of one warpgroup; two multiply.
    """

    kernel: str
    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group: int = 8
    unit: str = "int8"  # of products of INT8 in "triton", or "fp16"

    def __str__(self) -> str:
        block = f"{self.block_m}x{self.block_n}x{self.block_k}"
        facts = [
            f"{self.kernel} {block}",
            f"{self.stages} stages",
            f"{self.warps} warps",
            f"groups of {self.group}",
        ]
        if self.unit != "int8":
            facts.append(self.unit)
        return ", ".join(facts)

    @property
    def area(self) -> int:
        """Entries of the result."""
        return self.block_m * self.block_n

    @property
    def stage(self) -> int:
        """Entries of both operands that a stage holds."""
        return (self.block_m + self.block_n) * self.block_k

    @property
    def shared(self) -> int:
        """Bytes of shared memory of INT8 products: the stages and the tile of C, which
        share them in "triton".
        """
        stages = self.stages * self.stage
        return (
            max(stages, self.area)
            if self.kernel == "triton"
            else stages + self.area + 512
        )

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: its accumulators and about 64 more."""
        warps = 8 if self.kernel == "hopper" else self.warps
        return self.area // (32 * warps) + 64


def integer_unit(capability: tuple[int, int]) -> str:
    """What multiplies INT8 on GPUs of a capability: "int8", or "fp16"."""
    first, next_quick = _SLOW_INT8
    return "fp16" if first <= capability < next_quick else "int8"


# fmt: off
TILES: dict[str, dict[Tile, float]] = {
    "residues": {
        Tile("hopper", 128, 256, 128, 4, 4): 1.0, Tile("hopper", 128, 128, 128, 6, 4): 0.87,
        Tile("triton", 128, 128, 128, 3, 8): 0.84, Tile("triton", 128, 256, 128, 3, 8): 0.81,
        Tile("triton", 128, 256, 128, 4, 8): 0.79, Tile("triton", 128, 256, 64, 3, 8): 0.65,
        Tile("triton", 128, 128, 64, 3, 4): 0.65, Tile("triton", 64, 256, 128, 3, 8): 0.65,
        Tile("triton", 64, 128, 128, 3, 4): 0.55, Tile("triton", 128, 64, 128, 3, 4): 0.55,
        Tile("triton", 64, 64, 128, 3, 4): 0.4, Tile("triton", 64, 64, 64, 3, 4): 0.35,
        Tile("triton", 32, 128, 128, 3, 4): 0.3, Tile("triton", 128, 32, 128, 3, 4): 0.3,
        Tile("triton", 32, 64, 128, 3, 4): 0.22, Tile("triton", 64, 32, 128, 3, 4): 0.22,
        Tile("triton", 32, 32, 128, 4, 4): 0.15, Tile("triton", 32, 32, 64, 3, 4): 0.12,
    },
    "words": {
        Tile("hopper", 128, 128, 64, 8, 4): 1.0, Tile("hopper", 128, 64, 64, 8, 4): 0.85,
        Tile("hopper", 128, 32, 64, 8, 4): 0.5, Tile("triton", 128, 128, 64, 3, 8): 0.7,
        Tile("triton", 128, 64, 64, 3, 8): 0.6, Tile("triton", 64, 128, 64, 3, 8): 0.6,
        Tile("triton", 64, 64, 64, 3, 4): 0.5, Tile("triton", 64, 32, 64, 3, 4): 0.3,
        Tile("triton", 32, 32, 64, 3, 2): 0.2,
    },
    "chains": {
        Tile("hopper", 128, 256, 64, 8, 4): 1.0, Tile("hopper", 128, 128, 64, 8, 4): 0.7,
        Tile("hopper", 128, 64, 64, 8, 4): 0.5, Tile("hopper", 128, 32, 64, 8, 4): 0.3,
        Tile("triton", 128, 128, 64, 3, 8): 0.6, Tile("triton", 128, 64, 64, 3, 8): 0.5,
        Tile("triton", 64, 128, 64, 3, 8): 0.5, Tile("triton", 64, 64, 64, 3, 4): 0.4,
        Tile("triton", 64, 32, 64, 3, 4): 0.25, Tile("triton", 32, 32, 64, 3, 2): 0.15,
    },
}
TILES["sums of chains"] = {t: rate for t, rate in TILES["chains"].items() if t.block_n <= 128}
"""Tiles by family, with their rates. Residues, slices, and error ratios on a Hopper:
128x256x128 of "hopper" is the unit, 1450 TOP/s sustained on an H200 at n = 4096 with 14 moduli. Words, in stages
of any block of k, as many as fit and no more than here: 128x128 makes 220 TFLOP/s with
two FP16 words an operand on an H200 at 700 W (n = 4096 and 8192, words at hand). Chains
of words have one pair of them in a stage and one sum of a tile, sums of chains two. All
other rates are estimates.
"""
_KNOWN = {
    ("NVIDIA H200", "1024 1024 1024 x 1 fp16 words by 64"): Tile("hopper", 128, 64, 64, 4, 4),
    ("NVIDIA H200", "2048 2048 2048 x 1 fp16 words by 64"): Tile("hopper", 128, 128, 64, 3, 4),
    ("NVIDIA H200", "4096 4096 4096 x 1 fp16 words by 64"): Tile("hopper", 128, 128, 64, 3, 4),
    ("NVIDIA H200", "8192 8192 8192 x 1 fp16 words by 64"): Tile("hopper", 128, 128, 64, 3, 4),
}
"""Tiles by GPU and `ProductShape.kind`, as `python -m benchmarks.tiles --dtype float32`
prints them. Captured in graphs they make 98, 158, 185 and 202 TFLOP/s at n = 1024 to
8192, the making of the words included (700 W).
"""
NATIVE = {
    "fp32": Tile("triton", 64, 64, 16, 2, 4),
    "fp64": Tile("triton", 64, 64, 16, 4, 2),
    "fp64, edges": Tile("triton", 64, 64, 16, 4, 4),
    "fp64, complex": Tile("triton", 64, 32, 16, 3, 4),
}
"""Tiles of products in FP32 and FP64. Two warps and four stages reach 53 TFLOP/s on an
H200 at n = 4096, cuBLAS 56; four warps and two stages reach 34. The registers of two
warps do not hold masks, or the addresses of both components, in addition to the sums.
"""
RATIOS = Tile("triton", 128, 128, 128, 3, 8)
SMALL_RATIOS = Tile("triton", 64, 64, 128, 3, 4)
"""Of error ratios in plain Triton, the smaller one where `tile_for` takes a tile of
fewer entries.
"""
SLICES = {
    "float16": Tile("triton", 128, 128, 64, 3, 8),
    "bfloat16": Tile("triton", 128, 128, 64, 3, 8),
    "float64": Tile("triton", 128, 64, 16, 4, 4, group=4),
}
"""Of sums over diagonals of slices that are no INT8. FP64 slices by tiles of 64 x 64 are
as quick up to n = 4096 on an H100, and half as quick from 8192 on, where they read more
than its memory gives: 531 ms in place of 274 for 13 products.
"""
SMALL_SLICES = {
    "float16": Tile("triton", 64, 64, 64, 3, 4),
    "bfloat16": Tile("triton", 64, 64, 64, 3, 4),
    "float64": Tile("triton", 32, 32, 16, 4, 4),
}
"""Of those whose larger tiles are fewer than the multiprocessors."""
SUMS = (
    Tile("triton", 16, 64, 4, 1, 4), Tile("triton", 8, 64, 4, 1, 4),
    Tile("triton", 16, 32, 4, 1, 2), Tile("triton", 8, 32, 4, 1, 2),
    Tile("triton", 4, 32, 4, 1, 2),
)
"""Of sums of products that are rounded once, from large to small; the block of k is
what is loaded together. A vector of fewer entries than threads is loaded by each thread
that needs it.
"""
MANY_SUMS = Tile("triton", 8, 64, 4, 1, 1)
"""Of such sums where each multiprocessor has several tiles. A warp is as wide as half of
its rows, so that each thread loads 10 numbers for 16 products: four warps, side by side
and one below the other, load 5 for 4.
"""
VECTOR_ENTRIES = {
    "fp16": 8192, "bf16": 4096, "tf32": 4096, "words of float64": 4096,
    "float32 slices": 8192, "float64 slices": 4096,
}
"""Of a tile of vectors that is cut to words or slices: 64 or 32 in each thread, so that
four programs share the registers of a multiprocessor, or three where TF32 words have
exponents along k; with these, 64 entries would take 210 registers.
"""
# fmt: on

_WIDTH = {"fp16": 2, "bf16": 2, "tf32": 4}
_GROUPS = (4, 8, 16)
_FAR = 1.5
"""Times the least predicted time from which a search does not try a tile: each takes
seconds to compile.
"""


def tile_of_sums(batch: int, m: int, n: int, num_sms: int) -> Tile:
    """A tile of one warp where each SM has eight of them; else the largest tile that
    occupies nearly all SMs, or the smallest one.

    On an H100 512 products with n = 128 take 0.67 ms by one warp a tile and 0.97 in tiles
    of 16 x 64, a product with n = 4096 60 ms and 74. At n = 256, 8 x 64 by four warps takes
    25 us in a graph and 16 x 32 by two 34; on an H200 4 x 32, with four times as many
    tiles, takes 87.
    """
    for tile, least in ((MANY_SUMS, 8.0), *((tile, 7 / 8) for tile in SUMS)):
        tiles = batch * -(-m // tile.block_m) * -(-n // tile.block_n)
        is_wasteful = tile.block_n >= 2 * n
        if tiles >= least * num_sms and not is_wasteful:
            return tile
    return SUMS[-1]


_SECOND_LAUNCH = 1 << 24
"""What the launch that adds the spans of k costs, about 3 us, in products of an entry on
one SM at the full rate: the unit of `spans_for`.
"""
_BYTE_OF_SPANS = 1.25
"""What a byte costs that the whole GPU writes or reads, in that unit."""
_SPAN = 1024
"""The shortest span of k, which fills the stages of a tile a few times."""
_LEAST_GAIN = 1.25
"""Times the predicted time that a cut has to save. On an H100 cuts that were to save a
tenth lost 6 to 8 %: full waves run at lower clocks, and residues come from memory no faster.
"""
_MOST_SPANS = 32


@dataclass(frozen=True)
class ProductShape:
    """What is asked: `planes` independent products of (m, k) and (k, n); for words
    their format and the block of k.
    """

    m: int
    n: int
    k: int
    planes: int
    family: str = "residues"
    fmt: str = ""
    block: int = 0

    @property
    def kind(self) -> str:
        """Class of shapes that share a tile: m, n, k up to the next power of two, and
        the number of planes.
        """
        m, n, k = (
            1 << (x - 1).bit_length() if x > 1 else 1 for x in (self.m, self.n, self.k)
        )
        return f"{m} {n} {k} x {self.planes} {self.fmt} {self.family} by {self.block}"


@dataclass(frozen=True)
class Gpu:
    """What the choice depends on; shared memory in bytes. The capability (0, 0) stands
    for anything but NVIDIA.
    """

    name: str
    capability: tuple[int, int]
    num_sms: int
    shared_per_block: int
    shared_per_sm: int


def fits(
    tile: Tile, gpu: Gpu, family: str = "residues", fmt: str = "", block: int = 0
) -> bool:
    """Whether a GPU runs a tile: its kernel, shared memory, registers."""
    if tile.kernel == "hopper" and gpu.capability != (9, 0):
        return False
    if family == "residues":
        # Spans of k, and slices, begin at multiples of 128.
        if 128 % tile.block_k:
            return False
        # Before Hopper the operands of a product pass through registers too.
        k_registers = 0 if gpu.capability >= (9, 0) else 0.5
        return (
            tile.shared <= gpu.shared_per_block
            and tile.registers + k_registers * tile.block_k <= 255
        )
    # The plain kernel of words holds S, P and D, or S and P and what both add up to; a
    # chain holds one sum.
    sums = 1 if family == "chains" else 3
    registers = {9: 192, 10: 128}.get(gpu.capability[0], 96)
    holds = tile.kernel == "hopper" or sums * tile.area <= 32 * tile.warps * registers
    known = _entry(tile) in TILES[family] and tile.group > 0
    return (
        known
        and holds
        and tile.block_k == block
        and 2 <= tile.stages <= _stages(tile, fmt, gpu, family)
    )


def _entry(tile: Tile) -> Tile:
    """The tile of the table that a tile of words comes from."""
    return replace(
        tile, block_k=64, stages=8 if tile.kernel == "hopper" else 3, group=8
    )


def _stages(tile: Tile, fmt: str, gpu: Gpu, family: str) -> int:
    """Stages that fit: two words an operand, or one where pairs of them make chains."""
    words = 2 if family == "words" else 1
    return min(
        _entry(tile).stages,
        (gpu.shared_per_block - 1024) // (words * tile.stage * _WIDTH[fmt]),
    )


@lru_cache
def _rates(
    gpu: Gpu, kernels: tuple[str, ...], family: str, fmt: str, block: int
) -> dict[Tile, float]:
    """The tiles that fit, with their rates."""
    rates = {}
    for entry, rate in TILES[family].items():
        tile = entry
        if family == "residues" and entry.kernel == "triton":
            tile = replace(entry, unit=integer_unit(gpu.capability))
        elif family != "residues":
            tile = replace(entry, block_k=block)
            tile = replace(tile, stages=_stages(tile, fmt, gpu, family))
        if tile.kernel in kernels and fits(tile, gpu, family, fmt, block):
            rates[tile] = rate
    return rates


def valid_tiles(
    gpu: Gpu,
    kernels: tuple[str, ...] = KERNELS,
    family: str = "residues",
    fmt: str = "",
    block: int = 0,
) -> list[Tile]:
    """The tiles of some kernels that fit the shared memory and registers of a GPU."""
    return list(_rates(gpu, kernels, family, fmt, block))


def _resident(tile: Tile, gpu: Gpu) -> int:
    """Blocks of a tile of residues that an SM holds at a time."""
    if tile.kernel == "hopper":
        return 1
    by_registers = 65536 // (32 * tile.warps * tile.registers)
    return max(1, min(gpu.shared_per_sm // (tile.shared + 1024), by_registers, 8))


def _count(tile: Tile, shape: ProductShape) -> int:
    """Tiles of all planes."""
    return -(-shape.m // tile.block_m) * -(-shape.n // tile.block_n) * shape.planes


def tiles_along(
    m: int, n: int, block_m: int, block_n: int, *, triangle: bool
) -> tuple[int, int]:
    """Rows and columns of tiles of a plane; of the folded rectangle of
    `common.tiles_of` for a triangle.
    """
    if not triangle:
        return -(-m // block_m), -(-n // block_n)
    square = max(block_m, block_n)
    squares = -(-m // square)
    half = squares // 2
    return (squares - half) * (square // block_m), (2 * half + 1) * (square // block_n)


def waves(tile: Tile, shape: ProductShape, num_sms: int) -> int:
    """Tiles that the busiest SM makes."""
    return -(-_count(tile, shape) // num_sms)


def grid_size(tile: Tile, shape: ProductShape, gpu: Gpu) -> int:
    """Programs of a persistent launch: what the GPU holds at a time, or one for each
    tile where those are fewer.
    """
    return min(_count(tile, shape), gpu.num_sms * _resident(tile, gpu))


def _cost(tile: Tile, shape: ProductShape, gpu: Gpu, rate: float) -> float:
    """Time in units of one column of one row on one SM at the full rate; resident
    blocks share an SM.
    """
    resident = _resident(tile, gpu) if shape.family == "residues" else 1
    full, rest = divmod(_count(tile, shape), gpu.num_sms * resident)
    return (full * resident + -(-rest // gpu.num_sms)) * tile.area / rate


@lru_cache(maxsize=4096)
def tile_for(shape: ProductShape, gpu: Gpu, kernels: tuple[str, ...] = KERNELS) -> Tile:
    """The tile that is known, else that of some kernels with the least predicted time,
    the larger area among equals.
    """
    kind = shape.family, shape.fmt, shape.block
    known = _KNOWN.get((gpu.name, shape.kind))
    if known is not None and known.kernel in kernels and fits(known, gpu, *kind):
        return known
    rates = _rates(gpu, kernels, *kind)
    if not rates:
        raise ValueError(f"no tile fits {gpu}")
    return min(
        rates, key=lambda tile: (_cost(tile, shape, gpu, rates[tile]), -tile.area)
    )


@lru_cache(maxsize=4096)
def spans_for(
    shape: ProductShape,
    gpu: Gpu,
    kernels: tuple[str, ...] = KERNELS,
    most: int = _MOST_SPANS,
) -> tuple[Tile, int]:
    """The tile, and the number of spans into which k is cut, `most` at most, with the
    least predicted time.

    A span of a plane counts as a plane. One span is taken unless more of them gain a
    quarter, less what their sums cost: a launch, and a byte for each entry of each span
    that is written and read again.
    """
    entries = shape.m * shape.n * shape.planes
    choices = {}
    for spans in range(1, max(min(shape.k // _SPAN, most, _MOST_SPANS), 1) + 1):
        cut = replace(shape, planes=shape.planes * spans)
        tile = tile_for(cut, gpu, kernels)
        rate = _rates(gpu, kernels, shape.family, shape.fmt, shape.block)[tile]
        cost = _cost(tile, cut, gpu, rate) * span_length(shape.k, spans)
        if spans > 1:
            cost += _SECOND_LAUNCH + _BYTE_OF_SPANS * (2 * spans + 1) * entries
            cost *= _LEAST_GAIN
        choices[tile, spans] = cost
    return min(choices, key=lambda choice: choices[choice])


def span_length(k: int, spans: int) -> int:
    """Terms in each of so many spans of k, whole lines of 128; the last ones may be
    shorter.
    """
    return -(-k // (128 * spans)) * 128


def candidates(shape: ProductShape, gpu: Gpu) -> list[Tile]:
    """What a search for words tries: tiles not predicted far behind, with all stages
    and with one less, in groups.

    Of the groups that hold all rows of tiles, the least is enough.
    """
    kind = shape.family, shape.fmt, shape.block
    costs = {
        tile: _cost(tile, shape, gpu, rate)
        for tile, rate in _rates(gpu, KERNELS, *kind).items()
    }
    tried = {
        replace(tile, stages=tile.stages - less, group=group)
        for tile, cost in costs.items()
        if cost <= _FAR * min(costs.values())
        for less in (0, 1)
        for before, group in zip((0, *_GROUPS), _GROUPS, strict=False)
        if before < -(-shape.m // tile.block_m)
    }
    return sorted((tile for tile in tried if fits(tile, gpu, *kind)), key=str)


def summary(gpu: Gpu) -> list[str]:
    """The tiles of large products, a line for each family."""
    kinds = {
        "residues": ("residues", "", 0),
        "words": ("words", "fp16", 64),
        "chains": ("chains", "fp16", 64),
        "sums of chains": ("sums of chains", "fp16", 64),
    }
    return [
        f"{name}: {tile_for(ProductShape(8192, 8192, 8192, 1, *kind), gpu)}"
        for name, kind in kinds.items()
    ]


@lru_cache
def gpu_of(device: torch.device) -> Gpu:
    """The `Gpu` of a torch device; the CPU stands for the interpreter."""
    import torch

    if device.type != "cuda":
        return Gpu("interpreter", (0, 0), 2, 1 << 18, 1 << 18)
    properties = torch.cuda.get_device_properties(device)
    capability = int(properties.major), int(properties.minor)
    shared = int(getattr(properties, "shared_memory_per_block_optin", 1 << 16))
    return Gpu(
        str(properties.name),
        (0, 0) if torch.version.hip else capability,
        int(properties.multi_processor_count),
        shared,
        int(getattr(properties, "shared_memory_per_multiprocessor", shared)),
    )


@lru_cache
def hopper_module(name: str, device: torch.device) -> Any:
    """A module of kernels in Gluon where the GPU is a Hopper and this Triton's Gluon is
    known, else None.
    """
    from hifigemm.kernels.runtime.launch import knows_gluon

    if gpu_of(device).capability != (9, 0) or not knows_gluon():
        return None
    return import_module(f"hifigemm.kernels.products.{name}")
