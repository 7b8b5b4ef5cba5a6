"""The progress of a command on the standard error."""

from __future__ import annotations

import sys

BAR = 24
LABEL = 44
"""Characters of the bar and of the words behind it, which fit into a line of 80."""


class Steps:
    """The steps of a command on stderr: a bar on a terminal, without other packages; a
    line for each step elsewhere.
    """

    def __init__(self, total: float) -> None:
        self._total = total
        self._done = 0.0

    def start(self, what: str) -> None:
        """Say which step begins."""
        if not sys.stderr.isatty():
            print(f"{what} ...", file=sys.stderr, flush=True)
            return
        share = min(self._done / self._total, 1.0)
        bar = "#" * int(BAR * share)
        print(
            f"\r[{bar:<{BAR}}] {share:4.0%}  {what:<{LABEL}.{LABEL}}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def advance(self, weight: float) -> None:
        """Count a step that is done."""
        self._done += weight

    def close(self) -> None:
        """Remove the bar."""
        if sys.stderr.isatty():
            print(f"\r{'':<{BAR + LABEL + 9}}\r", end="", file=sys.stderr, flush=True)
