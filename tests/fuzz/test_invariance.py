"""The fuzz of invariance notices faults."""

from __future__ import annotations

import hifigemm as hg
from tests.fuzz import invariance as fuzz


def test_parts_have_the_bits_of_the_whole():
    assert fuzz.main(["--draws", "120"]) == 0


def test_schemes_that_depend_on_other_rows_are_noticed(monkeypatch):
    request = {"scheme": hg.Ozaki2(num_moduli=6)}
    monkeypatch.setattr(fuzz, "REQUESTS", {"accurate": request})
    assert fuzz.main(["--draws", "60"]) == 1
