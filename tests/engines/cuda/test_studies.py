"""What the studies of a GPU measure, on its engine."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.gpu import common, forward_errors, modes
from hifigemm.workshop.measuring.arrays import CudaArrays, Workload
from hifigemm.workshop.measuring.timing import Clock
from tests.engines.stand_in import DEVICE


class OnDevice(CudaArrays):
    """Tensors where the engine takes them, timed by the host."""

    device = DEVICE

    def clock(self):
        return Clock()

    def meter(self):
        return None

    def describe(self):
        return {"device": "stand-in"}


@pytest.fixture
def machine(as_on_gpu, monkeypatch):
    monkeypatch.setattr(common, "arrays_here", OnDevice)
    found = common.Machine()
    found.engine = None
    return found


@pytest.mark.parametrize("name", ["ozaki1:int8:dp", "ozaki1:fp64:correct"])
def test_stages_of_modes_are_told(machine, name):
    [native, row] = machine.timed(
        Workload(20, 20, 20),
        ("native", name),
        lambda a, b, case: modes.breakdown(machine, case),
    )
    assert (native["status"], row["status"]) == ("timed", "timed")
    assert native.keys().isdisjoint({"seconds_total"})
    assert 0 < row["seconds_products"] <= row["seconds_total"]
    assert row["num_products"] >= int(row["num_slices"]) > 1


def test_norms_of_the_native_product_are_small(machine):
    """At n = 16 a float64 sum errs by less than n u |A||B|, and its entrywise 2-norm by
    less than n u.
    """
    lines = list(forward_errors.measure(machine, 16))
    for line in lines:
        if line["curve"] in ("SGEMM", "DGEMM"):
            u = np.finfo(np.float32 if line["curve"] == "SGEMM" else np.float64).eps / 2
            assert 0 < line["norm_2"] <= 16 * u
