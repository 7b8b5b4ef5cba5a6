"""The fastest tile of a product kernel: all in bursts, then the quickest of them
sustained.

    python -m benchmarks.tiles [--shapes M,N,K ...] [--batch N] [--dtype float64|float32]

The kernel is that of INT8 residues, or for float32 that of FP16 words. Products take no
tile from a search: what it prints may go into the tables of `kernels`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import sizes
from hifigemm.numerics.residues import real_moduli
from hifigemm.workshop.measuring.arrays import cuda_is_usable
from hifigemm.workshop.measuring.timing import (
    Clock,
    CudaClock,
    Method,
    capture,
    time_bursts,
    time_variants,
)
from hifigemm.workshop.table import print_table

Rows = list[tuple[str, ...]]

SQUARES = [(n, n, n) for n in (1024, 2048, 4096)]

COUNT = 14
"""Moduli of the products that are timed."""

_FIRST = Method(pause=0.0, warm=1, calls=(1, 16), span=0.002, bursts=5)
_LAST = Method(pause=0.1, warm=1, bursts=1)
_NEAR = 1.06
"""Sustained runs of one card differ by a few percent, and so do bursts."""
_FINALISTS = 4


def search_tiles(
    shape: tuple[int, int, int], batch: int, dtype: str
) -> tuple[str, Rows]:
    """A search for m, n, k and a dtype: what is multiplied, and rows (shape, tile,
    TFLOP/s sustained), best first.

    The TFLOP/s are those of the product that is asked for, 2 m n k, whatever it is made
    of.
    """
    import torch

    title, search = (
        ("FP16 words", _words)
        if dtype == "float32"
        else (f"{COUNT} INT8 products", _residues)
    )
    return title, search(
        *shape, batch, torch.device("cuda", torch.cuda.current_device())
    )


def ranking(runs: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, float]:
    """The tiles of the shortest bursts with their seconds of a sustained call, best
    first.

    A callable launches the product with its tile, of operands that are random and never
    zeros. The launch must cost the host less than the product takes, so short ones want
    a graph. At the limit of power a tile that moves fewer bytes may run at higher
    clocks, which no burst shows. The first tile is always ranked.
    """
    bursts = {
        name: timing.median for name, timing in time_bursts(runs, clock, _FIRST).items()
    }
    nearest = sorted(bursts, key=bursts.__getitem__)[:_FINALISTS]
    last = {
        next(iter(runs)),
        *(name for name in nearest if bursts[name] <= _NEAR * bursts[nearest[0]]),
    }
    times = time_variants(
        {name: run for name, run in runs.items() if name in last}, clock, _LAST
    )
    seconds = {
        name: each.sustained.median
        for name, each in times.items()
        if each.sustained is not None
    }
    return {name: seconds[name] for name in sorted(seconds, key=seconds.__getitem__)}


def _ranked(
    shape: Any,
    predicted: Any,
    others: Sequence[Any],
    launch: Callable[..., object],
    planes: int,
) -> Rows:
    """Rank tiles, the one that is taken without a search first among them."""
    runs = {f"{predicted} (as predicted)": capture(partial(launch, config=predicted))}
    runs |= {
        str(tile): capture(partial(launch, config=tile))
        for tile in others
        if tile != predicted
    }
    named = f"{shape.m} x {shape.k} x {shape.n}" + (
        f" x {planes}" if planes > 1 else ""
    )
    work = 2e-12 * planes * shape.m * shape.n * shape.k
    return [
        (named, name, f"{work / seconds:.4g}")
        for name, seconds in ranking(runs, CudaClock()).items()
    ]


def _words(m: int, n: int, k: int, batch: int, device: Any) -> Rows:
    """Search on the words of random matrices."""
    import torch

    from hifigemm.kernels.products.word_gemm import WHOLE_BLOCK, word_gemm
    from hifigemm.kernels.runtime.recording import run_recorded
    from hifigemm.kernels.runtime.tiles import (
        ProductShape,
        candidates,
        gpu_of,
        tile_for,
    )
    from hifigemm.kernels.vectors.words import split_words
    from hifigemm.model.problem import Problem
    from hifigemm.schemes import Corrected

    scheme, gpu = Corrected("fp16"), gpu_of(device)
    shape = ProductShape(m, n, k, batch, "words", "fp16", WHOLE_BLOCK["fp16"])
    a, b = (
        torch.rand((batch, *size), device=device) - 0.5 for size in ((m, k), (k, n))
    )
    problem = Problem(batch, m, n, k, np.dtype(np.float32))
    sides = (a, 2), (b, 1)
    top = scheme.top_exponent(problem)
    left, right = run_recorded(split_words, sides, scheme.splitting, top)
    out = torch.empty((batch, m, n), device=device)
    launch = partial(run_recorded, word_gemm, left, right, out)
    return _ranked(shape, tile_for(shape, gpu), candidates(shape, gpu), launch, batch)


def _residues(m: int, n: int, k: int, batch: int, device: Any) -> Rows:
    """Search on random residues, never zeros."""
    import torch

    from hifigemm.kernels.products.residue_gemm import residue_constants, residue_gemm
    from hifigemm.kernels.runtime.recording import run_recorded
    from hifigemm.kernels.runtime.tiles import (
        ProductShape,
        gpu_of,
        tile_for,
        valid_tiles,
    )

    gpu, constants = gpu_of(device), residue_constants(real_moduli()[:COUNT], device)
    pitch = -(-k // 16) * 16
    sizes = (m, pitch), (n, pitch), (-(-m // 128) * 128, -(-n // 256) * 256)
    a, b, c = (
        torch.randint(-128, 128, (batch, COUNT, *size), dtype=torch.int8, device=device)
        for size in sizes
    )
    shape = ProductShape(m, n, k, batch * COUNT)
    launch = partial(run_recorded, residue_gemm, a, b, constants, c)
    return _ranked(shape, tile_for(shape, gpu), valid_tiles(gpu), launch, batch)


def _shape(text: str) -> tuple[int, int, int]:
    """Three sizes as they are given on the command line."""
    m, n, k = sizes(text)
    return m, n, k


def main(argv: Sequence[str] | None = None) -> int:
    """Run the search for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=SQUARES, metavar="M,N,K"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args(argv)
    if not cuda_is_usable():
        parser.error("there is no CUDA device whose kernels could be timed")
    for shape in options.shapes:
        title, ranked = search_tiles(shape, options.batch, options.dtype)
        # each as soon as it is known, as compiling takes its time
        print_table(title, ("shape", "tile", "TFLOP/s"), [ranked])
    return 0


if __name__ == "__main__":
    sys.exit(main())
