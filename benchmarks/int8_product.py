"""Rates of the INT8 residue product kernels alone, on full-range random residues:
checked, then timed.

    python -m benchmarks.int8_product [--output FILE.csv] [--count 14]

The tiles that are taken for each shape, in Gluon and in plain Triton, the latter on FP16
units too; square and odd shapes. A tile whose residues are wrong in a sample of rows gets no time. TOP/s count 2
m n k for each modulus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import BRIEF
from hifigemm.kernels.products.residue_gemm import residue_constants, residue_gemm
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import ProductShape, Tile, gpu_of, tile_for
from hifigemm.numerics.residues import real_moduli
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.power import open_meter
from hifigemm.workshop.measuring.timing import CudaClock, Method, time_variants

SHAPES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192, 16384)),
    (4095, 4097, 4099),
    (5000, 3000, 7000),
    (16384, 4096, 2048),
    (1024, 1024, 65536),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--count", type=int, default=14, help="moduli")
    args = parser.parse_args(argv)
    device = torch.device("cuda", torch.cuda.current_device())
    rows = []
    for shape in SHAPES:
        found = measure(shape, args.count, device, BRIEF)
        rows += found
        for row in found:
            rate = (
                f"{row['burst_tops']:.0f} / {row['sustained_tops']:.0f} TOP/s"
                if row["correct"]
                else "wrong"
            )
            print(
                f"{row['m']} x {row['k']} x {row['n']}  {row['tile']}  {rate}",
                flush=True,
            )
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    name = (
        torch.cuda.get_device_name(device)
        .lower()
        .replace("nvidia ", "")
        .replace(" ", "-")
    )
    path = args.output or Path(f"results/int8_product_{name}_{day}.csv")
    write_csv(
        path, rows, device=torch.cuda.get_device_name(device), torch=torch.__version__
    )
    return 0 if all(row["correct"] for row in rows) else 1


def measure(
    shape: tuple[int, int, int], count: int, device: torch.device, method: Method
) -> list[dict[str, Any]]:
    """One row for each tile."""
    (m, n, k), gpu = shape, gpu_of(device)
    pitch, moduli = -(-k // 128) * 128, real_moduli()[:count]
    sizes = (m, pitch), (n, pitch), (-(-m // 128) * 128, -(-n // 256) * 256)
    a, b, c = (
        torch.randint(-128, 128, (1, count, *size), dtype=torch.int8, device=device)
        for size in sizes
    )
    a[..., k:], b[..., k:] = 0, 0
    constants = residue_constants(moduli, device)
    asked = ProductShape(m, n, k, count)
    plain = tile_for(asked, gpu, ("triton",))
    tiles = [tile_for(asked, gpu)]
    tiles += [replace(plain, unit=unit) for unit in ("int8", "fp16")]
    runs = {str(tile): _call(a, b, constants, c, tile) for tile in tiles}
    right = {
        name: _is_right(run, a, b, c, moduli, (m, n)) for name, run in runs.items()
    }
    timed = {name: run for name, run in runs.items() if right[name]}
    times = time_variants(timed, CudaClock(), method, open_meter())
    work = 2.0 * m * n * k * count * 1e-12
    rows = []
    for name in runs:
        row = {
            "m": m,
            "n": n,
            "k": k,
            "moduli": count,
            "tile": name,
            "correct": right[name],
        }
        if name in times:
            seconds = {
                "burst": times[name].burst.median,
                "sustained": times[name].sustained.median,
            }
            row |= {f"{mode}_us": 1e6 * value for mode, value in seconds.items()}
            row |= {f"{mode}_tops": work / value for mode, value in seconds.items()}
            row["sm_clock_mhz"], row["watts"] = (
                times[name].readings.sm_clock_mhz,
                times[name].readings.watts,
            )
        rows.append(row)
    return rows


def _call(a: Any, b: Any, constants: Any, c: Any, tile: Tile) -> Any:
    return lambda: run_recorded(residue_gemm, a, b, constants, c, config=tile)


def _is_right(
    run: Any, a: Any, b: Any, c: Any, moduli: Sequence[int], size: tuple[int, int]
) -> bool:
    """Whether a sample of rows is right modulo every p; the output is poisoned
    before.
    """
    m, n = size
    c.fill_(77)
    run()
    rows = torch.randint(0, m, (8,), device=a.device)
    for l, p in enumerate(moduli):
        want = a[0, l, rows].double() @ b[0, l].double().T
        if ((want - c[0, l, rows, :n].double()) % p).any():
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
