"""How accurate is Ozaki scheme II, over the number of moduli and the width of the
exponents?

    python -m experiments.moduli [--n 1024] [--block 64] [--output results/moduli.csv]

Inputs: (rand - 0.5) exp(phi randn), phi = 0.1, 1, 2, 4. At most block x block entries
of an n x n product are computed, with all of k = n. Errors are the largest
|C - AB| / (|A||B|), by an exact judge; the native product stands beside them. Results
have the same bits on every engine, so a CPU measures for all.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.phi import phi_matrix
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.environment import write_csv

SEED = 11
PHIS = (0.1, 1.0, 2.0, 4.0)
COUNTS = range(2, 22)


def measure(phi: float, n: int, most: int) -> list[dict[str, Any]]:
    """A line for the native product, and one for each count and way to scale."""
    rng, block = np.random.default_rng([SEED, n, int(10 * phi)]), min(n, most)
    a, b = phi_matrix(rng, (block, n), phi), phi_matrix(rng, (n, block), phi)
    exact = ExactProduct(a, b)

    def row(way: str, count: int | str, c: Any) -> dict[str, Any]:
        errors = {"error": exact.error(c), "share_correct": np.mean(c == exact.rounded)}
        return {
            "phi": phi,
            "n": n,
            "way": way,
            "num_moduli": count,
            **errors,
            "rows_and_columns": block,
        }

    return [
        row("native", "", a @ b),
        *(
            row(
                scaling,
                count,
                hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=count, scaling=scaling)),
            )
            for scaling in ("fast", "accurate")
            for count in COUNTS
        ),
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument(
        "--block",
        type=int,
        default=64,
        help="rows and columns that are computed at most",
    )
    parser.add_argument("--output", default="results/moduli.csv")
    options = parser.parse_args()
    rows = []
    for phi in PHIS:
        rows += measure(phi, options.n, options.block)
        print(
            *(
                f"{r['phi']:g} {r['way']:<8} {r['num_moduli']!s:>2} {r['error']:.2e}"
                for r in rows
                if r["phi"] == phi
            ),
            sep="\n",
        )
    write_csv(options.output, rows, engine="numpy", seed=SEED)


if __name__ == "__main__":
    main()
