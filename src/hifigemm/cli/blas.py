"""The command `blas`, and programs that `run --blas correct` starts.

On Linux the package carries a BLAS for any program, in two libraries: one with all names,
and one with those that NumPy's and SciPy's wheels bind. The dynamic linker puts a library
that LD_PRELOAD names in front of all others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hifigemm as hg
from hifigemm.cli.blas_summary import run_with_summary
from hifigemm.cli.options import add_command
from hifigemm.workshop.errors import OK, InputError


def add_blas(commands: Any) -> None:
    """Add the command."""
    text = "print the path of a correctly rounded BLAS, for programs of any language"
    more = " docs/blas.md describes it; `hifigemm run --blas correct PROGRAM` sets it for one program."
    example = 'LD_PRELOAD="$(hifigemm blas)" Rscript program.R'
    add_command(commands, "blas", _print_path, text, more=more, example=example)


def _print_path(args: argparse.Namespace) -> int:
    print(library())
    return OK


def library(is_for_wheels: bool = False) -> Path:
    """The library of the package; InputError where there is none."""
    if sys.platform != "linux":
        raise InputError(f"the BLAS is a library for Linux, and this is {sys.platform}")
    name = "libhifigemm_blas_wheels.so" if is_for_wheels else "libhifigemm_blas.so"
    path = Path(hg.__file__).with_name(name)
    if not path.exists():
        raise InputError(
            f"{path}: not there, as hifigemm was installed without a C compiler"
        )
    return path


def prepare_program(
    program: str,
    arguments: list[str],
    is_module: bool,
    has_plain_names: bool,
    wants_summary: bool,
) -> Callable[[], int]:
    """A program with this BLAS in front of the one it uses; it replaces this process
    unless a summary remains to be printed.
    """
    library()
    command = _command(program, arguments, is_module)
    path = library(is_for_wheels=_is_python(command[0]) and not has_plain_names)
    if any(separator in str(path) for separator in ": "):
        raise InputError(
            f"{path}: LD_PRELOAD takes no path with a space or a colon; install "
            "hifigemm elsewhere"
        )
    libraries = [str(path), *os.environ.get("LD_PRELOAD", "").split()]
    environment = os.environ | {"LD_PRELOAD": ":".join(libraries)}
    if wants_summary:
        return partial(run_with_summary, command, environment)
    return partial(os.execve, command[0], command, environment)


def _command(program: str, arguments: list[str], is_module: bool) -> list[str]:
    """The command to execute: Python files are run by this interpreter."""
    if is_module:
        return [sys.executable, "-m", program, *arguments]
    if program.endswith(".py"):
        if not Path(program).exists():
            raise InputError(f"{program}: no such file")
        return [sys.executable, program, *arguments]
    executable = shutil.which(program)
    if executable is None:
        raise InputError(f"{program}: no such program")
    return [executable, *arguments]


def _is_python(executable: str) -> bool:
    """True for a Python interpreter, and for a script that names one."""
    if Path(executable).name.startswith("python"):
        return True
    with open(executable, "rb") as file:
        first_line = file.readline(256)
    return first_line.startswith(b"#!") and b"python" in first_line
