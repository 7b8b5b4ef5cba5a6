"""Memory that temporaries give back stays with the process, as far as glibc is
concerned.

A product on a CPU makes and drops dozens of temporaries. By default glibc returns each
one above 128 KiB to the system when it is freed, and the top of the heap whenever 128
KiB of it are free: the next product then takes one page fault for every 4 KiB, which is
half of the time of a correct product of 128 x 128. But glibc learns: once it has freed
a larger block, blocks up to that size stay in the heap, and twice as much may be free
at its top (mallopt(3), "dynamic mmap threshold"). So one block is taken and given back
at the start, which no page of memory is touched for.
"""

from __future__ import annotations

import numpy as np

KEPT_BLOCK = 2**24
"""Bytes of the largest block that stays with the process; twice as many stay free at
the top of its heap at most.

That is enough for the temporaries of n = 512. glibc learns nothing from blocks above 32
MiB.
"""


def keep_freed_memory() -> None:
    """Let glibc keep blocks of `KEPT_BLOCK` bytes and less; other allocators do as they
    always do.
    """
    np.empty(KEPT_BLOCK, np.uint8)
