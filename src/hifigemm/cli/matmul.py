"""`hifigemm matmul` and `hifigemm plan`: arrays in files in, an array in a file or an
explanation out.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg
from hifigemm.cli.files import as_floats, check_output, read_array, write_array
from hifigemm.cli.options import (
    DTYPES,
    add_command,
    add_multiplication_options,
    add_operands,
    multiplication_options,
    parse_shape,
)
from hifigemm.operands.operands import shapes_of
from hifigemm.workshop.errors import OK, InputError


def add_matmul(commands: Any) -> None:
    """Add the command `matmul`."""
    parser = add_command(
        commands,
        "matmul",
        _matmul,
        "multiply the matrices in two files",
        example="hifigemm matmul A.npy B.npy -o C.npy --accuracy correct",
        usage="hifigemm matmul A B [-o C] [--accuracy X] [options]",
    )
    add_operands(parser)
    output = "file for the result, replaced if it exists; FILE.npz:KEY replaces or adds one array, FILE.npz means "
    output += "FILE.npz:c (default: print the result)"
    parser.add_argument("-o", "--output", metavar="C", help=output)
    add_multiplication_options(parser)
    result = "for two files of integers or bools, whose product is exact or an error: int64, array (their promoted "
    result += "dtype) or object (integers of any size, printed or in a .mtx file); default: int64, or uint64 if both "
    result += "promote to it"
    parser.add_argument("--result", choices=("int64", "array", "object"), help=result)
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no report on stderr",
    )


def add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    parser = add_command(
        commands,
        "plan",
        _plan,
        "explain what matmul would do",
        example="hifigemm plan --shape 1000,1000,1000 --accuracy correct",
        usage="hifigemm plan (A B | --shape M,N,K) [--accuracy X] [options]",
    )
    add_operands(parser, optional=True)
    parser.add_argument(
        "--shape",
        type=parse_shape,
        metavar="M,N,K",
        help="instead of files: random matrices, m x k times k x n",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="with --shape (default: float64)"
    )
    add_multiplication_options(parser)


def _matmul(args: argparse.Namespace) -> int:
    options = multiplication_options(args)
    a, b, shape = _operands(args)
    if _are_integers(a, b):
        options |= _exactly(a, b, args)
    elif args.result is not None:
        options["result"] = args.result
    if args.output is not None:
        holds_objects = args.result == "object"
        check_output(args.output, len(shape), holds_objects=holds_objects)
    try:
        result, report = hg.matmul(a, b, return_report=True, **options)
    except MemoryError as error:
        raise MemoryError(
            f"{error}; --workspace limits the memory beyond operands and result"
        ) from error
    if args.output is None:
        print(result)
        done = ""
    else:
        write_array(args.output, result)
        done = f"\nwrote {args.output}: shape {shape}, {result.dtype}"
    if not args.quiet:
        print(f"{report}{done}", file=sys.stderr)
    return OK


def _exactly(
    a: NDArray[Any], b: NDArray[Any], args: argparse.Namespace
) -> dict[str, Any]:
    """The options with which a product of integers is exact or an error."""
    result = args.result
    if result is None:
        is_unsigned = np.result_type(a.dtype, b.dtype) == np.uint64
        result = "array" if is_unsigned else "int64"
    accuracy = "correct" if args.accuracy is None else args.accuracy
    return {"result": result, "accuracy": accuracy}


def _plan(args: argparse.Namespace) -> int:
    options = multiplication_options(args)
    has_files = args.a is not None
    if has_files == (args.shape is not None) or has_files != (args.b is not None):
        raise InputError(
            "expected two files, or --shape M,N,K; see hifigemm plan --help"
        )
    if args.dtype is not None and has_files:
        raise InputError("--dtype goes with --shape; files have their own dtypes")
    if has_files:
        a, b, _ = _operands(args)
        if _are_integers(a, b):
            raise InputError(
                f"{args.a} and {args.b} hold {a.dtype} and {b.dtype}: products of integers are exact and have no plan; "
                "the report of hifigemm matmul says how they were computed"
            )
    else:
        a, b = _random_operands(args.shape, args.dtype or "float64")
    print(hg.make_plan(a, b, **options))
    return OK


def _random_operands(
    shape: tuple[int, int, int], dtype: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Operands of that shape whose rows and columns are views of one random vector, so
    that those of any size take little memory.
    """
    m, n, k = shape
    vector = np.random.default_rng(0).standard_normal(k).astype(dtype)
    return np.broadcast_to(vector, (m, k)), np.broadcast_to(vector[:, None], (k, n))


def _operands(args: argparse.Namespace) -> tuple[Any, Any, tuple[int, ...]]:
    """Both operands and the shape of their product.

    Integers beside other numbers become float64.
    """
    a, b = read_array(args.a), read_array(args.b)
    for name, x in ((args.a, a), (args.b, b)):
        if x.ndim == 0:
            raise InputError(f"{name}: holds a single number, not an array")
    if not _are_integers(a, b):
        a = as_floats(a, args.a) if a.dtype.kind in "biu" else a
        b = as_floats(b, args.b) if b.dtype.kind in "biu" else b
    try:
        return a, b, shapes_of(a.shape, b.shape).result
    except ValueError as error:
        raise InputError(
            f"{args.a} and {args.b} cannot be multiplied: {error}"
        ) from error


def _are_integers(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """True if both operands hold integers or bools."""
    return a.dtype.kind in "biu" and b.dtype.kind in "biu"
