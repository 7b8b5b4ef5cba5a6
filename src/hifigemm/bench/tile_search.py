"""The fastest of some tiles: all in bursts, then the quickest of them sustained.

At the limit of power a tile that moves fewer bytes may run at higher clocks, which no burst shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .gpu_timing import Clock, Method, time_bursts, time_variants

__all__ = ["ranking"]

T = TypeVar("T")

_FIRST = Method(pause=0.0, warm=1, calls=(1, 16), span=0.002, bursts=5)
_LAST = Method(pause=0.1, warm=1, bursts=1)
_NEAR = 1.06
"""Sustained runs of one card differ by a few percent, and so do bursts."""
_FINALISTS = 4


def ranking(runs: Sequence[tuple[T, Callable[[], object]]], clock: Clock) -> list[tuple[T, float]]:
    """The tiles of the shortest bursts with their seconds of a sustained call, best first.

    Parameters
    ----------
    runs : sequence of (tile, callable)
        The callable launches the product with the tile, of operands that are random and never zeros. The launch must
        cost the host less than the product takes, so short ones want a graph. The first tile is always ranked.
    clock : Clock

    Raises
    ------
    ValueError
        There are none.
    """
    if not runs:
        raise ValueError("no tiles to choose from")
    variants = {str(i): run for i, (_, run) in enumerate(runs)}
    bursts = {name: timing.median for name, timing in time_bursts(variants, clock, _FIRST).items()}
    nearest = sorted(bursts, key=lambda name: bursts[name])[:_FINALISTS]
    last = {name for name in nearest if bursts[name] <= _NEAR * bursts[nearest[0]]} | {"0"}
    times = time_variants({name: variants[name] for name in sorted(last, key=int)}, clock, _LAST)
    seconds = {name: each.sustained.median for name, each in times.items() if each.sustained is not None}
    return [(runs[int(name)][0], seconds[name]) for name in sorted(seconds, key=lambda name: seconds[name])]
