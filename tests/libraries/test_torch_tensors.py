"""Tensors of PyTorch on the CPU: read and written in their memory."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import TorchLibrary, library_of


def test_tensors_share_memory_with_what_is_taken(torch):
    library = TorchLibrary("cpu")
    x = torch.zeros(3, 4, dtype=torch.float64).T
    taken = library.asarray(x, "x")
    assert isinstance(taken, np.ndarray)
    assert taken.strides == (8, 32)
    taken[...] = 7.0
    assert (x == 7.0).all()
    assert library.owns(x)
    assert library_of(("a", x), ("b", None)) == library
    given = library.to_native(taken)
    assert isinstance(given, torch.Tensor)
    assert given.shape == (4, 3)
    assert library.to_native(np.array(3.0)).shape == ()
    with pytest.raises(TypeError, match="x is a list; expected an array of torch"):
        library.asarray([1.0], "x")


def test_conjugate_and_negated_views_are_read_as_what_they_stand_for(
    torch, assert_same_bits
):
    z = torch.rand(4, 4, dtype=torch.complex128)
    x, y = z.imag, z.conj().imag
    assert (x.data_ptr(), x.stride()) == (y.data_ptr(), y.stride())
    options = {"accuracy": "correct"}
    assert_same_bits(
        hg.matmul(y, x, **options).numpy(), -hg.matmul(x, x, **options).numpy()
    )
    assert_same_bits(
        hg.matmul(z.conj(), z, **options).numpy(),
        hg.matmul(z.numpy().conj(), z.numpy(), **options),
    )


@pytest.mark.parametrize(
    "view", [lambda z: z.conj(), lambda z: z.conj().imag], ids=["conjugate", "negative"]
)
def test_conjugate_and_negated_outputs_are_filled_or_refused(torch, view):
    out = view(torch.zeros(2, 2, dtype=torch.complex128))
    a = torch.ones(2, 2, dtype=out.dtype)
    try:
        hg.matmul(a, a, out=out)
    except (TypeError, ValueError):
        return
    assert torch.equal(out.resolve_conj().resolve_neg(), a @ a)


def test_outputs_that_overlap_themselves_are_refused(torch):
    a = torch.rand(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="out"):
        hg.matmul(a, a, out=torch.zeros(1, 3, dtype=torch.float64).expand(3, 3))


def test_autocast_does_not_change_products(torch):
    a = torch.rand(30, 30)
    want = hg.matmul(a, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = hg.matmul(a, a)
    assert torch.equal(found, want)


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
def test_subnormals_count_in_a_thread_that_flushes_them(torch, scheme):
    a = torch.tensor([[2.0**-540]], dtype=torch.float64)
    b = torch.tensor([[3 * 2.0**-520]], dtype=torch.float64)
    least = 2.0**-1022
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU knows no such mode")
    try:
        found = hg.matmul(a, b, accuracy="correct", scheme=scheme)
        from_numpy = hg.matmul(a.numpy(), b.numpy(), accuracy="correct", scheme=scheme)
        still = float(np.float64(least) * np.float64(0.5)).hex()
    finally:
        torch.set_flush_denormal(False)
    assert found.view(torch.int64).item() == 3 << 14
    assert from_numpy.view(np.int64)[0, 0] == 3 << 14
    assert float.fromhex(still) == 0.0  # the mode is that of the caller again


def test_scalars_and_operands_count_in_such_a_thread_too(torch):
    one, tiny = np.ones((1, 1)), np.float32([[1e-40]])
    zero = 0 * one
    large = 2.0**1000 * one
    least = 2.0**-1040 * one
    units = one.astype(np.complex64)
    turned, scaled = tiny * np.complex64(1j), 2.0**200 * one
    plan = hg.make_plan(one, one, scheme="ozaki1")
    calls = [
        lambda: hg.gemm(one, zero, tiny, beta=1.0),
        lambda: hg.gemm(large, one, alpha=5e-324),
        lambda: hg.gemm(zero, one, large, beta=5e-324),
        lambda: hg.gemm(least, one, alpha=-1.0),
        lambda: hg.gemm(turned, units, trans_a="C"),
        lambda: hg.matmul(hg.prepare(tiny, "left", plan=plan), scaled, plan=plan),
        lambda: hg.matmul(tiny, scaled, plan=hg.make_plan(tiny, one, scheme="ozaki1")),
    ]
    want = [call().tobytes() for call in calls]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU knows no such mode")
    try:
        found = [call().tobytes() for call in calls]
    finally:
        torch.set_flush_denormal(False)
    assert found == want
    assert all(any(x) for x in found)


def test_dtypes_that_numpy_does_not_have_are_named(torch):
    with pytest.raises(TypeError, match=r"b is a tensor of torch\.float8_e4m3fn"):
        hg.matmul(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.float8_e4m3fn))


def test_results_with_any_stride_of_an_axis_of_length_one_become_tensors(torch):
    values = np.arange(3.0) + 1j
    # NumPy calls such an array contiguous; PyTorch refuses a stride of half an entry.
    columns = np.lib.stride_tricks.as_strided(values, (3, 1), (16, 8))
    tensor = TorchLibrary("cpu").from_memory(columns)
    assert tensor.shape == (3, 1)
    assert tensor.data_ptr() == values.ctypes.data
    assert tensor.tolist() == columns.tolist()
