"""Compile the kernels of looks for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_error_ratio.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

from hifigemm.engines.kernels.error_ratio import error_ratio_kernel
from hifigemm.engines.kernels.launch import shared_layout
from hifigemm.engines.kernels.tiles import Gpu, Tile, valid_tiles

POINTERS = {"sizes": "*fp64", "out": "*i64", "predicate": "*i64", "least": "i64", "most": "i64"}
DIVISIBLE = [["tt.divisibility", 16]]


def plain(block: int, width: int, arch: int, *, predicated: bool):
    constants = {"WIDTH": width, "BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": 128, "GROUP": 8}
    constants |= {} if predicated else {"predicate": None}
    names = error_ratio_kernel.arg_names
    types = {"left": "*i8", "right": "*i8", **POINTERS, **dict.fromkeys(constants, "constexpr")}
    signature = {name: types.get(name, "i32") for name in names}
    free = {p.name for p in error_ratio_kernel.params if p.do_not_specialize}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(error_ratio_kernel, signature, {(names.index(x),): v for x, v in constants.items()}, divisible)
    options = {"num_warps": block // 16, "num_stages": 3, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def hopper(tile: Tile, width: int, *, predicated: bool):
    from triton.experimental.gluon._runtime import GluonASTSource

    from hifigemm.engines.kernels import error_ratio_hopper
    from hifigemm.engines.kernels.hopper_ring import options_of

    kernel = error_ratio_hopper._ratio_kernel
    constants = options_of(tile) | {"WIDTH": width, "enable_fp_fusion": False}
    options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    constants |= {} if predicated else {"predicate": None}
    blocks = {"left": (tile.block_m // 2, tile.block_k), "right": (tile.block_n, tile.block_k)}
    blocks["quarter"] = (tile.block_n // 4, tile.block_k)
    maps = {x: f"tensordesc<i8[{b[0]}, {b[1]}],{shared_layout(b, torch.int8)!r}>" for x, b in blocks.items()}
    types = maps | POINTERS | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = GluonASTSource(kernel, signature, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def report(what: str, arch: int, kernel) -> None:
    """Bytes that ptxas spills, and the waits for wgmma; a listing of long kernels would be cut off."""
    ptx = kernel.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        options = ["-v", f"--gpu-name={sm_arch_from_capability(arch)}", source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run([get_ptxas(arch).path, *options], capture_output=True, text=True, check=True)
    spilled = sum(int(x) for x in re.findall(r"(\d+) bytes spill", done.stderr))
    waits = ptx.count("wgmma.wait_group.sync")
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)
    line = {"what": what, "spilled": spilled, "waits": waits, "registers": int(registers)}
    print(json.dumps({**line, "shared": kernel.metadata.shared}), flush=True)


def main(arch: int) -> None:
    for width, predicated in product((1, 2), (False, True)):
        variant = f"width {width}, predicated {predicated}"
        for block in (128, 64):
            report(f"triton {block}, {variant}", arch, plain(block, width, arch, predicated=predicated))
        gpu = Gpu("", (arch // 10, arch % 10), 132, 232448, 232448)
        for tile in [tile for tile in valid_tiles(gpu) if tile.kernel == "hopper"]:
            report(f"{tile}, {variant}", arch, hopper(tile, width, predicated=predicated))


if __name__ == "__main__":
    main(int(sys.argv[1]))
