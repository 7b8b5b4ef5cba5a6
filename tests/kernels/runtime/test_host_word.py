"""A number of the device in the memory of the host."""

from __future__ import annotations

import pytest
import torch

from hifigemm.kernels.runtime.host_word import HostWord, send
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


def test_a_number_that_nothing_sends_raises():
    word = HostWord(DEVICE)
    word.clear()
    with pytest.raises(RuntimeError, match="no launch has sent"):
        word.read()
