"""Threads of a product on a CPU: how many, and how they share it.

The BLAS says how many: a user who gave it one thread, as schedulers of many processes do,
means the whole program. Threads live as long as one product, so that nothing is left
over for a process that forks, and starting them takes some 50 us each. Only after
Ctrl-C a function of another library may go on for a while: see `interruptibly`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
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

_PERIOD = 0.1
"""Seconds after which a thread that waits lets handlers of signals run: on Windows a
lock that is waited for keeps them from it.
"""

Part = TypeVar("Part")
Result = TypeVar("Result")
Check = Callable[[], None]
"""Raises an error where the result of a task is wanted no more."""


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


def side_by_side(
    task: Callable[[Part, Check | None], Result], parts: Sequence[Part]
) -> list[Result]:
    """[task(part, check) for part in parts], each in a thread, the first one in this
    thread.

    Long tasks call `check` now and then. It raises an error once the task of this
    thread has failed, as Ctrl-C lets it, so that other threads end soon: they are
    waited for. Tasks in this thread have None for it. A task that no thread can be had
    for, as while Python shuts down, is one of them.
    """
    if len(parts) == 1:
        return [task(parts[0], None)]
    from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

    has_failed = False

    def check() -> None:
        if has_failed:
            raise CancelledError

    with ThreadPoolExecutor(len(parts) - 1) as threads:
        try:
            try:
                others = [threads.submit(task, part, check) for part in parts[1:]]
            except RuntimeError:
                return [task(part, None) for part in parts]
            first = task(parts[0], None)
            while wait(others, _PERIOD).not_done:
                pass
            return [first, *(other.result() for other in others)]
        except BaseException:
            has_failed = True
            raise


def interruptibly(function: Callable[..., Result], *arguments: object) -> Result:
    """function(*arguments), for which Ctrl-C does not wait.

    A library that looks at no signals works in a thread of its own, in the context of
    this one. Where a handler of a signal raises an error meanwhile, it is raised here,
    and the library ends its work, whose result is dropped, in the background.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    from concurrent.futures import ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(1)
    try:
        result = pool.submit(copy_context().run, function, *arguments)
    except RuntimeError:
        return function(*arguments)
    finally:
        pool.shutdown(wait=False)
    while wait([result], _PERIOD).not_done:
        pass
    return result.result()
