"""Median times of several callables, taken in turns, of results that were checked first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "WrongResultError", "time_interleaved"]


class WrongResultError(RuntimeError):
    """A callable that was to be timed gave a wrong result, so it gets no time."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, 20th and 80th percentile over so many calls."""

    median: float
    low: float
    high: float
    repeats: int

    def __str__(self) -> str:
        return f"{self.median:.3e} s ({self.low:.3e} .. {self.high:.3e}, {self.repeats} calls)"


def time_interleaved(
    callables: Mapping[str, Callable[[], Any]],
    *,
    check: Callable[[str, Any], bool],
    repeats: int = 20,
    warmup: int = 2,
    synchronize: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time the callables in turns, so that a drift of the machine (clock, heat, neighbours) hits all of them alike.

    Every callable is called and checked once before any of them is timed, then warmed up, then timed ``repeats`` times.
    Each round starts with another callable.

    Parameters
    ----------
    callables : mapping of name to callable without arguments
        What a call allocates, it pays for; close over ``out`` arrays to leave that out.
    check : callable (name, result) -> bool
        Whether the result is right. It may raise an error of its own.
    repeats, warmup : int
        Timed and untimed calls of each callable; repeats at least 1.
    synchronize : callable, optional
        Waits for a device: called before the clock is started and before it is stopped.
    clock : callable
        Time in seconds.

    Raises
    ------
    WrongResultError
        If check says False for any callable; nothing is timed then.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats = {repeats} and warmup = {warmup} must be at least 1 and 0")
    wait = synchronize or (lambda: None)
    for name, call in callables.items():
        result = call()
        wait()
        if not check(name, result):
            raise WrongResultError(f"{name!r} gave a wrong result and is not timed")
        del result
    names = list(callables)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, repeats):
        first = turn % max(len(names), 1)
        for name in names[first:] + names[:first]:
            wait()
            start = clock()
            callables[name]()
            wait()
            elapsed = clock() - start
            if turn >= 0:
                seconds[name].append(elapsed)
    return {name: _summary(times) for name, times in seconds.items()}


def _summary(seconds: list[float]) -> Timing:
    low, median, high = (float(x) for x in np.quantile(seconds, [0.2, 0.5, 0.8]))
    return Timing(median, low, high, len(seconds))
