"""The interface of an engine: each engine, lowering and executable has what it says,
with its parameters.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import available, engine_for
from hifigemm.engines.rates import H200
from hifigemm.model.engine import Costs, Engine, Lowering, MemoryLimits
from hifigemm.model.executable import Executable, Signature
from hifigemm.numerics.blocking import BLOCK_ENTRIES

ENGINES = [
    pytest.param(name, marks=pytest.mark.torch if name == "torch" else [])
    for name in available()
]


def members(protocol):
    """Names of methods and properties that a protocol asks for."""
    return [
        name
        for name, value in vars(protocol).items()
        if inspect.isfunction(value) or isinstance(value, property)
        if not name.startswith("_") or name in ("__call__", "__hash__")
        if name not in ("__init__", "__subclasshook__")
    ]


def check(x, protocol):
    """x has all members of a protocol, and its methods the same parameters."""
    for name in members(protocol):
        asked = vars(protocol)[name]
        assert hasattr(x, name), name
        if isinstance(asked, property) or name == "__hash__":
            continue
        parameters = list(inspect.signature(asked).parameters.values())[1:]
        found = inspect.signature(getattr(x, name)).parameters
        assert list(found) == [p.name for p in parameters], name
        for p in parameters:
            assert (found[p.name].kind, found[p.name].default) == (p.kind, p.default)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_have_what_the_interface_asks_for(name):
    engine = engine_for(name)
    check(engine, Engine)
    assert engine.name == name
    assert hash(engine) == hash(engine_for(name))
    assert {spec.name for spec in engine.products.values()} == set(engine.products)


@pytest.mark.torch
def test_the_engine_of_a_gpu_has_what_the_interface_asks_for():
    torch = pytest.importorskip("torch")
    from hifigemm.engines.cuda.engine import CudaEngine
    from hifigemm.engines.cuda.native import NativeLowering

    asked = members(Engine)
    assert "rounded_product" in asked
    engine = CudaEngine(torch.device("cuda"))
    for name in asked:
        assert name in dir(CudaEngine), name
        own = getattr(CudaEngine, name)
        if inspect.isfunction(own) and name != "__hash__":
            check(engine, type("One", (), {name: vars(Engine)[name]}))
    a = np.ones((3, 4))
    lowering = NativeLowering(hg.make_plan(a, a.T, scheme="native"))
    check(lowering, Lowering)


def test_costs_of_a_device_have_what_the_interface_asks_for():
    check(H200, Costs)


def test_a_lowering_of_an_engine_has_what_the_interface_asks_for():
    a, b = np.ones((1, 3, 4)), np.ones((1, 4, 5))
    for options in ({"scheme": "native"}, {"accuracy": "correct"}):
        plan = hg.make_plan(a[0], b[0], **options)
        lowering = engine_for("numpy").lowering(plan)
        if lowering is not None:
            check(lowering, Lowering)
            check(lowering.lower(Signature(a, b, (3, 5))), Executable)


def test_defaults_leave_the_memory_that_is_free_unknown():
    memory = MemoryLimits()
    assert memory.free() is None
    assert memory.block_entries == BLOCK_ENTRIES
    assert memory.least_workspace == 2**28
