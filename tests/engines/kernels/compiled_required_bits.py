"""Compile the look at what operands need for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_required_bits.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels.required_bits import required_bits_kernel
from hifigemm.engines.kernels.vector_norms import SizeForm

DIVISIBLE = [["tt.divisibility", 16]]
TYPES = {"range_ptr": "*fp64", "block_sums": "*i64"}
TYPES |= dict.fromkeys(("block_e", "block_low", "counters", "each"), "*i32")


def report(what, arch, dtype, even=True, vector=2, width=1, each=True):
    sides = [SizeForm(1, even, vector, width), SizeForm(2, even, vector, width)]
    constants = {"LEFT": sides[0], "RIGHT": sides[1], "PTX": True} | ({} if each else {"each": None})
    names = required_bits_kernel.arg_names
    free = {p.name for p in required_bits_kernel.params if p.do_not_specialize}
    types = TYPES | {"a": f"*{dtype}", "b": f"*{dtype}"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in constants and name not in free}
    source = ASTSource(required_bits_kernel, signature, {(names.index(x),): v for x, v in constants.items()}, divisible)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 8})
    sass = made.asm["sass"]
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL")}
    wide = len(re.findall(r"\bLDG\.E\.128\b", sass))
    print(json.dumps({"what": what, "shared": made.metadata.shared, "wide": wide, **counts}), flush=True)


def main(arch):
    report("float64", arch, "fp64")
    report("float64, until it is enough", arch, "fp64", each=False)
    report("float64, uneven", arch, "fp64", even=False, vector=1)
    report("float32", arch, "fp32", vector=4)
    report("complex128", arch, "fp64", vector=1, width=2)
    report("complex128, until it is enough", arch, "fp64", vector=1, width=2, each=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
