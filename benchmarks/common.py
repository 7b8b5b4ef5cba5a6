"""What the benchmarks share: sections that are checked and timed one after the other,
and rows written as they come.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hifigemm.workshop.environment import environment, write_csv
from hifigemm.workshop.measuring.arrays import (
    Arrays,
    CudaArrays,
    Workload,
    cuda_is_usable,
)
from hifigemm.workshop.measuring.cases import measure
from hifigemm.workshop.measuring.ceilings import peak_rates
from hifigemm.workshop.measuring.rows import Row, rows
from hifigemm.workshop.measuring.runs import Outcome
from hifigemm.workshop.measuring.timing import QUICK, Method

__all__ = [
    "BRIEF",
    "SIZES",
    "Section",
    "arrays_here",
    "default_path",
    "parse",
    "run_sections",
    "short_name",
    "sizes",
]

SIZES = {"cpu": (128, 256), "cuda": (1024, 2048, 4096, 8192, 16384)}

BRIEF = Method(bursts=3)
"""A script with five sizes and eight cases takes four minutes."""

SAMPLE = 32
"""Rows and columns that are compared with the exact product for float64, which takes
the host longest.
"""


@dataclass(frozen=True)
class Section:
    """One workload with the cases that are compared.

    Attributes
    ----------
    part : str
        Name of the question.
    load : Workload
    names : sequence of str
        In the notation of `hifigemm bench`; "peers" stands for those that are there.
    method : Method or None
        None checks the results and notes their errors, without times.
    modes : sequence of {"eager", "graph"}
        "graph" replays captured CUDA graphs, for products that take less time than
        their launch from Python.
    """

    part: str
    load: Workload
    names: Sequence[str]
    method: Method | None = BRIEF
    modes: Sequence[str] = ("eager",)


def parse(
    text: str,
    parts: Sequence[str],
    given: Sequence[str] | None,
    *,
    default_sizes: Mapping[str, Sequence[int]] | None = SIZES,
) -> argparse.Namespace:
    """The options of a script whose sections belong to some parts: sizes, parts,
    output, quick, with defaults; those of sizes by device, None for a script without.
    """
    kind = "cuda" if cuda_is_usable() else "cpu"
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if default_sizes is not None:
        parser.add_argument(
            "--sizes", type=sizes, default=default_sizes[kind], metavar="N,N,..."
        )
    parser.add_argument(
        "--parts",
        type=_words,
        default=tuple(parts),
        metavar="P,P,...",
        help=", ".join(parts),
    )
    parser.add_argument(
        "--output",
        "--csv",
        type=Path,
        metavar="FILE",
        help="(default: by device and day)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a first look, not a measurement"
    )
    options = parser.parse_args(given)
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    return options


def sizes(text: str) -> tuple[int, ...]:
    """Sizes as they are given on the command line."""
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes start at 1")
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def run_sections(
    name: str, sections: Sequence[Section], options: argparse.Namespace
) -> int:
    """Check and time the sections of the parts that are asked for; 1 where a result was
    wrong.

    Every row is printed and written when its section is done, so that an interrupted
    run leaves what it has.
    """
    arrays = arrays_here()
    facts, meter, started = arrays.describe(), arrays.meter(), time.perf_counter()
    peaks = peak_rates(facts["device"])
    own = {"device": facts["device"], "commit": environment()["commit"]}
    path = options.output or default_path(name, arrays)
    found: list[Row] = []
    wrong = False
    for section in sections:
        if section.part not in options.parts:
            continue
        method = QUICK if options.quick and section.method else section.method
        outcomes = measure(
            *(
                section.load,
                section.names,
                section.modes if arrays.device == "cuda" else ("eager",),
                arrays,
                method or BRIEF,
            ),
            meter=meter,
            timed=method is not None,
            sample=SAMPLE,
        )
        new = [
            {"part": section.part} | row
            for row in rows(section.load, outcomes, peaks, own)
        ]
        found += new
        wrong |= any(outcome.refused for outcome in outcomes)
        print(
            f"{section.part}: {section.load}  ({time.perf_counter() - started:.0f} s)"
        )
        for outcome, row in zip(outcomes, new, strict=True):
            print(_line(outcome, row), flush=True)
        write_csv(path, found, **facts, method=vars(method or BRIEF))
        del outcomes
        arrays.release()
    return int(wrong)


_CELLS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "burst_tflops": ("burst", "{:.3g}".format),
    "sustained_tflops": ("sustained", "{:.3g}".format),
    "ratio_to_native": ("x native", "{:.2f}".format),
    "error": ("error", "{:.1e}".format),
    "normwise_error": ("normwise", "{:.1e}".format),
    "joules": ("J", "{:.3g}".format),
    "gflops_per_watt": ("GFLOP/s/W", "{:.0f}".format),
}


def _line(outcome: Outcome, row: Row) -> str:
    """What a reader wants to see of a row."""
    known = {
        key: row[key] for key in _CELLS if row[key] != "" and not math.isnan(row[key])
    }
    cells = "  ".join(
        f"{_CELLS[key][0]} {_CELLS[key][1](value)}" for key, value in known.items()
    )
    rest = "" if outcome.status in ("timed", "checked") else f"  {outcome.status}"
    chosen = (
        f"  -> {outcome.case.scheme}" if outcome.case.name.startswith("auto") else ""
    )
    return f"  {outcome.case.name:<24} {row['mode']:<6} {cells}{chosen}{rest}"


def arrays_here() -> Arrays:
    """Those of a GPU where there is one."""
    return CudaArrays() if cuda_is_usable() else Arrays()


def default_path(name: str, arrays: Arrays) -> Path:
    """Where a benchmark writes to, by device and day."""
    return Path(
        f"results/{name}_{short_name(arrays)}_{datetime.now(timezone.utc):%Y-%m-%d}.csv"
    )


def short_name(arrays: Arrays) -> str:
    """Short name of the device: h200, cpu."""
    found = re.findall(r"\w+", str(arrays.describe()["device"]).lower())
    words = [word for word in found if word not in ("nvidia", "geforce", "tesla")]
    return words[0] if words else "cuda"
