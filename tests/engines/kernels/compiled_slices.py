"""Compile the kernels of slices and their products without a GPU; prints one JSON line for each variant.

Usage: python compiled_slices.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import torch
import triton
from hifigemm.engines.kernels.slices_kernels import slice_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import slice_product, slices
from hifigemm.engines.kernels.slice_product_kernel import slice_product_kernel
from hifigemm.engines.kernels.tiles import Gpu

DIVISIBLE = [["tt.divisibility", 16]]
SHARED = {80: 166912, 89: 101376, 90: 232448, 100: 232448}


def compiled(kernel, arch, constants, types, options):
    names = kernel.arg_names
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in constants.items()}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options | {"enable_fp_fusion": False})


def product(tile, arch, count, high, together, single):
    constants = {"COUNT": count, "HIGH": high, "BETA": 8, "TOGETHER": together, "K_BLOCK": slice_product.K_BLOCK}
    constants |= {
        "SINGLE": single,
        "PTX": True,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
    }
    constants |= {"GROUP": tile.group, "out_column": 1, "left_operand_k": 1, "right_operand_column": 1}
    pointer = "*fp32" if single else "*fp64"
    types = {"left": "*i8", "right": "*i8", "left_exponents": "*i32", "right_exponents": "*i32"}
    types |= dict.fromkeys(("out", "left_operand", "right_operand"), pointer)
    types["words"] = "*i64" if high < count else pointer
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return compiled(slice_product_kernel, arch, constants, types, options)


def slicing(arch, dtype, left_strided):
    shape = (1, 4096, 4096)
    strides = (2**24, 1, 4096) if left_strided else (2**24, 4096, 1)
    sides = [slices._planned(shape, s, dtype, axis, 3, 8, 132) for s, axis in ((strides, 2), ((2**24, 4096, 1), 1))]
    constants = {"LEFT": sides[0].form, "RIGHT": sides[1].form, "right_vector_stride": 1}
    constants["left_vector_stride" if left_strided else "left_k_stride"] = 1
    pointer, own = ("*fp32", "*i32") if dtype is torch.float32 else ("*fp64", "*i64")
    types = {}
    for side in ("left", "right"):
        types |= {f"{side}_x": pointer, f"{side}_parts": "*i8", f"{side}_exponents": "*i32", f"{side}_workspace": own}
    return compiled(slice_kernel, arch, constants, types, {"num_warps": 4})


def spills(lines) -> int:
    """Number of lines that move registers to memory or back."""
    return sum(1 for line in lines if re.search(r"\b(?:STL|LDL)\b", line))


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
    gpu = Gpu("", (arch // 10, arch % 10), 132, SHARED[arch], SHARED[arch])
    for dtype in (torch.float32, torch.float64):
        for strided in (False, True):
            report(f"slices {dtype} strided={strided}", slicing(arch, dtype, strided))
    for count, high, together, single in ((3, 3, True, True), (5, 5, False, True), (7, 5, False, False)):
        for tile in slice_product.valid_tiles(gpu, together):
            what = f"product {count} {'float32' if single else 'float64'} {tile}"
            report(what, product(tile, arch, count, high, together, single))


if __name__ == "__main__":
    main(int(sys.argv[1]))
