"""What is multiplied in a benchmark, and its operands and results: on NumPy, or on a
CUDA device through torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hifigemm.testing import (
    EXPONENT_FAMILIES,
    as_complex,
    exponent_family,
    phi_matrix,
    uniform,
)
from hifigemm.workshop.errors import InputError

from .cublas import version_of_cublas
from .power import Meter, driver_version, open_meter
from .timing import Clock, CudaClock

FAMILIES = ("uniform", "uniform01", "phi0.5", *EXPONENT_FAMILIES)
"""Uniform on (-1, 1) and on (0, 1); (rand - 0.5) exp(phi randn), any number for phi;
the exponent ranges of [OY22].
"""

DTYPES = ("float64", "float32", "complex128", "complex64")

_PHI = re.compile(r"phi(\d+(?:\.\d*)?)")


def check_family(family: str) -> None:
    """Raise ValueError unless the family is known."""
    if family not in FAMILIES and phi_of(family) is None:
        raise ValueError(
            f"no family {family!r}; known: {', '.join(FAMILIES)}, and phi with any number"
        )


def phi_of(family: str) -> float | None:
    """The phi in the name of a family, None for other families."""
    match = _PHI.fullmatch(family)
    return float(match[1]) if match else None


@dataclass(frozen=True)
class Workload:
    """A stack of products of m x k by k x n matrices."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float64"
    family: str = "phi0.5"
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise ValueError(f"{self}: sizes start at 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        check_family(self.family)

    @property
    def is_complex(self) -> bool:
        """Whether entries are complex."""
        return self.dtype.startswith("complex")

    @property
    def real(self) -> str:
        """Dtype of the real components."""
        components = {"complex128": "float64", "complex64": "float32"}
        return components.get(self.dtype, self.dtype)

    @property
    def unit(self) -> str:
        """The format of a native product."""
        return "fp64" if self.real == "float64" else "fp32"

    @property
    def u(self) -> float:
        """Unit roundoff of the result."""
        return float(np.finfo(self.real).eps) / 2

    @property
    def terms(self) -> int:
        """Real products in the sum behind a real component of the result."""
        return 2 * self.k if self.is_complex else self.k

    @property
    def operations(self) -> float:
        """2 m n k, and 8 m n k for complex entries, over the stack."""
        multiplications = self.batch * self.m * self.n * self.k
        return (8.0 if self.is_complex else 2.0) * multiplications

    @property
    def nbytes(self) -> int:
        """Bytes of both operands and the result."""
        entries = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * entries * np.dtype(self.dtype).itemsize

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Shape of a matrix or of a stack of them."""
        return (rows, columns) if self.batch == 1 else (self.batch, rows, columns)

    def __str__(self) -> str:
        stack = f"{self.batch} x " if self.batch > 1 else ""
        shapes = f"{self.m} x {self.k} times {self.k} x {self.n}"
        return f"{stack}{shapes}, {self.dtype}, {self.family}"


class Arrays:
    """What NumPy arrays on the host and tensors on a device do not have in common: here
    NumPy arrays.
    """

    device = "cpu"

    def operands(self, load: Workload, seed: int) -> tuple[Any, Any]:
        """Random operands by the generators of `matrices`; the same seed gives the same
        ones.
        """
        rng = np.random.default_rng([load.seed, seed])
        a = np.empty(load.shape(load.m, load.k), load.dtype)
        b = np.empty(load.shape(load.k, load.n), load.dtype)
        lefts = a.reshape(-1, load.m, load.k)
        rights = b.reshape(-1, load.k, load.n)
        for left, right in zip(lefts, rights, strict=True):
            if load.is_complex:
                pair = as_complex(_real_pair, rng, load)
            else:
                pair = _real_pair(rng, load)
            left[...], right[...] = pair
        return a, b

    def asarray(self, x: NDArray[Any]) -> Any:
        """An array of the host as one of this library, on its device."""
        return x

    def empty(self, load: Workload) -> Any:
        """A result that holds anything."""
        return np.empty(load.shape(load.m, load.n), load.dtype)

    def multiply(self, a: Any, b: Any, out: Any) -> object:
        """The library's own product."""
        return np.matmul(a, b, out=out)

    def clock(self) -> Clock:
        """The clock of the device."""
        return Clock()

    def meter(self) -> Meter | None:
        """The meter of the device, if it has one."""
        return None

    def describe(self) -> dict[str, Any]:
        """Name of the device and versions of what drives it; the processor is in the
        environment of every file.
        """
        return {"device": "cpu"}

    def release(self) -> None:
        """Give unused memory back to the device."""


def _real_pair(
    rng: np.random.Generator, load: Workload
) -> tuple[NDArray[Any], NDArray[Any]]:
    left = load.m, load.k
    right = load.k, load.n
    dtype = np.dtype(load.real)
    if load.family in EXPONENT_FAMILIES:
        return exponent_family(rng, load.family, load.m, load.k, load.n, dtype)
    if (phi := phi_of(load.family)) is not None:
        return phi_matrix(rng, left, phi, dtype), phi_matrix(rng, right, phi, dtype)
    low = -1.0 if load.family == "uniform" else 0.0
    return uniform(rng, left, low, 1.0, dtype), uniform(rng, right, low, 1.0, dtype)


def cuda_is_usable() -> bool:
    """Whether torch is installed and finds a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


class CudaArrays(Arrays):
    """torch tensors on the CUDA device, drawn there."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch

    def operands(self, load: Workload, seed: int) -> tuple[Any, Any]:
        """By torch's generator of the device."""
        generator = self._torch.Generator(device=self.device)
        generator.manual_seed(1_000_003 * load.seed + seed)
        of_a, of_b = EXPONENT_FAMILIES.get(load.family, (None, None))
        a = self._draw(generator, load, load.shape(load.m, load.k), of_a)
        b = self._draw(generator, load, load.shape(load.k, load.n), of_b)
        return a, b

    def _draw(
        self,
        generator: Any,
        load: Workload,
        shape: tuple[int, ...],
        exponents: tuple[int, int] | None,
    ) -> Any:
        real = self._draw_real(generator, load, shape, exponents)
        if not load.is_complex:
            return real
        imag = self._draw_real(generator, load, shape, exponents)
        return self._torch.complex(real, imag)

    def _draw_real(
        self,
        generator: Any,
        load: Workload,
        shape: tuple[int, ...],
        exponents: tuple[int, int] | None,
    ) -> Any:
        torch = self._torch
        options = {
            "generator": generator,
            "device": self.device,
            "dtype": torch.float64,
        }
        x = torch.rand(shape, **options)
        if exponents is not None:
            # A sign, a significand in [1, 2) and an exponent.
            low, high = exponents
            is_negative = torch.rand(shape, **options) < 0.5
            exponent = torch.randint(
                low, high + 1, shape, generator=generator, device=self.device
            )
            signed = torch.where(is_negative, -1.0 - x, 1.0 + x)
            x = signed * torch.exp2(exponent.to(torch.float64))
        elif (phi := phi_of(load.family)) is not None:
            x = (x - 0.5) * torch.exp(torch.randn(shape, **options).mul_(phi))
        elif load.family == "uniform":
            x = 2.0 * x - 1.0
        return x.to(getattr(torch, load.real))

    def asarray(self, x: NDArray[Any]) -> Any:
        """A tensor on the device, with the numbers of an array."""
        return self._torch.from_numpy(x).to(self.device)

    def empty(self, load: Workload) -> Any:
        """``torch.empty``."""
        dtype = getattr(self._torch, load.dtype)
        return self._torch.empty(
            load.shape(load.m, load.n), dtype=dtype, device=self.device
        )

    def multiply(self, a: Any, b: Any, out: Any) -> object:
        """``torch.matmul``."""
        return self._torch.matmul(a, b, out=out)

    def clock(self) -> Clock:
        """Events of the current stream."""
        return CudaClock()

    def meter(self) -> Meter | None:
        """NVML's of this device."""
        uuid = getattr(
            self._torch.cuda.get_device_properties(self.device), "uuid", None
        )
        return open_meter(f"GPU-{uuid}" if uuid else None)

    def describe(self) -> dict[str, Any]:
        """Name of the GPU, driver, torch, CUDA, cuBLAS, Triton."""
        properties = self._torch.cuda.get_device_properties(self.device)
        return {
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "driver": driver_version(),
            "torch": self._torch.__version__,
            "cuda": self._torch.version.cuda,
            "cublas": version_of_cublas(),
            "triton": version("triton") if find_spec("triton") else None,
        }

    def release(self) -> None:
        """Empty torch's cache."""
        self._torch.cuda.empty_cache()


def arrays_of(device: str | None) -> Arrays:
    """The arrays of a device, "cpu" or "cuda"; by default of CUDA where there is one.

    Raises InputError: CUDA cannot be used here.
    """
    device = device or ("cuda" if cuda_is_usable() else "cpu")
    if device == "cpu":
        return Arrays()
    if not cuda_is_usable():
        raise InputError("--device cuda needs torch and a CUDA device")
    return CudaArrays()


def widened(x: Any) -> Any:
    """A real array or tensor as float64."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.double()


def to_host(x: Any) -> NDArray[Any]:
    """An array, or the copy of a tensor, as NumPy's."""
    return np.asarray(x if isinstance(x, np.ndarray) else x.cpu().numpy())
