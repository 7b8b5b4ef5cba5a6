"""Hash the PTX of the headline kernels, so that a change which only moves code can be
shown to change none of them.

Usage: python tools/ptx_hashes.py [--output FILE.csv] [--against OTHER.csv]

The kernels are those that the products of `benchmarks.headline` launch on a GPU of
compute capability 9.0. Triton compiles them; no GPU is needed. Each line holds a call,
the kernel, and a hash of its PTX without comments and without what names files and
lines. --against compares with the file of another checkout, made with the same Triton;
the exit status is 1 where a kernel differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where it is run as a script

from benchmarks.first_calls import (  # noqa: E402
    C128,
    CORRECT,
    F32,
    F64,
    FirstCall,
    moduli,
)
from hifigemm.workshop.environment import write_csv  # noqa: E402

N = 8192
CALLS = (
    FirstCall(F64, N),
    FirstCall(F64, N, options=CORRECT),
    FirstCall(F64, N, options=moduli(14)),
    FirstCall(F32, N),
    FirstCall(F32, N, options=CORRECT),
    FirstCall(C128, N),
    FirstCall(C128, N, options=CORRECT),
)
"""Those of `benchmarks.headline`."""

DEBUG_LINE = re.compile(r"^\s*(\.loc|\.file|\$L__(tmp|func_\w+)\d*:).*\n", re.MULTILINE)
"""Lines that say where in which file an instruction comes from, and their labels."""

Row = dict[str, Any]


def without_places(ptx: str) -> str:
    """The PTX without comments, and without what names files and lines."""
    code = ptx.partition("\t.section\t.debug")[0]
    code = re.sub(r"//.*", "", code)
    code = DEBUG_LINE.sub("", code)
    code = code.replace(", debug\n", "\n")
    lines = [line.strip() for line in code.splitlines()]
    return "\n".join(line for line in lines if line)


def hash_of(ptx: str) -> str:
    """Hash of what a kernel does."""
    return hashlib.sha256(without_places(ptx).encode()).hexdigest()[:16]


def rows_of(calls: Sequence[FirstCall]) -> Iterator[Row]:
    """The kernels of the calls, each with the first call that launches it."""
    from tests.benchmarks.first_kernels import record

    recorder = record(calls)
    for variant, line in recorder.variants.items():
        launch, arguments, constants = recorder.launches[variant]
        compiled = launch.compile(arguments, constants)
        yield {
            "call": line["calls"][0],
            "kernel": line["kernel"],
            "ptx": hash_of(compiled.asm["ptx"]),
        }


def differences(rows: Sequence[Row], others: Sequence[Row]) -> list[str]:
    """A line for each kernel that only one of the two checkouts has."""
    ours = Counter((row["call"], row["kernel"], row["ptx"]) for row in rows)
    theirs = Counter((row["call"], row["kernel"], row["ptx"]) for row in others)
    lines = [f"only here: {', '.join(key)}" for key in (ours - theirs).elements()]
    lines += [f"only there: {', '.join(key)}" for key in (theirs - ours).elements()]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, print, write and compare; 1 where a kernel differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument(
        "--names", default="", help="calls whose names hold this part alone"
    )
    options = parser.parse_args(argv)
    if os.environ.get("TRITON_INTERPRET"):
        parser.error("TRITON_INTERPRET is set: kernels would be run, not compiled")

    # A cache of its own: what Triton compiled with line numbers has other labels.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    calls = [call for call in CALLS if options.names in str(call)]
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for row in rows_of(calls):
            print(f"{row['ptx']}  {row['kernel']:<28} {row['call']}", flush=True)
            rows.append(row)

    if options.output is not None:
        import torch
        import triton

        versions = {"torch": torch.__version__, "triton": triton.__version__}
        write_csv(options.output, rows, arch=90, **versions)
    if options.against is None:
        return 0
    with options.against.open(newline="", encoding="utf-8") as file:
        others = [row for row in csv.DictReader(file) if options.names in row["call"]]
    lines = differences(rows, others)
    for line in lines:
        print(line)
    print(f"{len(rows)} kernels, {len(lines)} differences")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
