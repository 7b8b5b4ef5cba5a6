"""Numbers that ranks show each other in shared memory."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

pytest.importorskip("torch")

from hifigemm.distributed import board as module
from hifigemm.distributed.board import Board, nbytes_of, new_file

pytestmark = pytest.mark.skipif(not module.FOLDER.is_dir(), reason="Linux alone")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def boards(tmp_path):
    """boards(count, timeout): those of so many ranks, numbered 5, 6 and so on."""

    def made(count, timeout=MINUTE):
        path = tmp_path / "board"
        path.write_bytes(bytes(nbytes_of(count)))
        numbers = range(5, 5 + count)
        return [Board(path, index, numbers, timeout) for index in range(count)]

    return made


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_ranks_get_the_largest_numbers_of_message_after_message(boards, count):
    rng = np.random.default_rng(count)
    extremes = -(2**63), 2**63 - 1, 0
    messages = []
    for i in range(200):
        size = int(rng.integers(1, module.WORDS + 1))
        words = rng.integers(*extremes[:2], (count, size))
        words[rng.integers(count), rng.integers(size)] = extremes[i % 3]
        messages.append(words)
    wanted = [words.max(axis=0).tolist() for words in messages]

    def rank(board, here):
        return [board.largest(words[here].tolist()) for words in messages]

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(rank, boards(count), range(count)))
    assert found == [wanted] * count


def test_a_number_without_its_seal_is_not_there_yet(boards):
    first, second = boards(2)
    found = []
    thread = threading.Thread(target=lambda: found.append(first.largest([3])))
    thread.start()
    second._slots[1][2 * module.WORDS] = 7
    thread.join(0.2)
    assert thread.is_alive()
    assert second.largest([7]) == [7]
    thread.join()
    assert found == [[7]]


def test_numbers_of_earlier_messages_do_not_count(boards):
    """The slots of the first message are those of the third one."""
    first, second = boards(2, timedelta(seconds=0.2))
    with ThreadPoolExecutor(1) as pool:
        for x in (1, 2):
            other = pool.submit(second.largest, [x])
            assert first.largest([x]) == [x]
            other.result()
    with pytest.raises(RuntimeError, match=r"ranks \[6\] have not joined"):
        first.largest([1])


def test_a_rank_that_does_not_come_is_named(boards):
    start = time.monotonic()
    with pytest.raises(
        RuntimeError,
        match=r"^ranks \[5, 7\] have not joined a product on the mesh of ranks \[5, 6, 7\] for \d+ s$",
    ):
        boards(3, timedelta(seconds=0.1))[1].largest([0])
    assert time.monotonic() - start < 30


def test_a_file_has_a_name_of_its_own_and_room_for_all(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    paths = {new_file(4) for _ in range(3)}
    assert len(paths) == 3
    assert {x.stat().st_size for x in paths} == {nbytes_of(4)}
    assert {x.stat().st_mode & 0o077 for x in paths} == {0}


def test_without_memory_for_files_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "FOLDER", tmp_path / "nowhere")
    assert new_file(2) is None
