"""What the programs of this folder share: their options, two timed runs, and the table
of both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch

import hifigemm as hg

Result = TypeVar("Result")
Rows = dict[str, dict[str, float]]
"""Seconds and errors by name, of "native" and "emulated"."""
LARGE = 2048
"""Products are emulated with ``--moduli`` from m n k = LARGE**3 on."""


def parser(
    doc: str | None, cpu_size: int, cuda_size: int, what: str
) -> argparse.ArgumentParser:
    """A parser of the options that all programs take; `options` fills in the defaults
    of the device.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--size",
        type=int,
        metavar="N",
        help=f"{what}; {cpu_size} on a CPU, {cuda_size} on a GPU",
    )
    made.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: %(default)s",
    )
    accuracy = 'of each product: "dtype", "fp64", "correct" or a number; "correct" on a CPU, "dtype" on a GPU'
    made.add_argument("--accuracy", help=accuracy)
    made.add_argument(
        "--moduli",
        type=int,
        metavar="N",
        help="large products modulo so many numbers, for FP64",
    )
    made.add_argument(
        "--summary",
        action="store_true",
        help="a third run that says what became of the products",
    )
    made.set_defaults(sizes=(cpu_size, cuda_size))
    return made


def options(
    made: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """The options of a call, with a device of PyTorch and `emulate`, which makes a
    scope of `hifigemm.emulate`.
    """
    found = made.parse_args(argv)
    found.device = torch.device(found.device)
    on_cpu = found.device.type == "cpu"
    found.size = found.size or found.sizes[0 if on_cpu else 1]
    if found.moduli:
        if found.accuracy:
            made.error("--moduli promises no --accuracy")
        found.asked = f"{found.moduli} moduli"
        found.emulate = partial(
            hg.emulate,
            scheme=hg.Ozaki2(num_moduli=found.moduli, scaling="fast"),
            min_size=LARGE,
        )
        return found
    asked = found.accuracy or ("correct" if on_cpu else "dtype")
    found.asked = f"accuracy {asked}"
    try:
        accuracy: Any = float(asked)
    except ValueError:
        accuracy = None if asked == "dtype" else asked
    found.emulate = partial(hg.emulate, accuracy)
    return found


def compare(
    found: argparse.Namespace,
    title: str,
    compute: Callable[[], Result],
    errors: Callable[[Result], dict[str, float]],
) -> Rows:
    """Run a computation natively and in a scope of `hifigemm.emulate`, print times and
    errors of both, return them.

    Each way runs once before it is timed: kernels are compiled and memory is taken
    then.
    """
    ways: dict[str, Callable[[], Any]] = {
        "native": nullcontext,
        "emulated": found.emulate,
    }
    rows: Rows = {}
    for way, scope in ways.items():
        with scope():
            compute()
            _synchronize(found.device)
            started = time.perf_counter()
            result = compute()
            _synchronize(found.device)
            seconds = time.perf_counter() - started
        rows[way] = {"seconds": seconds, **errors(result)}
        del result  # so that the next way has the memory of a GPU for itself
    _print_table(found, title, rows)
    if found.summary:
        with found.emulate(summary=True) as products:
            compute()
        print(products)
    return rows


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _print_table(found: argparse.Namespace, title: str, rows: Rows) -> None:
    names = list(rows["native"])
    print(f"{title}, {found.device}, {found.asked}")
    print(" | ".join(["way     ", *(name.rjust(9) for name in names)]))
    for way, row in rows.items():
        cells = [
            f"{row[name]:.3g}" if name == "seconds" else f"{row[name]:.1e}"
            for name in names
        ]
        print(
            " | ".join(
                [
                    way.ljust(8),
                    *(
                        c.rjust(max(9, len(n)))
                        for c, n in zip(cells, names, strict=True)
                    ),
                ]
            )
        )
    print(
        f"native / emulated: {rows['native']['seconds'] / rows['emulated']['seconds']:.2f}\n",
        flush=True,
    )
