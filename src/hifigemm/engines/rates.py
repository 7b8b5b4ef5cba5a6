"""What a GPU was measured to do, and the times that follow: the cost model behind scheme="auto".

A native product takes the larger of its operations over the rate of cubes of the same volume and its bytes over the
bandwidth. Ozaki scheme II adds up its passes over memory, its INT8 products, and its launches. Rates of known GPUs come
with the package; those of others are measured when they are first wanted, in about a second, and kept in a file.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from hifigemm.engines import cache
from hifigemm.engines.float32_precision import float32_precision
from hifigemm.engines.kernels.word_gemm_tiles import RATES, waves
from hifigemm.formats import FP16
from hifigemm.numerics.words import Splitting
from hifigemm.problem import Problem

__all__ = ["H200", "Rates", "measure", "rates_of"]

_SIZES = (256, 512, 1024, 2048, 4096)
_LOOK = 5e-5
"""Seconds that short products with a look take beyond passes, products and launches: 45 to 70 us on an H200 at n = 1024
and 2048, real and complex."""


@dataclass(frozen=True)
class Rates:
    """Sustained rates of a GPU; printable.

    Attributes
    ----------
    gpu : str
    native_fp64, native_fp32 : tuple of float
        FLOP/s of the library's product of cubes of 256, 512, 1024, 2048 and 4096.
    odd_fp64 : float
        The share of this rate that real FP64 products with odd n or k reach.
    int8 : float
        Operations a second of the residue product, 2 m n k for each modulus.
    bandwidth : float
        Bytes a second, read and written.
    launch : float
        Seconds that a dependent launch adds.
    words : float
        FLOP/s of the product with two FP16 words an operand, 2 m n k, while tiles of 128 x 128 occupy all SMs.
    num_sms : int
    """

    gpu: str
    native_fp64: tuple[float, ...]
    native_fp32: tuple[float, ...]
    odd_fp64: float
    int8: float
    bandwidth: float
    launch: float
    words: float
    num_sms: int

    def native_seconds(self, problem: Problem) -> float:
        """The native product of a problem in its own format."""
        p = problem
        multiplications = p.multiplications * (4 if p.is_complex else 1)
        rates = self.native_fp32 if p.fmt.t == 24 else self.native_fp64
        size = max(min(multiplications ** (1 / 3), _SIZES[-1]), _SIZES[0])
        at = max(i for i, n in enumerate(_SIZES) if n <= size)
        after = min(at + 1, len(_SIZES) - 1)
        share = 0.0 if after == at else math.log(size / _SIZES[at]) / math.log(_SIZES[after] / _SIZES[at])
        rate = rates[at] ** (1.0 - share) * rates[after] ** share
        if p.dtype == np.float64 and (p.n | p.k) & 1:
            rate *= self.odd_fp64
        operands = p.batch * (p.m * p.k + p.k * p.n)
        moved = (operands + p.batch * p.m * p.n) * p.dtype.itemsize
        seconds = max(2 * multiplications / rate, moved / self.bandwidth) + self.launch
        if p.narrow is None:
            return seconds
        return seconds + operands * (p.dtype.itemsize + 2) / self.bandwidth + 2 * self.launch  # converted first

    def residue_seconds(self, problem: Problem, num_products: int, looks: bool) -> float:
        """Ozaki scheme II; `looks` adds the product of magnitudes by which a count is chosen beforehand.

        The magnitudes of complex entries take four real products.
        """
        p = problem
        operands, result = p.batch * (p.m * p.k + p.k * p.n), p.batch * p.m * p.n
        inner = -(-p.m // 128) * 128 * (-(-p.n // 256) * 256) * -(-p.k // 128) * 128
        # The product of magnitudes takes a quarter longer than others; passes over memory half as long again as their
        # bytes.
        looked = 1.25 * looks * (4 if p.is_complex else 1)
        seconds = 2 * p.batch * inner * (num_products + looked) / self.int8
        moved = (operands + result) * (p.dtype.itemsize + num_products)
        launches = 6 * self.launch + _LOOK if looks else 4 * self.launch
        return seconds + 1.5 * moved / self.bandwidth + launches

    def word_seconds(self, problem: Problem) -> float:
        """Words whose format is chosen on the device: words, product and result one after the other.

        Passes over memory take a third longer than their bytes. One product instead of three hides nothing under the
        others.
        """
        p = problem
        rate, entry = (self.words, 8) if p.narrow is None else (2 * self.words, 4)
        sms = self.num_sms
        product = min(
            2 * p.k * sms * waves(p.m, p.n, p.batch, block, sms) * block[0] * block[1] / (rate * share)
            for block, share in RATES.items()
        )
        moved = p.batch * (entry * (p.m * p.k + p.k * p.n) + 4 * p.m * p.n)
        return product + 4 / 3 * moved / self.bandwidth + 6 * self.launch

    def __str__(self) -> str:
        native = "\n".join(
            f"  native {name:<5} " + "  ".join(f"{n}: {rate / 1e12:.1f}" for n, rate in zip(_SIZES, rates, strict=True))
            for name, rates in (("FP64", self.native_fp64), ("FP32", self.native_fp32))
        )
        return (
            f"{self.gpu}: TFLOP/s by size\n{native}\n  native FP64 with odd n or k {self.odd_fp64:.2f} of that\n"
            f"  INT8 residue product {self.int8 / 1e12:.0f} TOP/s, FP16 words "
            f"{self.words / 1e12:.0f} TFLOP/s, memory {self.bandwidth / 1e12:.2f} TB/s, a launch "
            f"{self.launch * 1e6:.1f} us"
        )


H200 = Rates(
    gpu="NVIDIA H200",
    native_fp64=(3.0e12, 11.7e12, 34e12, 54e12, 58e12),
    native_fp32=(4.0e12, 14e12, 29e12, 48e12, 50e12),
    odd_fp64=0.73,
    int8=1400e12,
    bandwidth=4.3e12,
    launch=3e-6,
    words=220e12,
    num_sms=132,
)
"""Measured on an NVIDIA H200 (700 W)."""

_KNOWN = {H200.gpu: H200}
_FILE = "rates.json"


@lru_cache
def rates_of(device: torch.device) -> Rates:
    """Rates of a GPU: known, kept from an earlier measurement, or measured now."""
    name = torch.cuda.get_device_name(device)
    return _KNOWN.get(name) or _kept(name) or _keep(measure(device))


def _kept(name: str) -> Rates | None:
    try:
        found = cache.load(_FILE)[name]
        values: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in found.items()}
        rates = Rates(**values)
        natives = (rates.native_fp64, rates.native_fp32)
        numbers = [*rates.native_fp64, *rates.native_fp32, rates.odd_fp64, rates.int8, rates.bandwidth, rates.launch]
        numbers += [rates.words, rates.num_sms]
        return rates if all(len(x) == len(_SIZES) for x in natives) and min(numbers) > 0 else None
    except (KeyError, TypeError, AttributeError):
        return None


def _keep(rates: Rates) -> Rates:
    """Write the rates where `_kept` finds them; a folder that cannot be written costs a measurement in each process."""
    with contextlib.suppress(OSError):
        cache.store(_FILE, {rates.gpu: asdict(rates)})
    return rates


def measure(device: torch.device) -> Rates:
    """Measure the rates of a GPU; takes about a second."""
    from hifigemm.engines.kernels.residue_gemm import residue_constants, residue_gemm
    from hifigemm.numerics.residues import real_moduli

    def product(dtype: torch.dtype, n: int) -> float:
        a, b = (torch.rand((n, n), dtype=dtype, device=device) for _ in range(2))
        c = torch.empty_like(a)
        with float32_precision("cuda", "ieee"):
            return 2 * n**3 / _seconds(lambda: torch.matmul(a, b, out=c))

    native_fp64 = tuple(product(torch.float64, n) for n in _SIZES)
    n, moduli = 4096, real_moduli()[:4]
    a, b, c = (torch.randint(-128, 128, (1, len(moduli), n, n), dtype=torch.int8, device=device) for _ in range(3))
    constants = residue_constants(moduli, device)
    residue_rate = 2 * n**3 * len(moduli) / _seconds(lambda: residue_gemm(a, b, constants, c))
    copied, small = torch.empty(2**28, dtype=torch.int8, device=device), torch.empty(16, device=device)
    copy = _seconds(lambda: copied[: 2**27].copy_(copied[2**27 :]))
    return Rates(
        gpu=torch.cuda.get_device_name(device),
        native_fp64=native_fp64,
        native_fp32=tuple(product(torch.float32, n) for n in _SIZES),
        odd_fp64=min(product(torch.float64, 2047) / native_fp64[_SIZES.index(2048)], 1.0),
        int8=residue_rate,
        bandwidth=2**28 / copy,
        launch=_seconds(lambda: small.add_(1)),
        words=_word_rate(device),
        num_sms=torch.cuda.get_device_properties(device).multi_processor_count,
    )


def _word_rate(device: torch.device) -> float:
    """Of `Rates.words`, from a product of 4096 in waves that are not all full."""
    from hifigemm.engines.kernels.word_gemm import word_gemm
    from hifigemm.engines.kernels.words import split_words

    n, num_sms = 4096, torch.cuda.get_device_properties(device).multi_processor_count
    a, b = (torch.rand((1, n, n), device=device) - 0.5 for _ in range(2))
    left, right = split_words(((a, 2), (b, 1)), Splitting(FP16, 2, "nearest", 11), FP16.emax)
    seconds = _seconds(lambda: word_gemm(left, right, a))
    return 2 * waves(n, n, 1, (128, 128), num_sms) * 128 * 128 * n * num_sms / seconds


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
