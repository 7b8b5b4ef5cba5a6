"""Count the library's own function calls, and the files that they are in, of a first
and of a repeated product.

Usage: python tools/own_calls.py [--names PART] [--output FILE.csv]

Each kind of call is counted in a fresh process: its first call, and its third one, so
that plans and programs are there. Operands are 64 x 64 matrices; kinds with tensors are
there if PyTorch is installed. Counts differ from one version of Python to another: a
comprehension is a function before Python 3.12, and none from there on.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.workshop.environment import write_csv

LIBRARY = Path(hg.__file__).resolve().parent

FIXED = hg.Ozaki2(num_moduli=15, scaling="fast")
"""A scheme that leaves nothing to choose."""

PLAIN = "matmul"
"""The name of the plain call."""

Call = Callable[[], object]


def calls_of(function: Call, package: Path = LIBRARY) -> tuple[int, int]:
    """Calls of functions of the package while `function` runs, and the number of files
    that they are in.

    The bodies of modules and classes, which an import runs, are no functions. Nor is
    the wrapper that `transforms.opaque` puts around the public functions, as its code
    names no file of the package.
    """
    files: list[str] = []
    folder = f"{package}{os.sep}"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        if event == "call" and is_function and code.co_filename.startswith(folder):
            files.append(code.co_filename)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(files), len(set(files))


def repeated_calls_of(function: Call) -> tuple[int, int]:
    """Calls and files of a call that comes for the third time."""
    function()
    function()
    return calls_of(function)


def products() -> dict[str, Call]:
    """Kinds of calls, each as a function without parameters; matrices of 64 x 64
    float64.
    """
    rng = np.random.default_rng(1)
    a = rng.standard_normal((64, 64))
    b = rng.standard_normal((64, 64))
    c = rng.standard_normal((64, 64))
    relative = hg.Relative(1e-12)
    return {
        PLAIN: lambda: hg.matmul(a, b),
        'matmul, accuracy="correct"': lambda: hg.matmul(a, b, accuracy="correct"),
        "matmul with a fixed scheme": lambda: hg.matmul(a, b, scheme=FIXED),
        "the same with return_report=True": lambda: hg.matmul(
            a, b, scheme=FIXED, return_report=True
        ),
        'accuracy="correct" with a report': lambda: hg.matmul(
            a, b, accuracy="correct", return_report=True
        ),
        "accuracy=Relative(1e-12) with a report": lambda: hg.matmul(
            a, b, accuracy=relative, return_report=True
        ),
        'result="pair"': lambda: hg.matmul(a, b, result="pair"),
        "gemm, C - A B": lambda: hg.gemm(a, b, c, alpha=-1, beta=1),
        'gemm, C - A B, accuracy="correct"': lambda: hg.gemm(
            a, b, c, alpha=-1, beta=1, accuracy="correct"
        ),
    }


def prepared_products() -> dict[str, Call]:
    """Products of a prepared operand; it is prepared before the first of them."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((64, 64))
    b = rng.standard_normal((64, 64))
    default = hg.prepare(a, "left")
    correct = hg.prepare(a, "left", accuracy="correct")
    fixed = hg.prepare(a, "left", scheme=FIXED)
    return {
        "prepared": lambda: hg.matmul(default, b),
        'prepared, accuracy="correct"': lambda: hg.matmul(correct, b),
        "prepared with a fixed scheme": lambda: hg.matmul(fixed, b),
    }


def products_of_tensors() -> dict[str, Call]:
    """Products of tensors on the CPU; none without PyTorch."""
    if find_spec("torch") is None:
        return {}
    import torch

    rng = np.random.default_rng(1)
    a = torch.from_numpy(rng.standard_normal((64, 64)))
    b = torch.from_numpy(rng.standard_normal((64, 64)))
    return {
        "tensors, matmul": lambda: hg.matmul(a, b),
        'tensors, matmul, accuracy="correct"': lambda: hg.matmul(
            a, b, accuracy="correct"
        ),
        "tensors, matmul with a fixed scheme": lambda: hg.matmul(a, b, scheme=FIXED),
    }


def product_of_jax() -> Call:
    """A product in a compiled program of JAX, as a function without parameters that
    waits for the result.
    """
    import jax

    from hifigemm import jax as hifigemm_jax

    jax.config.update("jax_enable_x64", True)
    program = jax.jit(lambda a, b: hifigemm_jax.matmul(a, b, scheme=FIXED))
    a = jax.numpy.full((64, 64), 0.1)
    b = jax.numpy.full((64, 64), 0.7)
    return lambda: program(a, b).block_until_ready()


KINDS: tuple[Callable[[], dict[str, Call]], ...] = (
    products,
    prepared_products,
    products_of_tensors,
)


def print_counts(name: str) -> None:
    """Print the counts of a kind of call, in a process that has not made it yet."""
    for kind in KINDS:
        # Operands of the other kinds are not made: preparing one loads modules.
        calls = kind()
        if name in calls:
            break
    call = calls[name]
    first_calls, first_files = calls_of(call)
    imported = [x for x in sys.modules if x == "hifigemm" or x.startswith("hifigemm.")]
    repeated_calls, repeated_files = repeated_calls_of(call)
    counts = {
        "call": name,
        "first_calls": first_calls,
        "first_files": first_files,
        "imported_files": len(imported),
        "repeated_calls": repeated_calls,
        "repeated_files": repeated_files,
    }
    print(json.dumps(counts))


def counts_of(name: str) -> dict[str, Any]:
    """Calls and files of the first call of this kind in a fresh process, and of the
    third one; files of the library that are imported by the end of the first.
    """
    path = os.pathsep.join([str(LIBRARY.parent), str(Path(__file__).parent)])
    script = "import sys, own_calls; own_calls.print_counts(sys.argv[1])"
    process = subprocess.run(
        [sys.executable, "-c", script, name],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    counts: dict[str, Any] = json.loads(process.stdout)
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", default="", help="kinds whose names hold this part")
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    names = [name for kind in KINDS for name in kind() if options.names in name]
    rows = []
    print("first: calls  files  imported   repeated: calls  files")
    for name in names:
        row = counts_of(name)
        rows.append(row)
        print(
            f"{row['first_calls']:>12}{row['first_files']:>7}"
            f"{row['imported_files']:>10}{row['repeated_calls']:>18}"
            f"{row['repeated_files']:>7}   {name}",
            flush=True,
        )
    if options.output is not None:
        torch = version("torch") if find_spec("torch") else None
        write_csv(options.output, rows, torch=torch)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
