"""`hifigemm bench --search`: the fastest tile of a product kernel for each shape, kept for later products.

The kernel of INT8 residues, or for float32 that of FP16 words.
"""

from __future__ import annotations

from collections.abc import Sequence

from hifigemm.exceptions import PlanError
from hifigemm.numerics.residues import real_moduli
from hifigemm.study.bench_arrays import cuda_is_usable
from hifigemm.study.gpu_timing import CudaClock
from hifigemm.study.tile_search import fastest

__all__ = ["search_tiles"]

Rows = list[tuple[str, ...]]
Shapes = Sequence[tuple[int, int, int]]

COUNT = 14
"""Moduli of the products that are timed."""


def search_tiles(shapes: Shapes, batch: int, dtype: str) -> tuple[str, Rows]:
    """A search for matrices of a dtype: what is multiplied, and rows (shape, predicted tile, fastest tile)."""
    if not cuda_is_usable():
        raise PlanError("bench --search times the kernels of a CUDA device, and there is none")
    if dtype == "float32":
        return "FP16 words", _search_words(shapes, batch)
    return "INT8 products", _search_residues(shapes, batch)


def _named(m: int, k: int, n: int, batch: int) -> str:
    return f"{m} x {k} x {n}" + (f" x {batch}" if batch > 1 else "")


def _search_words(shapes: Shapes, batch: int) -> Rows:
    """Search on the words of random matrices."""
    import torch

    from hifigemm.engines.kernels.corrected import WHOLE_BLOCK, corrected_product
    from hifigemm.engines.kernels.corrected_tiles import WordShape, candidates, tile_for
    from hifigemm.engines.kernels.tiles import gpu_of, keep_tile
    from hifigemm.engines.kernels.words import split_words
    from hifigemm.formats import FP16
    from hifigemm.schemes import Corrected

    device, scheme = torch.device("cuda", torch.cuda.current_device()), Corrected("fp16")
    gpu = gpu_of(device)
    rows: Rows = []
    for m, n, k in shapes:
        a, b = (torch.rand((batch, *size), device=device) - 0.5 for size in ((m, k), (k, n)))
        left, right = split_words(((a, 2), (b, 1)), scheme.splitting, FP16.emax)
        out = torch.empty((batch, m, n), device=device)
        shape = WordShape(m, n, k, batch, "fp16", WHOLE_BLOCK["fp16"])
        predicted = tile_for(shape, gpu)

        def run(tile, left=left, right=right, out=out):  # type: ignore[no-untyped-def]
            corrected_product(left, right, out, config=tile)

        best = fastest(run, candidates(shape, gpu), CudaClock())
        keep_tile(shape, gpu, best)
        rows.append((_named(m, k, n, batch), str(predicted), str(best)))
    tile_for.cache_clear()
    return rows


def _search_residues(shapes: Shapes, batch: int) -> Rows:
    """Search on random residues, never zeros."""
    import torch

    from hifigemm.engines.kernels.int8_product import multiply_residues, residue_constants
    from hifigemm.engines.kernels.tiles import ProductShape, gpu_of, keep_tile, tile_for, valid_tiles

    device = torch.device("cuda", torch.cuda.current_device())
    gpu, constants = gpu_of(device), residue_constants(real_moduli()[:COUNT], device)
    rows: Rows = []
    for m, n, k in shapes:
        pitch = -(-k // 16) * 16
        sizes = (m, pitch), (n, pitch), (-(-m // 128) * 128, -(-n // 256) * 256)
        a, b, c = (torch.randint(-128, 128, (batch, COUNT, *size), dtype=torch.int8, device=device) for size in sizes)
        shape = ProductShape(m, n, k, batch * COUNT)
        predicted = tile_for(shape, gpu)

        def run(tile, a=a, b=b, c=c):  # type: ignore[no-untyped-def]
            multiply_residues(a, b, constants, c, config=tile)

        best = fastest(run, valid_tiles(gpu), CudaClock())
        keep_tile(shape, gpu, best)
        rows.append((_named(m, k, n, batch), str(predicted), str(best)))
    return rows
