"""Arrays of JAX: on a GPU they are tensors of their memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

jax = pytest.importorskip("jax")
from hifigemm.libraries import jax_arrays  # noqa: E402
from tests.jax_arrays import integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("place")


def test_arrays_on_a_gpu_are_tensors_of_their_memory(torch, monkeypatch):
    """What is done with them, done with arrays of the CPU that are said to lie on a
    GPU.
    """
    x = integers((3, 4))
    library = jax_arrays.JaxLibrary("cuda:0", x.device)
    monkeypatch.setattr(jax_arrays, "library_of_jax", lambda x, name: library)
    monkeypatch.setattr(jax_arrays.JaxLibrary, "active", lambda self: nullcontext())
    taken = library.asarray(x, "x")
    assert taken.tensor.data_ptr() == x.unsafe_buffer_pointer()
    made = library.to_native(taken)
    assert isinstance(made, jax.Array)
    assert made.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
