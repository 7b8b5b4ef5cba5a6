from __future__ import annotations

from hifigemm.workshop.measuring import cublas


class _Library:
    def cublasGetProperty(self, part, place):
        place._obj.value = (13, 10, 2)[part]
        return 0


def test_the_version_of_a_library(monkeypatch):
    monkeypatch.setattr(cublas, "cublas", _Library)
    assert cublas.version_of_cublas() == "13.10.2"


def test_a_machine_without_cublas(monkeypatch):
    monkeypatch.setattr(cublas, "cublas", lambda: None)
    assert cublas.version_of_cublas() is None


def test_a_library_that_is_not_there():
    assert cublas.shared_library("libnothing-of-this-name.so") is None
