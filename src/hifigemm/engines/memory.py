"""How much memory of the host this process may still take, as far as the operating
system says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}
"""Control groups of version 2 (whose controller has no name) and of version 1: their
folder, the files with their limit and with the bytes that count against it, and the
line of memory.stat with the part of those bytes that the kernel gives back when it has
to.
"""


def free_memory(root: str | os.PathLike[str] = "/") -> int | None:
    """Bytes that are free; None where the system does not tell.

    On Linux that is what the kernel can give without swapping, and no more than the
    control groups of this process still allow; on Windows the free part of the physical
    memory, elsewhere all of it.
    """
    if sys.platform == "win32":
        # A MEMORYSTATUSEX: its size, all of the memory, the free part of it, and more.
        status = (ctypes.c_uint64 * 8)(64)
        is_known = ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return status[2] if is_known else None
    limits = list(_left_in_groups(root))
    for line in _lines(os.path.join(root, "proc/meminfo")):
        if line.startswith("MemAvailable:"):
            kibibytes = int(line.split()[1])
            limits.append(1024 * kibibytes)
    if limits:
        return min(limits)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except ValueError:
        return None


def _left_in_groups(root: str | os.PathLike[str]) -> Iterator[int]:
    """Bytes that each control group with a limit still allows, from the group of this
    process outwards.
    """
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        # Such as "4:cpu,memory:/user/1", or "0::/user/1" in version 2.
        _, controllers, path = line.split(":", 2)
        names = [name for name in path.split("/") if name not in ("", "..")]
        for controller in {"", "memory"}.intersection(controllers.split(",")):
            folder, limit_file, usage_file, reclaimable_line = _GROUPS[controller]
            for depth in range(len(names), -1, -1):
                group = os.path.join(root, folder, *names[:depth])
                limit = _number(os.path.join(group, limit_file))
                usage = _number(os.path.join(group, usage_file))
                if limit is None or usage is None:
                    continue
                stat_lines = _lines(os.path.join(group, "memory.stat"))
                stat = dict(line.split() for line in stat_lines)
                yield limit - usage + int(stat.get(reclaimable_line, 0))


def _lines(path: str) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    """The number in a file; None without the file, or where it says "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None
