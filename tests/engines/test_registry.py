"""Engines by name: those that can be used here, for the devices that they multiply
on.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import registry
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.engines.registry import available, engine_for
from hifigemm.engines.simulated import UNITS, SimulatedEngine


def test_engines_by_name(torch):
    a = torch.rand(5, 5, dtype=torch.float64)
    for name in ("numpy", "torch", "simulated-h100"):
        c, report = hg.matmul(a, a, engine=name, accuracy="correct", return_report=True)
        assert isinstance(c, torch.Tensor)
        assert report.engine == name
    x = a.numpy()
    assert isinstance(hg.matmul(x, x, engine="torch"), np.ndarray)


@pytest.fixture
def without_torch(monkeypatch):
    """As if PyTorch was not installed."""
    monkeypatch.setattr(registry, "_has_torch", lambda: False)
    engine_for.cache_clear()
    yield
    engine_for.cache_clear()


@pytest.mark.usefixtures("without_torch")
def test_without_pytorch_there_are_all_engines_but_that_of_pytorch():
    assert available() == ["numpy", *(f"simulated-{unit}" for unit in UNITS)]
    with pytest.raises(hg.PlanError, match="engine='torch' cannot be used here"):
        engine_for("torch")


def test_every_engine_has_the_name_that_it_is_asked_for_by():
    for name in available():
        assert engine_for(name).name == name


@pytest.mark.parametrize("unit", UNITS)
def test_simulated_engines_have_their_unit(unit):
    engine = engine_for(f"simulated-{unit}")
    assert isinstance(engine, SimulatedEngine)
    assert engine.model is UNITS[unit]


def test_an_unknown_name_names_all_that_can_be_used():
    for name in ("abacus", "", "simulated", "simulated-abacus"):
        with pytest.raises(hg.PlanError) as error:
            engine_for(name)
        assert f"engine={name!r}" in str(error.value)
        assert str(error.value).endswith(", ".join(available()))


def test_engines_of_the_cpu_are_not_for_operands_elsewhere():
    for name in ("numpy", "simulated-h100"):
        with pytest.raises(hg.PlanError, match="the operands are on cuda:1"):
            engine_for(name, "torch", "cuda:1")


def test_without_a_name_the_library_has_its_engine():
    assert type(engine_for(None)) is NumpyEngine
    assert engine_for(None, "jax").name == "numpy"


def test_an_engine_is_made_once():
    assert engine_for("numpy") is engine_for("numpy")
    assert engine_for(None, "numpy", "cpu") is engine_for(None, "numpy", "cpu")


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_operands_on_a_gpu_have_the_engine_of_that_device(torch, library):
    engine = engine_for(None, library, "cuda:1")
    assert engine.name == "torch"
    assert engine.place == torch.device("cuda:1")
    assert engine is not engine_for(None, library, "cuda:0")
    assert engine_for(None, "torch").name == "torch"
