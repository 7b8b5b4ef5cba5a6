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

import torch

from hifigemm.engines import cache
from hifigemm.plan import Problem

__all__ = ["H200", "Rates", "measure", "rates_of"]

_SIZES = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Rates:
    """Sustained rates of a GPU; printable.

    Attributes
    ----------
    gpu : str
    native_fp64, native_fp32 : tuple of float
        FLOP/s of the library's product of cubes of 256, 512, 1024, 2048 and 4096.
    int8 : float
        Operations a second of the residue product, 2 m n k for each modulus.
    bandwidth : float
        Bytes a second, read and written.
    launch : float
        Seconds that a dependent launch adds.
    """

    gpu: str
    native_fp64: tuple[float, ...]
    native_fp32: tuple[float, ...]
    int8: float
    bandwidth: float
    launch: float

    def native_seconds(self, problem: Problem) -> float:
        """The native product of a problem in its own format."""
        p = problem
        multiplications = p.batch * p.m * p.n * p.k * (4 if p.is_complex else 1)
        rates = self.native_fp32 if p.fmt.t == 24 else self.native_fp64
        size = max(min(multiplications ** (1 / 3), _SIZES[-1]), _SIZES[0])
        at = max(i for i, n in enumerate(_SIZES) if n <= size)
        after = min(at + 1, len(_SIZES) - 1)
        share = 0.0 if after == at else math.log(size / _SIZES[at]) / math.log(_SIZES[after] / _SIZES[at])
        rate = rates[at] ** (1.0 - share) * rates[after] ** share
        moved = p.batch * (p.m * p.k + p.k * p.n + p.m * p.n) * p.dtype.itemsize
        return max(2 * multiplications / rate, moved / self.bandwidth) + self.launch

    def residue_seconds(self, problem: Problem, num_products: int, looks: bool) -> float:
        """Ozaki scheme II; `looks` adds the product of magnitudes by which a count is chosen beforehand."""
        p = problem
        operands, result = p.batch * (p.m * p.k + p.k * p.n), p.batch * p.m * p.n
        inner = -(-p.m // 128) * 128 * (-(-p.n // 256) * 256) * -(-p.k // 128) * 128
        # The product of magnitudes runs at half the rate; passes over memory take half as long again as their bytes.
        seconds = 2 * p.batch * inner * (num_products + 2 * looks) / self.int8
        moved = (operands + result) * (p.dtype.itemsize + num_products)
        return seconds + 1.5 * moved / self.bandwidth + (6 if looks else 4) * self.launch

    def __str__(self) -> str:
        native = "\n".join(
            f"  native {name:<5} " + "  ".join(f"{n}: {rate / 1e12:.1f}" for n, rate in zip(_SIZES, rates, strict=True))
            for name, rates in (("FP64", self.native_fp64), ("FP32", self.native_fp32))
        )
        return (
            f"{self.gpu}: TFLOP/s by size\n{native}\n  INT8 residue product {self.int8 / 1e12:.0f} TOP/s, memory "
            f"{self.bandwidth / 1e12:.2f} TB/s, a launch {self.launch * 1e6:.1f} us"
        )


H200 = Rates(
    gpu="NVIDIA H200",
    native_fp64=(3.0e12, 11.7e12, 34e12, 54e12, 58e12),
    native_fp32=(4.0e12, 14e12, 29e12, 48e12, 50e12),
    int8=1400e12,
    bandwidth=4.3e12,
    launch=3e-6,
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
        numbers = (*rates.native_fp64, *rates.native_fp32, rates.int8, rates.bandwidth, rates.launch)
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
    from hifigemm.engines.kernels.int8_product import multiply_residues, residue_constants
    from hifigemm.numerics.residues import real_moduli

    def product(dtype: torch.dtype, n: int) -> float:
        a, b = (torch.rand((n, n), dtype=dtype, device=device) for _ in range(2))
        c = torch.empty_like(a)
        return 2 * n**3 / _seconds(lambda: torch.matmul(a, b, out=c))

    n, moduli = 4096, real_moduli()[:4]
    a, b, c = (torch.randint(-128, 128, (1, len(moduli), n, n), dtype=torch.int8, device=device) for _ in range(3))
    constants = residue_constants(moduli, device)
    residue_rate = 2 * n**3 * len(moduli) / _seconds(lambda: multiply_residues(a, b, constants, c))
    copied, small = torch.empty(2**28, dtype=torch.int8, device=device), torch.empty(16, device=device)
    copy = _seconds(lambda: copied[: 2**27].copy_(copied[2**27 :]))
    return Rates(
        gpu=torch.cuda.get_device_name(device),
        native_fp64=tuple(product(torch.float64, n) for n in _SIZES),
        native_fp32=tuple(product(torch.float32, n) for n in _SIZES),
        int8=residue_rate,
        bandwidth=2**28 / copy,
        launch=_seconds(lambda: small.add_(1)),
    )


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
