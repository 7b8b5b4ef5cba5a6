"""CSV files of results, with the environment that they were found in beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hifigemm.cli.atomic import check_writable
from hifigemm.cli.errors import InputError
from hifigemm.study.environment import write_csv

__all__ = ["check_results", "write_results"]


def check_results(path: Path) -> None:
    """Raise InputError where `write_results` is bound to fail."""
    check_writable(path)
    check_writable(path.with_suffix(".env.json"))


def write_results(path: Path, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """`write_csv`, which raises InputError."""
    try:
        write_csv(path, rows, **facts)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
