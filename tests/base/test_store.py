"""The store of the cache: what comes, what goes first, and threads side by side."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hifigemm.base import store


@pytest.fixture(autouse=True)
def nothing_kept():
    store.forget()
    yield
    store.forget()


def test_programs_are_made_once_until_they_are_forgotten():
    made = []

    def make():
        made.append(1)
        return len(made)

    assert [store.once("key", make, "numpy") for _ in range(3)] == [1, 1, 1]
    assert (store.kept("key"), store.kept("another")) == (1, None)
    store.forget()
    assert store.kept("key") is None
    assert store.once("key", make, "numpy") == 2


def names_kept():
    return {name for name in store._programs if isinstance(name, str)}


def test_what_is_kept_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 20)
    for number in range(100):
        store.keep(number, number, "numpy")
        assert store.kept(number) == number
        assert len(store._programs) <= 20
    # No more go than an eighth at a time.
    assert len(store._programs) > 20 - 20 // 8


def test_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 3)
    for name in "abcdef":
        store.keep(name, name, "numpy")
    assert names_kept() == set("def")


@pytest.mark.parametrize(
    "use",
    [
        lambda name: store.kept(name),
        lambda name: store.once(name, lambda: pytest.fail("made again"), "numpy"),
    ],
    ids=["kept", "once"],
)
def test_a_hit_is_a_use(monkeypatch, use):
    monkeypatch.setattr(store, "_LIMIT", 3)
    program = object()
    for name in "abc":
        store.keep(name, program, "numpy")
    assert use("a") is not None
    store.keep("d", program, "numpy")
    assert names_kept() == set("acd")
    assert use("c") is not None
    assert use("a") is not None
    store.keep("e", program, "numpy")
    assert names_kept() == set("ace")


def test_looking_for_a_program_that_is_not_there_is_no_use(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 2)
    for name in "ab":
        store.keep(name, name, "numpy")
    assert store.kept("c") is None
    assert names_kept() == set("ab")


def test_programs_of_other_engines_stay(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 3)
    for name in "abc":
        store.keep(name, name, "numpy")
    for number in range(10):
        store.keep(str(number), number, "simulated-h100")
    assert names_kept() == set("abc") | set("789")
    store.keep("d", "d", "numpy")
    assert names_kept() == set("bcd") | set("789")


def test_a_program_that_is_kept_again_replaces_the_other(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 3)
    for program in range(3):
        store.keep("a", program, "numpy")
    store.keep("b", "b", "numpy")
    assert (store.kept("a"), store.kept("b")) == (2, "b")


def test_threads_keep_use_and_forget_side_by_side(monkeypatch):
    """No program is that of another key, and what is looked up and what is bounded stay
    the same entries.
    """
    monkeypatch.setattr(store, "_LIMIT", 8)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, 200, 5000).tolist():
            assert store.once(
                number, lambda number=number: str(number), number % 2
            ) == str(number)
        if seed == 0:
            store.forget()

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)
    bounded = list(store._by_engine.values())
    assert all(len(entries) <= 8 for entries in bounded)
    together = {key: entry for entries in bounded for key, entry in entries.items()}
    assert together == store._programs


def test_a_destructor_that_multiplies_while_a_program_goes_finds_the_cache_whole(
    monkeypatch,
):
    """It runs in the thread that holds the lock, in the middle of the change."""
    monkeypatch.setattr(store, "_LIMIT", 1)

    class Program:
        def __del__(self):
            store.keep("late", "late", "numpy")

    store.keep("a", Program(), "numpy")
    store.keep("b", "b", "numpy")
    assert store.kept("b") == "b"
    for engine in store._by_engine.values():
        assert engine.items() <= store._programs.items()
