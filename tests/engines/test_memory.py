"""The free memory of the host: what the kernel says, within the control groups around
the process.
"""

from __future__ import annotations

import sys

import pytest

from hifigemm.engines.memory import free_memory

MIB = 2**20
MEMINFO = "MemTotal:       1000000 kB\nMemFree:          10000 kB\nMemAvailable:    819200 kB\n"
pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has a call for it"
)


def make(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))


def v2(path, limit, used, idle=0):
    group = f"sys/fs/cgroup{path}"
    stat = f"anon 5\ninactive_file {idle}\nactive_file 7\n"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": stat,
    }


def v1(path, limit, used, idle=0):
    group = f"sys/fs/cgroup/memory{path}"
    stat = f"inactive_file 3\ntotal_inactive_file {idle}\n"
    names = "limit_in_bytes", "usage_in_bytes", "stat"
    return {
        f"{group}/memory.{name}": text
        for name, text in zip(names, (limit, used, stat), strict=True)
    }


NO_LIMIT_V1 = 9223372036854771712


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("", {}, 800),
        ("0::/\n", {}, 800),
        ("0::/job\n", v2("/job", 500 * MIB, 100 * MIB), 400),
        ("0::/job\n", v2("/job", 500 * MIB, 300 * MIB, 50 * MIB), 250),
        ("0::/job\n", v2("/job", 5000 * MIB, 100 * MIB), 800),
        ("0::/job\n", v2("/job", "max", 100 * MIB), 800),
        (
            "0::/user/job\n",
            v2("/user/job", "max", 50 * MIB) | v2("/user", 300 * MIB, 200 * MIB),
            100,
        ),
        (
            "0::/user/job\n",
            v2("/user/job", 90 * MIB, 50 * MIB) | v2("/user", 300 * MIB, 200 * MIB),
            40,
        ),
        ("0::/\n", v2("", 256 * MIB, 200 * MIB), 56),
        ("0::/../job\n", v2("/job", 70 * MIB, 10 * MIB), 60),
        ("4:cpu,memory:/job\n0::/\n", v1("/job", 500 * MIB, 400 * MIB, 20 * MIB), 120),
        ("4:memory:/job\n", v1("/job", NO_LIMIT_V1, 400 * MIB), 800),
        # the container's own group is mounted as the root
        ("4:memory:/docker/1f\n", v1("", 64 * MIB, 60 * MIB), 4),
        ("5:cpuset:/job\n1:name=a:b:/job\n", v1("/job", 1 * MIB, 0), 800),
    ],
)
def test_free_memory_is_the_least_of_kernel_and_control_groups(
    tmp_path, groups, files, free
):
    make(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups} | files)
    assert free_memory(tmp_path) == free * MIB


def test_free_memory_without_a_kernel_that_tells_is_all_of_it(tmp_path):
    free = free_memory(tmp_path)
    assert free is not None
    assert free >= (free_memory() or 0) > 0


def test_free_memory_is_unknown_where_nobody_says(tmp_path, monkeypatch):
    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", unknown)
    assert free_memory(tmp_path) is None
