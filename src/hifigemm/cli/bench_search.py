"""`hifigemm bench --search`: the fastest tile of the INT8 product kernels for each shape, kept for later products."""

from __future__ import annotations

from collections.abc import Sequence

from hifigemm.exceptions import PlanError
from hifigemm.numerics.residues import real_moduli
from hifigemm.study.bench_arrays import cuda_is_usable

__all__ = ["search_tiles"]

COUNT = 14
"""Moduli of the products that are timed."""


def search_tiles(shapes: Sequence[tuple[int, int, int]], batch: int) -> list[tuple[str, ...]]:
    """Search on random residues, never zeros; rows (shape, predicted tile, fastest tile) for a table."""
    if not cuda_is_usable():
        raise PlanError("bench --search times the kernels of a CUDA device, and there is none")
    import torch

    from hifigemm.engines.kernels.int8_product import multiply_residues, residue_constants
    from hifigemm.engines.kernels.tiles import ProductShape, gpu_of, search, tile_for, valid_tiles

    device = torch.device("cuda", torch.cuda.current_device())
    gpu, constants = gpu_of(device), residue_constants(real_moduli()[:COUNT], device)
    rows: list[tuple[str, ...]] = []
    for m, n, k in shapes:
        pitch = -(-k // 16) * 16
        sizes = (m, pitch), (n, pitch), (-(-m // 128) * 128, -(-n // 256) * 256)
        a, b, c = (torch.randint(-128, 128, (batch, COUNT, *size), dtype=torch.int8, device=device) for size in sizes)
        shape = ProductShape(m, n, k, batch * COUNT)
        predicted = tile_for(shape, gpu)

        def run(tile, a=a, b=b, c=c):  # type: ignore[no-untyped-def]
            multiply_residues(a, b, constants, c, config=tile)

        best = search(run, valid_tiles(gpu), shape, gpu)
        rows.append((f"{m} x {k} x {n}" + (f" x {batch}" if batch > 1 else ""), str(predicted), str(best)))
    return rows
