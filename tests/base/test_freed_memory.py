"""Repeated products on a CPU find the memory of their temporaries where the last one
left it.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
import hifigemm as hg

a = np.random.default_rng(1).standard_normal(({n}, {n}))
for _ in range(3):
    hg.matmul(a, a, accuracy="correct")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    hg.matmul(a, a, accuracy="correct")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the allocator is not that of glibc"
)
@pytest.mark.parametrize("n", [96, 128, 256])
def test_repeated_products_take_no_page_faults(n, monkeypatch):
    # A threshold of the user's own ends the learning, and two threads of a BLAS have
    # heaps of their own.
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(n=n)],
        capture_output=True,
        text=True,
        check=True,
    )
    # Ten products took 3,400 (n = 96) to 15,000 (n = 256) where all temporaries went
    # back to the system.
    assert int(done.stdout) < 300
