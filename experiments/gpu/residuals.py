"""What does error correction repair on real tensor cores, and do they compute what
their model says? As in [OY22].

    python -m experiments.gpu.residuals [--sizes 16 1024 16384] [--seconds 60] [--output FILE.csv]

Operands, methods and measure are those of experiments/residuals.py: residuals over k in
blocks of 32 x 32 entries, uniform inputs and the four exponent families
(doi:10.1177/10943420221090256). Every product of words is made twice where k is at most
4096: by the GPU, and by the model of an H100 on the CPU. `same_bits` is the share of
entries that are the same in both. FP32 is one sum in order of k, on the CPU for every
k, and beside it SGEMM of the GPU's library, which cuts a long k between processors
where the result is as small as here. The library's own products of FP16 and TF32 words
may add in another order than the model does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.chains import chained_product
from experiments.gpu.common import MODEL, Machine, study
from experiments.residuals import METHODS, SEED, inputs
from hifigemm.testing.reference import relative_residual
from hifigemm.workshop.measuring.arrays import to_host
from hifigemm.workshop.measuring.rows import Row

SIZES = {"cuda": (16, 64, 256, 1024, 4096, 16384, 65536), "cpu": (16, 64)}
BLOCK = 32
MODELLED = 4096
"""Largest k of the model, which takes the CPU 1.3 s for each kind of inputs there."""

LIBRARY = "SGEMM of the library"
SHOWN = "inputs k method unit residual same_bits"


def products(
    machine: Machine, a: np.ndarray, b: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray, Any]]:
    """Method, the unit that adds, the result, and the share of entries with the bits of
    the model, if that is known.
    """
    left, right = machine.arrays.asarray(a), machine.arrays.asarray(b)
    modelled = a.shape[1] <= MODELLED
    for method, scheme in METHODS.items():
        if scheme is None:
            yield method, "model", chained_product(a, b), ""
            continue
        c, model = to_host(machine.matmul(left, right, scheme)), None
        if modelled:
            model = hg.matmul(a, b, scheme=scheme, engine=MODEL)
            yield method, "model", model, ""
        yield (
            method,
            machine.name,
            c,
            "" if model is None else float(np.mean(c == model)),
        )
    yield LIBRARY, machine.name, to_host(machine.matmul(left, right, hg.Native())), ""


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """Short sums first."""
    for k in sizes:
        for name, draw in inputs():
            a, b = draw(np.random.default_rng([SEED, k]), BLOCK, k)
            reference = a.astype(np.float64) @ b.astype(np.float64)
            for method, unit, c, same in products(machine, a, b):
                yield {
                    **{"inputs": name, "k": k, "method": method, "unit": unit},
                    **{
                        "residual": relative_residual(c, reference),
                        "same_bits": same,
                        "rows_and_columns": BLOCK,
                    },
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("residuals", __doc__, lines, SIZES, SHOWN, argv)


if __name__ == "__main__":
    sys.exit(main())
