"""Do two TF32 words reach SGEMM, and two FP32 words DGEMM? Forward errors over n in
three norms, as in [VLVJ23].

    python -m experiments.forward_errors [--sizes 128 1024] [--block 256] [--output results/forward_errors.csv]

Inputs and norms are those of [VLVJ23] (doi:10.1145/3624062.3624084, figures 4 and 5):
square matrices of means of two uniforms, error norm(C - AB) / (norm(A) norm(B)), norms
of all entries as one vector. Of an n x n product at most block x block entries are
computed, with all of k = n: for the 1- and the 2-norm that is a sample with the same
expectation, while the largest of fewer errors is smaller (by a quarter at n = 8192).
Rows "published" are what [VLVJ23] measured on an A100.

"SGEMM" and "DGEMM" are chains of fused multiply-adds along k; FP32 curves are compared
with the FP64 product of the FP32 inputs, FP64 curves with the exact product. Products
of FP32 words ("TF64") are exact in FP64 and chained too, small words first.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.chains import chained_product
from experiments.published_methods import PUBLISHED_METHODS
from hifigemm.base.formats import FP32
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.schemes.multiword import Multiword
from hifigemm.testing.reference import forward_errors
from hifigemm.workshop.environment import write_csv

SEED = 1
ENGINE = "simulated-a100"
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
TENSOR_CORE: dict[str, Multiword] = {
    "1x FP16": Multiword("fp16", 1, 1, scale=False),
    "1x TF32": PUBLISHED_METHODS["valero-lara-tf32x1"],
    "3x TF32": PUBLISHED_METHODS["valero-lara-tf32x3"],
    "4x TF32": PUBLISHED_METHODS["valero-lara-tf32x4"],
}
PUBLISHED = {
    "3x TF32": {128: 4.0e-8, 1024: 1.0e-7, 8192: 2.8e-7},
    "1x TF64": {128: 3.07e-9, 1024: 1.09e-9, 8192: 3.86e-10},
    "3x TF64": {128: 2.6e-16, 1024: 9.4e-17, 8192: 4.4e-17},
    "4x TF64": {128: 1.42e-16, 1024: 5.6e-17, 8192: 3.5e-17},
    "DGEMM": {128: 3.44e-17, 1024: 3.35e-17, 8192: 3.33e-17},
}
"""2-norm of [VLVJ23] on an A100."""

Products = dict[str, Any]


def mean_of_uniforms(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64
) -> np.ndarray:
    """Return the mean of two uniforms on [-0.5, 0.5) for each entry: the inputs of
    [VLVJ23].
    """
    first, second = rng.uniform(-0.5, 0.5, shape), rng.uniform(-0.5, 0.5, shape)
    return ((first + second) / 2).astype(dtype)


def single_products(a: np.ndarray, b: np.ndarray) -> Products:
    """FP32 results of FP32 operands."""
    products = {"SGEMM": chained_product(a, b), "SGEMM by this computer's BLAS": a @ b}
    products |= {
        name: hg.matmul(a, b, scheme=scheme, engine=ENGINE)
        for name, scheme in TENSOR_CORE.items()
    }
    return products


def split(x: np.ndarray, high: str) -> list[np.ndarray]:
    """Two FP32 words of a float64 matrix, as float64: the first rounded as asked, the
    second to nearest.
    """
    first = round_to_format(x, FP32, high).astype(np.float64)
    return [first, round_to_format(x - first, FP32).astype(np.float64)]


def double_products(a: np.ndarray, b: np.ndarray) -> Products:
    """Results of float64 operands; the names of TF64 without further words have the
    first word truncated.
    """
    single = (x.astype(np.float32) for x in (a, b))
    products = {
        "DGEMM": chained_product(a, b),
        "DGEMM by this computer's BLAS": a @ b,
        "SGEMM": chained_product(*single),
        "1x TF64": chained_product(split(a, "nearest")[0], split(b, "nearest")[0]),
    }
    for words, high in ((", words to nearest", "nearest"), ("", "zero")):
        (a1, a2), (b1, b2) = split(a, high), split(b, high)
        for name, smallest in (
            (f"3x TF64{words}", None),
            (f"4x TF64{words}", chained_product(a2, b2)),
        ):
            corrections = chained_product(a1, b2, chained_product(a2, b1, smallest))
            products[name] = chained_product(a1, b1, corrections)
    return products


def row(
    precision: str, curve: str, n: int, block: int, errors: dict[str, Any], source: str
) -> dict[str, Any]:
    """One line of the CSV file; norms that are not known stay empty."""
    norms = {f"norm_{name}": errors.get(name, "") for name in ("1", "2", "inf")}
    return {
        "precision": precision,
        "curve": curve,
        "n": n,
        "rows_and_columns": block,
        "source": source,
        **norms,
    }


def measure(n: int, most: int) -> list[dict[str, Any]]:
    """All curves at one n."""
    rng, block = np.random.default_rng([SEED, n]), min(n, most)
    a, b = mean_of_uniforms(rng, (block, n)), mean_of_uniforms(rng, (n, block))
    rows = []
    for precision, multiply, pair in (
        ("fp32", single_products, ("SGEMM", "3x TF32")),
        ("fp64", double_products, ("DGEMM", "3x TF64")),
    ):
        x, y = (
            v.astype(np.float32 if precision == "fp32" else np.float64) for v in (a, b)
        )
        reference = (
            x.astype(np.float64) @ y.astype(np.float64) if precision == "fp32" else None
        )
        products = multiply(x, y)
        for name, c in products.items():
            errors = forward_errors(c, x, y, reference=reference)
            rows.append(row(precision, name, n, block, errors, "computed"))
        one, other = (products[name] for name in pair)
        errors = forward_errors(one, x, y, reference=other)
        rows.append(
            row(precision, f"|{pair[0]} - {pair[1]}|", n, block, errors, "computed")
        )
    return rows


def published() -> list[dict[str, Any]]:
    """The measurements of the paper that are known as numbers."""
    return [
        row(
            "fp32" if "TF32" in curve else "fp64",
            curve,
            n,
            n,
            {"2": value},
            "published",
        )
        for curve, values in PUBLISHED.items()
        for n, value in values.items()
    ]


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
    parser.add_argument("--output", default="results/forward_errors.csv")
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        rows += measure(n, options.block)
        print(
            *(
                f"{r['n']:>6} {r['norm_2']:.3e} {r['curve']}"
                for r in rows
                if r["n"] == n
            ),
            sep="\n",
            flush=True,
        )
    write_csv(
        options.output,
        rows + published(),
        engine=ENGINE,
        seed=SEED,
        published="[VLVJ23] on an A100, 2-norm",
    )


if __name__ == "__main__":
    main()
