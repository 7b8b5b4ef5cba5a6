"""Compile the kernels of operands for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_scaled_residues.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels.scaled_residues import _ENTRIES, _PAIR_REGISTERS, Form, scaled_residues_kernel, warps_for
from hifigemm.engines.kernels.vector_norms import SizeForm

DIVISIBLE = [["tt.divisibility", 16]]
TYPES = dict.fromkeys(("norms", "range_ptr"), "*fp64") | {"block_sums": "*i64"}
TYPES |= {"predicate": "*i64", "least": "i64", "most": "i64"}
TYPES |= dict.fromkeys(("out_a", "out_b", "low_a", "low_b"), "*i8")
TYPES |= dict.fromkeys(("exponent_a", "nearest_a", "exponent_b", "nearest_b", "own", "block_e", "arrivals"), "*i32")
FORM = {"left_along_k": True, "right_along_k": False, "even": True, "width": 1, "vectors": 4, "blocks": 4}
LONG = {"vectors": 8, "blocks": 2}


def compile_kernel(kernel, arch, dtype, warps, constants):
    table = "*i32" if constants["DP4A"] else "*fp64"
    types = TYPES | {"a": f"*{dtype}", "b": f"*{dtype}", "table": table}
    names = kernel.arg_names
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(kernel, signature, {(names.index(x),): v for x, v in constants.items()}, divisible)
    options = {"num_warps": warps} | ({"maxnreg": _PAIR_REGISTERS} if constants["PAIRS"] else {})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def report(what, arch, form=None, dtype="fp64", scales=None, residues=True, predicated=False, **options):
    """Compile the kernel for whole vectors where `scales` is None, else for pieces."""
    form = Form(**{**FORM, "vector": 2 if dtype == "fp64" else 4, **(form or {})})
    constants = {"FORM": form, "NUM_WORDS": 2, "TRUNCATES": False, "SUMS": False, "PTX": True, "DP4A": True}
    constants = constants | {"PAIRS": form.width == 2} | options
    constants |= {} if predicated else {"predicate": None}
    constants |= {"WHOLE": scales is None, "SCALES": scales is not False, "RESIDUES": residues}
    left, right = (SizeForm(side, form.even, form.vector, form.width) for side in (1, 2))
    constants |= {"LEFT": None, "RIGHT": None} if scales is None else {"LEFT": left, "RIGHT": right}
    warps = form.blocks * 256 * form.vectors * form.width // (32 * _ENTRIES)
    warps = warps_for(warps, constants["NUM_WORDS"], dp4a=constants["DP4A"])
    found = compile_kernel(scaled_residues_kernel, arch, dtype, warps, constants)
    sass, tile = found.asm["sass"], f"{form.piece}x{form.vectors}x{256 // form.piece}x{form.blocks}x"
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "IDP")}
    # Sizes have tiles of 16 vectors, residues of four: none is exchanged between threads.
    counts["tile_conversions"] = len(re.findall(rf"convert_layout.*tensor<({tile}|\d+x16x\d+x1x)", found.asm["ttgir"]))
    dp4a, pairs = residues and constants["DP4A"], constants["PAIRS"]
    print(
        json.dumps({"what": what, "dp4a": dp4a, "pairs": pairs, "shared": found.metadata.shared, **counts}), flush=True
    )


def main(arch):
    across = {"even": False, "left_along_k": False}
    for sums in (False, True):
        report(f"whole, sizes {sums}", arch, SUMS=sums)
        report(f"ahead, sizes {sums}", arch, scales=True, SUMS=sums)
        report(f"scales alone, sizes {sums}", arch, scales=True, residues=False, SUMS=sums)
        report(f"long, sizes {sums}", arch, LONG, scales=True, SUMS=sums)
    report("whole, predicated", arch, SUMS=True, predicated=True)
    report("long, predicated", arch, LONG, scales=True, SUMS=True, predicated=True)
    report("whole, 2048", arch, {"blocks": 8})
    report("whole, float32", arch, None, "fp32", NUM_WORDS=1)
    report("whole, uneven", arch, across)
    report("ahead, uneven", arch, across, scales=True, SUMS=True)
    report("given", arch, {"right_along_k": True}, scales=False, TRUNCATES=True)
    report("given, three words", arch, scales=False, NUM_WORDS=3)
    report("long, three words", arch, LONG, scales=True, NUM_WORDS=3)
    report("given, four words", arch, scales=False, NUM_WORDS=4)
    report("given, portable", arch, scales=False, NUM_WORDS=6, DP4A=False)
    for sums in (False, True):
        report(f"ahead, complex, sizes {sums}", arch, {"width": 2, "vector": 1}, scales=True, SUMS=sums)
    report("whole, complex", arch, {"width": 2, "vector": 1})
    report("ahead, complex, not in pairs", arch, {"width": 2, "vector": 1}, scales=True, PAIRS=False)
    for scales in (True, None):
        three_words = {"NUM_WORDS": 3, "DP4A": False, "PAIRS": False}
        report(f"complex, three words, ahead {scales}", arch, {"width": 2, "vector": 1}, scales=scales, **three_words)
    report("ahead, complex64", arch, {"width": 2, "vector": 1}, "fp32", scales=True, NUM_WORDS=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
