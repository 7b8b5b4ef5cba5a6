from __future__ import annotations

import numpy as np
import pytest

from hifigemm.cli import main
from hifigemm.workshop import bench
from hifigemm.workshop.measuring.timing import Method


@pytest.fixture
def pair(tmp_path):
    """Names of two .npy files in a fresh folder, and the matrices in them."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 5)), rng.standard_normal((5, 3))
    for name, x in (("a.npy", a), ("b.npy", b)):
        np.save(tmp_path / name, x)
    return str(tmp_path / "a.npy"), str(tmp_path / "b.npy"), a, b


@pytest.fixture
def fails(capsys):
    """fails(argv, code, text): the command ends with this code and one line on stderr
    that contains the text.
    """

    def check(argv, code, text):
        assert main([str(word) for word in argv]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("hifigemm: error: ")
        assert err.count("\n") == 1
        assert text in err
        return err

    return check


@pytest.fixture
def short(monkeypatch):
    """`bench --quick` without pauses and a GPU; the method of its measurements."""
    return shorten(monkeypatch)


def shorten(monkeypatch):
    method = Method(
        pause=0.0, warm=0, calls=(1, 1), bursts=1, sustained=1e-4, runs=1, chunk=1e-4
    )
    monkeypatch.setattr(bench, "QUICK", method)
    monkeypatch.setattr(
        "hifigemm.workshop.measuring.arrays.cuda_is_usable", lambda: False
    )
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._SIZE", {"cpu": 16})
    monkeypatch.setattr(
        "hifigemm.workshop.measuring.ceilings._COPY_BYTES", {"cpu": 1 << 12}
    )
    return method
