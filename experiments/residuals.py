"""What does error correction repair on tensor cores? Relative residual over k, as in
[OY22].

    python -m experiments.residuals [--lengths 16 1024 65536] [--block 32] [--output results/residuals.csv]

Residual: norm_F(C - R) / norm_F(R), R the FP64 product of the FP32 operands. C has
block x block entries; k grows. The units are those of an H100 (simulated-h100). Inputs:
uniform on (-1, 1) and on (0, 1), and the four families of random exponents of [OY22]
(doi:10.1177/10943420221090256). "As published" is without scaling of rows and columns,
and with main sums that leave the unit after each instruction (k = 16 for FP16, 8 for
TF32).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.chains import chained_product
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.testing.matrices import EXPONENT_FAMILIES, exponent_family, uniform
from hifigemm.testing.reference import relative_residual
from hifigemm.workshop.environment import write_csv

SEED = 2
ENGINE = "simulated-h100"
LENGTHS = (16, 64, 256, 1024, 4096, 16384, 65536)
METHODS: dict[str, hg.Multiword | hg.Corrected | None] = {
    "Markidis: FP16, 4 products, truncated words": PUBLISHED_METHODS["markidis"],
    "Feng: FP16, 4 products, words to nearest": PUBLISHED_METHODS["feng"],
    "corrected FP16, but summed in the tensor core": hg.Corrected(
        "fp16", accumulate="chained", scale=False
    ),
    "corrected FP16 as published": hg.Corrected("fp16", scale=False, block=16),
    "corrected FP16, rows and columns scaled, blocks of 64": hg.Corrected("fp16"),
    "corrected TF32 as published": hg.Corrected("tf32", scale=False, block=8),
    "FP32, one sum in order of k": None,
}


def inputs() -> Iterator[tuple[str, Callable[[np.random.Generator, int, int], Any]]]:
    """Name of each kind of operands, and a function (rng, block, k) that draws a pair
    of them.
    """
    for name, low in (("uniform on (-1, 1)", -1.0), ("uniform on (0, 1)", 0.0)):

        def draw(rng: np.random.Generator, block: int, k: int, low: float = low) -> Any:
            return tuple(
                uniform(rng, shape, low, 1.0, np.float32)
                for shape in ((block, k), (k, block))
            )

        yield name, draw
    for family, (left, right) in EXPONENT_FAMILIES.items():

        def draw_family(
            rng: np.random.Generator, block: int, k: int, family: Any = family
        ) -> Any:
            return exponent_family(rng, family, block, k, block)

        where = f"in {left}" if left == right else f"of A in {left}, of B in {right}"
        yield f"exponents {where}", draw_family


def measure(
    name: str, draw: Callable[..., Any], block: int, k: int
) -> list[dict[str, Any]]:
    """One line for each method."""
    a, b = draw(np.random.default_rng([SEED, k]), block, k)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    rows = []
    for method, scheme in METHODS.items():
        c = (
            chained_product(a, b)
            if scheme is None
            else hg.matmul(a, b, scheme=scheme, engine=ENGINE)
        )
        residual = relative_residual(c, reference)
        rows.append(
            {
                "inputs": name,
                "k": k,
                "method": method,
                "residual": residual,
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
    parser.add_argument("--block", type=int, default=32, help="rows and columns")
    parser.add_argument("--output", default="results/residuals.csv")
    options = parser.parse_args()
    rows = []
    for name, draw in inputs():
        for k in options.lengths:
            rows += measure(name, draw, options.block, k)
        print(
            *(f"{r['residual']:.2e} {r['method']}" for r in rows[-len(METHODS) :]),
            sep="\n",
            flush=True,
        )
        print(f"-- {name}, k = {options.lengths[-1]}", flush=True)
    write_csv(options.output, rows, engine=ENGINE, seed=SEED)


if __name__ == "__main__":
    main()
