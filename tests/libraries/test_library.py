"""What all libraries share: names, the host, and what is asked of PyTorch."""

from __future__ import annotations

import pytest

from hifigemm.libraries import NUMPY, TorchLibrary, library
from hifigemm.libraries.cupy_arrays import CupyLibrary
from hifigemm.libraries.jax_arrays import JaxLibrary


def test_libraries_are_equal_by_kind_and_device():
    assert TorchLibrary("cuda:0") == TorchLibrary("cuda:0")
    assert TorchLibrary("cuda:0") != CupyLibrary("cuda:0")
    assert TorchLibrary() != NUMPY
    assert hash(JaxLibrary("cpu")) == hash(JaxLibrary("cpu"))


def test_a_library_says_where_its_arrays_lie():
    assert [str(x) for x in (NUMPY, TorchLibrary(), TorchLibrary("cuda:1"))] == [
        "numpy",
        "torch",
        "torch on cuda:1",
    ]
    assert str(JaxLibrary("cpu", "TFRT_CPU_1")) == "jax on TFRT_CPU_1"
    assert NUMPY.on_host
    assert not CupyLibrary("cuda:0").on_host


def test_a_library_without_pytorch_asks_for_it(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    with pytest.raises(TypeError, match=r"x is there, .* install torch"):
        library.check_torch("x is there")
