"""Arrays of CuPy: their library, and the memory that they share with tensors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
from hifigemm.engines.device_array import wrap  # noqa: E402
from hifigemm.libraries import library_of  # noqa: E402
from hifigemm.libraries.cupy_arrays import CupyLibrary  # noqa: E402
from tests.cupy_arrays import unread  # noqa: E402


@pytest.mark.parametrize(
    "of_layout",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[1:, ::2],
        lambda x: x[:0],
        lambda x: x[1, 1],
    ],
)
def test_an_array_of_cupy_keeps_the_tensor_in_whose_memory_it_lies(of_layout):
    storage = torch.zeros((4, 6))
    tensor, kept = of_layout(storage), weakref.ref(storage.untyped_storage())
    array = CupyLibrary("cuda:0").to_native(wrap(tensor))
    assert (array.shape, array.dtype, array.device.id) == (tensor.shape, np.float32, 0)
    assert array.data.ptr == tensor.data_ptr()
    assert array.size == 0 or array.strides == tuple(
        4 * stride for stride in tensor.stride()
    )
    del storage, tensor
    part = array[...]
    del array
    gc.collect()
    assert kept() is not None
    del part
    gc.collect()
    assert kept() is None


def test_an_array_is_of_its_library_and_device(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert library_of(("a", unread((2, 3)))) == CupyLibrary("cuda:0")
    with pytest.raises(TypeError, match=r"a is of cupy on cuda:0, b is of numpy"):
        library_of(("a", unread((2, 3))), ("b", np.ones(3)))
