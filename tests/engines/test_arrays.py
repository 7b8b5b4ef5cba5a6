"""Arrays of NumPy and of devices, and the memory that executables take of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hifigemm.engines.arrays import as_array, memory_of, to_device_of, to_host


def test_the_memory_of_an_array_of_numpy_is_the_array():
    x = np.ones((2, 3))
    assert memory_of(x) is x
    assert as_array(x) is x


def test_a_scalar_of_numpy_stays_one():
    x = np.float64(2.0)
    assert memory_of(x) is x


def test_an_array_of_a_subclass_with_a_tensor_stays_an_array():
    class WithTensor(np.ndarray):
        tensor = "of somebody else"

    x = np.ones(3).view(WithTensor)
    assert memory_of(x) is x


def test_the_memory_of_an_array_of_a_device_is_its_tensor(torch):
    tensor = torch.ones((2, 3), dtype=torch.float64)
    array = as_array(tensor)
    assert (array.shape, array.dtype) == ((2, 3), np.float64)
    memory = memory_of(array)
    assert type(memory) is torch.Tensor
    assert memory.data_ptr() == tensor.data_ptr()


@pytest.mark.torch
def test_arrays_of_numpy_load_no_library():
    code = (
        "import sys, numpy as np\n"
        "from hifigemm.engines.arrays import as_array, memory_of\n"
        "memory_of(as_array(np.ones(3)))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "False", done.stderr


def test_axes_of_length_one_with_odd_strides_go_to_a_device(torch):
    # A complex column behind a view of real ones has a stride of half an entry there
    like = as_array(torch.ones(1, dtype=torch.float64))
    pairs = np.arange(12.0).reshape(2, 1, 6).swapaxes(1, 2)
    column = np.ascontiguousarray(pairs.swapaxes(1, 2)).view(complex).swapaxes(1, 2)
    odd = np.lib.stride_tricks.as_strided(column, (2, 3, 1), (48, 16, 8))
    for x in (column, odd, np.zeros((0, 2)), np.float64(3.0).reshape(())):
        moved = to_device_of(like, x)
        assert moved.shape == x.shape
        assert (to_host(moved) == x).all()
