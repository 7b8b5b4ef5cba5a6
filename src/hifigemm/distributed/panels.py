"""How wide the panels are in which an operand travels while earlier ones are multiplied.

Nothing is multiplied while the first panel travels, so that it is a small one. Panels
are few, as a wide product is quicker than several narrow ones.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hifigemm.distributed.method import Method

MULTIPLE = 256
"""Panels begin at multiples of it, as tiles of products on a GPU do."""
MIN_WIDTH = 512
"""Vectors of the first panel: a product of fewer leaves a GPU idle."""
_MOST_PANELS = 3
_MOST_GROWTH = 16.0
"""A panel is at most so many times as wide as the one before."""
_PANEL_SECONDS = 1e-4
"""What one more panel takes: of the host, and as narrow products are slower."""
_CORRECT_PANEL_SECONDS = 3e-4
"""The same for correct rounding, for whose number of moduli the host waits."""


def panel_seconds_of(method: Method, workspace: int | None) -> float | None:
    """What one more panel takes in products by a method; None if there is one panel.

    That is so where all products wait for a count that rests on both whole operands, as
    nothing can be multiplied meanwhile, unless a workspace bounds what is under way.
    """
    if method.waits and workspace is None:
        return None
    return _CORRECT_PANEL_SECONDS if method.scheme is None else _PANEL_SECONDS


class Pace(NamedTuple):
    """Seconds that a rank takes for an operand in panels, by a model."""

    transfer: float  # of what it lacks
    products: float  # of all panels
    panel: float = 0.0  # what one more panel takes


def growing(size: int, pace: Pace) -> list[slice]:
    """Ranges of `size` vectors, each at most so many times as long as the one before as
    its products hide, none shorter than `MIN_WIDTH`, in steps of `MULTIPLE`.
    """
    if not pace.transfer:
        return [slice(0, size)]
    growth = min(max(pace.products / pace.transfer, 1.0), _MOST_GROWTH)
    shares = [1.0]
    for count in range(2, _MOST_PANELS + 1):
        weights = [growth**i for i in range(count)]
        total = sum(weights)
        saved = (shares[0] - 1.0 / total) * pace.transfer
        is_too_narrow = size / total < MIN_WIDTH / 2
        if saved < pace.panel or is_too_narrow:
            break
        shares = [weight / total for weight in weights]
    edges = {0, size}
    for i in range(1, len(shares)):
        edge = size * sum(shares[:i])
        edges.add(min(-int(-edge // MULTIPLE) * MULTIPLE, size))
    return [slice(start, stop) for start, stop in pairwise(sorted(edges))]
