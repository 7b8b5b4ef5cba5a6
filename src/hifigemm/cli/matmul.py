"""`hifigemm matmul` and `hifigemm plan`: arrays in files in, an array in a file or an
explanation out.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import hifigemm as hg
from hifigemm.cli.files import check_output, read_array, write_array
from hifigemm.cli.options import (
    add_command,
    add_multiplication_options,
    add_operands,
    multiplication_options,
)
from hifigemm.operands import result_dtype, shapes_of
from hifigemm.workshop.errors import OK, InputError


def add_matmul(commands: Any) -> None:
    """Add the command `matmul`."""
    parser = add_command(
        commands, "matmul", _matmul, "multiply the matrices in two files"
    )
    add_operands(parser)
    output = "file for the result, replaced as a whole; FILE.npz:KEY replaces or adds one array and keeps the others, "
    output += "FILE.npz stands for FILE.npz:c"
    parser.add_argument("-o", "--output", required=True, metavar="C", help=output)
    add_multiplication_options(parser)
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no report on stderr",
    )


def add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    parser = add_command(commands, "plan", _plan, "explain what matmul would do")
    add_operands(parser)
    add_multiplication_options(parser)


def _matmul(args: argparse.Namespace) -> int:
    options = multiplication_options(args)
    a, b, shape = _operands(args)
    check_output(args.output, len(shape))
    try:
        result, report = hg.matmul(a, b, return_report=True, **options)
    except MemoryError as error:
        raise MemoryError(
            f"{error}; --workspace limits what is taken besides operands and result"
        ) from error
    write_array(args.output, result)
    if not args.quiet:
        print(
            f"{report}\nwrote {args.output}: shape {shape}, {result.dtype}",
            file=sys.stderr,
        )
    return OK


def _plan(args: argparse.Namespace) -> int:
    options = multiplication_options(args)
    a, b, _ = _operands(args)
    print(hg.make_plan(a, b, **options))
    return OK


def _operands(args: argparse.Namespace) -> tuple[Any, Any, tuple[int, ...]]:
    """Both operands and the shape of their product."""
    a, b = read_array(args.a), read_array(args.b)
    for name, x in ((args.a, a), (args.b, b)):
        if x.ndim == 0:
            raise InputError(f"{name}: holds a single number, not an array")
    try:
        result_dtype(a.dtype, b.dtype)
        return a, b, shapes_of(a.shape, b.shape).result
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{args.a} and {args.b} cannot be multiplied: {error}"
        ) from error
