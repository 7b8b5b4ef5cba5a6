"""Calls of every kind whose first one leaves an executable for later ones, on one set of
operands.
"""

from __future__ import annotations

import numpy as np

import hifigemm as hg
from hifigemm.base import store
from hifigemm.running.calls import KeptCall

M, K, N = 4, 6, 5

KINDS = {
    "default": lambda a, b, c: hg.matmul(a, b),
    "number": lambda a, b, c: hg.matmul(a, b, accuracy=1e-13),
    "correct": lambda a, b, c: hg.matmul(a, b, accuracy="correct"),
    "report": lambda a, b, c: hg.matmul(a, b, accuracy="correct", return_report=True),
    "pair": lambda a, b, c: hg.matmul(a, b, result="pair"),
    "enclosure": lambda a, b, c: hg.matmul(a, b, result="enclosure"),
    "ozaki1": lambda a, b, c: hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=3)),
    "ozaki2": lambda a, b, c: hg.matmul(
        a, b, scheme=hg.Ozaki2(num_moduli=9, scaling="fast")
    ),
    "multiple": lambda a, b, c: hg.gemm(a, b, alpha=0.3),
    "two roundings": lambda a, b, c: hg.gemm(a, b, c, alpha=1.3, beta=0.7),
    # A number that sums of the core keep, and the native product does not.
    "sums, then scalars": lambda a, b, c: hg.gemm(
        a, b, c, alpha=1.3, beta=0.7, accuracy=9e-16
    ),
    "one rounding": lambda a, b, c: hg.gemm(
        a, b, c, alpha=-1.0, beta=1.0, accuracy="correct"
    ),
}
NATIVE = ("default", "number", "multiple", "two roundings")
"""Products of NumPy's library, whose order of sums depends on the mode of the thread."""
READ_C = ("two roundings", "sums, then scalars", "one rounding")


def operands(seed=0, dtype=np.float64):
    """A, B and C; complex ones with other imaginary than real parts."""
    rng = np.random.default_rng(seed)
    shapes = (M, K), (K, N), (M, N)
    if np.dtype(dtype).kind == "c":
        pairs = [rng.standard_normal((2, *shape)) for shape in shapes]
        return [(re + 1j * im).astype(dtype) for re, im in pairs]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def arrays_of(result):
    """All arrays or tensors of a result, without its report."""
    parts = result if isinstance(result, tuple) else (result,)
    return [x for x in parts if not isinstance(x, hg.Report)]


def as_first_call(call, *args):
    """What a call gives of which nothing is kept."""
    store.forget()
    return call(*args)


def kept_calls():
    """What is kept of calls so far."""
    programs = [entry.value for entry in store._programs.values()]
    return [program for program in programs if isinstance(program, KeptCall)]


def kept_call():
    """The only one."""
    (call,) = kept_calls()
    return call
