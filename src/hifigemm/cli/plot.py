"""`hifigemm plot`: the picture of a CSV file of an experiment or of the demo, told by
its columns.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hifigemm.cli.options import add_command
from hifigemm.workshop.atomic import check_writable, replacing
from hifigemm.workshop.errors import OK, InputError
from hifigemm.workshop.plots import (
    DRAWINGS,
    SUFFIXES,
    draw,
    find_drawing,
    read_rows,
    save,
)


def add_plot(commands: Any) -> None:
    """Add the command `plot`."""
    text = "draw the picture that belongs to a CSV file of results"
    experiments = ", ".join(name for name in DRAWINGS if name != "demo")
    known = (
        f". Known are the files of the demo and of these experiments: {experiments}."
    )
    parser = add_command(commands, "plot", _plot, text, known)
    parser.add_argument("data", type=Path, metavar="CSV")
    where = f"picture ({', '.join(SUFFIXES)}; default: beside the CSV file)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)


def _plot(args: argparse.Namespace) -> int:
    data = args.data
    if find_spec("matplotlib") is None:
        raise InputError("pictures need matplotlib: pip install matplotlib")
    try:
        rows = read_rows(data)
    except OSError as error:
        raise InputError(
            f"{data}: cannot be read: {error.strerror or error}"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{data}: not a CSV file: {error}") from error
    if any(None in row or None in row.values() for row in rows):
        raise InputError(
            f"{data}: a line has more or fewer cells than the first, which names the columns"
        )
    output = args.output or data.with_suffix(".png")
    if output.suffix.lower() not in SUFFIXES:
        raise InputError(f"{output}: a picture ends in {', '.join(SUFFIXES)}")
    if output.exists() and output.samefile(data):
        raise InputError(f"{output}: is the CSV file itself")
    name = find_drawing(rows)
    if name is None:
        columns = ", ".join(map(str, rows[0])) if rows else "none, or no rows"
        raise InputError(f"{data}: no picture for these columns: {columns}")
    check_writable(output)
    try:
        with replacing(output) as file, warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # numbers that no axis holds
            save(draw(name, rows), file, output.suffix.lower())
    except KeyError as error:
        raise InputError(
            f"{data}: no column {error}, which the picture of {name} needs"
        ) from error
    except (ArithmeticError, TypeError, ValueError, RuntimeWarning) as error:
        raise InputError(
            f"{data}: a cell does not hold what its column says: {error}"
        ) from error
    print(output)
    return OK
