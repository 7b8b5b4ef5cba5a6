"""What the command line reports in one line, and the exit codes that go with it."""

from __future__ import annotations

__all__ = ["COMPUTATION_ERROR", "OK", "USAGE_ERROR", "InputError"]

OK = 0
COMPUTATION_ERROR = 1
USAGE_ERROR = 2


class InputError(Exception):
    """Options that do not fit together, or a file that cannot be read or written. The message is one line."""
