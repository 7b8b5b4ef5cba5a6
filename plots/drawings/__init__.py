"""Pictures of the CSV files of the demo, of benchmarks and of experiments: functions
that return a matplotlib figure, in the style of the library's own.

A file is told by its columns, so that it may be renamed.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple

from hifigemm.workshop.plots.demo import demo_figure
from hifigemm.workshop.plots.style import Row

from .curves import (
    accumulation,
    forward_errors,
    last_bit,
    ozaki_modes,
    residuals,
    throughput,
)
from .grading import estimates, guarantees
from .machines import (
    modes,
    moduli,
    predicted,
    residuals_on_gpu,
    schemes,
    word_products,
)
from .spans import graded_lu, spans
from .systems import products_on_a_cpu, solvers
from .timelines import mesh_timeline
from .words import mantissa, underflow

__all__ = [
    "DRAWINGS",
    "Drawing",
    "draw",
    "find_drawing",
    "read_rows",
]


class Drawing(NamedTuple):
    """A drawing function, the columns that tell its files, and values that a column
    must have somewhere.
    """

    draw: Callable[[Sequence[Row]], Any]
    columns: str
    marks: tuple[str, str] | None = None


_CASES = (
    "study case n dtype family burst_tflops sustained_tflops roof_tflops sample_error"
)

DRAWINGS = {
    "gpu_modes": Drawing(
        modes,
        f"{_CASES} seconds_count seconds_total products_tflops num_slices",
        ("study", "modes"),
    ),
    "gpu_words": Drawing(
        word_products, f"{_CASES} joules gflops_per_watt", ("study", "words")
    ),
    "gpu_spans": Drawing(
        spans, "study n span case error milliseconds tflops", ("study", "spans")
    ),
    "gpu_schemes": Drawing(schemes, _CASES, ("study", "schemes")),
    "gpu_residuals": Drawing(residuals_on_gpu, "study inputs k method unit residual"),
    "gpu_forward_errors": Drawing(
        forward_errors, "study precision curve n norm_1 norm_2 norm_inf unit"
    ),
    "moduli": Drawing(moduli, "phi n way num_moduli error"),
    "forward_errors": Drawing(
        forward_errors, "precision curve n norm_1 norm_2 norm_inf"
    ),
    "mantissa": Drawing(mantissa, "format high low expected_length sampled_length"),
    "underflow": Drawing(underflow, "exponent rounding shift event formula sampled"),
    "accumulation": Drawing(
        accumulation, "inputs k method residual share_towards_zero"
    ),
    "last_bit": Drawing(
        last_bit, "inputs k method residual", ("method", "FP32, whole operands")
    ),
    "residuals": Drawing(residuals, "inputs k method residual"),
    "throughput": Drawing(
        throughput, "case mode m n k burst_tflops sustained_tflops roof_tflops"
    ),
    "guarantees": Drawing(guarantees, "family n accuracy method constant bound_over_u"),
    "estimates": Drawing(estimates, "family target needed estimate num_moduli"),
    "ozaki_modes": Drawing(ozaki_modes, "phi n way max_relative_error num_slices"),
    "weak_fp64": Drawing(predicted, "card source case n predicted_tflops"),
    "graded_lu": Drawing(graded_lu, "n span way backward_error"),
    "linalg_peers": Drawing(solvers, "n condition solver error radius encloses"),
    "cpu_peers": Drawing(products_on_a_cpu, "m k n way seconds_least correct_entries"),
    "mesh_timeline": Drawing(mesh_timeline, "gpu lane name start_us stop_us"),
    "demo": Drawing(
        demo_figure, "problem scheme error guaranteed relative_error share_correct"
    ),
}
"""By the name of the experiment; the first that fits a file draws it."""


def read_rows(path: str | PathLike[str]) -> list[dict[str, str]]:
    """The lines of a CSV file, everything as text."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def find_drawing(rows: Sequence[Row]) -> str | None:
    """Name of the drawing for these lines, None if there is none."""
    for name, drawing in DRAWINGS.items():
        if rows and set(drawing.columns.split()) <= rows[0].keys():
            key, value = drawing.marks or ("", "")
            if drawing.marks is None or any(row[key] == value for row in rows):
                return name
    return None


def draw(name: str, rows: Sequence[Row]) -> Any:
    """The figure of an experiment."""
    return DRAWINGS[name].draw(rows)
