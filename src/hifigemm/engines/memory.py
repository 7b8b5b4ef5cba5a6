"""How much memory of the host this process may still take, as far as the operating
system says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}
"""Of control groups, version 2 and 1: where they are, their limit, what counts against
it, and the line of memory.stat with the part of that which is given back for the
asking.
"""


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that are free, None where nobody says.

    On Linux what the kernel can give without swapping, and no more than the limits of
    the control groups leave that contain this process; on Windows the free part of the
    physical memory, elsewhere all of it.
    """
    if sys.platform == "win32":
        # a MEMORYSTATUSEX: its size, all of the memory, what is free of it, more
        status = (ctypes.c_uint64 * 8)(64)
        return (
            status[2] if ctypes.windll.kernel32.GlobalMemoryStatusEx(status) else None
        )
    available = [
        line.split()[1]
        for line in _lines(root / "proc/meminfo")
        if line.startswith("MemAvailable:")
    ]
    found = [*(1024 * int(number) for number in available), *_left_in_groups(root)]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except ValueError:
        return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """What is left in each control group that has a limit, from the group of this
    process outwards.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller in {"", "memory"}.intersection(controllers.split(",")):
            place, limit, used, idle = _GROUPS[controller]
            names = [name for name in path.split("/") if name not in ("", "..")]
            for depth in range(len(names), -1, -1):
                group = root.joinpath(place, *names[:depth])
                most, taken = _number(group / limit), _number(group / used)
                if most is not None and taken is not None:
                    stat = dict(line.split() for line in _lines(group / "memory.stat"))
                    yield most - taken + int(stat.get(idle, 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None without the file, or where it says "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None
