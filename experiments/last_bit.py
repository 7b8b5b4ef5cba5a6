"""Do bits missing at the end of the operands explain the errors of two truncated words?

    python -m experiments.last_bit [--lengths 16 1024 16384] [--block 64] [--output results/last_bit.csv]

Two truncated FP16 words drop a bit or two of some FP32 numbers. Here FP32 products of
operands whose last bits are dropped from all entries stand beside Markidis' method, on
an H100 and on a unit that sums to nearest. R is the FP64 product of the whole operands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.chains import chained_product
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.testing.matrices import uniform
from hifigemm.testing.reference import relative_residual
from hifigemm.workshop.environment import write_csv

SEED = 4
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
INPUTS = {"uniform on (-1, 1)": -1.0, "uniform on (0, 1)": 0.0}


def drop(x: np.ndarray, bits: int) -> np.ndarray:
    """float32 entries with their last bits set to zero: truncated to 24 - bits
    significant bits.
    """
    return (x.view(np.uint32) & np.uint32(2**32 - 2**bits)).view(np.float32)


def markidis(engine: str) -> Callable[[Any, Any], Any]:
    """Markidis' method on an engine."""
    return lambda a, b: hg.matmul(
        a, b, scheme=PUBLISHED_METHODS["markidis"], engine=engine
    )


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "Markidis: FP16, 4 products, truncated words (H100)": markidis("simulated-h100"),
    "the same with sums to nearest": markidis("simulated-ideal-nearest"),
    "FP32, last 2 bits of operands dropped": lambda a, b: chained_product(
        drop(a, 2), drop(b, 2)
    ),
    "FP32, last bit of operands dropped": lambda a, b: chained_product(
        drop(a, 1), drop(b, 1)
    ),
    "FP32, whole operands": chained_product,
    "only the error of dropping 1 bit": lambda a, b: (
        drop(a, 1).astype(np.float64) @ drop(b, 1)
    ),
}


def measure(name: str, k: int, block: int) -> list[dict[str, Any]]:
    """One line for each method."""
    rng = np.random.default_rng([SEED, k])
    a, b = (
        uniform(rng, shape, INPUTS[name], 1.0, np.float32)
        for shape in ((block, k), (k, block))
    )
    reference = a.astype(np.float64) @ b.astype(np.float64)
    return [
        {
            "inputs": name,
            "k": k,
            "method": method,
            "residual": relative_residual(multiply(a, b), reference),
            "rows_and_columns": block,
        }
        for method, multiply in METHODS.items()
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="K"
    )
    parser.add_argument("--block", type=int, default=64, help="rows and columns")
    parser.add_argument("--output", default="results/last_bit.csv")
    options = parser.parse_args()
    rows = [
        row
        for name in INPUTS
        for k in options.lengths
        for row in measure(name, k, options.block)
    ]
    for row in rows:
        print(
            f"{row['inputs']:<20} {row['k']:>6} {row['residual']:.2e} {row['method']}"
        )
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
