"""What Triton made of the kernels is kept."""

import pytest

from tests.kernels import compilations

pytest.importorskip("triton")


def test_what_was_found_is_kept_for_the_same_sources(monkeypatch, tmp_path):
    found = []

    def printed(*given):
        found.append(given)
        return [{"run": len(found)}]

    monkeypatch.setattr(compilations, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(compilations, "printed", printed)
    monkeypatch.setattr(compilations, "hash_of_sources", lambda: "these")
    assert compilations.kept(90, "bits") == [{"run": 1}]
    assert compilations.kept(90, "bits") == [{"run": 1}]
    assert compilations.kept(80, "bits") == [{"run": 2}]
    monkeypatch.setattr(compilations, "hash_of_sources", lambda: "others")
    assert compilations.kept(90, "bits") == [{"run": 3}]
    assert found == [(90, "bits"), (80, "bits"), (90, "bits")]


def test_what_was_found_of_sources_that_change_meanwhile_is_not_kept(
    monkeypatch, tmp_path
):
    versions = iter(range(9))
    monkeypatch.setattr(compilations, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(compilations, "printed", lambda *given: [])
    monkeypatch.setattr(compilations, "hash_of_sources", lambda: next(versions))
    assert compilations.kept(90, "bits") == []
    assert not (tmp_path / "kept").exists()
