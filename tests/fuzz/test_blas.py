"""The fuzz of the BLAS notices faults."""

from __future__ import annotations

import pytest

from tests.blas.conftest import LIBRARY
from tests.fuzz import blas as fuzz

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


def test_calls_are_right():
    calls, wrong = fuzz.run(fuzz.Share(1, 0, 1, 64, float("inf")))
    assert not wrong
    assert calls.total() == 64
    assert set(calls) == set(fuzz.NAMES)


def test_a_result_that_is_not_written_is_noticed(monkeypatch):
    monkeypatch.setattr(fuzz, "call", lambda *arguments: None)
    _, wrong = fuzz.run(fuzz.Share(1, 0, 1, 64, float("inf")))
    assert len(wrong) > 16
