"""Buffers know of their views what torch knows of those of a tensor: shapes, strides,
places.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.kernels.runtime.buffers import contiguous_strides
from hifigemm.kernels.runtime.launch_list import LaunchList

DTYPES = [
    torch.int8,
    torch.float16,
    torch.int32,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


def buffer_of(x):
    """The buffer of an operand that is laid out as a tensor, and the address of the
    operand.
    """
    return LaunchList(torch.device("cpu")).operand(x), x.data_ptr()


def assert_alike(buffer, x, base):
    """The buffer says of itself what the tensor does; `base` is the address of the
    operand of both.
    """
    assert (buffer.shape, buffer.stride(), buffer.dtype) == (
        tuple(x.shape),
        x.stride(),
        x.dtype,
    )
    assert buffer.offset == x.data_ptr() - base or x.numel() == 0
    assert buffer.numel() == x.numel()
    assert buffer.ndim == x.ndim
    assert buffer.is_contiguous() == x.is_contiguous()
    assert buffer.is_complex() == x.is_complex()
    assert (buffer.device, buffer.is_cuda) == (x.device, x.is_cuda)
    assert buffer.data_ptr() & 15 == x.data_ptr() & 15 or x.numel() == 0
    assert [buffer.stride(i) for i in range(x.ndim)] == list(x.stride())
    if x.ndim:
        assert len(buffer) == len(x)


@st.composite
def tensors(draw):
    """Contiguous tensors, transposed ones, and parts of larger ones that do not begin
    at a multiple of 16 bytes.
    """
    shape, dtype = draw(SIZES), draw(st.sampled_from(DTYPES))
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.integers(0, 2)) for _ in shape]
    whole = torch.zeros([shape[i] + gap for i, gap in zip(order, gaps)], dtype=dtype)
    part = whole[tuple(slice(gap, None) for gap in gaps)]
    return part.permute([order.index(i) for i in range(len(shape))])


@st.composite
def indices(draw, shape):
    """Integers and slices for some of the axes."""
    found = []
    for size in shape[: draw(st.integers(1, len(shape)))]:
        if size and draw(st.booleans()):
            found.append(draw(st.integers(-size, size - 1)))
        else:
            ends = st.none() | st.integers(-size - 2, size + 2)
            found.append(
                slice(draw(ends), draw(ends), draw(st.none() | st.integers(1, 3)))
            )
    return tuple(found) if len(found) > 1 or draw(st.booleans()) else found[0]


@st.composite
def changes(draw, x):
    """A function that takes tensors and buffers alike."""
    kind = draw(
        st.sampled_from(
            ["index", "view", "dtype", "expand", "unbind", "split", "strided", "real"]
        )
    )
    if x.ndim == 0 or (x.ndim == 1 and kind == "index"):
        kind = "strided" if x.ndim == 0 else "split"
    if kind == "index":
        where = draw(indices(tuple(x.shape)))
        return lambda y: y[where]
    is_plain = x.numel() > 0 and x.stride() == contiguous_strides(tuple(x.shape))
    if kind == "view" and is_plain:
        left = draw(
            st.sampled_from([n for n in range(1, x.numel() + 1) if x.numel() % n == 0])
        )
        wanted = draw(
            st.sampled_from(
                [(left, -1), (-1,), (left, 1, x.numel() // left), tuple(x.shape)]
            )
        )
        together = draw(st.booleans())
        return lambda y: y.view(wanted) if together else y.view(*wanted)
    if kind == "dtype":
        sizes = [d for d in DTYPES if d.itemsize == x.dtype.itemsize]
        if is_plain:
            sizes += [
                d for d in DTYPES if x.shape[-1] * x.dtype.itemsize % d.itemsize == 0
            ]
        sizes = [
            d for d in sizes if x.storage_offset() * x.dtype.itemsize % d.itemsize == 0
        ]
        dtype = draw(st.sampled_from(sizes))
        return lambda y: y.view(dtype)
    if kind == "expand":
        front = draw(st.lists(st.integers(2, 3), max_size=1))
        wanted = [
            draw(st.sampled_from([-1, n, 4]))
            if n == 1
            else draw(st.sampled_from([-1, n]))
            for n in x.shape
        ]
        return lambda y: y.expand(*front, *wanted)
    if kind == "unbind" and len(x):
        at = draw(st.integers(0, len(x) - 1))
        return lambda y: y.unbind()[at]
    if kind == "split":
        first = draw(st.integers(0, len(x)))
        second, at = draw(st.integers(0, len(x) - first)), draw(st.integers(0, 2))
        return lambda y: y.split([first, second, len(y) - first - second])[at]
    if kind == "strided" and x.numel():
        sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
        steps = [0 for _ in sizes]
        return lambda y: y.as_strided(tuple(sizes), tuple(steps))
    if kind == "real" and x.is_complex():
        return lambda y: (
            torch.view_as_real(y) if isinstance(y, torch.Tensor) else y.real_view()
        )
    return lambda y: y[:]


@given(st.data())
def test_views_are_those_of_a_tensor(data):
    x = data.draw(tensors())
    buffer, base = buffer_of(x)
    assert_alike(buffer, x, base)
    for _ in range(data.draw(st.integers(1, 4))):
        if x.ndim == 0:
            break
        change = data.draw(changes(x))
        buffer, x = change(buffer), change(x)
        assert_alike(buffer, x, base)


@given(SIZES)
def test_contiguous_strides_are_those_of_torch(shape):
    assert contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


def test_scratch_memory_is_contiguous():
    launches = LaunchList(torch.device("cpu"))
    for make in (launches.empty, launches.zeros):
        made = make((2, 0, 3), torch.float64)
        assert_alike(made, torch.empty((2, 0, 3), dtype=torch.float64), 0)
        made = make((2, 3), torch.int16)
        assert (made.shape, made.strides, made.dtype, made.offset) == (
            (2, 3),
            (3, 1),
            torch.int16,
            0,
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.view(7, 2),
        lambda x: x.view(-1, 7),
        lambda x: x[:, ::2].view(-1),
        lambda x: x[:, ::2].view(torch.int64),
        lambda x: x[:, :3].view(torch.int64),
        lambda x: x[4],
        lambda x: x.expand(3, 5),
        lambda x: x.expand(5),
    ],
)
def test_views_that_torch_refuses_are_refused(change):
    x = torch.zeros((4, 5), dtype=torch.int32)
    with pytest.raises((RuntimeError, IndexError)):
        change(x)
    with pytest.raises((ValueError, IndexError)):
        change(buffer_of(x)[0])


def test_behind_is_where_so_many_entries_end():
    x = torch.zeros((4, 6), dtype=torch.float32)
    buffer, base = buffer_of(x[1:])
    assert buffer.behind(9).offset == 36
    assert buffer[1:].behind(2)[0, 1].offset == x[2:].data_ptr() - base + 12
    assert math.prod(buffer.behind(9).shape) == 18
