"""The fixtures of the command line."""

from __future__ import annotations

from tests.cli.conftest import short

__all__ = ["short"]
