"""Compile the product kernels for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import residue_gemm
from hifigemm.engines.kernels.launch import shared_layout
from hifigemm.engines.kernels.tiles import Gpu, Tile, valid_tiles

PREDICATE = {"predicate": "*i64", "least": "i64", "most": "i64"}
DIVISIBLE = [["tt.divisibility", 16]]
SHARED = {75: 65536, 80: 166912, 89: 101376, 90: 232448, 100: 232448}


def plain(tile: Tile, arch: int, *, reduce: bool, add: bool, even: bool, predicated: bool = False):
    kernel = residue_gemm._product_kernel
    constants = {"REDUCE": reduce, "PTX": True, "ADD": add, "EVEN_K": even, "left_k": 1, "right_k": 1}
    constants |= {} if predicated else {"predicate": None}
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": tile.group}
    pointers = {"left": "*i8", "right": "*i8", "out": "*i8" if reduce else "*i32", "constants": "*i32"} | PREDICATE
    names = kernel.arg_names
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in constants.items()}, divisible)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def hopper(tile: Tile, *, add: bool, predicated: bool = False):
    from triton.experimental.gluon._runtime import GluonASTSource

    from hifigemm.engines.kernels import residue_gemm_hopper
    from hifigemm.engines.kernels.hopper_ring import options_of

    kernel, half = residue_gemm_hopper._hopper_kernel, tile.block_m // 2
    constants = options_of(tile) | {"ADD": add} | ({} if predicated else {"predicate": None})
    options = {"num_warps": constants.pop("num_warps")}
    blocks = {"left": (half, tile.block_k), "right": (tile.block_n, tile.block_k), "out": (half, tile.block_n)}
    blocks["quarter"] = (tile.block_n // 4, tile.block_k)
    maps = {x: f"tensordesc<i8[{b[0]}, {b[1]}],{shared_layout(b, torch.int8)!r}>" for x, b in blocks.items()}
    types = maps | {"old": "*i8", "constants": "*i32"} | PREDICATE | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    divisible = {(kernel.arg_names.index(name),): DIVISIBLE for name in ("old", "constants")}
    source = GluonASTSource(kernel, signature, constants, divisible)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def report(tile: Tile, what: str, kernel) -> None:
    sass = kernel.asm["sass"]
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "WARPGROUP.DEPBAR")}
    print(json.dumps({"tile": str(tile), "what": what, "shared": kernel.metadata.shared, **counts}), flush=True)


def main(arch: int) -> None:
    capability = (arch // 10, arch % 10)
    for tile in valid_tiles(Gpu("", capability, 132, SHARED[arch], SHARED[arch])):
        if tile.kernel != "triton":
            for add, predicated in ((False, False), (True, False), (False, True)):
                report(tile, f"add={add} predicated={predicated}", hopper(tile, add=add, predicated=predicated))
            continue
        for reduce, add, even, predicated in (
            (True, False, True, False),
            (True, True, False, True),
            (False, False, False, False),
        ):
            what = f"reduce={reduce} add={add} even={even} predicated={predicated}"
            report(tile, what, plain(tile, arch, reduce=reduce, add=add, even=even, predicated=predicated))


if __name__ == "__main__":
    main(int(sys.argv[1]))
