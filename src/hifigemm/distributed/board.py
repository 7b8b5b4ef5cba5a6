"""Numbers that the ranks of one host show each other in memory that they share.

A backend of torch.distributed takes 0.2 ms for an all-reduce of a few words between
processes, and 1 ms where its threads have gone to sleep. Here each rank writes its
numbers and reads those of the others: some microseconds.

Order
    Messages are counted, the same on all ranks. A rank begins one once it has read all
    of the one before, so that the slots of every second message may be written again.
Torn numbers
    Each number x stands beside x ^ t, where t follows from the count of the message.
    What is read counts once all pairs fit: no order of stores or loads is relied on, as
    not every processor keeps one.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

FOLDER = Path("/dev/shm")
"""Files there are memory."""
WORDS = 8
"""Numbers of a message at most."""
_MIXER = 0x9E3779B97F4A7C15
"""An odd number, the golden ratio times 2**64: its multiples share no leading bits."""
_BUSY_SECONDS = 2e-3
"""A rank that waits longer sleeps between two looks, as others may need its core."""
_SLEEP_SECONDS = 5e-5


def nbytes_of(ranks: int) -> int:
    """Bytes of a board."""
    return 2 * ranks * 2 * WORDS * 8


class Board:
    """The board as one rank has it, in a file that all ranks have opened.

    `index` is this rank's own among `numbers`, by which errors name all of them.
    """

    def __init__(
        self, path: Path, index: int, numbers: Sequence[int], timeout: timedelta
    ) -> None:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), nbytes_of(len(numbers)))
        # For even and odd messages: by rank, numbers and their seals. For so few of them
        # arrays of NumPy take longer than Python's integers.
        words = memoryview(memory).cast("q")
        half = len(words) // 2
        self._slots = words[:half], words[half:]
        self._index = index
        self._numbers = tuple(numbers)
        self._seconds = timeout.total_seconds()
        self._count = 0

    def largest(self, words: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks, which call it together.

        Raises RuntimeError: a rank has not come within the timeout.
        """
        self._count += 1
        slots = self._slots[self._count % 2]
        seal = _seal(self._count)
        for slot, x in enumerate(words, 2 * WORDS * self._index):
            slots[slot] = x
            slots[slot + WORDS] = x ^ seal
        start = time.monotonic()
        while True:
            snapshot = slots.tolist()
            by_rank = [
                _numbers_of(snapshot, rank, len(words), seal)
                for rank in range(len(self._numbers))
            ]
            if None not in by_rank:
                return [max(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
            self._wait(start, by_rank)

    def _wait(self, start: float, by_rank: Sequence[list[int] | None]) -> None:
        """Leave the processor to others for a moment; None stands for those ranks that
        have not come.
        """
        waited = time.monotonic() - start
        if waited < _BUSY_SECONDS:
            os.sched_yield()
            return
        time.sleep(_SLEEP_SECONDS)
        if waited > self._seconds:
            entries = zip(self._numbers, by_rank, strict=True)
            late = [number for number, words in entries if words is None]
            raise RuntimeError(
                f"ranks {late} have not joined a product on the mesh of ranks {list(self._numbers)} for {waited:.0f} s"
            )


def _numbers_of(
    snapshot: list[int], rank: int, size: int, seal: int
) -> list[int] | None:
    """The first numbers of a rank; None if one does not fit its seal."""
    start = 2 * WORDS * rank
    numbers = snapshot[start : start + size]
    seals = snapshot[start + WORDS : start + WORDS + size]
    fits = all(x ^ y == seal for x, y in zip(numbers, seals, strict=True))
    return numbers if fits else None


def new_file(ranks: int) -> Path | None:
    """A file for the board of so many ranks; None where there is no such memory."""
    if not hasattr(os, "sched_yield"):
        return None
    path = FOLDER / f"hifigemm-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        path.touch(0o600, exist_ok=False)
        os.truncate(path, nbytes_of(ranks))
    except OSError:
        return None
    return path


def _seal(count: int) -> int:
    """What the numbers of a message are sealed with, as an int64; never 0, as the file
    begins.
    """
    return (count * _MIXER + 2**63) % 2**64 - 2**63
