"""Compile the kernels of operands for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_vectors.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import vectors_kernels as kernels
from hifigemm.engines.kernels.vectors import Config

DIVISIBLE = [["tt.divisibility", 16]]
TYPES = {"norms": "*fp64", "range_ptr": "*fp64", "exponents": "*i32", "out_a": "*i8", "out_b": "*i8"}
TYPES |= dict.fromkeys(("scale_a", "scale_b", "nearest_a", "nearest_b"), "*i32")
FORM = {"left_along_k": True, "right_along_k": False, "even": True, "width": 1, "vectors": 4, "blocks": 4}


def compile_kernel(kernel, arch, dtype, warps, constants):
    table = "*i32" if constants.get("DP4A", True) else "*fp64"
    types = TYPES | {"a": f"*{dtype}", "b": f"*{dtype}", "table": table}
    names = kernel.arg_names
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in constants.items()}, divisible)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def report(what, arch, kernel, form, dtype="fp64", dp4a=True, **constants):
    form = kernels.Form(**{**FORM, "vector": 2 if dtype == "fp64" else 4, "piece": 128, **form})
    warps = form.blocks * 256 * form.vectors // (32 * Config().entries)
    found = compile_kernel(kernel, arch, dtype, warps, {"FORM": form, **constants})
    sass, tile = found.asm["sass"], f"{form.piece}x{form.vectors}x{256 // form.piece}x{form.blocks}x"
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "IDP")}
    counts["tile_conversions"] = len(re.findall(rf"convert_layout.*tensor<{tile}", found.asm["ttgir"]))
    print(json.dumps({"what": what, "dp4a": dp4a, "shared": found.metadata.shared, **counts}), flush=True)


def main(arch):
    whole, pieces = kernels.scaled_residues_kernel, kernels.residues_kernel
    base = {"NUM_WORDS": 2, "TRUNCATES": False, "DP4A": True}
    for steps in (1, 4):
        options = {**base, "STEPS": steps, "RESIDUES": True, "PTX": True}
        report(f"whole {steps}", arch, whole, {}, **options)
        report(f"whole {steps} float32", arch, whole, {}, "fp32", **{**options, "NUM_WORDS": 1})
        report(f"whole {steps} uneven", arch, whole, {"even": False, "left_along_k": False}, **options)
    report("scales", arch, whole, {"piece": 8}, dp4a=False, STEPS=4, RESIDUES=False, PTX=True, **base)
    report("pieces", arch, pieces, {"right_along_k": True}, **{**base, "TRUNCATES": True})
    report("three words", arch, pieces, {}, **{**base, "NUM_WORDS": 3})
    report("portable", arch, pieces, {}, dp4a=False, **{**base, "NUM_WORDS": 6, "DP4A": False})
    report("complex", arch, pieces, {"width": 2, "vector": 1}, **base)
    report("block norms", arch, kernels.block_norms_kernel, {"piece": 8}, dp4a=False, PTX=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
