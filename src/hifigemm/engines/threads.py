"""Threads of a product on a CPU: how many, and how they share it.

The BLAS says how many: whoever gave it one thread, as schedulers of many processes do,
means the whole program. Threads live as long as one product, so that nothing is left
over for a process that forks, and starting them takes some 50 us each.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

_COUNTS = (
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
    "bli_thread_get_num_threads",
)
"""Functions of OpenBLAS, as NumPy's wheels and as distributions have it, MKL and BLIS."""

_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""What sets these counts from outside."""

Part = TypeVar("Part")
Result = TypeVar("Result")


def limit() -> int:
    """The threads that NumPy's BLAS may take, or PyTorch where it may take fewer."""
    count = _count_of_blas()
    threads = _count_of_environment() if count is None else count()
    torch = sys.modules.get("torch")
    if torch is not None:
        threads = min(threads, torch.get_num_threads())
    return max(threads, 1)


@lru_cache(maxsize=1)
def _count_of_blas() -> Callable[[], int] | None:
    """The function by which NumPy's BLAS tells its threads; None if there is none.

    NumPy's own extension is linked with its BLAS, so on Linux and macOS a name that is
    looked up there is found in the BLAS.
    """
    extension = sys.modules.get("numpy._core._multiarray_umath")
    try:
        library = ctypes.CDLL(getattr(extension, "__file__", ""))
    except (OSError, TypeError):
        return None
    for name in _COUNTS:
        if hasattr(library, name):
            count: Callable[[], int] = getattr(library, name)
            return count
    return None


def _count_of_environment() -> int:
    """The threads that an environment variable asks for, or else all cores."""
    for name in _VARIABLES:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def side_by_side(task: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """[task(part) for part in parts], each in a thread, the first one in this thread.

    A task that no thread can be had for, as while Python shuts down, runs in this one.
    """
    if len(parts) == 1:
        return [task(parts[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(parts) - 1) as threads:
        try:
            others = [threads.submit(task, part) for part in parts[1:]]
        except RuntimeError:
            return [task(part) for part in parts]
        first = task(parts[0])
        return [first, *(other.result() for other in others)]
