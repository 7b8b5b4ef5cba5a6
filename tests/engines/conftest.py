"""Kernels and the engine of a GPU are tested where there is torch and Triton, on the CPU too.

Triton's interpreter runs the plain kernels where there is no CUDA device; it is chosen before triton is imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest

if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore = ["kernels", "cuda"]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_itemcollected(item):
    """Tests of kernels and programs carry the marker `torch`: even tiles are counted beside what triton compiles."""
    if {"kernels", "cuda"} & set(item.path.parts):
        item.add_marker("torch")


def _take_one_element_as_index():
    """Let the interpreter of Triton 3.6 take bounds of loops from arrays of one element, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _leave_out_what_is_dropped():
    """Keep the interpreter from work without effect, which takes most of its time.

    Whether integers overflow is computed, but asserted in debug mode only. A call of a device function patches the
    language anew, though such a patch stays, and the launch makes those of the kernel's own module.
    """
    from triton.runtime import interpreter

    builder, seen = interpreter.interpreter_builder, set()
    builder.options = replace(builder.options, sanitize_overflow=False)

    def call(self, *args, **kwargs):
        if self.fn.__module__ not in seen:
            seen.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _name_dtypes_once():
    """Keep NumPy's dtypes by the names of Triton's; the interpreter makes a table of all of them for each value."""
    from triton.runtime import interpreter

    made, kept = interpreter._get_np_dtype, {}

    def found(dtype):
        name = dtype.scalar.name
        if name not in kept:
            kept[name] = made(dtype)
        return kept[name]

    interpreter._get_np_dtype = found


if os.environ.get("TRITON_INTERPRET") == "1":
    _take_one_element_as_index()
    _leave_out_what_is_dropped()
    _name_dtypes_once()


@pytest.fixture
def engine():
    """An engine for the kernels of a GPU; without one, on tensors of the CPU. Programs of other tests are gone."""
    from hifigemm.programs import forget
    from tests.engines.stand_in import StandIn

    forget()
    yield StandIn()
    forget()


@pytest.fixture
def as_on_gpu(engine, monkeypatch):
    """The engine, to which the public functions give tensors of the CPU as they give those of a GPU to its engine."""
    from tests.engines.stand_in import take_as_device

    take_as_device(engine, monkeypatch)
    return engine
