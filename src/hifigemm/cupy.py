"""Products of CuPy arrays: the functions of `hifigemm.numpy`, `gemm`, and `emulate` for
the products of a program.

Like all of `hifigemm`, the functions use CuPy arrays as PyTorch tensors in the same
memory, on CuPy's current stream. The result is a CuPy array.
"""

from __future__ import annotations

from hifigemm.base.public import shown
from hifigemm.functions.chains import matrix_power, multi_dot
from hifigemm.functions.congruences import congruence
from hifigemm.functions.contractions import (
    dot,
    inner,
    matvec,
    outer,
    tensordot,
    vdot,
    vecdot,
    vecmat,
)
from hifigemm.functions.einsum import einsum
from hifigemm.functions.symmetric import herk, syrk
from hifigemm.gemm import gemm
from hifigemm.interop.cupy_products import emulate
from hifigemm.numpy import matmul

__all__ = [
    "congruence",
    "dot",
    "einsum",
    "emulate",
    "gemm",
    "herk",
    "inner",
    "matmul",
    "matrix_power",
    "matvec",
    "multi_dot",
    "outer",
    "syrk",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]

__dir__ = shown(globals())
