"""Do two TF32 words reach SGEMM on real tensor cores, and two FP32 words DGEMM? Three
norms over n, as in [VLVJ23].

    python -m experiments.gpu.forward_errors [--sizes 128 16384] [--seconds 60] [--output FILE.csv]

Inputs and norms are those of experiments/forward_errors.py, but all n x n entries
count, and products are those of the GPU: SGEMM and DGEMM of its library, one, three and
four products of TF32 or FP32 words ("TF64"), and TF32 words whose sum leaves the tensor
core after every 32 of k. FP32 curves are compared with the FP64 product, FP64 curves
with the correctly rounded one, of which a sample is held against the exact product
first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.forward_errors import TENSOR_CORE, published, row
from experiments.gpu.common import MODEL, Machine, Sample, study
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.workshop.measuring.arrays import Workload, widened
from hifigemm.workshop.measuring.rows import Row

SIZES = {"cuda": (128, 256, 512, 1024, 2048, 4096, 8192, 16384), "cpu": (16, 48)}
CURVES: dict[str, dict[str, Any]] = {
    "fp32": {
        "SGEMM": hg.Native(),
        **TENSOR_CORE,
        "3x TF32, summed outside": hg.Corrected("tf32"),
    },
    "fp64": {
        "DGEMM": hg.Native(),
        "1x TF64": PUBLISHED_METHODS["valero-lara-tf64x1"],
        "3x TF64, words to nearest": PUBLISHED_METHODS["valero-lara-tf64x3"],
        "4x TF64, words to nearest": PUBLISHED_METHODS["valero-lara-tf64x4"],
    },
}
PAIRS = {
    "fp32": ("|SGEMM - 3x TF32|", "SGEMM", "3x TF32"),
    "fp64": ("|DGEMM - 3x TF64|", "DGEMM", "3x TF64, words to nearest"),
}
"""Curves that are the difference of two results."""

SHOWN = "n precision curve norm_1 norm_2 norm_inf"


def norms(x: Any) -> dict[str, float]:
    """The entrywise norms of a matrix."""
    size = abs(x)
    return {
        "1": float(size.sum()),
        "2": float((size * size).sum()) ** 0.5,
        "inf": float(size.max()),
    }


def operands(machine: Machine, n: int) -> tuple[Any, Any]:
    """Means of two uniforms on (-0.5, 0.5) in float64."""
    load = Workload(n, n, n, family="uniform")
    pairs = zip(
        *(machine.arrays.operands(load, seed) for seed in range(2)), strict=True
    )
    left, right = ((first + second) / 4 for first, second in pairs)
    return left, right


def correct_product(machine: Machine, a: Any, b: Any) -> Any:
    """The correctly rounded product; RuntimeError where a sampled entry is not."""
    c, sample = hg.matmul(a, b, accuracy="correct"), Sample(a, b)
    wrong = int((sample.of(c) != sample.exact.rounded).sum())
    if wrong:
        raise RuntimeError(
            f"{wrong} of {sample.exact.rounded.size} sampled entries are not correctly rounded"
        )
    return c


def measure(machine: Machine, n: int) -> Iterator[Row]:
    """All curves at one n."""
    doubles = operands(machine, n)
    for precision, curves in CURVES.items():
        a, b = doubles
        if precision == "fp32":
            a, b = (
                x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()
                for x in doubles
            )
        reference = (
            widened(a) @ widened(b)
            if precision == "fp32"
            else correct_product(machine, a, b)
        )
        sizes = [norms(widened(x)) for x in (a, b)]
        (difference, one, other), kept = PAIRS[precision], {}

        def line(
            curve: str, error: Any, precision: str = precision, sizes: Any = sizes
        ) -> Row:
            errors = {
                key: value / (sizes[0][key] * sizes[1][key])
                for key, value in norms(error).items()
            }
            return {
                **row(precision, curve, n, n, errors, "computed"),
                "unit": machine.name if machine.is_gpu else MODEL,
            }

        for curve, scheme in curves.items():
            c = widened(machine.matmul(a, b, scheme))
            if curve in (one, other):
                kept[curve] = c
            yield line(curve, c - reference)
        yield line(difference, kept[one] - kept[other])


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """What was published, then small products first."""
    yield from ({**line, "unit": "A100, as published"} for line in published())
    for n in sizes:
        yield from measure(machine, n)
        machine.arrays.release()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("forward_errors", __doc__, lines, SIZES, SHOWN, argv)


if __name__ == "__main__":
    sys.exit(main())
