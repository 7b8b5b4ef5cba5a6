"""The interface of an engine: each engine and each program has what it says, with its
parameters.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import available, engine_for
from hifigemm.engines.rates import H200
from hifigemm.model.engine import (
    Costs,
    Engine,
    MemoryLimits,
    Outcome,
    Program,
    RecordedDecision,
)
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
    from hifigemm.engines.cuda.engine import CudaEngine, NativeProgram

    asked = members(Engine)
    assert "rounded_product" in asked
    engine = CudaEngine(torch.device("cuda"))
    for name in asked:
        assert name in dir(CudaEngine), name
        own = getattr(CudaEngine, name)
        if inspect.isfunction(own) and name != "__hash__":
            check(engine, type("One", (), {name: vars(Engine)[name]}))
    a = np.ones((3, 4))
    program = NativeProgram(hg.make_plan(a, a.T, scheme="native"))
    check(program, Program)


def test_costs_of_a_device_have_what_the_interface_asks_for():
    check(H200, Costs)


def test_a_program_of_an_engine_has_what_the_interface_asks_for():
    a, b = np.ones((3, 4)), np.ones((4, 5))
    for options in ({"scheme": "native"}, {"accuracy": "correct"}):
        program = engine_for("numpy").compile(hg.make_plan(a, b, **options))
        if program is not None:
            check(program, Program)


def test_defaults_leave_the_memory_that_is_free_unknown():
    memory = MemoryLimits()
    assert memory.free() is None
    assert memory.block_entries == BLOCK_ENTRIES
    assert memory.least_workspace == 2**28


def test_outcomes_share_no_notes():
    first, second = (Outcome(np.zeros(1), 0.0, 1.0) for _ in range(2))
    first.notes.append("escalated")
    assert second.notes == []
    assert second.certificate is None


def test_a_certificate_does_not_change():
    certificate = RecordedDecision(True, hg.Native(), 2.0**-50, 1, 8)
    with pytest.raises(AttributeError):
        certificate.holds = False
