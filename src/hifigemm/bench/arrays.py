"""Operands and results of a benchmark: on NumPy, or on a CUDA device through torch."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hifigemm.study.matrices import EXPONENT_FAMILIES, as_complex, exponent_family, phi_matrix, uniform

from .gpu_timing import Clock, CpuClock, CudaClock
from .operands import Workload, phi_of
from .power import Meter, driver_version, open_meter

__all__ = ["Arrays", "CudaArrays", "NumpyArrays", "cuda_is_usable"]


class Arrays(Protocol):
    """The few things that differ between NumPy and torch; everything else is written the same in both."""

    device: str

    def operands(self, load: Workload, seed: int) -> tuple[Any, Any]:
        """Random operands; the same seed gives the same ones."""

    def empty(self, load: Workload) -> Any:
        """A result that holds anything."""

    def fill_nan(self, x: Any) -> None:
        """Overwrite every entry with NaN."""

    def multiply(self, a: Any, b: Any, out: Any) -> object:
        """The library's own product."""

    def widened(self, x: Any) -> Any:
        """A real array as float64."""

    def to_host(self, x: Any) -> NDArray[Any]:
        """The array as NumPy's."""

    def clock(self) -> Clock:
        """The clock of the device."""

    def meter(self) -> Meter | None:
        """The meter of the device, if it has one."""

    def describe(self) -> dict[str, Any]:
        """Name of the device and versions of what drives it."""

    def release(self) -> None:
        """Give unused memory back to the device."""


class NumpyArrays:
    """NumPy arrays on the host."""

    device = "cpu"

    def operands(self, load: Workload, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """By the generators of `matrices`."""
        rng = np.random.default_rng([load.seed, seed])
        if load.batch == 1:
            return self._pair(rng, load)
        a, b = (np.empty(load.shape(*size), load.dtype) for size in ((load.m, load.k), (load.k, load.n)))
        for i in range(load.batch):
            a[i], b[i] = self._pair(rng, load)
        return a, b

    def _pair(self, rng: np.random.Generator, load: Workload) -> tuple[NDArray[Any], NDArray[Any]]:
        left, right, dtype = (load.m, load.k), (load.k, load.n), np.dtype(load.real)

        def make(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
            if load.family in EXPONENT_FAMILIES:
                return exponent_family(rng, load.family, load.m, load.k, load.n, dtype)
            if (phi := phi_of(load.family)) is not None:
                return phi_matrix(rng, left, phi, dtype), phi_matrix(rng, right, phi, dtype)
            low = -1.0 if load.family == "uniform" else 0.0
            return uniform(rng, left, low, 1.0, dtype), uniform(rng, right, low, 1.0, dtype)

        pair: tuple[NDArray[Any], NDArray[Any]] = as_complex(make, rng) if load.is_complex else make(rng)
        return pair

    def empty(self, load: Workload) -> NDArray[Any]:
        """``numpy.empty``."""
        return np.empty(load.shape(load.m, load.n), load.dtype)

    def fill_nan(self, x: NDArray[Any]) -> None:
        """In place."""
        x.fill(np.nan)

    def multiply(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> object:
        """``numpy.matmul``."""
        return np.matmul(a, b, out=out)

    def widened(self, x: NDArray[Any]) -> NDArray[Any]:
        """``astype``."""
        return x.astype(np.float64, copy=False)

    def to_host(self, x: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return x

    def clock(self) -> Clock:
        """Time of the host."""
        return CpuClock()

    def meter(self) -> Meter | None:
        """None."""
        return None

    def describe(self) -> dict[str, Any]:
        """The processor is in the environment of every file."""
        return {"device": "cpu"}

    def release(self) -> None:
        """Nothing is kept back."""


def cuda_is_usable() -> bool:
    """Whether torch is installed and finds a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


class CudaArrays:
    """torch tensors on a CUDA device, drawn there.

    Parameters
    ----------
    device : str
        As torch names it; "cpu" serves tests.
    """

    def __init__(self, device: str = "cuda") -> None:
        import torch

        self._torch: Any = torch
        self.device = device

    def operands(self, load: Workload, seed: int) -> tuple[Any, Any]:
        """By torch's generator of the device."""
        generator = self._torch.Generator(device=self.device).manual_seed(1_000_003 * load.seed + seed)
        sides = zip(EXPONENT_FAMILIES.get(load.family, (None, None)), ((load.m, load.k), (load.k, load.n)), strict=True)
        drawn = []
        for exponents, shape in sides:
            parts = [
                self._draw(generator, load, load.shape(*shape), exponents) for _ in range(2 if load.is_complex else 1)
            ]
            drawn.append(self._torch.complex(*parts) if load.is_complex else parts[0])
        return drawn[0], drawn[1]

    def _draw(self, generator: Any, load: Workload, shape: tuple[int, ...], exponents: tuple[int, int] | None) -> Any:
        torch = self._torch
        options = {"generator": generator, "device": self.device, "dtype": torch.float64}
        x = torch.rand(shape, **options)
        if exponents is not None:
            sign = torch.rand(shape, **options) < 0.5
            exponent = torch.randint(exponents[0], exponents[1] + 1, shape, generator=generator, device=self.device)
            x = torch.where(sign, -1.0 - x, 1.0 + x) * torch.exp2(exponent.to(torch.float64))
        elif (phi := phi_of(load.family)) is not None:
            x = (x - 0.5) * torch.exp(torch.randn(shape, **options).mul_(phi))
        elif load.family == "uniform":
            x = 2.0 * x - 1.0
        return x.to(getattr(torch, load.real))

    def empty(self, load: Workload) -> Any:
        """``torch.empty``."""
        torch = self._torch
        return torch.empty(load.shape(load.m, load.n), dtype=getattr(torch, load.dtype), device=self.device)

    def fill_nan(self, x: Any) -> None:
        """In place."""
        x.fill_(float("nan"))

    def multiply(self, a: Any, b: Any, out: Any) -> object:
        """``torch.matmul``."""
        return self._torch.matmul(a, b, out=out)

    def widened(self, x: Any) -> Any:
        """``to(float64)``."""
        return x.to(self._torch.float64)

    def to_host(self, x: Any) -> NDArray[Any]:
        """A copy on the host."""
        host: NDArray[Any] = x.cpu().numpy()
        return host

    def clock(self) -> Clock:
        """Events of the current stream; time of the host for tensors there."""
        return CpuClock() if self.device == "cpu" else CudaClock()

    def meter(self) -> Meter | None:
        """NVML's of this device."""
        if self.device == "cpu":
            return None
        uuid = getattr(self._torch.cuda.get_device_properties(self.device), "uuid", None)
        return open_meter(f"GPU-{uuid}" if uuid else None)

    def describe(self) -> dict[str, Any]:
        """Name of the GPU, driver, torch, CUDA, Triton."""
        if self.device == "cpu":
            return {"device": "cpu", "torch": self._torch.__version__}
        properties = self._torch.cuda.get_device_properties(self.device)
        return {
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "driver": driver_version(),
            "torch": self._torch.__version__,
            "cuda": self._torch.version.cuda,
            "triton": version("triton") if find_spec("triton") else None,
        }

    def release(self) -> None:
        """Empty torch's cache."""
        if self.device != "cpu":
            self._torch.cuda.empty_cache()
