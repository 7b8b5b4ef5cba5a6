"""Compile the kernels of looks for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_looks.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import looks_kernels as kernels

TYPES = dict.fromkeys(("squares", "sums", "sizes", "range_ptr"), "*fp64")
TYPES |= dict.fromkeys(("exponents", "scales", "own"), "*i32")
TYPES |= dict.fromkeys(("left", "right", "out_a", "out_b"), "*i8") | {"out": "*i64"}
LAYOUTS = ((True, False), (False, True))


def compile_kernel(kernel, arch, dtype, warps, **constants):
    names = kernel.arg_names
    types = TYPES | {"a": f"*{dtype}", "b": f"*{dtype}"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in constants.items()})
    options = {"num_warps": warps, "num_stages": 3, "enable_fp_fusion": False}
    sass = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["sass"]
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "DFMA")}
    print(json.dumps({"what": kernel.__name__, "constants": constants, **counts}), flush=True)


def main(arch):
    for dtype in ("fp32", "fp64"):
        for along_a, along_b in LAYOUTS:
            along = {"ALONG_A": along_a, "ALONG_B": along_b}
            compile_kernel(kernels.sizes_kernel, arch, dtype, 4, **along, VECTORS_A=8, VECTORS_B=16, BLOCK=256)
            compile_kernel(kernels.magnitudes_kernel, arch, dtype, 4, **along, VECTORS=16, BLOCK=128)
    compile_kernel(kernels.join_kernel, arch, "fp64", 4, ROWS=32, COLUMNS=32)
    compile_kernel(kernels.ratio_kernel, arch, "fp64", 8, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP=8)


if __name__ == "__main__":
    main(int(sys.argv[1]))
