"""What a result was measured with, and CSV files that carry it along."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg


def environment(**extra: Any) -> dict[str, Any]:
    """What decides times and bits, ready for JSON: versions, BLAS, processor, date,
    commit.

    Keys: hifigemm, core (whether the compiled one is there), python, numpy, blas (name,
    version), threads (of each pool, if threadpoolctl is installed, else the variables
    that set them), system, cpu, cores (available to this process), date (UTC), commit
    (of the checkout that holds the working directory, None outside one; "+" marks
    uncommitted changes). Keyword arguments are further entries.
    """
    built_with: Any = np.show_config(mode="dicts")
    blas = built_with.get("Build Dependencies", {}).get("blas", {})
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return {
        "hifigemm": hg.__version__,
        "core": hg.info().versions["core"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": {key: str(blas.get(key, "unknown")) for key in ("name", "version")},
        "threads": _threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": cores,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        **extra,
    }


def write_csv(
    path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], **extra: Any
) -> None:
    """Write rows as CSV, and beside it ``<stem>.env.json`` with `environment`, which
    takes **extra. Make the folder.

    The columns are all keys in the order of their first appearance; a missing value is
    an empty cell. Floats are written so that reading them gives the same float.
    """
    path = Path(path)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        # NumPy's scalars as Python's own: a float32 keeps its value, not its short
        # spelling.
        writer.writerows(
            {k: v.item() if isinstance(v, np.generic) else v for k, v in row.items()}
            for row in rows
        )
    described = json.dumps(environment(**extra), indent=2, default=str)
    path.with_suffix(".env.json").write_text(described + "\n", encoding="utf-8")


def _threads() -> dict[str, Any]:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {name: os.environ[name] for name in names if name in os.environ}
    return {
        f"{pool['internal_api']} {pool['version']}": pool["num_threads"]
        for pool in threadpool_info()
    }


def _cpu_model() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of the checkout that holds the working directory."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        has_changes = bool(git("status", "--porcelain", "--untracked-files=no"))
        return f"{commit}+" if has_changes else commit
    except (OSError, subprocess.SubprocessError):
        return None
