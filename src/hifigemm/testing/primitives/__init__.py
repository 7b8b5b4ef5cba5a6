"""Checks of the functions of other libraries that exactness relies on.

An exact product calls a few functions of other libraries: rint, frexp, conversions,
sums of integers in a BLAS or on tensor cores. A fault in one of them gives a wrong
result that no bound covers. `findings` runs each function as the package uses it, over
strides and at its limits, on the CPU and on every GPU. It compares with Python's
numbers, and reports each faulty function with its first wrong result.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hifigemm.base.public import shown
from hifigemm.engines import available, engine_for
from hifigemm.testing.primitives.functions import functions
from hifigemm.testing.primitives.platforms import Finding, Platform, on_device
from hifigemm.testing.primitives.products import (
    exact_products,
    native_products,
    tensor_cores,
)

__all__ = ["Finding", "findings"]


def findings() -> Iterator[Finding]:
    """A `Finding` for each primitive, first on the CPU, then on each GPU."""
    numpy = Platform(f"NumPy {np.__version__}")
    yield from functions(numpy)
    build = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    blas = Platform(f"{build['name']} {build['version']}")
    yield from exact_products(engine_for("numpy"), blas)
    if "torch" not in available():
        return
    import torch

    host = Platform(f"PyTorch {torch.__version__}")
    yield from native_products(engine_for("torch"), host)
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for i in range(num_devices):
        platform = on_device(f"cuda:{i}")
        with torch.cuda.device(i):
            yield from functions(platform)
            engine = engine_for("torch", "torch", f"cuda:{i}")
            for check in (exact_products, native_products, tensor_cores):
                yield from check(engine, platform)


__dir__ = shown(globals())
