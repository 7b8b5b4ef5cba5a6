"""The command `run`: an unchanged program with its products computed to an accuracy."""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hifigemm as hg
from hifigemm.cli.blas import prepare_program
from hifigemm.cli.options import SIZE, add_command, parse_accuracy, parse_bytes, usage
from hifigemm.differentiable.arguments import scheme_from
from hifigemm.interop.drop_in import MANIFEST, keep_manifest
from hifigemm.schemes import Scheme
from hifigemm.workshop.errors import InputError


def add_run(commands: Any) -> None:
    """Add the command."""
    text = "run a PyTorch program with its matrix products replaced, or any program with another BLAS"
    more = " hifigemm.install describes the first, docs/blas.md the second."
    example = "hifigemm run --accuracy fp64 --summary train.py --epochs 3\n"
    example += "  hifigemm run --blas correct Rscript program.R"
    epilog = "Returns the exit code of the program. Warns on stderr if PyTorch multiplied nothing, as in a NumPy "
    epilog += "program. The environment variable HIFIGEMM=fp64 has the effect of --accuracy fp64."
    parser = add_command(
        commands,
        "run",
        _prepare,
        text,
        more=more,
        example=example,
        usage="hifigemm run [options] PROGRAM [ARGUMENTS]",
        epilog=epilog,
    )
    accuracy = '"correct", "Relative(r)", a number below 1, "fp64" or "fp32" (default: the usual accuracy of a result)'
    parser.add_argument("--accuracy", type=parse_accuracy, metavar="X", help=accuracy)
    scheme = "a name, or an expression such as \"Ozaki2(num_moduli=14, scaling='fast')\" (default: auto)"
    parser.add_argument(
        "--scheme", type=_scheme, default="auto", metavar="S", help=scheme
    )
    size = "leave products with m n k below N**3 to PyTorch"
    parser.add_argument("--min-size", type=SIZE, metavar="N", help=size)
    parser.add_argument(
        "--workspace",
        type=parse_bytes,
        metavar="BYTES",
        help="limit for memory in addition to operands and result",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="at the end, print how the products were computed, or with --blas the calls of the BLAS",
    )
    parser.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help=f"write how the products were computed to a JSON file; the same as {MANIFEST}=FILE",
    )
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="PROGRAM is a module, as for python -m",
    )
    blas = (
        "run any program on Linux with a correctly rounded BLAS; replaces nothing else"
    )
    parser.add_argument("--blas", choices=["correct"], help=blas)
    parser.add_argument(
        "--torch",
        action="store_true",
        help="with --blas, also replace PyTorch's BLAS on a CPU",
    )
    parser.add_argument("program", metavar="PROGRAM", help="file of the program")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENTS",
        help="arguments of the program",
    )


def _scheme(text: str) -> str | Scheme:
    with usage():
        return scheme_from(text)


def _prepare(args: argparse.Namespace) -> Callable[[], int]:
    """The program, with the products of PyTorch replaced; it runs when nothing of this
    command is left to be done.
    """
    if args.blas is not None:
        return _prepare_with_blas(args)
    if args.torch:
        raise InputError("--torch needs --blas")
    accuracy = args.accuracy
    if accuracy is None and os.environ.get("HIFIGEMM"):
        try:
            accuracy = parse_accuracy(os.environ["HIFIGEMM"])
        except argparse.ArgumentTypeError as error:
            raise InputError(f"HIFIGEMM={os.environ['HIFIGEMM']!r}: {error}") from error
    if not args.is_module and not Path(args.program).exists():
        raise InputError(f"{args.program}: no such file")
    if args.manifest is not None:
        if not args.manifest.absolute().parent.is_dir():
            raise InputError(f"{args.manifest}: no such directory")
        keep_manifest(args.manifest)
    options = {
        "min_size": args.min_size,
        "workspace": args.workspace,
        "summary": args.summary,
    }
    try:
        summary = hg.install(accuracy, args.scheme, **options)
    except ImportError as error:
        raise InputError(f"PyTorch cannot be imported: {error}") from error
    from hifigemm.interop.policy import process_policy

    return partial(
        _execute,
        args.program,
        args.arguments,
        args.is_module,
        partial(_remark, summary, process_policy()),
    )


def _prepare_with_blas(args: argparse.Namespace) -> Callable[[], int]:
    """The program, with the BLAS of the package in front of the one it uses."""
    options = ("accuracy", "min_size", "workspace", "manifest")
    named = [name for name in options if getattr(args, name)]
    if args.scheme != "auto":
        named.append("scheme")
    if named:
        option = named[0].replace("_", "-")
        raise InputError(
            f"--blas always rounds every entry correctly; leave out --{option}"
        )
    return prepare_program(
        args.program, args.arguments, args.is_module, args.torch, args.summary
    )


def _remark(summary: object, policy: Any, has_failed: bool) -> str:
    """What is to be said behind a program: the summary that was asked for, or that
    PyTorch multiplied nothing.

    `policy` is the one that the program began with. A program that failed may have had
    products ahead of it, so that nothing is said of those it has not made.
    """
    from hifigemm.interop.policy import process_policy

    if summary is not None:
        return str(summary)
    (sightings, *_) = policy.sightings
    is_served = sightings.has_product or policy.hands_on
    if has_failed or is_served or process_policy() is not policy:
        return ""
    return f"hifigemm: warning: {sightings}"


def _execute(
    program: str,
    arguments: list[str],
    is_module: bool,
    remark: Callable[[bool], str],
) -> int:
    """Run a program as Python would, and print the remark behind it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [program, *arguments]
    has_failed = True
    try:
        if is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif Path(program).is_dir():
            del sys.path[0]
            runpy.run_path(program, run_name="__main__")
        else:
            _execute_file(Path(program).absolute())
        has_failed = False
    except SystemExit:
        has_failed = False
        raise
    finally:
        text = remark(has_failed)
        # A program may have closed its streams; its exit code stays its own.
        if text and sys.stderr is not None:
            with suppress(OSError, ValueError):
                print(text, file=sys.stderr)
    return 0


def _execute_file(path: Path) -> None:
    """Run a file as the main module, which stays when the file has ended: threads and
    other processes ask for it.
    """
    sys.path[0] = str(path.resolve().parent)
    main: Any = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(path), __builtins__=builtins)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
