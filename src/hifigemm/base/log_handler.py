"""The handler by which ``HIFIGEMM_LOG`` writes the log of decisions."""

from __future__ import annotations

import logging
import sys


class OwnHandler(logging.Handler):
    """Writes to the standard error what no handler of the user takes, so that no line
    is lost or appears twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        """True if no other handler takes the record."""
        log: logging.Logger | None = logging.getLogger(record.name)
        while log is not None:
            for handler in log.handlers:
                writes_nothing = isinstance(handler, logging.NullHandler)
                if handler is self or writes_nothing:
                    continue
                if record.levelno >= handler.level:
                    return False
            log = log.parent if log.propagate else None
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line to what is now the standard error."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


HANDLER = OwnHandler()
"""One for all threads: a logger takes the same handler only once."""
