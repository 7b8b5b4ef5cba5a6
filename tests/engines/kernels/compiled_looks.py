"""Compile the kernel of looks for an architecture without a GPU; prints one JSON line.

Usage: python compiled_looks.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels.looks_kernels import ratio_kernel

TYPES = {"sizes": "*fp64", "left": "*i8", "right": "*i8", "out": "*i64"}


def main(arch):
    constants = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP": 8}
    names = ratio_kernel.arg_names
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "i32") for name in names}
    source = ASTSource(ratio_kernel, signature, {(names.index(x),): v for x, v in constants.items()})
    options = {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": False}
    sass = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["sass"]
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "DFMA")}
    print(json.dumps({"what": "ratio", **counts}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
