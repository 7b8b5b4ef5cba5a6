"""How many threads a product of a CPU takes, and tasks side by side."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from threadpoolctl import threadpool_limits

from hifigemm.engines import threads


def upper(part, check):
    return part.upper()


@pytest.mark.parametrize("count", [1, 2])
def test_the_limit_is_that_of_the_blas(count):
    if threads._count_of_blas() is None:
        pytest.skip("this BLAS does not tell its threads")
    with threadpool_limits(count, user_api="blas"):
        assert threads._count_of_blas()() == count
        assert threads.limit() <= count


def test_where_the_blas_tells_nothing_the_environment_does(monkeypatch):
    monkeypatch.setattr(threads, "_count_of_blas", lambda: None)
    monkeypatch.delitem(threads.sys.modules, "torch", raising=False)
    for name in threads._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    every_core = threads.limit()
    assert every_core >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.limit() == every_core
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads.limit() == 7
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert threads.limit() == 3


def test_tasks_run_side_by_side_and_results_keep_their_order():
    barrier = threading.Barrier(3, timeout=60)

    def task(part, check):
        barrier.wait()  # passes only if all three run at a time
        return part, threading.get_ident()

    results = threads.side_by_side(task, "abc")
    assert [part for part, _ in results] == ["a", "b", "c"]
    assert results[0][1] == threading.get_ident()
    assert len({thread for _, thread in results}) == 3
    assert threads.side_by_side(upper, "x") == ["X"]


def test_no_thread_is_left_over():
    before = threading.active_count()
    threads.side_by_side(upper, "abc")
    assert threading.active_count() == before


def test_a_failure_of_any_task_is_raised():
    def task(part, check):
        if part == failing:
            raise MemoryError(part)

    for failing in "abc":
        with pytest.raises(MemoryError, match=failing):
            threads.side_by_side(task, "abc")


def test_tasks_run_one_by_one_where_no_thread_can_be_started(monkeypatch):
    def submit(self, task, part, check):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    assert threads.side_by_side(upper, "abc") == ["A", "B", "C"]


def test_other_tasks_end_when_that_of_this_thread_fails():
    started = threading.Barrier(3, timeout=60)
    ended = []

    def task(part, check):
        started.wait()
        if check is None:
            raise KeyboardInterrupt
        try:
            while True:
                check()
        except CancelledError:
            ended.append(part)
            raise

    with pytest.raises(KeyboardInterrupt):
        threads.side_by_side(task, "abc")
    assert sorted(ended) == ["b", "c"]


class _Stop(Exception):
    pass


def test_a_function_of_a_library_is_not_waited_for_when_a_handler_raises():
    has_started = threading.Event()
    may_end = threading.Event()

    def handle(number, frame):
        raise _Stop

    def signal_when_started():
        has_started.wait(60)
        signal.raise_signal(signal.SIGINT)

    def work():
        has_started.set()
        may_end.wait(60)

    before = signal.signal(signal.SIGINT, handle)
    thread = threading.Thread(target=signal_when_started)
    thread.start()
    try:
        with pytest.raises(_Stop):
            threads.interruptibly(work)
        assert not may_end.is_set()
    finally:
        may_end.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_a_function_that_nothing_ends_gives_its_result_or_error_in_its_context():
    variable = ContextVar("variable", default=0)
    variable.set(7)
    assert threads.interruptibly(lambda x: (x, variable.get()), 5) == (5, 7)
    with pytest.raises(ZeroDivisionError):
        threads.interruptibly(lambda: 1 / 0)
    # Handlers run in the main thread alone: others need no thread more.
    with ThreadPoolExecutor(1) as pool:
        ident = pool.submit(threads.interruptibly, threading.get_ident).result()
        assert ident == pool.submit(threading.get_ident).result()
