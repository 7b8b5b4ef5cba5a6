"""Measurements that outlive a process: JSON files in the user's cache directory."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["folder", "load", "store"]


def folder() -> Path:
    """hifigemm's folder in the user's cache directory; it may not exist yet."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hifigemm"


def load(name: str) -> dict[str, Any]:
    """What a file of the folder holds; empty where it is missing or damaged."""
    try:
        found = json.loads((folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def store(name: str, values: dict[str, Any]) -> None:
    """Add values to a file of the folder, in one step, so that a reader never sees half of it.

    Raises
    ------
    OSError
        A folder that cannot be written.
    """
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(load(name) | values, file, indent=1, sort_keys=True)
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
