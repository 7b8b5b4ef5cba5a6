"""A number of the device in the memory of the host."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from hifigemm.kernels.runtime import host_word as module
from hifigemm.kernels.runtime.host_word import HostWord, HostWords, send
from hifigemm.kernels.runtime.recording import run_recorded

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def test_numbers_arrive():
    word = HostWord(DEVICE)
    for number in (0, 7, 2**62):
        word.clear()
        run_recorded(
            send, torch.tensor([number], dtype=torch.int64, device=DEVICE), word.tensor
        )
        assert word.read() == number


def test_two_numbers_come_in_one():
    word = HostWord(DEVICE)
    word.clear()
    numbers = torch.tensor([5, 9], dtype=torch.int64, device=DEVICE)
    run_recorded(send, numbers, word.tensor, 32)
    assert word.read() == 5 + (9 << 32)


def test_calls_one_after_the_other_share_a_word():
    words = HostWords(DEVICE)
    sent = []

    def launch(number, word):
        sent.append(word.data_ptr())
        numbers = torch.tensor([number], dtype=torch.int64, device=DEVICE)
        run_recorded(send, numbers, word)

    for number in (4, 0, 9):
        assert words.number_from(partial(launch, number)) == number
    assert len(set(sent)) == 1

    # A call that begins during another one has its own.
    def launch_after_another(word):
        assert words.number_from(partial(launch, 2)) == 2
        launch(3, word)

    assert words.number_from(launch_after_another) == 3
    assert sent[3] != sent[4]


def test_memory_of_a_wait_that_ends_early_is_nobody_elses():
    words = HostWords(DEVICE)
    before = len(module._abandoned)
    given = []

    def interrupt(word):
        given.append(word)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        words.number_from(interrupt)
    (abandoned,) = module._abandoned[before:]
    assert abandoned.tensor is given[0]
    words.number_from(lambda word: given.append(word.fill_(5)))
    assert given[1] is not given[0]
    assert len(module._abandoned) == before + 1


def test_a_number_that_nothing_sends_raises():
    word = HostWord(DEVICE)
    word.clear()
    with pytest.raises(RuntimeError, match="no launch has sent"):
        word.read()


@pytest.mark.parametrize("soon", [10.0, 0.0])
def test_the_host_waits_and_lets_other_threads_run(monkeypatch, soon):
    """Without and with pauses; the number comes from another thread."""
    monkeypatch.setattr(module, "_SOON", soon)
    word = HostWord(DEVICE)
    word._is_pinned = True
    stream = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(word, "_stream", lambda: stream)
    word.clear()

    def write():
        time.sleep(5e-3)
        word._number[0] = 3

    writer = threading.Thread(target=write)
    started = time.perf_counter()
    writer.start()
    assert word.read() == 3
    assert time.perf_counter() - started < 5.0
    writer.join()


def test_errors_of_the_device_end_the_wait(monkeypatch):
    def query():
        raise RuntimeError("an error of the device")

    monkeypatch.setattr(module, "_SOON", 0.0)
    word = HostWord(DEVICE)
    word._is_pinned = True
    monkeypatch.setattr(word, "_stream", lambda: SimpleNamespace(query=query))
    word.clear()
    with pytest.raises(RuntimeError, match="an error of the device"):
        word.read()
