"""Ctrl-C while the command `hifigemm` starts or ends: one line and exit code 130.

NumPy is imported before any code of the command line runs. KeyboardInterrupt in the
middle of an import ends in a traceback, or in nothing at all where it hits a callback
of the import system. There is nothing to clean up at that time, so the handler of the
signal ends the process itself. A process that is not the command keeps its handler.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""


def _end(*_: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, b"hifigemm: error: interrupted\n")
    os._exit(INTERRUPTED)


def _is_command() -> bool:
    """Whether the word before the arguments of this process is `hifigemm`, as a script
    or as what follows -m.

    While Python looks for the module behind -m, sys.argv[0] is "-m".
    """
    argv = getattr(sys, "argv", None) or [""]
    word = sys.orig_argv[-len(argv)] if len(argv) <= len(sys.orig_argv) else ""
    name = os.path.splitext(os.path.basename(word))[0]
    return argv[0] in ("-m", word) and name in ("hifigemm", "-mhifigemm")


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Within the context, Ctrl-C raises KeyboardInterrupt again, so that unfinished
    files are removed.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
