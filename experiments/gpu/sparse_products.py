"""How fast are sparse products on a GPU beside dense INT8 products?

    python -m experiments.gpu.sparse_products [--sizes 4096] [--output FILE.csv]

What slices with many zeros could be multiplied by (experiments/sparse_slices.py): CSR
matrices of FP32 integers of several densities times a dense matrix (cuSPARSE), and INT8
matrices with two zeros in each group of four (cuSPARSELt), beside the dense INT8
product of torch. `rate_of_dense` counts all terms, zeros included: a sparse product
gains where it is above 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import CudaArrays, cuda_is_usable
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.timing import Method, time_bursts

METHOD = Method(pause=0.02, bursts=3, sustained=0)
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1)


def ways(n: int, torch: Any) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """Each way to a product: its name, the share of terms that are not zeros, a call."""
    digits = torch.randint(-100, 100, (n, n), device="cuda", dtype=torch.int8)
    columns = digits.t().contiguous().t()
    yield "dense INT8", 1.0, lambda: torch._int_mm(digits, columns)

    halved = digits.clone()
    halved[:, ::2] = 0
    if torch.backends.cusparselt.is_available():
        compressed = torch._cslt_compress(halved)
        yield (
            "two of four INT8",
            0.5,
            lambda: torch._cslt_sparse_mm(compressed, columns, out_dtype=torch.int32),
        )

    dense = digits.float()
    for density in DENSITIES:
        mask = torch.rand((n, n), device="cuda") < density
        sparse = (dense * mask).to_sparse_csr()
        yield "CSR times dense, FP32", density, lambda sparse=sparse: sparse @ dense


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096])
    parser.add_argument(
        "--output", type=Path, default=Path("results/sparse_products_h100.csv")
    )
    options = parser.parse_args()
    if not cuda_is_usable():
        sys.exit("a CUDA device is what this measures")
    import torch

    arrays = CudaArrays()
    rows: list[Row] = []
    for n in options.sizes:
        seconds_of_dense = 0.0
        for name, density, run in ways(n, torch):
            seconds = time_bursts({"": run}, arrays.clock(), METHOD)[""].median
            seconds_of_dense = seconds_of_dense or seconds
            row: Row = {"n": n, "product": name, "density": density}
            row["milliseconds"] = 1e3 * seconds
            row["rate_of_dense"] = seconds_of_dense / seconds
            rows.append(row)
            print(*row.values(), flush=True)
            write_csv(options.output, rows, **arrays.describe(), method=vars(METHOD))
    return 0


if __name__ == "__main__":
    sys.exit(main())
