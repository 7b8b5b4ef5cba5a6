"""The fixtures of the command line."""

from __future__ import annotations

from tests.cli.conftest import fails, pair, short

__all__ = ["fails", "pair", "short"]
