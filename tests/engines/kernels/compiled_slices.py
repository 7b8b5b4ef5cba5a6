"""Compile the kernels of slices and their products without a GPU; prints one JSON line for each variant.

Usage: python compiled_slices.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial

import torch
from without_gpu import compiled, operand, pretend, spills

from hifigemm.engines.kernels.slice_product import slice_product
from hifigemm.engines.kernels.slices import Slices, slice_operands
from hifigemm.engines.kernels.tiles import valid_tiles


def product(tile, count, dtype, program):
    made = program.empty((1, 1024, count, 1024), torch.int8), program.empty((1, 1024), torch.int32)
    a, b, out = (operand(program, (1, 1024, 1024), dtype) for _ in range(3))
    slice_product(Slices(*made, 8), Slices(*made, 8), out, 1024, operands=(a, b), config=tile)


def slicing(dtype, left_strided, program):
    x, y = (operand(program, (1, 4096, 4096), dtype, transposed) for transposed in (left_strided, False))
    slice_operands(((x, 2), (y, 1)), 3, 8)


def product_loops(lines):
    """The innermost loops that multiply, each as its lines."""
    labels = {found[1]: i for i, line in enumerate(lines) if (found := re.match(r"\s*(\.?L\w+):", line))}
    jumps = ((i, re.search(r"BRA[^;]*?(\.?LB?\w+)", line)) for i, line in enumerate(lines))
    spans = sorted(
        ((labels[to[1]], i) for i, to in jumps if to and labels.get(to[1], i) < i), key=lambda s: s[1] - s[0]
    )
    loops = [
        span for span in spans if any(re.search(r"\b(?:IGMMA|IMMA|UTC\w*MMA)", x) for x in lines[span[0] : span[1]])
    ]
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [lines[start:stop] for start, stop in inner]


def report(what: str, kernel) -> None:
    lines = kernel.asm["sass"].splitlines()
    loops = product_loops(lines)
    found = {"spills": spills(lines), "loop_spills": sum(map(spills, loops)), "loops": len(loops)}
    print(json.dumps({"what": what, "shared": kernel.metadata.shared, **found}), flush=True)


def main(arch: int) -> None:
    gpu = pretend(arch)
    for dtype in (torch.float32, torch.float64):
        for strided in (False, True):
            (kernel,) = compiled(partial(slicing, dtype, strided))
            report(f"slices {dtype} strided={strided}", kernel)
    for count, dtype in ((3, torch.float32), (5, torch.float32), (7, torch.float64)):
        for tile in valid_tiles(gpu, family="few slices" if count <= 3 else "slices"):
            (kernel,) = compiled(partial(product, tile, count, dtype))
            report(f"product {count} {dtype} {tile}", kernel)


if __name__ == "__main__":
    main(int(sys.argv[1]))
