"""The command `hifigemm`, also `python -m hifigemm`.

Exit codes: 0 fine; 1 a computation that failed or broke a promise; 2 wrong usage, or a file that cannot be read or
written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import hifigemm as hg
from hifigemm.cli.accuracy import add_accuracy
from hifigemm.cli.bench import add_bench
from hifigemm.cli.demo import add_demo
from hifigemm.cli.errors import COMPUTATION_ERROR, INTERRUPTED, OK, USAGE_ERROR, InputError
from hifigemm.cli.matmul import add_matmul, add_plan
from hifigemm.cli.plot import add_plot

__all__ = ["main"]

_EPILOG = "exit codes: 0 fine; 1 the computation failed; 2 wrong usage, or a file that cannot be read or written"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _failed(str(error), USAGE_ERROR)
    except hg.HifigemmError as error:
        return _failed(str(error), COMPUTATION_ERROR)
    except MemoryError as error:
        return _failed(f"not enough memory, try --workspace: {error}", COMPUTATION_ERROR)
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe has gone; without this the interpreter complains once more when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMPUTATION_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hifigemm",
        description="Matrix products of high fidelity computed on low-precision matrix engines.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hifigemm {hg.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_info(commands)
    for add in (add_demo, add_matmul, add_plan, add_accuracy, add_bench, add_plot):
        add(commands)
    return parser


def _add_info(commands: Any) -> None:
    text = "list engines, devices and versions"
    parser = commands.add_parser("info", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(run=_info)


def _info(args: argparse.Namespace) -> int:
    print(hg.info())
    return OK


def _failed(message: str, code: int) -> int:
    print(f"hifigemm: error: {' '.join(message.split())}", file=sys.stderr)
    return code
