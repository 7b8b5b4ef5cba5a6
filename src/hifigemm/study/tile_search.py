"""The fastest of some tiles: all in bursts, then the quickest of them sustained.

At the limit of power a tile that moves fewer bytes may run at higher clocks, which no burst shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hifigemm.study.gpu_timing import Clock, Method, time_bursts, time_variants

__all__ = ["fastest"]

T = TypeVar("T")

_FIRST = Method(pause=0.0, warm=1, calls=(1, 16), span=0.002, bursts=5)
_LAST = Method(pause=0.1, warm=1, bursts=1, sustained=0.5, runs=2)
_NEAR = 1.06
"""Sustained runs of one card differ by a few percent, and so do bursts."""
_FINALISTS = 4


def fastest(run: Callable[[T], object], tiles: Sequence[T], clock: Clock) -> T:
    """The tile of the shortest sustained time among those of the shortest bursts.

    Parameters
    ----------
    run : callable
        Launches the product with a tile. Its operands must be random, never zeros.
    tiles : sequence
    clock : Clock

    Returns
    -------
    One of the tiles

    Raises
    ------
    ValueError
        There are none.
    """
    if not tiles:
        raise ValueError("no tiles to choose from")
    variants = {str(i): lambda tile=tile: run(tile) for i, tile in enumerate(tiles)}
    bursts = {name: timing.median for name, timing in time_bursts(variants, clock, _FIRST).items()}
    nearest = sorted(bursts, key=lambda name: bursts[name])[:_FINALISTS]
    last = {name: variants[name] for name in nearest if bursts[name] <= _NEAR * bursts[nearest[0]]}
    if len(last) == 1:
        return tiles[int(nearest[0])]
    runs = {name: times.sustained for name, times in time_variants(last, clock, _LAST).items()}
    seconds = {name: timing.median for name, timing in runs.items() if timing is not None}
    return tiles[int(min(seconds, key=lambda name: seconds[name]))]
