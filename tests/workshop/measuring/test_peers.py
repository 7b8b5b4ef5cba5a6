from __future__ import annotations

import numpy as np
import pytest

from hifigemm.workshop.measuring import peers
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cases import measure
from hifigemm.workshop.measuring.peers import Peer
from hifigemm.workshop.measuring.rows import rows
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(peers, "_PEERS", [])


@pytest.mark.parametrize(("factor", "status"), [(1.0, "timed"), (1.001, "refused")])
def test_peers_are_judged_like_everybody(registry, factor, status):
    def prepare(a, b, out):
        return lambda: np.multiply(a @ b, factor, out=out)

    peers._PEERS.append(
        Peer("other", lambda: True, lambda device, load: device == "cpu", prepare)
    )
    load = Workload(20, 20, 20)
    assert [peer.name for peer in peers.available("cpu", load)] == ["other"]
    native, other = measure(load, ["native", "other"], ["eager"], ARRAYS, METHOD)
    assert other.status.startswith(status)
    found = rows(load, [native, other], {})
    assert (found[0]["ratio_to_best_peer"] == "") == (status == "refused")


@pytest.mark.parametrize(
    ("there", "text"), [(False, "is not installed"), (True, "does not multiply")]
)
def test_peers_that_are_not_there_fail(registry, there, text):
    peers._PEERS.append(
        Peer(
            "other",
            lambda: there,
            lambda device, load: False,
            lambda a, b, out: lambda: None,
        )
    )
    [outcome] = measure(Workload(2, 2, 2), ["other"], ["eager"], ARRAYS, METHOD)
    assert text in outcome.status
    assert not outcome.refused
