"""How accurate are the modes of Ozaki scheme I, and what do they cost? Errors, slices,
products over n, as in [MOOI20].

    python -m experiments.ozaki_modes [--sizes 128 1024 7168] [--block 256] [--output results/ozaki_modes.csv]

Inputs: (rand - 0.5) exp(phi randn), phi = 0.1, 1, 2 (doi:10.1007/978-3-030-50743-5_12,
figures 3, 5b, 7b, 8). At most block x block entries of an n x n product are computed,
with all of k = n. Error: the largest |C - R| / |R|, R the exact product rounded once to
float64. Modes DP and correct multiply float64 matrices and return float64, SP
multiplies the same matrices rounded to float32 and returns float32. "Published slices"
is the number that the splitting and the rule of [MOOI20] take (experiments/sigma.py),
whose slices are short enough for sums over all of k; this library cuts k instead
(k_block), takes longer slices, and rounds their exact sum once.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.phi import phi_matrix
from experiments.sigma import sigma_num_slices
from hifigemm.base.formats import FP32, FP64, Format
from hifigemm.schemes.ozaki1 import slice_bits
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.environment import write_csv

SEED = 7
PHIS = (0.1, 1.0, 2.0)
SIZES = (128, 256, 512, 1024, 2048, 4096, 7168)
WAYS: dict[str, tuple[Format, hg.Ozaki1 | None]] = {
    "SGEMM (this computer's BLAS)": (FP32, None),
    "SP mode, FP16 products": (FP32, hg.Ozaki1("fp16", mode="sp")),
    "DGEMM (this computer's BLAS)": (FP64, None),
    "DP mode, FP16 products": (FP64, hg.Ozaki1("fp16", mode="dp")),
    "DP mode, FP64 products": (FP64, hg.Ozaki1("fp64", mode="dp")),
    "correct mode, FP16 products": (FP64, hg.Ozaki1("fp16", mode="correct")),
    "correct mode, FP64 products": (FP64, hg.Ozaki1("fp64", mode="correct")),
}


def rounded_componentwise_error(c: Any, a: Any, b: Any, reference: Any) -> float:
    """max |C - reference| / (|A||B|) of a real product in floating point: quick, where
    exact integers are slow.

    The reference should be correct to well below the error measured; |A||B| must stay
    within the range of float64.
    """
    error = abs(np.asarray(c, np.longdouble) - np.asarray(reference, np.longdouble))
    size = abs(np.asarray(a, np.float64)) @ abs(np.asarray(b, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0, 0, error / size).max(initial=0))


def measure(phi: float, n: int, most: int) -> list[dict[str, Any]]:
    """One line for each way to the product."""
    rng, block = np.random.default_rng([SEED, n, int(10 * phi)]), min(n, most)
    doubles = phi_matrix(rng, (block, n), phi), phi_matrix(rng, (n, block), phi)
    rows = []
    for fmt in (FP32, FP64):
        a, b = (x.astype(np.float32 if fmt is FP32 else np.float64) for x in doubles)
        reference = correctly_rounded(a, b, np.float64)
        for way in (name for name, (own, _) in WAYS.items() if own is fmt):
            scheme = WAYS[way][1]
            row = {"phi": phi, "n": n, "way": way, "rows_and_columns": block}
            c, report = hg.matmul(a, b, scheme=scheme or "native", return_report=True)
            row |= {
                "max_relative_error": np.max(abs(c - reference) / abs(reference)),
                "componentwise_error": rounded_componentwise_error(c, a, b, reference),
                "share_correct": np.mean(c == reference.astype(c.dtype)),
            }
            if scheme is not None:
                plan = hg.make_plan(a, b, scheme=scheme)
                row |= {
                    "num_slices": report.scheme.num_slices,
                    "num_products": report.num_products,
                }
                row |= {
                    "slice_bits": slice_bits(plan.problem, plan.spec),
                    "k_block": plan.k_block,
                }
                if scheme.product == "fp16" and scheme.mode != "correct":
                    row["published_slices"] = sigma_num_slices(*doubles, fmt.u)
            rows.append(row)
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument(
        "--block",
        type=int,
        default=256,
        help="rows and columns that are computed at most",
    )
    parser.add_argument("--output", default="results/ozaki_modes.csv")
    options = parser.parse_args()
    rows = []
    for phi in PHIS:
        for n in options.sizes:
            rows += measure(phi, n, options.block)
            for r in rows[-len(WAYS) :]:
                counts = (
                    r.get(key, "")
                    for key in (
                        "num_slices",
                        "num_products",
                        "slice_bits",
                        "published_slices",
                    )
                )
                print(
                    f"{phi:g} {n:>5} {r['max_relative_error']:.2e} {r['share_correct']:.4f} {r['way']}",
                    *counts,
                    flush=True,
                )
    write_csv(options.output, rows, engine="numpy", seed=SEED)


if __name__ == "__main__":
    main()
