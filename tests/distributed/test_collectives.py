"""What ranks tell each other: words on which all agree, and refusals with the rank."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.distributed import collectives  # noqa: E402
from hifigemm.distributed.board import nbytes_of  # noqa: E402
from hifigemm.distributed.ranks import Ranks  # noqa: E402

MESH = object()
"""A mesh of which nothing is asked."""


@pytest.fixture
def ranks(monkeypatch):
    """ranks(words, said): what all ranks have, as this one, of number 0, comes to know
    it.
    """

    def take(words, said):
        columns = list(zip(*words, strict=True))
        monkeypatch.setattr(
            collectives, "largest", lambda mesh, own: [max(x) for x in columns]
        )
        monkeypatch.setattr(collectives.dist, "get_rank", lambda: 0)
        monkeypatch.setattr(collectives, "gathered", lambda mesh, own: said)

    return take


def words_of(error, facts, monkeypatch):
    """The words that a rank sends to `largest`."""
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(collectives, "largest", lambda mesh, own: sent.append(own) or own)
        patch.setattr(collectives.dist, "get_rank", lambda: 0)
        patch.setattr(collectives, "gathered", lambda mesh, own: [own])
        with suppress(Exception):
            collectives.agree(MESH, error, facts)
    return sent[0]


def test_ranks_that_agree_raise_nothing(ranks, monkeypatch):
    own = words_of(None, "a (2, 3)", monkeypatch)
    ranks([own, own], [(0, None, "a (2, 3)")] * 2)
    collectives.agree(MESH, None, "a (2, 3)")


def test_the_refusal_of_another_rank_is_told_with_its_number(ranks, monkeypatch):
    own = words_of(None, "x", monkeypatch)
    other = words_of(TypeError("no"), "x", monkeypatch)
    ranks([own, other], [(0, None, "x"), (1, "TypeError: no", "x")])
    with pytest.raises(
        hg.PlanError, match=r"^rank 1 refuses the product: TypeError: no$"
    ):
        collectives.agree(MESH, None, "x")


def test_a_rank_raises_its_own_error(ranks, monkeypatch):
    error = TypeError("mine")
    own, other = (words_of(e, "x", monkeypatch) for e in (error, None))
    ranks([own, other], [(0, "TypeError: mine", "x"), (1, None, "x")])
    with pytest.raises(TypeError, match=r"^mine$") as raised:
        collectives.agree(MESH, error, "x")
    assert raised.value is error


@pytest.mark.parametrize("facts", ["y", "w"])
def test_facts_that_differ_are_told_of_both_ranks(ranks, monkeypatch, facts):
    """Whichever of the two digests is larger."""
    words = [words_of(None, x, monkeypatch) for x in ("x", facts)]
    ranks(words, [(0, None, "x"), (1, None, facts)])
    with pytest.raises(
        hg.PlanError, match=rf"rank 0 asks for x; rank 1 asks for {facts}"
    ):
        collectives.agree(MESH, None, "x")


def test_one_rank_has_the_largest_words_and_all_sums(one_rank):
    assert collectives.largest(one_rank, [3, -(2**62), 2**62]) == [3, -(2**62), 2**62]
    group = one_rank.get_group(0)
    x = torch.tensor([3, -4])
    for reduce in (collectives.reduce_largest, collectives.reduce_sum):
        assert reduce(x, [group]) is x
        assert x.tolist() == [3, -4]


def test_errors_are_returned_for_the_others():
    assert collectives.result_or_error(divmod, 7, 2) == ((3, 1), None)
    value, error = collectives.result_or_error(divmod, 7, 0)
    assert value is None
    assert isinstance(error, ZeroDivisionError)


def test_hosts_that_differ_have_no_board(monkeypatch, tmp_path):
    """Numbers then travel by the backend."""
    path = tmp_path / "board"
    path.touch()
    ranks = Ranks(0, (0, 1), None)
    answers = [("here", path), ("there", None)]
    monkeypatch.setattr(collectives, "new_file", lambda count: path)
    monkeypatch.setattr(collectives, "gathered", lambda mesh, entry: answers)
    monkeypatch.setattr(
        collectives, "_largest_by_backend", lambda mesh, words: [int(x) for x in words]
    )
    assert collectives._new_board(MESH, ranks) is None
    assert not path.exists()


def test_if_one_rank_cannot_open_the_board_none_has_it(monkeypatch, tmp_path):
    path = tmp_path / "board"
    path.write_bytes(bytes(nbytes_of(2)))
    ranks = Ranks(0, (0, 1), None)
    answers = [("here", path), ("here", None)]
    monkeypatch.setattr(collectives, "new_file", lambda count: path)
    monkeypatch.setattr(collectives, "gathered", lambda mesh, entry: answers)
    monkeypatch.setattr(collectives, "timeout_of", lambda group: timedelta(minutes=1))
    monkeypatch.setattr(collectives, "_largest_by_backend", lambda mesh, words: [1])
    assert collectives._new_board(MESH, ranks) is None
    assert not path.exists()
