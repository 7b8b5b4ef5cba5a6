"""The command `hifigemm`, also `python -m hifigemm`.

Exit codes: 0 fine; 1 a computation that failed or broke a promise; 2 wrong usage, or a
file that cannot be read or written; 130 interrupted. Whatever fails says so in one line
on the standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

import hifigemm as hg
from hifigemm.base.settings import is_strict
from hifigemm.base.startup import INTERRUPTED, raising_interrupts
from hifigemm.cli.blas import add_blas
from hifigemm.cli.matmul import add_matmul, add_plan
from hifigemm.cli.options import HelpFormatter, add_command
from hifigemm.cli.run import add_run
from hifigemm.cli.workshop import add_bench, add_demo, add_report
from hifigemm.workshop.errors import COMPUTATION_ERROR, OK, USAGE_ERROR, InputError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        with raising_interrupts(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say(
                f"hifigemm: warning: {message}"
            )
            code = _run(argv)
    except InputError as error:
        return _failed(str(error), USAGE_ERROR)
    except hg.HifigemmError as error:
        return _failed(str(error), COMPUTATION_ERROR)
    except MemoryError as error:
        return _failed(
            f"not enough memory: {str(error) or 'an allocation failed'}",
            COMPUTATION_ERROR,
        )
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _discard(sys.stdout)
        return COMPUTATION_ERROR
    except OSError as error:  # commands turn those of their files into an InputError
        _discard(sys.stdout)
        return _failed(
            f"{error.filename or 'standard output'}: cannot be written: {error.strerror}",
            USAGE_ERROR,
        )
    return code if isinstance(code, int) else code()


def _run(argv: Sequence[str] | None) -> int | Callable[[], int]:
    """The exit code of a command line all of whose output has been written, or a
    program to be run by itself.
    """
    _complete_streams()
    try:
        try:
            parser = _parser()
            args = parser.parse_args(argv)
        except SystemExit:  # --help and --version
            return OK
        for name, value in vars(args).items():
            # what argparse of Python 3.12 and older makes of --option=--
            if value == [] and name != "arguments":
                raise InputError(f"--{name.replace('_', '-')} needs a value")
        if "run" not in args:
            parser.print_help()
            return OK
        _check_environment()
        code: int | Callable[[], int] = args.run(args)
        return code
    finally:
        sys.stdout.flush()


class _Parser(argparse.ArgumentParser):
    """Wrong usage is an InputError, as every other mistake is, and a full disk is not
    ignored.
    """

    def error(self, message: str) -> NoReturn:
        """Raise the complaint of argparse."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """What argparse prints, errors included."""
        print(message, end="", file=file)


def _parser() -> argparse.ArgumentParser:
    text = "Matrix products to an accuracy that you choose.\n\n"
    text += "  hifigemm matmul A.npy B.npy -o C.npy --accuracy correct"
    epilog = "`hifigemm COMMAND --help` lists the options of a command.\n\n"
    epilog += "exit codes: 0 success; 1 the computation failed; 2 wrong usage, or a file that cannot be read or "
    epilog += "written; 130 interrupted"
    parser = _Parser(
        prog="hifigemm",
        description=text,
        epilog=epilog,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"hifigemm {hg.__version__}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    text = "list engines, devices and versions"
    info = add_command(commands, "info", _info, text, example="hifigemm info --check")
    check = "test the functions of NumPy, the BLAS and the GPU that exactness relies on, and list the faulty ones; "
    check += "the exit code is 1 if hifigemm uses one of them"
    info.add_argument("--check", action="store_true", help=check)
    for add in (
        add_demo,
        add_matmul,
        add_plan,
        add_bench,
        add_report,
        add_run,
        add_blas,
    ):
        add(commands)
    return parser


def _info(args: argparse.Namespace) -> int:
    print(hg.info())
    if not args.check:
        return OK
    from hifigemm.testing.primitives import findings

    faults = []
    for finding in findings():
        print(finding, flush=True)
        if finding.fault:
            faults.append(finding)
    used = [finding.name for finding in faults if finding.used]
    unused = [finding.name for finding in faults if not finding.used]
    if unused:
        print(
            f"hifigemm never calls these functions in this way, so its results are right: {', '.join(unused)}. "
            "Your own code may: see docs/decisions/thread-modes.md"
        )
    if used:
        print(
            f"hifigemm uses these functions, so its results may be wrong here: {', '.join(used)}"
        )
    return COMPUTATION_ERROR if used else OK


def _check_environment() -> None:
    """Raise InputError where a variable of the environment asks for what does not
    exist.
    """
    try:
        is_strict()
    except hg.PlanError as error:
        raise InputError(str(error)) from error


def _complete_streams() -> None:
    """Replace streams that the caller has closed; let characters that stdout cannot
    encode be printed as escapes.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(
                sys,
                name,
                os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False),
            )
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Forget what could not be printed; without this the interpreter complains once
    more when it flushes the stream.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(message: str, code: int) -> int:
    _say(f"hifigemm: error: {message}")
    return code


def _say(line: str) -> None:
    """Print one line on the standard error; where that cannot be written, the exit code
    has to do.
    """
    try:
        print(" ".join(line.split()), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
