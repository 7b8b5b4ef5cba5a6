"""Measured rates of a GPU: what `hifigemm bench --calibrate` writes. The library itself never measures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hifigemm.engines.float32_precision import float32_precision
from hifigemm.engines.kernels.tiles import ProductShape, Tile, waves
from hifigemm.engines.library_product import library_matmul
from hifigemm.engines.rates import SIZES, Rates
from hifigemm.formats import FP16
from hifigemm.numerics.words import Splitting


def measure(device: torch.device) -> Rates:
    """Measure the rates of a GPU; takes about a second."""
    from hifigemm.engines.kernels.residue_gemm import residue_constants, residue_gemm
    from hifigemm.numerics.residues import real_moduli

    def product(dtype: torch.dtype, n: int) -> float:
        a, b = (torch.rand((n, n), dtype=dtype, device=device) for _ in range(2))
        c = torch.empty_like(a)
        with float32_precision("cuda", "ieee"):
            return 2 * n**3 / _seconds(lambda: library_matmul(a, b, c))

    native_fp64 = tuple(product(torch.float64, n) for n in SIZES)
    n, moduli = 4096, real_moduli()[:4]
    a, b, c = (torch.randint(-128, 128, (1, len(moduli), n, n), dtype=torch.int8, device=device) for _ in range(3))
    constants = residue_constants(moduli, device)
    residue_rate = 2 * n**3 * len(moduli) / _seconds(lambda: residue_gemm(a, b, constants, c))
    copied, small = torch.empty(2**28, dtype=torch.int8, device=device), torch.empty(16, device=device)
    copy = _seconds(lambda: copied[: 2**27].copy_(copied[2**27 :]))
    return Rates(
        gpu=torch.cuda.get_device_name(device),
        native_fp64=native_fp64,
        native_fp32=tuple(product(torch.float32, n) for n in SIZES),
        odd_fp64=min(product(torch.float64, 2047) / native_fp64[SIZES.index(2048)], 1.0),
        int8=residue_rate,
        bandwidth=2**28 / copy,
        launch=_seconds(lambda: small.add_(1)),
        words=_word_rate(device),
        num_sms=torch.cuda.get_device_properties(device).multi_processor_count,
        source="measured now",
    )


def _word_rate(device: torch.device) -> float:
    """Of `Rates.words`, from a product of 4096 in waves that are not all full."""
    from hifigemm.engines.kernels.word_gemm import word_gemm
    from hifigemm.engines.kernels.words import split_words

    n, num_sms = 4096, torch.cuda.get_device_properties(device).multi_processor_count
    a, b = (torch.rand((1, n, n), device=device) - 0.5 for _ in range(2))
    left, right = split_words(((a, 2), (b, 1)), Splitting(FP16, 2, "nearest", 11), FP16.emax)
    seconds = _seconds(lambda: word_gemm(left, right, a))
    tile = Tile("hopper", 128, 128, 64, 3, 4)
    return 2 * waves(tile, ProductShape(n, n, n, 1), num_sms) * tile.area * n * num_sms / seconds


def _seconds(run: Callable[[], Any]) -> float:
    """Time of a call, back to back for 50 ms, by the clock of the device."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    count = max(int(0.05 / max(time.perf_counter() - start, 1e-6)), 3)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / count
