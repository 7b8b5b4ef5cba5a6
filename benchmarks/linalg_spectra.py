"""What verified eigenvalues and singular values cost beside an ordinary decomposition:
`hifigemm.linalg.eigvalsh` beside `eigh`, `svdvals` beside `svd`, of NumPy on a CPU and of
PyTorch on a GPU.

Normal entries. Both are timed in turns, after two calls of each. "First radius" is the
decomposition with its residual and Gram matrices, from which the radius of all values
follows.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.linalg_spectra
    python -m benchmarks.linalg_spectra --device cuda --output results/linalg_spectra_h200.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import hifigemm as hg
from benchmarks.linalg_solve import timed, turns
from hifigemm.linalg.arrays import eigenvectors, singular_vectors
from hifigemm.linalg.decompositions import gram, residual
from hifigemm.workshop.environment import write_csv

SIZES = {"cpu": "10,100,1000", "cuda": "1024,2048"}
SEED = 43

Call = Callable[[], Any]


def first_of_eigenvalues(a: Any) -> None:
    """What the first radius of eigenvalues follows from."""
    d, x = eigenvectors(a)
    residual(a, x, x, d.reshape(1, -1))
    gram(x)


def first_of_singular_values(a: Any) -> None:
    """What the first radius of singular values follows from."""
    u, s, v = singular_vectors(a)
    residual(a, v, u, s.reshape(1, -1))
    gram(u)
    gram(v)


def rows(n: int, dtype: str, device: str) -> list[dict[str, Any]]:
    """The rows of one size."""
    rng = np.random.default_rng(SEED)
    square = rng.standard_normal((n, n))
    if dtype == "complex128":
        square = square + 1j * rng.standard_normal((n, n))
    symmetric = square + square.conj().T
    finish: Call = lambda: None  # noqa: E731
    library: Any = np
    arrays = square, symmetric
    if device == "cuda":
        import torch

        from hifigemm.engines.device_array import wrap

        library = torch
        square, symmetric = (torch.from_numpy(x).cuda() for x in arrays)
        arrays = wrap(square), wrap(symmetric)
        finish = torch.cuda.synchronize
    calls: dict[str, tuple[Call, Call, Call]] = {
        "eigvalsh": (
            lambda: library.linalg.eigh(symmetric),
            lambda: first_of_eigenvalues(arrays[1]),
            lambda: hg.linalg.eigvalsh(symmetric),
        ),
        "svdvals": (
            lambda: library.linalg.svd(square),
            lambda: first_of_singular_values(arrays[0]),
            lambda: hg.linalg.svdvals(square),
        ),
    }
    lines = []
    for name, functions in calls.items():
        plain, first, ours = timed(list(functions), turns(n, device), finish)
        line = {
            "n": n,
            "dtype": dtype,
            "function": name,
            "ordinary": min(plain),
            "first radius": min(first),
            "verified": min(ours),
            "ratio of the first radius": min(first) / min(plain),
            "ratio of least": min(ours) / min(plain),
            "ratio of medians": float(np.median(ours) / np.median(plain)),
        }
        print(*line.values(), sep=", ", flush=True)
        lines.append(line)
    return lines


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--sizes")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--output", default="results/linalg_spectra_cpu.csv")
    options = parser.parse_args()
    sizes = options.sizes or SIZES[options.device]
    table = []
    for n in map(int, sizes.split(",")):
        table.extend(rows(n, options.dtype, options.device))
    write_csv(options.output, table, seed=SEED)


if __name__ == "__main__":
    main()
