"""What the benchmarks share: `hifigemm bench` with defaults of their own, and a file for each device and day."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from hifigemm.cli import main
from hifigemm.study.bench_arrays import CudaArrays, cuda_is_usable


def run(name: str, defaults: Sequence[str], given: Sequence[str]) -> int:
    """Run `hifigemm bench` with defaults, which the given options override; --output is another word for --csv."""
    given = ["--csv" if word == "--output" else word for word in given]
    if "--csv" not in given and "-h" not in given and "--help" not in given:
        given += ["--csv", f"results/{name}_{_device(given)}_{datetime.now(timezone.utc):%Y-%m-%d}.csv"]
    return main(["bench", *defaults, *given])


def _device(given: Sequence[str]) -> str:
    """Short name of the device: h200, cpu."""
    if "cpu" in given or not cuda_is_usable():
        return "cpu"
    name = str(CudaArrays().describe()["device"])
    words = [word for word in re.findall(r"\w+", name.lower()) if word not in ("nvidia", "geforce", "tesla")]
    return words[0] if words else "cuda"
