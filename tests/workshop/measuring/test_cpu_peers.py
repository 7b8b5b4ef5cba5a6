"""Packages for CPUs beside this one: what they compute, and which products they take."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.measuring import cpu_peers, peers
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cases import measure
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD


def cancelling(rng, m, k, n):
    """Operands whose sums lose forty bits."""
    a = rng.standard_normal((m, k))
    b = rng.standard_normal((k, n))
    noise = 1 + 2.0**-40 * rng.standard_normal((k, n))
    return np.hstack([a, a]), np.vstack([b, -b * noise])


@pytest.mark.parametrize("name", ["python-flint", "mpmath", "fsum"])
def test_results_are_correctly_rounded(name):
    if not cpu_peers.is_there(name):
        pytest.skip(f"{name} is not installed")
    m, n = (1, 1) if name in cpu_peers.DOT_PRODUCTS else (3, 4)
    a, b = cancelling(np.random.default_rng(1), m, 20, n)
    function = {**cpu_peers.PRODUCTS, **cpu_peers.DOT_PRODUCTS}[name]
    np.testing.assert_array_equal(function(a, b), correctly_rounded(a, b))


@pytest.mark.parametrize("name", ["accupy", "sumprod"])
def test_results_are_those_of_twice_the_precision(name):
    if not cpu_peers.is_there(name):
        pytest.skip(f"{name} is not there")
    m, n = (1, 1) if name in cpu_peers.DOT_PRODUCTS else (3, 4)
    a, b = cancelling(np.random.default_rng(2), m, 20, n)
    function = {**cpu_peers.PRODUCTS, **cpu_peers.DOT_PRODUCTS}[name]
    # Alg. 5.3 of [ORO05]: u |C| and gamma_k^2 |A||B|, each with some room.
    exact = correctly_rounded(a, b)
    bound = 2.0**-52 * abs(exact) + 2 * (40 * 2.0**-53) ** 2 * (abs(a) @ abs(b))
    assert (abs(function(a, b) - exact) <= bound).all()


def test_products_and_dot_products_have_their_peers():
    def names(*shape, device="cpu", dtype="float64"):
        load = Workload(*shape, dtype=dtype)
        return {
            peer.name for peer in peers.peers().values() if peer.supports(device, load)
        }

    assert names(20, 20, 20) == {"python-flint", "mpmath", "accupy"}
    assert names(100, 100, 100) == {"python-flint", "accupy"}
    assert names(1000, 1000, 1000) == set()
    assert names(1, 1, 2**22) == {"fsum", "sumprod"}
    assert names(20, 20, 20, dtype="float32") == set()
    assert "mpmath" not in names(20, 20, 20, device="cuda")


def test_a_benchmark_times_them():
    load = Workload(1, 1, 30)
    outcomes = measure(load, ["native", "fsum"], ["eager"], ARRAYS, METHOD)
    assert [outcome.status for outcome in outcomes] == ["timed", "timed"]
