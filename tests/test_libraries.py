"""Whose arrays come in: one library and one device for all operands, and results of the
same kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import NUMPY, Library, library_of

GPU = Library("torch", "cuda:0")


def prepared_on(library):
    """An operand that was prepared elsewhere."""
    a = np.ones((3, 3))
    return replace(
        hg.prepare(a, "left", plan=hg.make_plan(a, a, scheme="ozaki1")), library=library
    )


class Foreign:
    """An array of a library that is not known here."""

    def __dlpack__(self):
        raise AssertionError("nothing is converted")


def test_what_numpy_converts_counts_as_numpy():
    assert library_of(("a", [[1.0]]), ("b", [[2.0]])) == NUMPY
    assert library_of(("a", np.ones(2)), ("b", [1, 2]), ("out", None)) == NUMPY
    assert library_of(("a", np.float64(1))) == NUMPY
    assert library_of() == NUMPY
    assert (str(NUMPY), str(GPU)) == ("numpy", "torch on cuda:0")
    assert NUMPY.on_host
    assert not GPU.on_host
    with NUMPY.active():
        pass


def test_prepared_operands_bring_their_library():
    assert library_of(("a", prepared_on(GPU)), ("b", None)) == GPU
    with pytest.raises(
        TypeError, match="a is of torch on cuda:0, b is of numpy; nothing is copied"
    ):
        library_of(("a", prepared_on(GPU)), ("b", np.ones((3, 3))))
    with pytest.raises(
        ValueError, match="a is of torch on cuda:0, b is of torch on cuda:1"
    ):
        library_of(
            ("a", prepared_on(GPU)), ("b", prepared_on(Library("torch", "cuda:1")))
        )
    with pytest.raises(TypeError, match="torch on cuda:0"):
        hg.matmul(prepared_on(GPU), np.ones((3, 3)))
    with pytest.raises(ValueError, match="b is of torch, out is of torch on cuda:0"):
        library_of(
            ("a", [1.0]),
            ("b", prepared_on(Library("torch", "cpu"))),
            ("out", prepared_on(GPU)),
        )


@pytest.mark.parametrize("call", [hg.matmul, hg.gemm, hg.make_plan])
def test_arrays_of_other_libraries_are_refused_by_name(call):
    with pytest.raises(TypeError, match=r"Foreign.*from_dlpack"):
        call(Foreign(), np.ones((2, 2)))


def test_numpy_arrays_are_taken_as_they_are():
    a = np.ones((3, 2))
    assert NUMPY.asarray(a, "a") is a
    assert NUMPY.owns(a)
    assert not NUMPY.owns([1.0])
    assert not GPU.owns(a)
    assert NUMPY.out_view(a, (1, 3, 2), a) is None
    assert NUMPY.to_native(a) is a
    scalar = NUMPY.to_native(np.array(2.0))
    assert isinstance(scalar, np.float64)


def test_scalars_come_out_of_products_of_vectors():
    x = hg.matmul([1.0, 2.0], [3.0, 4.0])
    assert isinstance(x, np.float64)
    assert x == 11.0


@pytest.mark.parametrize("out", [[[0.0]], "array", 1.0])
def test_outputs_that_are_no_arrays_are_refused(out):
    with pytest.raises(
        TypeError, match=f"out is a {type(out).__name__}; expected an array of numpy"
    ):
        hg.matmul(np.ones((1, 1)), np.ones((1, 1)), out=out)


def test_outputs_that_do_not_fit_are_refused_before_anything_is_done():
    a = np.ones((3, 3))
    read_only = np.broadcast_to(0.0, (3, 3))
    for out, error, message in (
        (np.empty((3, 2)), ValueError, r"\(3, 2\).*\(3, 3\)"),
        (np.empty((3, 3), np.float32), TypeError, "float32.*float64"),
        (read_only, ValueError, "read-only"),
    ):
        for call in (hg.matmul, hg.gemm):
            with pytest.raises(error, match=message):
                call(a, a, out=out)


@pytest.mark.parametrize(
    "scheme", ["auto", "ozaki1", hg.Ozaki2(num_moduli=14, scaling="fast")], ids=str
)
def test_operands_may_be_outputs(make_pair, assert_same_bits, scheme):
    a, b = make_pair("phi_1", 6, 6, 6)
    want = hg.matmul(a, b, scheme=scheme)
    for which in range(2):
        x, y = a.copy(), b.copy()
        out = (x, y)[which]
        assert hg.matmul(x, y, scheme=scheme, out=out) is out
        assert_same_bits(out, want)
    both = a.copy()
    hg.gemm(both, both, both, beta=2.0, scheme=scheme, out=both)
    assert_same_bits(both, hg.gemm(a, a, a, beta=2.0, scheme=scheme))


def test_c_is_not_written_unless_it_is_out(make_pair, assert_same_bits):
    a, b = make_pair("phi_1", 6, 5, 4)
    c = make_pair("phi_2", 6, 4, 4)[0]
    before = c.copy()
    want = hg.gemm(a, b, c, alpha=-0.7, beta=0.3)
    assert_same_bits(c, before)
    assert hg.gemm(a, b, c, alpha=-0.7, beta=0.3, out=c) is c
    assert_same_bits(c, want)


def test_c_of_no_interest_may_be_of_another_library(torch):
    a = np.ones((2, 2))
    assert hg.gemm(a, a, torch.ones(2, 2), beta=0.0).tolist() == [[2.0, 2.0]] * 2
    with pytest.raises(TypeError, match="c is of torch"):
        hg.gemm(a, a, torch.ones(2, 2, dtype=torch.float64), beta=1.0)


def test_tensors_share_memory_with_what_is_taken(torch):
    library = Library("torch", "cpu")
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
