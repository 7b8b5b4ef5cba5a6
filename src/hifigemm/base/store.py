"""The store of what calls leave for later ones: executables by the keys of their calls,
plans of meshes, what engines have written and compiled, and what follows from shapes.

Each engine has room for `_LIMIT` entries. Where that is full, the ones that were used
least recently go. An entry is looked up without a lock: a use is written down as a
number, and the numbers are compared where some have to go.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, TypeVar

_LIMIT = 4096


class _Entry:
    """A value that is kept, and the number of its last use, which is larger than those
    of earlier uses.
    """

    __slots__ = ("last_use", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.last_use = next(_uses)


_programs: dict[Hashable, _Entry] = {}
_by_engine: dict[Hashable, dict[Hashable, _Entry]] = {}
"""The same entries by engine, so that those of one engine never make room for those of
another one.
"""
_uses = count()
_changes = RLock()
"""Held where entries come and go. A destructor or a handler of a signal may multiply
meanwhile, in the same thread, so that the lock can be taken again there.
"""

T = TypeVar("T")


def keep(key: Hashable, value: object, engine: Hashable) -> None:
    """Keep a value for later calls, among those of an engine."""
    with _changes:
        entries = _by_engine.setdefault(engine, {})
        if len(entries) >= _LIMIT:
            _drop_least_recently_used(entries)
        entries[key] = _programs[key] = _Entry(value)


def _drop_least_recently_used(entries: dict[Hashable, _Entry]) -> None:
    """Make room for many entries at once, as sorting takes as long for many as for
    one.
    """
    by_last_use = sorted(entries.items(), key=lambda item: item[1].last_use)
    for key, _ in by_last_use[: max(_LIMIT // 8, 1)]:
        entries.pop(key, None)
        _programs.pop(key, None)


def kept(key: Hashable) -> Any:
    """The value of a key, whose last use is now; None without one, and for a key that
    has no hash: what makes it so raises an error later.
    """
    try:
        entry = _programs.get(key)
    except TypeError:
        return None
    if entry is None:
        return None
    entry.last_use = next(_uses)
    return entry.value


def once(key: Hashable, make: Callable[[], T], engine: Hashable) -> T:
    """The value of a key, made where it is missing."""
    value: T | None = kept(key)
    if value is None:
        value = make()
        keep(key, value, engine)
    return value


def forget() -> None:
    """Drop all that is kept, and the memory of constants with it."""
    with _changes:
        _programs.clear()
        _by_engine.clear()
