"""Compile the reconstruction kernel for an architecture without a GPU; prints one JSON line for each variant.

Usage: python compiled_crt.py ARCH, in a process where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hifigemm.engines.kernels import crt
from hifigemm.engines.kernels.crt_constants import crt_constants
from hifigemm.numerics.residues import moduli_set

DIVISIBLE = [["tt.divisibility", 16]]


def compile_kernel(count, arch, *, is_complex, single=False, combine=False, ptx=True, predicated=False):
    """The kernel for contiguous outputs and right operands."""
    constants = crt_constants(moduli_set(count, is_complex), is_complex)
    fixed = {"SET": constants, "PTX": ptx, "SINGLE": single, "COMBINE": combine, "HAS_C": combine}
    fixed |= {"FILL": True, "BLOCK": crt._columns(constants)}
    fixed |= {"out_column": 1, "right_column": 1} | ({} if combine else {"c": None})
    fixed |= {} if predicated else {"predicate": None}
    types = dict.fromkeys(("out", "c", "left", "right"), "*fp32" if single else "*fp64")
    types |= {"products": "*i8", "row_scale": "*i32", "column_scale": "*i32"}
    types |= {"alpha_bits": "i64", "beta_bits": "i64", "predicate": "*i64", "least": "i64", "most": "i64"}
    names = crt.crt_kernel.arg_names
    free = {p.name for p in crt.crt_kernel.params if p.do_not_specialize}
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
    divisible = {(i,): DIVISIBLE for i, name in enumerate(names) if name not in fixed and name not in free}
    source = ASTSource(crt.crt_kernel, signature, {(names.index(x),): v for x, v in fixed.items()}, divisible)
    options = {"num_warps": 1, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def main(arch):
    cases = [(count, is_complex, {}) for count in (8, 14, 15, 20) for is_complex in (False, True)] + [(28, False, {})]
    cases += [(15, True, {"single": True}), (15, True, {"combine": True}), (15, True, {"ptx": False})]
    cases += [(count, False, {"predicated": True}) for count in (8, 14, 15)]
    for count, is_complex, options in cases:
        found = compile_kernel(count, arch, is_complex=is_complex, **options)
        sass = found.asm["sass"]
        counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in ("STL", "LDL", "STG.E.128", "STG.E.64")}
        dots = len(re.findall(r"\bIDP\b", sass))
        registers = max(int(x) for x in re.findall(r"\bR(\d+)\b", sass))
        what = {"count": count, "complex": is_complex, **options, "registers": registers, "IDP": dots}
        print(json.dumps(what | {"shared": found.metadata.shared, **counts}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
