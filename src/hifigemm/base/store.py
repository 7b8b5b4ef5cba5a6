"""The store of the cache: programs of products, and what engines keep for calls with
other arguments.

Each engine has room for `_LIMIT` programs. Where that is full, the ones that were used
least recently go. A program is looked up without a lock: a use is written down as a
number, and the numbers are compared where some have to go.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, TypeVar

_LIMIT = 4096


class _Entry:
    """A program, and the number of its last use, which is larger than those of earlier
    uses.
    """

    __slots__ = ("last_use", "program")

    def __init__(self, program: object) -> None:
        self.program = program
        self.last_use = next(_uses)


_programs: dict[Hashable, _Entry] = {}
_by_engine: dict[Hashable, dict[Hashable, _Entry]] = {}
"""The same entries by engine, so that those of one engine never make room for those of
another one.
"""
_uses = count()
_changes = RLock()
"""Held where programs come and go. A destructor or a handler of a signal may multiply
meanwhile, in the same thread, so that the lock can be taken again there.
"""

T = TypeVar("T")


def keep(key: Hashable, program: object, engine: Hashable) -> None:
    """Keep a program for later calls, among the programs of an engine."""
    with _changes:
        entries = _by_engine.setdefault(engine, {})
        if len(entries) >= _LIMIT:
            _drop_least_recently_used(entries)
        entries[key] = _programs[key] = _Entry(program)


def _drop_least_recently_used(entries: dict[Hashable, _Entry]) -> None:
    """Make room for many programs at once, as sorting takes as long for many as for
    one.
    """
    by_last_use = sorted(entries.items(), key=lambda item: item[1].last_use)
    for key, _ in by_last_use[: max(_LIMIT // 8, 1)]:
        entries.pop(key, None)
        _programs.pop(key, None)


def kept(key: Hashable) -> Any:
    """The program of a key, whose last use is now; None without one, and for a key that
    has no hash: what makes it so raises an error later.
    """
    try:
        entry = _programs.get(key)
    except TypeError:
        return None
    if entry is None:
        return None
    entry.last_use = next(_uses)
    return entry.program


def once(key: Hashable, make: Callable[[], T], engine: Hashable) -> T:
    """The program of a key, made where it is missing."""
    program: T | None = kept(key)
    if program is None:
        program = make()
        keep(key, program, engine)
    return program


def forget() -> None:
    """Drop all programs, and the memory of their constants."""
    with _changes:
        _programs.clear()
        _by_engine.clear()
