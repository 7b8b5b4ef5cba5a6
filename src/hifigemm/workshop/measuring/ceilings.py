"""What the device could do at best: datasheet peaks, and rates measured with library
routines in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from .arrays import Arrays, Workload
from .rows import Row
from .runs import NATIVE
from .timing import Clock, Method, time_bursts

_HOPPER = {
    "int8": 1979e12,
    "fp16": 989e12,
    "bf16": 989e12,
    "tf32": 495e12,
    "fp32": 67e12,
    "fp64": 67e12,
}
_PEAKS: dict[str, dict[str, float]] = {
    "H200": _HOPPER,
    "H100": _HOPPER,
    "A100": {
        "int8": 624e12,
        "fp16": 312e12,
        "bf16": 312e12,
        "tf32": 156e12,
        "fp32": 19.5e12,
        "fp64": 19.5e12,
    },
}
"""Dense operations a second by the datasheets of the SXM boards, for what a device's
name contains.
"""

_COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 31}
_SIZE = {"cpu": 512, "cuda": 8192}
_BUSY = 5.0
"""Plain rate over that of a native product from which on other work explains it."""
_LEAST_BUSY = {"cpu": 128, "cuda": 1024}
"""Sizes below which a call takes longer than its sums: no product reaches a plain rate."""


def peak_rates(device_name: str) -> dict[str, float]:
    """Operations a second by format; empty for a device that is not known."""
    for name, rates in _PEAKS.items():
        if name in device_name:
            return dict(rates)
    return {}


def measured_ceilings(arrays: Arrays, clock: Clock, method: Method) -> dict[str, float]:
    """Bytes a second of a copy (read plus write) and operations a second of products in
    bursts.

    Keys: copy, fp64, fp32; on CUDA also int8 and fp16.
    """
    n = _SIZE[arrays.device]
    nbytes = _COPY_BYTES[arrays.device]
    launches: dict[str, Callable[[Arrays, int], Callable[[], object]]]
    launches = {
        "copy": _copy,
        "fp64": _product,
        "fp32": partial(_product, dtype="float32"),
    }
    if arrays.device == "cuda":
        launches |= {"fp16": _half_product, "int8": _int8_product}
    rates = {}
    for name, prepare in launches.items():
        if name == "copy":
            size = nbytes // 8
            work = 2.0 * nbytes
        else:
            size = n
            work = 2.0 * n**3
        launch = prepare(arrays, size)
        timing = time_bursts({name: launch}, clock, method)[name]
        rates[name] = work / timing.median
    return rates


def busy_remark(row: Row, ceilings: Mapping[str, float], device: str) -> str:
    """Why the time of a native product is that of a busy machine; empty where it is not.

    The plain rate was measured a moment before by the same product.
    """
    is_large = min(row["m"], row["n"], row["k"]) >= _LEAST_BUSY[device]
    if row["case"] != NATIVE or not row["burst_tflops"] or not is_large:
        return ""
    plain = ceilings.get(row["unit"], 0.0)
    rate = row["burst_tflops"] * 1e12
    if _BUSY * rate >= plain:
        return ""
    return (
        f"this machine is busy: the native product of {row['m']} x {row['n']} x {row['k']} ran at {shown_rate(rate)}, "
        f"a plain {row['unit']} product at {shown_rate(plain)}. Ratios to it say nothing; repeat the measurement"
    )


def shown_rate(rate: float, name: str = "") -> str:
    """A rate with its unit, of operations or, for "copy", of bytes a second."""
    what = "B/s" if name == "copy" else "FLOP/s"
    for factor, prefix in ((1e12, "T"), (1e9, "G")):
        if rate >= factor:
            return f"{rate / factor:.3g} {prefix}{what}"
    return f"{rate / 1e6:.3g} M{what}"


def _copy(arrays: Arrays, count: int) -> Callable[[], object]:
    source, _ = arrays.operands(Workload(1, 1, count, family="uniform"), 0)
    target = source.copy() if arrays.device == "cpu" else source.clone()
    return lambda: target.__setitem__(..., source)


def _product(arrays: Arrays, n: int, dtype: str = "float64") -> Callable[[], object]:
    load = Workload(n, n, n, dtype=dtype, family="uniform")
    return partial(arrays.multiply, *arrays.operands(load, 0), arrays.empty(load))


def _half_product(arrays: Arrays, n: int) -> Callable[[], object]:
    load = Workload(n, n, n, dtype="float32", family="uniform")
    a, b = (x.half() for x in arrays.operands(load, 0))
    return partial(arrays.multiply, a, b, a.clone())


def _int8_product(arrays: Arrays, n: int) -> Callable[[], object]:
    import torch

    a, b = (
        torch.randint(-128, 128, (n, n), dtype=torch.int8, device="cuda")
        for _ in range(2)
    )
    # the library is fast where both operands are contiguous along k
    return partial(torch._int_mm, a, b.t())
