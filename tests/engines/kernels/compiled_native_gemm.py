"""Compile plain products and the repair of complex ones for an architecture without a GPU; a JSON line for each.

Usage: python compiled_native_gemm.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import product

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import native_gemm, special

DIVISIBLE = [["tt.divisibility", 16]]
COPY = r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)"
"""An asynchronous copy to shared memory, and how many bytes of a thread."""


def compile_fp32(arch):
    """The kernel for contiguous operands whose sizes are multiples of 16."""
    fixed = {"BLOCK_M": native_gemm._BLOCK_M, "BLOCK_N": native_gemm._BLOCK_N, "BLOCK_K": native_gemm._BLOCK_K}
    fixed |= {"left_k": 1, "right_col": 1, "out_col": 1}
    types = dict.fromkeys(("left", "right", "out"), "*fp32") | {"lost": "*i32"}
    return compiled(native_gemm._fp32_kernel, fixed, types, arch, num_warps=4, num_stages=2)


def compile_fp64(width, even, transposed, arch):
    """The kernel for contiguous operands whose sizes are multiples of 16, or of the tile."""
    fixed = {"BLOCK_M": native_gemm._BLOCK_M, "BLOCK_N": native_gemm._BLOCK_N // width}
    fixed |= {"BLOCK_K": native_gemm._BLOCK_K, "GROUP": native_gemm._GROUP, "WIDTH": width, "EVEN": even, "out_col": 1}
    fixed |= {"left_row": 1} if "a" in transposed else {"left_k": 1}
    fixed |= {"right_k": 1} if "b" in transposed else {"right_col": 1}
    fixed |= {"LEFT_FLIPPED": width == 2 and "left_k" in fixed, "RIGHT_FLIPPED": width == 2 and "right_col" in fixed}
    types = dict.fromkeys(("left", "right", "out"), "*fp64") | {"predicate": "*i64", "least": "i64", "most": "i64"}
    warps = native_gemm.warps_for(width, even=even)
    return compiled(native_gemm._fp64_kernel, fixed, types, arch, num_warps=warps, num_stages=4)


def compiled(kernel, fixed, types, arch, **options):
    names, free = kernel.arg_names, {p.name for p in kernel.params if p.do_not_specialize}
    signature = {x: "constexpr" if x in fixed else types.get(x, "i32") for x in names}
    divisible = {(i,): DIVISIBLE for i, x in enumerate(names) if x not in fixed and x not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in fixed.items()}, divisible)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def compile_repair(name, arch, flat):
    """The kernel for the components of complex results."""
    kernel = special._restore_kernel
    fixed = {"FLAT": flat, "BLOCK": special._BLOCK}
    types = dict.fromkeys(("left", "right", "c"), f"*{name}") | {"predicate": "*i64", "least": "i64", "most": "i64"}
    names = kernel.arg_names
    signature = {x: "constexpr" if x in fixed else types.get(x, "i32") for x in names}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in fixed.items()}, {})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})


def main(arch):
    kernels = {"fp32": compile_fp32(arch)}
    for width, even, transposed in product((1, 2), (False, True), ("", "a", "b", "ab")):
        kind = f"fp64, width {width}, even {even}, transposed {transposed}"
        kernels[kind] = compile_fp64(width, even, transposed, arch)
    for name, flat in product(("fp32", "fp64"), (True, False)):
        kernels[f"repair {name}, flat {flat}"] = compile_repair(name, arch, flat)
    for name, found in kernels.items():
        sass = found.asm["sass"]
        counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "DMMA", "FFMA", "DADD")}
        registers = max(int(x) for x in re.findall(r"\bR(\d+)\b", sass))
        # Twice the entries of a matrix may exceed 2**31.
        doubled = re.findall(r"arith\.muli %entries\S*, \S+ : (i\d+)", found.asm["ttir"])
        copies = sorted(set(re.findall(COPY, found.asm["ptx"])))
        what = {"type": name, "registers": registers, "shared": found.metadata.shared, "doubled": doubled}
        print(json.dumps(what | counts | {"copies": copies}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
