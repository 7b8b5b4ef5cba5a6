"""How many threads a product of a CPU takes, and tasks side by side."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_limits

from hifigemm.engines import threads


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

    def task(part):
        barrier.wait()  # passes only if all three run at a time
        return part, threading.get_ident()

    results = threads.side_by_side(task, "abc")
    assert [part for part, _ in results] == ["a", "b", "c"]
    assert results[0][1] == threading.get_ident()
    assert len({thread for _, thread in results}) == 3
    assert threads.side_by_side(str.upper, "x") == ["X"]


def test_no_thread_is_left_over():
    before = threading.active_count()
    threads.side_by_side(str.upper, "abc")
    assert threading.active_count() == before


def test_a_failure_of_any_task_is_raised():
    def task(part):
        if part == failing:
            raise MemoryError(part)

    for failing in "abc":
        with pytest.raises(MemoryError, match=failing):
            threads.side_by_side(task, "abc")


def test_tasks_run_one_by_one_where_no_thread_can_be_started(monkeypatch):
    def submit(self, task, part):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    assert threads.side_by_side(str.upper, "abc") == ["A", "B", "C"]
