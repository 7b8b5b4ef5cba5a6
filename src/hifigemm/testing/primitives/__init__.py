"""What exactness rests on: functions of other libraries, each run over strides and
limits against Python's numbers.

An exact product takes a few functions that this package does not have: rint, frexp,
conversions, sums of integers in a BLAS or on tensor cores. A fault in one of them is a
wrong result that no bound covers. `findings` runs each of them in the way in which the
package uses it, on the CPU and on every GPU, and says which one is at fault, and where.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hifigemm.engines import available, engine_for
from hifigemm.testing.primitives.functions import functions
from hifigemm.testing.primitives.places import Finding, Place, on_device
from hifigemm.testing.primitives.products import (
    exact_products,
    native_products,
    tensor_cores,
)

__all__ = ["Finding", "findings"]


def findings() -> Iterator[Finding]:
    """All primitives, those of the CPU first."""
    numpy = Place(f"NumPy {np.__version__}")
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    yield from functions(numpy)
    yield from exact_products(
        engine_for("numpy"), Place(f"{blas['name']} {blas['version']}")
    )
    if "torch" not in available():
        return
    import torch

    yield from native_products(
        engine_for("torch"), Place(f"PyTorch {torch.__version__}")
    )
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        place = on_device(f"cuda:{i}")
        with torch.cuda.device(i):
            yield from functions(place)
            engine = engine_for("torch", "torch", f"cuda:{i}")
            for check in (exact_products, native_products, tensor_cores):
                yield from check(engine, place)
