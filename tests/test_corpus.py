"""The accepted bits of the corpus: a sample here, all of them in `make corpus`."""

from __future__ import annotations

import pytest

from tools import corpus


def test_a_sample_has_the_accepted_bits():
    assert corpus.check(every=53) == 0


def test_a_group_with_other_bits_is_named(monkeypatch, tmp_path, capsys):
    accepted = corpus.ACCEPTED.read_text().replace(",", ",0")
    changed = tmp_path / "corpus.csv"
    changed.write_text(accepted)
    monkeypatch.setattr(corpus, "ACCEPTED", changed)
    assert corpus.check(every=200) == 1
    assert (
        "other bits than in corpus.csv: (1, 1, 1) uniform float32"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("scheme", "accuracy", "is_portable"),
    [
        ("ozaki1", None, True),
        ("auto", "correct", True),
        ("auto", None, False),
    ],
)
def test_results_that_depend_on_a_library_are_left_out(scheme, accuracy, is_portable):
    case = corpus.Case("", scheme, accuracy, multiply=None)
    assert case.is_portable == is_portable
