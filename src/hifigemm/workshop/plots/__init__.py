"""Pictures of the commands: functions that return a matplotlib figure. matplotlib is
loaded where a figure is made, not before.
"""

from __future__ import annotations

from typing import Any, BinaryIO

SUFFIXES = (".png", ".svg", ".pdf")


def save(figure: Any, file: BinaryIO, suffix: str = ".png") -> None:
    """Write a figure as one of `SUFFIXES`."""
    figure.savefig(file, format=suffix.lstrip("."))
