"""Compile the kernels of corrected products without a GPU; prints one JSON line for each variant.

Usage: python compiled_word_gemm.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial

import torch
from without_gpu import compiled, operand, pretend, spills

from hifigemm.engines.kernels.tiles import Tile, valid_tiles
from hifigemm.engines.kernels.word_gemm import word_gemm
from hifigemm.engines.kernels.words import STORED, Words
from hifigemm.formats import FORMATS
from hifigemm.numerics.words import Splitting


def write(fmt, tile, program):
    """The product of two words an operand."""
    planes = program.empty((1, 2, 1024, 1024), STORED[fmt])
    words = Words(planes, program.empty((1, 1024), torch.int32), None, 1024, Splitting(FORMATS[fmt], 2))
    a, b, out = (operand(program, (1, 1024, 1024), torch.float32) for _ in range(3))
    word_gemm(words, words, out, block=tile.block_k, operands=(a, b), config=tile)


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
    gpu = pretend(arch)
    for fmt, block in (("fp16", 64), ("tf32", 32)):
        for tile in valid_tiles(gpu, family="words", fmt=fmt, block=block):
            (kernel,) = compiled(partial(write, fmt, tile))
            found, expected = restarts(tile, kernel)
            lost = spills(kernel.asm["sass"].splitlines())
            line = {"tile": str(tile), "fmt": fmt, "spills": lost, "restarts": found, "blocks": expected}
            print(json.dumps(line | {"moves": moves(kernel)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
