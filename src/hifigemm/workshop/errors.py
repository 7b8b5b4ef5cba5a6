"""What the command line reports in one line, and the exit codes that go with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

OK = 0
COMPUTATION_ERROR = 1
USAGE_ERROR = 2


class InputError(Exception):
    """Options that do not fit together, or a file that cannot be read or written. The
    message is one line.
    """


def complain(texts: Sequence[str]) -> int:
    """Say what a computation did not keep, a line each, and return the exit code."""
    for text in texts:
        print(f"hifigemm: error: {text}", file=sys.stderr)
    return COMPUTATION_ERROR if texts else OK
