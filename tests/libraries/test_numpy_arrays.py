"""Arrays of NumPy: taken as they are, written to where `out` says so."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import NUMPY, TorchLibrary

GPU = TorchLibrary("cuda:0")


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
