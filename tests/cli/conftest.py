from __future__ import annotations

import numpy as np
import pytest

from hifigemm.cli import main


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
    """fails(argv, code, text): the command ends with this code and one line on stderr that contains the text."""

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
def refuses(capsys):
    """refuses(argv, text): argparse ends the command with code 2 and a message that contains the text."""

    def check(argv, text):
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in argv])
        assert caught.value.code == 2
        assert text in capsys.readouterr().err

    return check
