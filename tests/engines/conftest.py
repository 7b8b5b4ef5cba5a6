"""The engine of a GPU is tested where there is torch and Triton, on the CPU too.

Triton's interpreter runs the plain kernels where there is no CUDA device; it is chosen
before triton is imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore = ["cuda"]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_itemcollected(item):
    """Tests of the engine of a GPU carry the marker `torch`."""
    if "cuda" in item.path.parts:
        item.add_marker("torch")


def _take_one_element_as_index():
    """Let the interpreter of Triton 3.6 take bounds of loops from arrays of one
    element, which NumPy 2.4 refuses.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _leave_out_what_is_dropped():
    """Keep the interpreter from work without effect, which takes most of its time.

    Whether integers overflow is computed, but asserted in debug mode only. A call of a
    device function patches the language anew, though such a patch stays, and the launch
    makes those of the kernel's own module.
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
    """Keep NumPy's dtypes by the names of Triton's; the interpreter makes a table of
    all of them for each value.
    """
    from triton.runtime import interpreter

    made, kept = interpreter._get_np_dtype, {}

    def found(dtype):
        name = dtype.scalar.name
        if name not in kept:
            kept[name] = made(dtype)
        return kept[name]

    interpreter._get_np_dtype = found


def _make_types_once():
    """Keep the type of each kind of block with the shape of its tensors; the
    interpreter makes them for each value.

    The type of a tuple, which hardly anything asks for, is made when it is asked for,
    and a type equals itself.
    """
    from triton.language import core

    kept = {}
    own_block = core.block_type.__init__
    own_tuple = core.tuple.__init__
    own_equal = core.dtype.__eq__
    shape_of_scalars = core.constexpr(1), core.tuple([])

    def block_type(self, element_ty, shape):
        space = getattr(element_ty, "address_space", None)
        key = (
            element_ty.name,
            space,
            *[s.value if isinstance(s, core.constexpr) else s for s in shape],
        )
        if key not in kept:
            own_block(self, element_ty, shape)
            self.of_tensors = (
                core.constexpr(self.numel),
                core.tuple([core.constexpr(s) for s in self.shape]),
            )
            kept[key] = dict(vars(self))
        vars(self).update(kept[key])

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = (
            type.of_tensors if type.is_block() else shape_of_scalars
        )

    def make_tuple(self, args, type=None):
        if type is not None:
            own_tuple(self, args, type)
        else:
            self.values, self.known_type = list(args), None

    def type_of_tuple(self):
        if self.known_type is None:
            self.known_type = core._type_for_tuple_values(self.values)
        return self.known_type

    core.block_type.__init__, core.tensor.__init__, core.tuple.__init__ = (
        block_type,
        tensor,
        make_tuple,
    )
    core.tuple.type = property(
        type_of_tuple, lambda self, type: setattr(self, "known_type", type)
    )
    core.dtype.__eq__ = lambda self, other: self is other or own_equal(self, other)


if os.environ.get("TRITON_INTERPRET") == "1":
    _take_one_element_as_index()
    _leave_out_what_is_dropped()
    _name_dtypes_once()
    _make_types_once()


@pytest.fixture
def engine():
    """An engine for the kernels of a GPU; without one, on tensors of the CPU. Programs
    of other tests are gone.
    """
    from hifigemm.base.store import forget
    from tests.engines.stand_in import StandIn

    forget()
    yield StandIn()
    forget()


@pytest.fixture
def recordings(monkeypatch):
    """The launch lists that are recorded, and how often each is compiled."""
    from hifigemm.base.store import forget
    from hifigemm.kernels.runtime import launch_list, recording

    forget()
    lists = []

    class Noted(launch_list.LaunchList):
        def __init__(self, device):
            super().__init__(device)
            self.compilations = 0
            lists.append(self)

        def compile(self):
            self.compilations += 1
            return super().compile()

    monkeypatch.setattr(recording, "LaunchList", Noted)
    return lists


@pytest.fixture
def as_on_gpu(engine, monkeypatch):
    """The engine, to which the public functions give tensors of the CPU as they give
    those of a GPU to its engine.
    """
    from tests.engines.stand_in import take_as_device

    take_as_device(engine, monkeypatch)
    return engine


@pytest.fixture
def assert_equal(assert_same_bits):
    """Equal dtypes and bits of nested results, one of them of device arrays."""
    from hifigemm.engines.device_array import unwrap
    from tests.engines.device_arrays import canonical, leaves, on_device, on_host

    def check(found: Any, expected: Any) -> None:
        pairs = list(zip(leaves(found), leaves(expected), strict=True))
        assert pairs
        for x, y in pairs:
            if isinstance(y, str | None):
                assert x == y
                continue
            if isinstance(y, np.ndarray):
                assert x.dtype == y.dtype
                assert (
                    unwrap(x).dtype
                    == unwrap(
                        on_device(
                            y[..., :0].view(np.int64) if y.dtype == np.uint64 else y
                        )
                    ).dtype
                )
            assert_same_bits(canonical(on_host(x)), canonical(np.asarray(y)))

    return check
