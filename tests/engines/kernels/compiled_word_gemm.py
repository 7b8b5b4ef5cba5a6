"""Compile the kernels of corrected products without a GPU; prints one JSON line for each variant.

Usage: python compiled_word_gemm.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import word_gemm
from hifigemm.engines.kernels.launch import shared_layout
from hifigemm.engines.kernels.tiles import Gpu, Tile
from hifigemm.engines.kernels.word_gemm_tiles import valid_tiles

DIVISIBLE = [["tt.divisibility", 16]]
SHARED = {80: 166912, 89: 101376, 90: 232448, 100: 232448}
DTYPES = {"fp16": ("fp16", torch.float16), "tf32": ("fp32", torch.float32)}


def _source(kind, kernel, constants, types):
    names = kernel.arg_names
    free = {p.name for p in kernel.params if p.do_not_specialize}
    default = dict.fromkeys(names, "i32") | {"low_scale": "fp32", "one": "fp32", "out": "*fp32"}
    default |= {name: "*i32" for name in names if name.endswith("exponents")}
    default |= dict.fromkeys(("left_operand", "right_operand"), "*fp32")
    constants = constants | {"losses": None, "out_col": 1, "left_operand_k": 1, "right_operand_col": 1}
    signature = default | types | dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in names}
    integral = {name for name, kind in signature.items() if kind == "i32" or kind.startswith("*")}
    aligned = {(names.index(name),): DIVISIBLE for name in integral - free}
    return kind(kernel, signature, {(names.index(x),): v for x, v in constants.items()}, aligned)


def plain(tile: Tile, fmt: str, arch: int):
    constants = {"LEFT_WORDS": 2, "RIGHT_WORDS": 2, "CHAINED": False, "IN_FP32": fmt == "fp16", "EVEN": True}
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP_M": tile.group}
    types = dict.fromkeys(("left", "right"), f"*{DTYPES[fmt][0]}")
    source = _source(ASTSource, word_gemm._corrected_kernel, constants, types)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def hopper(tile: Tile, fmt: str):
    from triton.experimental.gluon._runtime import GluonASTSource

    from hifigemm.engines.kernels import word_gemm_hopper

    constants = word_gemm_hopper._constants(tile)
    options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    constants |= {"LEFT_WORDS": 2, "RIGHT_WORDS": 2, "CHAINED": False, "IN_FP32": fmt == "fp16", "ADJACENT": True}
    name, dtype = DTYPES[fmt]
    blocks = {"left_map": (tile.block_m // 2, tile.block_k), "right_map": (tile.block_n, tile.block_k)}
    types = {x: f"tensordesc<{name}[{b[0]}, {b[1]}],{shared_layout(b, dtype)!r}>" for x, b in blocks.items()}
    source = _source(GluonASTSource, word_gemm_hopper._corrected_kernel, constants, types)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def restarts(tile: Tile, kernel) -> tuple[int, int]:
    """MMAs that start from zero in the machine code, and how many do so if each block of the main product does."""
    sass = kernel.asm["sass"]
    if "HGMMA" in sass:
        consumers = 2 if tile.kernel == "hopper" else max(1, tile.block_m * 4 // (64 * tile.warps))
        return len(re.findall(r"HGMMA[^;]*, RZ, !UPT", sass)), consumers
    if "HMMA" in sass.replace("UTCHMMA", ""):
        return len(re.findall(r"HMMA[^;]*, RZ\s*;", sass)), tile.block_m * tile.block_n // (16 * 8 * tile.warps)
    loop = re.findall(r"tc_gen5_mma %\S+ %\S+ %total\S*, (%\w+)", kernel.asm["ttgir"])
    return loop.count("%false"), max(len(loop), 1)


def moves(kernel) -> int:
    """Moves to uniform registers among MMAs; none where ptxas knows that no branch around them diverges."""
    return sum(block.count("R2UR") for block in re.split(r"\bBRA\b", kernel.asm["sass"]) if "HGMMA" in block)


def main(arch: int) -> None:
    gpu = Gpu("", (arch // 10, arch % 10), 132, SHARED[arch], SHARED[arch])
    for fmt, block in (("fp16", 64), ("tf32", 32)):
        for tile in valid_tiles(gpu, fmt, block):
            kernel = hopper(tile, fmt) if tile.kernel == "hopper" else plain(tile, fmt, arch)
            found, expected = restarts(tile, kernel)
            spills = len(re.findall(r"\b(?:STL|LDL)\b", kernel.asm["sass"]))
            line = {"tile": str(tile), "fmt": fmt, "spills": spills, "restarts": found, "blocks": expected}
            print(json.dumps(line | {"moves": moves(kernel)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
