"""How long do the first calls of a process take, and how many kernels do they compile?

Fifty varied calls run one after the other in a fresh process: float64, float32,
complex128 and complex64, five sizes, layouts, accuracies, schemes. The first process
starts with an empty cache of Triton, a second one with the cache that it left. A call
ends when the device is done; operands are there before. Kernels are counted in the
cache.

    python -m benchmarks.first_calls [--names PART] [--seconds 120] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hifigemm as hg
from benchmarks.processes import lines_of, print_line
from hifigemm.workshop.environment import write_csv

F64, F32, C128, C64 = "float64", "float32", "complex128", "complex64"
_LAST = "program ended"
"""The name of the last line: when a process ended."""


@dataclass(frozen=True)
class FirstCall:
    """A call whose kernels may be new.

    `layout` says for each operand whether it is stored by rows (N) or by columns (T).
    """

    dtype: str
    n: int
    layout: str = "NN"
    options: dict[str, Any] = field(default_factory=dict)
    # of `gemm`, with C; None for `matmul`
    scalars: tuple[float, float] | None = None

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        gemm = "" if self.scalars is None else " gemm" + str(self.scalars)
        return f"{self.dtype} {self.n} {self.layout}{gemm} {options}".rstrip()

    def run(self, a: Any, b: Any, c: Any) -> Any:
        """The call."""
        if self.scalars is None:
            return hg.matmul(a, b, **self.options)
        alpha, beta = self.scalars
        return hg.gemm(a, b, c, alpha=alpha, beta=beta, **self.options)


def moduli(count: int) -> dict[str, Any]:
    """Options of a product of so many moduli."""
    return {"scheme": hg.Ozaki2(num_moduli=count, scaling="fast")}


CORRECT: dict[str, Any] = {"accuracy": "correct"}
CALLS = (
    FirstCall(F64, 64),
    FirstCall(F64, 64, options=CORRECT),
    FirstCall(F64, 300),
    FirstCall(F64, 300, "NT", CORRECT),
    FirstCall(F64, 300, options={"accuracy": 1e-14}),
    FirstCall(F64, 300, "TN", moduli(14)),
    FirstCall(F64, 1024),
    FirstCall(F64, 1024, options=CORRECT),
    FirstCall(F64, 1024, options=moduli(14)),
    FirstCall(F64, 1024, "NT", moduli(15)),
    FirstCall(F64, 1024, options={"accuracy": 1e-6}),
    FirstCall(F64, 1024, options={"accuracy": hg.Relative(1e-12)}),
    FirstCall(F64, 1024, options={"result": "pair"}),
    FirstCall(F64, 1024, options={"result": "enclosure"}),
    FirstCall(F64, 1024, scalars=(-1.0, 1.0)),
    FirstCall(F64, 1024, options={"scheme": hg.Ozaki1(num_slices=8)}),
    FirstCall(F64, 2048),
    FirstCall(F64, 2048, "TT", CORRECT),
    FirstCall(F64, 2048, "NT", {"accuracy": 1e-12}),
    FirstCall(F64, 2048, options=moduli(8)),
    FirstCall(F64, 2048, scalars=(2.5, 0.5), options=moduli(15)),
    FirstCall(F64, 4096),
    FirstCall(F64, 4096, "TN"),
    FirstCall(F64, 4096, options=CORRECT),
    FirstCall(F64, 4096, options=moduli(14)),
    FirstCall(F64, 4096, "NT", {"accuracy": 1e-8}),
    FirstCall(F64, 4096, options=moduli(20)),
    FirstCall(F32, 64),
    FirstCall(F32, 300, options=CORRECT),
    FirstCall(F32, 1024),
    FirstCall(F32, 1024, "NT"),
    FirstCall(F32, 1024, options=CORRECT),
    FirstCall(F32, 1024, options={"scheme": hg.Multiword()}),
    FirstCall(F32, 2048),
    FirstCall(F32, 2048, "TT", {"accuracy": 1e-5}),
    FirstCall(F32, 2048, options=moduli(7)),
    FirstCall(F32, 2048, options={"scheme": hg.Corrected(product="tf32")}),
    FirstCall(F32, 2048, options={"accuracy": "fp64"}),
    FirstCall(F32, 4096, "TN"),
    FirstCall(F32, 4096, options=CORRECT),
    FirstCall(C128, 64),
    FirstCall(C128, 300, options=CORRECT),
    FirstCall(C128, 1024),
    FirstCall(C128, 1024, "NT", moduli(14)),
    FirstCall(C128, 2048, options=CORRECT),
    FirstCall(C128, 4096, "TN"),
    FirstCall(C64, 300),
    FirstCall(C64, 1024),
    FirstCall(C64, 2048, "NT", CORRECT),
    FirstCall(C64, 4096),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run both processes, print and write what they saw."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.process:
        return run_calls(options.names, options.seconds)

    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for process in ("cold", "second"):
            for line in lines_of_process(options, Path(cache)):
                row = rows.setdefault(line["call"], {"call": line["call"]})
                row[f"{process}_seconds"] = line["seconds"]
                row[f"{process}_kernels"] = line["kernels"]
    for row in rows.values():
        seconds = [row.get(f"{process}_seconds") for process in ("cold", "second")]
        cells = "".join("      -" if x is None else f"{x:7.2f}" for x in seconds)
        print(f"{cells} {row.get('cold_kernels', ''):>3}  {row['call']}")
    if options.output is not None:
        import torch

        device = torch.cuda.get_device_name()
        write_csv(options.output, list(rows.values()), device=device)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", default="", help="calls whose names hold this part")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="no call begins after these"
    )
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def lines_of_process(options: argparse.Namespace, cache: Path) -> list[dict[str, Any]]:
    """What a fresh process with this cache of Triton says of its calls."""
    arguments = ["--process", "--names", options.names]
    arguments += ["--seconds", str(options.seconds)]
    variables = {"TRITON_CACHE_DIR": str(cache)}
    return lines_of("benchmarks.first_calls", arguments, variables=variables)


def run_calls(names: str, seconds: float) -> int:
    """Make the calls in this process; a JSON line for each, and one for all."""
    import torch

    calls = [call for call in CALLS if names in str(call)]
    operands = {
        (call.dtype, call.n): matrices(torch, call.dtype, call.n) for call in calls
    }
    torch.cuda.synchronize()
    started = time.perf_counter()
    for call in calls:
        if time.perf_counter() - started > seconds:
            break
        kernels = num_kernels()
        a, b, c = operands[call.dtype, call.n]
        x, y = (
            v if how == "N" else v.mT
            for v, how in zip((a, b), call.layout, strict=True)
        )
        begun = time.perf_counter()
        call.run(x, y, c)
        torch.cuda.synchronize()
        print_line(
            call=str(call),
            seconds=time.perf_counter() - begun,
            kernels=num_kernels() - kernels,
        )
    print_line(call=_LAST, seconds=time.perf_counter() - started, kernels=num_kernels())
    return 0


def matrices(torch: Any, dtype: str, n: int) -> list[Any]:
    """A, B and C."""
    generator = torch.Generator("cuda").manual_seed(n)
    options = {"generator": generator, "device": "cuda"}
    kind = getattr(torch, dtype)
    return [torch.randn(n, n, dtype=kind, **options) for _ in range(3)]


def num_kernels() -> int:
    """Compiled kernels in the cache of Triton."""
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    return sum(1 for _ in cache.glob("*/*.cubin"))


if __name__ == "__main__":
    sys.exit(main())
