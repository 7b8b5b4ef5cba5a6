"""Compile plain products and the repair of complex ones for an architecture without a GPU; a JSON line for each.

Usage: python compiled_plain_product.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import complex_special, native_gemm

DIVISIBLE = [["tt.divisibility", 16]]


def compile_kernel(name, arch):
    """The kernel for contiguous operands whose sizes are multiples of 16."""
    kernel = native_gemm._product_kernel
    fixed = {"BLOCK_M": native_gemm._BLOCK_M, "BLOCK_N": native_gemm._BLOCK_N, "BLOCK_K": native_gemm._BLOCK_K}
    fixed |= {"left_k": 1, "right_col": 1, "out_col": 1}
    types = dict.fromkeys(("left", "right", "out"), f"*{name}")
    types |= {"predicate": "*i64", "first": "i64", "last": "i64"} if name == "fp64" else {"predicate": "*i32"}
    names, free = kernel.arg_names, {p.name for p in kernel.params if p.do_not_specialize}
    signature = {x: "constexpr" if x in fixed else types.get(x, "i32") for x in names}
    divisible = {(i,): DIVISIBLE for i, x in enumerate(names) if x not in fixed and x not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in fixed.items()}, divisible)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": 2})


def compile_repair(name, arch, flat):
    """The kernel for the components of complex results."""
    kernel = complex_special._restore_kernel
    fixed = {"FLAT": flat, "BLOCK": complex_special._BLOCK}
    types = dict.fromkeys(("left", "right", "c"), f"*{name}")
    names = kernel.arg_names
    signature = {x: "constexpr" if x in fixed else types.get(x, "i32") for x in names}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in fixed.items()}, {})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})


def main(arch):
    kernels = {name: compile_kernel(name, arch) for name in ("fp32", "fp64")}
    kernels |= {f"complex {x}, flat {flat}": compile_repair(x, arch, flat) for x in kernels for flat in (True, False)}
    for name, found in kernels.items():
        sass = found.asm["sass"]
        counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "DMMA", "FFMA")}
        registers = max(int(x) for x in re.findall(r"\bR(\d+)\b", sass))
        # Twice the entries of a matrix may exceed 2**31.
        doubled = re.findall(r"arith\.muli %entries\S*, \S+ : (i\d+)", found.asm["ttir"])
        what = {"type": name, "registers": registers, "shared": found.metadata.shared, "doubled": doubled}
        print(json.dumps(what | counts), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
