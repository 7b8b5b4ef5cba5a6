"""What does it cost that tensor cores truncate their sums? Rounding to nearest against
rounding towards zero.

    python -m experiments.accumulation [--lengths 16 1024 16384] [--block 32] [--output results/accumulation.csv]

Operands are FP16 numbers, so every product is exact and only FP32 sums err. Idealised
units add one product after the other and differ in nothing but the rounding; the models
of V100 and H100 add blocks of 4 and 16 products in fixed point and truncate. R is the
product in FP64, which is exact here but for its last bits.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from hifigemm.base.formats import FP16
from hifigemm.engines.simulated import IDEAL_NEAREST, IDEAL_ZERO
from hifigemm.numerics.tensor_core import H100, V100, tensor_core_product
from hifigemm.testing.matrices import uniform
from hifigemm.testing.reference import relative_residual
from hifigemm.workshop.environment import write_csv

SEED = 3
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
INPUTS = {"uniform on (-1, 1)": -1.0, "uniform on (0, 1)": 0.0}
UNITS = {
    "one product after the other, towards zero": IDEAL_ZERO,
    "V100: blocks of 4, towards zero": V100,
    "H100: blocks of 16, towards zero": H100,
    "blocks of the H100, but rounded to nearest": replace(H100, rounding="nearest"),
    "one product after the other, to nearest": IDEAL_NEAREST,
}


def measure(name: str, k: int, block: int) -> list[dict[str, Any]]:
    """One line for each unit."""
    rng = np.random.default_rng([SEED, k])
    a, b = (
        uniform(rng, shape, INPUTS[name], 1.0, np.float16).astype(np.float32)
        for shape in ((block, k), (k, block))
    )
    reference = a.astype(np.float64) @ b.astype(np.float64)
    rows = []
    for method, unit in UNITS.items():
        c = tensor_core_product(a, b, fmt=FP16, model=unit).astype(np.float64)
        towards_zero = np.mean(np.sign(c - reference) == -np.sign(reference))
        rows.append(
            {
                "inputs": name,
                "k": k,
                "method": method,
                "residual": relative_residual(c, reference),
                "share_towards_zero": towards_zero,
                "rows_and_columns": block,
            }
        )
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="K"
    )
    parser.add_argument("--block", type=int, default=64, help="rows and columns")
    parser.add_argument("--output", default="results/accumulation.csv")
    options = parser.parse_args()
    rows = [
        row
        for name in INPUTS
        for k in options.lengths
        for row in measure(name, k, options.block)
    ]
    for row in rows:
        print(
            f"{row['inputs']:<20} {row['k']:>6} {row['residual']:.2e} {row['share_towards_zero']:.2f} {row['method']}"
        )
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
