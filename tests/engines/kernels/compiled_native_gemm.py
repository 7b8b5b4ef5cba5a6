"""Compile plain products and the repair of complex ones for an architecture without a GPU; a JSON line for each.

Usage: python compiled_native_gemm.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from itertools import product

import torch
from without_gpu import compiled, operand, pretend

from hifigemm.engines.kernels.native_gemm import fp32_product, fp64_product
from hifigemm.engines.kernels.special import restore_special_values

COPY = r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)"
"""An asynchronous copy to shared memory, and how many bytes of a thread."""


def write_fp32(program):
    """Contiguous operands whose sizes are multiples of 16."""
    a, b, c = (operand(program, (1, 1008, 1008), torch.float32) for _ in range(3))
    fp32_product(a, b, c, program.empty((2,), torch.int32), (0, 1))


def write_fp64(width, even, transposed, program):
    """Operands whose sizes are multiples of 16, or of the tile."""
    size, dtype = 1024 if even else 1008, torch.float64 if width == 1 else torch.complex128
    a, b, c = (operand(program, (1, size, size), dtype, which in transposed) for which in "abc")
    fp64_product(a, b, c, (program.empty((1,), torch.int64), 0, 1))


def write_repair(dtype, flat, program):
    """The components of complex results."""
    a, b, c = (operand(program, (1, 100, 100), dtype, which == "c" and not flat) for which in "abc")
    restore_special_values(a, b, c)


def main(arch):
    pretend(arch)
    writers = {"fp32": write_fp32}
    for width, even, transposed in product((1, 2), (False, True), ("", "a", "b", "ab")):
        kind = f"fp64, width {width}, even {even}, transposed {transposed}"
        writers[kind] = partial(write_fp64, width, even, transposed)
    for dtype, flat in product((torch.complex64, torch.complex128), (True, False)):
        writers[f"repair {dtype}, flat {flat}"] = partial(write_repair, dtype, flat)
    for name, write in writers.items():
        (found,) = compiled(write)
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
